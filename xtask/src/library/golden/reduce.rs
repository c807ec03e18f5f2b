//! How the cases of the family `reduce` are called.

use thalweg_tensor::{Axes, Tensor};

use super::Call;

pub fn call(c: &Call<'_>) -> Option<Vec<Tensor>> {
    let x = &c.x[0];
    // The cases with an empty first axis carry no attributes.
    let none = if c.tag == "empty_axis" { Axes::from(0) } else { Axes::All };
    let dims: Axes = c.attrs.ints("dims").map_or(none.clone(), Axes::from);
    let dim: Axes = c.attrs.ints("dim").map_or(none, Axes::from);
    let axis = c.attrs.int("dim").unwrap_or(0);
    let keep = c.attrs.bool("keepdim") == Some(true);
    let pair = |(values, indices): (Tensor, Tensor)| Some(vec![values, indices]);
    Some(vec![match (c.op, keep) {
        ("sum", false) => x.sum(dims),
        ("sum", true) => x.sum_keepdim(dims),
        ("mean", false) => x.mean(dims),
        ("mean", true) => x.mean_keepdim(dims),
        ("amax", false) => x.amax(dims),
        ("amax", true) => x.amax_keepdim(dims),
        ("amin", false) => x.amin(dims),
        ("amin", true) => x.amin_keepdim(dims),
        ("logsumexp", false) => x.logsumexp(dims),
        ("logsumexp", true) => x.logsumexp_keepdim(dims),
        ("var_correction0", false) => x.var(dims, 0),
        ("var_correction0", true) => x.var_keepdim(dims, 0),
        ("var_correction1", _) => x.var(dims, 1),
        ("std_correction0", false) => x.std(dims, 0),
        ("std_correction0", true) => x.std_keepdim(dims, 0),
        ("std_correction1", _) => x.std(dims, 1),
        ("vector_norm", _) => x.vector_norm(c.attrs.str("ord")?.parse().ok()?, dims),
        ("prod", false) => x.prod(dim),
        ("prod", true) => x.prod_keepdim(dim),
        ("argmax", false) => x.argmax(dim),
        ("argmax", true) => x.argmax_keepdim(dim),
        ("argmin", false) => x.argmin(dim),
        ("argmin", true) => x.argmin_keepdim(dim),
        ("any", _) => x.any(dim),
        ("all", _) => x.all(dim),
        ("count_nonzero", _) => x.count_nonzero(dim),
        ("max_dim", _) => return pair(x.max_dim(axis)),
        ("min_dim", _) => return pair(x.min_dim(axis)),
        ("cumsum", _) => x.cumsum(axis),
        ("cumprod", _) => x.cumprod(axis),
        ("logcumsumexp", _) => x.logcumsumexp(axis),
        ("cummax", _) => return pair(x.cummax(axis)),
        ("cummin", _) => return pair(x.cummin(axis)),
        ("trace", _) => x.trace(),
        ("diff", _) => x.diff(c.attrs.int("n")? as usize, axis),
        _ => return None,
    }])
}
