//! Making tensors from nothing, from Rust data, and turning them back into Rust data.

use thalweg_core::{Buffer, DType, Element, Shape, with_dtype};

use crate::error::{OpError, fail};
use crate::meta::Meta;
use crate::scalar::Scalar;
use crate::tensor::Tensor;

impl Tensor {
    /// Filled with zeros.
    #[track_caller]
    pub fn zeros(shape: impl Into<Shape>, dtype: DType) -> Tensor {
        let meta = checked("zeros", shape.into(), dtype);
        let buffer = Buffer::zeros(dtype, meta.numel());
        Tensor::dense(meta, buffer, None)
    }

    /// Filled with ones.
    #[track_caller]
    pub fn ones(shape: impl Into<Shape>, dtype: DType) -> Tensor {
        Tensor::full(shape, 1, dtype)
    }

    /// Filled with one number.
    #[track_caller]
    pub fn full(shape: impl Into<Shape>, value: impl Into<Scalar>, dtype: DType) -> Tensor {
        let meta = checked("full", shape.into(), dtype);
        let mut buffer = Buffer::scratch(dtype, meta.numel());
        let value = value.into();
        with_dtype!(dtype, T => buffer.as_mut_slice::<T>().fill(value.element::<T>()));
        Tensor::dense(meta, buffer, None)
    }

    /// Zeros of this tensor's shape and dtype.
    pub fn zeros_like(&self) -> Tensor {
        Scalar::Int(0).spread(self.dtype(), self.shape())
    }

    /// Ones of this tensor's shape and dtype.
    pub fn ones_like(&self) -> Tensor {
        Scalar::Int(1).spread(self.dtype(), self.shape())
    }

    /// One number in this tensor's shape and dtype.
    pub fn full_like(&self, value: impl Into<Scalar>) -> Tensor {
        value.into().spread(self.dtype(), self.shape())
    }

    /// A tensor without axes that holds one number: f32, i64 or bool.
    pub fn scalar(value: impl Into<Scalar>) -> Tensor {
        let value = value.into();
        value.tensor(value.dtype())
    }

    /// 0, 1, …, n − 1 as i64.
    pub fn arange(n: usize) -> Tensor {
        Tensor::from((0..n as i64).collect::<Vec<_>>())
    }

    /// From `start` towards `end`, which is left out, in steps, as f32.
    #[track_caller]
    pub fn arange_step(start: f64, end: f64, step: f64) -> Tensor {
        if step == 0.0 || !(start.is_finite() && end.is_finite() && step.is_finite()) {
            let value = format!("{start}..{end} by {step}");
            let need = "ends must be finite and the step must not be 0";
            fail(OpError::Argument { op: "arange_step", name: "range", value, shape: Shape::scalar(), need });
        }
        let n = ((end - start) / step).ceil().max(0.0) as usize;
        checked("arange_step", n.into(), DType::F32);
        Tensor::from((0..n).map(|i| (start + i as f64 * step) as f32).collect::<Vec<_>>())
    }

    /// `n` numbers from `start` to `end`, both included, evenly spaced, as f32.
    pub fn linspace(start: f64, end: f64, n: usize) -> Tensor {
        let step = if n > 1 { (end - start) / (n - 1) as f64 } else { 0.0 };
        // Counted from the nearer end, so that both ends are exact.
        let at = |i: usize| if i < n / 2 { start + i as f64 * step } else { end - (n - 1 - i) as f64 * step };
        let values = (0..n).map(|i| if n == 1 { start as f32 } else { at(i) as f32 });
        Tensor::from(values.collect::<Vec<_>>())
    }

    /// The identity matrix.
    #[track_caller]
    pub fn eye(n: usize, dtype: DType) -> Tensor {
        let meta = checked("eye", [n, n].into(), dtype);
        let mut buffer = Buffer::zeros(dtype, n * n);
        with_dtype!(dtype, T => buffer.as_mut_slice::<T>().iter_mut().step_by(n + 1).for_each(|v| *v = T::from_i64(1)));
        Tensor::dense(meta, buffer, None)
    }

    /// The elements of a vector in row-major order under a shape.
    #[track_caller]
    pub fn from_vec<T: Element>(data: Vec<T>, shape: impl Into<Shape>) -> Tensor {
        Tensor::from_slice(&data, shape)
    }

    /// A copy of a slice in row-major order under a shape.
    #[track_caller]
    pub fn from_slice<T: Element>(data: &[T], shape: impl Into<Shape>) -> Tensor {
        let meta = Meta::new(T::DTYPE, shape);
        if meta.numel() != data.len() {
            let hint = "the shape must have as many elements as the data";
            fail(OpError::Shapes { op: "from_slice", left: [data.len()].into(), right: meta.shape, hint });
        }
        Tensor::dense(meta, Buffer::from_slice(data), None)
    }

