//! Plain numbers as operands: they take the tensor's dtype instead of changing it.

use std::cell::RefCell;

use thalweg_core::{Buffer, DType, Element, Layout, Shape, with_dtype};

use crate::tensor::Tensor;

/// A number from the user's code.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fractional part.
    Float(f64),
}

impl Scalar {
    /// The dtype when this number meets a tensor of dtype `other`: the tensor's own, unless the
    /// number is of a higher category (bool < integer < float).
    pub fn dtype_with(self, other: DType) -> DType {
        match self {
            Scalar::Float(_) if !other.is_float() => DType::F32,
            Scalar::Int(_) if other == DType::Bool => DType::I64,
            _ => other,
        }
    }

    /// The dtype of a tensor made of this number alone.
    pub fn dtype(self) -> DType {
        match self {
            Scalar::Bool(_) => DType::Bool,
            Scalar::Int(_) => DType::I64,
            Scalar::Float(_) => DType::F32,
        }
    }

    /// As a double.
    pub fn to_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => f64::from(u8::from(b)),
            Scalar::Int(i) => i as f64,
            Scalar::Float(f) => f,
        }
    }

    /// As an element.
    pub(crate) fn element<T: Element>(self) -> T {
        match self {
            Scalar::Bool(b) => T::from_i64(i64::from(b)),
            Scalar::Int(i) => T::from_i64(i),
            Scalar::Float(f) => T::from_f64(f),
        }
    }

    /// A tensor of any shape that holds this number once.
    pub(crate) fn spread(self, dtype: DType, shape: &Shape) -> Tensor {
        self.tensor(dtype).spread_to(shape)
    }

    /// A scalar tensor. The few numbers that a program keeps using are made once per thread.
    pub(crate) fn tensor(self, dtype: DType) -> Tensor {
        let bits = match self {
            Scalar::Bool(b) => u64::from(b),
            Scalar::Int(i) => i as u64,
            Scalar::Float(f) => f.to_bits(),
        };
        let key = (bits, dtype, std::mem::discriminant(&self));
        let slot = (bits.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize ^ dtype as usize & (CACHE - 1);
        let cached = NUMBERS.try_with(|numbers| {
            let mut numbers = numbers.borrow_mut();
            match &mut numbers[slot % CACHE] {
                Some((k, t)) if *k == key => t.clone(),
                entry => {
                    let t = self.fresh(dtype);
                    *entry = Some((key, t.clone()));
                    t
                }
            }
        });
        cached.unwrap_or_else(|_| self.fresh(dtype))
    }

    fn fresh(self, dtype: DType) -> Tensor {
        let mut buffer = Buffer::scratch(dtype, 1);
        with_dtype!(dtype, T => buffer.as_mut_slice::<T>()[0] = self.element::<T>());
        let layout = Layout::contiguous(Shape::scalar());
        Tensor::from_buffer(buffer, layout.shape())
    }
}

impl Tensor {
    /// This scalar in every place of a shape, without history.
    #[track_caller]
    pub(crate) fn spread_to(&self, shape: &Shape) -> Tensor {
        if shape.rank() == 0 {
            return self.clone();
        }
        let layout = self.layout().broadcast_to(shape).expect("a scalar broadcasts to every shape");
        self.with_layout(layout, None)
    }
}

const CACHE: usize = 64;
type Key = (u64, DType, std::mem::Discriminant<Scalar>);

thread_local! {
    static NUMBERS: RefCell<[Option<(Key, Tensor)>; CACHE]> = const { RefCell::new([const { None }; CACHE]) };
}

macro_rules! from_number {
    ($($t:ty => $Variant:ident),*) => {$(
        impl From<$t> for Scalar {
            fn from(x: $t) -> Self { Scalar::$Variant(x.into()) }
        }
    )*};
}

from_number!(bool => Bool, i64 => Int, i32 => Int, i16 => Int, i8 => Int, u8 => Int, u32 => Int, f32 => Float, f64 => Float);

impl From<usize> for Scalar {
    fn from(x: usize) -> Self {
        Scalar::Int(x as i64)
    }
}
