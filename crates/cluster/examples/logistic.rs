//! Sparse logistic regression as a program of a parameter server.
//!
//!     logistic [FILE [STEPS]]        (lines `label feature:value ..` as of a9a; made-up ones without a file)
//!     thalweg launch --workers 4 --servers 2 --sync async -- target/release/examples/logistic a9a 3000
//!
//! A worker pulls and pushes only the rows of the features that its samples have. What the weights cost is computed by the
//! servers where they lie (`Model::functions` in `crates/cluster/src/programs/logistic.rs`), a number per shard instead of
//! all weights. The made-up samples have one feature that speaks for, one against, and one that is everywhere and says
//! nothing: t = 2.818 minimises log(1 + exp(-t)) + 0.01 t². Prints:
//! ```text
//! objective 0.1374 after 300 steps, the last loss that was seen 0.1374
//! weights 2.8 -2.8 0.0
//! ```

use thalweg_cluster::programs::{Logistic, Solver};
use thalweg_cluster::{Cluster, TableId};
use thalweg_data::libsvm;
use thalweg_train::Steps;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?; // alone: this process is the only worker and the only server
    let mut args = std::env::args().skip(1);
    let options = libsvm::Options::default();
    let (samples, penalty) = match args.next() {
        Some(path) => (libsvm::read(path, &options)?.data, 1e-4),
        None => (libsvm::parse("made up", made_up().as_bytes(), &options)?.data, 0.01),
    };
    let steps = args.next().map_or(Ok(300), |n| n.parse())?;
    let model = Logistic::new(samples.clone(), samples, penalty)?;
    let solved = Solver::new(&model).fit(cluster, Steps(steps))?;
    if solved.keeper {
        eprintln!("{solved}"); // steps/s, time waited
        let (objective, loss) = (solved.fitted.metrics["objective"], solved.fitted.loss);
        println!("objective {objective:.4} after {steps} steps, the last loss that was seen {loss:.4}");
        // A row is the weight and the sum of the squares of its gradients.
        let weights = solved.net.by_table()[&TableId(0)].clone();
        let first = weights.iter().step_by(2).take(3).map(|w| format!("{:.1}", w + 0.0));
        println!("weights {}", first.collect::<Vec<_>>().join(" "));
    }
    Ok(())
}

fn made_up() -> String {
    (0..400).map(|i| if i % 2 == 0 { "+1 1:1 3:1\n" } else { "-1 2:1 3:1\n" }).collect()
}
