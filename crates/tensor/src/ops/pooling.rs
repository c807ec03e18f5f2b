//! What the pooling ops have in common: which input positions each output looks at.
//!
//! Pooled are the last one to three axes; every axis before them only counts planes.

use thalweg_core::Shape;

use crate::args::PerAxis;
use crate::error::OpError;
use crate::ops::Op;
use crate::ops::sample::{Draw, Sample};

/// The windows along one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum PoolAxis {
    /// Windows of one size at equal distances.
    Sliding {
        /// Elements of a window.
        kernel: usize,
        /// Steps from one window to the next.
        stride: usize,
        /// Positions added on both sides.
        padding: usize,
        /// Steps from one element of a window to the next.
        dilation: usize,
        /// Whether a last window may hang over the end.
        ceil_mode: bool,
    },
    /// As many windows as wanted, as even as whole numbers allow.
    Adaptive {
        /// How many.
        output: usize,
    },
}

/// One to three axes. Boxed, since every op pays for the largest one.
pub(crate) type PoolAxes = Box<[PoolAxis]>;

/// The input positions of one window that are in no padding: `start`, `start + step`, …
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inside {
    start: usize,
    len: usize,
    step: usize,
}

impl Inside {
    fn positions(self) -> impl Iterator<Item = usize> + Clone {
        (0..self.len).map(move |i| self.start + i * self.step)
    }
}

const UNIT: PoolAxis = PoolAxis::Sliding { kernel: 1, stride: 1, padding: 0, dilation: 1, ceil_mode: false };

impl PoolAxis {
    /// The number of windows over an axis of `size`.
    fn output(&self, op: &'static str, x: &Shape, size: usize) -> Result<usize, OpError> {
        let error = |name, value: usize, need| {
            Err(OpError::Argument { op, name, value: value.to_string(), shape: x.clone(), need })
        };
        if size == 0 {
            return Err(OpError::Empty { op, shape: x.clone() });
        }
        let PoolAxis::Sliding { kernel, stride, padding, dilation, ceil_mode } = *self else {
            let PoolAxis::Adaptive { output } = *self else { unreachable!("the other variant") };
            return Ok(output);
        };
        if kernel == 0 || stride == 0 || dilation == 0 {
            return error("kernel size, stride or dilation", 0, "must be at least 1");
        }
        let reach = dilation.saturating_mul(kernel - 1).saturating_add(1);
        if padding > reach / 2 {
            return error("padding", padding, "must be at most half of the kernel size");
        }
        let padded = size.saturating_add(2 * padding);
        if reach > padded {
            let need = "with its dilation, the kernel must not be larger than the padded input (pad more)";
            return error("kernel size", kernel, need);
        }
        let left = padded - reach;
        if !ceil_mode {
            return Ok(left / stride + 1);
        }
        // The last window must begin inside of the input or of the padding before it.
        let n = left.div_ceil(stride) + 1;
        Ok(if (n - 1) * stride >= size + padding { n - 1 } else { n })
    }

    /// What window `o` sees of an axis of `size`.
    fn inside(&self, o: usize, size: usize) -> Inside {
        match *self {
            PoolAxis::Sliding { kernel, stride, padding, dilation, .. } => {
                let at = o * stride;
                let first = padding.saturating_sub(at).div_ceil(dilation);
                let end = (size + padding).saturating_sub(at).div_ceil(dilation).min(kernel);
                let start = (at + first * dilation).saturating_sub(padding);
                Inside { start, len: end.saturating_sub(first), step: dilation }
            }
            PoolAxis::Adaptive { output } => {
                let (start, end) = (o * size / output, ((o + 1) * size).div_ceil(output));
                Inside { start, len: end - start, step: 1 }
            }
        }
    }

    /// The length of window `o` with what it sees of the padding, but without what hangs over that.
    fn padded_len(&self, o: usize, size: usize) -> usize {
        match *self {
            PoolAxis::Sliding { kernel, stride, padding, .. } => kernel.min(size + 2 * padding - o * stride),
            PoolAxis::Adaptive { .. } => self.inside(o, size).len,
        }
    }
}

