//! Losses between predictions and numeric targets.

use crate::functions::distances::p_norm;
use crate::tensor::Tensor;

/// How the losses of single elements become one result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Reduction {
    /// Their mean.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// Not at all.
    None,
}

impl Reduction {
    /// Applied to the losses of single elements.
    #[track_caller]
    pub(crate) fn of(self, losses: &Tensor) -> Tensor {
        match self {
            Reduction::Mean => losses.mean(()),
            Reduction::Sum => losses.sum(()),
            Reduction::None => losses.clone(),
        }
    }
}

/// The options of [`Tensor::bce_with_logits_with`].
#[derive(Clone, Default)]
pub struct BceOptions<'a> {
    /// A factor for each loss, of any shape that broadcasts.
    pub weight: Option<&'a Tensor>,
    /// A factor for the positive part of each loss, of any shape that broadcasts.
    pub pos_weight: Option<&'a Tensor>,
    /// How losses become one result.
    pub reduction: Reduction,
}

/// The options of [`Tensor::poisson_nll_loss`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoissonNllOptions {
    /// Whether predictions are logarithms of rates.
    pub log_input: bool,
    /// Whether to add Stirling's approximation of log(target!) where the target is above 1.
    pub full: bool,
    /// Added to rates whose logarithm is taken.
    pub eps: f64,
    /// How losses become one result.
    pub reduction: Reduction,
}

impl Default for PoissonNllOptions {
    fn default() -> Self {
        Self { log_input: true, full: false, eps: 1e-8, reduction: Reduction::Mean }
    }
}

/// The options of [`Tensor::gaussian_nll_loss`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GaussianNllOptions {
    /// Whether to add the constant ½ log 2π.
    pub full: bool,
    /// The smallest variance.
    pub eps: f64,
    /// How losses become one result.
    pub reduction: Reduction,
}

impl Default for GaussianNllOptions {
    fn default() -> Self {
        Self { full: false, eps: 1e-6, reduction: Reduction::Mean }
    }
}

/// The options of [`Tensor::triplet_margin_loss`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TripletOptions {
    /// How much farther the negative must be.
    pub margin: f64,
    /// The norm of the distance.
    pub p: f64,
    /// Added to differences, which keeps the slope at distance 0 finite.
    pub eps: f64,
    /// Whether the negative may be compared with the positive where that is closer.
    pub swap: bool,
    /// How losses become one result.
    pub reduction: Reduction,
}

impl Default for TripletOptions {
    fn default() -> Self {
        Self { margin: 1.0, p: 2.0, eps: 1e-6, swap: false, reduction: Reduction::Mean }
    }
}

/// log(1 + eˣ) without overflow.
fn softplus(x: &Tensor) -> Tensor {
    x.maximum(0.0) + (-x.abs()).exp().log1p()
}

impl Tensor {
    /// (x − t)².
    #[track_caller]
    pub fn mse_loss(&self, target: &Tensor, reduction: Reduction) -> Tensor {
        reduction.of(&(self - target).as_float().square())
    }

    /// |x − t|.
    #[track_caller]
    pub fn l1_loss(&self, target: &Tensor, reduction: Reduction) -> Tensor {
        reduction.of(&(self - target).as_float().abs())
    }

    /// (x − t)² / 2 beta where |x − t| < beta, |x − t| − beta / 2 elsewhere.
    #[track_caller]
    pub fn smooth_l1_loss(&self, target: &Tensor, beta: f64, reduction: Reduction) -> Tensor {
        if beta == 0.0 {
            return self.l1_loss(target, reduction);
        }
        let d = (self - target).as_float().abs();
        let near = d.square() * (0.5 / beta);
        reduction.of(&d.lt(beta).where_(&near, &(&d - 0.5 * beta)))
    }

    /// (x − t)² / 2 where |x − t| ≤ delta, delta · (|x − t| − delta / 2) elsewhere.
    #[track_caller]
    pub fn huber_loss(&self, target: &Tensor, delta: f64, reduction: Reduction) -> Tensor {
        let d = (self - target).as_float().abs();
        reduction.of(&d.le(delta).where_(&(d.square() * 0.5), &((&d - 0.5 * delta) * delta)))
    }

    /// log(1 + exp(−t x)), for targets 1 and −1.
    #[track_caller]
    pub fn soft_margin_loss(&self, target: &Tensor, reduction: Reduction) -> Tensor {
        reduction.of(&softplus(&(-(self * target)).as_float()))
    }

    /// The negative log-likelihood of counts under Poisson distributions.
    #[track_caller]
    pub fn poisson_nll_loss(&self, target: &Tensor, options: &PoissonNllOptions) -> Tensor {
        let x = self.as_float();
        let mut loss = match options.log_input {
            true => x.exp() - target * &x,
            false => &x - target * (&x + options.eps).log(),
        };
        if options.full {
            let large = target.gt(1.0);
            // Elsewhere any number with a logarithm will do.
            let t = large.where_(&target.as_float(), 2.0);
            let stirling = &t * t.log() - &t + (&t * (2.0 * std::f64::consts::PI)).log() * 0.5;
            loss = loss + large.where_(&stirling, 0.0);
        }
        options.reduction.of(&loss)
    }

    /// −t log x − (1 − t) log(1 − x), with logarithms cut at −100, for x in 0..=1.
    #[track_caller]
    pub fn binary_cross_entropy(&self, target: &Tensor, reduction: Reduction) -> Tensor {
        let x = self.as_float();
        // The logarithm of 0 is replaced, not cut, so that its gradient is 0 and not 0 · ∞.
        let log = |x: Tensor| {
            let zero = x.eq(0.0);
            zero.where_(-100.0, &zero.where_(1.0, &x).log().clamp_min(-100.0))
        };
        let loss = -(target * log(x.clone()) + (1.0 - target) * log(1.0 - x));
        reduction.of(&loss)
    }

