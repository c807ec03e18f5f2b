//! Compiled training steps of whole networks: a warm one asks nobody for memory, and none of its bits
//! depends on the number of threads. Its own process, with an allocator that counts.
#![allow(unsafe_code, reason = "a counting allocator is one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use thalweg_core::DType;
use thalweg_kernels::threads::set_threads;
use thalweg_nn::{
    Activation, Adagrad, Adam, AdamW, BatchNorm, Conv, Conv2d, Dropout, Embedding, Flatten, Gru, Layer,
    LayerNorm, LearnedPositions, Linear, Lstm, MaxPool2d, Module, Optimizer, Rnn, Rule, Sequential, Sgd,
    TransformerBlock, TransformerConfig, autocast,
};
use thalweg_runtime::jit;
use thalweg_tensor::{ConvOptions, Rng, Tensor};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// One test at a time: the count and the number of threads are the whole process's.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// What is asked of a network: its name, how to build it, what it does, an optimiser, operands and classes.
trait Visit {
    fn network<N: Module, R: Rule>(
        &mut self,
        name: &str,
        net: impl Fn(&mut Rng) -> N,
        forward: impl Fn(&N, &Tensor) -> Tensor,
        opt: impl Fn() -> Optimizer<R>,
        data: (Tensor, Tensor),
    );
}

/// The kinds of networks of the benchmarks, smaller, but large enough for several threads.
fn each_network(visit: &mut impl Visit) {
    let rng = &mut Rng::seed(7);
    let layers = |net: &Sequential, x: &Tensor| net.forward(x);
    let mlp = |rng: &mut Rng| {
        Sequential::new()
            .then(Linear::new(100, 150, rng))
            .then(Activation::Relu)
            .then(Linear::new(150, 10, rng))
    };
    let data = (rng.normal([90, 100], 0.0, 1.0), rng.randint([90], 0, 10));
    visit.network("MLP, Adagrad", mlp, layers, || Adagrad::new(0.01), data.clone());
    visit.network("MLP, momentum", mlp, layers, || Sgd::new(0.01).momentum(0.9), data);

    let cnn = |rng: &mut Rng| {
        let each = ConvOptions { groups: 12, padding: 1.into(), ..Default::default() };
        Sequential::new()
            .then(Conv2d::new(1, 12, 3, rng))
            .then(Activation::Relu)
            .then(Conv::<2>::with(12, 24, 3, each, rng))
            .then(BatchNorm::new(24))
            .then(Activation::Relu)
            .then(Conv2d::new(24, 16, 3, rng).stride(2))
            .then(Activation::Relu)
            .then(MaxPool2d::new(2))
            .then(Flatten::default())
            .then(Linear::new(16 * 3 * 3, 10, rng))
    };
    let data = (rng.normal([20, 1, 16, 16], 0.0, 1.0), rng.randint([20], 0, 10));
    visit.network("CNN, Adam", cnn, layers, || Adam::new(1e-3), data);

    let gpt = |rng: &mut Rng| {
        let config = TransformerConfig { dropout: 0.1, ..TransformerConfig::causal(48, 3) };
        (
            (Embedding::new(30, 48, rng), LearnedPositions::new(40, 48, rng), Dropout::new(0.1, rng)),
            Sequential::new()
                .then(TransformerBlock::new(config.clone(), rng))
                .then(TransformerBlock::new(config, rng))
                .then(LayerNorm::new(48))
                .then(Linear::new(48, 30, rng)),
        )
    };
    type Gpt = ((Embedding, LearnedPositions, Dropout), Sequential);
    let read = |((tokens, positions, noise), blocks): &Gpt, x: &Tensor| {
        blocks.forward(&noise.forward(&positions.forward(&tokens.forward(x)))).reshape([x.numel(), 30])
    };
    let in_bf16 = |net: &Gpt, x: &Tensor| autocast(DType::BF16, || read(net, x)).to_dtype(DType::F32);
    let data = (rng.randint([4, 40], 0, 30), rng.randint([160], 0, 30));
    visit.network("transformer, AdamW", gpt, read, || AdamW::new(3e-4), data.clone());
    visit.network("transformer in bf16, AdamW", gpt, in_bf16, || AdamW::new(3e-4), data);

    let data = (rng.normal([20, 9, 12], 0.0, 1.0), rng.randint([20], 0, 10));
    let lstm = |rng: &mut Rng| (Lstm::new(12, 50, rng), Linear::new(50, 10, rng));
    let last = |net: &(Lstm, Linear), x: &Tensor| net.1.forward(&net.0.forward(x).select(1, -1));
    visit.network("LSTM, Adam", lstm, last, || Adam::new(1e-3), data.clone());
    let gru = |rng: &mut Rng| (Gru::new(12, 50, rng), Linear::new(50, 10, rng));
    let last = |net: &(Gru, Linear), x: &Tensor| net.1.forward(&net.0.forward(x).select(1, -1));
    visit.network("GRU, Adam", gru, last, || Adam::new(1e-3), data.clone());
    let rnn = |rng: &mut Rng| (Rnn::new(12, 50, rng), Linear::new(50, 10, rng));
    let last = |net: &(Rnn, Linear), x: &Tensor| net.1.forward(&net.0.forward(x).select(1, -1));
    visit.network("RNN, SGD", rnn, last, || Sgd::new(0.01), data);
}

