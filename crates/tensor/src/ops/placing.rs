//! What the ops that write to computed positions have in common: how a new value meets the old one,
//! which positions are inside, and the walk over them.

use thalweg_core::{DType, Element, Layout, Shape, View, ViewMut, with_dtype};
use thalweg_kernels::scratch::Scratch;

use crate::error::OpError;
use crate::meta::{Meta, require_index, require_same_dtype};
use crate::ops::copy;
use crate::ops::elementwise::Wide;
use crate::ops::primitive::{Grad, Vjp};
use crate::tensor::Tensor;

/// What happens where a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Combine {
    /// It replaces what was there; of several, the last in row-major order stays.
    Set,
    /// It is added.
    Add,
    /// It is multiplied in.
    Mul,
    /// The larger stays; NaN wins.
    Max,
    /// The smaller stays; NaN wins.
    Min,
}

impl Combine {
    fn float(self, old: f64, new: f64) -> f64 {
        match self {
            Combine::Set => new,
            Combine::Add => old + new,
            Combine::Mul => old * new,
            Combine::Max if new > old || new.is_nan() => new,
            Combine::Min if new < old || new.is_nan() => new,
            Combine::Max | Combine::Min => old,
        }
    }

    fn int(self, old: i64, new: i64) -> i64 {
        match self {
            Combine::Set => new,
            Combine::Add => old.wrapping_add(new),
            Combine::Mul => old.wrapping_mul(new),
            Combine::Max => old.max(new),
            Combine::Min => old.min(new),
        }
    }
}

/// The axis exists, and along the others the index is no larger than what it points into.
pub(crate) fn require_inside(op: &'static str, axis: usize, x: &Shape, index: &Shape) -> Result<(), OpError> {
    let fits =
        axis < x.rank() && x.rank() == index.rank() && (0..x.rank()).all(|i| i == axis || index[i] <= x[i]);
    if fits {
        return Ok(());
    }
    let hint = "the index needs as many axes, none longer than the operand's but the one counted along";
    Err(OpError::Shapes { op, left: x.clone(), right: index.clone(), hint })
}

/// The rules of `scatter`: an index that fits, as many values as the index has positions or more.
pub(crate) fn infer(op: &'static str, axis: usize, x: [&Meta; 3]) -> Result<Meta, OpError> {
    let [x, index, source] = x;
    require_index(op, index)?;
    require_same_dtype(op, x, source)?;
    require_inside(op, axis, &x.shape, &index.shape)?;
    let covered = source.shape.rank() == index.shape.rank()
        && source.shape.iter().zip(index.shape.iter()).all(|(&s, &i)| i <= s);
    if !covered {
        let hint = "the source needs at least the sizes of the index";
        return Err(OpError::Shapes { op, left: source.shape.clone(), right: index.shape.clone(), hint });
    }
    Ok(x.clone())
}

/// The gradient of products and extremes, where the old value takes part like any new one. A
/// product's second derivative is that of its factors other than exact zeros.
pub(crate) fn grad(axis: usize, combine: Combine, index: &Tensor, g: &Vjp<'_>) -> Grad {
    let axis = axis as isize;
    let (x, dy) = (g.x(0), g.dy());
    let part = |t: Tensor, i: usize| t.narrow(i as isize, 0, index.shape()[i]);
    let source = (0..index.rank()).fold(g.x(2).clone(), part);
    let placed = |ds: Tensor| ds.placed_in(&g.meta(2).shape);
    if combine == Combine::Mul {
        let merge = |x: &Tensor, source: &Tensor| x.combine_at(axis, index, source, combine);
        // A factor's slope is the product of the others: with a zero among them 0, else the product
        // of all that are not zero, itself divided out.
        let ds = || {
            let zero = source.eq(0);
            let factors = zero.where_(1, &source);
            let zeros = zero.to_dtype(DType::I64);
            let met =
                Tensor::zeros(x.shape(), DType::I64).scatter_add(axis, index, &zeros).gather(axis, index);
            let rest = (dy * merge(x, &factors)).gather(axis, index) / &factors;
            placed(met.eq(&zeros).where_(&rest, 0))
        };
        let dx = g.want(0, || dy * merge(&x.ones_like(), &source));
        return Grad::Inputs(smallvec::smallvec![dx, None, g.want(2, ds)]);
    }
    // Equals share.
    let y = g.y();
    let (old, new) = (x.eq(&y), source.eq(&y.gather(axis, index)));
    let n = old.to_dtype(x.dtype()).scatter_add(axis, index, &new.to_dtype(x.dtype()));
    let share = dy / n;
    let dx = g.want(0, || old.where_(&share, 0));
    let ds = g.want(2, || placed(new.where_(&share.gather(axis, index), 0)));
    Grad::Inputs(smallvec::smallvec![dx, None, ds])
}

