//! A small GPT learns to write, character by character: nanoGPT's configuration for CPUs.
//!
//! On tiny-shakespeare, 2,000 steps reach a loss of less than 1.90 over the whole validation split.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use thalweg::data::fetch::{TINY_SHAKESPEARE, cache_dir};
use thalweg::data::{Chars, Dataset, Windows};
use thalweg::schedule::{Cosine, Warmup};
use thalweg::train::{Steps, Trainer};
use thalweg::{
    Adam, Decay, Embedding, Group, Layer, LayerNorm, LearnedPositions, Linear, Module, Optimizer, Rng,
    Tensor, TransformerBlock, TransformerConfig, init, jit, no_grad,
};

use super::{Defaults, Length, Recipe};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "char-gpt",
    alias: Some("gpt"),
    about: "a GPT of characters; --data TEXT, such as tiny-shakespeare",
    defaults: Defaults::net(Length::Steps(2000), 12, 2e-3),
    shows: true,
    run,
};

const LAYERS: usize = 4;
const HEADS: usize = 4;
const WIDTH: usize = 128;
const CONTEXT: usize = 64;

fn run(job: &Job) -> Result<()> {
    let text = read(job)?;
    let chars = Chars::of(&text);
    let tokens = chars.encode(&text)?;
    let (train, test) = tokens.split_at(tokens.len() * 9 / 10);
    // Every place is a beginning to learn from; for the measurement each character counts once.
    let train = Windows::new(train, CONTEXT, 1)?;
    let test = Windows::new(test, CONTEXT, CONTEXT)?;

    let net = Gpt::new(chars.size(), &mut job.rng());
    let steps = job.steps(&train);
    let optimizer = Optimizer::new(Adam { betas: (0.9, 0.99), ..Adam::default() }, job.lr())
        .decay(Decay::Decoupled(0.1))
        .group(Group::of(|_, shape| shape.rank() < 2).weight_decay(0.0))
        .clip_norm(1.0);
    let min = job.lr() / 20.0;
    let trainer = Trainer::new(net, optimizer, |net: &Gpt, (x, y): (Tensor, Tensor)| {
        let scores = net.forward(&x);
        scores.reshape([y.numel(), scores.size(-1)]).cross_entropy(&y.reshape(y.numel()))
    })
    .validate(test.batches(64))
    .validate_every(Steps((steps / 4).max(1)))
    .schedule(Warmup { steps: 100.min(steps / 4), then: Cosine { steps: steps - 100.min(steps / 4), min } });
    job.work(trainer, train.batches(job.batch()), |net| write(job, net, &chars))
}

/// The text, or as much of its beginning as is wanted.
fn read(job: &Job) -> Result<String> {
    let path: PathBuf = match &job.settings.data {
        Some(path) => path.clone(),
        None => TINY_SHAKESPEARE.fetch(&cache_dir()?).with_context(|| {
            format!("no text: give one with --data FILE, such as {}", TINY_SHAKESPEARE.url)
        })?,
    };
    ensure!(!path.is_dir(), "{} is a folder; give the file with the text", path.display());
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let text: String = text.chars().take(job.limit(text.len())).collect();
    let (need, got) = (10 * (CONTEXT + 1), text.chars().count());
    ensure!(got >= need, "{}: {got} characters are too few, at least {need} are needed", path.display());
    Ok(text)
}

/// Writes on from what it is given.
fn write(job: &Job, net: &Gpt, chars: &Chars) -> Result<()> {
    const LENGTH: usize = 400;
    let begin = match job.inputs() {
        [] => "\n".to_owned(),
        words => words.join(" "),
    };
    // A vocabulary without line ends begins with its first character.
    let mut tokens =
        chars.encode(&begin).or_else(|e| if job.inputs().is_empty() { Ok(vec![0]) } else { Err(e) })?;
    let mut rng = Rng::seed(job.settings.seed ^ 0x5eed);
    let mut forward = jit(|x: Tensor| no_grad(|| net.forward(&x)));
    for _ in 0..LENGTH {
        let seen = &tokens[tokens.len().saturating_sub(CONTEXT)..];
        // Nothing looks ahead, so whatever fills up the context changes nothing, and one compiled shape serves all.
        let mut x = vec![0; CONTEXT];
        x.iter_mut().zip(seen).for_each(|(x, &t)| *x = i64::from(t));
        let last = forward.call(Tensor::from_vec(x, [1, CONTEXT]))?.i((0, seen.len() - 1));
        // A little cooler than the net: fewer slips.
        tokens.push(rng.categorical(&(last / 0.8)).item::<i64>() as u32);
    }
    let text = chars.decode(&tokens)?;
    let mut out = std::io::stdout().lock();
    match job.json {
        true => writeln!(out, "{}", json!({"input": begin, "text": text}))?,
        false => writeln!(out, "{}\n", text.trim_start_matches('\n'))?,
    }
    Ok(())
}

#[derive(Module)]
struct Gpt {
    tokens: Embedding,
    positions: LearnedPositions,
    blocks: Vec<TransformerBlock>,
    norm: LayerNorm,
    head: Linear,
}

impl Gpt {
    fn new(vocabulary: usize, rng: &mut Rng) -> Self {
        let mut config = TransformerConfig::causal(WIDTH, HEADS);
        config.attention.bias = false;
        let net = Self {
            tokens: Embedding::new(vocabulary, WIDTH, rng),
            positions: LearnedPositions::new(CONTEXT, WIDTH, rng),
            blocks: (0..LAYERS).map(|_| TransformerBlock::new(config.clone(), rng)).collect(),
            norm: LayerNorm::new(WIDTH).without_bias(),
            head: Linear::without_bias(WIDTH, vocabulary, rng),
        };
        // GPT-2's weights: small, and smaller where they add to the residual way.
        for named in net.params() {
            let meta = named.param.meta();
            if meta.shape.rank() == 2 {
                let adds =
                    named.name.ends_with("attention.out.weight") || named.name.ends_with("mlp.down.weight");
                let std = if adds { 0.02 / (2.0 * LAYERS as f64).sqrt() } else { 0.02 };
                named.param.set(init::truncated_normal(meta.shape, std, rng));
            }
        }
        net
    }

    /// x: (batch, time) -> (batch, time, vocabulary).
    fn forward(&self, x: &Tensor) -> Tensor {
        let x = self.positions.forward(&self.tokens.forward(x));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(&x));
        self.head.forward(&self.norm.forward(&x))
    }
}
