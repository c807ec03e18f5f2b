//! `conv_weight`: the gradient of a convolution with respect to its weight:
//! w[o, i, k] = Σ x[n, i, q] · y[n, o, p] over all images and all p, q that meet at tap k.

use smallvec::SmallVec;
use thalweg_core::{Shape, View, ViewMut};
use thalweg_kernels::conv;

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity, require_float, require_same_dtype};
use crate::ops::convolution::{self, ConvGeometry};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{Conv, ConvInput, single};

/// x: (batch, in, *input), y: (batch, out, *output) → (out, in / groups, *kernel).
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ConvWeight {
    /// Stride, dilation, padding and groups of the convolution.
    pub geometry: ConvGeometry,
    /// The sizes of its kernel, of which several can lead to one output.
    pub kernel: SmallVec<[usize; 3]>,
}

impl Primitive for ConvWeight {
    const NAME: &'static str = "conv_weight";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x, y] = arity(Self::NAME, x)?;
        require_float(Self::NAME, x)?;
        require_same_dtype(Self::NAME, x, y)?;
        let misfit = || {
            let hint = "the second must be what a convolution of the first gives";
            OpError::Shapes { op: Self::NAME, left: x.shape.clone(), right: y.shape.clone(), hint }
        };
        let n = self.geometry.axes.len();
        if x.shape.rank() != n + 2 || y.shape.rank() != n + 2 || self.kernel.len() != n {
            return Err(misfit());
        }
        let groups = self.geometry.groups.max(1);
        let w: Shape =
            [y.shape[1], x.shape[1] / groups].into_iter().chain(self.kernel.iter().copied()).collect();
        if self.geometry.result(Self::NAME, &x.shape, &w)? != y.shape {
            return Err(misfit());
        }
        Ok(x.with_shape(w))
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::input(1))
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let geometry = || self.geometry.clone();
        g.pair(
            || {
                let op = ConvInput { geometry: geometry(), input: g.x(0).shape()[2..].into() };
                run(op, &[g.x(1), g.dy()])
            },
            || run(Conv { geometry: geometry() }, &[g.x(0), g.dy()]),
        )
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let c = self.geometry.sizes(x[0].shape(), y.shape(), x[1].shape());
        convolution::reference(&c, [x[0], x[1]], y, |[x, w, y]| [x, y, w]);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let c = self.geometry.sizes(x[0].shape(), y.shape(), x[1].shape());
        let (Some(x), Some(dy)) = (single::operand(x[0]), single::operand(x[1])) else { return false };
        single::result(y, |dw| conv::weight_gradient(&c, &x, &dy, dw))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let c = self.geometry.sizes(&x[0].shape, &y.shape, &x[1].shape);
        Cost { flops: convolution::flops(&c), bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |(x, w, geometry): (Shape, Shape, ConvGeometry)| {
            let y = geometry.result(Self::NAME, &x, &w).expect("a sample that fits");
            Sample::new(ConvWeight { geometry, kernel: w[2..].into() }, [Draw::any(x), Draw::any(y)])
        };
        convolution::sample_calls().into_iter().map(call).collect()
    }
}
