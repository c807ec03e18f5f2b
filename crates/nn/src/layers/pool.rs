//! Windows made smaller: their maximum or mean.

use thalweg_derive::Module;
use thalweg_tensor::{AvgPoolOptions, MaxPoolOptions, PerAxis, Tensor};

use crate::module::Layer;
use crate::summary::Frame;

/// A pooling layer over `N` axes: its type, its names for one, two and three axes, and the three tensor
/// methods that do the work.
macro_rules! pooling {
    (
        $(#[$doc:meta])* $Pool:ident [$P1:ident, $P2:ident, $P3:ident]
        ($field:ident: PerAxis $(, options: $Options:ty)?)
        $f1:ident, $f2:ident, $f3:ident
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Module)]
        pub struct $Pool<const N: usize> {
            #[module(skip)]
            $field: PerAxis,
            $(
                /// How windows lie.
                #[module(skip)]
                pub options: $Options,
            )?
        }

        #[doc = concat!("[`", stringify!($Pool), "`] over time.")]
        pub type $P1 = $Pool<1>;
        #[doc = concat!("[`", stringify!($Pool), "`] over images.")]
        pub type $P2 = $Pool<2>;
        #[doc = concat!("[`", stringify!($Pool), "`] over volumes.")]
        pub type $P3 = $Pool<3>;

        impl<const N: usize> $Pool<N> {
            /// With one size for all axes, or one for each.
            pub fn new($field: impl Into<PerAxis>) -> Self {
                Self { $field: $field.into() $(, options: <$Options>::default())? }
            }
        }

        impl<const N: usize> Layer for $Pool<N> {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                let frame = Frame::open();
                let size = self.$field.clone();
                let y = match N {
                    1 => x.$f1(size $(, &self.options as &$Options)?),
                    2 => x.$f2(size $(, &self.options as &$Options)?),
                    _ => x.$f3(size $(, &self.options as &$Options)?),
                };
                frame.close(self, y)
            }
        }
    };
}

/// Stride and padding, for the layers that have windows.
macro_rules! windows {
    ($($Pool:ident),*) => {$(
        impl<const N: usize> $Pool<N> {
            /// Steps from one window to the next; the size of the window unless given.
            pub fn stride(mut self, stride: impl Into<PerAxis>) -> Self {
                self.options.stride = Some(stride.into());
                self
            }

            /// Places around the input.
            pub fn padding(mut self, padding: impl Into<PerAxis>) -> Self {
                self.options.padding = padding.into();
                self
            }
        }
    )*};
}

pooling!(
    /// The maximum of each window.
    ///
    /// ```
    /// use thalweg_nn::{Layer, MaxPool2d};
    /// use thalweg_tensor::Tensor;
    /// let image = Tensor::from([[[[1.0f32, 2.0], [3.0, 4.0]]]]);
    /// assert_eq!(MaxPool2d::new(2).forward(&image).to_vec::<f32>(), [4.0]);
    /// ```
    MaxPool [MaxPool1d, MaxPool2d, MaxPool3d]
    (kernel: PerAxis, options: MaxPoolOptions)
    max_pool1d, max_pool2d, max_pool3d
);

pooling!(
    /// The mean of each window.
    AvgPool [AvgPool1d, AvgPool2d, AvgPool3d]
    (kernel: PerAxis, options: AvgPoolOptions)
    avg_pool1d, avg_pool2d, avg_pool3d
);

windows!(MaxPool, AvgPool);

pooling!(
    /// Maxima over as many windows as the output is to have.
    AdaptiveMaxPool [AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d]
    (output: PerAxis)
    adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d
);

pooling!(
    /// Means over as many windows as the output is to have.
    AdaptiveAvgPool [AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d]
    (output: PerAxis)
    adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d
);
