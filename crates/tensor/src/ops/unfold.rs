//! `unfold`: sliding windows along an axis; the window becomes a new last axis. Always a view.

use thalweg_core::{Layout, Shape, View, ViewMut};

use crate::apply::run;
use crate::error::{InOp, OpError, fail, or_fail};
use crate::meta::{Meta, arity};
use crate::ops::copy;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// Sliding windows along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Unfold {
    /// The axis along which the window slides.
    pub axis: usize,
    /// How long a window is.
    pub size: usize,
    /// How far apart windows start.
    pub step: usize,
}

impl Primitive for Unfold {
    const NAME: &'static str = "unfold";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        if x.shape.get(self.axis).is_none_or(|&d| self.size > d) || self.step == 0 {
            return Err(OpError::Argument {
                op: Self::NAME,
                name: "window",
                value: format!("{} every {} along axis {}", self.size, self.step, self.axis),
                shape: x.shape.clone(),
                need: "the window must fit the axis and the step must not be 0",
            });
        }
        let layout = Layout::contiguous(x.shape.clone()).windows(self.axis, self.size, self.step);
        Ok(x.with_shape(layout.shape()))
    }

    fn keep(&self) -> Keep {
        Keep::METAS
    }

    /// Each element collects from every window that shows it.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let axis = self.axis as isize;
        let n = g.dy().size(axis);
        let shown = (0..n * self.size).map(|i| (i / self.size * self.step + i % self.size) as i64);
        let shown = Tensor::from(shown.collect::<Vec<_>>());
        let windows = g.dy().movedim(-1, axis + 1).flatten(axis, axis + 1);
        Grad::one(Tensor::zeros_of(g.meta(0)).index_add(axis, &shown, &windows))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        copy::through_layout(x[0], &x[0].layout().windows(self.axis, self.size, self.step), y);
        Ok(())
    }

    fn view(&self, x: &Layout, _result: &Shape) -> Option<Layout> {
        Some(x.windows(self.axis, self.size, self.step))
    }

    fn cost(&self, _x: &[&Meta], _y: &Meta) -> Cost {
        Cost::default()
    }

    fn samples() -> Vec<Sample> {
        let call =
            |shape: &[usize], axis, size, step| Sample::new(Unfold { axis, size, step }, [Draw::any(shape)]);
        vec![
            call(&[2, 7], 1, 3, 2),
            call(&[5, 2], 0, 3, 1),
            call(&[2, 6, 2], 1, 2, 3),
            call(&[4], 0, 0, 2),
            call(&[3], 0, 3, 1),
        ]
    }
}

impl Tensor {
    /// Windows of `size` along an axis, `step` apart, without copying; the window becomes a new last
    /// axis. (`torch.Tensor.unfold`.)
    #[track_caller]
    pub fn unfold_dim(&self, axis: isize, size: usize, step: usize) -> Tensor {
        let axis = or_fail(self.shape().axis(axis).in_op(Unfold::NAME));
        if self.rank() == 0 {
            fail(OpError::Rank { op: Unfold::NAME, want: "at least 1", shape: Shape::scalar() });
        }
        run(Unfold { axis, size, step }, &[self])
    }
}
