//! A mixture of Gaussians with diagonal covariance by EM: slots compute responsibilities and add up moments (the E
//! step), the servers turn moments into parameters (the M step).

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_tensor::Tensor;

use super::points::Points;
use super::{Learned, Model};
use crate::cluster::{Gradients, Pulled, Step};
use crate::error::ClusterError;
use crate::ids::TableId;
use crate::table::Delta;

const PARTS: TableId = TableId(0);
/// Keeps a component from shrinking to a point.
const FLOOR: f32 = 1e-3;
/// A component that explains less than this many points stays as it is.
const NOTHING: f32 = 1e-6;

/// Gaussians that the points may come from.
pub struct Mixture {
    points: Points,
    k: usize,
}

impl Mixture {
    /// For the rows of a matrix.
    pub fn new(points: &Tensor, k: usize) -> Result<Self, ClusterError> {
        Ok(Self { points: Points::new(points, k)?, k })
    }

    /// log(weight · density) of each component at a point.
    fn log_densities(&self, point: &[f32], parts: &[f32]) -> Vec<f32> {
        let d = self.points.width;
        let total: f32 = parts.chunks_exact(2 * d + 1).map(|row| row[0]).sum();
        let component = |(k, row): (usize, &[f32])| {
            // One that nothing is known of has a point as its mean, variance 1 and an equal share.
            let known = row[0] > 0.0;
            let mean = if known { &row[1..=d] } else { self.points.first(k, self.k) };
            let mut log = (if known { row[0] / total } else { 1.0 / self.k as f32 }).ln();
            for (i, (x, m)) in point.iter().zip(mean).enumerate() {
                let variance = if known { row[1 + d + i] } else { 1.0 };
                log -= 0.5 * ((x - m) * (x - m) / variance + (std::f32::consts::TAU * variance).ln());
            }
            log
        };
        parts.chunks_exact(2 * d + 1).enumerate().map(component).collect()
    }
}

fn log_sum_exp(x: &[f32]) -> f32 {
    let max = x.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
    max + x.iter().map(|v| (v - max).exp()).sum::<f32>().ln()
}

impl Model for Mixture {
    /// A row is a component: how many points it explains, its means, its variances. A push is n, Σ r·x, Σ r·x².
    fn learned(&self) -> Vec<Learned> {
        let width = 2 * self.points.width + 1;
        vec![Learned::Statistics { name: "components", rows: self.k, width, sums: width, make }]
    }

    fn step(&self, step: Step, values: &Pulled) -> (Gradients, f64) {
        let d = self.points.width;
        let mut sums = vec![0.0; self.k * (2 * d + 1)]; // (k, 2d + 1)
        let mut loss = 0.0;
        for point in self.points.of(step) {
            let logs = self.log_densities(point, &values[&PARTS]);
            let total = log_sum_exp(&logs);
            for (sum, log) in sums.chunks_exact_mut(2 * d + 1).zip(&logs) {
                let r = (log - total).exp();
                sum[0] += r;
                for (i, x) in point.iter().enumerate() {
                    sum[1 + i] += r * x;
                    sum[1 + d + i] += r * x * x;
                }
            }
            loss -= f64::from(total) / self.points.len() as f64;
        }
        (vec![(PARTS, Delta::Rows(Arc::new((0..self.k as u64).collect()), sums.into()))], loss)
    }

    fn measure(&self, values: &Pulled) -> BTreeMap<String, f64> {
        let log = |p| f64::from(log_sum_exp(&self.log_densities(p, &values[&PARTS])));
        let mean = self.points.all().map(log).sum::<f64>() / self.points.len() as f64;
        BTreeMap::from([("log_likelihood".to_owned(), mean)])
    }
}

fn make(sum: &[f32], row: &mut [f32]) {
    let (n, d) = (sum[0], sum.len() / 2);
    if n > NOTHING {
        row[0] = n;
        for i in 1..=d {
            let mean = sum[i] / n;
            row[i] = mean;
            row[d + i] = (sum[d + i] / n - mean * mean).max(FLOOR);
        }
    }
}
