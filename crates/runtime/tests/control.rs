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

/// What `f` says when it panics, with the line.
fn refusal(f: impl Fn(&Tensor) -> Tensor) -> String {
    use std::sync::Mutex;
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let said = std::sync::Arc::new(Mutex::new(String::new()));
    let (hook, at) = (std::panic::take_hook(), said.clone());
    std::panic::set_hook(Box::new(move |info| *at.lock().unwrap() = info.to_string()));
    let compiled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        jit(|x: Tensor| f(&x)).call(Tensor::scalar(0.0f32)).map(|y| y.to_string())
    }));
    std::panic::set_hook(hook);
    let text = said.lock().unwrap().clone();
    assert!(compiled.is_err(), "it gave {compiled:?}");
    text
}

#[test]
fn what_a_body_may_not_do_is_said() {
    let p = Param::state("p", Tensor::scalar(0.0f32));
    let text = refusal(|x| {
        let sets = |x: &Tensor| {
            p.set(x.clone());
            x.lt(1.0)
        };
        while_loop(x.clone(), sets, |x| x + 1.0)
    });
    assert!(text.contains("the condition sets param `p`"), "{text}");
}

fn bits(t: &Tensor) -> Vec<u32> {
    t.to_vec::<f32>().into_iter().map(f32::to_bits).collect()
}

/// `f` twice eagerly and twice compiled, each side with state of its own: same results, same state.
fn agree(name: &str, x: &Tensor, make: impl Fn() -> (Vec<Param>, Box<dyn Fn(&Tensor) -> Vec<Tensor>>)) {
    let ((state, eager), (other, traced)) = (make(), make());
    let mut compiled = jit(|x: Tensor| traced(&x));
    for _ in 0..2 {
        let (want, got) = (eager(x), compiled.call(x.clone()).unwrap());
        assert_eq!(want.len(), got.len(), "{name}");
        want.iter().zip(&got).for_each(|(want, got)| close(&got.stop_gradient(), &want.stop_gradient()));
        for (p, q) in state.iter().zip(&other) {
            let [p, q] = [p, q].map(|p| p.get().to_dtype(DType::F64).to_vec::<f64>());
            assert_eq!(p.len(), q.len(), "{name}");
            assert!(p.iter().zip(&q).all(|(a, b)| (a - b).abs() < 1e-5), "{name}: {q:?} instead of {p:?}");
        }
    }
}

#[test]
fn loops_carry_the_parameters_that_their_bodies_set() {
    let x = Rng::seed(3).normal([5, 4], 0.0, 1.0);
    agree("noise", &x, || {
        let rng = std::cell::RefCell::new(Rng::seed(7));
        let state = rng.borrow().state().clone();
        let f = move |x: &Tensor| {
            let noisy = |x: &Tensor| {
                let drop = |h: Tensor, x: Tensor| {
                    let h = h * 0.5 + x * rng.borrow_mut().bernoulli([4], 0.5).to_dtype(DType::F32);
                    (h.clone(), h)
                };
                scan(Tensor::zeros([4], DType::F32), x.clone(), drop).1
            };
            vec![noisy(x), grad(|x| noisy(x).square().sum(()))(x)]
        };
        (vec![state], Box::new(f))
    });
    agree("statistics", &x, || {
        let mean = Param::state("mean", Tensor::scalar(0.5f32));
        let state = vec![mean.clone()];
        let f = move |x: &Tensor| {
            let centred = |x: &Tensor| {
                let turn = |h: Tensor, x: Tensor| {
                    let y = (&x - mean.get()) * &h;
                    mean.set(mean.get() * 0.9 + x.mean(()) * 0.1);
                    (h + y.sum(()), y)
                };
                scan(x.mean(()), x.clone(), turn).1
            };
            vec![centred(x), grad(|x| centred(x).square().sum(()))(x), mean.get()]
        };
        (state, Box::new(f))
    });
    agree("a count that decides", &x, || {
        let count = Param::state("count", Tensor::scalar(0i64));
        let state = vec![count.clone()];
        let f = move |x: &Tensor| {
            let turn = |x: Tensor| {
                count.set(count.get() + 1i64);
                x * 0.5
            };
            count.set(count.get() - 3i64);
            let y = while_loop(x.clone(), |_| count.get().lt(4i64), turn);
            vec![y]
        };
        (state, Box::new(f))
    });
    agree("weights", &x, || {
        let w = Param::new("w", Tensor::from([1.0f32, 2.0, -1.0, 0.5]));
        let state = vec![w.clone()];
        let f = move |x: &Tensor| {
            let before = w.get();
            let turn = |h: Tensor, x: Tensor| {
                let y = (w.get() * &x).sum(()) + h;
                w.set(w.get() * 0.9);
                (y.clone(), y)
            };
            let (y, _) = scan(Tensor::scalar(0.0f32), x.clone(), turn);
            let later = (w.get() * x.select(0, 0)).sum(()) + &y * &y;
            let g = later.grad(&[&before, &w.get()]);
            [vec![later], g].concat()
        };
        (state, Box::new(f))
    });
}

