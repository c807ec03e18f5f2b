//! Algebra that pays: products in a cheaper order, fewer products, fewer signs.
//!
//! What holds of the results:
//! - The rules on signs keep every bit, but for the sign of a NaN.
//! - The rules on products ([`chain_order`], [`common_factor`]) change the order of float operations.
//!   Finite results stay within the rounding of the products. An infinity or NaN in the operands
//!   gives results that are not finite in the same rows and columns, though perhaps NaN for ∞; where
//!   an intermediate value overflows in one order and not in the other, so does the result. The sign
//!   of a zero may differ.
//! - The rules on softmax give the more precise of both forms: log(softmax(x)) is −∞ where softmax
//!   underflows, log_softmax(x) is not. Rows with +∞ or NaN, or of only −∞, are NaN in all forms.
//!
//! Rules that look safe and are not, so not here: exp(log(x)) and log(exp(x)) (domain, overflow),
//! sqrt(x²) (overflow), x · 0 and x − x (NaN, ∞), x + 0 (−0).

use thalweg_tensor::OpError;
use thalweg_tensor::ops::{Add, Cost, LogSoftmax, Matmul, Op, Reshape, Softmax, Sub};

use super::chain::chain_order;
use super::factors::{Factor, is_product, transpose, weight};
use crate::graph::{Graph, Kind, Node, NodeId};

/// Rounds of rewriting: A·B + A·C + A·D takes two.
const MAX_ROUNDS: usize = 8;

/// See the module.
pub fn algebra(graph: &Graph) -> Graph {
    let mut graph = softmax_and_logarithm(&signs(graph));
    for _ in 0..MAX_ROUNDS {
        // What was replaced still counts as a reader until it is swept.
        let (next, n_found) = common_factor(&super::dce(&graph));
        graph = next;
        if n_found == 0 {
            break;
        }
    }
    chain_order(&super::dce(&graph))
}

/// −(−x) is x, x − (−y) is x + y, x + (−y) is x − y, (−x)·(−y) is x·y, and so for division.
fn signs(graph: &Graph) -> Graph {
    graph.rewrite(|out, node| {
        let Kind::Op(op) = &node.kind else { return out.push(node) };
        let negated = |i: usize| match out.op(node.inputs[i]) {
            Some(Op::Neg(_)) => Some(out.node(node.inputs[i]).inputs[0]),
            _ => None,
        };
        let (op, inputs): (Op, [NodeId; 2]) = match op {
            Op::Neg(_) => match negated(0) {
                Some(x) => return x,
                None => return out.push(node),
            },
            Op::Add(_) => match (negated(0), negated(1)) {
                (_, Some(y)) => (Sub.into(), [node.inputs[0], y]),
                (Some(x), None) => (Sub.into(), [node.inputs[1], x]),
                _ => return out.push(node),
            },
            Op::Sub(_) => match negated(1) {
                Some(y) => (Add.into(), [node.inputs[0], y]),
                None => return out.push(node),
            },
            Op::Mul(_) | Op::Div(_) => match (negated(0), negated(1)) {
                (Some(x), Some(y)) => (op.clone(), [x, y]),
                _ => return out.push(node),
            },
            _ => return out.push(node),
        };
        out.apply(op, &inputs, &node).expect("same dtype and shape as before")
    })
}

/// log(softmax(x)) is log_softmax(x) and exp(log_softmax(x)) is softmax(x), where nobody else reads
/// the inner value.
fn softmax_and_logarithm(graph: &Graph) -> Graph {
    let uses = graph.n_uses();
    graph.rebuild(|out, renamed, id| {
        let node = graph.node(id);
        let inner = node.inputs.first().filter(|i| uses[i.index()] == 1).map(|&i| graph.node(i));
        let outer: Option<Op> = match (&node.kind, inner.map(|n| &n.kind)) {
            (Kind::Op(Op::Log(_)), Some(Kind::Op(Op::Softmax(_)))) => Some(LogSoftmax.into()),
            (Kind::Op(Op::Exp(_)), Some(Kind::Op(Op::LogSoftmax(_)))) => Some(Softmax.into()),
            _ => None,
        };
        match (outer, inner) {
            (Some(op), Some(inner)) => {
                let x = renamed[inner.inputs[0].index()];
                out.apply(op, &[x], node).expect("takes what its counterpart took")
            }
            _ => out.copy(graph, renamed, id),
        }
    })
}

