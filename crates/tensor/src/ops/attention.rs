//! `attention`: y = softmax(q kᵀ · scale + mask) v for each head, where with `causal` query i sees the keys 0 ..= i.
//! A mask is optional: `bool` says which scores count, numbers are added to them.

use smallvec::SmallVec;
use thalweg_core::{Buffer, DType, Shape, View, ViewMut};
use thalweg_kernels::attention::{self, Heads, Mask, MaskValues, Scores};

use crate::apply::run;
use crate::error::OpError;
use crate::functions::attention::{AttentionOptions, attend};
use crate::meta::{Meta, arity, require_float, require_same_dtype};
use crate::ops::AttentionGrad;
use crate::ops::elementwise::blocks;
use crate::ops::primitive::{Cost, Grad, Keep, Number, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::single::{self, Single};
use crate::tensor::Tensor;

/// q: (…, queries, width), k: (…, keys, width), v: (…, keys, out), mask: (…, queries, keys), each of its axes also
/// 1 → (…, queries, out). Its kernels never hold the scores of all queries, and read heads where a projection left
/// them. Only the gradient of a mask of numbers, where somebody wants it, takes memory for all scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Attention {
    /// The factor of the scores.
    pub scale: Number,
    /// Whether query i sees only the keys 0 ..= i.
    pub causal: bool,
}

impl Primitive for Attention {
    const NAME: &'static str = "attention";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let (x, mask) = x.split_at(x.len().min(3));
        let [q, k, v] = arity(Self::NAME, x)?;
        Sizes::of(Self::NAME, q, k, v)?;
        check_mask(Self::NAME, q, k, mask)?;
        let shape = q.shape.with(q.shape.rank() - 1, v.shape[v.shape.rank() - 1]);
        Ok(q.with_shape(&shape))
    }

    fn keep(&self) -> Keep {
        Keep::INPUTS
    }

    /// One op makes all three gradients: they share the weights and their gradient.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let x = [g.x(0), g.x(1), g.x(2)];
        let mask = (g.n_inputs() > 3).then(|| g.x(3));
        let op = AttentionGrad { scale: self.scale, causal: self.causal };
        let operands: SmallVec<[&Tensor; 5]> = x.into_iter().chain([g.dy()]).chain(mask).collect();
        let joined = run(op, &operands);
        let pieces = joined.split_sizes(&x.map(|x| x.numel()), 0);
        let of_operands = pieces.iter().zip(x).map(|(d, x)| Some(d.reshape(x.shape())));
        let of_mask = mask.map(|mask| {
            let all = || op.of_scores(x, g.dy(), Some(mask)).1.sum_to(mask.shape());
            if mask.dtype() == DType::Bool { None } else { g.want(3, all) }
        });
        Grad::Inputs(of_operands.chain(of_mask).collect())
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let reference = Reference::new(*self, x, x.get(3));
        let Sizes { queries, keys, out, .. } = reference.sizes;
        let mut values = vec![0.0; y.shape().numel()];
        for (row, y) in values.chunks_exact_mut(out.max(1)).enumerate() {
            for (key, w) in reference.weights(row).iter().enumerate() {
                let v = &reference.v[(row / queries * keys + key) * out..][..out];
                y.iter_mut().zip(v).for_each(|(y, v)| *y += w * v);
            }
        }
        narrow_into(&values, y);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let (x, mask) = x.split_at(3);
        let masked = mask.first().map(|m| MaskOperand::new(*m, x[0].shape()));
        let Some(x) = x.iter().map(|x| Operand::new(*x)).collect::<Option<SmallVec<[_; 3]>>>() else {
            return false;
        };
        if matches!(masked, Some(None)) {
            return false;
        }
        let mask = masked.flatten();
        let [q, k, v] = [0, 1, 2].map(|i| x[i].heads());
        single::result(y, |y| attention::attention(q, k, v, self.scores(&mask), y))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 2 * products(self, x), bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        Some(attend(&x[0], &x[1], &x[2], &self.options(x.get(3))).0)
    }

    fn samples() -> Vec<Sample> {
        samples(|op, [q, k, v, _], mask| Sample::new(op, [q, k, v].into_iter().chain(mask)))
    }
}

