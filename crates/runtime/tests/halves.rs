//! Groups of f16 and bf16: one step, with the bits of the ops one by one.

use thalweg_core::DType;
use thalweg_runtime::jit;
use thalweg_tensor::{Rng, Tensor, grad};

fn bits(t: &Tensor) -> Vec<u32> {
    t.to_dtype(DType::F32).to_vec::<f32>().into_iter().map(f32::to_bits).collect()
}

#[track_caller]
fn check(x: &Tensor, n_steps: usize, f: impl Fn(&Tensor) -> Tensor) {
    let mut compiled = jit(|x: Tensor| f(&x));
    let (got, want) = (compiled.call(x.clone()).unwrap(), f(x));
    assert_eq!(got.meta(), want.meta());
    assert_eq!(bits(&got), bits(&want), "{:?}", x.meta());
    assert_eq!(compiled.plan().n_steps(), n_steps, "{}", compiled.plan());
}

#[test]
fn each_op_of_a_group_rounds_as_it_does_alone() {
    let mut rng = Rng::seed(1);
    for dtype in [DType::BF16, DType::F16] {
        // Less than a vector, more than a tile, more than a task.
        for n in [3, 1500, 70_000] {
            let x = rng.normal([n], 0.0, 2.0).to_dtype(dtype);
            check(&x, 1, |x| (x * 1.7 + 0.3).tanh() * x - x.exp());
            check(&x, 1, |x| (x * x + x).to_dtype(DType::F32).sqrt() * 0.1);
            check(&x, 1, |x| (x.to_dtype(DType::F32) * 0.1).exp().to_dtype(dtype) + 1.0);
            check(&x, 1, |x| (x + 1.0).gt(&(x * 2.0)).to_dtype(DType::F32) * 3.0);
        }
    }
}

#[test]
fn operands_of_any_layout_are_widened() {
    let mut rng = Rng::seed(2);
    for dtype in [DType::BF16, DType::F16] {
        let x = rng.normal([90, 70], 0.0, 1.0).to_dtype(dtype);
        let row = rng.normal([90], 0.0, 1.0).to_dtype(dtype);
        check(&x, 1, |x| (x.t() + &row) * 0.5);
        check(&x, 1, |x| x.narrow(1, 3, 60).sigmoid() * x.narrow(1, 7, 60));
    }
}

#[test]
fn the_gradient_of_a_gate_is_rounded_once() {
    for dtype in [DType::BF16, DType::F16] {
        let x = Rng::seed(3).normal([64, 33], 0.0, 1.5).to_dtype(dtype);
        for f in [Tensor::gelu_tanh as fn(&Tensor) -> Tensor, Tensor::gelu] {
            let slope = |x: &Tensor| grad(|x: &Tensor| f(x).to_dtype(DType::F32).sum(()))(x);
            check(&x, 1, slope);
            let exact = slope(&x.to_dtype(DType::F32)).to_dtype(dtype);
            assert_eq!(bits(&slope(&x)), bits(&exact));
        }
    }
}
