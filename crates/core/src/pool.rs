//! Freed blocks wait here for the next buffer of their size, so that a loop in steady state asks
//! the system for nothing: fresh pages cost more than most kernels that fill them.
//!
//! Sizes are rounded up to classes, four per doubling (at most 25 % is wasted). Small blocks are
//! kept by the thread that freed them; the rest, and what overflows, in one shared list.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::buffer::{ALIGN, Block};

const N_CLASSES: usize = 4 * (usize::BITS as usize - ALIGN.trailing_zeros() as usize);
/// Blocks up to this size are cached per thread.
const SMALL: usize = 64 << 10;
/// How many blocks of one class a thread keeps.
const PER_THREAD: usize = 64;
/// Beyond this many idle bytes a freed block goes back to the system.
const MAX_IDLE: usize = 4 << 30;

static IDLE_BYTES: AtomicUsize = AtomicUsize::new(0);
static SYSTEM_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static SHARED: Mutex<Vec<Vec<Arc<Block>>>> = Mutex::new(Vec::new());

thread_local! {
    static LOCAL: RefCell<Vec<Vec<Arc<Block>>>> = const { RefCell::new(Vec::new()) };
}

/// What the pool has done so far in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolStats {
    /// Blocks asked from the system allocator.
    pub system_allocations: usize,
    /// Bytes waiting in the shared list.
    pub idle_bytes: usize,
}

/// Counters of the pool.
pub fn pool_stats() -> PoolStats {
    PoolStats { system_allocations: SYSTEM_ALLOCATIONS.load(Relaxed), idle_bytes: IDLE_BYTES.load(Relaxed) }
}

/// Gives all idle memory of the shared list and of this thread back to the system.
pub fn trim_pool() {
    LOCAL.with(|local| local.borrow_mut().clear());
    let idle = std::mem::take(&mut *shared());
    let bytes: usize = idle.iter().flatten().map(|b| b.capacity()).sum();
    IDLE_BYTES.fetch_sub(bytes, Relaxed);
}

/// A block of at least `bytes` bytes with one owner, made by `fresh` where none is idle.
#[inline]
pub(crate) fn take(bytes: usize, fresh: fn(usize) -> Block) -> Arc<Block> {
    let class = class_of(bytes);
    let local = LOCAL.try_with(|local| local.borrow_mut().get_mut(class).and_then(Vec::pop));
    match local {
        Ok(Some(block)) => block,
        _ => take_shared(class, fresh),
    }
}

#[cold]
fn take_shared(class: usize, fresh: fn(usize) -> Block) -> Arc<Block> {
    if let Some(block) = shared().get_mut(class).and_then(Vec::pop) {
        IDLE_BYTES.fetch_sub(block.capacity(), Relaxed);
        return block;
    }
    SYSTEM_ALLOCATIONS.fetch_add(1, Relaxed);
    Arc::new(fresh(class_size(class)))
}

/// Takes back a block that has one owner.
#[inline]
pub(crate) fn give(block: Arc<Block>) {
    let class = class_of(block.capacity());
    let mut block = Some(block);
    if class_size(class) <= SMALL {
        // `try_with` fails while the thread ends; the shared list is then the place.
        let _ = LOCAL.try_with(|local| {
            let mut lists = local.borrow_mut();
            if lists.len() <= class {
                lists.resize_with(class + 1, Vec::new);
            }
            if lists[class].len() < PER_THREAD {
                lists[class].extend(block.take());
            }
        });
    }
    if let Some(block) = block {
        give_shared(class, block);
    }
}

#[cold]
fn give_shared(class: usize, block: Arc<Block>) {
    if IDLE_BYTES.load(Relaxed) + block.capacity() > MAX_IDLE {
        return;
    }
    IDLE_BYTES.fetch_add(block.capacity(), Relaxed);
    let mut lists = shared();
    if lists.len() <= class {
        lists.resize_with(class + 1, Vec::new);
    }
    lists[class].push(block);
}

fn shared() -> MutexGuard<'static, Vec<Vec<Arc<Block>>>> {
    // The lists are valid between any two pushes, so a panicking holder leaves nothing half-done.
    SHARED.lock().unwrap_or_else(|e| e.into_inner())
}

/// The smallest class that holds `bytes`.
#[inline]
fn class_of(bytes: usize) -> usize {
    let lines = bytes.div_ceil(ALIGN).max(1);
    if lines <= 4 {
        return lines - 1;
    }
    // `lines` lies in (2^k, 2^(k+1)]; four steps cover that span.
    let k = (usize::BITS - 1 - (lines - 1).leading_zeros()) as usize;
    let step = 1usize << (k - 2);
    let quarter = (lines - (1usize << k)).div_ceil(step);
    4 * (k - 1) + quarter - 1
}

/// The bytes of a block of this class.
fn class_size(class: usize) -> usize {
    debug_assert!(class < N_CLASSES);
    if class < 4 {
        return (class + 1) * ALIGN;
    }
    let (k, quarter) = (class / 4 + 1, class % 4 + 1);
    ((1usize << k) + (quarter << (k - 2))) * ALIGN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_they_promise_and_waste_little() {
        let mut last = 0;
        for bytes in (1..5000).chain((5000..3_000_000).step_by(977)) {
            let class = class_of(bytes);
            let size = class_size(class);
            assert!(size >= bytes, "{bytes} in class {class} of {size}");
            assert!(bytes <= 256 || size <= bytes + bytes / 4 + ALIGN, "{bytes} in {size}");
            assert_eq!(class_of(size), class);
            assert!(class >= last);
            last = class;
        }
    }

    #[test]
    fn a_steady_loop_asks_the_system_for_nothing() {
        // Odd sizes, so that no test running beside this one uses the same classes.
        let sizes = [3_000_017, 70_001];
        let cycle = || sizes.map(|bytes| take(bytes, Block::allocate)).into_iter().for_each(give);
        cycle();
        let idle = |class: usize| shared().get(class).map_or(0, Vec::len);
        let before = sizes.map(|s| idle(class_of(s)));
        for _ in 0..100 {
            cycle();
        }
        assert_eq!(sizes.map(|s| idle(class_of(s))), before);
    }
}
