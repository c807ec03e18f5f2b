//! Lasso by parallel coordinate descent: each slot takes one coordinate per step, all slots together as many as there
//! are, damped so that correlated coordinates do not overshoot. Minimises ‖y − Xβ‖² / 2n + λ‖β‖₁ on standardised columns.

use std::collections::BTreeMap;

use thalweg_core::DType;
use thalweg_tensor::Tensor;

use super::{Learned, Model};
use crate::cluster::{Gradients, Pulled, Step};
use crate::error::ClusterError;
use crate::ids::TableId;
use crate::layout::TableSpec;
use crate::rule::Rule;
use crate::table::Delta;

const BETA: TableId = TableId(0);
/// Coordinates below it count as zero.
const ZERO: f32 = 1e-4;

/// A linear model of which most coefficients are zero.
pub struct Lasso {
    columns: Vec<Vec<f32>>, // standardised: mean 0, mean square 1
    y: Vec<f32>,            // centred
    penalty: f32,
}

impl Lasso {
    /// For inputs (samples, features) and as many targets.
    pub fn new(x: &Tensor, y: &Tensor, penalty: f64) -> Result<Self, ClusterError> {
        let (x, y) = (x.to_dtype(DType::F32), y.to_dtype(DType::F32));
        if x.rank() != 2 || x.size(0) != y.numel() || x.numel() == 0 {
            let problem = format!("{} inputs and {} targets do not belong together", x.shape(), y.shape());
            return Err(ClusterError::Samples { problem });
        }
        let columns: Vec<Vec<f32>> = (0..x.size(1)).map(|j| standardised(&x.i((.., j)).to_vec())).collect();
        let y = y.to_vec::<f32>();
        let mean = y.iter().sum::<f32>() / y.len() as f32;
        let y: Vec<f32> = y.iter().map(|y| y - mean).collect();
        if let Some(row) =
            (0..y.len()).find(|&i| !(y[i].is_finite() && columns.iter().all(|c| c[i].is_finite())))
        {
            return Err(ClusterError::Samples {
                problem: format!("sample {row} is not finite, or too large"),
            });
        }
        Ok(Self { columns, y, penalty: penalty as f32 })
    }

    fn residual(&self, beta: &[f32]) -> Vec<f32> {
        let mut residual = self.y.clone();
        for (column, b) in self.columns.iter().zip(beta) {
            residual.iter_mut().zip(column).for_each(|(r, x)| *r -= b * x);
        }
        residual
    }

    fn objective(&self, residual: &[f32], beta: &[f32]) -> f64 {
        let square = residual.iter().map(|r| f64::from(r * r)).sum::<f64>();
        square / (2.0 * self.y.len() as f64)
            + f64::from(self.penalty * beta.iter().map(|b| b.abs()).sum::<f32>())
    }
}

fn standardised(column: &[f32]) -> Vec<f32> {
    let n = column.len() as f32;
    let mean = column.iter().sum::<f32>() / n;
    let centred = column.iter().map(|v| v - mean);
    let size = (centred.clone().map(|v| v * v).sum::<f32>() / n).sqrt().max(1e-12);
    centred.map(|v| v / size).collect()
}

impl Model for Lasso {
    fn learned(&self) -> Vec<Learned> {
        let spec = TableSpec::Dense { values: vec![0.0; self.columns.len()].into(), rule: Rule::Add };
        vec![Learned::Table { name: "coefficients", rows: self.columns.len(), spec }]
    }

    fn step(&self, step: Step, values: &Pulled) -> (Gradients, f64) {
        let beta = &values[&BETA];
        let j = (step.clock as usize * step.n_slots + step.slot.0 as usize) % self.columns.len();
        let residual = self.residual(beta);
        let product = self.columns[j].iter().zip(&residual).map(|(x, r)| x * r).sum::<f32>();
        let target = beta[j] + product / self.y.len() as f32;
        let best = target.signum() * (target.abs() - self.penalty).max(0.0);
        let mut change = vec![0.0; beta.len()];
        change[j] = (best - beta[j]) / step.n_slots as f32;
        let loss = self.objective(&residual, beta) / step.n_slots as f64;
        (vec![(BETA, Delta::Dense(change.into()))], loss)
    }

    fn measure(&self, values: &Pulled) -> BTreeMap<String, f64> {
        let beta = &values[&BETA];
        let kept = beta.iter().filter(|b| b.abs() > ZERO).count();
        let objective = self.objective(&self.residual(beta), beta);
        BTreeMap::from([("objective".to_owned(), objective), ("nonzero".to_owned(), kept as f64)])
    }
}
