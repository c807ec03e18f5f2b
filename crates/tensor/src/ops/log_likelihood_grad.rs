//! `log_likelihood_grad`: dx = dy (1 at the class, 0 elsewhere − softmax(x)) of each row of the last axis.

use smallvec::smallvec;
use thalweg_core::{View, ViewMut};
use thalweg_kernels::rows;

use crate::error::OpError;
use crate::meta::{Meta, arity, require_same_dtype, require_same_shape};
use crate::ops::log_likelihood::{require_classes, with_classes};
use crate::ops::placing::positions;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::single;
use crate::tensor::Tensor;

/// Scores, classes, dy → dx.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct LogLikelihoodGrad;

impl Primitive for LogLikelihoodGrad {
    const NAME: &'static str = "log_likelihood_grad";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x, class, dy] = arity(Self::NAME, x)?;
        require_classes(Self::NAME, x, class)?;
        require_same_dtype(Self::NAME, x, dy)?;
        require_same_shape(Self::NAME, class, dy)?;
        Ok(x.clone())
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::input(1)).and(Keep::input(2))
    }

    /// With z the incoming gradient and p = softmax(x): that of x is −dy p (z − Σ z p), that of dy is z\[class\] − Σ z p.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (class, z) = (g.x(1), g.dy());
        let p = g.x(0).softmax(-1);
        let mean = (z * &p).sum_keepdim(-1);
        let dx = g.want(0, || -(g.x(2).unsqueeze(-1) * &p * (z - &mean)));
        let d_dy = g.want(2, || (z.gather(-1, &class.unsqueeze(-1)) - &mean).reshape(class.shape()));
        Grad::Inputs(smallvec![dx, None, d_dy])
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let cols = *x[0].shape().last().expect("`infer` asked for rows");
        let classes = positions(Self::NAME, x[1], cols)?;
        let (mut values, dy) = (widened(x[0]), widened(x[2]));
        let rows = values.chunks_exact_mut(cols.max(1)).zip(classes.iter()).zip(&dy);
        for ((row, &class), dy) in rows {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            row.iter_mut().for_each(|x| *x = (*x - max).exp());
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|e| *e *= -dy / sum);
            row[class] += dy;
        }
        narrow_into(&values, y);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let Some(dy) = single::operand(x[2]) else { return false };
        with_classes(x[0], x[1], |x, classes, cols| {
            single::result(y, |dx| rows::softmax::log_likelihood_backward(x, classes, &dy, cols, dx))
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 10 * y.numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        let dy = x[2].unsqueeze(-1);
        let spread = -(x[0].softmax(-1) * &dy);
        Some(spread.scatter_add(-1, &x[1].unsqueeze(-1), &dy))
    }

    fn samples() -> Vec<Sample> {
        let call = |shape: &[usize]| {
            let (cols, rows) = shape.split_last().expect("there are rows");
            let inputs = [Draw::any(shape), Draw::int(rows, 0, *cols as i64), Draw::any(rows)];
            Sample::new(LogLikelihoodGrad, inputs)
        };
        vec![call(&[2, 5]), call(&[3, 1]), call(&[0, 4]), call(&[7]), call(&[2, 3, 37])]
    }
}