/// A·B ± A·C is A·(B ± C) and B·A ± C·A is (B ± C)·A, through transpositions, where the products
/// have no other reader and a product weighs more than a sum. Also says how many were found.
fn common_factor(graph: &Graph) -> (Graph, usize) {
    let uses = graph.n_uses();
    let mut n_found = 0;
    let new = graph.rebuild(|out, renamed, id| match shared(graph, &uses, id) {
        Some(sum) if sum.pays(graph) => {
            n_found += 1;
            sum.build(out, renamed, graph.node(id)).expect("the shapes are those of the products")
        }
        _ => out.copy(graph, renamed, id),
    });
    (new, n_found)
}

/// A sum or difference of two products that have a factor in common.
struct Shared {
    op: Op,
    common: Factor,
    is_left: bool,
    others: [Factor; 2],
}

fn shared(graph: &Graph, uses: &[u32], id: NodeId) -> Option<Shared> {
    let node = graph.node(id);
    let op = graph.op(id).filter(|op| matches!(op, Op::Add(_) | Op::Sub(_)))?;
    let own = |id: NodeId| uses[id.index()] == 1 && graph.node(id).region == node.region;
    let product = |id: NodeId| {
        let mut inner = id;
        if let (true, Some(Op::Reshape(_))) = (own(id), graph.op(id)) {
            inner = graph.node(id).inputs[0];
        }
        let factor = Factor::of(graph, inner);
        if !(own(inner) && own(factor.node) && is_product(graph, factor.node)) {
            return None;
        }
        // Only the outermost product: longer chains are the business of their order.
        let &[a, b] = &graph.node(factor.node).inputs[..] else { return None };
        let (a, b) = (Factor::of(graph, a), Factor::of(graph, b));
        let turned = |f: Factor| Factor { transposed: !f.transposed, ..f };
        let pair = if factor.transposed { [turned(b), turned(a)] } else { [a, b] };
        Some((pair, graph.node(inner).meta.clone()))
    };
    let (([a, b], one), ([c, d], other)) = (product(node.inputs[0])?, product(node.inputs[1])?);
    if one != other {
        return None;
    }
    let same_size = |x: Factor, y: Factor| x.sizes(graph) == y.sizes(graph);
    if a == c && same_size(b, d) {
        return Some(Shared { op: op.clone(), common: a, is_left: true, others: [b, d] });
    }
    (b == d && same_size(a, c)).then(|| Shared { op: op.clone(), common: b, is_left: false, others: [a, c] })
}

impl Shared {
    /// Two products and a sum of their results against one product and a sum of factors.
    fn pays(&self, graph: &Graph) -> bool {
        let (n_batch, size) = (self.common.n_batch(graph), graph.node(self.common.node).meta.dtype.size());
        let ((rows, cols), (other_rows, other_cols)) =
            (self.common.sizes(graph), self.others[0].sizes(graph));
        let (m, k, n) = if self.is_left { (rows, cols, other_cols) } else { (other_rows, other_cols, cols) };
        let sum = |numel: usize| {
            let bytes = 3 * (n_batch * numel * size) as u64;
            weight(Cost { flops: (n_batch * numel) as u64, bytes })
        };
        let bytes = (n_batch * (m * k + k * n + m * n) * size) as u64;
        let product = weight(Cost { flops: 2 * (n_batch * m * k * n) as u64, bytes });
        product + sum(other_rows * other_cols) < 2 * product + sum(m * n)
    }

