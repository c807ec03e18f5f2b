//! Topics of documents by latent Dirichlet allocation as a program of a parameter server.
//!
//!     topics [FILE [TOPICS [STEPS]]]     (lines `document word count` as of KOS; made-up ones without a file)
//!     thalweg launch --workers 2 --servers 2 -- target/release/examples/topics doc_word_count.tsv.gz 20
//!
//! A worker infers what its documents are about from the topics that it pulled, and pushes how often each word was used for
//! each topic; the servers make topics of the sums of all slots (variational; `crates/cluster/src/programs/topics.rs`). A
//! made-up document uses 12 of the 20 words of its kind, one of three. To guess among all 60 words would be a perplexity of 60.
//! Prints:
//! ```text
//! perplexity below 30: true
//! topics that use one kind of words only: 3
//! ```

use thalweg_cluster::programs::{Solver, Topics};
use thalweg_cluster::{Cluster, TableId};
use thalweg_data::OnError;
use thalweg_data::bag_of_words::{Form, parse, read};
use thalweg_train::Steps;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?; // alone: this process is the only worker and the only server
    let mut args = std::env::args().skip(1);
    let (bag, k) = match args.next() {
        Some(path) => (read(path, Form::Triplets, None, OnError::Stop)?.data, 20),
        None => (parse("made up", made_up().as_bytes(), Form::Triplets, None, OnError::Stop)?.data, 3),
    };
    let k = args.next().map_or(Ok(k), |k| k.parse())?;
    let steps = args.next().map_or(Ok(40), |n| n.parse())?;
    // From some seeds, such as 0, the made-up documents end in a worse place.
    let solved = Solver::new(&Topics::new(&bag, k, 1)?).fit(cluster, Steps(steps))?;
    if solved.keeper {
        eprintln!("{solved}"); // steps/s, time waited, the perplexity
        println!("perplexity below 30: {}", solved.fitted.metrics["perplexity"] < 30.0);
        let learned = solved.net.by_table();
        let words: Vec<&[f32]> = learned[&TableId(0)].chunks_exact(k).collect();
        let pure = (0..k).filter(|topic| {
            let mut kinds = [0.0; 3];
            words.iter().enumerate().for_each(|(w, row)| kinds[w / 20 % 3] += row[*topic]);
            kinds.iter().copied().fold(0.0, f32::max) > 0.9 * kinds.iter().sum::<f32>()
        });
        println!("topics that use one kind of words only: {}", pure.count());
    }
    Ok(())
}

fn made_up() -> String {
    let word = |document: u32, i: u32| document % 3 * 20 + (document * 7 + i * 3) % 20;
    let entries = (0..60).flat_map(|document| (0..12).map(move |i| (document, i)));
    entries.map(|(d, i)| format!("{d}\t{}\t{}\n", word(d, i), 1 + i % 3)).collect()
}
