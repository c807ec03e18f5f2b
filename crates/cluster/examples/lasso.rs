//! Lasso by parallel coordinate descent as a program of a parameter server, on the diabetes patients.
//!
//!     lasso [PENALTY]
//!     thalweg launch --workers 4 --servers 2 --sync ssp:3 -- target/release/examples/lasso 1.0
//!
//! Every slot takes one coordinate per step and pushes its change; the table's rule is to add (`Rule::Add`). Several
//! coordinates move at once, so each moves by its share only: correlated ones would overshoot together
//! (`crates/cluster/src/programs/lasso.rs`). Prints:
//! ```text
//! objective 1533.77, 7 of 10 coefficients are not zero
//! ```

use thalweg_cluster::Cluster;
use thalweg_cluster::programs::{Lasso, Solver};
use thalweg_train::Steps;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?; // alone: this process is the only worker and the only server
    let penalty = std::env::args().nth(1).map_or(Ok(1.0), |p| p.parse())?;
    let data = thalweg_data::diabetes()?;
    let model = Lasso::new(&data.x, &data.y, penalty)?;
    let solved = Solver::new(&model).fit(cluster, Steps(2000))?;
    if solved.keeper {
        eprintln!("{solved}"); // steps/s, time waited
        let (objective, kept) = (solved.fitted.metrics["objective"], solved.fitted.metrics["nonzero"]);
        println!("objective {objective:.2}, {kept} of {} coefficients are not zero", data.x.size(1));
    }
    Ok(())
}
