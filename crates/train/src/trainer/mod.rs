//! The loop that every program would write, written once.

mod callback;
mod fit;
mod fitted;
mod parts;
mod span;
mod state;

use std::cell::RefCell;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;
use thalweg_data::{Batches, Dataset};
use thalweg_nn::schedule::Schedule;
use thalweg_nn::{Module, Optimizer, Rule};
use thalweg_runtime::Tree;
use thalweg_tensor::Tensor;

use crate::checkpoint::Best;

pub use callback::{Callback, Progress};
pub use fitted::{Ended, Fitted, weights_hash};
pub use parts::{Measured, Parts, Passes};
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
    loss: L,
    metrics: Vec<(String, Measure<N, B>)>,
    validation: Option<Validation<B>>,
    schedule: Option<Box<dyn Schedule>>,
    watch: Option<(String, Best)>,
    patience: Option<u64>,
    callbacks: Vec<Box<dyn Callback<N>>>,
    folder: Option<PathBuf>,
    every: Span,
    keep: usize,
    resume: bool,
    config: Value,
    log_every: u64,
    shuffle: bool,
    eager: bool,
}

type Measure<N, B> = Box<dyn Fn(&N, B) -> Tensor>;
/// Begins a pass over batches, each with its number of samples.
type Validation<B> = Box<dyn Fn() -> Box<dyn Iterator<Item = (usize, B)>>>;

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
            loss,
            metrics: Vec::new(),
            validation: None,
            schedule: None,
            watch: None,
            patience: None,
            callbacks: Vec::new(),
            folder: None,
            every: Span::Epochs(1),
            keep: 3,
            resume: false,
            config: Value::Object(Default::default()),
            log_every: 50,
            shuffle: true,
            eager: false,
        }
    }

    /// Measures the loss, as `loss/validation`, and all metrics on these batches after each epoch.
    pub fn validate<D: Dataset<Batch = B>>(mut self, batches: Batches<D>) -> Self {
        self.validation = Some(Box::new(move || {
            let (n, size) = (batches.dataset().len(), batches.size());
            let counted = batches.clone().into_iter().enumerate();
            Box::new(counted.map(move |(i, batch)| (size.min(n - i * size), batch)))
        }));
        self
    }

    /// Measures one more number per validation batch, a scalar; the mean over all samples is written down.
    pub fn metric(mut self, name: impl Into<String>, measure: impl Fn(&N, B) -> Tensor + 'static) -> Self {
        self.metrics.push((name.into(), Box::new(measure)));
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

    /// Ends when the watched number has not got better for so many epochs.
    pub fn early_stop(mut self, epochs: u64) -> Self {
        self.patience = Some(epochs);
        self
    }

    /// Calls code of one's own between steps.
    pub fn callback(mut self, callback: impl Callback<N> + 'static) -> Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Writes a run to this folder, with a checkpoint every so often. One more is written at the end, and whenever an epoch
    /// is the best so far.
    pub fn checkpoint_every(mut self, every: impl Into<Span>, folder: impl Into<PathBuf>) -> Self {
        (self.every, self.folder) = (every.into(), Some(folder.into()));
        self
    }

    /// Keeps so many of the newest checkpoints, and the best; 3 unless said otherwise.
    pub fn keep(mut self, last: usize) -> Self {
        self.keep = last;
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
        self.eager = true;
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
