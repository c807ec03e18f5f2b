//! The way back over the turns of a loop.
//!
//! That of a scan is two scans: one that goes forward again and stacks the state of each turn, and one over those from
//! the last to the first, whose state is the gradient of the state and the sums of the gradients of what the body
//! found. They are ops like any other and differentiate again. How often a `while_loop` turns is known only when it runs, so
//! nothing can be stacked: [`LoopGrad`] keeps the states itself.

use thalweg_core::{View, ViewMut};
use thalweg_graph::{Closed, Graph, Traced};
use thalweg_kernels::scratch::Scratch;
use thalweg_tensor::ops::{Cost, CustomOp};
use thalweg_tensor::{Meta, OpError, Tensor, trace};

use super::body::{nothing, of_op, plus, pull, pull_back, require_operands};
use super::loops::{Loop, Shape, Turns, put_away};
use super::packing::Packing;
use super::spares::Spares;
use super::{Several, metas, results_of, text};
use crate::executor::densely;

/// One turn back. Operands of its graph: the gradient of each float of the state, the sum so far for each thing found that is
/// reached; the state and the slices before the turn, the gradients of what it stacked; what it found, and constants.
/// Results: the gradients before the turn, the new sums, then the gradients of the slices that are reached.
struct TurnBack {
    graph: Graph,
    constants: Vec<Tensor>,
    /// Which slices and which things found get a gradient.
    slices: Vec<bool>,
    found: Vec<bool>,
}

impl Loop {
    /// See [`Several::pull`].
    pub(super) fn way_back(
        &self,
        x: &[Tensor],
        dy: &[Option<Tensor>],
        wants: &[bool],
    ) -> Vec<Option<Tensor>> {
        let Shape { n_steps, n_state, n_sequences, .. } = self.shape;
        let [state, sequences, found, tests] = self.roles(x);
        let (d_state, d_stacked) = dy.split_at(n_state);
        let back = self.turn_back(d_stacked, wants);
        let is_float = |t: &&Tensor| t.dtype().is_float();
        let starts: Vec<Tensor> = state
            .iter()
            .zip(d_state)
            .filter(|(s, _)| is_float(s))
            .map(|(s, d)| d.clone().unwrap_or_else(|| nothing(s.meta())))
            .chain(chosen(found, &back.found).map(|f| nothing(f.meta())))
            .collect();
        let n_back = starts.len();
        let results = match &self.test {
            None => {
                let again = self.states();
                let mut states = results_of(again, &[state, sequences, found].concat()).split_off(n_state);
                states.extend(sequences.iter().cloned().chain(d_stacked.iter().flatten().cloned()));
                let shape = Shape {
                    n_steps,
                    n_state: n_back,
                    n_hidden: 0,
                    n_sequences: states.len(),
                    is_reversed: !self.shape.is_reversed,
                };
                let op = Loop::new(back.graph, None, shape);
                results_of(op, &[&starts[..], &states, found, &back.constants].concat())
            }
            Some(test) => {
                let forward = Loop::new(self.body.graph.clone(), Some(test.graph.clone()), self.shape);
                let shape =
                    Shape { n_state: n_back, n_sequences: n_state, is_reversed: true, ..Shape::default() };
                let op = LoopGrad::new(forward, Loop::new(back.graph, None, shape));
                results_of(op, &[x, &starts, &back.constants].concat())
            }
        };
        let mut results = results.into_iter();
        let mut grads: Vec<Option<Tensor>> =
            state.iter().map(|s| if s.dtype().is_float() { results.next() } else { None }).collect();
        let of_found: Vec<Option<Tensor>> =
            back.found.iter().map(|&r| if r { results.next() } else { None }).collect();
        grads.extend((0..n_sequences).map(|k| if back.slices[k] { results.next() } else { None }));
        grads.extend(of_found);
        grads.extend(tests.iter().map(|_| None));
        grads
    }

