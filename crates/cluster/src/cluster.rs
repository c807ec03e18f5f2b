//! What programs use: a cluster, tables, and a loop of pull, compute and push.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thalweg_train::Place;

use crate::codec::Codec;
use crate::coordinator::Size;
use crate::doing::Doing;
use crate::error::ClusterError;
use crate::ids::{Clock, Slot, TableId};
use crate::layout::{self, Layout, TableSpec};
use crate::net::config::{Config, Part};
use crate::net::node::Node;
use crate::net::process::{self, Departure, WorkerProcess};
use crate::net::waits::Waits;
use crate::packing::Encoders;
use crate::rule::{Registry, UpdateRule};
use crate::say::say;
use crate::state::Wants;
use crate::storage::Storage;
use crate::sync::Sync;
use crate::table::{Delta, Want};
use crate::values::Values;
use crate::work::Work;

/// How long a worker waits for the word that it has left.
const GOODBYE: Duration = Duration::from_millis(300);

/// A run on one process or on many, as the environment says.
///
/// ```
/// use thalweg_cluster::{Cluster, Rule, Step, TableId, TableSpec, table::Delta};
///
/// let w = TableSpec::Dense { values: vec![0.0; 3].into(), rule: Rule::Sgd { lr: 0.5 } };
/// let cluster = Cluster::from_env()?; // alone: this process is the only worker and the only server
/// let run = cluster.run(&[w], 20, |_: Step, pulled: &thalweg_cluster::Pulled| {
///     let gradient = pulled[&TableId(0)].iter().map(|w| w - 2.0).collect();
///     vec![(TableId(0), Delta::Dense(gradient))]
/// })?;
/// assert!(run.pulled[&TableId(0)].iter().all(|w| (w - 2.0).abs() < 1e-5));
/// # Ok::<(), thalweg_cluster::ClusterError>(())
/// ```
pub struct Cluster {
    config: Config,
    registry: Registry,
    end: Arc<AtomicBool>,
    storage: Option<Storage>,
}

fn end_process(config: &Config, ended: Result<Departure, ClusterError>) -> ! {
    match ended {
        // Launchers that number their processes take any other status for a failure of the whole job.
        Ok(Departure::Asked) if !config.until_done => std::process::exit(process::LEFT),
        Ok(_) => std::process::exit(0),
        Err(e) => {
            say(&config.name, e);
            std::process::exit(1)
        }
    }
}

/// What is to be computed: one part of the batch of one clock. The samples should be a function of
/// these numbers alone; then every sample is used exactly once, whoever computes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The part of the batch.
    pub slot: Slot,
    /// Into how many parts it is divided.
    pub n_slots: usize,
    /// How many steps came before.
    pub clock: Clock,
}

/// The values that were pulled, by table.
pub type Pulled = BTreeMap<TableId, Values>;
/// The gradients to push, by table.
pub type Gradients = Vec<(TableId, Delta)>;

/// An iterative-convergent program: what a step reads, and the change that it computes.
pub trait Program {
    /// What the step reads. By default all of every dense table.
    fn wants(&mut self, step: Step, tables: &[TableSpec]) -> Wants {
        let _ = step;
        let dense = |t: &TableSpec| !matches!(t, TableSpec::Rows { .. });
        (0..).map(TableId).zip(tables).filter(|(_, t)| dense(t)).map(|(id, _)| (id, Want::Dense)).collect()
    }

    /// The change that the step makes to what it read.
    fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients;

    /// Whether what is pushed to a table has to arrive as it is, whatever the codec.
    fn is_exact(&self, table: TableId) -> bool {
        let _ = table;
        false
    }

    /// Called when slots are gained: the run began at this clock, that of the checkpoint which was brought back, or the first. Who
    /// computes it begins the run or goes on with it; who gets a slot at a later one takes it over.
    fn began(&mut self, clock: Clock) {
        let _ = clock;
    }

    /// A slot is somebody else's now, or will go on from an earlier clock: what was kept for it is worth nothing.
    fn let_go(&mut self, slot: Slot) {
        let _ = slot;
    }

    /// The clock of the newest checkpoint that this worker has made whole. When every server that held a shard is gone, the
    /// run goes on from it.
    fn saved(&self) -> Option<Clock> {
        None
    }

    /// The run may be taken back to the checkpoint of this clock, or to a newer one: they must stay. Older ones need not.
    fn secured(&mut self, clock: Clock) {
        let _ = clock;
    }

    /// Everybody was asked to end: all slots stand at this clock, and the shards are being saved. Keeps what else belongs to a
    /// checkpoint, and says whether the run can go on from it.
    fn stop(&mut self, step: Step, pulled: &Pulled) -> Result<bool, ClusterError> {
        let _ = (step, pulled);
        Ok(false)
    }

    /// Called before the first step: a program that says in which phase of a step it is can be told apart from one that hangs.
    fn watch(&mut self, doing: &Doing) {
        let _ = doing;
    }

