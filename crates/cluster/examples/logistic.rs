//! Sparse logistic regression on a LIBSVM file; the program is `crates/cluster/src/programs/logistic.rs`.
//!
//!     logistic FILE [STEPS]                   (for example a9a or a9a.gz)
//!     thalweg launch --workers 4 --servers 2 --sync ssp:3 -- target/release/examples/logistic a9a.gz

use thalweg_cluster::Cluster;
use thalweg_cluster::programs::{Logistic, Solver};
use thalweg_data::libsvm;
use thalweg_train::Steps;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?;
    let path = std::env::args().nth(1).ok_or("usage: logistic FILE [STEPS]")?;
    let steps = std::env::args().nth(2).map_or(Ok(3000), |n| n.parse())?;
    let samples = libsvm::read(path, &libsvm::Options::default())?.data;
    let model = Logistic::new(samples.clone(), samples, 1e-4)?;
    let solved = Solver::new(&model).fit(cluster, Steps(steps))?;
    if solved.keeper {
        println!("{solved}");
    }
    Ok(())
}
