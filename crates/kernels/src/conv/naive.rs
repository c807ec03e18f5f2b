//! The definition of convolution: which elements are multiplied and where the product goes.

use super::Conv;

/// Calls `f(x, w, y)` with the flat positions of every product `x[..] · w[..]` that is a term of `y[..]`.
/// All three ops of the family are sums over this one list.
pub fn for_each_product(c: &Conv, mut f: impl FnMut(usize, usize, usize)) {
    let (n_in, n_taps, n_out) = (c.inputs(), c.taps(), c.outputs());
    for n in 0..c.batch {
        for g in 0..c.groups {
            for co in 0..c.out_channels {
                let w_row = g * c.out_channels + co;
                let y_plane = n * c.groups * c.out_channels + w_row;
                for out in 0..n_out {
                    for ci in 0..c.in_channels {
                        let x_plane = (n * c.groups + g) * c.in_channels + ci;
                        for tap in 0..n_taps {
                            if let Some(at) = meet(c, out, tap) {
                                let w = (w_row * c.in_channels + ci) * n_taps + tap;
                                f(x_plane * n_in + at, w, y_plane * n_out + out);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The flat input position that a flat output and a flat tap meet at, unless it is in the padding.
pub fn meet(c: &Conv, out: usize, tap: usize) -> Option<usize> {
    let [d, h, w] = &c.axes;
    let at_d = d.meet(out / (h.output * w.output), tap / (h.kernel * w.kernel))?;
    let at_h = h.meet(out / w.output % h.output, tap / w.kernel % h.kernel)?;
    let at_w = w.meet(out % w.output, tap % w.kernel)?;
    Some((at_d * h.input + at_h) * w.input + at_w)
}
