//! What the engine does for every rule: names, groups, checkpoints, refusals.

use std::collections::BTreeMap;

use thalweg_core::DType;
use thalweg_nn::{
    Adam, AdamW, Decay, Group, Layer, Linear, Module, NAdam, NnError, Optimizer, RmsProp, Rule, Sgd, autocast,
};
use thalweg_tensor::{Param, Reduction, Rng, Tensor};

fn net(seed: u64) -> Vec<Linear> {
    let rng = &mut Rng::seed(seed);
    vec![Linear::new(4, 8, rng), Linear::new(8, 3, rng)]
}

fn batch() -> (Tensor, Tensor) {
    let rng = &mut Rng::seed(11);
    (rng.normal([16, 4], 0.0, 1.0), rng.randint([16], 0, 3))
}

fn loss(net: &[Linear]) -> Tensor {
    let (x, y) = batch();
    net[1].forward(&net[0].forward(&x).tanh()).cross_entropy(&y)
}

fn weights(net: &[Linear]) -> Vec<Vec<f32>> {
    net.params().iter().map(|p| p.param.get().to_vec()).collect()
}

fn train<R: Rule>(opt: &mut Optimizer<R>, net: &[Linear], steps: usize) {
    (0..steps).for_each(|_| opt.step(net, &loss(net)));
}

#[test]
fn slots_are_called_by_parameter_and_purpose() {
    let net = net(0);
    let mut opt = Adam::new(0.01);
    train(&mut opt, &net, 1);
    let names: Vec<String> = opt.state().into_iter().map(|p| p.name).collect();
    assert_eq!(names[..4], ["lr", "step", "0.bias.exp_avg", "0.bias.exp_avg_sq"]);
    assert_eq!(names.len(), 2 + 2 * 4);
}

fn resumes<R: Rule>(make: impl Fn() -> Optimizer<R>) {
    let straight = net(1);
    let mut opt = make();
    train(&mut opt, &straight, 6);

    let (first, second) = (net(1), net(2));
    let mut opt = make();
    train(&mut opt, &first, 3);
    let path = std::env::temp_dir().join(format!("thalweg-opt-{}-{}", std::process::id(), opt.state().len()));
    opt.save(&path).unwrap();
    first.state().iter().zip(second.state()).for_each(|(a, b)| b.param.set(a.param.get()));
    let mut opt = make();
    opt.load(&path, &second).unwrap();
    std::fs::remove_file(path).unwrap();
    assert_eq!(opt.steps(), 3);
    train(&mut opt, &second, 3);
    assert_eq!(weights(&straight), weights(&second));
}

#[test]
fn a_resumed_optimiser_goes_on_bit_for_bit() {
    resumes(|| Adam::new(0.01));
    resumes(|| NAdam::new(0.01).weight_decay(0.1));
    resumes(|| Sgd::new(0.1).nesterov(0.9));
    resumes(|| Optimizer::new(RmsProp { centered: true, momentum: 0.5, ..Default::default() }, 0.01));
}

#[test]
fn a_checkpoint_of_another_rule_lists_what_differs_and_changes_nothing() {
    let net = net(0);
    let mut momentum = Sgd::new(0.1).momentum(0.9);
    train(&mut momentum, &net, 2);
    let tensors: BTreeMap<String, Tensor> =
        momentum.state().into_iter().map(|p| (p.name, p.param.get())).collect();
    let mut adam = Adam::new(0.01);
    let before = weights(&net);
    let Err(NnError::Mismatch(wrong)) = adam.set_state(&tensors, &net, "old.safetensors") else { panic!() };
    assert_eq!((wrong.missing.len(), wrong.unexpected.len()), (8, 4));
    assert_eq!((adam.lr(), adam.steps(), adam.state().len()), (0.01, 0, 2));
    assert_eq!(before, weights(&net));
}

#[test]
fn preparing_makes_the_slots_and_leaves_everything_else() {
    let (net, mut opt) = (net(0), NAdam::new(0.01));
    let before = weights(&net);
    opt.prepare(&net);
    assert_eq!(opt.state().len(), 2 + 3 * 4);
    opt.prepare(&net);
    assert_eq!((before, opt.steps()), (weights(&net), 0));
    let fresh = opt.state().into_iter().filter(|p| p.name.ends_with("mu_product"));
    assert!(fresh.into_iter().all(|p| p.param.get().item::<f64>() == 1.0));
}

