//! `cargo xtask fuzz-programs [--from SEED] [--count N]`: random programs, eager against compiled.
//!
//! A program is drawn from a seed: operands, parameters, some ops on whatever values fit, a loss, its
//! gradients, updates of parameters. It is run eagerly and under `jit` with a random choice of passes,
//! twice each so that state counts, and every result and parameter must agree: bit for bit unless a
//! pass that changes the order of operations is on. A failing seed is printed and reproduces alone.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, bail};
use thalweg_core::DType;
use thalweg_graph::passes;
use thalweg_kernels::philox::philox4x32;
use thalweg_runtime::{JitOptions, jit_with};
use thalweg_tensor::{AttentionOptions, Param, Rng, Tensor, checkpoint};

/// Numbers that depend on a seed alone.
#[derive(Clone)]
struct Draw {
    seed: u64,
    at: u64,
}

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.at += 1;
        philox4x32([self.seed as u32, (self.seed >> 32) as u32], self.at, 7)[0] as usize % n
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// Runs programs `from..from + count`, or without end.
pub fn run(from: u64, count: Option<u64>) -> Result<()> {
    let started = std::time::Instant::now();
    std::panic::set_hook(Box::new(|_| {}));
    let mut n_compiled = 0u64;
    for seed in from.. {
        if count.is_some_and(|count| seed - from == count) {
            break;
        }
        match catch_unwind(AssertUnwindSafe(|| check(seed))) {
            Ok(Ok(ran)) => n_compiled += u64::from(ran),
            Ok(Err(why)) => {
                bail!("program {seed}: {why}\n(again: cargo xtask fuzz-programs --from {seed} --count 1)")
            }
            Err(panic) => {
                let why = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                bail!(
                    "program {seed} panicked: {why}\n(again: cargo xtask fuzz-programs --from {seed} --count 1)"
                )
            }
        }
        if seed % 10_000 == 9_999 {
            eprintln!("{} programs agree, {:.0} s", seed - from + 1, started.elapsed().as_secs_f64());
        }
    }
    let _ = std::panic::take_hook();
    let n = count.unwrap_or_default();
    println!("programs: {n} from seed {from}, {n_compiled} compiled, eager and compiled agree");
    Ok(())
}

/// The state of one side.
struct World {
    params: Vec<Param>,
    inputs: Vec<Tensor>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut draw = Draw { seed, at: 1 << 32 };
        let mut rng = Rng::seed(seed);
        let mut tensor = |draw: &mut Draw| {
            let rank = 1 + draw.below(3);
            let shape: Vec<usize> = (0..rank).map(|_| *draw.pick(&[1, 2, 3, 4, 4, 7])).collect();
            rng.uniform(shape, -1.5, 1.5)
        };
        let params = (0..1 + draw.below(3)).map(|i| Param::new(format!("p{i}"), tensor(&mut draw))).collect();
        let inputs = (0..1 + draw.below(2)).map(|_| tensor(&mut draw)).collect();
        Self { params, inputs }
    }
}

/// `Ok(false)`: the program was refused by eager execution already.
fn check(seed: u64) -> Result<bool, String> {
    let mut draw = Draw { seed, at: 1 << 40 };
    let names: Vec<&str> = passes::PASSES.iter().map(|(name, _)| *name).filter(|_| draw.chance(25)).collect();
    let options = match draw.below(3) {
        0 => JitOptions::default(),
        1 => JitOptions::plain(),
        _ => JitOptions { without: names.iter().map(|&n| n.to_owned()).collect(), ..JitOptions::default() },
    };
    let (eager, compiled) = (World::new(seed), World::new(seed));
    let first = match catch_unwind(AssertUnwindSafe(|| program(seed, &eager.params, &eager.inputs))) {
        Ok(values) => values,
        Err(_) => return Ok(false),
    };
    let second = program(seed, &eager.params, &eager.inputs);
    let mut f = jit_with(options.clone(), |inputs: Vec<Tensor>| program(seed, &compiled.params, &inputs));
    for want in [first, second] {
        let got = f.call(compiled.inputs.clone()).map_err(|e| format!("{e} ({options:?})"))?;
        for (i, (want, got)) in want.iter().zip(&got).enumerate() {
            same(want, got).map_err(|e| format!("result {i}: {e} ({options:?})\n{}", f.plan().graph()))?;
        }
    }
    for (a, b) in eager.params.iter().zip(&compiled.params) {
        same(&a.get(), &b.get())
            .map_err(|e| format!("{}: {e} ({options:?})\n{}", a.name(), f.plan().graph()))?;
    }
    Ok(true)
}

