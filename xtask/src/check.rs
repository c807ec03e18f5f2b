//! `cargo xtask check`: everything CI does, in the order in which a mistake is cheapest to find.
//!
//! Needs the Rust toolchain and nothing else. A step that needs more says what it skipped; in CI,
//! where `.ci/run` installs those parts, a missing one is a failure.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::bench::target_dir;
use crate::{root, tidy};

type Step = (&'static str, fn() -> Result<()>);

const STEPS: &[Step] = &[
    ("format", format),
    ("tidy", tidy::run),
    ("clippy", clippy),
    ("tests", || workspace(&["test"])),
    ("op page", || with_library(&["op-page", "--check"])),
    ("proto", || with_library(&["proto", "--check"])),
    ("golden", || with_library(&["golden"])),
    ("programs", || with_library(&["fuzz-programs", "--count", "10000"])),
    ("simulation", || with_library(&["simulate", "--count", "10000"])),
    ("examples", examples),
    ("rustdoc", rustdoc),
    ("memory", memory),
];

/// All steps, or those of these names.
pub fn run(names: &[&str]) -> Result<()> {
    let all = STEPS.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    if let Some(unknown) = names.iter().find(|name| !all.contains(name)) {
        bail!("there is no step `{unknown}`; there are: {}", all.join(", "));
    }
    let start = Instant::now();
    let steps = STEPS.iter().filter(|(name, _)| names.is_empty() || names.contains(name));
    for (name, step) in steps.clone() {
        let began = Instant::now();
        println!("== {name}");
        step().with_context(|| format!("`{name}` failed"))?;
        println!("== {name}: ok, {:.0} s", began.elapsed().as_secs_f64());
    }
    println!("check: all {} steps passed in {:.0} s", steps.count(), start.elapsed().as_secs_f64());
    Ok(())
}

const FUZZED: [&str; 10] =
    ["npy", "npz", "safetensors", "graph", "idx", "csv", "libsvm", "trees", "wire", "control"];

/// Each parser under libFuzzer for a while, or those of these names.
pub fn fuzz(args: &[&str]) -> Result<()> {
    let (seconds, names) = match args.split_first() {
        Some((first, rest)) if first.parse::<u64>().is_ok() => (*first, rest),
        _ => ("60", args),
    };
    if let Some(unknown) = names.iter().find(|name| !FUZZED.contains(name)) {
        bail!("there is no parser `{unknown}` to fuzz; there are: {}", FUZZED.join(", "));
    }
    for target in FUZZED.iter().filter(|target| names.is_empty() || names.contains(target)) {
        println!("== fuzz {target} for {seconds} s");
        let limit = format!("-max_total_time={seconds}");
        // The corpus in the repository stays small: what the fuzzer finds goes elsewhere.
        let found = root().join("target").join("fuzz").join(target);
        std::fs::create_dir_all(&found)?;
        let mut command = Command::new("cargo");
        command
            .args(["+nightly", "fuzz", "run", target])
            .arg(&found)
            .arg(root().join("fuzz/corpus").join(target));
        command.args(["--", &limit, "-rss_limit_mb=1024", "-timeout=10"]).current_dir(root());
        ensure!(
            command.status()?.success(),
            "fuzzing {target} failed: what it found, if it was built, is in fuzz/artifacts/{target}"
        );
    }
    Ok(())
}

fn cargo(args: &[&str]) -> Result<()> {
    succeed(Command::new(env!("CARGO")).args(args).current_dir(root()))
}

pub fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

fn clippy() -> Result<()> {
    let what = ["--workspace", "--all-targets", "--features", "xtask/library"];
    cargo(&[&["clippy", "--quiet"], &what[..], &["--", "-D", "warnings"]].concat())
}

/// Does something to the whole workspace with every feature at once: all steps share what was built by the first.
/// `clippy` has seen it without them.
fn workspace(what: &[&str]) -> Result<()> {
    // A linker alone is enough for everything else; `ring` compiles C.
    let features = match is_there("cc", Command::new("cc").arg("--version"))? {
        true => {
            "xtask/library,thalweg-cli/download,thalweg-cli/etcd,thalweg-cli/object-store,\
             thalweg-cli/parquet,thalweg-cli/tls"
        }
        false => "xtask/library",
    };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(what).args(["--quiet", "--workspace", "--features", features]);
    // Tests that start a program of ours need not build it: `cargo test` has built all examples.
    succeed(cargo.env("THALWEG_EXAMPLES", target_dir().join("debug/examples")).current_dir(root()))
}

/// A chore that needs the library.
fn with_library(args: &[&str]) -> Result<()> {
    workspace(&["build", "--bin", "xtask"])?;
    succeed(Command::new(target_dir().join("debug/xtask")).args(args).current_dir(root()))
}

/// `cargo fmt` does not see files that a macro declares, such as those of the list of ops.
fn format() -> Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    let ops = std::fs::read_dir(root().join("crates/tensor/src/ops"))?;
    let mut files = ops.map(|f| Ok(f?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|f| f.extension().is_some_and(|e| e == "rs"));
    let status = Command::new("rustfmt")
        .args(["--check", "--edition", "2024"])
        .args(files)
        .current_dir(root())
        .status()?;
    ensure!(status.success(), "run `rustfmt --edition 2024 crates/tensor/src/ops/*.rs`");
    Ok(())
}

/// Examples that are programs of tests and benchmarks, which run them with arguments.
const TOOLS: [&str; 4] = ["counting", "delays", "samples", "throughput"];

/// Every example runs, and prints the output that its first lines promise.
fn examples() -> Result<()> {
    workspace(&["build", "--examples"])?;
    let folders =
        ["examples", "crates/cluster/examples"].map(|folder| std::fs::read_dir(root().join(folder)));
    for file in folders.into_iter().collect::<std::io::Result<Vec<_>>>()?.into_iter().flatten() {
        let path = file?.path();
        let Some(name) =
            path.file_stem().and_then(|s| s.to_str()).filter(|_| path.extension().is_some_and(|e| e == "rs"))
        else {
            continue;
        };
        if TOOLS.contains(&name) {
            continue;
        }
        let output =
            Command::new(target_dir().join("debug/examples").join(name)).current_dir(root()).output()?;
        ensure!(
            output.status.success(),
            "example {name} failed:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let printed = String::from_utf8(output.stdout)?;
        let promised = promised_output(&std::fs::read_to_string(&path)?);
        ensure!(!promised.is_empty(), "example {name} does not say on top what it prints");
        ensure!(printed.trim_end() == promised, "example {name} printed\n{printed}instead of\n{promised}");
        println!("example {name}: ok");
    }
    Ok(())
}

/// The lines of the head comment after "Prints:", without their markers.
fn promised_output(source: &str) -> String {
    let head = source.lines().take_while(|l| l.starts_with("//!"));
    let after = head.skip_while(|l| !l.ends_with("Prints:")).skip(1).filter(|l| !l.contains("```"));
    after
        .map(|l| l.strip_prefix("//!").unwrap_or(l))
        .map(|l| l.strip_prefix(' ').unwrap_or(l))
        .collect::<Vec<_>>()
        .join("\n")
        .trim_end()
        .to_owned()
}

fn rustdoc() -> Result<()> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["doc", "--workspace", "--no-deps", "--quiet"]).env("RUSTDOCFLAGS", "-D warnings");
    succeed(command.current_dir(root()))
}