#[test]
fn the_first_group_that_fits_decides() {
    let p = vec![Param::new("a", Tensor::from([1.0f32])), Param::new("b", Tensor::from([[1.0f32]]))];
    let mut opt = Sgd::new(0.5)
        .decay(Decay::Decoupled(0.2))
        .group(Group::of(|_, shape| shape.rank() == 1).weight_decay(0.0).lr_factor(0.1))
        .group(Group::of(|name, _| name == "0").lr_factor(100.0));
    let ones = |p: &Param| Tensor::ones(p.get().shape(), DType::F32);
    opt.step_with(&p, &p.iter().map(ones).collect::<Vec<_>>());
    assert_eq!(p[0].get().item::<f32>(), 1.0 - 0.05);
    assert_eq!(p[1].get().item::<f32>(), 0.9 - 0.5);
}

#[test]
fn frozen_parameters_stay_and_need_no_gradient() {
    let net = net(0);
    net[0].freeze();
    let before = weights(&net);
    train(&mut AdamW::new(0.01), &net, 2);
    let after = weights(&net);
    assert_eq!(before[..2], after[..2]);
    assert_ne!(before[2], after[2]);
}

#[test]
fn a_parameter_without_gradient_is_named_in_full_and_nothing_moves() {
    let net = net(0);
    let before = weights(&net);
    let (x, _) = batch();
    let mut opt = Adam::new(0.01);
    let error = opt.try_step(&net, &net[0].forward(&x).sum(())).unwrap_err();
    assert!(error.to_string().contains("`1.weight` gets no gradient"), "{error}");
    assert_eq!((before, opt.steps()), (weights(&net), 0));
}

#[test]
#[should_panic(expected = "step_with: `0.weight` has shape [8, 4] and its gradient [4, 8]")]
fn a_gradient_of_another_shape_is_refused() {
    let net = net(0);
    let turned: Vec<Tensor> = net.params().iter().map(|p| p.param.get().t().contiguous()).collect();
    Sgd::new(0.1).step_with(&net, &turned);
}

#[test]
fn mixed_precision_learns_with_weights_in_single_precision() {
    let (plain, mixed) = (net(3), net(3));
    let (mut a, mut b) = (Adam::new(0.02), Adam::new(0.02));
    let (x, y) = batch();
    let narrow_loss = || {
        let scores = autocast(DType::BF16, || mixed[1].forward(&mixed[0].forward(&x).tanh()));
        assert_eq!(scores.dtype(), DType::BF16);
        scores.to_dtype(DType::F32).cross_entropy(&y)
    };
    let start = narrow_loss().item::<f32>();
    for _ in 0..60 {
        a.step(&plain, &loss(&plain));
        b.step(&mixed, &narrow_loss());
    }
    assert!(mixed.params().iter().all(|p| p.param.get().dtype() == DType::F32));
    let (wide, narrow) = (loss(&plain).item::<f32>(), narrow_loss().item::<f32>());
    assert!(narrow < 0.75 * start && (narrow - wide).abs() < 0.02, "{start} → {narrow}, {wide} in f32");
}

#[test]
fn clipping_bounds_the_step() {
    let w = Param::new("w", Tensor::from([0.0f32, 0.0]));
    let gradient = [Tensor::from([30.0f32, 40.0])];
    Sgd::new(1.0).clip_norm(5.0).step_with(&w, &gradient);
    let moved = w.get().to_vec::<f32>();
    assert!((moved[0] + 3.0).abs() < 1e-5 && (moved[1] + 4.0).abs() < 1e-5, "{moved:?}");
    Sgd::new(1.0).clip_value(1.0).step_with(&w, &gradient);
    assert!((w.get().to_vec::<f32>()[1] + 5.0).abs() < 1e-5);
}

#[test]
fn a_line_is_fitted_by_every_kind_of_step() {
    let (x, y) = (Tensor::from([[0.0f32], [1.0], [2.0]]), Tensor::from([[1.0f32], [3.0], [5.0]]));
    let line = Linear::new(1, 1, &mut Rng::seed(0));
    let mut opt = Sgd::new(0.1).momentum(0.9);
    for _ in 0..300 {
        let loss = line.forward(&x).mse_loss(&y, Reduction::Mean);
        opt.step(&line, &loss);
    }
    assert!((line.weight.get().item::<f32>() - 2.0).abs() < 1e-3);
}
