//! Sessions: a graph with its state, fed and fetched by name.

use std::sync::Arc;

use thalweg_graph::{Graph, Kind, NodeId, Traced};
use thalweg_tensor::{Meta, Param, Tensor};

use crate::debug::{Debugger, Finding};
use crate::error::RunError;
use crate::executor::Executor;
use crate::jit::JitOptions;
use crate::look::Written;
use crate::plan::Plan;
use crate::profile::Profile;

/// Runs parts of a graph: those that the fetched nodes need. Each set of fetches is planned once.
///
/// ```
/// use thalweg_graph::Graph;
/// use thalweg_runtime::Session;
/// use thalweg_tensor::Tensor;
///
/// let graph: Graph = "x = input \"x\" : f32[2]; w = param \"w\" : f32[2]; \
///     h = mul x w; y = sum(axes:[0]) h; label h=h; return y=y".parse()?;
/// let graph = graph.differentiate("y", &["w"])?;
/// let mut session = Session::new(graph, [("w", Tensor::from([2.0f32, 3.0]))])?;
/// let x = Tensor::from([1.0f32, 10.0]);
/// let values = session.run(&[("x", &x)], &["y", "h", "dy/dw"])?;
/// assert_eq!(values[0].item::<f32>(), 32.0);
/// assert_eq!(values[1].to_vec::<f32>(), [2.0, 30.0]);
/// assert_eq!(values[2].to_vec::<f32>(), [1.0, 10.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Session {
    graph: Graph,
    params: Vec<Param>,
    captured: Vec<Tensor>,
    options: JitOptions,
    planned: Vec<Planned>,
}

/// A part of the graph, ready to run.
struct Planned {
    fetches: Vec<NodeId>,
    params: Params,
    /// Names of the operands it takes.
    inputs: Vec<String>,
    executor: Executor,
    /// The part before any pass.
    part: Graph,
}

/// What becomes of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Params {
    /// They keep their values, as in [`Session::run`].
    Keep,
    /// They get the new values that the graph writes, as in [`Session::update`].
    Update,
}

impl Session {
    /// A session over a graph and the values of all its parameters.
    pub fn new<N: Into<String>>(
        graph: Graph,
        params: impl IntoIterator<Item = (N, Tensor)>,
    ) -> Result<Self, RunError> {
        if graph.n_captured > 0 {
            return Err(RunError::Captured { n_captured: graph.n_captured });
        }
        let mut values: Vec<(String, Tensor)> = params.into_iter().map(|(n, t)| (n.into(), t)).collect();
        let known = graph.params.join(", ");
        if let Some((name, _)) = values.iter().find(|(name, _)| !graph.params.contains(name)) {
            return Err(RunError::NoName { role: "param", name: name.clone(), known });
        }
        let mut params = Vec::new();
        for name in &graph.params {
            let Some(at) = values.iter().position(|(n, _)| n == name) else {
                return Err(RunError::Unbound { role: "param", names: missing(&graph.params, &values) });
            };
            params.push(Param::state(name.clone(), values.swap_remove(at).1));
        }
        Self::bound(graph, params, Vec::new())
    }

    /// A session over a traced function; it shares the function's parameters.
    pub fn of(traced: Traced) -> Result<Self, RunError> {
        Self::bound(traced.graph, traced.params, traced.captured)
    }

    /// A session with everything at hand, by position.
    pub fn bound(graph: Graph, params: Vec<Param>, captured: Vec<Tensor>) -> Result<Self, RunError> {
        thalweg_graph::verify(&graph)?;
        for node in graph.nodes() {
            let bound = match node.kind {
                Kind::Param(i) => params.get(i).map(|p| (graph.params[i].clone(), p.meta())),
                Kind::Captured(i) => captured.get(i).map(|t| (format!("captured{i}"), t.meta().clone())),
                _ => continue,
            };
            match bound {
                Some((_, got)) if got == node.meta => {}
                Some((name, got)) => {
                    let (want, got) = (Box::new(node.meta.clone()), Box::new(got));
                    return Err(RunError::Bound { name, want, got });
                }
                None => return Err(RunError::Captured { n_captured: graph.n_captured }),
            }
        }
        Ok(Self { graph, params, captured, options: JitOptions::default(), planned: Vec::new() })
    }

    /// Compiles with these options from now on: passes switched off, passes of one's own, a memory budget.
    pub fn with_options(mut self, options: JitOptions) -> Result<Self, RunError> {
        options.check()?;
        self.options = options;
        self.planned.clear();
        Ok(self)
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The parameters, by position.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// The captured tensors, by position.
    pub fn captured(&self) -> &[Tensor] {
        &self.captured
    }

    /// A parameter by name.
    pub fn param(&self, name: &str) -> Result<&Param, RunError> {
        let known = || self.graph.params.join(", ");
        let at = self.graph.params.iter().position(|p| p == name);
        at.map(|at| &self.params[at]).ok_or_else(|| RunError::NoName {
            role: "param",
            name: name.to_owned(),
            known: known(),
        })
    }

    /// The values of some nodes, given the operands that they need. Parameters keep theirs.
    pub fn run(&mut self, feeds: &[(&str, &Tensor)], fetches: &[&str]) -> Result<Vec<Tensor>, RunError> {
        self.go(feeds, fetches, Params::Keep)
    }

    /// [`Session::run`], after which parameters have the new values that the graph writes.
    pub fn update(&mut self, feeds: &[(&str, &Tensor)], fetches: &[&str]) -> Result<Vec<Tensor>, RunError> {
        self.go(feeds, fetches, Params::Update)
    }

    /// The plan for some nodes: to be printed, or shown as a page by [`Plan::to_html`].
    ///
    /// ```
    /// use thalweg_graph::Graph;
    /// use thalweg_runtime::{Params, Session};
    /// let graph: Graph = "x = input \"x\" : f32[2]; y = exp x; return y=y".parse()?;
    /// let mut session = Session::new(graph, [] as [(&str, _); 0])?;
    /// assert!(session.plan(Params::Keep, &["y"])?.to_string().contains("exp"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn plan(&mut self, params: Params, fetches: &[&str]) -> Result<&Plan, RunError> {
        let at = self.planned(fetches, params)?;
        Ok(self.planned[at].executor.plan())
    }

