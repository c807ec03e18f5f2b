//! Any bytes as trees: no panic, every node below one parent, and skipping leaves out what stopping names.
//!
//! `cargo +nightly fuzz run trees -- -max_total_time=60 -rss_limit_mb=512 -malloc_limit_mb=64`
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_data::trees::{self, Below};
use thalweg_data::{DataError, OnError};

fuzz_target!(|bytes: &[u8]| {
    let skip = trees::parse("f", bytes, OnError::Skip);
    match (trees::parse("f", bytes, OnError::Stop), &skip) {
        (Ok(_), Ok(read)) => assert_eq!(read.skipped.count, 0),
        (Err(DataError::Record(bad)), Ok(read)) => assert_eq!(read.skipped.first[0], bad),
        (Err(e), Err(_)) => drop(e.to_string()),
        (Ok(_), Err(e)) => panic!("{e}"),
        (Err(e), Ok(_)) => panic!("{e}"),
    }
    for tree in skip.map(|read| read.data).unwrap_or_default() {
        let mut parents = vec![0; tree.nodes.len()];
        for (i, node) in tree.nodes.iter().enumerate() {
            if let Below::Nodes(below) = &node.below {
                assert!(!below.is_empty() && below.iter().all(|&b| b < i));
                below.iter().for_each(|&b| parents[b] += 1);
            }
        }
        assert!(parents.iter().rev().skip(1).all(|&p| p == 1) && parents.last() == Some(&0));
    }
});
