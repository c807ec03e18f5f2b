//! A body that runs again and again.

use smallvec::SmallVec;
use thalweg_core::{Layout, View, ViewMut};
use thalweg_graph::{Closed, Graph, NodeId, Traced};
use thalweg_kernels::scratch::Scratch;
use thalweg_tensor::ops::{Cost, CustomOp};
use thalweg_tensor::{Meta, OpError, Param, Tensor, trace};

use super::body::{Body, of_op, place_operands, plus, require_operands, times};
use super::packing::Packing;
use super::spares::{Spares, Taken};
use super::{
    Several, after_set, metas, reaches, require_bool, results_of, skeleton, tensors, text, with_tensors,
};
use crate::executor::{Executor, densely};
use crate::tree::Tree;

/// Goes on with `state = body(state)` as long as `condition(&state)`, a single `bool`, is true. The
/// body keeps dtypes, shapes and whatever is no tensor; it may set parameters, the condition may not. Gradients run the
/// loop again and keep the state of each turn; gradients of gradients do not keep it but find it anew for each turn.
///
/// ```
/// use thalweg_runtime::{jit, while_loop};
/// use thalweg_tensor::Tensor;
/// let mut halve = jit(|x: Tensor| while_loop(x, |x| x.abs().amax(()).gt(1.0), |x| x * 0.5));
/// assert_eq!(halve.call(Tensor::from([12.0f32, 2.0])).unwrap().to_vec::<f32>(), [0.75, 0.125]);
/// ```
#[track_caller]
pub fn while_loop<T: Tree>(state: T, condition: impl Fn(&T) -> Tensor, body: impl Fn(T) -> T) -> T {
    if !trace::is_recording() {
        let mut state = state;
        loop {
            let goes_on = condition(&state);
            require_bool("while_loop", goes_on.meta());
            if !goes_on.reshape(()).item::<bool>() {
                return state;
            }
            state = body(state);
        }
    }
    let start = tensors(&state);
    let kinds = metas(&start);
    let mut next = None;
    let turn = Traced::record(&kinds, |x| {
        let state = body(with_tensors(&state, x));
        next = Some(skeleton(&state));
        tensors(&state)
    })
    .close();
    require_kept("while_loop", &state, &next.expect("the body was traced"));
    let test = Traced::record(&kinds, |x| vec![condition(&with_tensors(&state, x))]).close();
    require_bool("while_loop", test.graph.output_metas()[0]);
    let results = turn_again(turn, Some(test), 0, &start, &[]);
    with_tensors(&state, &results)
}

/// `(state, y) = body(state, x)` for each slice x of `xs` along axis 0, which all its tensors have in
/// common: the last state, and the y's stacked along a new axis 0. Where there are no slices the state stays, and the
/// body is traced to know what to stack nothing of.
///
/// ```
/// use thalweg_runtime::{jit, scan};
/// use thalweg_tensor::Tensor;
/// let mut sums = jit(|x: Tensor| scan(Tensor::scalar(0.0f32), x, |sum, x| (&sum + &x, &sum + &x)));
/// let (total, partial) = sums.call(Tensor::from([1.0f32, 2.0, 3.0])).unwrap();
/// assert_eq!(total.item::<f32>(), 6.0);
/// assert_eq!(partial.to_vec::<f32>(), [1.0, 3.0, 6.0]);
/// ```
#[track_caller]
pub fn scan<S: Tree, X: Tree, Y: Tree>(state: S, xs: X, body: impl Fn(S, X) -> (S, Y)) -> (S, Y) {
    let all = tensors(&xs);
    let n_steps = all.first().filter(|x| x.rank() > 0).map(|x| x.size(0));
    let share = |n: usize| all.iter().all(|x| x.rank() > 0 && x.size(0) == n);
    let Some(n_steps) = n_steps.filter(|&n| share(n)) else {
        panic!("scan: the tensors to go over must share an axis 0, they are {:?}", metas(&all));
    };
    if n_steps > 0 && !trace::is_recording() {
        return scan_eagerly(state, n_steps, &xs, body);
    }
    let start = tensors(&state);
    let slices = metas(&all).into_iter().map(|m| Meta { shape: m.shape.without(0), ..m });
    let operands: Vec<Meta> = metas(&start).into_iter().chain(slices).collect();
    let (mut next, mut shape) = (None, None);
    let turn = Traced::record(&operands, |x| {
        let (s, x) = x.split_at(start.len());
        let (state, y) = body(with_tensors(&state, s), with_tensors(&xs, x));
        (next, shape) = (Some(skeleton(&state)), Some(skeleton(&y)));
        [tensors(&state), tensors(&y)].concat()
    })
    .close();
    require_kept("scan", &state, &next.expect("the body was traced"));
    let shape = shape.expect("the body was traced");
    if n_steps == 0 {
        let n_stacked = tensors(&shape).len();
        let kinds = turn.graph.output_metas().into_iter().skip(start.len()).take(n_stacked);
        let empty = kinds.map(|m| Tensor::zeros(m.shape.inserted(0, 0), m.dtype)).collect::<Vec<_>>();
        return (state, with_tensors(&shape, &empty));
    }
    let results = turn_again(turn, None, n_steps, &start, &all);
    let (last, ys) = results.split_at(start.len());
    (with_tensors(&state, last), with_tensors(&shape, ys))
}

