//! The training loop: what it computes does not depend on where it was stopped.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use thalweg_core::DType;
use thalweg_data::{Dataset, Examples, iris};
use thalweg_nn::schedule::StepDecay;
use thalweg_nn::{Activation, Adam, Dropout, Layer, Linear, Module, Sequential, Sgd, hit_rate};
use thalweg_tensor::{Rng, Tensor};
use thalweg_train::{
    Best, Callback, Ended, Epochs, Fitted, Progress, Run, Steps, TrainError, Trainer, VALIDATION_LOSS,
    weights_hash,
};

fn folder(test: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("thalweg-trainer-{}-{test}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}

fn data() -> Examples {
    iris().unwrap().data
}

/// With dropout, so that random numbers must go on too.
fn net(width: usize) -> Sequential {
    let mut rng = Rng::seed(3);
    Sequential::new()
        .then(Linear::new(4, width, &mut rng))
        .then(Activation::Relu)
        .then(Dropout::new(0.2, &mut rng))
        .then(Linear::new(width, 3, &mut rng))
}

fn loss(net: &Sequential, (x, y): (Tensor, Tensor)) -> Tensor {
    net.forward(&x).cross_entropy(&y)
}

/// Asks for an end after so many steps of its process.
struct StopAfter(u64);

impl<N> Callback<N> for StopAfter {
    fn after_step(&mut self, now: &Progress, _: &N) -> ControlFlow<()> {
        if now.own_steps == self.0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// 150 samples in batches of 40: four steps an epoch, the last of them smaller.
fn train(run: Option<&Path>, epochs: u64, stop_after: u64) -> Fitted {
    let mut trainer = Trainer::new(net(16), Adam::new(0.01), loss)
        .metric("accuracy", |net, (x, y)| hit_rate(&net.forward(&x), &y))
        .validate(data().batches(64))
        .watch("accuracy", Best::Highest)
        .schedule(StepDecay { every: 7, gamma: 0.9 })
        .log_every(Steps(3))
        .callback(StopAfter(stop_after));
    if let Some(run) = run {
        trainer = trainer.checkpoint_every(Epochs(1), run).resume(true);
    }
    let fitted = trainer.fit(data().batches(40).seed(5), Epochs(epochs)).unwrap();
    assert_eq!(fitted.weights, weights_hash(trainer.net()));
    fitted
}

/// Everything that was measured, without the time it took.
fn measured(run: &Path) -> Vec<String> {
    let lines = Run::metrics_of(run).unwrap();
    lines.iter().map(|l| format!("{} {:?}", l.step, l.values)).collect()
}

#[test]
fn three_epochs_and_three_more_are_six_bit_for_bit() {
    let (whole, parts) = (folder("six"), folder("three"));
    let straight = train(Some(&whole), 6, u64::MAX);
    assert_eq!((straight.steps, straight.epochs, straight.ended), (24, 6, Ended::Done));
    assert_eq!(train(Some(&parts), 3, u64::MAX).steps, 12);
    let resumed = train(Some(&parts), 6, u64::MAX);
    assert_eq!(resumed.weights, straight.weights);
    assert_eq!((resumed.steps, &resumed.metrics, resumed.loss), (24, &straight.metrics, straight.loss));
    assert_eq!(measured(&parts), measured(&whole));
    assert_eq!(train(None, 6, u64::MAX).weights, straight.weights, "files change nothing");
    for run in [whole, parts] {
        std::fs::remove_dir_all(run).unwrap();
    }
}

#[test]
fn a_run_that_is_stopped_anywhere_ends_with_the_same_bits() {
    let straight = train(None, 3, u64::MAX);
    for stop_after in 1..=5 {
        let run = folder(&format!("stopped-{stop_after}"));
        let mut processes = 1;
        let last = loop {
            let fitted = train(Some(&run), 3, stop_after);
            if fitted.ended == Ended::Done {
                break fitted;
            }
            assert_eq!(fitted.steps, processes * stop_after);
            assert!(Run::summary_of(&run).unwrap().is_none(), "a stopped run is not finished");
            processes += 1;
        };
        assert_eq!(last.weights, straight.weights, "stopped every {stop_after} steps");
        assert!(run.join("model.safetensors").exists());
        std::fs::remove_dir_all(run).unwrap();
    }
}

#[test]
fn compiled_and_eager_steps_agree() {
    let weights = |eager: bool| {
        let mut trainer = Trainer::new(net(16), Adam::new(0.01), loss);
        if eager {
            trainer = trainer.eager();
        }
        trainer.fit(data().batches(40), Epochs(2)).unwrap();
        let state = trainer.into_net().state();
        state.iter().flat_map(|n| n.param.get().to_vec::<f32>()).collect::<Vec<_>>()
    };
    for (a, b) in weights(false).into_iter().zip(weights(true)) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
}

#[test]
fn training_learns_and_its_length_may_be_counted_in_steps() {
    let mut trainer = Trainer::new(net(16), Adam::new(0.01), loss)
        .metric("accuracy", |net, (x, y)| hit_rate(&net.forward(&x), &y))
        .validate(data().batches(7));
    let fitted = trainer.fit(data().batches(40), Epochs(40)).unwrap();
    assert!(fitted.metrics["accuracy"] > 0.9, "{fitted}");
    // The mean over samples, whatever the batches are.
    trainer.net().eval();
    let all = loss(trainer.net(), (data().x, data().y)).item::<f32>();
    assert!((fitted.metrics[VALIDATION_LOSS] - f64::from(all)).abs() < 1e-5);

    let fitted = Trainer::new(net(16), Adam::new(0.01), loss).fit(data().batches(40), Steps(6)).unwrap();
    assert_eq!((fitted.steps, fitted.epochs, fitted.ended), (6, 1, Ended::Done));
}

/// Everything that shapes a step: parts of a batch, an average, numbers that look at the net.
fn shaped(run: Option<&Path>, steps: u64, stop_after: u64, shape: impl Fn(Shaped) -> Shaped) -> Fitted {
    let plain: fn(&Sequential, (Tensor, Tensor)) -> Tensor = loss;
    let mut trainer = shape(Trainer::new(plain_net(), Adam::new(0.01), plain))
        .validate(data().batches(64))
        .validate_every(Steps(4))
        .observe("size", |net: &Sequential| {
            net.params().iter().map(|p| p.param.get().square().sum(()).item::<f32>() as f64).sum()
        })
        .callback(StopAfter(stop_after));
    if let Some(run) = run {
        trainer = trainer.checkpoint_every(Steps(2), run).resume(true);
    }
    trainer.fit(data().batches(40).seed(5), Steps(steps)).unwrap()
}

type Shaped = Trainer<Sequential, Adam, (Tensor, Tensor), fn(&Sequential, (Tensor, Tensor)) -> Tensor>;

/// Without dropout, so that parts of a batch draw nothing.
fn plain_net() -> Sequential {
    let mut rng = Rng::seed(3);
    Sequential::new()
        .then(Linear::new(4, 16, &mut rng))
        .then(Activation::Relu)
        .then(Linear::new(16, 3, &mut rng))
}

#[test]
fn a_batch_in_parts_is_the_same_step() {
    let whole = shaped(None, 12, u64::MAX, |t| t);
    // 40 samples in 3 parts, and the last 30 in 3: uneven and even.
    let parts = shaped(None, 12, u64::MAX, |t| t.accumulate(3));
    for name in [VALIDATION_LOSS, "size"] {
        let (a, b) = (whole.metrics[name], parts.metrics[name]);
        assert!((a - b).abs() < 1e-5 * a.abs(), "{name}: {a} {b}");
    }
    let eager = shaped(None, 12, u64::MAX, |t| t.accumulate(3).eager());
    assert!((eager.metrics["size"] - parts.metrics["size"]).abs() < 1e-4);
}

#[test]
fn narrow_products_learn_almost_the_same() {
    let (wide, narrow) =
        (shaped(None, 40, u64::MAX, |t| t), shaped(None, 40, u64::MAX, |t| t.precision(DType::BF16)));
    let (a, b) = (wide.metrics[VALIDATION_LOSS], narrow.metrics[VALIDATION_LOSS]);
    assert!(a != b && (a - b).abs() < 0.05, "{a} {b}");
}

#[test]
fn averaged_weights_are_measured_kept_and_resumed_to_the_same_bits() {
    let averaged = |t: Shaped| t.average(0.9);
    let straight = shaped(None, 10, u64::MAX, averaged);
    assert_ne!(straight.weights, shaped(None, 10, u64::MAX, |t| t).weights);
    let run = folder("average");
    while shaped(Some(&run), 10, 3, averaged).ended == Ended::Stopped {}
    let resumed = Run::summary_of(&run).unwrap().unwrap();
    assert_eq!(resumed["weights"], straight.weights);
    assert_eq!(resumed["metrics"]["size"].as_f64().unwrap(), straight.metrics["size"]);
    assert!(std::fs::read_to_string(run.join("graph.html")).unwrap().contains("<svg"));
    let steps: Vec<u64> = Run::metrics_of(&run)
        .unwrap()
        .iter()
        .filter(|l| l.values.contains_key("size"))
        .map(|l| l.step)
        .collect();
    assert_eq!(steps, [4, 8, 10], "every four steps, and at the end");
    std::fs::remove_dir_all(run).unwrap();
}

#[test]
fn autobatched_steps_agree_with_compiled_ones() {
    let (compiled, batched) =
        (shaped(None, 8, u64::MAX, |t| t), shaped(None, 8, u64::MAX, |t| t.autobatch()));
    assert!((compiled.metrics["size"] - batched.metrics["size"]).abs() < 1e-4);
}

#[test]
fn a_part_may_be_saved_less_often() {
    let run = folder("intervals");
    shaped(Some(&run), 6, u64::MAX, |t| t.save_part_every("optimizer", Steps(4)));
    let steps = |part: &str| {
        let prefix = format!("{part}-");
        let files = std::fs::read_dir(run.join("checkpoints")).unwrap().map(|f| f.unwrap().file_name());
        files.filter(|f| f.to_string_lossy().contains(&prefix) || f.to_string_lossy().contains(part)).count()
    };
    assert!(steps("model") > steps("optimizer"), "{} {}", steps("model"), steps("optimizer"));
    std::fs::remove_dir_all(run).unwrap();
}

#[test]
fn training_ends_early_when_nothing_gets_better() {
    // With a rate of 0 every epoch is as good as the first.
    let run = folder("early");
    let again = |resume: bool| {
        Trainer::new(net(4), Sgd::new(0.0), loss)
            .validate(data().batches(50))
            .early_stop(2)
            .checkpoint_every(Epochs(1), &run)
            .resume(resume)
            .fit(data().batches(50), Epochs(100))
            .unwrap()
    };
    let fitted = again(false);
    assert_eq!((fitted.ended, fitted.epochs), (Ended::Early, 3));
    let resumed = again(true);
    assert_eq!((resumed.ended, resumed.epochs, resumed.weights), (Ended::Early, 3, fitted.weights));
    std::fs::remove_dir_all(run).unwrap();
}

#[test]
fn what_cannot_be_trained_is_refused_with_a_reason() {
    let mut wild = Trainer::new(net(4), Sgd::new(1e38), loss);
    let e = wild.fit(data().batches(50), Epochs(50)).unwrap_err();
    assert!(matches!(e, TrainError::Diverged { .. }) && e.to_string().contains("lower learning rate"), "{e}");

    let mut blind = Trainer::new(net(4), Sgd::new(0.1), loss).watch("accuracy", Best::Highest);
    let e = blind.fit(data().batches(50), Epochs(1)).unwrap_err().to_string();
    assert!(e.contains("\"accuracy\"") && e.contains(VALIDATION_LOSS), "{e}");

    let mut nowhere = Trainer::new(net(4), Sgd::new(0.1), loss).resume(true);
    assert!(matches!(nowhere.fit(data().batches(50), Epochs(1)), Err(TrainError::Nowhere)));
}

#[test]
fn a_run_of_another_net_is_neither_resumed_nor_overwritten() {
    let run = folder("other");
    let of = |width: usize, resume: bool| {
        Trainer::new(net(width), Adam::new(0.01), loss)
            .checkpoint_every(Epochs(1), &run)
            .resume(resume)
            .fit(data().batches(50), Epochs(1))
    };
    let first = of(4, false).unwrap();
    assert!(matches!(of(4, false), Err(TrainError::Exists { .. })));
    let e = of(5, true).unwrap_err().to_string();
    assert!(e.contains("misshapen: 0.weight"), "{e}");
    assert_eq!(of(4, true).unwrap().weights, first.weights);
    std::fs::remove_dir_all(run).unwrap();
}
