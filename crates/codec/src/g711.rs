//! ITU-T G.711: conversions between µ-law (PCMU), A-law (PCMA) and 16-bit linear audio.
//!
//! Every conversion from a byte is a table of 256 entries, which is built at compile time. Linear samples are signed 16 bit.
//! Their uppermost bits are the 14-bit µ-law and 13-bit A-law values of the Recommendation, so the values are multiplied by 4 and
//! 8.
//!
//! [`ULAW_TO_ALAW`] and [`ALAW_TO_ULAW`] go through linear samples, like a decoder followed by an encoder (in GStreamer:
//! `mulawdec ! alawenc`). Their results are equal to those of such a chain for all 256 codes. Tables 3 and 4 of the
//! Recommendation are for hardware that converts directly, and differ by one step in some codes.

/// The linear sample of every µ-law code (G.711, Table 2a and 2b, times 4).
pub const ULAW_TO_LINEAR: [i16; 256] = {
    let mut table = [0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = ulaw_decode(code as u8);
        code += 1;
    }
    table
};

/// The linear sample of every A-law code (G.711, Table 1a and 1b, times 8).
pub const ALAW_TO_LINEAR: [i16; 256] = {
    let mut table = [0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = alaw_decode(code as u8);
        code += 1;
    }
    table
};

/// The A-law code of every µ-law code, through the linear sample.
pub const ULAW_TO_ALAW: [u8; 256] = {
    let mut table = [0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = linear_to_alaw(ULAW_TO_LINEAR[code]);
        code += 1;
    }
    table
};

/// The µ-law code of every A-law code, through the linear sample.
pub const ALAW_TO_ULAW: [u8; 256] = {
    let mut table = [0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = linear_to_ulaw(ALAW_TO_LINEAR[code]);
        code += 1;
    }
    table
};

/// Returns the µ-law code whose interval of G.711 Table 2 contains `sample`.
///
/// Amplitudes beyond the virtual decision value (8159 of 14 bits) get the outermost code.
pub const fn linear_to_ulaw(sample: i16) -> u8 {
    let magnitude = sample.unsigned_abs();
    let clipped = if magnitude > ULAW_CLIP {
        ULAW_CLIP
    } else {
        magnitude
    };
    let biased = clipped + ULAW_BIAS;
    // With the bias, the top set bit is bit 7 in segment 0 and bit 14 in segment 7.
    let segment = 8 - biased.leading_zeros() as u16;
    let step = (biased >> (segment + 3)) & 0x0f;
    let sign = if sample < 0 { 0 } else { 0x80 };
    // Both the segment and the step are sent inverted.
    sign | (!((segment << 4) | step) as u8 & 0x7f)
}

/// Returns the A-law code whose interval of G.711 Table 1 contains `sample`.
///
/// Even bits are inverted, as the Recommendation requires for transmission.
pub const fn linear_to_alaw(sample: i16) -> u8 {
    // -32768 has no positive counterpart. It is in the same interval as -32767.
    let magnitude = if sample == i16::MIN {
        i16::MAX as u16
    } else {
        sample.unsigned_abs()
    };
    let code = if magnitude < 256 {
        // Segments 0 and 1 have the same step, so the first 256 values are linear.
        magnitude >> 4
    } else {
        let segment = 8 - magnitude.leading_zeros() as u16;
        (segment << 4) | ((magnitude >> (segment + 3)) & 0x0f)
    };
    let sign = if sample < 0 { 0 } else { 0x80 };
    (sign | code as u8) ^ ALAW_EVEN_BITS
}

/// Converts a µ-law payload to A-law. The number of converted bytes is the length of the shorter slice.
pub fn ulaw_to_alaw(ulaw: &[u8], alaw: &mut [u8]) {
    translate(&ULAW_TO_ALAW, ulaw, alaw);
}

/// Converts an A-law payload to µ-law. The number of converted bytes is the length of the shorter slice.
pub fn alaw_to_ulaw(alaw: &[u8], ulaw: &mut [u8]) {
    translate(&ALAW_TO_ULAW, alaw, ulaw);
}

fn translate(table: &[u8; 256], from: &[u8], to: &mut [u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = table[usize::from(*from)];
    }
}

const fn ulaw_decode(code: u8) -> i16 {
    let inverted = !code;
    let segment = (inverted >> 4) & 7;
    let step = (inverted & 0x0f) as i16;
    let magnitude = (((step << 3) + ULAW_BIAS as i16) << segment) - ULAW_BIAS as i16;
    if inverted & 0x80 != 0 {
        -magnitude
    } else {
        magnitude
    }
}

