//! What a stranger or a broken peer sends to a live data port ends its connection and nothing else.

mod support;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::ByHand;
use thalweg_cluster::message::{Call, Data};
use thalweg_cluster::net::handshake::{self, Secret};
use thalweg_cluster::state::Update;
use thalweg_cluster::table::Delta;
use thalweg_cluster::wire::Frame;
use thalweg_cluster::{CallId, Epoch, Peer, SessionId, ShardId, Slot, TableId};

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

/// A cluster at work, and the address of its server.
fn running() -> (ByHand, String) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let data = format!("127.0.0.1:{port}");
    let mut processes = ByHand::new(&[("THALWEG_SECRET", SECRET)]);
    processes.start("coordinator-0", &["coordinate"], &[]);
    processes.start("server-0", &PROGRAM, &[("THALWEG_BIND", &data)]);
    processes.start("worker-0", &PROGRAM, &[]);
    processes.until("worker-0: slots 0, clock 1");
    (processes, data)
}

/// Waits until the worker has made some steps more.
fn goes_on(processes: &mut ByHand) {
    assert!(processes.lives("server-0") && processes.lives("worker-0"));
    let (begun, before) = (Instant::now(), clock(&processes.status()));
    while clock(&processes.status()) < before + 20 {
        assert!(begun.elapsed() < ENOUGH, "nobody works any more");
    }
}

/// Kilobytes in memory and threads of a process.
fn costs(pid: u32) -> [u64; 2] {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    ["VmRSS:", "Threads:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    })
}

#[test]
fn garbage_and_half_and_large_and_repeated_frames_end_their_connection_and_nothing_else() {
    let (mut processes, data) = running();

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

    goes_on(&mut processes);
}

/// A push of 4 MB.
fn large() -> Vec<u8> {
    let update = Update::from([(TableId(0), Delta::Dense(vec![1.0; 1 << 20].into()))]);
    let call = Call {
        epoch: Epoch(0),
        shard: ShardId(0),
        id: CallId(1),
        slot: Slot(0),
        clock: 0,
        create: None,
        push: Some(Arc::new(update)),
        pull: None,
        fresh: false,
        save: false,
    };
    let mut bytes = Vec::new();
    Frame::new(Peer::Worker(SessionId(999_999)), &Data::Call(call)).write(&mut bytes).unwrap();
    bytes
}

/// Nobody says that it ends there: the sockets stay open.
#[test]
fn what_is_half_sent_loses_its_connection_after_a_while_and_costs_nothing() {
    let (mut processes, data) = running();
    let pid = processes.pid("server-0");
    let [memory, threads] = costs(pid);
    let (small, large) = (frame(), large());
    let mut halves = Vec::new();
    for _ in 0..20 {
        for (what, bytes) in [
            ("half the start of a header", &small[..10]),
            ("half a header", &small[..20]),
            ("half a text", &small[..small.len() - 1]),
            ("a thousandth of a push", &large[..4000]),
        ] {
            let mut stream = peer(&data);
            stream.write_all(bytes).unwrap();
            halves.push((what, stream));
        }
        let mut offers = TcpStream::connect(&data).unwrap();
        handshake::connect(&mut offers, &Secret::new(SECRET)).unwrap();
        offers.write_all(&[0; 20]).unwrap();
        halves.push(("half an offer of memory", offers));
    }
    goes_on(&mut processes);
    for (what, stream) in &mut halves {
        assert!(has_ended(stream, ENOUGH), "{what} is waited for");
    }
    let begun = Instant::now();
    while costs(pid)[1] > threads {
        assert!(
            begun.elapsed() < ENOUGH,
            "a thread is left of a connection that has ended: {:?}",
            costs(pid)
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let now = costs(pid)[0];
    assert!(now < memory + (32 << 10), "{memory} kB before, {now} kB after {} halves", halves.len());
    goes_on(&mut processes);
}

/// Every byte comes in time, and all of them do not.
#[test]
fn a_proof_that_drips_is_not_waited_for() {
    let (mut processes, data) = running();
    for address in [&data, &processes.address.clone()] {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut n = 0;
        while n < 63 && stream.write_all(&[1]).is_ok() && !has_ended(&mut stream, Duration::from_millis(300))
        {
            n += 1;
        }
        assert!(n < 30, "{address} has waited for {n} bytes");
    }
    // A frame of HTTP/2 that says more than it sends, after a proof.
    let mut half = TcpStream::connect(&processes.address).unwrap();
    handshake::connect(&mut half, &Secret::new(SECRET)).unwrap();
    half.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    half.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 200, 1, 4, 0]).unwrap();
    assert!(has_ended(&mut half, ENOUGH), "half a frame of HTTP/2");
    goes_on(&mut processes);
}
