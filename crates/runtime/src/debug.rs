//! Looking into a compiled function: step by step, value by value, against eager execution.

use std::fmt;

use thalweg_core::{DType, View, ViewMut};
use thalweg_graph::NodeId;
use thalweg_tensor::ops::CustomOp;
use thalweg_tensor::{Meta, OpError, Tensor, custom};

use crate::error::RunError;
use crate::executor::Executor;
use crate::plan::StepInfo;

/// A run that goes one step at a time. Parameters have their new values only where steps have written
/// them; when the debugger is dropped, all of them get back what they had before.
pub struct Debugger<'a> {
    executor: &'a mut Executor,
    inputs: Vec<Tensor>,
    before: Vec<Tensor>,
    next: usize,
}

/// What a step has written.
pub struct Stepped {
    /// Which step it was.
    pub index: usize,
    /// What it is.
    pub info: StepInfo,
    /// The nodes whose values it wrote; none for a copy.
    pub nodes: Vec<NodeId>,
    /// The values.
    pub values: Vec<Tensor>,
}

/// A step whose values are not what they should be.
#[derive(Debug, Clone)]
pub struct Finding {
    /// Which step.
    pub step: usize,
    /// What it runs.
    pub info: StepInfo,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}\n      {}", self.step, self.what, self.info)
    }
}

impl<'a> Debugger<'a> {
    pub(crate) fn new(executor: &'a mut Executor, inputs: Vec<Tensor>) -> Result<Self, RunError> {
        let before: Vec<Tensor> = executor.params().iter().map(|p| p.get().stop_gradient()).collect();
        let views: Vec<View<'_>> = inputs.iter().map(Tensor::view).collect();
        executor.begin(&views)?;
        drop(views);
        Ok(Self { executor, inputs, before, next: 0 })
    }

    /// Runs the next step. `None` after the last.
    pub fn step(&mut self) -> Result<Option<Stepped>, RunError> {
        let index = self.next;
        if index == self.executor.plan().n_steps() {
            return Ok(None);
        }
        self.executor.step(index)?;
        self.next += 1;
        let (info, nodes) = (self.executor.plan().step_info(index), self.executor.plan().result_nodes(index));
        Ok(Some(Stepped { index, info, nodes, values: self.executor.written_by(index) }))
    }

    /// Runs on until a step for whose values `stop` says why.
    pub fn run_until(
        &mut self,
        mut stop: impl FnMut(&Stepped) -> Option<String>,
    ) -> Result<Option<Finding>, RunError> {
        while let Some(stepped) = self.step()? {
            if let Some(what) = stop(&stepped) {
                return Ok(Some(Finding { step: stepped.index, info: stepped.info, what }));
            }
        }
        Ok(None)
    }

    /// Runs on until a step that comes from this line of this file (its last part will do).
    pub fn run_until_line(&mut self, file: &str, line: u32) -> Result<Option<Finding>, RunError> {
        self.run_until(|s| {
            let here = s.info.lines.iter().any(|at| at.line() == line && at.file().ends_with(file));
            here.then(|| format!("comes from {file}:{line}"))
        })
    }

    /// Runs on until the first value that is infinite or not a number.
    pub fn run_until_non_finite(&mut self) -> Result<Option<Finding>, RunError> {
        self.run_until(|s| {
            s.values.iter().find_map(|v| {
                let list = floats(v)?;
                let bad = list.iter().filter(|x| !x.is_finite()).count();
                let first = list.iter().position(|x| !x.is_finite())?;
                Some(format!(
                    "{bad} of {} values are not finite; element {first} is {}",
                    list.len(),
                    list[first]
                ))
            })
        })
    }

    /// The value of any node of the planned graph, fused away or not, computed again from the operands
    /// and from the parameters as they were.
    pub fn peek(&self, node: NodeId) -> Result<Tensor, RunError> {
        Ok(self.eager()?.swap_remove(node.index()))
    }

    /// The value of every node, op by op.
    fn eager(&self) -> Result<Vec<Tensor>, RunError> {
        let graph = self.executor.plan().graph();
        let values = graph.values(&self.inputs, &self.before, self.executor.captured());
        values.map_err(|source| RunError::Op { source: Box::new(source), at: None })
    }

    /// Runs all steps and compares each value with the op-by-op one: the first step that differs by
    /// more than `rtol` of the largest magnitude.
    pub fn verify(&mut self, rtol: f64) -> Result<Option<Finding>, RunError> {
        let eager = self.eager()?;
        self.run_until(|s| {
            s.nodes.iter().zip(&s.values).find_map(|(node, got)| differs(&eager[node.index()], got, rtol))
        })
    }
}

impl Drop for Debugger<'_> {
    fn drop(&mut self) {
        self.executor.end();
        for (param, value) in self.executor.params().iter().zip(&self.before) {
            param.set(value.clone());
        }
    }
}

fn floats(t: &Tensor) -> Option<Vec<f64>> {
    t.dtype().is_float().then(|| t.to_dtype(DType::F64).to_vec())
}

fn differs(want: &Tensor, got: &Tensor, rtol: f64) -> Option<String> {
    let (want, got) =
        (want.stop_gradient().to_dtype(DType::F64).to_vec::<f64>(), got.to_dtype(DType::F64).to_vec::<f64>());
    let scale = want.iter().filter(|x| x.is_finite()).fold(0.0, |m: f64, x| m.max(x.abs()));
    let wrong = |(w, g): (&f64, &f64)| {
        let equal = w == g || (w.is_nan() && g.is_nan());
        let near = (w - g).abs() <= rtol * scale.max(f64::MIN_POSITIVE);
        !(equal || near)
    };
    let i = want.iter().zip(&got).position(wrong)?;
    Some(format!("element {i} is {:e}, eager gives {:e}", got[i], want[i]))
}

/// Prints a tensor's dtype, shape, range and mean under a name whenever it is computed, eagerly and
/// compiled, and hands it on. Gradients pass through.
///
/// ```
/// use thalweg_runtime::{jit, probe};
/// use thalweg_tensor::Tensor;
/// let mut f = jit(|x: Tensor| probe("twice", &(x * 2.0)).exp());
/// f.call(Tensor::from([0.0f32])).unwrap(); // twice: f32[1], 0 to 0, mean 0
/// ```
#[track_caller]
pub fn probe(name: &str, x: &Tensor) -> Tensor {
    custom(Probe(name.to_owned()), &[x])
}

struct Probe(String);

impl CustomOp for Probe {
    fn name(&self) -> &str {
        "probe"
    }

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        Ok(x[0].clone())
    }

    fn eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) {
        let (mut low, mut high, mut sum, n) = (f64::INFINITY, f64::NEG_INFINITY, 0.0, x[0].shape().numel());
        thalweg_core::with_dtype!(x[0].dtype(), T => {
            for (y, x) in y.dense::<T>().iter_mut().zip(x[0].iter::<T>()) {
                *y = x;
                let v = thalweg_core::Element::to_f64(x);
                (low, high, sum) = (low.min(v), high.max(v), sum + v);
            }
        });
        let meta = Meta::new(x[0].dtype(), x[0].shape());
        println!("{}: {meta}, {low} to {high}, mean {}", self.0, sum / n as f64);
    }

    fn vjp(&self, _x: &[Tensor], _y: &Tensor, dy: &Tensor) -> Vec<Option<Tensor>> {
        vec![Some(dy.clone())]
    }
}
