//! The loop that every program would write, written once.

mod callback;
mod examine;
mod files;
mod fit;
mod fitted;
mod parts;
mod runner;
mod span;
mod state;
mod step;
mod watch;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;
use thalweg_core::DType;
use thalweg_data::{Batches, Dataset};
use thalweg_nn::schedule::Schedule;
use thalweg_nn::{Average, Module, Optimizer, Rule};
use thalweg_runtime::Tree;
use thalweg_tensor::Tensor;

use crate::checkpoint::Best;

use runner::Mode;
use step::How;

pub use callback::{Callback, Progress};
pub use fitted::{Ended, Fitted, weights_hash};
pub use parts::{Measure, Parts, Passes};
pub use span::{Epochs, Span, Steps};
pub use state::State;

/// The name of the validation loss among the metrics.
pub const VALIDATION_LOSS: &str = "loss/validation";

/// Trains a net: batches in a new order each epoch, one compiled step per batch, validation after each
/// epoch, and, if it is given a folder, a [`Run`](crate::Run) from which it can go on bit for bit.
///
/// ```
/// use thalweg_data::{Dataset, Examples};
/// use thalweg_nn::{Adam, Layer, Linear};
/// use thalweg_tensor::{Reduction, Rng, Tensor};
/// use thalweg_train::{Epochs, Trainer};
///
/// let data = Examples::new(Tensor::from([[0.0f32], [1.0], [2.0]]), Tensor::from([[1.0f32], [3.0], [5.0]]))?;
/// let net = Linear::new(1, 1, &mut Rng::seed(0));
/// let mut trainer = Trainer::new(net, Adam::new(0.1), |net, (x, y)| net.forward(&x).mse_loss(&y, Reduction::Mean))
///     .validate(data.batches(3));
/// let fitted = trainer.fit(data.batches(3), Epochs(200))?;
/// assert!(fitted.metrics["loss/validation"] < 1e-2, "{fitted}");
/// assert!((trainer.net().weight.get().item::<f32>() - 2.0).abs() < 0.1);
/// # Ok::<(), thalweg_train::TrainError>(())
/// ```
pub struct Trainer<N, R, B, L> {
    net: N,
    /// Shared between the step, which is borrowed by its compiled form, and checkpoints.
    optimizer: RefCell<Optimizer<R>>,
    average: Option<RefCell<Average>>,
    loss: L,
    how: How,
    metrics: Vec<(String, Measure<N, B>)>,
    observers: Vec<(String, Observe<N>)>,
    validation: Option<Passes<B>>,
    validate_every: Span,
    schedule: Option<Box<dyn Schedule>>,
    watch: Option<(String, Best)>,
    patience: Option<u64>,
    callbacks: Vec<Box<dyn Callback<N>>>,
    folder: Option<PathBuf>,
    every: Span,
    keep: usize,
    intervals: BTreeMap<String, u64>,
    resume: bool,
    config: Value,
    log_every: u64,
    shuffle: bool,
    mode: Mode,
}

type Observe<N> = Box<dyn Fn(&N) -> f64>;

