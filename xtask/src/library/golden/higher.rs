//! Derivatives of derivatives, forward mode, and per-example gradients.

use thalweg_tensor::{Tensor, grad, hessian, hvp, jacobian, jvp, value_and_grad, vmap};

use super::Call;

pub fn call(c: &Call<'_>) -> Option<Vec<Tensor>> {
    let x = c.x;
    Some(match c.op {
        "hvp" => {
            let f = function(c.tag)?;
            let (value, slope) = value_and_grad(f)(&x[0]);
            vec![value, slope, hvp(f, &x[0], &x[1])]
        }
        "jvp" => {
            let f = function(c.tag)?;
            let (mut value, mut along) = jvp(|x| vec![f(&x[0])], &x[..1], &x[1..]);
            vec![value.remove(0), along.remove(0)]
        }
        "hessian" => vec![hessian(function(c.tag)?, &x[0])],
        "jacobian" => vec![jacobian(|x| x.softmax(-1), &x[0])],
        "vmap_grad" => {
            let loss = |x: &[Tensor]| {
                let (sample, target) = (x[1].clone(), x[2].clone());
                grad(move |w| {
                    let error = sample.matmul(w) - &target;
                    (&error * &error).sum(())
                })(&x[0])
            };
            vec![vmap(loss, &[false, true, true], x)]
        }
        _ => return None,
    })
}

/// The scalar functions that are differentiated twice, by the tag of their cases.
fn function(tag: &str) -> Option<fn(&Tensor) -> Tensor> {
    Some(match tag {
        "poly" => |x| x.powf(3.0).sum(()) + (x.select(0, 0) * x.select(0, 1)).sum(()),
        "tanh2" => |x| x.tanh().square().sum(()),
        "logsumexp" => |x| x.logsumexp(()),
        "cross_entropy" => |x| {
            let (n, classes) = (x.size(0), x.size(1));
            let target = Tensor::from((0..n).map(|i| (i % classes) as i64).collect::<Vec<_>>());
            x.cross_entropy(&target)
        },
        "layer_norm3" => |x| x.layer_norm(x.size(-1), None, None, 1e-5).powf(3.0).sum(()),
        "gram_tanh" => |x| x.matmul(&x.t()).tanh().sum(()),
        "softmax2" => |x| x.softmax(-1).square().sum(()),
        _ => return None,
    })
}
