//! Matrix factorisation of ratings; the program is `crates/cluster/src/programs/factors.rs`.
//!
//!     factorise RATINGS [EPOCHS]              (lines `user::item::rating::time`, plain or gzipped)
//!     thalweg launch --workers 4 --servers 2 --sync ssp:3 -- target/release/examples/factorise ratings.dat

use thalweg_cluster::Cluster;
use thalweg_cluster::programs::{Factors, FactorsOptions, Solver};
use thalweg_data::{OnError, ratings};
use thalweg_train::Epochs;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?;
    let path = std::env::args().nth(1).ok_or("usage: factorise RATINGS [EPOCHS]")?;
    let epochs = std::env::args().nth(2).map_or(Ok(20), |e| e.parse())?;
    let how = FactorsOptions { factors: 7, batch: 4000, lr: 0.1, penalty: 0.5, seed: 0 };
    let model = Factors::new(&ratings::read(path, OnError::Stop)?.data, how)?;
    let solved = Solver::new(&model).fit(cluster, Epochs(epochs))?;
    if solved.keeper {
        println!("{solved}");
    }
    Ok(())
}
