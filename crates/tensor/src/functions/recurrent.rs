//! Recurrent cells and networks.
//!
//! Gates lie one after the other in the rows of the weights, in PyTorch's order.

use thalweg_core::DType;
use thalweg_kernels::recurrent::Activation;

use crate::apply::run;
use crate::error::{OpError, fail};
use crate::ops::{GruSequence, LstmSequence, RnnSequence};
use crate::tensor::Tensor;

/// The weights of one recurrent cell: `gates` is 4 for LSTM, 3 for GRU, 1 for a plain RNN.
#[derive(Clone, Copy)]
pub struct CellWeights<'a> {
    /// (gates · hidden, input).
    pub input: &'a Tensor,
    /// (gates · hidden, hidden).
    pub hidden: &'a Tensor,
    /// (gates · hidden).
    pub input_bias: Option<&'a Tensor>,
    /// (gates · hidden).
    pub hidden_bias: Option<&'a Tensor>,
}

/// What a plain recurrent network does with its sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
pub enum RnnActivation {
    /// tanh.
    #[default]
    Tanh,
    /// ReLU.
    Relu,
}

impl RnnActivation {
    pub(crate) fn apply(self, x: &Tensor) -> Tensor {
        match self {
            RnnActivation::Tanh => x.tanh(),
            RnnActivation::Relu => x.relu(),
        }
    }

    pub(crate) fn kernel(self) -> Activation {
        match self {
            RnnActivation::Tanh => Activation::Tanh,
            RnnActivation::Relu => Activation::Relu,
        }
    }
}

impl CellWeights<'_> {
    /// Both biases, where one addition serves for both.
    fn bias(&self) -> Option<Tensor> {
        match (self.input_bias, self.hidden_bias) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b).cloned(),
        }
    }

    /// The part of all gates that comes from the input, for any number of time steps at once.
    #[track_caller]
    fn input_part(&self, x: &Tensor) -> Tensor {
        x.linear(self.input, self.input_bias)
    }

    #[track_caller]
    fn hidden_part(&self, h: &Tensor) -> Tensor {
        h.linear(self.hidden, self.hidden_bias)
    }

    #[track_caller]
    fn check(&self, op: &'static str, x: &Tensor, h: &Tensor, gates: usize) {
        let hidden = h.size(-1);
        let fits = self.input.shape()[..] == [gates * hidden, x.size(-1)]
            && self.hidden.shape()[..] == [gates * hidden, hidden];
        if !fits {
            let hint = "weights are (gates · hidden, input) and (gates · hidden, hidden)";
            fail(OpError::Shapes {
                op,
                left: self.input.shape().clone(),
                right: self.hidden.shape().clone(),
                hint,
            });
        }
    }
}

/// Gate `i` of several along the last axis.
#[track_caller]
pub(crate) fn gate(gates: &Tensor, i: usize, hidden: usize) -> Tensor {
    gates.narrow(-1, i * hidden, hidden)
}

/// The next hidden and cell state; gates are input, forget, candidate, output.
#[track_caller]
pub(crate) fn lstm_step(gates: &Tensor, c: &Tensor) -> (Tensor, Tensor) {
    let n = c.size(-1);
    let (i, f, o) = (gate(gates, 0, n).sigmoid(), gate(gates, 1, n).sigmoid(), gate(gates, 3, n).sigmoid());
    let c = f * c + i * gate(gates, 2, n).tanh();
    (o * c.tanh(), c)
}

/// The next hidden state; gates are reset, update, candidate, and reset acts after the product.
fn gru_step(from_input: &Tensor, from_hidden: &Tensor, h: &Tensor) -> Tensor {
    let n = h.size(-1);
    let sum = |i: usize| gate(from_input, i, n) + gate(from_hidden, i, n);
    let (r, z) = (sum(0).sigmoid(), sum(1).sigmoid());
    let candidate = (gate(from_input, 2, n) + r * gate(from_hidden, 2, n)).tanh();
    &candidate + z * (h - &candidate)
}

