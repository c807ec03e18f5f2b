//! Decisions and loops that depend on values, in each other, with several results and parameters that their bodies set.

use thalweg_core::DType;
use thalweg_runtime::{cond, scan, while_loop};
use thalweg_tensor::{Tensor, custom_vjp, no_grad};

use super::{Draw, World};

/// Bodies inside bodies inside bodies are enough.
const DEEPEST: usize = 2;

/// A decision or a loop over some of the values, `depth` of them around it.
pub fn steered(draw: &mut Draw, values: &[Tensor], world: &World, depth: usize) -> Tensor {
    let x = draw.pick(values).to_dtype(DType::F32);
    // Bodies see what is around them, at every level, and each branch draws for itself.
    let inner = |draw: &Draw, salt: u64, values: &[&Tensor]| {
        let mut draw = Draw { seed: draw.seed, at: draw.at + (salt << 20) + ((depth as u64) << 16) };
        let values: Vec<Tensor> = values.iter().map(|&v| v.clone()).collect();
        turn(&mut draw, &values, world, depth + 1)
    };
    let around = draw.pick(values).to_dtype(DType::F32);
    // Decisions alone are compared bit for bit, so a branch reads its value once.
    let kind = if world.has_loops { draw.below(5) } else { 0 };
    let fixed = draw.clone();
    match kind {
        0 => cond(&x.sum(()).gt(0.0), || inner(&fixed, 1, &[&x]), || inner(&fixed, 2, &[&x])),
        1 => {
            let (a, b, n) = cond(
                &x.sum(()).gt(0.0),
                || (inner(&fixed, 1, &[&x]), x.sum(()), Tensor::scalar(1i64)),
                || (inner(&fixed, 2, &[&x]), x.mean(()), Tensor::scalar(2i64)),
            );
            if draw.chance(50) { a } else { a * b + n.to_dtype(DType::F32) }
        }
        2 => {
            // What is infinite does not become small.
            let goes_on = |(x, n): &(Tensor, Tensor)| {
                let largest = x.abs().amax(());
                largest.gt(1.0).logical_and(&largest.lt(1e6)).logical_and(&n.lt(30i64))
            };
            let body = |(x, n): (Tensor, Tensor)| {
                let note = noted(world, &fixed, depth, &x);
                (x * 0.5 + around.sin().mean(()) * 0.01 + note * 0.01, n + 1i64)
            };
            while_loop((x.reshape(x.numel()), Tensor::scalar(0i64)), goes_on, body).0
        }
        _ if x.rank() > 0 => {
            let body = |sum: Tensor, row: Tensor| {
                let note = noted(world, &fixed, depth, &row);
                let next = &sum * 0.5 + inner(&fixed, 3, &[&row, &around, &sum]).sin().mean(()) + &row + note;
                (next, (sum.tanh() * &row, inner(&fixed, 4, &[&sum, &row])))
            };
            let (last, (each, more)) = scan(x.select(0, 0), x, body);
            match draw.below(3) {
                0 => each,
                1 => each + last,
                _ => more,
            }
        }
        _ => x,
    }
}

/// What a body does: something plain, or a body of its own.
fn turn(draw: &mut Draw, values: &[Tensor], world: &World, depth: usize) -> Tensor {
    let x = values[0].clone();
    let y = match depth <= DEEPEST && draw.chance(40) {
        true => steered(draw, values, world, depth),
        false => draw.pick(values).clone(),
    };
    // The branches of a decision have the shape of what they choose between.
    let y = if y.shape() == x.shape() { y } else { y.sin().mean(()).broadcast_to(x.shape()) };
    let y = if draw.chance(40) { marked(draw, y) } else { y };
    match draw.below(4) {
        0 => y.tanh() * 2.0,
        1 => y.sin(),
        2 => -y,
        _ => y * 0.5 + 0.1,
    }
}

/// Something that stops or replaces a gradient. It reaches what it is given by one way, not more and not less: decisions alone are
/// compared bit for bit, and what one branch reaches and the other does not has the gradient −0 there.
fn marked(draw: &mut Draw, x: Tensor) -> Tensor {
    match draw.below(7) {
        0 => x.tanh().stop_gradient() * x,
        1 => no_grad(|| x.sin() + 0.5) * x,
        2 => no_grad(|| x.exp().reshape(x.numel())).reshape(x.shape()).tanh() + x * 0.3,
        3 => {
            let forward = |x: &[Tensor]| vec![x[0].sin()];
            // Nothing comes of nothing: whether a gradient that is zero reaches a rule is nobody's business.
            custom_vjp(forward, |x, y, dy| vec![Some(dy[0].clamp(-0.1, 0.1) * &x[0] * &y[0])], &[&x])
                .remove(0)
        }
        4 => {
            let scale = x.stop_gradient().mean(()) + 1.0;
            custom_vjp(|x| vec![x[0].tanh()], move |_, _, dy| vec![Some(&dy[0] * &scale)], &[&x]).remove(0)
        }
        5 => {
            let forward = |x: &[Tensor]| vec![&x[0] * 0.5, x[0].tanh()];
            let backward =
                |_: &[Tensor], _: &[Tensor], dy: &[Tensor]| vec![Some(dy[0].tanh() + &dy[1] * 0.3)];
            let y = custom_vjp(forward, backward, &[&x]);
            &y[0] * 2.0 + &y[1]
        }
        _ => {
            let v = x.requires_grad();
            v.tanh().sum(()).grad(&[&v]).remove(0) * x
        }
    }
}

/// Sometimes a body reads what the turn before has left in a parameter, leaves something there itself, and reads that too.
fn noted(world: &World, draw: &Draw, depth: usize, x: &Tensor) -> Tensor {
    let mut draw = draw.clone();
    if depth > 0 || !draw.chance(40) {
        return Tensor::scalar(0.0f32);
    }
    let before = world.note.get();
    world.note.set(&before * 0.9 + x.sin().mean(()) * 0.1);
    if draw.chance(50) { before + world.note.get() * 0.5 } else { before }
}
