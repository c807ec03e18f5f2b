//! The trajectories of optimisers under given gradients, and clipping.

use std::collections::BTreeMap;

use serde_json::Value;
use thalweg_core::DType;
use thalweg_nn::{
    Adadelta, Adafactor, Adagrad, Adam, Adamax, Asgd, Clip, Decay, Lbfgs, LbfgsOptions, LineSearch, Lion,
    Muon, NAdam, Optimizer, RAdam, RmsProp, Rprop, Rule, Sgd, clip_norm,
};
use thalweg_tensor::{Param, Tensor};

use super::{Attrs, Mode, Outcome, compare, in_mode, list, number, repeated, text};

type Data = BTreeMap<String, Tensor>;

pub fn check(case: &Value, data: &Data, mode: &Mode) -> Outcome {
    let attrs = Attrs::new(&case["defaults"]);
    let f = |name: &str| attrs.f64(name);
    let betas = || attrs.f64s("betas").map(|b| (b[0], b[1]));
    let yes = |name: &str| attrs.bool(name).unwrap_or(false);
    let plain = Decay::L2(f("weight_decay").unwrap_or(0.0));
    let decoupled = Decay::Decoupled(f("weight_decay").unwrap_or(0.0));
    let decay = if yes("decoupled_weight_decay") { decoupled } else { plain };
    match text(case, "op") {
        "SGD" | "SGD_momentum" | "SGD_nesterov" => {
            let (momentum, dampening) = (f("momentum")?, f("dampening")?);
            run(case, data, mode, Sgd { momentum, dampening, nesterov: yes("nesterov") }, decay)
        }
        "Adagrad" => {
            let (lr_decay, initial_sum) = (f("lr_decay")?, f("initial_accumulator_value")?);
            run(case, data, mode, Adagrad { lr_decay, initial_sum, eps: f("eps")? }, decay)
        }
        "Adadelta" => run(case, data, mode, Adadelta { rho: f("rho")?, eps: f("eps")? }, decay),
        "RMSprop" => {
            let (alpha, momentum) = (f("alpha")?, f("momentum")?);
            run(
                case,
                data,
                mode,
                RmsProp { alpha, eps: f("eps")?, momentum, centered: yes("centered") },
                decay,
            )
        }
        "Adam" | "AdamW" => {
            run(case, data, mode, Adam { betas: betas()?, eps: f("eps")?, amsgrad: yes("amsgrad") }, decay)
        }
        "Adamax" => run(case, data, mode, Adamax { betas: betas()?, eps: f("eps")? }, decay),
        "NAdam" => {
            let momentum_decay = f("momentum_decay")?;
            run(case, data, mode, NAdam { betas: betas()?, eps: f("eps")?, momentum_decay }, decay)
        }
        "RAdam" => run(case, data, mode, RAdam { betas: betas()?, eps: f("eps")? }, decay),
        "ASGD" => {
            run(case, data, mode, Asgd { lambda: f("lambd")?, alpha: f("alpha")?, start: f("t0")? }, decay)
        }
        "Rprop" => {
            let (etas, sizes) = (attrs.f64s("etas")?, attrs.f64s("step_sizes")?);
            run(case, data, mode, Rprop { factors: (etas[0], etas[1]), sizes: (sizes[0], sizes[1]) }, decay)
        }
        "Lion" => run(case, data, mode, Lion { betas: betas()? }, decoupled),
        "Adafactor" => {
            let (beta2_decay, largest_update) = (f("beta2_decay")?, f("d")?);
            run(case, data, mode, Adafactor { beta2_decay, largest_update, ..Default::default() }, decoupled)
        }
        "Muon" => {
            let (momentum, eps) = (f("momentum")?, f("eps")?);
            let iterations = attrs.int("ns_steps")? as usize;
            let rule = Muon { momentum, nesterov: yes("nesterov"), iterations, eps, ..Default::default() };
            run(case, data, mode, rule, decoupled)
        }
        "LBFGS" => Some(lbfgs(case, data)),
        "clip" => Some(clip(case, data, mode)),
        _ => None,
    }
}

