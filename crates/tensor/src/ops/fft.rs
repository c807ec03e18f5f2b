//! `fft`: the discrete Fourier transform along the second to last axis of tensors whose last axis is the pair
//! (real part, imaginary part). Not normalised in either direction.

use std::f64::consts::PI;

use thalweg_core::{DType, View, ViewMut, with_dtype};
use thalweg_kernels::stream::split::par_chunks_mut;

use crate::apply::run;
use crate::error::{OpError, fail};
use crate::meta::{Meta, arity, require_float};
use crate::ops::elementwise::GRAIN;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// The sign of the exponent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Direction {
    /// Xₖ = Σₜ xₜ exp(−2πi tk/n).
    Forward,
    /// xₜ = Σₖ Xₖ exp(+2πi tk/n).
    Backward,
}

/// The discrete Fourier transform.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Fft {
    /// The sign of the exponent.
    pub direction: Direction,
}

impl Primitive for Fft {
    const NAME: &'static str = "fft";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        require_float(Self::NAME, x)?;
        match *x.shape {
            [.., _, 2] => Ok(x.clone()),
            _ => Err(not_pairs(x)),
        }
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    /// The transform is linear and its conjugate transpose is the transform in the other direction.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let direction = match self.direction {
            Direction::Forward => Direction::Backward,
            Direction::Backward => Direction::Forward,
        };
        Grad::one(run(Fft { direction }, &[g.dy()]))
    }

    /// The definition, in O(n²).
    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let n = y.shape()[y.shape().rank() - 2];
        let roots: Vec<Complex> = (0..n).map(|k| self.root(k, n)).collect();
        with_dtype!(y.dtype(), T => {
            let values: Vec<f64> = x[0].iter::<T>().map(thalweg_core::Element::to_f64).collect();
            for (i, y) in y.dense::<T>().chunks_exact_mut(2).enumerate() {
                let row = &values[i / n * n * 2..][..n * 2];
                let term = |t: usize| times((row[2 * t], row[2 * t + 1]), roots[t * (i % n) % n]);
                let (re, im) = (0..n).map(term).fold((0.0, 0.0), plus);
                y[0] = thalweg_core::Element::from_f64(re);
                y[1] = thalweg_core::Element::from_f64(im);
            }
        });
        Ok(())
    }

    /// In O(n log n) for every n, in f64.
    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fn rows<T: thalweg_core::Element>(op: &Fft, x: View<'_>, y: &mut [T], n: usize) {
            let plan = Plan::new(op, n);
            let (dense, copy);
            let x: &[T] = match x.dense::<T>() {
                Some(x) => {
                    dense = x;
                    dense
                }
                None => {
                    copy = x.iter::<T>().collect::<Vec<T>>();
                    &copy
                }
            };
            let row = 2 * n;
            par_chunks_mut(y, (GRAIN / 8 / row).max(1) * row, |start, y| {
                for (i, y) in y.chunks_exact_mut(row).enumerate() {
                    let x = &x[start + i * row..][..row];
                    let values = x.chunks_exact(2).map(|v| (v[0].to_f64(), v[1].to_f64())).collect();
                    for (y, (re, im)) in y.chunks_exact_mut(2).zip(plan.transform(values)) {
                        (y[0], y[1]) = (T::from_f64(re), T::from_f64(im));
                    }
                }
            });
        }
        let n = y.shape()[y.shape().rank() - 2];
        if n == 0 {
            return true;
        }
        match y.dtype() {
            DType::F64 => rows::<f64>(self, x[0], y.dense(), n),
            DType::F32 => rows::<f32>(self, x[0], y.dense(), n),
            DType::F16 => rows::<half::f16>(self, x[0], y.dense(), n),
            DType::BF16 => rows::<half::bf16>(self, x[0], y.dense(), n),
            _ => return false,
        }
        true
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let n = y.shape.get(y.shape.rank().saturating_sub(2)).copied().unwrap_or(1).max(2);
        Cost { flops: 5 * y.numel() as u64 / 2 * u64::from(n.ilog2()), bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |direction, shape: &[usize]| Sample::new(Fft { direction }, [Draw::any(shape)]);
        let mut samples: Vec<Sample> =
            [1, 2, 3, 4, 5, 8, 12, 16, 31].map(|n| call(Direction::Forward, &[n, 2])).into();
        samples.push(call(Direction::Backward, &[2, 6, 2]));
        samples.push(call(Direction::Backward, &[3, 8, 2]));
        samples.push(call(Direction::Forward, &[2, 0, 2]));
        samples
    }
}