impl Attention {
    pub(crate) fn scores<'a>(&self, mask: &'a Option<MaskOperand<'_>>) -> Scores<'a> {
        let mask = mask.as_ref().map(MaskOperand::mask);
        Scores { scale: self.scale.0 as f32, causal: self.causal, mask }
    }

    /// The same as options of the composite.
    pub(crate) fn options<'a>(&self, mask: Option<&'a Tensor>) -> AttentionOptions<'a> {
        AttentionOptions { mask, is_causal: self.causal, scale: Some(self.scale.0), enable_gqa: false }
    }
}

/// Multiply-adds of q kᵀ and of the weights times v.
pub(crate) fn products(op: &Attention, x: &[&Meta]) -> u64 {
    let per_row = |m: &Meta| (m.numel() / m.shape[m.shape.rank() - 2].max(1)) as u64;
    let (queries, keys) =
        (x[0].shape[x[0].shape.rank() - 2] as u64, x[1].shape[x[1].shape.rank() - 2] as u64);
    (per_row(x[1]) + per_row(x[2])) * queries * keys / if op.causal { 2 } else { 1 }
}

/// The sizes of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub queries: usize,
    pub keys: usize,
    pub width: usize,
    pub out: usize,
}

impl Sizes {
    /// The sizes, if the operands fit each other.
    pub fn of(op: &'static str, q: &Meta, k: &Meta, v: &Meta) -> Result<Self, OpError> {
        require_float(op, q)?;
        for x in [k, v] {
            require_same_dtype(op, q, x)?;
            if x.shape.rank() < 2 || x.shape.rank() != q.shape.rank() {
                return Err(OpError::Rank { op, want: "at least 2, and equal", shape: x.shape.clone() });
            }
        }
        let lead = q.shape.rank() - 2;
        let (&[queries, width], &[keys, k_width], &[n_values, out]) =
            (&q.shape[lead..], &k.shape[lead..], &v.shape[lead..])
        else {
            unreachable!("two axes follow the leading ones")
        };
        if q.shape[..lead] != k.shape[..lead] || width != k_width {
            let hint =
                "queries and keys must have the same heads (leading axes) and the same width (last axis)";
            return Err(OpError::Shapes { op, left: q.shape.clone(), right: k.shape.clone(), hint });
        }
        if k.shape[..lead] != v.shape[..lead] || keys != n_values {
            let hint =
                "keys and values must have the same heads (leading axes) and number (second to last axis)";
            return Err(OpError::Shapes { op, left: k.shape.clone(), right: v.shape.clone(), hint });
        }
        Ok(Self { queries, keys, width, out })
    }
}

/// Whether a mask, if there is one, spreads over the scores of queries and keys that fit each other.
pub(crate) fn check_mask(op: &'static str, q: &Meta, k: &Meta, mask: &[&Meta]) -> Result<(), OpError> {
    let [mask] = match mask {
        [] => return Ok(()),
        mask => arity(op, mask)?,
    };
    if mask.dtype != DType::Bool {
        require_same_dtype(op, q, mask)?;
    }
    let scores = q.shape.with(q.shape.rank() - 1, k.shape[k.shape.rank() - 2]);
    let spreads = mask.shape.rank() == scores.rank()
        && mask.shape.iter().zip(scores.iter()).all(|(&m, &s)| m == 1 || m == s);
    if !spreads {
        let hint =
            "a mask has the axes of the scores (…, queries, keys), or 1 where it is the same along one";
        return Err(OpError::Shapes { op, left: scores, right: mask.shape.clone(), hint });
    }
    Ok(())
}

/// A mask as the kernel wants it: in place if it runs forwards, else copied, but never spread.
pub(crate) struct MaskOperand<'a> {
    values: Values<'a>,
    lead: SmallVec<[(usize, usize); 4]>,
    strides: [usize; 2],
}