    /// Binary cross-entropy of sigmoid(x), exact for any x: the mean over all elements.
    #[track_caller]
    pub fn bce_with_logits(&self, target: &Tensor) -> Tensor {
        self.bce_with_logits_with(target, &BceOptions::default())
    }

    /// [`Tensor::bce_with_logits`] with weights and another reduction.
    #[track_caller]
    pub fn bce_with_logits_with(&self, target: &Tensor, options: &BceOptions<'_>) -> Tensor {
        let x = self.as_float();
        // −log σ(x) = softplus(−x); −log(1 − σ(x)) = x + softplus(−x).
        let negative = softplus(&-&x);
        let mut loss = match options.pos_weight {
            Some(p) => (1.0 - target) * &x + ((p - 1.0) * target + 1.0) * negative,
            None => (1.0 - target) * &x + negative,
        };
        if let Some(w) = options.weight {
            loss = loss * w;
        }
        options.reduction.of(&loss)
    }

    /// t (log t − x): the Kullback-Leibler divergence of distributions, self in logarithms. With
    /// `log_target` the target is in logarithms too. (PyTorch's "batchmean" is the sum over the batch
    /// size.)
    #[track_caller]
    pub fn kl_div(&self, target: &Tensor, log_target: bool, reduction: Reduction) -> Tensor {
        let loss = if log_target {
            target.exp() * (target - self)
        } else {
            let positive = target.gt(0.0);
            let log = positive.where_(target, 1.0).log();
            // A probability of 0 adds nothing; a NaN stays one.
            let entropy = target.le(0.0).where_(0.0, &(target * log));
            entropy - target * self
        };
        reduction.of(&loss)
    }

    /// 1 − cos(a, b) for y = 1, max(0, cos(a, b) − margin) for y = −1, along the last axis.
    #[track_caller]
    pub fn cosine_embedding_loss(
        &self,
        other: &Tensor,
        y: &Tensor,
        margin: f64,
        reduction: Reduction,
    ) -> Tensor {
        let (a, b) = (self.as_float(), other.as_float());
        let square = |t: &Tensor| t.square().sum(-1) + 1e-12;
        let cosine = (&a * &b).sum(-1) / (square(&a) * square(&b)).sqrt();
        let apart = (&cosine - margin).relu();
        reduction.of(&y.eq(1.0).where_(&(1.0 - &cosine), &y.eq(-1.0).where_(&apart, 0.0)))
    }

    /// max(0, d(anchor, positive) − d(anchor, negative) + margin), self being the anchor.
    #[track_caller]
    pub fn triplet_margin_loss(
        &self,
        positive: &Tensor,
        negative: &Tensor,
        options: &TripletOptions,
    ) -> Tensor {
        let distance = |a: &Tensor, b: &Tensor| p_norm(&(a - b + options.eps), options.p, -1, false);
        let near = distance(self, positive);
        let mut far = distance(self, negative);
        if options.swap {
            far = far.minimum(&distance(positive, negative));
        }
        options.reduction.of(&(near - far + options.margin).relu())
    }

    /// max(0, −y (a − b) + margin): y = 1 says that a should be the larger.
    #[track_caller]
    pub fn margin_ranking_loss(
        &self,
        other: &Tensor,
        y: &Tensor,
        margin: f64,
        reduction: Reduction,
    ) -> Tensor {
        reduction.of(&(-(y * (self - other)) + margin).relu())
    }

    /// x for y = 1, max(0, margin − x) for y = −1.
    #[track_caller]
    pub fn hinge_embedding_loss(&self, y: &Tensor, margin: f64, reduction: Reduction) -> Tensor {
        let x = self.as_float();
        reduction.of(&y.eq(1.0).where_(&x, &y.eq(-1.0).where_(&(margin - &x).relu(), 0.0)))
    }

    /// ½ (log v + (x − t)² / v): the negative log-likelihood of targets under normal distributions with
    /// means x and variances v.
    #[track_caller]
    pub fn gaussian_nll_loss(
        &self,
        target: &Tensor,
        variance: &Tensor,
        options: &GaussianNllOptions,
    ) -> Tensor {
        // Cut without a kink in the gradient, as in PyTorch: a variance below eps still learns.
        let raised = (variance.clamp_min(options.eps) - variance).stop_gradient();
        let v = variance + raised;
        let mut loss = (v.log() + (self - target).square() / &v) * 0.5;
        if options.full {
            loss = loss + 0.5 * (2.0 * std::f64::consts::PI).ln();
        }
        options.reduction.of(&loss)
    }
}

#[cfg(test)]
mod tests {
    use super::Reduction;
    use crate::{Tensor, vjp};

    #[test]
    fn certain_and_right_predictions_have_finite_gradients() {
        let (x, t) = (Tensor::from([0.0f32, 1.0, 0.0]), Tensor::from([0.0f32, 1.0, 1.0]));
        let loss = |x: &[Tensor]| vec![x[0].binary_cross_entropy(&t, Reduction::None)];
        let (y, pull) = vjp(loss, std::slice::from_ref(&x));
        assert_eq!(y[0].to_vec::<f32>(), [0.0, 0.0, 100.0]);
        let dx = pull.call(&[Tensor::from([1.0f32; 3])]).unwrap().remove(0).unwrap();
        assert!(dx.to_vec::<f32>().iter().all(|d| d.is_finite()), "{:?}", dx.to_vec::<f32>());
    }
}
