//! Orthonormal columns that span what given columns span, by Householder reflections.

/// Q of A = Q R with R's diagonal not negative. a: (m, n), m ≥ n; Q: (m, n).
pub(crate) fn orthonormal(a: &[f64], m: usize, n: usize) -> Vec<f64> {
    let mut r = a.to_vec();
    // Reflector j is I − 2 w wᵀ with a unit w (or none), zero before j.
    let mut reflectors: Vec<Vec<f64>> = Vec::new();
    for j in 0..n {
        let mut w: Vec<f64> = (0..m).map(|i| if i < j { 0.0 } else { r[i * n + j] }).collect();
        let length = w.iter().fold(0.0, |l: f64, x| l.hypot(*x));
        w[j] += if w[j] < 0.0 { -length } else { length };
        let norm = w.iter().fold(0.0, |l: f64, x| l.hypot(*x));
        if norm > 0.0 {
            w.iter_mut().for_each(|x| *x /= norm);
        }
        reflect(&w, &mut r, n);
        reflectors.push(w);
    }
    let mut q: Vec<f64> = (0..m * n).map(|i| if i / n == i % n { 1.0 } else { 0.0 }).collect();
    reflectors.iter().rev().for_each(|w| reflect(w, &mut q, n));
    for j in (0..n).filter(|&j| r[j * n + j] < 0.0) {
        (0..m).for_each(|i| q[i * n + j] = -q[i * n + j]);
    }
    q
}

fn reflect(w: &[f64], x: &mut [f64], cols: usize) {
    for c in 0..cols {
        let along: f64 = w.iter().enumerate().map(|(i, w)| w * x[i * cols + c]).sum();
        w.iter().enumerate().for_each(|(i, w)| x[i * cols + c] -= 2.0 * along * w);
    }
}
