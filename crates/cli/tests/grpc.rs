//! A gRPC client of another language asks a running cluster by its .proto file, and what such a client gets wrong ends
//! its own call or connection and nothing else.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::{PATIENCE, counting};

/// A coordinator, a server and a worker.
struct Processes {
    address: String,
    children: Vec<Child>,
}

impl Processes {
    fn start(secret: &str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut processes = Self { address: format!("127.0.0.1:{port}"), children: Vec::new() };
        let thalweg = Path::new(env!("CARGO_BIN_EXE_thalweg"));
        for (file, arguments, role) in [
            (thalweg, &["coordinate"][..], "coordinator"),
            (&counting(), &["100000", "10"], "server"),
            (&counting(), &["100000", "10"], "worker"),
        ] {
            let mut command = Command::new(file);
            command.args(arguments).env("THALWEG_ROLE", role).env("THALWEG_COORDINATOR", &processes.address);
            command.env("THALWEG_NAME", format!("{role}-0")).env("THALWEG_SECRET", secret);
            processes.children.push(command.stdout(Stdio::null()).spawn().unwrap());
        }
        let end = Instant::now() + PATIENCE;
        while !String::from_utf8_lossy(&processes.status(secret).stdout).contains("worker-0: slots 0") {
            assert!(Instant::now() < end, "{:?}", processes.status(secret));
        }
        processes
    }

    fn status(&self, secret: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        command.args(["status", &self.address]).env("THALWEG_SECRET", secret).output().unwrap()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The client in Python, if there is one.
fn foreign(address: &str, secret: &str) -> Option<Output> {
    let python = std::env::var("THALWEG_PYTHON").unwrap_or("python3".into());
    let has = Command::new(&python).args(["-c", "import grpc, grpc_tools"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        assert!(std::env::var_os("CI").is_none(), "grpcio is missing, and CI must have it");
        println!("skipped: {python} has no grpcio and grpcio-tools; name one that has in THALWEG_PYTHON");
        return None;
    }
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(python);
    command.arg(tests.join("tests/support/status.py")).arg(tests.join("../cluster/proto"));
    Some(command.args([address, secret]).output().unwrap())
}

const EXPECTED: &str = "members server-0 worker-0
role INVALID_ARGUMENT
member INVALID_ARGUMENT
large OUT_OF_RANGE
garbage INTERNAL
epoch True
";

#[test]
fn a_client_in_python_asks_by_the_proto_file() {
    let processes = Processes::start("");
    let Some(output) = foreign(&processes.address, "") else { return };
    assert_eq!(String::from_utf8_lossy(&output.stdout), EXPECTED, "{output:?}");
}

#[test]
fn with_a_secret_a_client_proves_it_first_or_is_refused() {
    let processes = Processes::start("known");
    for wrong in ["", "guess"] {
        let error = String::from_utf8(processes.status(wrong).stderr).unwrap();
        assert!(error.contains("THALWEG_SECRET"), "{error}");
    }
    let Some(output) = foreign(&processes.address, "known") else { return };
    assert_eq!(String::from_utf8_lossy(&output.stdout), EXPECTED, "{output:?}");
    let refused = foreign(&processes.address, "guess").unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("refused before HTTP/2"), "{refused:?}");
}

#[test]
fn what_is_no_grpc_ends_its_connection_and_nothing_else() {
    let processes = Processes::start("");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // A frame that claims 16 MB; settings of an odd length; headers that are none; half a preface.
    let large = [&preface[..], &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat();
    let settings = [&preface[..], &[0, 0, 1, 4, 0, 0, 0, 0, 0, 7]].concat();
    let headers =
        [&preface[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 4, 1, 5, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]];
    let half = preface[..9].to_vec();
    for bytes in
        [b"GET / HTTP/1.1\r\n\r\n".to_vec(), half, large, settings, headers.concat(), vec![0; 100], vec![]]
    {
        let mut stream = TcpStream::connect(&processes.address).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let (began, mut answer) = (Instant::now(), Vec::new());
        let _ = stream.read_to_end(&mut answer);
        assert!(began.elapsed() < Duration::from_secs(5), "{bytes:?} did not end the connection");
    }
    let status = processes.status("");
    assert!(String::from_utf8_lossy(&status.stdout).contains("worker-0: slots 0"), "{status:?}");
}
