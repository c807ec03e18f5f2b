//! The workloads. `benches/peers/bench_torch_ops.py` has the same ones under the same names.

use thalweg::prelude::*;
use thalweg::{BatchNormOptions, MaxPoolOptions};

use super::clock::{Timing, time};

pub struct Workload {
    pub group: &'static str,
    pub name: &'static str,
    pub run: Box<dyn Fn() -> Timing>,
}

/// `eager`: overhead of small ops. `product`: f32 matrix products. `stream`: 16 Mi floats.
/// `networks`: whole training steps and inference, compiled.
pub const GROUPS: &[&str] = &["eager", "product", "stream", "networks"];

/// Rows and columns of the streaming workloads: 16 Mi floats.
const ROWS: usize = 16 << 10;
const COLS: usize = 1 << 10;

pub fn all() -> Vec<Workload> {
    let w = |group, name, run: fn() -> Timing| Workload { group, name, run: Box::new(run) };
    vec![
        w("eager", "add16", || {
            let x = random(&[16]);
            time(1000, || &x + 1.0)
        }),
        w("eager", "chain10", || {
            let x = random(&[16]).requires_grad();
            time(100, || chain(&x).grad(&[&x]))
        }),
        w("eager", "chain10-forward", || {
            let x = random(&[16]);
            time(100, || chain(&x))
        }),
        w("product", "mm-100x784x100", || product(100, 784, 100)),
        w("product", "mm-256x1024x1024", || product(256, 1024, 1024)),
        w("product", "mm-1024x1024x1024", || product(1024, 1024, 1024)),
        w("product", "mm-2048x2048x2048", || product(2048, 2048, 2048)),
        w("product", "mm-1x1024x1024", || product(1, 1024, 1024)),
        w("product", "bmm-64x64x64x64", || {
            let (a, b) = (random(&[64, 64, 64]), random(&[64, 64, 64]));
            time(1, || a.matmul(&b))
        }),
        w("stream", "add", || {
            let (a, b) = (random(&[ROWS, COLS]), random(&[ROWS, COLS]));
            time(1, || &a + &b)
        }),
        w("stream", "exp", || stream(Tensor::exp)),
        w("stream", "sum", || stream(|x| x.sum(()))),
        w("stream", "softmax", || stream(|x| x.softmax(-1))),
        w("stream", "layer_norm", || {
            let (w, b) = (random(&[COLS]), random(&[COLS]));
            let x = random(&[ROWS, COLS]);
            time(1, || x.layer_norm([COLS], Some(&w), Some(&b), 1e-5))
        }),
        w("stream", "sum-rows", || {
            let x = random(&[256, 1024]);
            time(10, || x.sum(0))
        }),
        w("stream", "batch_norm", || {
            let x = random(&[64, 64, 32, 32]).requires_grad();
            let (w, b) = (random(&[64]).requires_grad(), random(&[64]).requires_grad());
            let dy = random(&[64, 64, 32, 32]);
            let (mean, var) = (random(&[64]), random(&[64]));
            let options =
                BatchNormOptions { weight: Some(&w), bias: Some(&b), ..BatchNormOptions::default() };
            time(1, || {
                let (y, mean, var) = x.batch_norm_train(&mean, &var, &options);
                ((y * &dy).sum(()).grad(&[&x, &w, &b]), mean, var)
            })
        }),
        w("stream", "max_pool", || {
            let x = random(&[64, 64, 64, 64]);
            time(1, || x.max_pool2d(2, &MaxPoolOptions::default()))
        }),
    ]
}

/// Ten small ops and a sum: the shape of a hand-written formula.
fn chain(x: &Tensor) -> Tensor {
    let a = x * 2.0;
    let b = a + 1.0;
    let c = &b * x;
    let d = c.tanh();
    let e = &d * &b;
    let f = e - x;
    let g = f.sigmoid();
    let h = g * 0.5;
    let i = h + x;
    (i * &d).sum(())
}

fn product(m: usize, k: usize, n: usize) -> Timing {
    let (a, b) = (random(&[m, k]), random(&[k, n]));
    time(1, || a.matmul(&b))
}

fn stream(f: impl Fn(&Tensor) -> Tensor) -> Timing {
    let x = random(&[ROWS, COLS]);
    time(1, || f(&x))
}

fn random(shape: &[usize]) -> Tensor {
    Rng::seed(0).uniform(shape, -1.0, 1.0)
}
