//! `cargo xtask fuzz-programs [--from SEED] [--count N]`: random programs, eager against compiled.
//!
//! A program is drawn from a seed: operands, parameters, some ops on whatever values fit, a loss, its
//! gradients, updates of parameters (see `ops`). One in [`LARGE_EVERY`] is large enough for several threads and for the
//! blocks of a matrix product. It is run eagerly and under `jit` with a random choice of passes, of a memory budget, of
//! one plan for all batch sizes (which is then run at others too) and of the number of threads, twice each so that state counts, and every result and
//! parameter must agree: bit for bit, unless a
//! pass that changes the order of operations has changed this program, or it has loops. Then the results may differ by
//! [`TOLERANCE`] of the largest magnitude, and by what rounding the operands differently would do to
//! them, which is found by running the program on operands that are moved a little. (A program with values of bf16 is
//! compared bit for bit only: their rounding hides any order.) Programs that eager execution refuses do not count. A
//! failing seed is printed and reproduces alone.

mod ops;
mod steered;

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, bail};
use thalweg_core::DType;
use thalweg_graph::passes;
use thalweg_kernels::philox::philox4x32;
use thalweg_kernels::threads::set_threads;
use thalweg_runtime::{JitOptions, jit_with};
use thalweg_tensor::{Param, Rng, Tensor};

use ops::program;

/// How far results may be apart, as a share of the largest magnitude, when the order of operations
/// was changed.
const TOLERANCE: f64 = 1e-4;
/// Of so many programs one is large.
const LARGE_EVERY: usize = 25;
/// The shares by which operands are moved to see how much a program amplifies. Several, since a program that takes the
/// sine of large numbers may by chance come back to the same place.
const MOVED: [f64; 4] = [1e-6, -1e-6, 2.7e-6, -3.9e-6];

/// Sizes of the batch at which one plan for all is run after the first.
const OTHER_SIZES: [usize; 3] = [5, 11, 2];

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

