//! Smaller gradients: bf16, int8 and top-k, each with error feedback.
//!
//! What a codec leaves out is not lost: the encoder keeps it and adds it to the next gradient, so that
//! everything arrives in the end (Seide et al. 2014; Karimireddy et al. 2019). An encoder belongs to one
//! slot and table of one worker. A gradient is encoded once; what is sent again are the same values, so
//! that a retry never feeds the error back twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use half::bf16;

use crate::error::ClusterError;
use crate::values::Values;

/// How gradients are made smaller.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Codec {
    /// Not at all: four bytes per value.
    #[default]
    F32,
    /// The upper half of every value: two bytes per value.
    Bf16,
    /// 255 steps between the extremes of every block of 256 values: about one byte per value.
    Int8,
    /// Only the largest values, one in so many.
    TopK(usize),
}

/// Values of one block share a scale.
const BLOCK: usize = 256;

/// An encoded gradient.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoded {
    codec: Codec,
    len: usize,
    bytes: Vec<u8>,
}

/// What the codec has left out so far.
#[derive(Debug, Clone)]
pub struct Encoder {
    codec: Codec,
    residual: Vec<f32>,
}

impl Encoder {
    /// For gradients of this length.
    ///
    /// ```
    /// use thalweg_cluster::codec::{Codec, Encoder};
    /// let mut encoder = Encoder::new(Codec::TopK(2), 2);
    /// assert_eq!(encoder.encode(&[3.0, 1.0]).decode()[..], [3.0, 0.0]);
    /// assert_eq!(encoder.encode(&[0.0, 1.0]).decode()[..], [0.0, 2.0]); // what was left out comes later
    /// ```
    pub fn new(codec: Codec, len: usize) -> Self {
        Self { codec, residual: vec![0.0; len] }
    }

    /// Encodes a gradient and what was left out before; keeps what is left out now. Values that are
    /// not finite are passed on as they are and never kept.
    pub fn encode(&mut self, gradient: &[f32]) -> Encoded {
        assert_eq!(gradient.len(), self.residual.len(), "encode: gradients of one table have one length");
        for (r, g) in self.residual.iter_mut().zip(gradient) {
            *r += g;
        }
        let encoded = Encoded::new(self.codec, &self.residual);
        for (r, d) in self.residual.iter_mut().zip(encoded.decode().iter()) {
            *r = if d.is_finite() && r.is_finite() { *r - d } else { 0.0 };
        }
        encoded
    }

    /// What was left out so far.
    pub fn residual(&self) -> &[f32] {
        &self.residual
    }
}

/// So many values of rows are kept at most: 4 MiB.
const MOST_LEFT: usize = 1 << 20;

/// What the codec has left out of rows so far: of those that were pushed last, so that memory does not grow with the table. What
/// is forgotten is a rounding of one push.
#[derive(Debug, Clone)]
pub struct RowEncoder {
    codec: Codec,
    left: BTreeMap<u64, (u64, Vec<f32>)>, // by row: the push that left it, and what it left
    by_age: BTreeSet<(u64, u64)>,         // push and row
    n_values: usize,
    pushes: u64,
}

impl RowEncoder {
    /// For rows of one table.
    ///
    /// ```
    /// use thalweg_cluster::codec::{Codec, RowEncoder};
    /// let mut encoder = RowEncoder::new(Codec::Bf16);
    /// let sent: f32 = (0..256).map(|_| encoder.encode(&[7], &[1.001]).decode()[0]).sum();
    /// assert!((sent - 256.256).abs() < 0.01); // alone, each would have been sent as 1
    /// ```
    pub fn new(codec: Codec) -> Self {
        let (left, by_age) = (BTreeMap::new(), BTreeSet::new());
        Self { codec, left, by_age, n_values: 0, pushes: 0 }
    }

