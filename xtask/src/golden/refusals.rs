//! Calls that must be refused: each must panic with a message of ours, not compute something.

use std::panic::{AssertUnwindSafe, catch_unwind};

use thalweg_core::DType::F32;
use thalweg_tensor::Tensor;

/// The refusal's message, or what is wrong; `None` for an id this file does not know.
pub fn is_refused(id: &str) -> Option<Result<String, String>> {
    let call = call(id)?;
    Some(match catch_unwind(AssertUnwindSafe(call)) {
        Ok(y) => Err(format!("was accepted and gave {}", y.meta())),
        Err(panic) => {
            let message = super::panic_message(&*panic);
            // Ours begin with the op's name; anything else is an accident such as an index out of bounds.
            match message.split_once(": ") {
                Some((op, _)) if !op.contains(' ') => Ok(message),
                _ => Err(format!("panicked by accident: {message}")),
            }
        }
    })
}

fn z(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, F32)
}

fn call(id: &str) -> Option<fn() -> Tensor> {
    Some(match id {
        "add/shape" => || z(&[2, 3]) + z(&[2, 4]),
        "matmul/inner" => || z(&[2, 3]).matmul(&z(&[4, 5])),
        "matmul/scalar" => || z(&[]).matmul(&z(&[3])),
        "matmul/batch" => || z(&[2, 3, 4]).matmul(&z(&[3, 4, 5])),
        "reshape/count" => || z(&[2, 3]).reshape(4),
        "reshape/two_infer" => || z(&[2, 3]).reshape([-1, -1]),
        "reshape/infer_empty" => || z(&[0, 3]).reshape([0, -1]),
        "concat/shape" => || Tensor::concat(&[z(&[2, 3]), z(&[3, 2])], 0),
        "permute/dup" => || z(&[2, 3]).permute([0, 0]),
        "permute/count" => || z(&[2, 3]).permute([0]),
        "sum/axis" => || z(&[2, 3]).sum(2),
        "sum/dup_axis" => || z(&[2, 3]).sum([0, -2]),
        "expand/size" => || z(&[2, 3]).expand([4, 3]),
        "squeeze/axis" => || z(&[2]).squeeze(1),
        "floor_divide/int_zero" => || Tensor::from([1i64]).floor_divide(0),
        "slice/step0" => || z(&[3]).slice(0, None, None, 0),
        "backward/nonscalar" => || {
            let x = z(&[3]).requires_grad();
            x.exp().backward();
            x
        },
        _ => return None,
    })
}
