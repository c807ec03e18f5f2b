//! Looking into branches and loops of compiled functions, and comparing them with the function itself.

use std::cell::Cell;

use thalweg_graph::{Graph, Kind};
use thalweg_runtime::{JitOptions, cond, jit, jit_with, scan, while_loop};
use thalweg_tensor::ops::{Exp, Op};
use thalweg_tensor::{Param, Rng, Tensor};

/// A pass with a mistake: `log` becomes `exp`.
fn mistaken(graph: &Graph) -> Graph {
    graph.rewrite(|out, mut node| {
        if let Kind::Op(Op::Log(_)) = node.kind {
            node.kind = Kind::Op(Exp.into());
        }
        out.push(node)
    })
}

fn with_mistake() -> JitOptions {
    JitOptions::default().with_pass("harmless", Graph::clone).with_pass("mistaken", mistaken)
}

#[test]
fn a_wrong_pass_inside_a_branch_is_named() {
    let mut f = jit_with(with_mistake(), |x: Tensor| {
        let taken = x.sum(()).gt(0.0);
        cond(&taken, || x.log() + 1.0, || x.clone())
    });
    let found = f.verify(Tensor::from([2.0f32]), 1e-6).unwrap().expect("the pass is wrong");
    assert_eq!(found.info.ops, ["cond"], "{found}");
    assert!(found.what.contains("; inside, step 0: result `y0`: element 0 is "), "{found}");
    assert!(found.what.contains("pass `mistaken` changed it"), "{found}");
    assert!(found.what.contains("inside.rs:"), "{found}");
    assert!(f.verify(Tensor::from([-2.0f32]), 1e-6).unwrap().is_none(), "the other branch is right");
}

#[test]
fn a_wrong_pass_inside_a_branch_inside_a_loop_is_named() {
    let mut f = jit_with(with_mistake(), |x: Tensor| {
        let turn = |s: Tensor, x: Tensor| {
            let next = cond(&x.gt(1.0), || &s + x.log(), || &s - &x);
            (next.clone(), next)
        };
        scan(Tensor::scalar(0.0f32), x, turn).1
    });
    assert!(f.verify(Tensor::from([1.0f32, 0.5]), 1e-6).unwrap().is_none(), "nobody takes the branch");
    let found = f.verify(Tensor::from([1.0f32, 0.5, 3.0]), 1e-6).unwrap().expect("the third turn takes it");
    assert_eq!(found.info.ops, ["scan"], "{found}");
    assert_eq!(found.what.matches("; inside, step").count(), 2, "{found}");
    assert!(found.what.contains("pass `mistaken` changed it"), "{found}");
}

#[test]
fn a_wrong_pass_in_a_loop_is_named() {
    let mut f = jit_with(with_mistake(), |x: Tensor| while_loop(x, |x| x.lt(9.0), |x| &x + (&x + 3.0).log()));
    let found = f.verify(Tensor::scalar(1.5f32), 1e-6).unwrap().expect("the pass is wrong");
    assert!(found.info.ops == ["while_loop"] && found.what.contains("`mistaken`"), "{found}");
}

#[test]
fn what_a_trace_cannot_see_is_found_by_the_function_itself() {
    let factor = Cell::new(2.0);
    let mut f = jit(|x: Tensor| (&x * factor.get()).cumsum(0));
    let x = Tensor::from([1.0f32, 2.0]);
    assert!(f.verify(x.clone(), 0.0).unwrap().is_none());
    factor.set(3.0);
    let found = f.verify(x, 1e-6).unwrap().expect("the trace has the old factor");
    assert!(
        found.what.starts_with("result `y0`: element 0 is 2e0, the function run eagerly gives 3e0"),
        "{found}"
    );
    assert!(found.what.ends_with("what was traced is not what it does eagerly"), "{found}");
    assert!(found.info.ops.iter().any(|op| op == "cumsum"), "{found}");
}

