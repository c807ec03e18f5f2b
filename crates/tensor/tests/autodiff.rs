//! Derivatives of whole programs: nesting, checkpoints, user rules, what must be refused.

use thalweg_core::DType::{F32, F64};
use thalweg_tensor::{
    OpError, Param, Tensor, checkpoint, custom_vjp, grad, hessian, hvp, jacobian, jvp, no_grad,
    value_and_grad, vjp, vmap,
};

fn close(a: &Tensor, b: &[f64]) {
    let a = a.to_dtype(F64).to_vec::<f64>();
    assert_eq!(a.len(), b.len());
    for (x, y) in a.iter().zip(b) {
        assert!((x - y).abs() <= 1e-5 * (1.0 + y.abs()), "{a:?} is not {b:?}");
    }
}

#[test]
fn a_chain_of_a_million_ops_differentiates_and_drops() {
    let n = 1_000_000;
    let x = Tensor::from([1.0f32]).requires_grad();
    let mut y = x.clone();
    for _ in 0..n {
        y = &y + 1.0;
    }
    assert_eq!(y.sum(()).grad(&[&x])[0].to_vec::<f32>(), [1.0]);
    drop(x);
    drop(y);
}

#[test]
fn a_chain_that_keeps_its_operands_drops_too() {
    let x = Tensor::from([1.0f32]).requires_grad();
    let mut y = x.clone();
    for _ in 0..200_000 {
        y = &y * &x;
    }
    drop(y);
}

#[test]
fn derivatives_nest_to_any_depth() {
    let x = Tensor::scalar(2.0);
    let f = |x: &Tensor| x * x * x * x;
    close(&grad(f)(&x), &[32.0]);
    close(&grad(grad(f))(&x), &[48.0]);
    close(&grad(grad(grad(f)))(&x), &[48.0]);
    close(&grad(grad(grad(grad(f))))(&x), &[24.0]);
}

#[test]
fn an_outer_derivative_sees_through_an_inner_one_of_another_variable() {
    // d/dw of (d/dx (w x²) at x = 3) = 6: perturbations of different levels must not be confused.
    let w = Tensor::scalar(5.0);
    let x = Tensor::scalar(3.0);
    close(&grad(|w| grad(|x| w * x * x)(&x))(&w), &[6.0]);
    // The classic confusion: d/dx [x · d/dy (x + y)] = 1, not 2.
    close(&grad(|x| x * grad(|y| x + y)(&Tensor::scalar(1.0)))(&Tensor::scalar(1.0)), &[1.0]);
}

#[test]
fn a_gradient_penalty_reaches_the_parameters() {
    let w = Param::new("w", Tensor::scalar(3.0));
    let x = Tensor::scalar(2.0);
    // |d/dx (w x²)|² = 4 w² x²; its derivative by w is 8 w x² = 96.
    let slope = grad(|x| w.get() * x * x)(&x);
    close(&slope.square().grad(&[&w])[0], &[96.0]);
}

#[test]
fn gradients_recorded_on_request_differentiate_again() {
    let w = Param::new("w", Tensor::scalar(3.0));
    let first = (w.get() * &w.get() * &w.get()).grad_recorded(&[&w]).remove(0);
    close(&first, &[27.0]);
    close(&first.grad(&[&w])[0], &[18.0]);
    let plain = (w.get() * &w.get()).grad(&[&w]).remove(0);
    assert!(!plain.is_tracked());
}

#[test]
fn nothing_is_recorded_inside_no_grad_but_derivatives_asked_for_there() {
    let w = Param::new("w", Tensor::scalar(3.0));
    assert!(!no_grad(|| w.get() * 2.0).is_tracked());
    let g = no_grad(|| grad(|x| x * x * &w.get())(&Tensor::scalar(2.0)));
    close(&g, &[12.0]);
    assert!(!g.is_tracked());
    assert!((w.get() * 2.0).is_tracked());
}

