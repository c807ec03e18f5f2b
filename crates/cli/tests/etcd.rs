//! The coordinator elected through a real etcd on loopback: whatever is killed, BSP ends with the same bits.

#[path = "../../cluster/tests/support/etcd.rs"]
mod etcd;
mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use etcd::Etcd;
use support::{Launched, alone, step};

fn launch(etcd: &Etcd, options: &[&str], program: &[&str]) -> Launched {
    let url = etcd.url();
    Launched::new(&[&["--etcd", &url], options].concat(), program)
}

/// The name of the process that said it is the coordinator, the last time.
fn leader(run: &Launched) -> String {
    let said = run.seen.iter().rev().find(|l| l.starts_with("coordinator ")).expect("somebody leads");
    said.split(['(', ')']).nth(1).unwrap().to_owned()
}

fn leads(line: &str) -> bool {
    line.starts_with("coordinator ")
}

#[test]
fn an_elected_coordinator_comes_to_the_bits_of_one_process_and_leaves_nothing() {
    let Some(etcd) = Etcd::start("plain") else { return };
    let run = launch(&etcd, &["--workers", "3", "--servers", "2"], &["30", "1"]);
    assert_eq!(run.hashes(), vec![alone("30", "3"); 3]);
    assert_eq!(etcd.keys().trim(), "");
}

#[test]
fn another_process_takes_over_from_a_killed_coordinator() {
    let Some(etcd) = Etcd::start("killed") else { return };
    let options = ["--workers", "2", "--servers", "2", "--coordinators", "2", "--no-restart"];
    let mut run = launch(&etcd, &options, &["100", "10"]);
    run.until(step(0, 10));
    let first = leader(&run);
    run.signal(&first, "-KILL");
    let killed = Instant::now();
    let took = run.until(leads) - killed;
    println!("killed coordinator: another one leads after {} ms", took.as_millis());
    assert_ne!(leader(&run), first);
    assert!(run.hashes().iter().all(|h| *h == alone("100", "2")));
}

#[test]
fn a_coordinator_that_is_told_to_end_leaves_its_place_at_once() {
    let Some(etcd) = Etcd::start("ended") else { return };
    let coordinate = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        command.arg("coordinate").env("THALWEG_ETCD", etcd.url()).env("THALWEG_NAME", name);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        (child, lines)
    };
    let (mut first, mut said) = coordinate("first");
    assert!(said.next().unwrap().unwrap().ends_with("(first)"));
    let (mut second, mut said) = coordinate("second");
    std::thread::sleep(Duration::from_millis(300));
    let told = Instant::now();
    assert!(Command::new("kill").arg(first.id().to_string()).status().unwrap().success());
    assert!(said.next().unwrap().unwrap().ends_with("(second)"));
    println!("coordinator told to end: another one leads after {} ms", told.elapsed().as_millis());
    assert!(told.elapsed() < Duration::from_secs(2), "it waited for the end of the lease");
    assert!(first.wait().unwrap().success());
    second.kill().unwrap();
    second.wait().unwrap();
}

#[test]
fn a_coordinator_that_was_stopped_beyond_its_lease_steps_down_when_it_wakes() {
    let Some(etcd) = Etcd::start("stopped") else { return };
    let mut run = launch(&etcd, &["--workers", "2", "--servers", "2", "--coordinators", "2"], &["300", "10"]);
    run.until(step(0, 10));
    let first = leader(&run);
    run.signal(&first, "-STOP");
    run.until(leads);
    assert_ne!(leader(&run), first);
    run.until(step(0, 60));
    run.signal(&first, "-CONT");
    // It may stand for election again, which is why the successor is killed: it is chosen, with the view as it is now.
    let second = leader(&run);
    std::thread::sleep(Duration::from_millis(300));
    run.signal(&second, "-KILL");
    run.until(leads);
    assert!(run.hashes().iter().all(|h| *h == alone("300", "2")));
}

#[test]
fn a_coordinator_whose_lease_is_revoked_steps_down_and_is_elected_again() {
    let Some(etcd) = Etcd::start("revoked") else { return };
    let mut run = launch(&etcd, &["--workers", "2", "--servers", "1"], &["200", "10"]);
    run.until(step(0, 10));
    let leases = etcd.ctl(&["lease", "list"]).unwrap();
    let lease = leases.lines().find(|l| l.chars().all(|c| c.is_ascii_hexdigit())).unwrap();
    etcd.ctl(&["lease", "revoke", lease]).unwrap();
    let revoked = Instant::now();
    println!("revoked lease: elected again after {} ms", (run.until(leads) - revoked).as_millis());
    assert!(run.hashes().iter().all(|h| *h == alone("200", "2")));
}

#[test]
fn a_restart_of_etcd_in_the_middle_changes_nothing() {
    let Some(mut etcd) = Etcd::start("restart") else { return };
    let mut run = launch(&etcd, &["--workers", "2", "--servers", "2"], &["300", "10"]);
    run.until(step(0, 10));
    etcd.restart(Duration::from_millis(200));
    run.until(step(0, 100));
    // Watches and leases have resumed: a view change is stored, and a killed coordinator is replaced.
    run.signal("server-0", "-KILL");
    run.until(step(0, 130));
    run.signal("coordinator", "-KILL");
    run.until(leads);
    assert!(run.hashes().iter().all(|h| *h == alone("300", "2")));
}

#[test]
fn etcd_away_for_longer_than_the_lease_is_waited_for() {
    let Some(mut etcd) = Etcd::start("away") else { return };
    let mut run = launch(&etcd, &["--workers", "2", "--servers", "2"], &["500", "10"]);
    run.until(step(0, 10));
    etcd.restart(Duration::from_secs(4));
    run.until(leads);
    assert!(run.hashes().iter().all(|h| *h == alone("500", "2")));
}

#[test]
fn a_wrong_address_of_etcd_is_an_error_that_names_it() {
    let output = Command::new(env!("CARGO_BIN_EXE_thalweg"))
        .arg("coordinate")
        .env("THALWEG_ETCD", "http://127.0.0.1:1")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("http://127.0.0.1:1") && error.contains("refused"), "{error}");
}