    /// Encodes rows and what was left out of them before; keeps what is left out now. What is not finite is passed on and
    /// never kept.
    pub fn encode(&mut self, rows: &[u64], values: &[f32]) -> Encoded {
        self.pushes += 1;
        let width = values.len().checked_div(rows.len()).unwrap_or(0).max(1);
        let mut meant = values.to_vec();
        for (row, values) in rows.iter().zip(meant.chunks_mut(width)) {
            if let Some((push, left)) = self.left.remove(row) {
                self.by_age.remove(&(push, *row));
                self.n_values -= left.len();
                values.iter_mut().zip(left).for_each(|(v, l)| *v += l);
            }
        }
        let encoded = Encoded::new(self.codec, &meant);
        let left_of = |m: f32, d: f32| if m.is_finite() && d.is_finite() { m - d } else { 0.0 };
        let left: Vec<f32> =
            meant.iter().zip(encoded.decode().iter()).map(|(m, d)| left_of(*m, *d)).collect();
        for (row, left) in rows.iter().zip(left.chunks(width)).filter(|(_, l)| l.iter().any(|v| *v != 0.0)) {
            self.n_values += left.len();
            self.by_age.insert((self.pushes, *row));
            self.left.insert(*row, (self.pushes, left.to_vec()));
        }
        while self.n_values > MOST_LEFT {
            let Some((_, row)) = self.by_age.pop_first() else { break };
            self.n_values -= self.left.remove(&row).map_or(0, |(_, left)| left.len());
        }
        encoded
    }

    /// How many values it keeps.
    pub fn n_values(&self) -> usize {
        self.n_values
    }
}

impl Encoded {
    fn new(codec: Codec, values: &[f32]) -> Self {
        let bytes = match codec {
            Codec::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Codec::Bf16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
            Codec::Int8 => values.chunks(BLOCK).flat_map(int8).collect(),
            Codec::TopK(one_in) => top_k(values, one_in),
        };
        Self { codec, len: values.len(), bytes }
    }

    /// How it was made smaller.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// How many values it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes to send.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// From what was received; `None` when the bytes are not of this codec and length.
    pub fn from_bytes(codec: Codec, len: usize, bytes: Vec<u8>) -> Option<Self> {
        let fits = match codec {
            Codec::F32 => bytes.len() == len.checked_mul(4)?,
            Codec::Bf16 => bytes.len() == len.checked_mul(2)?,
            Codec::Int8 => bytes.len() == len.div_ceil(BLOCK).checked_mul(4)?.checked_add(len)?,
            Codec::TopK(_) => {
                let index = |entry: &[u8]| u32::from_le_bytes(entry[..4].try_into().expect("four bytes"));
                let rising = |a: &[u8], b: &[u8]| index(a) < index(b);
                let mut entries = bytes.chunks_exact(8);
                bytes.len().is_multiple_of(8)
                    && entries.clone().is_sorted_by(|a, b| rising(a, b))
                    && entries.all(|e| (index(e) as usize) < len)
            }
        };
        fits.then_some(Self { codec, len, bytes })
    }

    /// The values, with what was left out as zero or rounded.
    pub fn decode(&self) -> Values {
        let f32_of = |b: &[u8]| f32::from_le_bytes(b.try_into().expect("four bytes"));
        match self.codec {
            Codec::F32 => self.bytes.chunks_exact(4).map(f32_of).collect(),
            Codec::Bf16 => {
                let value = |b: &[u8]| bf16::from_le_bytes(b.try_into().expect("two bytes")).to_f32();
                self.bytes.chunks_exact(2).map(value).collect()
            }
            Codec::Int8 => {
                let block = |b: &[u8]| {
                    let scale = f32_of(&b[..4]);
                    b[4..].iter().map(move |q| f32::from(*q as i8) * scale).collect::<Vec<f32>>()
                };
                self.bytes.chunks(4 + BLOCK).flat_map(block).collect()
            }
            Codec::TopK(_) => {
                let mut values = Values::zeros(self.len);
                let out = values.make_mut();
                for entry in self.bytes.chunks_exact(8) {
                    let index = u32::from_le_bytes(entry[..4].try_into().expect("four bytes"));
                    out[index as usize] = f32_of(&entry[4..]);
                }
                values
            }
        }
    }
}