#[test]
fn forward_mode_agrees_with_reverse_mode() {
    let f = |x: &[Tensor]| vec![(&x[0] * &x[1]).tanh(), x[0].exp().sum(())];
    let (x, y) = (Tensor::from([0.3f32, -0.2]), Tensor::from([0.5f32, 0.7]));
    let (u, v) = (Tensor::from([1.0f32, 2.0]), Tensor::from([-1.0f32, 0.5]));
    let (values, tangents) = jvp(f, &[x.clone(), y.clone()], &[u.clone(), v.clone()]);
    let (again, pull) = vjp(f, &[x, y]);
    for (a, b) in values.iter().zip(&again) {
        assert_eq!(a.to_vec::<f32>(), b.to_vec::<f32>());
    }
    // ⟨w, J (u, v)⟩ = ⟨Jᵀ w, (u, v)⟩ for any w.
    let w = [Tensor::from([0.4f32, -1.0]), Tensor::scalar(2.0)];
    let forward: f32 = tangents.iter().zip(&w).map(|(t, w)| (t * w).sum(()).item::<f32>()).sum();
    let back = pull.call(&w).unwrap();
    let reverse: f32 =
        back.iter().zip([u, v]).map(|(g, u)| (g.as_ref().unwrap() * u).sum(()).item::<f32>()).sum();
    assert!((forward - reverse).abs() < 1e-5, "{forward} and {reverse}");
}

#[test]
fn hessians_and_their_products_agree() {
    let f = |x: &Tensor| x.square().sum(()).square() * 0.5;
    let x = Tensor::from([0.5f64, -1.5, 2.0]);
    let v = Tensor::from([1.0f64, 2.0, -1.0]);
    let product = hessian(f, &x).matmul(&v);
    close(&hvp(f, &x, &v), &product.to_vec::<f64>());
    assert_eq!(**jacobian(|x| x.square(), &x).shape(), [3, 3]);
}

#[test]
fn vmap_stacks_per_example_results() {
    let w = Tensor::from([1.0f32, 2.0]);
    let x = Tensor::from([[1.0f32, 0.0], [0.0, 1.0], [1.0, 1.0]]);
    let per_example = vmap(|a| grad(|w| (w * &a[1]).sum(()).square())(&a[0]), &[false, true], &[w, x]);
    close(&per_example, &[2.0, 0.0, 0.0, 4.0, 6.0, 6.0]);
}

#[test]
fn a_checkpoint_changes_memory_and_nothing_else() {
    let w = Param::new("w", Tensor::from([0.5f32, -0.25]));
    let block = {
        let w = w.clone();
        move |x: &[Tensor]| vec![(&x[0] * &w.get()).tanh() * &x[0]]
    };
    let x = Tensor::from([1.0f32, 2.0]).requires_grad();
    let plain = block(std::slice::from_ref(&x))[0].square().sum(());
    let saved = checkpoint(block, &[&x])[0].square().sum(());
    assert_eq!(plain.item::<f32>(), saved.item::<f32>());
    // The captured parameter gets its gradient, bit for bit, though it is no operand.
    for (a, b) in plain.grad(&[&w]).iter().zip(saved.grad(&[&w])) {
        assert_eq!(a.to_vec::<f32>(), b.to_vec::<f32>());
    }
    for (a, b) in plain.grad(&[&x]).iter().zip(saved.grad(&[&x])) {
        assert_eq!(a.to_vec::<f32>(), b.to_vec::<f32>());
    }
}

#[test]
fn a_parameter_set_between_checkpoint_and_backward_is_an_error() {
    let w = Param::new("w", Tensor::scalar(2.0));
    let inner = w.clone();
    let loss = checkpoint(move |x| vec![&x[0] * &inner.get()], &[&Tensor::scalar(3.0)]).remove(0);
    w.set(Tensor::scalar(1.0));
    let error = loss.try_backward().unwrap_err();
    assert!(matches!(error, OpError::NoGradient { op: "checkpoint", .. }), "{error}");
}

#[test]
fn second_derivatives_pass_through_checkpoints_and_user_rules() {
    let cube = |x: &Tensor| checkpoint(|x| vec![&x[0] * &x[0] * &x[0]], &[x]).remove(0);
    close(&grad(grad(cube))(&Tensor::scalar(2.0)), &[12.0]);
    let square = |x: &Tensor| {
        custom_vjp(|x| vec![&x[0] * &x[0]], |x, _y, dy| vec![Some(&dy[0] * &x[0] * 2.0)], &[x]).remove(0)
    };
    close(&grad(square)(&Tensor::scalar(3.0)), &[6.0]);
    close(&grad(grad(square))(&Tensor::scalar(3.0)), &[2.0]);
}

