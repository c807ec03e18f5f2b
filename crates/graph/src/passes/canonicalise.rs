//! Brings nodes to one form, so that later passes see equal things as equal: what changes nothing
//! goes, chains of reshapes and of permutations become one.
//!
//! Float rules hold bit for bit: x · 1, x / 1 and x − 0 are x for every x; x + 0 is not (−0 + 0 is
//! +0), x + (−0) is.

use thalweg_tensor::ops::{Op, Permute, Reshape};

use crate::graph::{Graph, Kind, Node, NodeId};

/// See the module.
pub fn canonicalise(graph: &Graph) -> Graph {
    graph.rewrite(|out, node| {
        let Kind::Op(op) = &node.kind else { return out.push(node) };
        if let Some(same) = without_effect(out, op, &node) {
            return same;
        }
        match joined(out, op, &node) {
            Some((op, input)) => out.apply(op, &[input], &node).expect("the chain was accepted before"),
            None => out.push(node),
        }
    })
}

/// The operand that a node merely repeats.
fn without_effect(graph: &Graph, op: &Op, node: &Node) -> Option<NodeId> {
    let &first = node.inputs.first()?;
    let unchanged = graph.node(first).meta == node.meta;
    let number = |i: usize| match &graph.node(*node.inputs.get(i)?).kind {
        Kind::Literal(literal) => literal.uniform(),
        _ => None,
    };
    let is_one = |i: usize| number(i) == Some(1.0);
    let is_zero =
        |i: usize, negative: bool| number(i).is_some_and(|v| v == 0.0 && v.is_sign_negative() == negative);
    match op {
        Op::Reshape(_) | Op::Broadcast(_) | Op::Convert(_) if unchanged => Some(first),
        Op::Permute(p) if p.axes.iter().enumerate().all(|(i, &a)| i == a) => Some(first),
        Op::Mul(_) | Op::Div(_) if is_one(1) => Some(first),
        Op::Mul(_) if is_one(0) => Some(node.inputs[1]),
        Op::Sub(_) if is_zero(1, false) => Some(first),
        Op::Add(_) if is_zero(1, true) => Some(first),
        Op::Add(_) if is_zero(0, true) => Some(node.inputs[1]),
        _ => None,
    }
}

/// Two reshapes, permutations or negations in a row as one op on the first operand.
fn joined(graph: &Graph, op: &Op, node: &Node) -> Option<(Op, NodeId)> {
    let before = graph.node(*node.inputs.first()?);
    let Kind::Op(earlier) = &before.kind else { return None };
    match (earlier, op) {
        (Op::Reshape(_), Op::Reshape(last)) => {
            Some((Reshape { shape: last.shape.clone() }.into(), before.inputs[0]))
        }
        (Op::Permute(first), Op::Permute(then)) => {
            let axes = then.axes.iter().map(|&a| first.axes[a]).collect();
            Some((Permute { axes }.into(), before.inputs[0]))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::canonicalise;
    use crate::passes::{check, dce};

    fn both(graph: &crate::Graph) -> crate::Graph {
        dce(&canonicalise(&canonicalise(graph)))
    }

    #[test]
    fn what_changes_nothing_goes() {
        check(
            both,
            "x = input : f32[2, 3]; one = literal 1.0 : f32[2, 3]; zero = literal 0.0 : f32[2, 3]; \
             a = mul x one; b = sub a zero; c = reshape(shape:[2,3]) b; d = permute(axes:[0,1]) c; return d",
            "x = input : f32[2, 3]; return x",
        );
    }

    #[test]
    fn adding_plus_zero_stays_since_it_changes_minus_zero() {
        let text = "x = input : f32[2]; zero = literal 0.0 : f32[2]; a = add x zero; return a";
        check(both, text, text);
        check(
            both,
            "x = input : f32[2]; zero = literal -0.0 : f32[2]; a = add x zero; return a",
            "x = input : f32[2]; return x",
        );
    }

    #[test]
    fn chains_of_shape_ops_become_one() {
        check(
            both,
            "x = input : f32[2, 3, 4]; a = permute(axes:[1,2,0]) x; b = permute(axes:[1,0,2]) a; return b",
            "x = input : f32[2, 3, 4]; b = permute(axes:[2,1,0]) x; return b",
        );
        check(
            both,
            "x = input : f32[2, 6]; a = reshape(shape:[12]) x; b = reshape(shape:[3,4]) a; return b",
            "x = input : f32[2, 6]; b = reshape(shape:[3,4]) x; return b",
        );
    }
}
