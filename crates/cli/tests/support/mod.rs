//! A running `thalweg launch` and the programs that it runs, for the tests of whole clusters.

#![allow(dead_code, reason = "each test file uses its part")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
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

/// The example that counts how often every sample is used; built on first use.
pub fn samples() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("samples")).clone()
}

/// The example that trains a net; built on first use.
pub fn trains() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("cluster")).clone()
}

/// A running `thalweg launch`, with its lines as they come.
pub struct Launched {
    pub child: Child,
    lines: Receiver<(Instant, String)>,
    pub seen: Vec<String>,
    times: Vec<Instant>, // of what was seen
    pub errors: Errors,
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
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            lines.for_each(|line| drop(send.send((Instant::now(), line))));
        });
        let errors = Errors::of(child.stderr.take().unwrap());
        Self { child, lines, seen: Vec::new(), times: Vec::new(), errors }
    }

    /// Waits for a line.
    pub fn until(&mut self, found: impl Fn(&str) -> bool) -> Instant {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let got = self.lines.recv_timeout(left);
            let (at, line) = got.unwrap_or_else(|e| panic!("{e}: {:?}\n{}", self.seen, self.errors.text()));
            let hit = found(&line);
            self.seen.push(line);
            self.times.push(at);
            if hit {
                return at;
            }
        }
    }

    /// Waits until there is something in a file.
    pub fn until_written(&self, file: &Path) {
        let end = Instant::now() + PATIENCE;
        while std::fs::metadata(file).map_or(0, |found| found.len()) == 0 {
            assert!(Instant::now() < end, "{} is not written: {}", file.display(), self.errors.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Where the coordinator listens, as the launcher says first.
    pub fn address(&self) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let errors = self.errors.text();
            if let Some(address) = errors.lines().find_map(|line| line.strip_prefix("coordinator ")) {
                return address.to_owned();
            }
            assert!(Instant::now() < end, "no address: {errors}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// How long after `fault` the longest pause of a slot's steps ended: the first step that needed what had to be
    /// mended.
    pub fn recovered(&self, slot: u32, fault: Instant) -> Duration {
        let begin = format!("step {slot} ");
        let steps = self.seen.iter().zip(&self.times).filter(|(line, _)| line.starts_with(&begin));
        let times: Vec<Instant> = steps.map(|(_, at)| *at).collect();
        let pauses = times.windows(2).filter(|pair| pair[1] > fault);
        let longest = pauses.max_by_key(|pair| pair[1] - pair[0]).expect("there were steps after the fault");
        longest[1] - fault
    }

    /// Kills the launcher and all its processes at once, so that none can mend or tell anything.
    pub fn kill_everything(&mut self) {
        let all = self.pids("").into_iter().chain([self.child.id()]);
        let all: Vec<String> = all.map(|pid| pid.to_string()).collect();
        assert!(Command::new("kill").arg("-KILL").args(&all).status().unwrap().success(), "{all:?}");
        self.child.wait().unwrap();
        let end = Instant::now() + PATIENCE;
        while !self.pids("").is_empty() {
            assert!(Instant::now() < end, "{:?} are left", self.pids(""));
            std::thread::sleep(Duration::from_millis(20));
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

    /// Sends a signal; the moment before it left.
    pub fn signal(&self, name: &str, signal: &str) -> Instant {
        let pids = self.pids(name);
        assert_eq!(pids.len(), 1, "{name}: {pids:?}");
        let now = Instant::now();
        assert!(Command::new("kill").args([signal, &pids[0].to_string()]).status().unwrap().success());
        now
    }

    /// The hashes that the workers printed at the end.
    pub fn hashes(self) -> Vec<String> {
        self.last("hash ")
    }

    /// The lines that begin so, of a run that has ended well.
    pub fn last(mut self, begin: &str) -> Vec<String> {
        let status = self.child.wait().unwrap();
        self.seen.extend(self.lines.iter().map(|(_, line)| line));
        let hashes: Vec<String> = self.seen.iter().filter(|l| l.starts_with(begin)).cloned().collect();
        let errors = self.errors.text();
        assert!(status.success() && !hashes.is_empty(), "{status}: {:?}\n{errors}", self.seen);
        assert_eq!(self.pids(""), [0; 0], "processes were left behind");
        hashes
    }
}

/// What a process has said on stderr so far.
#[derive(Clone, Default)]
pub struct Errors(Arc<Mutex<Vec<(Instant, String)>>>);

impl Errors {
    pub fn of(stderr: ChildStderr) -> Self {
        let errors = Self::default();
        let said = errors.clone();
        std::thread::spawn(move || {
            let lines = BufReader::new(stderr).lines().map_while(Result::ok);
            lines.for_each(|line| said.0.lock().unwrap().push((Instant::now(), line)));
        });
        errors
    }

    pub fn text(&self) -> String {
        self.lines().iter().map(|(_, line)| format!("{line}\n")).collect()
    }

    /// With when each came.
    pub fn lines(&self) -> Vec<(Instant, String)> {
        self.0.lock().unwrap().clone()
    }

    /// Waits for a line with this in it.
    pub fn until(&self, part: &str) -> Instant {
        self.until_or(part, || self.text())
    }

    /// [`Errors::until`] that fails with more than what this process said.
    fn until_or(&self, part: &str, otherwise: impl Fn() -> String) -> Instant {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some((at, _)) = self.0.lock().unwrap().iter().find(|(_, line)| line.contains(part)) {
                return *at;
            }
            assert!(Instant::now() < end, "nobody said {part:?}:\n{}", otherwise());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Processes that nobody starts again, as from several terminals.
pub struct ByHand {
    pub address: String,
    program: PathBuf,
    variables: Vec<(String, String)>,
    children: Vec<(String, Child, Errors)>,
}

impl ByHand {
    /// With these variables, on a free port of this host.
    pub fn new(variables: &[(&str, &str)]) -> Self {
        Self::of(counting(), variables)
    }

    /// Of another program than the one that counts.
    pub fn of(program: impl Into<PathBuf>, variables: &[(&str, &str)]) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let (address, program) = (format!("127.0.0.1:{port}"), program.into());
        Self { address, program, variables, children: Vec::new() }
    }

    /// Starts a process whose name begins with its role, again if it has ended.
    pub fn start(&mut self, name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Errors {
        let role = name.split('-').next().unwrap();
        let mut command = match role {
            "coordinator" => Command::new(env!("CARGO_BIN_EXE_thalweg")),
            _ => Command::new(&self.program),
        };
        command.args(arguments).env("THALWEG_ROLE", role).env("THALWEG_NAME", name);
        command.env("THALWEG_COORDINATOR", &self.address).envs(self.variables.iter().cloned());
        command.envs(variables.iter().copied()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let errors = Errors::of(child.stderr.take().unwrap());
        self.children.retain(|(n, ..)| n != name);
        self.children.push((name.to_owned(), child, errors.clone()));
        errors
    }

    fn child(&mut self, name: &str) -> &mut Child {
        self.children.iter_mut().find(|(n, ..)| n == name).map(|(_, child, _)| child).unwrap()
    }

    pub fn pid(&mut self, name: &str) -> u32 {
        self.child(name).id()
    }

    pub fn kill(&mut self, name: &str) {
        self.child(name).kill().unwrap();
        self.child(name).wait().unwrap();
    }

    /// Waits until a process ends by itself.
    pub fn ended(&mut self, name: &str) -> ExitStatus {
        ended(self.child(name))
    }

    pub fn lives(&mut self, name: &str) -> bool {
        self.child(name).try_wait().unwrap().is_none()
    }

    /// Waits until a process says this. If it does not, shows what all of them said, and the status.
    pub fn says(&self, name: &str, part: &str) -> Instant {
        let errors = self.children.iter().find(|(n, ..)| n == name).map(|(.., errors)| errors).unwrap();
        errors.until_or(part, || {
            let said = |(name, _, errors): &(String, Child, Errors)| format!("{name}:\n{}", errors.text());
            self.children.iter().map(said).chain([self.status()]).collect()
        })
    }

    /// What `thalweg status` prints.
    pub fn status(&self) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        let output = command.args(["status", &self.address]).envs(self.variables.iter().cloned()).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }

    /// Waits until `thalweg status` has this in it.
    pub fn until(&self, part: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if status.contains(part) {
                return status;
            }
            assert!(Instant::now() < end, "{part:?} is not in {status}");
        }
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        for (_, child, _) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until a process ends by itself.
pub fn ended(child: &mut Child) -> ExitStatus {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            let _ = child.kill();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The checkpoints of a run that are whole.
pub fn checkpoints(run: &Path) -> usize {
    let whole = |name: &OsStr| name.to_str().is_some_and(|n| n.starts_with("step-") && n.ends_with(".json"));
    let files = std::fs::read_dir(run.join("checkpoints")).into_iter().flatten().filter_map(Result::ok);
    files.filter(|file| whole(&file.file_name())).count()
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
