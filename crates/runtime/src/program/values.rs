//! Values that enter and leave a program: how they lie in memory, and as what.
//!
//! Instructions know f32 alone. `bool`, f16 and bf16 are converted on the way in and out, and a member of f16 or bf16 is rounded
//! to what that holds, so that a group has the bits of its ops one by one.

use std::ops::Range;

use smallvec::SmallVec;
use thalweg_core::dtype::{bf16, f16};
use thalweg_core::{DType, Layout};
use thalweg_graph::NodeId;
use thalweg_kernels::stream::PastCaches;
use thalweg_kernels::stream::convert::{cast, f16_to_f32, f32_to_f16};

use super::Level;

/// Elements that are converted at a time.
const CHUNK: usize = 256;

/// How an operand reaches the instructions.
#[derive(Debug, Clone)]
pub(crate) enum Access {
    /// f32 in row-major order: read in place, unless a result overwrites it.
    Dense { offset: usize },
    /// Anything else: gathered into a register first.
    Strided(Walk),
}

/// A layout with its axes merged, to be read from any position.
#[derive(Debug, Clone)]
pub(crate) struct Walk {
    offset: isize,
    /// (size, stride), outermost first.
    axes: SmallVec<[(usize, isize); 4]>,
}

/// An operand of a program.
#[derive(Debug, Clone)]
pub(crate) struct Operand {
    /// The node that it is the value of.
    pub node: NodeId,
    pub access: Access,
    pub dtype: DType,
    pub(super) level: Level,
    /// The register it is gathered or copied into, if it cannot be read in place.
    pub(super) register: Option<u16>,
}

impl Operand {
    /// Whether the elements that a tile reads lie where a result of equal length has those that the tile writes.
    pub(crate) fn is_in_step(&self) -> bool {
        matches!(self.access, Access::Dense { offset: 0 }) && self.level != Level::Shared
    }
}

/// A result of a program.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub node: NodeId,
    pub dtype: DType,
    pub(super) level: Level,
    /// The register it is converted from; `None` when instructions write it in place.
    pub(super) register: Option<u16>,
}

impl Walk {
    pub(super) fn new(layout: &Layout) -> Self {
        let mut axes: SmallVec<[(usize, isize); 4]> = SmallVec::new();
        for (&size, &stride) in layout.shape().iter().zip(layout.strides()) {
            match axes.last_mut() {
                _ if size == 1 => {}
                Some((outer, outer_stride)) if *outer_stride == stride * size as isize => {
                    *outer *= size;
                    *outer_stride = stride;
                }
                _ => axes.push((size, stride)),
            }
        }
        Self { offset: layout.offset() as isize, axes }
    }

    /// Calls `f(position, stride, range of the tile)` for the straight runs of elements
    /// `start..start + len`.
    fn runs(&self, start: usize, len: usize, mut f: impl FnMut(isize, isize, Range<usize>)) {
        let Some(&(inner, stride)) = self.axes.last() else { return f(self.offset, 0, 0..len) };
        let mut done = 0;
        while done < len {
            let at = start + done;
            let (mut outer, within) = (at / inner, at % inner);
            let mut position = self.offset + within as isize * stride;
            for &(size, stride) in self.axes[..self.axes.len() - 1].iter().rev() {
                position += (outer % size) as isize * stride;
                outer /= size;
            }
            let n = (inner - within).min(len - done);
            f(position, stride, done..done + n);
            done += n;
        }
    }
}

