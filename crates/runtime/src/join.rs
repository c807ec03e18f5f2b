//! Steps that become one: a product or convolution with the group that continues it and the pooling that takes its planes,
//! and neighbouring groups.

use thalweg_core::DType;

use crate::concurrent;
use crate::plan::{Action, MAX_OPERANDS, Plan, Step, Then};

impl Plan {
    /// Makes one step of a product or convolution and the group after it that reads its result in place.
    /// `followed` says behind which steps there is one, and with it the pooling that belongs to it too.
    pub(crate) fn join_epilogues(&mut self, followed: &[usize]) {
        let mut joined: Vec<Step> = Vec::with_capacity(self.steps.len());
        let n_behind = |i: Option<usize>| i.and_then(|i| followed.get(i)).copied().unwrap_or(0);
        for (i, step) in std::mem::take(&mut self.steps).into_iter().enumerate() {
            if n_behind(i.checked_sub(2)) == 2 {
                joined.last_mut().expect("a convolution came before").take_planes(step);
                continue;
            }
            let before = joined.last().filter(|_| n_behind(i.checked_sub(1)) > 0);
            match before.and_then(|last| self.epilogue(last, &step)) {
                Some(both) => {
                    joined.pop();
                    joined.push(both);
                }
                None => joined.push(step),
            }
        }
        self.steps = joined;
    }

    fn epilogue(&self, product: &Step, group: &Step) -> Option<Step> {
        let (Action::Op(op), Action::Tiles(programs)) = (&product.action, &group.action) else { return None };
        let ([program], [result]) = (&programs[..], &product.outputs[..]) else { return None };
        let overlap = |a, b| concurrent::overlap(self, a, b);
        let same_place = |s: usize| {
            self.storages[s].home == self.storages[result.0].home
                && self.storages[s].len == self.storages[result.0].len
        };
        let operands = || group.inputs.iter().zip(&program.operands);
        let reads = operands().any(|(r, _)| r.storage == result.0)
            && operands().all(|(r, operand)| {
                !overlap(r.storage, result.0) || same_place(r.storage) && operand.is_in_step()
            });
        // The product still reads its operands while the first results of the group are written.
        let apart = group.outputs.iter().all(|&(s, _)| {
            product.inputs.iter().all(|r| !overlap(s, r.storage)) && (!overlap(s, result.0) || same_place(s))
        });
        if self.storages[result.0].dtype != DType::F32
            || !program.runs_in_pieces(result.1.numel())
            || !reads
            || !apart
        {
            return None;
        }
        let mut outputs = group.outputs.clone();
        if !group.outputs.iter().any(|&(s, _)| overlap(s, result.0)) {
            outputs.push(result.clone());
        }
        let n_operands = product.inputs.len();
        let then = Then {
            op: op.clone(),
            n_operands,
            product: result.clone(),
            program: program.clone(),
            pool: None,
        };
        Some(Step {
            action: Action::Then(Box::new(then)),
            inputs: product.inputs.iter().chain(&group.inputs).cloned().collect(),
            outputs,
            nodes: product.nodes.iter().chain(&group.nodes).copied().collect(),
        })
    }

    /// Makes one step of neighbouring groups that do not touch each other's memory.
    pub(crate) fn join_tiles(&mut self) {
        let mut joined: Vec<Step> = Vec::with_capacity(self.steps.len());
        for step in std::mem::take(&mut self.steps) {
            let conflict = |last: &Step| concurrent::conflict(self, last, &step);
            match (joined.last_mut(), &step.action) {
                (Some(last), Action::Tiles(programs))
                    if matches!(last.action, Action::Tiles(_))
                        && last.inputs.len() + step.inputs.len() <= MAX_OPERANDS
                        && last.outputs.len() + step.outputs.len() <= MAX_OPERANDS
                        && !conflict(last) =>
                {
                    if let Action::Tiles(all) = &mut last.action {
                        all.extend(programs.iter().cloned());
                    }
                    last.inputs.extend(step.inputs);
                    last.outputs.extend(step.outputs);
                    last.nodes.extend(step.nodes);
                }
                _ => joined.push(step),
            }
        }
        self.steps = joined;
    }
}
