//! G.711 by its definition. This module computes the segments and steps of ITU-T G.711 (11/88), tables 1a and 2a. The demo checks the
//! gateway with it, so it shares no code with the gateway's converter.

/// Number of a step, which is an interval of samples with the same code. It is the code without its sign and without the inversions of its
/// law. Step 0 is the interval at zero, and step 127 is the outermost one.
type Step = i32;

/// Returns the output of the decoder for a µ-law code, on a scale of 16 bits.
pub(super) fn ulaw_to_linear(code: u8) -> i32 {
    // Table 2a, note 2: the character signal is the number of the step with inverted bits. The first bit is 1 for positive values.
    let step = Step::from(!code & 0x7f);
    let value = 4 * ulaw_output(step);
    if code & 0x80 != 0 { value } else { -value }
}

/// Returns the output of the decoder for an A-law code, on a scale of 16 bits.
pub(super) fn alaw_to_linear(code: u8) -> i32 {
    // Table 1a, note 2: even bits are inverted. The first bit is 1 for positive values.
    let plain = code ^ 0x55;
    let value = 8 * alaw_output(Step::from(plain & 0x7f));
    if plain & 0x80 != 0 { value } else { -value }
}

/// Returns the µ-law code for a sample of 16 bits.
pub(super) fn linear_to_ulaw(sample: i32) -> u8 {
    let step = outermost(|step| 4 * ulaw_decision(step) <= sample.abs());
    let sign = if sample < 0 { 0 } else { 0x80 };
    sign | (!(step as u8) & 0x7f)
}

/// Returns the A-law code for a sample of 16 bits.
pub(super) fn linear_to_alaw(sample: i32) -> u8 {
    let step = outermost(|step| 8 * alaw_decision(step) <= sample.abs());
    let sign = if sample < 0 { 0 } else { 0x80 };
    (sign | step as u8) ^ 0x55
}

/// Returns the last step for which `begins_below` holds, which means that the step begins at or below a sample.
fn outermost(begins_below: impl Fn(Step) -> bool) -> Step {
    (0..128).rev().find(|step| begins_below(*step)).unwrap_or(0)
}

/// Returns the segment of a step, and its index in the segment. There are eight segments of sixteen steps.
fn split(step: Step) -> (i32, i32) {
    (step / 16, step % 16)
}

/// Returns the value at which a µ-law step begins (table 2a, columns 1 and 3). The width of a step is 2 in the first segment, and twice as
/// large in each further one. With 33 added to the values, each segment begins at a power of two.
fn ulaw_decision(step: Step) -> i32 {
    let (segment, place) = split(step);
    let below = 2_i32.pow(segment as u32) * (32 + 2 * place) - 33;
    // The step at zero has a width of 1 on each side.
    below.max(0)
}

/// Returns the output of a µ-law step (table 2a, column 8). It is the middle of the step, and 0 for the step at zero.
fn ulaw_output(step: Step) -> i32 {
    let (segment, place) = split(step);
    2_i32.pow(segment as u32) * (33 + 2 * place) - 33
}

/// Returns the value at which an A-law step begins (table 1a, columns 1 and 3). The width of a step is 2 in the first two segments, and
/// twice as large in each further one.
fn alaw_decision(step: Step) -> i32 {
    match split(step) {
        (0, place) => 2 * place,
        (segment, place) => 2_i32.pow(segment as u32) * (16 + place),
    }
}

