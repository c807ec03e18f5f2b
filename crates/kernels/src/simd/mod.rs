//! Which instruction set this CPU offers, found once at run time.

use std::sync::OnceLock;

/// The widest instruction set that a kernel may use on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust; the compiler's baseline for the target.
    Scalar,
    /// AVX2 with FMA: eight f32 lanes.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL): sixteen f32 lanes.
    Avx512,
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

#[cfg(target_arch = "x86_64")]
fn detect() -> Isa {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
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
    Isa::Scalar
}
