//! A function of any batch size, from traces at three sizes.
//!
//! Sizes and attributes of a traced graph are numbers; which of them follow the batch cannot be read off one
//! trace. Three traces tell: a number that lies on a straight line through all of them follows the
//! batch, and a function whose traces differ in any other way is refused. The verifier infers every
//! shape again, so that a wrong guess cannot pass.

use thalweg_core::Shape;
use thalweg_tensor::ops::Op;
use thalweg_tensor::{Meta, Tensor};

use crate::graph::{Graph, Kind, Node};
use crate::literal::{Literal, first};
use crate::traced::Traced;
use crate::verify::verify;

/// A traced function of any batch size.
///
/// ```
/// use thalweg_core::DType;
/// use thalweg_graph::{Template, Traced};
/// use thalweg_tensor::Meta;
/// let mean = |n: usize| Traced::record(&[Meta::new(DType::F32, [n, 4])], |x| vec![x[0].mean(0)]);
/// let template = Template::new([(3, mean(3)), (7, mean(7)), (14, mean(14))])?;
/// assert_eq!(template.at(32)?.graph.to_string(), mean(32).graph.to_string());
/// # Ok::<(), String>(())
/// ```
pub struct Template {
    sizes: [usize; 3],
    traces: [Traced; 3],
}

impl Template {
    /// The function of which these are traces, each with its batch size. The error says which node does not
    /// follow the batch in a straight line.
    pub fn new(traces: [(usize, Traced); 3]) -> Result<Template, String> {
        let sizes = traces.each_ref().map(|(n, _)| *n);
        let template = Template { sizes, traces: traces.map(|(_, traced)| traced) };
        let [a, b, c] = &template.traces;
        for other in [b, c] {
            let same = a.graph.nodes().len() == other.graph.nodes().len()
                && a.graph.outputs == other.graph.outputs
                && a.graph.writes == other.graph.writes;
            if !same {
                return Err("the function takes other steps at another batch size".to_owned());
            }
            let params = a.params.iter().map(|p| p.id()).eq(other.params.iter().map(|p| p.id()));
            let captured = a.captured.len() == other.captured.len()
                && a.captured
                    .iter()
                    .zip(&other.captured)
                    .all(|(x, y)| x.shares_memory_with(y) && x.layout() == y.layout());
            if !params || !captured {
                return Err("the function uses other tensors at another batch size".to_owned());
            }
        }
        // The line goes through the first two; the third must lie on it.
        template.agrees(sizes[2], &c.graph)?;
        Ok(template)
    }

    /// The same for graphs that passes have changed, from what they changed. A constant that depends on the size must
    /// be one that the function itself has: what a pass computed from it need not lie on the same curve at every size.
    pub fn optimised(traces: [(usize, &Traced, Graph); 3]) -> Result<Template, String> {
        let changing = |graphs: [&Graph; 3]| -> Vec<[Literal; 3]> {
            let n = graphs.map(|g| g.nodes().len()).into_iter().min().unwrap_or(0);
            let of = |g: &Graph, i: usize| match &g.nodes()[i].kind {
                Kind::Literal(literal) => {
                    Some(Literal::new(first(literal.uniform().map(|_| literal.tensor())?)))
                }
                _ => None,
            };
            let each = (0..n).filter_map(|i| Some([of(graphs[0], i)?, of(graphs[1], i)?, of(graphs[2], i)?]));
            each.filter(|[a, b, c]| a != b || b != c).collect()
        };
        let known = changing(traces.each_ref().map(|(_, traced, _)| &traced.graph));
        if changing(traces.each_ref().map(|(_, _, graph)| graph)).iter().any(|three| !known.contains(three)) {
            return Err("a pass computed a constant from the batch size".to_owned());
        }
        Template::new(traces.map(|(n, traced, graph)| (n, Traced { graph, ..traced.clone() })))
    }

