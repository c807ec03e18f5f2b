//! A mixture of Gaussians of the irises by EM; the program is `crates/cluster/src/programs/mixture.rs`.
//!
//!     mixture [K]
//!     thalweg launch --workers 4 --servers 2 --sync ssp:3 -- target/release/examples/mixture 3

use thalweg_cluster::Cluster;
use thalweg_cluster::programs::{Mixture, Solver};
use thalweg_train::Steps;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?;
    let k = std::env::args().nth(1).map_or(Ok(3), |k| k.parse())?;
    let model = Mixture::new(&thalweg_data::iris()?.data.x, k)?;
    let solved = Solver::new(&model).fit(cluster, Steps(100))?;
    if solved.keeper {
        println!("{solved}");
    }
    Ok(())
}
