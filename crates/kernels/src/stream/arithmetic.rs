//! Arithmetic on blocks: slice with slice, slice with scalar, scalar with slice.
//!
//! Every function panics when lengths differ. Integers wrap. Maximum and minimum are NaN where either
//! operand is, as in `torch.maximum`.

use crate::simd::vector::F32s;
use crate::simd::{Body, dispatch};

/// A number that blocks can compute with.
pub trait Number: Copy + Send + Sync + 'static {
    /// Zero.
    const ZERO: Self;
    /// `self + b`, wrapping.
    fn plus(self, b: Self) -> Self;
    /// `self - b`, wrapping.
    fn minus(self, b: Self) -> Self;
    /// `self * b`, wrapping.
    fn times(self, b: Self) -> Self;
    /// The larger, or NaN.
    fn larger(self, b: Self) -> Self;
    /// The smaller, or NaN.
    fn smaller(self, b: Self) -> Self;
    /// `-self`, wrapping.
    fn negated(self) -> Self;
    /// Magnitude, wrapping.
    fn magnitude(self) -> Self;
}

/// A number with division.
pub trait Float: Number {
    /// `self / b`.
    fn over(self, b: Self) -> Self;
}

macro_rules! float {
    ($($t:ty)*) => {$(
        impl Number for $t {
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn plus(self, b: Self) -> Self { self + b }
            #[inline(always)]
            fn minus(self, b: Self) -> Self { self - b }
            #[inline(always)]
            fn times(self, b: Self) -> Self { self * b }
            #[inline(always)]
            fn larger(self, b: Self) -> Self { if self > b || self.is_nan() { self } else { b } }
            #[inline(always)]
            fn smaller(self, b: Self) -> Self { if self < b || self.is_nan() { self } else { b } }
            #[inline(always)]
            fn negated(self) -> Self { -self }
            #[inline(always)]
            fn magnitude(self) -> Self { self.abs() }
        }
        impl Float for $t {
            #[inline(always)]
            fn over(self, b: Self) -> Self { self / b }
        }
    )*};
}

macro_rules! integer {
    ($($t:ty)*) => {$(
        impl Number for $t {
            const ZERO: Self = 0;
            #[inline(always)]
            fn plus(self, b: Self) -> Self { self.wrapping_add(b) }
            #[inline(always)]
            fn minus(self, b: Self) -> Self { self.wrapping_sub(b) }
            #[inline(always)]
            fn times(self, b: Self) -> Self { self.wrapping_mul(b) }
            #[inline(always)]
            fn larger(self, b: Self) -> Self { self.max(b) }
            #[inline(always)]
            fn smaller(self, b: Self) -> Self { self.min(b) }
            #[inline(always)]
            fn negated(self) -> Self { self.wrapping_neg() }
            #[inline(always)]
            fn magnitude(self) -> Self { self.wrapping_abs() }
        }
    )*};
}

float!(f32 f64);
integer!(i32 i64);

