//! Every kernel against the definition, accumulated in f64.

use super::naive::for_each_product;
use super::{
    Axis, Conv, Way, col2im, forward, forward_planes, im2col, input_gradient, passes_planes, weight_gradient,
};
use crate::rows::testing::{close, same_on_threads, values};
use crate::stream::split::SharedMut;

fn axis(input: usize, kernel: usize, stride: usize, dilation: usize, padding: usize) -> Axis {
    let reach = dilation * (kernel - 1) + 1;
    let output = (input + 2 * padding - reach) / stride + 1;
    Axis { input, kernel, output, stride, dilation, padding }
}

fn cases() -> Vec<Conv> {
    let one = Axis::UNIT;
    let call = |batch, groups, in_channels, out_channels, axes| Conv {
        batch,
        groups,
        in_channels,
        out_channels,
        axes,
    };
    let plain = |n| axis(n, 3, 1, 1, 1);
    vec![
        call(2, 1, 3, 4, [one, plain(6), plain(7)]),
        call(3, 2, 2, 3, [one, axis(9, 3, 2, 2, 2), axis(8, 2, 3, 1, 1)]),
        call(2, 1, 5, 4, [one, one, axis(19, 3, 1, 1, 0)]),
        call(1, 1, 2, 3, [axis(4, 2, 2, 1, 1), axis(5, 3, 2, 1, 1), axis(4, 2, 2, 1, 1)]),
        call(2, 5, 1, 1, [one, plain(9), plain(21)]),
        call(2, 3, 1, 2, [one, axis(9, 3, 2, 1, 1), axis(8, 3, 2, 2, 2)]),
        call(2, 2, 1, 1, [one, one, axis(40, 5, 1, 3, 4)]),
        call(3, 1, 7, 6, [one, axis(5, 1, 1, 1, 0), axis(6, 1, 1, 1, 0)]),
        call(2, 1, 3, 2, [one, axis(7, 1, 2, 1, 0), axis(7, 1, 2, 1, 0)]),
        // A first layer, and a padding wider than the kernel.
        call(3, 1, 1, 8, [one, plain(11), plain(19)]),
        call(2, 2, 1, 2, [axis(3, 2, 1, 1, 1), axis(5, 3, 1, 1, 0), axis(20, 2, 1, 1, 3)]),
        call(2, 2, 1, 2, [one, axis(9, 3, 4, 1, 1), axis(41, 3, 3, 2, 1)]),
        // Several images in one product, and lines of a large one.
        call(9, 1, 16, 24, [one, plain(7), plain(7)]),
        call(5, 1, 64, 8, [one, plain(40), plain(61)]),
        call(8, 2, 8, 8, [one, plain(12), plain(12)]),
        // Windows one step apart, in place and padded, over one to three axes.
        call(2, 2, 3, 5, [one, axis(9, 3, 1, 1, 0), axis(20, 3, 1, 1, 0)]),
        call(2, 1, 2, 7, [axis(3, 2, 1, 1, 1), axis(8, 3, 1, 2, 2), axis(30, 3, 1, 1, 2)]),
        call(3, 1, 4, 3, [one, one, axis(150, 5, 1, 2, 4)]),
        call(1, 1, 2, 2, [one, axis(70, 3, 1, 1, 1), axis(40, 3, 1, 1, 1)]),
        // One picture, whose channels are shared out.
        call(1, 1, 24, 70, [one, axis(24, 3, 1, 1, 0), axis(24, 3, 1, 1, 0)]),
        // A tap that never leaves the padding.
        call(
            1,
            1,
            2,
            2,
            [one, one, Axis { input: 2, kernel: 3, output: 1, stride: 1, dilation: 4, padding: 4 }],
        ),
        call(0, 1, 2, 2, [one, plain(4), plain(4)]),
    ]
}

fn run(len: usize, f: impl Fn(&mut [f32])) -> Vec<f32> {
    same_on_threads(|| {
        let mut y = vec![9.0; len];
        f(&mut y);
        y
    })
}

