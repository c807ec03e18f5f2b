//! Looking into compiled functions.

use thalweg_core::DType;
use thalweg_core::{View, ViewMut};
use thalweg_graph::{Graph, Kind};
use thalweg_runtime::{JitOptions, Peak, jit, jit_with, probe};
use thalweg_tensor::ops::{CustomOp, Exp, Op};
use thalweg_tensor::{Meta, OpError, Param, Rng, Tensor, custom};

#[test]
fn a_debugger_goes_step_by_step_and_leaves_params_as_they_were() {
    let w = Param::new("w", Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]));
    let mut f = jit(|x: Tensor| {
        let loss = x.matmul(&w.get()).exp().sum(());
        w.set(w.get() - loss.grad(&[&w]).remove(0));
        loss
    });
    let x = Tensor::from([[0.1f32, 0.2]]);
    let mut debugger = f.debug(x.clone()).unwrap();
    let mut seen = Vec::new();
    while let Some(stepped) = debugger.step().unwrap() {
        assert_eq!(stepped.values.len(), stepped.info.results.len());
        let text = stepped.to_string();
        assert!(text.starts_with(&format!("step {}: {}", stepped.index, stepped.info.name())), "{text}");
        assert!(stepped.values.iter().all(|value| text.contains(&value.to_string())), "{text}");
        seen.push(stepped.info.name());
    }
    assert!(seen.iter().any(|name| name == "matmul") && seen.len() >= 3, "{seen:?}");
    drop(debugger);
    assert_eq!(w.get().to_vec::<f32>(), [1.0, 2.0, 3.0, 4.0]);
    assert!(f.verify(x.clone(), 0.0).unwrap().is_none(), "same kernels, same bits");
    f.call(x).unwrap();
    assert_ne!(w.get().to_vec::<f32>(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn the_first_value_that_is_not_finite_is_found_with_its_line() {
    let mut f = jit(|x: Tensor| {
        let rows = x.sum(1);
        let bad = rows.log().sum(());
        bad.reshape(1).cumsum(0)
    });
    let mut debugger = f.debug(Tensor::from([[1.0f32, 2.0], [-3.0, 1.0]])).unwrap();
    let found = debugger.run_until_non_finite().unwrap().expect("log of a negative number");
    assert!(found.to_string().contains("not finite") && found.to_string().contains("debug.rs"), "{found}");
    assert!(found.info.ops.iter().any(|op| op == "log"), "{found}");
}

#[test]
fn fused_away_values_can_be_peeked_at() {
    let mut f = jit(|x: Tensor| (x.exp() + 1.0).log());
    let x = Tensor::from([0.5f32, -0.5]);
    f.call(x.clone()).unwrap();
    assert_eq!(f.plan().n_steps(), 1);
    let graph = f.plan().graph().clone();
    let exp = graph.ids().find(|&id| graph.op(id).is_some_and(|op| op.name() == "exp")).unwrap();
    let value = f.debug(x.clone()).unwrap().peek(exp).unwrap();
    assert_eq!(value.to_vec::<f32>(), x.exp().to_vec::<f32>());
}

/// An op that gives another result each time: what a broken kernel looks like to `verify`.
struct Drift(std::sync::atomic::AtomicU32);

impl CustomOp for Drift {
    fn name(&self) -> &str {
        "drift"
    }
    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        Ok(x[0].clone())
    }
    fn eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) {
        let n = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) as f32;
        y.map_f32(x[0], |v| v + n);
    }
}

#[test]
fn verify_names_the_first_step_that_differs() {
    let mut f = jit(|x: Tensor| {
        let y = x.sum(0);
        custom(Drift(Default::default()), &[&y]).cumsum(0)
    });
    let found = f.verify(Tensor::ones([2, 3], DType::F32), 1e-6).unwrap().expect("it drifts");
    assert_eq!(found.info.ops, ["drift"], "{found}");
    assert!(found.what.contains("eager gives"), "{found}");
}

