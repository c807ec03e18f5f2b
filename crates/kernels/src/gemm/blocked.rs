//! The blocked product: cuts C into tasks, k into blocks, and feeds the tile kernel from panels.
//!
//! The scheme is that of BLIS (Van Zee and van de Geijn, 2015). B is packed into a slab shared by all
//! threads, then each task packs its rows of A, one k block at a time, and runs over the panels of B:
//! a panel of B (`KC × nr`) stays in L1, the block of A (`MC × KC`) in L2, the slab in L3. Where several
//! tasks have the same rows, A is packed together with B. A matrix that is read too few times to pay for
//! its packing is used where it lies.
//!
//! The cut of k depends on k alone and tasks own disjoint parts of C, so the result does not depend on
//! the number of threads.

use super::pack::{Source, pack_panel};
use super::scratch::{self, Use};
use super::tile::{Kernels, Tile, TileShape};
use super::{Element, MatRef, Pieces, Ready, SendPtr, Start};
use crate::threads::parallel;

/// Longest k block: a panel of B of 16 columns is then 24 KB of the 32 KB of L1.
const KC: usize = 384;

/// Rows of A in a task: a block of `MC × KC` takes half of an L2 cache of 512 KB.
const MC: usize = 192;

/// Largest slab of packed B, in elements. Half and twice as much were within the noise of a busy machine,
/// twice as much on its slow side at 2048³.
const SLAB: usize = 1 << 20;

/// Multiply-adds below which a second thread costs more than it brings (a few µs of work).
pub(super) const PARALLEL_MIN: usize = 1 << 18;

/// Rows of A up to which B may be used where it lies, see [`Product::b_serves_unpacked`].
const DIRECT_B_ROWS: usize = 128;

/// A cache of L1: 64 sets of 8 lines of 64 bytes.
const L1_SETS: usize = 64;
const L1_WAYS: usize = 8;
const LINE: usize = 64;

/// Columns of B up to which A is used where it lies, if its rows are dense.
const DIRECT_A_COLS: usize = 128;

/// Fewest columns of a task, unless C has fewer: each task packs its rows of A anew.
const MIN_COLS: usize = 256;

/// `c (m×n) = start + a (m×k) · b (k×n)`, rows of c `ldc` apart. None of m, n, k is 0. Calls `ready` with each
/// straight piece of c, counted from `c`, as soon as nothing more is added to it. Uses up to `n_threads` threads.
///
/// # Safety
/// `c` is valid for reads and writes of the m×n elements, by any thread, and is not accessed by others
/// meanwhile.
pub(super) unsafe fn gemm<T: Element>(
    a: MatRef<T>,
    b: MatRef<T>,
    c: SendPtr<T>,
    ldc: usize,
    start: Start<'_, T>,
    ready: Ready<'_>,
    n_threads: usize,
) {
    let product = Product { a, b, c, ldc, start, ready, kernels: T::kernels() };
    let (m, k, n) = (a.rows(), a.cols(), b.cols());
    let nr = product.kernels.nr;
    let n_threads = if m * n * k < PARALLEL_MIN { 1 } else { n_threads };
    if product.b_serves_unpacked() {
        let panels = Panels { at: SendPtr::of(b.as_ptr()), p_stride: b.row_stride(), panel_stride: nr };
        product.multiply(panels, None, 0..k, 0..n, n_threads);
        return;
    }
    // A slab takes all of k if it can: C is then read and written in one go.
    let k_slab = k.min(SLAB / nr / 4 / KC * KC);
    let n_slab = (SLAB / k_slab / nr * nr).min(n.next_multiple_of(nr));
    let m_padded = m.next_multiple_of(product.kernels.mr);
    let share_a = product.cut(n_slab.min(n), n_threads).1 < n_slab.min(n)
        && n > DIRECT_A_COLS
        && m_padded * k_slab <= SLAB;
    let n_shared = if share_a { m_padded * k_slab } else { 0 };
    scratch::with(Use::Shared, k_slab * n_slab + n_shared, |slab: *mut T| {
        // SAFETY: the end of the slab, behind the panels of B.
        let shared_a = share_a.then(|| SendPtr(unsafe { slab.add(k_slab * n_slab) }));
        let slab = SendPtr::of(slab);
        for j in (0..n).step_by(n_slab) {
            let cols = j..n.min(j + n_slab);
            for p in (0..k).step_by(k_slab) {
                let ps = p..k.min(p + k_slab);
                let panels = product.pack(slab, shared_a, ps.clone(), cols.clone(), n_threads);
                product.multiply(panels, shared_a, ps, cols.clone(), n_threads);
            }
        }
    });
}

