//! [`Tensor`], its ops (one file each) and automatic differentiation.
//!
//! One tensor type with runtime dtype and shape; every op goes through [`apply`]; gradient rules are
//! written once, with tensors.

pub mod ambient;
mod apply;
mod args;
mod arithmetic;
mod autodiff;
mod backward;
mod create;
mod error;
mod functions;
mod index;
mod meta;
mod meter;
mod operand;
pub mod ops;
pub mod param;
mod print;
mod rng;
#[doc(hidden)]
pub mod rule;
mod scalar;
mod shaping;
mod switch;
mod tape;
mod tensor;
pub mod trace;

pub use apply::apply;
pub use args::{Axes, Dims, PerAxis};
pub use autodiff::{
    Leaf, Pullback, checkpoint, custom_vjp, grad, hessian, hvp, jacobian, jvp, no_grad, try_value_and_grads,
    value_and_grad, vjp, vmap, with_rule, without_derivative,
};
pub use create::Nested;
pub use error::OpError;
pub use functions::attention::{AttentionOptions, AttentionWeights};
pub use functions::classification::CrossEntropyOptions;
pub use functions::ctc::CtcOptions;
pub use functions::images::Interpolation;
pub use functions::losses::{BceOptions, GaussianNllOptions, PoissonNllOptions, Reduction, TripletOptions};
pub use functions::norms::BatchNormOptions;
pub use functions::recurrent::{CellWeights, RnnActivation};
pub use functions::{AddmmOptions, Bag, MatrixNorm, PadMode, Reduce, Unique};
pub use index::{Ellipsis, Index, Indices, NewAxis, Slice};
pub use meta::Meta;
pub use meter::{Meter, metered};
pub use operand::Operand;
pub use ops::custom;
pub use ops::{AvgPoolOptions, ConvOptions, ConvTransposeOptions, Divisor, MaxPoolOptions, Padding};
pub use param::Param;
pub use rng::Rng;
pub use scalar::Scalar;
pub use switch::Switch;
pub use tape::CallerLine;
pub use tensor::Tensor;
