//! Functions of any batch size: always the numbers of the function itself, and passes spared where that is safe.

use thalweg_core::DType;
use thalweg_runtime::{Jit, JitOptions, jit_with};
use thalweg_tensor::{Param, Rng, Tensor, ambient};

fn any_batch() -> JitOptions {
    JitOptions::default().any_batch()
}

/// For each compilation, whether passes were spared.
fn spared<A: thalweg_runtime::Tree, R: thalweg_runtime::Tree, F: FnMut(A) -> R>(
    f: &Jit<A, R, F>,
) -> Vec<bool> {
    f.explain().lines().skip(1).map(|l| l.contains("not optimised")).collect()
}

/// The function is called at these sizes, and gives what it gives eagerly.
fn check(f: impl Fn(&Tensor) -> Tensor, sizes: &[usize]) -> (Vec<bool>, String) {
    let mut compiled = jit_with(any_batch(), |x: Tensor| f(&x));
    for &n in sizes {
        let x = Rng::seed(n as u64).normal([n, 3], 0.0, 1.0);
        let (got, want) = (compiled.call(x.clone()).unwrap(), f(&x));
        assert_eq!(got.to_vec::<f32>(), want.to_vec::<f32>(), "at {n}: {}", compiled.explain());
    }
    (spared(&compiled), compiled.explain())
}

#[test]
fn a_training_step_has_the_bits_of_its_own_size_and_spares_passes_between_known_sizes() {
    let step = |options: JitOptions| {
        let mut rng = Rng::seed(3);
        let (w, b) = (rng.normal([5, 3], 0.0, 1.0), rng.normal([3], 0.0, 1.0));
        let (w, b) = (Param::new("w", w), Param::new("b", b));
        let mut sizes = Vec::new();
        let mut f = jit_with(options, |(x, y): (Tensor, Tensor)| {
            sizes.push(x.size(0));
            let loss = (x.matmul(&w.get()) + b.get()).tanh().cross_entropy(&y);
            let g = loss.grad(&[&w, &b]);
            w.set(w.get() - &g[0] * 0.1);
            b.set(b.get() - &g[1] * 0.1);
            loss
        });
        let mut losses = Vec::new();
        for n in [8, 3, 1, 64, 8, 2, 20, 33, 100, 99] {
            let (x, y) = (rng.normal([n, 5], 0.0, 1.0), rng.randint([n], 0, 3));
            losses.push(f.call((x, y)).unwrap().item::<f32>().to_bits());
        }
        let (spared, why) = (spared(&f), f.explain());
        drop(f);
        (losses, sizes, spared, why)
    };
    let (want, ..) = step(JitOptions::default());
    let (got, sizes, spared, why) = step(any_batch());
    assert_eq!(got, want);
    assert_eq!(sizes, [8, 3, 1, 64, 2, 20, 33, 100, 99], "each size is traced once, and no other");
    // Sizes 8, 3 and 64 were optimised; 20 and 33 lie between them, 100 does not and moves the end.
    assert_eq!(spared, [false, false, false, false, false, true, true, false, true], "{why}");
    assert!(why.contains("serves every batch size"), "{why}");
}

#[test]
fn code_that_looks_at_the_size_is_compiled_as_it_is() {
    let bucket = |x: &Tensor| if x.size(0) >= 64 { x.sum(0) / 64.0 } else { x.mean(0) };
    check(bucket, &[4, 9, 16, 10, 100, 64, 63]);
    let one_size = |x: &Tensor| if x.size(0) == 8 { x.exp() } else { x.sin() };
    let (spared, why) = check(one_size, &[4, 16, 9, 8, 7]);
    assert_eq!(spared, [false, false, false, false, true], "{why}");
    assert!(why.contains("this batch size by itself: exp"), "{why}");
    let even = |x: &Tensor| if x.size(0).is_multiple_of(2) { x.sin() } else { x * 3.0 };
    check(even, &[4, 16, 8, 9, 10, 11]);
}

