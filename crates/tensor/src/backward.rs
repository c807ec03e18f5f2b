//! The reverse sweep: from gradients of results to gradients of whatever they were made from.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::OpError;
use crate::ops::{Grad, Vjp};
use crate::tape::{self, History, Kind, Node};
use crate::tensor::Tensor;

/// Where gradients are collected.
pub(crate) enum Targets<'a> {
    /// These results, in this order; `None` in the answer where nothing flows.
    These(&'a [History]),
    /// Every leaf; each keeps the sum in its own slot.
    Leaves,
}

/// Pulls the gradients of `roots` back to the targets. Only ops that depend on a level below
/// `limit` are recorded while the rules run.
pub(crate) fn pull_back(
    roots: &[(History, Tensor)],
    targets: Targets<'_>,
    limit: u32,
) -> Result<Vec<Option<Tensor>>, OpError> {
    tape::recording_below(limit, || Sweep::new(roots, &targets).run(roots, &targets))
}

/// Node numbers are already well spread by one multiplication.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only u64 keys are hashed")
    }
    fn write_u64(&mut self, id: u64) {
        self.0 = id.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(26);
    }
}

type ById = HashMap<u64, usize, BuildHasherDefault<IdHasher>>;

/// The part of the history that matters for one sweep.
struct Sweep<'a> {
    /// Ascending by id, which is a topological order.
    nodes: Vec<Entry<'a>>,
    index: ById,
}

struct Entry<'a> {
    node: &'a Arc<Node>,
    /// Whether a target lies at or below this node.
    needed: bool,
    /// The gradient of each result so far.
    grads: SmallVec<[Option<Tensor>; 1]>,
}

impl<'a> Sweep<'a> {
    fn new(roots: &'a [(History, Tensor)], targets: &Targets<'_>) -> Self {
        // Nothing older than the oldest target can lead to one.
        let oldest = match targets {
            Targets::These(these) => these.iter().map(|h| h.node.id).min().unwrap_or(u64::MAX),
            Targets::Leaves => 0,
        };
        let mut nodes: Vec<Entry<'a>> = Vec::new();
        let mut index = ById::default();
        let mut stack: Vec<&'a Arc<Node>> = roots.iter().map(|(h, _)| &h.node).collect();
        while let Some(node) = stack.pop() {
            if node.id < oldest || index.insert(node.id, 0).is_some() {
                continue;
            }
            nodes.push(Entry { node, needed: false, grads: SmallVec::new() });
            stack.extend(node.edges.iter().flatten().map(|h| &h.node));
        }
        nodes.sort_unstable_by_key(|e| e.node.id);
        for (i, entry) in nodes.iter().enumerate() {
            index.insert(entry.node.id, i);
        }
        let mut sweep = Self { nodes, index };
        sweep.mark_needed(targets);
        sweep
    }

    fn mark_needed(&mut self, targets: &Targets<'_>) {
        if let Targets::These(these) = targets {
            for h in *these {
                if let Some(&i) = self.index.get(&h.node.id) {
                    self.nodes[i].needed = true;
                }
            }
        }
        for i in 0..self.nodes.len() {
            let node = self.nodes[i].node;
            let leaf = matches!((&node.kind, targets), (Kind::Leaf(_), Targets::Leaves));
            let leads = || node.edges.iter().flatten().any(|h| self.is_needed(h));
            if self.nodes[i].needed || leaf || leads() {
                self.nodes[i].needed = true;
            }
        }
    }

    fn is_needed(&self, h: &History) -> bool {
        self.index.get(&h.node.id).is_some_and(|&i| self.nodes[i].needed)
    }

    fn run(
        mut self,
        roots: &[(History, Tensor)],
        targets: &Targets<'_>,
    ) -> Result<Vec<Option<Tensor>>, OpError> {
        for (h, grad) in roots {
            self.add(h, grad.clone());
        }
        let mut collected: Vec<Option<Tensor>> = match targets {
            Targets::These(these) => vec![None; these.len()],
            Targets::Leaves => Vec::new(),
        };
        for i in (0..self.nodes.len()).rev() {
            let grads = std::mem::take(&mut self.nodes[i].grads);
            if !self.nodes[i].needed || grads.iter().all(Option::is_none) {
                continue;
            }
            let node = self.nodes[i].node;
            match targets {
                Targets::These(these) => {
                    for (slot, h) in collected.iter_mut().zip(*these) {
                        if h.node.id == node.id {
                            *slot = grads.get(h.output as usize).cloned().flatten();
                        }
                    }
                }
                Targets::Leaves => {
                    if let Some(Some(grad)) = grads.first() {
                        leave_in_slot(node, grad);
                    }
                }
            }
            if !node.edges.iter().flatten().any(|h| self.is_needed(h)) {
                continue;
            }
            let inputs = tape::on_behalf_of(node.at, || self.rule(node, &grads))?;
            for (edge, grad) in node.edges.iter().zip(inputs) {
                if let (Some(h), Some(grad)) = (edge, grad)
                    && self.is_needed(h)
                {
                    // The sum belongs to the line that reads the value once more.
                    tape::on_behalf_of(node.at, || self.add(h, grad));
                }
            }
        }
        Ok(collected)
    }

    /// Runs the rule of one node.
    fn rule(
        &self,
        node: &Arc<Node>,
        grads: &[Option<Tensor>],
    ) -> Result<SmallVec<[Option<Tensor>; 2]>, OpError> {
        match &node.kind {
            // A leaf made from another tensor by `grad` is that tensor.
            Kind::Leaf(_) => Ok(grads.iter().cloned().collect()),
            Kind::Op { op, kept } => {
                let dy = grads[0].as_ref().expect("nodes without a gradient are skipped");
                let wants = |i: usize| node.edges[i].as_ref().is_some_and(|h| self.is_needed(h));
                let history = History { node: Arc::clone(node), output: 0 };
                let g = Vjp { dy, kept, edges: &node.edges, wants: &wants, output_history: &history };
                match op.grad(&g) {
                    Grad::Inputs(inputs) => Ok(inputs),
                    Grad::None(reason) => {
                        Err(OpError::NotDifferentiable { op: op.name(), reason, at: node.at })
                    }
                }
            }
            Kind::Function { outputs, backward } => {
                let mut all: Vec<Option<Tensor>> = grads.to_vec();
                all.resize(*outputs, None);
                let wants = |i: usize| node.edges[i].as_ref().is_some_and(|h| self.is_needed(h));
                Ok(backward(&all, &wants, node)?.into())
            }
        }
    }

    fn add(&mut self, h: &History, grad: Tensor) {
        let Some(&i) = self.index.get(&h.node.id) else { return };
        let slots = &mut self.nodes[i].grads;
        let output = h.output as usize;
        if slots.len() <= output {
            slots.resize(output + 1, None);
        }
        slots[output] = Some(match slots[output].take() {
            Some(sum) => sum + &grad,
            None => grad,
        });
    }
}

/// Adds to what `backward` has left in a leaf.
pub(crate) fn leave_in_slot(node: &Node, grad: &Tensor) {
    if let Kind::Leaf(slot) = &node.kind {
        let mut slot = slot.lock().unwrap_or_else(|e| e.into_inner());
        *slot = Some(match slot.take() {
            Some(sum) => sum + grad,
            None => grad.clone(),
        });
    }
}
