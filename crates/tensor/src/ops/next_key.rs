//! `next_key`: one step of a source of random keys: its next state and the key of one draw.

use thalweg_core::{DType, View, ViewMut};
use thalweg_kernels::philox::philox4x32;

use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::random::words_of;
use crate::ops::sample::{Draw, Sample};

/// From the state (two words of key, two of a counter) to six words: the state with the counter
/// advanced, then the two words of the key drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct NextKey;

impl Primitive for NextKey {
    const NAME: &'static str = "next_key";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [state] = arity(Self::NAME, x)?;
        if !matches!(state.dtype, DType::U32 | DType::I64) {
            return Err(OpError::DType { op: Self::NAME, want: "u32", got: state.dtype });
        }
        if *state.shape != [4] {
            let hint = "the state of a random source has four words";
            return Err(OpError::Shapes {
                op: Self::NAME,
                left: state.shape.clone(),
                right: [4].into(),
                hint,
            });
        }
        Ok(Meta::new(DType::U32, [6]))
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    fn grad(&self, _g: &Vjp<'_>) -> Grad {
        Grad::None("random keys do not depend smoothly on anything")
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let [k0, k1, low, high] = words_of(x[0]);
        let drawn = u64::from(low) | u64::from(high) << 32;
        // The second counter keeps keys apart from the numbers drawn with the same key.
        let [a, b, ..] = philox4x32([k0, k1], drawn, u64::MAX);
        let next = drawn.wrapping_add(1);
        y.dense::<u32>().copy_from_slice(&[k0, k1, next as u32, (next >> 32) as u32, a, b]);
        Ok(())
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 40, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        vec![Sample::new(NextKey, [Draw::int([4], 0, 1 << 31)])]
    }
}
