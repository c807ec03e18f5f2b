//! What passes make of a function at any batch size, from what they made of it at three.
//!
//! Sizes and attributes of a traced graph are numbers; which of them follow the batch cannot be read off one
//! trace. Three traces tell: a number that lies on a straight line through all of them follows the
//! batch, and a function whose traces differ in any other way is refused. The function is traced at every new
//! size too, and what it did there must lie on the lines: only the passes are spared. A constant in every place, such as 1 / n,
//! may be any function of the size, since the new trace says what it is. The verifier infers every
//! shape again, so that a wrong number cannot pass.

use std::ops::RangeInclusive;

use thalweg_core::Shape;
use thalweg_tensor::Meta;
use thalweg_tensor::ops::Op;

use crate::graph::{Graph, Kind, Node, NodeId};
use crate::literal::{Literal, first};
use crate::passes::dce;
use crate::verify::verify;

/// The optimised graph of a function at any batch size.
///
/// ```
/// use thalweg_core::DType;
/// use thalweg_graph::{Graph, Template, Traced, passes};
/// use thalweg_tensor::Meta;
/// let mean = |n: usize| Traced::record(&[Meta::new(DType::F32, [n, 4])], |x| vec![x[0].mean(0)]).graph;
/// let optimised = |graph: &Graph| passes::optimise(graph, |_| true);
/// let template = Template::new([3, 7, 14].map(|n| (n, mean(n), optimised(&mean(n)))))?;
/// let graph = template.at(9, &mean(9))?.expect("between the smallest and the largest size");
/// assert_eq!(graph.to_string(), optimised(&mean(9)).to_string());
/// # Ok::<(), String>(())
/// ```
pub struct Template {
    /// The function as recorded.
    recorded: Lines,
    /// What passes made of it.
    optimised: Lines,
    /// For each node of the optimised graph that is a constant of the batch size: the recorded constants that it may be.
    constants: Vec<(NodeId, Vec<NodeId>)>,
    /// The sizes between which passes are known to do the same.
    between: RangeInclusive<usize>,
}

impl Template {
    /// The function of which these are traces, each with its batch size and with what passes made of it. The error says
    /// which node does not follow the batch.
    pub fn new(traces: [(usize, Graph, Graph); 3]) -> Result<Template, String> {
        let sizes = traces.each_ref().map(|(n, ..)| *n);
        let live = traces.each_ref().map(|(_, recorded, _)| dce(recorded));
        let [(_, a, x), (_, b, y), (_, c, z)] = traces;
        let known = changing([&a, &b, &c]);
        let found = changing([&x, &y, &z]);
        // A constant that a pass computed from the size need not be on any curve that is known here.
        let computed = found.iter().any(|(_, value)| !known.iter().any(|(_, k)| k == value));
        let used =
            changing(live.each_ref()).into_iter().all(|(_, value)| found.iter().any(|(_, f)| *f == value));
        let of = |value: &[Literal; 3]| known.iter().filter(|(_, k)| k == value).map(|(id, _)| *id).collect();
        let constants = found.iter().map(|(id, value)| (*id, of(value))).collect();
        let ends = [sizes[0], sizes[1]];
        let (recorded, optimised) = (Lines { ends, graphs: [a, b] }, Lines { ends, graphs: [x, y] });
        // The lines go through the first two; the third must lie on them.
        recorded.at(sizes[2])?.agrees(&c)?;
        if computed || !used {
            return Err("a pass computed a constant from the batch size".to_owned());
        }
        optimised.at(sizes[2])?.agrees(&z).map_err(|why| format!("passes: {why}"))?;
        let [low, high] =
            [sizes.into_iter().min(), sizes.into_iter().max()].map(|n| n.expect("three of them"));
        Ok(Template { recorded, optimised, constants, between: low..=high })
    }

