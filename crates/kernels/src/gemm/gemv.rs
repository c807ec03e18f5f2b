//! Matrix times vector: bound by the bandwidth of reading the matrix, so each element is read once, in
//! the order of memory, and the outputs are shared out to the threads.
#![allow(clippy::needless_range_loop, reason = "indices name rows and vectors of several arrays at once")]

use super::scratch::{self, Use};
use super::vector::Vector;
use super::{Element, MatRef, SendPtr};
use crate::threads::{parallel, threads};

/// Elements of the matrix below which a second thread costs more than it brings.
const PARALLEL_MIN: usize = 1 << 16;

/// Outputs of one column sweep: a chunk of y stays in the L1 cache while the rows pass by.
const AXPY_CHUNK: usize = 2048;

/// `y[i * y_stride] (+)= rows[i * row_stride ..][..k] · x[..k]` for `i < n_rows`.
pub(super) struct Dots<T> {
    pub n_rows: usize,
    pub k: usize,
    pub rows: *const T,
    pub row_stride: usize,
    pub x: *const T,
    pub y: *mut T,
    pub y_stride: usize,
    pub add: bool,
}

/// `y[..n] (+)= Σ_p x[p * x_stride] * rows[p * row_stride ..][..n]` for `p < k`.
pub(super) struct Axpy<T> {
    pub n: usize,
    pub k: usize,
    pub rows: *const T,
    pub row_stride: usize,
    pub x: *const T,
    pub x_stride: usize,
    pub y: *mut T,
    pub add: bool,
}

/// `y[i * y_stride] (+)= mat (R×k) · x (k×1)`, or `None` if neither stride of `mat` is 1: then packing
/// serves it better.
///
/// # Safety
/// `y` is valid for writes of `mat.rows()` elements `y_stride` apart, by any thread, and is not read or
/// written by others meanwhile.
pub(super) unsafe fn gemv<T: Element>(
    mat: MatRef<T>,
    x: MatRef<T>,
    y: SendPtr<T>,
    y_stride: usize,
    add: bool,
) -> Option<()> {
    let (n_rows, k) = (mat.rows(), mat.cols());
    let n_threads = if n_rows * k < PARALLEL_MIN { 1 } else { threads() };
    if mat.col_stride() == 1 {
        scratch::with(Use::Shared, k, |packed: *mut T| {
            let x = contiguous(x, packed);
            // Four pieces for each thread, of whole groups of four rows.
            let grain = n_rows.div_ceil(4 * n_threads).next_multiple_of(4);
            parallel(n_rows.div_ceil(grain), &|task_idx| {
                let first = task_idx * grain;
                // SAFETY: rows `first ..` of `mat` and y exist, `x` has k elements, and no other task
                // has these rows.
                unsafe {
                    (T::kernels().dots)(&Dots {
                        n_rows: grain.min(n_rows - first),
                        k,
                        rows: mat.as_ptr().add(first * mat.row_stride()),
                        row_stride: mat.row_stride(),
                        x: x.get(),
                        y: y.get().add(first * y_stride),
                        y_stride,
                        add,
                    });
                }
            });
        });
        return Some(());
    }
    if mat.row_stride() == 1 && (y_stride == 1 || n_rows == 1) {
        let grain = n_rows.div_ceil(n_threads).next_multiple_of(64).min(AXPY_CHUNK);
        let (rows, x_from) = (SendPtr::of(mat.as_ptr()), SendPtr::of(x.as_ptr()));
        parallel(n_rows.div_ceil(grain), &|task_idx| {
            let first = task_idx * grain;
            // SAFETY: columns `first ..` of the rows of `matᵀ` and y exist, x has k elements, and no
            // other task has these columns.
            unsafe {
                (T::kernels().axpy)(&Axpy {
                    n: grain.min(n_rows - first),
                    k,
                    rows: rows.get().add(first),
                    row_stride: mat.col_stride(),
                    x: x_from.get(),
                    x_stride: x.row_stride(),
                    y: y.get().add(first),
                    add,
                });
            }
        });
        return Some(());
    }
    None
}

/// The elements of column vector `x`, copied to `packed` if they are not side by side.
fn contiguous<T: Element>(x: MatRef<T>, packed: *mut T) -> SendPtr<T> {
    if x.row_stride() == 1 {
        return SendPtr::of(x.as_ptr());
    }
    for p in 0..x.rows() {
        // SAFETY: the caller's buffer has room for `x.rows()` elements.
        unsafe { packed.add(p).write(x.at(p, 0)) };
    }
    SendPtr::of(packed)
}

