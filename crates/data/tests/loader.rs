//! What a loader promises: order, exactness of the position, and that threads and ranks change nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use thalweg_data::{Batches, Dataset, Draw, DrawRng, Examples, Last, Position, RandomFlip, from_fn, iris};
use thalweg_tensor::Tensor;

/// A data set whose batches are the indices and a random number of each sample.
fn numbers(n: usize) -> impl Dataset<Batch = Vec<(usize, u32)>> {
    from_fn(n, |draws: &[Draw]| draws.iter().map(|d| (d.index, d.rng(0).bits())).collect::<Vec<_>>())
}

fn all<D: Dataset<Batch = Vec<(usize, u32)>>>(batches: Batches<D>) -> Vec<Vec<(usize, u32)>> {
    batches.into_iter().collect()
}

#[test]
fn an_epoch_has_every_sample_once_and_epochs_differ() {
    let data = numbers(103);
    for epoch in 0..5 {
        let batches = all(data.batches(10).shuffled(epoch));
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [[10; 10].to_vec(), vec![3]].concat());
        let mut seen: Vec<usize> = batches.concat().iter().map(|s| s.0).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..103));
    }
    assert_ne!(all(data.batches(10).shuffled(0)), all(data.batches(10).shuffled(1)));
    assert_ne!(all(data.batches(10).shuffled(0)), all(data.batches(10).shuffled(0).seed(1)));
    assert_eq!(
        all(data.batches(103))[0].iter().map(|s| s.0).collect::<Vec<_>>(),
        (0..103).collect::<Vec<_>>()
    );
    assert_eq!(all(data.batches(10).last(Last::Drop)).len(), 10);
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let data = numbers(1001);
    let alone = all(data.batches(7).shuffled(3).workers(0));
    for workers in [1, 2, 3, 8, 500] {
        for ahead in [1, 4] {
            assert_eq!(all(data.batches(7).shuffled(3).workers(workers).ahead(ahead)), alone);
        }
    }
}

#[test]
fn a_run_stopped_anywhere_goes_on_at_the_exact_sample() {
    let data = numbers(100);
    for workers in [0, 3] {
        let batches = data.batches(8).seed(5).shuffled(2).workers(workers);
        let whole = all(batches.clone());
        for stop in 0..=whole.len() {
            let mut first = batches.clone().into_iter();
            let before: Vec<_> = first.by_ref().take(stop).collect();
            let text = serde_json::to_string(&first.position()).unwrap();
            drop(first);
            let saved: Position = serde_json::from_str(&text).unwrap();
            // The new process knows neither seed nor epoch.
            let after = all(data.batches(8).shuffled(0).at(saved).unwrap());
            assert_eq!([before, after].concat(), whole, "stopped after {stop}");
        }
    }
}

#[test]
fn a_position_holds_when_batch_size_and_ranks_change() {
    let data = numbers(100);
    let order: Vec<_> = all(data.batches(100).shuffled(1)).concat();
    let mut run = data.batches(30).shuffled(1).into_iter();
    let first: Vec<_> = run.next().unwrap();
    let here = run.position();
    let ranks: Vec<Vec<_>> =
        (0..3).map(|r| all(data.batches(12).shuffled(0).at(here).unwrap().shard(r, 3))).collect();
    assert!(ranks.iter().all(|r| r.len() == 6), "every rank takes the same number of steps");
    let mut joined = first;
    for step in 0..6 {
        ranks.iter().for_each(|r| joined.extend_from_slice(&r[step]));
    }
    assert_eq!(joined, order, "the samples, their order and their random numbers");
}

#[test]
fn ranks_see_each_sample_once_and_together_the_same_batches() {
    let data = numbers(50);
    let alone = all(data.batches(16).shuffled(0));
    for world in 1..=7 {
        let ranks: Vec<_> = (0..world).map(|r| all(data.batches(16).shuffled(0).shard(r, world))).collect();
        let joined: Vec<Vec<_>> =
            (0..alone.len()).map(|step| ranks.iter().flat_map(|r| r[step].clone()).collect()).collect();
        assert_eq!(joined, alone);
    }
}

