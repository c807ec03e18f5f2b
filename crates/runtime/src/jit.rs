//! `jit`: an ordinary function, traced once per kind of argument and replayed from a plan.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use thalweg_graph::{Graph, GraphError, Traced, passes};
use thalweg_tensor::ambient::Ambient;
use thalweg_tensor::{Meta, Param, Tensor, trace, without_derivative};

use crate::control::BodyOptions;
use crate::debug::{Debugger, Finding};
use crate::error::RunError;
use crate::executor::Executor;
use crate::explain;
use crate::family::{Family, Known, Stand, placeholder_of};
use crate::look::Written;
use crate::plan::{Plan, STAGES};
use crate::profile::Profile;
use crate::tree::Tree;

/// Compiles a function: it is run once on traced tensors for each kind of argument (structure, dtypes,
/// shapes), each state of the [`Switch`](thalweg_tensor::Switch)es that it looks at and each [`Ambient`] that it is called in, and
/// replayed from then on. The numbers are the same as without `jit`. The plans of the 64 kinds that were used last are kept.
///
/// Parameters that the function reads are read anew by each call, those it sets are updated in place.
/// Tensors that it captures are bound as they are. Code of the function that is no tensor code runs
/// only while it is traced.
///
/// ```
/// use thalweg_runtime::jit;
/// use thalweg_tensor::{Param, Tensor};
///
/// let w = Param::new("w", Tensor::from([1.0f32, 2.0]));
/// let mut step = jit(|x: Tensor| {
///     let loss = (w.get() * &x).square().sum(());
///     let g = loss.grad(&[&w]).remove(0);
///     w.set(&w.get() - g * 0.1);
///     loss
/// });
/// assert_eq!(step.call(Tensor::from([1.0f32, 1.0])).unwrap().item::<f32>(), 5.0);
/// assert_eq!(w.get().to_vec::<f32>(), [0.8, 1.6]);
/// ```
pub fn jit<A: Tree, R: Tree, F: FnMut(A) -> R>(f: F) -> Jit<A, R, F> {
    jit_with(JitOptions::default(), f)
}

/// [`jit`] with options.
pub fn jit_with<A: Tree, R: Tree, F: FnMut(A) -> R>(options: JitOptions, f: F) -> Jit<A, R, F> {
    let (compiled, families, log) = (Vec::new(), Vec::new(), Vec::new());
    Jit { f, options, compiled, families, last: 0, n_calls: 0, log, gathered: Vec::new() }
}

/// How a function is compiled.
#[derive(Debug, Clone, Default)]
pub struct JitOptions {
    /// Names of passes and [`STAGES`] of planning that are not run.
    pub without: Vec<String>,
    /// Bytes that intermediate values may take; see [`JitOptions::memory_budget`].
    pub memory_budget: Option<usize>,
    /// Whether what passes make of one batch size serves others; see [`JitOptions::any_batch`].
    pub any_batch: bool,
    /// The user's own passes; see [`JitOptions::with_pass`].
    passes: Vec<OwnPass>,
}

/// A user's own pass.
#[derive(Clone)]
struct OwnPass {
    name: String,
    run: Arc<dyn Fn(&Graph) -> Graph + Send + Sync>,
}

impl fmt::Debug for OwnPass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl JitOptions {
    /// Without any pass, and planned without any of the [`STAGES`].
    pub fn plain() -> Self {
        let names = passes::PASSES.iter().map(|(name, _)| name).chain(STAGES);
        Self { without: names.map(|&name| name.to_owned()).collect(), ..Self::default() }
    }

    /// Without one more pass, or stage of planning. A name that neither has is an error of the first call.
    pub fn without(mut self, pass: &str) -> Self {
        self.without.push(pass.to_owned());
        self
    }

    /// With one more pass, which runs after those that are built in and before values are recomputed, fused
    /// and planned. It may change anything but operands, parameters, results and writes; a graph that it breaks is an
    /// error of the call that names it. Passes of one's own run in the order in which they are added, also
    /// on the bodies of `cond`, `while_loop` and `scan`.
    ///
    /// ```
    /// use thalweg_graph::{Graph, Kind};
    /// use thalweg_runtime::{JitOptions, jit_with};
    /// use thalweg_tensor::{Tensor, ops};
    ///
    /// /// `exp(log(x))` is `x`, if one does not mind negative numbers.
    /// fn undo_log(graph: &Graph) -> Graph {
    ///     graph.rewrite(|out, node| match (&node.kind, &node.inputs[..]) {
    ///         (Kind::Op(ops::Op::Exp(_)), &[y]) if matches!(out.op(y), Some(ops::Op::Log(_))) => out.node(y).inputs[0],
    ///         _ => out.push(node),
    ///     })
    /// }
    ///
    /// let mut f = jit_with(JitOptions::default().with_pass("undo_log", undo_log), |x: Tensor| x.log().exp() + 1.0);
    /// assert_eq!(f.call(Tensor::from([-1.0f32]))?.item::<f32>(), 0.0);
    /// assert!(!f.plan().to_string().contains("log"));
    /// # Ok::<(), thalweg_runtime::RunError>(())
    /// ```
    pub fn with_pass(mut self, name: &str, pass: impl Fn(&Graph) -> Graph + Send + Sync + 'static) -> Self {
        self.passes.push(OwnPass { name: name.to_owned(), run: Arc::new(pass) });
        self
    }

