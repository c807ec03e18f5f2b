//! Any bytes as sparse rows: no panic, rising features below their number, and skipping leaves out what
//! stopping names.
//!
//! `cargo +nightly fuzz run libsvm -- -max_total_time=60 -rss_limit_mb=512 -malloc_limit_mb=64`
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_data::{DataError, OnError, libsvm};

fuzz_target!(|bytes: &[u8]| {
    let options = |on_error| libsvm::Options { on_error, ..Default::default() };
    let stop = libsvm::parse("f", bytes, &options(OnError::Stop));
    match (stop, libsvm::parse("f", bytes, &options(OnError::Skip))) {
        (Ok(_), Ok(read)) => assert_eq!(read.skipped.count, 0),
        (Err(DataError::Record(bad)), Ok(read)) => {
            assert_eq!(read.skipped.first[0], bad);
            for row in 0..read.data.labels().len() {
                let (features, values) = read.data.row(row);
                assert_eq!(features.len(), values.len());
                assert!(features.is_sorted_by(|a, b| a < b));
                assert!(features.iter().all(|&f| (f as usize) < read.data.n_features()));
            }
        }
        (Err(e), Err(_)) => drop(e.to_string()),
        (Ok(_), Err(e)) | (Err(e), Ok(_)) => panic!("{e}"),
    }
});
