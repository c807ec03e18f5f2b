//! Iterative-convergent programs, θ ← F(θ, Δ(θ, D)): k-means, mixtures, lasso, factorisation, topics, sparse logistic
//! regression. A [`Model`] says what it learns and what a step changes; a [`Solver`] runs it on one process or on a
//! cluster, with run directory, checkpoints and any consistency.

mod factors;
mod kmeans;
mod lasso;
mod learned;
mod logistic;
mod mixture;
mod points;
mod saved;
mod solver;
mod special;
mod topics;

use std::collections::BTreeMap;

pub use factors::{Factors, FactorsOptions};
pub use kmeans::KMeans;
pub use lasso::Lasso;
pub use learned::{Learned, LearnedValues, Make};
pub use logistic::Logistic;
pub use mixture::Mixture;
pub use solver::Solver;
pub use topics::Topics;

use crate::cluster::{Gradients, Pulled, Step};
use crate::rule::Registry;
use crate::state::Wants;

/// A program that learns tables of numbers from samples.
///
/// ```
/// use std::collections::BTreeMap;
/// use thalweg_cluster::{Cluster, Gradients, Pulled, Rule, Step, TableId, TableSpec, table::Delta};
/// use thalweg_cluster::programs::{Learned, Model, Solver};
///
/// /// The mean of some numbers, by steps half way there.
/// struct Mean(Vec<f32>);
///
/// impl Model for Mean {
///     fn learned(&self) -> Vec<Learned> {
///         let spec = TableSpec::Dense { values: vec![0.0].into(), rule: Rule::Sgd { lr: 0.5 } };
///         vec![Learned::Table { name: "mean", rows: 1, spec }]
///     }
///
///     fn step(&self, step: Step, values: &Pulled) -> (Gradients, f64) {
///         let own = self.0.iter().skip(step.slot.0 as usize).step_by(step.n_slots);
///         let errors: Vec<f32> = own.map(|x| values[&TableId(0)][0] - x).collect();
///         let n = self.0.len() as f32;
///         let gradient = Delta::Dense(vec![errors.iter().sum::<f32>() / n].into());
///         (vec![(TableId(0), gradient)], errors.iter().map(|e| f64::from(e * e / n)).sum())
///     }
///
///     fn measure(&self, values: &Pulled) -> BTreeMap<String, f64> {
///         BTreeMap::from([("mean".into(), values[&TableId(0)][0].into())])
///     }
/// }
///
/// let solved = Solver::new(&Mean(vec![1.0, 2.0, 6.0])).fit(Cluster::from_env()?, thalweg_train::Steps(30))?;
/// assert!((solved.fitted.metrics["mean"] - 3.0).abs() < 1e-5, "{solved}");
/// # Ok::<(), thalweg_cluster::ClusterError>(())
/// ```
pub trait Model {
    /// The tables, numbered in this order.
    fn learned(&self) -> Vec<Learned>;

    /// How many steps use every sample once.
    fn steps_per_epoch(&self) -> u64 {
        1
    }

    /// Makes functions known that servers run where the values lie, for [`Want::Compute`](crate::table::Want).
    fn functions(&self, registry: Registry) -> Registry {
        registry
    }

    /// What a step reads; `None` is everything. A result of a function is asked for under a number above that of the
    /// loss, which follows those of the tables.
    fn wants(&self, step: Step) -> Option<Wants> {
        let _ = step;
        None
    }

    /// What one slot's part of a step says of the values that it read, and its share of the loss: the shares of all
    /// slots add up to it.
    fn step(&self, step: Step, values: &Pulled) -> (Gradients, f64);

    /// How good the values are, all of them given.
    fn measure(&self, values: &Pulled) -> BTreeMap<String, f64>;
}
