//! What would machine code made for each fused group bring? `cargo bench -p thalweg-runtime --bench groups`.
//!
//! Each group runs as the tile program that `jit` makes of it and as one loop over vectors, written by hand and compiled
//! for this CPU: what a perfect generator would reach. In turns, on one thread; medians of their ratio.
#![allow(unsafe_code, reason = "loops over vectors load and store by pointers")]

use std::hint::black_box;
use std::time::Instant;

use thalweg_kernels::math::exponential::{sigmoid, tanh};
use thalweg_kernels::simd::vector::F32s;
use thalweg_kernels::simd::{Body, dispatch};
use thalweg_kernels::threads::set_threads;
use thalweg_runtime::jit;
use thalweg_tensor::{Param, Tensor};

const ROUNDS: usize = 41;

fn main() {
    set_threads(1);
    println!("{:34} {:>9} {:>12} {:>12} {:>7}", "group", "floats", "program µs", "loop µs", "ratio");
    for n in [4 << 10, 64 << 10, 512 << 10, 8 << 20] {
        adam(n);
        adagrad(n);
        gelu_grad(n);
        gates(n);
    }
}

/// Times both in turns and prints medians.
fn compare(name: &str, n: usize, mut program: impl FnMut(), mut by_hand: impl FnMut()) {
    let repeats = ((256 << 10) / n).max(1);
    let seconds = |f: &mut dyn FnMut()| {
        let began = Instant::now();
        (0..repeats).for_each(|_| f());
        began.elapsed().as_secs_f64() / repeats as f64
    };
    let times: Vec<(f64, f64)> =
        (0..ROUNDS).map(|_| (seconds(&mut program), seconds(&mut by_hand))).collect();
    let median = |of: &dyn Fn(&(f64, f64)) -> f64| {
        let mut all: Vec<f64> = times.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[ROUNDS / 2]
    };
    let (ours, theirs) = (median(&|t| t.0) * 1e6, median(&|t| t.1) * 1e6);
    println!("{name:34} {n:>9} {ours:>12.1} {theirs:>12.1} {:>7.2}", median(&|t| t.0 / t.1));
}

fn numbers(n: usize, scale: f32) -> Vec<f32> {
    (0..n).map(|i| ((i * 2_654_435_761) % 1_000_003) as f32 / 500_000.0 * scale - scale).collect()
}

/// Calls `f` with each start of a vector in `n` elements, which must be a multiple of its lanes.
#[inline(always)]
fn each<V: F32s>(n: usize, f: impl FnMut(usize)) {
    assert!(n.is_multiple_of(V::LANES));
    (0..n).step_by(V::LANES).for_each(f);
}

fn adam(n: usize) {
    let (p, g) = (numbers(n, 1.0), numbers(n, 0.1));
    let zero = vec![0.0f32; n];
    let [w, m, v] =
        [("w", &p), ("m", &zero), ("v", &zero)].map(|(name, x)| Param::new(name, Tensor::from(&x[..])));
    let mut step = jit(|g: Tensor| {
        let m_new = m.get() * 0.9 + &g * 0.1;
        let v_new = v.get() * 0.999 + g.square() * 0.001;
        w.set(w.get() - &m_new / (v_new.sqrt() + 1e-8) * 0.001);
        m.set(m_new);
        v.set(v_new);
    });
    let g_tensor = Tensor::from(&g[..]);
    let (mut p, mut m, mut v) = (p, zero.clone(), zero);
    compare(
        "adam: 4 read, 3 written",
        n,
        || step.call(g_tensor.clone()).unwrap(),
        || dispatch(Adam { p: &mut p, m: &mut m, v: &mut v, g: &g }),
    );
}

struct Adam<'a> {
    p: &'a mut [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
    g: &'a [f32],
}

impl Body for Adam<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, one: V) {
        let [b1, c1, b2, c2] = [0.9, 0.1, 0.999, 0.001].map(|x| one.splat(x));
        let (tiny, rate) = (one.splat(1e-8), one.splat(0.001));
        each::<V>(self.g.len(), |i| {
            // SAFETY: `i` begins a vector inside of all four, which are as long.
            unsafe {
                let g = V::load(self.g.as_ptr().add(i));
                let m = V::load(self.m.as_ptr().add(i)) * b1 + g * c1;
                let v = V::load(self.v.as_ptr().add(i)) * b2 + g * g * c2;
                (V::load(self.p.as_ptr().add(i)) - m / (v.sqrt() + tiny) * rate)
                    .store(self.p.as_mut_ptr().add(i));
                m.store(self.m.as_mut_ptr().add(i));
                v.store(self.v.as_mut_ptr().add(i));
            }
        });
    }
}

