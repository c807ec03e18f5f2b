//! Lloyd's k-means as a program of a parameter server, on the irises.
//!
//!     kmeans [K]
//!     thalweg launch --workers 4 --servers 2 --sync ssp:3 -- target/release/examples/kmeans 3
//!
//! A step has two halves, on two sides. A worker (`KMeans::step` in `crates/cluster/src/programs/kmeans.rs`) pulls the
//! centres, gives each of its flowers to the nearest, and pushes sums and counts. The servers keep the latest sums of every
//! slot and make centres of their total (`Learned::Statistics`), so stale or late slots are never counted twice. How many
//! processes there are changes nothing here. Prints:
//! ```text
//! inertia 78.8514 after 30 steps
//! centre 5.01 3.43 1.46 0.25, 50 flowers
//! centre 5.90 2.75 4.39 1.43, 62 flowers
//! centre 6.85 3.07 5.74 2.07, 38 flowers
//! ```

use thalweg_cluster::programs::{KMeans, Solver};
use thalweg_cluster::{Cluster, TableId};
use thalweg_train::Steps;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?; // alone: this process is the only worker and the only server
    let k = std::env::args().nth(1).map_or(Ok(3), |k| k.parse())?;
    let flowers = thalweg_data::iris()?.data.x;
    let model = KMeans::new(&flowers, k)?;
    let solved = Solver::new(&model).fit(cluster, Steps(30))?;
    if solved.keeper {
        eprintln!("{solved}"); // steps/s, time waited
        println!("inertia {:.4} after {} steps", solved.fitted.metrics["inertia"], solved.fitted.steps);
        let learned = solved.net.by_table();
        // A row is a centre, and how many flowers are nearest to it.
        let mut centres: Vec<&[f32]> = learned[&TableId(0)].chunks_exact(flowers.size(1) + 1).collect();
        centres.sort_by(|a, b| a[0].total_cmp(&b[0]));
        for row in centres {
            let (centre, n) = row.split_at(flowers.size(1));
            let numbers: Vec<String> = centre.iter().map(|v| format!("{v:.2}")).collect();
            println!("centre {}, {} flowers", numbers.join(" "), n[0]);
        }
    }
    Ok(())
}
