//! What a server does with a sum of gradients: the update rule of a table.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use thalweg_core::DType;
use thalweg_kernels::threads::parallel;
use thalweg_runtime::{RunError, jit};
use thalweg_tensor::Tensor;

use crate::state::Update;

/// Turns values, gradient and state into new values, element by element or as a whole. For an optimiser of
/// the library or of one's own see [`by_optimizer`](crate::by_optimizer).
///
/// A rule must be a function of its arguments: primary and replica run it each for themselves and have
/// to come to the same bits.
pub trait UpdateRule: Send + std::marker::Sync {
    /// How many state values it keeps per parameter, all zero at first.
    fn state_per_value(&self) -> usize {
        0
    }

    /// What the state of so many parameters is at first.
    fn first_state(&self, len: usize) -> Vec<f32> {
        vec![0.0; self.state_per_value() * len]
    }

    /// Writes the new values to `out`. `state` holds `state_per_value` arrays of the length of
    /// `value`, one after another. `step` counts from one.
    fn update(&self, step: u64, value: &[f32], grad: &[f32], state: &mut [f32], out: &mut [f32]);
}

impl<T: UpdateRule + ?Sized> UpdateRule for Arc<T> {
    fn state_per_value(&self) -> usize {
        T::state_per_value(self)
    }

    fn first_state(&self, len: usize) -> Vec<f32> {
        T::first_state(self, len)
    }

    fn update(&self, step: u64, value: &[f32], grad: &[f32], state: &mut [f32], out: &mut [f32]) {
        T::update(self, step, value, grad, state, out);
    }
}

/// The rules and functions that a server's program knows by name.
#[derive(Clone, Default)]
pub struct Registry {
    rules: BTreeMap<String, Arc<dyn UpdateRule>>,
    functions: BTreeMap<String, Arc<Function>>,
    jointly: Option<Arc<Jointly>>,
}

/// What is made of the sum of a round before the rules of its tables see their parts.
pub type Jointly = dyn Fn(&Update) -> Update + Send + std::marker::Sync;

/// What `compute` runs on a server: the values of a table that lie in this shard, their shape (values, or rows and values
/// per row), and the caller's arguments.
pub type Function = dyn Fn(&[f32], &[usize], &[f32]) -> Vec<f32> + Send + std::marker::Sync;

impl Registry {
    /// Makes a rule known under a name.
    pub fn rule(mut self, name: impl Into<String>, rule: impl UpdateRule + 'static) -> Self {
        self.rules.insert(name.into(), Arc::new(rule));
        self
    }

    /// Makes an update known that is written with tensors, `(value, gradient) -> new value`. It is compiled.
    ///
    /// ```
    /// use thalweg_cluster::Registry;
    /// let registry = Registry::default().update("shrink", |w, g| (w - g * 0.1) * 0.99);
    /// # drop(registry);
    /// ```
    pub fn update(
        self,
        name: impl Into<String>,
        f: impl Fn(Tensor, Tensor) -> Tensor + Send + 'static,
    ) -> Self {
        let mut compiled = jit(move |(value, gradient): (Tensor, Tensor)| f(value, gradient));
        let update = move |both| compiled.call(both);
        self.rule(name, ByTensors(Mutex::new(Box::new(update))))
    }

    /// Makes a function known that [`Want::Compute`](crate::table::Want) calls where the values lie, written with tensors,
    /// `(values, arguments) -> result`. It is compiled. Of a dense table the values are one axis, of rows two: those rows that
    /// were pushed so far, and the values of a row. It runs in every shard that holds some of the table; the caller gets the
    /// results one after another, and adds them up where they are sums.
    ///
    /// ```
    /// use thalweg_cluster::Registry;
    /// let registry = Registry::default().compute("squares", |w, _| w.square().sum(()));
    /// # drop(registry);
    /// ```
    pub fn compute(
        self,
        name: impl Into<String>,
        f: impl Fn(Tensor, Tensor) -> Tensor + Send + 'static,
    ) -> Self {
        let compiled = Mutex::new(jit(move |(values, args): (Tensor, Tensor)| f(values, args)));
        self.function(name, move |values, shape, args| {
            let both = (Tensor::from_slice(values, shape), Tensor::from_slice(args, [args.len()]));
            let mut compiled = compiled.lock().unwrap_or_else(PoisonError::into_inner);
            let result = compiled.call(both).unwrap_or_else(|e| panic!("compute: {e}"));
            result.to_dtype(DType::F32).to_vec::<f32>()
        })
    }