/// Fills a tile from an operand.
///
/// # Safety
/// `memory` is valid for the operand's dtype and layout.
pub(super) unsafe fn load(operand: &Operand, memory: *mut u8, start: usize, tile: &mut [f32]) {
    // SAFETY: the positions are those of the operand's layout.
    unsafe {
        match (&operand.access, operand.dtype) {
            (Access::Dense { offset }, _) => {
                let x = memory.cast::<f32>().wrapping_add(offset + start);
                tile.copy_from_slice(std::slice::from_raw_parts(x, tile.len()));
            }
            // Bytes: a `bool` is 0 or 1.
            (Access::Strided(walk), DType::Bool) => widen(walk, memory, start, tile, cast::<u8, f32>),
            (Access::Strided(walk), DType::BF16) => widen(walk, memory, start, tile, cast::<bf16, f32>),
            (Access::Strided(walk), DType::F16) => widen(walk, memory, start, tile, f16_to_f32),
            (Access::Strided(walk), _) => walk.runs(start, tile.len(), |at, stride, range| {
                let x = memory.cast::<f32>().offset(at);
                match stride {
                    1 => tile[range.clone()].copy_from_slice(std::slice::from_raw_parts(x, range.len())),
                    0 => tile[range].fill(*x),
                    _ => tile[range]
                        .iter_mut()
                        .enumerate()
                        .for_each(|(i, t)| *t = *x.offset(i as isize * stride)),
                }
            }),
        }
    }
}

/// Fills a tile from elements of another type.
///
/// # Safety
/// `memory` holds elements of type `T` at the positions of the walk.
unsafe fn widen<T: Copy + Default>(
    walk: &Walk,
    memory: *mut u8,
    start: usize,
    tile: &mut [f32],
    convert: impl Fn(&[T], &mut [f32]),
) {
    let mut gathered = [T::default(); CHUNK];
    walk.runs(start, tile.len(), |at, stride, range| {
        let tile = &mut tile[range];
        // SAFETY: the elements of this run are some of the walk.
        unsafe {
            let x = memory.cast::<T>().offset(at);
            if stride == 1 {
                return convert(std::slice::from_raw_parts(x, tile.len()), tile);
            }
            for (chunk, tile) in tile.chunks_mut(CHUNK).enumerate() {
                let gathered = &mut gathered[..tile.len()];
                for (i, g) in gathered.iter_mut().enumerate() {
                    *g = *x.offset((chunk * CHUNK + i) as isize * stride);
                }
                convert(gathered, tile);
            }
        }
    });
}

/// Writes a tile to elements from `start` on.
///
/// # Safety
/// `memory` has room for these elements of the dtype, and nobody else touches them.
pub(super) unsafe fn store(
    tile: &[f32],
    dtype: DType,
    memory: *mut u8,
    start: usize,
    past_caches: &mut Option<PastCaches>,
) {
    let len = tile.len();
    // SAFETY: handed on. Of `bool` bytes are written, since the memory may hold anything before.
    unsafe {
        match dtype {
            DType::Bool => {
                let y = std::slice::from_raw_parts_mut(memory.add(start), len);
                y.iter_mut().zip(tile).for_each(|(y, x)| *y = u8::from(*x != 0.0));
            }
            DType::BF16 => {
                cast(tile, std::slice::from_raw_parts_mut(memory.cast::<bf16>().add(start), len));
            }
            DType::F16 => {
                f32_to_f16(tile, std::slice::from_raw_parts_mut(memory.cast::<f16>().add(start), len));
            }
            // Only huge results come from a register.
            _ => {
                let y = std::slice::from_raw_parts_mut(memory.cast::<f32>().wrapping_add(start), len);
                match past_caches {
                    Some(past_caches) => past_caches.copy(tile, y),
                    None => y.copy_from_slice(tile),
                }
            }
        }
    }
}

/// Rounds a tile to what f16 or bf16 holds.
pub(super) fn round_to(dtype: DType, tile: &mut [f32]) {
    match dtype {
        DType::BF16 => round::<bf16>(tile, cast, cast),
        DType::F16 => round::<f16>(tile, f32_to_f16, f16_to_f32),
        _ => unreachable!("members are f32, bool or half of that"),
    }
}

fn round<H: Copy + Default>(tile: &mut [f32], narrow: fn(&[f32], &mut [H]), widen: fn(&[H], &mut [f32])) {
    let mut narrowed = [H::default(); CHUNK];
    for y in tile.chunks_mut(CHUNK) {
        let narrowed = &mut narrowed[..y.len()];
        narrow(y, narrowed);
        widen(narrowed, y);
    }
}