#[test]
#[should_panic(expected = "custom_vjp: no gradient: `forward` uses a tensor that wants a gradient")]
fn a_user_rule_that_would_lose_a_gradient_is_refused() {
    let w = Param::new("w", Tensor::scalar(2.0));
    custom_vjp(|x| vec![&x[0] * &w.get()], |_, _, dy| vec![Some(dy[0].clone())], &[&Tensor::scalar(1.0)]);
}

#[test]
fn a_parameter_without_gradient_is_named() {
    let (w, unused) = (Param::new("w", Tensor::scalar(1.0)), Param::new("head.bias", Tensor::scalar(1.0)));
    let loss = w.get() * 2.0;
    let error = loss.try_grad(&[&w, &unused]).unwrap_err();
    assert!(error.to_string().contains("`head.bias` gets no gradient"), "{error}");
    close(&loss.grad_or_zeros(&[&w, &unused])[1], &[0.0]);
}

#[test]
fn backward_adds_up_in_the_parameters() {
    let w = Param::new("w", Tensor::from([1.0f32, 2.0]));
    let loss = || w.get().square().sum(());
    loss().backward();
    loss().backward();
    close(&w.grad().unwrap(), &[4.0, 8.0]);
    w.set(Tensor::from([0.0f32, 0.0]));
    assert!(w.grad().is_none());
    let detached = Tensor::from([1.0f32]).sum(());
    assert!(matches!(detached.try_backward(), Err(OpError::NoGradient { op: "backward", .. })));
}

#[test]
fn values_read_before_a_parameter_changes_keep_their_gradient() {
    // In-place surprises are impossible: the tape holds the old value.
    let w = Param::new("w", Tensor::scalar(3.0));
    let before = w.get();
    let loss = before.square();
    w.set(Tensor::scalar(100.0));
    close(&loss.grad(&[&before])[0], &[6.0]);
}

#[test]
fn an_owned_operand_gives_its_memory_only_when_nobody_sees_it() {
    let x = Tensor::from([1.0f32, 2.0, 3.0]);
    let kept = x.clone();
    let y = x + 1.0;
    assert_eq!(kept.to_vec::<f32>(), [1.0, 2.0, 3.0]);
    assert!(!y.shares_memory_with(&kept));
    let at = y.as_slice::<f32>().unwrap().as_ptr();
    let z = y * 2.0;
    assert_eq!(z.as_slice::<f32>().unwrap().as_ptr(), at, "the sole owner's memory is reused");
    assert_eq!(z.to_vec::<f32>(), [4.0, 6.0, 8.0]);
    let (head, z2) = (z.narrow(0, 0, 1), z.clone());
    drop(z);
    let w = z2 + 1.0;
    assert_eq!(head.to_vec::<f32>(), [4.0], "a view keeps its values");
    assert_eq!(w.to_vec::<f32>(), [5.0, 7.0, 9.0]);
}

#[test]
fn tensors_and_gradients_cross_threads() {
    let w = Param::new("w", Tensor::from([1.0f32, 2.0]));
    let losses: Vec<Tensor> = std::thread::scope(|s| {
        let work: Vec<_> = (0..4)
            .map(|i| {
                s.spawn({
                    let w = &w;
                    move || (w.get() * f64::from(i)).sum(())
                })
            })
            .collect();
        work.into_iter().map(|h| h.join().unwrap()).collect()
    });
    let total = losses.into_iter().reduce(|a, b| a + b).unwrap();
    close(&total.grad(&[&w])[0], &[6.0, 6.0]);
}

#[test]
fn value_and_gradient_come_together() {
    let (y, g) = value_and_grad(|x| x.square().sum(()))(&Tensor::ones([2], F32));
    assert_eq!(y.item::<f32>(), 2.0);
    assert_eq!(g.to_vec::<f32>(), [2.0, 2.0]);
}
