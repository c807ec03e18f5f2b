//! Real processes on loopback: whatever is killed, BSP ends with the same bits and no process is left.

mod support;

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::{Launched, PATIENCE, alone, alone_with, counting, ended, step, trains};

/// A bound for recovering that no busy machine misses; the time itself is printed.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn four_workers_and_two_servers_come_to_the_bits_of_one_process() {
    let hashes = Launched::new(&["--workers", "4", "--servers", "2"], &["30", "1"]).hashes();
    assert_eq!(hashes, vec![alone("30", "4"); 4]);
}

#[test]
fn a_killed_worker_is_replaced_and_changes_nothing() {
    let mut run = Launched::new(&["--workers", "3", "--servers", "2"], &["40", "10"]);
    run.until(step(1, 10));
    let killed = run.signal("worker-1", "-KILL");
    run.until(step(1, 20));
    let next = run.recovered(1, killed);
    println!("killed worker: next step after {} ms", next.as_millis());
    assert!(next < SOON, "{next:?}");
    assert!(run.hashes().iter().all(|h| *h == alone("40", "3")));
}

/// Large arrays go in chunks, through shared memory or a socket, from parts of arrays on two servers, while a worker is
/// killed in between.
#[test]
fn large_values_come_to_the_same_bits_through_shared_memory_and_through_sockets() {
    const VALUES: &str = "900000";
    let want = alone_with("30", "2", VALUES);
    for memory in ["on", "off"] {
        let variables = [("THALWEG_SHARED_MEMORY".into(), memory.into())];
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
    let killed = run.signal("worker-2", "-KILL");
    run.until(step(2, 20));
    println!("killed worker that stays dead: next step after {} ms", run.recovered(2, killed).as_millis());
    assert_eq!(run.hashes(), vec![alone("40", "3"); 2]);
}

#[test]
fn a_killed_server_is_survived_by_its_replica() {
    let mut run = Launched::new(&["--workers", "2", "--servers", "2"], &["60", "10"]);
    run.until(step(0, 10));
    let killed = run.signal("server-0", "-KILL");
    run.until(step(0, 30));
    // A step is computed from what was pulled; the example pauses for 10 ms before it tells.
    let next = run.recovered(0, killed);
    println!("killed server: next successful pull after {} ms", next.as_millis() - 10);
    assert!(next < SOON, "{next:?}");
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
    let stopped = run.signal("server-1", "-STOP");
    run.until(step(0, 30));
    println!("stopped server: next successful pull after {} ms", run.recovered(0, stopped).as_millis() - 10);
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
    run.kill_everything();
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
fn a_worker_that_is_asked_to_go_leaves_its_slots_to_the_others() {
    let mut run = Launched::new(&["--workers", "3", "--servers", "2"], &["60", "10"]);
    run.until(step(1, 10));
    run.signal("worker-1", "-TERM");
    run.errors.until("worker-1 has left");
    assert_eq!(run.pids("worker-1"), [0; 0]);
    assert_eq!(run.hashes(), vec![alone("60", "3"); 2]);
}

/// With one copy of each shard, leaving means to move them; with two, the other copies are enough.
#[test]
fn a_server_that_is_asked_to_go_hands_over_its_shards_first() {
    for replicas in ["1", "2"] {
        let options = ["--workers", "2", "--servers", "2", "--replicas", replicas];
        let mut run = Launched::new(&options, &["60", "10"]);
        run.until(step(0, 10));
        run.signal("server-0", "-TERM");
        run.errors.until("server-0 has left");
        assert_eq!(run.pids("server-0"), [0; 0]);
        assert_eq!(run.hashes(), vec![alone("60", "2"); 2], "{replicas} copies");
    }
}

#[test]
fn the_only_server_says_that_nobody_can_take_over_and_stays() {
    let mut run = Launched::new(&["--workers", "2", "--servers", "1"], &["200", "10"]);
    run.until(step(0, 10));
    run.signal("server-0", "-TERM");
    run.errors.until("server-0: waits for another server to come");
    assert_eq!(run.hashes(), vec![alone("200", "2"); 2]);
}

#[test]
fn a_run_that_every_worker_was_asked_to_leave_is_not_done() {
    let mut run = Launched::new(&["--workers", "2", "--servers", "1"], &["100000", "10"]);
    run.until(step(0, 5));
    run.signal("worker-0", "-TERM");
    run.signal("worker-1", "-TERM");
    assert!(!run.child.wait().unwrap().success());
    run.errors.until("has left before the end");
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
    let address = run.address();
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
fn prometheus_finds_every_family_for_every_process() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let metrics = format!("127.0.0.1:{port}");
    let options = ["--workers", "2", "--servers", "1", "--metrics", &metrics];
    let mut run = Launched::new(&options, &["100000", "10"]);
    run.until(step(0, 20));
    let mut stream = std::net::TcpStream::connect(&metrics).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let value = |name: &str| -> f64 {
        let line =
            body.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {body}"));
        line.trim().parse().unwrap()
    };
    assert!(value("thalweg_epoch") >= 1.0);
    for (family, kind) in [
        ("clock", "gauge"),
        ("staleness", "gauge"),
        ("received_bytes_total", "counter"),
        ("sent_bytes_total", "counter"),
        ("waited_seconds_total", "counter"),
        ("silence_seconds", "gauge"),
    ] {
        assert!(body.contains(&format!("# TYPE thalweg_{family} {kind}\n")), "{family}: {body}");
        for (process, role) in [("server-0", "server"), ("worker-0", "worker"), ("worker-1", "worker")] {
            value(&format!("thalweg_{family}{{process=\"{process}\",role=\"{role}\"}}"));
        }
    }
    assert!(value("thalweg_clock{process=\"worker-0\",role=\"worker\"}") > 0.0);
    assert!(value("thalweg_sent_bytes_total{process=\"worker-1\",role=\"worker\"}") > 0.0);
    Command::new("kill").args(["-INT", &run.child.id().to_string()]).status().unwrap();
    run.child.wait().unwrap();
}

#[test]
fn a_wrong_address_is_an_error_that_names_it() {
    let output = Command::new(counting())
        .env("THALWEG_ROLE", "worker")
        .env("THALWEG_COORDINATOR", "127.0.0.1:1")
        .env("THALWEG_GIVE_UP_MS", "2000")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("127.0.0.1:1") && error.contains("refused"), "{error}");
    // It is told at once, and an error in the end.
    assert!(error.contains("waits for the coordinator: 127.0.0.1:1") && error.contains("for 2."), "{error}");
}

#[test]
fn who_watches_a_run_sees_it_to_its_end() {
    let mut run = Launched::new(&["--workers", "1"], &["300", "10"]);
    let address = run.address();
    let mut watch = Command::new(env!("CARGO_BIN_EXE_thalweg"));
    let watch = watch.args(["status", &address, "--watch"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let watch = watch.spawn().unwrap();
    assert!(ended(&mut run.child).success(), "{}", run.errors.text());
    let output = watch.wait_with_output().unwrap();
    let [said, last] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success() && said.starts_with("view "), "{said}\n{last}");
    assert!(last.contains(&format!("the coordinator answers no more ({address}")), "{last}");
}

#[test]
fn the_next_launch_takes_away_what_a_killed_one_has_left() {
    let mut first = Launched::new(&["--workers", "1"], &["100000", "10"]);
    let folder = std::env::temp_dir().join(format!("thalweg-{}", first.address().replace(':', "-")));
    first.until(step(0, 1));
    assert!(folder.join("secret").exists());
    first.kill_everything();
    let second = Launched::new(&["--workers", "1"], &["2", "1"]);
    assert_eq!(second.hashes(), [alone("2", "1")]);
    assert!(!folder.exists());
}
