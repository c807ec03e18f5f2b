//! `permute`: the axes in another order. Always a view.

use smallvec::SmallVec;
use thalweg_core::{Layout, Shape, View, ViewMut};

use crate::apply::run;
use crate::args::Axes;
use crate::error::{InOp, OpError, or_fail};
use crate::meta::{Meta, arity};
use crate::ops::copy;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// The axes in another order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Permute {
    /// `axes[i]` is the operand's axis that becomes axis `i`.
    pub axes: SmallVec<[usize; 4]>,
}

impl Permute {
    fn inverse(&self) -> Permute {
        let mut axes: SmallVec<[usize; 4]> = SmallVec::from_elem(0, self.axes.len());
        for (i, &a) in self.axes.iter().enumerate() {
            axes[a] = i;
        }
        Permute { axes }
    }
}

impl Primitive for Permute {
    const NAME: &'static str = "permute";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        let mut seen = vec![false; x.shape.rank()];
        let fresh = |&a: &usize| a < seen.len() && !std::mem::replace(&mut seen[a], true);
        if self.axes.len() != x.shape.rank() || !self.axes.iter().all(fresh) {
            return Err(OpError::Argument {
                op: Self::NAME,
                name: "axes",
                value: format!("{:?}", self.axes),
                shape: x.shape.clone(),
                need: "each axis must be named exactly once",
            });
        }
        Ok(x.with_shape(self.axes.iter().map(|&a| x.shape[a]).collect::<Shape>()))
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        Grad::one(run(self.inverse(), &[g.dy()]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        copy::through_layout(x[0], &x[0].layout().permute(&self.axes), y);
        Ok(())
    }

    fn view(&self, x: &Layout, _result: &Shape) -> Option<Layout> {
        Some(x.permute(&self.axes))
    }

    fn cost(&self, _x: &[&Meta], _y: &Meta) -> Cost {
        Cost::default()
    }

    fn samples() -> Vec<Sample> {
        let by =
            |shape: &[usize], axes: &[usize]| Sample::new(Permute { axes: axes.into() }, [Draw::any(shape)]);
        vec![by(&[2, 3], &[1, 0]), by(&[2, 3, 4], &[2, 0, 1]), by(&[2, 0, 1], &[1, 2, 0]), by(&[], &[])]
    }
}

impl Tensor {
    /// The axes in another order.
    #[track_caller]
    pub fn permute(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = or_fail(self.shape().axes(&axes.into().list(self.rank())).in_op(Permute::NAME));
        run(Permute { axes }, &[self])
    }

    /// Two axes exchanged.
    #[track_caller]
    pub fn transpose(&self, axis0: isize, axis1: isize) -> Tensor {
        let a = or_fail(self.shape().axis(axis0).in_op("transpose"));
        let b = or_fail(self.shape().axis(axis1).in_op("transpose"));
        let mut axes: SmallVec<[usize; 4]> = (0..self.rank()).collect();
        if !axes.is_empty() {
            axes.swap(a, b);
        }
        run(Permute { axes }, &[self])
    }

    /// The transpose of a matrix; of more axes, the last two exchanged; a vector as it is.
    #[track_caller]
    pub fn t(&self) -> Tensor {
        if self.rank() < 2 { self.clone() } else { self.transpose(-2, -1) }
    }

    /// One axis moved elsewhere, the others in their order.
    #[track_caller]
    pub fn movedim(&self, source: isize, destination: isize) -> Tensor {
        let from = or_fail(self.shape().axis(source).in_op("movedim"));
        let to = or_fail(self.shape().axis(destination).in_op("movedim"));
        let mut axes: SmallVec<[usize; 4]> = (0..self.rank()).collect();
        if !axes.is_empty() {
            let axis = axes.remove(from);
            axes.insert(to, axis);
        }
        run(Permute { axes }, &[self])
    }
}