#[test]
fn verifying_changes_neither_parameters_nor_gradients_nor_random_state() {
    let rng = std::cell::RefCell::new(Rng::seed(5));
    let w = Param::new("w", Tensor::from([1.0f32, 2.0]));
    let mut f = jit(|x: Tensor| {
        let noise = rng.borrow_mut().normal([2], 0.0, 1.0);
        let loss = (w.get() * &x + noise).square().sum(());
        w.set(w.get() - loss.grad(&[&w]).remove(0) * 0.1);
        loss
    });
    (w.get() * 7.0).sum(()).backward();
    let x = Tensor::from([1.0f32, -1.0]);
    let found = f.verify(x.clone(), 1e-6).unwrap();
    assert!(found.is_none(), "{}", found.unwrap());
    assert_eq!(rng.borrow().position(), 0);
    assert_eq!(w.get().to_vec::<f32>(), [1.0, 2.0]);
    assert_eq!(w.grad().unwrap().to_vec::<f32>(), [7.0, 7.0]);
    f.call(x).unwrap();
    assert_ne!(rng.borrow().position(), 0);
}

#[test]
fn a_value_that_is_not_finite_is_found_where_fusion_hides_it() {
    let line = line!() + 2;
    let mut f = jit(|x: Tensor| {
        let inverse = x.reciprocal();
        inverse.tanh()
    });
    let x = Tensor::from([1.0f32, 0.0]);
    f.call(x.clone()).unwrap();
    assert_eq!(f.plan().n_steps(), 1, "all is one group, and its result is finite");
    let found = f.debug(x).unwrap().run_until_non_finite().unwrap().expect("the inverse of 0");
    assert!(found.what.contains(&format!("inside.rs:{line}:")), "{found}");
    assert!(found.what.contains("1 of 2 values are not finite; element 1 is inf"), "{found}");
    let finite = f.debug(Tensor::from([1.0f32, 2.0])).unwrap().run_until_non_finite().unwrap();
    assert!(finite.is_none());
}

#[test]
fn a_value_that_is_not_finite_is_found_inside_a_body() {
    let line = line!() + 3;
    let mut f = jit(|x: Tensor| {
        let turn = |s: Tensor, x: Tensor| {
            let ratio = &s / &x;
            let next = (ratio * 2.0).tanh();
            (next.clone(), next)
        };
        scan(Tensor::scalar(1.0f32), x, turn).1
    });
    let found = f.debug(Tensor::from([1.0f32, 0.0, 1.0])).unwrap().run_until_non_finite().unwrap();
    let found = found.expect("a division by 0 in the second turn");
    assert!(
        found.what.starts_with("div at ") && found.what.contains(&format!("inside.rs:{line}:")),
        "{found}"
    );
    assert!(found.what.contains("; this is inside scan at "), "{found}");
    assert!(f.debug(Tensor::from([1.0f32, 2.0, 1.0])).unwrap().run_until_non_finite().unwrap().is_none());
    let line = line!() + 2;
    let mut f = jit(|x: Tensor| {
        let branch = || (&x - 10.0).log().exp();
        cond(&x.sum(()).gt(0.0), branch, || x.clone())
    });
    let found = f.debug(Tensor::from([1.0f32, 2.0])).unwrap().run_until_non_finite().unwrap();
    let found = found.expect("logs of negative numbers");
    assert!(
        found.what.starts_with("log at ") && found.what.contains(&format!("inside.rs:{line}:")),
        "{found}"
    );
}

#[test]
fn parameters_can_be_read_and_set_while_a_debugger_is_open() {
    let w = Param::new("w", Tensor::from([1.0f32, 2.0]));
    let read = Param::new("read", Tensor::from([1.0f32, 1.0]));
    let mut f = jit(|x: Tensor| {
        w.set(w.get() * 2.0 + &x * read.get());
        w.get().cumsum(0).sum(())
    });
    let mut debugger = f.debug(Tensor::from([1.0f32, 1.0])).unwrap();
    let first = debugger.step().unwrap().expect("there are steps").values.remove(0);
    assert_eq!(first.to_vec::<f32>(), [3.0, 5.0], "the new value of the parameter");
    assert_eq!(w.get().to_vec::<f32>(), [1.0, 2.0], "the function's own has not changed");
    read.set(Tensor::from([9.0f32, 9.0]));
    while debugger.step().unwrap().is_some() {}
    drop(debugger);
    assert_eq!(w.get().to_vec::<f32>(), [1.0, 2.0]);
    f.call(Tensor::from([1.0f32, 1.0])).unwrap();
    assert_eq!(w.get().to_vec::<f32>(), [11.0, 13.0], "calls have the function's parameters again");
}
