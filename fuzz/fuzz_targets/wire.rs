//! Any bytes as what comes over a connection of the cluster: no panic, no memory beyond the limits, and every message
//! survives being written and read again. The checksums are made right first, or the fuzzer would never pass them.
//!
//! `cargo +nightly fuzz run wire -- -max_total_time=60 -rss_limit_mb=512 -malloc_limit_mb=64`
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use thalweg_cluster::wire::{self, Frame, Incoming, Limits};

const LIMITS: Limits = Limits { text: 1 << 20, arrays: 1 << 10, data: 1 << 20 };

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    wire::seal(&mut bytes);
    let (mut from_bytes, mut from_frames) = (Incoming::new(LIMITS), Incoming::new(Limits::default()));
    let (mut rest, mut sent) = (&bytes[..], BTreeMap::new());
    loop {
        match from_bytes.read(&mut rest) {
            Ok(Some((from, message))) => {
                let mut again = Vec::new();
                Frame::after(&mut sent, from, &message).write(&mut again).unwrap();
                let (_, twice) = from_frames.read(&mut &again[..]).unwrap().unwrap();
                assert_eq!(format!("{message:?}"), format!("{twice:?}"));
            }
            Ok(None) => break,
            Err(e) => break drop(e.to_string()),
        }
    }
});
