//! A net of the recipes under every kind of fault: the hash that `--json` prints is that of the run that nothing
//! disturbed, and every sample is used once per epoch.

mod support;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use support::{Launched, PATIENCE, samples};

const THALWEG: &str = env!("CARGO_BIN_EXE_thalweg");

fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("thalweg-faults-{name}-{}", std::process::id()))
}

/// A small net whose samples are read at once, so that what is started again is there before the end.
fn train(out: &str) -> Vec<String> {
    let train = "train logistic --steps 1500 --batch 32 --json --out";
    train.split(' ').chain([out]).map(str::to_owned).collect()
}

fn hash(line: &str) -> String {
    let told: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(told["ended"], "done", "{line}");
    told["weights_sha256"].as_str().unwrap().to_owned()
}

/// What one process with two slots comes to.
fn undisturbed() -> &'static str {
    static HASH: OnceLock<String> = OnceLock::new();
    HASH.get_or_init(|| {
        let out = folder("undisturbed");
        let mut command = Command::new(THALWEG);
        let output = command.args(train(out.to_str().unwrap())).env("THALWEG_SLOTS", "2").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let _ = std::fs::remove_dir_all(out);
        hash(String::from_utf8(output.stdout).unwrap().trim())
    })
}

/// A run of two workers and two servers that is disturbed after its first checkpoint.
fn check(name: &str, disturb: impl FnOnce(&Launched)) {
    let want = undisturbed();
    let out = folder(name);
    let program = train(out.to_str().unwrap());
    let mut run = Launched::with(&[], THALWEG.into(), &["--workers", "2", "--servers", "2"], &program);
    let end = Instant::now() + PATIENCE;
    let saved = || std::fs::read_dir(out.join("checkpoints")).is_ok_and(|mut files| files.next().is_some());
    while !saved() {
        assert!(run.child.try_wait().unwrap().is_none() && Instant::now() < end, "{}", run.errors.text());
        std::thread::sleep(Duration::from_millis(2));
    }
    disturb(&run);
    assert!(!out.join("summary.json").exists(), "{name}: it was disturbed too late");
    let told = run.last("{");
    // Who comes back only when all is done takes over the first slot, and tells the result once more.
    assert!(told.iter().all(|line| hash(line) == want), "{name}: {told:?} instead of {want}");
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn a_killed_worker_that_kept_the_books() {
    check("worker", |run| {
        run.signal("worker-0", "-KILL");
    });
}

#[test]
fn a_killed_server() {
    check("server", |run| {
        run.signal("server-0", "-KILL");
    });
}

#[test]
fn a_killed_coordinator() {
    check("coordinator", |run| {
        run.signal("coordinator", "-KILL");
    });
}

#[test]
fn a_primary_stopped_beyond_its_lease() {
    check("stopped", |run| {
        run.signal("server-0", "-STOP");
        std::thread::sleep(Duration::from_secs(1));
        run.signal("server-0", "-CONT");
    });
}

#[test]
fn a_worker_and_a_server_that_are_asked_to_go() {
    check("asked", |run| {
        run.signal("worker-0", "-TERM");
        run.signal("server-1", "-TERM");
    });
}

#[test]
fn every_sample_is_used_once_per_epoch_whoever_is_killed_or_asked_to_go() {
    let mut run = Launched::of(samples(), &["--workers", "2", "--servers", "2"], &["60", "4"]);
    let even = |epoch: u32| move |line: &str| line == format!("epoch {epoch}: even");
    run.until(even(5));
    run.signal("worker-1", "-KILL");
    run.until(even(15));
    run.signal("server-0", "-KILL");
    run.until(even(25));
    run.signal("worker-0", "-KILL");
    run.until(even(35));
    run.signal("worker-1", "-TERM");
    run.until(even(45));
    assert!(run.seen.iter().all(|line| !line.contains("UNEVEN")), "{:?}", run.seen);
    assert_eq!(run.last("every sample"), ["every sample 60 times: true"]);
}
