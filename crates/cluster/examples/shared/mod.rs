//! What the examples share: reading files, plain or gzipped.
#![allow(dead_code, reason = "each example uses its part")]

use std::io::Read;

/// The text of a file.
pub fn text(path: &str) -> Result<String, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("{path}: {e}"))?;
    let mut text = String::new();
    let read = match bytes.strip_prefix(&[0x1f, 0x8b]) {
        Some(_) => flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text),
        None => (&bytes[..]).read_to_string(&mut text),
    };
    read.map_err(|e| format!("{path}: {e}"))?;
    Ok(text)
}

/// The rows of numbers of a file, whatever separates them; rows that are none, such as a head line, are left out.
pub fn numbers(path: &str) -> Result<Vec<Vec<f32>>, String> {
    let separator = |c: char| c == ',' || c == ':' || c.is_whitespace();
    let row = |line: &str| line.split(separator).filter(|w| !w.is_empty()).map(|w| w.parse().ok()).collect();
    let rows: Vec<Vec<f32>> =
        text(path)?.lines().filter_map(row).filter(|r: &Vec<f32>| !r.is_empty()).collect();
    if rows.is_empty() { Err(format!("{path}: there are no rows of numbers")) } else { Ok(rows) }
}
