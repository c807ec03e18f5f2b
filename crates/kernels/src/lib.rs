//! CPU kernels over plain slices: threads, SIMD arithmetic, matrix product, reductions, convolution.
//!
//! Knows no tensor and no op. Every kernel has a slow, obvious twin that its tests compare it with.
//! One binary carries a path for each instruction set; the choice is made once, at run time.
#![allow(unsafe_code, reason = "SIMD intrinsics and the thread pool; every block carries its proof")]

pub mod attention;
pub mod conv;
pub mod gemm;
pub mod math;
pub mod philox;
pub mod recurrent;
pub mod rows;
pub mod scratch;
pub mod simd;
pub mod stream;
pub mod threads;