enum Values<'a> {
    Seen(&'a [bool]),
    SeenCopied(Buffer),
    Added(Single<'a>),
}

impl<'a> MaskOperand<'a> {
    /// `None` as in [`Operand::new`]. `q`: whose leading axes the mask spreads over.
    pub fn new(x: View<'a>, q: &Shape) -> Option<Self> {
        if x.shape().numel() == 0 {
            return None;
        }
        let (layout, rank) = (x.layout(), x.shape().rank());
        let forwards = layout.strides().iter().all(|&s| s >= 0);
        let (values, in_place) = match x.dtype() {
            DType::Bool if forwards => (Values::Seen(&x.memory()[layout.offset()..]), true),
            DType::Bool => {
                let mut copy = Buffer::scratch(DType::Bool, x.shape().numel());
                blocks::<bool, bool, 1>([x], copy.as_mut_slice(), |[x], y| y.copy_from_slice(x));
                (Values::SeenCopied(copy), false)
            }
            DType::F32 if forwards => (Values::Added(Single::InPlace(&x.memory()[layout.offset()..])), true),
            _ => (Values::Added(single::operand(x)?), false),
        };
        let dense = thalweg_core::layout::row_major(x.shape());
        let strides: &[isize] = if in_place { layout.strides() } else { &dense };
        let stride = |axis: usize| if x.shape()[axis] == 1 { 0 } else { strides[axis] as usize };
        let lead = (0..rank - 2).map(|axis| (q[axis], stride(axis))).collect();
        Some(Self { values, lead, strides: [stride(rank - 2), stride(rank - 1)] })
    }

    fn mask(&self) -> Mask<'_> {
        let values = match &self.values {
            Values::Seen(x) => MaskValues::Seen(x),
            Values::SeenCopied(x) => MaskValues::Seen(x.as_slice()),
            Values::Added(x) => MaskValues::Added(x),
        };
        let [row_stride, col_stride] = self.strides;
        Mask { values, lead: &self.lead, row_stride, col_stride }
    }
}

/// An operand of f32 as the kernel wants it: in place if its rows are dense and run forwards, else copied.
pub(crate) struct Operand<'a> {
    data: Single<'a>,
    lead: SmallVec<[(usize, usize); 4]>,
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl<'a> Operand<'a> {
    /// `None` for other dtypes and for no elements: there is nothing to be quick about.
    pub fn new(x: View<'a>) -> Option<Self> {
        if x.shape().numel() == 0 {
            return None;
        }
        let (layout, rank) = (x.layout(), x.shape().rank());
        let in_place = x.dtype() == DType::F32
            && (layout.strides()[rank - 1] == 1 || x.shape()[rank - 1] == 1)
            && layout.strides().iter().all(|&s| s >= 0);
        let (data, strides) = if in_place {
            (Single::InPlace(&x.memory()[layout.offset()..]), SmallVec::from_slice(layout.strides()))
        } else {
            (single::operand(x)?, thalweg_core::layout::row_major(x.shape()))
        };
        let strides: SmallVec<[usize; 6]> = strides.iter().map(|&s: &isize| s as usize).collect();
        let lead = x.shape()[..rank - 2].iter().copied().zip(strides.iter().copied()).collect();
        Some(Self {
            data,
            lead,
            rows: x.shape()[rank - 2],
            cols: x.shape()[rank - 1],
            row_stride: strides[rank - 2],
        })
    }

    pub fn heads(&self) -> Heads<'_> {
        Heads::new(&self.data, &self.lead, (self.rows, self.cols), self.row_stride)
    }
}

/// The operands in f64, for the reference kernels.
pub(crate) struct Reference {
    op: Attention,
    pub sizes: Sizes,
    pub q: Vec<f64>,
    pub k: Vec<f64>,
    pub v: Vec<f64>,
    /// What is added to each score of each query, counted over all heads, if anything is.
    mask: Option<Vec<f64>>,
}

