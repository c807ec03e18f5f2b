//! No wait is for ever: processes that nobody starts again, and what the others say and do when one is dead or shut off.

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use support::{ByHand, Launched, ended, step};

/// How long these processes wait before they give up.
const GIVE_UP: (&str, &str) = ("THALWEG_GIVE_UP_MS", "2000");
/// Much longer than that, for a busy machine; without a limit they would wait for ever.
const ENOUGH: Duration = Duration::from_secs(60);

const LONG: [&str; 2] = ["100000", "10"];

/// How far the first worker is, as `thalweg status` says.
fn clock(status: &str) -> u64 {
    let line = status.lines().find(|l| l.starts_with("worker-0: ")).unwrap_or_default();
    line.split("clock ").nth(1).map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

/// A coordinator, a server and a worker that has made some steps.
fn running(variables: &[(&str, &str)]) -> (ByHand, [support::Errors; 3]) {
    let mut processes = ByHand::new(&[&[GIVE_UP], variables].concat());
    let coordinator = processes.start("coordinator-0", &["coordinate"], &[]);
    let server = processes.start("server-0", &LONG, &[]);
    let worker = processes.start("worker-0", &LONG, &[]);
    processes.until("worker-0: slots 0, clock 1");
    (processes, [coordinator, server, worker])
}

#[test]
fn the_only_server_dies_and_its_shards_are_lost_not_waited_for() {
    let (mut processes, [coordinator, _, worker]) = running(&[("THALWEG_GIVE_UP_MS", "600000")]);
    processes.kill("server-0");
    let killed = Instant::now();
    let told = coordinator.until("server-0 has ended; its shards are lost") - killed;
    println!("dead server: told by the coordinator after {} ms", told.as_millis());
    assert_eq!(processes.ended("worker-0").code(), Some(1));
    println!("dead server: an error after {} ms", killed.elapsed().as_millis());
    // Not after the silence that is borne where nothing is known.
    assert!(killed.elapsed() < ENOUGH);
    worker.until("every server that held it is gone; resume from a checkpoint, or begin again");
}

/// Nobody starts it again, as the default is where no launcher does.
#[test]
fn the_coordinator_dies_and_is_not_waited_for() {
    let (mut processes, [_, server, worker]) = running(&[("THALWEG_GIVE_UP_MS", "600000")]);
    processes.kill("coordinator-0");
    let killed = Instant::now();
    for (name, errors) in [("server-0", &server), ("worker-0", &worker)] {
        assert_eq!(processes.ended(name).code(), Some(1));
        println!("dead coordinator: {name} has ended after {} ms", killed.elapsed().as_millis());
        errors.until("the coordinator is there no more, for ");
        errors.until(&format!("({}: Connection refused", processes.address));
    }
    // Not after the silence that is borne where nothing is known.
    assert!(killed.elapsed() < ENOUGH);
}

/// It may wake up: whether it will, nobody can know.
#[test]
fn the_coordinator_is_stopped_for_good_and_server_and_worker_give_up() {
    let (mut processes, [_, server, worker]) = running(&[]);
    let pid = processes.pid("coordinator-0").to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    let stopped = Instant::now();
    for (name, errors) in [("server-0", &server), ("worker-0", &worker)] {
        let told = errors.until(&format!("{name}: waits for the coordinator: ")) - stopped;
        println!("stopped coordinator: told by {name} after {} ms", told.as_millis());
        assert_eq!(processes.ended(name).code(), Some(1));
        errors.until("no coordinator for 2.");
    }
    assert!(stopped.elapsed() < ENOUGH);
}

/// What it has not heard of meanwhile is nobody's silence.
#[test]
fn a_worker_that_was_stopped_for_longer_than_others_are_waited_for_goes_on_when_it_wakes() {
    let (mut processes, [_, _, worker]) = running(&[]);
    let pid = processes.pid("worker-0").to_string();
    let signal =
        |signal: &str| assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    signal("-STOP");
    std::thread::sleep(Duration::from_millis(3500));
    signal("-CONT");
    let then = clock(&processes.until("worker-0: slots 0, clock "));
    let began = Instant::now();
    while clock(&processes.status()) < then + 2 {
        assert!(began.elapsed() < ENOUGH, "the run does not go on: {}", worker.text());
    }
}

#[test]
fn a_coordinator_that_somebody_starts_again_is_waited_for() {
    let state = std::env::temp_dir().join(format!("thalweg-waits-state-{}", std::process::id()));
    let state = state.to_str().unwrap();
    let (mut processes, [_, server, worker]) =
        running(&[("THALWEG_RESTART_MS", "600000"), ("THALWEG_STATE", state)]);
    processes.kill("coordinator-0");
    for (name, errors) in [("server-0", &server), ("worker-0", &worker)] {
        errors.until(&format!("{name}: waits for the coordinator: {}", processes.address));
    }
    // Much longer than the silence that is borne.
    std::thread::sleep(Duration::from_millis(2500));
    processes.start("coordinator-1", &["coordinate"], &[]);
    let then = clock(&processes.until("worker-0: slots 0, clock "));
    let began = Instant::now();
    while clock(&processes.status()) < then + 2 {
        assert!(began.elapsed() < ENOUGH, "the run does not go on");
    }
    std::fs::remove_file(state).unwrap();
}

#[test]
fn a_server_that_is_stopped_for_good_is_given_up_too() {
    let (mut processes, [coordinator, _, worker]) = running(&[]);
    let pid = processes.pid("server-0").to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    coordinator.until("waits for server-0, which is silent");
    processes.until("SILENT");
    assert_eq!(processes.ended("worker-0").code(), Some(1));
    worker.until("every server that held it is gone");
}

/// Nothing was computed, so there is nothing to hand over or to save.
#[test]
fn a_worker_that_waits_for_servers_goes_when_it_is_asked_to() {
    for signal in ["-INT", "-TERM"] {
        let mut processes = ByHand::new(&[("THALWEG_GIVE_UP_MS", "600000")]);
        processes.start("coordinator-0", &["coordinate"], &[]);
        let worker = processes.start("worker-0", &LONG, &[]);
        worker.until("worker-0: waits for servers to come: 0 of 1 have");
        let pid = processes.pid("worker-0").to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let asked = Instant::now();
        processes.ended("worker-0");
        println!("{signal}: ended after {} ms", asked.elapsed().as_millis());
        // It was as long as a worker that has something to save may take.
        assert!(asked.elapsed() < Duration::from_secs(20));
    }
}

/// As behind a firewall: the coordinator hears of the server, the worker does not reach it.
#[test]
fn a_closed_port_of_a_server_is_named_and_then_an_error() {
    let mut processes = ByHand::new(&[GIVE_UP]);
    processes.start("coordinator-0", &["coordinate"], &[]);
    // It listens at one address of this host, and others are told another one.
    processes.start("server-0", &LONG, &[("THALWEG_ADVERTISE", "127.0.0.2")]);
    let started = Instant::now();
    let worker = processes.start("worker-0", &LONG, &[]);
    worker.until("worker-0: waits for server-0 at 127.0.0.2:");
    let status = processes.until("server-0, which is not reached at 127.0.0.2:");
    assert!(status.contains("refused"), "{status}");
    assert_eq!(processes.ended("worker-0").code(), Some(1));
    assert!(started.elapsed() < ENOUGH);
    worker.until("is its port open from here?");
}

/// Waiting cannot mend a secret, so none of these is waited for as long as a coordinator that is not there.
#[test]
fn a_wrong_secret_is_final_at_once_and_the_variable_is_named() {
    for (right, wrong, says) in [
        ("known", "guess", "the secret was refused; set THALWEG_SECRET"),
        ("known", "", "a secret is wanted there, and this process has none; set THALWEG_SECRET"),
        ("", "guess", "no secret is wanted there; unset THALWEG_SECRET"),
    ] {
        let mut processes = ByHand::new(&[("THALWEG_GIVE_UP_MS", "600000"), ("THALWEG_SECRET", right)]);
        processes.start("coordinator-0", &["coordinate"], &[]);
        processes.until("view 0");
        for name in ["worker-0", "server-0"] {
            let began = Instant::now();
            let errors = processes.start(name, &LONG, &[("THALWEG_SECRET", wrong)]);
            assert_eq!(processes.ended(name).code(), Some(1));
            println!("{name} with {wrong:?} for {right:?}: ended after {} ms", began.elapsed().as_millis());
            // It takes 0.2 s where nobody else is at work.
            assert!(began.elapsed() < Duration::from_secs(10), "it tried again and again");
            errors.until(says);
        }
        let mut status = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        let output =
            status.args(["status", &processes.address]).env("THALWEG_SECRET", wrong).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(says), "{said}");
    }
}

