//! Marks of functions with a backward of their own; see `thalweg_tensor::rule`.
//!
//! [`Rule`] is the op that all results of such a function share: nobody reads what it gives, its gradient is the backward.
//! [`Ruled`] is one result: it repeats a value and hands its gradient to the rule. Both go before a graph is compiled
//! (`passes::erase_marks`). In the text form the backward is a text inside the text.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use thalweg_core::{View, ViewMut, with_dtype};
use thalweg_tensor::ops::{Cost, Custom, CustomOp, Op};
use thalweg_tensor::rule::Rule as Traced;
use thalweg_tensor::trace::Source;
use thalweg_tensor::{Meta, OpError, PadMode, Tensor, apply};

use crate::graph::{Graph, Kind, Node, NodeId};
use crate::text::ReadCustom;

/// A backward. Operands: those of the function, its float results, what the backward found around it.
struct Rule {
    /// From the gradients of the float results, these results, and what was found to the gradients of operands.
    graph: Graph,
    /// Dtypes and shapes of the float results.
    results: Vec<Meta>,
    /// Which operands of the function get a gradient.
    reaches: Vec<bool>,
}

/// A float result of a function with a rule. Operands: the value, the rule.
struct Ruled {
    /// Where its gradient lies among those of all results.
    start: usize,
}

/// The op of a traced value that is not an op by itself, and its operands.
pub(crate) fn op_of(source: Source) -> Option<(Op, SmallVec<[NodeId; 4]>)> {
    let (op, operands) = match source {
        Source::Op(op, operands) => (op, operands),
        Source::Rule(rule, operands) => (Op::Custom(Custom::new(Rule::of(&rule))), operands),
        Source::Ruled(rule, result, operands) => {
            let start = start_of(&rule.results, result);
            (Op::Custom(Custom::new(Ruled { start })), SmallVec::from_slice(&operands))
        }
        Source::Input(_) | Source::Param(_) | Source::Captured(_) => return None,
    };
    Some((op, operands.into_iter().map(NodeId).collect()))
}

fn start_of(results: &[Meta], result: usize) -> usize {
    results[..result].iter().map(Meta::numel).sum()
}

impl Rule {
    fn of(traced: &Traced) -> Self {
        let mut graph = Graph::default();
        let mut n_operands = 2 * traced.results.len();
        for value in &traced.recording.values {
            let (kind, inputs) = match (&value.source, op_of(value.source.clone())) {
                (_, Some((op, inputs))) => (Kind::Op(op), inputs),
                (Source::Input(i), _) => (Kind::Input(*i), SmallVec::new()),
                // What it found comes behind, in this order.
                _ => {
                    n_operands += 1;
                    (Kind::Input(n_operands - 1), SmallVec::new())
                }
            };
            let (meta, at, region) = (value.meta.clone(), Some(value.at), value.region);
            graph.push(Node { kind, inputs, meta, at, region, group: 0 });
        }
        graph.inputs = (0..n_operands).map(|i| format!("x{i}")).collect();
        let outputs = traced.recording.outputs.iter().enumerate();
        graph.outputs = outputs.map(|(i, &id)| (format!("y{i}"), NodeId(id))).collect();
        Self { graph, results: traced.results.clone(), reaches: traced.reaches.clone() }
    }

    fn unpacked(&self, packed: &Tensor) -> Vec<Tensor> {
        let part = |(i, kind): (usize, &Meta)| {
            let piece = packed.narrow(0, start_of(&self.results, i), kind.numel());
            piece.reshape(&kind.shape).to_dtype(kind.dtype)
        };
        self.results.iter().enumerate().map(part).collect()
    }
}

