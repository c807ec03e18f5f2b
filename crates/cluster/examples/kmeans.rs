//! Lloyd's k-means: workers add up the points next to each centre, the server's rule divides.
//!
//!     kmeans FILE K [COLUMNS] [CLOCKS]        (for example iris.csv 3 4; the first columns are used)
//!     thalweg launch --workers 4 --servers 2 -- target/release/examples/kmeans iris.csv 3 4

mod shared;

use std::sync::Arc;

use thalweg_cluster::state::Wants;
use thalweg_cluster::table::{Delta, Init, Want};
use thalweg_cluster::{
    Cluster, Gradients, Program, Pulled, Registry, Rule, Step, TableId, TableSpec, UpdateRule,
};

const CENTRES: TableId = TableId(0);

/// A row is a centre and the number of its points; a push is a sum of points and their number.
struct Divide;

impl UpdateRule for Divide {
    fn update(&self, _step: u64, value: &[f32], sum: &[f32], _state: &mut [f32], out: &mut [f32]) {
        let n = sum[sum.len() - 1];
        out.copy_from_slice(value);
        if n > 0.0 {
            out.iter_mut().zip(sum).for_each(|(o, s)| *o = s / n);
        }
        out[sum.len() - 1] = n;
    }
}

struct KMeans {
    points: Vec<Vec<f32>>,
    k: usize,
}

impl KMeans {
    /// The nearest centre and its squared distance. Before the first update the centres are points.
    fn nearest(&self, point: &[f32], centres: &[f32], clock: u64) -> (usize, f32) {
        let d = point.len();
        let distance = |k: usize| -> f32 {
            let first = &self.points[k * self.points.len() / self.k];
            let centre = if clock == 0 { first } else { &centres[k * (d + 1)..][..d] };
            point.iter().zip(centre).map(|(a, b)| (a - b) * (a - b)).sum()
        };
        (0..self.k).map(|k| (k, distance(k))).min_by(|a, b| a.1.total_cmp(&b.1)).expect("k is not zero")
    }
}

impl Program for &KMeans {
    fn wants(&mut self, _step: Step, _tables: &[TableSpec]) -> Wants {
        Wants::from([(CENTRES, Want::Rows(Arc::new((0..self.k as u64).collect())))])
    }

    fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients {
        let width = self.points[0].len() + 1;
        let mut sums = vec![0.0; self.k * width]; // (k, width): sum of points, then their number
        for point in self.points.iter().skip(step.slot.0 as usize).step_by(step.n_slots) {
            let (k, _) = self.nearest(point, &pulled[&CENTRES], step.clock);
            let sum = &mut sums[k * width..][..width];
            sum.iter_mut().zip(point.iter().chain(&[1.0])).for_each(|(s, x)| *s += x);
        }
        vec![(CENTRES, Delta::Rows(Arc::new((0..self.k as u64).collect()), Arc::new(sums)))]
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::with(Registry::default().rule("divide", Divide))?;
    let args: Vec<String> = std::env::args().collect();
    let [_, path, k, ..] = &args[..] else { return Err("usage: kmeans FILE K [COLUMNS] [CLOCKS]".into()) };
    let columns: usize = args.get(3).map_or(Ok(usize::MAX), |n| n.parse())?;
    let clocks: u64 = args.get(4).map_or(Ok(30), |n| n.parse())?;
    let mut points = shared::numbers(path)?;
    points.iter_mut().for_each(|p| p.truncate(columns));
    let model = KMeans { k: k.parse()?, points };
    let width = model.points[0].len() + 1;
    let rule = Rule::Named("divide".into());
    let (first, sync) = (cluster.is_first(), cluster.sync());
    let run = cluster.run(&[TableSpec::Rows { width, init: Init::Zero, rule }], clocks, &model)?;
    if first {
        let near = model.points.iter().map(|p| model.nearest(p, &run.pulled[&CENTRES], clocks).1);
        println!("{sync}: inertia {:.4}", near.map(f64::from).sum::<f64>());
    }
    Ok(())
}
