//! How the cases of the family `binary` are called.

use thalweg_tensor::Tensor;

use super::Call;

pub fn call(c: &Call<'_>) -> Option<Vec<Tensor>> {
    let x = c.x;
    let (a, b) = (&x[0], x.get(1).unwrap_or(&x[0]));
    let value = || c.attrs.f64("value").expect("a value");
    Some(vec![match c.op {
        "add" => a + b,
        "sub" => a - b,
        "mul" => a * b,
        "div" => a / b,
        "pow" => a.pow(b),
        "maximum" => a.maximum(b),
        "minimum" => a.minimum(b),
        "fmax" => a.fmax(b),
        "fmin" => a.fmin(b),
        "atan2" => a.atan2(b),
        "hypot" => a.hypot(b),
        "logaddexp" => a.logaddexp(b),
        "xlogy" => a.xlogy(b),
        "copysign" => a.copysign(b),
        "floor_divide" => a.floor_divide(b),
        "remainder" => a.remainder(b),
        "fmod" => a.fmod(b),
        "eq" => a.eq(b),
        "ne" => a.ne(b),
        "lt" => a.lt(b),
        "le" => a.le(b),
        "gt" => a.gt(b),
        "ge" => a.ge(b),
        "logical_and" => a.logical_and(b),
        "logical_or" => a.logical_or(b),
        "logical_xor" => a.logical_xor(b),
        "bitwise_and" => a.bitwise_and(b),
        "bitwise_or" => a.bitwise_or(b),
        "bitwise_xor" => a.bitwise_xor(b),
        "lerp" => a.lerp(b, &x[2]),
        "addcmul" => a.addcmul(b, &x[2], value()),
        "addcdiv" => a.addcdiv(b, &x[2], value()),
        "where" => a.where_(b, &x[2]),
        "masked_fill" => a.masked_fill(b, value()),
        "clamp" => match (c.attrs.f64("min"), c.attrs.f64("max")) {
            (Some(lo), Some(hi)) => a.clamp(lo, hi),
            (Some(lo), None) => a.clamp_min(lo),
            (None, Some(hi)) => a.clamp_max(hi),
            (None, None) => a.clamp(b, &x[2]),
        },
        _ => return None,
    }])
}
