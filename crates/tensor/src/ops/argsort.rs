//! `argsort`: the positions that sort an axis. Equal elements keep their order; NaN counts as larger
//! than every number, so it comes last ascending and first descending.

use thalweg_core::{DType, Element, View, ViewMut, with_dtype};
use thalweg_kernels::stream::split::par_chunks_mut;

use crate::apply::run;
use crate::error::{InOp, OpError, or_fail};
use crate::meta::{Meta, arity};
use crate::ops::elementwise::GRAIN;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// The positions that sort an axis, or the first few of them.
///
/// There is no unstable variant: the position breaks ties inside the sorted key, at no cost.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Argsort {
    /// The axis along which is sorted.
    pub axis: usize,
    /// Largest first.
    pub descending: bool,
    /// How many positions are wanted; all of them without a limit.
    pub limit: Option<usize>,
}

impl Primitive for Argsort {
    const NAME: &'static str = "argsort";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        let Some(&size) = x.shape.get(self.axis) else {
            return Err(OpError::Rank { op: Self::NAME, want: "more", shape: x.shape.clone() });
        };
        let len = self.limit.unwrap_or(size);
        if len > size {
            return Err(OpError::Argument {
                op: Self::NAME,
                name: "limit",
                value: len.to_string(),
                shape: x.shape.clone(),
                need: "at most the size of the axis",
            });
        }
        Ok(Meta::new(DType::I64, x.shape.with(self.axis, len)))
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    fn grad(&self, _g: &Vjp<'_>) -> Grad {
        Grad::None("positions do not move with the values; gather the values by them")
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        if y.shape().contains(&0) {
            return Ok(());
        }
        let (_, len, inner) = y.shape().around(self.axis);
        let size = x[0].shape()[self.axis];
        let keys: Vec<u64> = with_dtype!(x[0].dtype(), T => x[0].iter::<T>().map(key).collect());
        let y = y.dense::<i64>();
        for line in 0..keys.len() / size {
            let (o, k) = (line / inner, line % inner);
            let key = |i: i64| keys[(o * size + i as usize) * inner + k];
            let mut order: Vec<i64> = (0..size as i64).collect();
            match self.descending {
                false => order.sort_by_key(|&i| key(i)),
                true => order.sort_by_key(|&i| std::cmp::Reverse(key(i))),
            }
            order[..len].iter().enumerate().for_each(|(j, &i)| y[(o * len + j) * inner + k] = i);
        }
        Ok(())
    }

    /// Sorts key and position as one number, a row of the last axis at a time.
    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fn rows<T: Element, K: Keyed>(
            x: &[T],
            size: usize,
            len: usize,
            y: &mut [i64],
            keyed: impl Fn(usize, T) -> K + Sync,
        ) {
            let rows = (GRAIN / (size * 8)).max(1);
            par_chunks_mut(y, rows * len, |start, y| {
                let mut line: Vec<K> = Vec::with_capacity(size);
                for (r, y) in y.chunks_exact_mut(len).enumerate() {
                    let x = &x[(start / len + r) * size..][..size];
                    line.clear();
                    line.extend(x.iter().enumerate().map(|(i, &v)| keyed(i, v)));
                    if len < size {
                        line.select_nth_unstable(len - 1);
                    }
                    line[..len].sort_unstable();
                    y.iter_mut().zip(&line).for_each(|(y, k)| *y = k.position());
                }
            });
        }
        let (size, len) = (x[0].shape()[self.axis], y.shape()[self.axis]);
        if self.axis + 1 != x[0].shape().rank() || size > u32::MAX as usize || y.shape().contains(&0) {
            return false;
        }
        // Reversing the keys and not the order keeps equal elements in place.
        let flip = if self.descending { u64::MAX } else { 0 };
        with_dtype!(x[0].dtype(), T => {
            let Some(values) = x[0].dense::<T>() else { return false };
            match x[0].dtype() {
                DType::F64 | DType::I64 | DType::U32 => {
                    rows(values, size, len, y.dense(), |i, v: T| (key(v) ^ flip, i as u32));
                }
                _ => rows(values, size, len, y.dense(), |i, v: T| {
                    u64::from(short_key(v) ^ flip as u32) << 32 | i as u64
                }),
            }
        });
        true
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let depth = x[0].shape.get(self.axis).map_or(1, |&n| n.max(2).ilog2() as u64 + 1);
        Cost { flops: x[0].numel() as u64 * depth, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |axis, descending, limit, shape: &[usize]| {
            Sample::new(Argsort { axis, descending, limit }, [Draw::distinct(shape)])
        };
        vec![
            call(0, false, None, &[5, 3]),
            call(1, true, None, &[3, 17]),
            call(2, false, Some(4), &[2, 3, 9]),
            call(1, true, Some(2), &[2, 4, 3]),
            call(0, false, None, &[0, 3]),
            call(1, false, Some(0), &[2, 3]),
            Sample::new(Argsort { axis: 0, descending: true, limit: None }, [Draw::int([40], 0, 5)]),
        ]
    }
}

/// A number that sorts as the element does: zeros are one, all NaN are one and the largest.
fn key<T: Element>(x: T) -> u64 {
    const SIGN: u64 = 1 << 63;
    if !T::DTYPE.is_float() {
        return x.to_i64() as u64 ^ SIGN;
    }
    let x = x.to_f64();
    if x.is_nan() {
        return u64::MAX;
    }
    let bits = (x + 0.0).to_bits();
    if bits & SIGN != 0 { !bits } else { bits | SIGN }
}

/// [`key`] in 32 bits, for dtypes that f32 or i32 hold.
fn short_key<T: Element>(x: T) -> u32 {
    const SIGN: u32 = 1 << 31;
    if !T::DTYPE.is_float() {
        return x.to_i64() as u32 ^ SIGN;
    }
    let x = x.to_f64() as f32;
    if x.is_nan() {
        return u32::MAX;
    }
    let bits = (x + 0.0).to_bits();
    if bits & SIGN != 0 { !bits } else { bits | SIGN }
}

/// A key and a position that sort as one: the position breaks ties.
trait Keyed: Ord + Copy {
    fn position(self) -> i64;
}

impl Keyed for (u64, u32) {
    fn position(self) -> i64 {
        i64::from(self.1)
    }
}

/// A short key above a position.
impl Keyed for u64 {
    fn position(self) -> i64 {
        i64::from(self as u32)
    }
}

impl Tensor {
    /// The positions that sort an axis; equal elements keep their order, NaN counts as the largest.
    #[track_caller]
    pub fn argsort(&self, axis: isize, descending: bool) -> Tensor {
        self.first_positions(Argsort::NAME, axis, descending, None)
    }

    /// The first positions of the sorted order.
    #[track_caller]
    pub(crate) fn first_positions(
        &self,
        op: &'static str,
        axis: isize,
        descending: bool,
        limit: Option<usize>,
    ) -> Tensor {
        let axis = or_fail(self.shape().axis(axis).in_op(op));
        match self.rank() {
            0 => run(Argsort { axis, descending, limit }, &[&self.reshape(1)]).reshape(()),
            _ => run(Argsort { axis, descending, limit }, &[self]),
        }
    }
}
