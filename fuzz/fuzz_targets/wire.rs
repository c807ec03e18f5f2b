//! Any bytes as a frame of the cluster: no panic, no memory beyond the limits, and what is read survives being
//! written and read again. The checksum is made right first, or the fuzzer would never pass it.
//!
//! `cargo +nightly fuzz run wire -- -max_total_time=60 -rss_limit_mb=512 -malloc_limit_mb=64`
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_cluster::wire::{self, Frame, Limits};

const LIMITS: Limits = Limits { text: 1 << 20, arrays: 1 << 10, data: 1 << 20 };

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    wire::seal(&mut bytes);
    match wire::read(&mut &bytes[..], &LIMITS) {
        Ok(Some((from, message))) => {
            let mut again = Vec::new();
            Frame::new(from, &message).write(&mut again).unwrap();
            let (_, twice) = wire::read(&mut &again[..], &Limits::default()).unwrap().unwrap();
            assert_eq!(format!("{message:?}"), format!("{twice:?}"));
        }
        Ok(None) => {}
        Err(e) => drop(e.to_string()),
    }
});