    /// The same, written with slices: values, their shape, arguments.
    pub fn function(
        mut self,
        name: impl Into<String>,
        f: impl Fn(&[f32], &[usize], &[f32]) -> Vec<f32> + Send + std::marker::Sync + 'static,
    ) -> Self {
        self.functions.insert(name.into(), Arc::new(f));
        self
    }

    /// Makes something known that is done to the sum of a round before the rules of its tables see their parts, for what depends
    /// on all gradients at once, such as their norm. It sees what lies in one shard, and like a rule it must be a function of
    /// its argument alone.
    ///
    /// ```
    /// use thalweg_cluster::Registry;
    /// let registry = Registry::default().jointly(|sum| sum.clone());
    /// # drop(registry);
    /// ```
    pub fn jointly(mut self, f: impl Fn(&Update) -> Update + Send + std::marker::Sync + 'static) -> Self {
        self.jointly = Some(Arc::new(f));
        self
    }

    /// The sum of a round as the rules are to see it.
    pub(crate) fn seen_jointly(&self, sum: &Arc<Update>) -> Arc<Update> {
        self.jointly.as_ref().map_or_else(|| sum.clone(), |jointly| Arc::new(jointly(sum)))
    }

    pub(crate) fn find_function(&self, name: &str) -> Option<&Arc<Function>> {
        self.functions.get(name)
    }

    /// The rule that a table asks for.
    pub(crate) fn find(&self, rule: &Rule) -> Option<Arc<dyn UpdateRule>> {
        match rule {
            Rule::Add => Some(Arc::new(Add)),
            Rule::Sgd { lr } => Some(Arc::new(Sgd { lr: *lr })),
            Rule::Adagrad { lr, eps } => Some(Arc::new(Adagrad { lr: *lr, eps: *eps })),
            Rule::Named(name) => self.rules.get(name).cloned(),
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({:?}, {:?})", self.rules.keys(), self.functions.keys())
    }
}

/// Which rule a table uses.
#[derive(Debug, Clone, PartialEq)]
pub enum Rule {
    /// `value + gradient`: the table is a sum.
    Add,
    /// `value - lr · gradient`.
    Sgd {
        /// Learning rate.
        lr: f32,
    },
    /// Duchi et al. 2011: `value - lr · gradient / (√Σ gradient² + eps)`.
    Adagrad {
        /// Learning rate.
        lr: f32,
        /// Keeps the quotient finite.
        eps: f32,
    },
    /// A rule of the program's own, from its [`Registry`].
    Named(String),
}

struct Add;

impl UpdateRule for Add {
    fn update(&self, _step: u64, value: &[f32], grad: &[f32], _state: &mut [f32], out: &mut [f32]) {
        in_pieces(value, grad, &mut [], out, |value, grad, _, out| {
            for ((o, v), g) in out.iter_mut().zip(value).zip(grad) {
                *o = v + g;
            }
        });
    }
}

struct Sgd {
    lr: f32,
}

impl UpdateRule for Sgd {
    fn update(&self, _step: u64, value: &[f32], grad: &[f32], _state: &mut [f32], out: &mut [f32]) {
        in_pieces(value, grad, &mut [], out, |value, grad, _, out| {
            for ((o, v), g) in out.iter_mut().zip(value).zip(grad) {
                *o = v - self.lr * g;
            }
        });
    }
}

struct Adagrad {
    lr: f32,
    eps: f32,
}

impl UpdateRule for Adagrad {
    fn state_per_value(&self) -> usize {
        1
    }

