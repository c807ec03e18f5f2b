//! Graphs by hand.

use thalweg_tensor::ops::Op;
use thalweg_tensor::{Meta, OpError, Tensor};

use crate::error::GraphError;
use crate::graph::{Graph, Kind, NodeId};
use crate::literal::Literal;
use crate::traced::Traced;

/// Builds a graph node by node.
///
/// ```
/// use thalweg_core::DType;
/// use thalweg_graph::Builder;
/// use thalweg_tensor::ops::{Matmul, Relu};
/// use thalweg_tensor::{Meta, Tensor};
///
/// let mut b = Builder::default();
/// let x = b.input("x", Meta::new(DType::F32, [1, 2]));
/// let w = b.param("w", Meta::new(DType::F32, [2, 2]));
/// let h = b.op(Matmul, &[x, w])?;
/// b.label("hidden", h);
/// let y = b.op(Relu, &[h])?;
/// b.output("y", y);
/// let graph = b.finish()?;
/// assert!(graph.to_string().contains("return y=v3"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Builder {
    graph: Graph,
}

impl Builder {
    /// An operand.
    pub fn input(&mut self, name: impl Into<String>, meta: Meta) -> NodeId {
        self.graph.inputs.push(name.into());
        self.graph.push(Traced::bare(Kind::Input(self.graph.inputs.len() - 1), meta))
    }

    /// A parameter.
    pub fn param(&mut self, name: impl Into<String>, meta: Meta) -> NodeId {
        self.graph.params.push(name.into());
        self.graph.push(Traced::bare(Kind::Param(self.graph.params.len() - 1), meta))
    }

    /// A constant.
    pub fn literal(&mut self, value: Tensor) -> NodeId {
        let literal = Literal::new(value);
        let meta = literal.meta().clone();
        self.graph.push(Traced::bare(Kind::Literal(literal), meta))
    }

    /// An op on nodes that are there; an error if it refuses them.
    pub fn op(&mut self, op: impl Into<Op>, inputs: &[NodeId]) -> Result<NodeId, OpError> {
        let op = op.into();
        let like = Traced::bare(Kind::Op(op.clone()), Meta::new(thalweg_core::DType::F32, ()));
        self.graph.apply(op, inputs, &like)
    }

    /// Names a node, so that it can be fetched.
    pub fn label(&mut self, name: impl Into<String>, id: NodeId) {
        self.graph.labels.push((name.into(), id));
    }

    /// A result.
    pub fn output(&mut self, name: impl Into<String>, id: NodeId) {
        self.graph.outputs.push((name.into(), id));
    }

    /// Gives a parameter a new value at the end of a run. Nodes that are no parameters are refused.
    pub fn write(&mut self, param: NodeId, value: NodeId) -> Result<(), GraphError> {
        match self.graph.nodes().get(param.index()).map(|n| &n.kind) {
            Some(&Kind::Param(position)) => {
                self.graph.writes.push((position, value));
                Ok(())
            }
            _ => Err(GraphError::Leaf {
                node: param.index(),
                what: "is no param, so nothing is written to it".into(),
            }),
        }
    }

    /// The graph, verified.
    pub fn finish(self) -> Result<Graph, GraphError> {
        crate::verify(&self.graph)?;
        Ok(self.graph)
    }
}
