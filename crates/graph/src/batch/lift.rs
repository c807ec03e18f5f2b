//! Ops on stacks: for an op on values of shape S, the op on values of shape (k, S) that does the same
//! to each row.

use smallvec::SmallVec;
use thalweg_core::Shape;
use thalweg_tensor::Meta;
use thalweg_tensor::ops::{
    Broadcast, Concat, Embed, Gather, IndexSelect, Linear, Logsumexp, Matmul, Mean, Op, Permute, Reshape,
    Scatter, Slice, Stride, Sum,
};

use super::with_lead;

/// How ops of one kind run as one.
pub(super) struct Form {
    pub op: Op,
    /// For each operand, the shape that its stack is brought to; `None`: as it is.
    pub operands: SmallVec<[Option<Shape>; 3]>,
    /// Whether shared operands enter as they are, not repeated.
    pub keeps_shared: bool,
}

/// The form for `k` calls, if there is one. The result has the elements of the stack of the results.
pub(super) fn form(op: &Op, x: &[&Meta], k: usize, shared: &dyn Fn(usize) -> bool) -> Option<Form> {
    if x.is_empty() || x.iter().any(|m| m.numel() == 0) {
        return None;
    }
    rows(op, x, k, shared).or_else(|| {
        let (op, operands) = lifted(op, x, k)?;
        Some(Form { op, operands, keeps_shared: false })
    })
}

/// Ops with weights that all calls share: the rows of all calls one after the other.
fn rows(op: &Op, x: &[&Meta], k: usize, shared: &dyn Fn(usize) -> bool) -> Option<Form> {
    let flat = |m: &Meta| m.shape.with(0, k * m.shape[0]);
    let form = |operands: SmallVec<[Option<Shape>; 3]>| Form { op: op.clone(), operands, keeps_shared: true };
    match op {
        Op::Linear(Linear) if !shared(0) && shared(1) && shared(2) => {
            Some(form([Some(flat(x[0])), None, None].into_iter().collect()))
        }
        Op::Matmul(Matmul) if !shared(0) && shared(1) && x[0].shape.rank() == 2 => {
            Some(form([Some(flat(x[0])), None].into_iter().collect()))
        }
        Op::IndexSelect(IndexSelect { axis: 0 }) if shared(0) && !shared(1) => {
            Some(form([None, Some(flat(x[1]))].into_iter().collect()))
        }
        _ => None,
    }
}

/// The op with one axis more in front, and the shapes that stacks are brought to.
fn lifted(op: &Op, x: &[&Meta], k: usize) -> Option<(Op, SmallVec<[Option<Shape>; 3]>)> {
    let as_is = || x.iter().map(|_| None).collect();
    let after =
        |axes: &SmallVec<[usize; 4]>| -> SmallVec<[usize; 4]> { axes.iter().map(|a| a + 1).collect() };
    let strides =
        |s: &SmallVec<[Stride; 4]>| std::iter::once(Stride::all(k)).chain(s.iter().copied()).collect();
    let lifted: Op = match op {
        Op::Reshape(r) => Reshape { shape: with_lead(k, &r.shape) }.into(),
        Op::Permute(p) => Permute { axes: std::iter::once(0).chain(after(&p.axes)).collect() }.into(),
        Op::Broadcast(b) => {
            // New axes come after the stack's own.
            let new = std::iter::repeat_n(1, b.shape.rank() - x[0].shape.rank());
            let shape = std::iter::once(k).chain(new).chain(x[0].shape.iter().copied()).collect();
            let op = Broadcast { shape: with_lead(k, &b.shape) };
            return Some((op.into(), [Some(shape)].into_iter().collect()));
        }
        Op::Slice(s) => Slice { strides: strides(&s.strides) }.into(),
        Op::Embed(e) => {
            Embed { shape: with_lead(k, &e.shape), strides: strides(&e.strides), fill: e.fill }.into()
        }
        Op::Concat(c) => Concat { axis: c.axis + 1 }.into(),
        Op::Sum(s) => Sum { axes: after(&s.axes) }.into(),
        Op::Mean(m) => Mean { axes: after(&m.axes) }.into(),
        Op::Logsumexp(l) => Logsumexp { axes: after(&l.axes) }.into(),
        Op::Gather(g) => Gather { axis: g.axis + 1 }.into(),
        Op::Scatter(s) => Scatter { axis: s.axis + 1, combine: s.combine }.into(),
        Op::Matmul(_) if x[0].shape.rank() == 2 => op.clone(),
        Op::Softmax(_) | Op::SoftmaxGrad(_) | Op::LogSoftmax(_) | Op::LogSoftmaxGrad(_)
            if x[0].shape.rank() > 0 =>
        {
            op.clone()
        }
        Op::LogLikelihood(_) | Op::LogLikelihoodGrad(_) => op.clone(),
        op if op.is_elementwise() => op.clone(),
        _ => return None,
    };
    Some((lifted, as_is()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::DType;
    use thalweg_tensor::ops::sample::Draw;
    use thalweg_tensor::ops::samples;
    use thalweg_tensor::{Rng, Tensor, apply};

    fn drawn(draw: &Draw, rng: &mut Rng) -> Option<Tensor> {
        match draw {
            Draw::Float { shape, lo, hi } => Some(rng.uniform(shape, *lo, *hi)),
            Draw::Distinct { shape } => Some(rng.uniform(shape, -1.0, 1.0)),
            Draw::Int { shape, lo, hi } => {
                let numbers = rng.uniform(shape, *lo as f64, *hi as f64).floor();
                Some(numbers.clamp(*lo as f64, (*hi - 1) as f64).to_dtype(DType::I64))
            }
            Draw::Bool { shape } => Some(rng.uniform(shape, -1.0, 1.0).gt(0.0)),
            Draw::Definite { .. } => None,
        }
    }

    #[test]
    fn every_op_that_has_a_form_does_to_each_row_what_it_does_alone() {
        let (k, mut n_checked) = (3, 0);
        let mut rng = Rng::seed(9);
        for (name, samples) in samples() {
            for sample in samples {
                let rows: Option<Vec<Vec<Tensor>>> =
                    (0..k).map(|_| sample.inputs.iter().map(|d| drawn(d, &mut rng)).collect()).collect();
                let Some(rows) = rows else { continue };
                let metas: Vec<&Meta> = rows[0].iter().map(Tensor::meta).collect();
                let Some(form) = form(&sample.op, &metas, k, &|_| false) else { continue };
                let stacks: Vec<Tensor> = (0..metas.len())
                    .map(|i| {
                        let stack = Tensor::stack(&rows.iter().map(|r| r[i].clone()).collect::<Vec<_>>(), 0);
                        form.operands[i].as_ref().map_or(stack.clone(), |shape| stack.reshape(shape))
                    })
                    .collect();
                let got = apply(form.op.clone(), &stacks.iter().collect::<Vec<_>>()).unwrap();
                for (i, row) in rows.iter().enumerate() {
                    let want = apply(sample.op.clone(), &row.iter().collect::<Vec<_>>()).unwrap();
                    let got = got.reshape(with_lead(k, want.shape())).select(0, i as isize);
                    let numbers = |t: &Tensor| t.to_dtype(DType::F64).to_vec::<f64>();
                    let near =
                        |(g, w): (&f64, &f64)| g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= 1e-4;
                    let close = numbers(&got).iter().zip(&numbers(&want)).all(near);
                    assert!(close && got.meta() == want.meta(), "{name}{}", sample.op.attributes());
                }
                n_checked += 1;
            }
        }
        assert!(n_checked > 100, "only {n_checked} samples have a form");
    }
}
