//! Counting the work of a piece of code, op by op.

use std::cell::Cell;

use crate::meta::Meta;
use crate::ops::{Cost, Op};

thread_local! {
    static COUNTED: Cell<Option<Cost>> = const { Cell::new(None) };
}

/// Runs `f` and adds up what its ops cost on this thread, as the ops themselves state it. Calls may
/// be nested: the outer one counts what the inner one counted.
///
/// ```
/// use thalweg_tensor::{Tensor, metered};
/// let (a, b) = (Tensor::from([[1.0f32; 4]; 3]), Tensor::from([[1.0f32; 5]; 4]));
/// let (_, cost) = metered(|| a.matmul(&b));
/// assert_eq!(cost.flops, 2 * 3 * 4 * 5);
/// ```
pub fn metered<R>(f: impl FnOnce() -> R) -> (R, Cost) {
    let meter = Meter::start();
    let result = f();
    (result, meter.stop())
}

/// [`metered`] for code that is no closure: counts from its start to its end. Meters must end in the
/// reverse order of their starts.
pub struct Meter {
    outer: Option<Cost>,
}

impl Meter {
    /// Begins to count on this thread.
    pub fn start() -> Self {
        Self { outer: COUNTED.replace(Some(Cost::default())) }
    }

    /// What was counted since the start.
    pub fn stop(self) -> Cost {
        COUNTED.get().unwrap_or_default()
    }
}

impl Drop for Meter {
    /// Also when a panic passes, so that nothing goes on counting.
    fn drop(&mut self) {
        let inner = COUNTED.get().unwrap_or_default();
        COUNTED.set(self.outer.map(|outer| outer.plus(inner)));
    }
}

/// Counts one application, if anybody counts.
#[inline]
pub(crate) fn count(op: &Op, inputs: &[&Meta], result: &Meta) {
    if let Some(cost) = COUNTED.get() {
        COUNTED.set(Some(cost.plus(op.cost(inputs, result))));
    }
}

impl Cost {
    fn plus(self, other: Cost) -> Cost {
        Cost { flops: self.flops + other.flops, bytes: self.bytes + other.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::metered;
    use crate::Tensor;

    #[test]
    fn every_way_of_running_an_op_is_counted_once() {
        let x = Tensor::from([1.0f32, 2.0, 3.0]);
        let flops = |f: &dyn Fn() -> Tensor| metered(f).1.flops;
        assert_eq!(flops(&|| &x + &x), 3);
        assert_eq!(flops(&|| &x * 2.0), 3);
        assert_eq!(flops(&|| (&x + &x) * &x), 6);
        assert_eq!(flops(&|| x.requires_grad() * 2.0), 3);
        assert_eq!(flops(&|| x.reshape([3, 1])), 0);
    }

    #[test]
    fn an_outer_count_includes_the_inner_one() {
        let x = Tensor::from([1.0f32, 2.0]);
        let ((_, inner), outer) = metered(|| {
            let _ = &x + &x;
            metered(|| &x * &x)
        });
        assert_eq!((inner.flops, outer.flops), (2, 4));
    }
}
