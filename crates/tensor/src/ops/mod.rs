//! The ops. Each is one file; this is the list.
//!
//! To add one: write its file, add its line to `ops!` below. The list makes the closed enum [`Op`]
//! and everything that is derived from it: dispatch, generated tests, the op reference page.

pub(crate) mod convolution;
pub(crate) mod copy;
mod custom;
pub(crate) mod elementwise;
pub(crate) mod factor;
pub(crate) mod fast_reduction;
pub(crate) mod placing;
pub(crate) mod pooling;
mod primitive;
pub(crate) mod reduction;
pub(crate) mod rowwise;
pub mod sample;
pub(crate) mod scan;
pub(crate) mod sequence;
pub(crate) mod single;

pub use avg_pool::{AvgPoolOptions, Divisor};
pub use bitwise::Gate;
pub use compare::Relation;
pub use conv_input::ConvTransposeOptions;
pub use convolution::{ConvAxis, ConvGeometry, ConvOptions, Padding};
pub use custom::{Custom, CustomOp, custom};
pub use extremum::Extreme;
pub use fft::Direction;
pub use max_pool::MaxPoolOptions;
pub use placing::Combine;
pub use pooling::PoolAxis;
pub use primitive::{Cost, Grad, Keep, Number, Primitive, Tile, Vjp};
pub use slice::Stride;
pub(crate) use slice::python_slice;
pub use triangle::Side;

use thalweg_core::{DType, Layout, Shape, View, ViewMut};
use thalweg_kernels::gemm::OnReady;

use crate::error::{InOp, OpError};
use crate::meta::Meta;
use crate::tensor::Tensor;
use sample::Sample;

macro_rules! ops {
    ($($module:ident::$Name:ident,)*) => {
        $(mod $module; pub use $module::$Name;)*

        /// Any op, with its attributes.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum Op {
            $(#[doc = concat!("See [`", stringify!($Name), "`].")] $Name($Name),)*
            /// A user's own.
            Custom(Custom),
        }

        $(impl From<$Name> for Op {
            #[inline]
            fn from(op: $Name) -> Op { Op::$Name(op) }
        })*

        /// The names of all ops, in the order of the list.
        pub const NAMES: &[&str] = &[$($Name::NAME,)*];

        /// The sample calls of each op, in the order of the list.
        pub fn samples() -> Vec<(&'static str, Vec<Sample>)> {
            vec![$(($Name::NAME, $Name::samples()),)*]
        }

        /// The first line of each op's file and the path of the file, in the order of the list.
        pub const DOCS: &[(&str, &str, &str)] =
            &[$(($Name::NAME, stringify!($module), include_str!(concat!(stringify!($module), ".rs"))),)*];

        impl Op {
            /// An op by its name and its attributes as [`Op::attributes`] writes them. `None`: there
            /// is no op of this name.
            pub fn parse(name: &str, attributes: &str) -> Option<Result<Op, ron::error::SpannedError>> {
                match name {
                    $($Name::NAME => Some(ron::from_str::<$Name>(attributes).map(Op::$Name)),)*
                    _ => None,
                }
            }
        }

        macro_rules! delegate {
            ($op:expr, $bound:ident => $call:expr, $custom:ident => $otherwise:expr) => {
                match $op { $(Op::$Name($bound) => $call,)* Op::Custom($custom) => $otherwise }
            };
        }
    };
}

