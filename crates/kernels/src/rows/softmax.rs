//! log-sum-exp, softmax and log-softmax over rows, and their gradients.
//!
//! A row is shifted by its maximum. A row with +∞ or with nothing but −∞ has no softmax and becomes NaN;
//! its log-sum-exp is that infinity. x, y, dy, dx: (rows, cols).

use crate::math::exponential::exp;
use crate::math::logarithm::log;
use crate::rows::par_rows;
use crate::rows::reduce::{Max, Reduction, Sum, at, reduce, reduction};
use crate::simd::scalar::Lane;
use crate::simd::vector::F32s;
use crate::simd::{Body, dispatch};
use crate::stream::split::SharedMut;

/// y = log Σ eˣ over each row; −∞ for empty rows. y: (rows).
pub fn log_sum_exp(x: &[f32], cols: usize, y: &mut [f32]) {
    let rows = y.len();
    assert_eq!(x.len(), rows * cols, "log_sum_exp: input is not (rows, cols)");
    let y = SharedMut::new(y);
    par_rows(rows, cols, |r| {
        // SAFETY: `par_rows` gives every row to exactly one call.
        let y = unsafe { y.range(r.clone()) };
        dispatch(LogSumExp { x: &x[r.start * cols..r.end * cols], cols, y });
    });
}

/// y = eˣ / Σ eˣ over each row.
pub fn softmax(x: &[f32], cols: usize, y: &mut [f32]) {
    forward(Kind::Plain, x, cols, y);
}

/// y = x − log Σ eˣ over each row.
pub fn log_softmax(x: &[f32], cols: usize, y: &mut [f32]) {
    forward(Kind::Log, x, cols, y);
}

/// dx = y (dy − Σ y dy), with y the result of [`softmax`].
pub fn softmax_backward(y: &[f32], dy: &[f32], cols: usize, dx: &mut [f32]) {
    backward(Kind::Plain, y, dy, cols, dx);
}

/// dx = dy − eʸ Σ dy, with y the result of [`log_softmax`].
pub fn log_softmax_backward(y: &[f32], dy: &[f32], cols: usize, dx: &mut [f32]) {
    backward(Kind::Log, y, dy, cols, dx);
}

/// y = x\[class\] − log Σ eˣ of each row. Classes count columns. y: (rows).
pub fn log_likelihood(x: &[f32], classes: &[i64], cols: usize, y: &mut [f32]) {
    require_classes(x, classes, cols, y);
    let y = SharedMut::new(y);
    par_rows(classes.len(), cols, |r| {
        // SAFETY: `par_rows` gives every row to exactly one call.
        let y = unsafe { y.range(r.clone()) };
        dispatch(LogLikelihood { x: &x[r.start * cols..r.end * cols], classes: &classes[r], cols, y });
    });
}

/// dx = dy (1 at the class, 0 elsewhere − softmax(x)), for y = [`log_likelihood`]. dy: (rows).
pub fn log_likelihood_backward(x: &[f32], classes: &[i64], dy: &[f32], cols: usize, dx: &mut [f32]) {
    require_classes(x, classes, cols, dy);
    assert_eq!(x.len(), dx.len(), "log_likelihood: scores and their gradient differ in length");
    let dx = SharedMut::new(dx);
    par_rows(classes.len(), cols, |r| {
        let part = r.start * cols..r.end * cols;
        // SAFETY: `par_rows` gives every row to exactly one call.
        let dx = unsafe { dx.range(part.clone()) };
        let (classes, dy) = (&classes[r.clone()], &dy[r]);
        dispatch(LogLikelihoodBackward { x: &x[part], classes, dy, cols, dx });
    });
}

/// One class and one other number for each row, and no class that is none.
fn require_classes(x: &[f32], classes: &[i64], cols: usize, per_row: &[f32]) {
    let n = classes.len();
    assert!(x.len() == n * cols && per_row.len() == n, "log_likelihood: operands differ in their rows");
    assert!(classes.iter().all(|c| (0..cols as i64).contains(c)), "log_likelihood: a class is out of range");
}

