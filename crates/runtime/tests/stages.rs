//! The stages of planning, each by itself: a graph as text in, the steps of its plan as text out.

use thalweg_graph::Graph;
use thalweg_runtime::{JitOptions, Plan, STAGES, jit_with};
use thalweg_tensor::{Param, Rng, Tensor};

/// The ops of each step, steps apart by semicolons, with those that run at the same time in brackets.
fn plan_with(stages: &[&str], text: &str) -> (String, Plan) {
    let graph: Graph = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let plan = Plan::with(&graph, &[], |stage| stages.contains(&stage));
    let steps: Vec<String> = plan.steps().map(|step| step.ops.join(" ")).collect();
    (steps.join("; "), plan)
}

#[track_caller]
fn check(stage: &str, text: &str, without: &str, with: &str) {
    assert_eq!(plan_with(&[], text).0, without);
    assert_eq!(plan_with(&[stage], text).0, with);
}

#[test]
fn what_reads_a_product_becomes_its_epilogue() {
    check(
        "epilogues",
        "x = input : f32[8,8]; p = matmul x x; q = exp x; y = relu p; z = add y q; return z",
        "matmul; exp; relu; add",
        "matmul relu; exp; add",
    );
    // A group that the fusion made follows its product past what stands between them.
    check(
        "epilogues",
        "x = input : f32[8,8]; p = matmul x x; q = sum(axes:[0]) x; y = relu p #1; z = tanh y #1; return z q",
        "matmul; sum; relu tanh",
        "matmul relu tanh; sum",
    );
}

#[test]
fn a_pooling_joins_the_convolution_whose_planes_it_takes() {
    let pair = "Sliding(kernel:2,stride:2,padding:0,dilation:1,ceil_mode:false)";
    let step = "(stride:1,dilation:1,padding:(0,0))";
    let text = format!(
        "x = input : f32[2,3,9,9]; w = input : f32[4,3,3,3]; \
         c = conv(geometry:(axes:[{step},{step}],groups:1)) x w; r = relu c; \
         p = max_pool(axes:[{pair},{pair}]) r; y = neg p; return y"
    );
    let steps = |stages: &[&str]| plan_with(stages, &text).0;
    assert_eq!(steps(&["epilogues"]), "conv relu; max_pool; neg");
    assert_eq!(steps(&["epilogues", "planes"]), "conv relu max_pool; neg");
    // There is nothing to join where no step continues another.
    assert_eq!(steps(&["planes"]), "conv; relu; max_pool; neg");
    let bytes = |stages: &[&str]| plan_with(stages, &text).1.arena_bytes();
    assert_eq!(bytes(&["epilogues", "planes"]), (4 * 2 * 4 * 3 * 3_usize).next_multiple_of(64));
}

#[test]
fn groups_that_do_not_meet_become_one_step() {
    check(
        "join",
        "x = input : f32[8]; y = input : f32[4]; a = exp x #1; b = neg a #1; c = exp y #2; d = neg c #2; return b d",
        "exp neg; exp neg",
        "exp neg exp neg",
    );
    // The second reads what the first writes.
    check(
        "join",
        "x = input : f32[8]; a = exp x #1; b = neg a #1; c = sqrt b #2; d = abs c #2; return b d",
        "exp neg; sqrt abs",
        "exp neg; sqrt abs",
    );
}

#[test]
fn values_that_never_meet_share_memory() {
    let text = "x = input : f32[1024]; a = cumsum(axis:0) x; b = cumsum(axis:0) a; c = cumsum(axis:0) b; \
                d = cumsum(axis:0) c; return d";
    let bytes = |stages: &[&str]| plan_with(stages, text).1.arena_bytes();
    assert_eq!(bytes(&[]), 3 * 4096);
    assert_eq!(bytes(&["arena"]), 3 * 4096, "small values keep their place a little longer");
    let large = text.replace("1024", "65536");
    let bytes = |stages: &[&str]| plan_with(stages, &large).1.arena_bytes();
    assert_eq!(bytes(&[]), 3 * 4 * 65536);
    assert_eq!(bytes(&["arena"]), 2 * 4 * 65536);
}

#[test]
fn a_result_takes_the_memory_of_an_operand_that_is_not_read_again() {
    let text = "x = input : f32[65536]; a = exp x; b = neg a; c = exp b; d = sum(axes:[0]) c; return d";
    let bytes = |stages: &[&str]| plan_with(stages, text).1.arena_bytes();
    assert_eq!(bytes(&["arena"]), 2 * 4 * 65536);
    assert_eq!(bytes(&["arena", "in_place"]), 4 * 65536);
}

#[test]
fn independent_steps_run_at_the_same_time() {
    let text = "x = input : f32[96,96]; y = input : f32[96,96]; a = matmul x x; b = matmul y y; return a b";
    assert_eq!(plan_with(&[], text).1.n_concurrent(), 0);
    assert_eq!(plan_with(&["parallel"], text).1.n_concurrent(), 2);
}

/// A training step in which every stage has something to do has the same bits with any of them off.
#[test]
fn no_stage_changes_a_bit() {
    let run = |options: JitOptions| {
        let mut rng = Rng::seed(7);
        let x = rng.normal([32, 48], 0.0, 1.0);
        let weights: Vec<Param> =
            (0..3).map(|i| Param::new(format!("w{i}"), rng.normal([48, 48], 0.0, 0.2))).collect();
        let mut step = jit_with(options, |x: Tensor| {
            let branches: Vec<Tensor> = weights.iter().map(|w| x.matmul(&w.get()).tanh()).collect();
            let loss = (&branches[0] * &branches[1] + branches[2].softmax(-1)).square().mean(());
            let gradients = loss.grad(&weights.iter().collect::<Vec<_>>());
            for (w, g) in weights.iter().zip(gradients) {
                w.set(&w.get() - g * 0.5);
            }
            loss
        });
        let losses: Vec<f32> = (0..3).map(|_| step.call(x.clone()).unwrap().item()).collect();
        let values: Vec<f32> = weights.iter().flat_map(|w| w.get().to_vec::<f32>()).collect();
        losses.into_iter().chain(values).map(f32::to_bits).collect::<Vec<_>>()
    };
    let want = run(JitOptions::default());
    for stage in STAGES {
        assert!(run(JitOptions::default().without(stage)) == want, "without {stage}");
    }
    let none = STAGES.iter().fold(JitOptions::default(), |options, stage| options.without(stage));
    assert!(run(none) == want, "without any");
}
