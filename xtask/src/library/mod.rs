//! The chores that need the library: it is built for them, with the feature `library` of this package.

mod bench_cluster;
mod golden;
mod op_page;
mod programs;
mod proto;
mod simulate;

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::{USAGE, root, value};

pub fn run(args: &[&str]) -> Result<()> {
    match args {
        ["golden", rest @ ..] => {
            let dir = value(rest, "--dir").map_or_else(|| root().join("golden"), PathBuf::from);
            golden::run_all(&dir, value(rest, "--only"))
        }
        ["bench", "cluster", parts @ ..] => bench_cluster::run(parts),
        ["op-page", "--check"] => op_page::check(),
        ["op-page"] => op_page::write(),
        ["proto", "--check"] => proto::check(),
        ["proto"] => proto::write(),
        ["simulate", rest @ ..] => match (value(rest, "--seed"), value(rest, "--replay")) {
            (Some(seed), _) => simulate::one(seed.parse()?),
            (None, Some(file)) => simulate::replay(file),
            (None, None) => {
                let first = value(rest, "--from").map_or(Ok(0), str::parse)?;
                simulate::seeds(first, value(rest, "--count").map(str::parse).transpose()?)
            }
        },
        ["fuzz-programs", rest @ ..] => {
            let from = value(rest, "--from").map_or(Ok(0), str::parse)?;
            programs::run(from, value(rest, "--count").map(str::parse).transpose()?)
        }
        _ => bail!("{USAGE}"),
    }
}