    /// The same loop, stacking the state before each turn and nothing else.
    fn states(&self) -> Loop {
        let mut graph = self.body.graph.clone();
        graph.outputs.truncate(self.shape.n_state);
        for (i, kind) in self.body.operands().iter().take(self.shape.n_state).enumerate() {
            let id = graph.input(i, kind);
            graph.outputs.push((format!("before{i}"), id));
        }
        Loop::new(graph, None, self.shape)
    }

    fn turn_back(&self, d_stacked: &[Option<Tensor>], wants: &[bool]) -> TurnBack {
        let Shape { n_state, n_hidden, n_sequences, .. } = self.shape;
        let (operands, results) = (self.body.operands(), self.body.results());
        let float =
            |list: &[Meta]| -> Vec<Meta> { list.iter().filter(|m| m.dtype.is_float()).cloned().collect() };
        let d_state = float(&operands[..n_state]);
        let pieces: Vec<Meta> = results[n_state..]
            .iter()
            .zip(d_stacked)
            .filter(|(_, d)| d.is_some())
            .map(|(m, _)| m.clone())
            .collect();
        let (n_operands, n_d_state) = (operands.len(), d_state.len());
        let mut reached = Vec::new();
        let kinds = [&operands[..], &d_state, &pieces].concat();
        let pulled = Traced::record(&kinds, |v| {
            let (x, d) = v.split_at(n_operands);
            let (d_state, pieces) = d.split_at(n_d_state);
            let (mut d_state, mut pieces) = (d_state.iter(), pieces.iter());
            let mut dy: Vec<Option<Tensor>> = Vec::new();
            for (i, kind) in operands[..n_state].iter().enumerate() {
                let d = if kind.dtype.is_float() { d_state.next().cloned() } else { None };
                dy.push(d.filter(|_| i < n_state - n_hidden));
            }
            dy.extend(d_stacked.iter().map(|d| d.as_ref().and_then(|_| pieces.next().cloned())));
            // The state is on the way to everything else.
            let wants: Vec<bool> = (0..n_operands).map(|i| i < n_state || wants[i]).collect();
            let grads = pull_back(&self.body.graph, x, &dy, &wants);
            reached = grads.iter().map(Option::is_some).collect();
            grads.into_iter().flatten().collect()
        })
        .close();
        let (slices, found) = reached[n_state..].split_at(n_sequences);
        let (slices, found) = (slices.to_vec(), found.to_vec());
        let Closed { graph, captured: constants, .. } =
            summed(&pulled, &operands, &reached, n_state, n_sequences, &pieces);
        TurnBack { graph, constants, slices, found }
    }
}

/// The pull-back of a turn with its operands in the order of [`TurnBack`], and sums of the gradients of what was found.
fn summed(
    pulled: &Closed,
    operands: &[Meta],
    reached: &[bool],
    n_state: usize,
    n_sequences: usize,
    pieces: &[Meta],
) -> Closed {
    let n_front = n_state + n_sequences;
    let d_state: Vec<Meta> = operands[..n_state].iter().filter(|m| m.dtype.is_float()).cloned().collect();
    let sums: Vec<Meta> = chosen(&operands[n_front..], &reached[n_front..]).cloned().collect();
    let constants = metas(&pulled.captured);
    let kinds =
        [&d_state[..], &sums, &operands[..n_front], pieces, &operands[n_front..], &constants].concat();
    let mut turn = Traced::record(&kinds, |v| {
        let mut rest = v;
        let mut take = |n: usize| {
            let (first, others) = rest.split_at(n);
            rest = others;
            first
        };
        let (d_state, sums, before) = (take(d_state.len()), take(sums.len()), take(n_front));
        let (pieces, found, constants) =
            (take(pieces.len()), take(operands.len() - n_front), take(constants.len()));
        let inputs = [before, found, d_state, pieces, constants].concat();
        let grads = pulled.graph.evaluate(&inputs).unwrap_or_else(|e| panic!("{e}"));
        let mut grads = grads.into_iter();
        let mut each = reached.iter().map(|&r| if r { grads.next() } else { None });
        let of_state: Vec<Option<Tensor>> = each.by_ref().take(n_state).collect();
        let of_slices: Vec<Tensor> = each.by_ref().take(n_sequences).flatten().collect();
        let of_found: Vec<Tensor> = each.flatten().collect();
        let floats = operands[..n_state].iter().zip(of_state).filter(|(m, _)| m.dtype.is_float());
        let mut results: Vec<Tensor> = floats.map(|(m, g)| g.unwrap_or_else(|| nothing(m))).collect();
        results.extend(sums.iter().zip(&of_found).map(|(sum, g)| sum + g));
        results.extend(of_slices);
        results
    })
    .close();
    turn.captured = [&pulled.captured[..], &turn.captured].concat();
    turn
}