impl Tensor {
    /// One step of an LSTM: the next hidden and cell state. self: (batch, input); h, c: (batch, hidden).
    #[track_caller]
    pub fn lstm_cell(&self, h: &Tensor, c: &Tensor, weights: &CellWeights<'_>) -> (Tensor, Tensor) {
        weights.check("lstm_cell", self, h, 4);
        lstm_step(&(weights.input_part(self) + weights.hidden_part(h)), c)
    }

    /// One step of a GRU: the next hidden state. self: (batch, input); h: (batch, hidden).
    #[track_caller]
    pub fn gru_cell(&self, h: &Tensor, weights: &CellWeights<'_>) -> Tensor {
        weights.check("gru_cell", self, h, 3);
        gru_step(&weights.input_part(self), &weights.hidden_part(h), h)
    }

    /// One step of a plain RNN, tanh(w x + u h): the next hidden state. self: (batch, input);
    /// h: (batch, hidden).
    #[track_caller]
    pub fn rnn_tanh_cell(&self, h: &Tensor, weights: &CellWeights<'_>) -> Tensor {
        weights.check("rnn_tanh_cell", self, h, 1);
        (weights.input_part(self) + weights.hidden_part(h)).tanh()
    }

    /// An LSTM over time. self: (time, batch, input); h, c: (layers · directions, batch, hidden);
    /// `weights`: one entry per layer, or two (forward, backward) if `bidirectional`. Returns the
    /// hidden states of the last layer at each time and the last states of each layer.
    #[track_caller]
    pub fn lstm(
        &self,
        h: &Tensor,
        c: &Tensor,
        weights: &[CellWeights<'_>],
        bidirectional: bool,
    ) -> (Tensor, Tensor, Tensor) {
        check_network("lstm", self, h, weights.len(), bidirectional);
        check_network("lstm", self, c, weights.len(), bidirectional);
        let mut cells = Vec::new();
        let (y, hidden) = network(self, weights, bidirectional, |x, k, w| {
            let (h, c) = (h.select(0, k), c.select(0, k));
            w.check("lstm", x, &h, 4);
            let reverse = bidirectional && k % 2 == 1;
            let (states, cell) = lstm_layer(x, &h, &c, w, reverse);
            cells.push(cell);
            states
        });
        (y, hidden, Tensor::stack(&cells, 0))
    }

    /// A GRU over time; shapes as in [`Tensor::lstm`].
    #[track_caller]
    pub fn gru(&self, h: &Tensor, weights: &[CellWeights<'_>], bidirectional: bool) -> (Tensor, Tensor) {
        check_network("gru", self, h, weights.len(), bidirectional);
        network(self, weights, bidirectional, |x, k, w| {
            let h = h.select(0, k);
            w.check("gru", x, &h, 3);
            gru_layer(x, &h, w, bidirectional && k % 2 == 1)
        })
    }

    /// A plain RNN over time, activation(w x + u h); shapes as in [`Tensor::lstm`].
    #[track_caller]
    pub fn rnn(
        &self,
        h: &Tensor,
        weights: &[CellWeights<'_>],
        bidirectional: bool,
        activation: RnnActivation,
    ) -> (Tensor, Tensor) {
        check_network("rnn", self, h, weights.len(), bidirectional);
        network(self, weights, bidirectional, |x, k, w| {
            let h = h.select(0, k);
            w.check("rnn", x, &h, 1);
            rnn_layer(x, &h, w, bidirectional && k % 2 == 1, activation)
        })
    }
}

/// Whether one op runs a layer over time: it is written for f32.
fn in_one(operands: &[&Tensor]) -> bool {
    operands.iter().all(|x| x.dtype() == DType::F32)
}

/// One direction of one layer: the state at each time, (time, batch, hidden).
#[track_caller]
fn gru_layer(x: &Tensor, h: &Tensor, w: &CellWeights<'_>, reverse: bool) -> Tensor {
    let from_input = w.input_part(x);
    let no_bias = || Tensor::zeros([w.hidden.size(0)], h.dtype());
    let bias = w.hidden_bias.cloned().unwrap_or_else(no_bias);
    let operands = [&from_input, w.hidden, &bias, h];
    if in_one(&operands) {
        return gate(&run(GruSequence { reverse }, &operands), 4, h.size(1));
    }
    let mut h = h.clone();
    let mut step = |t: usize| {
        h = gru_step(&from_input.select(0, t as isize), &w.hidden_part(&h), &h);
        h.clone()
    };
    in_time(x.size(0), reverse, &mut step)
}

/// As [`gru_layer`].
#[track_caller]
fn rnn_layer(
    x: &Tensor,
    h: &Tensor,
    w: &CellWeights<'_>,
    reverse: bool,
    activation: RnnActivation,
) -> Tensor {
    let from_input = x.linear(w.input, w.bias().as_ref());
    let operands = [&from_input, w.hidden, h];
    if in_one(&operands) {
        return run(RnnSequence { reverse, activation }, &operands);
    }
    let mut h = h.clone();
    let mut step = |t: usize| {
        h = activation.apply(&(from_input.select(0, t as isize) + h.linear(w.hidden, None)));
        h.clone()
    };
    in_time(x.size(0), reverse, &mut step)
}

/// One direction of one layer: the state at each time, (time, batch, hidden), and the last cell.
#[track_caller]
fn lstm_layer(x: &Tensor, h: &Tensor, c: &Tensor, w: &CellWeights<'_>, reverse: bool) -> (Tensor, Tensor) {
    let (steps, hidden) = (x.size(0), h.size(1));
    let from_input = x.linear(w.input, w.bias().as_ref());
    let operands = [&from_input, w.hidden, h, c];
    if in_one(&operands) {
        let all = run(LstmSequence { reverse }, &operands);
        let last = if reverse { 0 } else { -1 };
        return (gate(&all, 5, hidden), gate(&all.select(0, last), 4, hidden));
    }
    let (mut h, mut c) = (h.clone(), c.clone());
    let mut step = |t: usize| {
        (h, c) = lstm_step(&(from_input.select(0, t as isize) + h.linear(w.hidden, None)), &c);
        h.clone()
    };
    (in_time(steps, reverse, &mut step), c)
}

#[track_caller]
fn check_network(op: &'static str, x: &Tensor, h: &Tensor, n_cells: usize, bidirectional: bool) {
    let fits = x.rank() == 3 && h.rank() == 3 && h.size(0) == n_cells && h.size(1) == x.size(1);
    if !fits || n_cells == 0 || (bidirectional && !n_cells.is_multiple_of(2)) || x.size(0) == 0 {
        let hint = "x is (time, batch, input) and a state is (one per entry of the weights, batch, hidden)";
        fail(OpError::Shapes { op, left: x.shape().clone(), right: h.shape().clone(), hint });
    }
}

/// The states at each time, stepping from the last to the first if `backwards`.
fn in_time(steps: usize, backwards: bool, step: &mut dyn FnMut(usize) -> Tensor) -> Tensor {
    if !backwards {
        return Tensor::stack(&(0..steps).map(step).collect::<Vec<_>>(), 0);
    }
    let mut states: Vec<Tensor> = (0..steps).rev().map(step).collect();
    states.reverse();
    Tensor::stack(&states, 0)
}

/// Layer after layer: `cell` runs one direction of one layer over time. Returns the outputs of the last
/// layer and the final state of each cell.
#[track_caller]
fn network(
    x: &Tensor,
    weights: &[CellWeights<'_>],
    bidirectional: bool,
    mut cell: impl FnMut(&Tensor, isize, &CellWeights<'_>) -> Tensor,
) -> (Tensor, Tensor) {
    let directions = if bidirectional { 2 } else { 1 };
    let (mut x, mut last) = (x.clone(), Vec::new());
    for (layer, weights) in weights.chunks(directions).enumerate() {
        let mut outputs = Vec::new();
        for (d, w) in weights.iter().enumerate() {
            let states = cell(&x, (layer * directions + d) as isize, w);
            last.push(states.select(0, if d == 1 { 0 } else { -1 }));
            outputs.push(states);
        }
        x = if bidirectional { Tensor::concat(&outputs, -1) } else { outputs.remove(0) };
    }
    (x, Tensor::stack(&last, 0))
}