#[test]
fn a_profile_has_every_step_and_a_trace_of_one_run() {
    let mut f = jit(|x: Tensor| probe("a \"b\"\\\n\u{e9}", &x).matmul(&x.t()).softmax(-1).cumsum(0).sum(0));
    let profile = f.profile(Tensor::ones([16, 16], DType::F32), 3).unwrap();
    assert_eq!(profile.steps.len(), f.plan().n_steps());
    let table = profile.to_string();
    assert!(table.contains("GFLOP/s") && table.contains("matmul") && !table.contains("peak"), "{table}");
    let trace = profile.chrome_trace();
    let trace: serde_json::Value = serde_json::from_str(&trace).unwrap_or_else(|e| panic!("{e}\n{trace}"));
    let events = trace["traceEvents"].as_array().unwrap();
    assert_eq!(events.len(), profile.steps.len());
    assert!(events.iter().any(|e| e["name"] == "probe `a \"b\"\\\n\u{e9}`"), "{trace}");
    // Steps of one lane follow each other: beginnings and lengths are those of one run.
    let number = |e: &serde_json::Value, key: &str| e[key].as_f64().unwrap();
    for (i, e) in events.iter().enumerate() {
        assert_eq!(e["ph"], "X");
        let end = number(e, "ts") + number(e, "dur");
        let next = events[i + 1..].iter().find(|n| n["tid"] == e["tid"]);
        assert!(next.is_none_or(|n| number(n, "ts") >= end - 0.002), "{trace}");
    }
    let table = profile.against(Peak::new(100.0, 10.0)).to_string();
    assert!(table.contains("peak 100 GFLOP/s, 10.0 GB/s") && table.contains("of peak]"), "{table}");
}

#[test]
fn a_run_goes_on_to_a_line() {
    let line = line!() + 3;
    let mut f = jit(|x: Tensor| {
        let rows = x.sum(1);
        let sums = rows.cumsum(0);
        sums.cumsum(0)
    });
    let mut debugger = f.debug(Tensor::ones([2, 2], DType::F32)).unwrap();
    let found = debugger.run_until_line("tests/debug.rs", line).unwrap().expect("the line has a step");
    assert_eq!(found.info.ops, ["cumsum"], "{found}");
    assert_eq!(found.info.lines[0].line(), line);
    assert!(debugger.step().unwrap().is_some(), "the second sum is still to come");
    assert!(debugger.run_until_line("debug.rs", line).unwrap().is_none(), "it has been");
}

#[test]
fn of_a_group_the_op_that_first_was_not_finite_is_named() {
    let line = line!() + 2;
    let mut f = jit(|x: Tensor| {
        let bad = (&x + 1.0).log();
        (bad.tanh() * &x).exp()
    });
    let x = Tensor::from([1.0f32, -3.0]);
    f.call(x.clone()).unwrap();
    assert_eq!(f.plan().n_steps(), 1, "all is one group");
    let found = f.debug(x).unwrap().run_until_non_finite().unwrap().expect("log of a negative number");
    let want = format!("tests/debug.rs:{line}:");
    assert!(found.what.starts_with("log at ") && found.what.contains(&want), "{found}");
    assert!(found.what.contains("1 of 2 values are not finite; element 1 is NaN"), "{found}");
}

/// Counts how often it is computed.
struct Count(std::sync::Arc<std::sync::atomic::AtomicU32>);

impl CustomOp for Count {
    fn name(&self) -> &str {
        "count"
    }
    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        Ok(x[0].clone())
    }
    fn eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        y.map_f32(x[0], |v| v);
    }
}

#[test]
fn peeking_takes_what_is_there_and_finds_by_line_and_probe() {
    let n = std::sync::Arc::<std::sync::atomic::AtomicU32>::default();
    let line = line!() + 3;
    let mut f = jit(|x: Tensor| {
        let counted = custom(Count(n.clone()), &[&x]);
        let e = counted.exp() + 1.0;
        (counted, probe("loss", &e.log()).cumsum(0))
    });
    let x = Tensor::from([0.5f32, -0.5]);
    let want = (x.exp() + 1.0).log();
    let mut debugger = f.debug(x.clone()).unwrap();
    assert_eq!(debugger.peek_probe("loss").unwrap().to_vec::<f32>(), want.to_vec::<f32>(), "before any step");
    while debugger.step().unwrap().is_some() {}
    let count = || n.load(std::sync::atomic::Ordering::Relaxed);
    let before = count();
    assert_eq!(debugger.peek_probe("loss").unwrap().to_vec::<f32>(), want.to_vec::<f32>());
    let values = debugger.peek_line("debug.rs", line).unwrap();
    assert_eq!(values[0].to_vec::<f32>(), x.exp().to_vec::<f32>());
    assert_eq!(values.last().unwrap().to_vec::<f32>(), (x.exp() + 1.0).to_vec::<f32>());
    assert_eq!(count(), before, "what was computed is still there");
    let error = debugger.peek_probe("lost").unwrap_err().to_string();
    assert_eq!(error, "there is no probe `lost`; there are probe `loss`");
    let error = debugger.peek_line("debug.rs", 1).unwrap_err().to_string();
    assert!(error.starts_with("there is no value of line `debug.rs:1`; there are "), "{error}");
}

