//! Losses between scores of classes and the classes that were right.

use thalweg_core::{DType, Shape};

use crate::apply::apply;
use crate::error::{OpError, fail};
use crate::functions::losses::Reduction;
use crate::ops::{Gather, LogLikelihood};
use crate::tensor::Tensor;

/// The options of [`Tensor::cross_entropy_with`] and [`Tensor::nll_loss`].
#[derive(Clone)]
pub struct CrossEntropyOptions<'a> {
    /// One weight per class; a mean divides by the sum of the weights of the targets.
    pub weight: Option<&'a Tensor>,
    /// Targets of this class count for nothing.
    pub ignore_index: i64,
    /// The share of each target that is spread over all classes. `nll_loss` takes none.
    pub label_smoothing: f64,
    /// How losses become one result.
    pub reduction: Reduction,
}

impl Default for CrossEntropyOptions<'_> {
    fn default() -> Self {
        Self { weight: None, ignore_index: -100, label_smoothing: 0.0, reduction: Reduction::Mean }
    }
}

impl Tensor {
    /// −log softmax(x)\[target\], the mean over all targets. self: (batch, classes, …) or (classes);
    /// target: whole numbers (batch, …) or a scalar, or probabilities of self's shape.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let logits = Tensor::from([[2.0f32, 2.0], [1000.0, 0.0]]);
    /// let loss = logits.cross_entropy(&Tensor::from([0i64, 0]));
    /// assert!((loss.item::<f32>() - 0.5 * 2.0f32.ln()).abs() < 1e-6);
    /// ```
    #[track_caller]
    pub fn cross_entropy(&self, target: &Tensor) -> Tensor {
        self.cross_entropy_with(target, &CrossEntropyOptions::default())
    }

    /// [`Tensor::cross_entropy`] with class weights, ignored targets, label smoothing or another
    /// reduction.
    #[track_caller]
    pub fn cross_entropy_with(&self, target: &Tensor, options: &CrossEntropyOptions<'_>) -> Tensor {
        let op = "cross_entropy";
        let axis = class_axis(op, self);
        if !(0.0..=1.0).contains(&options.label_smoothing) {
            let (value, shape) = (options.label_smoothing.to_string(), self.shape().clone());
            fail(OpError::Argument { op, name: "label_smoothing", value, shape, need: "must lie in 0..=1" });
        }
        if target.dtype().is_float() {
            return of_probabilities(op, &self.log_softmax(axis), axis, target, options);
        }
        if options.label_smoothing > 0.0 {
            return of_classes(op, &self.log_softmax(axis), Scores::Logs, axis, target, options);
        }
        of_classes(op, &self.as_float(), Scores::Any, axis, target, options)
    }

    /// −x\[target\], for x that are logarithms of probabilities. Shapes as in [`Tensor::cross_entropy`].
    #[track_caller]
    pub fn nll_loss(&self, target: &Tensor, options: &CrossEntropyOptions<'_>) -> Tensor {
        let op = "nll_loss";
        let axis = class_axis(op, self);
        let options = CrossEntropyOptions { label_smoothing: 0.0, ..options.clone() };
        of_classes(op, self, Scores::Logs, axis, target, &options)
    }

    /// Σ max(0, margin − x\[target\] + x\[i\])^p / classes over the wrong classes i. self: (batch, classes),
    /// target: (batch).
    #[track_caller]
    pub fn multi_margin_loss(&self, target: &Tensor, p: f64, margin: f64, reduction: Reduction) -> Tensor {
        let op = "multi_margin_loss";
        let axis = class_axis(op, self);
        let x = self.as_float();
        let index = target.unsqueeze(axis);
        let right = pick(op, &x, axis, target).unsqueeze(axis);
        let short = (margin - right + &x).relu();
        let short = if p == 1.0 { short } else { short.powf(p) };
        let wrong = short.scatter_value(axis, &index, 0.0);
        reduction.of(&(wrong.sum(axis) / self.size(axis) as f64))
    }
}

/// The axis of the classes: the second, or the only one.
#[track_caller]
fn class_axis(op: &'static str, x: &Tensor) -> isize {
    match x.rank() {
        0 => fail(OpError::Rank { op, want: "at least 1 (classes)", shape: x.shape().clone() }),
        1 => 0,
        _ => 1,
    }
}

