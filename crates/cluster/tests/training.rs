//! A trainer on a cluster of one process: the same mathematics, the same files.

use std::path::PathBuf;

use thalweg_cluster::{Cluster, ClusterError, Gradients, OnCluster, Pulled, Step, Sync};
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
    let run = |sync| {
        let batches = data().batches(16).last(Last::Drop); // a part of one sample has no variance
        Trainer::new(net(), Adam::new(0.01), loss).on(alone(2)).sync(sync).fit(batches, Epochs(2)).unwrap()
    };
    for sync in [Sync::Bsp, Sync::Local(2)] {
        let (a, b) = (run(sync), run(sync));
        assert_eq!(a.fitted.weights, b.fitted.weights, "{sync}");
        let moved = a.net.buffers()[0].param.get().abs().amax(()).item::<f32>();
        assert!(moved > 0.0, "{sync}: running means come back from the servers");
    }
}

#[test]
fn a_checkpoint_loads_on_any_number_of_slots_and_shards() {
    let net = || {
        let mut rng = Rng::seed(1);
        Sequential::new()
            .then(Linear::new(4, 8, &mut rng))
            .then(BatchNorm::new(8))
            .then(Linear::new(8, 1, &mut rng))
    };
    let place = folder("any-size");
    let fit = |[slots, shards]: [usize; 2], length| {
        let batches = data().batches(16).last(Last::Drop);
        let cluster = alone(slots).with_shards(shards);
        let trainer = Trainer::new(net(), Adam::new(0.01), loss).on(cluster);
        trainer.checkpoint_every(Steps(4), &place).resume(true).fit(batches, Steps(length)).unwrap()
    };
    let state = |net: &Sequential| -> Vec<Vec<u32>> {
        let all = net.params().into_iter().chain(net.buffers());
        all.map(|n| n.param.get().to_vec::<f32>().iter().map(|v| v.to_bits()).collect()).collect()
    };
    let mut length = 8;
    let mut before = state(&fit([2, 1], length).net);
    for sizes in [[1, 3], [4, 2], [3, 5], [2, 1]] {
        // Nothing is left to do: weights and running statistics are what was saved, bit by bit.
        let loaded = fit(sizes, length);
        assert_eq!(state(&loaded.net), before, "{sizes:?} loads");
        length += 4;
        let moved = fit(sizes, length);
        assert_eq!((moved.fitted.steps, state(&moved.net) == before), (length, false), "{sizes:?} goes on");
        let optimizer = &load_latest(place.join("checkpoints")).unwrap().unwrap().parts["optimizer"];
        assert_eq!(optimizer["step"].item::<f64>(), length as f64, "{sizes:?}");
        before = state(&moved.net);
    }
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn a_run_that_goes_on_with_other_slots_and_shards_comes_to_the_same_weights() {
    let run = |name: &str, halves: [[usize; 2]; 2]| {
        let place = folder(name);
        let fit = |[slots, shards]: [usize; 2], length| {
            let trainer = Trainer::new(net(), Adam::new(0.01), loss).on(alone(slots).with_shards(shards));
            trainer.checkpoint_every(Steps(4), &place).resume(true).fit(data().batches(16), Steps(length))
        };
        fit(halves[0], 8).unwrap();
        let trained = fit(halves[1], 20).unwrap();
        std::fs::remove_dir_all(place).unwrap();
        trained.net.forward(&Tensor::from([[0.5f32, -1.0, 0.25, 2.0]])).item::<f32>()
    };
    let want = run("same", [[1, 1], [1, 1]]);
    for (i, halves) in [[[1, 1], [4, 3]], [[4, 3], [1, 1]], [[2, 2], [3, 4]]].into_iter().enumerate() {
        let got = run(&format!("other-{i}"), halves);
        assert!((got - want).abs() < 1e-4, "{halves:?}: {got} instead of {want}");
    }
}

#[test]
fn all_consistencies_learn() {
    let own = [Sync::Local(4), elastic(0.1, 1), elastic(0.2, 4)];
    for sync in [Sync::Bsp, Sync::Ssp(3), Sync::Async, Sync::Backup(1)].into_iter().chain(own) {
        let trained = Trainer::new(net(), Adam::new(0.02), loss)
            .validate(data().batches(50))
            .on(alone(4).with_sync(sync))
            .fit(data().batches(16), Epochs(60))
            .unwrap();
        assert!(trained.fitted.metrics["loss/validation"] < 0.5, "{trained}");
        assert_eq!((trained.fitted.steps, trained.sync), (240, sync));
    }
}

fn elastic(share: f32, steps: u64) -> Sync {
    Sync::Elastic { share, steps }
}

#[test]
fn one_slot_that_steps_on_its_own_does_what_a_trainer_does() {
    let mut plain = Trainer::new(net(), Adam::new(0.01), loss);
    plain.fit(data().batches(16), Epochs(3)).unwrap();
    let want = plain.net().forward(&Tensor::from([[0.5f32, -1.0, 0.25, 2.0]])).item::<f32>();
    // 12 steps: the last exchange comes after two of five.
    let trained = Trainer::new(net(), Adam::new(0.01), loss)
        .on(alone(1))
        .sync(Sync::Local(5))
        .fit(data().batches(16), Epochs(3))
        .unwrap();
    let got = trained.net.forward(&Tensor::from([[0.5f32, -1.0, 0.25, 2.0]])).item::<f32>();
    assert!((got - want).abs() < 1e-5, "{got} instead of {want}");
}

#[test]
fn local_steps_go_on_from_a_checkpoint_to_the_same_bits_and_in_a_process_without_cluster() {
    let train = |length, folder: &PathBuf, sync| {
        let trainer = Trainer::new(net(), Adam::new(0.01), loss).on(alone(3)).sync(sync);
        trainer.checkpoint_every(Steps(4), folder).resume(true).fit(data().batches(16), Steps(length))
    };
    let (whole, halves) = (folder("local-whole"), folder("local-halves"));
    let want = train(20, &whole, Sync::Local(2)).unwrap();
    train(9, &halves, Sync::Local(2)).unwrap();
    assert_eq!(load_latest(halves.join("checkpoints")).unwrap().unwrap().step, 8);
    let resumed = train(20, &halves, Sync::Local(2)).unwrap();
    assert_eq!(resumed.fitted.weights, want.fitted.weights);
    // The files are those of any training, with the optimiser's state.
    let refused = train(30, &halves, Sync::Local(3)).err().unwrap().to_string();
    assert!(refused.contains("multiple of 3") && refused.contains("20"), "{refused}");
    let optimizer = &load_latest(halves.join("checkpoints")).unwrap().unwrap().parts["optimizer"];
    assert_eq!(optimizer["step"].item::<f64>(), 20.0);
    assert!(optimizer.iter().any(|(name, t)| name != "step" && t.abs().amax(()).item::<f32>() > 0.0));
    let mut trainer =
        Trainer::new(net(), Adam::new(0.01), loss).checkpoint_every(Steps(4), &halves).resume(true);
    assert_eq!(trainer.fit(data().batches(16), Steps(24)).unwrap().steps, 24);
    // Elastic averaging begins there with optimisers that have seen nothing, and says so in its own checkpoints.
    train(28, &halves, elastic(0.3, 1)).unwrap();
    let elastic = load_latest(halves.join("checkpoints")).unwrap().unwrap();
    assert_eq!((elastic.step, elastic.parts["optimizer"]["step"].item::<f64>()), (28, 0.0));
    [whole, halves].iter().for_each(|f| std::fs::remove_dir_all(f).unwrap());
}

#[test]
fn a_program_without_a_net_refuses_steps_of_a_workers_own() {
    let cluster = alone(2).with_sync(Sync::Local(2));
    let refused = cluster.run(&[], 1, |_: Step, _: &Pulled| Gradients::new()).unwrap_err().to_string();
    assert!(refused.contains("local:STEPS") && refused.contains("ssp:STALENESS"), "{refused}");
}

#[test]
fn clipping_by_the_norm_does_what_it_does_in_one_process() {
    let trainer = |max| Trainer::new(net(), Sgd::new(0.5).momentum(0.5).clip_norm(max), loss);
    let weights = |net: &Sequential| -> Vec<f32> {
        net.params().iter().flat_map(|named| named.param.get().to_vec::<f32>()).collect()
    };
    let plain = |max| {
        let mut trainer = trainer(max);
        trainer.fit(data().batches(16), Epochs(2)).unwrap();
        weights(trainer.net())
    };
    let far = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let (want, free) = (plain(0.1), plain(1e9));
    assert!(far(&want, &free) > 0.05, "there is something to clip");
    // Parts of four slots point in different directions: the mean of clipped parts is shorter than the clipped mean.
    for (slots, sync) in
        [(1, Sync::Bsp), (4, Sync::Bsp), (1, Sync::Ssp(2)), (1, Sync::Async), (1, Sync::Local(2))]
    {
        let trained = trainer(0.1).on(alone(slots)).sync(sync).fit(data().batches(16), Epochs(2)).unwrap();
        let far = far(&weights(&trained.net), &want);
        assert!(far < 1e-5, "{slots} slots, {sync}: {far}");
    }
    let divided = trainer(0.1).on(alone(4).with_shards(2)).fit(data().batches(16), Epochs(1));
    let refused = divided.err().unwrap().to_string();
    assert!(refused.contains("norm of all") && refused.contains("THALWEG_SHARDS"), "{refused}");
    let steps_of_its_own = trainer(0.1).on(alone(4).with_shards(2)).sync(Sync::Async);
    assert!(steps_of_its_own.fit(data().batches(16), Epochs(1)).is_ok());
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
