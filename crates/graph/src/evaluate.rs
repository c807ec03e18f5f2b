//! A graph, op by op, on tensors: ready ones are computed, traced ones recorded.
//!
//! This is the oracle that plans are compared with, and how a graph is differentiated or made part of
//! another one.

use thalweg_tensor::ops::Op;
use thalweg_tensor::{OpError, Tensor, apply};

use crate::graph::{Graph, Kind, NodeId};

impl Graph {
    /// The value of every node; operands, parameters and captured tensors come by position.
    pub fn values(
        &self,
        inputs: &[Tensor],
        params: &[Tensor],
        captured: &[Tensor],
    ) -> Result<Vec<Tensor>, OpError> {
        self.values_each(inputs, params, captured, |_, _| ())
    }

    /// [`Graph::values`]; `each` sees every value as soon as it is there.
    pub fn values_each(
        &self,
        inputs: &[Tensor],
        params: &[Tensor],
        captured: &[Tensor],
        mut each: impl FnMut(NodeId, &Tensor),
    ) -> Result<Vec<Tensor>, OpError> {
        let mut values: Vec<Tensor> = Vec::with_capacity(self.nodes().len());
        for (id, node) in self.ids().zip(self.nodes()) {
            let value = match &node.kind {
                Kind::Input(i) => inputs[*i].clone(),
                Kind::Param(i) => params[*i].clone(),
                Kind::Captured(i) => captured[*i].clone(),
                Kind::Literal(literal) => literal.tensor().clone(),
                // Eager code forgets the history and applies nothing.
                Kind::Op(Op::StopGradient(_)) => values[node.inputs[0].index()].stop_gradient(),
                Kind::Op(op) => {
                    let operands: Vec<&Tensor> = node.inputs.iter().map(|i| &values[i.index()]).collect();
                    apply(op.clone(), &operands)?
                }
            };
            each(id, &value);
            values.push(value);
        }
        Ok(values)
    }

    /// The results of a graph without parameters and captured tensors.
    ///
    /// ```
    /// use thalweg_graph::Graph;
    /// use thalweg_tensor::Tensor;
    /// let graph: Graph = "x = input : f32[2]; y = mul x x; return y".parse().unwrap();
    /// let y = graph.evaluate(&[Tensor::from([2.0f32, 3.0])]).unwrap();
    /// assert_eq!(y[0].to_vec::<f32>(), [4.0, 9.0]);
    /// ```
    pub fn evaluate(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, OpError> {
        let values = self.values(inputs, &[], &[])?;
        Ok(self.outputs.iter().map(|(_, NodeId(id))| values[*id as usize].clone()).collect())
    }
}