#[test]
fn peeking_is_right_after_every_step_for_every_value() {
    let mut rng = Rng::seed(3);
    let w = Param::new("w", rng.normal([4, 4], 0.0, 0.5));
    let v = Param::new("v", rng.normal([4], 0.0, 0.5));
    let mut f = jit(|x: Tensor| {
        let mut h = x;
        for _ in 0..4 {
            h = (h.matmul(&w.get()) + v.get()).tanh();
        }
        let loss = h.log_softmax(-1).square().mean(());
        let g = loss.grad(&[&w, &v]);
        w.set(w.get() - &g[0] * 0.1);
        v.set(v.get() - &g[1] * 0.1);
        loss
    });
    let x = rng.normal([8, 4], 0.0, 1.0);
    let before = [&w, &v].map(|p| p.get().stop_gradient() + 0.0);
    drop(f.debug(x.clone()).unwrap());
    let graph = f.plan().graph().clone();
    let params: Vec<Tensor> = graph.params.iter().map(|p| before[usize::from(p == "v")].clone()).collect();
    let want = graph.values(std::slice::from_ref(&x), &params, &[]).unwrap();
    let mut debugger = f.debug(x).unwrap();
    loop {
        for id in graph.ids() {
            let (got, want) = (debugger.peek(id).unwrap(), &want[id.index()]);
            let off = (&got.stop_gradient() - want).abs().amax(()).item::<f32>();
            assert!(off <= 1e-5, "{:?}: {got} instead of {want}", graph.node(id).kind);
        }
        if debugger.step().unwrap().is_none() {
            break;
        }
    }
}

/// A pass with a mistake: `log` becomes `exp`.
fn mistaken(graph: &Graph) -> Graph {
    graph.rewrite(|out, mut node| {
        if let Kind::Op(Op::Log(_)) = node.kind {
            node.kind = Kind::Op(Exp.into());
        }
        out.push(node)
    })
}

#[test]
fn verify_names_the_pass_that_is_wrong() {
    let w = Param::new("w", Tensor::from([2.0f32, 3.0]));
    let options =
        || JitOptions::default().with_pass("harmless", Graph::clone).with_pass("mistaken", mistaken);
    let x = Tensor::from([1.0f32, 2.0]);
    let mut result = jit_with(options(), |x: Tensor| (x.square(), x.log() + 1.0));
    let found = result.verify(x.clone(), 1e-6).unwrap().expect("the pass is wrong");
    assert!(found.what.starts_with("result `y1`: element 0 is "), "{found}");
    assert!(found.what.contains("the function as written gives 1e0; pass `mistaken` changed it"), "{found}");
    assert!(found.info.ops.iter().any(|op| op == "exp"), "{found}");
    let mut param = jit_with(options(), |x: Tensor| {
        w.set(w.get() * (&x + 1.0).log());
        x.sum(())
    });
    let found = param.verify(x.clone(), 1e-6).unwrap().expect("the pass is wrong");
    assert!(found.what.starts_with("param `w`: ") && found.what.contains("pass `mistaken`"), "{found}");
    assert_eq!(w.get().to_vec::<f32>(), [2.0, 3.0]);
    let mut sound = jit_with(options().without("mistaken"), |x: Tensor| x.log());
    assert!(sound.verify(x, 0.0).unwrap().is_none());
}

#[test]
fn a_plan_prints_steps_costs_and_lines() {
    let mut f = jit(|x: Tensor| x.matmul(&x).relu());
    f.call(Tensor::ones([8, 8], DType::F32)).unwrap();
    let text = f.plan().to_string();
    assert!(text.contains("matmul") && text.contains("flop") && text.contains("debug.rs:"), "{text}");
}