#[test]
fn second_derivatives_go_through_loops() {
    let mut rng = Rng::seed(11);
    let w = rng.normal([4, 4], 0.0, 0.5);
    let x = rng.normal([4], 0.0, 1.0);
    let v = rng.normal([4], 0.0, 1.0);
    let by_scan = |x: &Tensor| {
        let xs = Tensor::stack(&[x.clone(), x * 2.0, x.sin()], 0);
        let (h, y) = scan(x.clone(), xs, |h: Tensor, row: Tensor| {
            let h = (h.reshape([1, 4]).matmul(&w).reshape([4]) + &row * x).tanh();
            (h.clone(), h.square())
        });
        h.sum(()) + y.sin().sum(())
    };
    let by_while = |x: &Tensor| {
        let body = |(h, n): (Tensor, Tensor)| ((h * x).tanh() + x.sin(), n + 1i64);
        let start = (x.clone(), Tensor::scalar(0i64));
        while_loop(start, |(_, n)| n.lt(4i64), body).0.square().sum(())
    };
    type Function<'a> = &'a dyn Fn(&Tensor) -> Tensor;
    for (name, f) in [("scan", &by_scan as Function<'_>), ("while", &by_while)] {
        let twice = |(x, v): (Tensor, Tensor)| hvp(f, &x, &v);
        println!("{name}");
        close(&jit(twice).call((x.clone(), v.clone())).unwrap(), &twice((x.clone(), v.clone())));
        let thrice = |x: &Tensor| grad(|x| (hvp(f, x, &v) * &v).sum(()))(x);
        let (got, want) = (jit(|x: Tensor| thrice(&x)).call(x.clone()).unwrap(), thrice(&x));
        let near = |(a, b): (f32, f32)| (a - b).abs() <= 1e-3 * (1.0 + b.abs());
        let all = got.to_vec::<f32>().into_iter().zip(want.to_vec::<f32>()).all(near);
        assert!(all, "{got} instead of {want}");
    }
}

#[test]
fn a_scan_over_nothing_keeps_its_state() {
    let w = Tensor::from([1.0f32, 2.0]);
    let f = |x: &Tensor| scan(w.clone(), x.clone(), |h: Tensor, x: Tensor| (&h + &x, (x.sum(()), &h * 2.0)));
    let x = Tensor::zeros([0, 2], DType::F32);
    for (h, (sum, y)) in [f(&x), jit(|x: Tensor| f(&x)).call(x.clone()).unwrap()] {
        assert_eq!(h.to_vec::<f32>(), [1.0, 2.0]);
        assert_eq!((sum.shape().to_vec(), y.shape().to_vec()), (vec![0], vec![0, 2]));
    }
}

#[test]
fn zeros_keep_their_sign_through_decisions() {
    let x = Tensor::from([0.0f32, -0.0, 1.0, -2.0]);
    let other = Tensor::from([1.0f32, -1.0, 0.0, -0.0]);
    let yes = |x: &Tensor| x.square().sum(()).gt(0.0);
    let no = |x: &Tensor| x.square().sum(()).lt(0.0);
    type Function<'a> = (&'a str, Box<dyn Fn(&Tensor) -> Tensor + 'a>);
    let fs: Vec<Function<'_>> = vec![
        ("both see it", Box::new(|x| cond(&yes(x), || x * -0.0, || x * 3.0).sum(()))),
        (
            "the other one sees it",
            Box::new(|x| (cond(&no(x), || x * 3.0, || other.exp()) + x * -0.0).sum(())),
        ),
        (
            "several results",
            Box::new(|x| {
                let (a, b) = cond(&yes(x), || (x * -0.0, x.sin()), || (x * 2.0, x.exp()));
                (a * &other).sum(()) + (b * -0.0).sum(())
            }),
        ),
        (
            "one of several",
            Box::new(|x| {
                let (a, _) = cond(&yes(x), || (x * -0.0, x.cos()), || (x * 2.0, x.exp()));
                a.sum(())
            }),
        ),
        (
            "in each other",
            Box::new(|x| cond(&yes(x), || cond(&no(x), || x * 5.0, || x * -0.0), || x * 3.0).sum(())),
        ),
    ];
    for (name, f) in &fs {
        let (want, got) = (grad(f)(&x), jit(|x: Tensor| grad(f)(&x)).call(x.clone()).unwrap());
        assert_eq!(bits(&got), bits(&want), "{name}: {got} instead of {want}");
    }
}

