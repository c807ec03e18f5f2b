//! How the cases of the family `shape` are called.

use thalweg_tensor::{Index, PadMode, Tensor};

use super::Call;

pub fn call(c: &Call<'_>) -> Option<Vec<Tensor>> {
    let x = c.x;
    let axis = c.attrs.int("dim").unwrap_or(0);
    let int = |name| c.attrs.int(name);
    let y = match c.op {
        "concat" => Tensor::concat(x, axis),
        "stack" => Tensor::stack(x, axis),
        "split" => {
            return Some(match c.attrs.ints("sizes") {
                Some(sizes) => x[0].split_sizes(&sizes.iter().map(|&s| s as usize).collect::<Vec<_>>(), axis),
                None => x[0].split(int("size")? as usize, axis),
            });
        }
        "chunk" => return Some(x[0].chunk(int("chunks")? as usize, axis)),
        "unbind" => return Some(x[0].unbind(axis)),
        "pad" => {
            let padding = match c.attrs.str("mode")? {
                "constant" => PadMode::Constant(c.attrs.f64("value")?),
                "reflect" => PadMode::Reflect,
                "replicate" => PadMode::Replicate,
                "circular" => PadMode::Circular,
                _ => return None,
            };
            x[0].pad(&c.attrs.ints("pad")?, padding)
        }
        "permute" => x[0].permute(c.attrs.ints("axes")?),
        "transpose" => x[0].transpose(int("dim0")?, int("dim1")?),
        "movedim" => x[0].movedim(int("source")?, int("destination")?),
        "reshape" => x[0].reshape(c.attrs.ints("shape")?),
        "flatten" => x[0].flatten(int("start")?, int("end")?),
        "squeeze" => match int("dim") {
            Some(axis) => x[0].squeeze(axis),
            None => x[0].squeeze(()),
        },
        "unsqueeze" => x[0].unsqueeze(axis),
        "slice" => {
            let range = |s: &serde_json::Value| Index::Range {
                start: s[0].as_i64().map(|i| i as isize),
                stop: s[1].as_i64().map(|i| i as isize),
                step: s[2].as_i64().map_or(1, |i| i as isize),
            };
            x[0].i(c.attrs.raw("slices")?.as_array()?.iter().map(range).collect::<Vec<_>>())
        }
        "select" => x[0].select(axis, int("index")?),
        "narrow" => x[0].narrow(axis, int("start")? as usize, int("length")? as usize),
        "expand" => x[0].expand(c.attrs.ints("shape")?),
        "repeat" => x[0].repeat(c.attrs.ints("repeats")?),
        "repeat_interleave" => match int("repeats") {
            Some(n) => x[0].repeat_interleave(n as usize, axis),
            None => x[0].repeat_interleave_counts(&x[1], axis),
        },
        "flip" => x[0].flip(c.attrs.ints("dims")?),
        "roll" => match c.attrs.ints("dims") {
            Some(dims) => x[0].roll(c.attrs.ints("shifts")?, dims),
            None => x[0].roll(c.attrs.ints("shifts")?, ()),
        },
        "rot90" => {
            let dims = c.attrs.ints("dims")?;
            x[0].rot90(int("k")?, dims[0], dims[1])
        }
        "unfold_dim" => x[0].unfold_dim(axis, int("size")? as usize, int("step")? as usize),
        "meshgrid" => return Some(Tensor::meshgrid(x)),
        _ => return None,
    };
    Some(vec![y])
}