ops! {
    // arithmetic
    add::Add,
    sub::Sub,
    mul::Mul,
    div::Div,
    neg::Neg,
    // functions of one number
    abs::Abs,
    sign::Sign,
    square::Square,
    sqrt::Sqrt,
    rsqrt::Rsqrt,
    reciprocal::Reciprocal,
    powf::Powf,
    exp::Exp,
    exp2::Exp2,
    expm1::Expm1,
    log::Log,
    log2::Log2,
    log10::Log10,
    log1p::Log1p,
    sin::Sin,
    cos::Cos,
    tan::Tan,
    asin::Asin,
    acos::Acos,
    atan::Atan,
    sinh::Sinh,
    cosh::Cosh,
    tanh::Tanh,
    asinh::Asinh,
    acosh::Acosh,
    atanh::Atanh,
    erf::Erf,
    erfc::Erfc,
    erfinv::Erfinv,
    lgamma::Lgamma,
    polygamma::Polygamma,
    bessel_i::BesselI,
    sinc::Sinc,
    floor::Floor,
    ceil::Ceil,
    round::Round,
    trunc::Trunc,
    sigmoid::Sigmoid,
    relu::Relu,
    // functions of two numbers
    pow::Pow,
    maximum::Maximum,
    minimum::Minimum,
    atan2::Atan2,
    hypot::Hypot,
    logaddexp::Logaddexp,
    xlogy::Xlogy,
    copysign::Copysign,
    floor_divide::FloorDivide,
    remainder::Remainder,
    fmod::Fmod,
    relu_grad::ReluGrad,
    // comparison, choice, conversion
    compare::Compare,
    bitwise::Bitwise,
    select::Select,
    clamp::Clamp,
    convert::Convert,
    stop_gradient::StopGradient,
    // shape
    reshape::Reshape,
    permute::Permute,
    broadcast::Broadcast,
    slice::Slice,
    embed::Embed,
    concat::Concat,
    update::Update,
    diagonal::Diagonal,
    diag_embed::DiagEmbed,
    triangle::Triangle,
    unfold::Unfold,
    // gather, scatter, order
    gather::Gather,
    scatter::Scatter,
    index_select::IndexSelect,
    index_combine::IndexCombine,
    flat_index::FlatIndex,
    argsort::Argsort,
    search_sorted::SearchSorted,
    // reductions and cumulative ops
    sum::Sum,
    prod::Prod,
    extremum::Extremum,
    arg_extremum::ArgExtremum,
    cumsum::Cumsum,
    linear_scan::LinearScan,
    logcumsumexp::Logcumsumexp,
    cumulative_arg::CumulativeArg,
    // products
    matmul::Matmul,
    // linear algebra
    cholesky::Cholesky,
    solve_triangular::SolveTriangular,
    solve::Solve,
    det::Det,
    cofactor::Cofactor,
    slogdet::Slogdet,
    eigh::Eigh,
    eigvalsh::Eigvalsh,
    svd::Svd,
    svdvals::Svdvals,
    orthonormal::Orthonormal,
    fft::Fft,
    // convolution and windows
    conv::Conv,
    conv_input::ConvInput,
    conv_weight::ConvWeight,
    im2col::Im2col,
    col2im::Col2im,
    max_pool::MaxPool,
    max_pool_indices::MaxPoolIndices,
    max_pool_grad::MaxPoolGrad,
    avg_pool::AvgPool,
    avg_pool_grad::AvgPoolGrad,
    // random numbers
    next_key::NextKey,
    random::Random,
    random_gamma::RandomGamma,
    // composites with a kernel of their own
    linear::Linear,
    mean::Mean,
    var::Var,
    logsumexp::Logsumexp,
    softmax::Softmax,
    softmax_grad::SoftmaxGrad,
    log_softmax::LogSoftmax,
    log_softmax_grad::LogSoftmaxGrad,
    log_likelihood::LogLikelihood,
    log_likelihood_grad::LogLikelihoodGrad,
    layer_norm::LayerNorm,
    layer_norm_grad::LayerNormGrad,
    rms_norm::RmsNorm,
    rms_norm_grad::RmsNormGrad,
    batch_moments::BatchMoments,
    batch_norm::BatchNorm,
    batch_norm_sums::BatchNormSums,
    batch_norm_grad::BatchNormGrad,
    gelu::Gelu,
    gelu_tanh::GeluTanh,
    silu::Silu,
    softplus::Softplus,
    attention::Attention,
    attention_grad::AttentionGrad,
    lstm_sequence::LstmSequence,
    lstm_sequence_grad::LstmSequenceGrad,
    gru_sequence::GruSequence,
    gru_sequence_grad::GruSequenceGrad,
    rnn_sequence::RnnSequence,
    rnn_sequence_grad::RnnSequenceGrad,
}

