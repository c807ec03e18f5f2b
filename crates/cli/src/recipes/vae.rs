//! A variational autoencoder (Kingma and Welling, 2013) of handwritten digits. What it makes up is a picture.

use anyhow::Result;
use thalweg::data::Dataset;
use thalweg::train::Trainer;
use thalweg::{
    Adam, BceOptions, DType, Layer, Module, Noise, Reduction, Rng, Sequential, Tensor, models, no_grad,
};

use super::classify::digits;
use super::{Defaults, Length, Recipe, save_digits};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "vae",
    alias: None,
    about: "a variational autoencoder makes up digits (samples.png)",
    defaults: Defaults::net(Length::Epochs(5), 128, 1e-3),
    shows: true,
    run,
};

const CODE: usize = 16;

fn run(job: &Job) -> Result<()> {
    let data = digits(job)?;
    let net = Vae::new(&mut job.rng());
    let trainer = Trainer::new(net, Adam::new(job.lr()), |net: &Vae, (x, _): (Tensor, Tensor)| net.loss(&x))
        .validate(data.test.batches(500));
    job.work(trainer, data.train.batches(job.batch()), |net| {
        let code = Rng::seed(job.settings.seed ^ 0x5eed).normal([64, CODE], 0.0, 1.0);
        save_digits(job, &no_grad(|| net.decoder.forward(&code)).sigmoid())
    })
}

#[derive(Module)]
struct Vae {
    encoder: Sequential,
    decoder: Sequential,
    noise: Noise,
}

impl Vae {
    fn new(rng: &mut Rng) -> Self {
        Self {
            encoder: models::mlp(&[784, 256, 2 * CODE], rng),
            decoder: models::mlp(&[CODE, 256, 784], rng),
            noise: Noise::new(rng),
        }
    }

    /// The negative evidence lower bound, per sample.
    fn loss(&self, x: &Tensor) -> Tensor {
        let parts = self.encoder.forward(x).split(CODE, 1);
        let (mean, log_variance) = (&parts[0], &parts[1]);
        let noise = self.noise.with(|rng| rng.normal(mean.shape(), 0.0, 1.0));
        let code = mean + (log_variance * 0.5).exp() * noise;
        let options = BceOptions { reduction: Reduction::Sum, ..BceOptions::default() };
        let picture = self.decoder.forward(&code).bce_with_logits_with(x, &options);
        let divergence = (mean.square() + log_variance.exp() - log_variance - 1.0).sum(()) * 0.5;
        (picture + divergence).to_dtype(DType::F32) / x.size(0) as f64
    }
}
