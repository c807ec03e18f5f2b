//! What an op is: everything that is known about it, in one trait that its file implements.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};

use serde::{Serialize, de::DeserializeOwned};
use smallvec::SmallVec;
use thalweg_core::{DType, Layout, Shape, View, ViewMut};
use thalweg_kernels::gemm::OnReady;

use crate::error::OpError;
use crate::meta::Meta;
use crate::ops::sample::Sample;
use crate::tape::{History, Kept};
use crate::tensor::Tensor;

/// An op with one result. Its file holds this and nothing about it stands anywhere else, except
/// its line in the list of [`crate::ops`].
pub trait Primitive:
    Clone + PartialEq + Eq + Hash + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// The name in messages, in the op page and in the text form of graphs.
    const NAME: &'static str;

    /// Dtype and shape of the result, or why there is none. Sees no values.
    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError>;

    /// What the tape must hold for [`Primitive::grad`]; everything else is freed at once.
    fn keep(&self) -> Keep;

    /// The gradient rule, written with tensors: on traced tensors it records, and its own gradient
    /// is the second derivative. There is no default: an op without gradient says why.
    fn grad(&self, g: &Vjp<'_>) -> Grad;

    /// The reference kernel: slow, obvious, for every dtype and layout that `infer` lets through.
    /// Fails only for what depends on values, such as an index out of range.
    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError>;

    /// A faster kernel for the cases it covers. Returns `false`, with `y` arbitrary, when it covers
    /// this one not; `eval` then runs.
    fn fast(&self, _x: &[View<'_>], _y: &mut ViewMut<'_>) -> bool {
        false
    }

    /// [`Primitive::fast`] that also calls `ready` with ranges of the result's elements, counted in row-major order,
    /// as soon as they are final, from the threads that made them: what comes next finds them in a cache.
    /// Each element is in one range. The address is that of the result's first element, for reading and
    /// writing the range and nothing else. `false`: not covered, and `ready` was not called.
    fn fast_then(&self, _x: &[View<'_>], _y: &mut ViewMut<'_>, _ready: &OnReady<'_>) -> bool {
        false
    }

    /// [`Primitive::fast_then`] for a result of this kind that is kept nowhere: `ready` is called with whole planes, which are all axes
    /// behind the second, and finds them in memory that is used again when it returns. `false`: not covered.
    fn fast_planes(&self, _x: &[View<'_>], _y: &Meta, _ready: &OnReady<'_>) -> bool {
        false
    }

    /// Whether `fast_planes` covers operands and a result of these kinds.
    fn passes_planes(&self, _x: &[&Meta], _y: &Meta) -> bool {
        false
    }

    /// For an op of one operand each plane of which makes one plane of the result, whatever the others are: how many of the
    /// last axes are a plane. `fast` or `eval` then takes any number of planes.
    fn plane_rank(&self) -> Option<usize> {
        None
    }

    /// Whether each element of the result depends on the elements of the operands in the same place,
    /// and on nothing else.
    fn is_elementwise(&self) -> bool {
        false
    }

    /// An elementwise op on tiles of f32, with `bool` as 0 and 1: the same bits as `fast`. Fused
    /// groups are made of these.
    fn tile(&self) -> Option<Tile> {
        None
    }

    /// For an op whose row i depends on row i of the operands, and on operands that are one row long: how many elements of
    /// the first operand a row has, and the op on some rows, given as (rows, cols). Its `fast` then covers f32. Fused
    /// groups compute on a row what comes before and behind while it is in the nearest cache.
    fn on_rows(&self, _x: &[&Meta]) -> Option<(usize, Self)> {
        None
    }

    /// Whether `fast_then` covers some calls.
    fn is_ready_in_pieces(&self) -> bool {
        false
    }

    /// Whether `fast` takes a scalar for an operand that is one number everywhere, in f32 and f64.
    fn takes_numbers(&self) -> bool {
        false
    }

    /// The result as another layout of the operand's memory, when strides can express it.
    fn view(&self, _x: &Layout, _result: &Shape) -> Option<Layout> {
        None
    }

    /// Which operands' memory the result may take over, as a bit mask.
    fn reuses(&self) -> u32 {
        0
    }

    /// Computes the result over its first operand, whose values are in `y`. `false`: not covered,
    /// `y` unchanged.
    fn overwrite(&self, _rest: Option<View<'_>>, _y: &mut ViewMut<'_>) -> bool {
        false
    }

    /// Work and traffic of one application.
    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost::elementwise(x, y)
    }

    /// For a composite with a kernel of its own: the same function written with primitives, the
    /// definition that tests, other devices and other derivatives rely on.
    fn body(&self, _x: &[Tensor]) -> Option<Tensor> {
        None
    }

    /// Calls on which every op is put through the same table of generated tests.
    fn samples() -> Vec<Sample>;
}

/// A function of three operands on tiles.
pub type Zip3 = fn(&[f32], &[f32], &[f32], &mut [f32]);

/// A function on tiles: straight pieces of f32 of equal length.
#[derive(Clone, Copy)]
pub enum Tile {
    /// Of one operand.
    Map(fn(&[f32], &mut [f32])),
    /// Of one operand and a number that is an attribute of the op.
    MapWith(fn(&[f32], f32, &mut [f32]), f32),
    /// Of two operands.
    Zip(fn(&[f32], &[f32], &mut [f32])),
    /// Of three operands.
    Zip3(Zip3),
}

/// Floating-point work and bytes moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Additions, multiplications and their like.
    pub flops: u64,
    /// Bytes read and written when nothing is cached.
    pub bytes: u64,
}

impl Cost {
    /// One operation per result element; every operand read once, the result written once.
    pub fn elementwise(x: &[&Meta], y: &Meta) -> Self {
        Self { flops: y.numel() as u64, bytes: Self::traffic(x, y) }
    }

    /// No arithmetic, only traffic.
    pub fn copy(x: &[&Meta], y: &Meta) -> Self {
        Self { flops: 0, bytes: Self::traffic(x, y) }
    }

    /// Bytes of all operands and of the result.
    pub fn traffic(x: &[&Meta], y: &Meta) -> u64 {
        (x.iter().map(|m| m.bytes()).sum::<usize>() + y.bytes()) as u64
    }
}

/// What a gradient rule needs of the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep(u32);

impl Keep {
    /// Nothing but the incoming gradient.
    pub const NOTHING: Keep = Keep(0);
    /// The shapes and dtypes of all operands.
    pub const METAS: Keep = Keep(1 << 30);
    /// The result.
    pub const OUTPUT: Keep = Keep(1 << 31);

    /// The values of all operands.
    pub const INPUTS: Keep = Keep(1 << 29);

    /// The value of operand `i` (of the first 29).
    pub const fn input(i: usize) -> Keep {
        Keep(1 << i)
    }

    /// Both.
    pub const fn and(self, other: Keep) -> Keep {
        Keep(self.0 | other.0)
    }

    pub(crate) fn value(self, i: usize) -> bool {
        self.0 & Self::INPUTS.0 != 0 || (i < 29 && self.0 & (1 << i) != 0)
    }

    pub(crate) fn metas(self) -> bool {
        self.0 & Self::METAS.0 != 0
    }

    pub(crate) fn output(self) -> bool {
        self.0 & Self::OUTPUT.0 != 0
    }
}

/// The answer of a gradient rule.
pub enum Grad {
    /// One entry per operand; `None` is a gradient that is zero.
    Inputs(SmallVec<[Option<Tensor>; 2]>),
    /// There is no gradient, for this reason.
    None(&'static str),
}

impl Grad {
    /// The gradient of the only operand.
    pub fn one(dx: Tensor) -> Self {
        Grad::Inputs(smallvec::smallvec![Some(dx)])
    }

    /// A gradient that is zero everywhere, for each of `n` operands.
    pub fn zero(n: usize) -> Self {
        Grad::Inputs(smallvec::smallvec![None; n])
    }
}

/// What a gradient rule is given: the incoming gradient and what it asked to keep.
pub struct Vjp<'a> {
    pub(crate) dy: &'a Tensor,
    pub(crate) kept: &'a Kept,
    pub(crate) edges: &'a [Option<History>],
    pub(crate) wants: &'a dyn Fn(usize) -> bool,
    /// Gives the kept output its history back.
    pub(crate) output_history: &'a History,
}

impl Vjp<'_> {
    /// The gradient of the loss with respect to the result.
    pub fn dy(&self) -> &Tensor {
        self.dy
    }

    /// The value of operand `i`. Panics when `keep` did not ask for it.
    pub fn x(&self, i: usize) -> &Tensor {
        self.kept.inputs[i].as_ref().expect("the rule reads an operand that its `keep` did not ask for")
    }

    /// The gradient of an op of one operand by a rule that takes operand and dy. Of f16 and bf16 it is computed in f32 and rounded
    /// once: a rule of many ops would round after each.
    pub fn rounded_once(&self, rule: impl FnOnce(&Tensor, &Tensor) -> Tensor) -> Grad {
        let (x, dtype) = (self.x(0), self.x(0).dtype());
        if !matches!(dtype, DType::F16 | DType::BF16) {
            return Grad::one(rule(x, self.dy));
        }
        Grad::one(rule(&x.to_dtype(DType::F32), &self.dy.to_dtype(DType::F32)).to_dtype(dtype))
    }

    /// Dtype and shape of operand `i`. Panics when `keep` did not ask.
    pub fn meta(&self, i: usize) -> &Meta {
        self.kept.metas.get(i).expect("the rule reads a shape that its `keep` did not ask for")
    }

    /// The result. Panics when `keep` did not ask for it.
    pub fn y(&self) -> Tensor {
        let y = self.kept.output.as_ref().expect("the rule reads a result that its `keep` did not ask for");
        if crate::tape::records(self.output_history.node.level) {
            y.with_history(Some(self.output_history.clone()))
        } else {
            y.clone()
        }
    }

    /// Number of operands.
    pub fn n_inputs(&self) -> usize {
        self.edges.len()
    }

    /// Whether anybody needs the gradient of operand `i`.
    pub fn wants(&self, i: usize) -> bool {
        (self.wants)(i)
    }

    /// `f()` if the gradient of operand `i` is needed.
    pub fn want(&self, i: usize, f: impl FnOnce() -> Tensor) -> Option<Tensor> {
        self.wants(i).then(f)
    }

    /// The gradients by differentiating `f`, the same function of the operands written with others ops; all
    /// operands must have been kept. For the gradients of gradients, which nobody waits for.
    pub(crate) fn through(&self, f: impl FnOnce(&[Tensor]) -> Tensor) -> Grad {
        let x: Vec<Tensor> = (0..self.n_inputs()).map(|i| self.x(i).clone()).collect();
        let (_, pull) = crate::autodiff::vjp(|x| vec![f(x)], &x);
        let grads = pull.call(std::slice::from_ref(self.dy)).expect("the ops of a body have gradients");
        Grad::Inputs(grads.into())
    }

    /// The gradients of two operands, each computed only if needed.
    pub fn pair(&self, a: impl FnOnce() -> Tensor, b: impl FnOnce() -> Tensor) -> Grad {
        Grad::Inputs(smallvec::smallvec![self.want(0, a), self.want(1, b)])
    }
}

/// A float attribute of an op, equal when its bits are.
#[derive(Clone, Copy, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Number(pub f64);

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Number {}

impl Hash for Number {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl Debug for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Debug::fmt(&self.0, f)
    }
}