    /// The optimised graph of this batch size, of which the recorded one is given: `None` where passes might do something
    /// else. The error says what the function itself does not do as at the other sizes.
    pub fn at(&self, size: usize, recorded: &Graph) -> Result<Option<Graph>, String> {
        self.recorded.at(size)?.agrees(recorded)?;
        if !self.between.contains(&size) {
            return Ok(None);
        }
        let graph = self.predicted(size, recorded);
        Ok(graph.filter(|graph| verify(graph).is_ok()))
    }

    /// Notes what passes made of a size beyond the ends.
    pub fn note(&mut self, size: usize, recorded: &Graph, optimised: &Graph) {
        if self.recorded.at(size).and_then(|guess| guess.agrees(recorded)).is_err() {
            return;
        }
        let predicted = self.predicted(size, recorded);
        let same = |graph: Graph| {
            graph.nodes().len() == optimised.nodes().len()
                && graph.outputs == optimised.outputs
                && graph.writes == optimised.writes
                && graph.nodes().iter().zip(optimised.nodes()).all(|(a, b)| alike(a, b) && a.kind == b.kind)
        };
        if predicted.is_some_and(same) {
            let (low, high) = (*self.between.start(), *self.between.end());
            self.between = size.min(low)..=size.max(high);
        }
    }

    fn predicted(&self, size: usize, recorded: &Graph) -> Option<Graph> {
        let mut graph = self.optimised.at(size).ok()?.0;
        for (id, candidates) in &self.constants {
            let mut values = candidates.iter().map(|&id| number(recorded.node(id)));
            let value = values.next()??;
            // Two constants that were equal at three sizes may differ at this one.
            if values.any(|other| other.as_ref() != Some(&value)) {
                return None;
            }
            let node = &mut graph.nodes_mut()[id.index()];
            node.kind = Kind::Literal(Literal::new(value.tensor().broadcast_to(node.meta.shape.clone())));
        }
        Some(graph)
    }
}

/// The constants that are one number in every place, another one at each of three sizes.
fn changing(graphs: [&Graph; 3]) -> Vec<(NodeId, [Literal; 3])> {
    let n = graphs.map(|g| g.nodes().len()).into_iter().min().unwrap_or(0);
    let each = (0..n).filter_map(|i| {
        let id = NodeId(i as u32);
        let [a, b, c] = graphs.map(|g| number(g.node(id)));
        Some((id, [a?, b?, c?]))
    });
    each.filter(|(_, [a, b, c])| a != b || b != c).collect()
}

/// The number that a constant is in every place.
fn number(node: &Node) -> Option<Literal> {
    match &node.kind {
        Kind::Literal(literal) if literal.uniform().is_some() => Some(Literal::new(first(literal.tensor()))),
        _ => None,
    }
}

fn unfollowed(node: &Node) -> String {
    let name = if let Kind::Op(op) = &node.kind { op.name() } else { "a constant" };
    let at = node.at.map_or(String::new(), |at| format!(" ({at})"));
    format!("{name}{at} does not follow the batch size in a straight line")
}

/// Whether two nodes stand at the same place of their graphs and have results of the same kind.
fn alike(a: &Node, b: &Node) -> bool {
    a.inputs == b.inputs && a.region == b.region && a.group == b.group && a.meta == b.meta
}

/// A graph at two batch sizes.
struct Lines {
    ends: [usize; 2],
    graphs: [Graph; 2],
}

/// What two sizes say about a third. Numbers that are constants of the size are those of the first.
struct Guess<'a>(Graph, &'a Lines);

impl Lines {
    fn at(&self, size: usize) -> Result<Guess<'_>, String> {
        let [a, b] = &self.graphs;
        if a.nodes().len() != b.nodes().len() || a.outputs != b.outputs || a.writes != b.writes {
            return Err("the function takes other steps at another batch size".to_owned());
        }
        let line = Line { from: self.ends[0], to: self.ends[1], at: size };
        let mut graph = a.like();
        for (x, y) in a.nodes().iter().zip(b.nodes()) {
            graph.push(line.node(x, y).ok_or_else(|| unfollowed(y))?);
        }
        graph.outputs.clone_from(&a.outputs);
        graph.writes.clone_from(&a.writes);
        Ok(Guess(graph, self))
    }
}

