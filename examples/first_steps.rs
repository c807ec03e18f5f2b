//! Fits a line to points by gradient descent: the whole loop in a dozen lines.
//!
//! Prints:
//! ```text
//! step   0: loss 6.0833
//! step 100: loss 0.0076
//! step 200: loss 0.0000
//! slope 2.00, offset -1.00
//! ```
use thalweg::prelude::*;

fn main() -> thalweg::Result<()> {
    let x = Tensor::linspace(-2.0, 2.0, 9);
    let y = &x * 2.0 - 1.0;
    let (slope, offset) =
        (Param::new("slope", Tensor::scalar(0.0)), Param::new("offset", Tensor::scalar(0.0)));

    for step in 0..=200 {
        let loss = (&x * &slope.get() + &offset.get() - &y).square().mean(());
        for (param, gradient) in [&slope, &offset].into_iter().zip(loss.grad(&[&slope, &offset])) {
            param.set(&param.get() - gradient * 0.02);
        }
        if step % 100 == 0 {
            println!("step {step:3}: loss {:.4}", loss.item::<f32>());
        }
    }
    println!("slope {:.2}, offset {:.2}", slope.get(), offset.get());
    Ok(())
}