/// A block's scale, then each value as a multiple of it. A block with a value that is not finite gets a
/// scale that is not, so that the receiver sees it.
fn int8(block: &[f32]) -> Vec<u8> {
    let largest = block.iter().fold(0f32, |m, v| if v.is_nan() { f32::NAN } else { m.max(v.abs()) });
    let scale = if block.iter().any(|v| !v.is_finite()) { f32::NAN } else { largest / 127.0 };
    let q = |v: &f32| if scale > 0.0 { (v / scale).round() as i8 as u8 } else { 1 };
    let zero = scale == 0.0;
    scale.to_le_bytes().into_iter().chain(block.iter().map(|v| if zero { 0 } else { q(v) })).collect()
}

/// Positions and values of the largest, in the order of their positions.
fn top_k(values: &[f32], one_in: usize) -> Vec<u8> {
    let k = values.len().div_ceil(one_in.max(1));
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    // Not finite counts as largest; equal sizes go by position, so that the choice is the same everywhere.
    let size = |i: &u32| {
        let v = values[*i as usize].abs();
        if v.is_nan() { f32::INFINITY } else { v }
    };
    if k < order.len() {
        order.select_nth_unstable_by(k, |a, b| size(b).total_cmp(&size(a)).then(a.cmp(b)));
        order.truncate(k);
    }
    order.sort_unstable();
    order.iter().flat_map(|i| [i.to_le_bytes(), values[*i as usize].to_le_bytes()].concat()).collect()
}

impl FromStr for Codec {
    type Err = ClusterError;

    fn from_str(text: &str) -> Result<Self, ClusterError> {
        let wrong = || ClusterError::BadCodec { got: text.to_owned() };
        match text.split_once(':') {
            None if text == "f32" => Ok(Codec::F32),
            None if text == "bf16" => Ok(Codec::Bf16),
            None if text == "int8" => Ok(Codec::Int8),
            Some(("topk", n)) => one_in(n).map(Codec::TopK).ok_or_else(wrong),
            _ => Err(wrong()),
        }
    }
}

