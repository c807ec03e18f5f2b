//! `cargo xtask proto`: Rust from the `.proto` file of the control plane, without `protoc`. What it makes is checked in, so
//! that a build of the library needs neither it nor this.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::root;

const GENERATED: &str = "thalweg.control.v1.rs";

/// Writes the generated file.
pub fn write() -> Result<()> {
    generate(&folder())
}

/// The generated file is the one that the `.proto` file gives now.
pub fn check() -> Result<()> {
    let fresh = root().join("target/proto");
    std::fs::create_dir_all(&fresh)?;
    generate(&fresh)?;
    let [old, new] = [folder(), fresh].map(|folder| std::fs::read(folder.join(GENERATED)).ok());
    ensure!(old == new, "{} is not what the .proto file gives; run `cargo xtask proto`", folder().display());
    Ok(())
}

fn folder() -> PathBuf {
    root().join("crates/cluster/src/control/generated")
}

fn generate(to: &Path) -> Result<()> {
    let proto = root().join("crates/cluster/proto");
    let files = protox::compile(["control.proto"], [proto])?;
    tonic_prost_build::configure().build_transport(false).btree_map(".").out_dir(to).compile_fds(files)?;
    Ok(())
}