    fn update(&self, _step: u64, value: &[f32], grad: &[f32], state: &mut [f32], out: &mut [f32]) {
        in_pieces(value, grad, state, out, |value, grad, state, out| {
            for (((o, v), g), sum) in out.iter_mut().zip(value).zip(grad).zip(state) {
                *sum += g * g;
                *o = v - self.lr * g / (sum.sqrt() + self.eps);
            }
        });
    }
}

/// Values that one thread updates at once.
const PIECE: usize = 1 << 16;

/// A rule that looks at one value at a time, on all threads. `state` has as many numbers as values, or none.
fn in_pieces(
    value: &[f32],
    grad: &[f32],
    state: &mut [f32],
    out: &mut [f32],
    update: impl Fn(&[f32], &[f32], &mut [f32], &mut [f32]) + std::marker::Sync,
) {
    if out.len() <= PIECE {
        return update(value, grad, state, out);
    }
    let mut states = state.chunks_mut(PIECE);
    let pieces = out.chunks_mut(PIECE).map(|out| Mutex::new((states.next().unwrap_or_default(), out)));
    let pieces: Vec<_> = pieces.collect();
    parallel(pieces.len(), &|i| {
        let mut piece = pieces[i].lock().unwrap_or_else(PoisonError::into_inner);
        let (state, out) = &mut *piece;
        let range = i * PIECE..i * PIECE + out.len();
        update(&value[range.clone()], &grad[range], state, out);
    });
}

type Compiled = dyn FnMut((Tensor, Tensor)) -> Result<Tensor, RunError> + Send;

/// One copy of the compiled function serves all tables of the process; it keeps nothing between calls.
struct ByTensors(Mutex<Box<Compiled>>);

impl UpdateRule for ByTensors {
    fn update(&self, _step: u64, value: &[f32], grad: &[f32], _state: &mut [f32], out: &mut [f32]) {
        let n = value.len();
        let both = (Tensor::from_slice(value, [n]), Tensor::from_slice(grad, [n]));
        let mut compiled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = compiled(both).unwrap_or_else(|e| panic!("update: {e}"));
        out.copy_from_slice(&new.to_vec::<f32>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rule: &dyn UpdateRule, value: &[f32], grads: &[&[f32]]) -> Vec<f32> {
        let (mut value, mut out) = (value.to_vec(), value.to_vec());
        let mut state = vec![0.0; rule.state_per_value() * value.len()];
        for (step, grad) in (1..).zip(grads) {
            rule.update(step, &value, grad, &mut state, &mut out);
            value.clone_from(&out);
        }
        value
    }

    #[test]
    fn built_in_rules_follow_their_formulas() {
        let find = |rule: Rule| Registry::default().find(&rule).unwrap();
        assert_eq!(run(&*find(Rule::Add), &[1.0, 2.0], &[&[0.5, -1.0]]), [1.5, 1.0]);
        assert_eq!(run(&*find(Rule::Sgd { lr: 0.5 }), &[1.0, 2.0], &[&[2.0, -2.0]]), [0.0, 3.0]);
        let adagrad = find(Rule::Adagrad { lr: 1.0, eps: 0.0 });
        assert_eq!(run(&*adagrad, &[0.0], &[&[3.0], &[4.0]]), [-1.0 - 4.0 / 5.0]);
    }

    #[test]
    fn a_large_table_is_updated_as_its_values_one_by_one_would_be() {
        let n = 2 * PIECE + 5;
        let value: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let grad: Vec<f32> = (0..n).map(|i| (i % 7) as f32 - 3.0).collect();
        for rule in [Rule::Add, Rule::Sgd { lr: 0.5 }, Rule::Adagrad { lr: 1.0, eps: 0.1 }] {
            let found = Registry::default().find(&rule).unwrap();
            let large = run(&*found, &value, &[&grad, &value]);
            for i in [0, 1, PIECE - 1, PIECE, 2 * PIECE, n - 1] {
                assert_eq!(
                    large[i..=i],
                    run(&*found, &[value[i]], &[&[grad[i]], &[value[i]]]),
                    "{rule:?} {i}"
                );
            }
        }
    }

    #[test]
    fn a_rule_written_with_tensors_is_found_by_name() {
        let registry = Registry::default().update("halve", |w, g| (w - g) * 0.5);
        let rule = registry.find(&Rule::Named("halve".into())).unwrap();
        assert_eq!(run(&*rule, &[4.0, 8.0], &[&[0.0, 4.0]]), [2.0, 2.0]);
        assert!(registry.find(&Rule::Named("other".into())).is_none());
    }
}
