//! Passes of one's own, and passes switched off by name.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_graph::{Graph, Kind, passes};
use thalweg_runtime::{JitOptions, Session, cond, jit_with};
use thalweg_tensor::ops::Op;
use thalweg_tensor::{Param, Tensor};

/// `exp(log(x))` becomes `x`.
fn undo_log(graph: &Graph) -> Graph {
    graph.rewrite(|out, node| match (&node.kind, &node.inputs[..]) {
        (Kind::Op(Op::Exp(_)), &[y]) if matches!(out.op(y), Some(Op::Log(_))) => out.node(y).inputs[0],
        _ => out.push(node),
    })
}

#[test]
fn a_pass_of_ones_own_runs_before_planning_and_is_swept_after() {
    let w = Param::new("w", Tensor::from([2.0f32]));
    let f = |x: Tensor| {
        let y = (x * w.get()).log().exp().sum(());
        w.set(w.get() + 1.0);
        y
    };
    let x = Tensor::from([-3.0f32]);
    assert!(jit_with(JitOptions::default(), f).call(x.clone()).unwrap().item::<f32>().is_nan());
    let mut f = jit_with(JitOptions::default().with_pass("undo_log", undo_log), f);
    assert_eq!(f.call(x).unwrap().item::<f32>(), -9.0);
    let graph = f.plan().graph();
    let ops: Vec<&str> = graph.ids().filter_map(|id| graph.op(id).map(Op::name)).collect();
    assert!(!ops.contains(&"log") && !ops.contains(&"exp"), "{ops:?}");
    assert_eq!(w.get().item::<f32>(), 4.0);
}

#[test]
fn own_passes_run_in_order_and_can_be_switched_off() {
    let seen = Arc::new(AtomicUsize::new(0));
    let note = |factor: usize, plus: usize| {
        let seen = Arc::clone(&seen);
        move |graph: &Graph| {
            seen.store(seen.load(Ordering::Relaxed) * factor + plus, Ordering::Relaxed);
            graph.clone()
        }
    };
    let options = JitOptions::default().with_pass("a", note(10, 1)).with_pass("b", note(10, 2));
    let run = |options: JitOptions| {
        seen.store(0, Ordering::Relaxed);
        jit_with(options, |x: Tensor| x.exp()).call(Tensor::from([1.0f32])).unwrap();
        seen.load(Ordering::Relaxed)
    };
    assert_eq!(run(options.clone()), 12);
    assert_eq!(run(options.clone().without("a")), 2);
    assert_eq!(run(options.clone().without("fuse").without("b")), 1);
}

#[test]
fn a_pass_that_breaks_the_graph_is_an_error_that_names_it() {
    let wrong = |graph: &Graph| {
        let mut graph = graph.clone();
        graph.outputs.clear();
        graph
    };
    let mut f = jit_with(JitOptions::default().with_pass("forgetful", wrong), |x: Tensor| x.exp());
    let error = f.call(Tensor::from([1.0f32])).unwrap_err().to_string();
    assert_eq!(error, "after pass `forgetful`: results were f32[1], they are none");
    let graph: Graph = "x = input \"x\" : f32[1]; y = exp x; return y=y".parse().unwrap();
    let none: [(&str, Tensor); 0] = [];
    let session = Session::new(graph, none).unwrap();
    let mut session = session.with_options(JitOptions::default().with_pass("forgetful", wrong)).unwrap();
    let error = session.run(&[("x", &Tensor::from([1.0f32]))], &["y"]).unwrap_err().to_string();
    assert!(error.starts_with("after pass `forgetful`: "), "{error}");
}

#[test]
fn a_session_takes_options() {
    let graph: Graph = "x = input \"x\" : f32[1]; a = log x; y = exp a; return y=y".parse().unwrap();
    let session = || Session::new(graph.clone(), std::iter::empty::<(&str, Tensor)>()).unwrap();
    let x = Tensor::from([-2.0f32]);
    assert!(session().run(&[("x", &x)], &["y"]).unwrap()[0].item::<f32>().is_nan());
    let options = JitOptions::default().with_pass("undo_log", undo_log);
    let mut own = session().with_options(options).unwrap();
    assert_eq!(own.run(&[("x", &x)], &["y"]).unwrap()[0].item::<f32>(), -2.0);
    let error = session().with_options(JitOptions::default().without("magic")).err().unwrap().to_string();
    assert!(error.starts_with("there is no pass `magic`; there are dce, "), "{error}");
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let options = JitOptions::default().with_pass("mine", Graph::clone).without("fusion");
    let error = jit_with(options, |x: Tensor| x).call(Tensor::from([1.0f32])).unwrap_err().to_string();
    assert!(error.starts_with("there is no pass `fusion`; there are dce, "), "{error}");
    assert!(error.contains("fuse") && error.ends_with("mine"), "{error}");
    for (name, _) in passes::PASSES {
        let mut f = jit_with(JitOptions::default().without(name), |x: Tensor| x + 1.0);
        assert_eq!(f.call(Tensor::from([1.0f32])).unwrap().item::<f32>(), 2.0);
    }
}

#[test]
fn options_reach_the_bodies_of_decisions() {
    let f = |x: Tensor| cond(&x.sum(()).lt(0.0), || x.log().exp(), || x.sqrt());
    let x = Tensor::from([-2.0f32]);
    assert!(jit_with(JitOptions::default(), f).call(x.clone()).unwrap().item::<f32>().is_nan());
    let own = JitOptions::default().with_pass("undo_log", undo_log);
    assert_eq!(jit_with(own, f).call(x.clone()).unwrap().item::<f32>(), -2.0);
    // A pass that breaks a body is the error of the call, like one that breaks the function.
    let wrong = |graph: &Graph| {
        let mut graph = graph.clone();
        if graph.ids().any(|id| matches!(graph.op(id), Some(Op::Exp(_)))) {
            graph.outputs.clear();
        }
        graph
    };
    let error = jit_with(JitOptions::default().with_pass("forgetful", wrong), f).call(x).unwrap_err();
    assert!(error.to_string().contains("after pass `forgetful`: results were f32[1]"), "{error}");
}
