//! `convert`: the same values as another dtype. Floats become integers by truncation, saturating;
//! anything becomes `bool` by "is not zero"; integers narrow by wrapping.

use thalweg_core::{DType, View, ViewMut};

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::elementwise::through;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// The same values as another dtype.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Convert {
    /// The dtype of the result.
    pub dtype: DType,
}

impl Primitive for Convert {
    const NAME: &'static str = "convert";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        Ok(x.with_dtype(self.dtype))
    }

    fn keep(&self) -> Keep {
        Keep::METAS
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy().to_dtype(g.meta(0).dtype))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        match (x[0].dtype().is_float(), self.dtype) {
            (true, DType::Bool) => through::<bool, bool, 1>([x[0]], y, |[x], y| y.copy_from_slice(x)),
            (true, _) => through::<f64, f64, 1>([x[0]], y, |[x], y| y.copy_from_slice(x)),
            (false, _) => through::<i64, i64, 1>([x[0]], y, |[x], y| y.copy_from_slice(x)),
        }
        Ok(())
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost::copy(x, y)
    }

    fn samples() -> Vec<Sample> {
        let to = |dtype| Sample::new(Convert { dtype }, [Draw::any([2, 3])]);
        vec![to(DType::F64), to(DType::F32), Sample::new(Convert { dtype: DType::F64 }, [Draw::any([0, 2])])]
    }
}

impl Tensor {
    /// The same values as another dtype; itself when it has that dtype already.
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Tensor {
        if self.dtype() == dtype { self.clone() } else { run(Convert { dtype }, &[self]) }
    }

    /// Itself when a float, else converted to f32: how float functions take integers.
    pub(crate) fn as_float(&self) -> Tensor {
        if self.dtype().is_float() { self.clone() } else { self.to_dtype(DType::F32) }
    }
}