impl CustomOp for Rule {
    fn name(&self) -> &str {
        "custom_vjp"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, OpError> {
        let (n, n_results) = (self.reaches.len(), self.results.len());
        let found = self.graph.input_metas().split_off(2 * n_results);
        let want = n + n_results + found.len();
        if inputs.len() != want {
            return Err(OpError::Arity { op: "custom_vjp", want, got: inputs.len() });
        }
        let reached = (0..n).filter(|&i| self.reaches[i]).zip(self.graph.output_metas());
        let behind = self.results.iter().chain(found.into_iter().flatten()).enumerate();
        let mut wanted = reached.chain(behind.map(|(k, m)| (n + k, m)));
        match wanted.find(|&(i, want)| want != inputs[i]) {
            Some((i, want)) => {
                let reason = format!("operand {i} is {}, its backward was traced with {want}", inputs[i]);
                Err(OpError::Custom { op: self.name().to_owned(), reason })
            }
            None => Ok(Traced::packed(&self.results)),
        }
    }

    /// Nobody reads it.
    fn eval(&self, _x: &[&View<'_>], y: &mut ViewMut<'_>) {
        with_dtype!(y.dtype(), T => y.dense::<T>().fill(T::default()));
    }

    fn cost(&self, _x: &[&Meta], _y: &Meta) -> Cost {
        Cost::default()
    }

    fn text(&self) -> Option<String> {
        let order = self.graph.nodes().iter().filter_map(|node| match node.kind {
            Kind::Input(i) => Some(i),
            _ => None,
        });
        let (order, graph) = (order.collect(), self.graph.to_string());
        let (n_results, reaches) = (self.results.len(), self.reaches.clone());
        Some(written(&Text::CustomVjp { order, graph, n_results, reaches }))
    }

    fn vjp(&self, x: &[Tensor], y: &Tensor, dy: &Tensor) -> Vec<Option<Tensor>> {
        let (results, found) = x[self.reaches.len()..].split_at(self.results.len());
        // A backward that reads the results is differentiated through them by itself, not by what made them.
        let ruled = |(i, value): (usize, &Tensor)| {
            let op = Ruled { start: start_of(&self.results, i) };
            apply(Op::Custom(Custom::new(op)), &[value, y]).expect("as it was traced")
        };
        let results: Vec<Tensor> = results.iter().enumerate().map(ruled).collect();
        let inputs = [&self.unpacked(dy)[..], &results, found].concat();
        let mut grads = self.graph.evaluate(&inputs).unwrap_or_else(|e| panic!("{e}")).into_iter();
        let reached = self.reaches.iter().map(|&r| if r { grads.next() } else { None });
        let mut all: Vec<Option<Tensor>> = reached.collect();
        all.resize(x.len(), None);
        all
    }
}

impl CustomOp for Ruled {
    fn name(&self) -> &str {
        "ruled"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, OpError> {
        let &[value, rule] = inputs else {
            return Err(OpError::Arity { op: "ruled", want: 2, got: inputs.len() });
        };
        let end = self.start.checked_add(value.numel());
        let is_packed = rule.shape.rank() == 1 && rule.dtype.is_float() && value.dtype.is_float();
        if !is_packed || end.is_none_or(|end| end > rule.numel()) {
            let reason = format!("{value} is no result of a rule that gives {rule}");
            return Err(OpError::Custom { op: self.name().to_owned(), reason });
        }
        Ok(value.clone())
    }

    fn eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) {
        with_dtype!(y.dtype(), T => {
            y.dense::<T>().iter_mut().zip(x[0].iter::<T>()).for_each(|(to, from)| *to = from);
        });
    }

    fn cost(&self, _x: &[&Meta], _y: &Meta) -> Cost {
        Cost::default()
    }

    fn repeats(&self) -> Option<usize> {
        Some(0)
    }

    fn text(&self) -> Option<String> {
        Some(written(&Text::Ruled { start: self.start }))
    }

    /// −0 is what may be added to anything, also to −0, without a trace.
    fn vjp(&self, x: &[Tensor], _y: &Tensor, dy: &Tensor) -> Vec<Option<Tensor>> {
        let (n, total) = (dy.numel(), x[1].numel());
        let flat = dy.reshape(n).to_dtype(x[1].dtype());
        let ends = [self.start as isize, (total - self.start - n) as isize];
        let packed = if n == total { flat } else { flat.pad(&ends, PadMode::Constant(-0.0)) };
        vec![None, Some(packed)]
    }
}

#[derive(Serialize, Deserialize)]
enum Text {
    /// A text numbers operands in the order in which they stand; `order` has the true number of each.
    CustomVjp {
        order: Vec<usize>,
        graph: String,
        n_results: usize,
        reaches: Vec<bool>,
    },
    Ruled {
        start: usize,
    },
}

fn written(text: &Text) -> String {
    ron::to_string(text).expect("numbers and texts can be written")
}

/// Reads the text of a mark; `None` if it is none. What is read may come from a file, so nothing is believed.
pub(crate) fn read(text: &str, custom: &ReadCustom<'_>) -> Option<Result<Custom, String>> {
    if !["CustomVjp(", "Ruled("].iter().any(|name| text.starts_with(name)) {
        return None;
    }
    let text = match ron::from_str(text) {
        Ok(text) => text,
        Err(e) => return Some(Err(e.to_string())),
    };
    Some(match text {
        Text::Ruled { start } => Ok(Custom::new(Ruled { start })),
        Text::CustomVjp { order, graph, n_results, reaches } => {
            read_rule(&order, &graph, n_results, reaches, custom).map(Custom::new)
        }
    })
}

fn read_rule(
    order: &[usize],
    graph: &str,
    n_results: usize,
    reaches: Vec<bool>,
    custom: &ReadCustom<'_>,
) -> Result<Rule, String> {
    let mut graph = Graph::parse_with(graph, custom).map_err(|e| format!("in a backward: {e}"))?;
    let require = |holds: bool, otherwise: &str| if holds { Ok(()) } else { Err(otherwise.to_owned()) };
    require(graph.reorder_inputs(order), "the operands of a backward are in no order")?;
    let is_closed = graph.params.is_empty() && graph.n_captured == 0 && graph.writes.is_empty();
    require(is_closed, "a backward has operands alone")?;
    let metas: Vec<Meta> = graph.input_metas().into_iter().flatten().cloned().collect();
    let n_front = n_results.checked_mul(2).filter(|&n| n <= metas.len());
    let Some((dy, rest)) = n_front.map(|_| metas.split_at(n_results)) else {
        return Err("a backward has the gradients of all results and the results".to_owned());
    };
    let fits = rest.starts_with(dy) && dy.iter().all(|m| m.dtype.is_float());
    require(
        fits && metas.len() == graph.inputs.len(),
        "the gradients of a backward are not those of its results",
    )?;
    let n_reached = reaches.iter().filter(|&&r| r).count();
    require(n_reached == graph.outputs.len(), "a backward gives another number of gradients")?;
    Ok(Rule { results: dy.to_vec(), graph, reaches })
}
