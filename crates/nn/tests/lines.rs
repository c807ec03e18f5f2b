//! Plans of networks name the lines of whoever wrote the network, not those of the library.

use thalweg_nn::{Activation, Adam, Layer, LayerNorm, Linear, Module, Residual, Sequential};
use thalweg_runtime::{Plan, jit};
use thalweg_tensor::{Rng, Tensor};

extern crate thalweg_nn as thalweg; // the derive speaks of the crate `thalweg`

/// A user's own layer, which the library calls.
#[derive(Module)]
struct Twice {
    inner: Linear,
}

/// Where `Twice` calls its layer; the next line calls it again.
const TWICE: u32 = line!() + 4;

impl Layer for Twice {
    fn forward(&self, x: &Tensor) -> Tensor {
        let once = self.inner.forward(x);
        let again = self.inner.forward(&once.cumsum(0));
        once + again
    }
}

/// Lines of the steps with this op.
fn lines_of(plan: &Plan, op: &str) -> Vec<u32> {
    let mut lines: Vec<u32> = plan
        .steps()
        .filter(|s| s.ops.iter().any(|o| o == op))
        .flat_map(|s| s.lines.iter().map(|at| at.line()).collect::<Vec<_>>())
        .collect();
    lines.sort_unstable();
    lines.dedup();
    lines
}

#[test]
fn every_step_of_a_training_step_has_lines_of_the_user() {
    let rng = &mut Rng::seed(1);
    let first = line!() + 2;
    let net = Sequential::new()
        .then(Linear::new(4, 8, rng))
        .then(Activation::Gelu)
        .then(Residual::new(Linear::new(8, 8, rng)))
        .then(LayerNorm::new(8))
        .then(Twice { inner: Linear::new(8, 8, rng) })
        .then(Linear::new(8, 3, rng));
    let mut opt = Adam::new(0.1).clip_norm(1.0);
    opt.prepare(&net);
    let step_line = line!() + 3;
    let mut step = jit(|(x, y): (Tensor, Tensor)| {
        let loss = net.forward(&x).cross_entropy(&y);
        opt.step(&net, &loss);
        loss
    });
    let (x, y) = (rng.normal([8, 4], 0.0, 1.0), rng.randint([8], 0, 3));
    step.call((x, y)).unwrap();
    let text = step.plan().to_string();
    for info in step.plan().steps() {
        for at in &info.lines {
            assert!(at.file().ends_with("nn/tests/lines.rs"), "{at} in {info}\n{text}");
        }
    }
    let products = lines_of(step.plan(), "linear");
    let want = [TWICE, TWICE + 1, first, first + 2, first + 5];
    assert!(want.iter().all(|line| products.contains(line)), "{want:?} in {products:?}\n{text}");
    let updates = lines_of(step.plan(), "sqrt");
    assert!(updates.contains(&step_line), "{step_line} in {updates:?}\n{text}");
    // `once` is read by `cumsum` and by the sum: its gradient is a sum that belongs to the former.
    assert!(lines_of(step.plan(), "add").contains(&(TWICE + 1)), "{text}");
}

#[test]
fn a_layer_called_by_itself_has_the_line_of_the_call() {
    let layer: Box<dyn Layer + Send + Sync> = Box::new(Linear::new(4, 2, &mut Rng::seed(1)));
    let net = Sequential::new().then(layer);
    let alone = Linear::new(4, 2, &mut Rng::seed(2));
    let line = line!() + 2;
    let mut f = jit(|x: Tensor| {
        let y = alone.forward(&x);
        y + net.forward(&x)
    });
    f.call(Tensor::from([[1.0f32; 4]])).unwrap();
    assert!(lines_of(f.plan(), "linear").contains(&line), "{}", f.plan());
    assert!(!f.plan().to_string().contains("linear.rs"), "{}", f.plan());
}
