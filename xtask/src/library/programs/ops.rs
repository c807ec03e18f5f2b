//! What random programs are made of.

use thalweg_core::DType;
use thalweg_runtime::{cond, scan, while_loop};
use thalweg_tensor::{
    AttentionOptions, AvgPoolOptions, BatchNormOptions, CellWeights, ConvOptions, MaxPoolOptions, Param,
    RnnActivation, Tensor, checkpoint, hvp,
};

use super::steered::steered;
use super::{Draw, World};

/// The program of a seed: what it returns, after it has set its parameters.
pub fn program(seed: u64, world: &World, inputs: &[Tensor]) -> Vec<Tensor> {
    let params = &world.params;
    let mut draw = Draw { seed, at: 0 };
    let mut values: Vec<Tensor> = inputs.iter().cloned().chain(params.iter().map(Param::get)).collect();
    let is_steered = draw.chance(30);
    let most = if world.is_large { 1 << 16 } else { 1 << 12 };
    for _ in 0..2 + draw.below(12) {
        let value = match draw.below(100) {
            0..8 => remembered(&mut draw, &values),
            8..22 => layer(&mut draw, &values, world),
            // Not both in one program: the one is compared bit for bit, the other cannot be.
            22..28 if is_steered => steered(&mut draw, &values, world, 0),
            22..28 => narrow(&mut draw, &values),
            _ => op(&mut draw, &values, most),
        };
        // What grows without bound tells nothing.
        if value.numel() <= most {
            values.push(value);
        }
    }
    let n = values.len();
    let loss = values[n.saturating_sub(3)..]
        .iter()
        .filter(|v| v.dtype() == DType::F32)
        .map(|v| v.sin().mean(()))
        .reduce(|a, b| a + b)
        .unwrap_or_else(|| values[0].mean(()));
    let mut results = vec![values[n - 1].clone(), loss.clone()];
    // Zeros where a parameter is not reached: eagerly, that depends on the turns that a loop took.
    let wanted: Vec<&Param> = params.iter().collect();
    for (p, g) in params.iter().zip(loss.grad_or_zeros(&wanted)) {
        if draw.chance(70) {
            p.set(p.get() - &g * 0.1);
        }
        results.push(g);
    }
    if draw.chance(10) {
        results.push(curvature(&mut draw, &values[0], world));
    }
    results
}

/// A second derivative, through a decision or a loop if there is one.
fn curvature(draw: &mut Draw, x: &Tensor, world: &World) -> Tensor {
    let x = x.to_dtype(DType::F32).stop_gradient();
    let x = x.reshape(x.numel()).narrow(0, 0, x.numel().min(6));
    let (kind, v) = (draw.below(if world.has_loops { 5 } else { 1 }), x.cos());
    hvp(|x| bent(kind, x), &x, &v)
}

fn bent(kind: usize, x: &Tensor) -> Tensor {
    let y = match kind {
        0 => x.tanh() * x,
        1 => cond(&x.sum(()).gt(0.0), || x.sin() * x, || x.square().tanh()),
        2 => scan(x.mean(()), x.clone(), |s, x| (s.tanh() * &x + 0.1, s * &x)).1,
        3 => {
            let start = (x.clone(), Tensor::scalar(0i64));
            while_loop(start, |(_, n)| n.lt(3i64), |(y, n)| ((y * x).sin() + 0.2, n + 1i64)).0
        }
        _ => {
            let turn = |s: Tensor, row: Tensor| {
                let s = cond(&row.gt(0.0), || &s * &row + x.mean(()), || s.sin());
                (s.clone(), s)
            };
            scan(x.sum(()), x.clone(), turn).1
        }
    };
    y.sin().mean(())
}

/// An op inside a checkpoint.
fn remembered(draw: &mut Draw, values: &[Tensor]) -> Tensor {
    let x = draw.pick(values).to_dtype(DType::F32);
    checkpoint(|x| vec![(&x[0].tanh() * &x[0]).exp()], &[&x]).remove(0)
}

/// Some ops in half the width.
fn narrow(draw: &mut Draw, values: &[Tensor]) -> Tensor {
    let x = draw.pick(values).to_dtype(DType::BF16);
    let y = match draw.below(6) {
        0 => &x * &x.tanh() + 1.0,
        1 if x.rank() > 1 => x.matmul(&x.transpose(-1, -2)).relu(),
        2 if x.rank() > 0 => x.sum(-1),
        3 if x.rank() > 0 => x.softmax(-1),
        4 if x.rank() > 0 => x.layer_norm(x.size(-1), None, None, 1e-5).gelu_tanh(),
        _ => x.sigmoid() / (x.abs() + 0.5),
    };
    if draw.chance(50) { y.to_dtype(DType::F32) } else { y }
}