impl Op {
    /// The name in messages.
    pub fn name(&self) -> &'static str {
        fn name_of<P: Primitive>(_: &P) -> &'static str {
            P::NAME
        }
        delegate!(self, op => name_of(op), op => op.name())
    }

    /// The name for people: that which a user's own op gives itself.
    pub fn label(&self) -> &str {
        match self {
            Op::Custom(op) => op.label(),
            op => op.name(),
        }
    }

    /// What a user's own op says that it runs inside; see [`CustomOp::inside`].
    pub fn inside(&self) -> Vec<String> {
        match self {
            Op::Custom(op) => op.inside(),
            _ => Vec::new(),
        }
    }

    /// Whether computing the result does something besides; see [`CustomOp::has_effect`].
    pub fn has_effect(&self) -> bool {
        matches!(self, Op::Custom(op) if op.has_effect())
    }

    /// The operand that the result repeats, of an op that does nothing but say how gradients flow: what is not differentiated
    /// any more does without it.
    pub fn repeats(&self) -> Option<usize> {
        match self {
            Op::StopGradient(_) => Some(0),
            Op::Custom(op) => op.repeats(),
            _ => None,
        }
    }

    /// The attributes as text: `(axis:0,keep:true)`, `()` where there are none.
    pub fn attributes(&self) -> String {
        fn text<P: Primitive>(op: &P) -> String {
            ron::to_string(op).expect("attributes are numbers, names and lists of them")
        }
        delegate!(self, op => text(op), op => format!("({})", op.text().unwrap_or_else(|| format!("{op:?}"))))
    }

    /// Dtype and shape of the result. Attributes that come from a file may claim anything, so the shape is
    /// known to be countable only after this.
    pub fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let result = delegate!(self, op => op.infer(x), op => op.infer(x))?;
        result.shape.check_countable().in_op(self.name())?;
        Ok(result)
    }

    /// What the gradient rule needs.
    pub fn keep(&self) -> Keep {
        delegate!(self, op => op.keep(), op => op.keep())
    }

    /// The gradient rule.
    pub fn grad(&self, g: &Vjp<'_>) -> Grad {
        delegate!(self, op => op.grad(g), op => op.grad(g))
    }

    /// The reference kernel.
    pub fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        delegate!(self, op => op.eval(x, y), op => op.eval(x, y))
    }

    /// The fast kernel, if it covers this call.
    pub fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        delegate!(self, op => op.fast(x, y), _op => false)
    }

    /// The fast kernel with a call for each piece that is ready, if it covers this call.
    pub fn fast_then(&self, x: &[View<'_>], y: &mut ViewMut<'_>, ready: &OnReady<'_>) -> bool {
        delegate!(self, op => op.fast_then(x, y, ready), _op => false)
    }

    /// The fast kernel with a call for whole planes of a result that is kept nowhere, if it covers this call.
    pub fn fast_planes(&self, x: &[View<'_>], y: &Meta, ready: &OnReady<'_>) -> bool {
        delegate!(self, op => op.fast_planes(x, y, ready), _op => false)
    }

    /// Whether there is a fast kernel that passes planes on, for these kinds of operands.
    pub fn passes_planes(&self, x: &[&Meta], y: &Meta) -> bool {
        delegate!(self, op => op.passes_planes(x, y), _op => false)
    }

    /// How many last axes are a plane, if it makes plane by plane.
    pub fn plane_rank(&self) -> Option<usize> {
        delegate!(self, op => op.plane_rank(), _op => None)
    }

    /// Whether elements of the result depend on those in the same place only.
    pub fn is_elementwise(&self) -> bool {
        delegate!(self, op => op.is_elementwise(), _op => false)
    }

    /// The op on tiles of f32, where it has that form for these dtypes. Of f16 and bf16 the elements are widened before and
    /// the result is rounded after it.
    pub fn tile(&self, x: &[&Meta], y: &Meta) -> Option<Tile> {
        let is_half = |m: &&Meta| matches!(m.dtype, DType::F16 | DType::BF16);
        let fits = |m: &Meta| matches!(m.dtype, DType::F32 | DType::Bool) || is_half(&m);
        if !(fits(y) && x.iter().all(|m| fits(m))) {
            return None;
        }
        let tile = delegate!(self, op => op.tile(), _op => None)?;
        // Others compute halves in f64, and would not always round to the same.
        let has_halves = x.iter().any(is_half) || is_half(&y);
        (!has_halves || matches!(tile, Tile::Map(_) | Tile::Zip(_))).then_some(tile)
    }

    /// How many elements a row has and the op on rows, where it has that form for these dtypes.
    pub fn on_rows(&self, x: &[&Meta], y: &Meta) -> Option<(usize, Op)> {
        if !x.iter().chain([&y]).all(|m| m.dtype == DType::F32) {
            return None;
        }
        delegate!(self, op => op.on_rows(x).map(|(cols, op)| (cols, op.into())), _op => None)
    }

    /// Whether it can be continued piece by piece.
    pub fn is_ready_in_pieces(&self) -> bool {
        delegate!(self, op => op.is_ready_in_pieces(), _op => false)
    }

    /// Whether `fast` takes a scalar for a constant operand.
    pub fn takes_numbers(&self) -> bool {
        delegate!(self, op => op.takes_numbers(), _op => false)
    }

    /// The result as a view of the operand.
    pub fn view(&self, x: &Layout, result: &Shape) -> Option<Layout> {
        delegate!(self, op => op.view(x, result), _op => None)
    }

    /// Which operands' memory the result may take over.
    pub fn reuses(&self) -> u32 {
        delegate!(self, op => op.reuses(), _op => 0)
    }

    /// Computes over the first operand.
    pub fn overwrite(&self, rest: Option<View<'_>>, y: &mut ViewMut<'_>) -> bool {
        delegate!(self, op => op.overwrite(rest, y), _op => false)
    }

    /// Work and traffic.
    pub fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        delegate!(self, op => op.cost(x, y), op => op.cost(x, y))
    }

    /// The body of a composite.
    pub fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        delegate!(self, op => op.body(x), _op => None)
    }
}
