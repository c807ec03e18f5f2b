//! Constant folding: an op on constants is computed now, unless the result is large.
//!
//! A view of one number (a broadcast) stays one number. Captured tensors are no constants here:
//! they are bound, not copied.

use thalweg_tensor::{Tensor, apply};

use crate::graph::{Graph, Kind};
use crate::literal::{Literal, is_uniform};

/// Results with more elements are left to the run, unless they are one number in every place.
const MAX_ELEMENTS: usize = 1024;

/// See the module.
pub fn fold(graph: &Graph) -> Graph {
    graph.rewrite(|out, node| {
        let Kind::Op(op) = &node.kind else { return out.push(node) };
        if op.has_effect() {
            return out.push(node);
        }
        let operands: Option<Vec<Tensor>> = node
            .inputs
            .iter()
            .map(|&i| match &out.node(i).kind {
                Kind::Literal(literal) => Some(literal.tensor().clone()),
                _ => None,
            })
            .collect();
        let Some(operands) = operands.filter(|o| !o.is_empty()) else { return out.push(node) };
        let uniform = operands.iter().all(is_uniform) && op.is_elementwise();
        let large = node.meta.numel() > MAX_ELEMENTS;
        if large && !uniform && op.view(operands[0].layout(), &node.meta.shape).is_none() {
            return out.push(node);
        }
        // One number in every place: computed once, spread again.
        let at = |t: &Tensor| if uniform { crate::literal::first(t) } else { t.clone() };
        let operands: Vec<Tensor> = operands.iter().map(at).collect();
        match apply(op.clone(), &operands.iter().collect::<Vec<_>>()) {
            Ok(value) => {
                let value = if uniform { value.broadcast_to(&node.meta.shape) } else { value };
                out.literal(Literal::new(value), &node)
            }
            // An op that fails does so when it is run, as it would have done eagerly.
            Err(_) => out.push(node),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::fold;
    use crate::passes::check;

    #[test]
    fn arithmetic_on_constants_is_done_now() {
        check(
            fold,
            "a = literal 2.0 : f32[3]; b = literal [1.0, 2.0, 3.0] : f32[3]; c = mul a b; return c",
            "a = literal 2.0 : f32[3]; b = literal [1.0, 2.0, 3.0] : f32[3]; c = literal [2.0, 4.0, 6.0] : f32[3]; return c",
        );
    }

    #[test]
    fn one_number_in_a_large_shape_stays_one_number() {
        check(
            fold,
            "a = literal 2.0 : f32[5000]; b = mul a a; return b",
            "a = literal 2.0 : f32[5000]; b = literal 4.0 : f32[5000]; return b",
        );
    }
}
