//! A plan as a picture: one self-contained HTML page with an SVG drawing.
//!
//! Each step is a box: its ops, what it costs, which parameters it reads and writes, which result it
//! is. Wires are values, with their shapes where they leave a box. Parameters stand inside the boxes
//! that use them, since wires from one place to forward, backward and update would cover the drawing.

mod layout;
mod page;

use std::collections::HashMap;

use thalweg_graph::{Kind, NodeId};
use thalweg_tensor::ops::Cost;

use crate::plan::Plan;
use layout::{Block, Net};

/// What a box shows.
struct Card {
    kind: CardKind,
    title: String,
    /// The ops of a group, in short.
    ops: Vec<String>,
    /// What an op with bodies runs inside, a line per step.
    inside: Vec<String>,
    /// Names of parameters that are read, that are written, and of results.
    reads: Vec<String>,
    writes: Vec<String>,
    results: Vec<String>,
    cost: Cost,
    /// The user's lines.
    lines: Vec<String>,
}

#[derive(PartialEq, Clone, Copy)]
enum CardKind {
    Input,
    /// A step of one op.
    Single,
    /// A fused group.
    Fused,
    /// A step that only moves a value.
    Copy,
}

/// A value that leaves a box.
struct Wire {
    from: usize,
    shape: String,
    to: Vec<usize>,
}

impl Plan {
    /// A page that shows the plan, to be opened in a browser.
    ///
    /// ```
    /// use thalweg_runtime::jit;
    /// use thalweg_tensor::Tensor;
    /// let mut f = jit(|x: Tensor| (&x * 2.0).exp().sum(()));
    /// f.call(Tensor::from([1.0f32, 2.0])).unwrap();
    /// assert!(f.plan().to_html("a sum").contains("<svg"));
    /// ```
    pub fn to_html(&self, title: &str) -> String {
        let (cards, wires) = self.cards();
        let mut sizes: Vec<page::Size> = cards.iter().map(page::measure).collect();
        let ports = page::ports(&mut sizes, &wires);
        let blocks: Vec<Block> = sizes.iter().map(|s| Block { width: s.width, height: s.height }).collect();
        let net = |(w, &port): (&Wire, &f64)| Net { from: w.from, port, to: w.to.clone() };
        let nets: Vec<Net> = wires.iter().zip(&ports).map(net).collect();
        let drawing = layout::draw(&blocks, &nets);
        page::render(title, self, &cards, &sizes, &wires, &drawing)
    }

    /// Boxes, inputs first, then the steps in order; and the values between them.
    fn cards(&self) -> (Vec<Card>, Vec<Wire>) {
        let graph = self.graph();
        let mut cards = Vec::new();
        let mut made_by: HashMap<NodeId, usize> = HashMap::new();
        for id in graph.ids() {
            if let Kind::Input(i) = graph.node(id).kind {
                made_by.insert(id, cards.len());
                cards.push(Card { kind: CardKind::Input, ..card(graph.inputs[i].clone()) });
            }
        }
        let first_step = cards.len();
        for i in 0..self.n_steps() {
            let info = self.step_info(i);
            let nodes = &self.steps[i].nodes;
            made_by.extend(nodes.iter().map(|&id| (id, cards.len())));
            let kind = match nodes.len() {
                0 => CardKind::Copy,
                1 => CardKind::Single,
                _ => CardKind::Fused,
            };
            let title = match kind {
                CardKind::Fused => format!("{i} · {} ops fused", nodes.len()),
                _ => format!("{i} · {}", info.name()),
            };
            let ops = if kind == CardKind::Fused { info.ops.clone() } else { vec![] };
            let (lines, inside) = (info.source_lines(), info.inside);
            cards.push(Card { kind, ops, inside, cost: info.cost, lines, ..card(title) });
        }
        // Views, and parameters that lie side by side, cost no step: whoever reads them reads what lies under them.
        let under_all = |id: NodeId| {
            let (mut found, mut stack) = (Vec::new(), vec![id]);
            while let Some(id) = stack.pop() {
                match made_by.contains_key(&id) || !matches!(graph.node(id).kind, Kind::Op(_)) {
                    true => found.push(id),
                    false => stack.extend(graph.node(id).inputs.iter().rev()),
                }
            }
            found
        };
        let under = |id: NodeId| under_all(id).first().copied().unwrap_or(id);
        let mut readers: Vec<(NodeId, Vec<usize>)> = Vec::new();
        let mut position: HashMap<NodeId, usize> = HashMap::new();
        let mut read_one = |id: NodeId, by: usize, cards: &mut Vec<Card>| {
            if let Kind::Param(p) = graph.node(id).kind {
                push_once(&mut cards[by].reads, &graph.params[p]);
            }
            if made_by.get(&id).is_some_and(|&from| from != by) {
                let at = *position.entry(id).or_insert_with(|| {
                    readers.push((id, Vec::new()));
                    readers.len() - 1
                });
                if !readers[at].1.contains(&by) {
                    readers[at].1.push(by);
                }
            }
        };
        let mut read = |id: NodeId, by: usize, cards: &mut Vec<Card>| {
            under_all(id).into_iter().for_each(|id| read_one(id, by, cards));
        };
        for i in 0..self.n_steps() {
            for &id in &self.steps[i].nodes {
                graph.node(id).inputs.iter().for_each(|&x| read(x, first_step + i, &mut cards));
            }
        }
        // A copy has no node: what it copies is told by the memory it reads.
        let mut holds: HashMap<usize, NodeId> = HashMap::new();
        for (i, step) in self.steps.iter().enumerate() {
            if let (true, Some(&id)) = (step.nodes.is_empty(), holds.get(&step.inputs[0].storage)) {
                read(id, first_step + i, &mut cards);
            }
            holds.extend(step.outputs.iter().map(|(s, _)| *s).zip(self.result_nodes(i)));
        }
        for (name, id) in &graph.outputs {
            if let Some(&by) = made_by.get(&under(*id)) {
                push_once(&mut cards[by].results, name);
            }
        }
        for &(p, id) in &graph.writes {
            if let Some(&by) = made_by.get(&under(id)) {
                push_once(&mut cards[by].writes, &graph.params[p]);
            }
        }
        let wire = |(id, mut to): (NodeId, Vec<usize>)| {
            to.retain(|&t| t > made_by[&id]);
            Wire { from: made_by[&id], shape: graph.node(id).meta.to_string(), to }
        };
        let wires = readers.into_iter().map(wire).filter(|w| !w.to.is_empty()).collect();
        (cards, wires)
    }
}

fn card(title: String) -> Card {
    Card {
        kind: CardKind::Single,
        title,
        ops: Vec::new(),
        inside: Vec::new(),
        reads: Vec::new(),
        writes: Vec::new(),
        results: Vec::new(),
        cost: Cost::default(),
        lines: Vec::new(),
    }
}

fn push_once(list: &mut Vec<String>, name: &str) {
    if !list.iter().any(|n| n == name) {
        list.push(name.to_owned());
    }
}
