//! `attention`: y = softmax(q kᵀ · scale) v for each head, where with `causal` query i sees the keys 0 ..= i.

use smallvec::SmallVec;
use thalweg_core::{DType, Shape, View, ViewMut};
use thalweg_kernels::attention::{self, Heads, Scores};

use crate::apply::run;
use crate::error::OpError;
use crate::functions::attention::{AttentionOptions, attend};
use crate::meta::{Meta, arity, require_float, require_same_dtype};
use crate::ops::AttentionGrad;
use crate::ops::primitive::{Cost, Grad, Keep, Number, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::single::{self, Single};
use crate::tensor::Tensor;

/// q: (…, queries, width), k: (…, keys, width), v: (…, keys, out) → (…, queries, out). Its kernels never hold
/// the scores of all queries, and read heads where a projection left them.
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
        let [q, k, v] = arity(Self::NAME, x)?;
        Sizes::of(Self::NAME, q, k, v)?;
        let shape = q.shape.with(q.shape.rank() - 1, v.shape[v.shape.rank() - 1]);
        Ok(q.with_shape(&shape))
    }

    fn keep(&self) -> Keep {
        Keep::INPUTS
    }

    /// One op makes all three gradients: they share the weights and their gradient.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let x = [g.x(0), g.x(1), g.x(2)];
        let op = AttentionGrad { scale: self.scale, causal: self.causal };
        let joined = run(op, &[x[0], x[1], x[2], g.dy()]);
        let pieces = joined.split_sizes(&x.map(|x| x.numel()), 0);
        Grad::Inputs(pieces.iter().zip(x).map(|(d, x)| Some(d.reshape(x.shape()))).collect())
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let reference = Reference::new(*self, x);
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
        let Some(x) = x.iter().map(|x| Operand::new(*x)).collect::<Option<SmallVec<[_; 3]>>>() else {
            return false;
        };
        let [q, k, v] = [0, 1, 2].map(|i| x[i].heads());
        single::result(y, |y| attention::attention(q, k, v, self.scores(), y))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 2 * products(self, x), bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        Some(attend(&x[0], &x[1], &x[2], &self.options()).0)
    }

    fn samples() -> Vec<Sample> {
        samples(|op, q, k, v, _| Sample::new(op, [q, k, v]))
    }
}

impl Attention {
    pub(crate) fn scores(&self) -> Scores {
        Scores { scale: self.scale.0 as f32, causal: self.causal }
    }

    /// The same as options of the composite.
    pub(crate) fn options(&self) -> AttentionOptions<'static> {
        AttentionOptions { is_causal: self.causal, scale: Some(self.scale.0), ..Default::default() }
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
}

impl Reference {
    pub fn new(op: Attention, x: &[View<'_>]) -> Self {
        let last = |x: &View<'_>, back: usize| x.shape()[x.shape().rank() - back];
        let sizes = Sizes {
            queries: last(&x[0], 2),
            keys: last(&x[1], 2),
            width: last(&x[0], 1),
            out: last(&x[2], 1),
        };
        Self { op, sizes, q: widened(x[0]), k: widened(x[1]), v: widened(x[2]) }
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
            q.iter().zip(k).map(|(q, k)| q * self.op.scale.0 * k).sum()
        };
        let scores: Vec<f64> = (0..keys).map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|w| w / sum).collect()
    }
}

/// The calls that attention and its gradient are tried on: q, k, v, dy.
pub(crate) fn samples(call: impl Fn(Attention, Draw, Draw, Draw, Draw) -> Sample) -> Vec<Sample> {
    let one = |lead: &[usize], [queries, keys, width, out]: [usize; 4], causal: bool| {
        let draw = |rows: usize, cols: usize| {
            let shape: Shape = lead.iter().copied().chain([rows, cols]).collect();
            Draw::float(shape, -1.0, 1.0)
        };
        let op = Attention { scale: Number(0.5), causal };
        call(op, draw(queries, width), draw(keys, width), draw(keys, out), draw(queries, out))
    };
    vec![
        one(&[], [3, 4, 2, 3], false),
        one(&[2], [3, 3, 4, 4], true),
        one(&[1, 2], [4, 3, 2, 2], true),
        one(&[2, 1], [2, 5, 1, 1], false),
        one(&[2], [2, 0, 3, 2], false),
        one(&[0], [2, 2, 3, 2], true),
        one(&[1], [0, 2, 2, 2], false),
    ]
}
