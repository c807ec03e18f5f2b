//! `cargo xtask fuzz-programs [--from SEED] [--count N]`: random programs, eager against compiled.
//!
//! A program is drawn from a seed: operands, parameters, some ops on whatever values fit, a loss, its
//! gradients, updates of parameters. It is run eagerly and under `jit` with a random choice of passes,
//! twice each so that state counts, and every result and parameter must agree: bit for bit, unless a
//! pass that changes the order of operations has changed this program. Then the results may differ by
//! [`TOLERANCE`] of the largest magnitude, and by what rounding the operands differently would do to
//! them, which is found by running the program on operands that are moved a little. A failing seed is
//! printed and reproduces alone.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, bail};
use thalweg_core::DType;
use thalweg_graph::passes;
use thalweg_kernels::philox::philox4x32;
use thalweg_runtime::{JitOptions, jit_with};
use thalweg_tensor::{AttentionOptions, Param, Rng, Tensor, checkpoint};

/// How far results may be apart, as a share of the largest magnitude, when the order of operations
/// was changed.
const TOLERANCE: f64 = 1e-4;
/// The shares by which operands are moved to see how much a program amplifies. Several, since a program that takes the
/// sine of large numbers may by chance come back to the same place.
const MOVED: [f64; 4] = [1e-6, -1e-6, 2.7e-6, -3.9e-6];

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
    let (mut n_compiled, mut n_reordered) = (0u64, 0u64);
    for seed in from.. {
        if count.is_some_and(|count| seed - from == count) {
            break;
        }
        match catch_unwind(AssertUnwindSafe(|| check(seed))) {
            Ok(Ok(Ran::Refused)) => {}
            Ok(Ok(ran)) => {
                n_compiled += 1;
                n_reordered += u64::from(ran == Ran::Reordered);
            }
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
    println!(
        "programs: {n} from seed {from}, {n_compiled} compiled, {n_reordered} of them in another order, \
         eager and compiled agree"
    );
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

/// What became of a program.
#[derive(PartialEq)]
enum Ran {
    /// Eager execution refused it already.
    Refused,
    /// Compared bit for bit.
    Exactly,
    /// Also run in another order of operations, and compared within tolerance.
    Reordered,
}

fn check(seed: u64) -> Result<Ran, String> {
    let mut draw = Draw { seed, at: 1 << 40 };
    let names: Vec<&str> = passes::PASSES.iter().map(|(name, _)| *name).filter(|_| draw.chance(25)).collect();
    let options = match draw.below(3) {
        0 => JitOptions::default(),
        1 => JitOptions::plain(),
        _ => names.iter().fold(JitOptions::default(), |options, name| options.without(name)),
    };
    let eager = World::new(seed);
    let Ok(want) = catch_unwind(AssertUnwindSafe(|| eager.run_twice(seed))) else { return Ok(Ran::Refused) };
    let exact = passes::REORDERING.iter().fold(options.clone(), |o, pass| o.without(pass));
    let (got, graph) = compiled(seed, &exact)?;
    let agree =
        |got: &[Tensor], graph: &str, same: &dyn Fn(usize, &Tensor, &Tensor) -> Result<(), String>| {
            let all = want.iter().zip(got).enumerate();
            let wrong = all.filter_map(|(i, (w, g))| Some((i, same(i, w, g).err()?))).next();
            wrong.map_or(Ok(()), |(i, why)| Err(format!("value {i}: {why} ({options:?})\n{graph}")))
        };
    agree(&got, &graph, &|_, want, got| same(want, got))?;
    if passes::REORDERING.iter().all(|pass| options.without.iter().any(|n| n == pass)) {
        return Ok(Ran::Exactly);
    }
    let (got, reordered) = compiled(seed, &options)?;
    if reordered == graph {
        agree(&got, &reordered, &|_, want, got| same(want, got))?;
        return Ok(Ran::Exactly);
    }
    let moved = MOVED.map(|by| World::new(seed).moved(by).run_twice(seed));
    agree(&got, &reordered, &|i, want, got| close(want, got, &moved.each_ref().map(|m| &m[i])))?;
    Ok(Ran::Reordered)
}

/// What a program gives under `jit`, and the graph that was run.
fn compiled(seed: u64, options: &JitOptions) -> Result<(Vec<Tensor>, String), String> {
    let world = World::new(seed);
    let mut f = jit_with(options.clone(), |inputs: Vec<Tensor>| program(seed, &world.params, &inputs));
    let mut values = Vec::new();
    for _ in 0..2 {
        values.extend(f.call(world.inputs.clone()).map_err(|e| format!("{e} ({options:?})"))?);
    }
    values.extend(world.params.iter().map(Param::get));
    Ok((values, f.plan().graph().to_string()))
}

impl World {
    /// All results of two runs, then the parameters.
    fn run_twice(&self, seed: u64) -> Vec<Tensor> {
        let mut values = program(seed, &self.params, &self.inputs);
        values.extend(program(seed, &self.params, &self.inputs));
        values.extend(self.params.iter().map(Param::get));
        values
    }

    /// The same numbers, each larger by this share.
    fn moved(self, by: f64) -> Self {
        self.params.iter().for_each(|p| p.set(p.get() * (1.0 + by)));
        Self { inputs: self.inputs.iter().map(|x| x * (1.0 + by)).collect(), params: self.params }
    }
}

fn as_f64(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).to_vec::<f64>()
}

fn same(want: &Tensor, got: &Tensor) -> Result<(), String> {
    if want.meta() != got.meta() {
        return Err(format!("{} instead of {}", got.meta(), want.meta()));
    }
    for (i, (w, g)) in as_f64(want).into_iter().zip(as_f64(got)).enumerate() {
        let equal = w.to_bits() == g.to_bits() || (w.is_nan() && g.is_nan());
        if !equal {
            return Err(format!("element {i} is {g:e} instead of {w:e}"));
        }
    }
    Ok(())
}

/// Elements that are not finite say nothing about an order of operations.
fn close(want: &Tensor, got: &Tensor, moved: &[&Tensor]) -> Result<(), String> {
    if want.meta() != got.meta() {
        return Err(format!("{} instead of {}", got.meta(), want.meta()));
    }
    let (want, got) = (as_f64(want), as_f64(got));
    let largest = |list: &mut dyn Iterator<Item = f64>| list.filter(|v| v.is_finite()).fold(0.0, f64::max);
    let scale = largest(&mut want.iter().map(|v| v.abs()));
    // Where a small move leads from a number to infinity, the program amplifies without bound.
    let apart = |w: f64, m: f64| if w.is_finite() && !m.is_finite() { f64::INFINITY } else { (w - m).abs() };
    let moved: Vec<Vec<f64>> = moved.iter().map(|m| as_f64(m)).collect();
    let apart = moved.iter().flat_map(|moved| want.iter().zip(moved).map(|(&w, &m)| apart(w, m)));
    let amplified = apart.filter(|d| !d.is_nan()).fold(0.0, f64::max);
    let allowed = TOLERANCE * scale + 100.0 * amplified;
    for (i, (w, g)) in want.iter().zip(&got).enumerate().filter(|(_, (w, _))| w.is_finite()) {
        if (w - g).abs().partial_cmp(&allowed).is_none_or(|o| o.is_gt()) {
            return Err(format!("element {i} is {g:e} instead of {w:e}, {allowed:e} is allowed"));
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
    match draw.below(33) {
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
        30 if x.rank() > 1 => x.matmul(&x.transpose(-1, -2)).matmul(&x.narrow(-1, 0, 1)),
        31 if x.rank() > 1 => {
            let a = x.transpose(-1, -2);
            a.matmul(&x) + a.matmul(&x.tanh())
        }
        32 => -(-x),
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
