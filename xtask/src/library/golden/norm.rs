//! How the cases of the family `norm` are called.

use thalweg_tensor::{BatchNormOptions, Tensor};

use super::Call;

pub fn call(c: &Call<'_>) -> Option<Vec<Tensor>> {
    let (x, weight, bias) = (&c.x[0], c.x.get(1), c.x.get(2));
    let attrs = c.attrs;
    let dim = || attrs.int("dim").expect("the case has an axis");
    let eps = attrs.f64("eps").unwrap_or(1e-5);
    let shape = || {
        let sizes = attrs.ints("normalized_shape").expect("the case has a normalised shape");
        sizes.iter().map(|&d| d as usize).collect::<Vec<usize>>()
    };
    let batch = || {
        let momentum = attrs.f64("momentum").unwrap_or(0.1);
        (&c.x[3], &c.x[4], BatchNormOptions { weight, bias, momentum, eps })
    };
    Some(vec![match c.op {
        "softmax" => x.softmax(dim()),
        "log_softmax" => x.log_softmax(dim()),
        "softmin" => x.softmin(dim()),
        "layer_norm" => x.layer_norm(&shape()[..], weight, bias, eps),
        "rms_norm" => x.rms_norm(&shape()[..], weight, eps),
        "batch_norm_train" => {
            let (mean, var, options) = batch();
            let (y, mean, var) = x.batch_norm_train(mean, var, &options);
            return Some(vec![y, mean, var]);
        }
        "batch_norm_eval" => {
            let (mean, var, options) = batch();
            x.batch_norm_eval(mean, var, &options)
        }
        "group_norm" => x.group_norm(attrs.int("groups")? as usize, weight, bias, eps),
        "instance_norm" => x.instance_norm(weight, bias, eps),
        "local_response_norm" => {
            let [alpha, beta, k] = ["alpha", "beta", "k"].map(|n| attrs.f64(n).expect("the case has it"));
            x.local_response_norm(attrs.int("size")? as usize, alpha, beta, k)
        }
        "normalize" => x.normalize(attrs.f64("p")?, dim(), 1e-12),
        _ => return None,
    }])
}