/// Runs until no step of 30 in a row has allocated.
struct AllocatesNothing;

impl Visit for AllocatesNothing {
    fn network<N: Module, R: Rule>(
        &mut self,
        name: &str,
        net: impl Fn(&mut Rng) -> N,
        forward: impl Fn(&N, &Tensor) -> Tensor,
        opt: impl Fn() -> Optimizer<R>,
        (x, y): (Tensor, Tensor),
    ) {
        let (net, mut opt) = (net(&mut Rng::seed(1)), opt());
        let mut step = jit(|(x, y): (Tensor, Tensor)| {
            let loss = forward(&net, &x).cross_entropy(&y);
            opt.step(&net, &loss);
            loss
        });
        let mut call = || step.call((x.clone(), y.clone())).unwrap().item::<f32>();
        let first = call();
        // Each thread makes its scratch memory when it first gets a task, which may be late on a busy
        // machine; after that nobody asks for anything.
        let (mut quiet, mut n_steps, mut last, mut n) = (0, 0, first, 0);
        while quiet < 30 && n_steps < 500 {
            let before = ALLOCATIONS.load(Relaxed);
            last = call();
            n = ALLOCATIONS.load(Relaxed) - before;
            quiet = if n == 0 { quiet + 1 } else { 0 };
            n_steps += 1;
        }
        assert_eq!(quiet, 30, "{name}: the last of {n_steps} steps made {n} allocations\n{}", step.plan());
        assert!(last < first, "{name}: and it learns");
    }
}

#[test]
fn warm_steps_of_networks_allocate_nothing() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    set_threads(2);
    each_network(&mut AllocatesNothing);
}

struct SameOnThreads;

impl Visit for SameOnThreads {
    fn network<N: Module, R: Rule>(
        &mut self,
        name: &str,
        net: impl Fn(&mut Rng) -> N,
        forward: impl Fn(&N, &Tensor) -> Tensor,
        opt: impl Fn() -> Optimizer<R>,
        (x, y): (Tensor, Tensor),
    ) {
        // The bits of losses, gradients' effect on weights, running statistics and optimiser state. Compiled anew
        // for each number of threads: neither the plan nor its execution may depend on it.
        let run = |n_threads: usize| {
            set_threads(n_threads);
            let (net, mut opt) = (net(&mut Rng::seed(1)), opt());
            let mut losses = Vec::new();
            let mut step = jit(|(x, y): (Tensor, Tensor)| {
                let loss = forward(&net, &x).cross_entropy(&y);
                opt.step(&net, &loss);
                loss
            });
            for _ in 0..3 {
                losses.push(step.call((x.clone(), y.clone())).unwrap().item::<f32>().to_bits());
            }
            drop(step);
            let params = net.state().into_iter().chain(opt.state());
            let bits =
                |t: Tensor| t.to_dtype(DType::F64).to_vec::<f64>().iter().map(|v| v.to_bits()).collect();
            let state: Vec<(String, Vec<u64>)> =
                params.map(|p| (p.name.clone(), bits(p.param.get()))).collect();
            (losses, state)
        };
        let (losses, state) = run(1);
        for n_threads in [2, 3] {
            let (l, s) = run(n_threads);
            assert_eq!(l, losses, "{name}: losses on {n_threads} threads");
            for ((param, got), (_, want)) in s.iter().zip(&state) {
                assert!(got == want, "{name}: {param} on {n_threads} threads");
            }
        }
    }
}

#[test]
fn steps_of_networks_are_the_same_on_any_number_of_threads() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    each_network(&mut SameOnThreads);
    set_threads(2);
}