/// Ten steps with stored gradients, each compared with the stored position.
fn run<R: Rule>(case: &Value, data: &Data, mode: &Mode, rule: R, decay: Decay) -> Outcome {
    let names = |key: &str| list(case, key).iter().filter_map(Value::as_str).collect::<Vec<_>>();
    let mut opt = Optimizer::new(rule, number(&case["defaults"], "lr")).decay(decay);
    if case["defaults"]["maximize"].as_bool() == Some(true) {
        opt = opt.maximize();
    }
    let params: Vec<Param> =
        names("init").iter().map(|name| Param::new(*name, data[*name].clone())).collect();
    let (grads, wanted) = (names("grads"), names("trajectory"));
    let steps = data[grads[0]].size(0) as isize;
    let mut step_with = repeated(mode, |gradients: Vec<Tensor>| opt.step_with(&params, &gradients));
    Some((0..steps).try_for_each(|step| {
        let at = |name: &&str| data[*name].select(0, step);
        step_with(grads.iter().map(at).collect());
        params.iter().zip(&wanted).try_for_each(|(param, name)| {
            let (rtol, atol) = (number(case, "rtol"), number(case, "atol"));
            compare::close(&param.get(), &at(name), rtol, atol, &[])
                .map_err(|e| format!("step {}, {}: {e}", step + 1, param.name()))
        })
    }))
}

/// The objective is written down in the index; the loss before each step and the last position are
/// compared. In double precision, as the expected values were made: a line search makes much of little.
fn lbfgs(case: &Value, data: &Data) -> Result<(), String> {
    let config = Attrs::new(&case["config"]);
    let double = |name: &str| data[name].to_dtype(DType::F64);
    let init = |name: &str| Param::new(name, double(name) * 0.3);
    let (a, b) = (double("lbfgs_A"), double("lbfgs_B"));
    let params = vec![init("p0"), init("p1")];
    let loss = || {
        let x = params[1].get();
        let n = x.size(0) - 1;
        let (next, here) = (x.narrow(0, 1, n), x.narrow(0, 0, n));
        let square = (&a * (params[0].get() - &b).square()).sum(()) * 0.5;
        square + ((next - here.square()).square() * 100.0 + (1.0 - here).square()).sum(())
    };
    let mut opt = Lbfgs::new(LbfgsOptions {
        max_iterations: config.int("max_iter").ok_or("no max_iter")? as usize,
        history: config.int("history_size").ok_or("no history_size")? as usize,
        line_search: match config.str("line_search_fn") {
            Some(_) => LineSearch::StrongWolfe,
            None => LineSearch::None,
        },
        lr: number(&case["config"], "lr"),
        ..Default::default()
    });
    let wanted: Vec<f64> = list(case, "loss_before_each_step").iter().filter_map(Value::as_f64).collect();
    let (rtol, atol) = (number(case, "rtol"), number(case, "atol"));
    for (step, want) in wanted.iter().enumerate() {
        let got = opt.step(&params, &loss);
        if (got - want).abs() > atol + rtol * want.abs() {
            return Err(format!("step {}: loss {got} instead of {want}", step + 1));
        }
    }
    for (param, key) in params.iter().zip(list(case, "trajectory")) {
        let want = data[key.as_str().unwrap_or_default()].select(0, -1);
        compare::close(&param.get().to_dtype(DType::F32), &want, rtol, atol, &[])
            .map_err(|e| format!("{}: {e}", param.name()))?;
    }
    Ok(())
}

fn clip(case: &Value, data: &Data, mode: &Mode) -> Result<(), String> {
    let grads = [data["g0"].select(0, 0), data["g1"].select(0, 0)];
    let (rtol, atol) = (number(case, "rtol"), number(case, "atol"));
    let id = text(case, "id").trim_start_matches("clip/");
    let clip = match id.split_once('_') {
        Some(("value", max)) => max.parse().map(Clip::Value),
        Some(("norm", rest)) => {
            let (p, max) = rest.split_once('_').map_or((2.0, rest), |(_, max)| (f64::INFINITY, max));
            max.parse().map(|max| Clip::Norm { max, p })
        }
        _ => return Err(format!("{id} is no way to clip")),
    };
    let clip = clip.map_err(|_| format!("no number in {id}"))?;
    let mut clipped = in_mode(mode, &grads, &|grads| match clip {
        Clip::Norm { max, p } => {
            let (clipped, norm) = clip_norm(grads, max, p);
            clipped.into_iter().chain([norm]).collect()
        }
        value => value.apply(grads),
    });
    if clipped.len() > grads.len() {
        let norm = clipped.remove(grads.len());
        let want = Tensor::full((), number(case, "total_norm"), norm.dtype());
        compare::close(&norm, &want, rtol, atol, &[]).map_err(|e| format!("norm: {e}"))?;
    }
    clipped.iter().zip(list(case, "outputs")).try_for_each(|(got, key)| {
        compare::close(got, &data[key.as_str().unwrap_or_default()], rtol, atol, &[])
    })
}
