//! What compiling costs, and what it saves: times, memory and operations that the benchmark page promises.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use thalweg::data::trees::Below;
use thalweg::data::{self, OnError};
use thalweg::prelude::*;
use thalweg::{Jit, JitOptions, Plan, autobatch, jit_with};

use super::clock::{ratio, time};
use super::networks::{TRAININGS, inference_plans};

pub fn report(out: &mut impl Write, tree_file: Option<&Path>) -> Result<()> {
    let shapes = tree_file.map_or_else(|| Ok(drawn_shapes()), shapes_of)?;
    let mut line = |what: &str, value: String| writeln!(out, "{what:<58} {value}");
    for layers in [110, 1100] {
        let (nodes, ms) = compile_time(layers);
        line(&format!("compiling a training graph of {nodes} nodes"), format!("{ms:.1} ms"))?;
    }
    let (null, extra) = step_time();
    line("a compiled step that does nothing", format!("{:.0} ns", null * 1e9))?;
    line("each further step of it", format!("{:.0} ns", extra * 1e9))?;
    let mut share = |what: String, plan: &Plan| {
        let (planned, all) = (plan.arena_bytes() as f64, plan.unplanned_bytes() as f64);
        line(&what, format!("{:.0} % of {:.1} MiB", 100.0 * planned / all, all / 1048576.0))
    };
    for &(name, build) in TRAININGS.iter().filter(|(name, _)| ["b", "c", "d"].contains(name)) {
        let mut training = build();
        training.step.run();
        share(format!("arena of {name}, training"), training.step.plan())?;
    }
    for (name, plan) in inference_plans() {
        share(format!("arena of {name}, inference"), &plan)?;
    }
    let (memory, slower) = rematerialised();
    line("64 layers within a quarter of the memory: memory", format!("{:.0} %", 100.0 * memory))?;
    line("64 layers within a quarter of the memory: time", format!("{:+.0} %", 100.0 * (slower - 1.0)))?;
    for (what, (flops, clock)) in [
        ("a chain of products in a better order", chain()),
        ("A\u{b7}B + A\u{b7}C as A\u{b7}(B + C)", common_factor()),
    ] {
        line(&format!("{what}: operations"), format!("{flops:.1}\u{d7} fewer"))?;
        line(&format!("{what}: time"), format!("{clock:.2}\u{d7} less"))?;
    }
    for (what, Siblings { n_products, traffic, clock }) in [
        ("q, k, v of a word by 64 constants", constant_siblings(1, 64)),
        ("q, k, v of a word by 512 constants", constant_siblings(1, 512)),
        ("q, k, v of a word by 512 parameters", param_siblings(1, 512)),
        ("q, k, v of 64 words by 128 parameters", param_siblings(64, 128)),
        ("gates of 32 units, one row", gates(1, 32)),
        ("gates of 32 units, 4 rows", gates(4, 32)),
    ] {
        line(&format!("{what}: products, traffic"), format!("{n_products}, {traffic:.2}\u{d7} less"))?;
        line(&format!("{what}: time"), format!("{clock:.2}\u{d7} less"))?;
    }
    line(
        "trees of an LSTM in one autobatch: time",
        format!("{:.1}\u{d7} less than one by one", trees(&shapes)?),
    )?;
    Ok(())
}

/// A deep narrow network's step, traced, differentiated, improved and planned: nodes, and the least of five times.
fn compile_time(layers: usize) -> (usize, f64) {
    let mut rng = Rng::seed(0);
    let weights: Vec<Param> =
        (0..layers).map(|i| Param::new(format!("w{i}"), rng.normal([4, 4], 0.0, 0.5))).collect();
    let x = rng.normal([2, 4], 0.0, 1.0);
    let mut nodes = 0;
    let times = (0..5).map(|_| {
        let mut step = jit(|x: Tensor| {
            let y = weights.iter().fold(x, |x, w| x.matmul(&w.get()).tanh());
            let loss = y.square().mean(());
            let grads = loss.grad(&weights.iter().collect::<Vec<_>>());
            weights.iter().zip(&grads).for_each(|(w, g)| w.set(w.get() - g * 0.01));
            loss
        });
        let began = Instant::now();
        step.call(x.clone()).expect("the network is sound");
        let seconds = began.elapsed().as_secs_f64();
        nodes = step.plan().graph().nodes().len();
        seconds
    });
    let least = times.fold(f64::INFINITY, f64::min);
    (nodes, least * 1e3)
}

