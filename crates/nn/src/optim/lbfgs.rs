//! L-BFGS (Liu and Nocedal, 1989), for whole batches.

use std::collections::VecDeque;

use thalweg_core::DType;
use thalweg_tensor::{OpError, Tensor};

use crate::module::{Module, Named};
use crate::optim::line_search::{Point, strong_wolfe};

/// How far to go along a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LineSearch {
    /// By the learning rate.
    #[default]
    None,
    /// To a point that satisfies the strong Wolfe conditions.
    StrongWolfe,
}

/// The options of [`Lbfgs`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LbfgsOptions {
    /// The length of a step, or its first guess.
    pub lr: f64,
    /// The most iterations per step.
    pub max_iterations: usize,
    /// The most evaluations per step; 5/4 of the iterations if `None`.
    pub max_evaluations: Option<usize>,
    /// How many gradients are remembered.
    pub history: usize,
    /// Done when no element of the gradient is larger.
    pub gradient_tolerance: f64,
    /// Done when neither loss nor parameters change by more.
    pub change_tolerance: f64,
    /// How far to go along a direction.
    pub line_search: LineSearch,
}

impl Default for LbfgsOptions {
    /// PyTorch's.
    fn default() -> Self {
        Self {
            lr: 1.0,
            max_iterations: 20,
            max_evaluations: None,
            history: 100,
            gradient_tolerance: 1e-7,
            change_tolerance: 1e-9,
            line_search: LineSearch::None,
        }
    }
}

/// A quasi-Newton method: it learns the curvature from the last gradients. It evaluates the loss as often
/// as it needs and looks at its value, so it takes a closure and cannot be compiled into a step.
///
/// ```
/// use thalweg_nn::{Lbfgs, LbfgsOptions, LineSearch};
/// use thalweg_tensor::{Param, Tensor};
///
/// let p = Param::new("p", Tensor::from([-1.2f32, 1.0]));
/// // Rosenbrock's valley.
/// let loss = || {
///     let (x, y) = (p.get().select(0, 0), p.get().select(0, 1));
///     (1.0 - &x).square() + (y - x.square()).square() * 100.0
/// };
/// let mut opt = Lbfgs::new(LbfgsOptions { line_search: LineSearch::StrongWolfe, ..Default::default() });
/// for _ in 0..5 {
///     opt.step(&p, &loss);
/// }
/// assert!(loss().item::<f32>() < 1e-6);
/// ```
#[derive(Debug, Clone)]
pub struct Lbfgs {
    options: LbfgsOptions,
    memory: Option<Memory>,
}

/// What one step leaves to the next.
#[derive(Debug, Clone)]
struct Memory {
    /// Differences of gradients and of positions, oldest first, and one over their product.
    pairs: VecDeque<(Tensor, Tensor, f64)>,
    /// The scale of the curvature.
    scale: f64,
    /// The last direction, how far it was followed, and the gradient there.
    direction: Tensor,
    length: f64,
    gradient: Tensor,
}

impl Lbfgs {
    /// With these options.
    pub fn new(options: LbfgsOptions) -> Self {
        Self { options, memory: None }
    }

    /// Several iterations of descent; returns the loss before them. Panics, naming it, for a parameter
    /// that the loss does not depend on.
    #[track_caller]
    pub fn step(&mut self, net: &(impl Module + ?Sized), loss: &dyn Fn() -> Tensor) -> f64 {
        match self.try_step(net, loss) {
            Ok(loss) => loss,
            Err(error) => panic!("{error}"),
        }
    }

