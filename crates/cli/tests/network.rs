//! Workers and servers in two network namespaces with one wire between them: it is cut beyond every lease and heals, it
//! swallows what goes to one server, and a server listens at all of its addresses. Needs Linux and the right to make
//! namespaces.

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use support::{Errors, PATIENCE, alone, counting};

/// Runs `ip`.
fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(|e| e.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Two namespaces, `west` and `east`, and the processes in them.
struct Network {
    name: String,
    children: Vec<(&'static str, Child, Errors)>,
}

const COORDINATOR: &str = "10.77.0.1:7700";

impl Network {
    /// None where this machine does not allow it.
    fn new(test: &str) -> Option<Self> {
        if Command::new("ip").arg("-V").output().is_err() {
            assert!(std::env::var_os("CI").is_none(), "ip is missing, and CI must have it");
            println!("skipped: ip (of iproute2) is not installed");
            return None;
        }
        let network = Self { name: format!("thwg-{test}-{}", std::process::id()), children: Vec::new() };
        let [west, east] = ["west", "east"].map(|side| network.side(side));
        let steps = [
            format!("netns add {west}"),
            format!("netns add {east}"),
            format!("link add w netns {west} type veth peer name e netns {east}"),
            format!("-n {west} address add 10.77.0.1/24 dev w"),
            format!("-n {east} address add 10.77.0.2/24 dev e"),
            format!("-n {west} link set lo up"),
            format!("-n {east} link set lo up"),
            format!("-n {west} link set w up"),
            format!("-n {east} link set e up"),
        ];
        match steps.iter().try_for_each(|step| ip(step)) {
            Ok(()) => Some(network),
            Err(e) => {
                assert!(std::env::var_os("CI").is_none(), "CI must allow network namespaces: {e}");
                println!("skipped: this machine makes no network namespaces: {e}");
                None
            }
        }
    }

    fn side(&self, side: &str) -> String {
        format!("{}-{side}", self.name)
    }

    /// Starts a process on one side.
    fn start(&mut self, side: &str, name: &'static str, file: &Path, arguments: &[&str]) -> Receiver<String> {
        self.start_with(&[], side, name, file, arguments).0
    }

    /// The same with variables that differ from the usual ones; and what it says on stderr.
    fn start_with(
        &mut self,
        variables: &[(&str, &str)],
        side: &str,
        name: &'static str,
        file: &Path,
        arguments: &[&str],
    ) -> (Receiver<String>, Errors) {
        let role = name.split('-').next().unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.side(side)]).arg(file).args(arguments);
        let address = if side == "west" { "10.77.0.1" } else { "10.77.0.2" };
        for (variable, value) in [
            ("ROLE", role),
            ("NAME", name),
            ("COORDINATOR", COORDINATOR),
            ("BIND", address),
            ("SECRET", "wire"),
            ("WORKERS", "2"),
            ("SERVERS", "2"),
        ] {
            command.env(format!("THALWEG_{variable}"), value);
        }
        command.envs(variables.iter().copied());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let errors = Errors::of(child.stderr.take().unwrap());
        let (send, lines) = channel();
        let out = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).for_each(|line| drop(send.send(line)));
        });
        self.children.push((name, child, errors.clone()));
        (lines, errors)
    }

    /// Takes the wire away for so long.
    fn cut(&self, length: Duration) {
        ip(&format!("-n {} link set w down", self.side("west"))).unwrap();
        std::thread::sleep(length);
        ip(&format!("-n {} link set w up", self.side("west"))).unwrap();
    }

    fn status(&mut self, name: &str) -> Option<ExitStatus> {
        let child = self.children.iter_mut().find(|(n, ..)| *n == name).map(|(_, child, _)| child).unwrap();
        child.try_wait().unwrap()
    }

    fn has_ended(&mut self, name: &str) -> bool {
        let status = self.status(name);
        assert!(status.is_none_or(|s| s.success()), "{name}: {status:?}");
        status.is_some()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for (name, child, errors) in &mut self.children {
            let _ = child.kill();
            let ended = child.wait();
            if std::thread::panicking() {
                println!("{name} ended with {ended:?}:\n{}", errors.text());
            }
        }
        let _ = ["west", "east"].map(|side| ip(&format!("netns delete {}", self.side(side))));
    }
}

/// The clock of a step that a worker tells of.
fn clock(line: &str) -> Option<u64> {
    line.strip_prefix("step ")?.rsplit_once(' ')?.1.parse().ok()
}

