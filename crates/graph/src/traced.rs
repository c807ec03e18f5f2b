//! From a trace to a graph and the things it is bound to.

use smallvec::{SmallVec, smallvec};
use thalweg_tensor::trace::{self, Recording, Source};
use thalweg_tensor::{Meta, Param, Switch, Tensor};

use crate::graph::{Graph, Kind, Node, NodeId};
use crate::literal::{Literal, is_uniform};
use crate::rule;

/// A traced function: its graph, its parameters and the tensors it captured.
#[derive(Clone)]
pub struct Traced {
    /// What it computes.
    pub graph: Graph,
    /// The parameters, by position.
    pub params: Vec<Param>,
    /// The captured tensors, by position.
    pub captured: Vec<Tensor>,
    /// The parameters in which `backward` left gradients: those are the last results.
    pub grads: Vec<Param>,
    /// The switches that it looked at, and how they stood.
    pub switches: Vec<(Switch, bool)>,
}

/// A function of its operands alone; see [`Traced::close`].
#[derive(Clone)]
pub struct Closed {
    /// What it computes.
    pub graph: Graph,
    /// What to pass after the operands proper.
    pub captured: Vec<Tensor>,
    /// Whose values to pass after that.
    pub params: Vec<Param>,
    /// Which of the parameters the last results are for.
    pub written: Vec<usize>,
}

impl Traced {
    /// Runs `f` on traced tensors and makes a graph of what it did.
    ///
    /// ```
    /// use thalweg_core::DType;
    /// use thalweg_graph::Traced;
    /// use thalweg_tensor::Meta;
    /// let double = Traced::record(&[Meta::new(DType::F32, [3])], |x| vec![&x[0] * 2.0]);
    /// assert!(double.graph.to_string().contains("mul"));
    /// ```
    #[track_caller]
    pub fn record(inputs: &[Meta], f: impl FnOnce(&[Tensor]) -> Vec<Tensor>) -> Traced {
        Self::of(trace::record(inputs, f), inputs.len())
    }

    fn of(recording: Recording, n_inputs: usize) -> Traced {
        let mut graph = Graph::default();
        graph.inputs = (0..n_inputs).map(|i| format!("x{i}")).collect();
        let (mut params, mut captured) = (Vec::new(), Vec::new());
        for value in recording.values {
            let mut inputs = SmallVec::new();
            let kind = match value.source {
                Source::Input(i) => Kind::Input(i),
                Source::Param(param) => {
                    graph.params.push(param.name().to_owned());
                    params.push(param);
                    Kind::Param(params.len() - 1)
                }
                // A number in every place is better known than looked up, unless gradients flow there.
                Source::Captured(t) if !t.is_traced() && !t.is_tracked() && is_uniform(&t) => {
                    Kind::Literal(Literal::new(t))
                }
                Source::Captured(t) => {
                    captured.push(t);
                    Kind::Captured(captured.len() - 1)
                }
                source @ (Source::Op(..) | Source::Rule(..) | Source::Ruled(..)) => {
                    let (op, operands) = rule::op_of(&source).expect("these are ops");
                    inputs = operands;
                    Kind::Op(op)
                }
            };
            let (meta, at, region) = (value.meta, Some(value.at), value.region);
            graph.push(Node { kind, inputs, meta, at, region, group: 0 });
        }
        graph.n_captured = captured.len();
        graph.outputs =
            recording.outputs.iter().enumerate().map(|(i, &id)| (format!("y{i}"), NodeId(id))).collect();
        let left = recording.grads.iter().map(|(p, id)| (format!("{}.grad", p.name()), NodeId(*id)));
        graph.outputs.extend(left);
        let grads = recording.grads.into_iter().map(|(param, _)| param).collect();
        let written = recording.params.iter().enumerate().filter_map(|(i, p)| Some((i, NodeId(p.write?))));
        graph.writes = written.collect();
        debug_assert!(recording.params.iter().zip(&params).all(|(u, p)| u.param.name() == p.name()));
        Traced { graph, params, captured, grads, switches: recording.switches }
    }

    /// The same function with everything it found around it as further operands: first the captured
    /// tensors, then the parameters. Values of parameters that it sets become further results.
    pub fn close(self) -> Closed {
        let (n_inputs, n_captured) = (self.graph.inputs.len(), self.captured.len());
        let mut graph = self.graph.rewrite(|out, mut node| {
            match node.kind {
                Kind::Captured(i) => node.kind = Kind::Input(n_inputs + i),
                Kind::Param(i) => node.kind = Kind::Input(n_inputs + n_captured + i),
                _ => {}
            }
            out.push(node)
        });
        graph.inputs.extend((0..n_captured).map(|i| format!("captured{i}")));
        graph.inputs.extend(std::mem::take(&mut graph.params));
        graph.n_captured = 0;
        let writes = std::mem::take(&mut graph.writes);
        let written = writes.iter().map(|&(p, _)| p).collect();
        graph.outputs.extend(writes.into_iter().map(|(p, id)| (format!("written{p}"), id)));
        Closed { graph, captured: self.captured, params: self.params, written }
    }

    /// A leaf without line: for graphs that are built, not traced.
    pub(crate) fn bare(kind: Kind, meta: Meta) -> Node {
        Node { kind, inputs: smallvec![], meta, at: None, region: 0, group: 0 }
    }
}
