//! What convolution, its two gradients and the unfolding of windows have in common: the geometry.

use smallvec::SmallVec;
use thalweg_core::{Shape, View, ViewMut};
use thalweg_kernels::conv;

use crate::args::PerAxis;
use crate::error::{InOp, OpError};
use crate::ops::rowwise::{narrow_into, widened};

/// How windows lie along one spatial axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ConvAxis {
    /// Steps from one window to the next.
    pub stride: usize,
    /// Steps from one tap to the next.
    pub dilation: usize,
    /// Zeros before and after.
    pub padding: [usize; 2],
}

/// How windows lie, and which channels see each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ConvGeometry {
    /// One entry per spatial axis: one to three. Boxed, since every op pays for the largest one.
    pub axes: Box<[ConvAxis]>,
    /// Groups of channels that do not see each other.
    pub groups: usize,
}

/// Zeros around the input of a convolution.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Padding {
    /// As many on both sides.
    Sides(PerAxis),
    /// As many as keep the size, the odd one after; for stride 1.
    Same,
}

impl From<PerAxis> for Padding {
    fn from(sides: PerAxis) -> Self {
        Padding::Sides(sides)
    }
}

impl From<usize> for Padding {
    fn from(sides: usize) -> Self {
        Padding::Sides(sides.into())
    }
}

impl<const N: usize> From<[usize; N]> for Padding {
    fn from(sides: [usize; N]) -> Self {
        Padding::Sides(sides.into())
    }
}

/// The options of `conv1d`, `conv2d` and `conv3d`.
///
/// ```
/// use thalweg_tensor::{ConvOptions, Padding};
/// let options = ConvOptions { padding: Padding::Same, groups: 2, ..Default::default() };
/// assert_ne!(options, ConvOptions { stride: 2.into(), padding: 1.into(), ..Default::default() });
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvOptions {
    /// Steps from one window to the next.
    pub stride: PerAxis,
    /// Zeros around the input.
    pub padding: Padding,
    /// Steps from one tap to the next.
    pub dilation: PerAxis,
    /// Groups of channels that do not see each other.
    pub groups: usize,
}

impl Default for ConvOptions {
    fn default() -> Self {
        Self { stride: 1.into(), padding: 0.into(), dilation: 1.into(), groups: 1 }
    }
}

impl ConvOptions {
    /// As the attributes of an op, for `n` spatial axes and a kernel.
    pub(crate) fn geometry(
        &self,
        op: &'static str,
        x: &Shape,
        kernel: &[usize],
    ) -> Result<ConvGeometry, OpError> {
        let n = kernel.len();
        let stride = self.stride.list(op, "stride", n, x)?;
        let dilation = self.dilation.list(op, "dilation", n, x)?;
        let padding: SmallVec<[[usize; 2]; 3]> = match &self.padding {
            Padding::Sides(sides) => sides.list(op, "padding", n, x)?.iter().map(|&p| [p, p]).collect(),
            Padding::Same if stride.iter().any(|&s| s != 1) => {
                let need = "`Same` keeps the size only at stride 1; give numbers";
                let (name, value) = ("stride", format!("{stride:?}"));
                return Err(OpError::Argument { op, name, value, shape: x.clone(), need });
            }
            Padding::Same => {
                let total = |(&k, &d): (&usize, &usize)| d.saturating_mul(k.saturating_sub(1));
                kernel.iter().zip(&dilation).map(total).map(|t| [t / 2, t - t / 2]).collect()
            }
        };
        let axis = |i: usize| ConvAxis { stride: stride[i], dilation: dilation[i], padding: padding[i] };
        Ok(ConvGeometry { axes: (0..n).map(axis).collect(), groups: self.groups })
    }
}

