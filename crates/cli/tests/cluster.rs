//! Real processes on loopback: whatever is killed, BSP ends with the same bits and no process is left.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

/// The program that all tests run; built on first use.
fn counting() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let mut cargo = Command::new(env!("CARGO"));
        // Of the workspace, so that features and with them all that is built already are the same.
        cargo.args(["build", "--quiet", "--workspace", "--example", "counting"]);
        assert!(cargo.status().unwrap().success());
        let tests = std::env::current_exe().unwrap();
        tests.parent().unwrap().parent().unwrap().join("examples/counting")
    };
    BUILT.get_or_init(build).clone()
}

/// The example that trains a net; built on first use.
fn trains() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--workspace", "--example", "cluster"]);
        assert!(cargo.status().unwrap().success());
        counting().with_file_name("cluster")
    };
    BUILT.get_or_init(build).clone()
}

/// A running `thalweg launch`, with its lines as they come.
struct Launched {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Launched {
    fn new(options: &[&str], program: &[&str]) -> Self {
        Self::of(counting(), options, program)
    }

    fn of(file: PathBuf, options: &[&str], program: &[&str]) -> Self {
        Self::with(&[], file, options, program)
    }

    fn with(variables: &[(&str, &str)], file: PathBuf, options: &[&str], program: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        command.envs(variables.iter().copied());
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
    fn until(&mut self, found: impl Fn(&str) -> bool) -> Instant {
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
    fn pids(&self, name: &str) -> Vec<u32> {
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

    fn signal(&self, name: &str, signal: &str) {
        let pids = self.pids(name);
        assert_eq!(pids.len(), 1, "{name}: {pids:?}");
        assert!(Command::new("kill").args([signal, &pids[0].to_string()]).status().unwrap().success());
    }

    /// The hashes that the workers printed at the end.
    fn hashes(self) -> Vec<String> {
        self.last("hash ")
    }

    /// The lines that begin so, of a run that has ended well.
    fn last(mut self, begin: &str) -> Vec<String> {
        let status = self.child.wait().unwrap();
        self.seen.extend(self.lines.iter());
        let hashes: Vec<String> = self.seen.iter().filter(|l| l.starts_with(begin)).cloned().collect();
        assert!(status.success() && !hashes.is_empty(), "{status}: {:?}", self.seen);
        assert_eq!(self.pids(""), [0; 0], "processes were left behind");
        hashes
    }
}

/// What one process alone comes to with so many slots: the reference for BSP.
fn alone(clocks: &str, slots: &str) -> String {
    alone_with(clocks, slots, "1000")
}

fn alone_with(clocks: &str, slots: &str, values: &str) -> String {
    let output = Command::new(counting()).args([clocks, "0", slots, values]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().last().unwrap().to_owned()
}

fn step(slot: u32, clock: u32) -> impl Fn(&str) -> bool {
    move |line| line == format!("step {slot} {clock}")
}

#[test]
fn four_workers_and_two_servers_come_to_the_bits_of_one_process() {
    let hashes = Launched::new(&["--workers", "4", "--servers", "2"], &["30", "1"]).hashes();
    assert_eq!(hashes, vec![alone("30", "4"); 4]);
}

#[test]
fn a_killed_worker_is_replaced_and_changes_nothing() {
    let mut run = Launched::new(&["--workers", "3", "--servers", "2"], &["40", "20"]);
    run.until(step(1, 10));
    run.signal("worker-1", "-KILL");
    let killed = Instant::now();
    let next = run.until(step(1, 14)) - killed;
    println!("killed worker: four steps later after {} ms", next.as_millis());
    assert!(run.hashes().iter().all(|h| *h == alone("40", "3")));
}

/// Large arrays go in chunks, through shared memory or a socket, from parts of arrays on two servers, while a worker is
/// killed in between.
#[test]
fn large_values_come_to_the_same_bits_through_shared_memory_and_through_sockets() {
    const VALUES: &str = "900000";
    let want = alone_with("30", "2", VALUES);
    for memory in ["on", "off"] {
        let variables = [("THALWEG_SHARED_MEMORY", memory)];
        let options = ["--workers", "2", "--servers", "2"];
        let mut run = Launched::with(&variables, counting(), &options, &["30", "10", "2", VALUES]);
        run.until(step(1, 5));
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", run.pids("server-0")[0])).unwrap();
        let shares = maps.contains("memfd:thalweg");
        assert_eq!(shares, memory == "on" && cfg!(target_os = "linux"), "{maps}");
        run.signal("worker-1", "-KILL");
        assert!(run.hashes().iter().all(|h| *h == want), "shared memory {memory}");
    }
}

#[test]
fn the_others_take_over_the_slots_of_a_worker_that_stays_dead() {
    let mut run = Launched::new(&["--workers", "3", "--servers", "1", "--no-restart"], &["40", "10"]);
    run.until(step(2, 10));
    run.signal("worker-2", "-KILL");
    assert_eq!(run.hashes(), vec![alone("40", "3"); 2]);
}

#[test]
fn a_killed_server_is_survived_by_its_replica() {
    let mut run = Launched::new(&["--workers", "2", "--servers", "2"], &["60", "10"]);
    run.until(step(0, 10));
    run.signal("server-0", "-KILL");
    let killed = Instant::now();
    let next = run.until(step(0, 14)) - killed;
    println!("killed server: four steps later after {} ms", next.as_millis());
    assert!(run.hashes().iter().all(|h| *h == alone("60", "2")));
}

#[test]
fn a_killed_coordinator_comes_back_with_its_view() {
    let mut run = Launched::new(&["--workers", "2", "--servers", "2"], &["80", "10"]);
    run.until(step(0, 10));
    run.signal("coordinator", "-KILL");
    run.until(step(0, 40));
    assert!(run.hashes().iter().all(|h| *h == alone("80", "2")));
}

#[test]
fn a_primary_that_was_stopped_beyond_its_lease_does_no_harm_when_it_wakes() {
    let mut run = Launched::new(&["--workers", "2", "--servers", "2"], &["80", "10"]);
    run.until(step(0, 10));
    run.signal("server-1", "-STOP");
    run.until(step(0, 30));
    run.signal("server-1", "-CONT");
    assert!(run.hashes().iter().all(|h| *h == alone("80", "2")));
}

#[test]
fn a_net_is_killed_with_all_its_processes_and_goes_on_elsewhere_to_the_same_bits() {
    let folder = |name: &str| std::env::temp_dir().join(format!("thalweg-cli-{name}-{}", std::process::id()));
    let (whole, killed) = (folder("whole"), folder("killed"));
    // One process with four slots is the reference.
    let output = Command::new(trains()).arg("--run").arg(&whole).env("THALWEG_SLOTS", "4").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let want: Vec<String> = text.lines().filter(|l| l.starts_with("weights ")).map(str::to_owned).collect();
    assert_eq!(want.len(), 1, "{text}");

    let program = ["--run", killed.to_str().unwrap()];
    let mut run = Launched::of(trains(), &["--workers", "4", "--servers", "2"], &program);
    let (end, manifest) = (Instant::now() + PATIENCE, killed.join("checkpoints/step-0000000010.json"));
    while !manifest.exists() {
        assert!(Instant::now() < end, "no checkpoint: {:?}", run.seen);
        std::thread::sleep(Duration::from_millis(5));
    }
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    while !run.pids("").is_empty() {
        assert!(Instant::now() < end, "{:?} are left", run.pids(""));
        std::thread::sleep(Duration::from_millis(20));
    }
    let again = Launched::of(trains(), &["--workers", "2", "--servers", "3", "--slots", "4"], &program);
    assert_eq!(again.last("weights "), want);
    [whole, killed].iter().for_each(|f| std::fs::remove_dir_all(f).unwrap());
}

#[test]
fn ssp_and_async_and_backup_runs_end() {
    for sync in ["ssp:3", "async", "backup:1"] {
        let mut run = Launched::new(&["--workers", "3", "--servers", "2", "--sync", sync], &["30", "5"]);
        run.until(step(0, 5));
        run.signal("worker-2", "-KILL");
        let hashes = run.hashes();
        assert!(hashes.iter().all(|h| *h == hashes[0]), "{sync}: all see the same end: {hashes:?}");
    }
}

#[test]
fn ctrl_c_leaves_no_process_behind() {
    let mut run = Launched::new(&["--workers", "2", "--servers", "2"], &["100000", "10"]);
    run.until(step(0, 5));
    let pid = run.child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert!(!run.child.wait().unwrap().success());
    assert_eq!(run.pids(""), [0; 0]);
}

#[test]
fn a_killed_launcher_takes_its_processes_along() {
    let mut run = Launched::new(&["--workers", "2", "--servers", "1"], &["100000", "10"]);
    run.until(step(0, 5));
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    let end = Instant::now() + PATIENCE;
    while !run.pids("").is_empty() {
        assert!(Instant::now() < end, "{:?} are left", run.pids(""));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn mpirun_starts_a_cluster_by_its_numbers_alone() {
    if !Command::new("mpirun").arg("--version").output().is_ok_and(|o| o.status.success()) {
        assert!(std::env::var_os("CI").is_none(), "mpirun is missing, and CI must have it");
        return println!("skipped: mpirun is not installed");
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let output = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "-np", "5"])
        .arg(counting())
        .args(["20", "1"])
        .env("THALWEG_COORDINATOR", format!("127.0.0.1:{port}"))
        .env("THALWEG_SERVERS", "2")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let hashes: Vec<&str> = text.lines().filter(|l| l.starts_with("hash ")).collect();
    assert_eq!(hashes, [alone("20", "2").as_str(); 2]);
}

#[test]
fn status_names_every_process_and_a_wrong_secret_is_refused() {
    let mut run = Launched::new(&["--workers", "2", "--servers", "2"], &["100000", "10"]);
    run.until(step(0, 5));
    let address = run.seen[0].strip_prefix("coordinator ").unwrap().to_owned();
    let status = |secret: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        command.args(["status", &address]).envs(secret.map(|s| ("THALWEG_SECRET", s))).output().unwrap()
    };
    let right = status(None); // the same user finds the secret
    let text = String::from_utf8(right.stdout).unwrap();
    for name in ["server-0", "server-1", "worker-0", "worker-1"] {
        assert!(text.contains(name), "{text}");
    }
    assert!(text.contains("0:head") && text.contains("steps/s"), "{text}");
    assert!(text.contains("staleness") && text.contains("waited") && text.contains(" MB"), "{text}");
    let wrong = status(Some("guess"));
    assert!(!wrong.status.success());
    let error = String::from_utf8(wrong.stderr).unwrap();
    assert!(error.contains("THALWEG_SECRET"), "{error}");
    Command::new("kill").args(["-INT", &run.child.id().to_string()]).status().unwrap();
    run.child.wait().unwrap();
}

#[test]
fn a_wrong_address_is_an_error_that_names_it() {
    let output = Command::new(counting())
        .env("THALWEG_ROLE", "worker")
        .env("THALWEG_COORDINATOR", "127.0.0.1:1")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("127.0.0.1:1") && error.contains("refused"), "{error}");
}
