//! Latent Dirichlet allocation by EM with a Dirichlet prior (Asuncion et al. 2009): workers infer the topics of their
//! documents (the E step) and add up which words they explain; the server's rule makes the topics.
//!
//!     topics COUNTS TOPICS [CLOCKS]           (lines `document word count`)
//!     thalweg launch --workers 2 --servers 2 -- target/release/examples/topics doc_word_count.tsv.gz 20
//!
//! Prints the perplexity of the training words under each document's own mixture, about 1245 on KOS with 20
//! topics. This is not the variational bound, whose perplexity is higher (2022 in scikit-learn).

mod shared;

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_cluster::state::Wants;
use thalweg_cluster::table::{Delta, Init, Want};
use thalweg_cluster::{
    Cluster, Gradients, Program, Pulled, Registry, Rule, Step, TableId, TableSpec, UpdateRule,
};

const WORDS: TableId = TableId(0);
/// Dirichlet priors of documents over topics and of topics over words.
const ALPHA: f32 = 0.1;
const ETA: f32 = 0.01;
const INNER: usize = 30;

/// A row is a word: how often each topic explains it. A push is the expected counts.
struct Replace;

impl UpdateRule for Replace {
    fn update(&self, _step: u64, _value: &[f32], counts: &[f32], _state: &mut [f32], out: &mut [f32]) {
        out.iter_mut().zip(counts).for_each(|(o, c)| *o = c + ETA);
    }
}

struct Topics {
    documents: Vec<Vec<(usize, f32)>>, // words and counts
    n_words: usize,
    k: usize,
}

impl Topics {
    /// p(word | topic), (n_words, k). Before the first update the rows are random in [-1, 1).
    fn probabilities(&self, rows: &[f32], clock: u64) -> Vec<f32> {
        let mut p: Vec<f32> = rows.iter().map(|v| if clock == 0 { v + 2.0 } else { *v }).collect();
        let mut totals = vec![0.0; self.k];
        p.chunks_exact(self.k).for_each(|row| totals.iter_mut().zip(row).for_each(|(t, v)| *t += v));
        p.chunks_exact_mut(self.k).for_each(|row| row.iter_mut().zip(&totals).for_each(|(v, t)| *v /= t));
        p
    }

    /// The topics of a document, and the sum of log p(word): a fixed point of its mixture.
    fn infer(&self, document: &[(usize, f32)], p: &[f32]) -> (Vec<f32>, f64) {
        let mut theta = vec![1.0 / self.k as f32; self.k];
        let mut log = 0.0;
        for _ in 0..INNER {
            let mut next = vec![ALPHA; self.k];
            log = 0.0;
            for (word, count) in document {
                let row = &p[word * self.k..][..self.k];
                let total: f32 = row.iter().zip(&theta).map(|(p, t)| p * t).sum();
                log += f64::from(*count) * f64::from(total).ln();
                next.iter_mut().zip(row).zip(&theta).for_each(|((n, p), t)| *n += count * p * t / total);
            }
            let sum: f32 = next.iter().sum();
            theta = next.into_iter().map(|v| v / sum).collect();
        }
        (theta, log)
    }
}

impl Program for &Topics {
    fn wants(&mut self, _step: Step, _tables: &[TableSpec]) -> Wants {
        Wants::from([(WORDS, Want::Rows(Arc::new((0..self.n_words as u64).collect())))])
    }

    fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients {
        let p = self.probabilities(&pulled[&WORDS], step.clock);
        let mut counts: BTreeMap<u64, Vec<f32>> =
            (0..self.n_words as u64).map(|w| (w, vec![0.0; self.k])).collect();
        for document in self.documents.iter().skip(step.slot.0 as usize).step_by(step.n_slots) {
            let (theta, _) = self.infer(document, &p);
            for (word, count) in document {
                let row = &p[word * self.k..][..self.k];
                let total: f32 = row.iter().zip(&theta).map(|(p, t)| p * t).sum();
                let sums = counts.get_mut(&(*word as u64)).expect("all words are there");
                sums.iter_mut().zip(row).zip(&theta).for_each(|((s, p), t)| *s += count * p * t / total);
            }
        }
        let (keys, values): (Vec<u64>, Vec<Vec<f32>>) = counts.into_iter().unzip();
        vec![(WORDS, Delta::Rows(Arc::new(keys), Arc::new(values.concat())))]
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::with(Registry::default().rule("replace", Replace))?;
    let args: Vec<String> = std::env::args().collect();
    let [_, path, k, ..] = &args[..] else { return Err("usage: topics COUNTS TOPICS [CLOCKS]".into()) };
    let clocks: u64 = args.get(3).map_or(Ok(30), |n| n.parse())?;
    let mut documents: BTreeMap<u64, Vec<(usize, f32)>> = BTreeMap::new();
    for row in shared::numbers(path)?.iter().filter(|r| r.len() == 3) {
        documents.entry(row[0] as u64).or_default().push((row[1] as usize, row[2]));
    }
    let n_words = documents.values().flatten().map(|w| w.0 + 1).max().unwrap_or(0);
    let model = Topics { documents: documents.into_values().collect(), n_words, k: k.parse()? };
    let (init, rule) = (Init::Uniform { seed: 7, scale: 1.0 }, Rule::Named("replace".into()));
    let (first, sync) = (cluster.is_first(), cluster.sync());
    let run = cluster.run(&[TableSpec::Rows { width: model.k, init, rule }], clocks, &model)?;
    if first {
        let p = model.probabilities(&run.pulled[&WORDS], clocks);
        let log: f64 = model.documents.iter().map(|d| model.infer(d, &p).1).sum();
        let tokens: f64 = model.documents.iter().flatten().map(|w| f64::from(w.1)).sum();
        println!("{sync}: training perplexity {:.1}", (-log / tokens).exp());
    }
    Ok(())
}