#[track_caller]
fn scan_eagerly<S: Tree, X: Tree, Y: Tree>(
    mut state: S,
    n_steps: usize,
    xs: &X,
    body: impl Fn(S, X) -> (S, Y),
) -> (S, Y) {
    let mut ys = Vec::new();
    for t in 0..n_steps {
        let (next, y) = body(state, xs.map(&mut |x| x.select(0, t as isize)));
        state = next;
        ys.push(y);
    }
    assert!(
        ys.iter().all(|y| skeleton(y).fits(&skeleton(&ys[0]))),
        "scan: the turns give results of different structure, or different plain numbers or names; a number that \
         changes is to be a tensor"
    );
    let each: Vec<Vec<Tensor>> = ys.iter().map(tensors).collect();
    let stack = |k: usize| Tensor::stack(&each.iter().map(|y| y[k].clone()).collect::<Vec<_>>(), 0);
    let stacked: Vec<Tensor> = (0..each[0].len()).map(stack).collect();
    (state, with_tensors(&ys[0], &stacked))
}

/// A body is compiled once for all turns, so what is no tensor in the state cannot change.
#[track_caller]
fn require_kept<T: Tree>(op: &str, start: &T, next: &T) {
    assert!(
        skeleton(start).fits(next),
        "{op}: the body changes the structure of the state, or a plain number or name in it, which a compiled loop \
         cannot follow; carry what changes as a tensor (`Tensor::scalar`)"
    );
}

/// Applies a loop, whose operands are the state and the slices, and sets the parameters that its body sets: they are
/// carried behind the state.
#[track_caller]
fn turn_again(
    turn: Closed,
    test: Option<Closed>,
    n_steps: usize,
    state: &[Tensor],
    sequences: &[Tensor],
) -> Vec<Tensor> {
    let n = state.len();
    let next: Vec<Meta> = turn.graph.output_metas().into_iter().take(n).cloned().collect();
    assert!(
        next == metas(state),
        "a loop's body must keep the state's dtypes and shapes: {:?} became {next:?}",
        metas(state)
    );
    if let Some((test, &p)) = test.as_ref().and_then(|t| Some((t, t.written.first()?))) {
        let name = test.params[p].name();
        panic!("while_loop: the condition sets param `{name}`; set it in the body");
    }
    let written: Vec<Param> = turn.written.iter().map(|&p| turn.params[p].clone()).collect();
    let state: Vec<Tensor> = state.iter().cloned().chain(written.iter().map(Param::get)).collect();
    let shape = Shape { n_steps, n_state: state.len(), n_hidden: written.len(), ..Shape::default() };
    let (graph, own) = carry(turn, n, sequences, &state, &written);
    let (test, tests) = test.map(|t| carry(t, n, &[], &state, &written)).unzip();
    let tests = tests.unwrap_or_default();
    let ids: Vec<NodeId> = graph.outputs.iter().map(|&(_, id)| id).collect();
    let (set, shown) = (&ids[n..state.len()], [&ids[..n], &ids[state.len()..]].concat());
    let read_again: Vec<bool> = set.iter().map(|&id| reaches(&graph, &shown, id)).collect();
    let name = if test.is_some() { "while_loop" } else { "scan" };
    let op = Loop::new(graph, test, Shape { n_sequences: sequences.len(), ..shape });
    let operands = [&state[..], sequences, &own, &tests].concat();
    let mut results = results_of(op, &operands);
    let values = results.drain(n..state.len()).collect();
    after_set(name, results, &written, values, |i| read_again[i])
}