/// Something with weights, a state or an index.
fn layer(draw: &mut Draw, values: &[Tensor], world: &World) -> Tensor {
    let size = |draw: &mut Draw, small: &[usize], large: &[usize]| match world.is_large {
        true if draw.chance(50) => *draw.pick(large),
        _ => *draw.pick(small),
    };
    let x = draw.pick(values).to_dtype(DType::F32);
    let x = if x.rank() == 0 { x.reshape(1) } else { x };
    let width = x.size(-1);
    match draw.below(12) {
        0 | 1 => {
            let out = size(draw, &[1, 2, 5], &[33, 128]);
            let (w, b) = (shaped(draw, values, &[out, width]), shaped(draw, values, &[out]));
            let y = x.linear(&w, draw.chance(70).then_some(&b));
            if draw.chance(50) { y.relu() } else { y }
        }
        2 | 3 => convolved(draw, values, world),
        4 => {
            let image = image(draw, values, world);
            match draw.below(2) {
                0 => image.max_pool2d(2, &MaxPoolOptions::default()),
                _ => image.avg_pool2d(2, &AvgPoolOptions::default()),
            }
        }
        5 => {
            let (w, b) = (shaped(draw, values, &[width]), shaped(draw, values, &[width]));
            match draw.below(2) {
                0 => x.layer_norm(width, Some(&w), Some(&b), 1e-5),
                _ => x.rms_norm(width, Some(&w), 1e-5),
            }
        }
        6 => {
            let image = image(draw, values, world);
            let channels = image.size(1);
            let (w, b) = (shaped(draw, values, &[channels]), shaped(draw, values, &[channels]));
            let options = BatchNormOptions { weight: Some(&w), bias: Some(&b), ..Default::default() };
            match draw.below(2) {
                0 => image.batch_norm_train(&w, &b, &options).0,
                _ => image.group_norm(1, Some(&w), Some(&b), 1e-5),
            }
        }
        7 => {
            let index = indices(draw, x.size(0), 3);
            x.reshape([x.size(0), x.numel() / x.size(0)]).embedding(&index, None)
        }
        8 => recurrent(draw, values, world),
        9 => {
            let mut noise = world.noise.borrow_mut();
            match draw.below(2) {
                0 => noise.bernoulli(x.shape(), 0.7).to_dtype(DType::F32) * x,
                _ => noise.normal(x.shape(), 0.0, 1.0) + x,
            }
        }
        10 => {
            let x = x.reshape([x.numel() / width, width]);
            x.cross_entropy(&indices(draw, width, x.size(0)))
        }
        _ => {
            let index = indices(draw, x.size(0), x.size(0));
            x.index_add(0, &index, &x.tanh())
        }
    }
}

/// Attention to itself, with or without a mask.
fn attention(draw: &mut Draw, x: &Tensor) -> Tensor {
    let options = AttentionOptions { is_causal: draw.chance(40), ..Default::default() };
    let n = x.size(-2);
    if options.is_causal || draw.chance(40) {
        return x.scaled_dot_product_attention(x, x, &options);
    }
    let mask = match draw.below(3) {
        // Which keys are seen by all; at least one is.
        0 => Tensor::from_vec((0..n).map(|key| key % 3 < 2).collect::<Vec<bool>>(), [n]),
        1 => x.select(-1, 0).unsqueeze(-1).gt(-0.5),
        // A gradient reaches it.
        _ => x.narrow(-1, 0, 1),
    };
    x.scaled_dot_product_attention(x, x, &AttentionOptions { mask: Some(&mask), ..options })
}

fn convolved(draw: &mut Draw, values: &[Tensor], world: &World) -> Tensor {
    let x = image(draw, values, world);
    let inputs = x.size(1);
    let groups = if draw.chance(25) { inputs } else { 1 };
    let outputs = groups * if world.is_large { *draw.pick(&[1, 3, 20]) } else { *draw.pick(&[1, 2]) };
    let kernel = 1 + 2 * draw.below(2);
    let w = shaped(draw, values, &[outputs, inputs / groups, kernel, kernel]);
    let b = shaped(draw, values, &[outputs]);
    let options = ConvOptions {
        stride: (1 + draw.below(2)).into(),
        padding: (kernel / 2).into(),
        groups,
        ..Default::default()
    };
    let y = x.conv2d(&w, draw.chance(70).then_some(&b), &options);
    let y = if draw.chance(50) { y.relu() } else { y };
    let is_large = y.size(2).min(y.size(3)) > 1;
    if is_large && draw.chance(30) { y.max_pool2d(2, &MaxPoolOptions::default()) } else { y }
}

fn recurrent(draw: &mut Draw, values: &[Tensor], world: &World) -> Tensor {
    let (time, input) = (1 + draw.below(3), 1 + draw.below(4));
    let (batch, hidden) = if world.is_large { (19, 24) } else { (1 + draw.below(3), 1 + draw.below(4)) };
    let gates = *draw.pick(&[4, 3, 1]);
    let x = shaped(draw, values, &[time, batch, input]);
    let [input, hidden_weight] = [input, hidden].map(|n| shaped(draw, values, &[gates * hidden, n]));
    let bias = shaped(draw, values, &[gates * hidden]);
    let state = shaped(draw, values, &[1, batch, hidden]);
    let weights = [CellWeights {
        input: &input,
        hidden: &hidden_weight,
        input_bias: Some(&bias),
        hidden_bias: draw.chance(50).then_some(&bias),
    }];
    match gates {
        4 => x.lstm(&state, &state, &weights, false).0,
        3 => x.gru(&state, &weights, false).0,
        _ => x.rnn(&state, &weights, false, *draw.pick(&[RnnActivation::Tanh, RnnActivation::Relu])).0,
    }
}

