//! Any bytes as an IDX file: no panic, and what is read has the sizes that the header says.
//!
//! `cargo +nightly fuzz run idx -- -max_total_time=60 -rss_limit_mb=512 -malloc_limit_mb=64`
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_data::idx;

fuzz_target!(|bytes: &[u8]| match idx::parse("f", bytes) {
    Ok(tensor) if bytes.starts_with(&[0, 0]) => {
        let header = 4 + 4 * usize::from(bytes[3]);
        assert_eq!(tensor.rank(), usize::from(bytes[3]));
        assert_eq!(tensor.meta().bytes(), bytes.len() - header);
    }
    Ok(_) => {}
    Err(e) => drop(e.to_string()),
});
