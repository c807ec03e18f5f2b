//! `arg_extremum`: where along one axis the largest or smallest element stands, as i64. The first of
//! equals, and the first NaN before everything.

use thalweg_core::{DType, View, ViewMut};
use thalweg_kernels::rows::reduce;
use thalweg_kernels::stream::split::par_chunks_mut;

use crate::apply::run;
use crate::args::Axes;
use crate::error::{OpError, fail, or_fail};
use crate::meta::{Meta, arity};
use crate::ops::Extreme;
use crate::ops::elementwise::{GRAIN, Wide};
use crate::ops::fast_reduction::{Rows, WIDTH, by_columns, with_middle};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::reduction::{self, by_rows, dropped};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// Where along an axis the extreme element stands.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ArgExtremum {
    /// Largest or smallest.
    pub kind: Extreme,
    /// The axis that disappears.
    pub axis: usize,
}

impl ArgExtremum {
    /// The name that users know.
    fn method(&self) -> &'static str {
        match self.kind {
            Extreme::Max => "argmax",
            Extreme::Min => "argmin",
        }
    }
}

impl Primitive for ArgExtremum {
    const NAME: &'static str = "arg_extremum";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(self.method(), x)?;
        let y = reduction::infer(self.method(), x, &[self.axis])?;
        if x.shape[self.axis] == 0 {
            return Err(OpError::Empty { op: self.method(), shape: x.shape.clone() });
        }
        Ok(y.with_dtype(DType::I64))
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    fn grad(&self, _g: &Vjp<'_>) -> Grad {
        Grad::None("a position is a whole number; take the value there with `gather`, or use `amax`")
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        fn first<W: Wide + PartialOrd>(kind: Extreme, row: &[W]) -> i64 {
            (1..row.len()).fold(0, |best, i| if kind.beats(row[i], row[best]) { i } else { best }) as i64
        }
        if x[0].dtype().is_float() {
            by_rows(x[0], &[self.axis], y, |row: &[f64]| first(self.kind, row));
        } else {
            by_rows(x[0], &[self.axis], y, |row: &[i64]| first(self.kind, row));
        }
        Ok(())
    }

    /// Along rows the extreme value first, by a kernel, then where it stands; across rows, both at once.
    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let kind = self.kind;
        if u32::try_from(x[0].shape()[self.axis]).is_err() {
            return false;
        }
        let y = y.dense::<i64>();
        with_middle(x[0], &[self.axis], |x, sizes| {
            let n = sizes[1];
            if sizes[2] > 1 {
                return by_columns(x, sizes, y, |rows, y| first_in_columns(kind, rows, y));
            }
            let mut best = vec![0.0; y.len()];
            if kind == Extreme::Max {
                reduce::max(x, n, &mut best)
            } else {
                reduce::min(x, n, &mut best)
            }
            par_chunks_mut(y, (GRAIN / n).max(1), |start, y| {
                for (i, y) in y.iter_mut().enumerate() {
                    let (row, best) = (&x[(start + i) * n..][..n], best[start + i]);
                    let found = match best.is_nan() {
                        true => row.iter().position(|v| v.is_nan()),
                        false => row.iter().position(|&v| v == best),
                    };
                    *y = found.expect("the extreme is one of the elements") as i64;
                }
            });
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: x[0].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |kind, axis, draw| Sample::new(ArgExtremum { kind, axis }, [draw]);
        let of = |kind| {
            vec![
                call(kind, 0, Draw::distinct([2, 3, 4])),
                call(kind, 1, Draw::distinct([2, 3, 4])),
                call(kind, 1, Draw::distinct([3, 37])),
                call(kind, 0, Draw::int([9, 2], 0, 3)),
                call(kind, 1, Draw::any([0, 3])),
                call(kind, 0, Draw::bool([5])),
            ]
        };
        [of(Extreme::Max), of(Extreme::Min)].concat()
    }
}

fn first_in_columns(kind: Extreme, rows: Rows<'_>, y: &mut [i64]) {
    // Positions as wide as the values, and no branches: the loop is then done in vectors.
    let (mut best, mut at) = ([0.0f32; WIDTH], [0u32; WIDTH]);
    for (k, row) in rows.iter().enumerate() {
        for ((at, best), &x) in at.iter_mut().zip(&mut best).zip(row) {
            let better = k == 0 || kind.beats(x, *best);
            *at = if better { k as u32 } else { *at };
            *best = if better { x } else { *best };
        }
    }
    y.iter_mut().zip(at).for_each(|(y, at)| *y = i64::from(at));
}

impl Tensor {
    /// Where the largest element stands along an axis, or, for `()`, in the flattened tensor. The
    /// first of equals; NaN wins.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let x = Tensor::from([[1.0f32, 5.0], [3.0, 4.0]]);
    /// assert_eq!(x.argmax(()).item::<i64>(), 1);
    /// assert_eq!(x.argmax(0).to_vec::<i64>(), [1, 0]);
    /// ```
    #[track_caller]
    pub fn argmax(&self, axis: impl Into<Axes>) -> Tensor {
        self.arg_extremum(Extreme::Max, &axis.into(), false)
    }

    /// [`Tensor::argmax`], with the axis kept at size 1.
    #[track_caller]
    pub fn argmax_keepdim(&self, axis: impl Into<Axes>) -> Tensor {
        self.arg_extremum(Extreme::Max, &axis.into(), true)
    }

    /// Where the smallest element stands along an axis, or, for `()`, in the flattened tensor. The
    /// first of equals; NaN wins.
    #[track_caller]
    pub fn argmin(&self, axis: impl Into<Axes>) -> Tensor {
        self.arg_extremum(Extreme::Min, &axis.into(), false)
    }

    /// [`Tensor::argmin`], with the axis kept at size 1.
    #[track_caller]
    pub fn argmin_keepdim(&self, axis: impl Into<Axes>) -> Tensor {
        self.arg_extremum(Extreme::Min, &axis.into(), true)
    }

    #[track_caller]
    fn arg_extremum(&self, kind: Extreme, axis: &Axes, keepdim: bool) -> Tensor {
        let name = ArgExtremum { kind, axis: 0 }.method();
        let all = matches!(axis, Axes::All);
        let axes = or_fail(axis.resolve(name, self.shape()));
        if !all && axes.len() > 1 {
            let (value, shape) = (format!("{axes:?}"), self.shape().clone());
            fail(OpError::Argument {
                op: name,
                name: "axis",
                value,
                shape,
                need: "one axis, or `()` for all",
            });
        }
        let shape = if keepdim { reduction::kept(self.shape(), &axes) } else { dropped(self.shape(), &axes) };
        let (x, axis) = match axes[..] {
            [axis] => (self.clone(), axis),
            _ => (self.reshape(self.numel()), 0),
        };
        run(ArgExtremum { kind, axis }, &[&x]).reshape(shape)
    }
}
