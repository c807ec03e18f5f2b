//! Bits that change on their way, on real sockets: the connection ends, what was on it is sent again, nothing is lost.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use thalweg_cluster::net::config::Config;
use thalweg_cluster::net::node::Node;
use thalweg_cluster::net::process::{self, ServerProcess, WorkerProcess};
use thalweg_cluster::session::{Event, Request};
use thalweg_cluster::state::{Pushed, Update, Wants};
use thalweg_cluster::table::{Delta, Want};
use thalweg_cluster::{Layout, Registry, Rule, Slot, TableId, TableSpec, Values};

const PATIENCE: Duration = Duration::from_secs(60);
const T: TableId = TableId(0);
/// 1.2 MB: two chunks each way and clock.
const VALUES: usize = 300_000;
const CLOCKS: usize = 6;
/// Which bytes change, counted over all connections: within the values of some push and of some answer.
const FLIPPED: [usize; 2] = [700_000, 4_100_000];

fn config(role: &str, coordinator: &str) -> Config {
    Config::from(|variable| match variable {
        "THALWEG_ROLE" => Some(role.into()),
        "THALWEG_NAME" => Some(format!("{role}-0")),
        "THALWEG_COORDINATOR" => Some(coordinator.into()),
        "THALWEG_SHARDS" => Some("1".into()),
        "THALWEG_LEASE_MS" => Some("5000".into()),
        "THALWEG_SHARED_MEMORY" => Some("off".into()),
        _ => None,
    })
    .unwrap()
}

/// Passes on what comes, with some bits changed, until either side ends.
fn pass_on(mut from: TcpStream, mut to: TcpStream, passed: &AtomicUsize) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        let before = passed.fetch_add(n, Ordering::SeqCst);
        for at in FLIPPED.into_iter().filter(|at| (before..before + n).contains(at)) {
            bytes[at - before] ^= 1;
        }
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// A bad cable to this address: where it begins, and how many connections went over it.
fn bad_cable(to: String) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, n) = (listener.local_addr().unwrap().to_string(), Arc::<AtomicUsize>::default());
    let (connections, passed) = (n.clone(), Arc::new([const { AtomicUsize::new(0) }; 2]));
    std::thread::spawn(move || {
        for here in listener.incoming() {
            let (Ok(here), Ok(there)) = (here, TcpStream::connect(&to)) else { continue };
            connections.fetch_add(1, Ordering::SeqCst);
            let both = [(here.try_clone(), there.try_clone()), (Ok(there), Ok(here))];
            for (way, (from, to)) in both.into_iter().enumerate() {
                let (Ok(from), Ok(to), passed) = (from, to, passed.clone()) else { continue };
                std::thread::spawn(move || pass_on(from, to, &passed[way]));
            }
        }
    });
    (address, n)
}

#[test]
fn a_changed_bit_ends_the_connection_and_every_push_counts_once() {
    let mut first = config("coordinator", "127.0.0.1:0");
    let coordinator = process::start_coordinator(&mut first).unwrap();
    let server_config = config("server", &first.coordinator);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, n_connections) = bad_cable(listener.local_addr().unwrap().to_string());
    let server = ServerProcess::new(&server_config, Registry::default(), None, address);
    let server = Node::new(server, server_config.membership(), server_config.security.clone());
    server.listen(listener);

    let tables = [TableSpec::Dense { values: vec![0.0; VALUES].into(), rule: Rule::Add }];
    let worker_config = config("worker", &first.coordinator);
    let worker = WorkerProcess::new(&worker_config, Layout::of(&tables, 1).parts(&tables));
    let worker = Node::new(worker, worker_config.membership(), worker_config.security.clone());
    let gained = worker.wait(PATIENCE, WorkerProcess::take_event).expect("the slot is given out");
    assert!(matches!(gained, Event::Gained { slot: Slot(0), clock: 0 }), "{gained:?}");
    let gradient: Values = (0..VALUES).map(|i| (i % 8) as f32).collect();
    for clock in 1..=CLOCKS {
        let push = Some(Arc::new(Update::from([(T, Delta::Dense(gradient.clone()))])));
        let pull = Some(Arc::new(Wants::from([(T, Want::Dense)])));
        let request = Request { push, pull, ..Request::default() };
        worker.step(|worker, now| worker.session().call(Slot(0), vec![request], now));
        let Some(Event::Done { pushed, mut reads, .. }) = worker.wait(PATIENCE, WorkerProcess::take_event)
        else {
            panic!("no answer at clock {clock}")
        };
        // After a lost answer the same push is asked about again.
        assert!(matches!(pushed[..], [Some(Pushed::Applied | Pushed::Duplicate)]), "{pushed:?}");
        let values = reads.remove(0).unwrap().remove(&T).unwrap();
        let wrong = (0..VALUES).find(|i| values[*i] != ((i % 8) * clock) as f32);
        assert_eq!(wrong, None, "clock {clock}: {:?}", wrong.map(|i| values[i]));
    }
    assert_eq!(n_connections.load(Ordering::SeqCst), 5, "each of the four changes ended one");
    worker.close();
    server.close();
    coordinator.close();
}