/// Waits for a step at or beyond this clock.
fn until(lines: &Receiver<String>, wanted: u64) -> Instant {
    let end = Instant::now() + PATIENCE;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let line = lines.recv_timeout(left).unwrap_or_else(|e| panic!("no step {wanted}: {e}"));
        if clock(&line).is_some_and(|at| at >= wanted) {
            return Instant::now();
        }
    }
}

/// How far a worker has come, of all that it has told so far.
fn newest(lines: &Receiver<String>) -> u64 {
    lines.try_iter().filter_map(|line| clock(&line)).max().unwrap_or(0)
}

#[test]
fn a_network_that_is_cut_beyond_the_lease_and_heals_changes_nothing() {
    let Some(mut network) = Network::new("cut") else { return };
    let (thalweg, program) = (Path::new(env!("CARGO_BIN_EXE_thalweg")), counting());
    network.start("west", "coordinator", thalweg, &["coordinate"]);
    let work = ["250", "10"];
    network.start("west", "server-0", &program, &work);
    network.start("east", "server-1", &program, &work);
    let west = network.start("west", "worker-0", &program, &work);
    let east = network.start("east", "worker-1", &program, &work);
    until(&west, 10);
    until(&east, 10);
    // A head and a worker are on the far side: their places are taken while the wire is cut, and they come back.
    for (after, length) in [(20, 1500), (120, 600)] {
        until(&west, after);
        network.cut(Duration::from_millis(length));
        let healed = Instant::now();
        let (near, far) = (newest(&west), newest(&east));
        let again = until(&east, 0).saturating_duration_since(healed).as_millis();
        println!(
            "cut for {length} ms: one side at {near}, the other at {far}, which computes again {again} ms after"
        );
        assert!(length < 1000 || near > far + 3, "nobody took the places of the far side");
    }
    let want = alone("250", "2");
    for lines in [west, east] {
        let last = lines.iter().last().expect("it prints a hash");
        assert_eq!(last, want);
    }
    let end = Instant::now() + PATIENCE;
    while !["worker-0", "worker-1"].iter().all(|name| network.has_ended(name)) {
        assert!(Instant::now() < end, "a worker does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

const ONE: [(&str, &str); 3] =
    [("THALWEG_WORKERS", "1"), ("THALWEG_SERVERS", "1"), ("THALWEG_GIVE_UP_MS", "2000")];

/// As behind a firewall that drops: nothing comes back from the server's port, while the coordinator hears of it.
#[test]
fn a_server_whose_port_swallows_everything_is_named_and_then_an_error() {
    let Some(mut network) = Network::new("drop") else { return };
    let (thalweg, program) = (Path::new(env!("CARGO_BIN_EXE_thalweg")), counting());
    let [west, east] = ["west", "east"].map(|side| network.side(side));
    // What the worker's side sends to this address goes to an interface that is not there.
    for step in [
        format!("-n {east} address add 10.77.1.2/32 dev e"),
        format!("-n {west} route add 10.77.1.2/32 dev w"),
        format!("-n {west} neigh add 10.77.1.2 lladdr 02:00:00:00:00:99 dev w nud permanent"),
    ] {
        ip(&step).unwrap();
    }
    network.start_with(&ONE, "west", "coordinator", thalweg, &["coordinate"]);
    let bound = [&ONE[..], &[("THALWEG_BIND", "10.77.1.2")]].concat();
    network.start_with(&bound, "east", "server-0", &program, &["100", "10"]);
    let started = Instant::now();
    let (_, errors) = network.start_with(&ONE, "west", "worker-0", &program, &["100", "10"]);
    let told = errors.until("worker-0: waits for server-0 at 10.77.1.2:") - started;
    println!("dropped packets: told {} ms after the start", told.as_millis());
    errors.until("server-0 at 10.77.1.2:");
    errors.until("is its port open from here?");
    while network.status("worker-0").is_none() {
        assert!(started.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(network.status("worker-0").unwrap().code(), Some(1));
}

#[test]
fn a_server_that_listens_at_all_addresses_is_reached_from_another_host() {
    let Some(mut network) = Network::new("any") else { return };
    let (thalweg, program) = (Path::new(env!("CARGO_BIN_EXE_thalweg")), counting());
    network.start_with(&ONE, "west", "coordinator", thalweg, &["coordinate"]);
    let anywhere = [&ONE[..], &[("THALWEG_BIND", "0.0.0.0")]].concat();
    network.start_with(&anywhere, "east", "server-0", &program, &["20", "1"]);
    let (lines, _) = network.start_with(&ONE, "west", "worker-0", &program, &["20", "1"]);
    assert_eq!(lines.iter().last().expect("it prints a hash"), alone("20", "1"));
}
