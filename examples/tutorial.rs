//! The tutorial network of every lecture on ML systems: 784-100-10 on MNIST. Eager and compiled are the same code.
//!
//! With `--full` it sees all 60,000 digits three times. Otherwise it has a quick look at
//! 3,000 of them, and rounds generously: the last digits depend on the instruction set.
//!
//! Prints:
//! ```text
//! epoch 0: about 90% correct
//! ```
use thalweg::prelude::*;

#[derive(Module)]
struct Net {
    hidden: Linear,
    output: Linear,
}

impl Net {
    fn new(rng: &mut Rng) -> Self {
        Self { hidden: Linear::new(784, 100, rng), output: Linear::new(100, 10, rng) }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        self.output.forward(&self.hidden.forward(x).relu())
    }
}

fn main() -> thalweg::Result<()> {
    let full = std::env::args().any(|a| a == "--full");
    let data = thalweg::data::mnist()?; // shipped with the crate: nothing to download
    let train = if full { data.train } else { data.train.rows(0..3000) };
    let net = Net::new(&mut Rng::seed(0));
    let mut opt = Adagrad::new(0.01);

    // Delete `jit(..)` and the closure runs line by line; the numbers stay the same.
    let mut step = jit(|(x, y): (Tensor, Tensor)| {
        let loss = net.forward(&x).cross_entropy(&y);
        opt.step(&net, &loss);
        loss
    });

    for epoch in 0..if full { 3 } else { 1 } {
        for (x, y) in train.batches(100).shuffled(epoch) {
            step.call((x, y))?;
        }
        let correct = 100.0 * accuracy(&net.forward(&data.test.x), &data.test.y);
        match full {
            true => println!("epoch {epoch}: {correct:.2}% correct"),
            false => println!("epoch {epoch}: about {:.0}% correct", (correct / 10.0).round() * 10.0),
        }
    }
    net.save(std::env::temp_dir().join("mnist.safetensors"))
}
