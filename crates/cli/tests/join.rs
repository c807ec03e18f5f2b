//! Processes that are started by hand, with the variables of the others, take part in a cluster that is running.

mod support;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{Launched, PATIENCE, alone_with, counting, step};

const SECRET: &str = "known to all";
/// Enough to be worth more shards than one server needs.
const VALUES: &str = "900000";
const PROGRAM: [&str; 4] = ["150", "50", "2", VALUES];

/// A process that is ended with the test.
struct Started(Child);

impl Started {
    fn new(role: &str, name: &str, coordinator: &str, slots: &str) -> Self {
        let mut command = Command::new(counting());
        command.args(PROGRAM).env("THALWEG_ROLE", role).env("THALWEG_NAME", name);
        command.env("THALWEG_COORDINATOR", coordinator).env("THALWEG_SECRET", SECRET);
        command.env("THALWEG_SLOTS", slots).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
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
    let address = run.seen[0].strip_prefix("coordinator ").unwrap().to_owned();
    let first = until(&address, "server-0", |line| line.contains("head"));
    assert!(first.starts_with("shards 0:head 1:head 2:head,"), "more shards than servers: {first}");

    let server = Started::new("server", "server-1", &address, "2");
    let mut worker = Started::new("worker", "worker-1", &address, "2");
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
fn who_would_divide_the_work_otherwise_is_told_and_does_no_harm() {
    let variables = [("THALWEG_SECRET".into(), SECRET.into())];
    let options = ["--workers", "1", "--servers", "1", "--slots", "2"];
    let mut run = Launched::with(&variables, counting(), &options, &["60", "20", "2", VALUES]);
    run.until(step(1, 2));
    let address = run.seen[0].strip_prefix("coordinator ").unwrap().to_owned();
    for role in ["worker", "server"] {
        let mut wrong = Started::new(role, "wrong", &address, "3");
        assert!(!wrong.0.wait().unwrap().success(), "{role}");
        let mut said = String::new();
        std::io::Read::read_to_string(wrong.0.stderr.as_mut().unwrap(), &mut said).unwrap();
        let named = |text: [&str; 2]| text.iter().all(|part| said.contains(part));
        assert!(named(["2 slots", "and 3"]) || named(["n_slots: 2", "own_slots: 3"]), "{said}");
    }
    assert_eq!(run.hashes(), [alone_with("60", "2", VALUES)]);
}
