//! CRC-32C (Castagnoli), the checksum of TFRecords.

/// The remainder of each byte, for the reflected polynomial 0x82f63b78.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (mut r, mut bit) = (i as u32, 0);
        while bit < 8 {
            r = if r & 1 == 1 { (r >> 1) ^ 0x82f6_3b78 } else { r >> 1 };
            bit += 1;
        }
        table[i] = r;
        i += 1;
    }
    table
};

/// The checksum of these bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |r, &b| TABLE[usize::from(r as u8 ^ b)] ^ (r >> 8))
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    /// Known answers from RFC 3720, appendix B.4, and the usual check value.
    #[test]
    fn known_answers() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
    }
}
