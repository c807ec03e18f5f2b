//! Everything below the layers is open: an op of one's own, gradients of gradients, momentum by hand.
//!
//! Prints:
//! ```text
//! [0.0474, 0.1192, 0.2689, 0.5000, 0.7311, 0.8808, 0.9526]
//! [0.0452, 0.1050, 0.1966, 0.2500, 0.1966, 0.1050, 0.0452]
//! [-3.01, -2.01, -1.00,  0.00,  1.00,  2.01,  3.01]
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

    // Heavy-ball momentum written by hand on a parameter; compiled as one step.
    let w = Param::new("w", Tensor::zeros([7], F32));
    let v = Param::state("v", Tensor::zeros([7], F32));
    let mut descend = jit(|()| {
        let loss = (&w.get() - &x).square().mean(());
        let g = loss.grad(&[&w]).remove(0);
        v.set(&v.get() * 0.9 - g * 0.1);
        w.set(&w.get() + &v.get());
        loss
    });
    for _ in 0..100 {
        descend.call(())?;
    }
    println!("{:.2}\n{}", w.get(), descend.plan()); // each step, its cost, and the lines it came from
    Ok(())
}
