//! A [`Trainer`] on a cluster: the same program, with the optimiser on the servers.
//!
//! Each trainable parameter is a table whose rule is the optimiser, each buffer a table that gathers changes. A slot
//! computes the gradient of its part of the batch, weighed by its share of the samples, so that the sum of a round is
//! the gradient of the mean loss of the whole batch. Without rounds each part is a small batch of its own, with as much less
//! of the learning rate. With `local:STEPS` and `easgd:SHARE` the slots run the optimiser themselves and the servers
//! keep what they have in common. Who computes the first slot keeps the books: losses, validation,
//! the manifests of checkpoints.

mod books;
mod found;
mod loss;
mod own;
mod program;
mod saved;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thalweg_data::{Batches, Dataset};
use thalweg_nn::{Clip, Module, Rule as Moves};
use thalweg_runtime::Tree;
use thalweg_tensor::Tensor;
use thalweg_train::{Fitted, Span, TrainError, Trainer};

use crate::cluster::Cluster;
use crate::codec::Codec;
use crate::error::ClusterError;
use crate::ids::TableId;
use crate::optimise::by_optimizer;
use crate::state::Update;
use crate::sync::Sync;
use crate::table::Delta;
use crate::values::Values;

pub(crate) use books::Books;
pub(crate) use loss::{RECENT, Recent, loss_table};
use own::{MEAN, Mean, Own};
use program::{Learning, tables};
use saved::storage;

/// `trainer.on(cluster)`.
///
/// ```
/// use thalweg_cluster::{Cluster, OnCluster, Sync};
/// use thalweg_data::{Dataset, Examples};
/// use thalweg_nn::{Adam, Layer, Linear};
/// use thalweg_tensor::{Reduction, Rng, Tensor};
/// use thalweg_train::{Epochs, Trainer};
///
/// let cluster = Cluster::from_env()?; // alone: the only worker and the only server
/// let data = Examples::new(Tensor::from([[0.0f32], [1.0], [2.0]]), Tensor::from([[1.0f32], [3.0], [5.0]]))
///     .map_err(thalweg_train::TrainError::from)?;
/// let net = Linear::new(1, 1, &mut Rng::seed(0));
/// let trained = Trainer::new(net, Adam::new(0.1), |net, (x, y)| net.forward(&x).mse_loss(&y, Reduction::Mean))
///     .on(cluster)
///     .sync(Sync::Bsp)
///     .fit(data.batches(3), Epochs(150))?;
/// assert!((trained.net.weight.get().item::<f32>() - 2.0).abs() < 0.1, "{trained}");
/// # Ok::<(), thalweg_cluster::ClusterError>(())
/// ```
pub trait OnCluster<N, R, B, L> {
    /// Will train on these processes.
    fn on(self, cluster: Cluster) -> Training<N, R, B, L>;
}

impl<N, R, B, L> OnCluster<N, R, B, L> for Trainer<N, R, B, L> {
    fn on(self, cluster: Cluster) -> Training<N, R, B, L> {
        Training { trainer: self, cluster }
    }
}

/// A trainer with the processes that it trains on.
pub struct Training<N, R, B, L> {
    trainer: Trainer<N, R, B, L>,
    cluster: Cluster,
}

/// What training on a cluster came to.
#[derive(Debug)]
pub struct Trained<N> {
    /// The net with its final weights, in every worker.
    pub net: N,
    /// Steps, loss and metrics; those that only the keeper of the books knows are missing in other workers.
    pub fitted: Fitted,
    /// Time that this worker spent waiting for others.
    pub waited: Duration,
    /// Bytes that this worker received and sent.
    pub traffic: [u64; 2],
    /// The consistency.
    pub sync: Sync,
    /// Whether this worker kept the books, and should be the one that prints.
    pub keeper: bool,
}

impl<N> fmt::Display for Trained<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}, waited {:.1} s", self.fitted, self.sync, self.waited.as_secs_f64())
    }
}