    /// The elements in row-major order. Panics when `T` is not the dtype.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Vec<T> {
        self.require::<T>("to_vec");
        match self.view().dense::<T>() {
            Some(data) => data.to_vec(),
            None => self.view().iter().collect(),
        }
    }

    /// The elements as nested arrays of the same shape. Panics when shape or dtype differ.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let x = Tensor::from([[1i64, 2], [3, 4]]);
    /// assert_eq!(x.t().to_array::<[[i64; 2]; 2]>(), [[1, 3], [2, 4]]);
    /// ```
    #[track_caller]
    pub fn to_array<A: Nested>(&self) -> A {
        self.require::<A::Element>("to_array");
        let mut shape = Shape::scalar();
        A::sizes(&mut shape);
        if shape != *self.shape() {
            let hint = "the array type must have the tensor's shape";
            fail(OpError::Shapes { op: "to_array", left: self.shape().clone(), right: shape, hint });
        }
        A::build(&mut self.view().iter())
    }

    /// The rows of a matrix.
    #[track_caller]
    pub fn to_vec2<T: Element>(&self) -> Vec<Vec<T>> {
        if self.rank() != 2 {
            fail(OpError::Rank { op: "to_vec2", want: "exactly 2", shape: self.shape().clone() });
        }
        let (flat, cols) = (self.to_vec::<T>(), self.shape()[1]);
        (0..self.shape()[0]).map(|i| flat[i * cols..(i + 1) * cols].to_vec()).collect()
    }

    /// The elements where they lie, if they lie in row-major order. Panics when `T` is not the dtype.
    #[track_caller]
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        self.require::<T>("as_slice");
        self.view().dense()
    }

    /// The only element. Panics when there are more, or when `T` is not the dtype.
    #[track_caller]
    pub fn item<T: Element>(&self) -> T {
        self.require::<T>("item");
        if self.numel() != 1 {
            let hint = "only a tensor with one element has an item; reduce or index it first";
            fail(OpError::Shapes { op: "item", left: self.shape().clone(), right: Shape::scalar(), hint });
        }
        self.view().memory::<T>()[self.layout().offset()]
    }

    /// The elements in row-major order, in memory of their own.
    #[track_caller]
    pub fn contiguous(&self) -> Tensor {
        if self.is_contiguous() { self.clone() } else { self.broadcast_dense() }
    }

    /// The elements in row-major order in fresh memory, without history.
    pub(crate) fn copied_buffer(&self) -> Buffer {
        with_dtype!(self.dtype(), T => Buffer::from_slice(&self.to_vec::<T>()))
    }

    #[track_caller]
    fn require<T: Element>(&self, op: &'static str) {
        if self.dtype() != T::DTYPE {
            fail(OpError::DTypes { op, left: self.dtype(), right: T::DTYPE });
        }
    }
}

/// Refuses shapes that no memory can hold.
#[track_caller]
fn checked(op: &'static str, shape: Shape, dtype: DType) -> Meta {
    match shape.checked_numel() {
        Ok(_) => Meta { dtype, shape },
        Err(source) => fail(OpError::Shape { op, source }),
    }
}

impl<T: Element> From<Vec<T>> for Tensor {
    fn from(data: Vec<T>) -> Self {
        let n = data.len();
        Tensor::from_slice(&data, n)
    }
}

impl<T: Element> From<&[T]> for Tensor {
    fn from(data: &[T]) -> Self {
        Tensor::from_slice(data, data.len())
    }
}

/// An element, or arrays of arrays of elements.
pub trait Nested {
    /// The innermost type.
    type Element: Element;
    /// Appends the sizes, outermost first.
    fn sizes(shape: &mut Shape);
    /// Appends the elements in row-major order.
    fn flatten_into(&self, out: &mut Vec<Self::Element>);
    /// Takes as many elements as it holds, in row-major order.
    fn build(elements: &mut impl Iterator<Item = Self::Element>) -> Self;
}

macro_rules! nested {
    ($($t:ty),*) => {$(
        impl Nested for $t {
            type Element = $t;
            fn sizes(_: &mut Shape) {}
            fn flatten_into(&self, out: &mut Vec<$t>) {
                out.push(*self);
            }
            fn build(elements: &mut impl Iterator<Item = $t>) -> $t {
                elements.next().expect("`to_array` compared the shapes")
            }
        }
    )*};
}

nested!(bool, u8, i8, i16, i32, u32, i64, half::f16, half::bf16, f32, f64);

impl<T: Nested, const N: usize> Nested for [T; N] {
    type Element = T::Element;
    fn sizes(shape: &mut Shape) {
        shape.push(N);
        T::sizes(shape);
    }
    fn flatten_into(&self, out: &mut Vec<T::Element>) {
        self.iter().for_each(|inner| inner.flatten_into(out));
    }
    fn build(elements: &mut impl Iterator<Item = T::Element>) -> Self {
        std::array::from_fn(|_| T::build(elements))
    }
}

impl<T: Nested, const N: usize> From<[T; N]> for Tensor {
    fn from(data: [T; N]) -> Self {
        let (mut shape, mut flat) = (Shape::scalar(), Vec::new());
        <[T; N]>::sizes(&mut shape);
        data.flatten_into(&mut flat);
        Tensor::from_slice(&flat, shape)
    }
}
