//! Matrix factorisation of ratings as a program of a parameter server.
//!
//!     factorise [FILE [EPOCHS]]      (lines `user::item::rating::time` as of MovieTweetings; made-up ones without a file)
//!     thalweg launch --workers 4 --servers 2 --sync ssp:3 -- target/release/examples/factorise ratings.dat
//!
//! Users and items are two tables of rows, each with Adagrad as its rule. A step pulls and pushes the rows of its ratings
//! only, however large the tables are; rows that nobody rated are not stored at all
//! (`crates/cluster/src/programs/factors.rs`). Of the made-up people half like what the others do not, which a mean cannot
//! tell and a product can. Prints:
//! ```text
//! off by less than half of what the mean is: true
//! ```

use thalweg_cluster::Cluster;
use thalweg_cluster::programs::{Factors, FactorsOptions, Solver};
use thalweg_data::{OnError, ratings};
use thalweg_train::Epochs;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?; // alone: this process is the only worker and the only server
    let mut args = std::env::args().skip(1);
    let (read, how) = match args.next() {
        Some(path) => {
            let how = FactorsOptions { factors: 7, batch: 4000, lr: 0.1, penalty: 0.5, seed: 0 };
            (ratings::read(path, OnError::Stop)?, how)
        }
        None => {
            let how = FactorsOptions { factors: 3, batch: 120, lr: 0.1, penalty: 0.05, seed: 0 };
            (ratings::parse("made up", made_up().as_bytes(), OnError::Stop)?, how)
        }
    };
    let epochs = args.next().map_or(Ok(30), |e| e.parse())?;
    let solved = Solver::new(&Factors::new(&read.data, how)?).fit(cluster, Epochs(epochs))?;
    if solved.keeper {
        eprintln!("{solved}"); // steps/s, time waited, and how far it is off
        let (model, mean) = (solved.fitted.metrics["rmse"], solved.fitted.metrics["rmse_of_mean"]);
        println!("off by less than half of what the mean is: {}", model < mean / 2.0);
    }
    Ok(())
}

fn made_up() -> String {
    let pairs = (0..40u32).flat_map(|user| (0..30u32).map(move |item| (user, item)));
    let rated = pairs.filter(|(user, item)| (user * 7 + item * 3) % 4 != 0);
    let rating = |user: u32, item: u32| if user.is_multiple_of(2) == item.is_multiple_of(3) { 9 } else { 3 };
    rated.map(|(user, item)| format!("{user}::film{item}::{}::0\n", rating(user, item))).collect()
}
