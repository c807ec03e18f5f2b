//! A compiled function does what the function does.

use thalweg_core::DType;
use thalweg_runtime::{JitOptions, jit, jit_with};
use thalweg_tensor::{ConvOptions, Param, Rng, Tensor};

fn close(a: &Tensor, b: &Tensor) -> bool {
    a.meta() == b.meta() && a.to_vec::<f32>().iter().zip(b.to_vec::<f32>()).all(|(a, b)| (a - b).abs() < 1e-5)
}

/// A two-layer network with momentum, as a function of where its state lives.
fn train(options: Option<JitOptions>, n_steps: usize) -> (Vec<f32>, Vec<Tensor>) {
    let mut rng = Rng::seed(3);
    let (x, y) = (rng.normal([32, 20], 0.0, 1.0), rng.normal([32, 5], 0.0, 1.0));
    let w1 = Param::new("w1", rng.normal([20, 16], 0.0, 0.3));
    let b1 = Param::new("b1", Tensor::zeros([16], DType::F32));
    let w2 = Param::new("w2", rng.normal([16, 5], 0.0, 0.3));
    let params = [&w1, &b1, &w2];
    let slots: Vec<Param> =
        params.iter().map(|p| Param::state(format!("{}.momentum", p.name()), p.get().zeros_like())).collect();
    let step = |(x, y): (Tensor, Tensor)| {
        let h = (x.matmul(&w1.get()) + b1.get()).relu();
        let loss = (h.matmul(&w2.get()) - y).square().mean(());
        for ((p, slot), g) in params.iter().zip(&slots).zip(loss.grad(&params)) {
            slot.set(slot.get() * 0.9 + g);
            p.set(p.get() - slot.get() * 0.05);
        }
        loss
    };
    let mut losses = Vec::new();
    match options {
        None => (0..n_steps).for_each(|_| losses.push(step((x.clone(), y.clone())).item::<f32>())),
        Some(options) => {
            let mut step = jit_with(options, step);
            (0..n_steps).for_each(|_| losses.push(step.call((x.clone(), y.clone())).unwrap().item::<f32>()));
        }
    }
    (losses, params.iter().map(|p| p.get()).collect())
}

#[test]
fn a_training_step_gives_the_same_bits_compiled() {
    let (eager, weights) = train(None, 20);
    for options in [JitOptions::default(), JitOptions::plain(), JitOptions::default().without("fuse")] {
        let (compiled, compiled_weights) = train(Some(options.clone()), 20);
        assert_eq!(eager, compiled, "{options:?}");
        for (a, b) in weights.iter().zip(&compiled_weights) {
            assert_eq!(a.to_vec::<f32>(), b.to_vec::<f32>(), "{options:?}");
        }
    }
}

#[test]
fn tensors_read_before_a_call_keep_their_values() {
    let w = Param::new("w", Tensor::from([1.0f32, 2.0]));
    let before = w.get();
    let mut double = jit(|()| w.set(w.get() * 2.0));
    double.call(()).unwrap();
    double.call(()).unwrap();
    assert_eq!(before.to_vec::<f32>(), [1.0, 2.0]);
    assert_eq!(w.get().to_vec::<f32>(), [4.0, 8.0]);
}

#[test]
fn params_may_swap_their_values() {
    let (a, b) = (Param::state("a", Tensor::from([1.0f32])), Param::state("b", Tensor::from([2.0f32])));
    let mut swap = jit(|()| {
        let (old_a, old_b) = (a.get(), b.get());
        a.set(old_b);
        b.set(old_a);
    });
    swap.call(()).unwrap();
    assert_eq!((a.get().item::<f32>(), b.get().item::<f32>()), (2.0, 1.0));
}

#[test]
fn a_param_that_is_read_after_its_update_has_both_values() {
    let w = Param::state("w", Tensor::from([3.0f32, 5.0]));
    let mut step = jit(|x: Tensor| {
        let old = w.get();
        w.set(&old + x);
        (old.flip(0), w.get() * 10.0, w.get())
    });
    let (old, scaled, new) = step.call(Tensor::from([1.0f32, 1.0])).unwrap();
    assert_eq!(old.to_vec::<f32>(), [5.0, 3.0]);
    assert_eq!(scaled.to_vec::<f32>(), [40.0, 60.0]);
    assert_eq!(new.to_vec::<f32>(), [4.0, 6.0]);
    assert_eq!(w.get().to_vec::<f32>(), [4.0, 6.0]);
}

