//! Any bytes as an npy file: no panic, and what is read survives being written and read again.
//!
//! `cargo +nightly fuzz run npy -- -max_total_time=60 -rss_limit_mb=512 -malloc_limit_mb=64`
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_formats::npy;

fuzz_target!(|bytes: &[u8]| match npy::parse(bytes) {
    Ok(tensor) => {
        let again = npy::parse(&npy::encode(&tensor).unwrap()).unwrap();
        assert_eq!(tensor.shape, again.shape);
        assert_eq!(tensor.buffer.dtype(), again.buffer.dtype());
        assert_eq!(tensor.buffer.bytes(), again.buffer.bytes());
    }
    Err(e) => drop(e.to_string()),
});
