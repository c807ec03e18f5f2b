//! Gradients of a graph, as a graph.

use thalweg_tensor::{Meta, OpError, Tensor};

use crate::error::GraphError;
use crate::graph::{Graph, Kind, NodeId};
use crate::literal::Literal;
use crate::traced::Traced;

impl Graph {
    /// This graph with further results: the gradient of `output`, a scalar, with respect to each of
    /// `wrt` (operands and parameters), called `dloss/dw`. An error when it does not depend on one.
    ///
    /// ```
    /// use thalweg_graph::Graph;
    /// use thalweg_tensor::Tensor;
    /// let graph: Graph =
    ///     "x = input \"x\" : f32[2]; s = mul x x; y = sum(axes:[0]) s; return y=y".parse().unwrap();
    /// let graph = graph.differentiate("y", &["x"]).unwrap();
    /// assert_eq!(graph.outputs[1].0, "dy/dx");
    /// let values = graph.evaluate(&[Tensor::from([1.0f32, 3.0])]).unwrap();
    /// assert_eq!(values[1].to_vec::<f32>(), [2.0, 6.0]);
    /// ```
    pub fn differentiate(&self, output: &str, wrt: &[&str]) -> Result<Graph, GraphError> {
        let loss = self.find(output)?;
        let mut targets = Vec::new();
        for name in wrt {
            let id = self.find(name)?;
            match self.node(id).kind {
                Kind::Input(_) | Kind::Param(_) => targets.push(id),
                _ => {
                    let known =
                        self.inputs.iter().chain(&self.params).cloned().collect::<Vec<_>>().join(", ");
                    return Err(GraphError::NoLeaf { name: (*name).to_owned(), known });
                }
            }
        }
        // Every leaf becomes an operand of a function that is traced, in the order of the nodes.
        let leaves: Vec<NodeId> = self
            .ids()
            .filter(|&id| matches!(self.node(id).kind, Kind::Input(_) | Kind::Param(_) | Kind::Captured(_)))
            .collect();
        let metas: Vec<Meta> = leaves.iter().map(|&id| self.node(id).meta.clone()).collect();
        let mut outcome: Result<(), OpError> = Ok(());
        let traced = Traced::record(&metas, |x| match self.with_gradients(loss, &targets, &leaves, x) {
            Ok(values) => values,
            Err(error) => {
                outcome = Err(error);
                Vec::new()
            }
        });
        outcome
            .map_err(|source| GraphError::Gradient { output: output.to_owned(), source: Box::new(source) })?;
        let mut graph = traced.graph.rewrite(|out, mut node| {
            match node.kind {
                Kind::Input(i) => node.kind = self.node(leaves[i]).kind.clone(),
                Kind::Captured(i) => node.kind = Kind::Literal(Literal::new(traced.captured[i].clone())),
                _ => {}
            }
            out.push(node)
        });
        (graph.inputs, graph.params) = (self.inputs.clone(), self.params.clone());
        graph.n_captured = self.n_captured;
        let mut values = std::mem::take(&mut graph.outputs).into_iter().map(|(_, id)| id);
        let mut take = |names: Vec<String>| -> Vec<(String, NodeId)> {
            names.into_iter().map(|name| (name, values.next().expect("one value per name"))).collect()
        };
        let names = |list: &[(String, NodeId)]| list.iter().map(|(name, _)| name.clone()).collect();
        graph.outputs = take(names(&self.outputs));
        let labels = take(names(&self.labels));
        let written = take(self.writes.iter().map(|_| String::new()).collect());
        graph.writes = self.writes.iter().zip(written).map(|(&(p, _), (_, id))| (p, id)).collect();
        graph.outputs.extend(take(wrt.iter().map(|name| format!("d{output}/d{name}")).collect()));
        // What is labelled stays as if it were a result.
        let n_outputs = graph.outputs.len();
        graph.outputs.extend(labels);
        let mut graph = crate::passes::dce(&graph);
        graph.labels = graph.outputs.split_off(n_outputs);
        Ok(graph)
    }

    /// The values of results, labels and writes, then the gradients.
    fn with_gradients(
        &self,
        loss: NodeId,
        targets: &[NodeId],
        leaves: &[NodeId],
        x: &[Tensor],
    ) -> Result<Vec<Tensor>, OpError> {
        let scalar = Tensor::scalar(0.0f32);
        let mut inputs = vec![scalar.clone(); self.inputs.len()];
        let mut params = vec![scalar.clone(); self.params.len()];
        let mut captured = vec![scalar; self.n_captured];
        let mut variables = vec![None; targets.len()];
        for (&id, x) in leaves.iter().zip(x) {
            let positions = (0..targets.len()).filter(|&k| targets[k] == id).collect::<Vec<_>>();
            let x = if positions.is_empty() { x.clone() } else { x.requires_grad() };
            positions.iter().for_each(|&k| variables[k] = Some(x.clone()));
            match self.node(id).kind {
                Kind::Input(i) => inputs[i] = x,
                Kind::Param(i) => params[i] = x,
                Kind::Captured(i) => captured[i] = x,
                _ => {}
            }
        }
        let values = self.values(&inputs, &params, &captured)?;
        let variables: Vec<Tensor> = variables.into_iter().flatten().collect();
        let grads = values[loss.index()].try_grad(&variables.iter().collect::<Vec<_>>())?;
        let named = self.outputs.iter().chain(&self.labels).map(|&(_, id)| id);
        let written = self.writes.iter().map(|&(_, id)| id);
        Ok(named.chain(written).map(|id| values[id.index()].clone()).chain(grads).collect())
    }
}

#[cfg(test)]
mod tests {
    use crate::Graph;
    use thalweg_tensor::Tensor;

    fn graph() -> Graph {
        "x = input \"x\" : f32[2, 2]; w = param \"w\" : f32[2, 1]; c = literal [1.0, 2.0] : f32[2, 1]; \
         h = matmul x w; d = sub h c; s = mul d d; loss = sum(axes:[0,1]) s; label hidden=h; return loss=loss"
            .parse()
            .unwrap()
    }

    #[test]
    fn gradients_are_those_of_eager_code() {
        let graph = graph().differentiate("loss", &["w", "x"]).unwrap();
        crate::verify(&graph).unwrap();
        let (x, w) = (Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]), Tensor::from([[0.5f32], [1.0]]));
        let values = graph.values(std::slice::from_ref(&x), std::slice::from_ref(&w), &[]).unwrap();
        let at = |name: &str| values[graph.find(name).unwrap().index()].to_vec::<f32>();
        let (vx, vw) = (x.requires_grad(), w.requires_grad());
        let loss = (vx.matmul(&vw) - Tensor::from([[1.0f32], [2.0]])).square().sum(());
        let want = loss.grad(&[&vw, &vx]);
        assert_eq!(at("dloss/dw"), want[0].to_vec::<f32>());
        assert_eq!(at("dloss/dx"), want[1].to_vec::<f32>());
        assert_eq!(at("hidden"), vx.matmul(&vw).to_vec::<f32>());
        assert_eq!(at("loss"), [loss.item::<f32>()]);
    }

    #[test]
    fn what_has_no_gradient_is_named() {
        let error = |output: &str, wrt: &[&str]| graph().differentiate(output, wrt).unwrap_err().to_string();
        assert!(error("loss", &["u"]).contains("nothing is called `u`; known are loss, hidden, x, w"));
        assert!(error("loss", &["hidden"]).contains("`hidden` is no operand and no param; there are x, w"));
        assert!(error("hidden", &["w"]).contains("not a scalar"));
    }
}