/// A body of (state, slices, what it found) that sets parameters as one of (state, parameters, slices, what else it
/// found), and what that is. `state` has the parameters behind its first `n`.
fn carry(
    body: Closed,
    n: usize,
    sequences: &[Tensor],
    state: &[Tensor],
    written: &[Param],
) -> (Graph, Vec<Tensor>) {
    let mut found: Vec<Tensor> = body.captured.clone();
    let front = state.len() + sequences.len();
    let mut places: Vec<usize> = (0..n).chain(state.len()..front + found.len()).collect();
    for param in &body.params {
        places.push(match written.iter().position(|w| w.id() == param.id()) {
            Some(h) => n + h,
            None => {
                found.push(param.get());
                front + found.len() - 1
            }
        });
    }
    let slices = metas(sequences).into_iter().map(|m| Meta { shape: m.shape.without(0), ..m });
    let kinds: Vec<Meta> = metas(state).into_iter().chain(slices).chain(metas(&found)).collect();
    let mut graph = place_operands(&body.graph, &places, &kinds);
    // New values of parameters are the last results; they belong behind the state.
    if let Some(n_moved) = graph.outputs.len().checked_sub(n) {
        graph.outputs[n..].rotate_right(body.written.len().min(n_moved));
    }
    (graph, found)
}

/// How the operands and results of a loop's body divide.
#[derive(Clone, Copy, Default)]
pub(super) struct Shape {
    /// How often, where no test decides.
    pub n_steps: usize,
    pub n_state: usize,
    /// So many at the end of the state are parameters that the body sets: a gradient reaches what a turn reads of them, but
    /// none goes from turn to turn, as none goes through `Param::set`.
    pub n_hidden: usize,
    pub n_sequences: usize,
    /// From the last slice to the first.
    pub is_reversed: bool,
}

/// A body that runs again and again. Its operands: the state, one slice of each sequence, what it
/// found around it. Its results: the state, then what is stacked. Operands of the op: the state, the
/// sequences, what the body found, what the test found.
pub(super) struct Loop {
    pub(super) body: Body,
    pub(super) test: Option<Body>,
    pub(super) shape: Shape,
    pub(super) n_found: usize,
    packing: Packing,
    memory: Spares<Turns>,
}

/// Memory that stays from run to run, so that a warm one asks for none.
#[derive(Default)]
pub(super) struct Turns {
    /// What turns gave: the last one, or each.
    pub(super) results: Vec<Vec<Tensor>>,
    /// What the bodies found, where it is not dense.
    pub(super) found: Vec<Option<Tensor>>,
}

impl Loop {
    pub(super) fn new(body: Graph, test: Option<Graph>, shape: Shape) -> Self {
        let mut parts: Vec<Meta> = body.output_metas().into_iter().cloned().collect();
        parts.iter_mut().skip(shape.n_state).for_each(|m| m.shape = m.shape.inserted(0, shape.n_steps));
        Self {
            n_found: body.inputs.len() - shape.n_state - shape.n_sequences,
            body: Body::new(body),
            test: test.map(Body::new),
            shape,
            packing: Packing::new(parts),
            memory: Spares::default(),
        }
    }

    /// Dtypes and shapes of the operands: a sequence has a slice for each turn.
    pub(super) fn operands(&self) -> Vec<Meta> {
        let Shape { n_steps, n_state, n_sequences, .. } = self.shape;
        let mut operands = self.body.operands();
        for slice in operands.iter_mut().skip(n_state).take(n_sequences) {
            slice.shape = slice.shape.inserted(0, n_steps);
        }
        operands.extend(self.test.iter().flat_map(|test| test.operands().split_off(n_state)));
        operands
    }