macro_rules! binary {
    ($($bound:ident $op:ident: $(#[$doc:meta])* $slices:ident, $scalar:ident $(, $swapped:ident)?;)*) => {$(
        $(#[$doc])*
        pub fn $slices<T: $bound>(a: &[T], b: &[T], y: &mut [T]) {
            zip(a, b, y, |a, b| a.$op(b));
        }
        #[doc = concat!("[`", stringify!($slices), "`] with the scalar `b` on the right.")]
        pub fn $scalar<T: $bound>(a: &[T], b: T, y: &mut [T]) {
            map(a, y, move |a| a.$op(b));
        }
        $(
            #[doc = concat!("[`", stringify!($slices), "`] with the scalar `a` on the left.")]
            pub fn $swapped<T: $bound>(a: T, b: &[T], y: &mut [T]) {
                map(b, y, move |b| a.$op(b));
            }
        )?
    )*};
}

binary! {
    Number plus: /// y = a + b.
    add, add_scalar, scalar_add;
    Number minus: /// y = a − b.
    sub, sub_scalar, scalar_sub;
    Number times: /// y = a · b.
    mul, mul_scalar, scalar_mul;
    Float over: /// y = a / b.
    div, div_scalar, scalar_div;
    Number larger: /// y = max(a, b), NaN where either is.
    max, max_scalar;
    Number smaller: /// y = min(a, b), NaN where either is.
    min, min_scalar;
}

/// y = a · b + c, product and sum rounded apart: a step for two, the same bits.
pub fn mul_add(a: &[f32], b: &[f32], c: &[f32], y: &mut [f32]) {
    zip3(a, b, c, y, |a, b, c| a * b + c);
}

/// y = a · b − c, as [`mul_add`].
pub fn mul_sub(a: &[f32], b: &[f32], c: &[f32], y: &mut [f32]) {
    zip3(a, b, c, y, |a, b, c| a * b - c);
}

/// y = c − a · b, as [`mul_add`].
pub fn sub_mul(a: &[f32], b: &[f32], c: &[f32], y: &mut [f32]) {
    zip3(a, b, c, y, |a, b, c| c - a * b);
}

/// y = −x.
pub fn neg<T: Number>(x: &[T], y: &mut [T]) {
    map(x, y, T::negated);
}

/// y = |x|.
pub fn abs<T: Number>(x: &[T], y: &mut [T]) {
    map(x, y, T::magnitude);
}

/// y = x².
pub fn square<T: Number>(x: &[T], y: &mut [T]) {
    map(x, y, |x| x.times(x));
}

/// y = max(x, 0), NaN where x is.
pub fn relu<T: Number>(x: &[T], y: &mut [T]) {
    map(x, y, |x| x.larger(T::ZERO));
}

/// y = dy where x > 0, else 0: the gradient of [`relu`] from its argument or its result.
pub fn relu_backward(x: &[f32], dy: &[f32], y: &mut [f32]) {
    zip(x, dy, y, |x, dy| if x <= 0.0 { 0.0 } else { dy });
}

/// y = x.
pub fn copy<T: Copy>(x: &[T], y: &mut [T]) {
    y.copy_from_slice(x);
}

/// y += b.
pub fn add_assign<T: Number>(y: &mut [T], b: &[T]) {
    update(y, b, T::plus);
}

/// y = y · b.
pub fn mul_assign<T: Number>(y: &mut [T], b: &[T]) {
    update(y, b, T::times);
}

/// y += s · b, product and sum rounded apart.
pub fn add_scaled_assign<T: Number>(y: &mut [T], s: T, b: &[T]) {
    update(y, b, move |y, b| y.plus(s.times(b)));
}

/// y = s · y.
pub fn scale<T: Number>(y: &mut [T], s: T) {
    dispatch(Scale { y, s });
}

/// `y[i] = f(x[i])`, vectorised where the compiler can; `f` must be a few arithmetic operations.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub fn map<A: Copy, B, F: Fn(A) -> B>(x: &[A], y: &mut [B], f: F) {
    assert_eq!(x.len(), y.len(), "stream: input and output differ in length");
    dispatch(Map { x, y, f });
}

/// `y[i] = f(a[i], b[i])`, vectorised where the compiler can; `f` must be a few arithmetic operations.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub fn zip<A: Copy, B: Copy, C, F: Fn(A, B) -> C>(a: &[A], b: &[B], y: &mut [C], f: F) {
    assert!(a.len() == y.len() && b.len() == y.len(), "stream: inputs and output differ in length");
    dispatch(Zip { a, b, y, f });
}

/// `y[i] = f(a[i], b[i], c[i])`, vectorised where the compiler can.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub fn zip3<F: Fn(f32, f32, f32) -> f32>(a: &[f32], b: &[f32], c: &[f32], y: &mut [f32], f: F) {
    let n = y.len();
    assert!(a.len() == n && b.len() == n && c.len() == n, "stream: inputs and output differ in length");
    dispatch(Zip3 { x: [a, b, c], y, f });
}

/// `y[i] = f(y[i], b[i])`, vectorised where the compiler can.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub fn update<A: Copy, B: Copy, F: Fn(A, B) -> A>(y: &mut [A], b: &[B], f: F) {
    assert_eq!(b.len(), y.len(), "stream: input and output differ in length");
    dispatch(Update { y, b, f });
}

struct Map<'a, A, B, F> {
    x: &'a [A],
    y: &'a mut [B],
    f: F,
}

impl<A: Copy, B, F: Fn(A) -> B> Body for Map<'_, A, B, F> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        for (y, x) in self.y.iter_mut().zip(self.x) {
            *y = (self.f)(*x);
        }
    }
}

struct Zip<'a, A, B, C, F> {
    a: &'a [A],
    b: &'a [B],
    y: &'a mut [C],
    f: F,
}

