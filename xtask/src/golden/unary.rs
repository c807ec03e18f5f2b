//! How the cases of the family `unary` are called.

use thalweg_tensor::Tensor;

use super::Call;

pub fn call(c: &Call<'_>) -> Option<Vec<Tensor>> {
    let x = &c.x[0];
    let number = |name: &str| c.attrs.f64(name);
    Some(vec![match c.op {
        "neg" => -x,
        "abs" => x.abs(),
        "square" => x.square(),
        "reciprocal" => x.reciprocal(),
        "sqrt" => x.sqrt(),
        "rsqrt" => x.rsqrt(),
        "exp" => x.exp(),
        "expm1" => x.expm1(),
        "log" => x.log(),
        "log1p" => x.log1p(),
        "sin" => x.sin(),
        "cos" => x.cos(),
        "tanh" => x.tanh(),
        "erf" => x.erf(),
        "sign" => x.sign(),
        "sigmoid" => x.sigmoid(),
        "relu" => x.relu(),
        "pow_scalar" => x.powf(number("exponent")?),
        "isnan" => x.isnan(),
        "logical_not" => x.logical_not(),
        _ => return None,
    }])
}