impl ConvGeometry {
    /// The name of a function by its number of spatial axes.
    pub(crate) fn name(&self, names: [&'static str; 3]) -> &'static str {
        names[self.axes.len().clamp(1, 3) - 1]
    }

    /// The shape of y for those of x (batch, in, *input) and w (out, in / groups, *kernel).
    pub(crate) fn result(&self, op: &'static str, x: &Shape, w: &Shape) -> Result<Shape, OpError> {
        let n = self.axes.len();
        let wanted = [
            "3 (batch, channels, length)",
            "4 (batch, channels, height, width)",
            "5 (batch, channels, depth, height, width)",
        ];
        for shape in [x, w] {
            if shape.rank() != n + 2 || !(1..=3).contains(&n) {
                return Err(OpError::Rank { op, want: wanted[n.clamp(1, 3) - 1], shape: shape.clone() });
            }
        }
        let misfit = |hint| OpError::Shapes { op, left: x.clone(), right: w.clone(), hint };
        if self.groups == 0 || !w[0].is_multiple_of(self.groups) {
            return Err(misfit(
                "the first axis of the weight (output channels) must be a multiple of `groups`",
            ));
        }
        if w[1].checked_mul(self.groups) != Some(x[1]) {
            return Err(misfit("axis 1 of the input (channels) must be `groups` times axis 1 of the weight"));
        }
        let mut y: Shape = [x[0], w[0]].into();
        for (i, axis) in self.axes.iter().enumerate() {
            y.push(axis.windows(op, x, x[2 + i], w[2 + i])?);
        }
        // The kernel of an unfolding and any padding are attributes: nothing has bounded them yet.
        for shape in [w, &y] {
            shape.check_countable().in_op(op)?;
        }
        Ok(y)
    }

    /// The sizes for the kernels. The shapes have passed [`ConvGeometry::result`].
    pub(crate) fn sizes(&self, x: &Shape, w: &Shape, y: &Shape) -> conv::Conv {
        let mut axes = [conv::Axis::UNIT; 3];
        let lead = 3 - self.axes.len();
        for (i, a) in self.axes.iter().enumerate() {
            let (input, kernel, output) = (x[2 + i], w[2 + i], y[2 + i]);
            let (stride, dilation, padding) = (a.stride, a.dilation, a.padding[0]);
            axes[lead + i] = conv::Axis { input, kernel, output, stride, dilation, padding };
        }
        let groups = self.groups;
        conv::Conv { batch: x[0], groups, in_channels: w[1], out_channels: w[0] / groups, axes }
    }
}

impl ConvAxis {
    /// How many windows of `kernel` taps fit an axis of `size`.
    pub(crate) fn windows(
        &self,
        op: &'static str,
        x: &Shape,
        size: usize,
        kernel: usize,
    ) -> Result<usize, OpError> {
        let error = |name, value: usize, need| {
            Err(OpError::Argument { op, name, value: value.to_string(), shape: x.clone(), need })
        };
        if self.stride == 0 || self.dilation == 0 || kernel == 0 {
            let name = if kernel == 0 {
                "kernel size"
            } else if self.stride == 0 {
                "stride"
            } else {
                "dilation"
            };
            return error(name, 0, "must be at least 1");
        }
        let reach = self.dilation.saturating_mul(kernel - 1).saturating_add(1);
        let padded = size.saturating_add(self.padding[0]).saturating_add(self.padding[1]);
        if reach > padded {
            let need = "with its dilation, the kernel must not be larger than the padded input (pad more)";
            return error("kernel size", kernel, need);
        }
        Ok((padded - reach) / self.stride + 1)
    }
}

/// The reference of all three: `y[out(i, k, o)] += a[..] · b[..]` over every product, in f64. `places`
/// says for the positions in x, w and y which are the operands' and which the result's.
pub(crate) fn reference(
    c: &conv::Conv,
    [a, b]: [View<'_>; 2],
    y: &mut ViewMut<'_>,
    places: impl Fn([usize; 3]) -> [usize; 3],
) {
    let mut sums = vec![0.0f64; y.shape().numel()];
    let (a, b) = (widened(a), widened(b));
    conv::naive::for_each_product(c, |x, w, y| {
        let [a_at, b_at, y_at] = places([x, w, y]);
        sums[y_at] += a[a_at] * b[b_at];
    });
    narrow_into(&sums, y);
}

/// Multiplications and additions.
pub(crate) fn flops(c: &conv::Conv) -> u64 {
    let per_output: usize = c.in_channels * c.axes.iter().map(|a| a.kernel).product::<usize>();
    let outputs: usize = c.axes.iter().map(|a| a.output).product();
    2 * (c.batch * c.groups * c.out_channels * outputs * per_output) as u64
}

/// The calls that all three ops are tried on: (x, w, geometry).
pub(crate) fn sample_calls() -> Vec<(Shape, Shape, ConvGeometry)> {
    let axis = |stride, dilation, padding| ConvAxis { stride, dilation, padding };
    let plain = axis(1, 1, [0, 0]);
    let call = |x: &[usize], w: &[usize], groups, axes: &[ConvAxis]| {
        (Shape::from(x), Shape::from(w), ConvGeometry { axes: axes.into(), groups })
    };
    vec![
        call(&[2, 2, 5], &[3, 2, 3], 1, &[plain]),
        call(&[1, 4, 7], &[4, 2, 3], 2, &[axis(3, 2, [2, 2])]),
        call(&[2, 2, 4, 5], &[3, 2, 3, 2], 1, &[axis(2, 1, [1, 0]), axis(1, 2, [0, 1])]),
        call(&[1, 3, 4, 4], &[3, 1, 3, 3], 3, &[axis(1, 1, [1, 1]), axis(1, 1, [1, 1])]),
        call(&[1, 2, 5, 4], &[4, 1, 2, 3], 2, &[axis(2, 1, [0, 0]), axis(2, 1, [1, 1])]),
        call(&[2, 3, 3, 2], &[2, 3, 1, 1], 1, &[plain, plain]),
        call(&[1, 2, 3, 2, 4], &[2, 2, 2, 1, 2], 1, &[axis(2, 1, [1, 1]), plain, axis(1, 2, [1, 0])]),
        call(&[0, 2, 4, 4], &[3, 2, 3, 3], 1, &[plain, plain]),
    ]
}
