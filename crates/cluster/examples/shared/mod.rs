//! What the examples share: reading files, plain or gzipped, and two functions of mathematics.
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

/// The derivative of `ln_gamma`, by recurrence to large arguments, where Stirling's series is exact enough.
pub fn digamma(x: f64) -> f64 {
    if x < 6.0 {
        return digamma(x + 1.0) - 1.0 / x;
    }
    let r = 1.0 / (x * x);
    x.ln() - 0.5 / x - r * (1.0 / 12.0 - r * (1.0 / 120.0 - r * (1.0 / 252.0 - r / 240.0)))
}

/// ln Γ(x) for positive x, in the same way.
pub fn ln_gamma(x: f64) -> f64 {
    if x < 6.0 {
        return ln_gamma(x + 1.0) - x.ln();
    }
    let r = 1.0 / (x * x);
    (x - 0.5) * x.ln() - x
        + 0.5 * std::f64::consts::TAU.ln()
        + (1.0 / 12.0 - r * (1.0 / 360.0 - r * (1.0 / 1260.0 - r / 1680.0))) / x
}

/// A sample of two classes with few features.
pub struct Sample {
    /// -1 or 1.
    pub label: f32,
    /// Numbers and values.
    pub features: Vec<(u64, f32)>,
}

/// The samples of a LIBSVM file.
pub fn libsvm(path: &str) -> Result<Vec<Sample>, String> {
    let text = text(path)?;
    let sample = |line: &str| {
        let mut words = line.split_whitespace();
        let label = words.next()?.parse::<f32>().ok()?.signum();
        let feature = |w: &str| w.split_once(':').and_then(|(i, x)| Some((i.parse().ok()?, x.parse().ok()?)));
        Some(Sample { label, features: words.map(feature).collect::<Option<_>>()? })
    };
    let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
    let samples = lines.map(|(i, l)| sample(l).ok_or_else(|| format!("{path}:{}: no LIBSVM line", i + 1)));
    samples.collect()
}

/// The sum of products.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// exp E[ln x] of a Dirichlet variable with these parameters.
pub fn exp_of_log(gamma: &[f64]) -> Vec<f64> {
    let total = digamma(gamma.iter().sum());
    gamma.iter().map(|g| (digamma(*g) - total).exp()).collect()
}
