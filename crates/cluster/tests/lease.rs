//! Leases on real sockets while an update takes longer than they last.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use thalweg_cluster::net::config::Config;
use thalweg_cluster::net::node::Node;
use thalweg_cluster::net::process::{self, WorkerProcess};
use thalweg_cluster::session::{Event, Request};
use thalweg_cluster::state::{Update, Wants};
use thalweg_cluster::table::{Delta, Want};
use thalweg_cluster::{Layout, Registry, Rule, Slot, TableId, TableSpec, UpdateRule};

const PATIENCE: Duration = Duration::from_secs(60);
const T: TableId = TableId(0);

/// Adds, and takes its time.
struct Slow {
    takes: Duration,
    begun: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

impl UpdateRule for Slow {
    fn update(&self, _step: u64, value: &[f32], gradient: &[f32], _state: &mut [f32], out: &mut [f32]) {
        self.begun.store(true, Ordering::SeqCst);
        std::thread::sleep(self.takes);
        out.iter_mut().zip(value).zip(gradient).for_each(|((o, v), g)| *o = v + g);
        self.ended.store(true, Ordering::SeqCst);
    }
}

fn config(role: &str, name: &str, coordinator: &str, [n_servers, lease]: [&str; 2]) -> Config {
    Config::from(|variable| match variable {
        "THALWEG_ROLE" => Some(role.into()),
        "THALWEG_NAME" => Some(name.into()),
        "THALWEG_COORDINATOR" => Some(coordinator.into()),
        "THALWEG_SERVERS" => Some(n_servers.into()),
        "THALWEG_SHARDS" => Some("1".into()),
        "THALWEG_LEASE_MS" => Some(lease.into()),
        _ => None,
    })
    .unwrap()
}

fn table() -> [TableSpec; 1] {
    [TableSpec::Dense { values: vec![1.0; 4].into(), rule: Rule::Named("slow".into()) }]
}

fn push() -> Vec<Request> {
    let push = Update::from([(T, Delta::Dense(vec![2.0; 4].into()))]);
    let pull = Wants::from([(T, Want::Dense)]);
    vec![Request { push: Some(Arc::new(push)), pull: Some(Arc::new(pull)), ..Request::default() }]
}

/// A worker that has its slot and has sent its first push.
fn worker(config: &Config) -> Node<WorkerProcess> {
    let layout = Layout::of(&table(), 1);
    let process = WorkerProcess::new(config, layout.parts(&table()));
    let node = Node::new(process, config.membership(), config.security.clone());
    let event = node.wait(PATIENCE, WorkerProcess::take_event).expect("the slot is given out");
    assert!(matches!(event, Event::Gained { slot: Slot(0), clock: 0 }), "{event:?}");
    node.step(|worker, now| worker.session().call(Slot(0), push(), now));
    node
}

fn done(node: &Node<WorkerProcess>, at_most: Duration) -> Option<Event> {
    node.wait(at_most, |worker| worker.take_event().filter(|e| matches!(e, Event::Done { .. })))
}

#[test]
fn an_update_longer_than_the_lease_costs_nobody_its_place() {
    // Long enough that a busy machine does not end them by itself.
    let (size, takes) = (["2", "2000"], Duration::from_secs(4));
    let mut first = config("coordinator", "coordinator", "127.0.0.1:0", size);
    let coordinator = process::start_coordinator(&mut first).unwrap();
    let servers = ["server-0", "server-1"].map(|name| {
        let rule = Slow { takes, begun: Arc::default(), ended: Arc::default() };
        let registry = Registry::default().rule("slow", rule);
        process::start_server(&config("server", name, &first.coordinator, size), registry, None).unwrap()
    });
    let node = worker(&config("worker", "worker-0", &first.coordinator, size));
    let epoch = coordinator.lock().report(Duration::ZERO).epoch;
    let Some(Event::Done { reads, .. }) = done(&node, PATIENCE) else { panic!("no answer") };
    assert_eq!(reads[0].as_ref().unwrap()[&T][..], [3.0; 4]);
    let report = coordinator.lock().report(Duration::ZERO);
    assert_eq!(report.epoch, epoch, "nobody was taken out: {report}");
    node.close();
    servers.iter().for_each(Node::close);
    coordinator.close();
}

#[test]
fn a_server_whose_lease_ends_during_an_update_does_not_acknowledge_it() {
    let size = ["1", "500"];
    let mut first = config("coordinator", "coordinator", "127.0.0.1:0", size);
    let coordinator = process::start_coordinator(&mut first).unwrap();
    let rule = Slow { takes: Duration::from_secs(3), begun: Arc::default(), ended: Arc::default() };
    let (begun, ended) = (rule.begun.clone(), rule.ended.clone());
    let registry = Registry::default().rule("slow", rule);
    let server =
        process::start_server(&config("server", "server-0", &first.coordinator, size), registry, None)
            .unwrap();
    let node = worker(&config("worker", "worker-0", &first.coordinator, size));
    let until = |flag: &AtomicBool| {
        let end = Instant::now() + PATIENCE;
        while !flag.load(Ordering::SeqCst) {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    until(&begun);
    coordinator.close(); // nobody renews the lease any more
    until(&ended);
    let answer = done(&node, Duration::from_secs(1));
    assert!(answer.is_none(), "{answer:?}");
    node.close();
    server.close();
}