/// Returns the output of an A-law step (table 1a, column 8). It is the middle of the step.
fn alaw_output(step: Step) -> i32 {
    match split(step) {
        (0, place) => 2 * place + 1,
        (segment, place) => 2_i32.pow(segment as u32 - 1) * (33 + 2 * place),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    /// The expected decision and output values are those at the ends of the segments, as printed in G.711, tables 1a and 2a.
    #[test]
    fn segments_have_the_bounds_of_the_tables() {
        let begins = |decision: fn(Step) -> i32| [16, 32, 48, 64, 80, 96, 112].map(decision);
        assert_eq!(begins(ulaw_decision), [31, 95, 223, 479, 991, 2015, 4063]);
        assert_eq!(begins(alaw_decision), [32, 64, 128, 256, 512, 1024, 2048]);
        assert_eq!([0, 1, 16, 127].map(ulaw_output), [0, 2, 33, 8031]);
        assert_eq!([0, 1, 32, 127].map(alaw_output), [1, 3, 66, 4032]);
        assert_eq!([0, 1, 2].map(ulaw_decision), [0, 1, 3]);
        // In table 2a, the outermost positive value has the code 1000 0000, and zero has 1111 1111. In table 1a, where the even bits are
        // inverted, these codes are 1010 1010 and 1101 0101.
        assert_eq!([32_124, 0, -32_124].map(linear_to_ulaw), [0x80, 0xff, 0x00]);
        assert_eq!([32_256, 1, -1].map(linear_to_alaw), [0xaa, 0xd5, 0x55]);
    }

    #[test]
    fn a_code_decodes_into_its_own_interval() {
        for code in 0..=255 {
            assert_eq!(linear_to_alaw(alaw_to_linear(code)), code);
            // µ-law has a negative zero, but the sample 0 is encoded as the positive zero.
            let expected = if code == 0x7f { 0xff } else { code };
            assert_eq!(linear_to_ulaw(ulaw_to_linear(code)), expected);
        }
    }

    /// Converts raw audio with ffmpeg.
    fn ffmpeg(from: &str, to: &str, input: &[u8]) -> Vec<u8> {
        let mut ffmpeg = Command::new("ffmpeg")
            .args([
                "-nostdin", "-v", "error", "-f", from, "-ar", "8000", "-ac", "1",
            ])
            .args(["-i", "pipe:0", "-f", to, "pipe:1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("ffmpeg; scripts/setup test installs it");
        // This cannot block, because a few hundred bytes fit into the pipe.
        let mut stdin = ffmpeg.stdin.take().expect("piped");
        stdin.write_all(input).expect("ffmpeg reads");
        drop(stdin);
        let output = ffmpeg.wait_with_output().expect("ffmpeg ends");
        assert!(output.status.success());
        output.stdout
    }

    fn all_codes() -> Vec<u8> {
        (0..=255).collect()
    }

    fn bytes_of(samples: impl Iterator<Item = i32>) -> Vec<u8> {
        samples
            .flat_map(|sample| (sample as i16).to_le_bytes())
            .collect()
    }

    #[test]
    fn every_code_decodes_as_in_ffmpeg() {
        let codes = all_codes();
        let ulaw = bytes_of(codes.iter().map(|code| ulaw_to_linear(*code)));
        assert_eq!(ffmpeg("mulaw", "s16le", &codes), ulaw);
        let alaw = bytes_of(codes.iter().map(|code| alaw_to_linear(*code)));
        assert_eq!(ffmpeg("alaw", "s16le", &codes), alaw);
    }

    #[test]
    fn every_code_round_trips_through_ffmpeg() {
        let codes = all_codes();
        let ulaw = bytes_of(codes.iter().map(|code| ulaw_to_linear(*code)));
        let encoded: Vec<u8> = codes
            .iter()
            .map(|code| linear_to_ulaw(ulaw_to_linear(*code)))
            .collect();
        assert_eq!(ffmpeg("s16le", "mulaw", &ulaw), encoded);
        let alaw = bytes_of(codes.iter().map(|code| alaw_to_linear(*code)));
        assert_eq!(ffmpeg("s16le", "alaw", &alaw), codes);
    }

    /// The demo expects that the gateway converts each µ-law code to the A-law code of the same value.
    #[test]
    fn every_ulaw_code_becomes_the_alaw_code_of_ffmpeg() {
        let codes = all_codes();
        let ours: Vec<u8> = codes
            .iter()
            .map(|code| linear_to_alaw(ulaw_to_linear(*code)))
            .collect();
        assert_eq!(ffmpeg("mulaw", "alaw", &codes), ours);
    }
}