/// # Safety
/// The pointers of `dots` reach over what its doc says; the CPU has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn dots_body<V: Vector>(dots: &Dots<V::Elem>) {
    let mut row = 0;
    // SAFETY: rows `row .. row + 4`, then single rows, are below `n_rows`.
    unsafe {
        while row + 4 <= dots.n_rows {
            dots_of::<V, 4>(dots, row);
            row += 4;
        }
        while row < dots.n_rows {
            dots_of::<V, 1>(dots, row);
            row += 1;
        }
    }
}

/// Rows `first .. first + R` of [`Dots`]. The order of summation depends on k alone.
///
/// # Safety
/// As for [`dots_body`], and those rows exist.
#[inline(always)]
unsafe fn dots_of<V: Vector, const R: usize>(dots: &Dots<V::Elem>, first: usize) {
    // SAFETY: offsets stay below k in x and in each of the R rows; y has an element for each row. The
    // array of lanes has room for the widest vector.
    unsafe {
        let rows: [*const V::Elem; R] = std::array::from_fn(|r| dots.rows.add((first + r) * dots.row_stride));
        let zero = V::splat(<V::Elem as super::Element>::ZERO);
        let mut sums = [[zero; 2]; R];
        let mut p = 0;
        while p + 2 * V::LANES <= dots.k {
            let x = [V::load(dots.x.add(p)), V::load(dots.x.add(p + V::LANES))];
            for r in 0..R {
                for half in 0..2 {
                    sums[r][half] = V::load(rows[r].add(p + half * V::LANES)).mul_add(x[half], sums[r][half]);
                }
            }
            p += 2 * V::LANES;
        }
        while p < dots.k {
            let n = (dots.k - p).min(V::LANES);
            let x = V::load_first(dots.x.add(p), n);
            for r in 0..R {
                sums[r][0] = V::load_first(rows[r].add(p), n).mul_add(x, sums[r][0]);
            }
            p += n;
        }
        for r in 0..R {
            let mut lanes = [<V::Elem as super::Element>::ZERO; 16];
            let one = V::splat(<V::Elem as super::Element>::ONE);
            sums[r][0].mul_add(one, sums[r][1]).store(lanes.as_mut_ptr());
            let mut width = V::LANES;
            while width > 1 {
                width /= 2;
                for lane in 0..width {
                    lanes[lane] = lanes[lane] + lanes[lane + width];
                }
            }
            let y = dots.y.add((first + r) * dots.y_stride);
            *y = if dots.add { *y + lanes[0] } else { lanes[0] };
        }
    }
}

/// # Safety
/// The pointers of `axpy` reach over what its doc says; the CPU has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn axpy_body<V: Vector>(axpy: &Axpy<V::Elem>) {
    let mut p = 0;
    // SAFETY: rows `p .. p + R` are below k.
    unsafe {
        while p + 8 <= axpy.k {
            axpy_of::<V, 8>(axpy, p);
            p += 8;
        }
        while p < axpy.k {
            axpy_of::<V, 1>(axpy, p);
            p += 1;
        }
    }
}

/// Rows `first .. first + R` of [`Axpy`], added to y in order; row 0 overwrites y unless `add`.
///
/// # Safety
/// As for [`axpy_body`], and those rows exist.
#[inline(always)]
unsafe fn axpy_of<V: Vector, const R: usize>(axpy: &Axpy<V::Elem>, first: usize) {
    // SAFETY: column offsets stay below n, masked in the last vector; rows and x are below k.
    unsafe {
        let rows: [*const V::Elem; R] = std::array::from_fn(|r| axpy.rows.add((first + r) * axpy.row_stride));
        let mut x = [V::splat(<V::Elem as super::Element>::ZERO); R];
        for r in 0..R {
            x[r] = V::splat(*axpy.x.add((first + r) * axpy.x_stride));
        }
        let add = axpy.add || first > 0;
        let mut j = 0;
        while j + V::LANES <= axpy.n {
            let y = axpy.y.add(j);
            let mut sum = if add { V::load(y) } else { V::splat(<V::Elem as super::Element>::ZERO) };
            for r in 0..R {
                sum = x[r].mul_add(V::load(rows[r].add(j)), sum);
            }
            sum.store(y);
            j += V::LANES;
        }
        if j < axpy.n {
            let (y, n) = (axpy.y.add(j), axpy.n - j);
            let mut sum = if add { V::load_first(y, n) } else { V::splat(<V::Elem as super::Element>::ZERO) };
            for r in 0..R {
                sum = x[r].mul_add(V::load_first(rows[r].add(j), n), sum);
            }
            sum.store_first(y, n);
        }
    }
}
