//! Learning rates of 40 steps.

use std::collections::BTreeMap;

use serde_json::Value;
use thalweg_nn::schedule::{
    Cosine, CosineRestarts, Cyclic, Exponential, MultiStep, OneCycle, Polynomial, Ramp, Schedule, StepDecay,
};
use thalweg_tensor::Tensor;

use super::{Attrs, Mode, Outcome, list, number, text};

pub fn check(case: &Value, _: &BTreeMap<String, Tensor>, _: &Mode) -> Outcome {
    let attrs = Attrs::new(&case["config"]);
    let f = |name: &str| attrs.f64(name);
    let n = |name: &str| attrs.int(name).map(|i| i as u64);
    let schedule: Box<dyn Schedule> = match text(case, "id") {
        "StepLR" => Box::new(StepDecay { every: n("step_size")?, gamma: f("gamma")? }),
        "MultiStepLR" => {
            let milestones = attrs.ints("milestones")?.iter().map(|&m| m as u64).collect();
            Box::new(MultiStep { milestones, gamma: f("gamma")? })
        }
        "ExponentialLR" => Box::new(Exponential { gamma: f("gamma")? }),
        "CosineAnnealingLR" => Box::new(Cosine { steps: n("T_max")?, min: f("eta_min")? }),
        "CosineAnnealingWarmRestarts" => {
            Box::new(CosineRestarts { first: n("T_0")?, factor: n("T_mult")?, min: f("eta_min")? })
        }
        "LinearLR" => {
            let (start, end) = (f("start_factor")?, f("end_factor")?);
            Box::new(Ramp { start, end, steps: n("total_iters")? })
        }
        "PolynomialLR" => Box::new(Polynomial { steps: n("total_iters")?, power: f("power")? }),
        "OneCycleLR" => Box::new(OneCycle::new(f("max_lr")?, n("total_steps")?)),
        "CyclicLR" => {
            let (up, down) = (n("step_size_up")?, n("step_size_up")?);
            Box::new(Cyclic { min: f("base_lr")?, max: f("max_lr")?, up, down })
        }
        _ => return None,
    };
    let base = number(case, "base_lr");
    let rates = list(case, "lr").iter().filter_map(Value::as_f64).enumerate();
    Some(rates.map(|(step, want)| (step, want, schedule.lr(step as u64, base))).try_for_each(
        |(step, want, got)| match (got - want).abs() <= 1e-12 + 1e-9 * want.abs() {
            true => Ok(()),
            false => Err(format!("step {step}: {got} instead of {want}")),
        },
    ))
}
