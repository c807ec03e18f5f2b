//! Nodes by name.

use crate::error::GraphError;
use crate::graph::{Graph, Kind, NodeId};

impl Graph {
    /// The node of a name: a result, a label, an operand, a parameter, or `v3` as in the text form.
    pub fn find(&self, name: &str) -> Result<NodeId, GraphError> {
        let leaf = |id: &NodeId| match self.node(*id).kind {
            Kind::Input(i) => self.inputs[i] == name,
            Kind::Param(i) => self.params[i] == name,
            _ => false,
        };
        let number =
            || name.strip_prefix('v')?.parse().ok().filter(|&n: &u32| (n as usize) < self.nodes().len());
        let named = self.outputs.iter().chain(&self.labels).find(|(n, _)| n == name).map(|&(_, id)| id);
        let found = named.or_else(|| self.ids().find(leaf)).or_else(|| number().map(NodeId));
        found.ok_or_else(|| GraphError::NoName { name: name.to_owned(), known: self.names().join(", ") })
    }

    /// Every name that [`Graph::find`] knows, but for numbers.
    pub fn names(&self) -> Vec<String> {
        let named = self.outputs.iter().chain(&self.labels).map(|(name, _)| name);
        let mut names: Vec<String> = named.chain(&self.inputs).chain(&self.params).cloned().collect();
        let mut seen = std::collections::HashSet::new();
        names.retain(|n| seen.insert(n.clone()));
        names
    }

    /// The part of the graph that gives these nodes under these names, with the new values of
    /// parameters if `writes`. It has only the operands that it needs, in their order; parameters and
    /// captured tensors keep their positions. An op with an effect belongs to it if all that it reads does.
    pub fn part(&self, outputs: &[(String, NodeId)], writes: bool) -> Graph {
        let mut whole = self.clone();
        whole.outputs = outputs.to_vec();
        if !writes {
            whole.writes.clear();
        }
        let mut needed = vec![false; self.nodes().len()];
        whole.roots().for_each(|id| needed[id.index()] = true);
        for id in self.ids().rev() {
            if needed[id.index()] {
                self.node(id).inputs.iter().for_each(|i| needed[i.index()] = true);
            }
        }
        for id in self.effects() {
            if self.node(id).inputs.iter().all(|i| needed[i.index()]) {
                needed[id.index()] = true;
            }
        }
        let mut inputs = Vec::new();
        let mut part = whole.like();
        part.inputs.clear();
        let mut renamed = vec![NodeId(u32::MAX); needed.len()];
        for id in self.ids().filter(|id| needed[id.index()]) {
            renamed[id.index()] = part.copy(self, &renamed, id);
            if let Kind::Input(i) = self.node(id).kind {
                inputs.push((i, renamed[id.index()]));
            }
        }
        inputs.sort_unstable();
        for (position, (i, id)) in inputs.into_iter().enumerate() {
            part.nodes_mut()[id.index()].kind = Kind::Input(position);
            part.inputs.push(self.inputs[i].clone());
        }
        part.outputs = whole.outputs.iter().map(|(n, id)| (n.clone(), renamed[id.index()])).collect();
        part.writes = whole.writes.iter().map(|&(p, id)| (p, renamed[id.index()])).collect();
        part
    }

    /// Operands and results: `x: f32[2, 3] -> y: f32[2, 4]`.
    pub fn signature(&self) -> String {
        let mut inputs: Vec<String> = vec![String::new(); self.inputs.len()];
        for node in self.nodes() {
            if let Kind::Input(i) = node.kind {
                inputs[i] = format!("{}: {}", self.inputs[i], node.meta);
            }
        }
        let outputs = self.outputs.iter().map(|(name, id)| format!("{name}: {}", self.node(*id).meta));
        format!("{} -> {}", inputs.join(", "), outputs.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use crate::Graph;

    fn graph() -> Graph {
        "x = input \"x\" : f32[2]; y = input \"y\" : f32[2]; w = param \"w\" : f32[2]; \
         h = mul y w; z = add x h; write w h; label hidden=h; return z=z"
            .parse()
            .unwrap()
    }

    #[test]
    fn nodes_are_found_by_any_of_their_names() {
        let graph = graph();
        for (name, number) in [("x", 0), ("w", 2), ("hidden", 3), ("z", 4), ("v3", 3)] {
            assert_eq!(graph.find(name).unwrap().0, number, "{name}");
        }
        let error = graph.find("u").unwrap_err().to_string();
        assert_eq!(error, "nothing is called `u`; known are z, hidden, x, y, w");
    }

    #[test]
    fn a_part_has_only_the_operands_it_needs() {
        let graph = graph();
        let hidden = graph.find("hidden").unwrap();
        let part = graph.part(&[("h".into(), hidden)], false);
        let text =
            "v0 = input \"y\" : f32[2]\nv1 = param \"w\" : f32[2]\nv2 = mul v0 v1 : f32[2]\nreturn h=v2\n";
        assert_eq!(part.to_string(), text);
        assert_eq!(graph.signature(), "x: f32[2], y: f32[2] -> z: f32[2]");
    }
}
