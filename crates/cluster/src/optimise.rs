//! Any optimiser of the library as the rule of a server.
//!
//! A parameter is a table that is never cut, so that the optimiser sees its shape and its name; its slots are the state
//! of the table: replicated, moved and saved with it. The step is compiled once per parameter.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thalweg_core::{DType, Shape};
use thalweg_nn::{Clip, Module, Named, Optimizer, Rule as Moves};
use thalweg_runtime::{RunError, jit};
use thalweg_tensor::{Param, Tensor};

use crate::error::ClusterError;
use crate::rule::UpdateRule;

/// The learning rate of each clock; the last one stays.
pub type Rates = Arc<Vec<f64>>;

/// How a server moves one parameter.
pub struct Moved {
    /// The parameter's name.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    slots: Vec<(String, DType, Shape)>, // in the order of the state
    first: Vec<f32>,
    rates: Rates,
    pushes: usize, // that are a step each, of one clock
    compiled: Arc<Mutex<Compiled>>,
}

struct Compiled {
    step: Box<dyn FnMut(Tensor) -> Result<(), RunError> + Send>,
    weight: Param,
    slots: Vec<Param>,
    count: Param,
    rate: Param,
    running: Arc<Mutex<()>>, // the number of the step and the rate are shared by all parameters
}

/// The rules of all trainable parameters of a net, in their order.
///
/// ```
/// use std::sync::Arc;
/// use thalweg_cluster::{UpdateRule, by_optimizer};
/// use thalweg_nn::Sgd;
/// use thalweg_tensor::{Param, Tensor};
///
/// let w = Param::new("w", Tensor::from([1.0f32, 2.0]));
/// let rules = by_optimizer(Sgd::new(0.5).momentum(0.9), &w, Arc::new(vec![0.5]))?;
/// let (mut state, mut out) = (rules[0].first_state(2), [0.0; 2]);
/// rules[0].update(1, &[1.0, 2.0], &[1.0, 1.0], &mut state, &mut out);
/// assert_eq!(out, [0.5, 1.5]);
/// # Ok::<(), thalweg_cluster::ClusterError>(())
/// ```
pub fn by_optimizer<R: Moves + Send + 'static>(
    mut optimizer: Optimizer<R>,
    net: &(impl Module + ?Sized),
    rates: Rates,
) -> Result<Vec<Moved>, ClusterError> {
    if let Some(Clip::Norm { .. }) = optimizer.clipping() {
        return Err(ClusterError::Clip);
    }
    optimizer.prepare(net);
    let state = optimizer.state();
    let number = |name: &str| {
        let found = state.iter().find(|n| n.name == name);
        found.map(|n| n.param.clone()).expect("every optimiser has a rate and a number of steps")
    };
    let (count, rate) = (number("step"), number("lr"));
    let optimizer = Arc::new(Mutex::new(optimizer));
    let running = Arc::new(Mutex::new(()));
    let mut rules = Vec::new();
    for Named { name, param } in net.trainable() {
        let meta = param.meta();
        if meta.dtype != DType::F32 {
            return Err(ClusterError::Dtype { name, got: meta.dtype.to_string() });
        }
        let own = format!("{name}.");
        let slots: Vec<&Named> = state.iter().filter(|n| n.name.starts_with(&own)).collect();
        let mut first = words(&Tensor::full((), 0.0, DType::F64));
        for slot in &slots {
            let value = slot.param.get();
            if !matches!(value.dtype(), DType::F32 | DType::F64) {
                let (name, got) = (slot.name.clone(), value.dtype().to_string());
                return Err(ClusterError::Dtype { name, got });
            }
            first.extend(words(&value));
        }
        // A parameter of its own: the net's belongs to the worker, which may be in this process.
        let weight = Param::new(&name, param.get().stop_gradient().contiguous());
        let (moves, moved) = (optimizer.clone(), weight.clone());
        let mut step = jit(move |gradient: Tensor| lock(&moves).step_with(&moved, &[gradient]));
        let compiled = Compiled {
            step: Box::new(move |gradient| step.call(gradient)),
            weight,
            slots: slots.iter().map(|n| n.param.clone()).collect(),
            count: count.clone(),
            rate: rate.clone(),
            running: running.clone(),
        };
        let metas = slots.iter().map(|n| (n.name.clone(), n.param.meta()));
        rules.push(Moved {
            slots: metas.map(|(n, m)| (n, m.dtype, m.shape)).collect(),
            name,
            shape: meta.shape,
            first,
            rates: rates.clone(),
            pushes: 1,
            compiled: Arc::new(Mutex::new(compiled)),
        });
    }
    Ok(rules)
}

impl Moved {
    /// For so many pushes in a clock that are a step each: the clock's rate is divided among them. Then all of them
    /// together move about as far as one step would, also by rules that do not look at the size of a gradient.
    pub fn with_pushes(self, pushes: usize) -> Self {
        Self { pushes, ..self }
    }

