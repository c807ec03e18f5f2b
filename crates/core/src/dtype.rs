//! Element types, their names, and how two of them combine.

use std::fmt;

// `with_dtype!` names these from other crates.
#[doc(no_inline)]
pub use half::{bf16, f16};

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum DType {
    /// `true` or `false`, one byte each.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 64-bit integer: the type of indices.
    I64,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    BF16,
    /// Single precision: the default for floats.
    F32,
    /// Double precision.
    F64,
}

use DType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U32};

impl DType {
    /// Every dtype, narrowest category first.
    pub const ALL: [DType; 11] = [Bool, U8, I8, I16, I32, U32, I64, F16, BF16, F32, F64];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Bool | U8 | I8 => 1,
            I16 | F16 | BF16 => 2,
            I32 | U32 | F32 => 4,
            I64 | F64 => 8,
        }
    }

    /// Whether values have a fractional part, and so whether gradients exist.
    pub const fn is_float(self) -> bool {
        matches!(self, F16 | BF16 | F32 | F64)
    }

    /// Whether this is a whole-number type; `bool` is not.
    pub const fn is_int(self) -> bool {
        matches!(self, U8 | I8 | I16 | I32 | U32 | I64)
    }

    /// The name used in messages and in the text form of graphs.
    pub const fn name(self) -> &'static str {
        match self {
            Bool => "bool",
            U8 => "u8",
            I8 => "i8",
            I16 => "i16",
            I32 => "i32",
            U32 => "u32",
            I64 => "i64",
            F16 => "f16",
            BF16 => "bf16",
            F32 => "f32",
            F64 => "f64",
        }
    }

    /// The dtype of the result when tensors of these two types meet, as in PyTorch: the higher
    /// category wins (bool < integer < float); within a category the smallest type that holds both.
    ///
    /// ```
    /// use thalweg_core::DType::*;
    /// assert_eq!(I64.promote(F16), F16);
    /// assert_eq!(U8.promote(I8), I16);
    /// assert_eq!(F16.promote(BF16), F32);
    /// ```
    pub const fn promote(self, other: DType) -> DType {
        if self as u8 == other as u8 {
            return self;
        }
        match (self.is_float(), other.is_float()) {
            (true, false) => return self,
            (false, true) => return other,
            (true, true) => {
                return match (self, other) {
                    (F64, _) | (_, F64) => F64,
                    _ => F32,
                };
            }
            (false, false) => {}
        }
        match (self, other) {
            (Bool, t) | (t, Bool) => t,
            (I64, _) | (_, I64) => I64,
            // No 32-bit type holds both a u32 and a negative number.
            (U32, U8) | (U8, U32) => U32,
            (U32, _) | (_, U32) => I64,
            (I32, _) | (_, I32) => I32,
            // What is left: two different ones of u8, i8, i16.
            _ => I16,
        }
    }
}

impl DType {
    /// The dtype of this name, as [`DType::name`] gives it.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that can be an element of a buffer.
///
/// Sealed: the buffer relies on every implementor being plain bytes with the size that its
/// [`DType`] states, where any bit pattern is a value (for `bool`: the bytes 0 and 1).
pub trait Element: sealed::Sealed + Copy + Send + Sync + PartialEq + fmt::Debug + 'static {
    /// The matching dtype.
    const DTYPE: DType;
    /// As a double: exact for all but the largest `i64`.
    fn to_f64(self) -> f64;
    /// From a double: rounded to nearest for floats; truncated and saturated for integers.
    fn from_f64(value: f64) -> Self;
    /// As a whole number: truncated and saturated.
    fn to_i64(self) -> i64;
    /// From a whole number: wrapped for integers, rounded for floats.
    fn from_i64(value: i64) -> Self;
}

macro_rules! element {
    ($($t:ty, $dtype:ident, |$f:ident| $from_f64:expr, |$x:ident| $to_f64:expr, |$i:ident| $from_i64:expr, |$y:ident| $to_i64:expr;)*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            #[inline(always)]
            fn to_f64(self) -> f64 { let $x = self; $to_f64 }
            #[inline(always)]
            fn from_f64($f: f64) -> Self { $from_f64 }
            #[inline(always)]
            fn to_i64(self) -> i64 { let $y = self; $to_i64 }
            #[inline(always)]
            fn from_i64($i: i64) -> Self { $from_i64 }
        }
    )*};
}

element! {
    bool, Bool, |f| f != 0.0, |x| x as u8 as f64, |i| i != 0, |y| y as i64;
    u8, U8, |f| f as u8, |x| x as f64, |i| i as u8, |y| y as i64;
    i8, I8, |f| f as i8, |x| x as f64, |i| i as i8, |y| y as i64;
    i16, I16, |f| f as i16, |x| x as f64, |i| i as i16, |y| y as i64;
    i32, I32, |f| f as i32, |x| x as f64, |i| i as i32, |y| y as i64;
    u32, U32, |f| f as u32, |x| x as f64, |i| i as u32, |y| y as i64;
    i64, I64, |f| f as i64, |x| x as f64, |i| i, |y| y;
    f16, F16, |f| f16::from_f64(f), |x| x.to_f64(), |i| f16::from_f64(i as f64), |y| y.to_f64() as i64;
    bf16, BF16, |f| bf16::from_f64(f), |x| x.to_f64(), |i| bf16::from_f64(i as f64), |y| y.to_f64() as i64;
    f32, F32, |f| f as f32, |x| x as f64, |i| i as f32, |y| y as i64;
    f64, F64, |f| f, |x| x, |i| i as f64, |y| y as i64;
}

/// Runs a block with `$T` bound to the Rust type of a dtype.
///
/// ```
/// use thalweg_core::{DType, with_dtype};
/// assert_eq!(with_dtype!(DType::I16, T => std::mem::size_of::<T>()), 2);
/// ```
#[macro_export]
macro_rules! with_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::DType::Bool => {
                type $T = bool;
                $body
            }
            $crate::DType::U8 => {
                type $T = u8;
                $body
            }
            $crate::DType::I8 => {
                type $T = i8;
                $body
            }
            $crate::DType::I16 => {
                type $T = i16;
                $body
            }
            $crate::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::DType::U32 => {
                type $T = u32;
                $body
            }
            $crate::DType::I64 => {
                type $T = i64;
                $body
            }
            $crate::DType::F16 => {
                type $T = $crate::dtype::f16;
                $body
            }
            $crate::DType::BF16 => {
                type $T = $crate::dtype::bf16;
                $body
            }
            $crate::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::DType::F64 => {
                type $T = f64;
                $body
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotion_is_symmetric_and_keeps_equal_types() {
        for a in DType::ALL {
            assert_eq!(a.promote(a), a);
            for b in DType::ALL {
                assert_eq!(a.promote(b), b.promote(a), "{a} and {b}");
            }
        }
    }

    #[test]
    fn sizes_match_the_rust_types() {
        for d in DType::ALL {
            assert_eq!(with_dtype!(d, T => std::mem::size_of::<T>()), d.size());
            assert_eq!(with_dtype!(d, T => T::DTYPE), d);
        }
    }

    #[test]
    fn large_integers_convert_without_double_rounding() {
        // Through f64 first, this value would round to the other neighbour in f32.
        let v: i64 = (1 << 60) + (1 << 36) + 1;
        assert_eq!(f32::from_i64(v), v as f32);
        assert_ne!(f32::from_i64(v), (v as f64) as f32);
    }
}
