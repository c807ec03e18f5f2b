//! What a step that panics leaves behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

use thalweg_core::{View, ViewMut};
use thalweg_runtime::jit;
use thalweg_tensor::ops::CustomOp;
use thalweg_tensor::{Meta, OpError, Param, Tensor, custom};

struct Boom;

impl CustomOp for Boom {
    fn name(&self) -> &str {
        "boom"
    }
    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        Ok(x[0].clone())
    }
    fn eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) {
        assert!(x[0].iter::<f32>().all(|x| x > 0.0), "boom");
        y.map_f32(x[0], |x| x);
    }
}

#[test]
fn parameters_can_be_used_after_a_step_has_panicked() {
    let (done, wait) = mpsc::channel();
    // On a thread of its own, since a lock that is held for ever would hold the test too.
    std::thread::spawn(move || {
        let w = Param::new("w", Tensor::from([1.0f32]));
        let mut f = jit(|x: Tensor| {
            let y = custom(Boom, &[&(w.get() * &x)]);
            w.set(w.get() + 1.0);
            y
        });
        let minus = Tensor::from([-1.0f32]);
        assert!(catch_unwind(AssertUnwindSafe(|| f.call(minus.clone()))).is_err());
        w.set(Tensor::from([5.0f32]));
        assert!(catch_unwind(AssertUnwindSafe(|| f.profile(minus, 1))).is_err());
        w.set(Tensor::from([3.0f32]));
        let y = f.call(Tensor::from([2.0f32])).unwrap();
        done.send((y.item::<f32>(), w.get().item::<f32>())).unwrap();
    });
    let limit = Duration::from_secs(60);
    assert_eq!(wait.recv_timeout(limit).expect("a parameter is still locked"), (6.0, 4.0));
}
