//! Tones in audio, generated and detected: DTMF digits (ITU-T Q.23) and call progress.
//!
//! Levels are in dBm0. A sine wave of full scale has +3.14 dBm0 (ITU-T G.711, table 5, "theoretical load capacity" of A-law; for
//! µ-law, it would be 0.03 dB more).

mod detector;
mod generator;

pub use detector::{DtmfDetector, KeyEvent};
pub use generator::{Part, Tone, ToneError, ToneGenerator};

use crate::dtmf::Key;

/// Frequencies of rows and columns of the keypad, Hz (ITU-T Q.23).
const ROWS_HZ: [f64; 4] = [697.0, 770.0, 852.0, 941.0];
const COLUMNS_HZ: [f64; 4] = [1_209.0, 1_336.0, 1_477.0, 1_633.0];

/// Numbers of the digits (RFC 4733, table 3) by row and column. 10 is the star, 11 the number sign, 12 to 15 are A to D.
const KEYPAD: [[u8; 4]; 4] = [[1, 2, 3, 12], [4, 5, 6, 13], [7, 8, 9, 14], [10, 0, 11, 15]];

/// Level of a sine wave of full scale, dBm0.
#[allow(clippy::approx_constant, reason = "not pi: see the head of this file")]
const FULL_SCALE_DBM0: f64 = 3.14;

/// Returns the two frequencies of a digit, in Hz.
#[must_use]
pub fn key_frequencies_hz(key: Key) -> [f64; 2] {
    let number = key.number();
    let at = KEYPAD.as_flattened().iter().position(|n| *n == number);
    let at = at.unwrap_or(0);
    [ROWS_HZ[at / 4], COLUMNS_HZ[at % 4]]
}

/// Returns the peak level of a sine wave of this power, with full scale 1.
fn peak(dbm0: f64) -> f64 {
    10_f64.powf((dbm0 - FULL_SCALE_DBM0) / 20.0)
}

/// Returns the power of a sine wave of this peak level, in dBm0.
fn dbm0(peak: f64) -> f64 {
    20.0 * peak.max(1e-9).log10() + FULL_SCALE_DBM0
}
