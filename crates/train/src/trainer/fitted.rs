//! What training came to.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thalweg_nn::Module;

/// Why training ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It was as long as was asked.
    Done,
    /// Nothing got better any more.
    Early,
    /// A callback asked for it. The run can be resumed.
    Stopped,
}

/// The outcome of [`Trainer::fit`](crate::Trainer::fit).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Fitted {
    /// Why it ended.
    pub ended: Ended,
    /// Steps that were made, over all processes.
    pub steps: u64,
    /// Epochs that were done.
    pub epochs: u64,
    /// The mean loss of the last steps that were written down.
    pub loss: f64,
    /// The last value of each metric.
    pub metrics: BTreeMap<String, f64>,
    /// Seconds of training, over all processes; without a run directory, of this one.
    pub seconds: f64,
    /// Steps per second, of this process.
    pub steps_per_second: f64,
    /// The sha256 of the final weights, see [`weights_hash`].
    pub weights: String,
}

impl Fitted {
    /// Of a training that was stopped, of which only the number of its steps is known.
    pub fn stopped(steps: u64) -> Self {
        Self {
            ended: Ended::Stopped,
            steps,
            epochs: 0,
            loss: f64::NAN,
            metrics: BTreeMap::new(),
            seconds: 0.0,
            steps_per_second: 0.0,
            weights: String::new(),
        }
    }
}

impl fmt::Display for Fitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} steps in {:.1} s ({:.1} steps/s)", self.steps, self.seconds, self.steps_per_second)?;
        write!(f, ", loss {:.4}", self.loss)?;
        self.metrics.iter().try_for_each(|(name, value)| write!(f, ", {name} {value:.4}"))?;
        match self.ended {
            Ended::Done => Ok(()),
            Ended::Early => f.write_str("; ended early, nothing got better"),
            Ended::Stopped => f.write_str("; stopped"),
        }
    }
}

/// The sha256 of all parameters and buffers with their names, dtypes and shapes: equal for equal bits.
///
/// ```
/// use thalweg_nn::Linear;
/// use thalweg_tensor::Rng;
/// use thalweg_train::weights_hash;
/// let net = |seed| Linear::new(2, 1, &mut Rng::seed(seed));
/// assert_eq!(weights_hash(&net(1)), weights_hash(&net(1)));
/// assert_ne!(weights_hash(&net(1)), weights_hash(&net(2)));
/// ```
pub fn weights_hash(net: &(impl Module + ?Sized)) -> String {
    let mut hash = Sha256::new();
    for named in net.state() {
        let value = named.param.get().contiguous();
        hash.update(format!("{}:{};", named.name, value.meta()));
        hash.update(value.view().dense_bytes().expect("made contiguous above"));
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}
