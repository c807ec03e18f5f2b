//! A real etcd for tests, on loopback.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// An etcd of the test's own, with its data in a folder of its own.
pub struct Etcd {
    child: Child,
    folder: PathBuf,
    ports: [u16; 2],
}

impl Etcd {
    /// `None` when it is not installed.
    pub fn start(name: &str) -> Option<Self> {
        if !Command::new("etcd").arg("--version").output().is_ok_and(|o| o.status.success()) {
            assert!(std::env::var_os("CI").is_none(), "etcd is missing, and CI must have it");
            println!("skipped: etcd is not installed");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("thalweg-etcd-{name}-{}", std::process::id()));
        let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ports = [free(), free()].map(|l| l.local_addr().unwrap().port());
        let child = Self::run(&folder, ports);
        let etcd = Self { child, folder, ports };
        etcd.wait();
        Some(etcd)
    }

    fn run(folder: &Path, [client, peer]: [u16; 2]) -> Child {
        let [client, peer] = [client, peer].map(|port| format!("http://127.0.0.1:{port}"));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(folder);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}")]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    /// `etcdctl`; `None` when it fails.
    pub fn ctl(&self, args: &[&str]) -> Option<String> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.url()]).args(args);
        let output = command.output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    fn wait(&self) {
        let end = Instant::now() + PATIENCE;
        while self.ctl(&["endpoint", "health"]).is_none() {
            assert!(Instant::now() < end, "etcd does not come up");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// kill -9, and again after a while with the same data.
    pub fn restart(&mut self, away: Duration) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::thread::sleep(away);
        self.child = Self::run(&self.folder, self.ports);
        self.wait();
    }

    /// Keys that are there.
    pub fn keys(&self) -> String {
        self.ctl(&["get", "/thalweg/", "--prefix", "--keys-only"]).unwrap()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