impl Guess<'_> {
    /// Whether it is this graph, but for constants of the size; the error names the first node that is not.
    fn agrees(&self, graph: &Graph) -> Result<(), String> {
        let Guess(guess, lines) = self;
        if guess.nodes().len() != graph.nodes().len()
            || guess.outputs != graph.outputs
            || guess.writes != graph.writes
        {
            return Err("the function takes other steps at another batch size".to_owned());
        }
        let differs = |&id: &NodeId| {
            let (want, got) = (guess.node(id), graph.node(id));
            let is_constant_of_size = || {
                let [a, b] = lines.graphs.each_ref().map(|g| number(g.node(id)));
                a.is_some() && b.is_some() && a != b && number(got).is_some()
            };
            !alike(want, got) || (want.kind != got.kind && !is_constant_of_size())
        };
        match guess.ids().find(differs) {
            Some(id) => Err(unfollowed(graph.node(id))),
            None => Ok(()),
        }
    }
}

/// Two batch sizes, and a third.
struct Line {
    from: usize,
    to: usize,
    at: usize,
}

impl Line {
    fn node(&self, a: &Node, b: &Node) -> Option<Node> {
        if a.inputs != b.inputs || a.region != b.region || a.group != b.group || a.meta.dtype != b.meta.dtype
        {
            return None;
        }
        let meta = Meta { dtype: a.meta.dtype, shape: self.shape(&a.meta.shape, &b.meta.shape)? };
        let kind = match (&a.kind, &b.kind) {
            (Kind::Op(x), Kind::Op(y)) => Kind::Op(self.op(x, y)?),
            (x, y) if x == y => x.clone(),
            (Kind::Literal(_), Kind::Literal(_)) => {
                let (x, _) = (number(a)?, number(b)?);
                Kind::Literal(Literal::new(x.tensor().broadcast_to(meta.shape.clone())))
            }
            _ => return None,
        };
        Some(Node { kind, meta, ..a.clone() })
    }

    fn shape(&self, a: &Shape, b: &Shape) -> Option<Shape> {
        let number = |(&a, &b): (&usize, &usize)| usize::try_from(self.number(a as i128, b as i128)?).ok();
        (a.rank() == b.rank()).then(|| a.iter().zip(b.iter()).map(number).collect())?
    }

    /// The number at the third size; `None` unless it is an integer at every size.
    fn number(&self, a: i128, b: i128) -> Option<i128> {
        let [from, to, at] = [self.from, self.to, self.at].map(|n| n as i128);
        let whole = (b - a) % (to - from) == 0;
        whole.then(|| a + (b - a) / (to - from) * (at - from))
    }

    /// Attributes are compared as text, number by number.
    fn op(&self, a: &Op, b: &Op) -> Option<Op> {
        if a == b {
            return Some(a.clone());
        }
        let (x, y) = (a.attributes(), b.attributes());
        let (x, y) = (words(&x), words(&y));
        if a.name() != b.name() || x.len() != y.len() {
            return None;
        }
        let mut text = String::new();
        for (x, y) in x.into_iter().zip(y) {
            match (x == y, x.parse(), y.parse()) {
                (true, ..) => text.push_str(x),
                (_, Ok(x), Ok(y)) => text.push_str(&self.number(x, y)?.to_string()),
                _ => return None,
            }
        }
        Op::parse(a.name(), &text)?.ok()
    }
}

/// Runs of digits, and what is between them. A number with a point is a word that is no integer.
fn words(text: &str) -> Vec<&str> {
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+');
    let mut words = Vec::new();
    let mut start = 0;
    let mut before = None;
    for (i, c) in text.char_indices() {
        if before.is_some_and(|b| b != is_number(c)) {
            words.push(&text[start..i]);
            start = i;
        }
        before = Some(is_number(c));
    }
    words.push(&text[start..]);
    words
}