/// Runs programs from the seed `from` on until `count` of them were compiled, or without end.
pub fn run(from: u64, count: Option<u64>) -> Result<()> {
    let started = std::time::Instant::now();
    std::panic::set_hook(Box::new(|_| {}));
    let (mut n_compiled, mut n_refused, mut n_reordered) = (0u64, 0u64, 0u64);
    for seed in from.. {
        if count.is_some_and(|count| n_compiled >= count) {
            break;
        }
        let again = || format!("(again: cargo xtask fuzz-programs --from {seed} --count 1)");
        match catch_unwind(AssertUnwindSafe(|| check(seed))) {
            Ok(Ok(Ran::Refused)) => {
                n_refused += 1;
                continue;
            }
            Ok(Ok(ran)) => {
                n_compiled += 1;
                n_reordered += u64::from(ran == Ran::Reordered);
            }
            Ok(Err(why)) => bail!("program {seed}: {why}\n{}", again()),
            Err(panic) => bail!("program {seed} panicked: {}\n{}", message(&*panic), again()),
        }
        if n_compiled.is_multiple_of(10_000) {
            eprintln!("{n_compiled} programs agree, {:.0} s", started.elapsed().as_secs_f64());
        }
    }
    let _ = std::panic::take_hook();
    println!(
        "programs: {n_compiled} compiled from seed {from} on, {n_reordered} of them in another order, \
         {n_refused} refused by eager execution; eager and compiled agree"
    );
    Ok(())
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// The state of one side.
struct World {
    params: Vec<Param>,
    inputs: Vec<Tensor>,
    noise: RefCell<Rng>,
    /// What bodies of loops set.
    note: Param,
    is_large: bool,
    /// Whether decisions may be loops too.
    has_loops: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut draw = Draw { seed, at: 1 << 32 };
        let mut rng = Rng::seed(seed);
        let is_large = draw.below(LARGE_EVERY) == 0;
        let mut tensor = |draw: &mut Draw| {
            let rank = 1 + draw.below(3);
            let mut shape: Vec<usize> = (0..rank).map(|_| *draw.pick(&[1, 2, 3, 4, 4, 7])).collect();
            if is_large {
                // One or two long axes: 200 rows of 130 are more than a block of a matrix product.
                for _ in 0..2 {
                    *shape.last_mut().expect("a tensor has an axis") = *draw.pick(&[17, 64, 130, 200]);
                    shape.rotate_left(1);
                }
            }
            rng.uniform(shape, -1.5, 1.5)
        };
        let params = (0..1 + draw.below(3)).map(|i| Param::new(format!("p{i}"), tensor(&mut draw))).collect();
        let inputs = (0..1 + draw.below(2)).map(|_| tensor(&mut draw)).collect();
        let has_loops = draw.chance(60);
        let note = Param::state("note", Tensor::scalar(0.1f32));
        Self { params, inputs, noise: RefCell::new(Rng::seed(seed ^ 1)), note, is_large, has_loops }
    }

    /// What the program leaves behind.
    fn state(&self) -> impl Iterator<Item = Tensor> {
        let noise = self.noise.borrow().state().get();
        self.params.iter().map(Param::get).chain([noise, self.note.get()]).collect::<Vec<_>>().into_iter()
    }

    /// All results of two runs and of one at each other size of the batch, then the parameters.
    fn run_all(&self, seed: u64, batches: &[usize]) -> Vec<Tensor> {
        let mut values = program(seed, self, &self.inputs);
        values.extend(program(seed, self, &self.inputs));
        batches.iter().for_each(|&n| values.extend(program(seed, self, &self.of_size(n))));
        values.extend(self.state());
        values
    }

    /// The operands with another number of rows: some of them again, or fewer.
    fn of_size(&self, n: usize) -> Vec<Tensor> {
        let resized = |x: &Tensor| {
            let rows = Tensor::concat(&vec![x; n.div_ceil(x.size(0))], 0);
            rows.narrow(0, 0, n)
        };
        self.inputs.iter().map(resized).collect()
    }

    /// The sizes of the batch at which the program runs too, if it is to run at several.
    fn batches(seed: u64, options: &JitOptions) -> Vec<usize> {
        let runs = |&n: &usize| {
            let world = World::new(seed);
            let inputs = world.of_size(n);
            catch_unwind(AssertUnwindSafe(|| drop(program(seed, &world, &inputs)))).is_ok()
        };
        if options.any_batch { OTHER_SIZES.into_iter().filter(runs).collect() } else { Vec::new() }
    }

    /// The same numbers, each larger by this share.
    fn moved(self, by: f64) -> Self {
        self.params.iter().for_each(|p| p.set(p.get() * (1.0 + by)));
        Self { inputs: self.inputs.iter().map(|x| x * (1.0 + by)).collect(), ..self }
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
    let options = options(&mut draw);
    let mut any_threads = || set_threads(1 + draw.below(3));
    let eager = World::new(seed);
    any_threads();
    let batches = World::batches(seed, &options);
    let Ok(want) = catch_unwind(AssertUnwindSafe(|| eager.run_all(seed, &batches))) else {
        return Ok(Ran::Refused);
    };
    let exact = passes::REORDERING.iter().fold(options.clone(), |o, pass| o.without(pass));
    any_threads();
    let (got, graph) = compiled(seed, &exact, &batches)?;
    let agree =
        |got: &[Tensor], graph: &str, same: &dyn Fn(usize, &Tensor, &Tensor) -> Result<(), String>| {
            let all = want.iter().zip(got).enumerate();
            let wrong = all.filter_map(|(i, (w, g))| Some((i, same(i, w, g).err()?))).next();
            wrong.map_or(Ok(()), |(i, why)| Err(format!("value {i}: {why} ({options:?})\n{graph}")))
        };
    let nearly = |got: &[Tensor], graph: &str| {
        let moved = MOVED.map(|by| World::new(seed).moved(by).run_all(seed, &batches));
        agree(got, graph, &|i, want, got| close(want, got, &moved.each_ref().map(|m| &m[i])))
    };
    let is_steered = graph.contains("custom(");
    match is_steered && eager.has_loops {
        // A loop is one op in a graph and many on the tape: gradients that meet there add up in another order. What the first
        // run gives before them does not.
        true => {
            agree(&got[..2], &graph, &|_, want, got| same(want, got))?;
            nearly(&got, &graph)?;
        }
        false => agree(&got, &graph, &|_, want, got| same(want, got))?,
    }
    let keeps_order = passes::REORDERING.iter().all(|pass| options.without.iter().any(|n| n == pass));
    if keeps_order || graph.contains("bf16") {
        return Ok(Ran::Exactly);
    }
    let (got, reordered) = compiled(seed, &options, &batches)?;
    if reordered == graph && !is_steered {
        agree(&got, &reordered, &|_, want, got| same(want, got))?;
        return Ok(Ran::Exactly);
    }
    nearly(&got, &reordered)?;
    Ok(Ran::Reordered)
}

/// Any passes, sometimes little memory, sometimes one plan for all batch sizes.
fn options(draw: &mut Draw) -> JitOptions {
    let names: Vec<&str> = passes::PASSES.iter().map(|(name, _)| *name).filter(|_| draw.chance(25)).collect();
    let mut options = match draw.below(3) {
        0 => JitOptions::default(),
        1 => JitOptions::plain(),
        _ => names.iter().fold(JitOptions::default(), |options, name| options.without(name)),
    };
    if draw.chance(15) {
        options = options.memory_budget(*draw.pick(&[0, 256, 4096]));
    }
    if draw.chance(10) {
        options = options.any_batch();
    }
    options
}

/// What a program gives under `jit`, and the graphs that were run.
fn compiled(seed: u64, options: &JitOptions, batches: &[usize]) -> Result<(Vec<Tensor>, String), String> {
    let world = World::new(seed);
    let mut f = jit_with(options.clone(), |inputs: Vec<Tensor>| program(seed, &world, &inputs));
    let mut values = Vec::new();
    for _ in 0..2 {
        values.extend(f.call(world.inputs.clone()).map_err(|e| format!("{e} ({options:?})"))?);
    }
    // Which order is cheapest may depend on the size, so each size has its graph.
    let mut graph = f.plan().graph().to_string();
    for &n in batches {
        values.extend(f.call(world.of_size(n)).map_err(|e| format!("{e} ({options:?})"))?);
        graph += &f.plan().graph().to_string();
    }
    values.extend(world.state());
    Ok((values, graph))
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
    if allowed == f64::INFINITY {
        // Where the root of almost nothing is differentiated, another order may meet nothing at all: NaN.
        return Ok(());
    }
    for (i, (w, g)) in want.iter().zip(&got).enumerate().filter(|(_, (w, _))| w.is_finite()) {
        if (w - g).abs().partial_cmp(&allowed).is_none_or(|o| o.is_gt()) {
            return Err(format!("element {i} is {g:e} instead of {w:e}, {allowed:e} is allowed"));
        }
    }
    Ok(())
}
