//! An LSTM (Hochreiter and Schmidhuber, 1997) reads a digit row by row.

use anyhow::Result;
use thalweg::schedule::OneCycle;
use thalweg::{Adam, Layer, Linear, Lstm, Module, RecurrentOptions, Rng, Tensor};

use super::classify::{classify, digits};
use super::{Defaults, Length, Recipe};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "lstm",
    alias: None,
    about: "an LSTM reads handwritten digits row by row",
    defaults: Defaults::net(Length::Epochs(2), 64, 5e-3),
    shows: false,
    run,
};

fn run(job: &Job) -> Result<()> {
    let data = digits(job)?;
    let schedule = OneCycle::new(job.lr(), job.steps(&data.train));
    let optimizer = Adam::new(job.lr()).clip_norm(1.0);
    classify(job, Reader::new(&mut job.rng()), optimizer, schedule, data.train, data.test)
}

#[derive(Module)]
struct Reader {
    lstm: Lstm,
    output: Linear,
}

impl Reader {
    fn new(rng: &mut Rng) -> Self {
        let options = RecurrentOptions { batch_first: true, ..RecurrentOptions::default() };
        Self { lstm: Lstm::with(28, 128, options, rng), output: Linear::new(128, 10, rng) }
    }
}

impl Layer for Reader {
    /// (batch, 784) -> (batch, 10).
    fn forward(&self, x: &Tensor) -> Tensor {
        let (rows, _) = self.lstm.run(&x.reshape([x.size(0), 28, 28]), None);
        self.output.forward(&rows.select(1, -1))
    }
}
