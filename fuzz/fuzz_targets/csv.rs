//! Any bytes as a table: no panic, columns of equal length, and skipping leaves out what stopping names.
//!
//! `cargo +nightly fuzz run csv -- -max_total_time=60 -rss_limit_mb=512 -malloc_limit_mb=64`
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_data::{DataError, OnError, csv};

fuzz_target!(|bytes: &[u8]| {
    for header in [false, true] {
        let options = |on_error| csv::Options { header, on_error, ..Default::default() };
        let stop = csv::parse("f", bytes, &options(OnError::Stop));
        let skip = csv::parse("f", bytes, &options(OnError::Skip));
        match (&stop, &skip) {
            (Ok(_), Ok(read)) => assert_eq!(read.skipped.count, 0),
            (Err(DataError::Record(bad)), Ok(read)) => assert_eq!(read.skipped.first[0], *bad),
            (Err(e), Err(_)) => drop(e.to_string()),
            (Ok(_), Err(e)) | (Err(e), Ok(_)) => panic!("{e}"),
        }
        if let Ok(read) = skip {
            assert!(read.data.columns.iter().all(|c| c.len() == read.data.n_rows()));
        }
    }
});
