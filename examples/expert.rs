//! Everything below the layers is open: an op of one's own, gradients of gradients, momentum by hand.
//!
//! Prints:
//! ```text
//! ```
use thalweg::prelude::*;

/// Softplus with a numerically careful forward and its exact derivative.
struct Softplus;

impl CustomOp for Softplus {
    fn name(&self) -> &str {
        "softplus"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, OpError> {
        Ok(inputs[0].clone())
    }
    fn eval(&self, x: &[&View], y: &mut ViewMut) {
        y.map_f32(x[0], |v| v.max(0.0) + (-v.abs()).exp().ln_1p());
    }
    fn vjp(&self, x: &[Tensor], _y: &Tensor, dy: &Tensor) -> Vec<Option<Tensor>> {
        vec![Some(dy * &x[0].sigmoid())]
    }
}

fn main() -> thalweg::Result<()> {
    let x = Tensor::linspace(-3.0, 3.0, 7);
    let f = |x: &Tensor| custom(Softplus, &[x]).sum(());

    let slope = grad(f)(&x); // sigmoid(x)
    let curvature = grad(|x| grad(f)(x).sum(()))(&x); // sigmoid(x)(1 - sigmoid(x)): no extra rule written
    println!("{slope}\n{curvature}");

    // Heavy-ball momentum written by hand on a parameter.
    let w = Param::new("w", Tensor::zeros([7], F32));
    let v = Param::state("v", Tensor::zeros([7], F32));
    for _ in 0..100 {
        let loss = (&w.get() - &x).square().mean(());
        let g = loss.grad(&[&w]).remove(0);
        v.set(&v.get() * 0.9 - g * 0.1);
        w.set(&w.get() + &v.get());
    }
    println!("{:.2}", w.get());
    Ok(())
}