    /// [`Lbfgs::step`] as a `Result`.
    pub fn try_step(
        &mut self,
        net: &(impl Module + ?Sized),
        loss: &dyn Fn() -> Tensor,
    ) -> Result<f64, OpError> {
        let objective = Objective { params: net.trainable(), loss };
        let (first, mut gradient) = objective.evaluate()?;
        let (mut value, mut evaluations) = (first, 1);
        let most = self.options.max_evaluations.unwrap_or(self.options.max_iterations * 5 / 4);
        if largest(&gradient) <= self.options.gradient_tolerance {
            return Ok(first);
        }
        for iteration in 1..=self.options.max_iterations {
            let fresh = self.memory.is_none();
            let direction = self.direction(&gradient);
            let mut length =
                if fresh { (1.0 / sum_abs(&gradient)).min(1.0) * self.options.lr } else { self.options.lr };
            let slope = dot(&gradient, &direction);
            let (before, old) = (value, gradient.clone());
            let memory = self.memory.as_mut().expect("`direction` has made it");
            (memory.direction, memory.gradient) = (direction.clone(), old.clone());
            if slope > -self.options.change_tolerance {
                break;
            }
            match self.options.line_search {
                LineSearch::StrongWolfe => {
                    let start = objective.position();
                    let at = |t: f64| {
                        objective.place(&(&start + &direction * t));
                        let (value, gradient) = objective.evaluate()?;
                        let slope = dot(&gradient, &direction);
                        Ok(Point { t, value, gradient, slope })
                    };
                    let origin = Point { t: 0.0, value, gradient: old, slope };
                    let (found, used) = strong_wolfe(
                        at,
                        &origin,
                        length,
                        largest(&direction),
                        self.options.change_tolerance,
                        most.saturating_sub(evaluations),
                    )?;
                    objective.place(&(&start + &direction * found.t));
                    (value, gradient, length, evaluations) =
                        (found.value, found.gradient, found.t, evaluations + used);
                }
                LineSearch::None => {
                    objective.place(&(objective.position() + &direction * length));
                    if iteration < self.options.max_iterations {
                        (value, gradient) = objective.evaluate()?;
                        evaluations += 1;
                    }
                }
            }
            self.memory.as_mut().expect("made above").length = length;
            let still = largest(&direction) * length.abs() <= self.options.change_tolerance
                || (value - before).abs() < self.options.change_tolerance;
            if evaluations >= most || largest(&gradient) <= self.options.gradient_tolerance || still {
                break;
            }
        }
        Ok(first)
    }

    /// Minus the gradient times the estimate of the inverse Hessian (the two-loop recursion).
    fn direction(&mut self, gradient: &Tensor) -> Tensor {
        let Some(memory) = &mut self.memory else {
            let direction = -gradient;
            self.memory = Some(Memory {
                pairs: VecDeque::new(),
                scale: 1.0,
                direction: direction.clone(),
                length: 0.0,
                gradient: gradient.clone(),
            });
            return direction;
        };
        let (y, s) = (gradient - &memory.gradient, &memory.direction * memory.length);
        let curvature = dot(&y, &s);
        if curvature > 1e-10 {
            if memory.pairs.len() == self.options.history {
                memory.pairs.pop_front();
            }
            memory.scale = curvature / dot(&y, &y);
            memory.pairs.push_back((y, s, 1.0 / curvature));
        }
        let mut q = -gradient;
        let mut alphas = Vec::new();
        for (y, s, rho) in memory.pairs.iter().rev() {
            let alpha = dot(s, &q) * rho;
            q = q - y * alpha;
            alphas.push(alpha);
        }
        let mut r = q * memory.scale;
        for ((y, s, rho), alpha) in memory.pairs.iter().zip(alphas.iter().rev()) {
            let beta = dot(y, &r) * rho;
            r = r + s * (alpha - beta);
        }
        r
    }
}

/// The loss as a function of one long vector.
struct Objective<'a> {
    params: Vec<Named>,
    loss: &'a dyn Fn() -> Tensor,
}

impl Objective<'_> {
    fn evaluate(&self) -> Result<(f64, Tensor), OpError> {
        let loss = (self.loss)();
        let gradients = loss.try_grad(&self.params.iter().collect::<Vec<_>>())?;
        Ok((loss.to_dtype(DType::F64).item(), flat(gradients.iter())))
    }

    fn position(&self) -> Tensor {
        flat(self.params.iter().map(|p| p.param.get().stop_gradient()).collect::<Vec<_>>().iter())
    }

    fn place(&self, position: &Tensor) {
        let mut start = 0;
        for p in &self.params {
            let old = p.param.get();
            let part = position.narrow(0, start, old.numel()).reshape(old.shape());
            p.param.set(part.to_dtype(old.dtype()));
            start += old.numel();
        }
    }
}

/// End to end, in double precision: differences of gradients are what counts here.
fn flat<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Tensor {
    Tensor::concat(&tensors.map(|t| t.to_dtype(DType::F64).reshape(-1isize)).collect::<Vec<_>>(), 0)
}

fn dot(a: &Tensor, b: &Tensor) -> f64 {
    (a * b).sum(()).item()
}

fn largest(a: &Tensor) -> f64 {
    a.abs().amax(()).item()
}

fn sum_abs(a: &Tensor) -> f64 {
    a.abs().sum(()).item()
}
