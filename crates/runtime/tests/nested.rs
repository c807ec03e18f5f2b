//! Decisions and loops inside each other: a body sees the values of every function around it.

use thalweg_core::DType;
use thalweg_runtime::{cond, jit, scan, while_loop};
use thalweg_tensor::{Rng, Tensor, grad};

type Two = (Tensor, Tensor);

/// Compiled results and gradients are those of plain Rust.
fn check(f: impl Fn(Tensor, Tensor) -> Tensor, (x, xs): Two) {
    let eager = f(x.clone(), xs.clone());
    let compiled = jit(|(x, xs): Two| f(x, xs)).call((x.clone(), xs.clone())).unwrap();
    assert_eq!(compiled.to_vec::<f32>(), eager.to_vec::<f32>());
    let pull = |(x, xs): Two| grad(|x| f(x.clone(), xs.clone()).sum(()))(&x);
    let eager = pull((x.clone(), xs.clone()));
    let compiled = jit(pull).call((x, xs)).unwrap();
    for (a, b) in compiled.to_vec::<f32>().iter().zip(eager.to_vec::<f32>()) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{compiled} instead of {eager}");
    }
}

fn scalars() -> Two {
    (Tensor::scalar(0.5f32), Tensor::from([1.0f32, -1.0, 2.0]))
}

#[test]
fn a_decision_in_a_loop_tells_the_state_from_what_is_around_it() {
    let f = |x: Tensor, xs: Tensor| {
        let turn = |s: Tensor, xi: Tensor| {
            let r = cond(&xi.gt(0.0), || &x * 10.0 + &s, || &s - &x);
            (r.clone(), r)
        };
        scan(&x + 100.0, xs, turn).1
    };
    check(f, scalars());
}

#[test]
fn a_loop_in_a_loop_sees_the_state_of_both() {
    let f = |x: Tensor, xs: Tensor| {
        let outer = |s: Tensor, xi: Tensor| {
            let inner = |u: Tensor, xj: Tensor| {
                let r = &u * 0.5 + &s * &x + &xi * &xj;
                (r.clone(), r)
            };
            let (t, _) = scan(&s * 1.0, xs.clone(), inner);
            (t.clone(), t)
        };
        scan(&x + 0.5, xs.clone(), outer).1
    };
    check(f, scalars());
}

#[test]
fn three_levels_of_matrices_of_one_shape_stay_apart() {
    let mut rng = Rng::seed(1);
    let (w, xs) = (rng.normal([4, 4], 0.0, 0.3), rng.normal([3, 4, 4], 0.0, 0.3));
    let f = |w: Tensor, xs: Tensor| {
        let outer = |h: Tensor, xi: Tensor| {
            let inner = |g: Tensor, xj: Tensor| {
                let far = |g: Tensor| (g.matmul(&w) + &xj + &xi * &h) * 0.2;
                let g = while_loop(g + 5.0, |g| g.abs().amax(()).gt(1.0), far).tanh();
                (g.clone(), g)
            };
            let (h, _) = scan(h.clone(), xs.clone(), inner);
            (h.clone(), h)
        };
        scan(Tensor::zeros([4, 4], DType::F32), xs.clone(), outer).0
    };
    check(f, (w, xs));
}

#[test]
fn a_value_and_itself_without_gradient_are_two_operands() {
    let f = |x: Tensor, _: Tensor| {
        let still = x.stop_gradient();
        cond(&x.gt(0.0), || &still * &x, || x.clone())
    };
    check(f, scalars());
}