#[derive(Clone, Copy)]
enum Kind {
    Plain,
    Log,
}

fn forward(kind: Kind, x: &[f32], cols: usize, y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "softmax: input and output differ in length");
    let rows = rows_of(x.len(), cols);
    let y = SharedMut::new(y);
    par_rows(rows, cols, |r| {
        let part = r.start * cols..r.end * cols;
        // SAFETY: `par_rows` gives every row to exactly one call.
        let y = unsafe { y.range(part.clone()) };
        dispatch(Forward { kind, x: &x[part], cols, y });
    });
}

fn backward(kind: Kind, y: &[f32], dy: &[f32], cols: usize, dx: &mut [f32]) {
    assert!(y.len() == dx.len() && dy.len() == dx.len(), "softmax_backward: slices differ in length");
    let rows = rows_of(y.len(), cols);
    let dx = SharedMut::new(dx);
    par_rows(rows, cols, |r| {
        let part = r.start * cols..r.end * cols;
        // SAFETY: `par_rows` gives every row to exactly one call.
        let dx = unsafe { dx.range(part.clone()) };
        dispatch(Backward { kind, y: &y[part.clone()], dy: &dy[part], cols, dx });
    });
}

fn rows_of(len: usize, cols: usize) -> usize {
    if len == 0 {
        return 0;
    }
    assert!(cols > 0 && len.is_multiple_of(cols), "softmax: {len} elements are not rows of {cols}");
    len / cols
}

reduction!(ExpSum { x: &'a [f32], shift: f32 } of x, 0.0,
    |s, acc, i, n| {
        // SAFETY: the bounds are `step`'s own. The padding, −∞, adds e^−∞ = 0.
        let x = unsafe { at::<V>(s.x, i, n, f32::NEG_INFINITY) };
        acc + exp(x - acc.splat(s.shift))
    },
    |a, b| a + b);

// The same sum, which also writes its terms to `y`, as long as `x`; made only by `Forward`.
reduction!(ExpTo { x: &'a [f32], y: *mut f32, shift: f32 } of x, 0.0,
    |s, acc, i, n| {
        // SAFETY: the bounds are `step`'s own; `y` is as long as `x` and written by this thread only.
        unsafe {
            let e = exp(at::<V>(s.x, i, n, f32::NEG_INFINITY) - acc.splat(s.shift));
            e.store_n(s.y.add(i), n);
            acc + e
        }
    },
    |a, b| a + b);

reduction!(Dot { x: &'a [f32], y: &'a [f32] } of x, 0.0,
    // SAFETY: the bounds are `step`'s own; `y` is as long as `x`.
    |s, acc, i, n| unsafe { at::<V>(s.x, i, n, 0.0).mul_add(at(s.y, i, n, 0.0), acc) },
    |a, b| a + b);

struct LogSumExp<'a> {
    x: &'a [f32],
    cols: usize,
    y: &'a mut [f32],
}

impl Body for LogSumExp<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, v: V) {
        for (row, y) in self.y.iter_mut().enumerate() {
            let x = &self.x[row * self.cols..(row + 1) * self.cols];
            let max = reduce(v, Max { x });
            // An infinite maximum is the answer, and would make x − max NaN.
            *y = if max.is_infinite() { max } else { max + log(Lane(reduce(v, ExpSum { x, shift: max }))).0 };
        }
    }
}

struct Forward<'a> {
    kind: Kind,
    x: &'a [f32],
    cols: usize,
    y: &'a mut [f32],
}

