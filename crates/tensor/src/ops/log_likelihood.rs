//! `log_likelihood`: y = log_softmax(x)[class] of each row of the last axis, which disappears: the cross-entropy of classes
//! without its sign. Nothing as large as the scores is written.

use smallvec::smallvec;
use thalweg_core::{View, ViewMut};
use thalweg_kernels::rows;

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity, require_float, require_index};
use crate::ops::LogLikelihoodGrad;
use crate::ops::placing::{all_inside, positions};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, require_rows, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::single;
use crate::tensor::Tensor;

/// Scores, and an i64 class for each row of them → the logarithm of the probability of that class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct LogLikelihood;

impl Primitive for LogLikelihood {
    const NAME: &'static str = "log_likelihood";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x, class] = arity(Self::NAME, x)?;
        require_classes(Self::NAME, x, class)?;
        Ok(x.with_shape(&class.shape))
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::input(1))
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let dx = g.want(0, || run(LogLikelihoodGrad, &[g.x(0), g.x(1), g.dy()]));
        Grad::Inputs(smallvec![dx, None])
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let cols = *x[0].shape().last().expect("`infer` asked for rows");
        let classes = positions(Self::NAME, x[1], cols)?;
        let scores = widened(x[0]);
        let of_row = |(row, &class): (&[f64], &usize)| {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            row[class] - max - row.iter().map(|x| (x - max).exp()).sum::<f64>().ln()
        };
        let values: Vec<f64> = scores.chunks_exact(cols.max(1)).zip(classes.iter()).map(of_row).collect();
        narrow_into(&values, y);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        with_classes(x[0], x[1], |x, classes, cols| {
            single::result(y, |y| rows::softmax::log_likelihood(x, classes, cols, y))
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 10 * x[0].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        let picked = x[0].log_softmax(-1).gather(-1, &x[1].unsqueeze(-1));
        Some(picked.reshape(x[1].shape()))
    }

    fn samples() -> Vec<Sample> {
        let call = |shape: &[usize]| {
            let (cols, rows) = shape.split_last().expect("there are rows");
            Sample::new(LogLikelihood, [Draw::any(shape), Draw::int(rows, 0, *cols as i64)])
        };
        vec![call(&[2, 5]), call(&[3, 1]), call(&[0, 4]), call(&[7]), call(&[2, 3, 37])]
    }
}

/// Floats with at least one axis, and an index with one number for each row of the last.
pub(crate) fn require_classes(op: &'static str, x: &Meta, class: &Meta) -> Result<(), OpError> {
    require_float(op, x)?;
    require_index(op, class)?;
    require_rows(op, x)?;
    if class.shape == x.shape.without(x.shape.rank() - 1) {
        return Ok(());
    }
    let hint = "there must be one class for each row of scores";
    Err(OpError::Shapes { op, left: x.shape.clone(), right: class.shape.clone(), hint })
}

/// Calls a kernel with scores, classes and the length of a row. `false` without a call when some class is none: the reference
/// says which.
pub(crate) fn with_classes(
    x: View<'_>,
    class: View<'_>,
    kernel: impl FnOnce(&[f32], &[i64], usize) -> bool,
) -> bool {
    let cols = x.shape().last().copied().unwrap_or(0);
    let Some(classes) = class.dense::<i64>().filter(|c| !c.is_empty() && all_inside(c, cols)) else {
        return false;
    };
    single::operand(x).is_some_and(|x| kernel(&x, classes, cols))
}
