//! `prod`: the product over some axes, which disappear. Of no elements it is 1. On integers it wraps.

use smallvec::SmallVec;
use thalweg_core::{DType, Shape, View, ViewMut};

use crate::apply::run;
use crate::args::Axes;
use crate::error::{OpError, or_fail};
use crate::meta::{Meta, arity, require_number};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::reduction;
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// The product over some axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Prod {
    /// The axes that disappear, in ascending order.
    pub axes: SmallVec<[usize; 4]>,
}

impl Primitive for Prod {
    const NAME: &'static str = "prod";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        require_number(Self::NAME, x)?;
        reduction::infer(Self::NAME, x, &self.axes)
    }

    fn keep(&self) -> Keep {
        Keep::input(0)
    }

    /// Each factor's gradient is the product of all others: of those before it and those after it.
    /// Nothing is divided, so zeros are ordinary.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let x = g.x(0);
        let rank = x.rank();
        let order: Vec<usize> =
            (0..rank).filter(|a| !self.axes.contains(a)).chain(self.axes.iter().copied()).collect();
        let mut back = vec![0; rank];
        order.iter().enumerate().for_each(|(to, &from)| back[from] = to);
        let last = x.permute(&order[..]);
        let n = reduction::count(x.shape(), &self.axes);
        if x.numel() == 0 {
            return Grad::zero(1);
        }
        let rows = last.reshape([x.numel() / n, n]);
        let before = |t: &Tensor| {
            let ones = t.narrow(1, 0, 1).ones_like();
            Tensor::concat(&[ones, t.narrow(1, 0, n - 1).cumprod(1)], 1)
        };
        let others = before(&rows) * before(&rows.flip(1)).flip(1);
        let dx = others * g.dy().reshape([x.numel() / n, 1]);
        Grad::one(dx.reshape(last.shape()).permute(&back[..]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        if x[0].dtype().is_float() {
            reduction::fold(x[0], &self.axes, y, 1.0f64, |product, v: f64| product * v);
        } else {
            reduction::fold(x[0], &self.axes, y, 1i64, |product: i64, v: i64| product.wrapping_mul(v));
        }
        Ok(())
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: x[0].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        // Small factors, or the product of 37 is out of proportion to the step of finite differences.
        let near_one = |shape: Shape| Draw::float(shape, 0.5, 1.5);
        let mut samples = reduction::samples(|axes| Prod { axes }, near_one);
        samples.push(Sample::new(Prod { axes: smallvec::smallvec![1] }, [Draw::any([3, 4])]));
        samples.push(Sample::new(Prod { axes: smallvec::smallvec![0] }, [Draw::int([3, 2], -3, 4)]));
        samples
    }
}

impl Tensor {
    /// The product over some axes, `()` for all. Integers multiply as i64.
    #[track_caller]
    pub fn prod(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = or_fail(axes.into().resolve(Prod::NAME, self.shape()));
        let x = if self.dtype().is_float() { self.clone() } else { self.to_dtype(DType::I64) };
        run(Prod { axes }, &[&x])
    }

    /// [`Tensor::prod`], with the axes kept at size 1.
    #[track_caller]
    pub fn prod_keepdim(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = axes.into();
        let kept = reduction::kept(self.shape(), &or_fail(axes.resolve(Prod::NAME, self.shape())));
        self.prod(axes).reshape(kept)
    }
}

#[test]
fn zeros_do_not_spoil_the_gradient() {
    let x = Tensor::from([[1.0f32, 0.0, 3.0], [0.0, 0.0, 2.0]]);
    let dx = crate::grad(|x| x.prod(1).sum(()))(&x);
    assert_eq!(dx.to_vec::<f32>(), [0.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
}