/// (batch, channels, height, width).
fn image(draw: &mut Draw, values: &[Tensor], world: &World) -> Tensor {
    let (channels, side) = match world.is_large {
        true => (*draw.pick(&[1, 3, 16]), *draw.pick(&[8, 19])),
        false => (1 + draw.below(3), 2 + draw.below(4)),
    };
    let batch = 1 + draw.below(3);
    shaped(draw, values, &[batch, channels, side, side])
}

/// Numbers of some value, in this shape.
fn shaped(draw: &mut Draw, values: &[Tensor], shape: &[usize]) -> Tensor {
    let x = draw.pick(values).to_dtype(DType::F32);
    let (x, n) = (x.reshape(x.numel()), shape.iter().product::<usize>());
    let copies = vec![&x; n.div_ceil(x.numel())];
    let long = if copies.len() == 1 { x.clone() } else { Tensor::concat(&copies, 0) };
    long.narrow(0, 0, n).reshape(shape)
}

/// `n` indices below a bound.
fn indices(draw: &mut Draw, below: usize, n: usize) -> Tensor {
    let index: Vec<i64> = (0..n).map(|_| draw.below(below) as i64).collect();
    Tensor::from_vec(index, [n])
}

/// Any op on any values that it takes.
fn op(draw: &mut Draw, values: &[Tensor], most: usize) -> Tensor {
    let any = draw.pick(values).clone();
    let x = any.to_dtype(DType::F32);
    let axis = draw.below(x.rank().max(1)) as isize;
    match draw.below(36) {
        0 => x.exp(),
        1 => x.tanh(),
        2 => x.sigmoid(),
        3 => x.relu(),
        4 => x.abs().sqrt(),
        5 => -x,
        6 => x * *draw.pick(&[0.5, 1.0, -2.0]),
        7 => x + *draw.pick(&[0.0, -0.0, 1.0]),
        8 => 1.0 / (x.square() + 0.5),
        9 => x.gelu_tanh(),
        10..14 => {
            let y = broadcastable(draw, &x, values, most);
            match draw.below(5) {
                0 => x + y,
                1 => x - y,
                2 => x * y,
                3 => x.maximum(&y),
                _ => x / (y.abs() + 0.5),
            }
        }
        14 if x.rank() > 0 => x.sum(axis),
        15 if x.rank() > 0 => x.mean_keepdim(axis),
        16 if x.rank() > 0 => x.amax(axis),
        17 if x.rank() > 1 => x.transpose(0, -1),
        18 => x.reshape(x.numel()),
        19 if x.rank() > 0 && x.size(axis) > 1 => x.narrow(axis, 1, x.size(axis) - 1),
        20 if x.rank() > 0 => Tensor::concat(&[&x, &x.flip(axis)], axis),
        21 if x.rank() > 0 => x.softmax(axis),
        22 if x.rank() > 0 => x.layer_norm(x.size(-1), None, None, 1e-5),
        23 if x.rank() > 0 => x.cumsum(axis),
        24 if x.rank() > 1 => x.matmul(&x.transpose(-1, -2)),
        25 => x.gt(0.1).where_(&x, &(&x * 0.1)),
        26 if x.rank() > 1 => attention(draw, &x),
        27 if x.rank() > 0 => x.index_select(axis, &Tensor::from([0i64, x.size(axis) as i64 - 1])),
        28 => x.clamp(-0.5, 0.7),
        29 => x.unsqueeze(axis),
        30 if x.rank() > 1 => x.matmul(&x.transpose(-1, -2)).matmul(&x.narrow(-1, 0, 1)),
        31 if x.rank() > 1 => {
            let a = x.transpose(-1, -2);
            a.matmul(&x) + a.matmul(&x.tanh())
        }
        32 => -(-x),
        33 if x.rank() > 0 => x.log_softmax(axis),
        34 if x.rank() > 0 => x.sort(axis, false).0,
        35 if x.rank() > 0 => x.logsumexp(axis),
        _ => x.sin(),
    }
}

/// A value that broadcasts with `x`, or `x` itself.
fn broadcastable(draw: &mut Draw, x: &Tensor, values: &[Tensor], most: usize) -> Tensor {
    let fits: Vec<&Tensor> = values
        .iter()
        .filter(|v| {
            v.dtype() == DType::F32 && v.shape().broadcast(x.shape()).is_ok_and(|s| s.numel() <= most)
        })
        .collect();
    if fits.is_empty() { x.clone() } else { (*draw.pick(&fits)).clone() }
}
