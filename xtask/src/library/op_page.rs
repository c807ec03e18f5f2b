//! `docs/ops.md`, made from the list of ops and from the files it names.

use std::fmt::Write;

use anyhow::{Result, ensure};
use thalweg_tensor::ops;

use crate::root;

const PATH: &str = "docs/ops.md";

/// Writes the page.
pub fn write() -> Result<()> {
    std::fs::write(root().join(PATH), page()?)?;
    println!("wrote {PATH}");
    Ok(())
}

/// Fails when the page is not what the list makes.
pub fn check() -> Result<()> {
    let there = std::fs::read_to_string(root().join(PATH)).unwrap_or_default();
    ensure!(there == page()?, "{PATH} is out of date; run `cargo xtask op-page`");
    Ok(())
}

fn page() -> Result<String> {
    let mut out = String::new();
    writeln!(
        out,
        "# Ops\n\nMade by `cargo xtask op-page`; do not edit. {} ops, each in one file of",
        ops::NAMES.len()
    )?;
    writeln!(
        out,
        "`crates/tensor/src/ops`, and the functions composed of them in `crates/tensor/src/functions`.\n"
    )?;
    writeln!(out, "## Primitives and composites with a kernel of their own\n")?;
    writeln!(out, "| op | what it computes | gradient | methods |\n|---|---|---|---|")?;
    for (name, _module, source) in ops::DOCS {
        let what = head(source, name);
        let gradient = match refusal(source) {
            Some(reason) => format!("none: {reason}"),
            None => "yes".to_owned(),
        };
        writeln!(out, "| `{name}` | {what} | {gradient} | {} |", names(&methods(source)))?;
    }
    writeln!(out, "\n## Functions\n")?;
    let mut files: Vec<_> =
        std::fs::read_dir(root().join("crates/tensor/src/functions"))?.collect::<Result<_, _>>()?;
    files.sort_by_key(|f| f.file_name());
    for file in files {
        let name = file.file_name().to_string_lossy().into_owned();
        let source = std::fs::read_to_string(file.path())?;
        let methods = methods(&source);
        if !methods.is_empty() {
            writeln!(out, "### `{name}`\n\n| function | what it computes |\n|---|---|")?;
            for (method, what) in methods {
                writeln!(out, "| `{method}` | {what} |")?;
            }
            writeln!(out)?;
        }
    }
    Ok(out)
}

/// The first sentence of the module documentation, without the op's name.
fn head(source: &str, name: &str) -> String {
    let text: Vec<&str> = source
        .lines()
        .map_while(|l| l.strip_prefix("//!"))
        .map(str::trim)
        .take_while(|l| !l.is_empty())
        .collect();
    let text = text.join(" ");
    let text = text.strip_prefix(&format!("`{name}`: ")).unwrap_or(&text);
    first_sentence(text)
}

fn first_sentence(text: &str) -> String {
    let end = text.find(". ").map_or(text.len(), |i| i + 1);
    text[..end].trim_end_matches('.').replace('|', "\\|")
}

/// Why the op has no gradient, if it says so.
fn refusal(source: &str) -> Option<&str> {
    let after = source.split_once("Grad::None(")?.1;
    let open = after.find('"')?;
    let rest = &after[open + 1..];
    Some(&rest[..rest.find('"')?])
}

/// Public functions with the first sentence of their documentation.
fn methods(source: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut doc = String::new();
    for line in source.lines() {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("///") {
            if doc.is_empty() || !doc.ends_with('\u{0}') {
                match text.trim() {
                    "" => doc.push('\u{0}'),
                    text => {
                        doc.push_str(text);
                        doc.push(' ');
                    }
                }
            }
        } else if let Some(rest) = line.strip_prefix("pub fn ") {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            found.push((name.to_owned(), first_sentence(doc.trim_end_matches('\u{0}').trim())));
            doc.clear();
        } else if !line.starts_with("#[") {
            doc.clear();
        }
    }
    found
}

fn names(methods: &[(String, String)]) -> String {
    methods.iter().map(|(m, _)| format!("`{m}`")).collect::<Vec<_>>().join(" ")
}