#[cfg(test)]
mod tests {
    use thalweg_core::DType;
    use thalweg_tensor::{Meta, Param, Rng, Tensor};

    use super::Template;
    use crate::graph::Graph;
    use crate::passes;
    use crate::traced::Traced;

    fn optimised(graph: &Graph) -> Graph {
        passes::optimise(graph, |_| true)
    }

    fn template(f: impl Fn(&Tensor) -> Tensor) -> (Result<Template, String>, impl Fn(usize) -> Graph) {
        let trace =
            move |n: usize| Traced::record(&[Meta::new(DType::F32, [n, 6])], |x| vec![f(&x[0])]).graph;
        (Template::new([2, 11, 5].map(|n| (n, trace(n), optimised(&trace(n))))), trace)
    }

    #[test]
    fn a_training_step_follows_its_batch() {
        let mut rng = Rng::seed(0);
        let w = Param::new("w", rng.normal([6, 3], 0.0, 1.0));
        let bias = Param::new("b", rng.normal([3], 0.0, 1.0));
        let (template, trace) = template(|x| {
            let y = (x.matmul(&w.get()) + bias.get()).tanh() + Tensor::zeros([x.size(0), 3], DType::F32);
            let loss = y.log_softmax(-1).reshape([-1]).square().mean(());
            let n = x.size(0) as f64;
            let g = (loss * (n / (n - 1.0))).grad(&[&w, &bias]);
            w.set(w.get() - &g[0] * 0.1);
            bias.set(bias.get() - &g[1] * 0.1);
            y.sum(())
        });
        let mut template = template.unwrap();
        for n in [3, 4, 9] {
            let got = template.at(n, &trace(n)).unwrap().unwrap();
            assert_eq!(got.to_string(), optimised(&trace(n)).to_string(), "batch {n}");
        }
        assert!(template.at(64, &trace(64)).unwrap().is_none(), "passes might do something else");
        template.note(64, &trace(64), &optimised(&trace(64)));
        let got = template.at(40, &trace(40)).unwrap().unwrap();
        assert_eq!(got.to_string(), optimised(&trace(40)).to_string());
    }

    #[test]
    fn what_follows_no_straight_line_is_refused_with_its_line() {
        let squares = |x: &Tensor| x.matmul(&x.transpose(0, 1)).reshape([-1]).sum(());
        let e = template(squares).0.err().unwrap();
        assert!(e.contains("straight line") && e.contains("template.rs"), "{e}");
        let halves = |x: &Tensor| x.narrow(0, 0, x.size(0) / 2).sum(());
        assert!(template(halves).0.is_err());
        let branches = |x: &Tensor| if x.size(0) > 6 { x.exp().sum(()) } else { x.sum(()) };
        assert!(template(branches).0.err().unwrap().contains("other steps"));
    }

    #[test]
    fn a_size_at_which_the_function_does_something_else_is_noticed() {
        let (template, trace) = template(|x| if x.size(0) == 8 { x.exp() } else { x.sin() });
        let template = template.unwrap();
        assert!(template.at(7, &trace(7)).unwrap().is_some());
        assert!(template.at(8, &trace(8)).is_err());
    }

    #[test]
    fn constants_that_are_equal_at_three_sizes_only_are_not_mixed_up() {
        let (template, trace) = template(|x| {
            // Not 2, of which a pass makes something else.
            let n = x.size(0) as f64 + 0.3;
            let other = if x.size(0) == 8 { 80.0 } else { n };
            (x.sin() * n).exp() + (x.cos() * Tensor::full([1], other, DType::F32)).exp()
        });
        let template = template.unwrap();
        assert!(template.at(7, &trace(7)).unwrap().is_some());
        assert!(template.at(8, &trace(8)).unwrap().is_none());
    }
}
