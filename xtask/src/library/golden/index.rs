//! How the cases of the family `index` are called.

use thalweg_tensor::{Bag, Index, Reduce, Tensor};

use super::Call;

pub fn call(c: &Call<'_>) -> Option<Vec<Tensor>> {
    let x = c.x;
    let axis = c.attrs.int("dim").unwrap_or(-1);
    let flag = |name| c.attrs.bool(name).unwrap_or(false);
    let count = |name| c.attrs.int(name).unwrap_or(0) as usize;
    let diagonal = c.attrs.int("diagonal").unwrap_or(0);
    let y = match c.op {
        "gather" => x[0].gather(axis, &x[1]),
        "scatter" => match c.attrs.f64("value") {
            Some(value) => x[0].scatter_value(axis, &x[1], value),
            None => x[0].scatter(axis, &x[1], &x[2]),
        },
        "scatter_add" => x[0].scatter_add(axis, &x[1], &x[2]),
        "scatter_reduce" => {
            let reduce = match c.attrs.str("reduce")? {
                "sum" => Reduce::Sum,
                "prod" => Reduce::Prod,
                "mean" => Reduce::Mean,
                "amax" => Reduce::Amax,
                "amin" => Reduce::Amin,
                _ => return None,
            };
            x[0].scatter_reduce(axis, &x[1], &x[2], reduce, flag("include_self"))
        }
        "index_select" => x[0].index_select(axis, &x[1]),
        "index_add" => x[0].index_add(axis, &x[1], &(&x[2] * c.attrs.f64("alpha").unwrap_or(1.0))),
        "index_copy" => x[0].index_copy(axis, &x[1], &x[2]),
        "index_fill" => x[0].index_fill(axis, &x[1], c.attrs.f64("value")?),
        "advanced_index" => x[0].i(x[1..].iter().map(Index::Tensor).collect::<Vec<_>>()),
        "index_put_accumulate" => x[0].index_put_accumulate(&x[1], &x[2]),
        "masked_select" => x[0].masked_select(&x[1]),
        "masked_scatter" => x[0].masked_scatter(&x[1], &x[2]),
        "take" => x[0].take(&x[1]),
        "take_along_dim" => x[0].take_along_dim(&x[1], axis),
        "embedding" => x[1].embedding(&x[0], c.attrs.int("padding_idx").map(|p| p as usize)),
        "embedding_bag" => {
            let mode = match c.attrs.str("mode")? {
                "sum" => Bag::Sum,
                "mean" => Bag::Mean,
                "max" => Bag::Max,
                _ => return None,
            };
            x[2].embedding_bag(&x[0], &x[1], mode)
        }
        "one_hot" => x[0].one_hot(count("num_classes")),
        "nonzero" => x[0].nonzero(),
        "tril" => x[0].tril(diagonal),
        "triu" => x[0].triu(diagonal),
        "diagonal" => x[0].diagonal(c.attrs.int("offset")?, c.attrs.int("dim1")?, c.attrs.int("dim2")?),
        "diag_embed" => x[0].diag_embed(0, -2, -1),
        "searchsorted" => x[0].searchsorted(&x[1], flag("right")),
        "bincount" => x[0].bincount(0),
        "sort" => return Some(pair(x[0].sort(axis, flag("descending")))),
        "argsort" => x[0].argsort(axis, flag("descending")),
        "topk" => {
            let largest = c.attrs.bool("largest").unwrap_or(true);
            return Some(pair(x[0].topk(count("k"), axis, largest)));
        }
        "kthvalue" => return Some(pair(x[0].kthvalue(count("k"), axis))),
        "median_dim" => return Some(pair(x[0].median_dim(axis))),
        "unique" => {
            let u = x[0].unique();
            return Some(vec![u.values, u.inverse, u.counts]);
        }
        _ => return None,
    };
    Some(vec![y])
}

fn pair((values, positions): (Tensor, Tensor)) -> Vec<Tensor> {
    vec![values, positions]
}
