//! `cargo xtask tidy`: rules about the tree that the compiler does not know.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::root;

/// The crates in dependency order: each may use only those before it.
const LAYERS: &[&str] = &[
    "core", "kernels", "formats", "tensor", "graph", "runtime", "derive", "nn", "data", "train", "cluster",
    "thalweg", "cli",
];
/// Files over this length need a reason.
const MAX_LINES: usize = 1000;
/// Longer files, each with its reason. The list is meant to stay empty.
const LONG: &[&str] = &[];
/// Where `unsafe` may stand.
const UNSAFE: &[&str] = &[
    "crates/core/src/buffer.rs",
    "crates/kernels/",
    "crates/formats/src/map.rs",
    "crates/runtime/src/executor.rs",
    "crates/runtime/benches/groups.rs",
    "crates/runtime/src/program/machine.rs",
    "crates/runtime/src/program/mod.rs",
    "crates/runtime/src/program/no_machine.rs",
    "crates/runtime/src/program/values.rs",
    "crates/runtime/tests/allocations.rs",
    "crates/nn/tests/steps.rs",
    "crates/cluster/src/ring.rs",
    // Rivals' programs, each a package of its own.
    "benches/peers/",
];
/// Words that must not land, put together so that this file does not contain them.
const FORBIDDEN: &[(&str, &str)] =
    &[("todo", "!("), ("unimplemented", "!("), ("dbg", "!("), ("#[ign", "ore")];

pub fn run() -> Result<()> {
    let mut wrong = Vec::new();
    layers(&mut wrong)?;
    documents(&mut wrong)?;
    for file in rust_files()? {
        let text = std::fs::read_to_string(root().join(&file))?;
        source(&file, &text, &mut wrong);
    }
    ensure!(wrong.is_empty(), "tidy:\n  {}", wrong.join("\n  "));
    Ok(())
}

/// Dependencies point down only.
fn layers(wrong: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(root().join("crates"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(own) = LAYERS.iter().position(|l| *l == name) else {
            wrong.push(format!("crates/{name} is in no layer; add it to LAYERS in xtask/src/tidy.rs"));
            continue;
        };
        let manifest = std::fs::read_to_string(root().join("crates").join(&name).join("Cargo.toml"))?;
        let used = manifest
            .lines()
            .skip_while(|l| *l != "[dependencies]")
            .skip(1)
            .take_while(|l| !l.starts_with('['));
        for line in used {
            let dependency = line.split(['.', ' ', '=']).next().unwrap_or_default();
            let layer = dependency.strip_prefix("thalweg-").unwrap_or(dependency);
            if LAYERS.iter().position(|l| *l == layer).is_some_and(|p| p >= own) {
                wrong.push(format!("crates/{name} may not use {dependency}, which lies above it"));
            }
        }
    }
    Ok(())
}

/// Paths that the documents name exist, and every crate is on the map.
fn documents(wrong: &mut Vec<String>) -> Result<()> {
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = std::fs::read_to_string(root().join(document))?;
        for word in text.split('`').skip(1).step_by(2) {
            let is_path = ["crates/", "docs/", "examples/", "xtask/", "golden/", "benches/", "fuzz/"]
                .iter()
                .any(|p| word.starts_with(p));
            if is_path && !word.contains(['<', '*', ' ']) && !root().join(word).exists() {
                wrong.push(format!("{document} names `{word}`, which does not exist"));
            }
        }
        for layer in LAYERS {
            if document != "CONTRIBUTING.md" && !text.contains(&format!("crates/{layer}")) {
                wrong.push(format!("{document} does not show crates/{layer} on its map"));
            }
        }
    }
    Ok(())
}

fn source(file: &str, text: &str, wrong: &mut Vec<String>) {
    let n = text.lines().count();
    if n > MAX_LINES && !LONG.contains(&file) {
        wrong.push(format!("{file} has {n} lines; split it, or list it with its reason"));
    }
    for (a, b) in FORBIDDEN {
        if text.contains(&format!("{a}{b}")) {
            wrong.push(format!("{file} contains {a}{b}"));
        }
    }
    let code = text.lines().filter(|l| !l.trim_start().starts_with("//"));
    let raw = code.filter(|l| l.contains("unsafe ") && !l.contains("unsafe_")).count();
    if raw > 0 && !UNSAFE.iter().any(|u| file.starts_with(u)) && file != "xtask/src/tidy.rs" {
        wrong.push(format!("{file} uses unsafe code; it belongs in {UNSAFE:?}"));
    }
}

/// All Rust sources of the project, relative to its top.
fn rust_files() -> Result<Vec<String>> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                walk(&path, found)?;
            } else if name.ends_with(".rs") {
                found.push(path);
            }
        }
        Ok(())
    }
    let mut found = Vec::new();
    walk(&root(), &mut found)?;
    Ok(found
        .iter()
        .map(|p| p.strip_prefix(root()).expect("found below it").to_string_lossy().into_owned())
        .collect())
}
