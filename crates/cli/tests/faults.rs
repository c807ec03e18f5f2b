//! A net of the recipes under every kind of fault: the hash that `--json` prints is that of the run that nothing
//! disturbed, and every sample is used once per epoch.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use thalweg::train::{Run, load_latest};

use support::{ByHand, Errors, Launched, PATIENCE, checkpoints, ended, samples};

const THALWEG: &str = env!("CARGO_BIN_EXE_thalweg");

fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("thalweg-faults-{name}-{}", std::process::id()))
}

/// A small net whose samples are read at once, so that what is started again is there before the end.
fn train(out: &Path) -> Vec<String> {
    train_for(1500, out)
}

fn train_for(steps: u32, out: &Path) -> Vec<String> {
    let train = format!("train logistic --steps {steps} --batch 32 --json --out");
    train.split(' ').chain(out.to_str()).map(str::to_owned).collect()
}

fn hash(line: &str) -> String {
    let told: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(told["ended"], "done", "{line}");
    told["weights_sha256"].as_str().unwrap().to_owned()
}

/// The losses that a run has written down, by step.
fn curve(out: &Path) -> Vec<(u64, f64)> {
    let lines = Run::metrics_of(out).unwrap();
    lines.iter().filter_map(|line| Some((line.step, *line.values.get("loss")?))).collect()
}

/// What one process with two slots comes to, and the losses on its way.
fn undisturbed() -> &'static (String, Vec<(u64, f64)>) {
    static FOUND: OnceLock<(String, Vec<(u64, f64)>)> = OnceLock::new();
    FOUND.get_or_init(|| undisturbed_for(1500))
}

fn undisturbed_for(steps: u32) -> (String, Vec<(u64, f64)>) {
    let out = folder(&format!("undisturbed-{steps}"));
    let mut command = Command::new(THALWEG);
    let output = command.args(train_for(steps, &out)).env("THALWEG_SLOTS", "2").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let losses = curve(&out);
    let _ = std::fs::remove_dir_all(out);
    (hash(String::from_utf8(output.stdout).unwrap().trim()), losses)
}