    /// Intermediate values take at most this many bytes, or as few as can be had: those that are read
    /// again much later are computed again instead of kept. Results keep their bits.
    pub fn memory_budget(mut self, bytes: usize) -> Self {
        self.memory_budget = Some(bytes);
        self
    }

    /// The size of the first axis of the first tensor is the batch, and so is that of every tensor whose first axis is as
    /// long. The function is traced at each new size. Once three sizes have shown what passes make of them, a size between the
    /// smallest and the largest costs a trace and a plan of memory, but no passes, if the trace says that the function does the same at
    /// this size; otherwise it is compiled by itself. [`Jit::explain`] says which, and why.
    ///
    /// ```
    /// use thalweg_core::DType;
    /// use thalweg_runtime::{JitOptions, jit_with};
    /// use thalweg_tensor::Tensor;
    ///
    /// let mut mean = jit_with(JitOptions::default().any_batch(), |x: Tensor| x.mean(0));
    /// for n in [2, 100, 5, 7, 50] {
    ///     assert_eq!(mean.call(Tensor::ones([n, 2], DType::F32))?.to_vec::<f32>(), [1.0, 1.0]);
    /// }
    /// assert_eq!(mean.explain().matches("not optimised").count(), 2);
    /// # Ok::<(), thalweg_runtime::RunError>(())
    /// ```
    pub fn any_batch(mut self) -> Self {
        self.any_batch = true;
        self
    }

    /// What the body of a decision or loop is compiled with.
    pub(crate) fn of_body(&self) -> Self {
        Self { memory_budget: None, any_batch: false, ..self.clone() }
    }

    fn is_on(&self, name: &str) -> bool {
        !self.without.iter().any(|n| n == name)
    }

    /// Refuses names that nothing has.
    pub(crate) fn check(&self) -> Result<(), RunError> {
        let own = || self.passes.iter().map(|p| &p.name[..]);
        let known = || passes::PASSES.iter().map(|(n, _)| *n).chain(STAGES.iter().copied()).chain(own());
        match self.without.iter().find(|name| known().all(|k| k != *name)) {
            Some(name) => {
                let known = known().collect::<Vec<_>>().join(", ");
                Err(GraphError::NoPass { name: name.clone(), known }.into())
            }
            None => Ok(()),
        }
    }

    /// What is known of passes at other batch sizes before any call. A budget is kept by other means at each size, and a
    /// user's own pass may look at anything.
    fn reuse(&self) -> Known {
        match self.memory_budget.is_none() && self.passes.is_empty() {
            true => Known::Few(Vec::new()),
            false => Known::Never,
        }
    }

    /// The first pass after which `is_wrong` says so of the graph.
    pub(crate) fn blame(
        &self,
        graph: &Graph,
        executor: &Executor,
        mut is_wrong: impl FnMut(&Graph) -> bool,
    ) -> Option<String> {
        let mut graph = graph.clone();
        let built_in = passes::PASSES.iter().filter(|(name, _)| !passes::ANNOTATING.contains(name));
        let built_in = built_in.map(|(name, pass)| (*name, pass as &dyn Fn(&Graph) -> Graph));
        let own = self.passes.iter().map(|p| (&p.name[..], &*p.run as &dyn Fn(&Graph) -> Graph));
        for (name, pass) in built_in.chain(own).filter(|(name, _)| self.is_on(name)) {
            graph = pass(&graph);
            if is_wrong(&graph) {
                return Some(name.to_owned());
            }
        }
        // What is left before planning is the rematerialisation, if there is any.
        is_wrong(executor.plan().graph()).then(|| "rematerialise".to_owned())
    }

    pub(crate) fn plan(&self, graph: &Graph, captured: &[Tensor]) -> Plan {
        Plan::with(graph, captured, |stage| self.is_on(stage))
    }

