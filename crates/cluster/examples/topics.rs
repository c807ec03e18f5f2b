//! Latent Dirichlet allocation by variational Bayes (Blei et al. 2003; Hoffman et al. 2010): workers infer the topics of
//! their documents (the E step) and add up which words they explain; the server's rule makes the topics of the sums.
//!
//!     topics COUNTS TOPICS [CLOCKS]           (lines `document word count`)
//!     thalweg launch --workers 2 --servers 2 -- target/release/examples/topics doc_word_count.tsv.gz 20
//!
//! Prints the perplexity of the training words by the variational bound, as scikit-learn's `perplexity` does: 2025 on KOS, 20 topics.

mod shared;

use std::collections::BTreeMap;
use std::sync::Arc;

use shared::{digamma, dot, exp_of_log, ln_gamma};
use thalweg_cluster::state::Wants;
use thalweg_cluster::table::{Delta, Init, Want};
use thalweg_cluster::{
    Cluster, Gradients, Program, Pulled, Registry, Rule, Step, TableId, TableSpec, UpdateRule,
};

const WORDS: TableId = TableId(0);
/// A document's fixed point is reached when its topics move by less than this in the mean, or after so many rounds.
const CLOSE: f64 = 1e-3;
const INNER: usize = 100;

/// A row is a word: how often each topic explains it. A push is the expected counts; `0` is the prior.
struct Replace(f32);

impl UpdateRule for Replace {
    fn update(&self, _step: u64, _value: &[f32], counts: &[f32], _state: &mut [f32], out: &mut [f32]) {
        out.iter_mut().zip(counts).for_each(|(o, c)| *o = c + self.0);
    }
}

struct Topics {
    documents: Vec<Vec<(usize, f64)>>, // words and counts
    n_words: usize,
    k: usize,
    prior: f64, // of documents over topics and of topics over words
}

impl Topics {
    /// The parameters of the topics and E[ln p(word | topic)], both (n_words, k). The first rows are near 1.
    fn topics(&self, rows: &[f32], clock: u64) -> (Vec<f64>, Vec<f64>) {
        let value = |v: &f32| f64::from(if clock == 0 { 1.0 + 0.17 * v } else { *v });
        let lambda: Vec<f64> = rows.iter().map(value).collect();
        let mut totals = vec![0.0; self.k];
        lambda.chunks_exact(self.k).for_each(|row| totals.iter_mut().zip(row).for_each(|(t, v)| *t += v));
        totals.iter_mut().for_each(|t| *t = digamma(*t));
        let log = lambda.iter().enumerate().map(|(i, v)| digamma(*v) - totals[i % self.k]).collect();
        (lambda, log)
    }

    /// The fixed point of a document: the parameters of its topics, and exp E[ln p(topic)].
    fn infer(&self, document: &[(usize, f64)], p: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let mut gamma = vec![1.0; self.k];
        let mut theta = exp_of_log(&gamma);
        for _ in 0..INNER {
            let mut next = vec![0.0; self.k];
            for (word, count) in document {
                let row = &p[word * self.k..][..self.k];
                let share = count / dot(row, &theta);
                next.iter_mut().zip(row).for_each(|(n, p)| *n += share * p);
            }
            next.iter_mut().zip(&theta).for_each(|(n, t)| *n = *n * t + self.prior);
            let moved: f64 = next.iter().zip(&gamma).map(|(a, b)| (a - b).abs()).sum();
            theta = exp_of_log(&next);
            gamma = next;
            if moved < CLOSE * self.k as f64 {
                break;
            }
        }
        (gamma, theta)
    }

    /// exp of the negative variational bound per token.
    fn perplexity(&self, rows: &[f32], clock: u64) -> f64 {
        let (lambda, log) = self.topics(rows, clock);
        let p: Vec<f64> = log.iter().map(|v| v.exp()).collect();
        let (mut bound, mut tokens) = (0.0, 0.0);
        for document in &self.documents {
            let (gamma, theta) = self.infer(document, &p);
            for (word, count) in document {
                bound += count * dot(&p[word * self.k..][..self.k], &theta).ln();
                tokens += count;
            }
            let log: Vec<f64> = theta.iter().map(|t| t.ln()).collect();
            bound += self.divergence(gamma.iter().zip(&log), self.k);
        }
        for topic in 0..self.k {
            let own = |v: &[f64]| v.iter().copied().skip(topic).step_by(self.k).collect::<Vec<f64>>();
            bound += self.divergence(own(&lambda).iter().zip(&own(&log)), self.n_words);
        }
        (-bound / tokens).exp()
    }

    /// E[ln p(x)] - E[ln q(x)] of a Dirichlet variable: the prior against the parameters, with E[ln x].
    fn divergence<'a>(&self, both: impl Iterator<Item = (&'a f64, &'a f64)>, n: usize) -> f64 {
        let (mut sum, mut total) = (ln_gamma(self.prior * n as f64), 0.0);
        for (parameter, log) in both {
            sum += (self.prior - parameter) * log + ln_gamma(*parameter) - ln_gamma(self.prior);
            total += parameter;
        }
        sum - ln_gamma(total)
    }
}

impl Program for &Topics {
    fn wants(&mut self, _step: Step, _tables: &[TableSpec]) -> Wants {
        Wants::from([(WORDS, Want::Rows(Arc::new((0..self.n_words as u64).collect())))])
    }

    fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients {
        let (_, log) = self.topics(&pulled[&WORDS], step.clock);
        let p: Vec<f64> = log.iter().map(|v| v.exp()).collect();
        let mut counts = vec![0.0; p.len()];
        for document in self.documents.iter().skip(step.slot.0 as usize).step_by(step.n_slots) {
            let (_, theta) = self.infer(document, &p);
            for (word, count) in document {
                let (at, row) = (word * self.k, &p[word * self.k..][..self.k]);
                let share = count / dot(row, &theta);
                let sums = counts[at..].iter_mut().zip(row).zip(&theta);
                sums.for_each(|((s, p), t)| *s += (share * p * t) as f32);
            }
        }
        vec![(WORDS, Delta::Rows(Arc::new((0..self.n_words as u64).collect()), Arc::new(counts)))]
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, path, k, ..] = &args[..] else { return Err("usage: topics COUNTS TOPICS [CLOCKS]".into()) };
    let (k, prior) = (k.parse()?, 1.0 / k.parse::<f64>()?);
    let cluster = Cluster::with(Registry::default().rule("replace", Replace(prior as f32)))?;
    let clocks: u64 = args.get(3).map_or(Ok(30), |n| n.parse())?;
    let mut documents: BTreeMap<u64, Vec<(usize, f64)>> = BTreeMap::new();
    for row in shared::numbers(path)?.iter().filter(|r| r.len() == 3) {
        documents.entry(row[0] as u64).or_default().push((row[1] as usize, row[2].into()));
    }
    let n_words = documents.values().flatten().map(|w| w.0 + 1).max().unwrap_or(0);
    let model = Topics { documents: documents.into_values().collect(), n_words, k, prior };
    let (init, rule) = (Init::Uniform { seed: 7, scale: 1.0 }, Rule::Named("replace".into()));
    let (first, sync) = (cluster.is_first(), cluster.sync());
    let run = cluster.run(&[TableSpec::Rows { width: k, init, rule }], clocks, &model)?;
    if first {
        println!("{sync}: training perplexity {:.1}", model.perplexity(&run.pulled[&WORDS], clocks));
    }
    Ok(())
}