/// Copies the planes that pass, each of which has to come once and whole.
fn planes_into(c: &Conv, x: &[f32], w: &[f32], y: &mut [f32]) {
    y.fill(f32::NAN);
    let plane = c.outputs();
    let y = SharedMut::new(y);
    let done = forward_planes(c, x, w, &|pieces, first| {
        for piece in pieces.iter() {
            assert!(
                piece.start.is_multiple_of(plane) && piece.len().is_multiple_of(plane),
                "{piece:?} of {c:?}"
            );
            // SAFETY: each element is in one piece, and its memory may be read until this returns.
            let (y, passing) = unsafe {
                let at = first.cast::<f32>().wrapping_add(piece.start);
                (y.range(piece.clone()), std::slice::from_raw_parts(at.cast_const(), piece.len()))
            };
            assert!(y.iter().all(|y| y.is_nan()), "{piece:?} of {c:?} came before");
            y.copy_from_slice(passing);
        }
    });
    assert!(done, "{c:?}");
}

#[test]
fn planes_pass_of_every_kind_of_convolution() {
    let passing: Vec<Conv> = cases().into_iter().filter(passes_planes).collect();
    let of = |way: fn(&Way) -> bool| passing.iter().filter(|c| way(&Way::of(c))).count();
    assert!(of(|w| matches!(w, Way::Implicit)) >= 3);
    assert!(of(|w| matches!(w, Way::Depthwise)) >= 3);
    assert!(of(|w| matches!(w, Way::Dense)) >= 3);
    assert!(cases().iter().any(|c| !passes_planes(c) && !c.is_empty()));
}

#[test]
fn kernels_agree_with_the_definition() {
    for c in cases() {
        let n_x = c.batch * c.groups * c.in_channels * c.inputs();
        let n_w = c.groups * c.out_channels * c.depth();
        let n_y = c.batch * c.groups * c.out_channels * c.outputs();
        let (x, w, dy) = (values(n_x, 1), values(n_w, 2), values(n_y, 3));
        let (mut y64, mut dx64, mut dw64) = (vec![0.0; n_y], vec![0.0; n_x], vec![0.0; n_w]);
        for_each_product(&c, |i, k, o| {
            y64[o] += f64::from(x[i]) * f64::from(w[k]);
            dx64[i] += f64::from(dy[o]) * f64::from(w[k]);
            dw64[k] += f64::from(x[i]) * f64::from(dy[o]);
        });
        // Sums over thousands of terms in f32.
        let tolerance = 1e-6 * (n_y.max(16) as f64).sqrt();
        let y = run(n_y, |y| forward(&c, &x, &w, y));
        close(&y, &y64, tolerance);
        if passes_planes(&c) {
            assert_eq!(run(n_y, |y| planes_into(&c, &x, &w, y)), y, "{c:?}");
        }
        close(&run(n_x, |dx| input_gradient(&c, &dy, &w, dx)), &dx64, tolerance);
        close(&run(n_w, |dw| weight_gradient(&c, &x, &dy, dw)), &dw64, tolerance);
    }
}

#[test]
fn columns_agree_with_the_definition_and_are_adjoint() {
    for c in cases() {
        let channels = c.groups * c.in_channels;
        let (n_in, n_out, n_taps) = (c.inputs(), c.outputs(), c.taps());
        let (n_x, n_col) = (c.batch * channels * n_in, c.batch * channels * n_taps * n_out);
        let (x, g) = (values(n_x, 4), values(n_col, 5));
        let (mut want, mut back) = (vec![0.0; n_col], vec![0.0; n_x]);
        for plane in 0..c.batch * channels {
            for tap in 0..n_taps {
                for out in 0..n_out {
                    if let Some(at) = super::naive::meet(&c, out, tap) {
                        let (i, j) = (plane * n_in + at, (plane * n_taps + tap) * n_out + out);
                        want[j] = f64::from(x[i]);
                        back[i] += f64::from(g[j]);
                    }
                }
            }
        }
        close(&run(n_col, |col| im2col(&c, &x, col)), &want, 0.0);
        close(&run(n_x, |x| col2im(&c, &g, x)), &back, 1e-5);
    }
}
