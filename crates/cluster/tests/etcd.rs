//! Leadership through a real etcd. Whole runs are in the tests of `crates/cli`.

#[path = "support/etcd.rs"]
mod etcd;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use thalweg_cluster::ClusterError;
use thalweg_cluster::coordinator::{Coordinator, Durable, Size};
use thalweg_cluster::net::etcd::Etcd;
use thalweg_cluster::net::membership::Membership;
use thalweg_cluster::view::Timing;

fn durable(clock: u64) -> Durable {
    let size = Size { n_servers: 1, n_workers: 1, n_shards: Some(1), n_slots: 1, replicas: 1 };
    Coordinator::new(size, Timing::default(), Some(clock), None).durable().clone()
}

fn known(membership: &Etcd, address: Option<&str>) -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    while membership.coordinator().as_deref() != address && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    membership.coordinator().as_deref() == address
}

#[test]
fn one_leads_and_one_that_was_deposed_cannot_write() {
    let Some(etcd) = etcd::Etcd::start("leads") else { return };
    let end = AtomicBool::new(false);
    // A member of etcd that is not there is passed over.
    let membership = Etcd::new(vec!["http://127.0.0.1:1".into(), etcd.url()], "unit");
    let mut first = membership.campaign("a:1", &end).unwrap().unwrap();
    assert_eq!(first.load().unwrap(), None);
    first.store(&durable(1)).unwrap();
    first.store(&durable(2)).unwrap();
    assert!(known(&membership, Some("a:1")) && first.leads());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| membership.campaign("b:1", &over).unwrap().is_none());
        std::thread::sleep(Duration::from_millis(500));
        over.store(true, Ordering::Relaxed);
        assert!(waiting.join().unwrap(), "the place is taken");
    });

    // Its key goes behind its back.
    etcd.ctl(&["del", "/thalweg/unit/leader"]).unwrap();
    assert!(known(&membership, None));
    let mut second = membership.campaign("b:1", &end).unwrap().unwrap();
    assert_eq!(second.load().unwrap(), Some(durable(2)));
    assert!(matches!(first.store(&durable(3)), Err(ClusterError::Deposed)));
    assert!(!first.leads() && second.leads());
    second.store(&durable(4)).unwrap();
    assert_eq!(second.load().unwrap(), Some(durable(4)));

    // A write of its own whose answer was lost does not depose it.
    etcd.ctl(&["put", "/thalweg/unit/view", "as if written by it"]).unwrap();
    second.store(&durable(5)).unwrap();
    assert_eq!(second.load().unwrap(), Some(durable(5)));

    // Who goes leaves the place at once.
    drop(second);
    assert!(membership.campaign("c:1", &end).unwrap().unwrap().leads());
}

#[test]
fn a_view_that_is_none_is_an_error_that_says_where_it_lies() {
    let Some(etcd) = etcd::Etcd::start("view") else { return };
    etcd.ctl(&["put", "/thalweg/unit/view", "nonsense"]).unwrap();
    let membership = Etcd::new(vec![etcd.url()], "unit");
    let mut memory = membership.campaign("a:1", &AtomicBool::new(false)).unwrap().unwrap();
    let error = memory.load().unwrap_err().to_string();
    assert!(error.contains("/thalweg/unit/view") && error.contains("checksum"), "{error}");
}