/// An index as a position, or the refusal.
pub(crate) fn checked(op: &'static str, index: i64, size: usize) -> Result<usize, OpError> {
    if (0..size as i64).contains(&index) {
        Ok(index as usize)
    } else {
        Err(OpError::Index { op, index, size })
    }
}

/// Whether every index is a position. Has no early exit, so that it runs at the speed of memory.
pub(crate) fn all_inside(index: &[i64], size: usize) -> bool {
    index.iter().fold(true, |ok, &i| ok & ((i as u64) < size as u64))
}

/// All indices as positions, or the first that is none.
pub(crate) fn positions(op: &'static str, index: View<'_>, size: usize) -> Result<Scratch<usize>, OpError> {
    let mut all = Scratch::filled(index.shape().numel(), 0);
    for (to, i) in all.iter_mut().zip(index.iter::<i64>()) {
        *to = checked(op, i, size)?;
    }
    Ok(all)
}

/// For each element of the index, where the line through its other coordinates starts in a tensor
/// laid out as `layout`. `None` when the index is empty.
pub(crate) fn lines(
    op: &'static str,
    layout: &Layout,
    axis: usize,
    index: View<'_>,
) -> Result<Option<Layout>, OpError> {
    if index.shape().contains(&0) {
        return Ok(None);
    }
    if layout.shape()[axis] == 0 {
        return Err(OpError::Index { op, index: index.iter::<i64>().next().unwrap_or(0), size: 0 });
    }
    let part = |l: Layout, (i, &n): (usize, &usize)| l.slice(i, 0, if i == axis { 1 } else { n }, 1);
    let part = index.shape().iter().enumerate().fold(layout.clone(), part);
    part.broadcast_to(index.shape()).map(Some).map_err(|source| OpError::Shape { op, source })
}

/// The reference kernel of `scatter`: values in row-major order of the index, one after the other.
/// Sums and products are kept in f64 or i64 and rounded once.
pub(crate) fn eval(
    op: &'static str,
    axis: usize,
    combine: Combine,
    [x, index, source]: [View<'_>; 3],
    y: &mut ViewMut<'_>,
) -> Result<(), OpError> {
    let dense = Layout::contiguous(y.shape().clone());
    let Some(lines) = lines(op, &dense, axis, index)? else {
        copy::into_dense(x, y);
        return Ok(());
    };
    let (size, stride) = (y.shape()[axis], dense.strides()[axis] as usize);
    let part = |l: Layout, (i, &n): (usize, &usize)| l.slice(i, 0, n, 1);
    let part = index.shape().iter().enumerate().fold(source.layout().clone(), part);
    // (position in the result, position in the source's memory)
    let moves = lines.positions().zip(index.iter::<i64>()).zip(part.positions());
    let moves = moves.map(|((line, i), from)| Ok((line + checked(op, i, size)? * stride, from)));
    match combine {
        Combine::Set => {
            copy::into_dense(x, y);
            with_dtype!(y.dtype(), T => set::<T>(source, moves, y.dense()))
        }
        _ if y.dtype().is_float() => {
            with_dtype!(y.dtype(), T => merge::<f64, T>(x, source, moves, y.dense(), |a, b| combine.float(a, b)))
        }
        _ => {
            with_dtype!(y.dtype(), T => merge::<i64, T>(x, source, moves, y.dense(), |a, b| combine.int(a, b)))
        }
    }
}

type Moves<E> = Result<(usize, usize), E>;

fn set<T: Element>(
    source: View<'_>,
    moves: impl Iterator<Item = Moves<OpError>>,
    y: &mut [T],
) -> Result<(), OpError> {
    let memory = source.memory::<T>();
    for step in moves {
        let (to, from) = step?;
        y[to] = memory[from];
    }
    Ok(())
}

fn merge<W: Wide, T: Element>(
    x: View<'_>,
    source: View<'_>,
    moves: impl Iterator<Item = Moves<OpError>>,
    y: &mut [T],
    f: impl Fn(W, W) -> W,
) -> Result<(), OpError> {
    let mut wide: Vec<W> = x.iter::<T>().map(W::widen).collect();
    let memory = source.memory::<T>();
    for step in moves {
        let (to, from) = step?;
        wide[to] = f(wide[to], W::widen(memory[from]));
    }
    y.iter_mut().zip(wide).for_each(|(y, w)| *y = w.narrow());
    Ok(())
}
