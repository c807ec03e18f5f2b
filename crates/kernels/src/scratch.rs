//! Memory for the time of a call, kept by each thread: kernels in a steady state allocate nothing.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// One cache line, the unit of the memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

thread_local! {
    /// What the thread has and nobody uses. Each has no elements, only room for them.
    static FREE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// A slice of plain data that goes back to its thread when it is dropped. Several may be held at once.
pub struct Scratch<T> {
    /// Room for `len` elements, all of which are written.
    room: Vec<Line>,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Copy> Scratch<T> {
    /// `len` times the same value.
    pub fn filled(len: usize, value: T) -> Self {
        Self::each(len, |_| value)
    }

    /// What `f` gives for `0 .. len`.
    pub fn each(len: usize, f: impl Fn(usize) -> T) -> Self {
        const { assert!(align_of::<T>() <= align_of::<Line>(), "a line aligns its elements") };
        let n_lines = len.checked_mul(size_of::<T>()).expect("memory is finite").div_ceil(size_of::<Line>());
        let mut room = take(n_lines);
        let to: *mut T = room.as_mut_ptr().cast();
        for i in 0..len {
            // SAFETY: `room` has the capacity for `len` elements, aligned by the assertion above.
            unsafe { to.add(i).write(f(i)) };
        }
        Self { room, len, of: PhantomData }
    }
}

/// The smallest room of this thread that is large enough, or a new one in the place of the largest: so the
/// rooms grow until they fit, and then stay.
fn take(n_lines: usize) -> Vec<Line> {
    FREE.with_borrow_mut(|free| {
        let sizes = || free.iter().map(Vec::capacity).enumerate();
        let best = sizes().filter(|(_, size)| *size >= n_lines).min_by_key(|(_, size)| *size);
        let largest = || sizes().max_by_key(|(_, size)| *size);
        match best.or_else(largest) {
            Some((i, size)) if size >= n_lines => free.swap_remove(i),
            Some((i, _)) => {
                drop(free.swap_remove(i));
                Vec::with_capacity(n_lines)
            }
            None => Vec::with_capacity(n_lines),
        }
    })
}

impl<T> Deref for Scratch<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `each` wrote `len` elements, and the room is this value's alone.
        unsafe { std::slice::from_raw_parts(self.room.as_ptr().cast(), self.len) }
    }
}

impl<T> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.room.as_mut_ptr().cast(), self.len) }
    }
}

impl<T> Drop for Scratch<T> {
    fn drop(&mut self) {
        let room = std::mem::take(&mut self.room);
        // A thread that ends has no list any more.
        let _ = FREE.try_with(|free| free.borrow_mut().push(room));
    }
}

#[cfg(test)]
mod tests {
    use super::Scratch;

    #[test]
    fn memory_is_used_again_and_never_twice_at_once() {
        let place = |s: &Scratch<f64>| s.as_ptr();
        let (a, b) = (Scratch::filled(100, 1.0f64), Scratch::each(3, |i| i as f64));
        assert_ne!(place(&a), place(&b));
        assert_eq!((a[99], &b[..]), (1.0, &[0.0, 1.0, 2.0][..]));
        let (large, small) = (place(&a), place(&b));
        drop((a, b));
        let (b, a) = (Scratch::filled(2, 0.0f64), Scratch::filled(99, 0.0f64));
        assert_eq!((place(&a), place(&b)), (large, small));
        let mut empty = Scratch::filled(0, [1u8; 3]);
        assert!(empty.is_empty() && empty.iter_mut().next().is_none());
    }
}
