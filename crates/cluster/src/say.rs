//! What is said to people.

use std::fmt::Display;
use std::io::Write;

/// A line on standard error, written at once: several processes may share a terminal. Where nobody listens, nothing is lost.
pub fn say(who: &str, what: impl Display) {
    let line = format!("{who}: {what}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
