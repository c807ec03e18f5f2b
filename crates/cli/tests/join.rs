//! Processes that are started by hand, with the variables of the others, take part in a cluster that is running.

mod support;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{ByHand, Launched, PATIENCE, alone_with, counting, step};

const SECRET: &str = "known to all";
/// Enough to be worth more shards than one server needs.
const VALUES: &str = "900000";
const PROGRAM: [&str; 4] = ["150", "50", "2", VALUES];

/// A process that is ended with the test.
struct Started(Child);

impl Started {
    fn new(role: &str, name: &str, coordinator: &str) -> Self {
        Self::with(&[], &PROGRAM, role, name, coordinator)
    }

    /// With variables and arguments that may be others than the run's.
    fn with(variables: &[(&str, &str)], program: &[&str], role: &str, name: &str, coordinator: &str) -> Self {
        let mut command = Command::new(counting());
        command.args(program).env("THALWEG_ROLE", role).env("THALWEG_NAME", name);
        command.env("THALWEG_COORDINATOR", coordinator).env("THALWEG_SECRET", SECRET);
        command.env("THALWEG_SLOTS", "2").envs(variables.iter().copied());
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// What it says on stderr when it has ended with an error.
    fn error(mut self) -> String {
        assert!(!self.0.wait().unwrap().success());
        let mut said = String::new();
        std::io::Read::read_to_string(self.0.stderr.as_mut().unwrap(), &mut said).unwrap();
        said
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What `thalweg status` says of a process once it is what was hoped for.
fn until(address: &str, name: &str, hoped: impl Fn(&str) -> bool) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut status = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        let output = status.args(["status", address]).env("THALWEG_SECRET", SECRET).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find_map(|l| l.strip_prefix(&format!("{name}: ")));
        match line.filter(|line| hoped(line)) {
            Some(line) => return line.to_owned(),
            None => {
                assert!(Instant::now() < end && output.status.success(), "{name} is not in its place: {text}")
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_server_and_a_worker_that_come_later_get_their_share_and_change_nothing() {
    let variables = [("THALWEG_SECRET".into(), SECRET.into())];
    let options = ["--workers", "1", "--servers", "1", "--slots", "2"];
    let mut run = Launched::with(&variables, counting(), &options, &PROGRAM);
    run.until(step(1, 2));
    let address = run.address();
    let first = until(&address, "server-0", |line| line.contains("head"));
    assert!(first.starts_with("shards 0:head 1:head 2:head,"), "more shards than servers: {first}");

    let server = Started::new("server", "server-1", &address);
    let mut worker = Started::new("worker", "worker-1", &address);
    let held =
        until(&address, "worker-1", |line| line.starts_with("slots 0,") || line.starts_with("slots 1,"));
    println!("worker-1: {held}");
    // First it has copies of everything; then it is the first of its share.
    let held = until(&address, "server-1", |line| line.starts_with("shards 0:head 1:copy 2:copy,"));
    println!("server-1: {held}");
    until(&address, "server-0", |line| line.starts_with("shards 0:copy 1:head 2:head,"));

    let want = alone_with(PROGRAM[0], "2", VALUES);
    assert_eq!(run.hashes(), std::slice::from_ref(&want));
    assert!(worker.0.wait().unwrap().success());
    let mut said = String::new();
    std::io::Read::read_to_string(worker.0.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert_eq!(said.lines().last(), Some(want.as_str()), "who joined ends with the same");
    drop(server);
}

#[test]
fn whose_settings_differ_is_told_which_and_both_values_and_does_no_harm() {
    let variables = [("THALWEG_SECRET".into(), SECRET.into())];
    let options = ["--workers", "1", "--servers", "1", "--slots", "2"];
    let program = ["100", "20", "2", VALUES];
    let mut run = Launched::with(&variables, counting(), &options, &program);
    run.until(step(1, 2));
    let address = run.address();
    for role in ["worker", "server"] {
        for (variable, value, differs) in [
            ("SLOTS", "3", "slots is 2 in the run and 3"),
            ("SYNC", "ssp:2", "sync is bsp in the run and ssp:2"),
            ("CODEC", "bf16", "codec is f32 in the run and bf16"),
            ("REPLICAS", "3", "replicas is 2 in the run and 3"),
            ("SHARDS", "5", "shards is 3 in the run and 5"),
        ] {
            let variables = [(&*format!("THALWEG_{variable}"), value)];
            let said = Started::with(&variables, &program, role, "wrong", &address).error();
            assert!(said.contains(&format!("join: {differs} in this process")), "{role}: {said}");
        }
        let other = ["101", "20", "2", VALUES];
        let said = Started::with(&[], &other, role, "wrong", &address).error();
        assert!(said.contains("clocks is 100 in the run and 101 in this process"), "{role}: {said}");
    }
    assert_eq!(run.hashes(), [alone_with("100", "2", VALUES)]);
}

#[test]
fn a_recipe_with_another_argument_is_told_which() {
    let out = std::env::temp_dir().join(format!("thalweg-join-{}", std::process::id()));
    let thalweg = env!("CARGO_BIN_EXE_thalweg");
    let mut processes = ByHand::of(thalweg, &[("THALWEG_WORKERS", "2")]);
    let train = ["train", "logistic", "--out", out.to_str().unwrap()];
    processes.start("coordinator-0", &["coordinate"], &[]);
    processes.start("server-0", &train, &[]);
    processes.until("server-0: shards");
    for (more, differs) in [
        (["--seed", "7"], "seed is 0 in the run and 7"),
        (["--epochs", "3"], "clocks is "),
        (["--lr", "0.2"], "learning rate is 0.05 in the run and 0.2"),
    ] {
        let worker = processes.start("worker-0", &[&train[..], &more[..]].concat(), &[]);
        assert_eq!(processes.ended("worker-0").code(), Some(1));
        worker.until(differs);
    }
    assert!(processes.lives("server-0"));
    let _ = std::fs::remove_dir_all(out);
}

/// A name is free again when its process has ended, however that was.
#[test]
fn a_second_process_of_one_name_is_refused_while_the_first_lives() {
    let program = ["100000", "10"];
    let mut processes = ByHand::new(&[("THALWEG_WORKERS", "1")]);
    processes.start("coordinator-0", &["coordinate"], &[]);
    processes.start("server-0", &program, &[]);
    processes.start("worker-0", &program, &[]);
    processes.until("worker-0: slots 0, clock 1");
    for role in ["worker", "server"] {
        let name = format!("{role}-0");
        let began = Instant::now();
        let mut second = Command::new(counting());
        second.args(program).env("THALWEG_ROLE", role).env("THALWEG_NAME", &name);
        let output = second.env("THALWEG_COORDINATOR", &processes.address).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(&format!("is \"{name}\" in this run, and lives; set THALWEG_NAME")), "{said}");
        assert!(!output.status.success() && began.elapsed() < PATIENCE);
        assert!(processes.lives(&name), "the first goes on");
    }
    processes.kill("worker-0");
    processes.start("worker-0", &program, &[]);
    processes.until("worker-0: slots 0");
    assert!(processes.lives("worker-0") && processes.lives("server-0"));
}
