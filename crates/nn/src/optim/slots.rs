//! What a rule remembers of a parameter between steps.

use std::collections::BTreeMap;

use thalweg_core::DType;
use thalweg_tensor::{Meta, Param, Tensor};

/// The slots of one parameter, and the numbers of the present step. A slot is a [`Param::state`] called
/// `<parameter>.<slot>`, made when it is first asked for.
pub struct Slots<'a> {
    pub(super) name: &'a str,
    pub(super) meta: Meta,
    pub(super) table: &'a mut BTreeMap<String, Param>,
    /// The slots that this step has made, with what they started from.
    pub(super) made: Vec<(Param, Tensor)>,
    pub(super) lr: &'a Tensor,
    pub(super) step: &'a Tensor,
}

impl Slots<'_> {
    /// The learning rate as a scalar of the parameter's dtype.
    pub fn lr(&self) -> Tensor {
        self.number(self.lr)
    }

    /// The learning rate as an f64 scalar, for further arithmetic before it meets the parameter.
    pub fn lr_f64(&self) -> &Tensor {
        self.lr
    }

    /// The number of this step as an f64 scalar; the first is 1.
    pub fn step(&self) -> &Tensor {
        self.step
    }

    /// 1 − βᵗ, as an f64 scalar: how much of an average that began with 0 is there at step t.
    pub fn bias_correction(&self, beta: f64) -> Tensor {
        1.0 - (self.step * beta.ln()).exp()
    }

    /// An f64 scalar in the parameter's dtype.
    pub fn number(&self, scalar: &Tensor) -> Tensor {
        scalar.to_dtype(self.meta.dtype)
    }

    /// A slot of the parameter's shape and dtype that starts with zeros.
    pub fn zeros(&mut self, slot: &str) -> Param {
        let Meta { dtype, shape } = self.meta.clone();
        self.slot(slot, || Tensor::zeros(shape, dtype))
    }

    /// A slot that holds one f64 number.
    pub fn scalar(&mut self, slot: &str, start: f64) -> Param {
        self.slot(slot, || Tensor::full((), start, DType::F64))
    }

    /// A slot that starts with what `start` makes.
    pub fn slot(&mut self, slot: &str, start: impl FnOnce() -> Tensor) -> Param {
        let name = format!("{}.{slot}", self.name);
        if let Some(param) = self.table.get(&name) {
            return param.clone();
        }
        let start = start();
        let param = Param::state(&name, start.clone());
        self.made.push((param.clone(), start));
        self.table.insert(name, param.clone());
        param
    }

    /// Moves a running average by a share of 1 − `decay` towards `new`, from zeros at first, and
    /// returns it.
    pub fn average(&mut self, slot: &str, new: &Tensor, decay: f64) -> Tensor {
        let slot = self.zeros(slot);
        let average = slot.get() * decay + new * (1.0 - decay);
        slot.set(average.clone());
        average
    }
}
