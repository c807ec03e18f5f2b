//! How fast is the matrix product, on one and on two threads? `cargo bench -p thalweg-kernels --bench gemm`.
//!
//! Prints GFLOP/s, best and median of repeated calls, and the latency of an empty fork-join. An argument
//! keeps only the shapes whose name contains it.

use std::hint::black_box;
use std::time::{Duration, Instant};

use thalweg_kernels::gemm::{BatchMut, BatchRef, MatRef, gemm_batched_f32, gemm_f32, gemm_f64};
use thalweg_kernels::threads::{parallel, set_threads};

const TIME_PER_SHAPE: Duration = Duration::from_millis(400);

fn main() {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with("--")).unwrap_or_default();
    for n_threads in [1, 2] {
        set_threads(n_threads);
        println!("{n_threads} threads");
        let report = |name: &str, flops: usize, f: &mut dyn FnMut()| {
            if name.contains(&filter) {
                let (best, median) = time(f);
                let rate = |seconds: f64| flops as f64 / seconds / 1e9;
                println!("{name:26} best {:7.1}  median {:7.1} GFLOP/s", rate(best), rate(median));
            }
        };
        products(&report);
        batched(&report);
        f64_product(&report);
        let (best, median) = time(&mut || {
            parallel(2, &|i| {
                black_box(i);
            })
        });
        println!("fork-join of 2 empty tasks: best {:.2} µs, median {:.2} µs", best * 1e6, median * 1e6);
    }
}

type Report<'a> = &'a dyn Fn(&str, usize, &mut dyn FnMut());

fn products(report: Report) {
    let shapes =
        [(100, 784, 100), (256, 1024, 1024), (1024, 1024, 1024), (2048, 2048, 2048), (1, 1024, 1024)];
    for (m, k, n) in shapes {
        let (a, b, mut c) = (random(m * k), random(k * n), vec![0f32; m * n]);
        let (a_rows, a_cols) = (MatRef::row_major(&a, m, k), MatRef::row_major(&a, k, m).t());
        let (b_rows, b_cols) = (MatRef::row_major(&b, k, n), MatRef::row_major(&b, n, k).t());
        for (order, a, b) in [("nn", a_rows, b_rows), ("nt", a_rows, b_cols), ("tn", a_cols, b_rows)] {
            report(&format!("{m}x{k}x{n} {order}"), 2 * m * k * n, &mut || gemm_f32(a, b, &mut c, n, false));
        }
    }
}

fn batched(report: Report) {
    let (n_batch, n) = (64, 64);
    let (a, b, mut c) = (random(n_batch * n * n), random(n_batch * n * n), vec![0f32; n_batch * n * n]);
    let (a, b) = (BatchRef::new(&a, n * n, (n, n), (n, 1)), BatchRef::new(&b, n * n, (n, n), (n, 1)));
    report("batched 64x64^3", 2 * n_batch * n * n * n, &mut || {
        let c = BatchMut { data: &mut c, batch_stride: n * n, ldc: n };
        gemm_batched_f32(n_batch, a, b, c, false);
    });
}

fn f64_product(report: Report) {
    let n = 1024;
    let a: Vec<f64> = random(n * n).into_iter().map(f64::from).collect();
    let mut c = vec![0f64; n * n];
    let a = MatRef::row_major(&a, n, n);
    report("f64 1024^3", 2 * n * n * n, &mut || gemm_f64(a, a, &mut c, n, false));
}

/// Best and median seconds of a call.
fn time(f: &mut dyn FnMut()) -> (f64, f64) {
    f();
    f();
    let mut seconds = Vec::new();
    let end = Instant::now() + TIME_PER_SHAPE;
    while seconds.len() < 5 || Instant::now() < end {
        let start = Instant::now();
        f();
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    (seconds[0], seconds[seconds.len() / 2])
}

/// Numbers in [-1, 1) from a fixed linear congruential sequence.
fn random(n: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}
