//! From a trace to a graph and the things it is bound to.

use std::collections::{HashMap, HashSet};

use smallvec::{SmallVec, smallvec};
use thalweg_tensor::trace::{self, Recorded, Recording, Source};
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
        let names: Vec<String> = (0..n_inputs).map(|i| format!("x{i}")).collect();
        let (mut params, mut captured): (Vec<Param>, Vec<Tensor>) = (Vec::new(), Vec::new());
        let mut param_names = Vec::new();
        let results = (0..recording.outputs.len()).map(|i| format!("y{i}"));
        let mut taken: HashSet<String> = names.iter().cloned().chain(results).collect();
        let node = |value: Recorded| {
            let mut inputs = SmallVec::new();
            let kind = match value.source {
                Source::Input(i) => Kind::Input(i),
                Source::Param(param) => {
                    param_names.push(unique(param.name(), &mut taken));
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
                    let (op, operands) = rule::op_of(source).expect("these are ops");
                    inputs = operands;
                    Kind::Op(op)
                }
            };
            Node { kind, inputs, meta: value.meta, at: Some(value.at), region: value.region, group: 0 }
        };
        // A node is as large as what was recorded and takes its memory over.
        let mut graph = Graph::of(recording.values.into_iter().map(node).collect());
        (graph.inputs, graph.params) = (names, param_names);
        graph.n_captured = captured.len();
        graph.outputs =
            recording.outputs.iter().enumerate().map(|(i, &id)| (format!("y{i}"), NodeId(id))).collect();
        for (param, id) in &recording.grads {
            let at = params.iter().position(|p| p.id() == param.id()).expect("it was read");
            graph.outputs.push((format!("{}.grad", graph.params[at]), NodeId(*id)));
        }
        let grads = recording.grads.into_iter().map(|(param, _)| param).collect();
        let written = recording.params.iter().enumerate().filter_map(|(i, p)| Some((i, NodeId(p.write?))));
        graph.writes = written.collect();
        debug_assert!(recording.params.iter().zip(&params).all(|(u, p)| u.param.name() == p.name()));
        Traced { graph, params, captured, grads, switches: recording.switches }
    }

    /// Calls parameters by these names, such as their paths in a net, where the function uses them. Names stay different from each
    /// other: layers of one kind all have a `weight`, and one that is not named here is `weight`, `weight.1` and so on,
    /// in the order in which the function reads them.
    ///
    /// ```
    /// use thalweg_graph::Traced;
    /// use thalweg_tensor::{Param, Tensor};
    /// let [a, b] = [1.0f32, 2.0].map(|v| Param::new("weight", Tensor::scalar(v)));
    /// let traced = Traced::record(&[], |_| vec![a.get() * b.get()]);
    /// assert_eq!(traced.graph.params, ["weight", "weight.1"]);
    /// let traced = traced.with_param_names([("first.weight", &a), ("second.weight", &b)]);
    /// assert_eq!(traced.graph.params, ["first.weight", "second.weight"]);
    /// ```
    pub fn with_param_names<'a, N: Into<String>>(
        mut self,
        names: impl IntoIterator<Item = (N, &'a Param)>,
    ) -> Self {
        let mut given: HashMap<usize, String> = HashMap::new();
        for (name, param) in names {
            given.entry(param.id()).or_insert_with(|| name.into());
        }
        let left = self.grads.iter().map(|p| p.id()).collect::<Vec<_>>();
        let n_results = self.graph.outputs.len() - left.len();
        let results = self.graph.outputs[..n_results].iter().map(|(name, _)| name.clone());
        let mut taken: HashSet<String> = self.graph.inputs.iter().cloned().chain(results).collect();
        for (name, param) in self.graph.params.iter_mut().zip(&self.params) {
            let wanted = given.get(&param.id()).map_or(param.name(), |name| name);
            *name = unique(wanted, &mut taken);
            if let Some(at) = left.iter().position(|&id| id == param.id()) {
                self.graph.outputs[n_results + at].0 = format!("{name}.grad");
            }
        }
        self
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

/// The name, or the first of `name.1`, `name.2`, … that is free.
fn unique(name: &str, taken: &mut HashSet<String>) -> String {
    let numbered = (1..).map(|i: usize| format!("{name}.{i}"));
    let mut candidates = std::iter::once(name.to_owned()).chain(numbered);
    candidates.find(|n| taken.insert(n.clone())).expect("there is no end of numbers")
}
