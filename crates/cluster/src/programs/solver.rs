//! Runs a model, on one process or on many. Who computes the first slot keeps the books.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use thalweg_train::{Callback, Ended, Fitted, Progress, Span, TrainError, weights_hash};

use super::learned::{Learned, LearnedValues, pushed, values};
use super::{Model, saved};
use crate::cluster::{Cluster, Gradients, Program, Pulled, Run, Step};
use crate::error::ClusterError;
use crate::ids::{Clock, Slot, TableId};
use crate::layout::TableSpec;
use crate::state::Wants;
use crate::table::{Delta, Want};
use crate::training::{Books, RECENT, Recent, Trained, loss_table};

/// How many checkpoints stay.
const KEEP: usize = 2;
/// So many losses are written down.
const LOSSES: u64 = 100;

/// What a model is learned with; see [`Model`].
pub struct Solver<'a, M> {
    model: &'a M,
    folder: Option<PathBuf>,
    every: Span,
    resume: bool,
    config: Value,
    callbacks: Vec<Box<dyn Callback<M> + 'a>>,
}

impl<'a, M: Model> Solver<'a, M> {
    /// Without a folder.
    pub fn new(model: &'a M) -> Self {
        let every = Span::Epochs(1);
        Self { model, folder: None, every, resume: false, config: Value::Null, callbacks: Vec::new() }
    }

    /// Writes a run to this folder, and a checkpoint so often. All servers must see the folder, unless the variable
    /// `THALWEG_CHECKPOINTS` says where checkpoints lie.
    pub fn checkpoint_every(mut self, every: impl Into<Span>, folder: impl Into<PathBuf>) -> Self {
        (self.every, self.folder) = (every.into(), Some(folder.into()));
        self
    }

    /// Goes on with the run in the folder, with any number of workers, servers and slots. By as many slots it comes to the
    /// same bits; other slots divide the samples otherwise, and statistics of the first clock are those of a new run.
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// Settings to be written to the run.
    pub fn config(mut self, config: Value) -> Self {
        self.config = config;
        self
    }

    /// Is called between steps, where the first slot is computed.
    pub fn callback(mut self, callback: impl Callback<M> + 'a) -> Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Runs until it has this length in all. In a server this does its work and ends the process.
    pub fn fit(
        self,
        mut cluster: Cluster,
        length: impl Into<Span>,
    ) -> Result<Trained<LearnedValues>, ClusterError> {
        let (model, learned) = (self.model, self.model.learned());
        let per_epoch = model.steps_per_epoch();
        let (clocks, every) = (length.into().steps(per_epoch), self.every.steps(per_epoch).max(1));
        let (n_slots, sync) = (cluster.n_slots(), cluster.sync());
        let mut specs: Vec<TableSpec> = learned.iter().map(|l| l.spec(n_slots)).collect();
        specs.push(loss_table());
        cluster = learned.iter().fold(cluster, |cluster, table| table.register(cluster));
        cluster = cluster.with_registry(|registry| model.functions(registry));
        cluster = cluster.with_rule(RECENT, Recent::of(sync, n_slots));
        let place = self.folder.as_deref().map(|folder| cluster.checkpoints_of(folder)).transpose()?;
        let folder = self.folder.zip(place);
        match &folder {
            Some((folder, place)) => {
                let found = saved::storage((folder, place), every, self.resume, &learned, &specs, &cluster)?;
                cluster = cluster.with_storage(found);
            }
            None if self.resume => return Err(TrainError::Nowhere.into()),
            None => {}
        }
        let books = Books {
            holder: cluster.holder(),
            n_shards: cluster.n_shards(&specs) as u32,
            folder,
            every,
            size: 0,
            keep: KEEP,
            resume: self.resume,
            config: self.config,
            log_every: (clocks / LOSSES).max(1),
            per_epoch,
            clocks,
            began: 0,
            secured: 0,
            open: None,
            missed: Vec::new(),
            locked: None,
        };
        let share = n_slots as f64 / cluster.quorum() as f64;
        let callbacks = self.callbacks;
        let mut work = Work {
            model,
            learned,
            n_slots,
            per_epoch,
            clocks,
            share,
            books,
            callbacks,
            problem: None,
            end: cluster.stopper(),
        };
        let run = cluster.run(&specs, clocks, &mut work)?;
        let keeper = run.keeper;
        let (net, fitted) = work.finish(&run, keeper)?;
        Ok(Trained { net, fitted, waited: run.waited, traffic: run.traffic, sync, keeper })
    }
}

/// A worker's side.
struct Work<'a, M> {
    model: &'a M,
    learned: Vec<Learned>,
    n_slots: usize,
    per_epoch: u64,
    clocks: Clock,
    share: f64, // what a loss counts for, when some are left out
    books: Books,
    callbacks: Vec<Box<dyn Callback<M> + 'a>>,
    problem: Option<ClusterError>,
    end: Option<Arc<AtomicBool>>, // to be raised when a callback wants to stop
}

