//! The cart and its pole: the rules of CartPole-v1, and what its episodes are worth.

use thalweg::data::DrawRng;

/// Steps after which an episode ends by itself.
pub const LONGEST: usize = 500;
/// What a reward is worth one step earlier.
const DISCOUNT: f32 = 0.99;

/// Position, speed, angle, angular speed: Barto, Sutton and Anderson (1983), by Euler's method.
#[derive(Clone)]
pub struct Cart(pub [f32; 4]);

impl Cart {
    /// Somewhere near the middle, nearly upright.
    pub fn new(rng: &mut DrawRng) -> Self {
        Self(std::array::from_fn(|_| 0.1 * rng.unit() - 0.05))
    }

    /// Whether the pole is past 12 degrees or the cart past 2.4 m.
    pub fn fell(&self) -> bool {
        self.0[0].abs() > 2.4 || self.0[2].abs() > 12f32.to_radians()
    }

    /// One step of 0.02 s with 10 N to one side.
    pub fn push(&mut self, right: bool) {
        const GRAVITY: f32 = 9.8;
        const POLE: f32 = 0.1; // its mass; that of both is 1.1
        const BOTH: f32 = 1.1;
        const HALF: f32 = 0.5; // half of its length
        const DT: f32 = 0.02;
        let [x, v, angle, spin] = self.0;
        let force = if right { 10.0 } else { -10.0 };
        let (sin, cos) = angle.sin_cos();
        let pull = (force + POLE * HALF * spin * spin * sin) / BOTH;
        let turn = (GRAVITY * sin - cos * pull) / (HALF * (4.0 / 3.0 - POLE * cos * cos / BOTH));
        let speed_up = pull - POLE * HALF * turn * cos / BOTH;
        self.0 = [x + DT * v, v + DT * speed_up, angle + DT * spin, spin + DT * turn];
    }
}

/// How much better than usual each step turned out: its discounted future, less the mean over all episodes at the same
/// time, in units of the deviation; 0 behind the end.
pub fn advantages(lengths: &[usize]) -> Vec<f32> {
    // With a reward of 1 per step, the future is a geometric sum.
    let future = |left: usize| (1.0 - DISCOUNT.powi(left as i32)) / (1.0 - DISCOUNT);
    let at = |&l: &usize| (0..LONGEST).map(move |t| l.checked_sub(t).filter(|&left| left > 0).map(future));
    let mut all: Vec<Option<f32>> = lengths.iter().flat_map(at).collect();
    for t in 0..LONGEST {
        let column: Vec<f32> = all.iter().skip(t).step_by(LONGEST).map(|f| f.unwrap_or(0.0)).collect();
        let mean = column.iter().sum::<f32>() / column.len() as f32;
        all.iter_mut().skip(t).step_by(LONGEST).flatten().for_each(|f| *f -= mean);
    }
    let steps = all.iter().flatten().count().max(1) as f32;
    let deviation = (all.iter().flatten().map(|f| f * f).sum::<f32>() / steps).sqrt();
    all.into_iter().map(|f| f.map_or(0.0, |f| f / (deviation + 1e-6) / steps)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made with gymnasium's formulas in double precision: three pushes to the right and one back.
    #[test]
    fn the_cart_moves_as_in_the_reference() {
        let mut cart = Cart([0.01, -0.02, 0.03, 0.04]);
        [true, true, true, false].into_iter().for_each(|right| cart.push(right));
        let want = [0.0317625, 0.3687657, -0.0007845, -0.5127841];
        for (got, want) in cart.0.iter().zip(want) {
            assert!((got - want).abs() < 1e-5, "{:?} {want:?}", cart.0);
        }
        assert!(!cart.fell() && Cart([2.5, 0.0, 0.0, 0.0]).fell() && Cart([0.0, 0.0, -0.21, 0.0]).fell());
    }
}