/// Seconds of a step without work, and of each of many tiny steps beside it.
fn step_time() -> (f64, f64) {
    let x = Tensor::zeros([1], F32);
    let mut null = jit(|x: Tensor| x);
    let null = time(1000, || null.call(x.clone()).expect("nothing to go wrong")).wall_median / 1e3;
    const N: usize = 200;
    // Not fused: each sum is a step.
    let y = Tensor::from([3.0f32]);
    let options = JitOptions::default().without("fuse");
    let mut steps = jit_with(options, |(x, y): (Tensor, Tensor)| (0..N).fold(x, |x, _| x + &y));
    let call = || steps.call((x.clone(), y.clone())).expect("nothing to go wrong");
    let many = time(100, call).wall_median / 1e3;
    (null, (many - null) / steps.plan().n_steps() as f64)
}

/// Memory and time of 64 layers with a budget of a quarter, as parts of those without.
fn rematerialised() -> (f64, f64) {
    const WIDTH: usize = 256;
    let mut rng = Rng::seed(5);
    let weights: Vec<Param> =
        (0..64).map(|i| Param::new(format!("w{i}"), rng.normal([WIDTH, WIDTH], 0.0, 0.06))).collect();
    let x = rng.normal([256, WIDTH], 0.0, 1.0);
    let compiled = |options: JitOptions| {
        let mut step = jit_with(options, |x: Tensor| {
            let loss = weights.iter().fold(x, |x, w| x.matmul(&w.get()).tanh()).square().mean(());
            loss.grad(&weights.iter().collect::<Vec<_>>())
        });
        step.call(x.clone()).expect("the network is sound");
        step
    };
    let mut plain = compiled(JitOptions::default());
    let all = plain.plan().arena_bytes();
    let mut again = compiled(JitOptions::default().memory_budget(all / 4));
    let less = again.plan().arena_bytes();
    (less as f64 / all as f64, ratio(|| again.call(x.clone()), || plain.call(x.clone())))
}

/// A function of tensors, compiled.
type Compiled<F> = Jit<Vec<Tensor>, Vec<Tensor>, F>;

/// A function compiled without a pass, and with it.
fn without_and_with<F: Fn(&[Tensor]) -> Vec<Tensor>>(
    pass: &'static str,
    x: &[Tensor],
    f: &F,
) -> [Compiled<impl FnMut(Vec<Tensor>) -> Vec<Tensor>>; 2] {
    [JitOptions::default().without(pass), JitOptions::default()].map(|options| {
        let mut compiled = jit_with(options, move |x: Vec<Tensor>| f(&x));
        compiled.call(x.to_vec()).expect("the function is sound");
        compiled
    })
}

/// How many times less work and time a function takes with a pass than without.
fn saved(pass: &'static str, x: &[Tensor], f: impl Fn(&[Tensor]) -> Vec<Tensor>) -> (f64, f64) {
    let [mut written, mut improved] = without_and_with(pass, x, &f);
    let flops = written.plan().flops() as f64 / improved.plan().flops() as f64;
    (flops, ratio(|| written.call(x.to_vec()), || improved.call(x.to_vec())))
}

fn drawn<const N: usize>(shapes: [[usize; 2]; N]) -> [Tensor; N] {
    let mut rng = Rng::seed(1);
    shapes.map(|shape| rng.normal(shape, 0.0, 1.0))
}

