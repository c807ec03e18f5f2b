//! Mutual TLS between real processes: who shows no certificate of the cluster's authority is refused.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use support::{Launched, alone, counting, step};

/// A folder with an authority and a certificate for this host.
struct Certificates(PathBuf);

impl Certificates {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("thalweg-tls-{name}-{}", std::process::id()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        let made = command.arg("certificates").arg("--to").arg(&folder).arg("127.0.0.1").output().unwrap();
        assert!(made.status.success(), "{made:?}");
        Self(folder)
    }

    fn files(&self) -> [PathBuf; 3] {
        ["127.0.0.1.pem", "127.0.0.1.key", "ca.pem"].map(|file| self.0.join(file))
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const VARIABLES: [&str; 3] = ["THALWEG_TLS_CERT", "THALWEG_TLS_KEY", "THALWEG_TLS_CA"];

fn launch(certificates: &Certificates, options: &[&str], program: &[&str]) -> Launched {
    let files = certificates.files();
    let [cert, key, ca] = files.each_ref().map(|f| f.to_str().unwrap());
    let tls = ["--tls-cert", cert, "--tls-key", key, "--tls-ca", ca];
    Launched::new(&[&tls[..], options].concat(), program)
}

fn status(address: &str, files: Option<[&Path; 3]>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
    command.args(["status", address]);
    if let Some(files) = files {
        command.envs(VARIABLES.into_iter().zip(files));
    }
    command.output().unwrap()
}

#[test]
fn a_run_under_tls_comes_to_the_bits_of_one_process_whatever_is_killed() {
    let certificates = Certificates::new("run");
    let mut run = launch(&certificates, &["--workers", "3", "--servers", "2"], &["60", "5"]);
    run.until(step(0, 10));
    run.signal("server-0", "-KILL");
    run.until(step(0, 20));
    run.signal("worker-1", "-KILL");
    run.until(step(0, 30));
    run.signal("coordinator", "-KILL");
    assert!(run.hashes().iter().all(|h| *h == alone("60", "3")));
}

#[test]
fn who_has_no_certificate_of_the_authority_is_refused_and_nobody_else_notices() {
    let (own, foreign) = (Certificates::new("own"), Certificates::new("foreign"));
    let mut run = launch(&own, &["--workers", "2", "--servers", "1"], &["100000", "10"]);
    run.until(step(0, 5));
    let address = run.address();
    let ([cert, key, ca], [other_cert, other_key, _]) = (own.files(), foreign.files());

    let right = status(&address, Some([&cert, &key, &ca]));
    assert!(
        right.status.success() && String::from_utf8_lossy(&right.stdout).contains("worker-1"),
        "{right:?}"
    );
    let error = |output: Output| {
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let none = error(status(&address, None));
    assert!(none.contains("THALWEG_TLS_CERT"), "{none}");
    // Signed by another authority: here the server refuses, with the right authority we would believe it.
    let wrong = error(status(&address, Some([&other_cert, &other_key, &ca])));
    assert!(wrong.contains("alert") || wrong.contains("certificate"), "{wrong}");
    // We refuse a server whose authority is not ours.
    let [_, _, other_ca] = foreign.files();
    let wrong = error(status(&address, Some([&other_cert, &other_key, &other_ca])));
    assert!(wrong.contains("certificate"), "{wrong}");

    // A frame of the plain protocol, or nothing at all, gets no answer and ends that connection.
    for bytes in [&b"THWG\x01\0\0\0"[..], &[0x16, 3, 1, 0xff, 0xff, 1], &[]] {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(bytes).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let (began, mut answer) = (Instant::now(), Vec::new());
        let _ = stream.read_to_end(&mut answer);
        assert!(began.elapsed() < Duration::from_secs(5), "it was not ended");
        assert!(answer.len() < 16, "only an alert may come: {answer:?}");
    }
    let now = run.seen.len();
    run.until(|line| line.starts_with("step 0 "));
    assert!(run.seen.len() > now);
    Command::new("kill").args(["-INT", &run.child.id().to_string()]).status().unwrap();
    run.child.wait().unwrap();
}

#[test]
fn beyond_this_host_certificates_do_and_nothing_at_all_does_not() {
    let certificates = Certificates::new("open");
    let coordinate = |tls: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        command.arg("coordinate").env("THALWEG_COORDINATOR", "0.0.0.0:0").env_remove("THALWEG_SECRET");
        if tls {
            command.envs(VARIABLES.into_iter().zip(certificates.files()));
        }
        command.stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let refused = coordinate(false).wait_with_output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && error.contains("THALWEG_TLS_CERT"), "{error}");
    let mut running = coordinate(true);
    std::thread::sleep(Duration::from_millis(500));
    assert!(running.try_wait().unwrap().is_none(), "it listens");
    running.kill().unwrap();
    running.wait().unwrap();
}

#[test]
fn files_that_are_none_are_errors_that_name_them() {
    let certificates = Certificates::new("files");
    let [cert, key, ca] = certificates.files();
    let run = |files: [&Path; 3]| {
        let mut command = Command::new(counting());
        command.env("THALWEG_ROLE", "worker").env("THALWEG_COORDINATOR", "127.0.0.1:1");
        let output = command.envs(VARIABLES.into_iter().zip(files)).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let missing = certificates.0.join("nowhere.pem");
    assert!(run([&missing, &key, &ca]).contains("nowhere.pem"));
    assert!(run([&cert, &ca, &ca]).contains("ca.pem"), "a certificate is no key");
    assert!(run([&cert, &key, &key]).contains("127.0.0.1.key"), "a key is no authority");
    let (other, without) = (Certificates::new("other"), run([&cert, &key, Path::new("")]));
    assert!(without.contains("THALWEG_TLS_CA"), "{without}");
    assert!(
        run([&cert, &other.files()[1], &ca]).contains("127.0.0.1.pem"),
        "not the key of this certificate"
    );
}
