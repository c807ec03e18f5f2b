//! Lasso by coordinate descent on the diabetes patients; the program is `crates/cluster/src/programs/lasso.rs`.
//!
//!     lasso [PENALTY]
//!     thalweg launch --workers 4 --servers 2 --sync ssp:3 -- target/release/examples/lasso 1.0

use thalweg_cluster::Cluster;
use thalweg_cluster::programs::{Lasso, Solver};
use thalweg_train::Steps;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?;
    let penalty = std::env::args().nth(1).map_or(Ok(1.0), |p| p.parse())?;
    let data = thalweg_data::diabetes()?;
    let model = Lasso::new(&data.x, &data.y, penalty)?;
    let solved = Solver::new(&model).fit(cluster, Steps(2000))?;
    if solved.keeper {
        println!("{solved}");
    }
    Ok(())
}
