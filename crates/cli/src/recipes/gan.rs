//! A generative adversarial network (Goodfellow et al., 2014): a forger and a judge of handwritten digits. The forgeries are
//! a picture.
//!
//! Both learn in one step: the judge's gradient stops at the pictures, the forger's passes through a judge whose weights
//! stand still.

use anyhow::Result;
use thalweg::data::Dataset;
use thalweg::train::{Steps, Trainer};
use thalweg::{
    Activation, Adam, BatchNorm, DType, Layer, Linear, Module, Noise, Optimizer, Rng, Sequential, Tensor,
    no_grad,
};

use super::classify::digits;
use super::{Defaults, Length, Recipe, save_digits};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "gan",
    alias: None,
    about: "a forger and a judge of digits (samples.png)",
    defaults: Defaults::net(Length::Epochs(10), 128, 5e-4),
    shows: true,
    run,
};

const CODE: usize = 64;

fn run(job: &Job) -> Result<()> {
    let data = digits(job)?;
    let net = Gan::new(&mut job.rng());
    let optimizer = Optimizer::new(Adam { betas: (0.5, 0.999), ..Adam::default() }, job.lr());
    let trainer =
        Trainer::new(net, optimizer, |net: &Gan, (x, _): (Tensor, Tensor)| net.loss(&x)).log_every(Steps(20));
    job.work(trainer, data.train.batches(job.batch()), |net| {
        let code = Rng::seed(job.settings.seed ^ 0x5eed).normal([64, CODE], 0.0, 1.0);
        save_digits(job, &no_grad(|| net.forge(&code)))
    })
}

#[derive(Module)]
struct Gan {
    forger: Sequential,
    judge: Vec<Linear>,
    noise: Noise,
}

impl Gan {
    fn new(rng: &mut Rng) -> Self {
        let forger = Sequential::new()
            .then(Linear::new(CODE, 256, rng))
            .then(BatchNorm::new(256))
            .then(Activation::Relu)
            .then(Linear::new(256, 512, rng))
            .then(BatchNorm::new(512))
            .then(Activation::Relu)
            .then(Linear::new(512, 784, rng));
        let judge = [784, 256, 128, 1].windows(2).map(|w| Linear::new(w[0], w[1], rng)).collect();
        Self { forger, judge, noise: Noise::new(rng) }
    }

    fn forge(&self, code: &Tensor) -> Tensor {
        self.forger.forward(code).sigmoid()
    }

    /// How real pictures look, (batch); `fixed` keeps the judge from learning.
    fn look(&self, x: &Tensor, fixed: bool) -> Tensor {
        let weight = |t: Tensor| if fixed { t.stop_gradient() } else { t };
        let mut x = x.clone();
        for (i, layer) in self.judge.iter().enumerate() {
            let bias = layer.bias.as_ref().map(|b| weight(b.get()));
            x = x.linear(&weight(layer.weight.get()), bias.as_ref());
            if i + 1 < self.judge.len() {
                x = x.leaky_relu(0.2);
            }
        }
        x.squeeze(-1)
    }

    fn loss(&self, x: &Tensor) -> Tensor {
        let code = self.noise.with(|rng| rng.normal([x.size(0), CODE], 0.0, 1.0));
        let forged = self.forge(&code);
        let is = |score: Tensor, real: f64| {
            let target = Tensor::full([score.size(0)], real, DType::F32);
            score.bce_with_logits(&target)
        };
        // A judge that may not be quite sure does not run away (Salimans et al., 2016).
        let judged = is(self.look(x, false), 0.9) + is(self.look(&forged.stop_gradient(), false), 0.0);
        judged + is(self.look(&forged, true), 1.0)
    }
}