const fn alaw_decode(code: u8) -> i16 {
    let plain = code ^ ALAW_EVEN_BITS;
    let segment = (plain >> 4) & 7;
    let step = (plain & 0x0f) as i16;
    // The value in the middle of the interval.
    let magnitude = match segment {
        0 => (step << 4) + 8,
        _ => ((step << 4) + 0x108) << (segment - 1),
    };
    if plain & 0x80 != 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// 33 in the 14-bit scale of the Recommendation. If this is added, every µ-law segment starts at a power of two.
const ULAW_BIAS: u16 = 33 * 4;

/// The largest magnitude that is still in segment 7 after the bias is added.
const ULAW_CLIP: u16 = 0x7fff - ULAW_BIAS;

/// "Inversion of even bits", G.711 Table 1a, note 2.
const ALAW_EVEN_BITS: u8 = 0x55;

#[cfg(test)]
mod tests {
    use super::*;

    /// A simple model: the tables of the Recommendation, computed from their rules.
    ///
    /// Each sign has eight segments, and each segment has sixteen intervals (µ-law: the first interval of segment 1 has half the
    /// width). A law is a list of decision values `x[n]` and output values `y[n]`.
    struct Law {
        /// Decision values, ascending, in the scale of the law (14 or 13 bits).
        decisions: Vec<i32>,
        outputs: Vec<i32>,
        /// Factor from that scale to 16 bits.
        scale: i32,
    }

    fn ulaw() -> Law {
        // Table 2a: decision values 0, 1, 3, 5 .. 31, 35 .. 95, 103 .. 223, 239 .. 8159.
        let mut decisions = vec![0, 1];
        while decisions.len() < 129 {
            let interval = 2 << ((decisions.len() - 1) / 16);
            decisions.push(decisions[decisions.len() - 1] + interval);
        }
        assert_eq!(decisions[128], 8159);
        // y[0] = 0; all other values are the middle of their interval.
        let outputs = (0..128)
            .map(|n| {
                if n == 0 {
                    0
                } else {
                    (decisions[n] + decisions[n + 1]) / 2
                }
            })
            .collect();
        Law {
            decisions,
            outputs,
            scale: 4,
        }
    }

    fn alaw() -> Law {
        // Table 1a: decision values 0, 2, 4 .. 64, 68 .. 128, 136 .. 4096.
        let mut decisions = vec![0];
        while decisions.len() < 129 {
            let segment = (decisions.len() - 1) / 16;
            let interval = if segment < 2 { 2 } else { 2 << (segment - 1) };
            decisions.push(decisions[decisions.len() - 1] + interval);
        }
        assert_eq!(decisions[128], 4096);
        let outputs = (0..128)
            .map(|n| (decisions[n] + decisions[n + 1]) / 2)
            .collect();
        Law {
            decisions,
            outputs,
            scale: 8,
        }
    }

    impl Law {
        /// Returns the number of the interval that contains the magnitude of `sample`.
        fn interval(&self, sample: i16) -> u8 {
            let magnitude = i32::from(sample).abs();
            let last = self.decisions.len() - 2;
            let n = (0..=last)
                .rev()
                .find(|n| self.decisions[*n] * self.scale <= magnitude);
            u8::try_from(n.expect("0 is a decision value")).expect("below 128")
        }

        fn output(&self, interval: u8, negative: bool) -> i16 {
            let value = self.outputs[usize::from(interval)] * self.scale;
            i16::try_from(if negative { -value } else { value }).expect("16 bits")
        }
    }

    /// Table 2: positive values have the sign bit set, and all other bits are inverted.
    fn ulaw_code(interval: u8, negative: bool) -> u8 {
        (if negative { 0x00 } else { 0x80 }) | (0x7f - interval)
    }

    /// Table 1: positive values have the sign bit set, and then even bits (2, 4, 6, 8) are inverted.
    fn alaw_code(interval: u8, negative: bool) -> u8 {
        ((if negative { 0x00 } else { 0x80 }) | interval) ^ 0b0101_0101
    }

    #[test]
    fn every_code_decodes_as_g711_specifies() {
        let (ulaw, alaw) = (ulaw(), alaw());
        for interval in 0..128 {
            for negative in [false, true] {
                let u = ulaw_code(interval, negative);
                assert_eq!(
                    ULAW_TO_LINEAR[usize::from(u)],
                    ulaw.output(interval, negative),
                    "{u:#x}"
                );
                let a = alaw_code(interval, negative);
                assert_eq!(
                    ALAW_TO_LINEAR[usize::from(a)],
                    alaw.output(interval, negative),
                    "{a:#x}"
                );
            }
        }
    }

    #[test]
    fn every_sample_encodes_as_g711_specifies() {
        let (ulaw, alaw) = (ulaw(), alaw());
        for sample in i16::MIN..=i16::MAX {
            let negative = sample < 0;
            let u = ulaw_code(ulaw.interval(sample), negative);
            assert_eq!(linear_to_ulaw(sample), u, "{sample}");
            let a = alaw_code(alaw.interval(sample), negative);
            assert_eq!(linear_to_alaw(sample), a, "{sample}");
        }
    }

    #[test]
    fn direct_tables_equal_decoding_followed_by_encoding() {
        let (ulaw, alaw) = (ulaw(), alaw());
        for interval in 0..128 {
            for negative in [false, true] {
                let u = ulaw_code(interval, negative);
                let linear = ulaw.output(interval, negative);
                // The negative zero of µ-law decodes to plain 0, which is positive.
                let a = alaw_code(alaw.interval(linear), linear < 0);
                assert_eq!(ULAW_TO_ALAW[usize::from(u)], a);

                let a = alaw_code(interval, negative);
                let linear = alaw.output(interval, negative);
                let u = ulaw_code(ulaw.interval(linear), linear < 0);
                assert_eq!(ALAW_TO_ULAW[usize::from(a)], u);
            }
        }
    }

    #[test]
    fn conversion_ends_with_the_shorter_slice() {
        let mut alaw = [0xee; 3];
        ulaw_to_alaw(&[0xff, 0x00], &mut alaw);
        assert_eq!(alaw, [ULAW_TO_ALAW[0xff], ULAW_TO_ALAW[0x00], 0xee]);
        let mut ulaw = [0xee; 1];
        alaw_to_ulaw(&[0xd5, 0x2a], &mut ulaw);
        assert_eq!(ulaw, [ALAW_TO_ULAW[0xd5]]);
    }
}