impl Body for Forward<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, v: V) {
        for (x, y) in self.x.chunks_exact(self.cols).zip(self.y.chunks_exact_mut(self.cols)) {
            let max = reduce(v, Max { x });
            let p = y.as_mut_ptr();
            match self.kind {
                Kind::Plain => {
                    let scale = v.splat(1.0 / reduce(v, ExpTo { x, y: p, shift: max }));
                    each_vector!(V, x.len(), |i, k| {
                        // SAFETY: `i + k <= cols`, the length of the row at `p`.
                        unsafe { (V::load_n(p.add(i), k, 0.0) * scale).store_n(p.add(i), k) };
                    });
                }
                Kind::Log => {
                    let log_sum = v.splat(log(Lane(reduce(v, ExpSum { x, shift: max }))).0);
                    let shift = v.splat(max);
                    each_vector!(V, x.len(), |i, k| {
                        // SAFETY: `i + k <= cols`, the length of `x` and of the row at `p`.
                        unsafe { (at::<V>(x, i, k, 0.0) - shift - log_sum).store_n(p.add(i), k) };
                    });
                }
            }
        }
    }
}

struct Backward<'a> {
    kind: Kind,
    y: &'a [f32],
    dy: &'a [f32],
    cols: usize,
    dx: &'a mut [f32],
}

impl Body for Backward<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, v: V) {
        let rows = self.y.chunks_exact(self.cols).zip(self.dy.chunks_exact(self.cols));
        for ((y, dy), dx) in rows.zip(self.dx.chunks_exact_mut(self.cols)) {
            let p = dx.as_mut_ptr();
            match self.kind {
                Kind::Plain => {
                    let dot = v.splat(reduce(v, Dot { x: y, y: dy }));
                    each_vector!(V, y.len(), |i, k| {
                        // SAFETY: `i + k <= cols`, the length of all three rows.
                        unsafe {
                            (at::<V>(y, i, k, 0.0) * (at::<V>(dy, i, k, 0.0) - dot)).store_n(p.add(i), k)
                        };
                    });
                }
                Kind::Log => {
                    let sum = v.splat(reduce(v, Sum { x: dy }));
                    each_vector!(V, y.len(), |i, k| {
                        // SAFETY: `i + k <= cols`, the length of all three rows.
                        unsafe {
                            let e = exp(at::<V>(y, i, k, 0.0));
                            (at::<V>(dy, i, k, 0.0) - e * sum).store_n(p.add(i), k);
                        }
                    });
                }
            }
        }
    }
}

struct LogLikelihood<'a> {
    x: &'a [f32],
    classes: &'a [i64],
    cols: usize,
    y: &'a mut [f32],
}

impl Body for LogLikelihood<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, v: V) {
        for (row, (y, class)) in self.y.iter_mut().zip(self.classes).enumerate() {
            let x = &self.x[row * self.cols..(row + 1) * self.cols];
            let max = reduce(v, Max { x });
            *y = x[*class as usize] - max - log(Lane(reduce(v, ExpSum { x, shift: max }))).0;
        }
    }
}

struct LogLikelihoodBackward<'a> {
    x: &'a [f32],
    classes: &'a [i64],
    dy: &'a [f32],
    cols: usize,
    dx: &'a mut [f32],
}

