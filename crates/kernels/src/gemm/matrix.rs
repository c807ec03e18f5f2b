//! A borrowed matrix with two strides.

/// A `rows × cols` matrix inside a slice: element `(i, j)` is `data[i * row_stride + j * col_stride]`.
///
/// A transposition is a swap of the strides and a broadcast is a stride of 0; both cost nothing. Every
/// element is known to lie inside the slice, which the unsafe kernels rely on.
///
/// ```
/// use thalweg_kernels::gemm::MatRef;
/// let a = MatRef::row_major(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], 2, 3);
/// assert_eq!(a.at(1, 0), 4.0);
/// assert_eq!(a.t().at(2, 1), 6.0);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct MatRef<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a, T: Copy> MatRef<'a, T> {
    /// Panics if an element would lie outside `data`.
    pub fn new(data: &'a [T], rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> Self {
        let n_needed = span(rows, cols, row_stride, col_stride);
        assert!(
            n_needed.is_some_and(|n| n <= data.len()),
            "gemm: {rows}×{cols} matrix with strides ({row_stride}, {col_stride}) does not fit in {} elements",
            data.len()
        );
        Self { data, rows, cols, row_stride, col_stride }
    }

    /// A dense matrix stored row after row. Panics if `data` is too short.
    pub fn row_major(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self::new(data, rows, cols, cols, 1)
    }

    /// The transposed matrix over the same data.
    pub fn t(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements between one row and the next.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// Elements between one column and the next.
    pub fn col_stride(&self) -> usize {
        self.col_stride
    }

    /// Element `(row, col)`. Panics outside the matrix.
    pub fn at(&self, row: usize, col: usize) -> T {
        assert!(row < self.rows && col < self.cols);
        self.data[row * self.row_stride + col * self.col_stride]
    }

    /// Row `row`, which must lie densely. Panics outside the matrix.
    pub fn row(&self, row: usize) -> &'a [T] {
        assert!(row < self.rows && (self.col_stride == 1 || self.cols <= 1));
        if self.cols == 0 { &[] } else { &self.data[row * self.row_stride..][..self.cols] }
    }

    pub(super) fn as_ptr(&self) -> *const T {
        self.data.as_ptr()
    }
}

/// How many elements a strided matrix reaches over; 0 if it is empty, `None` on overflow.
pub(super) fn span(rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> Option<usize> {
    if rows == 0 || cols == 0 {
        return Some(0);
    }
    let last_row = (rows - 1).checked_mul(row_stride)?;
    let last_col = (cols - 1).checked_mul(col_stride)?;
    last_row.checked_add(last_col)?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_outside_their_slice_are_refused() {
        let data = [0f32; 6];
        MatRef::new(&data, 2, 3, 3, 1);
        MatRef::new(&data, 1000, 6, 0, 1);
        MatRef::new(&data, 0, 1000, 5, 1);
        for (rows, cols, row_stride, col_stride) in [(2, 3, 4, 1), (7, 1, 1, 1), (2, 2, usize::MAX, 1)] {
            let bad = std::panic::catch_unwind(|| MatRef::new(&data, rows, cols, row_stride, col_stride));
            assert!(bad.is_err());
        }
    }
}