    /// What went wrong in the last step; it ends the run on this worker, and nothing is pushed.
    fn problem(&mut self) -> Option<ClusterError> {
        None
    }
}

impl<F: FnMut(Step, &Pulled) -> Gradients> Program for F {
    fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients {
        self(step, pulled)
    }
}

/// What a run came to, on this worker.
#[derive(Debug, Clone)]
pub struct Run {
    /// What [`Program::wants`] asks for after the last step.
    pub pulled: Pulled,
    /// The slot on whose behalf that was read.
    pub slot: Slot,
    /// The steps that every slot has made: fewer than were wanted when everybody was asked to end, and the run was saved.
    pub clock: Clock,
    /// Whether this worker is the one that should tell the result. Of all workers of a run, one is.
    pub keeper: bool,
    /// Steps computed here.
    pub steps: u64,
    /// Time spent waiting for others.
    pub waited: Duration,
    /// Time in all.
    pub elapsed: Duration,
    /// Bytes that this worker received and sent, through sockets and shared memory.
    pub traffic: [u64; 2],
}

impl Cluster {
    /// As the environment says. A coordinator does its work here and ends the process; a server does so in
    /// [`run`](Self::run), when it knows the program's tables and rules.
    pub fn from_env() -> Result<Self, ClusterError> {
        Self::with(Registry::default())
    }

    /// The same, with rules and functions of the program's own.
    pub fn with(registry: Registry) -> Result<Self, ClusterError> {
        let config = Config::from_env()?;
        if config.part == Part::Coordinator {
            end_process(&config, process::coordinate(&config).map(|()| Departure::Done));
        }
        // A program of its own keeps its own signals.
        let end = if config.part == Part::Alone { Arc::default() } else { process::ending(&config)? };
        Ok(Self { config, registry, end, storage: None })
    }

    /// Makes one more rule known.
    pub fn with_rule(mut self, name: impl Into<String>, rule: impl UpdateRule + 'static) -> Self {
        self.registry = self.registry.rule(name, rule);
        self
    }

    /// Makes more rules and functions known.
    pub fn with_registry(mut self, more: impl FnOnce(Registry) -> Registry) -> Self {
        self.registry = more(self.registry);
        self
    }

    /// Saves all shards at clock boundaries, and goes on from what was saved.
    pub fn with_storage(mut self, storage: Storage) -> Self {
        self.storage = Some(storage);
        self
    }

    /// Says something about the program that must be the same in all processes of a run, such as a learning rate: one that
    /// has another value is not let in, and its error names both.
    pub fn with_setting(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.config.settings.insert(name.into(), value.to_string());
        self
    }

    /// The rules and functions that it knows.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The consistency.
    pub fn sync(&self) -> Sync {
        self.config.sync
    }

    /// Another consistency than the environment says; the same in all processes.
    pub fn with_sync(mut self, sync: Sync) -> Self {
        self.config.sync = sync;
        self
    }

    /// Where the checkpoints of a run in this folder lie: in it, unless the environment says otherwise.
    pub(crate) fn checkpoints_of(&self, folder: &Path) -> Result<Place, ClusterError> {
        match &self.config.checkpoints {
            None => Ok(folder.join("checkpoints").into()),
            #[cfg(feature = "object-store")]
            Some(url) => crate::objects::place(url),
            #[cfg(not(feature = "object-store"))]
            Some(url) => Err(ClusterError::Place {
                url: url.clone(),
                problem: "unset THALWEG_CHECKPOINTS, or build with the feature `object-store`".into(),
            }),
        }
    }

    /// Who all processes of this cluster are together, in words.
    pub(crate) fn holder(&self) -> String {
        match (&self.config.part, &self.config.etcd) {
            (Part::Alone, _) => format!("process {}", std::process::id()),
            (_, Some(etcd)) => format!("the cluster {}", etcd.cluster),
            (_, None) => format!("the cluster at {}", self.config.coordinator),
        }
    }

    /// Whether they lie elsewhere than in the folder of the run.
    pub(crate) fn checkpoints_elsewhere(&self) -> bool {
        self.config.checkpoints.is_some()
    }

    /// Into how many parts these tables are divided.
    pub fn n_shards(&self, tables: &[TableSpec]) -> usize {
        let Size { n_shards, n_servers, .. } = self.config.size;
        n_shards.unwrap_or_else(|| layout::n_shards(tables, n_servers))
    }

    /// Makes the gradients that this worker pushes smaller, otherwise than the environment says. Top-k is for dense tables: rows
    /// go as they are then.
    pub fn with_codec(mut self, codec: Codec) -> Self {
        self.config.codec = codec;
        self
    }

    /// Into how many parts a batch is divided, for a process alone.
    pub fn with_slots(mut self, n_slots: usize) -> Self {
        if self.config.part == Part::Alone {
            self.config.size.n_slots = n_slots.max(1);
        }
        self
    }

