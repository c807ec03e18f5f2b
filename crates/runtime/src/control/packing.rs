//! Several tensors as one: an op has one result.

use thalweg_core::{DType, Element, View, ViewMut, with_dtype};
use thalweg_tensor::{Meta, Tensor};

/// i64 numbers travel among floats as multiples of this, and what is left.
const HALF: i64 = 1 << 32;

/// Several tensors end to end in one vector.
#[derive(Clone)]
pub(super) struct Packing {
    pub(super) parts: Vec<Meta>,
    /// Where each part begins.
    starts: Vec<usize>,
    len: usize,
    dtype: DType,
}

impl Packing {
    /// Parts of one dtype keep it; a mixture travels as f64, which holds every number of every other dtype but
    /// i64. Those travel in two halves.
    pub(super) fn new(parts: Vec<Meta>) -> Self {
        let first = parts.first().map_or(DType::F32, |m| m.dtype);
        let dtype = if parts.iter().all(|m| m.dtype == first) { first } else { DType::F64 };
        let mut packing = Self { starts: Vec::new(), len: 0, parts, dtype };
        for part in &packing.parts {
            packing.starts.push(packing.len);
            let places = if packing.is_halved(part.dtype) { 2 } else { 1 };
            packing.len += places * part.numel();
        }
        packing
    }

    pub(super) fn meta(&self) -> Meta {
        Meta::new(self.dtype, [self.len])
    }

    fn is_halved(&self, dtype: DType) -> bool {
        dtype == DType::I64 && self.dtype != DType::I64
    }

    pub(super) fn unpack(&self, packed: &Tensor) -> Vec<Tensor> {
        let part = |(m, &start): (&Meta, &usize)| {
            let n = m.numel();
            let piece = |from: usize| packed.narrow(0, from, n).reshape(&m.shape).to_dtype(m.dtype);
            match self.is_halved(m.dtype) {
                true => piece(start) * HALF + piece(start + n),
                false => piece(start),
            }
        };
        self.parts.iter().zip(&self.starts).map(part).collect()
    }

    /// Writes one part of the result of an op, or the `t`-th piece of it.
    pub(super) fn write(&self, part: usize, t: usize, x: &View<'_>, y: &mut ViewMut<'_>) {
        let (n, numel) = (x.layout().numel(), self.parts[part].numel());
        let from = self.starts[part] + t * n;
        if self.is_halved(x.dtype()) {
            let y = y.dense::<f64>();
            for (i, v) in x.iter::<i64>().enumerate() {
                y[from + i] = v.div_euclid(HALF) as f64;
                y[from + numel + i] = v.rem_euclid(HALF) as f64;
            }
        } else if x.dtype() == self.dtype {
            with_dtype!(self.dtype, T => fill::<T, T>(x, &mut y.dense::<T>()[from..from + n], |v| v));
        } else {
            let y = &mut y.dense::<f64>()[from..from + n];
            with_dtype!(x.dtype(), T => fill::<T, f64>(x, y, T::to_f64));
        }
    }
}

fn fill<T: Element, U: Element>(x: &View<'_>, y: &mut [U], f: impl Fn(T) -> U) {
    match x.dense::<T>() {
        Some(x) => y.iter_mut().zip(x).for_each(|(y, &x)| *y = f(x)),
        None => y.iter_mut().zip(x.iter::<T>()).for_each(|(y, x)| *y = f(x)),
    }
}
