//! Constants that stand in a graph: ready tensors, equal when their bits are.

use std::fmt;
use std::hash::{Hash, Hasher};

use thalweg_core::with_dtype;
use thalweg_tensor::{Meta, Tensor};

/// A tensor whose values are part of the graph.
#[derive(Clone)]
pub struct Literal(Tensor);

impl Literal {
    /// Wraps a ready tensor.
    pub fn new(t: Tensor) -> Self {
        Self(t.stop_gradient())
    }

    /// The tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.0
    }

    /// Dtype and shape.
    pub fn meta(&self) -> &Meta {
        self.0.meta()
    }

    /// The one number that stands everywhere, if it is laid out as one (stride 0).
    pub fn uniform(&self) -> Option<f64> {
        is_uniform(&self.0).then(|| {
            let (view, at) = (self.0.view(), self.0.layout().offset());
            with_dtype!(self.0.dtype(), T => thalweg_core::Element::to_f64(view.memory::<T>()[at]))
        })
    }

    /// The bits of every element, or of the only one of a uniform tensor.
    fn bits(&self) -> Vec<u8> {
        let t = if is_uniform(&self.0) { first(&self.0) } else { self.0.contiguous() };
        t.view().dense_bytes().expect("made contiguous").to_vec()
    }
}

/// Whether a tensor holds one number in every place, by its layout alone.
pub(crate) fn is_uniform(t: &Tensor) -> bool {
    t.numel() > 0 && t.layout().strides().iter().zip(t.shape().iter()).all(|(&s, &d)| s == 0 || d == 1)
}

/// The first element as a tensor without axes.
pub(crate) fn first(t: &Tensor) -> Tensor {
    (0..t.rank()).fold(t.clone(), |t, _| t.select(0, 0))
}

impl PartialEq for Literal {
    fn eq(&self, other: &Self) -> bool {
        self.meta() == other.meta()
            && is_uniform(&self.0) == is_uniform(&other.0)
            && self.bits() == other.bits()
    }
}

impl Eq for Literal {}

impl Hash for Literal {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.meta().hash(state);
        self.bits().hash(state);
    }
}

impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
