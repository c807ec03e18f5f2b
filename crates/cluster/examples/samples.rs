//! The program of the tests of "every sample once per epoch": a net whose weights are how often each sample was used.
//!
//! `samples EPOCHS MILLISECONDS`, under `thalweg launch` with two slots. The gradient of the mean over a batch is one part
//! in its size at each of its samples; with a learning rate of that size, each use moves the sample's weight by exactly
//! one. The keeper of the books looks after every epoch, and says `epoch 3: even` or which samples are not.

use std::ops::ControlFlow;
use std::time::Duration;

use thalweg_cluster::{Cluster, ClusterError, OnCluster};
use thalweg_data::{Dataset, Examples};
use thalweg_nn::{Embedding, Layer, Sgd};
use thalweg_tensor::{Rng, Tensor};
use thalweg_train::{Callback, Epochs, Progress, TrainError, Trainer};

const SAMPLES: usize = 64;
/// A power of two, and so are the parts of two slots: sums are exact.
const BATCH: usize = 16;

struct Look {
    pause: Duration,
}

impl Callback<Embedding> for Look {
    fn after_step(&mut self, now: &Progress, net: &Embedding) -> ControlFlow<()> {
        std::thread::sleep(self.pause);
        let per_epoch = (SAMPLES / BATCH) as u64;
        if now.step.is_multiple_of(per_epoch) {
            let epoch = now.step / per_epoch;
            let uses = net.weight.get().to_vec::<f32>();
            let uneven: Vec<_> = uses.iter().enumerate().filter(|(_, n)| **n != -(epoch as f32)).collect();
            match uneven.is_empty() {
                true => println!("epoch {epoch}: even"),
                false => println!("epoch {epoch}: UNEVEN {uneven:?}"),
            }
        }
        ControlFlow::Continue(())
    }
}

fn main() {
    if let Err(e) = train() {
        eprintln!("samples: {e}");
        std::process::exit(1);
    }
}

fn train() -> Result<(), ClusterError> {
    let number =
        |i: usize, default: u64| std::env::args().nth(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (epochs, pause) = (number(1, 3), Duration::from_millis(number(2, 0)));
    let cluster = Cluster::from_env()?.with_slots(2);
    let net = Embedding::new(SAMPLES, 1, &mut Rng::seed(0));
    net.weight.set(Tensor::from_slice(&[0.0f32; SAMPLES], [SAMPLES, 1]));
    let numbers: Vec<i64> = (0..SAMPLES as i64).collect();
    let numbers = Tensor::from_slice(&numbers, [SAMPLES]);
    let data = Examples::new(numbers.clone(), numbers).map_err(TrainError::from)?;
    let run = Trainer::new(net, Sgd::new(BATCH as f64), |net: &Embedding, (x, _): (Tensor, Tensor)| {
        net.forward(&x).mean(())
    })
    .callback(Look { pause })
    .on(cluster)
    .fit(data.batches(BATCH), Epochs(epochs))?;
    if run.keeper {
        let uses = run.net.weight.get().to_vec::<f32>();
        println!("every sample {epochs} times: {}", uses.iter().all(|n| *n == -(epochs as f32)));
    }
    Ok(())
}
