//! Recurrent layers, stacked and in both directions.

use thalweg_derive::Module;
use thalweg_tensor::{CellWeights, Param, Rng, RnnActivation, Tensor};

use super::dropout::Dropout;
use crate::init;
use crate::mixed;
use crate::module::Layer;
use crate::summary::Frame;

/// The options of [`Rnn`], [`Lstm`] and [`Gru`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecurrentOptions {
    /// How many layers, each over the outputs of the one before.
    pub layers: usize,
    /// Whether each layer also runs backwards in time; outputs are then twice as wide.
    pub bidirectional: bool,
    /// Whether sequences are (batch, time, width) and not (time, batch, width).
    pub batch_first: bool,
    /// What is dropped between layers, in training.
    pub dropout: f64,
    /// Whether gates have a summand.
    pub bias: bool,
}

impl Default for RecurrentOptions {
    fn default() -> Self {
        Self { layers: 1, bidirectional: false, batch_first: false, dropout: 0.0, bias: true }
    }
}

/// The weights of one direction of one layer; gates lie one after the other, in PyTorch's order.
#[derive(Debug, Module)]
pub struct Cell {
    /// (gates · hidden, input).
    pub weight_ih: Param,
    /// (gates · hidden, hidden).
    pub weight_hh: Param,
    /// (gates · hidden).
    pub bias_ih: Option<Param>,
    /// (gates · hidden).
    pub bias_hh: Option<Param>,
}

impl Cell {
    fn new(gates: usize, input: usize, hidden: usize, bias: bool, rng: &mut Rng) -> Self {
        let rows = gates * hidden;
        let mut draw = |name: &str, shape: &[usize]| Param::new(name, init::by_fan(shape, hidden, rng));
        Self {
            weight_ih: draw("weight_ih", &[rows, input]),
            weight_hh: draw("weight_hh", &[rows, hidden]),
            bias_ih: bias.then(|| draw("bias_ih", &[rows])),
            bias_hh: bias.then(|| draw("bias_hh", &[rows])),
        }
    }

    fn values(&self) -> [Option<Tensor>; 4] {
        let narrow = |p: &Param| mixed::narrow(&p.get());
        [
            Some(narrow(&self.weight_ih)),
            Some(narrow(&self.weight_hh)),
            self.bias_ih.as_ref().map(narrow),
            self.bias_hh.as_ref().map(narrow),
        ]
    }
}

/// The layers of a recurrent network, whatever their cells do.
#[derive(Debug, Module)]
struct Stack {
    cells: Vec<Cell>,
    dropout: Dropout,
    hidden: usize,
    #[module(skip)]
    options: RecurrentOptions,
}

/// The weights of the cells of one layer as tensors, and the layer's states: one tensor per kind of state,
/// (directions, batch, hidden). Returns the outputs and the last states.
type RunLayer<'a> = dyn Fn(&Tensor, &[Tensor], &[CellWeights<'_>]) -> (Tensor, Vec<Tensor>) + 'a;

impl Stack {
    #[track_caller]
    fn new(gates: usize, input: usize, hidden: usize, options: RecurrentOptions, rng: &mut Rng) -> Self {
        assert!(options.layers > 0, "a recurrent network has at least one layer");
        let directions = if options.bidirectional { 2 } else { 1 };
        let mut cells = Vec::new();
        for layer in 0..options.layers {
            let width = if layer == 0 { input } else { directions * hidden };
            for _ in 0..directions {
                cells.push(Cell::new(gates, width, hidden, options.bias, rng));
            }
        }
        Self { cells, dropout: Dropout::new(options.dropout, rng), hidden, options }
    }

    /// `states`: `kinds` tensors (layers · directions, batch, hidden), zeros if `None`.
    #[track_caller]
    fn run(
        &self,
        x: &Tensor,
        states: Option<&[&Tensor]>,
        kinds: usize,
        run_layer: &RunLayer<'_>,
    ) -> (Tensor, Vec<Tensor>) {
        assert!(x.rank() == 3, "a sequence has 3 axes (time, batch, width), not the shape {}", x.shape());
        let mut x = mixed::narrow(&if self.options.batch_first { x.transpose(0, 1) } else { x.clone() });
        let directions = if self.options.bidirectional { 2 } else { 1 };
        let zeros = || Tensor::zeros([self.cells.len(), x.size(1), self.hidden], x.dtype());
        let states: Vec<Tensor> = match states {
            Some(states) => states.iter().map(|s| mixed::narrow(s)).collect(),
            None => (0..kinds).map(|_| zeros()).collect(),
        };
        let mut last: Vec<Vec<Tensor>> = vec![Vec::new(); kinds];
        for (layer, cells) in self.cells.chunks(directions).enumerate() {
            if layer > 0 {
                x = self.dropout.forward(&x);
            }
            let values: Vec<[Option<Tensor>; 4]> = cells.iter().map(Cell::values).collect();
            let weights: Vec<CellWeights<'_>> = values.iter().map(borrowed).collect();
            let own: Vec<Tensor> =
                states.iter().map(|s| s.narrow(0, layer * directions, directions)).collect();
            let (y, ends) = run_layer(&x, &own, &weights);
            x = y;
            last.iter_mut().zip(ends).for_each(|(all, end)| all.push(end));
        }
        let y = if self.options.batch_first { x.transpose(0, 1) } else { x };
        (y, last.iter().map(|ends| Tensor::concat(ends, 0)).collect())
    }
}

