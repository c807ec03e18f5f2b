//! Random tensors: the same for any number of threads, and distributed as they say.

use thalweg_core::DType::{F32, F64};
use thalweg_tensor::{Rng, Tensor};

const N: usize = 200_000;

/// Mean and standard deviation.
fn moments(x: &Tensor) -> (f64, f64) {
    let x = x.to_dtype(F64);
    (x.mean(()).item::<f64>(), x.var((), 0).sqrt().item::<f64>())
}

/// Both moments within five standard errors (of a distribution with moderate tails).
fn check(name: &str, x: &Tensor, mean: f64, std: f64) {
    let (m, s) = moments(x);
    let slack = 5.0 * std / (x.numel() as f64).sqrt();
    assert!((m - mean).abs() < slack, "{name}: mean {m} instead of {mean}");
    assert!((s - std).abs() < 3.0 * slack, "{name}: deviation {s} instead of {std}");
}

#[test]
fn numbers_do_not_depend_on_the_number_of_threads() {
    let draw = || Rng::seed(3).uniform([100_003], 0.0, 1.0).to_vec::<f32>();
    let before = thalweg_kernels::threads::threads();
    thalweg_kernels::threads::set_threads(1);
    let one = draw();
    thalweg_kernels::threads::set_threads(2);
    let two = draw();
    thalweg_kernels::threads::set_threads(before);
    assert!(one == two);
    assert!(one.iter().all(|&v| (0.0..1.0).contains(&v)));
}

#[test]
fn seeds_splits_and_positions_behave() {
    let first = |rng: &mut Rng| rng.uniform([4], 0.0, 1.0).to_vec::<f32>();
    let (mut a, mut b) = (Rng::seed(1), Rng::seed(2));
    assert_ne!(first(&mut a), first(&mut b));
    let mut parent = Rng::seed(9);
    let (mut left, mut right) = (parent.split(), parent.split());
    assert_ne!(first(&mut left), first(&mut right));
    let mut saved = Rng::seed(5);
    first(&mut saved);
    let mut resumed = Rng::seed(5);
    resumed.set_position(saved.position());
    assert_eq!(first(&mut saved), first(&mut resumed));
    // A longer draw begins like a shorter one: a number depends on its position alone.
    let (short, long) = (Rng::seed(4).uniform([5], 0.0, 1.0), Rng::seed(4).uniform([500], 0.0, 1.0));
    assert_eq!(short.to_vec::<f32>(), long.narrow(0, 0, 5).to_vec::<f32>());
}

#[test]
fn moments_are_those_of_the_distributions() {
    let mut rng = Rng::seed(17);
    check("uniform", &rng.uniform([N], -1.0, 3.0), 1.0, 4.0 / 12f64.sqrt());
    check("normal", &rng.normal([N], 2.0, 0.5), 2.0, 0.5);
    check("bernoulli", &rng.bernoulli([N], 0.3).to_dtype(F32), 0.3, 0.21f64.sqrt());
    check("exponential", &rng.exponential([N], 2.0), 0.5, 0.5);
    check("laplace", &rng.laplace([N], 1.0, 2.0), 1.0, 2.0 * 2f64.sqrt());
    check("gumbel", &rng.gumbel([N]), 0.577_215_664_9, std::f64::consts::PI / 6f64.sqrt());
    for alpha in [0.3, 1.0, 4.5] {
        check("gamma", &rng.gamma(&Tensor::full([N], alpha, F32)), alpha, alpha.sqrt());
    }
    let (a, b) = (Tensor::full([N], 2.0, F32), Tensor::full([N], 3.0, F32));
    check("beta", &rng.beta(&a, &b), 0.4, 0.2);
    // The variance of a normal truncated to ±1: 1 − 2 φ(1) / (2 Φ(1) − 1).
    let truncated = rng.truncated_normal([N], 0.0, 1.0, -1.0, 1.0);
    check("truncated normal", &truncated, 0.0, 0.291_124_2f64.sqrt());
    assert!(truncated.abs().amax(()).item::<f32>() <= 1.0);
}

#[test]
fn classes_come_with_their_probabilities() {
    let p = [0.1f32, 0.2, 0.7];
    let logits = Tensor::from(p).log().broadcast_to([N, 3]);
    let drawn = Rng::seed(23).categorical(&logits).to_vec::<i64>();
    for (class, p) in p.iter().enumerate() {
        let share = drawn.iter().filter(|&&c| c == class as i64).count() as f32 / N as f32;
        assert!((share - p).abs() < 0.005, "class {class}: {share} instead of {p}");
    }
}

#[test]
fn a_permutation_has_every_number_once() {
    let mut drawn = Rng::seed(2).permutation(1000).to_vec::<i64>();
    assert_ne!(drawn, (0..1000).collect::<Vec<i64>>());
    drawn.sort_unstable();
    assert_eq!(drawn, (0..1000).collect::<Vec<i64>>());
    let dice = Rng::seed(8).randint([N], 1, 7).to_vec::<i64>();
    for face in 1..=6 {
        let share = dice.iter().filter(|&&d| d == face).count() as f64 / N as f64;
        assert!((share - 1.0 / 6.0).abs() < 0.005, "{face}: {share}");
    }
}

#[test]
fn a_dirichlet_point_sums_to_one() {
    let x = Rng::seed(1).dirichlet(&Tensor::from([[0.5f32, 1.0, 2.0], [5.0, 5.0, 5.0]]));
    for sum in x.sum(-1).to_vec::<f32>() {
        assert!((sum - 1.0).abs() < 1e-5);
    }
}