#[test]
fn random_numbers_go_on_as_in_eager_code() {
    let mut rng = Rng::seed(11);
    let eager: Vec<Vec<f32>> = (0..3).map(|_| rng.uniform([5], -1.0, 1.0).to_vec()).collect();
    let mut rng = Rng::seed(11);
    let mut draw = jit(|()| rng.uniform([5], -1.0, 1.0));
    let compiled: Vec<Vec<f32>> = (0..3).map(|_| draw.call(()).unwrap().to_vec()).collect();
    assert_eq!(eager, compiled);
    drop(draw);
    assert_eq!(rng.position(), 3);
}

#[test]
fn results_may_be_arguments_captured_tensors_or_the_same_value_twice() {
    let c = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
    let mut f = jit(|x: Tensor| (x.clone(), c.t(), &x + 1.0, &x + 1.0, Tensor::ones([2], DType::F32)));
    let x = Tensor::from([7.0f32, 8.0]);
    let (same, t, a, b, ones) = f.call(x.clone()).unwrap();
    assert_eq!(same.to_vec::<f32>(), [7.0, 8.0]);
    assert_eq!(t.to_vec::<f32>(), [1.0, 3.0, 2.0, 4.0]);
    assert_eq!(a.to_vec::<f32>(), [8.0, 9.0]);
    assert_eq!(b.to_vec::<f32>(), [8.0, 9.0]);
    assert_eq!(ones.to_vec::<f32>(), [1.0, 1.0]);
    assert!(!same.shares_memory_with(&x), "a result is nobody else's memory");
}

#[test]
fn results_that_are_kept_do_not_change_with_the_next_call() {
    let mut f = jit(|x: Tensor| x * 2.0);
    let first = f.call(Tensor::from([1.0f32])).unwrap();
    let second = f.call(Tensor::from([2.0f32])).unwrap();
    assert_eq!((first.item::<f32>(), second.item::<f32>()), (2.0, 4.0));
}

#[test]
fn each_kind_of_argument_is_compiled_once_and_explained() {
    let mut f = jit(|(x, n): (Tensor, usize)| (0..n).fold(x, |x, _| &x + &x));
    let x = Tensor::from([1.0f32]);
    assert_eq!(f.call((x.clone(), 3)).unwrap().item::<f32>(), 8.0);
    assert_eq!(f.call((x.clone(), 2)).unwrap().item::<f32>(), 4.0);
    assert_eq!(f.call((Tensor::ones([2], DType::F32), 2)).unwrap().to_vec::<f32>(), [4.0, 4.0]);
    assert_eq!(f.call((x, 3)).unwrap().item::<f32>(), 8.0);
    let text = f.explain();
    assert!(text.starts_with("compiled 3 times"), "{text}");
    assert!(text.contains("2. unlike 1: argument.1 was 3, is 2"), "{text}");
    assert!(text.contains("3. unlike 2: argument.0 was f32[1], is f32[2]"), "{text}");
}

#[test]
fn gradients_of_gradients_compile() {
    let f = |x: &Tensor| (x * x * x).sum(());
    let curvature = |x: Tensor| thalweg_tensor::grad(|x| thalweg_tensor::grad(f)(x).sum(()))(&x);
    let x = Tensor::from([1.0f32, -2.0]);
    assert!(close(&jit(curvature).call(x.clone()).unwrap(), &curvature(x)));
}

