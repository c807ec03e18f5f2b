//! Groups with ops on rows: one step, with the bits of the ops one by one.

use thalweg_core::DType;
use thalweg_runtime::{JitOptions, jit, jit_with};
use thalweg_tensor::{Param, Rng, Tensor, grad};

type Function = fn(&Tensor) -> Tensor;

fn softmax(x: &Tensor) -> Tensor {
    let e = (x - x.amax_keepdim(-1)).exp();
    &e / e.sum_keepdim(-1)
}

fn layer_norm(x: &Tensor) -> Tensor {
    let centred = x - x.mean_keepdim(-1);
    &centred * ((&centred * &centred).mean_keepdim(-1) + 1e-5).rsqrt() * 0.5 + 2.0
}

fn cross_entropy_of_rows(x: &Tensor) -> Tensor {
    let target = x.abs();
    let shifted = x - x.amax_keepdim(-1);
    let log_probability = &shifted - shifted.exp().sum_keepdim(-1).log();
    -(log_probability * target).sum(-1)
}

fn residual_then_norms(x: &Tensor) -> Tensor {
    let cols = x.size(-1);
    let y = (x * 2.0 + x.tanh()).layer_norm(cols, None, None, 1e-5);
    (y.sigmoid() * x).rms_norm(cols, None, 1e-5) + y.softmax(-1)
}

fn assert_same_bits(got: &Tensor, want: &Tensor, what: &str) {
    assert_eq!(got.meta(), want.meta(), "{what}");
    let bits = |t: &Tensor| t.to_vec::<f32>().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(got), bits(want), "{what}");
}

#[test]
fn functions_of_rows_written_by_hand_are_one_step() {
    let cases: [(&str, Function, usize); 5] = [
        ("softmax", softmax, 1),
        ("layer norm", layer_norm, 1),
        ("cross entropy", cross_entropy_of_rows, 1),
        ("norms", residual_then_norms, 1),
        ("log-sum-exp", |x| (x * 3.0).logsumexp(-1).exp(), 1),
    ];
    let mut rng = Rng::seed(1);
    for (name, f, n_steps) in cases {
        // One row, short and long rows, more rows than a tile or a task holds, rows that end inside a vector.
        for shape in [vec![1, 7], vec![5, 2], vec![300, 33], vec![2, 3, 64], vec![3, 5000], vec![700, 130]] {
            let x = rng.normal(shape.clone(), 0.0, 2.0);
            let mut compiled = jit(|x: Tensor| f(&x));
            let got = compiled.call(x.clone()).unwrap();
            assert_same_bits(&got, &f(&x), &format!("{name} of {shape:?}"));
            assert_eq!(compiled.plan().n_steps(), n_steps, "{name} of {shape:?}:\n{}", compiled.plan());
        }
    }
}

#[test]
fn gradients_of_functions_of_rows_have_the_bits_of_eager_code() {
    let mut rng = Rng::seed(2);
    let functions: [(&str, Function); 4] = [
        ("softmax", softmax),
        ("layer norm", layer_norm),
        ("cross entropy", cross_entropy_of_rows),
        ("norms", residual_then_norms),
    ];
    for (name, f) in functions {
        for shape in [[9, 33], [64, 256]] {
            let x = rng.normal(shape, 0.0, 1.0);
            let loss = |x: &Tensor| f(x).square().sum(());
            let want = grad(loss)(&x);
            let mut fused = jit(|x: Tensor| grad(loss)(&x));
            // What the passes before fusion change is not the matter here.
            let apart = JitOptions::default().without("fuse");
            let mut unfused = jit_with(apart, |x: Tensor| grad(loss)(&x));
            let got = fused.call(x.clone()).unwrap();
            assert_same_bits(&got, &unfused.call(x.clone()).unwrap(), name);
            let (got, want) = (got.to_vec::<f32>(), want.to_vec::<f32>());
            for (g, w) in got.iter().zip(&want) {
                assert!((g - w).abs() <= 1e-5 * (1.0 + w.abs()), "{name}: {g} is not {w}");
            }
            let steps = (fused.plan().n_steps(), unfused.plan().n_steps());
            assert!(steps.0 * 3 <= steps.1, "{name}: {steps:?}\n{}", fused.plan());
        }
    }
}

/// A row has as many elements as there are rows, and what is computed of each row would fit where the weight lies.
#[test]
fn what_is_read_for_all_rows_is_not_overwritten_by_what_is_computed_of_one() {
    let mut rng = Rng::seed(3);
    let (x, w) = (rng.normal([16, 16], 0.0, 1.0), rng.normal([16], 0.0, 1.0));
    let f = |x: &Tensor, w: &Tensor| {
        let weight = w.reshape([4, 4]).matmul(&Tensor::eye(4, DType::F32)).reshape(16);
        (x * 2.0).layer_norm(16, Some(&weight), None, 1e-5).sum(-1).exp()
    };
    let mut compiled = jit(|(x, w): (Tensor, Tensor)| f(&x, &w));
    let got = compiled.call((x.clone(), w.clone())).unwrap();
    assert_same_bits(&got, &f(&x, &w), "norm and sum");

    // The weight is a parameter, and the sums of the rows are its next value.
    let weight = Param::new("w", w.clone());
    let mut compiled = jit(|x: Tensor| {
        weight.set((x * 2.0).layer_norm(16, Some(&weight.get()), None, 1e-5).sum(-1).exp());
    });
    compiled.call(x.clone()).unwrap();
    assert_same_bits(
        &weight.get(),
        &(&x * 2.0).layer_norm(16, Some(&w), None, 1e-5).sum(-1).exp(),
        "new weight",
    );
}

#[test]
fn views_of_what_a_group_computes_are_read_outside_of_it() {
    let mut rng = Rng::seed(4);
    let (x, m) = (rng.normal([6, 8], 0.0, 1.0), rng.normal([8, 8], 0.0, 1.0));
    let f = |x: &Tensor| {
        let scale = x.square().sum_keepdim(-1).sqrt();
        let unit = x / &scale;
        // The broadcast that divides is read by a product too, and so is the column itself.
        (unit + scale.broadcast_to([6, 8]).matmul(&m), scale.t().matmul(x), scale)
    };
    let mut compiled = jit(|x: Tensor| f(&x));
    let (got, want) = (compiled.call(x.clone()).unwrap(), f(&x));
    assert_same_bits(&got.0, &want.0, "sum");
    assert_same_bits(&got.1, &want.1, "product");
    assert_same_bits(&got.2, &want.2, "column");
}

#[test]
fn operands_of_any_layout_reach_the_rows() {
    let mut rng = Rng::seed(5);
    let (x, y) = (rng.normal([40, 12], 0.0, 1.0), rng.normal([12], 0.0, 1.0));
    let f = |x: &Tensor| {
        let wide = x.t().narrow(1, 3, 30) * 0.5;
        let first = x.narrow(0, 0, 12).sum(1) + &y;
        (&wide + first.unsqueeze(1)).softmax(-1) * first.gt(0.0).unsqueeze(1).to_dtype(wide.dtype())
    };
    let mut compiled = jit(|x: Tensor| f(&x));
    assert_same_bits(&compiled.call(x.clone()).unwrap(), &f(&x), "strided");
}

#[test]
fn rows_longer_than_a_near_cache_stay_ops_of_their_own() {
    let x = Rng::seed(6).normal([2, 40_000], 0.0, 1.0);
    let mut compiled = jit(|x: Tensor| softmax(&x));
    assert_same_bits(&compiled.call(x.clone()).unwrap(), &softmax(&x), "long rows");
    assert!(compiled.plan().n_steps() > 1);
}
