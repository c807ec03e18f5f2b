//! A binary tree-LSTM (Tai, Socher and Manning, 2015) reads sentences along their parse trees: are they praise?
//!
//! Each batch has a graph of its own: all leaves at once, then all nodes whose children are known, level by level. On the
//! Stanford Sentiment Treebank it reaches more than 78 % at the roots.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use thalweg::data::trees::{self, Below, Tree};
use thalweg::data::{Dataset, Draw, OnError, from_fn};
use thalweg::train::{Best, Trainer};
use thalweg::{
    Adagrad, CrossEntropyOptions, Dropout, Embedding, Group, Layer, Linear, Module, Rng, Tensor, hit_rate,
    init, no_grad,
};

use super::{Defaults, Length, Recipe, file_in};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "tree-lstm",
    alias: None,
    about: "tree-LSTM on sentiment; --data FOLDER with train.txt and test.txt of SST",
    defaults: Defaults { length: Length::Epochs(5), batch: 25, lr: 0.05 },
    shows: false,
    run,
};

const WIDTH: usize = 100;
/// The target of nodes that are neither praise nor blame.
const IGNORED: i64 = -100;

fn run(job: &Job) -> Result<()> {
    let folder = job.settings.data.as_ref().context(
        "the Stanford Sentiment Treebank is not inside: download its trees (PTB format) and give their folder \
         with --data FOLDER",
    )?;
    let (train, test) = (read(job, folder, "train.txt")?, read(job, folder, "test.txt")?);
    let words = Arc::new(vocabulary(&train));
    let net = TreeLstm::new(words.len() + 1, &mut job.rng());
    let optimizer = Adagrad::new(job.settings.lr)
        .weight_decay(1e-4)
        .group(Group::of(|name, _| name.starts_with("words.")).weight_decay(0.0));
    let trainer = Trainer::new(net, optimizer, |net: &TreeLstm, forest: Forest| {
        let targets = forest.2.clone();
        let options = CrossEntropyOptions { ignore_index: IGNORED, ..CrossEntropyOptions::default() };
        net.forward(&forest).cross_entropy_with(&targets, &options)
    })
    .metric("accuracy", |net, forest| {
        let (roots, targets) = (forest.3.clone(), forest.2.clone());
        hit_rate(&net.forward(&forest).index_select(0, &roots), &targets.index_select(0, &roots))
    })
    .validate(sentences(test.clone(), words.clone()).batches(100))
    .watch("accuracy", Best::Highest)
    .eager();
    let data = sentences(train, words.clone());
    job.work(trainer, data.batches(job.settings.batch), |net| judge(job, net, &words, &test))
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

/// Numbers from 1 for the words of some trees, in the order in which they come.
fn vocabulary(trees: &[Tree]) -> HashMap<String, i64> {
    let mut words = HashMap::new();
    for word in trees.iter().flat_map(Tree::words) {
        let next = words.len() as i64 + 1;
        words.entry(word.to_owned()).or_insert(next);
    }
    words
}

/// The leaves' words; the children of each further level, left and right; targets of all nodes; places of the roots. Nodes are
/// numbered by level.
type Forest = (Tensor, Vec<(Tensor, Tensor)>, Tensor, Tensor);

fn sentences(trees: Arc<Vec<Tree>>, words: Arc<HashMap<String, i64>>) -> impl Dataset<Batch = Forest> {
    from_fn(trees.len(), move |draws: &[Draw]| forest(draws.iter().map(|d| &trees[d.index]), &words))
}

fn forest<'a>(trees: impl Iterator<Item = &'a Tree>, words: &HashMap<String, i64>) -> Forest {
    // Level by level: what a node is made of, its target, and who it is.
    let mut levels: Vec<Vec<(Made, i64, usize)>> = Vec::new();
    let (mut height, mut roots): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut add = |made: Made, label: i64| {
        let level = match made {
            Made::Word(_) => 0,
            Made::Pair(a, b) => 1 + height[a].max(height[b]),
        };
        levels.resize_with(levels.len().max(level + 1), Vec::new);
        levels[level].push((made, target(label), height.len()));
        height.push(level);
        height.len() - 1
    };
    for tree in trees {
        let mut own: Vec<usize> = Vec::with_capacity(tree.nodes.len());
        for node in &tree.nodes {
            own.push(match &node.below {
                Below::Word(word) => add(Made::Word(words.get(word).copied().unwrap_or(0)), node.label),
                // A node with one child is that child; one with many is made of pairs from the left.
                Below::Nodes(below) => below[1..]
                    .iter()
                    .fold(own[below[0]], |left, &right| add(Made::Pair(left, own[right]), node.label)),
            });
        }
        roots.push(own[own.len() - 1]);
    }
    let mut place = vec![0; height.len()];
    for (at, (_, _, who)) in levels.iter().flatten().enumerate() {
        place[*who] = at as i64;
    }
    let children = |level: &Vec<(Made, i64, usize)>, side: fn(usize, usize) -> usize| {
        let of = |(made, ..): &(Made, i64, usize)| match *made {
            Made::Pair(a, b) => place[side(a, b)],
            Made::Word(word) => word,
        };
        Tensor::from(level.iter().map(of).collect::<Vec<i64>>())
    };
    let pairs = levels[1..].iter().map(|l| (children(l, |a, _| a), children(l, |_, b| b))).collect();
    let targets = Tensor::from(levels.iter().flatten().map(|(_, t, _)| *t).collect::<Vec<i64>>());
    let roots = Tensor::from(roots.into_iter().map(|r| place[r]).collect::<Vec<i64>>());
    (children(&levels[0], |a, _| a), pairs, targets, roots)
}

#[derive(Clone, Copy)]
enum Made {
    Word(i64),
    Pair(usize, usize),
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
    fn forward(&self, (words, levels, ..): &Forest) -> Tensor {
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
fn judge(job: &Job, net: &TreeLstm, words: &HashMap<String, i64>, test: &[Tree]) -> Result<()> {
    let given = job.inputs().join("\n");
    let given = trees::parse("the sentence", given.as_bytes(), OnError::Stop)?.data;
    let chosen: Vec<&Tree> =
        if given.is_empty() { test.iter().take(10).collect() } else { given.iter().collect() };
    for tree in chosen {
        let forest = forest([tree].into_iter(), words);
        let roots = no_grad(|| net.forward(&forest)).index_select(0, &forest.3);
        let praise = roots.softmax(-1).i((0, 1)).item::<f32>();
        let text = tree.words().collect::<Vec<_>>().join(" ");
        match job.json {
            true => println!("{}", serde_json::json!({"input": text, "praise": praise})),
            false => println!("{:>5.1} % praise: {text}", 100.0 * praise),
        }
    }
    Ok(())
}