impl<A: Copy, B: Copy, C, F: Fn(A, B) -> C> Body for Zip<'_, A, B, C, F> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        for ((y, a), b) in self.y.iter_mut().zip(self.a).zip(self.b) {
            *y = (self.f)(*a, *b);
        }
    }
}

struct Zip3<'a, F> {
    x: [&'a [f32]; 3],
    y: &'a mut [f32],
    f: F,
}

impl<F: Fn(f32, f32, f32) -> f32> Body for Zip3<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        let [a, b, c] = self.x;
        for (((y, a), b), c) in self.y.iter_mut().zip(a).zip(b).zip(c) {
            *y = (self.f)(*a, *b, *c);
        }
    }
}

struct Update<'a, A, B, F> {
    y: &'a mut [A],
    b: &'a [B],
    f: F,
}

impl<A: Copy, B: Copy, F: Fn(A, B) -> A> Body for Update<'_, A, B, F> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        for (y, b) in self.y.iter_mut().zip(self.b) {
            *y = (self.f)(*y, *b);
        }
    }
}

struct Scale<'a, T> {
    y: &'a mut [T],
    s: T,
}

impl<T: Number> Body for Scale<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        for y in self.y {
            *y = y.times(self.s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        abs, add, add_scaled_assign, div, div_scalar, max, min, mul, mul_add, mul_sub, relu, scalar_div,
        scalar_sub, sub, sub_mul,
    };

    fn values(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let edges = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0];
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                match state >> 27 {
                    e @ 0..5 => edges[e as usize],
                    _ => (state >> 8) as f32 / 1e6 - 8.0,
                }
            })
            .collect()
    }

    fn same(got: &[f32], want: impl Iterator<Item = f32>) {
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            assert!(
                g.to_bits() == w.to_bits() || (g.is_nan() && w.is_nan()) || (*g == 0.0 && w == 0.0),
                "{i}: {g} {w}"
            );
        }
    }

    #[test]
    fn blocks_agree_with_scalars_at_every_length() {
        for n in (0..=70).chain([1000, 4099]) {
            let (a, b, mut y) = (values(n, 1), values(n, 2), vec![0.0; n]);
            let pairs = || a.iter().copied().zip(b.iter().copied());
            add(&a, &b, &mut y);
            same(&y, pairs().map(|(a, b)| a + b));
            sub(&a, &b, &mut y);
            same(&y, pairs().map(|(a, b)| a - b));
            mul(&a, &b, &mut y);
            same(&y, pairs().map(|(a, b)| a * b));
            div(&a, &b, &mut y);
            same(&y, pairs().map(|(a, b)| a / b));
            max(&a, &b, &mut y);
            same(&y, pairs().map(|(a, b)| if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) }));
            min(&a, &b, &mut y);
            same(&y, pairs().map(|(a, b)| if a.is_nan() || b.is_nan() { f32::NAN } else { a.min(b) }));
            div_scalar(&a, 3.0, &mut y);
            same(&y, a.iter().map(|a| a / 3.0));
            scalar_div(3.0, &a, &mut y);
            same(&y, a.iter().map(|a| 3.0 / a));
            scalar_sub(3.0, &a, &mut y);
            same(&y, a.iter().map(|a| 3.0 - a));
            relu(&a, &mut y);
            same(&y, a.iter().map(|a| if a.is_nan() { *a } else { a.max(0.0) }));
            abs(&a, &mut y);
            same(&y, a.iter().map(|a| a.abs()));
            let c = values(n, 3);
            let thirds = || pairs().zip(c.iter().copied());
            mul_add(&a, &b, &c, &mut y);
            same(&y, thirds().map(|((a, b), c)| a * b + c));
            mul_sub(&a, &b, &c, &mut y);
            same(&y, thirds().map(|((a, b), c)| a * b - c));
            sub_mul(&a, &b, &c, &mut y);
            same(&y, thirds().map(|((a, b), c)| c - a * b));
            let mut z = b.clone();
            add_scaled_assign(&mut z, 0.3, &a);
            same(&z, pairs().map(|(a, b)| b + 0.3 * a));
        }
    }

    #[test]
    fn integers_wrap() {
        let mut y = [0];
        add(&[i32::MAX], &[1], &mut y);
        assert_eq!(y, [i32::MIN]);
        abs(&[i32::MIN], &mut y);
        assert_eq!(y, [i32::MIN]);
    }

    #[test]
    #[should_panic(expected = "differ in length")]
    fn unequal_lengths_panic() {
        add(&[1.0f32], &[1.0, 2.0], &mut [0.0]);
    }
}
