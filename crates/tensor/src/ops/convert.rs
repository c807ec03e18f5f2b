//! `convert`: the same values as another dtype. Floats become integers by truncation, saturating;
//! anything becomes `bool` by "is not zero"; integers narrow by wrapping.

use half::{bf16, f16};
use thalweg_core::{DType, Element, View, ViewMut};
use thalweg_kernels::stream::arithmetic::map;
use thalweg_kernels::stream::convert::{CastTo, cast, f16_to_f32, f32_to_f16};
use thalweg_kernels::stream::split::par_chunks_mut;

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::elementwise::{GRAIN, through};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Tile, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// The same values as another dtype.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
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

    /// Dense operands of the common dtypes, in vectors.
    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        match (x[0].dtype(), self.dtype) {
            (DType::F16, DType::F32) => pieces::<f16, f32>(x[0], y, f16_to_f32),
            (DType::F32, DType::F16) => pieces::<f32, f16>(x[0], y, f32_to_f16),
            (DType::F32, to) => cast_from::<f32>(x[0], to, y),
            (DType::F64, to) => cast_from::<f64>(x[0], to, y),
            (DType::BF16, to) => cast_from::<bf16>(x[0], to, y),
            (DType::F16, to) => cast_from::<f16>(x[0], to, y),
            (DType::I64, to) => cast_from::<i64>(x[0], to, y),
            (DType::I32, to) => cast_from::<i32>(x[0], to, y),
            (DType::U8, to) => cast_from::<u8>(x[0], to, y),
            (DType::Bool, to) => cast_from::<bool>(x[0], to, y),
            _ => false,
        }
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost::copy(x, y)
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn tile(&self) -> Option<Tile> {
        match self.dtype {
            // Tiles are f32 already, and rounded to half of that behind the op; a `bool` is 0 or 1.
            DType::F32 | DType::F16 | DType::BF16 => Some(Tile::Map(|x, y| y.copy_from_slice(x))),
            DType::Bool => Some(Tile::Map(|x, y| map(x, y, |x| f32::from(u8::from(x != 0.0))))),
            _ => None,
        }
    }

    fn samples() -> Vec<Sample> {
        let to = |dtype| Sample::new(Convert { dtype }, [Draw::any([2, 3])]);
        let from = |draw| move |dtype| Sample::new(Convert { dtype }, [Draw::clone(&draw)]);
        let mut samples = vec![to(DType::F64), to(DType::F32), from(Draw::any([0, 2]))(DType::F64)];
        samples.extend(DType::ALL.map(from(Draw::float([37], -300.0, 300.0))));
        samples.extend(DType::ALL.map(from(Draw::int([37], -70_000, 70_000))));
        samples.extend(DType::ALL.map(from(Draw::bool([37]))));
        samples
    }
}

/// The conversions that the kernels have from one type.
fn cast_from<A>(x: View<'_>, to: DType, y: &mut ViewMut<'_>) -> bool
where
    A: Element,
    A: CastTo<f32>
        + CastTo<f64>
        + CastTo<f16>
        + CastTo<bf16>
        + CastTo<i64>
        + CastTo<i32>
        + CastTo<u8>
        + CastTo<bool>,
{
    match to {
        DType::F32 => pieces::<A, f32>(x, y, cast),
        DType::F64 => pieces::<A, f64>(x, y, cast),
        // Through f32, whole numbers of more than 24 bits would be rounded twice.
        DType::F16 | DType::BF16 if matches!(x.dtype(), DType::I64 | DType::I32) => false,
        DType::F16 => pieces::<A, f16>(x, y, cast),
        DType::BF16 => pieces::<A, bf16>(x, y, cast),
        DType::I64 => pieces::<A, i64>(x, y, cast),
        DType::I32 => pieces::<A, i32>(x, y, cast),
        DType::U8 => pieces::<A, u8>(x, y, cast),
        DType::Bool => pieces::<A, bool>(x, y, cast),
        _ => false,
    }
}

fn pieces<A: Element, B: Element>(
    x: View<'_>,
    y: &mut ViewMut<'_>,
    f: impl Fn(&[A], &mut [B]) + Sync,
) -> bool {
    let Some(x) = x.dense::<A>() else { return false };
    par_chunks_mut(y.dense(), GRAIN, |start, y| f(&x[start..start + y.len()], y));
    true
}

impl Tensor {
    /// The same values as another dtype; itself when it has that dtype already.
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Tensor {
        if self.dtype() == dtype { self.clone() } else { run(Convert { dtype }, &[self]) }
    }

    /// Itself when a float, else converted to f32: how float functions take integers.
    #[track_caller]
    pub(crate) fn as_float(&self) -> Tensor {
        if self.dtype().is_float() { self.clone() } else { self.to_dtype(DType::F32) }
    }
}
