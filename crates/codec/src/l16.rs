//! L16: linear 16-bit audio in network byte order (RFC 3551, section 4.5.11), from and to linear samples and G.711.
//!
//! All functions convert as many samples as the shorter of their two slices has. They ignore the last octet of L16 if the number
//! of octets is odd. Conversion from G.711 uses a table of 256 entries, and conversion to G.711 is arithmetic. A table for all
//! samples would have 64 KiB, more than a first-level cache, and would save only a few instructions.

use crate::g711::{ALAW_TO_LINEAR, ULAW_TO_LINEAR, linear_to_alaw, linear_to_ulaw};

/// Converts an L16 payload to linear samples.
pub fn l16_to_linear(l16: &[u8], linear: &mut [i16]) {
    for (to, from) in linear.iter_mut().zip(samples(l16)) {
        *to = from;
    }
}

/// Converts linear samples to an L16 payload.
pub fn linear_to_l16(linear: &[i16], l16: &mut [u8]) {
    for (to, from) in l16.chunks_exact_mut(2).zip(linear) {
        to.copy_from_slice(&from.to_be_bytes());
    }
}

/// Converts a µ-law payload to L16.
pub fn ulaw_to_l16(ulaw: &[u8], l16: &mut [u8]) {
    expand(&ULAW_TO_LINEAR, ulaw, l16);
}

/// Converts an A-law payload to L16.
pub fn alaw_to_l16(alaw: &[u8], l16: &mut [u8]) {
    expand(&ALAW_TO_LINEAR, alaw, l16);
}

/// Converts an L16 payload to µ-law.
pub fn l16_to_ulaw(l16: &[u8], ulaw: &mut [u8]) {
    for (to, from) in ulaw.iter_mut().zip(samples(l16)) {
        *to = linear_to_ulaw(from);
    }
}

/// Converts an L16 payload to A-law.
pub fn l16_to_alaw(l16: &[u8], alaw: &mut [u8]) {
    for (to, from) in alaw.iter_mut().zip(samples(l16)) {
        *to = linear_to_alaw(from);
    }
}

fn samples(l16: &[u8]) -> impl Iterator<Item = i16> + '_ {
    l16.chunks_exact(2)
        .map(|octets| i16::from_be_bytes([octets[0], octets[1]]))
}

fn expand(table: &[i16; 256], codes: &[u8], l16: &mut [u8]) {
    for (to, code) in l16.chunks_exact_mut(2).zip(codes) {
        to.copy_from_slice(&table[usize::from(*code)].to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_samples() -> Vec<i16> {
        (i16::MIN..=i16::MAX).collect()
    }

    #[test]
    fn every_sample_round_trips() {
        let linear = all_samples();
        let mut l16 = vec![0; linear.len() * 2];
        linear_to_l16(&linear, &mut l16);
        // -32768 comes first, with its high octet first.
        assert_eq!(l16[..4], [0x80, 0x00, 0x80, 0x01]);
        let mut back = vec![0; linear.len()];
        l16_to_linear(&l16, &mut back);
        assert_eq!(back, linear);
    }

    #[test]
    fn every_sample_and_code_converts_as_g711_does() {
        // The tests of the module `g711` compare the functions used here with the tables of the Recommendation.
        let linear = all_samples();
        let mut l16 = vec![0; linear.len() * 2];
        linear_to_l16(&linear, &mut l16);
        let mut codes = vec![0; linear.len()];
        l16_to_ulaw(&l16, &mut codes);
        assert!(
            codes
                .iter()
                .zip(&linear)
                .all(|(code, sample)| *code == linear_to_ulaw(*sample))
        );
        l16_to_alaw(&l16, &mut codes);
        assert!(
            codes
                .iter()
                .zip(&linear)
                .all(|(code, sample)| *code == linear_to_alaw(*sample))
        );

        let codes: Vec<u8> = (0..=255).collect();
        let (mut l16, mut linear) = ([0; 512], [0; 256]);
        ulaw_to_l16(&codes, &mut l16);
        l16_to_linear(&l16, &mut linear);
        assert_eq!(linear, ULAW_TO_LINEAR);
        alaw_to_l16(&codes, &mut l16);
        l16_to_linear(&l16, &mut linear);
        assert_eq!(linear, ALAW_TO_LINEAR);
    }

    #[test]
    fn conversion_ends_with_the_shorter_slice() {
        let mut linear = [7; 2];
        l16_to_linear(&[0x12, 0x34, 0x56], &mut linear);
        assert_eq!(linear, [0x1234, 7]);
        let mut l16 = [7; 3];
        linear_to_l16(&[0x1234, 0x5678], &mut l16);
        assert_eq!(l16, [0x12, 0x34, 7]);
        ulaw_to_l16(&[0xff, 0x00], &mut l16);
        assert_eq!(l16, [0, 0, 7]);
        let mut codes = [7; 2];
        l16_to_alaw(&[0, 0, 0], &mut codes);
        assert_eq!(codes, [0xd5, 7]);
    }
}