fn chosen<'a, T>(list: &'a [T], which: &'a [bool]) -> impl Iterator<Item = &'a T> {
    list.iter().zip(which).filter(|(_, chosen)| **chosen).map(|(t, _)| t)
}

/// The pull-back of a `while_loop`: runs it again, keeps the state of each turn, and goes back over them. Operands: those of
/// the loop; what the state of the way back starts with; its constants. The slices of the way back are the kept states.
pub(super) struct LoopGrad {
    pub(super) forward: Loop,
    pub(super) back: Loop,
    memory: Spares<Turns>,
}

impl LoopGrad {
    pub(super) fn new(forward: Loop, back: Loop) -> Self {
        Self { forward, back, memory: Spares::default() }
    }

    /// Dtypes and shapes of the operands.
    fn operands(&self) -> Vec<Meta> {
        let mut operands = self.forward.operands();
        let back = self.back.body.operands();
        let Shape { n_state, n_sequences, .. } = self.back.shape;
        operands.extend_from_slice(&back[..n_state]);
        operands.extend_from_slice(&back[n_state + n_sequences + self.forward.n_found..]);
        operands
    }

    /// The operands of the loop, what the way back starts with, its constants.
    fn parts<'a, T>(&self, x: &'a [T]) -> [&'a [T]; 3] {
        let n_constants = self.back.n_found - self.forward.n_found;
        let (rest, constants) = x.split_at(x.len() - n_constants);
        let (loop_, starts) = rest.split_at(rest.len() - self.back.shape.n_state);
        [loop_, starts, constants]
    }

    /// The same by loops that keep nothing: each turn back begins with all turns before it. It takes the square of the time
    /// and differentiates again.
    fn anew(&self, x: &[Tensor]) -> Vec<Tensor> {
        let [x, starts, constants] = self.parts(x);
        let [state, _, found, tests] = self.forward.roles(x);
        let n_hidden = self.forward.shape.n_hidden;
        let test = self.forward.test.as_ref().expect("a way back of its own is that of a test");
        let none = || Tensor::scalar(0i64);
        let counted = |goes_on: &dyn Fn(&Tensor, &[Tensor]) -> Tensor| {
            let body = |s: &[Tensor]| {
                let next = self.forward.body.inline(&[&s[1..], found]);
                [vec![&s[0] + 1i64], next].concat()
            };
            again(&[vec![none()], state.to_vec()].concat(), n_hidden, |s| goes_on(&s[0], &s[1..]), body)
        };
        let n_turns = counted(&|_, s| test.inline(&[s, tests]).remove(0)).remove(0);
        let back = |d: &[Tensor]| {
            let before = &d[0] - 1i64;
            let s = counted(&|n, _| n.lt(&before)).split_off(1);
            let d = self.back.body.inline(&[&d[1..], &s, found, constants]);
            [vec![before], d].concat()
        };
        again(&[vec![n_turns], starts.to_vec()].concat(), 0, |d| d[0].gt(0i64), back).split_off(1)
    }
}

