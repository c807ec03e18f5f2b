//! Probes: values that print themselves whenever they are computed.

use std::cell::Cell;
use std::thread::LocalKey;

use thalweg_core::{View, ViewMut};
use thalweg_tensor::ops::CustomOp;
use thalweg_tensor::{Meta, OpError, Tensor, custom};

/// Prints a tensor's dtype, shape, range and mean under a name whenever it is computed, eagerly and
/// compiled, and hands it on. Gradients pass through. It prints also if nobody uses what it hands on.
///
/// ```
/// use thalweg_runtime::{jit, probe};
/// use thalweg_tensor::Tensor;
/// let mut f = jit(|x: Tensor| probe("twice", &(x * 2.0)).exp());
/// f.call(Tensor::from([0.0f32])).unwrap(); // twice: f32[1], 0 to 0, mean 0
/// ```
#[track_caller]
pub fn probe(name: &str, x: &Tensor) -> Tensor {
    custom(Probe { heading: name.to_owned(), label: label(name) }, &[x])
}

/// How plans and graphs call a probe.
pub(crate) fn label(name: &str) -> String {
    format!("probe `{name}`")
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, which computes values again, without what probes print.
pub(crate) fn quietly<R>(f: impl FnOnce() -> R) -> R {
    while_set(&IS_QUIET, f)
}

/// Runs `f` with a mode of this thread on; afterwards, also after a panic, it is as it was.
pub(crate) fn while_set<R>(mode: &'static LocalKey<Cell<bool>>, f: impl FnOnce() -> R) -> R {
    struct Restore(&'static LocalKey<Cell<bool>>, bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    let _restore = Restore(mode, mode.replace(true));
    f()
}

struct Probe {
    heading: String,
    label: String,
}

impl CustomOp for Probe {
    fn name(&self) -> &str {
        &self.label
    }

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        Ok(x[0].clone())
    }

    fn has_effect(&self) -> bool {
        true
    }

    fn eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) {
        let (mut low, mut high, mut sum, n) = (f64::INFINITY, f64::NEG_INFINITY, 0.0, x[0].shape().numel());
        thalweg_core::with_dtype!(x[0].dtype(), T => {
            for (y, x) in y.dense::<T>().iter_mut().zip(x[0].iter::<T>()) {
                *y = x;
                let v = thalweg_core::Element::to_f64(x);
                (low, high, sum) = (low.min(v), high.max(v), sum + v);
            }
        });
        if !IS_QUIET.get() {
            let meta = Meta::new(x[0].dtype(), x[0].shape());
            println!("{}: {meta}, {low} to {high}, mean {}", self.heading, sum / n as f64);
        }
    }

    fn vjp(&self, _x: &[Tensor], _y: &Tensor, dy: &Tensor) -> Vec<Option<Tensor>> {
        vec![Some(dy.clone())]
    }
}
