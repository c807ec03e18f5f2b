//! Compiled functions keep to a memory budget.

use thalweg_runtime::{JitOptions, jit_with, remat};
use thalweg_tensor::{Param, Rng, Tensor};

const N_LAYERS: usize = 64;
/// Weights, and thus their gradients, are as large as activations.
const WIDTH: usize = 96;

/// Weights of a deep network.
fn weights() -> Vec<Param> {
    let mut rng = Rng::seed(5);
    (0..N_LAYERS).map(|i| Param::new(format!("w{i}"), rng.normal([WIDTH, WIDTH], 0.0, 0.25))).collect()
}

/// The loss of a plain network and its gradients.
fn gradients(weights: &[Param], x: &Tensor, layer: impl Fn(&Tensor, &Tensor) -> Tensor) -> Vec<Tensor> {
    let y = weights.iter().fold(x.clone(), |x, w| layer(&x, &w.get()));
    let loss = y.square().mean(());
    let mut results = loss.grad(&weights.iter().collect::<Vec<_>>());
    results.push(loss);
    results
}

fn compiled(options: JitOptions, layer: impl Fn(&Tensor, &Tensor) -> Tensor) -> (Vec<Tensor>, usize) {
    let (weights, x) = (weights(), Rng::seed(6).normal([96, WIDTH], 0.0, 1.0));
    let mut f = jit_with(options, |x: Tensor| gradients(&weights, &x, &layer));
    let results = f.call(x).unwrap();
    (results, f.plan().arena_bytes())
}

fn same_bits(a: &[Tensor], b: &[Tensor]) -> bool {
    let bits = |t: &Tensor| t.to_vec::<f32>().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| bits(a) == bits(b))
}

#[test]
fn sixty_four_layers_train_in_a_quarter_of_the_memory_with_the_same_bits() {
    let tanh = |x: &Tensor, w: &Tensor| x.matmul(w).tanh();
    let block = |x: &Tensor, w: &Tensor| {
        let normed = x.layer_norm(WIDTH, None, None, 1e-5);
        x + normed.matmul(w).gelu_tanh() * 0.5
    };
    type Layer<'a> = &'a dyn Fn(&Tensor, &Tensor) -> Tensor;
    for layer in [&tanh as Layer<'_>, &block] {
        let (want, all) = compiled(JitOptions::default(), layer);
        let (got, quarter) = compiled(JitOptions::default().memory_budget(all / 4), layer);
        assert!(quarter <= all / 4, "{quarter} of {all} bytes");
        assert!(same_bits(&want, &got));
    }
}

#[test]
fn a_budget_that_cannot_be_met_is_come_close_to() {
    let tanh = |x: &Tensor, w: &Tensor| x.matmul(w).tanh();
    let (want, all) = compiled(JitOptions::default(), tanh);
    let (got, least) = compiled(JitOptions::default().memory_budget(1), tanh);
    assert!(least < all / 2, "{least} of {all} bytes");
    assert!(same_bits(&want, &got));
}

#[test]
fn marked_functions_are_computed_again() {
    let plain = |x: &Tensor, w: &Tensor| x.matmul(w).tanh().exp().sin();
    let marked =
        |x: &Tensor, w: &Tensor| remat(|x| vec![x[0].matmul(&x[1]).tanh().exp().sin()], &[x, w]).remove(0);
    let (want, all) = compiled(JitOptions::default(), plain);
    let (got, less) = compiled(JitOptions::default(), marked);
    assert!(less < all * 2 / 3, "{less} of {all} bytes");
    assert!(same_bits(&want, &got));
}
