//! A binary tree-LSTM (Tai, Socher and Manning, 2015) reads sentences along their parse trees: are they praise?
//!
//! Each batch has a graph of its own: all leaves at once, then all nodes whose children are known, level by level. On the
//! Stanford Sentiment Treebank it reaches more than 78 % at the roots.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use thalweg::data::trees::{self, Tree, Vocabulary, vocabulary};
use thalweg::data::{Dataset, Draw, Forest, OnError, from_fn};
use thalweg::train::{Best, Trainer};
use thalweg::{
    Adagrad, Dropout, Embedding, Group, Layer, Linear, Module, Rng, Tensor, hit_rate, init, no_grad,
};

use super::{Defaults, Length, Recipe, file_in};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "tree-lstm",
    alias: None,
    about: "tree-LSTM on sentiment; --data FOLDER with train.txt and test.txt of SST",
    defaults: Defaults::net(Length::Epochs(5), 25, 0.05),
    shows: false,
    run,
};

const WIDTH: usize = 100;
/// The target of nodes that are neither praise nor blame: cross-entropy leaves it out.
const IGNORED: i64 = -100;

fn run(job: &Job) -> Result<()> {
    let missing =
        "the Stanford Sentiment Treebank is not inside: give the folder of its trees with --data FOLDER";
    let folder = job.settings.data.as_ref().context(missing)?;
    let (train, test) = (read(job, folder, "train.txt")?, read(job, folder, "test.txt")?);
    let words = Arc::new(vocabulary(&train));
    let net = TreeLstm::new(words.len() + 1, &mut job.rng());
    let optimizer = Adagrad::new(job.lr())
        .weight_decay(1e-4)
        .group(Group::of(|name, _| name.starts_with("words.")).weight_decay(0.0));
    let trainer = Trainer::new(net, optimizer, |net: &TreeLstm, batch: Batch| {
        net.forward(&batch).cross_entropy(&batch.2)
    })
    .metric("accuracy", |net, batch| {
        let (targets, roots) = (&batch.2, &batch.3);
        hit_rate(&net.forward(&batch).index_select(0, roots), &targets.index_select(0, roots))
    })
    .validate(sentences(test.clone(), words.clone()).batches(100))
    .watch("accuracy", Best::Highest)
    .eager();
    let data = sentences(train, words.clone());
    job.work(trainer, data.batches(job.batch()), |net| judge(job, net, &words, &test))
}

/// The sentences of a file that are praise or blame.
fn read(job: &Job, folder: &Path, name: &str) -> Result<Arc<Vec<Tree>>> {
    let path = file_in(folder, &[name])?;
    let mut all = trees::read(&path, OnError::Stop)?.data;
    all.retain(|tree| target(tree.root().label) != IGNORED);
    ensure!(!all.is_empty(), "{}: no sentence is praise or blame", path.display());
    all.truncate(job.limit(all.len()));
    Ok(Arc::new(all))
}

/// 0 for blame, 1 for praise, of labels 0..=4.
fn target(label: i64) -> i64 {
    match label {
        2 => IGNORED,
        label => i64::from(label > 2),
    }
}

/// The parts of a [`Forest`].
type Batch = (Tensor, Vec<(Tensor, Tensor)>, Tensor, Tensor);

fn sentences(trees: Arc<Vec<Tree>>, words: Arc<Vocabulary>) -> impl Dataset<Batch = Batch> {
    from_fn(trees.len(), move |draws: &[Draw]| batch(draws.iter().map(|d| &trees[d.index]), &words))
}

fn batch<'a>(trees: impl Iterator<Item = &'a Tree>, words: &Vocabulary) -> Batch {
    let forest = Forest::new(trees, |word| words.get(word).copied().unwrap_or(0), target);
    (forest.words, forest.levels, forest.targets, forest.roots)
}

#[derive(Module)]
struct TreeLstm {
    words: Embedding,
    leaf: Linear,
    left: Linear,
    right: Linear,
    dropout: Dropout,
    judge: Linear,
}

impl TreeLstm {
    fn new(vocabulary: usize, rng: &mut Rng) -> Self {
        let net = Self {
            words: Embedding::new(vocabulary, WIDTH, rng),
            leaf: Linear::new(WIDTH, 3 * WIDTH, rng),
            left: Linear::without_bias(WIDTH, 5 * WIDTH, rng),
            right: Linear::new(WIDTH, 5 * WIDTH, rng),
            dropout: Dropout::new(0.5, rng),
            judge: Linear::new(WIDTH, 2, rng),
        };
        net.words.weight.set(init::truncated_normal([vocabulary, WIDTH], 0.1, rng));
        net
    }

    /// Scores of all nodes: (nodes, 2).
    fn forward(&self, (words, levels, ..): &Batch) -> Tensor {
        let gates = |g: &Tensor| g.split(WIDTH, 1);
        let g = gates(&self.leaf.forward(&self.words.forward(words)));
        let mut c = g[0].sigmoid() * g[1].tanh();
        let mut h = g[2].sigmoid() * c.tanh();
        for (left, right) in levels {
            let of = |t: &Tensor| (t.index_select(0, left), t.index_select(0, right));
            let ((h_left, h_right), (c_left, c_right)) = (of(&h), of(&c));
            let g = gates(&(self.left.forward(&h_left) + self.right.forward(&h_right)));
            let new = g[0].sigmoid() * g[1].tanh() + g[2].sigmoid() * c_left + g[3].sigmoid() * c_right;
            h = Tensor::concat(&[&h, &(g[4].sigmoid() * new.tanh())], 0);
            c = Tensor::concat(&[&c, &new], 0);
        }
        self.judge.forward(&self.dropout.forward(&h))
    }
}

/// Judges sentences given as trees, or the first test sentences.
fn judge(job: &Job, net: &TreeLstm, words: &Vocabulary, test: &[Tree]) -> Result<()> {
    let (given, mut out) = (job.inputs().join("\n"), std::io::stdout());
    let given = trees::parse("the sentence", given.as_bytes(), OnError::Stop)?.data;
    let chosen: Vec<&Tree> =
        if given.is_empty() { test.iter().take(10).collect() } else { given.iter().collect() };
    for tree in chosen {
        let batch = batch([tree].into_iter(), words);
        let roots = no_grad(|| net.forward(&batch)).index_select(0, &batch.3);
        let praise = roots.softmax(-1).i((0, 1)).item::<f32>();
        let text = tree.words().collect::<Vec<_>>().join(" ");
        match job.json {
            true => writeln!(out, "{}", serde_json::json!({"input": text, "praise": praise}))?,
            false => writeln!(out, "{:>5.1} % praise: {text}", 100.0 * praise)?,
        }
    }
    Ok(())
}
