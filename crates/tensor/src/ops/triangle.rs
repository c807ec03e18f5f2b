//! `triangle`: the lower or the upper triangle of the last two axes, zeros elsewhere.

use thalweg_core::{Element, View, ViewMut, with_dtype};

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// One triangle of each matrix.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Triangle {
    /// Which triangle stays.
    pub side: Side,
    /// The diagonal that is its edge, counted upwards from the main one.
    pub diagonal: isize,
}

/// A side of a diagonal, the diagonal included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Side {
    /// Below and on the diagonal.
    Lower,
    /// Above and on the diagonal.
    Upper,
}

impl Triangle {
    /// The columns of a row that stay.
    fn stays(&self, row: usize, n: usize) -> std::ops::Range<usize> {
        let edge = |d: isize| (row as isize).saturating_add(d).clamp(0, n as isize) as usize;
        match self.side {
            Side::Lower => 0..edge(self.diagonal.saturating_add(1)),
            Side::Upper => edge(self.diagonal)..n,
        }
    }
}

impl Primitive for Triangle {
    const NAME: &'static str = "triangle";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        if x.shape.rank() < 2 {
            return Err(OpError::Rank { op: Self::NAME, want: "at least 2", shape: x.shape.clone() });
        }
        Ok(x.clone())
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        Grad::one(run(self.clone(), &[g.dy()]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        fn typed<T: Element>(op: &Triangle, x: View<'_>, [m, n]: [usize; 2], y: &mut [T]) {
            for (i, (y, x)) in y.iter_mut().zip(x.iter::<T>()).enumerate() {
                *y = if op.stays(i / n % m, n).contains(&(i % n)) { x } else { T::from_i64(0) };
            }
        }
        let size = [x[0].shape()[x[0].shape().rank() - 2], x[0].shape()[x[0].shape().rank() - 1]];
        with_dtype!(y.dtype(), T => typed::<T>(self, x[0], size, y.dense()));
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fn typed<T: Element>(op: &Triangle, x: &[T], [m, n]: [usize; 2], y: &mut [T]) {
            for (i, (y, x)) in y.chunks_exact_mut(n).zip(x.chunks_exact(n)).enumerate() {
                let stays = op.stays(i % m, n);
                y[..stays.start].fill(T::from_i64(0));
                y[stays.end..].fill(T::from_i64(0));
                y[stays.clone()].copy_from_slice(&x[stays]);
            }
        }
        let size = [x[0].shape()[x[0].shape().rank() - 2], x[0].shape()[x[0].shape().rank() - 1]];
        if y.shape().contains(&0) {
            return false;
        }
        with_dtype!(y.dtype(), T => {
            let Some(x) = x[0].dense::<T>() else { return false };
            typed(self, x, size, y.dense::<T>());
        });
        true
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost::copy(x, y)
    }

    fn samples() -> Vec<Sample> {
        let call =
            |shape: &[usize], side, diagonal| Sample::new(Triangle { side, diagonal }, [Draw::any(shape)]);
        vec![
            call(&[2, 3, 4], Side::Lower, 0),
            call(&[2, 3, 4], Side::Upper, -1),
            call(&[4, 3], Side::Lower, -2),
            call(&[4, 3], Side::Upper, 9),
            call(&[2, 0, 3], Side::Upper, 0),
            call(&[1, 1], Side::Lower, -9),
        ]
    }
}

impl Tensor {
    /// The lower triangle of the last two axes up to a diagonal, zeros above.
    #[track_caller]
    pub fn tril(&self, diagonal: isize) -> Tensor {
        run(Triangle { side: Side::Lower, diagonal }, &[self])
    }

    /// The upper triangle of the last two axes from a diagonal, zeros below.
    #[track_caller]
    pub fn triu(&self, diagonal: isize) -> Tensor {
        run(Triangle { side: Side::Upper, diagonal }, &[self])
    }
}
