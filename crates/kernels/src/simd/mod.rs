//! Which instruction set this CPU offers, and vectors of f32 lanes written once for all of them.
//!
//! A kernel is a [`Body`]: generic code over [`F32s`]. [`dispatch`] compiles it once for each instruction
//! set and runs the widest one that this machine has. The same body therefore runs on plain f32 in
//! tests, and AVX-512 runs code that AVX2 has tested.

mod avx2;
mod avx512;
pub mod map;
mod neon;
pub(crate) mod scalar;
pub mod vector;

use std::sync::OnceLock;

use crate::simd::vector::F32s;

/// The widest instruction set that a kernel may use on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust; the compiler's baseline for the target.
    Scalar,
    /// NEON, on aarch64: four f32 lanes.
    Neon,
    /// AVX2 with FMA: eight f32 lanes.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL): sixteen f32 lanes.
    Avx512,
}

/// A kernel, generic over the vector. `run` must be `#[inline(always)]`, as must all that it calls with
/// `V`: only code inlined into the `target_feature` function of [`dispatch`] gets its instructions.
pub trait Body {
    /// What the kernel returns.
    type Out;
    /// The kernel on vectors `V`, with `v` some vector of that kind: the proof that this CPU has them.
    fn run<V: F32s>(self, v: V) -> Self::Out;
}

/// The instruction set of this machine. `THALWEG_ISA=scalar|avx2|avx512` lowers it, never raises it.
pub fn isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| {
        let found = detect();
        match std::env::var("THALWEG_ISA").as_deref() {
            Ok("scalar") => Isa::Scalar,
            Ok("avx2") => found.min(Isa::Avx2),
            _ => found,
        }
    })
}

/// Runs `body` with the vectors of [`isa`].
#[inline]
pub fn dispatch<B: Body>(body: B) -> B::Out {
    dispatch_on(isa(), body)
}

/// Runs `body` with the vectors of `isa`, or of this machine's if that is less.
#[inline]
pub fn dispatch_on<B: Body>(wanted: Isa, body: B) -> B::Out {
    match wanted.min(isa()) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` is at least `Avx512`, so `detect` has seen every feature of `run_avx512`.
        Isa::Avx512 => unsafe { run_avx512(body) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` is at least `Avx2`, so `detect` has seen every feature of `run_avx2`.
        Isa::Avx2 => unsafe { run_avx2(body) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: every CPU of this architecture has NEON.
        Isa::Neon => body.run(unsafe { neon::Lanes4::splat_new(0.0) }),
        _ => body.run(scalar::Lane(0.0)),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<B: Body>(body: B) -> B::Out {
    // SAFETY: this function runs only where AVX2 is, which is all that `splat_new` asks.
    body.run(unsafe { avx2::Lanes8::splat_new(0.0) })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn run_avx512<B: Body>(body: B) -> B::Out {
    // SAFETY: this function runs only where AVX-512 is, which is all that `splat_new` asks.
    body.run(unsafe { avx512::Lanes16::splat_new(0.0) })
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Isa {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) => Isa::Avx512,
        (true, false) => Isa::Avx2,
        _ => Isa::Scalar,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Isa {
    if cfg!(target_arch = "aarch64") { Isa::Neon } else { Isa::Scalar }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// The number of lanes of the vectors that a body gets.
    struct Lanes;

    impl Body for Lanes {
        type Out = usize;
        #[inline(always)]
        fn run<V: F32s>(self, _: V) -> usize {
            V::LANES
        }
    }

    #[test]
    fn bodies_get_the_widest_vectors_of_the_machine() {
        // What the system says of the CPU, which is not where `detect` looks.
        let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let has = |flag| flags.split_whitespace().any(|f| f == flag);
        let widest = match () {
            () if cfg!(target_arch = "aarch64") => 4,
            () if has("avx512bw") => 16,
            () if has("avx2") => 8,
            () => 1,
        };
        if std::env::var_os("THALWEG_ISA").is_none() {
            assert_eq!(dispatch(Lanes), widest);
        }
        assert_eq!(dispatch_on(Isa::Scalar, Lanes), 1);
    }
}
