//! Functions of any batch size: what a new size need not do again.
//!
//! A function is traced at every size, which is exact whatever it does with the size and costs little. Its graph is optimised as
//! that of any other function until three sizes have been: from then on sizes between the smallest and the largest of them
//! take the optimised graph as it is with other numbers, if the trace says that the function does the same there, and only
//! memory is planned. Whether a rewrite pays is decided by costs that are straight lines over the batch size,
//! so that what pays at both ends pays in between; beyond the ends the passes are run and, if they agree, the ends
//! move.

use thalweg_graph::{Graph, Template};
use thalweg_tensor::ambient::Ambient;
use thalweg_tensor::{Meta, Switch, Tensor};

use crate::tree::Tree;

/// Calls that differ in nothing but the batch size.
pub(crate) struct Family<A> {
    /// The arguments of the first call, as placeholders.
    args: A,
    /// For each tensor of the arguments, whether its first axis is the batch.
    follows: Vec<bool>,
    stand: Stand,
    known: Known,
}

/// How everything stood that is no argument and decides what a function does.
#[derive(Clone)]
pub(crate) struct Stand {
    pub ambient: Ambient,
    pub switches: Vec<(Switch, bool)>,
}

impl Stand {
    /// Whether it is still so.
    pub fn holds(&self) -> bool {
        self.ambient == Ambient::now() && self.switches.iter().all(|(switch, on)| switch.is_on() == *on)
    }
}

/// What is known of the passes.
pub(crate) enum Known {
    /// What they made of fewer than three sizes.
    Few(Vec<(usize, Graph, Graph)>),
    /// What they make of any.
    All(Box<Template>),
    /// They make something else of each size, or may.
    Never,
}

impl<A: Tree> Family<A> {
    /// Of these arguments; the batch is every first axis of this size.
    pub fn new(args: &A, size: usize, stand: Stand, known: Known) -> Self {
        let mut follows = Vec::new();
        args.visit(&mut |t| follows.push(t.shape().first() == Some(&size)));
        Self { args: args.map(&mut |t| placeholder_of(t.meta())), follows, stand, known }
    }

    /// Whether it has these arguments but for the batch size.
    pub fn fits(&self, args: &A, size: usize) -> bool {
        let mut follows = self.follows.iter();
        let resized =
            self.args.map(&mut |t| placeholder_of(&resized(t.meta(), follows.next() == Some(&true), size)));
        let mut now = Vec::new();
        args.visit(&mut |t| now.push(t.shape().first() == Some(&size)));
        now == self.follows && resized.fits(args) && self.stand.holds()
    }

    /// The optimised graph of a size whose recorded one is given, if it is known without passes, and what to say of it.
    pub fn at(&self, size: usize, recorded: &Graph) -> (Option<Graph>, String) {
        match &self.known {
            Known::All(template) => match template.at(size, recorded) {
                Ok(Some(graph)) => (Some(graph), "traced and planned, not optimised".to_owned()),
                Ok(None) => (None, String::new()),
                Err(why) => (None, format!("this batch size by itself: {why}")),
            },
            Known::Few(_) | Known::Never => (None, String::new()),
        }
    }

    /// Notes what passes made of a size, and says what that tells about others.
    pub fn note(&mut self, size: usize, recorded: &Graph, optimised: &Graph) -> String {
        match &mut self.known {
            Known::All(template) => template.note(size, recorded, optimised),
            Known::Few(seen) if seen.iter().all(|(n, ..)| *n != size) => {
                seen.push((size, recorded.clone(), optimised.clone()));
                if let Ok(three) = <[_; 3]>::try_from(seen.clone()) {
                    let (known, what) = match Template::new(three) {
                        Ok(template) => {
                            (Known::All(Box::new(template)), "serves every batch size".to_owned())
                        }
                        Err(why) => (Known::Never, format!("every batch size by itself: {why}")),
                    };
                    self.known = known;
                    return what;
                }
            }
            Known::Few(_) | Known::Never => {}
        }
        String::new()
    }
}

/// The same with another batch size, if its first axis is the batch.
fn resized(meta: &Meta, follows: bool, to: usize) -> Meta {
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
