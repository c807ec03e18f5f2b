//! A loop reaches a steady state in which the pool asks the system for nothing. Its own process, so
//! that no other test disturbs the counters.

use thalweg::prelude::*;

#[test]
fn a_training_loop_stops_asking_the_system_for_memory() {
    let mut rng = Rng::seed(1);
    let (x, y) = (rng.normal([64, 100], 0.0, 1.0), rng.normal([64, 10], 0.0, 1.0));
    let w1 = Param::new("w1", rng.normal([100, 50], 0.0, 0.1));
    let w2 = Param::new("w2", rng.normal([50, 10], 0.0, 0.1));
    let step = || {
        let loss = (x.matmul(&w1.get()).relu().matmul(&w2.get()) - &y).square().mean(());
        for (w, g) in [&w1, &w2].into_iter().zip(loss.grad(&[&w1, &w2])) {
            w.set(&w.get() - g * 0.01);
        }
        loss.item::<f32>()
    };
    let first = step();
    for _ in 0..20 {
        step();
    }
    let before = thalweg::pool_stats().system_allocations;
    for _ in 0..100 {
        step();
    }
    assert_eq!(thalweg::pool_stats().system_allocations, before);
    assert!(step() < first, "and it learns");
}
