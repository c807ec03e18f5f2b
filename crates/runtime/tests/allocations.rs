//! A warm compiled step asks nobody for memory. Its own process, with an allocator that counts.
#![allow(unsafe_code, reason = "a counting allocator is one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use thalweg_core::DType;
use thalweg_runtime::{cond, jit, scan, while_loop};
use thalweg_tensor::{AttentionOptions, Param, Rng, Tensor};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// The largest number of bytes asked for at once.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        LARGEST.fetch_max(layout.size(), Relaxed);
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// One test at a time: the count is the whole process's.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of one warm call.
fn count(f: impl Fn(&Tensor) -> Tensor, x: &Tensor) -> usize {
    let mut f = jit(|x: Tensor| f(&x));
    for _ in 0..5 {
        f.call(x.clone()).unwrap();
    }
    let before = ALLOCATIONS.load(Relaxed);
    f.call(x.clone()).unwrap();
    ALLOCATIONS.load(Relaxed) - before
}

#[test]
fn ops_of_networks_allocate_nothing_when_warm() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let mut rng = Rng::seed(1);
    let x = rng.normal([32, 48], 0.0, 1.0);
    let index = rng.randint([32], 0, 48);
    let w = rng.normal([48], 0.0, 1.0);
    let image = rng.normal([2, 3, 12, 12], 0.0, 1.0);
    let kernel = rng.normal([4, 3, 3, 3], 0.0, 1.0);
    type Case<'a> = (&'a str, Box<dyn Fn(&Tensor) -> Tensor + 'a>);
    let cases: Vec<Case<'_>> = vec![
        ("exp", Box::new(Tensor::exp)),
        ("fused", Box::new(|x| x.exp() * x + 1.0)),
        ("broadcast", Box::new(|x| x * &w)),
        ("sum", Box::new(|x| x.sum(()))),
        ("sum over rows", Box::new(|x| x.sum(0))),
        ("mean of columns", Box::new(|x| x.mean(1))),
        ("largest", Box::new(|x| x.amax(1))),
        ("matmul", Box::new(|x| x.matmul(&x.t()))),
        ("linear", Box::new(|x| x.linear(x, Some(&w.narrow(0, 0, 32))))),
        ("softmax", Box::new(|x| x.softmax(-1))),
        ("log_softmax", Box::new(|x| x.log_softmax(-1))),
        ("layer_norm", Box::new(|x| x.layer_norm(48, Some(&w), Some(&w), 1e-5))),
        ("cross_entropy", Box::new(|x| x.cross_entropy(&index))),
        ("index_select", Box::new(|x| x.index_select(1, &index))),
        ("gather", Box::new(|x| x.gather(1, &index.unsqueeze(1)))),
        ("permuted copy", Box::new(|x| x.t().reshape(32 * 48) * 2.0)),
        ("conv2d", Box::new(|x| image.conv2d(&kernel, None, &Default::default()) + x.sum(()))),
        ("max_pool2d", Box::new(|x| image.max_pool2d(2, &Default::default()) + x.sum(()))),
        (
            "planes into a pool",
            Box::new(|x| {
                let wide = image.conv2d(&kernel, Some(&w.narrow(0, 0, 4)), &Default::default()).relu();
                wide.max_pool2d(2, &Default::default()) + x.sum(())
            }),
        ),
        (
            "gradients",
            Box::new(|x| thalweg_tensor::grad(|x| x.log_softmax(-1).gelu_tanh().square().sum(()))(x)),
        ),
    ];
    let wrong: Vec<String> = cases
        .iter()
        .map(|(name, f)| (name, count(f, &x)))
        .filter(|(_, n)| *n > 0)
        .map(|(name, n)| format!("{name}: {n}"))
        .collect();
    assert!(wrong.is_empty(), "allocations of a warm call: {}", wrong.join(", "));
}

