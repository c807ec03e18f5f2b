//! The same program on one process or on a cluster; how it is started decides.
//!
//!     cargo run --release -p thalweg --example cluster
//!     thalweg launch --workers 4 --servers 2 -- target/release/examples/cluster --sync ssp:3 --epochs 3
//!
//! `--run FOLDER` writes checkpoints and goes on from them, with any number of workers and servers. Without `--epochs`
//! it learns from few digits, for a quick look. Prints:
//! ```text
//! 96 steps, 4 epochs, bsp
//! accuracy above 0.8: true
//! ```
use thalweg::data::{Examples, RandomCrop};
use thalweg::hit_rate;
use thalweg::prelude::*;

fn main() -> thalweg::Result<()> {
    let cluster = Cluster::from_env()?; // alone: this process is the only worker and the only server
    let option = |name: &str| std::env::args().skip_while(|a| a != name).nth(1);
    let epochs = option("--epochs").map(|n| n.parse::<u64>().unwrap_or_else(|_| wrong(&n)));
    let (train, test) = match thalweg::data::mnist()? {
        data if epochs.is_some() => (data.train, data.test),
        data => (data.train.rows(0..1536), data.test.rows(0..500)),
    };
    // Digits moved by up to a pixel are still the same digits.
    let train =
        Examples::new(train.x.reshape([-1, 28, 28]), train.y)?.transformed(RandomCrop::new(28, 28, 1));
    let (epochs_or_few, net) = (epochs.unwrap_or(4), models::lenet(&mut Rng::seed(0)));
    let steps = train.batches(64).steps() as u64 * epochs_or_few;

    let mut trainer = Trainer::new(net, Adam::new(3e-3), |net, (x, y)| net.forward(&x).cross_entropy(&y))
        .metric("accuracy", |net, (x, y)| hit_rate(&net.forward(&x), &y))
        .validate(test.batches(500))
        .schedule(schedule::OneCycle::new(3e-3, steps))
        .on(cluster)
        .sync(Sync::from_args()?); // bsp | ssp:S | async | backup:B | local:STEPS | easgd:SHARE
    if let Some(folder) = option("--run") {
        trainer = trainer.checkpoint_every(Steps(10), folder).resume(true);
    }
    let run = trainer.fit(train.batches(64), Epochs(epochs_or_few))?;

    if run.keeper && (epochs.is_some() || option("--run").is_some()) {
        println!("{run}"); // steps/s, loss, accuracy, time waited
        println!("weights {}", run.fitted.weights);
    } else if run.keeper {
        println!("{} steps, {} epochs, {}", run.fitted.steps, run.fitted.epochs, run.sync);
        println!("accuracy above 0.8: {}", run.fitted.metrics["accuracy"] > 0.8);
    }
    Ok(())
}

fn wrong(epochs: &str) -> ! {
    eprintln!("--epochs {epochs:?} is no number of epochs; use one such as 3");
    std::process::exit(2)
}
