//! What a body of `cond` or `scan` costs beside the same work without one. `cargo bench -p thalweg-runtime --bench bodies`

use std::time::Instant;

use thalweg_core::DType;
use thalweg_runtime::{cond, jit, scan};
use thalweg_tensor::{Param, Rng, Tensor, grad};

/// The shortest of many calls, in microseconds.
fn time(mut f: impl FnMut() -> Tensor) -> f64 {
    let once = |f: &mut dyn FnMut() -> Tensor| {
        let start = Instant::now();
        drop(f());
        start.elapsed().as_secs_f64() * 1e6
    };
    (0..200).map(|_| once(&mut f)).fold(f64::MAX, f64::min)
}

fn main() {
    let w = Param::new("w", Rng::seed(0).normal([2048, 2048], 0.0, 0.1));
    let x = Tensor::ones([1, 2048], DType::F32);
    let mut plain = jit(|x: Tensor| x.matmul(&w.get()));
    let mut chosen = jit(|x: Tensor| cond(&x.sum(()).gt(0.0), || x.matmul(&w.get()), || x.clone()));
    let plain = time(|| plain.call(x.clone()).expect("it runs"));
    let chosen = time(|| chosen.call(x.clone()).expect("it runs"));
    println!("a product with 2048 x 2048: {plain:.0} us, in a branch {chosen:.0} us");

    let w = Param::new("w", Rng::seed(0).normal([512, 512], 0.0, 0.04));
    let x = Tensor::ones([28, 1, 512], DType::F32);
    let by_scan = |x: &Tensor| {
        let turn = |h: Tensor, x: Tensor| {
            let h = (h.matmul(&w.get()) + x).tanh();
            (h.clone(), h)
        };
        scan(x.select(0, 0), x.clone(), turn).0
    };
    let unrolled =
        |x: &Tensor| (0..28).fold(x.select(0, 0), |h, t| (h.matmul(&w.get()) + x.select(0, t)).tanh());
    let slope = |f: &dyn Fn(&Tensor) -> Tensor, x: &Tensor| grad(|x| f(x).square().sum(()))(x);
    let eager = time(|| by_scan(&x));
    let mut f = jit(|x: Tensor| by_scan(&x));
    let scanned = time(|| f.call(x.clone()).expect("it runs"));
    let mut f = jit(|x: Tensor| unrolled(&x));
    let flat = time(|| f.call(x.clone()).expect("it runs"));
    println!("28 turns with 512 x 512: eager {eager:.0} us, scan {scanned:.0} us, unrolled {flat:.0} us");
    let eager = time(|| slope(&by_scan, &x));
    let mut f = jit(|x: Tensor| slope(&by_scan, &x));
    let scanned = time(|| f.call(x.clone()).expect("it runs"));
    let mut f = jit(|x: Tensor| slope(&unrolled, &x));
    let flat = time(|| f.call(x.clone()).expect("it runs"));
    println!("their gradients: eager {eager:.0} us, scan {scanned:.0} us, unrolled {flat:.0} us");
}
