//! Topics of documents by latent Dirichlet allocation, such as those of the blog entries of KOS.

use std::io::Write;

use anyhow::Result;
use thalweg::cluster::TableId;
use thalweg::cluster::programs::Topics;
use thalweg::data::OnError;
use thalweg::data::bag_of_words::{Form, read, read_vocabulary};

use super::samples::file;
use super::{Defaults, Length, Recipe, file_in};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "topics",
    alias: Some("lda"),
    about: "topics of documents by LDA (KOS); --data counts, or their folder with a vocabulary",
    defaults: Defaults { components: Some(20), ..Defaults::program(Length::Steps(40)) },
    shows: true,
    run,
};

fn run(job: &Job) -> Result<()> {
    let given = file(job, "lines `document word count`")?;
    let (counts, vocabulary) = match given.is_dir() {
        true => (
            file_in(given, &["doc_word_count.tsv", "docword.kos.txt", "docword.txt"])?,
            file_in(given, &["vocab.kos.txt", "vocab.txt"]).ok(),
        ),
        false => (given.to_owned(), None),
    };
    let uci = counts.file_name().is_some_and(|name| name.to_string_lossy().starts_with("docword"));
    let form = if uci { Form::Uci } else { Form::Triplets };
    let mut bag = read(&counts, form, None, OnError::Stop)?.data;
    bag.documents.truncate(job.limit(bag.documents.len()));
    let words = vocabulary.map(read_vocabulary).transpose()?.unwrap_or_default();
    let k = job.components();
    job.solve(&Topics::new(&bag, k, job.settings.seed)?, |values| {
        let rows: Vec<&[f32]> = values[&TableId(0)].chunks_exact(k).collect();
        for topic in 0..k {
            let mut order: Vec<usize> = (0..rows.len()).collect();
            order.sort_by(|a, b| rows[*b][topic].total_cmp(&rows[*a][topic]));
            let name = |word: &usize| words.get(*word).cloned().unwrap_or_else(|| word.to_string());
            let top: Vec<String> = order.iter().take(10).map(name).collect();
            writeln!(std::io::stdout(), "topic {topic:>2}: {}", top.join(" "))?;
        }
        Ok(())
    })
}
