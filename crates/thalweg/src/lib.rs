//! Thalweg: tensors with gradients, written as in PyTorch, in pure Rust.
//!
//! ```
//! use thalweg::prelude::*;
//!
//! let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
//! let w = Param::new("w", Tensor::zeros([2], F32));
//! let loss = (x.matmul(&w.get()) - 1.0).square().mean(());
//! let g = loss.grad(&[&w]).remove(0);
//! assert_eq!(g.to_vec::<f32>(), [-4.0, -6.0]);
//! ```
//!
//! A compiled function may decide and loop by values, and can be looked into:
//!
//! ```
//! use thalweg::prelude::*;
//! use thalweg::{Debugger, Finding, Peak, Profile, cond, probe, scan, while_loop};
//!
//! let mut f = jit(|x: Tensor| {
//!     let halved = while_loop(x, |x| x.amax(()).gt(1.0), |x| x * 0.5);
//!     let (total, sums) = scan(Tensor::scalar(0.0f32), halved, |sum, x| (&sum + &x, &sum + &x));
//!     cond(&total.gt(1.0), || probe("sums", &sums), || sums.neg()).log()
//! });
//! let x = Tensor::from([4.0f32, 2.0]);
//! assert_eq!(f.call(x.clone())?.exp().to_vec::<f32>(), [1.0, 1.5]);
//!
//! let mut debugger: Debugger = f.debug(Tensor::from([0.25f32, 0.5]))?;
//! let found: Finding = debugger.run_until_non_finite()?.expect("the log of a negative number");
//! assert!(found.what.contains("not finite"));
//! drop(debugger);
//!
//! let profile: Profile = f.profile(x, 3)?.against(Peak::measure());
//! assert!(profile.to_string().contains("of peak"));
//! # Ok::<(), thalweg::RunError>(())
//! ```
//!
//! This crate is the only one with a stability promise; the crates behind it are its parts.

mod error;
mod files;
mod graph_file;

pub use error::{Error, Result};
pub use files::{Weights, load, load_npy, save, save_npy};
pub use graph_file::{load_graph, save_graph};

pub use thalweg_cluster as cluster;
pub use thalweg_data as data;
pub use thalweg_train as train;

pub use thalweg_core::dtype::{bf16, f16};
pub use thalweg_core::{
    Buffer, DType, Element, Layout, PoolStats, Shape, View, ViewMut, pool_stats, trim_pool,
};
pub use thalweg_formats::{FormatError, Problem};
pub use thalweg_graph as graph;
pub use thalweg_kernels::simd::{Isa, isa};
pub use thalweg_kernels::threads::{set_threads, threads};
pub use thalweg_nn::*;
pub use thalweg_runtime::{
    Debugger, Executor, Finding, Jit, JitOptions, Params, Peak, Plan, Profile, RunError, STAGES, Session,
    StepInfo, Stepped, Tree, autobatch, cond, jit, jit_with, parse_graph, probe, remat, scan, tree,
    while_loop,
};
pub use thalweg_tensor::*;

/// What most programs use.
pub mod prelude {
    pub use crate::cluster::{Cluster, OnCluster, Sync};
    pub use crate::data::Dataset;
    pub use crate::ops::CustomOp;
    pub use crate::train::{Callback, Epochs, Progress, Steps, Trainer};
    pub use crate::{
        DType, Meta, OpError, Param, Rng, Shape, Tensor, View, ViewMut, Weights, checkpoint, custom,
        custom_vjp, grad, hessian, hvp, jacobian, jit, jvp, no_grad, value_and_grad, vjp, vmap,
    };
    pub use DType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U32};
    pub use thalweg_nn::{
        Accumulator, Activation, Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, AdaptiveAvgPool1d,
        AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d, Asgd,
        AttentionConfig, AttentionMask, Average, AvgPool1d, AvgPool2d, AvgPool3d, BatchNorm, Clip, Conv1d,
        Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, Decay, Dropout, Embedding,
        Flatten, Group, GroupNorm, Gru, InstanceNorm, Layer, LayerNorm, Lbfgs, LbfgsOptions,
        LearnedPositions, LineSearch, Linear, Lion, Lstm, MaxPool1d, MaxPool2d, MaxPool3d, Mlp, Module,
        MultiHeadAttention, Muon, NAdam, NormOrder, Optimizer, PRelu, RAdam, RecurrentOptions, Residual,
        RmsNorm, RmsProp, Rnn, Rotary, Rprop, Rule, Sequential, Sgd, Slots, TransformerBlock,
        TransformerConfig, accuracy, autocast, hit_rate, init, models, schedule,
    };
}
