//! A hash for small keys. It takes a few nanoseconds. Its seed prevents chosen keys from colliding.
//!
//! Each word is multiplied with the state, which gives 128 bits. Their halves are combined without carry, as in the wyhash
//! family.

use std::hash::{BuildHasher, Hasher};

/// Creates hashers with one seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seeded(u64);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        Seeded(fold(seed ^ ODD_1, ODD_2))
    }
}

impl BuildHasher for Seeded {
    type Hasher = Folded;

    #[inline]
    fn build_hasher(&self) -> Folded {
        Folded(self.0)
    }
}

pub(crate) struct Folded(u64);

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

impl Hasher for Folded {
    #[inline]
    fn finish(&self) -> u64 {
        fold(self.0, ODD_2)
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        // The length is included, so that a shorter key differs from one padded with zeros.
        self.write_u64(u64::from_le_bytes(last) ^ ((bytes.len() as u64) << 56));
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = fold(self.0 ^ word, ODD_1);
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    #[inline]
    fn write_u16(&mut self, word: u16) {
        self.write_u64(word.into());
    }

    #[inline]
    fn write_u8(&mut self, word: u8) {
        self.write_u64(word.into());
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}

/// Odd numbers with about as many ones as zeros.
const ODD_1: u64 = 0x9E37_79B9_7F4A_7C15;
const ODD_2: u64 = 0xD6E8_FEB8_6659_FD93;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::Hash;

    fn hash(seed: u64, key: impl Hash) -> u64 {
        Seeded::new(seed).hash_one(key)
    }

    /// A good hash fills the buckets of a table randomly: with n keys in n buckets, a share of 1 - 1/e of the buckets is not
    /// empty.
    #[test]
    fn keys_in_a_row_spread_over_the_buckets() {
        for (name, step) in [("in a row", 1_u64), ("high bits", 1 << 40), ("even", 2)] {
            let n = 1 << 14;
            let low: HashSet<u64> = (0..n).map(|i| hash(7, i * step) % n).collect();
            let high: HashSet<u64> = (0..n).map(|i| hash(7, i * step) >> (64 - 14)).collect();
            for filled in [low.len(), high.len()] {
                let share = filled as f64 / n as f64;
                assert!((0.60..0.67).contains(&share), "{name}: {share}");
            }
        }
    }

    #[test]
    fn the_seed_and_each_byte_change_the_hash() {
        assert_ne!(hash(1, 5_u32), hash(2, 5_u32));
        let texts = ["", "\0", "\0\0", "a", "a\0", "abcdefgh", "abcdefgh\0"];
        let hashes: HashSet<u64> = texts.iter().map(|text| hash(1, text)).collect();
        assert_eq!(hashes.len(), texts.len());
    }
}
