//! Several tensors as one: an op has one result.

use thalweg_core::{DType, ViewMut, with_dtype};
use thalweg_tensor::{Meta, Tensor};

/// i64 numbers travel among floats as multiples of this, and what is left.
const HALF: i64 = 1 << 32;

/// Several tensors end to end in one vector.
#[derive(Clone)]
pub(super) struct Packing {
    pub(super) parts: Vec<Meta>,
    dtype: DType,
}

impl Packing {
    /// Parts of one dtype keep it; a mixture travels as f64, which holds every number of every other dtype but
    /// i64. Those travel in two halves.
    pub(super) fn new(parts: Vec<Meta>) -> Self {
        let first = parts.first().map_or(DType::F32, |m| m.dtype);
        let dtype = if parts.iter().all(|m| m.dtype == first) { first } else { DType::F64 };
        Self { parts, dtype }
    }

    pub(super) fn meta(&self) -> Meta {
        Meta::new(self.dtype, [self.parts.iter().map(|m| self.width(m)).sum::<usize>()])
    }

    fn is_halved(&self, dtype: DType) -> bool {
        dtype == DType::I64 && self.dtype != DType::I64
    }

    /// How many places a part takes.
    fn width(&self, part: &Meta) -> usize {
        if self.is_halved(part.dtype) { 2 * part.numel() } else { part.numel() }
    }

    pub(super) fn pack(&self, tensors: &[Tensor]) -> Tensor {
        let mut flat = Vec::new();
        for t in tensors.iter().map(|t| t.reshape(t.numel())) {
            if self.is_halved(t.dtype()) {
                let (high, low) = (t.floor_divide(HALF), t.remainder(HALF));
                flat.extend([high.to_dtype(self.dtype), low.to_dtype(self.dtype)]);
            } else {
                flat.push(t.to_dtype(self.dtype));
            }
        }
        match flat.is_empty() {
            true => Tensor::zeros([0], self.dtype),
            false => Tensor::concat(&flat.iter().collect::<Vec<_>>(), 0),
        }
    }

    pub(super) fn unpack(&self, packed: &Tensor) -> Vec<Tensor> {
        let mut at = 0;
        let part = |m: &Meta| {
            let (start, n) = (at, m.numel());
            at += self.width(m);
            let piece = |from: usize| packed.narrow(0, from, n).reshape(&m.shape).to_dtype(m.dtype);
            match self.is_halved(m.dtype) {
                true => piece(start) * HALF + piece(start + n),
                false => piece(start),
            }
        };
        self.parts.iter().map(part).collect()
    }

    /// Fills the result of an op.
    pub(super) fn write(&self, tensors: &[Tensor], y: &mut ViewMut<'_>) {
        let packed = self.pack(tensors);
        with_dtype!(self.dtype, T => {
            let y = y.dense::<T>();
            match packed.view().dense::<T>() {
                Some(x) => y.copy_from_slice(x),
                None => y.iter_mut().zip(packed.view().iter::<T>()).for_each(|(y, x)| *y = x),
            }
        });
    }
}
