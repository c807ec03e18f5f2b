//! Decisions and loops in the text form of graphs: their bodies are texts inside the text.
//!
//! What is read may come from a file, so nothing is believed: whatever a body must be for its op to run is checked here,
//! and what the op needs of its operands where they are known (`CustomOp::infer`).

use serde::{Deserialize, Serialize};
use thalweg_core::DType;
use thalweg_graph::{Graph, GraphError, Kind};
use thalweg_tensor::Meta;
use thalweg_tensor::ops::Custom;

use super::body::Body;
use super::cond::Choice;
use super::loop_grad::LoopGrad;
use super::loops::{Loop, Shape};

/// Reads the text of a graph with decisions and loops in it.
///
/// ```
/// use thalweg_graph::Traced;
/// use thalweg_runtime::{parse_graph, scan};
/// use thalweg_tensor::{Meta, Tensor};
///
/// let xs = Meta::new(thalweg_core::DType::F32, [3]);
/// let traced = Traced::record(&[xs], |x| {
///     let (sum, _) = scan(Tensor::scalar(0.0), x[0].clone(), |sum, x| (sum + &x, x));
///     vec![sum]
/// });
/// let text = traced.graph.to_string();
/// assert_eq!(parse_graph(&text)?.to_string(), text);
/// # Ok::<(), thalweg_graph::GraphError>(())
/// ```
pub fn parse_graph(text: &str) -> Result<Graph, GraphError> {
    Graph::parse_with(text, &read)
}

#[derive(Serialize, Deserialize)]
enum Text {
    Cond(BodyText, BodyText),
    Loop(LoopText),
    LoopGrad(LoopText, LoopText),
}

#[derive(Serialize, Deserialize)]
struct LoopText {
    body: BodyText,
    test: Option<BodyText>,
    n_steps: usize,
    n_state: usize,
    #[serde(default)]
    n_hidden: usize,
    n_sequences: usize,
    n_found: usize,
    #[serde(default)]
    is_reversed: bool,
}

/// A text numbers operands in the order in which they stand; `order` has the true number of each.
#[derive(Serialize, Deserialize)]
struct BodyText {
    order: Vec<usize>,
    graph: String,
}

pub(super) fn of_choice(op: &Choice) -> String {
    let [then, otherwise] = op.bodies.each_ref().map(body_text);
    written(&Text::Cond(then, otherwise))
}

pub(super) fn of_loop(op: &Loop) -> String {
    written(&Text::Loop(loop_text(op)))
}

pub(super) fn of_loop_grad(op: &LoopGrad) -> String {
    written(&Text::LoopGrad(loop_text(&op.forward), loop_text(&op.back)))
}

fn written(text: &Text) -> String {
    ron::to_string(text).expect("numbers and texts can be written")
}

fn loop_text(op: &Loop) -> LoopText {
    LoopText {
        body: body_text(&op.body),
        test: op.test.as_ref().map(body_text),
        n_steps: op.shape.n_steps,
        n_state: op.shape.n_state,
        n_hidden: op.shape.n_hidden,
        n_sequences: op.shape.n_sequences,
        n_found: op.n_found,
        is_reversed: op.shape.is_reversed,
    }
}

fn body_text(body: &Body) -> BodyText {
    let order = body.graph.nodes().iter().filter_map(|node| match node.kind {
        Kind::Input(i) => Some(i),
        _ => None,
    });
    BodyText { order: order.collect(), graph: body.graph.to_string() }
}

fn read(text: &str) -> Result<Custom, String> {
    let text: Text = ron::from_str(text).map_err(|e| format!("no decision and no loop: {e}"))?;
    Ok(match text {
        Text::Cond(then, otherwise) => Custom::new(choice([read_body(then)?, read_body(otherwise)?])?),
        Text::Loop(text) => Custom::new(read_loop(text)?),
        Text::LoopGrad(forward, back) => Custom::new(loop_grad(read_loop(forward)?, read_loop(back)?)?),
    })
}

fn read_body(BodyText { order, graph }: BodyText) -> Result<Body, String> {
    let mut graph = parse_graph(&graph).map_err(|e| format!("in a body: {e}"))?;
    require(
        graph.params.is_empty() && graph.n_captured == 0 && graph.writes.is_empty(),
        "a body has operands and results, nothing else",
    )?;
    require(graph.reorder_inputs(&order), "the operands of a body have no order")?;
    Ok(Body::new(graph))
}

fn choice(bodies: [Body; 2]) -> Result<Choice, String> {
    let [then, otherwise] = bodies.each_ref().map(|b| (b.operands(), b.results()));
    require(then.1 == otherwise.1, "the branches give different results")?;
    require(then.0 == otherwise.0, "the branches have different operands")?;
    Ok(Choice::new(bodies))
}

fn read_loop(text: LoopText) -> Result<Loop, String> {
    let LoopText { body, test, n_steps, n_state, n_hidden, n_sequences, n_found, is_reversed } = text;
    let (body, test) = (read_body(body)?, test.map(read_body).transpose()?);
    let n_operands = n_state.checked_add(n_sequences).and_then(|n| n.checked_add(n_found));
    let (operands, results) = (body.operands(), body.results());
    require(n_operands == Some(operands.len()), "a loop's body has another number of operands")?;
    require(n_hidden <= n_state, "a loop has more parameters than state")?;
    let keeps = |metas: &[Meta]| metas.len() >= n_state && metas[..n_state] == operands[..n_state];
    require(keeps(&results), "a loop's body does not keep its state")?;
    let n_stacked = results.len() - n_state;
    require(n_stacked == 0 || n_steps > 0, "a loop without turns stacks nothing")?;
    if let Some(test) = &test {
        let decides = |m: &[&Meta]| matches!(m, [m] if m.dtype == DType::Bool && m.numel() == 1);
        require(decides(&test.graph.output_metas()), "a loop's test is no single bool")?;
        require(keeps(&test.operands()), "a loop's test looks at another state")?;
        require(n_stacked == 0 && n_sequences == 0, "a loop with a test has a state alone")?;
    }
    let long = operands[n_state..n_state + n_sequences].iter().chain(&results[n_state..]);
    for m in long {
        m.shape.inserted(0, n_steps).check_countable().map_err(|e| e.to_string())?;
    }
    let shape = Shape { n_steps, n_state, n_hidden, n_sequences, is_reversed };
    Ok(Loop::new(body.graph, test.map(|t| t.graph), shape))
}

fn loop_grad(forward: Loop, back: Loop) -> Result<LoopGrad, String> {
    require(forward.test.is_some() && back.test.is_none(), "the way back of a loop is that of a test")?;
    require(back.body.results().len() == back.shape.n_state, "the way back of a loop stacks something")?;
    let (there, here) = (forward.body.operands(), back.body.operands());
    let here = &here[back.shape.n_state..];
    let fits = back.shape.n_sequences == forward.shape.n_state && here.starts_with(&there);
    require(fits, "the way back of a loop has other operands")?;
    Ok(LoopGrad::new(forward, back))
}

fn require(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise.to_owned()) }
}
