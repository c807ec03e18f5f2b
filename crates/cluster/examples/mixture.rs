//! A mixture of Gaussians by expectation maximisation as a program of a parameter server, on the irises.
//!
//!     mixture [K]
//!     thalweg launch --workers 4 --servers 2 --sync ssp:3 -- target/release/examples/mixture 3
//!
//! The expectation is the workers' half: how much each flower belongs to each group, and the moments of what belongs
//! there. The maximisation is the servers': weight, mean and variance of a group are made of the sums of all slots, where the
//! rows lie (`crates/cluster/src/programs/mixture.rs`). Prints:
//! ```text
//! log-likelihood -2.0479 per flower after 100 steps
//! ```

use thalweg_cluster::Cluster;
use thalweg_cluster::programs::{Mixture, Solver};
use thalweg_train::Steps;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?; // alone: this process is the only worker and the only server
    let k = std::env::args().nth(1).map_or(Ok(3), |k| k.parse())?;
    let model = Mixture::new(&thalweg_data::iris()?.data.x, k)?;
    let solved = Solver::new(&model).fit(cluster, Steps(100))?;
    if solved.keeper {
        eprintln!("{solved}"); // steps/s, time waited
        let found = solved.fitted.metrics["log_likelihood"];
        println!("log-likelihood {found:.4} per flower after {} steps", solved.fitted.steps);
    }
    Ok(())
}