/// A\u{b7}B\u{b7}C\u{b7}v from the right.
fn chain() -> (f64, f64) {
    let x = drawn([[512, 512], [512, 512], [512, 512], [512, 8]]);
    saved("algebra", &x, |x| vec![x[0].matmul(&x[1]).matmul(&x[2]).matmul(&x[3])])
}

fn common_factor() -> (f64, f64) {
    let x = drawn([[512, 512]; 3]);
    saved("algebra", &x, |x| vec![x[0].matmul(&x[1]) + x[0].matmul(&x[2])])
}

/// What merging products with one left operand saves: how many products are left, and how many times less traffic and time
/// they take. The pass leaves apart what would not gain.
struct Siblings {
    n_products: usize,
    traffic: f64,
    clock: f64,
}

impl Siblings {
    fn of(x: Tensor, f: impl Fn(&Tensor) -> Vec<Tensor>) -> Self {
        let x = [x];
        let f = |x: &[Tensor]| f(&x[0]);
        let [mut apart, mut merged] = without_and_with("merge_siblings", &x, &f);
        let traffic = |plan: &Plan| plan.steps().map(|step| step.cost.bytes).sum::<u64>() as f64;
        let is_product = |op: &String| op == "matmul" || op == "linear";
        let n_products = merged.plan().steps().filter(|step| step.ops.iter().any(is_product)).count();
        let traffic = traffic(apart.plan()) / traffic(merged.plan());
        // A call may take less than a microsecond.
        const CALLS: usize = 100;
        let clock = ratio(
            || (0..CALLS).for_each(|_| drop(apart.call(x.to_vec()))),
            || (0..CALLS).for_each(|_| drop(merged.call(x.to_vec()))),
        );
        Self { n_products, traffic, clock }
    }
}

/// Queries, keys and values of some words by constant weights.
fn constant_siblings(n_words: usize, width: usize) -> Siblings {
    let square = [width, width];
    let [x, q, k, v] = drawn([[n_words, width], square, square, square]);
    Siblings::of(x, |x| [&q, &k, &v].map(|w| x.matmul(w)).to_vec())
}

/// The same with parameters, which lie side by side, as the rows of a dense layer.
fn param_siblings(n_words: usize, width: usize) -> Siblings {
    let square = [width, width];
    let [x, q, k, v] = drawn([[n_words, width], square, square, square]);
    let params = [q, k, v].map(|w| Param::new("w", w));
    Siblings::of(x, |x| params.iter().map(|w| x.linear(&w.get(), None)).collect())
}

/// What some rows bring into the cell of an LSTM whose four gates have weights of their own.
fn gates(n_rows: usize, width: usize) -> Siblings {
    let square = [width, width];
    let [x, i, f, g, o] = drawn([[n_rows, width], square, square, square, square]);
    let params = [i, f, g, o].map(|w| Param::new("w", w));
    Siblings::of(x, |x| {
        let [i, f, g, o] = [0, 1, 2, 3].map(|gate| x.linear(&params[gate].get(), None));
        vec![o.sigmoid() * (i.sigmoid() * g.tanh() + f.sigmoid()).tanh()]
    })
}

/// A node of a binary tree: a word, or what joins two earlier nodes.
#[derive(Clone, Copy)]
enum Joint {
    Word,
    Of(usize, usize),
}

/// A tree, children first.
type Shape = Vec<Joint>;

/// The first trees of a file. A node with one child is that child, one with more joins them from left to right.
fn shapes_of(file: &Path) -> Result<Vec<Shape>> {
    let trees = data::trees::read(file, OnError::Stop)?.data;
    let shape = |tree: &data::trees::Tree| {
        let (mut shape, mut place) = (Shape::new(), Vec::new());
        for node in &tree.nodes {
            match &node.below {
                Below::Word(_) => shape.push(Joint::Word),
                Below::Nodes(children) => {
                    let first = place[children[0]];
                    children[1..].iter().fold(first, |left, &right| {
                        shape.push(Joint::Of(left, place[right]));
                        shape.len() - 1
                    });
                }
            }
            place.push(shape.len() - 1);
        }
        shape
    };
    ensure!(!trees.is_empty(), "{} has no trees", file.display());
    Ok(trees.iter().take(BATCH).map(shape).collect())
}