/// `100`, or the share `0.01`.
fn one_in(text: &str) -> Option<usize> {
    let share = || text.parse::<f64>().ok().filter(|s| (1e-9..=1.0).contains(s));
    let n = text.parse().ok().or_else(|| Some(share()?.recip().round() as usize));
    n.filter(|n| *n > 0)
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Codec::F32 => write!(f, "f32"),
            Codec::Bf16 => write!(f, "bf16"),
            Codec::Int8 => write!(f, "int8"),
            Codec::TopK(n) => write!(f, "topk:{n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::mix;

    const ALL: [Codec; 4] = [Codec::F32, Codec::Bf16, Codec::Int8, Codec::TopK(50)];

    fn noise(seed: u64, n: usize) -> Vec<f32> {
        (0..n as u64).map(|i| (mix(seed ^ mix(i)) as i64 >> 40) as f32 / 8388608.0).collect()
    }

    #[test]
    fn with_error_feedback_everything_arrives_in_the_end() {
        for codec in ALL {
            let (n, rounds) = (1000, 300);
            let mut encoder = Encoder::new(codec, n);
            let (mut sent, mut meant) = (vec![0f64; n], vec![0f64; n]);
            for round in 0..rounds {
                let gradient = noise(round, n);
                let decoded = encoder.encode(&gradient).decode();
                sent.iter_mut().zip(decoded.iter()).for_each(|(s, d)| *s += f64::from(*d));
                meant.iter_mut().zip(gradient).for_each(|(m, g)| *m += f64::from(g));
            }
            // What is missing is exactly what the encoder still holds.
            for ((s, m), r) in sent.iter().zip(&meant).zip(encoder.residual()) {
                assert!((s + f64::from(*r) - m).abs() < 1e-3, "{codec}: {s} + {r} != {m}");
            }
            let largest = encoder.residual().iter().fold(0f32, |a, r| a.max(r.abs()));
            assert!(largest < 30.0, "{codec}: the residual stays bounded, {largest}");
        }
    }

    #[test]
    fn each_codec_keeps_its_size_and_its_precision() {
        let values = noise(1, 1000);
        let error = |codec| {
            let encoded = Encoded::new(codec, &values);
            let worst = encoded.decode().iter().zip(&values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            (encoded.bytes().len(), worst)
        };
        assert_eq!(error(Codec::F32), (4000, 0.0));
        assert!(error(Codec::Bf16).0 == 2000 && error(Codec::Bf16).1 <= 1.0 / 256.0);
        assert!(error(Codec::Int8).0 == 1016 && error(Codec::Int8).1 <= 1.0 / 127.0);
        assert_eq!(error(Codec::TopK(50)).0, 160);
    }

    #[test]
    fn bytes_come_back_and_wrong_ones_are_refused() {
        for codec in ALL {
            for n in [0, 1, 255, 256, 257, 1000] {
                let encoded = Encoded::new(codec, &noise(n as u64, n));
                assert_eq!(Encoded::from_bytes(codec, n, encoded.bytes().to_vec()), Some(encoded.clone()));
                let mut longer = encoded.bytes().to_vec();
                longer.push(0);
                assert_eq!(Encoded::from_bytes(codec, n, longer), None, "{codec} {n}");
            }
        }
        let out_of_range = [5u32.to_le_bytes(), 1f32.to_le_bytes()].concat();
        assert_eq!(Encoded::from_bytes(Codec::TopK(1), 5, out_of_range), None);
    }

    #[test]
    fn what_is_not_finite_arrives_and_is_not_kept() {
        for codec in ALL {
            let mut encoder = Encoder::new(codec, 300);
            let mut gradient = vec![1.0; 300];
            gradient[7] = f32::INFINITY;
            assert!(!encoder.encode(&gradient).decode()[7].is_finite(), "{codec}");
            assert!(encoder.residual().iter().all(|r| r.is_finite()), "{codec}");
        }
    }

    #[test]
    fn of_rows_everything_arrives_too_and_little_is_kept() {
        for codec in [Codec::Bf16, Codec::Int8] {
            let (mut encoder, width) = (RowEncoder::new(codec), 4);
            let (mut sent, mut meant) = ([[0f64; 4]; 50], [[0f64; 4]; 50]);
            for round in 0..400 {
                // Other rows each time, and some of them often.
                let rows: Vec<u64> =
                    (0..50).filter(|row| mix(round ^ mix(*row)).is_multiple_of(1 + row % 5)).collect();
                let values = noise(round, rows.len() * width);
                let decoded = encoder.encode(&rows, &values).decode();
                for (i, row) in rows.iter().enumerate() {
                    for j in 0..width {
                        sent[*row as usize][j] += f64::from(decoded[i * width + j]);
                        meant[*row as usize][j] += f64::from(values[i * width + j]);
                    }
                }
            }
            let furthest =
                |(s, m): (&[f64; 4], &[f64; 4])| (0..4).map(|j| (s[j] - m[j]).abs()).fold(0.0, f64::max);
            let furthest = sent.iter().zip(&meant).map(furthest).fold(0.0, f64::max);
            assert!(furthest < 0.02, "{codec}: no more than a rounding of one push is missing, {furthest}");
            assert!(encoder.n_values() <= 50 * width);
        }
        let mut encoder = RowEncoder::new(Codec::Int8);
        for round in 0..3 {
            let rows: Vec<u64> = (round << 32..(round << 32) + MOST_LEFT as u64 / 2).collect();
            encoder.encode(&rows, &noise(round, rows.len()));
            assert!(encoder.n_values() <= MOST_LEFT);
            assert_eq!(encoder.left.len(), encoder.by_age.len());
        }
        assert!(
            encoder.n_values() > MOST_LEFT / 2 && encoder.left.contains_key(&(2 << 32)),
            "the newest stay"
        );
    }

    #[test]
    fn codecs_read_back_from_their_own_text() {
        for codec in ALL {
            assert_eq!(codec.to_string().parse::<Codec>().unwrap(), codec);
        }
        assert_eq!("topk:0.01".parse::<Codec>().unwrap(), Codec::TopK(100));
        for wrong in ["topk:0", "topk:0.0", "topk:-1", "topk:1.5", "topk:nan", "zip"] {
            assert!(wrong.parse::<Codec>().is_err(), "{wrong}");
        }
    }
}
