//! Decisions and loops inside compiled functions, with gradients, against plain Rust.

use thalweg_core::DType;
use thalweg_runtime::{cond, jit, scan, while_loop};
use thalweg_tensor::{Param, Rng, Tensor, grad, hvp};

fn close(a: &Tensor, b: &Tensor) {
    assert_eq!(a.meta(), b.meta());
    for (x, y) in a.to_vec::<f32>().iter().zip(b.to_vec::<f32>()) {
        assert!((x - y).abs() <= 1e-5 * (1.0 + y.abs()), "{a} instead of {b}");
    }
}

#[test]
fn cond_runs_one_branch_and_gradients_follow_it() {
    // The branch that is not taken would give NaN.
    let f = |x: &Tensor| cond(&x.sum(()).gt(0.0), || x.sqrt().sum(()), || (x * x).sum(()));
    for x in [Tensor::from([4.0f32, 9.0]), Tensor::from([-4.0f32, -9.0])] {
        close(&jit(|x: Tensor| f(&x)).call(x.clone()).unwrap(), &f(&x));
        close(&jit(|x: Tensor| grad(f)(&x)).call(x.clone()).unwrap(), &grad(f)(&x));
        let v = Tensor::from([1.0f32, 2.0]);
        let twice = jit(|(x, v): (Tensor, Tensor)| hvp(f, &x, &v)).call((x.clone(), v.clone())).unwrap();
        close(&twice, &hvp(f, &x, &v));
    }
}

#[test]
fn branches_see_tensors_and_params_and_may_set_them() {
    let run = |compiled: bool| {
        let w = Param::new("w", Tensor::from([2.0f32, 3.0]));
        let count = Param::state("count", Tensor::scalar(0i64));
        let c = Tensor::from([10.0f32, 20.0]);
        let f = |x: Tensor| {
            let scale = x.exp().sum(());
            let y = cond(
                &x.sum(()).lt(1.0),
                || {
                    count.set(count.get() + 1i64);
                    (w.get() * &c + &scale).sum(())
                },
                || (w.get() * &x).sum(()),
            );
            let g = y.grad(&[&w]).remove(0);
            w.set(w.get() - &g * 0.01);
            (y, g)
        };
        let inputs = [0.1f32, 5.0, 0.2].map(|v| Tensor::from([v, v]));
        let results: Vec<(Tensor, Tensor)> = match compiled {
            true => {
                let mut f = jit(f);
                inputs.into_iter().map(|x| f.call(x).unwrap()).collect()
            }
            false => inputs.into_iter().map(f).collect(),
        };
        (results, w.get(), count.get().item::<i64>())
    };
    let (eager, compiled) = (run(false), run(true));
    for ((a, b), (c, d)) in eager.0.iter().zip(&compiled.0) {
        close(a, c);
        close(b, d);
    }
    close(&eager.1.stop_gradient(), &compiled.1.stop_gradient());
    assert_eq!((eager.2, compiled.2), (2, 2));
}

#[test]
fn a_while_loop_turns_as_often_as_the_values_say() {
    let k = Tensor::scalar(0.7f32);
    let f = |x: &Tensor| {
        let (y, n) = while_loop(
            (x.clone(), Tensor::scalar(0i64)),
            |(x, _)| x.abs().amax(()).gt(1.0),
            |(x, n)| (&x * &k, n + 1i64),
        );
        (y.square().sum(()), n)
    };
    let mut compiled = jit(|x: Tensor| f(&x));
    let mut slope = jit(|x: Tensor| grad(|x| f(x).0)(&x));
    for scale in [0.5f32, 3.0, 100.0] {
        let x = Tensor::from([scale, -scale / 3.0]);
        let ((a, n), (b, m)) = (compiled.call(x.clone()).unwrap(), f(&x));
        close(&a, &b);
        assert_eq!(n.item::<i64>(), m.item::<i64>());
        close(&slope.call(x.clone()).unwrap(), &grad(|x| f(x).0)(&x));
    }
}

