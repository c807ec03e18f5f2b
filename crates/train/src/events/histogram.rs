//! Values in buckets that grow by a tenth, as TensorFlow's histograms do.

use super::message::Message;

pub(crate) struct Histogram {
    min: f64,
    max: f64,
    count: f64,
    sum: f64,
    sum_squares: f64,
    limits: Vec<f64>,
    counts: Vec<f64>,
}

impl Histogram {
    pub(crate) fn of(values: &[f64]) -> Self {
        let limits = limits();
        let mut h = Self {
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            count: 0.0,
            sum: 0.0,
            sum_squares: 0.0,
            counts: vec![0.0; limits.len()],
            limits,
        };
        for &v in values.iter().filter(|v| v.is_finite()) {
            h.min = h.min.min(v);
            h.max = h.max.max(v);
            h.count += 1.0;
            h.sum += v;
            h.sum_squares += v * v;
            // The first bucket whose limit lies above the value; the last limit is the largest number.
            let bucket = h.limits.partition_point(|&limit| limit <= v).min(h.counts.len() - 1);
            h.counts[bucket] += 1.0;
        }
        h.trim();
        h
    }

    /// Drops empty buckets at both ends; the one before the first full one stays, as its lower edge.
    fn trim(&mut self) {
        let full = |c: &f64| *c > 0.0;
        let (Some(first), Some(last)) =
            (self.counts.iter().position(full), self.counts.iter().rposition(full))
        else {
            (self.min, self.max) = (0.0, 0.0);
            (self.limits, self.counts) = (vec![0.0], vec![0.0]);
            return;
        };
        let kept = first.saturating_sub(1)..last + 1;
        self.limits = self.limits[kept.clone()].to_vec();
        self.counts = self.counts[kept].to_vec();
    }

    pub(crate) fn write(&self, m: &mut Message) {
        m.double(1, self.min);
        m.double(2, self.max);
        m.double(3, self.count);
        m.double(4, self.sum);
        m.double(5, self.sum_squares);
        m.doubles(6, &self.limits);
        m.doubles(7, &self.counts);
    }
}

/// Upper limits of the buckets: negative ones mirrored, zero, then 1e-12 × 1.1ⁿ up to 1e20.
fn limits() -> Vec<f64> {
    let positive: Vec<f64> =
        std::iter::successors(Some(1e-12), |v| Some(v * 1.1)).take_while(|&v| v < 1e20).collect();
    let negative = positive.iter().rev().map(|v| -v);
    std::iter::once(-f64::MAX)
        .chain(negative)
        .chain([0.0])
        .chain(positive.iter().copied())
        .chain([f64::MAX])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_value_is_in_the_bucket_below_its_limit() {
        let values = [-1e30, -2.5, -1e-15, 0.0, 0.0, 1e-15, 0.3, 7.0, 1e30, f64::NAN, f64::INFINITY];
        let h = Histogram::of(&values);
        assert_eq!((h.count, h.min, h.max), (9.0, -1e30, 1e30));
        assert_eq!(h.counts.iter().sum::<f64>(), 9.0);
        for &v in &values[..9] {
            let bucket = h.limits.iter().position(|&l| l > v).unwrap_or(h.limits.len() - 1);
            assert!(h.counts[bucket] > 0.0, "{v}");
        }
        assert!(h.limits.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn nothing_has_an_empty_histogram() {
        let h = Histogram::of(&[f64::NAN]);
        assert_eq!((h.count, h.min, h.max, h.counts), (0.0, 0.0, 0.0, vec![0.0]));
    }
}
