//! Cutting along an axis: `split`, `chunk`, `unbind`, `roll`.

use crate::args::Axes;
use crate::autodiff::record_function;
use crate::error::{InOp, OpError, fail, or_fail};
use crate::meta::Meta;
use crate::tensor::Tensor;

impl Tensor {
    /// Pieces of `size` along an axis; the last may be shorter. They are views.
    #[track_caller]
    pub fn split(&self, size: usize, axis: isize) -> Vec<Tensor> {
        let n = self.size(axis);
        if size == 0 && n > 0 {
            let (value, shape) = ("0".into(), self.shape().clone());
            fail(OpError::Argument { op: "split", name: "size", value, shape, need: "at least 1" });
        }
        if n == 0 {
            return vec![self.clone()];
        }
        let starts = (0..n).step_by(size);
        self.cut(axis, starts.map(|start| (start, size.min(n - start))).collect())
    }

    /// Pieces of the given sizes along an axis. They are views.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let parts = Tensor::arange(5).split_sizes(&[2, 3], 0);
    /// assert_eq!(parts[1].to_vec::<i64>(), [2, 3, 4]);
    /// ```
    #[track_caller]
    pub fn split_sizes(&self, sizes: &[usize], axis: isize) -> Vec<Tensor> {
        if sizes.iter().try_fold(0usize, |n, &s| n.checked_add(s)) != Some(self.size(axis)) {
            let (value, shape) = (format!("{sizes:?}"), self.shape().clone());
            let need = "the sizes must add up to the size of the axis";
            fail(OpError::Argument { op: "split", name: "sizes", value, shape, need });
        }
        let mut start = 0;
        let piece = |&len: &usize| {
            start += len;
            (start - len, len)
        };
        self.cut(axis, sizes.iter().map(piece).collect())
    }

    /// At most `chunks` pieces of equal size along an axis; the last may be shorter. They are views.
    #[track_caller]
    pub fn chunk(&self, chunks: usize, axis: isize) -> Vec<Tensor> {
        if chunks == 0 {
            let (value, shape) = ("0".into(), self.shape().clone());
            fail(OpError::Argument { op: "chunk", name: "chunks", value, shape, need: "at least 1" });
        }
        match self.size(axis) {
            // Nothing to share out: as many pieces as were asked for.
            0 => vec![self.clone(); chunks],
            n => self.split(n.div_ceil(chunks), axis),
        }
    }

    /// The slices along an axis, which disappears. They are views.
    #[track_caller]
    pub fn unbind(&self, axis: isize) -> Vec<Tensor> {
        let at = or_fail(self.shape().axis(axis).in_op("unbind"));
        if self.size(axis) == 0 {
            return vec![];
        }
        self.split(1, axis).iter().map(|piece| piece.reshape(self.shape().without(at))).collect()
    }

    /// Elements moved along axes, those that leave at one end coming back at the other. One shift per
    /// axis; without axes, one shift of all elements in row-major order.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// assert_eq!(Tensor::arange(4).roll(1, 0).to_vec::<i64>(), [3, 0, 1, 2]);
    /// ```
    #[track_caller]
    pub fn roll(&self, shifts: impl Into<Axes>, axes: impl Into<Axes>) -> Tensor {
        let (shifts, axes) = (shifts.into(), axes.into());
        let shifts = shifts.list(0);
        let axes = match axes {
            Axes::All => {
                if shifts.len() != 1 {
                    self.roll_mismatch(shifts.len(), 0);
                }
                return self.reshape(-1isize).roll(&shifts[..], 0).reshape(self.shape());
            }
            Axes::Some(axes) => axes,
        };
        if shifts.len() != axes.len() {
            self.roll_mismatch(shifts.len(), axes.len());
        }
        shifts.iter().zip(&axes).fold(self.clone(), |x, (&shift, &axis)| {
            let axis = or_fail(x.shape().axis(axis).in_op("roll"));
            let n = x.shape().get(axis).copied().unwrap_or(0);
            let cut = if n == 0 { 0 } else { n - shift.rem_euclid(n as isize) as usize };
            if n == 0 || cut == n {
                return x;
            }
            let axis = axis as isize;
            Tensor::concat(&[x.narrow(axis, cut, n - cut), x.narrow(axis, 0, cut)], axis)
        })
    }

    /// Pieces (start, length) that cover an axis in order. Their gradients are joined in one go, where each slice
    /// for itself would add a tensor of the whole size.
    #[track_caller]
    fn cut(&self, axis: isize, pieces: Vec<(usize, usize)>) -> Vec<Tensor> {
        let views = |x: &Tensor| pieces.iter().map(|&(start, len)| x.narrow(axis, start, len)).collect();
        if !self.is_tracked() || !self.dtype().is_float() {
            return views(self);
        }
        let views: Vec<Tensor> = views(&self.without_history());
        let metas: Vec<Meta> = views.iter().map(|y| y.meta().clone()).collect();
        let join = move |dy: &[Option<Tensor>], _: &dyn Fn(usize) -> bool, _: &_| {
            let zeros = |m: &Meta| Tensor::zeros(&m.shape, m.dtype);
            let dy: Vec<Tensor> =
                dy.iter().zip(&metas).map(|(g, m)| g.clone().unwrap_or_else(|| zeros(m))).collect();
            Ok(vec![Some(Tensor::concat(&dy, axis))])
        };
        record_function(views, vec![self.history().cloned()], Box::new(join))
    }

    #[track_caller]
    fn roll_mismatch(&self, shifts: usize, axes: usize) -> ! {
        let (value, shape) = (format!("{shifts} for {axes} axes"), self.shape().clone());
        fail(OpError::Argument { op: "roll", name: "shifts", value, shape, need: "one shift per axis" })
    }
}

#[test]
fn gradients_of_pieces_are_joined() {
    let x = Tensor::arange(6).to_dtype(thalweg_core::DType::F32).reshape([2, 3]);
    // The middle piece is not used; the last is used twice.
    let f = |x: &Tensor| {
        let p = x.split_sizes(&[1, 1, 1], 1);
        (&p[0].square() + &p[2] * &p[2] * &p[2]).sum(())
    };
    assert_eq!(crate::grad(f)(&x).to_vec::<f32>(), [0.0, 0.0, 12.0, 6.0, 0.0, 75.0]);
    let second = crate::grad(|x| crate::grad(f)(x).sum(()))(&x);
    assert_eq!(second.to_vec::<f32>(), [2.0, 0.0, 12.0, 2.0, 0.0, 30.0]);
}
