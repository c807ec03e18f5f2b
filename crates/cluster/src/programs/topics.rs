//! Latent Dirichlet allocation by variational Bayes (Blei et al. 2003; Hoffman et al. 2010): slots infer the topics of
//! their documents (the E step) and add up which words they explain; the servers make the topics of the sums.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_data::bag_of_words::BagOfWords;

use super::special::{digamma, divergence, dot, mean_of_log};
use super::{Learned, Model};
use crate::cluster::{Gradients, Pulled, Step};
use crate::error::ClusterError;
use crate::ids::TableId;
use crate::table::{Delta, Init};

const WORDS: TableId = TableId(0);
/// A document's fixed point is reached when its topics move by less than this in the mean, or after so many rounds.
const CLOSE: f64 = 1e-3;
const INNER: usize = 100;

type Document = Vec<(usize, f64)>; // words and counts

/// Topics as distributions over words, and documents as mixtures of topics.
pub struct Topics {
    documents: Vec<Document>,
    tokens: f64,
    n_words: usize,
    k: usize,
    prior: f64, // of documents over topics and of topics over words
    seed: u64,
}

/// What a document turned out to be.
struct Inferred {
    gamma: Vec<f64>, // the parameters of its topics
    log: Vec<f64>,   // E[ln p(topic)]
    theta: Vec<f64>, // the exponential of that
}

impl Topics {
    /// For documents with so many topics; equal seeds begin equally.
    pub fn new(bag: &BagOfWords, k: usize, seed: u64) -> Result<Self, ClusterError> {
        let words =
            |d: &Vec<(u32, u32)>| d.iter().map(|(w, n)| (*w as usize, f64::from(*n))).collect::<Document>();
        let documents: Vec<Document> = bag.documents.iter().map(words).collect();
        let tokens: f64 = documents.iter().flatten().map(|(_, n)| n).sum();
        if k == 0 || tokens == 0.0 {
            let problem = format!("{tokens} words cannot have {k} topics; both must be above 0");
            return Err(ClusterError::Samples { problem });
        }
        Ok(Self { documents, tokens, n_words: bag.n_words, k, prior: 1.0 / k as f64, seed })
    }

    /// The parameters of the topics and E[ln p(word | topic)], both (n_words, k). Before anything is known they are near 1.
    fn topics(&self, rows: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let mut lambda: Vec<f64> = rows.iter().map(|v| f64::from(*v)).collect();
        let first = Init::Uniform { seed: self.seed, scale: 0.17 };
        for (word, row) in lambda.chunks_exact_mut(self.k).enumerate().filter(|(_, row)| row[0] == 0.0) {
            row.iter_mut().zip(first.row(word as u64, self.k)).for_each(|(l, v)| *l = 1.0 + f64::from(v));
        }
        let mut totals = vec![0.0; self.k];
        lambda.chunks_exact(self.k).for_each(|row| totals.iter_mut().zip(row).for_each(|(t, v)| *t += v));
        totals.iter_mut().for_each(|t| *t = digamma(*t));
        let log = lambda.iter().enumerate().map(|(i, v)| digamma(*v) - totals[i % self.k]).collect();
        (lambda, log)
    }

    /// The fixed point of a document, with the words' `p` = exp E[ln p(word | topic)].
    fn infer(&self, document: &Document, p: &[f64]) -> Inferred {
        let exp = |log: &[f64]| log.iter().map(|l| l.exp()).collect::<Vec<f64>>();
        let mut gamma = vec![1.0; self.k];
        let mut log = mean_of_log(&gamma);
        let mut theta = exp(&log);
        for _ in 0..INNER {
            let mut next = vec![0.0; self.k];
            for (word, count) in document {
                let row = &p[word * self.k..][..self.k];
                let share = count / dot(row, &theta);
                next.iter_mut().zip(row).for_each(|(n, p)| *n += share * p);
            }
            next.iter_mut().zip(&theta).for_each(|(n, t)| *n = *n * t + self.prior);
            let moved: f64 = next.iter().zip(&gamma).map(|(a, b)| (a - b).abs()).sum();
            (gamma, log) = (next.clone(), mean_of_log(&next));
            theta = exp(&log);
            if moved < CLOSE * self.k as f64 {
                break;
            }
        }
        Inferred { gamma, log, theta }
    }

    /// The variational bound on the log-likelihood of a document.
    fn bound(&self, document: &Document, found: &Inferred, p: &[f64]) -> f64 {
        let word =
            |(word, count): &(usize, f64)| count * dot(&p[word * self.k..][..self.k], &found.theta).ln();
        document.iter().map(word).sum::<f64>() + divergence(self.prior, found.gamma.iter().zip(&found.log))
    }
}

impl Model for Topics {
    /// A row is a word: how often each topic explains it, and the prior.
    fn learned(&self) -> Vec<Learned> {
        vec![Learned::Statistics { name: "topics", rows: self.n_words, width: self.k, sums: self.k, make }]
    }

    fn step(&self, step: Step, values: &Pulled) -> (Gradients, f64) {
        let (_, log) = self.topics(&values[&WORDS]);
        let p: Vec<f64> = log.iter().map(|v| v.exp()).collect();
        let (mut counts, mut bound) = (vec![0.0; p.len()], 0.0);
        for document in self.documents.iter().skip(step.slot.0 as usize).step_by(step.n_slots) {
            let found = self.infer(document, &p);
            for (word, count) in document {
                let (at, row) = (word * self.k, &p[word * self.k..][..self.k]);
                let share = count / dot(row, &found.theta);
                let sums = counts[at..].iter_mut().zip(row).zip(&found.theta);
                sums.for_each(|((s, p), t)| *s += (share * p * t) as f32);
            }
            bound += self.bound(document, &found, &p);
        }
        let all = Arc::new((0..self.n_words as u64).collect());
        (vec![(WORDS, Delta::Rows(all, counts.into()))], -bound / self.tokens)
    }

    /// The perplexity of the training words by the variational bound, as scikit-learn's `perplexity` has it.
    fn measure(&self, values: &Pulled) -> BTreeMap<String, f64> {
        let (lambda, log) = self.topics(&values[&WORDS]);
        let p: Vec<f64> = log.iter().map(|v| v.exp()).collect();
        let mut bound: f64 = self.documents.iter().map(|d| self.bound(d, &self.infer(d, &p), &p)).sum();
        for topic in 0..self.k {
            let own = |v: &[f64]| v.iter().copied().skip(topic).step_by(self.k).collect::<Vec<f64>>();
            bound += divergence(self.prior, own(&lambda).iter().zip(&own(&log)));
        }
        BTreeMap::from([("perplexity".to_owned(), (-bound / self.tokens).exp())])
    }
}

fn make(counts: &[f32], topics: &mut [f32]) {
    let prior = 1.0 / counts.len() as f32;
    topics.iter_mut().zip(counts).for_each(|(t, c)| *t = c + prior);
}