type Range = std::ops::Range<usize>;

struct Product<'a, T: Element> {
    a: MatRef<'a, T>,
    b: MatRef<'a, T>,
    c: SendPtr<T>,
    ldc: usize,
    start: Start<'a, T>,
    ready: Ready<'a>,
    kernels: &'static Kernels<T>,
}

/// Where the panels of a part of B are: row p of panel q starts at `q * panel_stride + p * p_stride`.
#[derive(Clone, Copy)]
struct Panels<T> {
    at: SendPtr<T>,
    p_stride: usize,
    panel_stride: usize,
}

impl<T: Element> Product<'_, T> {
    /// Whether tiles may read B where it lies: its rows are dense and either few tiles read it or a panel
    /// fits in L1 in spite of its stride. Rows a multiple of 4 KB apart all fall in one set of the cache:
    /// 128×1024×1024 then ran at half the speed of the packed product.
    fn b_serves_unpacked(&self) -> bool {
        let m = self.a.rows();
        if self.b.col_stride() != 1 || m > DIRECT_B_ROWS {
            return false;
        }
        let stride = self.b.row_stride() * size_of::<T>();
        let stride_in_lines = 1 << (stride / LINE).trailing_zeros().min(L1_SETS.ilog2());
        let n_sets = if stride.is_multiple_of(LINE) { L1_SETS / stride_in_lines } else { L1_SETS };
        // Pages count too: the rows of a panel should lie in few of them.
        let n_rows = self.b.rows().min(KC);
        m <= self.kernels.mr || (n_rows <= n_sets * L1_WAYS && n_rows * stride <= 1 << 19)
    }

    /// Packs the panel of b with the columns from `j` on, which end at `end`, and the rows `p .. p + k`.
    ///
    /// # Safety
    /// These are inside b; `to` has room for `k * nr` elements.
    unsafe fn pack_b(&self, j: usize, end: usize, p: usize, k: usize, to: *mut T) {
        let nr = self.kernels.nr;
        let (stride_i, stride_p) = (self.b.col_stride(), self.b.row_stride());
        // SAFETY: passed on to the caller.
        unsafe {
            let from = self.b.as_ptr().add(p * stride_p + j * stride_i);
            pack_panel(Source { from, stride_i, stride_p }, nr.min(end - j), nr, k, to);
        }
    }

    /// Packs `b[ps, cols]` into `slab`, and all of `a[.., ps]` if there is a place for it.
    fn pack(
        &self,
        slab: SendPtr<T>,
        shared_a: Option<SendPtr<T>>,
        ps: Range,
        cols: Range,
        n_threads: usize,
    ) -> Panels<T> {
        let (nr, k) = (self.kernels.nr, ps.len());
        let n_panels = cols.len().div_ceil(nr);
        let pack_b = |panel: usize| {
            let j = cols.start + panel * nr;
            // SAFETY: `ps` and `cols` are inside b; the slab has room for `k * nr` elements for each
            // panel, and each panel is written by one task.
            unsafe { self.pack_b(j, cols.end, ps.start, k, slab.get().add(panel * k * nr)) };
        };
        let grain = n_panels.div_ceil(4 * n_threads);
        let n_b_tasks = n_panels.div_ceil(grain);
        // Tasks of A are pieces of about the size of those of B.
        let row_grain = (grain * nr).next_multiple_of(self.kernels.mr);
        let n_a_tasks = if shared_a.is_some() { self.a.rows().div_ceil(row_grain) } else { 0 };
        run(n_b_tasks + n_a_tasks, n_threads, &|task_idx| {
            if task_idx < n_b_tasks {
                return (task_idx * grain..n_panels.min((task_idx + 1) * grain)).for_each(pack_b);
            }
            let row = (task_idx - n_b_tasks) * row_grain;
            let rows = row..self.a.rows().min(row + row_grain);
            for (p, k) in k_blocks(&ps) {
                // SAFETY: room for all rows and all of `ps`, and each row is packed by one task.
                unsafe {
                    let to = shared_a.expect("counted").get().add(self.shared_at(&rows, p - ps.start, k));
                    self.pack_a(rows.clone(), p, k, to);
                }
            }
        });
        Panels { at: slab, p_stride: nr, panel_stride: k * nr }
    }

    /// Packs `a[rows, p .. p + k]` into panels at `to`.
    ///
    /// # Safety
    /// The part is inside A; `to` has room for its rows, filled up to a multiple of `mr`.
    unsafe fn pack_a(&self, rows: Range, p: usize, k: usize, to: *mut T) {
        let mr = self.kernels.mr;
        let (stride_i, stride_p) = (self.a.row_stride(), self.a.col_stride());
        for i in (0..rows.len()).step_by(mr) {
            // SAFETY: passed on to the caller.
            unsafe {
                let from = self.a.as_ptr().add((rows.start + i) * stride_i + p * stride_p);
                let source = Source { from, stride_i, stride_p };
                pack_panel(source, mr.min(rows.len() - i), mr, k, to.add(i * k));
            }
        }
    }

    /// Where in A that was packed for all tasks the panels of these rows begin, for the k block that begins `p` after
    /// the slab and is `k` long. Rows begin at a multiple of `mr`.
    fn shared_at(&self, rows: &Range, p: usize, k: usize) -> usize {
        p * self.a.rows().next_multiple_of(self.kernels.mr) + rows.start * k
    }

    /// `c[.., cols] += a[.., ps] · b[ps, cols]`, with the given panels of `b[ps, cols]`; the first part of k adds to
    /// the start instead.
    fn multiply(
        &self,
        panels: Panels<T>,
        shared_a: Option<SendPtr<T>>,
        ps: Range,
        cols: Range,
        n_threads: usize,
    ) {
        let (row_grain, col_grain) = self.cut(cols.len(), n_threads);
        let n_row_blocks = self.a.rows().div_ceil(row_grain);
        let n_col_blocks = cols.len().div_ceil(col_grain);
        run(n_row_blocks * n_col_blocks, n_threads, &|task_idx| {
            let row = task_idx / n_col_blocks * row_grain;
            let col = cols.start + task_idx % n_col_blocks * col_grain;
            let block = Block {
                rows: row..self.a.rows().min(row + row_grain),
                cols: col..cols.end.min(col + col_grain),
                first_panel: (col - cols.start) / self.kernels.nr,
            };
            self.multiply_block(panels, shared_a, ps.clone(), &block);
        });
    }

    /// Rows and columns of C for one task: multiples of `mr` and `nr`, rows at most about `MC`.
    fn cut(&self, n: usize, n_threads: usize) -> (usize, usize) {
        let (mr, nr) = (self.kernels.mr, self.kernels.nr);
        let m = self.a.rows();
        let even = |len: usize, parts: usize, unit: usize| len.div_ceil(parts).next_multiple_of(unit);
        let n_row_blocks = m.div_ceil(MC);
        if n_threads == 1 {
            return (even(m, n_row_blocks, mr), n.next_multiple_of(nr));
        }
        if n <= DIRECT_A_COLS {
            // A is not packed, so tasks may be small: they even out what does not divide.
            let n_tasks = 16 * n_threads;
            let n_units = m.div_ceil(mr);
            let n_col_blocks = if n_units < n_tasks { 2 } else { 1 };
            return (n_units.div_ceil(n_tasks) * mr, even(n, n_col_blocks, nr));
        }
        // Four tasks for each thread even out what other processes take; an uneven number of equal
        // tasks would leave threads idle at the end.
        let n_tasks = 4 * n_threads;
        let n_col_blocks = n_tasks.div_ceil(n_row_blocks).min(n / MIN_COLS).max(1);
        let mut n_row_blocks = n_row_blocks.max(n_tasks.div_ceil(n_col_blocks));
        if !(n_row_blocks * n_col_blocks).is_multiple_of(n_threads) {
            n_row_blocks = n_row_blocks.next_multiple_of(n_threads);
        }
        (even(m, n_row_blocks, mr), even(n, n_col_blocks, nr))
    }

    /// One task: its block of C, over all of `ps`.
    fn multiply_block(&self, panels: Panels<T>, shared_a: Option<SendPtr<T>>, ps: Range, block: &Block) {
        let n_uses = block.cols.len().div_ceil(self.kernels.nr);
        let pack = shared_a.is_none()
            && (block.cols.len() > DIRECT_A_COLS
                || (self.a.col_stride() != 1 && n_uses > 2)
                || self.rows_of_a_collide());
        let n_rows = block.rows.len().next_multiple_of(self.kernels.mr);
        let n_scratch = if pack { n_rows * ps.len().min(KC) } else { 0 };
        scratch::with(Use::Task, n_scratch, |own: *mut T| {
            for (p, k) in k_blocks(&ps) {
                // SAFETY: the block is inside A, and its panels have room; panels of B reach over all of `ps`.
                let step = unsafe {
                    let shared = |at: SendPtr<T>| at.get().add(self.shared_at(&block.rows, p - ps.start, k));
                    if pack {
                        self.pack_a(block.rows.clone(), p, k, own);
                    }
                    let a_packed = if pack { Some(own) } else { shared_a.map(shared) };
                    KStep { p, k, b: panels.at.get().add((p - ps.start) * panels.p_stride), a_packed }
                };
                self.multiply_step(panels, block, &step);
            }
        });
        if ps.end == self.a.cols() {
            self.tell(&block.rows, &block.cols);
        }
    }

    /// Says that a block of C is final.
    fn tell(&self, rows: &Range, cols: &Range) {
        let Some(ready) = self.ready else { return };
        let at = |row: usize, col: usize| row * self.ldc + col;
        let pieces = match cols.len() == self.ldc {
            true => Pieces::one(at(rows.start, 0)..at(rows.end, 0)),
            false => {
                let first = at(rows.start, cols.start)..at(rows.start, cols.end);
                Pieces { first, n: rows.len(), stride: self.ldc }
            }
        };
        ready(pieces, self.c.get().cast());
    }

    /// What the part of k that begins at `p` is added to at (row, col): the place, and the stride of its rows.
    fn from(&self, p: usize, row: usize, col: usize) -> (*const T, usize) {
        match self.start {
            Start::Zero if p == 0 => (std::ptr::null(), 0),
            Start::Row(bias) if p == 0 => (bias[col..].as_ptr(), 0),
            // In C: what it held, or what the parts before have left there.
            _ => (self.c.get().wrapping_add(row * self.ldc + col).cast_const(), self.ldc),
        }
    }

    /// Whether the rows of a tile of A lie in one set of L1, out of which they push each other.
    fn rows_of_a_collide(&self) -> bool {
        self.a.cols() > KC && (self.a.row_stride() * size_of::<T>()).is_multiple_of(L1_SETS * LINE)
    }

    /// The part of [`Self::multiply_block`] for one k block.
    fn multiply_step(&self, panels: Panels<T>, block: &Block, step: &KStep<T>) {
        let Kernels { mr, nr, .. } = *self.kernels;
        let (a_row_stride, a_col_stride) = (self.a.row_stride(), self.a.col_stride());
        let n_rows = block.rows.len();
        // SAFETY: `block` is inside C and its rows inside A, `p .. p + k` inside A's columns; packed A
        // has room for each panel. Tiles get the rows and columns that exist, panels of B reach over
        // k rows, and other tasks have other blocks of C.
        unsafe {
            let a = self.a.as_ptr().add(block.rows.start * a_row_stride + step.p * a_col_stride);
            for (panel, j) in (block.first_panel..).zip(block.cols.clone().step_by(nr)) {
                let n_cols = nr.min(block.cols.end - j);
                let shape = |rows| TileShape { rows, cols: n_cols, a_packed: step.a_packed.is_some() };
                let (full_tile, n_last) = self.kernels.tile(shape(mr));
                for i in (0..n_rows).step_by(mr) {
                    let (from, from_row_stride) = self.from(step.p, block.rows.start + i, j);
                    let tile = Tile {
                        k: step.k,
                        a: step
                            .a_packed
                            .map_or(a.wrapping_add(i * a_row_stride), |packed| packed.add(i * step.k)),
                        a_row_stride,
                        a_col_stride,
                        a_rows: std::ptr::null(),
                        b: step.b.add(panel * panels.panel_stride),
                        b_row_stride: panels.p_stride,
                        c: self.c.get().add((block.rows.start + i) * self.ldc + j),
                        c_row_stride: self.ldc,
                        n_last,
                        from,
                        from_row_stride,
                    };
                    let rest = n_rows - i;
                    if rest >= mr { full_tile(&tile) } else { self.kernels.tile(shape(rest)).0(&tile) }
                }
            }
        }
    }
}

/// The part of C that one task makes.
struct Block {
    rows: Range,
    cols: Range,
    /// The panel of B that `cols` begins with.
    first_panel: usize,
}

/// One k block of a task.
struct KStep<T> {
    p: usize,
    k: usize,
    /// Row `p` of panel 0.
    b: *const T,
    /// The packed rows of A, or `None` to use A where it lies.
    a_packed: Option<*mut T>,
}

/// The k blocks of a slab: where each begins, and its length.
fn k_blocks(ps: &Range) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (start, end) = (ps.start, ps.end);
    let k = ps.len().div_ceil(ps.len().div_ceil(KC));
    (start..end).step_by(k).map(move |p| (p, k.min(end - p)))
}

/// Runs the tasks on the pool, or here if one thread was judged to be enough.
pub(super) fn run(n_tasks: usize, n_threads: usize, task: &(dyn Fn(usize) + Sync)) {
    if n_threads == 1 { (0..n_tasks).for_each(task) } else { parallel(n_tasks, task) }
}
