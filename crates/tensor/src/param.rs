//! Named, mutable tensors: weights and other state that outlives one computation.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex};

use parking_lot::lock_api::{ArcRwLockReadGuard, ArcRwLockWriteGuard};
use parking_lot::{RawRwLock, RwLock};
use thalweg_core::{Buffer, SpanMut, View, with_dtype};

use crate::autodiff::Leaf;
use crate::backward::leave_in_slot;
use crate::error::fail;
use crate::meta::Meta;
use crate::switch::Switch;
use crate::tape::{self, History, Kind, Node};
use crate::tensor::Tensor;
use crate::trace;

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
    frozen: Switch,
    value: Arc<RwLock<Tensor>>,
}

impl Param {
    /// A trainable parameter. Its value is its own: gradients stop here.
    #[track_caller]
    pub fn new(name: impl Into<String>, value: Tensor) -> Self {
        let value = Arc::new(RwLock::new(leaf(&value)));
        Self::holding(name.into(), true, value)
    }

    /// State that is read and written but not trained, such as running statistics.
    pub fn state(name: impl Into<String>, value: Tensor) -> Self {
        let value = Arc::new(RwLock::new(value.stop_gradient()));
        Self::holding(name.into(), false, value)
    }

    fn holding(name: String, trainable: bool, value: Arc<RwLock<Tensor>>) -> Self {
        let frozen = Switch::new(format!("`freeze` of param `{name}`"), false);
        Self(Arc::new(Inner { name, trainable, frozen, value }))
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
        self.0.frozen.is_on()
    }

    /// Takes the parameter out of training, or brings it back: a frozen one is read as a constant.
    pub fn freeze(&self, frozen: bool) {
        self.0.frozen.turn(frozen);
    }

    /// A number that this parameter, with all its clones, shares with no other one alive.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// The present value, as a leaf when trainable.
    #[track_caller]
    pub fn get(&self) -> Tensor {
        let value = trace::param_value(self, tape::line(Location::caller())).unwrap_or_else(|| self.ready());
        if self.is_frozen() { value.stop_gradient() } else { value }
    }

    /// Dtype and shape.
    pub fn meta(&self) -> Meta {
        self.0.value.read().meta().clone()
    }

    /// The value outside of any trace.
    fn ready(&self) -> Tensor {
        self.0.value.read().clone()
    }

    /// `value` as it is held here: a variable of its own when trainable.
    #[track_caller]
    pub(crate) fn own(&self, value: &Tensor) -> Tensor {
        if self.0.trainable { leaf(value) } else { value.without_history() }
    }

    /// Holds the value still for reading.
    pub fn hold(&self) -> ParamRead {
        ParamRead(self.0.value.read_arc())
    }

    /// Holds the value for being changed where it lies: how a compiled step updates it. A tensor
    /// that was read earlier keeps the old value: the memory is copied first if one still exists.
    pub fn hold_mut(&self) -> ParamWrite {
        let mut guard = self.0.value.write_arc();
        if guard.own_memory().is_none() {
            let copy = Tensor::from_buffer(guard.copied_buffer(), guard.shape());
            *guard = self.own(&copy);
        }
        ParamWrite(guard)
    }

    /// Lays the values of these parameters side by side in memory, in this order, so that all can be read as one tensor.
    /// Values and gradients stay; each can still be changed by itself, and a new value from elsewhere ends the
    /// neighbourhood. `false` when they cannot lie so: of different dtypes, twice the same, or not filling cache lines.
    pub fn lay_side_by_side(params: &[&Param]) -> bool {
        let mut order: Vec<usize> = (0..params.len()).collect();
        order.sort_by_key(|&i| params[i].id());
        if order.windows(2).any(|two| params[two[0]].id() == params[two[1]].id()) {
            return false;
        }
        let mut guards: Vec<_> = params.iter().map(|_| None).collect();
        // In one order everywhere, so that nobody waits for somebody who waits.
        order.iter().for_each(|&i| guards[i] = Some(params[i].0.value.write()));
        let mut values: Vec<_> = guards.into_iter().flatten().collect();
        let Some(dtype) = values.first().map(|v| v.dtype()) else { return true };
        let lens: Vec<usize> = values.iter().map(|v| v.meta().numel()).collect();
        if values.iter().any(|v| v.dtype() != dtype) {
            return false;
        }
        let Some(parts) = Buffer::side_by_side(dtype, &lens) else { return false };
        for (value, mut part) in values.iter_mut().zip(parts) {
            with_dtype!(dtype, T => {
                part.as_mut_slice::<T>().iter_mut().zip(value.view().iter::<T>()).for_each(|(to, from)| *to = from);
            });
            let moved = Tensor::from_buffer(part, value.shape()).with_history(value.history().cloned());
            **value = moved;
        }
        true
    }