impl<M: Model> Work<'_, M> {
    /// The table of the loss comes last.
    fn loss(&self) -> TableId {
        TableId(self.learned.len() as u32)
    }

    fn keep_books(&mut self, clock: Clock, pulled: &Pulled) -> Result<(), ClusterError> {
        let loss = f64::from(pulled[&self.loss()][0]);
        let Some(books) = self.books.at(clock, loss, None)? else { return Ok(()) };
        books.begin(&mut self.callbacks);
        if clock == 0 {
            return Ok(());
        }
        let (own_steps, own_seconds) = books.own(clock);
        if !loss.is_finite() {
            return Err(TrainError::Diverged { step: clock, loss }.into());
        }
        let (step, steps, epoch) = (clock, self.clocks, clock / self.per_epoch);
        let now = Progress { step, steps, epoch, loss, metrics: Default::default(), own_steps, own_seconds };
        let stops =
            self.callbacks.iter_mut().any(|c| c.after_step(&now, self.model) == ControlFlow::Break(()));
        let Some(books) = &mut self.books.open else { return Ok(()) };
        books.checkpoints(Vec::new())?;
        match &self.end {
            Some(end) if stops => end.store(true, Ordering::Relaxed),
            None if stops => return Err(ClusterError::Interrupted { clock }),
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, run: &Run, keeper: bool) -> Result<(LearnedValues, Fitted), ClusterError> {
        let found = values(&self.learned, self.n_slots, &run.pulled);
        let net = LearnedValues::of(self.model);
        net.set(&found);
        if run.clock < self.clocks {
            return Ok((net, Fitted::stopped(run.clock)));
        }
        let seconds = run.elapsed.as_secs_f64();
        let mut fitted = Fitted {
            ended: Ended::Done,
            steps: self.clocks,
            epochs: self.clocks / self.per_epoch,
            loss: run.pulled[&self.loss()][0].into(),
            metrics: Default::default(),
            seconds,
            steps_per_second: self.clocks as f64 / seconds.max(1e-9),
            weights: weights_hash(&net),
        };
        if keeper {
            self.keep_books(self.clocks, &run.pulled)?;
            if let Some(books) = &mut self.books.open {
                books.measured(&self.model.measure(&found))?;
            }
            self.books.close(&mut fitted, &net, Vec::new())?;
        }
        Ok((net, fitted))
    }
}

impl<M: Model> Program for &mut Work<'_, M> {
    fn wants(&mut self, step: Step, _tables: &[TableSpec]) -> Wants {
        let some = if step.clock < self.clocks { self.model.wants(step) } else { None };
        let all = || (0..).map(TableId).zip(self.learned.iter().map(Learned::all)).collect();
        let mut wants = some.unwrap_or_else(all);
        wants.insert(self.loss(), Want::Dense);
        wants
    }

    fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients {
        if step.slot == Slot(0)
            && let Err(problem) = self.keep_books(step.clock, pulled)
        {
            self.problem = Some(problem);
            return Gradients::new();
        }
        let (said, loss) = self.model.step(step, &values(&self.learned, self.n_slots, pulled));
        let mut gradients = pushed(&self.learned, step.slot, self.n_slots, said);
        gradients.push((self.loss(), Delta::Dense(vec![(loss * self.share) as f32].into())));
        gradients
    }

    fn is_exact(&self, table: TableId) -> bool {
        table == self.loss() || self.learned[table.0 as usize].replaces()
    }

    fn began(&mut self, clock: Clock) {
        self.books.began = clock;
    }

    fn let_go(&mut self, slot: Slot) {
        if slot == Slot(0) {
            self.books.let_go();
        }
    }

    fn saved(&self) -> Option<Clock> {
        self.books.saved()
    }

    fn secured(&mut self, clock: Clock) {
        self.books.secured = clock;
    }

    fn stop(&mut self, step: Step, pulled: &Pulled) -> Result<bool, ClusterError> {
        let loss = f64::from(pulled[&self.loss()][0]);
        self.books.stop(step.clock, loss, None, &[])
    }

    fn problem(&mut self) -> Option<ClusterError> {
        self.problem.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::KMeans;
    use thalweg_train::Steps;

    #[test]
    fn a_run_goes_on_with_as_many_slots_to_the_same_bits_and_with_others_to_the_same_centres() {
        let folder = std::env::temp_dir().join(format!("thalweg-solver-{}", std::process::id()));
        let model = KMeans::new(&thalweg_data::iris().unwrap().data.x, 3).unwrap();
        let fit_model = |model: &KMeans,
                         [slots, shards]: [usize; 2],
                         steps,
                         resume,
                         folder: &std::path::Path| {
            let cluster = Cluster::from_env().unwrap().with_slots(slots).with_shards(shards);
            Solver::new(model).checkpoint_every(Steps(2), folder).resume(resume).fit(cluster, Steps(steps))
        };
        let fit = |sizes, steps, resume, folder: &std::path::Path| {
            fit_model(&model, sizes, steps, resume, folder).unwrap()
        };
        let straight = fit([3, 1], 6, false, &folder.join("straight"));
        for sizes in [[2, 1], [1, 3], [5, 2]] {
            let other = folder.join(format!("{sizes:?}"));
            fit([3, 2], 4, false, &other);
            let resumed = fit(sizes, 6, true, &other);
            let [got, want] = [&resumed, &straight].map(|run| run.net.by_table()[&TableId(0)].clone());
            let far = got.iter().zip(want.iter()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(far < 1e-4, "{sizes:?}: {got:?} instead of {want:?}");
        }
        // What does not fit is refused all the same.
        let narrow = thalweg_data::iris().unwrap().data.x.narrow(1, 0, 2);
        let narrow = KMeans::new(&narrow, 3).unwrap();
        let refused =
            fit_model(&narrow, [2, 1], 8, true, &folder.join("straight")).err().unwrap().to_string();
        assert!(refused.contains("\"centres\"") && refused.contains("settings"), "{refused}");
        fit([3, 1], 4, false, &folder);
        let resumed = fit([3, 1], 8, true, &folder);
        let straight = fit([3, 1], 8, false, &folder.join("straight-8"));
        assert_eq!(resumed.fitted.weights, straight.fitted.weights);
        assert_eq!(resumed.fitted.metrics, straight.fitted.metrics);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
