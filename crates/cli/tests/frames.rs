//! What a stranger or a broken peer sends to a live data port ends its connection and nothing else.

mod support;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use support::ByHand;
use thalweg_cluster::message::Data;
use thalweg_cluster::net::handshake::{self, Secret};
use thalweg_cluster::wire::Frame;
use thalweg_cluster::{Epoch, Peer, SessionId, ShardId};

const SECRET: &str = "known";
const PROGRAM: [&str; 2] = ["100000", "5"];
/// Much longer than it takes, for a busy machine.
const ENOUGH: Duration = Duration::from_secs(30);

/// A connection that has proved the secret and offers no shared memory.
fn peer(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    handshake::connect(&mut stream, &Secret::new(SECRET)).unwrap();
    stream.write_all(&[0; 40]).unwrap();
    let mut shares = [7];
    stream.read_exact(&mut shares).unwrap();
    assert_eq!(shares, [0]);
    stream
}

/// A frame that any server reads and no server cares about.
fn frame() -> Vec<u8> {
    let message = Data::Replicated { epoch: Epoch(0), shard: ShardId(0), index: 1 };
    let mut bytes = Vec::new();
    Frame::new(Peer::Worker(SessionId(999_999)), &message).write(&mut bytes).unwrap();
    bytes
}

/// Whether the other side has ended the connection.
fn has_ended(stream: &mut TcpStream, within: Duration) -> bool {
    stream.set_read_timeout(Some(within)).unwrap();
    let (began, mut rest) = (Instant::now(), [0; 64]);
    while began.elapsed() < within {
        match stream.read(&mut rest) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return false;
            }
            Err(_) => return true, // a reset
        }
    }
    false
}

/// Remembers what was written.
struct Recorded(TcpStream, Vec<u8>);

impl Read for Recorded {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out)
    }
}

impl Write for Recorded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.extend(bytes);
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn clock(status: &str) -> u64 {
    let line = status.lines().find(|l| l.starts_with("worker-0")).expect("the worker is there");
    line.split("clock ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap()
}

#[test]
fn garbage_and_half_and_large_and_repeated_frames_end_their_connection_and_nothing_else() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let data = format!("127.0.0.1:{port}");
    let mut processes = ByHand::new(&[("THALWEG_SECRET", SECRET)]);
    processes.start("coordinator-0", &["coordinate"], &[]);
    processes.start("server-0", &PROGRAM, &[("THALWEG_BIND", &data)]);
    processes.start("worker-0", &PROGRAM, &[]);
    let before = clock(&processes.until("worker-0: slots 0, clock 1"));

    // Without a proof, at both ports: garbage, half a proof, and a proof that was good once.
    for address in [&data, &processes.address] {
        for bytes in [vec![0xa5; 64], vec![1; 20], frame()] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&bytes).unwrap();
            assert!(has_ended(&mut stream, ENOUGH), "{} bytes without a proof", bytes.len());
        }
        let mut first = Recorded(TcpStream::connect(address).unwrap(), Vec::new());
        handshake::connect(&mut first, &Secret::new(SECRET)).unwrap();
        let mut again = TcpStream::connect(address).unwrap();
        again.write_all(&first.1).unwrap();
        assert!(has_ended(&mut again, ENOUGH), "a proof is good once");
    }

    // With a proof.
    let good = frame();
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] ^= byte;
        bytes
    };
    let chunk = [&b"CHNK"[..], &[0; 4], &[4, 0, 0, 0], &[0; 8]].concat();
    for (what, bytes) in [
        ("garbage", vec![0xa5; 200]),
        ("another protocol", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("another version", changed(4, 1)),
        ("a changed byte", changed(good.len() - 1, 1)),
        ("8 EB of values", changed(23, 0x7f)),
        ("4 GB of text", changed(15, 0xff)),
        ("a chunk of nothing", chunk),
    ] {
        let mut stream = peer(&data);
        stream.write_all(&bytes).unwrap();
        assert!(has_ended(&mut stream, ENOUGH), "{what} did not end the connection");
    }
    let mut half = peer(&data);
    half.write_all(&good[..good.len() / 2]).unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    assert!(has_ended(&mut half, ENOUGH), "half a frame");

    let mut stream = peer(&data);
    stream.write_all(&good).unwrap();
    assert!(!has_ended(&mut stream, Duration::from_millis(300)), "a good frame is no offence");
    stream.write_all(&good).unwrap();
    assert!(has_ended(&mut stream, ENOUGH), "the same frame again");

    assert!(processes.lives("server-0") && processes.lives("worker-0"));
    let begun = Instant::now();
    while clock(&processes.status()) < before + 20 {
        assert!(begun.elapsed() < ENOUGH, "nobody works any more");
    }
}