    /// Runs the passes.
    pub(crate) fn optimise(&self, graph: &Graph, captured: &[Tensor]) -> Result<Graph, RunError> {
        let annotates = |name: &str| passes::ANNOTATING.contains(&name);
        let annotated = |graph: &Graph| passes::optimise(graph, |name| annotates(name) && self.is_on(name));
        let erased = passes::erase_marks(graph);
        let mut graph = passes::optimise(&erased, |name| !annotates(name) && self.is_on(name));
        for pass in self.passes.iter().filter(|p| self.is_on(&p.name)) {
            graph = passes::checked(&pass.name, &*pass.run, &graph)?;
        }
        if !self.passes.is_empty() && self.is_on("sweep") {
            graph = passes::dce(&graph);
        }
        if let Some(budget) = self.memory_budget {
            let arena = |graph: &Graph| self.plan(&annotated(graph), captured).arena_bytes();
            graph = passes::rematerialise(&graph, budget, arena);
        }
        Ok(annotated(&graph))
    }
}

/// How many plans a compiled function keeps, and how many families of batch sizes.
const MAX_PLANS: usize = 64;

/// A compiled function; see [`jit`].
pub struct Jit<A, R, F> {
    f: F,
    options: JitOptions,
    compiled: Vec<Compiled<A, R>>,
    /// Calls that differ in their batch size only.
    families: Vec<Family<A>>,
    last: usize,
    n_calls: u64,
    log: Vec<String>,
    /// The tensors of the arguments; kept to be filled again.
    gathered: Vec<Tensor>,
}

struct Compiled<A, R> {
    /// The arguments it was compiled for, with placeholders for tensors.
    args: A,
    /// The results, with placeholders for tensors.
    results: R,
    stand: Stand,
    executor: Executor,
    /// Captured tensors into which gradients flow in eager code.
    tracked: Vec<Tensor>,
    /// Parameters in which `backward` leaves the outputs behind the results.
    grads: Vec<Param>,
    n_results: usize,
    /// Parameters that are read and not set.
    read: Vec<Param>,
    /// Which call used it last.
    used: u64,
    /// Which compilation made it, as [`Jit::explain`] counts them.
    number: usize,
    /// The graph before any pass.
    recorded: Graph,
}

/// What a compiled function says when a gradient flows through its results.
const NO_DERIVATIVE: &str = "a compiled call has no derivative: differentiate inside the compiled function, or call it in `no_grad`, \
     or `stop_gradient` its results";

impl<A: Tree, R> Compiled<A, R> {
    /// What eager code would let gradients flow into from the results: of parameters that the function sets, the values
    /// it has read are gone.
    fn leaves(&self, args: &[Tensor]) -> Vec<Tensor> {
        if !self.stand.ambient.records {
            return Vec::new();
        }
        let mut leaves: Vec<Tensor> = args.iter().filter(|t| t.is_tracked()).cloned().collect();
        leaves.extend(self.tracked.iter().cloned());
        leaves.extend(self.read.iter().filter(|p| p.is_trainable()).map(Param::get));
        leaves
    }

    /// Whether the function would do the same with these arguments now.
    fn fits(&self, args: &A) -> bool {
        self.args.fits(args) && self.stand.holds()
    }

    fn debug(&mut self, options: &JitOptions, inputs: Vec<Tensor>) -> Result<Debugger<'_>, RunError> {
        let written = Arc::new(Written::new(&self.recorded, options));
        Debugger::new(&mut self.executor, written, inputs)
    }
}

impl<A: Tree, R: Tree, F: FnMut(A) -> R> Jit<A, R, F> {
    /// Calls the function. Inside another traced function its body is traced with that one.
    #[track_caller]
    pub fn call(&mut self, args: A) -> Result<R, RunError> {
        if trace::is_recording() {
            return Ok((self.f)(args));
        }
        self.prepare(args)?;
        let compiled = &mut self.compiled[self.last];
        let leaves = compiled.leaves(&self.gathered);
        let outputs = compiled.executor.run(&self.gathered);
        self.gathered.clear();
        let (outputs, grads) = outputs?.split_at_checked(compiled.n_results).expect("one output per result");
        compiled.grads.iter().zip(grads).for_each(|(param, grad)| param.add_grad(grad));
        let marked;
        let outputs = match leaves.is_empty() {
            true => outputs,
            false => {
                marked = without_derivative("jit", NO_DERIVATIVE, outputs.to_vec(), &leaves);
                &marked
            }
        };
        let mut outputs = outputs.iter();
        Ok(compiled.results.map(&mut |_| outputs.next().expect("one output per result").clone()))
    }

