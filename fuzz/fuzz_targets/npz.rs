//! Any bytes as an npz archive: no panic, and what is read survives being written and read again.
//!
//! `cargo +nightly fuzz run npz -- -max_total_time=60 -rss_limit_mb=512 -malloc_limit_mb=64`
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_formats::{FormatError, npz};

fuzz_target!(|bytes: &[u8]| match npz::parse(bytes) {
    Ok(arrays) => {
        let named = arrays.iter().map(|(n, t)| (n.as_str(), t));
        let file = match npz::encode(named, npz::Compression::Deflated) {
            Ok(file) => file,
            // A name that can be read need not be one that is written.
            Err(FormatError::Refused { .. }) => return,
            Err(e) => panic!("{e}"),
        };
        let again = npz::parse(&file).unwrap();
        assert_eq!(arrays.len(), again.len());
        for ((n, t), (m, u)) in arrays.iter().zip(&again) {
            assert_eq!((n, &t.shape), (m, &u.shape));
            assert_eq!(t.buffer.bytes(), u.buffer.bytes());
        }
    }
    Err(e) => drop(e.to_string()),
});