    /// The operands by their roles.
    pub(super) fn roles<'a, T>(&self, x: &'a [T]) -> [&'a [T]; 4] {
        let (state, rest) = x.split_at(self.shape.n_state);
        let (sequences, rest) = rest.split_at(self.shape.n_sequences);
        let (found, tests) = rest.split_at(self.n_found);
        [state, sequences, found, tests]
    }

    /// Runs the loop; `each` sees what every turn stacked. The number of turns; their results are in `turns`: all of
    /// them, or the last.
    pub(super) fn run(
        &self,
        x: &[&View<'_>],
        turns: &mut Turns,
        keeps_all: bool,
        mut each: impl FnMut(usize, &[Tensor]),
    ) -> Result<usize, OpError> {
        let [state, sequences, found, _] = self.roles(x);
        let n_front = state.len() + sequences.len();
        turns.found.resize(x.len() - n_front, None);
        for (copy, view) in turns.found.iter_mut().zip(&x[n_front..]) {
            // What does not change is made dense once, not in each turn.
            if !view.layout().is_contiguous() {
                densely(view, copy);
            }
        }
        let (kept, results) = (&turns.found, &mut turns.results);
        let around = |i: usize| match &kept[i] {
            Some(copy) if !x[n_front + i].layout().is_contiguous() => copy.view(),
            _ => *x[n_front + i],
        };
        let mut body = self.body.hold()?;
        let mut test = self.test.as_ref().map(Body::hold).transpose()?;
        let mut t = 0usize;
        loop {
            let last = t.checked_sub(1).map(|t| if keeps_all { t } else { 0 });
            let now = |i: usize| last.map_or_else(|| *state[i], |last| results[last][i].view());
            let goes_on = match &mut test {
                Some(test) => {
                    let n_tests = x.len() - n_front - found.len();
                    let operands =
                        Scratch::each(state.len() + n_tests, |i| match i.checked_sub(state.len()) {
                            Some(k) => around(found.len() + k),
                            None => now(i),
                        });
                    decides(test.run_on(&operands).map_err(of_op)?)
                }
                None => t < self.shape.n_steps,
            };
            if !goes_on {
                return Ok(t);
            }
            let place = self.place(t);
            let slices: SmallVec<[Layout; 12]> =
                sequences.iter().map(|s| s.layout().select(0, place)).collect();
            let operands = Scratch::each(n_front + found.len(), |i| match i.checked_sub(state.len()) {
                None => now(i),
                Some(k) if k < sequences.len() => sequences[k].with_layout(&slices[k]),
                Some(k) => around(k - sequences.len()),
            });
            each(place, &body.run_on(&operands).map_err(of_op)?[state.len()..]);
            drop(operands);
            put_away(&mut body, results, if keeps_all { t } else { 0 });
            t += 1;
        }
    }

    /// Which slice a turn is for.
    fn place(&self, t: usize) -> usize {
        if self.shape.is_reversed { self.shape.n_steps - 1 - t } else { t }
    }

    pub(super) fn memory(&self) -> Taken<'_, Turns> {
        self.memory.take(Turns::default)
    }
}

/// Takes the results of a run away, and gives the executor the memory that lies in their place for the next.
pub(super) fn put_away(body: &mut Executor, results: &mut Vec<Vec<Tensor>>, at: usize) {
    if results.len() == at {
        results.push(body.spare_outputs());
    }
    body.swap_outputs(&mut results[at]);
}

fn decides(results: &[Tensor]) -> bool {
    results[0].view().iter::<bool>().next().unwrap_or(false)
}

impl Several for Loop {
    fn packing(&self) -> &Packing {
        &self.packing
    }

    fn pull(&self, x: &[Tensor], dy: &[Option<Tensor>], wants: &[bool]) -> Vec<Option<Tensor>> {
        self.way_back(x, dy, wants)
    }
}

impl CustomOp for Loop {
    fn name(&self) -> &str {
        if self.test.is_some() { "while_loop" } else { "scan" }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, OpError> {
        require_operands(self.name(), inputs, &self.operands())?;
        Ok(self.packing.meta())
    }

    fn text(&self) -> Option<String> {
        Some(text::of_loop(self))
    }

    /// That of all turns of a scan; of one turn where values decide how many there are.
    fn cost(&self, _inputs: &[&Meta], _output: &Meta) -> Cost {
        match &self.test {
            Some(test) => plus(self.body.cost(), test.cost()),
            None => times(self.body.cost(), self.shape.n_steps),
        }
    }

    fn has_effect(&self) -> bool {
        self.body.has_effect() || self.test.as_ref().is_some_and(Body::has_effect)
    }

    fn inside(&self) -> Vec<String> {
        match &self.test {
            Some(test) => [test.inside("as long as"), self.body.inside("each turn")].concat(),
            None => {
                let back = if self.shape.is_reversed { ", the last first" } else { "" };
                self.body.inside(&format!("each of {} turns{back}", self.shape.n_steps))
            }
        }
    }

    fn eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) {
        self.try_eval(x, y).unwrap_or_else(|e| panic!("{e}"));
    }

    fn try_eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let n_state = self.shape.n_state;
        let mut turns = self.memory();
        let n_turns = self.run(x, &mut turns, false, |place, stacked| {
            for (k, piece) in stacked.iter().enumerate() {
                self.packing.write(n_state + k, place, &piece.view(), y);
            }
        })?;
        for (i, start) in x[..n_state].iter().enumerate() {
            let last = if n_turns == 0 { **start } else { turns.results[0][i].view() };
            self.packing.write(i, 0, &last, y);
        }
        Ok(())
    }

    fn vjp(&self, x: &[Tensor], _y: &Tensor, dy: &Tensor) -> Vec<Option<Tensor>> {
        self.pull_packed(x, dy)
    }
}