/// The tests of the raw-memory code under valgrind, and where a nightly toolchain is to be had, of
/// the kernels too under the address sanitizer.
fn memory() -> Result<()> {
    if is_there("valgrind", Command::new("valgrind").arg("--version"))? {
        let options = [
            "--quiet",
            "--error-exitcode=9",
            "--leak-check=full",
            "--show-leak-kinds=definite",
            "--errors-for-leak-kinds=definite",
        ];
        let mut command = Command::new("valgrind");
        succeed(
            command
                .args(options)
                .arg(test_binary("thalweg-core", &mut Command::new(env!("CARGO")))?)
                .args(["--test-threads=1", "--quiet"]),
        )?;
    }
    if !works(Command::new("cargo").args(["+nightly", "--version"])) {
        println!("skipped: the address sanitizer needs a nightly toolchain");
        return Ok(());
    }
    let mut command = Command::new("cargo");
    command.args(["+nightly", "test", "--quiet", "-p", "thalweg-core", "-p", "thalweg-kernels", "--lib"]);
    command
        .args(["--target", "x86_64-unknown-linux-gnu", "--target-dir"])
        .arg(root().join("target/sanitizer"));
    succeed(
        command
            .env("RUSTFLAGS", "-Zsanitizer=address")
            .env_remove("RUSTUP_TOOLCHAIN")
            .env_remove("CARGO")
            .current_dir(root()),
    )
}

/// The unit-test binary of a crate, found by asking cargo: something else is to run it.
pub fn test_binary(package: &str, cargo: &mut Command) -> Result<String> {
    let built = cargo
        .args(["test", "-p", package, "--lib", "--no-run", "--message-format=json"])
        .current_dir(root())
        .output()?;
    ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let messages = String::from_utf8_lossy(&built.stdout);
    let binaries = messages.lines().filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok());
    let binary = binaries.filter_map(|m| m["executable"].as_str().map(str::to_owned)).next_back();
    binary.with_context(|| format!("cargo built no test of {package}"))
}

/// Whether a program that a step needs can be run. Says so if not; in CI, that is a failure.
fn is_there(name: &str, command: &mut Command) -> Result<bool> {
    let there = works(command);
    if !there && std::env::var_os("CI").is_some() {
        bail!("{name} is missing, and CI must have it");
    }
    if !there {
        println!("skipped: {name} is not installed");
    }
    Ok(there)
}

fn works(command: &mut Command) -> bool {
    command.output().is_ok_and(|o| o.status.success())
}
