//! Drawing operands, and laying them out in memory in every way a view can.

use thalweg_core::{DType, Shape};
use thalweg_tensor::Tensor;
use thalweg_tensor::ops::sample::{Draw, Sample};

/// SplitMix64: good enough for test data, and no dependency on what is tested.
pub struct Source(u64);

impl Source {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `0..1`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn uniform(&mut self, shape: &Shape, lo: f64, hi: f64) -> Tensor {
        let data: Vec<f64> = (0..shape.numel()).map(|_| lo + self.unit() * (hi - lo)).collect();
        Tensor::from_vec(data, shape)
    }
}

/// The operands of a sample, floats as f64.
pub fn operands(sample: &Sample, seed: u64) -> Vec<Tensor> {
    let mut source = Source::new(seed);
    sample.inputs.iter().map(|d| draw(d, &mut source)).collect()
}

/// The operands with floats as another dtype.
pub fn operands_as(sample: &Sample, seed: u64, dtype: DType) -> Vec<Tensor> {
    operands(sample, seed)
        .iter()
        .map(|x| if x.dtype().is_float() { x.to_dtype(dtype) } else { x.clone() })
        .collect()
}

fn draw(draw: &Draw, source: &mut Source) -> Tensor {
    match draw {
        Draw::Float { shape, lo, hi } => source.uniform(shape, *lo, *hi),
        Draw::Distinct { shape } => {
            let n = shape.numel();
            let mut order: Vec<usize> = (0..n).collect();
            for i in (1..n).rev() {
                order.swap(i, (source.bits() % (i as u64 + 1)) as usize);
            }
            let data: Vec<f64> = order.iter().map(|&k| (k as f64 - n as f64 / 2.0) * 0.25 + 0.1).collect();
            Tensor::from_vec(data, shape)
        }
        Draw::Int { shape, lo, hi } => {
            let data: Vec<i64> =
                (0..shape.numel()).map(|_| lo + (source.bits() % (hi - lo) as u64) as i64).collect();
            Tensor::from_vec(data, shape)
        }
        Draw::Bool { shape } => {
            let data: Vec<bool> = (0..shape.numel()).map(|_| source.bits() & 1 == 1).collect();
            Tensor::from_vec(data, shape)
        }
        Draw::Definite { n } => {
            let a = source.uniform(&[*n, *n].into(), -1.0, 1.0);
            a.matmul(&a.t()) + Tensor::eye(*n, DType::F64) * *n as f64
        }
    }
}

/// The same values in memory that is laid out in another way.
pub fn relaid(x: &Tensor, how: usize) -> Tensor {
    match how {
        // Axes stored in reverse order.
        0 => {
            let back: Vec<isize> = (0..x.rank() as isize).rev().collect();
            x.permute(&back[..]).contiguous().permute(&back[..])
        }
        // Every second element of twice as many, not from the start.
        1 if x.rank() > 0 => {
            let twice = Tensor::stack(&[x, x], -1);
            let last = x.rank() as isize - 1;
            let merged = twice.flatten(last, last + 1);
            let padded = Tensor::concat(&[&merged.narrow(last, 0, merged.size(last).min(2)), &merged], last);
            let from = if merged.size(last) == 0 { 0 } else { 2 };
            padded.slice(last, Some(from), None, 2)
        }
        // Backwards in memory.
        2 if x.rank() > 0 => {
            let all: Vec<isize> = (0..x.rank() as isize).collect();
            let backwards = x.flip(&all[..]);
            Tensor::concat(&[&backwards, &backwards.narrow(0, 0, 0)], 0).flip(&all[..])
        }
        _ => x.clone(),
    }
}
