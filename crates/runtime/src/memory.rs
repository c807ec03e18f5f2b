//! Where values lie: over old values of parameters, in memory that is handed out, over operands that are not read again, and
//! the rest in one arena.

use std::collections::HashMap;

use smallvec::{SmallVec, smallvec};
use thalweg_core::Layout;
use thalweg_tensor::Meta;

use crate::arena::{self, Lifetime};
use crate::concurrent;
use crate::plan::{Action, Home, Planner, Ref, Stage, Step, whole};

impl Planner<'_> {
    /// The last step that reads each storage. Steps that are done together, piece by piece, read until the last of them is.
    fn last_reads(&self) -> Vec<Option<usize>> {
        let mut last = vec![None; self.storages.len()];
        let mut end = 0;
        for (i, step) in self.steps.iter().enumerate() {
            end = end.max(i + self.n_followers(i));
            step.inputs.iter().for_each(|r| last[r.storage] = Some(end));
        }
        last
    }

    /// How many of the steps behind this one are done with it.
    pub(crate) fn n_followers(&self, step: usize) -> usize {
        self.followed.get(step).copied().unwrap_or(0)
    }

    /// Gives new values of parameters their place over the old one, where nothing reads that later.
    /// Returns the rest.
    pub(crate) fn write_in_place(&mut self) -> Vec<(usize, Ref)> {
        let writes = self.graph.writes.clone();
        let old: HashMap<usize, usize> = (0..self.storages.len())
            .filter_map(|s| if let Home::Param(p) = self.storages[s].home { Some((p, s)) } else { None })
            .collect();
        let roots: Vec<Ref> = self.graph.roots().map(|id| self.value(id).clone()).collect();
        let mut copies = Vec::new();
        for (param, id) in writes {
            let value = self.value(id).clone();
            let read_at_end = |s: usize| roots.iter().any(|r| self.is_part_of(s, r.storage));
            let in_place = match self.born[value.storage] {
                Some(born)
                    if self.is_on(Stage::InPlace)
                        && self.storages[value.storage].home == Home::Arena(0)
                        && whole(&value, &self.storages) =>
                {
                    old.get(&param)
                        .is_none_or(|&old| !read_at_end(old) && self.may_overwrite(old, value.storage, born))
                }
                _ => false,
            };
            match in_place {
                true => self.storages[value.storage].home = Home::Param(param),
                false => copies.push((param, value)),
            }
        }
        copies
    }

    pub(crate) fn copy_to_params(&mut self, copies: Vec<(usize, Ref)>) {
        // What is copied from a parameter's memory is saved first: that parameter may be written too.
        let mut saved = Vec::new();
        for (param, value) in copies {
            let from_param = matches!(self.storages[value.storage].home, Home::Param(_) | Home::Joined(_));
            let value = match from_param {
                true => {
                    let storage = self.copy(&value, Home::Arena(0));
                    Ref { storage, layout: Layout::contiguous(value.layout.shape().clone()) }
                }
                false => value,
            };
            saved.push((param, value));
        }
        for (param, value) in saved {
            self.copy(&value, Home::Param(param));
        }
    }

    /// Whether the step that writes `new` may write it into the memory of `old`: no later step reads
    /// the old value, and the step itself reads it only element by element.
    fn may_overwrite(&self, old: usize, new: usize, born: usize) -> bool {
        let reads = |step: &Step| step.inputs.iter().any(|r| self.is_part_of(old, r.storage));
        if self.steps[born + 1..].iter().any(reads) {
            return false;
        }
        let same_size = self.storages[old].len == self.storages[new].len
            && self.storages[old].dtype.size() == self.storages[new].dtype.size();
        let step = &self.steps[born];
        same_size
            && match &step.action {
                _ if !reads(step) => true,
                Action::Tiles(programs) => step
                    .inputs
                    .iter()
                    .zip(programs.iter().flat_map(|p| &p.operands))
                    .filter(|(r, _)| self.is_part_of(old, r.storage))
                    .all(|(r, o)| r.storage == old && o.is_in_step()),
                _ => false,
            }
    }

    /// Whether who reads `storage` reads all of `part`.
    fn is_part_of(&self, part: usize, storage: usize) -> bool {
        let homes = (self.storages[part].home, self.storages[storage].home);
        part == storage || matches!(homes, (Home::Param(p), Home::Joined(j)) if self.joined[j].contains(&p))
    }

    /// Gives results their place: in memory that is handed out.
    pub(crate) fn hand_out(&mut self) -> Vec<(Meta, usize)> {
        let mut outputs: Vec<(Meta, usize)> = Vec::new();
        for (i, (_, id)) in self.graph.outputs.iter().enumerate() {
            let (value, meta) = (self.value(*id).clone(), self.graph.node(*id).meta.clone());
            let same = self.graph.outputs[..i].iter().position(|(_, earlier)| earlier == id);
            if let Some(same) = same {
                outputs.push((meta, same));
                continue;
            }
            let in_place = self.born[value.storage].is_some()
                && self.storages[value.storage].home == Home::Arena(0)
                && whole(&value, &self.storages);
            match in_place {
                true => self.storages[value.storage].home = Home::Output(i),
                false => {
                    self.copy(&value, Home::Output(i));
                }
            }
            outputs.push((meta, i));
        }
        outputs
    }

    /// Lets a step write over an operand that is not read again.
    pub(crate) fn reuse_operands(&mut self) {
        let mut last = self.last_reads();
        let mut same: Vec<usize> = (0..self.storages.len()).collect();
        for i in 0..self.steps.len() {
            let step = &self.steps[i];
            let candidates: SmallVec<[usize; 4]> = match &step.action {
                Action::Tiles(programs) => {
                    (0..step.inputs.len()).filter(|&k| programs[0].operands[k].is_in_step()).collect()
                }
                Action::Op(op)
                    if op.reuses() & 1 != 0 && step.inputs.len() <= 2 && !step.nodes.is_empty() =>
                {
                    smallvec![0]
                }
                _ => continue,
            };
            let in_arena = |s: usize| self.storages[s].home == Home::Arena(0) && self.born[s].is_some();
            let continued = i.checked_sub(1).filter(|&p| self.n_followers(p) > 0).map(|p| &self.steps[p]);
            let read_meanwhile =
                |from: usize| continued.is_some_and(|p| p.inputs.iter().any(|r| same[r.storage] == from));
            // `from` is the first storage of a chain that has taken over each other's memory.
            let fits = |from: usize, to: usize| {
                in_arena(from)
                    && in_arena(to)
                    && from != to
                    && last[from] == Some(i)
                    && !read_meanwhile(from)
                    && self.storages[from].dtype == self.storages[to].dtype
                    && self.storages[from].len == self.storages[to].len
                    && step
                        .inputs
                        .iter()
                        .filter(|r| same[r.storage] == from)
                        .all(|r| whole(r, &self.storages))
            };
            let mut taken: SmallVec<[(usize, usize); 2]> = SmallVec::new();
            for &(to, _) in &step.outputs {
                let free = |s: usize| taken.iter().all(|&(from, _)| from != s);
                let mut firsts = candidates.iter().map(|&k| same[step.inputs[k].storage]);
                taken.extend(firsts.find(|&s| free(s) && fits(s, to)).map(|from| (from, to)));
            }
            if let (Action::Op(op), Some(&(from, _))) = (&step.action, taken.first()) {
                // Reading the operand twice while it is overwritten is for tile programs only.
                if step.inputs.iter().filter(|r| same[r.storage] == from).count() > 1 {
                    continue;
                }
                self.steps[i].action = Action::Overwrite(op.clone());
            }
            for (from, to) in taken {
                // From now on both are one storage, which lives as long as the result.
                last[from] = last[to];
                same[to] = from;
            }
        }
        for step in &mut self.steps {
            step.inputs.iter_mut().for_each(|r| r.storage = same[r.storage]);
            step.outputs.iter_mut().for_each(|o| o.0 = same[o.0]);
        }
        self.values.iter_mut().flatten().for_each(|v| v.storage = same[v.storage]);
    }

    /// Lays the rest out in the arena.
    pub(crate) fn place(&mut self) -> usize {
        let last = self.last_reads();
        let mut used = vec![false; self.storages.len()];
        self.steps.iter().flat_map(|s| &s.outputs).for_each(|&(s, _)| used[s] = true);
        let in_arena = |s: &usize| used[*s] && self.storages[*s].home == Home::Arena(0);
        let ids: Vec<usize> = (0..self.storages.len()).filter(in_arena).collect();
        let lifetime = |&s: &usize| {
            let born = self.born[s].expect("steps write what lies in the arena");
            let bytes = self.storages[s].len * self.storages[s].dtype.size();
            let last = last[s].unwrap_or(born).max(born);
            // A small value stays a little longer than it must, or neighbours that could run at the
            // same time would fight for its place.
            let slack = if bytes <= concurrent::SMALL { concurrent::HORIZON } else { 0 };
            let steps = if self.is_on(Stage::Arena) { born..=last + slack } else { 0..=self.steps.len() };
            Lifetime { bytes, steps }
        };
        let (offsets, size) = arena::place(&ids.iter().map(lifetime).collect::<Vec<_>>());
        for (&s, offset) in ids.iter().zip(offsets) {
            self.storages[s].home = Home::Arena(offset);
        }
        size
    }

    /// Tells tile programs which of their results lie in the memory of an operand.
    pub(crate) fn share_operands(&mut self) {
        for step in &mut self.steps {
            let Action::Tiles(programs) = &mut step.action else { continue };
            let [program] = &mut programs[..] else { unreachable!("joined after this") };
            for (k, operand) in step.inputs.iter().enumerate() {
                let home = self.storages[operand.storage].home;
                for (result, &(s, _)) in step.outputs.iter().enumerate() {
                    if self.storages[s].home == home {
                        program.share_memory(k, result);
                    }
                }
            }
        }
    }
}