#[test]
fn bodies_take_operands_that_do_not_lie_dense() {
    let mut rng = Rng::seed(2);
    let (w, x) = (rng.normal([3, 4], 0.0, 0.5), rng.normal([2, 6, 4], 0.0, 1.0));
    let f = |x: &Tensor| {
        let (wt, xs) = (w.t(), x.transpose(0, 1));
        let start = xs.select(0, 0).matmul(&wt);
        let (h, ys) = scan(start, xs, |h: Tensor, x: Tensor| {
            let h = (h * 0.5 + x.matmul(&wt)).tanh();
            (h.clone(), h)
        });
        let h = while_loop(
            h.t(),
            |h| h.abs().sum(()).gt(0.5),
            |h| h * 0.5 + wt.narrow(0, 0, 3).narrow(1, 0, 2) * 0.01,
        );
        cond(&h.sum(()).gt(0.0), || h.t().matmul(&w), || -h.t().matmul(&w)).sum(()) + ys.square().sum(())
    };
    let both = |x: Tensor| (f(&x), grad(f)(&x));
    let mut compiled = jit(both);
    for _ in 0..2 {
        let (want, got) = (both(x.clone()), compiled.call(x.clone()).unwrap());
        close(&got.0, &want.0);
        close(&got.1, &want.1);
    }
}

#[test]
fn rules_inside_bodies_may_need_constants() {
    let x = Rng::seed(4).normal([3, 4], 0.0, 1.0);
    let index = Tensor::from([2i64, 0]);
    let body = |h: &Tensor, x: &Tensor| {
        let picked = x.index_select(0, &index).sum(()) + x.sort(0, false).0.narrow(0, 1, 2).cumsum(0).sum(());
        h * 0.5 + picked * x.amax(())
    };
    let f = |x: &Tensor| {
        let h = scan(Tensor::scalar(1.0f32), x.clone(), |h: Tensor, x: Tensor| (body(&h, &x), x)).0;
        let row = x.select(0, 1);
        let h =
            while_loop((h, Tensor::scalar(0i64)), |(_, n)| n.lt(2i64), |(h, n)| (body(&h, &row), n + 1i64)).0;
        cond(&x.sum(()).gt(-100.0), || body(&h, &row), || h.clone())
    };
    close(&jit(|x: Tensor| grad(f)(&x)).call(x.clone()).unwrap(), &grad(f)(&x));
}

#[test]
fn plain_numbers_and_structures_that_differ_between_bodies_are_refused() {
    let positive = |x: &Tensor| x.gt(0.0);
    let refusals = [
        refusal(|x| {
            let (n, y) = cond(&positive(x), || (1, x.exp()), || (2, x.exp()));
            y * n as f64
        }),
        refusal(|x| cond(&positive(x), || Some(x.exp()), || None).unwrap_or(x.clone())),
        refusal(|x| cond(&positive(x), || vec![x.exp()], || vec![x.exp(), x.exp()]).remove(0)),
        refusal(|x| while_loop((x.clone(), 0i64), |(x, _)| x.lt(3.0), |(x, n)| (x + 1.0, n + 1)).0),
        refusal(|x| scan((x.clone(), 0i64), x.reshape(1), |(s, n), x| ((s + &x, n + 1), x)).0.0),
    ];
    for (i, text) in refusals.iter().enumerate() {
        let advice = if i < 3 { "of one structure" } else { "carry what changes as a tensor" };
        assert!(text.contains(advice), "{i}: {text}");
        assert!(text.contains("tests/control.rs"), "{i}: {text}");
    }
    // Numbers that are the same everywhere are none of the values.
    let f = |x: &Tensor| while_loop((x.clone(), 7), |(x, _)| x.lt(3.0), |(x, n)| (x + 1.0, n));
    let (y, n) = jit(|x: Tensor| f(&x)).call(Tensor::scalar(0.0f32)).unwrap();
    assert_eq!((y.item::<f32>(), n), (3.0, 7));
}

#[test]
fn what_decides_is_a_single_bool_when_it_is_traced() {
    let two = |x: &Tensor| Tensor::stack(&[x.clone(), x.clone()], 0);
    let texts = [
        refusal(|x| while_loop(two(x), |x| x.lt(1.0), |x| x + 1.0)),
        refusal(|x| while_loop(x.clone(), |x| x * 2.0, |x| x + 1.0)),
    ];
    for text in texts {
        assert!(
            text.contains("while_loop: the condition is") && text.contains("not a single bool"),
            "{text}"
        );
        assert!(text.contains("tests/control.rs"), "{text}");
    }
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
