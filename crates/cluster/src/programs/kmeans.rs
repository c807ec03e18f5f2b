//! Lloyd's k-means: slots add up the points next to each centre, the servers divide.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_tensor::Tensor;

use super::points::Points;
use super::{Learned, Model};
use crate::cluster::{Gradients, Pulled, Step};
use crate::error::ClusterError;
use crate::ids::TableId;
use crate::table::Delta;

const CENTRES: TableId = TableId(0);

/// Centres such that points are near to one of them.
pub struct KMeans {
    points: Points,
    k: usize,
}

impl KMeans {
    /// For the rows of a matrix.
    pub fn new(points: &Tensor, k: usize) -> Result<Self, ClusterError> {
        Ok(Self { points: Points::new(points, k)?, k })
    }

    /// The nearest centre and its squared distance.
    fn nearest(&self, point: &[f32], centres: &[f32]) -> (usize, f32) {
        let d = self.points.width;
        let distance = |(k, row): (usize, &[f32])| -> (usize, f32) {
            // One without points is where it began.
            let centre = if row[d] == 0.0 { self.points.first(k, self.k) } else { &row[..d] };
            (k, point.iter().zip(centre).map(|(a, b)| (a - b) * (a - b)).sum())
        };
        let all = centres.chunks_exact(d + 1).enumerate().map(distance);
        all.min_by(|a, b| a.1.total_cmp(&b.1)).expect("there are centres")
    }
}

impl Model for KMeans {
    /// A row is a centre and the number of its points.
    fn learned(&self) -> Vec<Learned> {
        let width = self.points.width + 1;
        vec![Learned::Statistics { name: "centres", rows: self.k, width, sums: width, make }]
    }

    fn step(&self, step: Step, values: &Pulled) -> (Gradients, f64) {
        let width = self.points.width + 1;
        let mut sums = vec![0.0; self.k * width]; // (k, width): sum of points, then their number
        let mut inertia = 0.0;
        for point in self.points.of(step) {
            let (k, distance) = self.nearest(point, &values[&CENTRES]);
            let sum = &mut sums[k * width..][..width];
            sum.iter_mut().zip(point.iter().chain(&[1.0])).for_each(|(s, x)| *s += x);
            inertia += f64::from(distance);
        }
        (vec![(CENTRES, Delta::Rows(Arc::new((0..self.k as u64).collect()), sums.into()))], inertia)
    }

    fn measure(&self, values: &Pulled) -> BTreeMap<String, f64> {
        let near = self.points.all().map(|p| f64::from(self.nearest(p, &values[&CENTRES]).1));
        BTreeMap::from([("inertia".to_owned(), near.sum())])
    }
}

/// A centre is the mean of its points; without any it stays.
fn make(sum: &[f32], centre: &mut [f32]) {
    let n = sum[sum.len() - 1];
    if n > 0.0 {
        centre.iter_mut().zip(sum).for_each(|(c, s)| *c = s / n);
        centre[sum.len() - 1] = n;
    }
}