    /// What a checkpoint of the optimiser holds of this parameter, by name: its slots, the number of steps and the rate
    /// after `clock` steps.
    pub fn named_state(&self, clock: u64, state: &[f32]) -> Vec<(String, Tensor)> {
        let mut named = vec![("lr".to_owned(), Tensor::full((), self.rate(clock.max(1)), DType::F64))];
        let mut rest = state;
        let count = take(&mut rest, DType::F64, &Shape::from(()));
        named.push(("step".to_owned(), count));
        named.extend(self.slots.iter().map(|(n, dtype, shape)| (n.clone(), take(&mut rest, *dtype, shape))));
        named
    }

    /// The state of such a checkpoint, or the name that is missing or does not fit.
    pub fn state_of(&self, find: impl Fn(&str) -> Option<Tensor>) -> Result<Vec<f32>, String> {
        let count = [("step".to_owned(), DType::F64, Shape::from(()))];
        let mut state = Vec::with_capacity(self.first.len());
        for (name, dtype, shape) in count.iter().chain(&self.slots) {
            let fits = |t: &Tensor| t.dtype() == *dtype && t.shape() == shape;
            state.extend(words(&find(name).filter(fits).ok_or_else(|| name.clone())?));
        }
        Ok(state)
    }

    /// Whether its state is the number of steps alone.
    pub(crate) fn has_no_slots(&self) -> bool {
        self.slots.is_empty()
    }

    /// The slots of a state as numbers of which means can be taken, without the number of steps.
    pub(crate) fn numbers(&self, state: &[f32]) -> Vec<f32> {
        let mut rest = state;
        take(&mut rest, DType::F64, &Shape::from(()));
        let mut numbers = Vec::with_capacity(rest.len());
        for (_, dtype, shape) in &self.slots {
            let slot = take(&mut rest, *dtype, shape);
            match dtype {
                // Two f32 whose sum it is, as near as they can come.
                DType::F64 => numbers.extend(slot.to_vec::<f64>().into_iter().flat_map(|v| {
                    let high = v as f32;
                    [high, (v - f64::from(high)) as f32]
                })),
                _ => numbers.extend(slot.to_vec::<f32>()),
            }
        }
        numbers
    }

    /// The state after so many steps whose slots have these numbers.
    pub(crate) fn state_from(&self, steps: u64, numbers: &[f32]) -> Vec<f32> {
        let mut state = words(&Tensor::full((), steps as f64, DType::F64));
        let mut rest = numbers;
        for (_, dtype, shape) in &self.slots {
            let n = shape.numel() * if *dtype == DType::F64 { 2 } else { 1 };
            let (own, others) = rest.split_at(n);
            rest = others;
            match dtype {
                DType::F64 => {
                    let value = |pair: &[f32]| f64::from(pair[0]) + f64::from(pair[1]);
                    let values: Vec<f64> = own.chunks_exact(2).map(value).collect();
                    state.extend(words(&Tensor::from_vec(values, shape.clone())));
                }
                _ => state.extend_from_slice(own),
            }
        }
        state
    }

    fn rate(&self, step: u64) -> f64 {
        let at = usize::try_from(step - 1).unwrap_or(usize::MAX).min(self.rates.len() - 1);
        self.rates[at]
    }
}

impl UpdateRule for Moved {
    fn first_state(&self, len: usize) -> Vec<f32> {
        // A shard that does not hold the parameter keeps nothing for it.
        if len == 0 && self.shape.numel() > 0 { Vec::new() } else { self.first.clone() }
    }

    fn update(&self, step: u64, value: &[f32], grad: &[f32], state: &mut [f32], out: &mut [f32]) {
        if value.is_empty() {
            return;
        }
        let mut compiled = lock(&self.compiled);
        let compiled = &mut *compiled;
        let _running = lock(&compiled.running);
        let mut rest = &*state;
        compiled.count.set(take(&mut rest, DType::F64, &Shape::from(())));
        compiled.rate.set(Tensor::full((), self.rate(step) / self.pushes as f64, DType::F64));
        for (slot, (_, dtype, shape)) in compiled.slots.iter().zip(&self.slots) {
            slot.set(take(&mut rest, *dtype, shape));
        }
        compiled.weight.set(Tensor::from_slice(value, self.shape.clone()));
        let gradient = Tensor::from_slice(grad, self.shape.clone());
        (compiled.step)(gradient).unwrap_or_else(|e| panic!("the update of {:?}: {e}", self.name));
        out.copy_from_slice(&compiled.weight.get().to_vec::<f32>());
        let all = std::iter::once(&compiled.count).chain(&compiled.slots);
        let words: Vec<f32> = all.flat_map(|p| words(&p.get())).collect();
        state.copy_from_slice(&words);
    }
}

