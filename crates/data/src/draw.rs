//! One sample of one epoch, and the random numbers that belong to it.

use thalweg_kernels::philox::philox4x32;

/// Keeps the keys of different uses of one seed apart.
#[derive(Clone, Copy)]
pub(crate) enum Use {
    Order = 1,
    Draws = 2,
}

/// The key for one use of a seed in one epoch.
pub(crate) fn key(seed: u64, epoch: u64, purpose: Use) -> [u32; 2] {
    let [a, b, ..] = philox4x32([seed as u32, (seed >> 32) as u32], epoch, purpose as u64);
    [a, b]
}

/// A sample that is to be fetched: its index in the data set, and the key of its randomness.
///
/// Whatever is random about it is a function of seed, epoch and index, so it does not matter which
/// thread fetches it, when, or beside which others.
///
/// ```
/// use thalweg_data::Draw;
/// let (a, b) = (Draw::new(7, 0, 42), Draw::new(7, 0, 42));
/// assert_eq!(a.rng(0).below(1000), b.rng(0).below(1000));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// Which sample.
    pub index: usize,
    key: [u32; 2],
}

impl Draw {
    /// Sample `index` as epoch `epoch` of the order of `seed` sees it.
    pub fn new(seed: u64, epoch: u64, index: usize) -> Self {
        Self { index, key: key(seed, epoch, Use::Draws) }
    }

    pub(crate) fn with_key(key: [u32; 2], index: usize) -> Self {
        Self { index, key }
    }

    /// The random numbers of this sample; each stream is independent of the others, so that two
    /// transforms in a row do not see the same numbers.
    pub fn rng(&self, stream: u32) -> DrawRng {
        DrawRng { key: self.key, index: self.index as u64, stream, block: 0, words: [0; 4], left: 0 }
    }
}

/// Random numbers of one sample, in order.
#[derive(Debug, Clone)]
pub struct DrawRng {
    key: [u32; 2],
    index: u64,
    stream: u32,
    block: u32,
    words: [u32; 4],
    left: usize,
}

impl DrawRng {
    /// 32 random bits.
    pub fn bits(&mut self) -> u32 {
        if self.left == 0 {
            let high = u64::from(self.stream) << 32 | u64::from(self.block);
            self.words = philox4x32(self.key, self.index, high);
            (self.block, self.left) = (self.block.wrapping_add(1), 4);
        }
        self.left -= 1;
        self.words[3 - self.left]
    }

    /// A whole number in `0..n`; 0 when `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        let wide = u64::from(self.bits()) << 32 | u64::from(self.bits());
        // The bias of the multiplication is at most n / 2⁶⁴.
        ((u128::from(wide) * n as u128) >> 64) as usize
    }

    /// Uniform in `0..1`.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 8) as f32 / (1 << 24) as f32
    }

    /// `true` with probability `p`.
    pub fn coin(&mut self, p: f32) -> bool {
        self.unit() < p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_samples_epochs_and_seeds_differ() {
        let first = |seed, epoch, index, stream| Draw::new(seed, epoch, index).rng(stream).bits();
        let all =
            [first(1, 2, 3, 4), first(0, 2, 3, 4), first(1, 0, 3, 4), first(1, 2, 0, 4), first(1, 2, 3, 0)];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b), "{all:?}");
        }
    }

    #[test]
    fn numbers_below_n_are_even() {
        let mut counts = [0u32; 5];
        for index in 0..1000 {
            let mut rng = Draw::new(11, 0, index).rng(0);
            (0..10).for_each(|_| counts[rng.below(5)] += 1);
        }
        // 10,000 draws, 2,000 expected in each, standard deviation 40.
        assert!(counts.iter().all(|c| c.abs_diff(2000) < 200), "{counts:?}");
        assert_eq!(Draw::new(0, 0, 0).rng(0).below(0), 0);
    }
}