    /// Finds or makes the plan for these arguments and gathers their tensors.
    #[track_caller]
    fn prepare(&mut self, args: A) -> Result<(), RunError> {
        let known = match self.compiled.get(self.last) {
            Some(c) if c.fits(&args) => Some(self.last),
            _ => self.compiled.iter().position(|c| c.fits(&args)),
        };
        self.last = match known {
            Some(known) => known,
            None => self.compile(&args)?,
        };
        self.n_calls += 1;
        self.compiled[self.last].used = self.n_calls;
        // A call that panicked has left its own.
        self.gathered.clear();
        args.visit(&mut |t| self.gathered.push(t.clone()));
        Ok(())
    }

    /// A run of the function that goes step by step; parameters are as before when it ends.
    #[track_caller]
    pub fn debug(&mut self, args: A) -> Result<Debugger<'_>, RunError> {
        self.prepare(args)?;
        let inputs = std::mem::take(&mut self.gathered);
        self.compiled[self.last].debug(&self.options, inputs)
    }

    /// Compares with the function run eagerly: the first step whose values differ from those of its ops by more than `rtol`
    /// of their largest magnitude, or else the first result or parameter that a pass changed, or else the first that is not
    /// what the function itself gives. Parameters, and with them random state, are not changed.
    #[track_caller]
    pub fn verify(&mut self, args: A, rtol: f64) -> Result<Option<Finding>, RunError> {
        let same = args.map(&mut Tensor::clone);
        self.prepare(args)?;
        let inputs = std::mem::take(&mut self.gathered);
        let mut debugger = self.compiled[self.last].debug(&self.options, inputs)?;
        if let Some(found) = debugger.verify(rtol)? {
            return Ok(Some(found));
        }
        let f = &mut self.f;
        let want = debugger.eagerly(|| {
            let mut results = Vec::new();
            f(same).visit(&mut |t| results.push(t.clone()));
            results
        });
        let found = debugger.compare(&want, rtol, "the function run eagerly");
        Ok(found.map(|found| found.because("what was traced is not what it does eagerly")))
    }

    /// Times every step over some runs, one after the other, and one more run as it is. The function really runs:
    /// parameters change.
    #[track_caller]
    pub fn profile(&mut self, args: A, n_runs: usize) -> Result<Profile, RunError> {
        self.prepare(args)?;
        let inputs = std::mem::take(&mut self.gathered);
        Profile::measure(&mut self.compiled[self.last].executor, &inputs, n_runs)
    }

    /// The plan of the last call.
    ///
    /// # Panics
    /// When nothing was called yet.
    pub fn plan(&self) -> &Plan {
        self.compiled.get(self.last).expect("a plan is made by the first call").executor.plan()
    }

    /// How often, and why, the function was compiled: each time, what differed from the most similar of the calls that there was a
    /// plan for. Arguments are named by their place in the structure.
    ///
    /// ```
    /// use thalweg_runtime::jit;
    /// use thalweg_tensor::Tensor;
    ///
    /// let mut f = jit(|(x, power): (Tensor, i32)| (1..power).fold(x.clone(), |y, _| y * &x));
    /// f.call((Tensor::from([2.0f32]), 2))?;
    /// f.call((Tensor::from([2.0f32]), 3))?;
    /// f.call((Tensor::from([2.0f32, 3.0]), 3))?;
    /// assert_eq!(
    ///     f.explain(),
    ///     "compiled 3 times\n  1. first call: (f32[1])\n  2. unlike 1: argument.1 was 2, is 3\n  \
    ///      3. unlike 2: argument.0 was f32[1], is f32[2]"
    /// );
    /// # Ok::<(), thalweg_runtime::RunError>(())
    /// ```
    pub fn explain(&self) -> String {
        let mut text = format!("compiled {} times", self.log.len());
        self.log.iter().enumerate().for_each(|(i, why)| {
            let _ = write!(text, "\n{:>3}. {why}", i + 1);
        });
        text
    }

    #[track_caller]
    fn compile(&mut self, args: &A) -> Result<usize, RunError> {
        self.options.check()?;
        let metas = tensors(args);
        let before = self.compiled.iter().map(|c| (c.number, &c.args, &c.stand));
        let why = explain::why(before, args).unwrap_or_else(|| format!("first call: {}", list(&metas)));
        let ambient = Ambient::now();
        let (traced, results) = self.trace(args, &metas);
        self.log.push(why);
        let stand = Stand { ambient, switches: traced.switches.clone() };
        let size = metas.first().and_then(|m| m.shape.first().copied());
        // At sizes 0 and 1 code may rightly take other steps, such as leaving out an expansion.
        let graph = match size.filter(|&n| self.options.any_batch && n > 1) {
            Some(size) => self.optimise_any_batch(args, size, &stand, &traced)?,
            None => self.options.optimise(&traced.graph, &traced.captured)?,
        };
        let plan = self.options.plan(&graph, &traced.captured).compared_with(&traced.graph);
        let is_set = |p: usize| traced.graph.writes.iter().any(|(w, _)| *w == p);
        let read =
            (0..traced.params.len()).filter(|&p| !is_set(p)).map(|p| traced.params[p].clone()).collect();
        let tracked = traced.captured.iter().filter(|t| t.is_tracked()).cloned().collect();
        let executor = Executor::new(plan, traced.params, traced.captured);
        let (grads, n_results) = (traced.grads, tensors(&results).len());
        self.make_room();
        let args = args.map(&mut placeholder);
        self.compiled.push(Compiled {
            args,
            results,
            stand,
            executor,
            tracked,
            grads,
            n_results,
            read,
            used: 0,
            number: self.log.len(),
            recorded: traced.graph,
        });
        Ok(self.compiled.len() - 1)
    }

    /// Drops the plan that was not used for longest, if there are too many.
    fn make_room(&mut self) {
        if self.compiled.len() < MAX_PLANS {
            return;
        }
        let oldest = (0..self.compiled.len()).min_by_key(|&i| self.compiled[i].used).expect("there are many");
        let dropped = self.compiled.remove(oldest);
        self.say(&format!("dropped the plan for {}: {MAX_PLANS} are kept", list(&tensors(&dropped.args))));
    }

    /// Runs the function on traced tensors of these kinds.
    #[track_caller]
    fn trace(&mut self, args: &A, metas: &[Meta]) -> (Traced, R) {
        let _bodies = BodyOptions::set(&self.options);
        let mut results = None;
        let f = &mut self.f;
        let mut traced = Traced::record(metas, |inputs| run(f, args, inputs, &mut results));
        // Its gradients were taken while it was traced.
        traced.graph = passes::erase_marks(&traced.graph);
        (traced, results.expect("the function was traced"))
    }

    /// Runs the passes, unless it is known what they make of this batch size.
    fn optimise_any_batch(
        &mut self,
        args: &A,
        size: usize,
        stand: &Stand,
        traced: &Traced,
    ) -> Result<Graph, RunError> {
        let known = self.families.iter().position(|f| f.fits(args, size));
        let family = known.unwrap_or_else(|| {
            if self.families.len() == MAX_PLANS {
                self.families.remove(0);
            }
            self.families.push(Family::new(args, size, stand.clone(), self.options.reuse()));
            self.families.len() - 1
        });
        let (graph, what) = self.families[family].at(size, &traced.graph);
        self.say(&what);
        if let Some(graph) = graph {
            return Ok(graph);
        }
        let graph = self.options.optimise(&traced.graph, &traced.captured)?;
        let what = self.families[family].note(size, &traced.graph, &graph);
        self.say(&what);
        Ok(graph)
    }

    /// Adds to why the function is being compiled.
    fn say(&mut self, what: &str) {
        if let Some(why) = self.log.last_mut().filter(|_| !what.is_empty()) {
            let _ = write!(why, "; {what}");
        }
    }
}

/// Calls the function with these tensors in its arguments; the tensors of what it gives.
fn run<A: Tree, R: Tree>(
    f: &mut impl FnMut(A) -> R,
    args: &A,
    inputs: &[Tensor],
    results: &mut Option<R>,
) -> Vec<Tensor> {
    let mut inputs = inputs.iter();
    let args = args.map(&mut |_| inputs.next().expect("one input per tensor").clone());
    let out = f(args);
    let mut outputs = Vec::new();
    out.visit(&mut |t| outputs.push(t.clone()));
    *results = Some(out.map(&mut placeholder));
    outputs
}

/// A tensor of the same kind that holds next to nothing.
fn placeholder(t: &Tensor) -> Tensor {
    placeholder_of(t.meta())
}

/// Dtypes and shapes of all tensors.
fn tensors<A: Tree>(args: &A) -> Vec<Meta> {
    let mut metas = Vec::new();
    args.visit(&mut |t| metas.push(t.meta().clone()));
    metas
}

fn list(metas: &[Meta]) -> String {
    format!("({})", metas.iter().map(Meta::to_string).collect::<Vec<_>>().join(", "))
}