/// The windows over the last axes of a shape.
pub(crate) struct Windows {
    axes: [PoolAxis; 3],
    pub input: [usize; 3],
    pub output: [usize; 3],
    pub planes: usize,
}

/// The shape of the result, with the windows.
pub(crate) fn windows(op: &'static str, x: &Shape, axes: &[PoolAxis]) -> Result<(Shape, Windows), OpError> {
    let n = axes.len();
    if !(1..=3).contains(&n) || x.rank() < n {
        return Err(OpError::Rank {
            op,
            want: ["at least 1", "at least 2", "at least 3"][n.clamp(1, 3) - 1],
            shape: x.clone(),
        });
    }
    let lead = x.rank() - n;
    let mut w =
        Windows { axes: [UNIT; 3], input: [1; 3], output: [1; 3], planes: x[..lead].iter().product() };
    let mut y: Shape = x[..lead].into();
    for (i, axis) in axes.iter().enumerate() {
        let at = 3 - n + i;
        let output = axis.output(op, x, x[lead + i])?;
        (w.axes[at], w.input[at], w.output[at]) = (*axis, x[lead + i], output);
        y.push(output);
    }
    Ok((y, w))
}

/// The windows, for shapes that `infer` has let through.
pub(crate) fn checked(op: &'static str, x: &Shape, axes: &[PoolAxis]) -> Windows {
    windows(op, x, axes).expect("`infer` has let this shape through").1
}

impl Windows {
    /// Input positions of a plane.
    pub fn inputs(&self) -> usize {
        self.input.iter().product()
    }

    /// Output positions of a plane.
    pub fn outputs(&self) -> usize {
        self.output.iter().product()
    }

    fn at(&self, out: usize) -> [usize; 3] {
        let [_, h, w] = self.output;
        [out / (h * w), out / w % h, out % w]
    }

    /// The flat positions within a plane that output `out` of it sees.
    pub fn positions(&self, out: usize) -> impl Iterator<Item = usize> {
        let at = self.at(out);
        let [d, h, w] = std::array::from_fn(|i| self.axes[i].inside(at[i], self.input[i]));
        let [_, height, width] = self.input;
        d.positions().flat_map(move |d| {
            h.positions().flat_map(move |h| w.positions().map(move |w| (d * height + h) * width + w))
        })
    }

    /// How many elements window `out` has, with its share of the padding.
    pub fn padded_len(&self, out: usize) -> usize {
        let at = self.at(out);
        (0..3).map(|i| self.axes[i].padded_len(at[i], self.input[i])).product()
    }

    /// Whether some window sees nothing but padding.
    pub fn some_empty(&self) -> bool {
        // A window that begins inside sees at least its first element; only those at the edges are looked at,
        // since there may be very many between them.
        (0..3).any(|i| {
            let (axis, input, output) = (&self.axes[i], self.input[i], self.output[i]);
            let (first_inside, first_beyond) = match *axis {
                PoolAxis::Sliding { stride, padding, .. } => {
                    let stride = stride.max(1);
                    let beyond = input.saturating_add(padding).div_ceil(stride);
                    (padding.div_ceil(stride).min(output), beyond.min(output))
                }
                PoolAxis::Adaptive { .. } if input > 0 => (0, output),
                PoolAxis::Adaptive { .. } => (0, 0),
            };
            (0..first_inside)
                .chain(first_beyond.max(first_inside)..output)
                .any(|o| axis.inside(o, input).len == 0)
        })
    }

