//! `linear`: y = x Wᵀ + b for rows x: (N, in), weights W: (out, in) and a bias b: (out).

use thalweg_core::{DType, Element, View, ViewMut, with_dtype};
use thalweg_kernels::gemm::{self, OnReady};

use crate::apply::run;
use crate::error::{OpError, fail};
use crate::meta::{Meta, arity, require_float, require_same_dtype};
use crate::ops::matmul::matrix;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// x Wᵀ + b. A kernel of its own lets the product add onto the bias, which saves a pass over the result.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Linear;

impl Primitive for Linear {
    const NAME: &'static str = "linear";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x, w, b] = arity(Self::NAME, x)?;
        require_float(Self::NAME, x)?;
        require_same_dtype(Self::NAME, x, w)?;
        require_same_dtype(Self::NAME, x, b)?;
        match (&*x.shape, &*w.shape, &*b.shape) {
            (&[rows, k], &[n, k2], &[n2]) if k == k2 && n == n2 => Ok(x.with_shape([rows, n])),
            (_, &[n, _], &[n2]) if n != n2 => Err(misfit(w, b)),
            _ => Err(misfit(x, w)),
        }
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::input(1))
    }

    /// dx = dy W; dW = dyᵀ x; db = Σ dy over the rows.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let dy = g.dy();
        Grad::Inputs(smallvec::smallvec![
            g.want(0, || dy.matmul(g.x(1))),
            g.want(1, || dy.t().matmul(g.x(0))),
            g.want(2, || dy.sum(0)),
        ])
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let (k, n) = (x[1].shape()[1], x[1].shape()[0]);
        with_dtype!(y.dtype(), T => {
            let [x, w, b] = [x[0], x[1], x[2]].map(|v| v.iter::<T>().map(Element::to_f64).collect::<Vec<f64>>());
            for (i, y) in y.dense::<T>().iter_mut().enumerate() {
                let (row, col) = (i / n, i % n);
                let terms = x[row * k..][..k].iter().zip(&w[col * k..][..k]);
                *y = Element::from_f64(b[col] + terms.map(|(x, w)| x * w).sum::<f64>());
            }
        });
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        product(x, y, None)
    }

    fn is_ready_in_pieces(&self) -> bool {
        true
    }

    fn fast_then(&self, x: &[View<'_>], y: &mut ViewMut<'_>, ready: &OnReady<'_>) -> bool {
        product(x, y, Some(ready))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let k = x[1].shape.last().copied().unwrap_or(1);
        Cost { flops: 2 * (y.numel() * k) as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        Some(x[0].matmul(&x[1].t()) + &x[2])
    }

    fn samples() -> Vec<Sample> {
        let call = |m: usize, k: usize, n: usize| {
            Sample::new(Linear, [Draw::any([m, k]), Draw::any([n, k]), Draw::any(n)])
        };
        vec![
            call(3, 4, 2),
            call(1, 1, 1),
            call(17, 5, 3),
            call(2, 33, 19),
            call(0, 3, 2),
            call(2, 0, 3),
            call(2, 3, 0),
        ]
    }
}

/// The product, begun with the bias in every row.
fn product(x: &[View<'_>], y: &mut ViewMut<'_>, ready: gemm::Ready<'_>) -> bool {
    macro_rules! product {
        ($T:ty, $gemm:path) => {{
            let (Some(a), Some(w)) = (matrix::<$T>(x[0]), matrix::<$T>(x[1])) else { return false };
            let bias: std::borrow::Cow<'_, [$T]> =
                x[2].dense::<$T>().map_or_else(|| x[2].iter().collect(), Into::into);
            $gemm(a, w.t(), y.dense::<$T>(), bias.len(), gemm::Start::Row(&bias), ready);
        }};
    }
    match y.dtype() {
        DType::F32 => product!(f32, gemm::gemm_then_f32),
        DType::F64 => product!(f64, gemm::gemm_then_f64),
        _ => return false,
    }
    true
}

fn misfit(left: &Meta, right: &Meta) -> OpError {
    let hint = "the weight is (out, in), the bias (out), and the last axis of the input is `in`";
    OpError::Shapes { op: Linear::NAME, left: left.shape.clone(), right: right.shape.clone(), hint }
}

impl Tensor {
    /// x Wᵀ + b over the last axis: `weight` is (out, in), `bias` (out).
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let x = Tensor::from([[1.0f32, 2.0]]);
    /// let (w, b) = (Tensor::from([[1.0f32, 1.0], [0.0, 2.0]]), Tensor::from([0.5f32, 0.0]));
    /// assert_eq!(x.linear(&w, Some(&b)).to_vec::<f32>(), [3.5, 4.0]);
    /// ```
    #[track_caller]
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        if weight.rank() != 2 || self.rank() == 0 || self.size(-1) != weight.size(-1) {
            fail(misfit(self.meta(), weight.meta()));
        }
        let Some(bias) = bias else { return self.matmul(&weight.t()) };
        if *bias.shape() != [weight.size(0)].into() {
            fail(misfit(weight.meta(), bias.meta()));
        }
        let dtype = self.dtype().promote(weight.dtype()).promote(bias.dtype());
        if !matches!(dtype, DType::F32 | DType::F64) {
            return self.matmul(&weight.t()) + bias;
        }
        let [x, weight, bias] = [self, weight, bias].map(|t| t.to_dtype(dtype));
        let shape = x.shape().with(x.rank() - 1, weight.size(0));
        let rows: usize = x.shape()[..x.rank() - 1].iter().product();
        run(Linear, &[&x.reshape([rows, x.size(-1)]), &weight, &bias]).reshape(shape)
    }
}
