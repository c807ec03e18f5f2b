//! A graph in the language of Graphviz.

use std::fmt::Write as _;

use crate::graph::{Graph, Kind, NodeId};

impl Graph {
    /// The graph as DOT: operands and parameters coloured, groups as clusters, values with their
    /// shapes. `dot -Tsvg` draws it.
    ///
    /// ```
    /// use thalweg_graph::Graph;
    /// let graph: Graph = "x = input \"x\" : f32[2]; y = exp x; return y=y".parse().unwrap();
    /// assert!(graph.to_dot().contains("v0 -> v1 [label=\"f32[2]\"]"));
    /// ```
    pub fn to_dot(&self) -> String {
        let mut dot = String::from("digraph thalweg {\n  node [shape=box, fontname=\"monospace\"];\n");
        let mut groups: Vec<u32> = self.nodes().iter().map(|n| n.group).collect();
        groups.sort_unstable();
        groups.dedup();
        for group in groups {
            let members = self.ids().filter(|&id| self.node(id).group == group);
            let lines: String = members.map(|id| format!("  {};\n", self.dot_node(id))).collect();
            let _ = match group {
                0 => write!(dot, "{lines}"),
                _ => write!(
                    dot,
                    "  subgraph cluster_{group} {{\n  style=rounded; color=\"#5a9e62\";\n{lines}  }}\n"
                ),
            };
        }
        for id in self.ids() {
            for input in &self.node(id).inputs {
                let _ = writeln!(dot, "  {input} -> {id} [label=\"{}\"];", self.node(*input).meta);
            }
        }
        for (i, (name, id)) in self.outputs.iter().enumerate() {
            let name = quoted(name);
            let _ = writeln!(
                dot,
                "  y{i} [label={name}, style=filled, fillcolor=\"#ffd1dc\"];\n  {id} -> y{i} [label=\"{}\"];",
                self.node(*id).meta
            );
        }
        for (i, &(param, id)) in self.writes.iter().enumerate() {
            let name = quoted(&format!("{} ←", self.params[param]));
            let _ =
                writeln!(dot, "  w{i} [label={name}, style=filled, fillcolor=\"#ffbf7a\"];\n  {id} -> w{i};");
        }
        dot + "}\n"
    }

    fn dot_node(&self, id: NodeId) -> String {
        let node = self.node(id);
        let (label, color) = match &node.kind {
            Kind::Input(i) => (self.inputs[*i].clone(), "#d8e9ff"),
            Kind::Param(i) => (self.params[*i].clone(), "#ffe2bf"),
            Kind::Captured(i) => (format!("captured {i}"), "#eeeeee"),
            Kind::Literal(literal) => match literal.uniform() {
                Some(number) => (format!("{number}"), "#eeeeee"),
                None => ("constant".to_owned(), "#eeeeee"),
            },
            Kind::Op(op) => {
                let attributes = op.attributes();
                (format!("{}{}", op.label(), if attributes == "()" { "" } else { &attributes }), "#ffffff")
            }
        };
        format!("{id} [label={}, style=filled, fillcolor=\"{color}\"]", quoted(&label))
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use crate::Graph;

    #[test]
    fn groups_are_clusters_and_names_are_quoted() {
        let text = "x = input \"a \\\"b\\\"\" : f32[2]; w = param \"w\" : f32[2]; \
                    a = mul x w #1; b = exp a #1; write w b; return y=b";
        let dot = text.parse::<Graph>().unwrap().to_dot();
        assert!(dot.contains("v0 [label=\"a \\\"b\\\"\", style=filled, fillcolor=\"#d8e9ff\"]"), "{dot}");
        assert!(dot.contains("subgraph cluster_1 {"), "{dot}");
        assert!(dot.contains("w0 [label=\"w ←\"") && dot.contains("v3 -> y0 [label=\"f32[2]\"]"), "{dot}");
        assert_eq!(dot.matches('{').count(), dot.matches('}').count());
    }
}