    /// The windows as the kernel for planes wants them: two axes, no window that hangs over.
    pub fn kernel2d(&self) -> Option<([usize; 2], thalweg_kernels::rows::pool::Window)> {
        let mut window = thalweg_kernels::rows::pool::Window {
            kernel: [1; 2],
            stride: [1; 2],
            padding: [0; 2],
            dilation: [1; 2],
        };
        let size = [self.input[1], self.input[2]];
        if self.axes[0] != UNIT || self.planes == 0 {
            return None;
        }
        for i in 0..2 {
            let PoolAxis::Sliding { kernel, stride, padding, dilation, .. } = self.axes[i + 1] else {
                return None;
            };
            window.kernel[i] = kernel;
            window.stride[i] = stride;
            window.padding[i] = padding;
            window.dilation[i] = dilation;
        }
        (window.output(size) == [self.output[1], self.output[2]]).then_some((size, window))
    }
}

/// Windows of one size at equal distances.
pub(crate) struct Sliding {
    pub stride: Option<PerAxis>,
    pub padding: PerAxis,
    pub dilation: PerAxis,
    pub ceil_mode: bool,
}

impl Sliding {
    /// One entry for each of `n` axes.
    pub fn axes(&self, op: &'static str, x: &Shape, kernel: PerAxis, n: usize) -> Result<PoolAxes, OpError> {
        require_rank(op, x, n)?;
        let kernel = kernel.list(op, "kernel_size", n, x)?;
        let stride = match &self.stride {
            Some(stride) => stride.list(op, "stride", n, x)?,
            None => kernel.clone(),
        };
        let padding = self.padding.list(op, "padding", n, x)?;
        let dilation = self.dilation.list(op, "dilation", n, x)?;
        let axis = |i: usize| PoolAxis::Sliding {
            kernel: kernel[i],
            stride: stride[i],
            padding: padding[i],
            dilation: dilation[i],
            ceil_mode: self.ceil_mode,
        };
        Ok((0..n).map(axis).collect())
    }
}

/// As many windows as `output` says along each of `n` axes.
pub(crate) fn adaptive(op: &'static str, x: &Shape, output: PerAxis, n: usize) -> Result<PoolAxes, OpError> {
    require_rank(op, x, n)?;
    Ok(output.list(op, "output_size", n, x)?.iter().map(|&output| PoolAxis::Adaptive { output }).collect())
}

fn require_rank(op: &'static str, x: &Shape, n: usize) -> Result<(), OpError> {
    if x.rank() == n + 1 || x.rank() == n + 2 {
        return Ok(());
    }
    let want = [
        "2 or 3 (batch, channels, length)",
        "3 or 4 (batch, channels, height, width)",
        "4 or 5 (batch, channels, depth, height, width)",
    ];
    Err(OpError::Rank { op, want: want[n - 1], shape: x.clone() })
}

/// The windows that every pooling op is tried on.
pub(crate) fn samples<O: Into<Op>>(
    op: impl Fn(PoolAxes, &Shape) -> O,
    draws: impl Fn(Shape, Shape) -> Vec<Draw>,
) -> Vec<Sample> {
    let sliding = |kernel, stride, padding, dilation, ceil_mode| PoolAxis::Sliding {
        kernel,
        stride,
        padding,
        dilation,
        ceil_mode,
    };
    let pair = sliding(2, 2, 0, 1, false);
    let call = |x: &[usize], axes: &[PoolAxis]| {
        let x = Shape::from(x);
        let y = windows("sample", &x, axes).expect("a sample that fits").0;
        Sample::new(op(axes.into(), &x), draws(x, y))
    };
    vec![
        call(&[2, 4, 6], &[pair, pair]),
        call(&[1, 2, 5, 4], &[sliding(3, 2, 1, 1, false), sliding(2, 1, 0, 2, false)]),
        call(&[2, 7], &[sliding(3, 2, 0, 1, true)]),
        call(&[2, 6], &[sliding(3, 2, 1, 1, true)]),
        call(&[2, 5, 7], &[PoolAxis::Adaptive { output: 2 }, PoolAxis::Adaptive { output: 3 }]),
        call(&[1, 2, 3, 4], &[pair, sliding(2, 1, 1, 1, false), sliding(3, 1, 1, 1, false)]),
        call(&[0, 4, 4], &[pair, pair]),
    ]
}
