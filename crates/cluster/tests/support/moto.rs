//! An S3 of the test's own on loopback: the emulator `moto`.

#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;

/// The emulator, ended with the test.
pub struct Moto {
    child: Child,
    port: u16,
}

impl Moto {
    /// `None` when it is not installed.
    pub fn start() -> Option<Self> {
        Self::with(false)
    }

    /// One that looks at the credentials.
    pub fn strict() -> Option<Self> {
        Self::with(true)
    }

    fn with(strict: bool) -> Option<Self> {
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
        // It takes a free port and says which: one chosen here could be another's by the time it is up.
        command.args(["-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]);
        // Creating the bucket is the one thing that needs no credentials.
        command.envs(strict.then_some(("INITIAL_NO_AUTH_ACTION_COUNT", "1")));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let port = said.find_map(|line| line.split_once("http://127.0.0.1:")?.1.trim().parse().ok());
        // What it says of each request is read, or it would stop at a full pipe.
        thread::spawn(move || said.for_each(drop));
        let moto = Self { child, port: port.expect("moto says where it listens") };
        moto.put_bucket();
        Some(moto)
    }

    fn put_bucket(&self) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let host = format!("127.0.0.1:{}", self.port);
        let request =
            format!("PUT /bucket HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let mut answer = String::new();
        stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer)).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    /// Lets in whoever comes to this listener, until the test ends.
    pub fn open(&self, door: TcpListener) {
        let port = self.port;
        thread::spawn(move || {
            for guest in door.incoming().map_while(Result::ok) {
                let Ok(inside) = TcpStream::connect(("127.0.0.1", port)) else { return };
                for (mut from, mut to) in
                    [(guest.try_clone().unwrap(), inside.try_clone().unwrap()), (inside, guest)]
                {
                    thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
    }

    /// The variables by which its bucket `bucket` is found.
    pub fn variables(&self) -> Vec<(String, String)> {
        variables(self.port)
    }
}

/// The variables by which the bucket `bucket` is found behind this port.
pub fn variables(port: u16) -> Vec<(String, String)> {
    let endpoint = format!("http://127.0.0.1:{port}");
    let variables = [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_ACCESS_KEY_ID", "anybody"),
        ("AWS_SECRET_ACCESS_KEY", "anything"),
        ("AWS_REGION", "us-east-1"),
    ];
    variables.map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec()
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
