//! Topics of documents; the program is `crates/cluster/src/programs/topics.rs`.
//!
//!     topics COUNTS [TOPICS] [STEPS]          (lines `document word count`, plain or gzipped)
//!     thalweg launch --workers 2 --servers 2 -- target/release/examples/topics doc_word_count.tsv.gz 20

use thalweg_cluster::Cluster;
use thalweg_cluster::programs::{Solver, Topics};
use thalweg_data::OnError;
use thalweg_data::bag_of_words::{Form, read};
use thalweg_train::Steps;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?;
    let path = std::env::args().nth(1).ok_or("usage: topics COUNTS [TOPICS] [STEPS]")?;
    let k = std::env::args().nth(2).map_or(Ok(20), |k| k.parse())?;
    let steps = std::env::args().nth(3).map_or(Ok(30), |n| n.parse())?;
    let model = Topics::new(&read(path, Form::Triplets, None, OnError::Stop)?.data, k, 0)?;
    let solved = Solver::new(&model).fit(cluster, Steps(steps))?;
    if solved.keeper {
        println!("{solved}");
    }
    Ok(())
}
