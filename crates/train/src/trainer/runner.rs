//! How the functions of a training are run.

use thalweg_runtime::{Jit, Tree, autobatch, jit};

use crate::error::TrainError;

/// Three ways with the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Traced once per kind of batch, and replayed.
    Compiled,
    /// Line by line.
    Eager,
    /// Traced for each batch; equal ops of its samples are computed together.
    Autobatched,
}

/// A function and its compiled form.
pub(super) struct Runner<A, R, F> {
    mode: Mode,
    f: F,
    compiled: Jit<A, R, F>,
}

impl<A: Tree, R: Tree, F: Fn(A) -> R + Copy> Runner<A, R, F> {
    pub fn new(mode: Mode, f: F) -> Self {
        Self { mode, f, compiled: jit(f) }
    }

    pub fn call(&mut self, args: A) -> Result<R, TrainError> {
        Ok(match self.mode {
            Mode::Compiled => self.compiled.call(args)?,
            Mode::Eager => (self.f)(args),
            Mode::Autobatched => autobatch(|| (self.f)(args))?,
        })
    }

    /// A page with a drawing of the plan, once there is one.
    pub fn picture(&self, title: &str) -> Option<String> {
        (self.mode == Mode::Compiled).then(|| self.compiled.plan().to_html(title))
    }
}