fn same(want: &Tensor, got: &Tensor) -> Result<(), String> {
    if want.meta() != got.meta() {
        return Err(format!("{} instead of {}", got.meta(), want.meta()));
    }
    let as_f64 = |t: &Tensor| t.to_dtype(DType::F64).to_vec::<f64>();
    for (i, (w, g)) in as_f64(want).into_iter().zip(as_f64(got)).enumerate() {
        let equal = w.to_bits() == g.to_bits() || (w.is_nan() && g.is_nan());
        if !equal {
            return Err(format!("element {i} is {g:e} instead of {w:e}"));
        }
    }
    Ok(())
}

/// The program of a seed: what it returns, after it has set its parameters.
fn program(seed: u64, params: &[Param], inputs: &[Tensor]) -> Vec<Tensor> {
    let mut draw = Draw { seed, at: 0 };
    let mut values: Vec<Tensor> = inputs.iter().cloned().chain(params.iter().map(Param::get)).collect();
    for _ in 0..2 + draw.below(12) {
        let value = match draw.chance(8) {
            true => remembered(&mut draw, &values),
            false => op(&mut draw, &values),
        };
        // What grows without bound tells nothing.
        if value.numel() <= 4096 {
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
    if loss.is_tracked() {
        let wanted: Vec<&Param> = params.iter().collect();
        for (p, g) in params.iter().zip(loss.grad_or_zeros(&wanted)) {
            if draw.chance(70) {
                p.set(p.get() - &g * 0.1);
            }
            results.push(g);
        }
    }
    results
}

/// An op inside a checkpoint.
fn remembered(draw: &mut Draw, values: &[Tensor]) -> Tensor {
    let x = draw.pick(values).to_dtype(DType::F32);
    checkpoint(|x| vec![(&x[0].tanh() * &x[0]).exp()], &[&x]).remove(0)
}

/// Any op on any values that it takes.
fn op(draw: &mut Draw, values: &[Tensor]) -> Tensor {
    let any = draw.pick(values).clone();
    let x = any.to_dtype(DType::F32);
    let axis = draw.below(x.rank().max(1)) as isize;
    match draw.below(30) {
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
            let y = broadcastable(draw, &x, values);
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
        26 if x.rank() > 1 => {
            let options = AttentionOptions { is_causal: draw.chance(50), ..Default::default() };
            x.scaled_dot_product_attention(&x, &x, &options)
        }
        27 if x.rank() > 0 => x.index_select(axis, &Tensor::from([0i64, x.size(axis) as i64 - 1])),
        28 => x.clamp(-0.5, 0.7),
        29 => x.unsqueeze(axis),
        _ => x.sin(),
    }
}

/// A value that broadcasts with `x`, or `x` itself.
fn broadcastable(draw: &mut Draw, x: &Tensor, values: &[Tensor]) -> Tensor {
    let fits: Vec<&Tensor> = values
        .iter()
        .filter(|v| {
            v.dtype() == DType::F32 && v.shape().broadcast(x.shape()).is_ok_and(|s| s.numel() <= 4096)
        })
        .collect();
    if fits.is_empty() { x.clone() } else { (*draw.pick(&fits)).clone() }
}
