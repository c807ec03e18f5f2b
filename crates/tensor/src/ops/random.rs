//! `random`: numbers drawn from a key: the same key gives the same numbers, on any device and for
//! any number of threads, since each number is a function of the key and its own position.

use thalweg_core::{DType, Shape, View, ViewMut};
use thalweg_kernels::philox::philox4x32;
use thalweg_kernels::stream::split::par_chunks_mut;

use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};

/// Uniform numbers of a shape: floats in `0..1`, all 32 bits of a u32, or 0 ≤ n < 2⁶³ as i64.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Random {
    /// The shape of the result.
    pub shape: Shape,
    /// f32, f64, u32 or i64.
    pub dtype: DType,
}

/// The words of a u32 or (as whole numbers) i64 tensor that has `N` elements.
pub(crate) fn words_of<const N: usize>(x: View<'_>) -> [u32; N] {
    let mut words = [0; N];
    match x.dtype() {
        DType::U32 => words.iter_mut().zip(x.iter::<u32>()).for_each(|(w, x)| *w = x),
        _ => words.iter_mut().zip(x.iter::<i64>()).for_each(|(w, x)| *w = x as u32),
    }
    words
}

/// A key is two words.
pub(crate) fn require_key(op: &'static str, key: &Meta) -> Result<(), OpError> {
    if !matches!(key.dtype, DType::U32 | DType::I64) {
        return Err(OpError::DType { op, want: "u32 (a random key)", got: key.dtype });
    }
    if *key.shape != [2] {
        let hint = "a random key has two words; take it from `Rng::key`";
        return Err(OpError::Shapes { op, left: key.shape.clone(), right: [2].into(), hint });
    }
    Ok(())
}

impl Primitive for Random {
    const NAME: &'static str = "random";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [key] = arity(Self::NAME, x)?;
        require_key(Self::NAME, key)?;
        match self.dtype {
            DType::F32 | DType::F64 | DType::U32 | DType::I64 => Ok(Meta::new(self.dtype, &self.shape)),
            got => Err(OpError::DType { op: Self::NAME, want: "f32, f64, u32 or i64", got }),
        }
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    fn grad(&self, _g: &Vjp<'_>) -> Grad {
        Grad::None("random numbers do not depend smoothly on their key")
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let key = words_of(x[0]);
        // 24 and 53 bits: every multiple of the spacing below 1 is equally likely, and 1 never comes.
        match self.dtype {
            DType::F32 => narrow(key, y.dense(), |w| (w >> 8) as f32 * (1.0 / (1 << 24) as f32)),
            DType::U32 => narrow(key, y.dense(), |w| w),
            DType::F64 => wide(key, y.dense(), |w| (w >> 11) as f64 * (1.0 / (1u64 << 53) as f64)),
            DType::I64 => wide(key, y.dense(), |w| (w >> 1) as i64),
            _ => unreachable!("refused by `infer`"),
        }
        Ok(())
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 12 * y.numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |dtype| Sample::new(Random { shape: [3, 5].into(), dtype }, [Draw::int([2], 0, 1 << 31)]);
        [DType::F32, DType::F64, DType::U32, DType::I64].map(call).into()
    }
}

/// A multiple of the four words of a block, so that pieces begin at block borders.
const PIECE: usize = 16 << 10;

/// One word per number: four numbers per block.
fn narrow<T: Send>(key: [u32; 2], y: &mut [T], f: impl Fn(u32) -> T + Sync) {
    par_chunks_mut(y, PIECE, |start, y| {
        for (i, y) in y.chunks_mut(4).enumerate() {
            let words = philox4x32(key, (start / 4 + i) as u64, 0);
            y.iter_mut().zip(words).for_each(|(y, w)| *y = f(w));
        }
    });
}

/// Two words per number: two numbers per block.
fn wide<T: Send>(key: [u32; 2], y: &mut [T], f: impl Fn(u64) -> T + Sync) {
    par_chunks_mut(y, PIECE, |start, y| {
        for (i, y) in y.chunks_mut(2).enumerate() {
            let [a, b, c, d] = philox4x32(key, (start / 2 + i) as u64, 0).map(u64::from);
            y.iter_mut().zip([a << 32 | b, c << 32 | d]).for_each(|(y, w)| *y = f(w));
        }
    });
}
