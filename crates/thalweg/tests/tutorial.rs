//! The tutorial program on points of the plane: derive, train compiled and line by line, save, load.

use thalweg::prelude::*;

#[derive(Module)]
struct Net {
    hidden: Linear,
    output: Linear,
}

impl Net {
    fn new(rng: &mut Rng) -> Self {
        Self { hidden: Linear::new(2, 32, rng), output: Linear::new(32, 3, rng) }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        self.output.forward(&self.hidden.forward(x).relu())
    }
}

/// Points in three sectors around the origin.
fn points(n: usize, rng: &mut Rng) -> (Tensor, Tensor) {
    let x = rng.normal([n, 2], 0.0, 1.0);
    let angle = x.select(1, 1).atan2(&x.select(1, 0)) / std::f64::consts::TAU + 0.5;
    (x, (angle * 2.999).floor().to_dtype(I64))
}

fn train(compiled: bool) -> thalweg::Result<(Net, Vec<f32>)> {
    let rng = &mut Rng::seed(0);
    let net = Net::new(rng);
    let batches: Vec<(Tensor, Tensor)> = (0..150).map(|_| points(64, rng)).collect();
    let mut opt = Adagrad::new(0.1);
    let mut step = |(x, y): (Tensor, Tensor)| {
        let loss = net.forward(&x).cross_entropy(&y);
        opt.step(&net, &loss);
        loss
    };
    let mut losses = Vec::new();
    if compiled {
        let mut step = jit(step);
        for batch in batches {
            losses.push(step.call(batch)?.item::<f32>());
        }
    } else {
        batches.into_iter().for_each(|batch| losses.push(step(batch).item::<f32>()));
    }
    Ok((net, losses))
}

#[test]
fn a_net_learns_the_same_compiled_and_line_by_line_and_survives_a_file() -> thalweg::Result<()> {
    let (net, losses) = train(true)?;
    let (_, eager) = train(false)?;
    for (a, b) in losses.iter().zip(&eager) {
        assert!((a - b).abs() < 1e-4, "{a} compiled, {b} line by line");
    }
    let (x, y) = points(1000, &mut Rng::seed(9));
    let before = accuracy(&net.forward(&x), &y);
    assert!(before > 0.9, "{before}");

    let path = std::env::temp_dir().join(format!("thalweg-tutorial-{}.safetensors", std::process::id()));
    net.save(&path)?;
    let other = Net::new(&mut Rng::seed(1));
    other.load(&path)?;
    std::fs::remove_file(&path).unwrap();
    assert_eq!(accuracy(&other.forward(&x), &y), before);
    let missing = other.load(&path).unwrap_err();
    assert!(missing.to_string().contains("thalweg-tutorial"), "{missing}");
    Ok(())
}

#[test]
fn a_wrong_shape_names_the_op_the_shapes_and_the_users_line() {
    let net = Net::new(&mut Rng::seed(0));
    let line = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let seen = line.clone();
    std::panic::set_hook(Box::new(move |info| {
        *seen.lock().unwrap() = info.location().map(ToString::to_string).unwrap_or_default();
    }));
    let x = Tensor::zeros([4, 3], F32);
    let here = line!() + 1;
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| net.hidden.forward(&x)));
    let _ = std::panic::take_hook();
    let message = caught.err().and_then(|e| e.downcast_ref::<String>().cloned()).unwrap_or_default();
    assert!(message.starts_with("linear: shapes [4, 3] and [32, 2]"), "{message}");
    let at = line.lock().unwrap().clone();
    assert!(at.contains(&format!("tutorial.rs:{here}:")), "{at}");
}
