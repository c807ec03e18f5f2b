//! Packing buffers that are kept by each thread, so that a steady state allocates nothing.

use std::cell::Cell;

/// Whose buffer: a thread may hold one of each at the same time.
#[derive(Debug, Clone, Copy)]
pub(super) enum Use {
    /// Written by all threads of one product, owned by its caller.
    Shared,
    /// Private to one task.
    Task,
    /// Private to one task of a kernel that is made of small products.
    Kernel,
}

/// One cache line, and the unit of the buffers: panels start on a line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

thread_local! {
    static SHARED: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    static TASK: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    static KERNEL: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Calls `f` with room for `len` elements of plain data, aligned to 64 bytes, with any old contents.
///
/// The buffer is taken out of its slot during the call: a nested use finds the slot empty and
/// allocates, it never shares.
pub(super) fn with<T: Copy, R>(of: Use, len: usize, f: impl FnOnce(*mut T) -> R) -> R {
    let slot = match of {
        Use::Shared => &SHARED,
        Use::Task => &TASK,
        Use::Kernel => &KERNEL,
    };
    let mut lines = slot.take();
    let n_lines = (len * size_of::<T>()).div_ceil(size_of::<Line>());
    if lines.len() < n_lines {
        lines = vec![Line([0; 64]); n_lines];
    }
    let result = f(lines.as_mut_ptr().cast());
    slot.set(lines);
    result
}
