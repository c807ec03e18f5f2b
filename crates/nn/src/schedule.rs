//! Learning rates over time: pure functions of the step, so that a resumed run needs nothing but its
//! position.

use std::f64::consts::PI;

/// A learning rate for each step.
///
/// ```
/// use thalweg_nn::{Sgd, schedule::{Cosine, Schedule, Warmup}};
/// let schedule = Warmup { steps: 10, then: Cosine { steps: 90, min: 0.0 } };
/// let opt = Sgd::new(0.1);
/// opt.follow(&schedule, 4);
/// assert_eq!(opt.lr(), 0.05);
/// opt.follow(&schedule, 100);
/// assert!(opt.lr() < 1e-9);
/// ```
pub trait Schedule {
    /// The rate of a step, the first being 0, for an optimiser that was given the rate `base`.
    fn lr(&self, step: u64, base: f64) -> f64;
}

impl<F: Fn(u64, f64) -> f64> Schedule for F {
    fn lr(&self, step: u64, base: f64) -> f64 {
        self(step, base)
    }
}

/// Always the same.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constant;

/// Multiplied by `gamma` every so many steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepDecay {
    /// How many steps a rate lasts.
    pub every: u64,
    /// The factor from one to the next.
    pub gamma: f64,
}

/// Multiplied by `gamma` at each of some steps.
#[derive(Debug, Clone, PartialEq)]
pub struct MultiStep {
    /// The steps, in any order.
    pub milestones: Vec<u64>,
    /// The factor at each of them.
    pub gamma: f64,
}

/// Multiplied by `gamma` every step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exponential {
    /// The factor.
    pub gamma: f64,
}

/// Half a wave of a cosine from the base to `min`; beyond its end it rises again (Loshchilov and
/// Hutter, 2016).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cosine {
    /// The length of the way down.
    pub steps: u64,
    /// The lowest rate.
    pub min: f64,
}

/// Half waves of a cosine, each starting anew at the base and longer than the one before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CosineRestarts {
    /// The length of the first wave.
    pub first: u64,
    /// How many times as long the next one is.
    pub factor: u64,
    /// The lowest rate.
    pub min: f64,
}

/// A straight line between two shares of the base, and then flat.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ramp {
    /// The share at the first step.
    pub start: f64,
    /// The share at the end.
    pub end: f64,
    /// The length of the line.
    pub steps: u64,
}

/// (1 − step / steps)^power of the base, and then 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Polynomial {
    /// The length of the way to 0.
    pub steps: u64,
    /// The exponent.
    pub power: f64,
}

/// Up to `max` and down to almost nothing, each half a wave of a cosine (Smith and Topin, 2017).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OneCycle {
    /// The highest rate.
    pub max: f64,
    /// The length of all of it.
    pub steps: u64,
    /// The share of the steps that lead up.
    pub up: f64,
    /// `max` over the first rate.
    pub start_divisor: f64,
    /// The first rate over the last.
    pub end_divisor: f64,
}

impl OneCycle {
    /// With the usual shares.
    pub fn new(max: f64, steps: u64) -> Self {
        Self { max, steps, up: 0.3, start_divisor: 25.0, end_divisor: 1e4 }
    }
}

/// Up and down in straight lines, again and again (Smith, 2015).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cyclic {
    /// The lowest rate.
    pub min: f64,
    /// The highest rate.
    pub max: f64,
    /// The steps that lead up.
    pub up: u64,
    /// The steps that lead down.
    pub down: u64,
}

/// Up from almost nothing in a straight line, then another schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Warmup<S> {
    /// The steps that lead up; step `steps` is the first of `then`.
    pub steps: u64,
    /// What follows.
    pub then: S,
}

impl Schedule for Constant {
    fn lr(&self, _: u64, base: f64) -> f64 {
        base
    }
}

impl Schedule for StepDecay {
    fn lr(&self, step: u64, base: f64) -> f64 {
        base * self.gamma.powf((step / self.every.max(1)) as f64)
    }
}

impl Schedule for MultiStep {
    fn lr(&self, step: u64, base: f64) -> f64 {
        base * self.gamma.powf(self.milestones.iter().filter(|&&m| m <= step).count() as f64)
    }
}

impl Schedule for Exponential {
    fn lr(&self, step: u64, base: f64) -> f64 {
        base * self.gamma.powf(step as f64)
    }
}

impl Schedule for Cosine {
    fn lr(&self, step: u64, base: f64) -> f64 {
        half_wave(base, self.min, step as f64 / self.steps.max(1) as f64)
    }
}

impl Schedule for CosineRestarts {
    fn lr(&self, step: u64, base: f64) -> f64 {
        let (mut length, mut at) = (self.first.max(1), step);
        while at >= length {
            at -= length;
            length = length.saturating_mul(self.factor.max(1));
        }
        half_wave(base, self.min, at as f64 / length as f64)
    }
}

impl Schedule for Ramp {
    fn lr(&self, step: u64, base: f64) -> f64 {
        let share = step.min(self.steps) as f64 / self.steps.max(1) as f64;
        base * (self.start + (self.end - self.start) * share)
    }
}

impl Schedule for Polynomial {
    fn lr(&self, step: u64, base: f64) -> f64 {
        base * (1.0 - step.min(self.steps) as f64 / self.steps.max(1) as f64).powf(self.power)
    }
}

impl Schedule for OneCycle {
    fn lr(&self, step: u64, _: f64) -> f64 {
        let first = self.max / self.start_divisor;
        let (top, end) = (self.up * self.steps as f64 - 1.0, self.steps as f64 - 1.0);
        let at = (step as f64).min(end);
        if at <= top {
            half_wave(first, self.max, at / top)
        } else {
            half_wave(self.max, first / self.end_divisor, (at - top) / (end - top))
        }
    }
}

impl Schedule for Cyclic {
    fn lr(&self, step: u64, _: f64) -> f64 {
        let at = step % (self.up + self.down).max(1);
        let height = match at <= self.up {
            true => at as f64 / self.up.max(1) as f64,
            false => 1.0 - (at - self.up) as f64 / self.down as f64,
        };
        self.min + (self.max - self.min) * height
    }
}

impl<S: Schedule> Schedule for Warmup<S> {
    fn lr(&self, step: u64, base: f64) -> f64 {
        match step.checked_sub(self.steps) {
            Some(after) => self.then.lr(after, base),
            None => self.then.lr(0, base) * (step + 1) as f64 / self.steps as f64,
        }
    }
}

/// From `from` (share 0) to `to` (share 1) along a cosine.
fn half_wave(from: f64, to: f64, share: f64) -> f64 {
    to + (from - to) * (1.0 + (PI * share).cos()) / 2.0
}
