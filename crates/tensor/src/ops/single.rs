//! Operands and results as dense f32 slices, for kernels that know nothing else.

use std::ops::Deref;

use smallvec::SmallVec;
use thalweg_core::{Buffer, DType, Layout, View, ViewMut};

use crate::ops::elementwise::{blocks, through};

/// An operand in row-major order: where it lies, or as a copy.
pub(crate) enum Single<'a> {
    InPlace(&'a [f32]),
    Copied(Buffer),
}

impl Deref for Single<'_> {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        match self {
            Single::InPlace(x) => x,
            Single::Copied(buffer) => buffer.as_slice(),
        }
    }
}

/// The operand as f32, if it is one or a half-precision float.
pub(crate) fn operand(x: View<'_>) -> Option<Single<'_>> {
    if let (DType::F32, true) = (x.dtype(), x.layout().is_contiguous()) {
        return x.dense().map(Single::InPlace);
    }
    let mut copy = Buffer::scratch(DType::F32, x.shape().numel());
    match x.dtype() {
        DType::F32 => blocks::<f32, f32, 1>([x], copy.as_mut_slice(), |[x], y| y.copy_from_slice(x)),
        DType::F16 | DType::BF16 => {
            let y = &mut ViewMut::new(&mut copy, x.shape());
            through::<f32, f32, 1>([x], y, |[x], y| y.copy_from_slice(x));
        }
        _ => return None,
    }
    Some(Single::Copied(copy))
}

/// All operands as f32. `None` also when the first has no elements: there is nothing to be quick about.
pub(crate) fn operands<'a>(x: &[View<'a>]) -> Option<SmallVec<[Single<'a>; 4]>> {
    let x: SmallVec<[Single<'a>; 4]> = x.iter().map(|x| operand(*x)).collect::<Option<_>>()?;
    x.first().is_some_and(|x| !x.is_empty()).then_some(x)
}

/// Lets `f` fill the result as f32; half-precision results are rounded once. `false` for other dtypes.
pub(crate) fn result(y: &mut ViewMut<'_>, f: impl FnOnce(&mut [f32])) -> bool {
    match y.dtype() {
        DType::F32 => f(y.dense()),
        DType::F16 | DType::BF16 => {
            let mut wide = Buffer::scratch(DType::F32, y.shape().numel());
            f(wide.as_mut_slice());
            let layout = Layout::contiguous(y.shape().clone());
            through::<f32, f32, 1>([View::new(&wide, &layout)], y, |[x], y| y.copy_from_slice(x));
        }
        _ => return false,
    }
    true
}
