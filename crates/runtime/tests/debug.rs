//! Looking into compiled functions.

use thalweg_core::DType;
use thalweg_core::{View, ViewMut};
use thalweg_runtime::{jit, probe};
use thalweg_tensor::ops::CustomOp;
use thalweg_tensor::{Meta, OpError, Param, Tensor, custom};

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
fn a_profile_has_every_step_and_a_trace_that_parses() {
    let mut f = jit(|x: Tensor| probe("x", &x).matmul(&x.t()).softmax(-1).sum(0));
    let profile = f.profile(Tensor::ones([16, 16], DType::F32), 3).unwrap();
    assert_eq!(profile.steps.len(), f.plan().n_steps());
    let table = profile.to_string();
    assert!(table.contains("GFLOP/s") && table.contains("matmul"), "{table}");
    let trace = profile.chrome_trace();
    assert_eq!(trace.matches("\"ph\":\"X\"").count(), profile.steps.len(), "{trace}");
}

#[test]
fn a_plan_prints_steps_costs_and_lines() {
    let mut f = jit(|x: Tensor| x.matmul(&x).relu());
    f.call(Tensor::ones([8, 8], DType::F32)).unwrap();
    let text = f.plan().to_string();
    assert!(text.contains("matmul") && text.contains("flop") && text.contains("debug.rs:"), "{text}");
}