    /// Whether a graph of this batch size is the one that [`Template::at`] gives; the error names the first node that is not.
    pub fn agrees(&self, size: usize, graph: &Graph) -> Result<(), String> {
        let guess = self.guess(size)?;
        if guess.nodes().len() != graph.nodes().len()
            || guess.outputs != graph.outputs
            || guess.writes != graph.writes
        {
            return Err("the function takes other steps at another batch size".to_owned());
        }
        match guess.ids().find(|&id| !alike(guess.node(id), graph.node(id))) {
            Some(id) => Err(unfollowed(graph.node(id))),
            None => Ok(()),
        }
    }

    /// The function at this batch size.
    pub fn at(&self, size: usize) -> Result<Traced, String> {
        let graph = self.guess(size)?;
        verify(&graph).map_err(|e| format!("at batch size {size}: {e}"))?;
        Ok(Traced { graph, ..self.traces[0].clone() })
    }

    fn guess(&self, size: usize) -> Result<Graph, String> {
        let [a, b, _] = &self.traces;
        let line = Line { from: self.sizes[0], to: self.sizes[1], at: size };
        let mut graph = a.graph.like();
        for (x, y) in a.graph.nodes().iter().zip(b.graph.nodes()) {
            graph.push(line.node(x, y).ok_or_else(|| unfollowed(y))?);
        }
        graph.outputs.clone_from(&a.graph.outputs);
        graph.writes.clone_from(&a.graph.writes);
        Ok(graph)
    }
}

fn unfollowed(node: &Node) -> String {
    let name = if let Kind::Op(op) = &node.kind { op.name() } else { "a constant" };
    let at = node.at.map_or(String::new(), |at| format!(" ({at})"));
    format!("{name}{at} does not follow the batch size in a straight line")
}

/// Whether two nodes of different traces are the same, lines apart.
fn alike(a: &Node, b: &Node) -> bool {
    let same_place = a.inputs == b.inputs && a.region == b.region && a.group == b.group;
    same_place && a.kind == b.kind && a.meta == b.meta
}

/// What two batch sizes say about a third.
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
            (Kind::Literal(x), Kind::Literal(y)) => Kind::Literal(self.literal(x, y, &meta)?),
            (x, y) if x == y => x.clone(),
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

    /// The same constant, or the same number everywhere, or a number that shares in the batch, such as 1 / n.
    fn literal(&self, a: &Literal, b: &Literal, meta: &Meta) -> Option<Literal> {
        if a == b {
            return Some(a.clone());
        }
        let (x, y) = (a.uniform()?, b.uniform()?);
        if x.to_bits() == y.to_bits() {
            let number = first(a.tensor());
            return Some(Literal::new(number.broadcast_to(meta.shape.clone())));
        }
        let share = |n: usize| Tensor::full([], x * self.from as f64 / n as f64, meta.dtype);
        (first(b.tensor()).to_dtype(thalweg_core::DType::F64).item::<f64>()
            == share(self.to).to_dtype(thalweg_core::DType::F64).item::<f64>())
        .then(|| Literal::new(share(self.at).broadcast_to(meta.shape.clone())))
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
    use crate::traced::Traced;

    fn template(f: impl Fn(&Tensor) -> Tensor) -> (Result<Template, String>, impl Fn(usize) -> Traced) {
        let trace = move |n: usize| Traced::record(&[Meta::new(DType::F32, [n, 6])], |x| vec![f(&x[0])]);
        (Template::new([(2, trace(2)), (5, trace(5)), (11, trace(11))]), trace)
    }

    #[test]
    fn a_training_step_follows_its_batch() {
        let mut rng = Rng::seed(0);
        let w = Param::new("w", rng.normal([6, 3], 0.0, 1.0));
        let bias = Param::new("b", rng.normal([3], 0.0, 1.0));
        let (template, trace) = template(|x| {
            let y = (x.matmul(&w.get()) + bias.get()).tanh();
            let loss = y.log_softmax(-1).reshape([-1]).square().mean(());
            let g = loss.grad(&[&w, &bias]);
            w.set(w.get() - &g[0] * 0.1);
            bias.set(bias.get() - &g[1] * 0.1);
            loss
        });
        let template = template.unwrap();
        for n in [3, 4, 64, 1000] {
            assert_eq!(template.at(n).unwrap().graph.to_string(), trace(n).graph.to_string(), "batch {n}");
        }
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
}
