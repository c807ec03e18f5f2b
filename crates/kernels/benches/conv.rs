//! How fast is convolution beside the matrix product it contains? `cargo bench -p thalweg-kernels --bench conv`.
//!
//! Prints GFLOP/s of the three passes, best and median of repeated calls, for layers of common networks. An
//! argument keeps only the shapes whose name contains it.

use std::time::{Duration, Instant};

use thalweg_kernels::conv::{Axis, Conv, forward, input_gradient, weight_gradient};
use thalweg_kernels::threads::set_threads;

const TIME_PER_SHAPE: Duration = Duration::from_millis(300);

fn main() {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with("--")).unwrap_or_default();
    let layers = [
        ("mnist 1->32 k3", layer(64, 1, 1, 32, 28, 3, 1)),
        ("mnist 32->64 k3", layer(64, 1, 32, 64, 14, 3, 1)),
        ("resnet 3->64 k7 s2", layer(4, 1, 3, 64, 224, 7, 2)),
        ("resnet 64->64 k3", layer(8, 1, 64, 64, 56, 3, 1)),
        ("resnet 256->256 k3", layer(8, 1, 256, 256, 14, 3, 1)),
        ("resnet 512->512 k3", layer(8, 1, 512, 512, 7, 3, 1)),
        ("resnet 256->64 k1", layer(8, 1, 256, 64, 56, 1, 1)),
        ("one image 64->64 k3", layer(1, 1, 64, 64, 56, 3, 1)),
        ("depthwise 96 k3", layer(8, 96, 1, 1, 56, 3, 1)),
        ("depthwise 96 k3 s2", layer(8, 96, 1, 1, 56, 3, 2)),
    ];
    for n_threads in [1, 2] {
        set_threads(n_threads);
        println!("{n_threads} threads");
        for (name, c) in layers.iter().filter(|(name, _)| name.contains(&filter)) {
            let count = |f: fn(&Axis) -> usize| c.axes.iter().map(f).product::<usize>();
            let n_x = c.batch * c.groups * c.in_channels * count(|a| a.input);
            let n_w = c.groups * c.out_channels * c.in_channels * count(|a| a.kernel);
            let n_y = c.batch * c.groups * c.out_channels * count(|a| a.output);
            let flops = 2 * n_y * c.in_channels * count(|a| a.kernel);
            let (x, w, dy) = (random(n_x), random(n_w), random(n_y));
            let (mut y, mut dx, mut dw) = (vec![0.0; n_y], vec![0.0; n_x], vec![0.0; n_w]);
            let passes = [
                ("forward", time(&mut || forward(c, &x, &w, &mut y))),
                ("dx", time(&mut || input_gradient(c, &dy, &w, &mut dx))),
                ("dw", time(&mut || weight_gradient(c, &x, &dy, &mut dw))),
            ];
            print!("{name:22}");
            for (pass, (best, median)) in passes {
                let rate = |seconds: f64| flops as f64 / seconds / 1e9;
                print!("  {pass} best {:6.1} median {:6.1}", rate(best), rate(median));
            }
            println!(" GFLOP/s");
        }
    }
}

/// A layer on square images, padded to keep their size at stride 1.
fn layer(
    batch: usize,
    groups: usize,
    ci: usize,
    co: usize,
    size: usize,
    kernel: usize,
    stride: usize,
) -> Conv {
    let padding = kernel / 2;
    let output = (size + 2 * padding - kernel) / stride + 1;
    let axis = Axis { input: size, kernel, output, stride, dilation: 1, padding };
    Conv { batch, groups, in_channels: ci, out_channels: co, axes: [Axis::UNIT, axis, axis] }
}

fn random(n: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Best and median seconds of a call.
fn time(f: &mut dyn FnMut()) -> (f64, f64) {
    f();
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed() < TIME_PER_SHAPE || times.len() < 5 {
        let call = Instant::now();
        f();
        times.push(call.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    (times[0], times[times.len() / 2])
}