    /// A run that goes step by step. Parameters are not changed, whatever `params` says of the steps.
    pub fn debug(
        &mut self,
        params: Params,
        feeds: &[(&str, &Tensor)],
        fetches: &[&str],
    ) -> Result<Debugger<'_>, RunError> {
        let (at, operands) = self.prepare(feeds, fetches, params)?;
        let Planned { executor, part, .. } = &mut self.planned[at];
        Debugger::new(executor, Arc::new(Written::new(part, &self.options)), operands)
    }

    /// The first step, fetched value or parameter that is not what the graph gives op by op; see [`Debugger::verify`].
    pub fn verify(
        &mut self,
        params: Params,
        feeds: &[(&str, &Tensor)],
        fetches: &[&str],
        rtol: f64,
    ) -> Result<Option<Finding>, RunError> {
        self.debug(params, feeds, fetches)?.verify(rtol)
    }

    /// Times every step over some runs. The runs are real: with [`Params::Update`] parameters change.
    pub fn profile(
        &mut self,
        params: Params,
        feeds: &[(&str, &Tensor)],
        fetches: &[&str],
        n_runs: usize,
    ) -> Result<Profile, RunError> {
        let (at, operands) = self.prepare(feeds, fetches, params)?;
        Profile::measure(&mut self.planned[at].executor, &operands, n_runs)
    }

    fn go(
        &mut self,
        feeds: &[(&str, &Tensor)],
        fetches: &[&str],
        params: Params,
    ) -> Result<Vec<Tensor>, RunError> {
        let (at, operands) = self.prepare(feeds, fetches, params)?;
        Ok(self.planned[at].executor.run(&operands)?.to_vec())
    }

    /// The plan for these fetches, and its operands.
    fn prepare(
        &mut self,
        feeds: &[(&str, &Tensor)],
        fetches: &[&str],
        params: Params,
    ) -> Result<(usize, Vec<Tensor>), RunError> {
        let known = || self.graph.inputs.join(", ");
        if let Some((name, _)) = feeds.iter().find(|(name, _)| !self.graph.inputs.iter().any(|n| n == name)) {
            return Err(RunError::NoName { role: "feed", name: (*name).to_owned(), known: known() });
        }
        let at = self.planned(fetches, params)?;
        let planned = &self.planned[at];
        let mut operands = Vec::new();
        for name in &planned.inputs {
            match feeds.iter().find(|(n, _)| n == name) {
                Some((_, value)) => {
                    let want = self.input(name)?;
                    if value.meta() != want {
                        let (want, got) = (Box::new(want.clone()), Box::new(value.meta().clone()));
                        return Err(RunError::Bound { name: name.clone(), want, got });
                    }
                    operands.push((*value).clone());
                }
                None => {
                    let fed: Vec<(String, ())> = feeds.iter().map(|(n, _)| ((*n).to_owned(), ())).collect();
                    return Err(RunError::Unbound { role: "operand", names: missing(&planned.inputs, &fed) });
                }
            }
        }
        Ok((at, operands))
    }

    /// The plan for these fetches, made if it is not there.
    fn planned(&mut self, names: &[&str], params: Params) -> Result<usize, RunError> {
        let fetches = names.iter().map(|name| self.graph.find(name)).collect::<Result<Vec<_>, _>>()?;
        if let Some(known) = self.planned.iter().position(|p| p.fetches == fetches && p.params == params) {
            return Ok(known);
        }
        let outputs: Vec<(String, NodeId)> =
            names.iter().zip(&fetches).map(|(name, &id)| ((*name).to_owned(), id)).collect();
        let part = self.graph.part(&outputs, params == Params::Update);
        let graph = self.options.optimise(&part, &self.captured)?;
        let plan = self.options.plan(&graph, &self.captured).compared_with(&part);
        let executor = Executor::new(plan, self.params.clone(), self.captured.clone());
        self.planned.push(Planned { fetches, params, inputs: part.inputs.clone(), executor, part });
        Ok(self.planned.len() - 1)
    }

    /// Dtype and shape of an operand.
    pub fn input(&self, name: &str) -> Result<&Meta, RunError> {
        let is_it = |kind: &Kind| matches!(kind, Kind::Input(i) if self.graph.inputs[*i] == name);
        let node = self.graph.nodes().iter().find(|n| is_it(&n.kind));
        node.map(|n| &n.meta).ok_or_else(|| RunError::NoName {
            role: "feed",
            name: name.to_owned(),
            known: self.graph.inputs.join(", "),
        })
    }
}

/// The names that nothing was given for.
fn missing<T>(wanted: &[String], given: &[(String, T)]) -> String {
    let is_missing = |name: &&String| !given.iter().any(|(n, _)| n == *name);
    wanted.iter().filter(is_missing).cloned().collect::<Vec<_>>().join(", ")
}
