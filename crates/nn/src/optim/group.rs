//! Settings for some of the parameters.

use thalweg_core::Shape;

/// How weights are drawn towards 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decay {
    /// By a share of the weight added to its gradient: the gradient of an L2 penalty.
    L2(f64),
    /// By shrinking the weight itself by lr times a share (Loshchilov and Hutter, 2017).
    Decoupled(f64),
}

impl Decay {
    /// The same way with another share.
    pub(super) fn with(self, share: f64) -> Self {
        match self {
            Decay::L2(_) => Decay::L2(share),
            Decay::Decoupled(_) => Decay::Decoupled(share),
        }
    }
}

/// Parameters with settings of their own, chosen by name and shape. The first group that fits counts.
///
/// ```
/// use thalweg_nn::{AdamW, Group};
/// // No decay for biases and norms; a tenth of the rate for the embedding.
/// let opt = AdamW::new(3e-4)
///     .group(Group::of(|_, shape| shape.rank() < 2).weight_decay(0.0))
///     .group(Group::of(|name, _| name.starts_with("embedding.")).lr_factor(0.1));
/// assert_eq!(opt.lr(), 3e-4);
/// ```
pub struct Group {
    chosen: Box<Choice>,
    pub(super) lr_factor: f64,
    pub(super) weight_decay: Option<f64>,
}

type Choice = dyn Fn(&str, &Shape) -> bool + Send + Sync;

impl Group {
    /// The parameters that `chosen` says yes to.
    pub fn of(chosen: impl Fn(&str, &Shape) -> bool + Send + Sync + 'static) -> Self {
        Self { chosen: Box::new(chosen), lr_factor: 1.0, weight_decay: None }
    }

    /// Multiplies the optimiser's learning rate, whatever a schedule makes of it.
    pub fn lr_factor(mut self, factor: f64) -> Self {
        self.lr_factor = factor;
        self
    }

    /// Another share of weight decay than the optimiser's.
    pub fn weight_decay(mut self, share: f64) -> Self {
        self.weight_decay = Some(share);
        self
    }

    pub(super) fn has(&self, name: &str, shape: &Shape) -> bool {
        (self.chosen)(name, shape)
    }
}