/// x[class] along an axis, which disappears.
#[track_caller]
fn pick(op: &'static str, x: &Tensor, axis: isize, class: &Tensor) -> Tensor {
    let picked = in_loss(op, apply(Gather { axis: axis as usize }, &[x, &class.unsqueeze(axis)]));
    picked.reshape(class.shape())
}

/// log softmax(x)[class] along an axis, which disappears.
#[track_caller]
fn log_likelihood(op: &'static str, x: &Tensor, axis: isize, class: &Tensor) -> Tensor {
    in_loss(op, apply(LogLikelihood, &[&x.movedim(axis, -1), class]))
}

/// A class out of range is this loss's error, not that of an op inside.
#[track_caller]
fn in_loss(op: &'static str, result: Result<Tensor, OpError>) -> Tensor {
    match result {
        Ok(y) => y,
        Err(OpError::Index { index, size, .. }) => fail(OpError::Index { op, index, size }),
        Err(error) => fail(error),
    }
}

/// What the scores of classes are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scores {
    /// Logarithms of probabilities.
    Logs,
    /// Their softmax is.
    Any,
}

#[track_caller]
fn of_classes(
    op: &'static str,
    x: &Tensor,
    scores: Scores,
    axis: isize,
    target: &Tensor,
    options: &CrossEntropyOptions<'_>,
) -> Tensor {
    let want: Shape = x.shape().without(axis as usize);
    if *target.shape() != want {
        let hint = "the target must have the shape of the scores without the axis of the classes";
        fail(OpError::Shapes { op, left: x.shape().clone(), right: target.shape().clone(), hint });
    }
    let target = target.to_dtype(DType::I64);
    let counted = target.ne(options.ignore_index);
    let safe = counted.where_(&target, 0i64);
    let picked = match scores {
        Scores::Logs => pick(op, x, axis, &safe),
        Scores::Any => log_likelihood(op, x, axis, &safe),
    };
    let one_per_class = |w: &Tensor| {
        if w.shape()[..] != [x.size(axis)] {
            let hint = "the weight must have one number per class";
            fail(OpError::Shapes { op, left: x.shape().clone(), right: w.shape().clone(), hint });
        }
        w.to_dtype(x.dtype())
    };
    let weight = options.weight.map(one_per_class);
    let share = match &weight {
        Some(w) => counted.where_(&w.index_select(0, &safe.reshape(safe.numel())).reshape(&want), 0.0),
        None => counted.to_dtype(x.dtype()),
    };
    // An ignored score may be infinite, and 0 · ∞ is NaN: choose, do not multiply alone.
    let mut losses = -(counted.where_(&picked, 0.0) * &share);
    let smoothing = options.label_smoothing;
    if smoothing > 0.0 {
        let all = match &weight {
            Some(w) => (x * w.reshape(class_column(x, axis))).sum(axis),
            None => x.sum(axis),
        };
        let spread = counted.where_(&-all, 0.0) * (smoothing / x.size(axis) as f64);
        losses = losses * (1.0 - smoothing) + spread;
    }
    match options.reduction {
        Reduction::Mean => losses.sum(()) / share.sum(()),
        other => other.of(&losses),
    }
}

#[track_caller]
fn of_probabilities(
    op: &'static str,
    log_p: &Tensor,
    axis: isize,
    target: &Tensor,
    options: &CrossEntropyOptions<'_>,
) -> Tensor {
    if target.shape() != log_p.shape() {
        let hint = "targets that are probabilities must have the shape of the scores";
        fail(OpError::Shapes { op, left: log_p.shape().clone(), right: target.shape().clone(), hint });
    }
    let classes = log_p.size(axis);
    let smoothing = options.label_smoothing;
    let target = match smoothing > 0.0 {
        true => target * (1.0 - smoothing) + smoothing / classes as f64,
        false => target.clone(),
    };
    let terms = match options.weight {
        Some(w) => target * log_p * w.reshape(class_column(log_p, axis)),
        None => target * log_p,
    };
    options.reduction.of(&-terms.sum(axis))
}

/// The shape in which one number per class meets the scores.
fn class_column(x: &Tensor, axis: isize) -> Shape {
    (0..x.rank()).map(|i| if i == axis as usize { x.size(axis) } else { 1 }).collect()
}
