//! The coordinator elected through a real etcd on loopback: whatever is killed, BSP ends with the same bits.

#[path = "../../cluster/tests/support/etcd.rs"]
mod etcd;
mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use etcd::Etcd;
use support::{Errors, Launched, PATIENCE, alone, step};

fn launch(etcd: &Etcd, options: &[&str], program: &[&str]) -> Launched {
    let url = etcd.url();
    Launched::new(&[&["--etcd", &url], options].concat(), program)
}

/// Who becomes the coordinator as the `nth` that does, counted from zero, and when.
fn leader(errors: &Errors, nth: usize) -> (Instant, String) {
    let end = Instant::now() + PATIENCE;
    loop {
        let lines = errors.lines();
        let mut led = lines.iter().filter_map(|(at, line)| Some((at, line.split_once(LEADS)?.0)));
        if let Some((at, name)) = led.nth(nth) {
            return (*at, name.to_owned());
        }
        assert!(Instant::now() < end, "too few have led: {lines:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const LEADS: &str = ": the coordinator now, at ";

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
    let (_, first) = leader(&run.errors, 0);
    let killed = run.signal(&first, "-KILL");
    let (at, second) = leader(&run.errors, 1);
    println!("killed coordinator: another one leads after {} ms", (at - killed).as_millis());
    assert_ne!(second, first);
    assert!(at - killed < Duration::from_secs(2), "it waited for the end of the lease");
    assert!(run.hashes().iter().all(|h| *h == alone("100", "2")));
}

#[test]
fn a_coordinator_that_is_told_to_end_leaves_its_place_at_once() {
    let Some(etcd) = Etcd::start("ended") else { return };
    let coordinate = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        command.arg("coordinate").env("THALWEG_ETCD", etcd.url()).env("THALWEG_NAME", name);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let errors = Errors::of(child.stderr.take().unwrap());
        (child, errors)
    };
    let (mut first, errors) = coordinate("first");
    assert_eq!(leader(&errors, 0).1, "first");
    let (mut second, errors) = coordinate("second");
    std::thread::sleep(Duration::from_millis(300));
    let told = Instant::now();
    assert!(Command::new("kill").arg(first.id().to_string()).status().unwrap().success());
    assert_eq!(leader(&errors, 0).1, "second");
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
    let (_, first) = leader(&run.errors, 0);
    run.signal(&first, "-STOP");
    let (_, second) = leader(&run.errors, 1);
    assert_ne!(second, first);
    run.until(step(0, 60));
    run.signal(&first, "-CONT");
    // It may stand for election again, which is why the successor is killed: it is chosen, with the view as it is now.
    std::thread::sleep(Duration::from_millis(300));
    run.signal(&second, "-KILL");
    leader(&run.errors, 2);
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
    let (again, _) = leader(&run.errors, 1);
    println!("revoked lease: elected again after {} ms", (again - revoked).as_millis());
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
    leader(&run.errors, 1);
    assert!(run.hashes().iter().all(|h| *h == alone("300", "2")));
}

#[test]
fn etcd_away_for_longer_than_the_lease_is_waited_for() {
    let Some(mut etcd) = Etcd::start("away") else { return };
    let mut run = launch(&etcd, &["--workers", "2", "--servers", "2"], &["500", "10"]);
    run.until(step(0, 10));
    etcd.restart(Duration::from_secs(4));
    let back = Instant::now();
    let (again, _) = leader(&run.errors, 1);
    println!("etcd away for 4 s: elected {} ms after its return", (again - back).as_millis());
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
