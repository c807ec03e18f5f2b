//! Elementwise ops: one function of one or two numbers, carried to whole tensors.
//!
//! An op gives its function on f64 and, where it has one, on i64: that is its reference for every
//! dtype. A block function on f32 slices makes it fast; f16 and bf16 go through it a tile at a time.
//! Fused groups of the compiler run the same block functions on the same tiles.

use thalweg_core::dtype::{bf16, f16};
use thalweg_core::runs::for_each_run;
use thalweg_core::{DType, Element, Layout, View, ViewMut, with_dtype};
use thalweg_kernels::stream::arithmetic::{map, zip};
use thalweg_kernels::stream::convert::{cast, f16_to_f32, f32_to_f16};
use thalweg_kernels::stream::split::par_chunks_mut;

use crate::error::OpError;
use crate::meta::{Meta, arity, require_float, require_number, require_same_dtype, require_same_shape};
use crate::ops::primitive::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

/// Elements that fit the nearest cache together with the operands.
const TILE: usize = 512;
/// Tiles of this size serve operands that have no more elements.
const SMALL: usize = 32;
/// Elements per parallel task: enough to outweigh waking a thread.
pub(crate) const GRAIN: usize = 32 << 10;

/// Which dtypes an elementwise op takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    /// Floats.
    Float,
    /// Floats and integers.
    Number,
    /// Floats, integers and `bool`.
    Any,
}

/// A function of one number on blocks of f32.
pub type Map = fn(&[f32], &mut [f32]);
/// A function of two numbers on blocks of f32.
pub type Zip = fn(&[f32], &[f32], &mut [f32]);
/// A function on matching pieces of operands and result, behind a pointer: the walk around it is then
/// compiled once per dtype, not once per op.
type OnPieces<'f, T, U, const N: usize> = &'f (dyn Fn([&[T]; N], &mut [U]) + Sync);