fn not_pairs(x: &Meta) -> OpError {
    let want = "(…, n, 2), pairs of real and imaginary parts (make them with `real_to_pairs`)";
    OpError::Rank { op: Fft::NAME, want, shape: x.shape.clone() }
}

type Complex = (f64, f64);

fn times(a: Complex, b: Complex) -> Complex {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

fn plus(a: Complex, b: Complex) -> Complex {
    (a.0 + b.0, a.1 + b.1)
}

fn minus(a: Complex, b: Complex) -> Complex {
    (a.0 - b.0, a.1 - b.1)
}

fn conjugate(a: Complex) -> Complex {
    (a.0, -a.1)
}

impl Fft {
    /// exp(∓2πi k/n).
    fn root(&self, k: usize, n: usize) -> Complex {
        let (sin, cos) = (2.0 * PI * k as f64 / n as f64).sin_cos();
        if self.direction == Direction::Forward { (cos, -sin) } else { (cos, sin) }
    }
}

/// What all rows of one length share.
enum Plan {
    /// n is a power of two: halves are transformed and combined (Cooley and Tukey).
    Halving(Halving),
    /// Any n: exp(tk) = exp(t²/2) exp(k²/2) exp(−(k − t)²/2) turns the transform into a convolution, which
    /// is done with transforms of a power of two (Bluestein).
    Chirp { chirp: Vec<Complex>, kernel: Vec<Complex>, forward: Halving, backward: Halving },
}

impl Plan {
    fn new(op: &Fft, n: usize) -> Self {
        if n.is_power_of_two() {
            return Plan::Halving(Halving::new(op, n));
        }
        let m = (2 * n - 1).next_power_of_two();
        let forward = Halving::new(&Fft { direction: Direction::Forward }, m);
        let backward = Halving::new(&Fft { direction: Direction::Backward }, m);
        // t² is reduced modulo 2n first, so that the angle of a large t is exact.
        let chirp: Vec<Complex> =
            (0..n).map(|t| op.root((t as u128 * t as u128 % (2 * n as u128)) as usize, 2 * n)).collect();
        let mut kernel = vec![(0.0, 0.0); m];
        for (t, &c) in chirp.iter().enumerate() {
            kernel[t] = conjugate(c);
            kernel[(m - t) % m] = conjugate(c);
        }
        forward.transform(&mut kernel);
        Plan::Chirp { chirp, kernel, forward, backward }
    }

    fn transform(&self, mut x: Vec<Complex>) -> Vec<Complex> {
        match self {
            Plan::Halving(halving) => halving.transform(&mut x),
            Plan::Chirp { chirp, kernel, forward, backward } => {
                let m = kernel.len();
                x.iter_mut().zip(chirp).for_each(|(x, &c)| *x = times(*x, c));
                x.resize(m, (0.0, 0.0));
                forward.transform(&mut x);
                x.iter_mut().zip(kernel).for_each(|(x, &k)| *x = times(*x, k));
                backward.transform(&mut x);
                x.truncate(chirp.len());
                let scale = 1.0 / m as f64;
                x.iter_mut().zip(chirp).for_each(|(x, &c)| *x = times((x.0 * scale, x.1 * scale), c));
            }
        }
        x
    }
}

/// Transforms of n values, n a power of two.
struct Halving {
    /// The first n/2 roots of unity.
    roots: Vec<Complex>,
    /// Where each element goes before the first step: its position with the bits reversed.
    reversed: Vec<usize>,
}

impl Halving {
    fn new(op: &Fft, n: usize) -> Self {
        let bits = n.trailing_zeros();
        let reverse = |i: usize| if bits == 0 { 0 } else { i.reverse_bits() >> (usize::BITS - bits) };
        Self { roots: (0..n / 2).map(|k| op.root(k, n)).collect(), reversed: (0..n).map(reverse).collect() }
    }

    fn transform(&self, x: &mut [Complex]) {
        let n = x.len();
        for (i, &j) in self.reversed.iter().enumerate() {
            if i < j {
                x.swap(i, j);
            }
        }
        let mut half = 1;
        while half < n {
            let step = n / (2 * half);
            for block in x.chunks_exact_mut(2 * half) {
                let (even, odd) = block.split_at_mut(half);
                for (k, (e, o)) in even.iter_mut().zip(odd).enumerate() {
                    let turned = times(*o, self.roots[k * step]);
                    (*e, *o) = (plus(*e, turned), minus(*e, turned));
                }
            }
            half *= 2;
        }
    }
}

impl Tensor {
    /// Real numbers as pairs (real part, 0) in a new last axis: how complex numbers enter `fft`.
    #[track_caller]
    pub fn real_to_pairs(&self) -> Tensor {
        let x = self.as_float();
        Tensor::stack(&[&x, &x.zeros_like()], -1)
    }

    /// The discrete Fourier transform of pairs (…, n, 2), for any n.
    #[track_caller]
    pub fn fft(&self) -> Tensor {
        run(Fft { direction: Direction::Forward }, &[self])
    }

    /// The inverse of [`Tensor::fft`].
    #[track_caller]
    pub fn ifft(&self) -> Tensor {
        let y = run(Fft { direction: Direction::Backward }, &[self]);
        let n = y.size(-2);
        y / n as f64
    }

    /// The first half of the transform of real numbers along the last axis: (…, n) to (…, n/2 + 1, 2). The
    /// other half is its mirror image.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let x = Tensor::from([1.0f32, 2.0, 3.0, 4.0]);
    /// assert_eq!(x.rfft().to_vec::<f32>(), [10.0, 0.0, -2.0, 2.0, -2.0, 0.0]);
    /// assert_eq!(x.rfft().irfft(4).to_vec::<f32>(), [1.0, 2.0, 3.0, 4.0]);
    /// ```
    #[track_caller]
    pub fn rfft(&self) -> Tensor {
        if self.rank() == 0 || self.size(-1) == 0 {
            fail(OpError::Empty { op: "rfft", shape: self.shape().clone() });
        }
        self.real_to_pairs().fft().narrow(-2, 0, self.size(-1) / 2 + 1)
    }

    /// The inverse of [`Tensor::rfft`], with `n` results: (…, n/2 + 1, 2) to (…, n).
    #[track_caller]
    pub fn irfft(&self, n: usize) -> Tensor {
        if self.rank() < 2 || self.size(-1) != 2 || self.size(-2) != n / 2 + 1 || n == 0 {
            let need = "needs n/2 + 1 pairs in the last two axes (the `rfft` of n numbers)";
            fail(OpError::Argument {
                op: "irfft",
                name: "n",
                value: n.to_string(),
                shape: self.shape().clone(),
                need,
            });
        }
        // Element n − k is the conjugate of element k.
        let mirrored = self.narrow(-2, 1, n - self.size(-2)).flip(-2);
        let conjugated = mirrored * Tensor::from([1.0f32, -1.0]).to_dtype(self.dtype());
        Tensor::concat(&[self, &conjugated], -2).ifft().select(-1, 0)
    }
}