#[test]
fn decisions_and_loops_allocate_nothing_when_warm() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let mut rng = Rng::seed(1);
    let x = rng.normal([32, 48], 0.0, 1.0);
    let w = rng.normal([48, 48], 0.0, 0.1);
    let chosen = |x: &Tensor| cond(&x.sum(()).gt(0.0), || x.matmul(&w), || x.sin());
    let several = |x: &Tensor| {
        let (a, b, n) = cond(
            &x.sum(()).gt(0.0),
            || (x.exp(), x.sum(0), Tensor::scalar(3i64)),
            || (x.sin(), x.sum(0), Tensor::scalar(4i64)),
        );
        a + b + n.to_dtype(DType::F32)
    };
    let halved = |x: &Tensor| while_loop(x.clone(), |x| x.abs().amax(()).gt(1.0), |x| x * 0.5);
    let recurrent = |x: &Tensor| {
        let turn = |h: Tensor, x: Tensor| {
            let h = (h.reshape([1, 48]).matmul(&w).reshape(48) + x).tanh();
            (h.clone(), h)
        };
        let (last, all) = scan(x.select(0, 0), x.clone(), turn);
        last + all
    };
    let by_columns = |x: &Tensor| scan(Tensor::zeros([32], DType::F32), x.t(), |h, x| (h + &x, x)).0;
    let slope =
        |f: &dyn Fn(&Tensor) -> Tensor, x: &Tensor| thalweg_tensor::grad(|x| f(x).square().sum(()))(x);
    type Case<'a> = (&'a str, Box<dyn Fn(&Tensor) -> Tensor + 'a>);
    let cases: Vec<Case<'_>> = vec![
        ("cond", Box::new(chosen)),
        ("cond of several", Box::new(several)),
        ("while_loop", Box::new(halved)),
        ("scan", Box::new(recurrent)),
        ("scan over columns", Box::new(by_columns)),
        ("gradient of cond", Box::new(|x| slope(&chosen, x))),
        ("gradient of while_loop", Box::new(|x| slope(&halved, x))),
        ("gradient of scan", Box::new(|x| slope(&recurrent, x))),
    ];
    let wrong: Vec<String> = cases
        .iter()
        .map(|(name, f)| (name, count(f, &x)))
        .filter(|(_, n)| *n > 0)
        .map(|(name, n)| format!("{name}: {n}"))
        .collect();
    assert!(wrong.is_empty(), "allocations of a warm call: {}", wrong.join(", "));
}

#[test]
fn a_warm_training_step_allocates_nothing() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let mut rng = Rng::seed(0);
    let (x, y) = (rng.normal([64, 100], 0.0, 1.0), rng.randint([64], 0, 10));
    let w1 = Param::new("w1", rng.normal([50, 100], 0.0, 0.1));
    let b1 = Param::new("b1", Tensor::zeros([50], DType::F32));
    let w2 = Param::new("w2", rng.normal([10, 50], 0.0, 0.1));
    let b2 = Param::new("b2", Tensor::zeros([10], DType::F32));
    let params = [&w1, &b1, &w2, &b2];
    let mut step = jit(|(x, y): (Tensor, Tensor)| {
        let h = x.linear(&w1.get(), Some(&b1.get())).relu();
        let loss = h.linear(&w2.get(), Some(&b2.get())).cross_entropy(&y);
        for (p, g) in params.iter().zip(loss.grad(&params)) {
            p.set(p.get() - g * 0.1);
        }
        loss
    });
    let mut call = || step.call((x.clone(), y.clone())).unwrap().item::<f32>();
    let first = call();
    // Each thread makes its scratch memory when it first gets a task, which may be late on a busy
    // machine; after that nobody asks for anything.
    let (mut quiet, mut n_steps, mut last) = (0, 0, first);
    while quiet < 50 && n_steps < 5000 {
        let before = ALLOCATIONS.load(Relaxed);
        last = call();
        quiet = if ALLOCATIONS.load(Relaxed) == before { quiet + 1 } else { 0 };
        n_steps += 1;
    }
    assert_eq!(quiet, 50, "no 50 steps in a row without an allocation among {n_steps}\n{}", step.plan());
    assert!(last < first, "and it learns");
}

/// The sequence is long enough for its scores, 64 MiB of them, to be seen among 256 KiB of operands.
#[test]
fn attention_to_a_long_sequence_takes_memory_for_the_sequence_only() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    const LONG: usize = 4096;
    let mut rng = Rng::seed(2);
    let x = rng.normal([1, 1, LONG, 16], 0.0, 1.0);
    let padding = Tensor::from_vec((0..LONG).map(|key| key < LONG - 100).collect(), [1, 1, 1, LONG]);
    let added = rng.normal([LONG], 0.0, 1.0);
    let masks = [("no mask", None), ("padding", Some(&padding)), ("numbers", Some(&added))];
    for (name, mask) in masks {
        let options = AttentionOptions { mask, is_causal: true, ..Default::default() };
        let gradient = |x: &Tensor| {
            thalweg_tensor::grad(|x| x.scaled_dot_product_attention(x, x, &options).square().sum(()))(x)
        };
        LARGEST.store(0, Relaxed);
        let want = gradient(&x);
        let mut f = jit(|x: Tensor| gradient(&x));
        let got = f.call(x.clone()).unwrap();
        let (planned, largest) = (f.plan().arena_bytes(), LARGEST.load(Relaxed));
        let operand = LONG * 16 * size_of::<f32>();
        assert!(planned <= 16 * operand, "{name}: {planned} bytes planned\n{}", f.plan());
        assert!(largest <= 16 * operand, "{name}: {largest} bytes asked for at once");
        assert_eq!(got.to_vec::<f32>(), want.to_vec::<f32>(), "{name}");
    }
}