fn borrowed(values: &[Option<Tensor>; 4]) -> CellWeights<'_> {
    let [input, hidden, input_bias, hidden_bias] = values;
    CellWeights {
        input: input.as_ref().expect("every cell has weights"),
        hidden: hidden.as_ref().expect("every cell has weights"),
        input_bias: input_bias.as_ref(),
        hidden_bias: hidden_bias.as_ref(),
    }
}

/// A plain recurrent network: h ← tanh(W x + U h).
#[derive(Debug, Module)]
pub struct Rnn {
    #[module(flatten)]
    stack: Stack,
    #[module(skip)]
    activation: RnnActivation,
}

/// Long short-term memory (Hochreiter and Schmidhuber, 1997).
///
/// ```
/// use thalweg_nn::{Lstm, RecurrentOptions};
/// use thalweg_tensor::{Rng, Tensor};
/// let options = RecurrentOptions { layers: 2, bidirectional: true, ..Default::default() };
/// let net = Lstm::with(3, 8, options, &mut Rng::seed(0));
/// let (y, (h, c)) = net.run(&Tensor::from([[[0.0f32; 3]; 4]; 5]), None); // (time, batch, width)
/// assert_eq!(y.shape()[..], [5, 4, 16]);
/// assert_eq!((h.shape(), c.shape()[..].to_vec()), (c.shape(), vec![4, 4, 8]));
/// ```
#[derive(Debug, Module)]
pub struct Lstm {
    #[module(flatten)]
    stack: Stack,
}

/// The gated recurrent unit (Cho et al., 2014), with the reset gate after the product, as in PyTorch.
#[derive(Debug, Module)]
pub struct Gru {
    #[module(flatten)]
    stack: Stack,
}

macro_rules! constructors {
    ($Net:ident, gates: $gates:literal $(, $field:ident)?) => {
        impl $Net {
            /// One layer, forward in time; weights start uniform between ±1 / √hidden.
            #[track_caller]
            pub fn new(input: usize, hidden: usize, rng: &mut Rng) -> Self {
                Self::with(input, hidden, RecurrentOptions::default(), rng)
            }

            /// With options.
            #[track_caller]
            pub fn with(input: usize, hidden: usize, options: RecurrentOptions, rng: &mut Rng) -> Self {
                Self { stack: Stack::new($gates, input, hidden, options, rng) $(, $field: Default::default())? }
            }

            /// The weights: layer by layer, forward before backward.
            pub fn cells(&self) -> &[Cell] {
                &self.stack.cells
            }
        }

        impl Layer for $Net {
            /// The outputs at each time, from a state of zeros.
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                self.run(x, None).0
            }
        }
    };
}

constructors!(Rnn, gates: 1, activation);
constructors!(Lstm, gates: 4);
constructors!(Gru, gates: 3);

impl Rnn {
    /// With another activation.
    pub fn activation(mut self, activation: RnnActivation) -> Self {
        self.activation = activation;
        self
    }

    /// The outputs at each time, and the last state (layers · directions, batch, hidden). Starts from
    /// zeros unless a state is given.
    #[track_caller]
    pub fn run(&self, x: &Tensor, state: Option<&Tensor>) -> (Tensor, Tensor) {
        let layer = |x: &Tensor, h: &[Tensor], w: &[CellWeights<'_>]| {
            let (y, h) = x.rnn(&h[0], w, self.stack.options.bidirectional, self.activation);
            (y, vec![h])
        };
        let frame = Frame::open();
        let (y, mut h) = self.stack.run(x, state.as_ref().map(std::slice::from_ref), 1, &layer);
        (frame.close(self, y), h.remove(0))
    }
}

impl Lstm {
    /// The outputs at each time, and the last hidden and cell states (layers · directions, batch,
    /// hidden). Starts from zeros unless states are given.
    #[track_caller]
    pub fn run(&self, x: &Tensor, states: Option<(&Tensor, &Tensor)>) -> (Tensor, (Tensor, Tensor)) {
        let layer = |x: &Tensor, s: &[Tensor], w: &[CellWeights<'_>]| {
            let (y, h, c) = x.lstm(&s[0], &s[1], w, self.stack.options.bidirectional);
            (y, vec![h, c])
        };
        let frame = Frame::open();
        let states = states.map(|(h, c)| [h, c]);
        let (y, mut ends) = self.stack.run(x, states.as_ref().map(|s| &s[..]), 2, &layer);
        let (c, h) = (ends.remove(1), ends.remove(0));
        (frame.close(self, y), (h, c))
    }
}

impl Gru {
    /// The outputs at each time, and the last state (layers · directions, batch, hidden). Starts from
    /// zeros unless a state is given.
    #[track_caller]
    pub fn run(&self, x: &Tensor, state: Option<&Tensor>) -> (Tensor, Tensor) {
        let layer = |x: &Tensor, h: &[Tensor], w: &[CellWeights<'_>]| {
            let (y, h) = x.gru(&h[0], w, self.stack.options.bidirectional);
            (y, vec![h])
        };
        let frame = Frame::open();
        let (y, mut h) = self.stack.run(x, state.as_ref().map(std::slice::from_ref), 1, &layer);
        (frame.close(self, y), h.remove(0))
    }
}