/// The lease is long, so that the worker keeps its slot while it is stopped.
#[test]
fn status_and_who_waits_name_the_worker_that_holds_up_a_round() {
    const STEPS: [&str; 2] = ["100000", "300"];
    let mut processes = ByHand::new(&[("THALWEG_LEASE_MS", "20000"), ("THALWEG_WORKERS", "2")]);
    processes.start("coordinator-0", &["coordinate"], &[]);
    processes.start("server-0", &STEPS, &[]);
    let waits = processes.start("worker-0", &STEPS, &[]);
    processes.start("worker-1", &STEPS, &[]);
    // A worker that computes says so, and how long that usually takes.
    processes.until(", in compute for 0.");
    processes.until("clock 3, ");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let sentence = format!(" waits for worker-1 on host {}", host.trim());
    let pid = processes.pid("worker-1").to_string();
    let signal =
        |signal: &str| assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    signal("-STOP");
    let status = processes.until(" not heard of for 2.");
    println!("{status}");
    for name in ["server-0: ", "worker-0: "] {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        let (_, tail) = line.rsplit_once(", round ").unwrap_or_else(|| panic!("{line}"));
        assert!(tail.contains(&sentence), "{line}");
        // Unless the moment of the stop was that between two steps.
        assert!(tail.contains(", in compute for 2.") || tail.contains("which waits for"), "{line}");
    }
    waits.until(&format!("{sentence},"));
    signal("-CONT");
    let then = processes.status();
    let clock = |status: &str| -> u64 {
        let line = status.lines().find(|l| l.starts_with("worker-1")).expect("it keeps its place");
        line.split("clock ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap()
    };
    let began = Instant::now();
    while clock(&processes.status()) < clock(&then) + 2 {
        assert!(began.elapsed() < ENOUGH, "the round goes on");
    }
}

/// It has lost its slot to the other one, so nobody waits for it; but somebody may look for it.
#[test]
fn status_tells_of_a_worker_that_was_stopped_until_it_is_back() {
    let mut processes = ByHand::new(&[("THALWEG_WORKERS", "2")]);
    processes.start("coordinator-0", &["coordinate"], &[]);
    processes.start("server-0", &LONG, &[]);
    processes.start("worker-0", &LONG, &[]);
    processes.start("worker-1", &LONG, &[]);
    assert!(!processes.until("1 server, 2 workers, ").contains("lost its place"));
    processes.until(", in compute for ");
    let pid = processes.pid("worker-1").to_string();
    let signal =
        |signal: &str| assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    signal("-STOP");
    let status = processes.until("worker-1: not heard of for ");
    assert!(
        status.contains(" s, and has lost its place") && status.contains("1 server, 1 worker, "),
        "{status}"
    );
    assert!(status.contains("worker-0: slots 0 1, "), "{status}");
    signal("-CONT");
    let status = processes.until("1 server, 2 workers, ");
    assert!(status.contains("worker-1: slots ") && !status.contains("lost its place"), "{status}");
}

#[test]
fn a_worker_without_servers_says_so() {
    let mut processes = ByHand::new(&[GIVE_UP]);
    processes.start("coordinator-0", &["coordinate"], &[]);
    let worker = processes.start("worker-0", &LONG, &[]);
    worker.until("worker-0: waits for servers to come: 0 of 1 have");
    processes.until("servers to come: 0 of 1 have");
}

#[test]
fn a_worker_that_waits_for_others_to_come_says_so() {
    let mut processes = ByHand::new(&[("THALWEG_WORKERS", "2")]);
    processes.start("coordinator-0", &["coordinate"], &[]);
    processes.start("server-0", &LONG, &[]);
    let worker = processes.start("worker-0", &LONG, &[]);
    worker.until("worker-0: waits for workers to come: 1 of 2 have");
    processes.start("worker-1", &LONG, &[]);
    processes.until(", in compute for ");
}

#[test]
fn status_tells_of_a_server_that_was_stopped() {
    let mut processes = ByHand::new(&[("THALWEG_SERVERS", "2")]);
    processes.start("coordinator-0", &["coordinate"], &[]);
    processes.start("server-0", &LONG, &[]);
    processes.start("server-1", &LONG, &[]);
    processes.start("worker-0", &LONG, &[]);
    processes.until("worker-0: slots 0, clock 1");
    let pid = processes.pid("server-1").to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    let status = processes.until("server-1: not heard of for ");
    assert!(status.contains("1 server, 1 worker, ") && status.contains("has lost its place"), "{status}");
}

#[test]
fn a_run_is_done_though_a_worker_was_stopped_for_good() {
    let mut run = Launched::new(&["--workers", "2"], &["60", "5"]);
    run.until(step(1, 3));
    run.signal("worker-1", "-STOP");
    assert_eq!(ended(&mut run.child).code(), Some(0), "{}", run.errors.text());
    run.errors.until("a worker that was stopped is killed");
    assert_eq!(run.pids(""), [0; 0], "processes were left behind");
}

/// Without its file it begins another run: nobody of the one before may be taken for somebody of that.
#[test]
fn a_coordinator_that_remembers_nothing_ends_the_run_of_before() {
    let (mut processes, [_, server, worker]) = running(&[("THALWEG_RESTART_MS", "600000")]);
    processes.kill("coordinator-0");
    processes.start("coordinator-1", &["coordinate"], &[]);
    for (name, errors) in [("server-0", &server), ("worker-0", &worker)] {
        assert_eq!(processes.ended(name).code(), Some(1));
        errors.until("the coordinator has forgotten this run");
    }
}

/// A signal to a server whose coordinator is gone does not leave it waiting for somebody to hand over to.
#[test]
fn a_server_that_is_asked_to_go_without_a_coordinator_goes() {
    let (mut processes, [_, server, _]) = running(&[("THALWEG_RESTART_MS", "600000")]);
    processes.kill("coordinator-0");
    let pid = processes.pid("server-0").to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(processes.ended("server-0").code(), Some(1));
    server.until("the coordinator is there no more, for ");
}

/// Every server has the same rule, so none could go on in its place: the run ends with what the rule has said.
#[test]
fn a_rule_that_panics_ends_the_run_with_its_message() {
    for servers in ["1", "2"] {
        let options = ["--workers", "2", "--servers", servers];
        let mut run = Launched::new(&options, &["100000", "1", "2", "1000", "20"]);
        assert_eq!(ended(&mut run.child).code(), Some(1));
        run.errors.until("has panicked: assertion `left != right` failed: a bug in a rule of the user's");
        run.errors.until("thalweg: server-");
    }
}
