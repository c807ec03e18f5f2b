//! Named, mutable tensors: weights and other state that outlives one computation.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::autodiff::Leaf;
use crate::tape::{self, History, Kind, Node};
use crate::tensor::Tensor;

/// A tensor with a name and a value that changes. Clones are the same parameter.
///
/// ```
/// use thalweg_tensor::{Param, Tensor};
/// let w = Param::new("w", Tensor::from([1.0f32, 2.0]));
/// let loss = w.get().square().sum(());
/// let g = loss.grad(&[&w]).remove(0);
/// w.set(&w.get() - g * 0.1);
/// assert_eq!(w.get().to_vec::<f32>(), [0.8, 1.6]);
/// ```
#[derive(Clone)]
pub struct Param(Arc<Inner>);

struct Inner {
    name: String,
    trainable: bool,
    frozen: AtomicBool,
    value: RwLock<Tensor>,
}

impl Param {
    /// A trainable parameter. Its value is its own: gradients stop here.
    #[track_caller]
    pub fn new(name: impl Into<String>, value: Tensor) -> Self {
        let value = RwLock::new(leaf(&value));
        Self(Arc::new(Inner { name: name.into(), trainable: true, frozen: AtomicBool::new(false), value }))
    }

    /// State that is read and written but not trained, such as running statistics.
    pub fn state(name: impl Into<String>, value: Tensor) -> Self {
        let value = RwLock::new(value.stop_gradient());
        Self(Arc::new(Inner { name: name.into(), trainable: false, frozen: AtomicBool::new(false), value }))
    }

    /// The name it was given.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether gradients flow into it: neither state nor frozen.
    pub fn is_trainable(&self) -> bool {
        self.0.trainable && !self.is_frozen()
    }

    /// Whether it is state, made by [`Param::state`], which is never trained.
    pub fn is_state(&self) -> bool {
        !self.0.trainable
    }

    /// Whether [`Param::freeze`] has taken it out of training.
    pub fn is_frozen(&self) -> bool {
        self.0.frozen.load(Ordering::Relaxed)
    }

    /// Takes the parameter out of training, or brings it back: a frozen one is read as a constant.
    pub fn freeze(&self, frozen: bool) {
        self.0.frozen.store(frozen, Ordering::Relaxed);
    }

    /// A number that this parameter, with all its clones, shares with no other one alive.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// The present value, as a leaf when trainable.
    pub fn get(&self) -> Tensor {
        let value = self.0.value.read().unwrap_or_else(PoisonError::into_inner).clone();
        if self.is_frozen() { value.stop_gradient() } else { value }
    }

    /// A new value of the same dtype and shape; its history is forgotten. Tensors that were read
    /// before keep the old value. Panics when dtype or shape differ.
    #[track_caller]
    pub fn set(&self, value: Tensor) {
        let mut slot = self.0.value.write().unwrap_or_else(PoisonError::into_inner);
        assert!(
            slot.meta() == value.meta(),
            "set: param `{}` is {}, the new value is {}",
            self.name(),
            slot.meta(),
            value.meta()
        );
        *slot = if self.0.trainable { leaf(&value) } else { value.stop_gradient() };
    }

    /// What `backward` has left here since the value was last set.
    pub fn grad(&self) -> Option<Tensor> {
        self.get().leaf_grad()
    }
}

impl Leaf for Param {
    fn leaf(&self) -> Tensor {
        self.get()
    }
    fn leaf_name(&self) -> Option<&str> {
        Some(self.name())
    }
}

impl fmt::Debug for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Param({}: {})", self.name(), self.get().meta())
    }
}

/// The same value as a variable of level 0.
#[track_caller]
pub(crate) fn leaf(value: &Tensor) -> Tensor {
    let node = Node {
        id: tape::next_id(),
        level: 0,
        edges: Default::default(),
        kind: Kind::Leaf(Mutex::new(None)),
        at: std::panic::Location::caller(),
    };
    value.with_history(Some(History { node: Arc::new(node), output: 0 }))
}