fn adagrad(n: usize) {
    let (p, g) = (numbers(n, 1.0), numbers(n, 0.1));
    let zero = vec![0.0f32; n];
    let [w, s] = [("w", &p), ("s", &zero)].map(|(name, x)| Param::new(name, Tensor::from(&x[..])));
    let mut step = jit(|g: Tensor| {
        let sum = s.get() + g.square();
        w.set(w.get() - &g / (sum.sqrt() + 1e-10) * 0.01);
        s.set(sum);
    });
    let g_tensor = Tensor::from(&g[..]);
    let (mut p, mut s) = (p, zero);
    compare(
        "adagrad: 3 read, 2 written",
        n,
        || step.call(g_tensor.clone()).unwrap(),
        || dispatch(Adagrad { p: &mut p, s: &mut s, g: &g }),
    );
}

struct Adagrad<'a> {
    p: &'a mut [f32],
    s: &'a mut [f32],
    g: &'a [f32],
}

impl Body for Adagrad<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, one: V) {
        let (tiny, rate) = (one.splat(1e-10), one.splat(0.01));
        each::<V>(self.g.len(), |i| {
            // SAFETY: `i` begins a vector inside of all three, which are as long.
            unsafe {
                let g = V::load(self.g.as_ptr().add(i));
                let s = V::load(self.s.as_ptr().add(i)) + g * g;
                (V::load(self.p.as_ptr().add(i)) - g / (s.sqrt() + tiny) * rate)
                    .store(self.p.as_mut_ptr().add(i));
                s.store(self.s.as_mut_ptr().add(i));
            }
        });
    }
}

/// A function of vectors in one or two operands.
trait Pointwise: Copy {
    fn lanes<V: F32s>(self, x: V, y: V) -> V;
}

struct Loop<'a, F> {
    f: F,
    x: &'a [f32],
    y: &'a [f32],
    z: &'a mut [f32],
}

impl<F: Pointwise> Body for Loop<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        each::<V>(self.x.len(), |i| {
            // SAFETY: `i` begins a vector inside of all three, which are as long.
            unsafe {
                let (x, y) = (V::load(self.x.as_ptr().add(i)), V::load(self.y.as_ptr().add(i)));
                self.f.lanes(x, y).store(self.z.as_mut_ptr().add(i));
            }
        });
    }
}

/// The group compiled, and by hand over the same operands.
fn pointwise(name: &str, n: usize, f: impl Pointwise, traced: impl FnMut((Tensor, Tensor)) -> Tensor) {
    let (x, y) = (numbers(n, 3.0), numbers(n, 1.0));
    let mut z = vec![0.0; n];
    let (x_tensor, y_tensor) = (Tensor::from(&x[..]), Tensor::from(&y[..]));
    let mut step = jit(traced);
    compare(
        name,
        n,
        || {
            black_box(step.call((x_tensor.clone(), y_tensor.clone())).unwrap());
        },
        || dispatch(Loop { f, x: &x, y: &y, z: &mut z }),
    );
}

const C: f32 = 0.797_884_6;

fn gelu_grad(n: usize) {
    #[derive(Clone, Copy)]
    struct GeluGrad;
    impl Pointwise for GeluGrad {
        #[inline(always)]
        fn lanes<V: F32s>(self, x: V, dy: V) -> V {
            let k = |v: f32| x.splat(v);
            let t = tanh((x + x * x * x * k(0.044_715)) * k(C));
            let slope = (k(1.0) - t * t) * (k(1.0) + x * x * k(3.0 * 0.044_715)) * x * k(C);
            dy * (k(1.0) + t + slope) * k(0.5)
        }
    }
    pointwise("gradient of gelu: 14 ops, one tanh", n, GeluGrad, |(x, dy)| {
        let square = x.square();
        let t = ((&x + &x * &square * 0.044_715) * f64::from(C)).tanh();
        let slope = (1.0 - t.square()) * (&square * (3.0 * 0.044_715) + 1.0) * &x * f64::from(C);
        dy * (t + 1.0 + slope) * 0.5
    });
}

fn gates(n: usize) {
    #[derive(Clone, Copy)]
    struct Gates;
    impl Pointwise for Gates {
        #[inline(always)]
        fn lanes<V: F32s>(self, x: V, y: V) -> V {
            tanh(x * y + y) * sigmoid(x) + x
        }
    }
    pointwise("tanh(xy + y) sigmoid(x) + x", n, Gates, |(x, y)| (&x * &y + &y).tanh() * x.sigmoid() + &x);
}