#[test]
fn a_position_in_another_data_set_is_refused() {
    let saved = numbers(100).batches(8).position();
    let e = numbers(99).batches(8).at(saved).err().unwrap();
    assert_eq!(
        e.to_string(),
        "position 0 of 100 samples does not fit a data set of 99 samples (resume with the data it was saved with)"
    );
    assert!(numbers(5).batches(1).at(Position { seed: 0, epoch: 0, sample: 6, samples: 5 }).is_err());
}

#[test]
fn threads_end_when_the_loader_is_dropped_and_fetch_only_a_few_ahead() {
    let fetched = Arc::new(AtomicUsize::new(0));
    let alive = Arc::new(());
    let (count, held) = (fetched.clone(), alive.clone());
    let data = from_fn(1000, move |_: &[Draw]| {
        let _ = &held;
        count.fetch_add(1, Ordering::SeqCst)
    });
    let mut loader = data.batches(1).workers(2).ahead(3).into_iter();
    loader.next();
    drop(loader);
    // Each of two threads may have three waiting, one in hand, and one more for the one that was taken.
    assert!(fetched.load(Ordering::SeqCst) <= 10, "{fetched:?}");
    drop(data);
    assert_eq!(Arc::strong_count(&alive), 1, "a thread still holds the data");
}

#[test]
fn a_panic_while_fetching_reaches_the_caller() {
    let data = from_fn(10, |draws: &[Draw]| assert!(draws[0].index != 3, "sample 3 is cursed"));
    let seen = Mutex::new(0);
    let outcome = std::panic::catch_unwind(|| {
        for () in data.batches(1).workers(2) {
            *seen.lock().unwrap() += 1;
        }
    });
    let message = *outcome.unwrap_err().downcast::<&str>().unwrap();
    assert_eq!((message, *seen.lock().unwrap()), ("sample 3 is cursed", 3));
}

#[test]
fn random_transforms_depend_on_sample_and_epoch_only() {
    let images = Tensor::arange(40 * 6).reshape([40, 1, 2, 3]).to_dtype(thalweg_core::DType::F32);
    let data = Examples::new(images, Tensor::arange(40)).unwrap();
    let noisy =
        data.transformed(RandomFlip::horizontal(0.5)).transformed(|x: Tensor, rngs: &mut [DrawRng]| {
            let noise: Vec<f32> = rngs.iter_mut().map(DrawRng::unit).collect();
            x + Tensor::from(noise).reshape([-1, 1, 1, 1])
        });
    let by_sample = |batch: usize, workers: usize, epoch: u64| {
        let mut rows: Vec<(i64, Vec<f32>)> = Vec::new();
        for (x, y) in noisy.batches(batch).shuffled(epoch).workers(workers) {
            rows.extend(y.to_vec::<i64>().into_iter().enumerate().map(|(i, y)| (y, x.i(i).to_vec::<f32>())));
        }
        rows.sort_by_key(|r| r.0);
        rows
    };
    assert_eq!(by_sample(7, 0, 0), by_sample(40, 3, 0));
    assert_ne!(by_sample(7, 0, 0), by_sample(7, 0, 1));
}

#[test]
fn examples_split_without_loss() {
    let (a, b) = iris().unwrap().data.split(0.8, 1);
    assert_eq!((a.len(), b.len()), (120, 30));
    let total = a.x.sum(()).item::<f32>() + b.x.sum(()).item::<f32>();
    assert!((total - iris().unwrap().data.x.sum(()).item::<f32>()).abs() < 1e-2);
    let e = Examples::new(Tensor::arange(3), Tensor::arange(4)).unwrap_err();
    assert_eq!(e.to_string(), "x of shape [3] and y of shape [4] must have the same number of rows");
}
