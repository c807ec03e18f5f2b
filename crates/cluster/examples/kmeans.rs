//! Lloyd's k-means of the irises; the program is `crates/cluster/src/programs/kmeans.rs`.
//!
//!     kmeans [K]
//!     thalweg launch --workers 4 --servers 2 --sync ssp:3 -- target/release/examples/kmeans 3
//!
//! Ends with inertia 78.8514 for K = 3.

use thalweg_cluster::Cluster;
use thalweg_cluster::programs::{KMeans, Solver};
use thalweg_train::Steps;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?;
    let k = std::env::args().nth(1).map_or(Ok(3), |k| k.parse())?;
    let model = KMeans::new(&thalweg_data::iris()?.data.x, k)?;
    let solved = Solver::new(&model).fit(cluster, Steps(30))?;
    if solved.keeper {
        println!("{solved}");
    }
    Ok(())
}