/// Values as they are kept in a state: one word per f32, two per f64, bit for bit.
fn words(tensor: &Tensor) -> Vec<f32> {
    match tensor.dtype() {
        DType::F64 => bytemuck::cast_slice(&tensor.to_vec::<f64>()).to_vec(),
        _ => tensor.to_vec::<f32>(),
    }
}

/// The next tensor of a state.
fn take(state: &mut &[f32], dtype: DType, shape: &Shape) -> Tensor {
    let n = shape.numel() * if dtype == DType::F64 { 2 } else { 1 };
    let (own, rest) = state.split_at(n);
    *state = rest;
    match dtype {
        DType::F64 => {
            let values = own.chunks_exact(2).map(|pair| {
                let bits = |i: usize| u64::from(pair[i].to_bits());
                // As `words` laid them: the low half first on every machine that the wire format allows.
                f64::from_bits(bits(0) | bits(1) << 32)
            });
            Tensor::from_vec(values.collect::<Vec<f64>>(), shape.clone())
        }
        _ => Tensor::from_slice(own, shape.clone()),
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_nn::{Adafactor, Adam, Group, Lion, Muon, NAdam, Sgd};

    /// The server's rule moves a matrix exactly as the optimiser itself does, over several steps.
    fn agrees<R: Moves + Send + 'static>(name: &str, make: impl Fn() -> Optimizer<R>) {
        let start = || Param::new("w", Tensor::from([[1.0f32, -2.0, 0.5], [3.0, 0.25, -1.0]]));
        let (own, served) = (start(), start());
        let mut optimizer = make();
        let rates = Arc::new((0..9).map(|i| 0.1 / f64::from(i + 1)).collect::<Vec<_>>());
        let rule = by_optimizer(make(), &served, rates.clone()).unwrap().remove(0);
        let (mut value, mut state) = (served.get().to_vec::<f32>(), rule.first_state(6));
        for step in 1..=9 {
            let gradient: Vec<f32> = value.iter().map(|w| w * 0.7 + step as f32 * 0.1).collect();
            optimizer.set_lr(rates[step - 1]);
            optimizer.step_with(&own, &[Tensor::from_slice(&gradient, [2, 3])]);
            let mut out = vec![0.0; 6];
            rule.update(step as u64, &value, &gradient, &mut state, &mut out);
            value = out;
            assert_eq!(value, own.get().to_vec::<f32>(), "{name}, step {step}");
        }
        // The state survives being named and found again.
        let named = rule.named_state(9, &state);
        let find = |n: &str| named.iter().find(|(name, _)| name == n).map(|(_, t)| t.clone());
        let bits = |s: &[f32]| s.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&rule.state_of(find).unwrap()), bits(&state), "{name}");
        // And being made numbers of.
        let back = rule.state_from(9, &rule.numbers(&state));
        let near = |a: &Tensor, b: &Tensor| (a - b).abs().amax(()).to_dtype(DType::F64).item::<f64>() < 1e-12;
        for ((name, a), (_, b)) in rule.named_state(9, &back).iter().zip(&named) {
            assert!(near(a, b), "{name}: {a} {b}");
        }
    }

    #[test]
    fn pushes_that_are_a_step_each_share_the_rate_of_their_clock() {
        let w = Param::new("w", Tensor::from([1.0f32, -1.0]));
        let rule = by_optimizer(Adam::new(0.4), &w, Arc::new(vec![0.4])).unwrap().remove(0).with_pushes(4);
        let (mut value, mut state) = (w.get().to_vec::<f32>(), rule.first_state(2));
        for _ in 0..4 {
            let mut out = vec![0.0; 2];
            rule.update(1, &value, &[30.0, -0.001], &mut state, &mut out);
            value = out;
        }
        assert!((value[0] - 0.6).abs() < 1e-3 && (value[1] + 0.6).abs() < 1e-3, "{value:?}");
        // A checkpoint tells the rate of the clock, so that one process goes on at it.
        let rate = &rule.named_state(1, &state)[0];
        assert_eq!((rate.0.as_str(), rate.1.item::<f64>()), ("lr", 0.4));
    }

    #[test]
    fn a_server_moves_parameters_as_the_optimiser_itself_would() {
        agrees("sgd", || Sgd::new(0.1).momentum(0.9));
        agrees("adam", || Adam::new(0.1).weight_decay(0.01));
        agrees("adafactor", || Adafactor::new(0.1));
        agrees("nadam", || NAdam::new(0.1));
        agrees("lion", || Lion::new(0.1));
        agrees("muon", || Muon::new(0.1));
        agrees("group", || {
            Adam::new(0.1).group(Group::of(|name, s| name == "w" && s.rank() == 2).lr_factor(0.5))
        });
    }
}