#[test]
fn a_recurrent_network_by_scan_has_the_gradients_of_its_unrolled_self() {
    let mut rng = Rng::seed(5);
    let (w, u) = (rng.normal([3, 4], 0.0, 0.5), rng.normal([4, 4], 0.0, 0.5));
    let (x, h) = (rng.normal([6, 2, 3], 0.0, 1.0), Tensor::zeros([2, 4], DType::F32));
    let loss = |w: &Tensor, u: &Tensor, x: &Tensor| {
        let (last, all) = scan(h.clone(), x.clone(), |h, x| {
            let h = (x.matmul(w) + h.matmul(u)).tanh();
            (h.clone(), h)
        });
        last.square().sum(()) + all.sin().mean(())
    };
    let grads = |w: &Tensor, u: &Tensor, x: &Tensor| {
        (grad(|v| loss(v, u, x))(w), grad(|v| loss(w, v, x))(u), grad(|v| loss(w, u, v))(x))
    };
    let (a, b, c) = grads(&w, &u, &x);
    let (d, e, f) = jit(|(w, u, x): (Tensor, Tensor, Tensor)| grads(&w, &u, &x)).call((w, u, x)).unwrap();
    close(&d, &a);
    close(&e, &b);
    close(&f, &c);
}

#[test]
fn what_a_body_may_not_do_is_said() {
    let p = Param::state("p", Tensor::scalar(0.0f32));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        jit(|x: Tensor| {
            while_loop(
                x,
                |x| x.lt(1.0),
                |x| {
                    p.set(x.clone());
                    x + 1.0
                },
            )
        })
        .call(Tensor::scalar(0.0f32))
    }));
    let text = panic.err().and_then(|p| p.downcast::<String>().ok()).expect("refused");
    assert!(text.contains("sets param `p`"), "{text}");
}

#[test]
fn whole_numbers_of_any_size_travel_beside_floats() {
    let big = [i64::MAX, i64::MIN, -1, 0, (1 << 53) + 1, -(1 << 53) - 1, 1 << 32, -(1 << 32) - 1];
    let n = Tensor::from(big);
    let wide = Tensor::from([u32::MAX, 0]);
    let mut f = jit(|(x, n): (Tensor, Tensor)| {
        let kept = cond(
            &x.sum(()).gt(0.0),
            || (x.exp(), n.clone(), wide.clone(), x.gt(0.0)),
            || (x.clone(), n.clone(), wide.clone(), x.lt(0.0)),
        );
        let (y, m) =
            while_loop((x.clone(), n.clone()), |(x, _)| x.sum(()).lt(3.0), |(x, n)| (x + 1.0, n + 1i64));
        let slope =
            grad(|x| while_loop((x.clone(), n.clone()), |(x, _)| x.lt(3.0), |(x, n)| (x * 2.0, n)).0)(&x);
        (kept, y, m, slope)
    });
    let (kept, y, m, slope) = f.call((Tensor::scalar(1.0f32), n)).unwrap();
    assert_eq!(kept.0.item::<f32>(), 1f32.exp());
    assert_eq!(kept.1.to_vec::<i64>(), big);
    assert_eq!(kept.2.to_vec::<u32>(), [u32::MAX, 0]);
    assert!(kept.3.item::<bool>());
    assert_eq!(y.item::<f32>(), 3.0);
    assert_eq!(m.to_vec::<i64>(), big.map(|v| v.wrapping_add(2)));
    assert_eq!(slope.item::<f32>(), 4.0);
}

#[test]
fn plans_name_decisions_and_loops_with_their_cost_and_steps() {
    let w = Tensor::ones([4, 4], DType::F32);
    let mut f = jit(|x: Tensor| {
        let (last, _) = scan(x.select(0, 0), x.clone(), |h, x| {
            let h = (h + x).reshape([1, 4]).matmul(&w).tanh().reshape([4]);
            (h.clone(), h)
        });
        cond(
            &last.sum(()).gt(0.0),
            || last.exp().cumsum(0),
            || while_loop(last.clone(), |h| h.sum(()).lt(9.0), |h| h + 1.0),
        )
    });
    f.call(Tensor::ones([5, 4], DType::F32)).unwrap();
    let steps: Vec<_> = f.plan().steps().collect();
    let named = |name: &str| steps.iter().find(|s| s.ops == [name]).unwrap_or_else(|| panic!("{}", f.plan()));
    let turn = 2 * 4 * 4 + 4;
    let flops = named("scan").cost.flops;
    assert!((5 * turn..5 * turn * 4).contains(&flops), "{flops}");
    assert!(named("cond").cost.flops > 0);
    let text = f.plan().to_string();
    for part in ["each of 5 turns:", "matmul", "then:", "otherwise:", "cumsum", "as long as:", "control.rs:"]
    {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains("custom"), "{text}");
}