    fn build(&self, out: &mut Graph, renamed: &[NodeId], like: &Node) -> Result<NodeId, OpError> {
        let [b, c] = self.others;
        // Factors that are transposed alike are added as they lie.
        let sum = if b.transposed && c.transposed {
            let inputs = [renamed[b.node.index()], renamed[c.node.index()]];
            let sum = out.apply(self.op.clone(), &inputs, like)?;
            transpose(out, sum, like)?
        } else {
            let inputs = [b.read(out, renamed, like)?, c.read(out, renamed, like)?];
            out.apply(self.op.clone(), &inputs, like)?
        };
        let common = self.common.read(out, renamed, like)?;
        let inputs = if self.is_left { [common, sum] } else { [sum, common] };
        let product = out.apply(Matmul, &inputs, like)?;
        match out.node(product).meta.shape == like.meta.shape {
            true => Ok(product),
            false => out.apply(Reshape { shape: like.meta.shape.clone() }, &[product], like),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{algebra, common_factor, signs, softmax_and_logarithm};
    use crate::passes::{check, dce};
    use crate::{Graph, Kind};
    use thalweg_tensor::{Rng, Tensor};

    #[test]
    fn signs_cancel() {
        check(
            |g| dce(&signs(g)),
            "x = input : f32[4]; y = input : f32[4]; a = neg x; b = neg a; c = neg y; d = sub b c; \
             e = add d a; f = mul a c; g = add e f; return g",
            "x = input : f32[4]; y = input : f32[4]; d = add x y; e = sub d x; f = mul x y; \
             g = add e f; return g",
        );
    }

    #[test]
    fn softmax_and_logarithm_meet() {
        check(
            |g| dce(&softmax_and_logarithm(g)),
            "x = input : f32[2, 4]; a = softmax x; b = log a; c = log_softmax b; d = exp c; return d",
            "x = input : f32[2, 4]; b = log_softmax x; d = softmax b; return d",
        );
        let text = "x = input : f32[2, 4]; a = softmax x; b = log a; return a b";
        check(softmax_and_logarithm, text, text);
    }

    #[test]
    fn a_common_factor_is_multiplied_once() {
        let once = |g: &Graph| dce(&common_factor(g).0);
        check(
            once,
            "a = input : f32[8, 16]; b = input : f32[16, 8]; c = input : f32[16, 8]; \
             p = matmul a b; q = matmul a c; s = sub p q; return s",
            "a = input : f32[8, 16]; b = input : f32[16, 8]; c = input : f32[16, 8]; \
             t = sub b c; s = matmul a t; return s",
        );
        check(
            once,
            "a = input : f32[16, 8]; b = input : f32[16, 32]; c = input : f32[16, 32]; \
             bt = permute(axes:[1,0]) b; ct = permute(axes:[1,0]) c; \
             p = matmul bt a; q = matmul ct a; s = add p q; return s",
            "a = input : f32[16, 8]; b = input : f32[16, 32]; c = input : f32[16, 32]; \
             t = add b c; tt = permute(axes:[1,0]) t; s = matmul tt a; return s",
        );
    }

    #[test]
    fn products_that_are_read_elsewhere_or_have_nothing_in_common_stay() {
        for text in [
            "a = input : f32[8, 16]; b = input : f32[16, 8]; c = input : f32[16, 8]; \
             p = matmul a b; q = matmul a c; s = add p q; return s p",
            "a = input : f32[8, 16]; b = input : f32[16, 8]; c = input : f32[8, 16]; \
             p = matmul a b; q = matmul c b; ct = permute(axes:[1,0]) q; s = add p ct; return s",
        ] {
            check(|g| common_factor(g).0, text, text);
        }
    }

    #[test]
    fn three_products_become_one() {
        check(
            algebra,
            "a = input : f32[8, 16]; b = input : f32[16, 8]; c = input : f32[16, 8]; d = input : f32[16, 8]; \
             p = matmul a b; q = matmul a c; r = matmul a d; s = add p q; t = add s r; return t",
            "a = input : f32[8, 16]; b = input : f32[16, 8]; c = input : f32[16, 8]; d = input : f32[16, 8]; \
             s = add b c; t = add s d; u = matmul a t; return u",
        );
    }

    /// The text of a random graph, line by line.
    struct Text {
        state: u64,
        lines: Vec<String>,
        /// Operands by their shapes.
        known: Vec<(String, [usize; 2])>,
    }

    impl Text {
        fn draw(&mut self, n: usize) -> usize {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            (self.state % n as u64) as usize
        }

        fn line(&mut self, what: String) -> String {
            let name = format!("v{}", self.lines.len());
            self.lines.push(format!("{name} = {what}"));
            name
        }

        /// An operand: one that is known, a fresh one, or the transposition of a fresh one.
        fn matrix(&mut self, [rows, cols]: [usize; 2]) -> String {
            let known = self.known.iter().find(|(_, shape)| *shape == [rows, cols]).map(|k| k.0.clone());
            match (self.draw(3), known) {
                (0, Some(known)) => known,
                (1, _) => {
                    let x = self.line(format!("input : f32[{cols}, {rows}]"));
                    self.line(format!("permute(axes:[1,0]) {x}"))
                }
                _ => {
                    let x = self.line(format!("input : f32[{rows}, {cols}]"));
                    self.known.push((x.clone(), [rows, cols]));
                    x
                }
            }
        }

        /// A chain of products with this shape in the end.
        fn product(&mut self, [rows, cols]: [usize; 2], sizes: &[usize]) -> String {
            let mut at = sizes[self.draw(2)];
            let mut product = self.matrix([rows, at]);
            for _ in 0..self.draw(3) {
                let to = sizes[self.draw(sizes.len())];
                let next = self.matrix([at, to]);
                product = self.line(format!("matmul {product} {next}"));
                at = to;
            }
            let last = self.matrix([at, cols]);
            self.line(format!("matmul {product} {last}"))
        }
    }

    /// A random sum of products.
    fn random_products(seed: u64) -> String {
        let mut text =
            Text { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, lines: vec![], known: vec![] };
        let sizes: Vec<usize> = (0..6).map(|_| [1, 2, 3, 8, 17, 40][text.draw(6)]).collect();
        let mut sum = text.product([sizes[0], sizes[1]], &sizes[2..]);
        for _ in 0..text.draw(3) {
            let term = text.product([sizes[0], sizes[1]], &sizes[2..]);
            let op = ["add", "sub"][text.draw(2)];
            sum = text.line(format!("{op} {sum} {term}"));
        }
        text.lines.join("\n") + &format!("\nreturn {sum}\n")
    }

    #[test]
    fn random_sums_of_products_keep_their_values_and_never_weigh_more() {
        let mut n_changed = 0;
        for seed in 1..=300 {
            let text = random_products(seed);
            let graph: Graph = text.parse().unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
            let changed = dce(&algebra(&graph));
            crate::verify(&changed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let mut rng = Rng::seed(seed);
            let inputs: Vec<Tensor> = graph
                .nodes()
                .iter()
                .filter(|n| matches!(n.kind, Kind::Input(_)))
                .map(|n| rng.uniform(n.meta.shape.clone(), -1.0, 1.0))
                .collect();
            let (want, got) = (&graph.evaluate(&inputs).unwrap()[0], &changed.evaluate(&inputs).unwrap()[0]);
            let scale = want.abs().amax(()).item::<f32>().max(1.0);
            for (w, g) in want.to_vec::<f32>().iter().zip(got.to_vec::<f32>()) {
                assert!((w - g).abs() <= 1e-4 * scale, "seed {seed}: {g} instead of {w}\n{graph}\n{changed}");
            }
            let weight = |g: &Graph| g.ids().map(|id| super::weight(g.cost(id))).sum::<u64>();
            assert!(weight(&changed) <= weight(&graph), "seed {seed}\n{graph}\n{changed}");
            n_changed += usize::from(changed.to_string() != dce(&graph).to_string());
        }
        assert!(n_changed > 40, "only {n_changed} of 300 graphs were changed: the test sees too little");
    }
}