impl Body for LogLikelihoodBackward<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, v: V) {
        let rows = self.x.chunks_exact(self.cols).zip(self.dx.chunks_exact_mut(self.cols));
        for ((x, dx), (class, dy)) in rows.zip(self.classes.iter().zip(self.dy)) {
            let max = reduce(v, Max { x });
            let p = dx.as_mut_ptr();
            let scale = v.splat(-dy / reduce(v, ExpTo { x, y: p, shift: max }));
            each_vector!(V, x.len(), |i, k| {
                // SAFETY: `i + k <= cols`, the length of the row at `p`.
                unsafe { (V::load_n(p.add(i), k, 0.0) * scale).store_n(p.add(i), k) };
            });
            dx[*class as usize] += dy;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{log_likelihood, log_likelihood_backward};
    use super::{log_softmax, log_softmax_backward, log_sum_exp, softmax, softmax_backward};
    use crate::rows::testing::{close, same_on_threads, values};

    fn lse(x: &[f32]) -> f64 {
        x.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln()
    }

    #[test]
    fn forward_and_backward_agree_with_f64_at_every_width() {
        for cols in (1..=70).chain([500, 1024, 5001, 70_001]) {
            let rows = if cols > 1000 { 2 } else { 50 };
            let (x, dy) = (values(rows * cols, 1), values(rows * cols, 2));
            let run = |f: &dyn Fn(&mut [f32])| {
                same_on_threads(|| {
                    let mut y = vec![0.0; rows * cols];
                    f(&mut y);
                    y
                })
            };
            let mut all = vec![0.0; rows];
            log_sum_exp(&x, cols, &mut all);
            close(&all, &x.chunks_exact(cols).map(lse).collect::<Vec<_>>(), 1e-6);

            let y = run(&|y| softmax(&x, cols, y));
            let want = |f: &dyn Fn(f64, f64) -> f64| {
                let row = |r: &[f32]| {
                    let l = lse(r);
                    r.iter().map(|x| f(f64::from(*x), l)).collect::<Vec<_>>()
                };
                x.chunks_exact(cols).flat_map(row).collect::<Vec<f64>>()
            };
            close(&y, &want(&|x, l| (x - l).exp()), 1e-6);
            let ly = run(&|y| log_softmax(&x, cols, y));
            close(&ly, &want(&|x, l| x - l), 1e-6);

            let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
            let (mut plain, mut log) = (vec![], vec![]);
            for ((y, ly), dy) in y.chunks(cols).zip(ly.chunks(cols)).zip(dy.chunks(cols)) {
                let (y, ly, dy) = (wide(y), wide(ly), wide(dy));
                let dot: f64 = y.iter().zip(&dy).map(|(y, d)| y * d).sum();
                let sum: f64 = dy.iter().sum();
                plain.extend(y.iter().zip(&dy).map(|(y, d)| y * (d - dot)));
                log.extend(ly.iter().zip(&dy).map(|(y, d)| d - y.exp() * sum));
            }
            close(&run(&|dx| softmax_backward(&y, &dy, cols, dx)), &plain, 1e-5);
            close(&run(&|dx| log_softmax_backward(&ly, &dy, cols, dx)), &log, 1e-5);

            let classes: Vec<i64> = (0..rows).map(|row| (row * 7 % cols) as i64).collect();
            let mut of_class = vec![0.0; rows];
            log_likelihood(&x, &classes, cols, &mut of_class);
            let at_class = |row: usize| ly[row * cols + classes[row] as usize];
            assert_eq!(of_class, (0..rows).map(at_class).collect::<Vec<_>>(), "the bits of log_softmax");
            let dy = &dy[..rows];
            let spread = (0..rows * cols).map(|i| {
                let (row, p) = (i / cols, f64::from(y[i]));
                let is_class = f64::from(classes[row] as usize == i % cols);
                f64::from(dy[row]) * (is_class - p)
            });
            let want: Vec<f64> = spread.collect();
            close(&run(&|dx| log_likelihood_backward(&x, &classes, dy, cols, dx)), &want, 1e-5);
        }
    }

    #[test]
    fn infinities() {
        let inf = f32::INFINITY;
        let row = |f: fn(&[f32], usize, &mut [f32]), x: [f32; 3]| {
            let mut y = [0.0; 3];
            f(&x, 3, &mut y);
            y
        };
        let all = |x: &[f32]| {
            let mut y = [0.0];
            log_sum_exp(x, x.len(), &mut y);
            y[0]
        };
        assert!(row(softmax, [0.0, inf, 1.0]).iter().all(|y| y.is_nan()));
        assert!(row(softmax, [-inf; 3]).iter().all(|y| y.is_nan()));
        assert_eq!(row(softmax, [-inf, 0.0, -inf]), [0.0, 1.0, 0.0]);
        assert_eq!(row(log_softmax, [-inf, 0.0, -inf]), [-inf, 0.0, -inf]);
        assert_eq!(row(softmax, [1e30, 1e30, -1e30]), [0.5, 0.5, 0.0]);
        assert_eq!((all(&[]), all(&[-inf; 2]), all(&[0.0, inf])), (-inf, -inf, inf));
        assert!(all(&[0.0, f32::NAN]).is_nan());
    }
}