/// Trees as long and as deep as those of sentences: two of three nodes join a word with all the rest, so that 19 leaves
/// are about ten deep.
fn drawn_shapes() -> Vec<Shape> {
    fn grow(n: usize, at: usize, shape: &mut Shape) -> usize {
        let joint = if n == 1 {
            Joint::Word
        } else {
            let left = [1, n - 1, 1 + at * 31 % (n - 1)][(at * 7 + n * 13) % 3];
            let first = grow(left, at, shape);
            Joint::Of(first, grow(n - left, at + left, shape))
        };
        shape.push(joint);
        shape.len() - 1
    }
    let sizes = Rng::seed(2).randint([BATCH], 6, 33).to_vec::<i64>();
    let shape = |(i, &n): (usize, &i64)| {
        let mut shape = Shape::new();
        grow(n as usize, i * 37, &mut shape);
        shape
    };
    sizes.iter().enumerate().map(shape).collect()
}

/// Trees of a batch.
const BATCH: usize = 25;

/// A binary tree-LSTM of the size of Tai, Socher and Manning's (words of 300 numbers, states of 150, batches of 25): the
/// gradients of the loss of all trees, one by one against one batch, by medians. The function is the same but for `autobatch`,
/// and so are the gradients.
fn trees(shapes: &[Shape]) -> Result<f64> {
    const WORD: usize = 300;
    const STATE: usize = 150;
    let mut rng = Rng::seed(2);
    let words: Vec<Tensor> = (0..100).map(|_| rng.normal([1, WORD], 0.0, 0.1)).collect();
    let mut weight = |name: &str, rows, cols| Param::new(name, rng.normal([rows, cols], 0.0, 0.1));
    let leaf = weight("leaf", WORD, 3 * STATE);
    let joint = weight("joint", 2 * STATE, 5 * STATE);
    let head = weight("head", STATE, 5);
    let word = |i: usize| {
        let gates = words[i % 100].matmul(&leaf.get()).chunk(3, 1);
        let c = gates[0].sigmoid() * gates[1].tanh();
        (gates[2].sigmoid() * c.tanh(), c)
    };
    let join = |(h1, c1): &(Tensor, Tensor), (h2, c2): &(Tensor, Tensor)| {
        let gates = Tensor::concat(&[h1, h2], 1).matmul(&joint.get()).chunk(5, 1);
        let c = gates[0].sigmoid() * gates[3].tanh() + gates[1].sigmoid() * c1 + gates[2].sigmoid() * c2;
        (gates[4].sigmoid() * c.tanh(), c)
    };
    let label = Tensor::from([1i64]);
    let loss = |i: usize| {
        let mut states: Vec<(Tensor, Tensor)> = Vec::with_capacity(shapes[i].len());
        for (at, node) in shapes[i].iter().enumerate() {
            states.push(match *node {
                Joint::Word => word(i * 37 + at),
                Joint::Of(left, right) => join(&states[left], &states[right]),
            });
        }
        let (h, _) = states.last().expect("a tree has nodes");
        h.matmul(&head.get()).cross_entropy(&label)
    };
    let params = [&leaf, &joint, &head];
    let all = || (0..shapes.len()).map(&loss).reduce(|a, b| a + b).expect("some trees");
    let alone = || all().grad(&params);
    let together = || autobatch(all).expect("the trees are sound").grad(&params);
    for (param, (want, got)) in params.iter().zip(alone().iter().zip(&together())) {
        let largest = |t: &Tensor| t.abs().amax(()).item::<f32>();
        let (error, scale) = (largest(&(want - got)), largest(want));
        ensure!(error <= 1e-4 * scale, "the gradient of {} is off by {error} of {scale}", param.name());
    }
    Ok(ratio(alone, together))
}