/// A function of one number.
pub trait Unary: Sized {
    /// See [`crate::ops::Primitive::NAME`].
    const NAME: &'static str;
    /// The dtypes it takes.
    const DOMAIN: Domain = Domain::Float;
    /// The fast form on f32.
    const F32: Option<Map> = None;
    /// Where samples are drawn.
    const RANGE: (f64, f64) = (-2.0, 2.0);
    /// What the rule needs.
    const KEEP: Keep;
    /// The function.
    fn float(x: f64) -> f64;
    /// The function on whole numbers, where [`Unary::DOMAIN`] admits them.
    fn int(x: i64) -> i64 {
        Self::float(x as f64) as i64
    }
    /// The gradient rule.
    fn grad(g: &Vjp<'_>) -> Grad;
    /// See [`crate::ops::Primitive::body`].
    fn body(_x: &Tensor) -> Option<Tensor> {
        None
    }
}

/// A function of two numbers.
pub trait Binary: Sized {
    /// See [`crate::ops::Primitive::NAME`].
    const NAME: &'static str;
    /// The dtypes it takes.
    const DOMAIN: Domain = Domain::Float;
    /// The fast form on f32.
    const F32: Option<Zip> = None;
    /// Where samples of each operand are drawn.
    const RANGES: [(f64, f64); 2] = [(-2.0, 2.0); 2];
    /// What the rule needs.
    const KEEP: Keep;
    /// Why [`Binary::int`] has no value.
    const REFUSAL: &'static str = "integer division by zero";
    /// The function.
    fn float(a: f64, b: f64) -> f64;
    /// The function on whole numbers; `None` where it has no value.
    fn int(a: i64, b: i64) -> Option<i64>;
    /// The gradient rule.
    fn grad(g: &Vjp<'_>) -> Grad;
}

/// Implements [`crate::ops::Primitive`] for unit structs by their [`Unary`].
macro_rules! unary_op {
    ($(#[$doc:meta])* $Name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub struct $Name;

        impl $crate::ops::Primitive for $Name {
            const NAME: &'static str = <$Name as $crate::ops::elementwise::Unary>::NAME;
            fn infer(&self, x: &[&$crate::meta::Meta]) -> Result<$crate::meta::Meta, $crate::error::OpError> {
                $crate::ops::elementwise::infer_unary::<$Name>(x)
            }
            fn keep(&self) -> $crate::ops::Keep {
                <$Name as $crate::ops::elementwise::Unary>::KEEP
            }
            fn grad(&self, g: &$crate::ops::Vjp<'_>) -> $crate::ops::Grad {
                <$Name as $crate::ops::elementwise::Unary>::grad(g)
            }
            fn eval(&self, x: &[thalweg_core::View<'_>], y: &mut thalweg_core::ViewMut<'_>) -> Result<(), $crate::error::OpError> {
                $crate::ops::elementwise::eval_unary::<$Name>(x[0], y);
                Ok(())
            }
            fn fast(&self, x: &[thalweg_core::View<'_>], y: &mut thalweg_core::ViewMut<'_>) -> bool {
                $crate::ops::elementwise::fast_unary::<$Name>(x[0], y)
            }
            fn is_elementwise(&self) -> bool {
                true
            }
            fn tile(&self) -> Option<$crate::ops::Tile> {
                <$Name as $crate::ops::elementwise::Unary>::F32.map($crate::ops::Tile::Map)
            }
            fn reuses(&self) -> u32 {
                1
            }
            fn overwrite(&self, _rest: Option<thalweg_core::View<'_>>, y: &mut thalweg_core::ViewMut<'_>) -> bool {
                $crate::ops::elementwise::overwrite_unary::<$Name>(y)
            }
            fn body(&self, x: &[$crate::tensor::Tensor]) -> Option<$crate::tensor::Tensor> {
                <$Name as $crate::ops::elementwise::Unary>::body(&x[0])
            }
            fn samples() -> Vec<$crate::ops::sample::Sample> {
                let (lo, hi) = <$Name as $crate::ops::elementwise::Unary>::RANGE;
                $crate::ops::sample::elementwise_shapes()
                    .map(|s| $crate::ops::sample::Sample::new($Name, [$crate::ops::sample::Draw::float(s, lo, hi)]))
                    .into()
            }
        }
    };
}

/// Implements [`crate::ops::Primitive`] for unit structs by their [`Binary`].
macro_rules! binary_op {
    ($(#[$doc:meta])* $Name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub struct $Name;

        impl $crate::ops::Primitive for $Name {
            const NAME: &'static str = <$Name as $crate::ops::elementwise::Binary>::NAME;
            fn infer(&self, x: &[&$crate::meta::Meta]) -> Result<$crate::meta::Meta, $crate::error::OpError> {
                $crate::ops::elementwise::infer_binary::<$Name>(x)
            }
            fn keep(&self) -> $crate::ops::Keep {
                <$Name as $crate::ops::elementwise::Binary>::KEEP
            }
            fn grad(&self, g: &$crate::ops::Vjp<'_>) -> $crate::ops::Grad {
                <$Name as $crate::ops::elementwise::Binary>::grad(g)
            }
            fn eval(&self, x: &[thalweg_core::View<'_>], y: &mut thalweg_core::ViewMut<'_>) -> Result<(), $crate::error::OpError> {
                $crate::ops::elementwise::eval_binary::<$Name>([x[0], x[1]], y)
            }
            fn fast(&self, x: &[thalweg_core::View<'_>], y: &mut thalweg_core::ViewMut<'_>) -> bool {
                $crate::ops::elementwise::fast_binary::<$Name>([x[0], x[1]], y)
            }
            fn is_elementwise(&self) -> bool {
                true
            }
            fn tile(&self) -> Option<$crate::ops::Tile> {
                <$Name as $crate::ops::elementwise::Binary>::F32.map($crate::ops::Tile::Zip)
            }
            fn takes_numbers(&self) -> bool {
                true
            }
            fn reuses(&self) -> u32 {
                1
            }
            fn overwrite(&self, rest: Option<thalweg_core::View<'_>>, y: &mut thalweg_core::ViewMut<'_>) -> bool {
                rest.is_some_and(|b| $crate::ops::elementwise::overwrite_binary::<$Name>(b, y))
            }
            fn samples() -> Vec<$crate::ops::sample::Sample> {
                let [(l0, h0), (l1, h1)] = <$Name as $crate::ops::elementwise::Binary>::RANGES;
                let draw = $crate::ops::sample::Draw::float;
                $crate::ops::sample::elementwise_shapes()
                    .map(|s| $crate::ops::sample::Sample::new($Name, [draw(s.clone(), l0, h0), draw(s, l1, h1)]))
                    .into()
            }
        }
    };
}

pub(crate) use {binary_op, unary_op};

fn require(op: &'static str, domain: Domain, x: &Meta) -> Result<(), OpError> {
    match domain {
        Domain::Float => require_float(op, x),
        Domain::Number => require_number(op, x),
        Domain::Any => Ok(()),
    }
}

pub(crate) fn infer_unary<O: Unary>(x: &[&Meta]) -> Result<Meta, OpError> {
    let [x] = arity(O::NAME, x)?;
    require(O::NAME, O::DOMAIN, x)?;
    Ok(x.clone())
}

pub(crate) fn infer_binary<O: Binary>(x: &[&Meta]) -> Result<Meta, OpError> {
    let [a, b] = arity(O::NAME, x)?;
    require(O::NAME, O::DOMAIN, a)?;
    require_same_dtype(O::NAME, a, b)?;
    require_same_shape(O::NAME, a, b)?;
    Ok(a.clone())
}

pub(crate) fn eval_unary<O: Unary>(x: View<'_>, y: &mut ViewMut<'_>) {
    if x.dtype().is_float() || O::DOMAIN == Domain::Float {
        through::<f64, f64, 1>([x], y, |[x], y| map(x, y, O::float));
    } else {
        through::<i64, i64, 1>([x], y, |[x], y| map(x, y, O::int));
    }
}

/// A function of one float, carried to a whole tensor through f64.
pub(crate) fn map_float(x: View<'_>, y: &mut ViewMut<'_>, f: impl Fn(f64) -> f64 + Sync) {
    through::<f64, f64, 1>([x], y, |[x], y| map(x, y, &f));
}

pub(crate) fn fast_unary<O: Unary>(x: View<'_>, y: &mut ViewMut<'_>) -> bool {
    match (x.dtype(), O::F32) {
        (DType::F32 | DType::F16 | DType::BF16, Some(f)) => fast_unary_f32(x, y, f),
        (DType::F64, _) => blocks([x], y.dense(), |[x], y| map(x, y, O::float)),
        _ => return false,
    }
    true
}

fn fast_unary_f32(x: View<'_>, y: &mut ViewMut<'_>, f: fn(&[f32], &mut [f32])) {
    match x.dtype() {
        DType::F32 => blocks([x], y.dense(), |[x], y| f(x, y)),
        _ => through::<f32, f32, 1>([x], y, |[x], y| f(x, y)),
    }
}

pub(crate) fn overwrite_unary<O: Unary>(y: &mut ViewMut<'_>) -> bool {
    match (y.dtype(), O::F32) {
        (DType::F32, Some(f)) => overwrite_unary_f32(y.dense(), f),
        _ => return false,
    }
    true
}

fn overwrite_unary_f32(y: &mut [f32], f: fn(&[f32], &mut [f32])) {
    match y.len() {
        n if n <= SMALL => overwrite_tiles::<SMALL>(y, |_, x, y| f(x, y)),
        _ => par_chunks_mut(y, GRAIN, |_, y| overwrite_tiles::<TILE>(y, |_, x, y| f(x, y))),
    }
}

/// Calls `f` with a copy of each tile of y, and the tile; and where it begins.
fn overwrite_tiles<const TILE: usize>(y: &mut [f32], f: impl Fn(usize, &[f32], &mut [f32])) {
    let mut tile = [0.0; TILE];
    for (i, y) in y.chunks_mut(TILE).enumerate() {
        tile[..y.len()].copy_from_slice(y);
        f(i * TILE, &tile[..y.len()], y);
    }
}

pub(crate) fn eval_binary<O: Binary>(x: [View<'_>; 2], y: &mut ViewMut<'_>) -> Result<(), OpError> {
    if x[0].dtype().is_float() || O::DOMAIN == Domain::Float {
        through::<f64, f64, 2>(x, y, |[a, b], y| zip(a, b, y, O::float));
        return Ok(());
    }
    let refused = std::sync::atomic::AtomicBool::new(false);
    through::<i64, i64, 2>(x, y, |[a, b], y| {
        zip(a, b, y, |a, b| {
            O::int(a, b).unwrap_or_else(|| {
                refused.store(true, std::sync::atomic::Ordering::Relaxed);
                0
            })
        });
    });
    if refused.into_inner() {
        return Err(OpError::Value { op: O::NAME, reason: O::REFUSAL });
    }
    Ok(())
}

pub(crate) fn fast_binary<O: Binary>(x: [View<'_>; 2], y: &mut ViewMut<'_>) -> bool {
    match (x[0].dtype(), O::F32) {
        (DType::F32 | DType::F16 | DType::BF16, Some(f)) => fast_binary_f32(x, y, f),
        (DType::F64, _) => blocks(x, y.dense(), |[a, b], y| zip(a, b, y, O::float)),
        _ => return false,
    }
    true
}

fn fast_binary_f32(x: [View<'_>; 2], y: &mut ViewMut<'_>, f: fn(&[f32], &[f32], &mut [f32])) {
    match x[0].dtype() {
        DType::F32 => blocks(x, y.dense(), |[a, b], y| f(a, b, y)),
        _ => through::<f32, f32, 2>(x, y, |[a, b], y| f(a, b, y)),
    }
}

pub(crate) fn overwrite_binary<O: Binary>(b: View<'_>, y: &mut ViewMut<'_>) -> bool {
    match (y.dtype(), O::F32) {
        (DType::F32, Some(f)) => overwrite_binary_f32(b, y, f),
        _ => false,
    }
}

fn overwrite_binary_f32(b: View<'_>, y: &mut ViewMut<'_>, f: fn(&[f32], &[f32], &mut [f32])) -> bool {
    let uniform = b.layout().strides().iter().all(|&s| s == 0);
    let dense = b.dense::<f32>();
    if !uniform && dense.is_none() {
        return false;
    }
    let constant =
        if uniform && !y.shape().contains(&0) { b.memory::<f32>()[b.layout().offset()] } else { 0.0 };
    let y = y.dense::<f32>();
    match dense {
        Some(b) if y.len() <= SMALL && !uniform => overwrite_tiles::<SMALL>(y, |_, a, y| f(a, b, y)),
        Some(b) if !uniform => par_chunks_mut(y, GRAIN, |start, y| {
            overwrite_tiles::<TILE>(y, |at, a, y| f(a, &b[start + at..][..y.len()], y));
        }),
        _ if y.len() <= SMALL => {
            let same = [constant; SMALL];
            overwrite_tiles::<SMALL>(y, |_, a, y| f(a, &same[..y.len()], y));
        }
        _ => par_chunks_mut(y, GRAIN, |_, y| {
            let same = [constant; TILE];
            overwrite_tiles::<TILE>(y, |_, a, y| f(a, &same[..y.len()], y));
        }),
    }
    true
}

/// Calls `f` on matching straight pieces of operands of dtype `T` and of the result. Operands that
/// do not lie straight are copied into a tile first.
pub(crate) fn blocks<T: Element + Default, U: Element, const N: usize>(
    x: [View<'_>; N],
    y: &mut [U],
    f: impl Fn([&[T]; N], &mut [U]) + Sync,
) {
    blocks_dyn(x, y, &f);
}

fn blocks_dyn<T: Element + Default, U: Element, const N: usize>(
    x: [View<'_>; N],
    y: &mut [U],
    f: OnPieces<'_, T, U, N>,
) {
    let straight = x.map(Operand::<T>::of);
    if straight.iter().all(Option::is_some) {
        let straight = straight.map(|o| o.expect("checked just above"));
        // Zeroing two full tiles would cost more than a small op.
        return match y.len() {
            n if n <= SMALL => straight_blocks::<T, U, N, SMALL>(straight, 0, y, f),
            _ => par_chunks_mut(y, GRAIN, |start, y| straight_blocks::<T, U, N, TILE>(straight, start, y, f)),
        };
    }
    let memory = x.map(|v| v.memory::<T>());
    by_leading_axis(x.map(|v| v.layout()), y, &|layouts, y| match y.len() {
        n if n <= SMALL => straight_runs::<T, U, N, SMALL>(memory, layouts, y, f),
        _ => straight_runs::<T, U, N, TILE>(memory, layouts, y, f),
    });
}

/// An operand that needs no walk over its layout.
#[derive(Clone, Copy)]
enum Operand<'a, T> {
    /// In row-major order.
    Dense(&'a [T]),
    /// One number everywhere.
    Uniform(T),
}

impl<'a, T: Element> Operand<'a, T> {
    fn of(x: View<'a>) -> Option<Self> {
        // A scalar counts as uniform: it may stand for a constant of any shape.
        if x.layout().strides().iter().all(|&s| s == 0) {
            return Some(Operand::Uniform(x.memory()[x.layout().offset()]));
        }
        x.dense().map(Operand::Dense)
    }
}

fn straight_blocks<T: Element + Default, U: Element, const N: usize, const TILE: usize>(
    x: [Operand<'_, T>; N],
    start: usize,
    y: &mut [U],
    f: OnPieces<'_, T, U, N>,
) {
    let dense = x.map(|o| if let Operand::Dense(d) = o { Some(&d[start..start + y.len()]) } else { None });
    if dense.iter().all(Option::is_some) {
        return f(dense.map(|d| d.expect("checked just above")), y);
    }
    let tiles: [[T; TILE]; N] =
        x.map(|o| if let Operand::Uniform(v) = o { [v; TILE] } else { [T::default(); TILE] });
    for (i, y) in y.chunks_mut(TILE).enumerate() {
        let at = i * TILE;
        let piece = |k: usize| dense[k].map_or(&tiles[k][..y.len()], |d| &d[at..at + y.len()]);
        f(std::array::from_fn(piece), y);
    }
}

/// Cuts the work along the first axis that has more than one row, so that each task fills one
/// straight piece of `y`.
pub(crate) fn by_leading_axis<U: Element, const N: usize>(
    layouts: [&Layout; N],
    y: &mut [U],
    f: &(dyn Fn([&Layout; N], &mut [U]) + Sync),
) {
    let axis = layouts[0].shape().iter().position(|&d| d > 1);
    let (Some(axis), true) = (axis, y.len() > GRAIN) else { return f(layouts, y) };
    let size = layouts[0].shape()[axis];
    let row = y.len() / size;
    let rows = (GRAIN / row.max(1)).max(1);
    par_chunks_mut(y, rows * row, |start, y| {
        let parts = layouts.map(|l| l.slice(axis, start / row, y.len() / row, 1));
        f(std::array::from_fn(|k| &parts[k]), y);
    });
}

fn straight_runs<T: Element + Default, U: Element, const N: usize, const TILE: usize>(
    memory: [&[T]; N],
    layouts: [&Layout; N],
    y: &mut [U],
    f: OnPieces<'_, T, U, N>,
) {
    let mut tiles = [[T::default(); TILE]; N];
    let mut rest = y;
    for_each_run(layouts, |at, len, strides| {
        for done in (0..len).step_by(TILE) {
            let n = TILE.min(len - done);
            for k in 0..N {
                // A constant operand fills its tile once per run.
                if strides[k] != 1 && (strides[k] != 0 || done == 0) {
                    let fill = if strides[k] == 0 { len.min(TILE) } else { n };
                    let first = at[k] as isize + done as isize * strides[k];
                    for (i, t) in tiles[k][..fill].iter_mut().enumerate() {
                        *t = memory[k][(first + i as isize * strides[k]) as usize];
                    }
                }
            }
            let args: [&[T]; N] = std::array::from_fn(|k| match strides[k] {
                1 => &memory[k][at[k] + done..at[k] + done + n],
                _ => &tiles[k][..n],
            });
            let (piece, after) = std::mem::take(&mut rest).split_at_mut(n);
            f(args, piece);
            rest = after;
        }
    });
}

/// A type wide enough to compute in for a group of dtypes.
pub(crate) trait Wide: Element + Default {
    fn widen<T: Element>(x: T) -> Self;
    fn narrow<T: Element>(self) -> T;

    fn widen_all<T: Element>(x: &[T], y: &mut [Self]) {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = Self::widen(x));
    }
    fn narrow_all<T: Element>(x: &[Self], y: &mut [T]) {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = x.narrow());
    }
    // Where a straight piece has a quicker way.
    fn widen_bf16(x: &[bf16], y: &mut [Self]) {
        Self::widen_all(x, y);
    }
    fn narrow_bf16(x: &[Self], y: &mut [bf16]) {
        Self::narrow_all(x, y);
    }
    fn widen_f16(x: &[f16], y: &mut [Self]) {
        Self::widen_all(x, y);
    }
    fn narrow_f16(x: &[Self], y: &mut [f16]) {
        Self::narrow_all(x, y);
    }
}

impl Wide for f64 {
    fn widen<T: Element>(x: T) -> f64 {
        x.to_f64()
    }
    fn narrow<T: Element>(self) -> T {
        T::from_f64(self)
    }
}

impl Wide for f32 {
    fn widen<T: Element>(x: T) -> f32 {
        x.to_f64() as f32
    }
    fn narrow<T: Element>(self) -> T {
        T::from_f64(f64::from(self))
    }
    fn widen_bf16(x: &[bf16], y: &mut [f32]) {
        cast(x, y);
    }
    fn narrow_bf16(x: &[f32], y: &mut [bf16]) {
        cast(x, y);
    }
    fn widen_f16(x: &[f16], y: &mut [f32]) {
        f16_to_f32(x, y);
    }
    fn narrow_f16(x: &[f32], y: &mut [f16]) {
        f32_to_f16(x, y);
    }
}

impl Wide for i64 {
    fn widen<T: Element>(x: T) -> i64 {
        x.to_i64()
    }
    fn narrow<T: Element>(self) -> T {
        T::from_i64(self)
    }
}

impl Wide for bool {
    fn widen<T: Element>(x: T) -> bool {
        x.to_f64() != 0.0
    }
    fn narrow<T: Element>(self) -> T {
        T::from_i64(i64::from(self))
    }
}

/// Calls `f` on tiles that were converted to `W` on the way in and from `V` on the way out.
#[inline]
pub(crate) fn through<W: Wide, V: Wide, const N: usize>(
    x: [View<'_>; N],
    y: &mut ViewMut<'_>,
    f: impl Fn([&[W]; N], &mut [V]) + Sync,
) {
    through_dyn(x, y, &f);
}

/// Only the last conversion knows the result's dtype.
fn through_dyn<W: Wide, V: Wide, const N: usize>(
    x: [View<'_>; N],
    y: &mut ViewMut<'_>,
    f: OnPieces<'_, W, V, N>,
) {
    match y.dtype() {
        DType::BF16 => tiles_into(x, y.dense::<bf16>(), f, V::narrow_bf16),
        DType::F16 => tiles_into(x, y.dense::<f16>(), f, V::narrow_f16),
        other => with_dtype!(other, Y => tiles_into(x, y.dense::<Y>(), f, V::narrow_all)),
    }
}

fn tiles_into<W: Wide, V: Wide, Y: Element, const N: usize>(
    x: [View<'_>; N],
    y: &mut [Y],
    f: OnPieces<'_, W, V, N>,
    narrow: fn(&[V], &mut [Y]),
) {
    by_leading_axis(x.map(|v| v.layout()), y, &|layouts, y| {
        let mut rest = y;
        tiles_through(x, layouts, f, &mut |tile| {
            let (piece, after) = std::mem::take(&mut rest).split_at_mut(tile.len());
            narrow(tile, piece);
            rest = after;
        });
    });
}

fn tiles_through<W: Wide, V: Wide, const N: usize>(
    x: [View<'_>; N],
    layouts: [&Layout; N],
    f: OnPieces<'_, W, V, N>,
    emit: &mut dyn FnMut(&[V]),
) {
    let (mut tiles, mut result) = ([[W::default(); TILE]; N], [V::default(); TILE]);
    for_each_run(layouts, |at, len, strides| {
        for done in (0..len).step_by(TILE) {
            let n = TILE.min(len - done);
            for k in 0..N {
                let first = at[k] as isize + done as isize * strides[k];
                widen_into(x[k], first, strides[k], &mut tiles[k][..n]);
            }
            f(std::array::from_fn(|k| &tiles[k][..n]), &mut result[..n]);
            emit(&result[..n]);
        }
    });
}

fn widen_into<W: Wide>(x: View<'_>, first: isize, stride: isize, tile: &mut [W]) {
    let straight = first as usize..first as usize + tile.len();
    match x.dtype() {
        DType::BF16 if stride == 1 => W::widen_bf16(&x.memory()[straight], tile),
        DType::F16 if stride == 1 => W::widen_f16(&x.memory()[straight], tile),
        dtype => with_dtype!(dtype, T => {
            let memory = x.memory::<T>();
            for (i, t) in tile.iter_mut().enumerate() {
                *t = W::widen(memory[(first + i as isize * stride) as usize]);
            }
        }),
    }
}
