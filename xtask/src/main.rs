//! The project's own chores. `cargo xtask help` lists them.

mod golden;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("golden") => {
            let value = |flag: &str| args.iter().position(|a| a == flag).and_then(|i| args.get(i + 1));
            let dir = value("--dir").map_or_else(|| root().join("golden"), PathBuf::from);
            golden::run(&dir, value("--only").map(String::as_str))
        }
        _ => bail!("usage: cargo xtask golden [--dir PATH] [--only OP|FAMILY]"),
    }
}

/// The top of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}
