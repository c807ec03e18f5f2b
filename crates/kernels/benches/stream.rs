//! How fast are the streaming kernels, and do stores past the cache pay? Over 16 Mi floats, warm output.
//!
//! `cargo bench -p thalweg-kernels --bench stream`; rounds are interleaved and the median and the best are printed. An
//! argument keeps only the cases whose name contains it.

use std::hint::black_box;
use std::time::Instant;

use thalweg_kernels::rows::pool::{Window, max_pool2d, max_pool2d_backward};
use thalweg_kernels::rows::{axis, norm, reduce, softmax};
use thalweg_kernels::simd::map::Unary;
use thalweg_kernels::simd::vector::F32s;
use thalweg_kernels::stream::arithmetic;
use thalweg_kernels::stream::split::{GRAIN, par_chunks_mut};
use thalweg_kernels::stream::whole;
use thalweg_kernels::{math, threads};

const N: usize = 16 << 20;
/// As many floats as whole planes of 24 × 24 have.
const SMALL: usize = N / 576 * 576;
const ROUNDS: usize = 15;

type Case<'a> = (&'a str, Box<dyn Fn(&mut [f32]) + 'a>);

#[derive(Clone, Copy)]
struct Exp;

impl Unary for Exp {
    #[inline(always)]
    fn lanes<V: F32s>(self, x: V) -> V {
        math::exponential::exp(x)
    }
}

fn main() {
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 21) as f32 - 4.0
    };
    let a: Vec<f32> = (0..N).map(|_| random()).collect();
    let b: Vec<f32> = (0..N).map(|_| random()).collect();
    let mut y = vec![1.0f32; N];
    let (weight, bias) = (vec![1.5f32; 1024], vec![0.5f32; 1024]);
    let window = Window { kernel: [2, 2], stride: [2, 2], padding: [0, 0], dilation: [1, 1] };
    let map = |f: fn(&[f32], &mut [f32]), y: &mut [f32]| {
        par_chunks_mut(y, GRAIN, |start, y| f(&a[start..start + y.len()], y));
    };
    let cases: Vec<Case> = vec![
        (
            "add",
            Box::new(|y| {
                par_chunks_mut(y, GRAIN, |i, y| {
                    arithmetic::add(&a[i..i + y.len()], &b[i..i + y.len()], y);
                })
            }),
        ),
        ("add, whole", Box::new(|y| whole::add(&a, &b, y))),
        ("exp, whole", Box::new(|y| whole::map(Exp, &a, y))),
        ("relu", Box::new(|y| map(arithmetic::relu, y))),
        ("exp", Box::new(|y| map(math::exp, y))),
        ("log", Box::new(|y| map(math::log, y))),
        ("tanh", Box::new(|y| map(math::tanh, y))),
        ("sigmoid", Box::new(|y| map(math::sigmoid, y))),
        ("gelu", Box::new(|y| map(math::gelu, y))),
        ("gelu_tanh", Box::new(|y| map(math::gelu_tanh, y))),
        ("silu", Box::new(|y| map(math::silu, y))),
        ("sin", Box::new(|y| map(math::sin, y))),
        ("sum", Box::new(|y| y[0] = reduce::sum_all(&a))),
        ("sum rows 16384x1024", Box::new(|y| reduce::sum(&a, 1024, &mut y[..N / 1024]))),
        ("sum cols 16384x1024", Box::new(|y| axis::sum_axis(&a, [1, N / 1024, 1024], &mut y[..1024]))),
        ("max rows 16384x1024", Box::new(|y| reduce::max(&a, 1024, &mut y[..N / 1024]))),
        ("softmax 16384x1024", Box::new(|y| softmax::softmax(&a, 1024, y))),
        ("softmax 1024x16384", Box::new(|y| softmax::softmax(&a, 16384, y))),
        ("log_softmax 16384x1024", Box::new(|y| softmax::log_softmax(&a, 1024, y))),
        (
            "layer_norm 16384x1024",
            Box::new(|y| {
                norm::layer_norm(&a, 1024, Some(&weight), Some(&bias), 1e-5, y, None);
            }),
        ),
        ("max_pool2d 2x2 1024x128x128", Box::new(|y| max_pool2d(&a, [128, 128], window, &mut y[..N / 4]))),
        (
            "max_pool2d 2x2 29127x24x24",
            Box::new(|y| max_pool2d(&a[..SMALL], [24, 24], window, &mut y[..SMALL / 4])),
        ),
        (
            "its gradient",
            Box::new(|y| {
                max_pool2d_backward(&a[..SMALL], [24, 24], window, &b[..SMALL / 4], &mut y[..SMALL])
            }),
        ),
    ];
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with("--")).unwrap_or_default();
    let cases: Vec<Case> = cases.into_iter().filter(|(name, _)| name.contains(&filter)).collect();
    for n_threads in [1, 2] {
        threads::set_threads(n_threads);
        let mut times = vec![vec![]; cases.len()];
        for _ in 0..ROUNDS {
            for ((_, run), times) in cases.iter().zip(&mut times) {
                let start = Instant::now();
                run(&mut y);
                times.push(start.elapsed().as_secs_f64() * 1e3);
                black_box(&y);
            }
        }
        for ((name, _), mut times) in cases.iter().zip(times) {
            times.sort_by(f64::total_cmp);
            println!("{n_threads} threads  {name:30} {:8.2} ms, best {:8.2} ms", times[ROUNDS / 2], times[0]);
        }
    }
}
