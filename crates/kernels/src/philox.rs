//! Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy
//! as 1, 2, 3" (2011): four words that are a function of a key and a counter, nothing else.

const MULTIPLY: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// The four words of one counter value, given as its low and high half.
#[inline(always)]
pub fn philox4x32(key: [u32; 2], low: u64, high: u64) -> [u32; 4] {
    let mut key = key;
    let mut c = [low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32];
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let (p0, p1) = (u64::from(MULTIPLY[0]) * u64::from(c[0]), u64::from(MULTIPLY[1]) * u64::from(c[2]));
        c = [(p1 >> 32) as u32 ^ c[1] ^ key[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ key[1], p0 as u32];
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers from the `kat_vectors` file of the authors' Random123 library.
    #[test]
    fn known_answers() {
        assert_eq!(philox4x32([0, 0], 0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = u64::MAX;
        assert_eq!(
            philox4x32([u32::MAX; 2], ones, ones),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        let pi = philox4x32([0xa409_3822, 0x299f_31d0], 0x85a3_08d3_243f_6a88, 0x0370_7344_1319_8a2e);
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }
}
