//! Graphs that are fed and fetched by name.

use thalweg_core::DType;
use thalweg_graph::{Builder, Graph, Kind, Traced};
use thalweg_runtime::{JitOptions, Params, Session};
use thalweg_tensor::ops::{Matmul, Mul, Op, Sub, Sum};
use thalweg_tensor::{Meta, Param, Tensor};

/// A regression with its gradient and a step of descent, by hand.
fn regression() -> Graph {
    let mut b = Builder::default();
    let x = b.input("x", Meta::new(DType::F32, [3, 2]));
    let y = b.input("y", Meta::new(DType::F32, [3, 1]));
    let w = b.param("w", Meta::new(DType::F32, [2, 1]));
    let prediction = b.op(Matmul, &[x, w]).unwrap();
    b.label("prediction", prediction);
    let error = b.op(Sub, &[prediction, y]).unwrap();
    let squares = b.op(Mul, &[error, error]).unwrap();
    let loss = b.op(Sum { axes: [0, 1].into_iter().collect() }, &[squares]).unwrap();
    b.output("loss", loss);
    b.finish().unwrap().differentiate("loss", &["w"]).unwrap()
}

fn data() -> (Tensor, Tensor) {
    (Tensor::from([[1.0f32, 0.0], [0.0, 1.0], [1.0, 1.0]]), Tensor::from([[1.0f32], [2.0], [3.0]]))
}

#[test]
fn only_what_is_fetched_must_be_fed() {
    let (x, y) = data();
    let mut session = Session::new(regression(), [("w", Tensor::from([[1.0f32], [1.0]]))]).unwrap();
    let prediction = session.run(&[("x", &x)], &["prediction"]).unwrap();
    assert_eq!(prediction[0].to_vec::<f32>(), [1.0, 1.0, 2.0]);
    let values = session.run(&[("y", &y), ("x", &x)], &["dloss/dw", "loss", "w"]).unwrap();
    assert_eq!(values[0].to_vec::<f32>(), [-2.0, -4.0]);
    assert_eq!(values[1].item::<f32>(), 2.0);
    assert_eq!(values[2].to_vec::<f32>(), [1.0, 1.0]);
}

#[test]
fn writes_happen_only_in_an_update() {
    let text = "w = param \"w\" : f32[2]; x = input \"x\" : f32[2]; s = add w x; write w s; return s=s";
    let mut session = Session::new(text.parse().unwrap(), [("w", Tensor::from([1.0f32, 2.0]))]).unwrap();
    let x = Tensor::from([10.0f32, 10.0]);
    session.run(&[("x", &x)], &["s"]).unwrap();
    assert_eq!(session.param("w").unwrap().get().to_vec::<f32>(), [1.0, 2.0]);
    session.update(&[("x", &x)], &["s"]).unwrap();
    session.update(&[("x", &x)], &[]).unwrap();
    assert_eq!(session.param("w").unwrap().get().to_vec::<f32>(), [21.0, 22.0]);
}

#[test]
fn a_traced_function_shares_its_parameters() {
    let w = Param::new("w", Tensor::from([2.0f32, 3.0]));
    let scale = Tensor::from([10.0f32, 100.0]);
    let traced = Traced::record(&[Meta::new(DType::F32, [2])], |x| vec![&x[0] * w.get() * &scale]);
    let mut session = Session::of(traced).unwrap();
    let x = Tensor::from([1.0f32, 1.0]);
    assert_eq!(session.run(&[("x0", &x)], &["y0"]).unwrap()[0].to_vec::<f32>(), [20.0, 300.0]);
    w.set(Tensor::from([1.0f32, 1.0]));
    assert_eq!(session.run(&[("x0", &x)], &["y0"]).unwrap()[0].to_vec::<f32>(), [10.0, 100.0]);
}

#[test]
fn wrong_names_are_answered_with_the_right_ones() {
    let (x, _) = data();
    let w = || [("w", Tensor::from([[1.0f32], [1.0]]))];
    let mut session = Session::new(regression(), w()).unwrap();
    let mut run =
        |feeds: &[(&str, &Tensor)], fetches: &[&str]| session.run(feeds, fetches).unwrap_err().to_string();
    assert_eq!(run(&[("z", &x)], &["loss"]), "there is no feed `z`; there are x, y");
    assert_eq!(
        run(&[("x", &x)], &["accuracy"]),
        "nothing is called `accuracy`; known are loss, dloss/dw, prediction, x, y, w"
    );
    assert_eq!(run(&[("x", &x)], &["loss"]), "no value was given for operand y");
    assert_eq!(run(&[("x", &x.t())], &["prediction"]), "`x` is f32[2, 3], the graph says f32[3, 2]");
    let none: [(&str, Tensor); 0] = [];
    let error = |e: Result<Session, _>| e.err().map(|e: thalweg_runtime::RunError| e.to_string()).unwrap();
    assert_eq!(error(Session::new(regression(), none)), "no value was given for param w");
    let extra = [("v", x.clone())];
    assert_eq!(error(Session::new(regression(), extra)), "there is no param `v`; there are w");
    let misfit = [("w", x)];
    assert_eq!(error(Session::new(regression(), misfit)), "`w` is f32[3, 2], the graph says f32[2, 1]");
}

#[test]
fn a_session_can_be_looked_into() {
    let text = "x = input \"x\" : f32[2]; w = param \"w\" : f32[2]; p = mul x w; l = log p; \
        c = cumsum(axis:0) l; write w p; label p=p; return c=c";
    let graph: Graph = text.parse().unwrap();
    let w = || [("w", Tensor::from([2.0f32, 3.0]))];
    let mut session = Session::new(graph.clone(), w()).unwrap();
    let x = Tensor::from([1.0f32, -1.0]);
    let feeds = [("x", &x)];
    let plan = session.plan(Params::Keep, &["c"]).unwrap();
    assert!(plan.to_string().contains("cumsum") && plan.to_html("a sum").contains("<svg"), "{plan}");
    let mut debugger = session.debug(Params::Update, &feeds, &["c"]).unwrap();
    let found = debugger.run_until_non_finite().unwrap().expect("the log of a negative number");
    assert!(found.what.starts_with("log: 1 of 2 values are not finite"), "{found}");
    drop(debugger);
    assert!(session.verify(Params::Update, &feeds, &["c", "p"], 0.0).unwrap().is_none());
    assert_eq!(session.param("w").unwrap().get().to_vec::<f32>(), [2.0, 3.0], "looking changes nothing");
    let profile = session.profile(Params::Keep, &feeds, &["c"], 2).unwrap();
    assert_eq!(profile.steps.len(), session.plan(Params::Keep, &["c"]).unwrap().n_steps());
    assert_eq!(session.param("w").unwrap().get().to_vec::<f32>(), [2.0, 3.0]);

    let forgetful = |graph: &Graph| {
        graph.rewrite(|out, node| match node.kind {
            Kind::Op(Op::Log(_)) => node.inputs[0],
            _ => out.push(node),
        })
    };
    let options = JitOptions::default().with_pass("forgetful", forgetful);
    let mut wrong = Session::new(graph, w()).unwrap().with_options(options).unwrap();
    let found = wrong.verify(Params::Keep, &feeds, &["c"], 1e-6).unwrap().expect("the pass is wrong");
    assert!(
        found.what.starts_with("result `c`: ") && found.what.ends_with("pass `forgetful` changed it"),
        "{found}"
    );
}
