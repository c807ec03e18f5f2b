//! Any bytes as a safetensors file: no panic, and what is read survives being written and read again.
//!
//! `cargo +nightly fuzz run safetensors -- -max_total_time=60 -rss_limit_mb=512 -malloc_limit_mb=64`
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_formats::safetensors;

fuzz_target!(|bytes: &[u8]| match safetensors::parse(bytes) {
    Ok(file) => {
        let named = file.tensors.iter().map(|(n, t)| (n.as_str(), t));
        let again = safetensors::parse(&safetensors::encode(named, &file.metadata).unwrap()).unwrap();
        assert_eq!(file.metadata, again.metadata);
        assert_eq!(file.tensors.len(), again.tensors.len());
        for ((n, t), (m, u)) in file.tensors.iter().zip(&again.tensors) {
            assert_eq!((n, &t.shape), (m, &u.shape));
            assert_eq!(t.buffer.dtype(), u.buffer.dtype());
            assert_eq!(t.buffer.bytes(), u.buffer.bytes());
        }
    }
    Err(e) => drop(e.to_string()),
});