    /// A new value of the same dtype and shape; its history is forgotten. Tensors that were read
    /// before keep the old value. Panics when dtype or shape differ.
    #[track_caller]
    pub fn set(&self, value: Tensor) {
        let meta = self.meta();
        assert!(
            meta == *value.meta(),
            "set: param `{}` is {meta}, the new value is {}",
            self.name(),
            value.meta()
        );
        if trace::set_param(self, &value) {
            return;
        }
        if let Some(symbol) = value.symbol() {
            fail(symbol.unread("set", Location::caller()));
        }
        *self.0.value.write() = self.own(&value);
    }

    /// Runs `f`, which may set these parameters and leave gradients in them. Afterwards they hold what they held: values and
    /// gradients.
    pub fn restoring<R>(params: &[Param], f: impl FnOnce() -> R) -> R {
        struct Back<'a>(&'a [Param], Vec<Tensor>);
        impl Drop for Back<'_> {
            fn drop(&mut self) {
                self.0.iter().zip(self.1.drain(..)).for_each(|(param, value)| *param.0.value.write() = value);
            }
        }
        let _back = Back(params, params.iter().map(Param::ready).collect());
        for param in params {
            let mut value = param.0.value.write();
            *value = param.own(&value);
        }
        f()
    }

    /// What `backward` has left here since the value was last set.
    #[track_caller]
    pub fn grad(&self) -> Option<Tensor> {
        self.get().leaf_grad()
    }

    /// Adds to what `backward` has left here, as `backward` in a compiled function does when it has run.
    pub fn add_grad(&self, grad: &Tensor) {
        if let Some(history) = self.ready().history() {
            leave_in_slot(&history.node, grad);
        }
    }
}

/// A parameter's value, held still.
pub struct ParamRead(ArcRwLockReadGuard<RawRwLock, Tensor>);

impl ParamRead {
    /// The value.
    pub fn view(&self) -> View<'_> {
        self.0.view()
    }
}

/// A parameter's value, held by whoever changes it.
pub struct ParamWrite(ArcRwLockWriteGuard<RawRwLock, Tensor>);

impl ParamWrite {
    /// The elements in row-major order. What `backward` had left is forgotten.
    pub fn span_mut(&mut self) -> SpanMut<'_> {
        self.0.clear_leaf_grad();
        self.0.own_memory().expect("made so by `hold_mut`, and held since")
    }
}

impl Leaf for Param {
    #[track_caller]
    fn leaf(&self) -> Tensor {
        self.get()
    }
    fn leaf_name(&self) -> Option<&str> {
        Some(self.name())
    }
}

impl fmt::Debug for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Param({}: {})", self.name(), self.meta())
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
        at: Location::caller(),
    };
    value.with_history(Some(History { node: Arc::new(node), output: 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::DType;

    #[test]
    fn what_is_restored_has_its_value_and_gradient_again() {
        let [w, n] = ["w", "n"].map(|name| Param::new(name, Tensor::from([1.0f32, 2.0])));
        (w.get() * 3.0).sum(()).backward();
        let inside = Param::restoring(&[w.clone(), n.clone()], || {
            assert!(w.grad().is_none(), "a gradient that is left inside must not meet the old one");
            (w.get() * 5.0).sum(()).backward();
            n.set(n.get() * 10.0);
            (w.grad().unwrap().to_vec::<f32>(), n.get().to_vec::<f32>())
        });
        assert_eq!(inside, (vec![5.0, 5.0], vec![10.0, 20.0]));
        assert_eq!(w.grad().unwrap().to_vec::<f32>(), [3.0, 3.0]);
        assert_eq!(n.get().to_vec::<f32>(), [1.0, 2.0]);
    }

    #[test]
    fn neighbours_keep_values_and_gradients_and_change_by_themselves() {
        let [a, b] = [1.0f32, 2.0].map(|v| Param::new("p", Tensor::full([4, 8], v, DType::F32)));
        (a.get() * b.get()).sum(()).backward();
        assert!(Param::lay_side_by_side(&[&b, &a]));
        let at = |p: &Param| p.hold().view().address().addr();
        assert_eq!(at(&b) + 4 * 8 * 4, at(&a));
        assert_eq!(a.grad().unwrap().to_vec::<f32>(), [2.0; 32]);
        let old = b.get();
        a.hold_mut().span_mut().as_mut_slice::<f32>().fill(7.0);
        assert_eq!(at(&b) + 4 * 8 * 4, at(&a));
        assert_eq!((a.get().to_vec::<f32>(), b.get().to_vec::<f32>()), (vec![7.0; 32], vec![2.0; 32]));
        b.set(old * 2.0);
        assert_ne!(at(&b) + 4 * 8 * 4, at(&a));
        assert!(!Param::lay_side_by_side(&[&a, &a]));
    }
}
