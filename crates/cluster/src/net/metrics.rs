//! Metrics for Prometheus over plain HTTP, on this host only.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::node::Node;
use super::process::CoordinatorProcess;
use crate::error::ClusterError;

/// A request may take so long and have so many bytes.
const PATIENCE: Duration = Duration::from_secs(1);
const LONGEST: usize = 8 << 10;
const LOOK: Duration = Duration::from_millis(20);

/// Answers `GET /metrics` on a thread of its own until the coordinator ends. Anything but loopback is refused: there is
/// no secret in a scrape.
pub(super) fn serve(node: Node<CoordinatorProcess>, address: &str) -> Result<(), ClusterError> {
    let failed = |source| ClusterError::Listen { address: address.to_owned(), source };
    let resolved: Vec<_> = address.to_socket_addrs().map_err(failed)?.collect();
    if resolved.iter().any(|a| !a.ip().is_loopback()) {
        return Err(ClusterError::Variable {
            name: "THALWEG_METRICS".into(),
            got: address.to_owned(),
            want: "an address of this host, such as 127.0.0.1:9090; put a proxy before it for others".into(),
        });
    }
    let listener = TcpListener::bind(&resolved[..]).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    std::thread::spawn(move || {
        // Looks up now and then: a coordinator that was deposed leaves the port to its successor.
        while !node.is_closed() {
            match listener.accept() {
                // One after another: a scrape is short, and a slow one loses its connection.
                Ok((stream, _)) => drop(answer(stream, || node.lock().metrics(node.now()))),
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    });
    Ok(())
}

fn answer(mut stream: TcpStream, metrics: impl FnOnce() -> String) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (mut request, mut chunk) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|w| w == b"\r\n\r\n") && request.len() < LONGEST {
        match stream.read(&mut chunk)? {
            0 => break,
            n => request.extend_from_slice(&chunk[..n]),
        }
    }
    let (status, body) = match request.starts_with(b"GET /metrics ") {
        true => ("200 OK", metrics()),
        false => ("404 Not Found", "metrics are at /metrics\n".to_owned()),
    };
    let kind = "text/plain; version=0.0.4";
    let length = body.len();
    write!(stream, "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n")?;
    write!(stream, "Connection: close\r\n\r\n{body}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(request: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        });
        answer(listener.accept().unwrap().0, || "x 1\n".into()).unwrap();
        client.join().unwrap()
    }

    #[test]
    fn a_scrape_is_answered_and_anything_else_is_told_where_to_look() {
        let found = ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(found.starts_with("HTTP/1.1 200 OK\r\n") && found.ends_with("\r\n\r\nx 1\n"), "{found}");
        assert!(ask(b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(b"\x00\xff").starts_with("HTTP/1.1 404"));
    }
}
