//! Where values lie on an axis, and which of them are written beside it.

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scale {
    Linear,
    Log,
}

#[derive(Debug)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    scale: Scale,
}

impl Axis {
    /// An axis with room for these values; from 0 to 1 without any.
    pub(super) fn new(values: impl Iterator<Item = f64>, scale: Scale) -> Self {
        let values = values.map(|v| if scale == Scale::Log { v.log10() } else { v });
        let (mut low, mut high) =
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        // One value alone, or a range that rounding would lose, is put into the middle.
        let least = (low.abs().max(high.abs()) * 1e-9).max(1e-12);
        if high - low < least {
            let half = if low == 0.0 || scale == Scale::Log { 0.5 } else { low.abs() * 0.1 };
            (low, high) = (low - half, high + half);
        }
        if scale == Scale::Linear && low > 0.0 && low < 0.2 * high {
            // A curve that comes near zero is better seen against it.
            low = 0.0;
        }
        Self { low, high, scale }
    }

    /// 0 at the low end, 1 at the high one.
    pub(super) fn place(&self, value: f64) -> f64 {
        let v = if self.scale == Scale::Log { value.log10() } else { value };
        (v - self.low) / (self.high - self.low)
    }

    /// Round values inside the axis with their labels.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let decades = self.low.floor() as i32..=self.high.floor() as i32;
        if self.scale == Scale::Log && self.high - self.low >= 1.0 {
            // Wide axes have powers of ten only, narrow ones two values more between them.
            let wide = self.high - self.low > 2.5;
            let every = (((self.high - self.low) / 6.0).ceil() as i32).max(1);
            let factors: &[f64] = if wide { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let values = decades
                .filter(|d| d % every == 0)
                .flat_map(|d| factors.iter().map(move |f| (d, f * 10f64.powi(d))));
            let inside = values.filter(|(_, v)| (-1e-9..=1.0 + 1e-9).contains(&self.place(*v)));
            let label = |d: i32, v: f64| match d {
                -3..0 => format!("{v:.0$}", -d as usize),
                0..5 => format!("{v:.0}"),
                _ => format!("{v:e}"),
            };
            return inside.map(|(d, v)| (v, label(d, v))).collect();
        }
        // Less than a decade: round values themselves, as on a linear axis.
        let ends = if self.scale == Scale::Log {
            (10f64.powf(self.low), 10f64.powf(self.high))
        } else {
            (self.low, self.high)
        };
        round_values(ends.0, ends.1)
    }
}

/// Multiples of 1, 2 or 5 times a power of ten, about six of them.
fn round_values(low: f64, high: f64) -> Vec<(f64, String)> {
    let rough = (high - low) / 6.0;
    let power = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough * 0.999).unwrap_or(rough);
    let first = (low / step - 1e-9).ceil();
    let count = ((high / step + 1e-9).floor() - first).max(0.0) as usize;
    let decimals = (-step.log10().floor()).clamp(0.0, 12.0) as usize;
    let large = low.abs().max(high.abs());
    let label = |v: f64| {
        if !(1e-3..1e6).contains(&large) {
            format!("{v:.1e}")
        } else if large >= 1e4 && step >= 1e3 {
            format!("{}k", v / 1e3)
        } else {
            format!("{v:.decimals$}")
        }
    };
    (0..=count).map(|i| (first + i as f64) * step).map(|v| (v, label(v))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values: &[f64], scale: Scale) -> Vec<String> {
        Axis::new(values.iter().copied(), scale).ticks().into_iter().map(|t| t.1).collect()
    }

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(labels(&[0.0, 1.0], Scale::Linear), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&[0.0, 60_000.0], Scale::Linear), ["0k", "10k", "20k", "30k", "40k", "50k", "60k"]);
        assert_eq!(labels(&[0.001, 10.0], Scale::Log), ["0.001", "0.01", "0.1", "1", "10"]);
        assert_eq!(labels(&[0.03, 2.3], Scale::Log), ["0.05", "0.1", "0.2", "0.5", "1", "2"]);
        for (low, high) in [(0.1, 0.13), (-5.0, 7.0), (1e-9, 3e-9), (2.0, 2.0), (0.0, 0.0), (1e12, 2e12)] {
            let axis = Axis::new([low, high].into_iter(), Scale::Linear);
            let ticks = axis.ticks();
            assert!((2..=8).contains(&ticks.len()), "{low} {high} {ticks:?}");
            assert!(
                ticks.iter().all(|t| (-1e-6..=1.0 + 1e-6).contains(&axis.place(t.0))),
                "{low} {high} {ticks:?}"
            );
        }
        assert!(!labels(&[], Scale::Log).is_empty() && !labels(&[3.0, 4.0], Scale::Log).is_empty());
    }
}
