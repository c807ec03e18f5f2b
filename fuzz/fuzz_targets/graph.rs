//! Any text as a graph: no panic, and what is parsed prints to a text that parses to the same.
//!
//! `cargo +nightly fuzz run graph -- -max_total_time=60 -rss_limit_mb=1024`
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_graph::Graph;

fuzz_target!(|text: &str| match text.parse::<Graph>() {
    Ok(graph) => {
        let text = graph.to_string();
        let again: Graph = text.parse().unwrap();
        assert_eq!(text, again.to_string());
    }
    Err(e) => drop(e.to_string()),
});
