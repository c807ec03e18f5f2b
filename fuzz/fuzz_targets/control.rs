//! Any messages in any order, from anybody who may speak: coordinator, server and session take them without a panic, and
//! what is said to and by the coordinator survives being written and read again. Each message is a byte for its kind,
//! a byte for its length, and its bytes: protobuf on the control plane, a frame's text on the data plane.
//!
//! `cargo +nightly fuzz run control -- -max_total_time=60 -rss_limit_mb=512`
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use thalweg_cluster::control::{self, proto};
use thalweg_cluster::coordinator::{Coordinator, Size};
use thalweg_cluster::message::{Join, Message, Role};
use thalweg_cluster::server::Server;
use thalweg_cluster::session::Session;
use thalweg_cluster::state::Plan;
use thalweg_cluster::view::Timing;
use thalweg_cluster::wire::{self, Limits};
use thalweg_cluster::{Peer, Sync};

const LIMITS: Limits = Limits { text: 1 << 12, arrays: 8, data: 1 << 10 };

/// A frame with so many arrays of two values each, and a right checksum.
fn frame(arrays: u8, text: &[u8]) -> Vec<u8> {
    let n = u32::from(arrays);
    let mut frame = b"THWG".to_vec();
    for word in [wire::VERSION, n, text.len() as u32] {
        frame.extend(word.to_le_bytes());
    }
    frame.extend(u64::from(8 * n).to_le_bytes());
    frame.resize(wire::HEADER, 0);
    (0..n).for_each(|_| frame.extend(2u64.to_le_bytes()));
    frame.extend(text);
    if n > 0 {
        frame.extend(b"CHNK");
        for word in [0, 8 * n, 0, 0, 0] {
            frame.extend(word.to_le_bytes());
        }
        frame.extend(vec![0; 8 * n as usize]);
    }
    wire::seal(&mut frame);
    frame
}

/// The first four kinds are frames with so many arrays.
fn read(kind: u8, bytes: &[u8]) -> Option<(Peer, Message)> {
    match kind % 6 {
        4 => {
            let (from, said) = control::read_from_member(proto::FromMember::decode(bytes).ok()?).ok()?;
            let again = control::from_member(from, &said).expect("who was read can be written");
            let again = proto::FromMember::decode(&again.encode_to_vec()[..]).expect("as it was written");
            assert_eq!(control::read_from_member(again), Ok((from, said.clone())));
            Some((from, said.into()))
        }
        5 => {
            let told = control::read_to_member(proto::ToMember::decode(bytes).ok()?).ok()?;
            let again = proto::ToMember::decode(&control::to_member(&told).encode_to_vec()[..]).unwrap();
            assert_eq!(control::read_to_member(again), Ok(told.clone()));
            Some((Peer::Coordinator, told.into()))
        }
        arrays => {
            let (from, data) = wire::read(&mut &frame(arrays, bytes)[..], &LIMITS).ok()??;
            Some((from, data.into()))
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let timing = Timing::default();
    let join = |role| {
        let (name, address) = ("x".into(), "127.0.0.1:1".into());
        let (host, settings) = Default::default();
        Join { role, nonce: 1, name, address, restored: None, shard_bytes: vec![8; 2], host, settings }
    };
    let size = Size { n_servers: 1, n_workers: 1, n_shards: Some(2), n_slots: 2, replicas: 1 };
    let mut coordinator = Coordinator::new(size, timing, None, None);
    let plan = Arc::new(Plan::new(Sync::Ssp(1), 2));
    let mut server = Server::new(plan, timing, join(Role::Server), Arc::new(|_, _| None));
    let mut session = Session::new(Sync::Ssp(1), timing, join(Role::Worker), Vec::new());
    let (mut rest, mut now) = (bytes, Duration::ZERO);
    while let [kind, length, tail @ ..] = rest {
        let (message, tail) = tail.split_at(usize::from(*length).min(tail.len()));
        rest = tail;
        now += Duration::from_millis(u64::from(*kind));
        let Some((from, message)) = read(*kind, message) else { continue };
        if let Message::FromMember(said) = &message {
            coordinator.handle(from, said.clone(), now);
        }
        server.handle(from, message.clone(), now);
        session.handle(from, message, now);
        coordinator.tick(now);
        server.tick(now);
        session.tick(now);
    }
});
