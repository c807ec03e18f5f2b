//! A trainer on a cluster of one process: the same mathematics, the same files.

use std::path::PathBuf;

use thalweg_cluster::{Cluster, ClusterError, OnCluster, Sync};
use thalweg_data::{Dataset, Examples, Last};
use thalweg_nn::{Adam, BatchNorm, Dropout, Layer, Linear, Module, Sequential, Sgd};
use thalweg_tensor::{Reduction, Rng, Tensor};
use thalweg_train::{Epochs, Steps, TrainError, Trainer, load_latest, weights_hash};

fn data() -> Examples {
    let mut rng = Rng::seed(3);
    let x = rng.normal([50, 4], 0.0, 1.0);
    let y = x.narrow(1, 0, 1) * 2.0 - x.narrow(1, 2, 1);
    Examples::new(x, y).unwrap()
}

fn net() -> Sequential {
    let mut rng = Rng::seed(1);
    Sequential::new().then(Linear::new(4, 8, &mut rng)).then(Linear::new(8, 1, &mut rng))
}

fn loss(net: &Sequential, (x, y): (Tensor, Tensor)) -> Tensor {
    net.forward(&x).mse_loss(&y, Reduction::Mean)
}

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("thalweg-on-cluster-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}

fn alone(slots: usize) -> Cluster {
    Cluster::from_env().unwrap().with_slots(slots)
}

#[test]
fn one_slot_comes_to_the_bits_of_a_trainer_without_cluster() {
    let mut plain = Trainer::new(net(), Adam::new(0.01), loss);
    plain.fit(data().batches(16), Epochs(3)).unwrap();
    let trained =
        Trainer::new(net(), Adam::new(0.01), loss).on(alone(1)).fit(data().batches(16), Epochs(3)).unwrap();
    assert_eq!(trained.fitted.weights, weights_hash(plain.net()));
    assert_eq!((trained.fitted.steps, trained.fitted.epochs), (12, 3));
}

#[test]
fn slots_share_a_batch_and_the_sum_of_their_gradients_is_its_gradient() {
    // 50 samples in batches of 16: the last batch has 2, so of four slots two have none.
    let run = |slots| {
        let trained = Trainer::new(net(), Sgd::new(0.05).momentum(0.9), loss)
            .on(alone(slots))
            .fit(data().batches(16), Epochs(3))
            .unwrap();
        let w = trained.net.forward(&Tensor::from([[0.5f32, -1.0, 0.25, 2.0]])).item::<f32>();
        (w, trained.fitted.weights)
    };
    let (one, four) = (run(1), run(4));
    assert!((one.0 - four.0).abs() < 1e-4, "{one:?} {four:?}");
    assert_eq!(four, run(4), "the same slots give the same bits");
}

#[test]
fn a_run_on_a_cluster_goes_on_there_and_in_a_process_without() {
    let train = |length, folder: &PathBuf, slots| {
        Trainer::new(net(), Adam::new(0.01), loss)
            .on(alone(slots))
            .checkpoint_every(Steps(4), folder)
            .resume(true)
            .fit(data().batches(16), Steps(length))
            .unwrap()
            .fitted
            .weights
    };
    let (whole, halves, plain) = (folder("whole"), folder("halves"), folder("plain"));
    let want = train(20, &whole, 1);
    train(9, &halves, 1);
    assert_eq!(load_latest(halves.join("checkpoints")).unwrap().unwrap().step, 8);
    assert_eq!(train(20, &halves, 1), want);
    // The files are those of a trainer without cluster.
    train(8, &plain, 1);
    let mut trainer =
        Trainer::new(net(), Adam::new(0.01), loss).checkpoint_every(Steps(4), &plain).resume(true);
    assert_eq!(trainer.fit(data().batches(16), Steps(20)).unwrap().weights, want);
    // And the other way round.
    assert_eq!(train(24, &plain, 1), train(24, &whole, 1));
    [whole, halves, plain].iter().for_each(|f| std::fs::remove_dir_all(f).unwrap());
}

#[test]
fn buffers_and_noise_do_not_depend_on_who_computes() {
    let net = || {
        let mut rng = Rng::seed(1);
        Sequential::new()
            .then(Linear::new(4, 8, &mut rng))
            .then(BatchNorm::new(8))
            .then(Dropout::new(0.3, &mut rng))
            .then(Linear::new(8, 1, &mut rng))
    };
    let run = || {
        let batches = data().batches(16).last(Last::Drop); // a part of one sample has no variance
        Trainer::new(net(), Adam::new(0.01), loss).on(alone(2)).fit(batches, Epochs(2)).unwrap()
    };
    let (a, b) = (run(), run());
    assert_eq!(a.fitted.weights, b.fitted.weights);
    let moved = a.net.buffers()[0].param.get().abs().amax(()).item::<f32>();
    assert!(moved > 0.0, "running means come back from the servers");
}

#[test]
fn all_consistencies_learn() {
    for sync in [Sync::Bsp, Sync::Ssp(3), Sync::Async, Sync::Backup(1)] {
        let trained = Trainer::new(net(), Adam::new(0.02), loss)
            .validate(data().batches(50))
            .on(alone(4).with_sync(sync))
            .fit(data().batches(16), Epochs(60))
            .unwrap();
        assert!(trained.fitted.metrics["loss/validation"] < 0.5, "{trained}");
    }
}

#[test]
fn each_slot_bounds_the_norm_of_its_gradient() {
    let clipped = || Trainer::new(net(), Sgd::new(1.0).clip_norm(1e-3), loss);
    let mut plain = clipped();
    plain.fit(data().batches(50), Steps(1)).unwrap();
    let moved = |net: &Sequential| {
        let before = crate::net();
        let squares = net
            .params()
            .into_iter()
            .zip(before.params())
            .map(|(a, b)| (a.param.get() - b.param.get()).square().sum(()).item::<f32>());
        squares.sum::<f32>().sqrt()
    };
    assert!((moved(plain.net()) - 1e-3).abs() < 1e-5);
    let of = |slots| moved(&clipped().on(alone(slots)).fit(data().batches(50), Steps(1)).unwrap().net);
    assert!((of(1) - 1e-3).abs() < 1e-5, "one slot has the whole gradient: {}", of(1));
    // Four parts point in different directions, so their mean is shorter than the longest of them.
    assert!((2e-4..1e-3).contains(&of(4)), "{}", of(4));
}

#[test]
fn what_a_cluster_cannot_do_is_said_before_anything_runs() {
    let early = Trainer::new(net(), Adam::new(0.01), loss).early_stop(3).on(alone(1));
    assert!(matches!(early.fit(data().batches(16), Epochs(1)), Err(ClusterError::Unsupported { .. })));
    let nowhere = Trainer::new(net(), Adam::new(0.01), loss).on(alone(1)).resume(true);
    let Err(ClusterError::Train(e)) = nowhere.fit(data().batches(16), Epochs(1)) else {
        panic!("it has no folder")
    };
    assert!(matches!(*e, TrainError::Nowhere));
}

#[test]
fn a_checkpoint_of_another_net_is_refused_by_name() {
    let place = folder("other");
    let fit = |net: Sequential| {
        let trainer = Trainer::new(net, Adam::new(0.01), loss).on(alone(1));
        trainer.checkpoint_every(Steps(2), &place).resume(true).fit(data().batches(16), Steps(4))
    };
    fit(net()).unwrap();
    let other = Sequential::new().then(Linear::new(4, 1, &mut Rng::seed(0)));
    let refused = fit(other).err().unwrap().to_string();
    assert!(refused.contains("0.weight"), "{refused}");
    std::fs::remove_dir_all(place).unwrap();
}