impl Reference {
    pub fn new(op: Attention, x: &[View<'_>], mask: Option<&View<'_>>) -> Self {
        let last = |x: &View<'_>, back: usize| x.shape()[x.shape().rank() - back];
        let sizes = Sizes {
            queries: last(&x[0], 2),
            keys: last(&x[1], 2),
            width: last(&x[0], 1),
            out: last(&x[2], 1),
        };
        let scores = x[0].shape().with(x[0].shape().rank() - 1, sizes.keys);
        let mask = mask.map(|mask| spread(*mask, &scores));
        Self { op, sizes, q: widened(x[0]), k: widened(x[1]), v: widened(x[2]), mask }
    }

    /// How much query `row`, counted over all heads, looks at each key.
    pub fn weights(&self, row: usize) -> Vec<f64> {
        let Sizes { queries, keys, width, .. } = self.sizes;
        let q = &self.q[row * width..][..width];
        let score = |key: usize| {
            if self.op.causal && key > row % queries {
                return f64::NEG_INFINITY;
            }
            let k = &self.k[(row / queries * keys + key) * width..][..width];
            let by_mask = self.mask.as_ref().map_or(0.0, |mask| mask[row * keys + key]);
            q.iter().zip(k).map(|(q, k)| q * self.op.scale.0 * k).sum::<f64>() + by_mask
        };
        let scores: Vec<f64> = (0..keys).map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if self.mask.is_some() && scores.iter().all(|s| *s == f64::NEG_INFINITY) {
            return vec![0.0; keys];
        }
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|w| w / sum).collect()
    }
}

/// A mask as what is added, over all scores.
fn spread(mask: View<'_>, scores: &Shape) -> Vec<f64> {
    let values: Vec<f64> = match mask.dtype() {
        DType::Bool => mask.iter::<bool>().map(|seen| if seen { 0.0 } else { f64::NEG_INFINITY }).collect(),
        _ => widened(mask),
    };
    let strides = thalweg_core::layout::row_major(mask.shape());
    let at = |i: usize| {
        let place = |(rest, at): (usize, usize), axis: usize| {
            let here = if mask.shape()[axis] == 1 { 0 } else { rest % scores[axis] };
            (rest / scores[axis], at + here * strides[axis] as usize)
        };
        (0..scores.rank()).rev().fold((i, 0), place).1
    };
    (0..scores.numel()).map(|i| values[at(i)]).collect()
}

/// The calls that attention and its gradient are tried on: q, k, v, dy, and a mask.
pub(crate) fn samples(call: impl Fn(Attention, [Draw; 4], Option<Draw>) -> Sample) -> Vec<Sample> {
    let masked =
        |lead: &[usize], [queries, keys, width, out]: [usize; 4], causal: bool, mask: Option<Draw>| {
            let draw = |rows: usize, cols: usize| {
                let shape: Shape = lead.iter().copied().chain([rows, cols]).collect();
                Draw::float(shape, -1.0, 1.0)
            };
            let op = Attention { scale: Number(0.5), causal };
            call(op, [draw(queries, width), draw(keys, width), draw(keys, out), draw(queries, out)], mask)
        };
    let one = |lead: &[usize], sizes: [usize; 4], causal: bool| masked(lead, sizes, causal, None);
    let added = |shape: &[usize]| Some(Draw::float(shape, -1.0, 1.0));
    let seen = |shape: &[usize]| Some(Draw::bool(shape));
    vec![
        one(&[], [3, 4, 2, 3], false),
        one(&[2], [3, 3, 4, 4], true),
        one(&[1, 2], [4, 3, 2, 2], true),
        one(&[2, 1], [2, 5, 1, 1], false),
        one(&[2], [2, 0, 3, 2], false),
        one(&[0], [2, 2, 3, 2], true),
        one(&[1], [0, 2, 2, 2], false),
        masked(&[2], [3, 4, 2, 3], false, added(&[2, 3, 4])),
        masked(&[2, 2], [3, 3, 2, 2], true, added(&[1, 2, 1, 3])),
        masked(&[1, 2], [2, 3, 2, 1], false, added(&[1, 1, 2, 1])),
        masked(&[2, 1], [3, 5, 2, 2], false, seen(&[2, 1, 1, 5])),
        masked(&[], [4, 3, 2, 2], true, seen(&[4, 3])),
    ]
}