impl<N, R, B, L> Training<N, R, B, L>
where
    N: Module,
    R: Moves + Send + 'static,
    B: Tree + 'static,
    L: Fn(&N, B) -> Tensor,
{
    /// The consistency, or how workers that step on their own are averaged; without this word, as the environment says.
    pub fn sync(mut self, sync: Sync) -> Self {
        self.cluster = self.cluster.with_sync(sync);
        self
    }

    /// Makes what workers push smaller; without this word, as the environment says.
    pub fn codec(mut self, codec: Codec) -> Self {
        self.cluster = self.cluster.with_codec(codec);
        self
    }

    /// [`Trainer::checkpoint_every`]: the servers write their shards. They lie in the folder of the run, which all
    /// must see then, or where the variable `THALWEG_CHECKPOINTS` says.
    pub fn checkpoint_every(mut self, every: impl Into<Span>, folder: impl Into<PathBuf>) -> Self {
        self.trainer = self.trainer.checkpoint_every(every, folder);
        self
    }

    /// [`Trainer::resume`]: with any number of workers and servers, at the exact sample.
    pub fn resume(mut self, resume: bool) -> Self {
        self.trainer = self.trainer.resume(resume);
        self
    }

    /// Trains until training has this length in all. In a server this does its work and ends the process.
    pub fn fit<D>(self, batches: Batches<D>, length: impl Into<Span>) -> Result<Trained<N>, ClusterError>
    where
        D: Dataset<Batch = B>,
    {
        let (parts, mut cluster, length) = (self.trainer.into_parts(), self.cluster, length.into());
        if let Some((what, instead)) = parts.alone {
            return Err(ClusterError::Unsupported { what, instead });
        }
        let per_epoch = batches.clone().epoch(0).steps() as u64;
        if per_epoch == 0 {
            let (samples, size) = (batches.dataset().len(), batches.size());
            return Err(TrainError::NoBatch { samples, size }.into());
        }
        let steps = length.steps(per_epoch);
        let base = parts.optimizer.lr();
        cluster =
            cluster.with_setting("samples", batches.dataset().len()).with_setting("batch", batches.size());
        cluster = cluster.with_setting("learning rate", base);
        let rate = |clock| parts.schedule.as_ref().map_or(base, |s| s.lr(clock, base));
        let last = if parts.schedule.is_some() { steps } else { 1 };
        let rates = Arc::new((0..last.max(1)).map(rate).collect());
        let sync = cluster.sync();
        cluster = cluster.with_setting("sync", sync).with_sync(sync.consistency());
        let per_clock = sync.steps_per_clock();
        let own_steps = sync.averaging().is_some();
        // Without rounds every push is a step of its own.
        let pushes = if sync.gathers() || own_steps { 1 } else { cluster.n_slots() };
        let clip = parts.optimizer.clipping().filter(|clip| matches!(clip, Clip::Norm { .. }));
        let optimizer = match clip {
            Some(_) => parts.optimizer.clip(Clip::Value(f64::INFINITY)),
            None => parts.optimizer,
        };
        let moved = by_optimizer(optimizer, &parts.net, rates)?;
        let moved: Vec<_> = moved.into_iter().map(|m| Arc::new(m.with_pushes(pushes))).collect();
        // The gradient of a step is in bounds as it would be in one process. In rounds it is the sum of all slots, which whoever
        // holds all of it can bound; else it is what one worker computed.
        let in_rounds = clip.filter(|_| sync.gathers() && !own_steps);
        let by_worker = clip.filter(|_| in_rounds.is_none());
        if let Some(clip) = in_rounds {
            cluster = cluster
                .in_one_shard("clipping the gradients of a round by the norm of all, in several shards,")?;
            let n_trained = moved.len();
            cluster =
                cluster.with_registry(|registry| registry.jointly(move |sum| bounded(clip, n_trained, sum)));
        }
        let own = Own::of(sync, &moved);
        let specs = tables(&parts.net, &moved, own.as_ref())?;
        cluster = cluster.with_rule(MEAN, Mean);
        for rule in &moved {
            cluster = cluster.with_rule(program::rule_name(&rule.name), rule.clone());
        }
        let recent = Recent::of(sync, cluster.n_slots());
        cluster = cluster.with_rule(RECENT, recent);
        let every = parts.every.steps(per_epoch).div_ceil(per_clock).max(1); // clocks
        let place = parts.folder.as_deref().map(|folder| cluster.checkpoints_of(folder)).transpose()?;
        let folder = parts.folder.zip(place);
        match &folder {
            Some((folder, place)) => {
                let place = (folder.as_path(), place);
                let found =
                    storage(place, every, parts.resume, (&moved, sync), &parts.net, &specs, &cluster)?;
                cluster = cluster.with_storage(found);
            }
            None if parts.resume => return Err(TrainError::Nowhere.into()),
            None => {}
        }
        let books = Books {
            holder: cluster.holder(),
            n_shards: cluster.n_shards(&specs) as u32,
            folder,
            every: every * per_clock,
            size: batches.size(),
            keep: parts.keep,
            resume: parts.resume,
            config: parts.config,
            log_every: parts.log_every,
            per_epoch,
            clocks: steps,
            began: 0,
            secured: 0,
            open: None,
            missed: Vec::new(),
            locked: None,
        };
        let share = cluster.n_slots() as f32 / cluster.quorum() as f32;
        let mut learning = Learning {
            net: &parts.net,
            loss: &parts.loss,
            clip: by_worker,
            metrics: &parts.metrics,
            validation: parts.validation.as_ref(),
            validate_every: parts.validate_every.steps(per_epoch).max(1),
            callbacks: parts.callbacks,
            batches: if parts.shuffle { batches.shuffled(0) } else { batches },
            shuffle: parts.shuffle,
            per_epoch,
            steps,
            per_clock,
            share,
            pushes,
            own,
            books,
            loaders: BTreeMap::new(),
            problem: None,
            doing: Default::default(),
            end: cluster.stopper(),
        };
        let mut compiled = learning.compile();
        let run = cluster.run(
            &specs,
            steps.div_ceil(per_clock),
            program::Compiled { learning: &mut learning, compiled: &mut compiled },
        )?;
        drop(compiled);
        let keeper = run.keeper;
        let fitted = learning.finish(&run, keeper)?;
        let (waited, traffic) = (run.waited, run.traffic);
        drop(learning);
        Ok(Trained { net: parts.net, fitted, waited, traffic, sync, keeper })
    }
}

/// The sum of a round with the gradients of the first tables, which are trained, kept in bounds together.
fn bounded(clip: Clip, n_trained: usize, sum: &Update) -> Update {
    let mut bounded = sum.clone();
    let trained = bounded.range_mut(..TableId(n_trained as u32)).filter_map(|(_, delta)| match delta {
        Delta::Dense(values) if !values.is_empty() => Some(values),
        _ => None,
    });
    let trained: Vec<_> = trained.collect();
    let gradients: Vec<Tensor> = trained.iter().map(|v| v.to_tensor([v.len()])).collect();
    for (values, gradient) in trained.into_iter().zip(clip.apply(&gradients)) {
        *values = Values::of(&gradient);
    }
    bounded
}