    /// Into how many parts the parameters are divided, for a process alone.
    pub fn with_shards(mut self, n_shards: usize) -> Self {
        if self.config.part == Part::Alone {
            self.config.size.n_shards = Some(n_shards.max(1));
        }
        self
    }

    /// All parameters in one part, for what has to see all of them; refused when another number was asked for.
    pub(crate) fn in_one_shard(mut self, what: &'static str) -> Result<Self, ClusterError> {
        if self.config.size.n_shards.is_some_and(|n| n > 1) {
            let instead = "it needs all of them in one shard; set THALWEG_SHARDS (--shards) to 1 or not at all, clip by \
                           value, or train without rounds (ssp:STALENESS, async, local:STEPS), where each step is one worker's";
            return Err(ClusterError::Unsupported { what, instead });
        }
        self.config.size.n_shards = Some(1);
        Ok(self)
    }

    /// Into how many parts a batch is divided.
    pub fn n_slots(&self) -> usize {
        self.config.size.n_slots
    }

    /// How many gradients make an update in a synchronous round.
    pub fn quorum(&self) -> usize {
        self.config.sync.quorum(self.config.size.n_slots)
    }

    /// What ends a run of this process alone in good order when it is raised; in a cluster that is for signals.
    pub(crate) fn stopper(&self) -> Option<Arc<AtomicBool>> {
        self.is_alone().then(|| self.end.clone())
    }

    /// Whether this process is the only one.
    pub fn is_alone(&self) -> bool {
        self.config.part == Part::Alone
    }

    /// Whether this process should be the one that prints.
    pub fn is_first(&self) -> bool {
        match self.config.part {
            Part::Alone => true,
            Part::Worker => self.config.name.ends_with("-0"),
            Part::Server | Part::Coordinator => false,
        }
    }

    /// Runs a program for so many clocks: until every slot has made them, whoever computed it. In a server this does
    /// its work and ends the process. A worker that is asked to go, by a signal, ends here too: it finishes the clock,
    /// leaves its slots to the others, and ends the process with the status [`LEFT`](process::LEFT). The last one saves the run
    /// first; if it can go on from there, this returns with the clock of then.
    pub fn run(
        mut self,
        tables: &[TableSpec],
        clocks: Clock,
        mut program: impl Program,
    ) -> Result<Run, ClusterError> {
        if self.config.sync.averaging().is_some() {
            return Err(ClusterError::Unsupported {
                what: "local:STEPS or easgd:SHARE with this program",
                instead: "steps of a worker's own need a net; use bsp, ssp:STALENESS, async or backup:SLOTS",
            });
        }
        let (mut local, mut failures) = (None, Vec::new());
        // From here on it is decided, and a server says so to the coordinator, which knows no tables.
        let n_shards = self.n_shards(tables);
        self.config.size.n_shards = Some(n_shards);
        let layout = Layout::of(tables, n_shards);
        self.config.shard_bytes = layout.bytes();
        let every = self.storage.as_ref().map_or("never".to_owned(), |s| s.every.to_string());
        self = self.with_setting("clocks", clocks).with_setting("clocks between checkpoints", every);
        self = self.with_setting("tables", layout::in_words(tables));
        if self.config.part == Part::Server {
            let served = process::serve(&self.config, self.registry, self.storage, &self.end);
            end_process(&self.config, served);
        }
        if self.config.part == Part::Alone {
            let coordinator = process::start_coordinator(&mut self.config)?;
            let server = process::start_server(&self.config, self.registry.clone(), self.storage.take())?;
            failures = vec![coordinator.failure().clone(), server.failure().clone()];
            local = Some((coordinator, server));
        }
        let worker = WorkerProcess::new(&self.config, layout.parts(tables));
        let node = Node::new(worker, self.config.membership(), self.config.security.clone());
        node.share_memory(self.config.shared_memory);
        failures.push(node.failure().clone());
        let n_slots = self.config.size.n_slots;
        let doing = node.lock().doing.clone();
        program.watch(&doing);
        let mut work = Work {
            node: node.clone(),
            doing,
            failures,
            layout,
            tables,
            clocks,
            n_slots,
            end: self.end.clone(),
            waits: Waits::new(&self.config),
            asked: BTreeMap::new(),
            codec: self.config.codec,
            encoders: Encoders::default(),
        };
        let result = work.run(&mut program);
        node.step(|worker, now| worker.session().leave(now));
        // What it leaves behind should be somebody else's before the connection ends.
        node.wait(GOODBYE, |worker| worker.has_left().then_some(()));
        node.close();
        if let Some((coordinator, server)) = local {
            process::stop_server(&server);
            coordinator.close();
        }
        let asked =
            matches!(result, Err(ClusterError::Interrupted { .. })) && self.end.load(Ordering::Relaxed);
        if asked && self.config.part == Part::Worker {
            end_process(&self.config, Ok(Departure::Asked));
        }
        result
    }
}