/// A run of two workers and two servers that is disturbed after its first checkpoint.
fn check(name: &str, disturb: impl FnOnce(&Launched)) {
    let (want, losses) = undisturbed();
    let out = folder(name);
    let program = train(&out);
    let mut run = Launched::with(&[], THALWEG.into(), &["--workers", "2", "--servers", "2"], &program);
    let end = Instant::now() + PATIENCE;
    let saved = || std::fs::read_dir(out.join("checkpoints")).is_ok_and(|mut files| files.next().is_some());
    while !saved() {
        assert!(run.child.try_wait().unwrap().is_none() && Instant::now() < end, "{}", run.errors.text());
        std::thread::sleep(Duration::from_millis(2));
    }
    disturb(&run);
    assert!(!out.join("summary.json").exists(), "{name}: it was disturbed too late");
    // Who comes back only when all is done takes over the first slot, but has nothing to tell.
    let told: Vec<String> = run.last("{").iter().map(|line| hash(line)).collect();
    assert_eq!(told, [want.as_str()], "{name}");
    assert_eq!(curve(&out), *losses, "{name}: every loss counts once, whoever keeps the books");
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

/// It does not let go of the books, and nobody waits for that.
#[test]
fn a_worker_that_kept_the_books_stopped_for_good() {
    check("keeper", |run| {
        run.signal("worker-0", "-STOP");
    });
}

#[test]
fn a_run_is_saved_when_it_is_interrupted_while_a_worker_is_stopped() {
    for stopped in ["worker-0", "worker-1", "server-0", "coordinator"] {
        let out = folder(&format!("interrupted-{stopped}"));
        let mut run = Launched::with(&[], THALWEG.into(), &["--workers", "2"], &train_for(1_000_000, &out));
        run.until_written(&out.join("metrics.jsonl"));
        run.signal(stopped, "-STOP");
        std::thread::sleep(Duration::from_millis(600));
        assert!(Command::new("kill").args(["-INT", &run.child.id().to_string()]).status().unwrap().success());
        let asked = Instant::now();
        assert_eq!(ended(&mut run.child).code(), Some(130), "{stopped}: {}", run.errors.text());
        println!("{stopped} stopped: ended {} ms after the signal", asked.elapsed().as_millis());
        assert!(load_latest(out.join("checkpoints")).unwrap().is_some(), "{stopped}: {}", run.errors.text());
        std::fs::remove_dir_all(out).unwrap();
    }
}

#[test]
fn a_worker_and_a_server_that_are_asked_to_go() {
    check("asked", |run| {
        run.signal("worker-0", "-TERM");
        run.signal("server-1", "-TERM");
    });
}

/// It gets the first slot when everything is computed and told.
#[test]
fn a_worker_that_comes_when_all_is_done_does_not_tell_the_result_again() {
    let out = folder("told");
    let program = train(&out);
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    let mut processes = ByHand::of(THALWEG, &[("THALWEG_SLOTS", "2")]);
    processes.start("coordinator-0", &["coordinate"], &[]);
    processes.start("server-0", &program, &[]);
    for (worker, tells) in [("worker-0", true), ("worker-1", false)] {
        let said = processes.start(worker, &program, &[]);
        assert!(processes.ended(worker).success(), "{}", said.text());
        let summary = out.join("summary.json");
        assert_eq!(summary.exists(), tells, "{worker}: {}", said.text());
        let _ = std::fs::remove_file(summary);
    }
    std::fs::remove_dir_all(out).unwrap();
}

/// Waits until a run has two checkpoints: of the first one the coordinator was told long ago.
fn until_saved(out: &Path, errors: &Errors) {
    let end = Instant::now() + PATIENCE;
    while checkpoints(out) < 2 {
        assert!(Instant::now() < end, "{}", errors.text());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// With one copy of each shard a killed server takes some along, whatever the others have.
#[test]
fn the_only_server_of_a_shard_is_killed_and_the_run_goes_back_to_its_checkpoint() {
    for (servers, replicas) in [("1", "2"), ("2", "1")] {
        let ((want, losses), out) = (undisturbed(), folder(&format!("lost-{servers}")));
        let options = ["--workers", "2", "--servers", servers, "--replicas", replicas];
        let run = Launched::with(&[], THALWEG.into(), &options, &train(&out));
        until_saved(&out, &run.errors);
        run.signal("server-0", "-KILL");
        run.errors.until("the run goes back to the checkpoint at clock");
        let told: Vec<String> = run.last("{").iter().map(|line| hash(line)).collect();
        assert_eq!(told, [want.as_str()], "{servers} servers");
        assert_eq!(curve(&out), *losses, "{servers} servers");
        let steps: Vec<u64> = thalweg::train::Run::metrics_of(&out).unwrap().iter().map(|l| l.step).collect();
        assert!(
            steps.is_sorted() && steps.last() == Some(&1500),
            "what was measured is there once: {steps:?}"
        );
        std::fs::remove_dir_all(out).unwrap();
    }
}

/// Steps of a run that is far from its end when it has two checkpoints, even if nobody looks for a second or two.
const LONG: u32 = 9000;

/// A coordinator, a server and a worker from terminals of their own, killed once there are checkpoints.
fn by_hand(out: &Path, variables: &[(&str, &str)]) -> (ByHand, [Errors; 2]) {
    let mut processes = ByHand::of(THALWEG, &[&[("THALWEG_SLOTS", "2")], variables].concat());
    let program = train_for(LONG, out);
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    let coordinator = processes.start("coordinator-0", &["coordinate"], &[]);
    processes.start("server-0", &program, &[]);
    let worker = processes.start("worker-0", &program, &[]);
    until_saved(out, &worker);
    processes.kill("server-0");
    processes.says("coordinator-0", "server-0 has ended; its shards are lost");
    processes.says("coordinator-0", "the run goes back to the checkpoint at clock");
    (processes, [coordinator, worker])
}

#[test]
fn the_only_server_is_started_again_by_hand_and_the_run_goes_on() {
    let ((want, _), out) = (undisturbed_for(LONG), folder("by-hand"));
    let (mut processes, [_, worker]) = by_hand(&out, &[("THALWEG_RESTART_MS", "600000")]);
    worker.until("worker-0: waits for servers to come: 0 of 1 have");
    let program = train_for(LONG, &out);
    processes.start("server-0", &program.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    assert!(processes.ended("worker-0").success(), "{}", worker.text());
    let summary = thalweg::train::Run::summary_of(&out).unwrap().unwrap();
    assert_eq!(summary["weights"], want);
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn nobody_starts_the_only_server_again_and_the_worker_names_the_checkpoint() {
    let out = folder("deserted");
    let (mut processes, [_, worker]) = by_hand(&out, &[]);
    assert_eq!(processes.ended("worker-0").code(), Some(1));
    worker.until("every server is gone, and none has come for ");
    worker.until("; resume from the checkpoint at clock");
    std::fs::remove_dir_all(out).unwrap();
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

/// A run whose processes are all asked to end after its first checkpoint goes on, from where it was, to the same bits: on a
/// cluster again, or alone.
fn check_stop(name: &str, alone: bool, stop: impl FnOnce(&Launched)) {
    let (want, losses) = undisturbed();
    let out = folder(name);
    let program = train(&out);
    let options = ["--workers", "2", "--servers", "2"];
    let mut run = Launched::with(&[], THALWEG.into(), &options, &program);
    let end = Instant::now() + PATIENCE;
    while checkpoints(&out) == 0 {
        assert!(run.child.try_wait().unwrap().is_none() && Instant::now() < end, "{}", run.errors.text());
        std::thread::sleep(Duration::from_millis(2));
    }
    stop(&run);
    run.until(|line| line.starts_with('{'));
    let told: serde_json::Value = serde_json::from_str(run.seen.last().unwrap()).unwrap();
    assert_eq!(told["ended"], "stopped", "{told}");
    assert_eq!(ended(&mut run.child).code(), Some(130), "{}", run.errors.text());
    assert_eq!(run.pids(""), [0; 0], "processes were left behind");
    assert!(!run.errors.text().contains("waits for"), "{}", run.errors.text());
    let saved = load_latest(out.join("checkpoints")).unwrap().unwrap().step;
    assert_eq!(told["steps"], saved, "nothing after the last step of all is lost");
    assert!(saved > 150 && saved < 1500, "it was stopped between two checkpoints or at one: {saved}");
    let resume = ["resume", out.to_str().unwrap(), "--json"];
    let told = if alone {
        let output = Command::new(THALWEG).args(resume).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        vec![String::from_utf8(output.stdout).unwrap()]
    } else {
        Launched::with(&[], THALWEG.into(), &options, &resume).last("{")
    };
    assert!(told.iter().all(|line| hash(line) == *want), "{name}: {told:?} instead of {want}");
    assert_eq!(curve(&out), *losses, "{name}");
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn ctrl_c_saves_the_run_and_it_goes_on_from_there() {
    check_stop("ctrl-c", true, |run| {
        // As a terminal does: to every process at once.
        let all = run.pids("").into_iter().chain([run.child.id()]).map(|pid| pid.to_string());
        assert!(Command::new("kill").arg("-INT").args(all).status().unwrap().success());
    });
}

#[test]
fn a_signal_to_all_workers_saves_the_run() {
    check_stop("all-workers", false, |run| {
        let workers = run.pids("worker-0").into_iter().chain(run.pids("worker-1")).map(|pid| pid.to_string());
        assert!(Command::new("kill").arg("-TERM").args(workers).status().unwrap().success());
    });
}
