//! An S3 of the test's own on loopback: the emulator `moto`.

#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The emulator, ended with the test.
pub struct Moto {
    child: Child,
    port: u16,
}

impl Moto {
    /// `None` when it is not installed.
    pub fn start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self::at(port, false)
    }

    /// One that looks at the credentials.
    pub fn strict() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self::at(port, true)
    }

    /// At this port.
    pub fn at(port: u16, strict: bool) -> Option<Self> {
        let python = std::env::var("THALWEG_PYTHON").unwrap_or("python3".into());
        if !Command::new(&python)
            .args(["-c", "import moto.server"])
            .output()
            .is_ok_and(|o| o.status.success())
        {
            assert!(std::env::var_os("CI").is_none(), "moto is missing, and CI must have it");
            println!("skipped: {python} has no moto[server]; name one that has in THALWEG_PYTHON");
            return None;
        }
        let mut command = Command::new(&python);
        command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()]);
        // Creating the bucket is the one thing that needs no credentials.
        command.envs(strict.then_some(("INITIAL_NO_AUTH_ACTION_COUNT", "1")));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let moto = Self { child, port };
        let end = Instant::now() + Duration::from_secs(60);
        while !moto.put_bucket() {
            assert!(Instant::now() < end, "moto does not come up");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(moto)
    }

    fn put_bucket(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        let host = format!("127.0.0.1:{}", self.port);
        let request =
            format!("PUT /bucket HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let mut answer = String::new();
        stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer)).is_ok()
            && answer.starts_with("HTTP/1.1 200")
    }

    /// The variables by which its bucket `bucket` is found.
    pub fn variables(&self) -> Vec<(String, String)> {
        let endpoint = format!("http://127.0.0.1:{}", self.port);
        let variables = [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_ACCESS_KEY_ID", "anybody"),
            ("AWS_SECRET_ACCESS_KEY", "anything"),
            ("AWS_REGION", "us-east-1"),
        ];
        variables.map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec()
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