#[test]
fn views_are_read_through_and_copied_only_where_they_must_be() {
    let mut f = jit(|x: Tensor| {
        let y = x.t().reshape([6]) * 2.0;
        (y.reshape([3, 2]).t(), x.narrow(1, 1, 2).sum(1))
    });
    let eager = |x: Tensor| {
        let y = x.t().reshape([6]) * 2.0;
        (y.reshape([3, 2]).t(), x.narrow(1, 1, 2).sum(1))
    };
    let x = Tensor::from([[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    let ((a, b), (c, d)) = (f.call(x.clone()).unwrap(), eager(x));
    assert!(close(&a, &c) && close(&b, &d));
}

#[test]
fn a_failing_op_is_an_error_with_the_users_line() {
    let table = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
    let mut pick = jit(|i: Tensor| table.index_select(0, &i));
    assert!(pick.call(Tensor::from([0i64, 1])).is_ok());
    let error = pick.call(Tensor::from([0i64, 9])).unwrap_err().to_string();
    assert!(error.contains("index 9 is out of range") && error.contains("jit.rs"), "{error}");
    assert_eq!(pick.call(Tensor::from([1i64, 1])).unwrap().to_vec::<f32>(), [3.0, 4.0, 3.0, 4.0]);
}

#[test]
fn reading_a_traced_value_names_both_lines() {
    let result = std::panic::catch_unwind(|| {
        jit(|x: Tensor| {
            let s = x.sum(());
            if s.item::<f32>() > 0.0 { x } else { -x }
        })
        .call(Tensor::ones([3], DType::F32))
    });
    let panic = result.expect_err("must not compile");
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("traced") && text.contains("jit.rs") && text.contains("cond"), "{text}");
}

#[test]
fn a_jit_inside_a_jit_is_traced_with_it() {
    let mut inner = jit(|x: Tensor| x.exp());
    let mut outer = jit(|x: Tensor| inner.call(x * 2.0).unwrap() + 1.0);
    assert!(close(&outer.call(Tensor::from([0.5f32])).unwrap(), &Tensor::from([1f32.exp() + 1.0])));
}

#[test]
fn the_classic_diamond() {
    let mut f = jit(|ones: Tensor| {
        let a = ones * 2.0;
        let (c, b) = (&a + 2.0, &a + 1.0);
        b * c
    });
    assert_eq!(f.call(Tensor::ones([10], DType::F32)).unwrap().to_vec::<f32>(), [12.0; 10]);
    assert_eq!(f.plan().n_steps(), 1, "{}", f.plan());
}

#[test]
fn a_chain_of_products_takes_the_cheap_order_and_the_plan_says_what_that_saves() {
    let mut rng = Rng::seed(2);
    let (a, b) = (rng.normal([64, 48], 0.0, 1.0), rng.normal([48, 80], 0.0, 1.0));
    let v = rng.normal([80, 1], 0.0, 1.0);
    let chain = |(a, b, v): (Tensor, Tensor, Tensor)| a.matmul(&b).matmul(&v);
    let mut f = jit(chain);
    let got = f.call((a.clone(), b.clone(), v.clone())).unwrap();
    let want = chain((a, b, v));
    let error = (&got - &want).abs().amax(()).item::<f32>() / want.abs().amax(()).item::<f32>();
    assert!(error < 1e-5, "{error}");
    // 2·(48·80 + 64·48) instead of 2·(64·48·80 + 64·80).
    assert_eq!(f.plan().flops(), 13_824);
    let text = f.plan().to_string();
    assert!(text.contains("13.8 k flop (501.8 k as written, 487.9 k saved)"), "{text}");
}

#[test]
fn independent_branches_run_at_the_same_time() {
    let mut rng = Rng::seed(2);
    let weights: Vec<Tensor> = (0..6).map(|_| rng.normal([64, 64], 0.0, 0.1)).collect();
    let branches = |x: &Tensor| -> Vec<Tensor> { weights.iter().map(|w| x.matmul(w).softmax(-1)).collect() };
    let x = rng.normal([64, 64], 0.0, 1.0);
    let mut f = jit(|x: Tensor| branches(&x));
    let got = f.call(x.clone()).unwrap();
    assert!(f.plan().n_concurrent() >= 2, "{}", f.plan());
    for (a, b) in got.iter().zip(branches(&x)) {
        assert_eq!(a.to_vec::<f32>(), b.to_vec::<f32>());
    }
}

#[test]
fn a_program_of_three_thousand_steps_keeps_its_bits() {
    let step = |n: usize| {
        move |x: Tensor| (0..n).fold(x, |x, i| if i % 3 == 0 { x.cumsum(0) } else { x.sin() * 0.5 })
    };
    let mut f = jit(step(3000));
    let x = Tensor::linspace(0.0, 1.0, 16);
    let (got, want) = (f.call(x.clone()).unwrap(), step(3000)(x));
    assert_eq!(got.to_vec::<f32>(), want.to_vec::<f32>());
}

#[test]
fn sibling_products_with_captured_weights_run_as_one_step() {
    let mut rng = Rng::seed(12);
    let [q, k, v] = [0; 3].map(|_| rng.normal([16, 16], 0.0, 0.3));
    let biases = [0; 3].map(|_| rng.normal([16], 0.0, 0.3));
    let x = rng.normal([1, 16], 0.0, 1.0);
    let project = |x: Tensor| {
        let [a, b, c] = &biases;
        (x.linear(&q, Some(a)), x.linear(&k, Some(b)).tanh(), x.linear(&v, Some(c)))
    };
    let mut f = jit(project);
    let got = f.call(x.clone()).unwrap();
    let want = project(x);
    assert!(close(&got.0, &want.0) && close(&got.1, &want.1) && close(&got.2, &want.2));
    let n = |name: &str| f.plan().steps().filter(|s| s.ops.iter().any(|op| op == name)).count();
    assert_eq!((n("linear"), n("concat")), (1, 0), "{}", f.plan());
}

#[test]
fn what_follows_a_product_runs_on_its_pieces_with_the_same_bits() {
    let mut rng = Rng::seed(9);
    for (m, k, n) in [(3, 5, 7), (1, 40, 300), (130, 70, 520), (300, 600, 700)] {
        let (x, w) = (rng.normal([m, k], 0.0, 1.0), rng.normal([n, k], 0.0, 0.2));
        let (b, r) = (rng.normal([n], 0.0, 1.0), rng.normal([m, n], 0.0, 1.0));
        // In place, beside a result that stays, with further operands, and one that is repeated per row.
        let f = |(x, r): (Tensor, Tensor)| {
            let offset = b.reshape([1, n]).exp();
            let y = x.linear(&w, Some(&b));
            let gated = (&y * 0.3).tanh() * &r + offset;
            let relu = x.matmul(&w.transpose(0, 1)).relu() * 0.5;
            (relu, y, gated)
        };
        let mut compiled = jit(f);
        let got = compiled.call((x.clone(), r.clone())).unwrap();
        let names: Vec<String> = compiled.plan().steps().map(|s| s.name()).collect();
        assert!(names.iter().any(|s| s.starts_with("linear ")), "{names:?}");
        assert!(names.iter().any(|s| s.starts_with("matmul ")), "{names:?}");
        let want = f((x.clone(), r.clone()));
        let bits = |t: &Tensor| t.to_vec::<f32>().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        for (got, want) in [(&got.0, &want.0), (&got.1, &want.1), (&got.2, &want.2)] {
            assert_eq!(bits(got), bits(want), "{m}×{k}×{n}");
        }
        assert!(compiled.verify((x, r), 0.0).unwrap().is_none());
    }
}

#[test]
fn what_follows_a_product_or_a_convolution_is_part_of_its_step() {
    let mut rng = Rng::seed(11);
    let (x, w) = (rng.normal([3, 4, 12, 12], 0.0, 1.0), rng.normal([8, 4, 3, 3], 0.0, 1.0));
    let (far, wide) = (rng.normal([8, 4, 3, 3], 0.0, 1.0), rng.normal([6, 1, 3, 3], 0.0, 1.0));
    let bias = rng.normal([8], 0.0, 1.0);
    let one_apart = ConvOptions::default();
    let two_apart = ConvOptions { stride: 2.into(), ..ConvOptions::default() };
    // Over windows in the image, over columns, and plane by plane.
    let near = |x: Tensor| (x.conv2d(&w, Some(&bias), &one_apart).relu() - 0.5).tanh();
    let far = |x: Tensor| x.conv2d(&far, Some(&bias), &two_apart).sigmoid();
    let planes = |x: Tensor| x.narrow(1, 0, 1).conv2d(&wide, None, &two_apart).relu() * 0.5;
    let product = |x: Tensor| (x.reshape([12, 144]).matmul(&w.reshape([144, 2])) * 0.5).relu();
    fn check(what: &str, f: impl Fn(Tensor) -> Tensor, x: &Tensor) {
        let (want, mut compiled) = (f(x.clone()), jit(&f));
        let got = compiled.call(x.clone()).unwrap();
        assert_eq!(got.to_vec::<f32>(), want.to_vec::<f32>(), "{what}");
        assert_eq!(compiled.plan().n_steps(), 1, "{what}: {}", compiled.plan());
    }
    check("near", near, &x);
    check("far", far, &x);
    check("planes", planes, &x);
    check("product", product, &x);
}

#[test]
fn a_lone_op_follows_its_product_and_updates_stay_together() {
    let mut rng = Rng::seed(12);
    let w1 = Param::new("w1", rng.normal([20, 30], 0.0, 0.2));
    let w2 = Param::new("w2", rng.normal([10, 20], 0.0, 0.2));
    let mut step = jit(|x: Tensor| {
        let h = x.linear(&w1.get(), None).relu();
        let loss = h.linear(&w2.get(), None).square().mean(());
        for (w, g) in [&w1, &w2].into_iter().zip(loss.grad(&[&w1, &w2])) {
            w.set(w.get() - g * 0.1);
        }
    });
    step.call(rng.normal([40, 30], 0.0, 1.0)).unwrap();
    let names: Vec<String> = step.plan().steps().map(|s| s.name()).collect();
    for want in ["matmul relu", "matmul relu_grad", "mul sub mul sub"] {
        assert_eq!(names.iter().filter(|n| n.as_str() == want).count(), 1, "{want}: {names:?}");
    }
}

#[test]
fn parameters_of_sibling_products_lie_side_by_side_and_stay_themselves() {
    let mut rng = Rng::seed(13);
    let weights: Vec<Param> =
        (0..3).map(|i| Param::new(format!("w{i}"), rng.normal([32, 16], 0.0, 0.2))).collect();
    let all: Vec<&Param> = weights.iter().collect();
    let x = rng.normal([4, 16], 0.0, 1.0);
    let step = |x: Tensor| {
        let [q, k, v] = [0, 1, 2].map(|i| x.linear(&all[i].get(), None));
        let loss = ((q * k).tanh() * v).mean(());
        for (w, g) in all.iter().zip(loss.grad(&all)) {
            w.set(w.get() - g * 0.5);
        }
        loss
    };
    let start: Vec<Tensor> = all.iter().map(|p| p.get()).collect();
    let want: Vec<f32> = (0..4).map(|_| step(x.clone()).item()).collect();
    let want_weights: Vec<Tensor> = all.iter().map(|p| p.get()).collect();
    all.iter().zip(&start).for_each(|(p, value)| p.set(value.clone()));

    let mut compiled = jit(step);
    let at = |p: &Param| p.hold().view().address().addr();
    let mut got = vec![compiled.call(x.clone()).unwrap().item::<f32>()];
    let products = compiled.plan().steps().filter(|s| s.name().starts_with("matmul")).count();
    // One forward instead of three, and a gradient of each weight.
    assert_eq!(products, 4, "{}", compiled.plan());
    assert!(!compiled.plan().to_string().contains("concat"), "{}", compiled.plan());
    let bytes = 32 * 16 * 4;
    let neighbours = || at(all[0]) + bytes == at(all[1]) && at(all[1]) + bytes == at(all[2]);
    assert!(neighbours());
    got.push(compiled.call(x.clone()).unwrap().item());
    // A value from elsewhere, and a reader that keeps the old one: the next call brings them together again.
    all[1].set(all[1].get() * 1.0);
    let kept = all[2].get();
    let kept_values = kept.to_vec::<f32>();
    assert!(!neighbours());
    got.push(compiled.call(x.clone()).unwrap().item());
    got.push(compiled.call(x.clone()).unwrap().item());
    assert!(neighbours());
    assert_eq!(kept.to_vec::<f32>(), kept_values);
    assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5), "{got:?} {want:?}");
    all.iter().zip(&want_weights).for_each(|(p, want)| assert!(close(&p.get(), want)));
}
