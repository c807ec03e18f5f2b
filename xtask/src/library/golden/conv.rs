//! How the cases of the family `conv` are called.

use thalweg_tensor::{
    AvgPoolOptions, ConvOptions, ConvTransposeOptions, Divisor, Interpolation, MaxPoolOptions, Padding,
    PerAxis, Tensor,
};

use super::{Attrs, Call};

pub fn call(c: &Call<'_>) -> Option<Vec<Tensor>> {
    let (x, w, bias) = (&c.x[0], c.x.get(1), c.x.get(2));
    let attrs = c.attrs;
    let kernel = || sizes(attrs, "kernel_size").expect("a pooling case has a kernel");
    let output = || sizes(attrs, "output_size").expect("an adaptive case has an output size");
    Some(vec![match c.op {
        "conv1d" => x.conv1d(w?, bias, &conv(attrs)),
        "conv2d" => x.conv2d(w?, bias, &conv(attrs)),
        "conv3d" => x.conv3d(w?, bias, &conv(attrs)),
        "conv_transpose1d" => x.conv_transpose1d(w?, bias, &transposed(attrs)),
        "conv_transpose2d" => x.conv_transpose2d(w?, bias, &transposed(attrs)),
        "max_pool1d" => x.max_pool1d(kernel(), &max_pool(attrs)),
        "max_pool2d" if attrs.bool("return_indices") == Some(true) => {
            let options = max_pool(attrs);
            return Some(vec![x.max_pool2d(kernel(), &options), x.max_pool2d_indices(kernel(), &options)]);
        }
        "max_pool2d" => x.max_pool2d(kernel(), &max_pool(attrs)),
        "avg_pool1d" => x.avg_pool1d(kernel(), &avg_pool(attrs)),
        "avg_pool2d" => x.avg_pool2d(kernel(), &avg_pool(attrs)),
        "adaptive_avg_pool2d" => x.adaptive_avg_pool2d(output()),
        "adaptive_max_pool2d" => x.adaptive_max_pool2d(output()),
        "unfold_im2col" => x.unfold_im2col(kernel(), &conv(attrs)),
        "fold_col2im" => x.fold_col2im(output(), kernel(), &conv(attrs)),
        "pixel_shuffle" => x.pixel_shuffle(attrs.int("r")? as usize),
        "interpolate" => x.interpolate(sizes(attrs, "size")?, interpolation(attrs)?),
        _ => return None,
    }])
}

/// One number, or one per axis.
fn sizes(attrs: &Attrs, name: &str) -> Option<PerAxis> {
    let sizes: Vec<usize> = attrs.ints(name)?.iter().map(|&i| i as usize).collect();
    Some(PerAxis::from(&sizes[..]))
}

fn conv(attrs: &Attrs) -> ConvOptions {
    let padding = match attrs.str("padding") {
        Some("same") => Padding::Same,
        _ => sizes(attrs, "padding").unwrap_or(0.into()).into(),
    };
    ConvOptions {
        stride: sizes(attrs, "stride").unwrap_or(1.into()),
        padding,
        dilation: sizes(attrs, "dilation").unwrap_or(1.into()),
        groups: attrs.int("groups").unwrap_or(1) as usize,
    }
}

fn transposed(attrs: &Attrs) -> ConvTransposeOptions {
    ConvTransposeOptions {
        stride: sizes(attrs, "stride").unwrap_or(1.into()),
        padding: sizes(attrs, "padding").unwrap_or(0.into()),
        output_padding: sizes(attrs, "output_padding").unwrap_or(0.into()),
        dilation: sizes(attrs, "dilation").unwrap_or(1.into()),
        groups: attrs.int("groups").unwrap_or(1) as usize,
    }
}

fn max_pool(attrs: &Attrs) -> MaxPoolOptions {
    MaxPoolOptions {
        stride: sizes(attrs, "stride"),
        padding: sizes(attrs, "padding").unwrap_or(0.into()),
        dilation: sizes(attrs, "dilation").unwrap_or(1.into()),
        ceil_mode: attrs.bool("ceil_mode").unwrap_or(false),
    }
}

fn avg_pool(attrs: &Attrs) -> AvgPoolOptions {
    let counts_padding = attrs.bool("count_include_pad").unwrap_or(true);
    AvgPoolOptions {
        stride: sizes(attrs, "stride"),
        padding: sizes(attrs, "padding").unwrap_or(0.into()),
        ceil_mode: attrs.bool("ceil_mode").unwrap_or(false),
        divisor: if counts_padding { Divisor::Padded } else { Divisor::Inside },
    }
}

fn interpolation(attrs: &Attrs) -> Option<Interpolation> {
    let align_corners = attrs.bool("align_corners").unwrap_or(false);
    Some(match attrs.str("mode")? {
        "nearest" => Interpolation::Nearest,
        "bilinear" => Interpolation::Linear { align_corners },
        "bicubic" => Interpolation::Cubic { align_corners },
        _ => return None,
    })
}
