//! Convolution over up to three spatial axes, and its two gradients.
//!
//! x: (batch, groups · in_channels, *input), w: (groups · out_channels, in_channels, *kernel),
//! y: (batch, groups · out_channels, *output), all dense. One or two spatial axes are three with leading
//! ones of size 1. Groups with many channels run as matrix products, over windows in the image itself where
//! they are one step apart and over columns of windows elsewhere, groups of one input channel as direct loops. Work is cut by shapes alone, so results do not depend on the number of
//! threads.

mod columns;
mod dense;
mod depthwise;
mod destination;
mod implicit;
pub mod naive;

#[cfg(test)]
mod tests;

pub use columns::{col2im, im2col};

use crate::gemm::{OnReady, Ready, tell};
use destination::Destination;

/// One spatial axis: output `o` and tap `k` meet at input `o · stride + k · dilation − padding`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis {
    /// Size of the input.
    pub input: usize,
    /// Taps of the kernel.
    pub kernel: usize,
    /// Size of the output.
    pub output: usize,
    /// Steps from one window to the next.
    pub stride: usize,
    /// Steps from one tap to the next.
    pub dilation: usize,
    /// Zeros before the input.
    pub padding: usize,
}

impl Axis {
    /// An axis that is not there.
    pub const UNIT: Axis = Axis { input: 1, kernel: 1, output: 1, stride: 1, dilation: 1, padding: 0 };

    /// Where output `o` meets tap `k`, unless that is in the padding.
    #[inline(always)]
    pub fn meet(&self, o: usize, k: usize) -> Option<usize> {
        (o * self.stride + k * self.dilation).checked_sub(self.padding).filter(|&i| i < self.input)
    }

    /// The outputs that meet tap `k` inside of the input: `lo..hi`.
    #[inline(always)]
    fn reached(&self, k: usize) -> (usize, usize) {
        let shift = k * self.dilation;
        let lo = self.padding.saturating_sub(shift).div_ceil(self.stride);
        let hi = (self.input + self.padding).saturating_sub(shift).div_ceil(self.stride).min(self.output);
        (lo.min(hi), hi)
    }
}

/// The sizes of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv {
    /// Images.
    pub batch: usize,
    /// Groups of channels that do not see each other.
    pub groups: usize,
    /// Input channels of each group.
    pub in_channels: usize,
    /// Output channels of each group.
    pub out_channels: usize,
    /// Depth, height, width.
    pub axes: [Axis; 3],
}

impl Conv {
    fn inputs(&self) -> usize {
        self.axes.iter().map(|a| a.input).product()
    }

    fn taps(&self) -> usize {
        self.axes.iter().map(|a| a.kernel).product()
    }

    fn outputs(&self) -> usize {
        self.axes.iter().map(|a| a.output).product()
    }

    /// Elements of the result for one image.
    fn image(&self) -> usize {
        self.groups * self.out_channels * self.outputs()
    }

    /// Elements that make one output: rows of the matrix of columns.
    fn depth(&self) -> usize {
        self.in_channels * self.taps()
    }

    fn check(&self, x: usize, w: usize, y: usize) {
        let want = [
            self.batch * self.groups * self.in_channels * self.inputs(),
            self.groups * self.out_channels * self.depth(),
            self.batch * self.groups * self.out_channels * self.outputs(),
        ];
        assert!([x, w, y] == want, "conv: slices of {x}, {w} and {y} elements, need {want:?}");
        assert!(self.axes.iter().all(|a| a.stride > 0), "conv: a stride of 0");
    }

    /// Nothing to multiply: the result, if any, is zero.
    fn is_empty(&self) -> bool {
        self.batch * self.groups * self.in_channels * self.out_channels * self.outputs() * self.taps() == 0
    }
}

/// y = w over x.
pub fn forward(c: &Conv, x: &[f32], w: &[f32], y: &mut [f32]) {
    forward_then(c, x, w, y, None);
}

/// [`forward`] that calls `ready` with each part of y once it is final, as [`crate::gemm::gemm_then_f32`] does.
pub fn forward_then(c: &Conv, x: &[f32], w: &[f32], y: &mut [f32], ready: Ready) {
    c.check(x.len(), w.len(), y.len());
    if c.is_empty() {
        y.fill(0.0);
        tell(ready, 0, y);
    } else {
        forward_to(c, x, w, Destination::kept(y), ready);
    }
}

/// [`forward`] of a result that is kept nowhere: `ready` is called with whole planes of it, which are gone when it returns.
/// False where [`passes_planes`] is, and nothing is done.
pub fn forward_planes(c: &Conv, x: &[f32], w: &[f32], ready: &OnReady<'_>) -> bool {
    let passes = passes_planes(c);
    if passes {
        c.check(x.len(), w.len(), c.batch * c.image());
        forward_to(c, x, w, Destination::Passing, Some(ready));
    }
    passes
}

/// Whether [`forward_planes`] covers this convolution: what a task makes is some whole planes, and few enough for a cache.
pub fn passes_planes(c: &Conv) -> bool {
    let n = match Way::of(c) {
        _ if c.is_empty() => return false,
        Way::Implicit if !implicit::makes_planes(c) => return false,
        Way::Implicit => implicit::told(c),
        Way::Depthwise => depthwise::planes_per_task(c) * c.outputs(),
        Way::Dense => dense::images_per_task(c) * c.image(),
    };
    n <= MAX_PASSING
}

/// Elements of a piece that passes through a cache: with the rest of a task, they fit the second one.
const MAX_PASSING: usize = 64 << 10;

/// How a convolution runs.
enum Way {
    Implicit,
    Depthwise,
    Dense,
}

impl Way {
    fn of(c: &Conv) -> Self {
        if implicit::suits(c) {
            Way::Implicit
        } else if c.in_channels == 1 {
            Way::Depthwise
        } else {
            Way::Dense
        }
    }
}

fn forward_to(c: &Conv, x: &[f32], w: &[f32], y: Destination<'_>, ready: Ready) {
    match Way::of(c) {
        Way::Implicit => implicit::forward(c, x, w, y, ready),
        Way::Depthwise => depthwise::forward(c, x, w, y, ready),
        Way::Dense => dense::forward(c, x, w, y, ready),
    }
}

/// The gradient of x for a gradient of y: the transposed convolution.
pub fn input_gradient(c: &Conv, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    input_gradient_then(c, dy, w, dx, None);
}

/// [`input_gradient`] that calls `ready` with each part of dx once it is final.
pub fn input_gradient_then(c: &Conv, dy: &[f32], w: &[f32], dx: &mut [f32], ready: Ready) {
    c.check(dx.len(), w.len(), dy.len());
    if c.is_empty() {
        dx.fill(0.0);
        tell(ready, 0, dx);
    } else if c.in_channels == 1 {
        depthwise::input_gradient(c, dy, w, dx, ready);
    } else if let Some(turned) = implicit::turned(c) {
        implicit::input_gradient(c, &turned, dy, w, dx, ready);
    } else {
        dense::input_gradient(c, dy, w, dx, ready);
    }
}

/// The gradient of w for a gradient of y.
pub fn weight_gradient(c: &Conv, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    c.check(x.len(), dw.len(), dy.len());
    if c.is_empty() {
        dw.fill(0.0);
    } else if implicit::suits(c) && dw.len() <= dense::SMALL_WEIGHT {
        implicit::weight_gradient(c, x, dy, dw);
    } else if c.in_channels == 1 {
        depthwise::weight_gradient(c, x, dy, dw);
    } else {
        dense::weight_gradient(c, x, dy, dw);
    }
}
