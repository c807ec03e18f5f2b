//! Convolutions whose result is never there as a whole: its planes go through the group that continues it and into a pooling
//! while they are in a cache, and no memory is planned for them.

use thalweg_core::Shape;
use thalweg_tensor::Meta;

use crate::plan::{Action, Home, Planner, Pool, Step, whole};

impl Planner<'_> {
    /// Finds the convolutions that are continued by a group of one result which only a pooling reads, and takes
    /// the memory of what is between from the plan.
    pub(crate) fn pass_planes(&mut self) {
        let mut n_readers = vec![0; self.storages.len()];
        self.steps.iter().flat_map(|s| &s.inputs).for_each(|r| n_readers[r.storage] += 1);
        for i in 0..self.steps.len().saturating_sub(2) {
            if self.n_followers(i) > 0 && self.planes_pass(i, &n_readers) {
                self.followed[i] = 2;
                for step in &mut self.steps[i..i + 2] {
                    self.storages[step.outputs[0].0].home = Home::Passing;
                    if let Action::Tiles(programs) = &mut step.action {
                        programs[0].keep_results_near();
                    }
                }
            }
        }
    }

    fn planes_pass(&self, i: usize, n_readers: &[usize]) -> bool {
        let [conv, group, pool] = &self.steps[i..i + 3] else { return false };
        let (Action::Op(conv_op), Action::Tiles(programs), Action::Op(pool_op)) =
            (&conv.action, &group.action, &pool.action)
        else {
            return false;
        };
        let ([_], [product], [result], [read]) =
            (&programs[..], &conv.outputs[..], &group.outputs[..], &pool.inputs[..])
        else {
            return false;
        };
        let is_alone = |s: usize| n_readers[s] == 1 && self.storages[s].home == Home::Arena(0);
        let kind = |s: usize, shape: &Shape| Meta::new(self.storages[s].dtype, shape);
        let operands: Vec<Meta> = conv.inputs.iter().map(|r| kind(r.storage, r.layout.shape())).collect();
        read.storage == result.0
            && whole(read, &self.storages)
            && read.layout.shape() == &product.1
            && pool_op.plane_rank().is_some_and(|rank| rank + 2 == product.1.rank())
            && is_alone(product.0)
            && is_alone(result.0)
            && self.storages[result.0].dtype == self.storages[product.0].dtype
            && conv_op.passes_planes(&operands.iter().collect::<Vec<_>>(), &kind(product.0, &product.1))
    }
}

impl Step {
    /// Makes the pooling after a convolution and its group a part of their step.
    pub(crate) fn take_planes(&mut self, pool: Step) {
        let (Action::Then(then), Action::Op(op)) = (&mut self.action, pool.action) else {
            unreachable!("only what a group continues passes planes, and only to an op");
        };
        let [from, to] = [&then.product, &pool.outputs[0]].map(|(_, shape)| shape[2..].into());
        then.pool = Some(Pool { op, from, to });
        self.outputs = pool.outputs;
        self.nodes.extend(pool.nodes);
    }
}