impl<N, R, B, L> Trainer<N, R, B, L>
where
    N: Module,
    R: Rule,
    B: Tree + 'static,
    L: Fn(&N, B) -> Tensor,
{
    /// Will move the parameters of `net` so that `loss` of a batch, a scalar, becomes less. The closure is compiled: it
    /// may look at shapes but not at values, unless [`Trainer::eager`] is said.
    pub fn new(net: N, optimizer: Optimizer<R>, loss: L) -> Self {
        Self {
            net,
            optimizer: RefCell::new(optimizer),
            average: None,
            loss,
            how: How { parts: 1, precision: None },
            metrics: Vec::new(),
            observers: Vec::new(),
            validation: None,
            validate_every: Span::Epochs(1),
            schedule: None,
            watch: None,
            patience: None,
            callbacks: Vec::new(),
            folder: None,
            every: Span::Epochs(1),
            keep: 3,
            intervals: BTreeMap::new(),
            resume: false,
            config: Value::Object(Default::default()),
            log_every: 50,
            shuffle: true,
            mode: Mode::Compiled,
        }
    }

    /// Measures the loss, as `loss/validation`, and all metrics on these batches after each epoch and at the end.
    pub fn validate<D: Dataset<Batch = B>>(mut self, batches: Batches<D>) -> Self {
        self.validation = Some(Box::new(move || {
            let (n, size) = (batches.dataset().len(), batches.size());
            let counted = batches.clone().into_iter().enumerate();
            Box::new(counted.map(move |(i, batch)| (size.min(n - i * size), batch)))
        }));
        self
    }

    /// Validates this often instead of after each epoch; at the end in any case.
    pub fn validate_every(mut self, every: impl Into<Span>) -> Self {
        self.validate_every = every.into();
        self
    }

    /// Measures one more number per validation batch, a scalar; the mean over all samples is written down.
    pub fn metric(mut self, name: impl Into<String>, measure: impl Fn(&N, B) -> Tensor + 'static) -> Self {
        self.metrics.push((name.into(), Box::new(measure)));
        self
    }

    /// Looks at the net itself at each validation, such as at its distance from something; the number is written down.
    pub fn observe(mut self, name: impl Into<String>, observe: impl Fn(&N) -> f64 + 'static) -> Self {
        self.observers.push((name.into(), Box::new(observe)));
        self
    }

    /// Computes the gradient of each batch in so many parts, one after the other, and adds them up: less memory, the same
    /// step. All tensors of a batch have one row per sample, and the loss is a mean over samples.
    pub fn accumulate(mut self, parts: usize) -> Self {
        self.how.parts = parts.max(1);
        self
    }

    /// Multiplies in this dtype, usually bf16, and keeps weights and their gradients as they are: see
    /// [`autocast`](thalweg_nn::autocast).
    pub fn precision(mut self, products: DType) -> Self {
        self.how.precision = Some(products);
        self
    }

    /// Keeps an exponential average of the weights, by this share of the old. It is what is validated, and what the net has
    /// when training is done.
    pub fn average(mut self, decay: f64) -> Self {
        self.average = Some(RefCell::new(Average::exponential(&self.net, decay)));
        self
    }

    /// Sets the learning rate before each step.
    pub fn schedule(mut self, schedule: impl Schedule + 'static) -> Self {
        self.schedule = Some(Box::new(schedule));
        self
    }

    /// Which number says how good the net is, for [`Trainer::early_stop`] and the best checkpoint. The validation loss
    /// unless said otherwise.
    pub fn watch(mut self, metric: impl Into<String>, best: Best) -> Self {
        self.watch = Some((metric.into(), best));
        self
    }

    /// Ends when the watched number has not got better for so many validations.
    pub fn early_stop(mut self, validations: u64) -> Self {
        self.patience = Some(validations);
        self
    }

    /// Calls code of one's own between steps.
    pub fn callback(mut self, callback: impl Callback<N> + 'static) -> Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Writes a run to this folder, with a checkpoint every so often. One more is written at the end, and whenever a
    /// validation is the best so far.
    pub fn checkpoint_every(mut self, every: impl Into<Span>, folder: impl Into<PathBuf>) -> Self {
        (self.every, self.folder) = (every.into(), Some(folder.into()));
        self
    }

    /// Keeps so many of the newest checkpoints, and the best; 3 unless said otherwise.
    pub fn keep(mut self, last: usize) -> Self {
        self.keep = last;
        self
    }

    /// Saves one part of checkpoints (`model`, `optimizer`, `noise`, `average`) at most every so many steps; those in between
    /// name its last file. Smaller checkpoints, for which a resumed run is no longer the same to the last bit.
    pub fn save_part_every(mut self, part: impl Into<String>, Steps(steps): Steps) -> Self {
        self.intervals.insert(part.into(), steps);
        self
    }

    /// Goes on with the run in the folder if there is one; otherwise a run in it is an error.
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// Settings to be written to the run, for those who compare runs. Panics when they are not JSON.
    #[track_caller]
    pub fn config(mut self, config: &impl Serialize) -> Self {
        self.config = serde_json::to_value(config).expect("settings are JSON");
        self
    }

    /// Writes the mean training loss down every so many steps; 50 unless said otherwise.
    pub fn log_every(mut self, Steps(steps): Steps) -> Self {
        self.log_every = steps.max(1);
        self
    }

    /// Takes the samples in the order in which they are stored, in every epoch.
    pub fn in_order(mut self) -> Self {
        self.shuffle = false;
        self
    }

    /// Runs each step line by line instead of compiled; for looking into it. The numbers stay the same.
    pub fn eager(mut self) -> Self {
        self.mode = Mode::Eager;
        self
    }

    /// Traces each batch anew and computes equal ops of its samples together, for samples of different structure: see
    /// [`autobatch`](thalweg_runtime::autobatch).
    pub fn autobatch(mut self) -> Self {
        self.mode = Mode::Autobatched;
        self
    }

    /// The net.
    pub fn net(&self) -> &N {
        &self.net
    }

    /// The net, for keeping.
    pub fn into_net(self) -> N {
        self.net
    }
}
