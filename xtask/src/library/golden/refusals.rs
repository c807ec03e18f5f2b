//! Calls that must be refused: each must panic with a message of ours, not compute something.

use std::panic::{AssertUnwindSafe, catch_unwind};

use thalweg_core::DType::F32;
use thalweg_tensor::{BatchNormOptions, ConvOptions, MaxPoolOptions, PadMode, Tensor};

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
        "amax/empty" => || z(&[0, 3]).amax(0),
        "argmax/empty" => || z(&[0, 3]).argmax(0),
        "cholesky/notpd" => || (-Tensor::eye(2, F32)).cholesky(),
        "solve/singular" => || z(&[2, 2]).solve(&z(&[2, 1])),
        "index_select/oob" => || z(&[3]).index_select(0, &Tensor::from([3i64])),
        "gather/oob" => || z(&[3]).gather(0, &Tensor::from([-1i64])),
        "embedding/oob" => || z(&[5, 2]).embedding(&Tensor::from([5i64]), None),
        "split/sizes" => || z(&[5]).split_sizes(&[2, 2], 0).remove(0),
        "topk/k" => || z(&[3]).topk(4, 0, true).0,
        "pad/reflect" => || z(&[1, 1, 3]).pad(&[3, 0], PadMode::Reflect),
        "backward/nonscalar" => || {
            let x = z(&[3]).requires_grad();
            x.exp().backward();
            x
        },
        "cross_entropy/target" => || z(&[2, 3]).cross_entropy(&Tensor::from([0i64, 3])),
        "conv2d/channels" => || z(&[1, 3, 5, 5]).conv2d(&z(&[2, 4, 3, 3]), None, &ConvOptions::default()),
        "conv2d/groups" => || {
            let options = ConvOptions { groups: 2, ..Default::default() };
            z(&[1, 4, 5, 5]).conv2d(&z(&[3, 2, 3, 3]), None, &options)
        },
        "conv2d/kernel" => || z(&[1, 1, 2, 2]).conv2d(&z(&[1, 1, 3, 3]), None, &ConvOptions::default()),
        "max_pool2d/pad" => || {
            let options = MaxPoolOptions { padding: 2.into(), ..Default::default() };
            z(&[1, 1, 4, 4]).max_pool2d(2, &options)
        },
        "layer_norm/shape" => || z(&[2, 3]).layer_norm(4, None, None, 1e-5),
        "batch_norm_train/one_value" => {
            || z(&[1, 3]).batch_norm_train(&z(&[3]), &z(&[3]), &BatchNormOptions::default()).0
        }
        _ => return None,
    })
}
