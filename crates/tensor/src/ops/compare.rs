//! `compare`: a truth value per pair of elements. A comparison with NaN is false, but for `ne`.

use thalweg_core::{DType, View, ViewMut};
use thalweg_kernels::stream::arithmetic::zip;

use crate::error::OpError;
use crate::meta::{Meta, arity, require_same_dtype, require_same_shape};
use crate::operand::{Operand, with_operand};
use crate::ops::elementwise::{blocks, through};
use crate::ops::primitive::{Grad, Keep, Primitive, Tile, Vjp};
use crate::ops::sample::{Draw, Sample, elementwise_shapes};
use crate::tensor::Tensor;

/// A relation between two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Relation {
    /// a = b.
    Eq,
    /// a ≠ b.
    Ne,
    /// a < b.
    Lt,
    /// a ≤ b.
    Le,
    /// a > b.
    Gt,
    /// a ≥ b.
    Ge,
}

/// Whether a relation holds, as `bool`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Compare {
    /// The relation.
    pub relation: Relation,
}

impl Primitive for Compare {
    const NAME: &'static str = "compare";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [a, b] = arity(Self::NAME, x)?;
        require_same_dtype(Self::NAME, a, b)?;
        require_same_shape(Self::NAME, a, b)?;
        Ok(a.with_dtype(DType::Bool))
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    fn grad(&self, _g: &Vjp<'_>) -> Grad {
        Grad::None("a comparison is constant almost everywhere; use `where_` on its result")
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let x = [x[0], x[1]];
        if x[0].dtype().is_float() {
            through::<f64, bool, 2>(x, y, |[a, b], y| compare(self.relation, a, b, y));
        } else {
            through::<i64, bool, 2>(x, y, |[a, b], y| compare(self.relation, a, b, y));
        }
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let x = [x[0], x[1]];
        match x[0].dtype() {
            DType::F32 => blocks::<f32, bool, 2>(x, y.dense(), |[a, b], y| compare(self.relation, a, b, y)),
            DType::F64 => blocks::<f64, bool, 2>(x, y.dense(), |[a, b], y| compare(self.relation, a, b, y)),
            DType::I64 => blocks::<i64, bool, 2>(x, y.dense(), |[a, b], y| compare(self.relation, a, b, y)),
            _ => return false,
        }
        true
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn tile(&self) -> Option<Tile> {
        fn as_number(holds: bool) -> f32 {
            f32::from(u8::from(holds))
        }
        Some(Tile::Zip(match self.relation {
            Relation::Eq => |a, b, y| zip(a, b, y, |a, b| as_number(a == b)),
            Relation::Ne => |a, b, y| zip(a, b, y, |a, b| as_number(a != b)),
            Relation::Lt => |a, b, y| zip(a, b, y, |a, b| as_number(a < b)),
            Relation::Le => |a, b, y| zip(a, b, y, |a, b| as_number(a <= b)),
            Relation::Gt => |a, b, y| zip(a, b, y, |a, b| as_number(a > b)),
            Relation::Ge => |a, b, y| zip(a, b, y, |a, b| as_number(a >= b)),
        }))
    }

    fn samples() -> Vec<Sample> {
        let mut samples = Vec::new();
        for relation in [Relation::Eq, Relation::Ne, Relation::Lt, Relation::Le, Relation::Gt, Relation::Ge] {
            let op = Compare { relation };
            samples
                .extend(elementwise_shapes().map(|s| Sample::new(op, [Draw::any(s.clone()), Draw::any(s)])));
            samples.push(Sample::new(op, [Draw::int([2, 9], 0, 3), Draw::int([2, 9], 0, 3)]));
            samples.push(Sample::new(op, [Draw::bool([5]), Draw::bool([5])]));
        }
        samples
    }
}

/// The relation is looked at once per block, so that each loop is one comparison.
fn compare<T: Copy + PartialOrd>(relation: Relation, a: &[T], b: &[T], y: &mut [bool]) {
    match relation {
        Relation::Eq => zip(a, b, y, |a, b| a == b),
        Relation::Ne => zip(a, b, y, |a, b| a != b),
        Relation::Lt => zip(a, b, y, |a, b| a < b),
        Relation::Le => zip(a, b, y, |a, b| a <= b),
        Relation::Gt => zip(a, b, y, |a, b| a > b),
        Relation::Ge => zip(a, b, y, |a, b| a >= b),
    }
}

macro_rules! relations {
    ($($(#[$doc:meta])* $name:ident, $Relation:ident;)*) => {
        impl Tensor {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
                with_operand(Compare { relation: Relation::$Relation }, self, other.into())
            })*
        }
    };
}

relations! {
    /// Where the elements are equal; NaN equals nothing.
    eq, Eq;
    /// Where the elements differ; NaN differs from everything.
    ne, Ne;
    /// Where the elements are smaller than the other's.
    lt, Lt;
    /// Where the elements are at most the other's.
    le, Le;
    /// Where the elements are larger than the other's.
    gt, Gt;
    /// Where the elements are at least the other's.
    ge, Ge;
}

impl Tensor {
    /// Where the elements are zero, `bool` or not; NaN is not zero.
    #[track_caller]
    pub fn logical_not(&self) -> Tensor {
        self.eq(false)
    }

    /// Where the elements are NaN.
    #[track_caller]
    pub fn isnan(&self) -> Tensor {
        self.ne(self)
    }
}
