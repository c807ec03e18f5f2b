//! The tile registers of AMX, in assembly: the compiler's own functions for them are not stable yet.

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::marker::PhantomData;
use std::sync::OnceLock;

use half::bf16;

use super::bf16::Tiles;
use crate::simd::{Isa, isa};

/// Whether this process may use tiles of bf16: the CPU has them, and the system saves and grants them.
/// `THALWEG_ISA` below AVX-512, which every such CPU has, turns them off.
pub(super) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| isa() == Isa::Avx512 && in_cpu() && saved_by_system() && granted())
}

fn in_cpu() -> bool {
    const TILE_AND_BF16: u32 = 1 << 24 | 1 << 22;
    // Leaf 7 exists where AVX2 does.
    let features = __cpuid_count(7, 0).edx;
    features & TILE_AND_BF16 == TILE_AND_BF16
}

fn saved_by_system() -> bool {
    #[target_feature(enable = "xsave")]
    fn enabled() -> u64 {
        // SAFETY: register 0 exists wherever the instruction does.
        unsafe { _xgetbv(0) }
    }
    const TILE_CONFIG_AND_DATA: u64 = 1 << 17 | 1 << 18;
    // SAFETY: `detect` found AVX-512 with the system's consent, which is asked for by this very instruction.
    let enabled = unsafe { enabled() };
    enabled & TILE_CONFIG_AND_DATA == TILE_CONFIG_AND_DATA
}

/// Linux gives the 8 KB of tiles to processes that ask for them, for all their threads.
fn granted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: a call of the system with two numbers, which writes to no memory of ours.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// How the eight tiles of a thread are cut: palette 1, each of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static WHOLE_TILES: Config = Config {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// The tiles of this thread, ready for use. Given back when dropped: until then the system saves them at each switch.
pub(super) struct Amx {
    /// They stay on their thread.
    _here: PhantomData<*const ()>,
}

impl Tiles for Amx {
    fn take() -> Self {
        assert!(available(), "gemm: tiles on a CPU that has none");
        // SAFETY: reads the 64 bytes of a valid configuration; `available` has seen the instruction and its permission.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE_TILES, options(nostack, readonly)) };
        Self { _here: PhantomData }
    }

    unsafe fn block(&self, a: *const bf16, b: *const bf16, n_steps: usize, sums: *mut f32) {
        // SAFETY: each step reads two tiles of 1 KB of each operand, as the caller has them; the end writes four tiles
        // whose rows are 32 sums, 128 bytes, apart. The tiles are configured, and hold nothing between two calls.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "test {n}, {n}",
                "jz 3f",
                "2:",
                "tileloadd tmm4, [{a} + {row}]",
                "tileloadd tmm6, [{b} + {row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {row} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a} + {row} + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 2048",
                "add {b}, 2048",
                "dec {n}",
                "jnz 2b",
                "3:",
                "tilestored [{sums} + {sums_row}], tmm0",
                "tilestored [{sums} + {sums_row} + 64], tmm1",
                "tilestored [{sums} + {sums_row} + 2048], tmm2",
                "tilestored [{sums} + {sums_row} + 2112], tmm3",
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                n = inout(reg) n_steps => _,
                sums = in(reg) sums,
                row = in(reg) 64usize,
                sums_row = in(reg) 128usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for Amx {
    fn drop(&mut self) {
        // SAFETY: the tiles of this thread were configured by `take`, and nobody else on it uses them: a task never
        // runs another task.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
