//! Optimisers: one engine, [`Optimizer`], and one [`Rule`] per file.
//!
//! A rule says how one parameter moves, given its gradient and its slots. The engine does everything
//! else: gradients, groups, weight decay, clipping, the learning rate, names for checkpoints.
//! Everything a rule computes is tensor code without a look at values, so a compiled step fuses it.

mod adadelta;
mod adafactor;
mod adagrad;
mod adam;
mod adamax;
mod asgd;
mod engine;
mod group;
mod lbfgs;
mod line_search;
mod lion;
mod muon;
mod nadam;
mod radam;
mod rmsprop;
mod rprop;
mod sgd;
mod slots;

pub use adadelta::Adadelta;
pub use adafactor::Adafactor;
pub use adagrad::Adagrad;
pub use adam::{Adam, AdamW};
pub use adamax::Adamax;
pub use asgd::Asgd;
pub use engine::{Optimizer, Rule};
pub use group::{Decay, Group};
pub use lbfgs::{Lbfgs, LbfgsOptions, LineSearch};
pub use lion::Lion;
pub use muon::Muon;
pub use nadam::NAdam;
pub use radam::RAdam;
pub use rmsprop::RmsProp;
pub use rprop::Rprop;
pub use sgd::Sgd;
pub use slots::Slots;

/// `Name::new(lr)`: the rule with its usual settings.
macro_rules! with_defaults {
    ($Rule:ident) => {
        impl $Rule {
            /// The optimiser with the usual settings; for others, `Optimizer::new(rule, lr)`.
            #[allow(clippy::new_ret_no_self)] // what users want of a rule is the optimiser that runs it
            pub fn new(lr: f64) -> $crate::optim::Optimizer<$Rule> {
                $crate::optim::Optimizer::new($Rule::default(), lr)
            }
        }
    };
}
use with_defaults;
