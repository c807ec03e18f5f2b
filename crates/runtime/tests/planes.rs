//! Planes of a convolution that pass through its epilogue into a pooling, and are never there as a whole.

use thalweg_runtime::{JitOptions, Plan, jit, jit_with};
use thalweg_tensor::{AvgPoolOptions, ConvOptions, MaxPoolOptions, Padding, Rng, Tensor};

fn steps(plan: &Plan) -> Vec<String> {
    plan.steps().map(|step| step.ops.join(" ")).collect()
}

fn bits(t: &Tensor) -> Vec<u32> {
    t.to_vec::<f32>().into_iter().map(f32::to_bits).collect()
}

/// Compiled and eager have the same bits, and the convolution is one step with its pooling, or not.
#[track_caller]
fn check(x: &Tensor, f: impl Fn(&Tensor) -> Tensor, passes: bool) -> Plan {
    let want = f(x);
    let mut with = jit(|x: Tensor| f(&x));
    let mut without = jit_with(JitOptions::default().without("planes"), |x: Tensor| f(&x));
    for _ in 0..2 {
        assert_eq!(bits(&with.call(x.clone()).unwrap()), bits(&want));
        assert_eq!(bits(&without.call(x.clone()).unwrap()), bits(&want));
    }
    let is_joined = |plan: &Plan| steps(plan).iter().any(|s| s.contains("conv") && s.contains("_pool"));
    assert_eq!(is_joined(with.plan()), passes, "{:?}", steps(with.plan()));
    assert!(!is_joined(without.plan()), "{:?}", steps(without.plan()));
    if passes {
        assert!(with.plan().arena_bytes() < without.plan().arena_bytes());
        assert_eq!(with.plan().unplanned_bytes(), without.plan().unplanned_bytes());
    }
    with.plan().clone()
}

#[test]
fn a_pooling_takes_the_planes_of_a_convolution() {
    let mut rng = Rng::seed(1);
    let max = MaxPoolOptions::default();
    let same = ConvOptions { padding: Padding::Same, ..Default::default() };
    // Windows in the image itself, columns of windows, and groups of one channel.
    for (channels, groups, stride, kernel) in
        [(6, 1, 1, 3), (8, 2, 1, 3), (4, 1, 2, 5), (6, 6, 1, 3), (1, 1, 1, 5)]
    {
        let x = rng.normal([5, channels, 20, 22], 0.0, 1.0);
        let w = rng.normal([12, channels / groups, kernel, kernel], 0.0, 0.3);
        let b = rng.normal([12], 0.0, 1.0);
        let conv = ConvOptions { groups, stride: stride.into(), ..Default::default() };
        check(&x, |x| x.conv2d(&w, Some(&b), &conv).relu().max_pool2d(2, &max), true);
        check(&x, |x| x.conv2d(&w, Some(&b), &conv).tanh().avg_pool2d(3, &AvgPoolOptions::default()), true);
        check(&x, |x| x.conv2d(&w, Some(&b), &conv).adaptive_avg_pool2d([3, 2]), true);
    }
    // An operand that the epilogue reads along, and that dies there.
    let x = rng.normal([3, 8, 16, 16], 0.0, 1.0);
    let w = rng.normal([8, 8, 3, 3], 0.0, 0.2);
    let with_sums = |x: &Tensor| {
        let sums = x.cumsum(0);
        (x.conv2d(&w, None, &same) + sums).relu().max_pool2d(2, &max)
    };
    check(&x, with_sums, true);
    // What comes next runs in the memory that was saved.
    check(&x, |x| (0..3).fold(x.clone(), |x, _| (x.conv2d(&w, None, &same) * 0.5).max_pool2d(2, &max)), true);
    // One axis, and three.
    let (x, w) = (rng.normal([4, 3, 90], 0.0, 1.0), rng.normal([8, 3, 5], 0.0, 1.0));
    check(&x, |x| x.conv1d(&w, None, &ConvOptions::default()).exp().max_pool1d(3, &max), true);
    let (x, w) = (rng.normal([2, 2, 6, 7, 8], 0.0, 1.0), rng.normal([4, 2, 3, 2, 2], 0.0, 1.0));
    check(&x, |x| x.conv3d(&w, None, &ConvOptions::default()).relu().max_pool3d(2, &max), true);
}

#[test]
fn a_result_that_others_read_is_kept() {
    let mut rng = Rng::seed(2);
    let (x, w) = (rng.normal([2, 4, 16, 16], 0.0, 1.0), rng.normal([4, 4, 3, 3], 0.0, 0.3));
    let (conv, max) = (ConvOptions::default(), MaxPoolOptions::default());
    let both = |y: Tensor| y.max_pool2d(2, &max).flatten(1, -1).sum([1]) + y.flatten(1, -1).sum([1]);
    check(&x, |x| both(x.conv2d(&w, None, &conv).relu()), false);
    // Not planes of one image, but lines.
    check(&x, |x| x.conv2d(&w, None, &conv).relu().flatten(0, 1).max_pool1d(2, &max), false);
    // Too large to stay in a cache.
    let (x, w) = (rng.normal([1, 2, 70, 60], 0.0, 1.0), rng.normal([3, 2, 3, 3], 0.0, 0.3));
    check(&x, |x| x.conv2d(&w, None, &conv).relu().max_pool2d(2, &max), false);
    // Its gradient reads what the pooling chose from.
    let x = rng.normal([2, 4, 16, 16], 0.0, 1.0);
    let p = thalweg_tensor::Param::new("w", rng.normal([4, 4, 3, 3], 0.0, 0.3));
    check(
        &x,
        |x| x.conv2d(&p.get(), None, &conv).relu().max_pool2d(2, &max).sum(()).grad(&[&p]).remove(0),
        false,
    );
}

#[test]
fn what_passed_can_be_looked_at() {
    let mut rng = Rng::seed(3);
    let (x, w) = (rng.normal([2, 4, 12, 12], 0.0, 1.0), rng.normal([4, 4, 3, 3], 0.0, 0.3));
    let (conv, max) = (ConvOptions::default(), MaxPoolOptions::default());
    let mut f = jit(|x: Tensor| x.conv2d(&w, None, &conv).relu().max_pool2d(2, &max));
    assert!(f.verify(x.clone(), 0.0).unwrap().is_none());
    let nodes: Vec<_> = f.plan().graph().ids().collect();
    let mut debugger = f.debug(x.clone()).unwrap();
    assert!(debugger.run_until_non_finite().unwrap().is_none());
    let (product, relu) = (x.conv2d(&w, None, &conv), x.conv2d(&w, None, &conv).relu());
    for (node, want) in nodes[2..].iter().zip([&product, &relu, &relu.max_pool2d(2, &max)]) {
        assert_eq!(bits(&debugger.peek(*node).unwrap()), bits(want), "{node:?}");
    }
    drop(debugger);
    let text = f.plan().to_string();
    assert!(text.contains("conv relu max_pool"), "{text}");
}
