//! A running `thalweg launch` and the programs that it runs, for the tests of whole clusters.

#![allow(dead_code, reason = "each test file uses its part")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(120);

/// The folder of examples that are built already, if somebody who builds all of them runs the tests.
const BUILT: &str = "THALWEG_EXAMPLES";

fn build(example: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os(BUILT) {
        return PathBuf::from(folder).join(example);
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--workspace", "--example", example]);
    // What cargo tells a test about its package makes some build scripts run again, and all that depends on them.
    for (name, _) in std::env::vars_os() {
        let about = name.as_encoded_bytes();
        if about.starts_with(b"CARGO_PKG_") || about.starts_with(b"CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    assert!(cargo.status().unwrap().success());
    let tests = std::env::current_exe().unwrap();
    tests.parent().unwrap().parent().unwrap().join("examples").join(example)
}

/// The program that most tests run; built on first use.
pub fn counting() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("counting")).clone()
}

/// The example that trains a net; built on first use.
pub fn trains() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("cluster")).clone()
}

/// A running `thalweg launch`, with its lines as they come.
pub struct Launched {
    pub child: Child,
    lines: Receiver<String>,
    pub seen: Vec<String>,
}

impl Launched {
    pub fn new(options: &[&str], program: &[&str]) -> Self {
        Self::of(counting(), options, program)
    }

    pub fn of(file: PathBuf, options: &[&str], program: &[&str]) -> Self {
        Self::with(&[], file, options, program)
    }

    /// With these variables.
    pub fn with(
        variables: &[(String, String)],
        file: PathBuf,
        options: &[&str],
        program: &[impl AsRef<OsStr>],
    ) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        command.envs(variables.iter().cloned());
        command.arg("launch").args(options).arg("--").arg(file).args(program);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (send, lines) = channel();
        let out = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).for_each(|line| drop(send.send(line)));
        });
        Self { child, lines, seen: Vec::new() }
    }

    /// Waits for a line.
    pub fn until(&mut self, found: impl Fn(&str) -> bool) -> Instant {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|e| panic!("{e}: {:?}", self.seen));
            let hit = found(&line);
            self.seen.push(line);
            if hit {
                return Instant::now();
            }
        }
    }

    /// The numbers of the processes with this name.
    pub fn pids(&self, name: &str) -> Vec<u32> {
        let wanted = format!("THALWEG_NAME={name}");
        let parent = format!("THALWEG_PARENT={}", self.child.id());
        let numbers =
            std::fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
        numbers
            .filter(|pid| {
                let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                let has = |text: &str| environment.split(|b| *b == 0).any(|v| v == text.as_bytes());
                has(&parent) && (name.is_empty() || has(&wanted))
            })
            .collect()
    }

    pub fn signal(&self, name: &str, signal: &str) {
        let pids = self.pids(name);
        assert_eq!(pids.len(), 1, "{name}: {pids:?}");
        assert!(Command::new("kill").args([signal, &pids[0].to_string()]).status().unwrap().success());
    }

    /// The hashes that the workers printed at the end.
    pub fn hashes(self) -> Vec<String> {
        self.last("hash ")
    }

    /// The lines that begin so, of a run that has ended well.
    pub fn last(mut self, begin: &str) -> Vec<String> {
        let status = self.child.wait().unwrap();
        self.seen.extend(self.lines.iter());
        let hashes: Vec<String> = self.seen.iter().filter(|l| l.starts_with(begin)).cloned().collect();
        assert!(status.success() && !hashes.is_empty(), "{status}: {:?}", self.seen);
        assert_eq!(self.pids(""), [0; 0], "processes were left behind");
        hashes
    }
}

/// What one process alone comes to with so many slots: the reference for BSP.
pub fn alone(clocks: &str, slots: &str) -> String {
    alone_with(clocks, slots, "1000")
}

/// [`alone`] with so many values in the table.
pub fn alone_with(clocks: &str, slots: &str, values: &str) -> String {
    let output = Command::new(counting()).args([clocks, "0", slots, values]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().last().unwrap().to_owned()
}

pub fn step(slot: u32, clock: u32) -> impl Fn(&str) -> bool {
    move |line| line == format!("step {slot} {clock}")
}