/// `while_loop` of a list, the last of which are parameters that the body sets.
fn again(
    start: &[Tensor],
    n_hidden: usize,
    goes_on: impl Fn(&[Tensor]) -> Tensor,
    body: impl Fn(&[Tensor]) -> Vec<Tensor>,
) -> Vec<Tensor> {
    let n_seen = start.len() - n_hidden;
    if !trace::is_recording() {
        let mut state = start.to_vec();
        while goes_on(&state).reshape(()).item::<bool>() {
            state = body(&state);
            state[n_seen..].iter_mut().for_each(|s| *s = s.stop_gradient());
        }
        return state;
    }
    let kinds = metas(start);
    let turn = Traced::record(&kinds, |s| body(s)).close();
    let test = Traced::record(&kinds, |s| vec![goes_on(s)]).close();
    let shape = Shape { n_state: start.len(), n_hidden, ..Shape::default() };
    let op = Loop::new(turn.graph, Some(test.graph), shape);
    results_of(op, &[start, &turn.captured, &test.captured].concat())
}

impl Several for LoopGrad {
    fn packing(&self) -> &Packing {
        self.back.packing()
    }

    fn pull(&self, x: &[Tensor], dy: &[Option<Tensor>], wants: &[bool]) -> Vec<Option<Tensor>> {
        pull(x, dy, wants, |x| self.anew(x))
    }
}

impl CustomOp for LoopGrad {
    fn name(&self) -> &str {
        "loop_grad"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, OpError> {
        require_operands("loop_grad", inputs, &self.operands())?;
        Ok(self.packing().meta())
    }

    fn text(&self) -> Option<String> {
        Some(text::of_loop_grad(self))
    }

    /// That of the loop, and of as many turns back.
    fn cost(&self, inputs: &[&Meta], output: &Meta) -> Cost {
        plus(self.forward.cost(inputs, output), self.back.body.cost())
    }

    fn inside(&self) -> Vec<String> {
        [self.forward.inside(), self.back.body.inside("back over each turn")].concat()
    }

    fn eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) {
        self.try_eval(x, y).unwrap_or_else(|e| panic!("{e}"));
    }

    fn try_eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let [x, starts, constants] = self.parts(x);
        let [state, _, found, _] = self.forward.roles(x);
        let (mut turns, mut back) = (self.forward.memory(), self.memory.take(Turns::default));
        let n_turns = self.forward.run(x, &mut turns, true, |_, _| {})?;
        // As much stays for the next run as this one needed.
        turns.results.truncate(n_turns);
        let mut body = self.back.body.hold()?;
        let (n_back, n_state) = (starts.len(), state.len());
        let around = |i: usize| if i < found.len() { *found[i] } else { *constants[i - found.len()] };
        back.found.resize(self.back.n_found, None);
        for (i, copy) in back.found.iter_mut().enumerate() {
            if !around(i).layout().is_contiguous() {
                densely(&around(i), copy);
            }
        }
        let Turns { results, found: copies } = &mut *back;
        for t in (0..n_turns).rev() {
            let is_first = t + 1 == n_turns;
            let operands = Scratch::each(n_back + n_state + self.back.n_found, |i| {
                match (i.checked_sub(n_back), i.checked_sub(n_back + n_state)) {
                    (None, _) if is_first => *starts[i],
                    (None, _) => results[0][i].view(),
                    (Some(k), None) if t == 0 => *state[k],
                    (Some(k), None) => turns.results[t - 1][k].view(),
                    (_, Some(k)) => match &copies[k] {
                        Some(copy) if !around(k).layout().is_contiguous() => copy.view(),
                        _ => around(k),
                    },
                }
            });
            body.run_on(&operands).map_err(of_op)?;
            drop(operands);
            put_away(&mut body, results, 0);
        }
        for (i, start) in starts.iter().enumerate() {
            let last = if n_turns == 0 { **start } else { results[0][i].view() };
            self.packing().write(i, 0, &last, y);
        }
        Ok(())
    }

    fn vjp(&self, x: &[Tensor], _y: &Tensor, dy: &Tensor) -> Vec<Option<Tensor>> {
        self.pull_packed(x, dy)
    }
}