#[test]
fn tensors_made_of_the_size_do_not_stand_in_the_way() {
    let zeros = |x: &Tensor| {
        x.exp() + Tensor::zeros([x.size(0), 3], DType::F32) + Tensor::ones([x.size(0), 1], DType::F32)
    };
    assert_eq!(check(zeros, &[4, 16, 8, 10]).0, [false, false, false, true]);
    let positions = |x: &Tensor| x * Tensor::arange(x.size(0)).to_dtype(DType::F32).unsqueeze(1);
    assert_eq!(check(positions, &[4, 16, 8, 10]).0, [false, false, false, true]);
    let unbiased = |x: &Tensor| x.mean(0) * (x.size(0) as f64 / (x.size(0) as f64 - 1.0));
    assert_eq!(check(unbiased, &[4, 16, 8, 10]).0, [false, false, false, true]);
}

#[test]
fn operands_that_are_as_long_as_the_batch_by_chance_do_no_harm() {
    let mut f = jit_with(any_batch(), |(x, w): (Tensor, Tensor)| x.matmul(&w));
    let w = Rng::seed(1).normal([5, 3], 0.0, 1.0);
    for n in [5, 7, 2, 9, 5, 6] {
        let x = Tensor::ones([n, 5], DType::F32);
        let want = x.matmul(&w).to_vec::<f32>();
        assert_eq!(f.call((x, w.clone())).unwrap().to_vec::<f32>(), want);
    }
    assert_eq!(spared(&f), [false, false, false, false, true], "{}", f.explain());
}

#[test]
fn a_function_that_does_not_follow_its_batch_says_why_once() {
    let squares = |x: &Tensor| x.matmul(&x.transpose(0, 1)).reshape([-1]).sum(());
    let (spared, why) = check(squares, &[2, 3, 4, 5, 6]);
    assert_eq!(spared, [false; 5]);
    assert_eq!(why.matches("every batch size by itself: reshape").count(), 1, "{why}");
}

#[test]
fn a_family_is_of_one_state_of_switches_and_surroundings() {
    let on = thalweg_tensor::Switch::new("on", true);
    let narrow = |x: &Tensor| match ambient::Ambient::now().compute {
        Some(dtype) => x.to_dtype(dtype).to_dtype(DType::F32),
        None => x.clone(),
    };
    let mut f =
        jit_with(any_batch(), |x: Tensor| if on.is_on() { narrow(&x).exp() } else { narrow(&x).sin() });
    let third = |n: usize| Tensor::full([n, 1], 1.0 / 3.0, DType::F32);
    for n in [4, 9, 6, 5] {
        on.turn(true);
        let plain = f.call(third(n)).unwrap().to_vec::<f32>();
        assert_eq!(plain, third(n).exp().to_vec::<f32>());
        let half = ambient::computing_in(DType::BF16, || f.call(third(n))).unwrap().to_vec::<f32>();
        assert_eq!(half, third(n).to_dtype(DType::BF16).to_dtype(DType::F32).exp().to_vec::<f32>());
        on.turn(false);
        assert_eq!(f.call(third(n)).unwrap().to_vec::<f32>(), third(n).sin().to_vec::<f32>());
    }
    assert_eq!(spared(&f)[9..], [true; 3], "{}", f.explain());
}

#[test]
fn plans_that_were_not_used_for_long_make_room() {
    let mut sizes = Vec::new();
    let mut f = jit_with(JitOptions::default(), |x: Tensor| {
        sizes.push(x.size(0));
        x.sum(())
    });
    for n in 1..=64 {
        f.call(Tensor::ones([n], DType::F32)).unwrap();
    }
    f.call(Tensor::ones([1], DType::F32)).unwrap();
    assert!(!f.explain().contains("dropped"), "{}", f.explain());
    for n in [65, 1, 3, 2] {
        assert_eq!(f.call(Tensor::ones([n], DType::F32)).unwrap().item::<f32>(), n as f32);
    }
    assert!(f.explain().contains("dropped the plan for (f32[2]): 64 are kept"), "{}", f.explain());
    drop(f);
    assert_eq!(sizes[64..], [65, 2]);
}
