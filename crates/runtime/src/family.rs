//! Functions of any batch size: which operands follow it, and what new sizes need not do again.
//!
//! A new size is never traced. Its graph is optimised as that of any other function until three sizes have been: from
//! then on sizes between the smallest and the largest of them take the optimised graph as it is with other numbers,
//! and only memory is planned. Whether a rewrite pays is decided by costs that are straight lines over the batch size,
//! so that what pays at both ends pays in between; beyond the ends the passes are run and, if they agree, the ends
//! move.

use std::ops::RangeInclusive;

use thalweg_graph::{Graph, Template, Traced};
use thalweg_tensor::{Meta, Switch, Tensor};

use crate::tree::Tree;

/// A function of any batch size.
pub(crate) struct Family<A, R> {
    /// The arguments that it was traced with, as placeholders.
    pub args: A,
    /// For each tensor of the arguments, whether its first axis is the batch.
    pub follows: Vec<bool>,
    pub results: R,
    pub template: Template,
    pub switches: Vec<(Switch, bool)>,
    pub optimised: Optimised,
}

impl<A: Tree, R> Family<A, R> {
    /// Whether it has these arguments but for the batch size.
    pub fn fits(&self, args: &A, size: usize) -> bool {
        let mut follows = self.follows.iter();
        let resized =
            self.args.map(&mut |t| placeholder_of(&resized(t.meta(), follows.next() == Some(&true), size)));
        resized.fits(args) && self.switches.iter().all(|(switch, on)| switch.is_on() == *on)
    }
}

/// What passes make of a function at several batch sizes.
pub(crate) enum Optimised {
    /// The sizes seen so far: fewer than three.
    Some(Vec<(usize, Traced, Graph)>),
    /// Three, and the sizes between which they are known to hold.
    All(Box<Template>, RangeInclusive<usize>),
    /// Passes make something else of each size, or may.
    Never,
}

impl Optimised {
    /// The optimised graph of a size, if it is known without passes.
    pub fn at(&self, size: usize) -> Option<Graph> {
        match self {
            Optimised::All(template, range) if range.contains(&size) => Some(template.at(size).ok()?.graph),
            _ => None,
        }
    }

    /// Notes what passes made of a size.
    pub fn note(&mut self, size: usize, traced: &Traced, graph: &Graph) {
        *self = match std::mem::replace(self, Optimised::Never) {
            Optimised::Some(mut seen) if seen.iter().all(|(n, ..)| *n != size) => {
                seen.push((size, traced.clone(), graph.clone()));
                match <[_; 3]>::try_from(seen) {
                    Ok(three) => Self::of(three),
                    Err(fewer) => Optimised::Some(fewer),
                }
            }
            Optimised::All(template, range) if template.agrees(size, graph).is_ok() => {
                let range = size.min(*range.start())..=size.max(*range.end());
                Optimised::All(template, range)
            }
            other => other,
        };
    }

    fn of(three: [(usize, Traced, Graph); 3]) -> Self {
        let sizes = three.each_ref().map(|(n, ..)| *n);
        let ends = sizes.iter().copied().min().zip(sizes.iter().copied().max());
        let template =
            Template::optimised(three.each_ref().map(|(n, traced, graph)| (*n, traced, graph.clone())));
        match (template, ends) {
            (Ok(template), Some((low, high))) => Optimised::All(Box::new(template), low..=high),
            _ => Optimised::Never,
        }
    }
}

/// The guesses which tensors follow the batch: all whose first axis is as long, or the first alone.
pub(crate) fn guesses(metas: &[Meta], size: usize) -> Vec<Vec<bool>> {
    let all: Vec<bool> = metas.iter().map(|m| m.shape.first() == Some(&size)).collect();
    let first: Vec<bool> = (0..metas.len()).map(|i| i == 0).collect();
    if all == first { vec![all] } else { vec![all, first] }
}

/// The same with another batch size, if its first axis is the batch.
pub(crate) fn resized(meta: &Meta, follows: bool, to: usize) -> Meta {
    let mut shape = meta.shape.clone();
    if follows {
        shape.dims_mut()[0] = to;
    }
    Meta { dtype: meta.dtype, shape }
}

/// A tensor of this kind that holds next to nothing.
pub(crate) fn placeholder_of(meta: &Meta) -> Tensor {
    Tensor::scalar(0).to_dtype(meta.dtype).broadcast_to(meta.shape.clone())
}
