//! Settings and state of a normaliser.

use thiserror::Error;

use super::RATE_HZ_LEAST;
use crate::limits::{CHANNELS_MAX, RATE_HZ_MAX};

/// Targets of a [`Normalizer`](super::Normalizer).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormalizerSettings {
    /// The loudness of the programme, -70 to -5 LUFS; -24 by default.
    pub loudness_target_lufs: f64,
    /// Maximum distance between the quietest and the loudest short-term loudness, 1 to 20 LU; 7 by default. Short-term loudness
    /// may differ from the target by half of this distance in both directions. Within these limits, changes that are faster than
    /// some seconds are kept.
    pub loudness_range_target_lu: f64,
    /// Limit of the true peak, -9 to 0 dBTP; -2 by default.
    pub max_true_peak_dbtp: f64,
    /// Offset that is added to the gain before the limiter, -99 to 99 LU; 0 by default.
    pub offset_lu: f64,
}

impl Default for NormalizerSettings {
    fn default() -> Self {
        NormalizerSettings {
            loudness_target_lufs: -24.0,
            loudness_range_target_lu: 7.0,
            max_true_peak_dbtp: -2.0,
            offset_lu: 0.0,
        }
    }
}

impl NormalizerSettings {
    pub(super) fn check(&self) -> Result<(), NormalizeError> {
        let ranges = [
            ("loudness target", self.loudness_target_lufs, -70.0, -5.0),
            (
                "loudness range target",
                self.loudness_range_target_lu,
                1.0,
                20.0,
            ),
            ("max true peak", self.max_true_peak_dbtp, -9.0, 0.0),
            ("offset", self.offset_lu, -99.0, 99.0),
        ];
        for (name, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(NormalizeError::Setting {
                    name,
                    value,
                    min,
                    max,
                });
            }
        }
        Ok(())
    }
}

/// State at the output of a [`Normalizer`](super::Normalizer).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormalizerState {
    /// Gain for the loudness of the programme, dB, without the offset.
    pub gain_db: f64,
    /// Lowest gain of the limiter since the start, or since [`forget_limiter`](super::Normalizer::forget_limiter), dB; 0 if the
    /// limiter was not active.
    pub limiter_db: f64,
    /// Gated short-term loudness of the input around the current output, LUFS; minus infinity in silence.
    pub short_term_in_lufs: f64,
    /// Short-term loudness of the output, LUFS.
    pub short_term_out_lufs: f64,
    /// Integrated loudness of the whole output so far, to 0.1 LU, LUFS.
    pub integrated_out_lufs: f64,
    /// The largest true peak of the whole output so far, dBTP.
    pub true_peak_out_dbtp: f64,
}

/// Why a normaliser was not created.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum NormalizeError {
    /// The rate is out of range.
    #[error("sample rate {0} Hz, must be {RATE_HZ_LEAST} to {RATE_HZ_MAX}")]
    Rate(u32),
    /// The number of channels is out of range.
    #[error("{0} channels, must be 1 to {CHANNELS_MAX}")]
    Channels(usize),
    /// [`Channel::DualMono`](crate::Channel::DualMono) was used together with other channels.
    #[error("dual mono needs exactly one channel, not {0} channels")]
    DualMono(usize),
    /// There is not enough memory for the queued audio.
    #[error("not enough memory for three seconds of audio")]
    Memory,
    /// A setting is out of range.
    #[error("{name} {value}, must be {min} to {max}")]
    Setting {
        /// Name of the setting.
        name: &'static str,
        /// The given value.
        value: f64,
        /// The minimum.
        min: f64,
        /// The maximum.
        max: f64,
    },
}
