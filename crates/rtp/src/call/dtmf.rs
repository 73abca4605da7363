//! DTMF digits that the owner sends.

use thiserror::Error;

use crate::dtmf::Key;

/// A DTMF digit to send to a party, as if the other party had pressed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DtmfDigit {
    /// The digit.
    pub key: Key,
    /// Length of the digit, ns: [`DTMF_NS_MIN`] to [`DTMF_NS_MAX`].
    pub duration_ns: u64,
    /// Minimum duration of the pause before the next digit, ns: [`DTMF_NS_MIN`] to [`DTMF_NS_MAX`].
    pub pause_ns: u64,
    /// Power level in dBm0 without its minus sign: 0 to 63.
    pub volume: u8,
}

/// The reason why a DTMF digit was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DtmfError {
    /// A time is out of range.
    #[error("{name} of a DTMF digit: {ns} ns, must be {DTMF_NS_MIN} to {DTMF_NS_MAX} ns")]
    Time {
        /// The name of the field, `duration_ns` or `pause_ns`.
        name: &'static str,
        /// The value of the field, ns.
        ns: u64,
    },
    /// The level is out of range.
    #[error("volume of a DTMF digit: {0}, must be 0 to 63 (dBm0 with the sign dropped)")]
    Volume(u8),
    /// Too many digits are queued.
    #[error("{DTMF_DIGITS_MAX} DTMF digits are already queued, which is the maximum")]
    TooMany,
    /// The party accepts neither telephone events nor audio that can be encoded.
    #[error("the party accepts neither telephone events nor audio that can be encoded")]
    NoFormat,
}

impl DtmfDigit {
    pub(super) fn check(&self) -> Result<(), DtmfError> {
        let times = [
            ("duration_ns", self.duration_ns),
            ("pause_ns", self.pause_ns),
        ];
        for (name, ns) in times {
            if !(DTMF_NS_MIN..=DTMF_NS_MAX).contains(&ns) {
                return Err(DtmfError::Time { name, ns });
            }
        }
        if self.volume > VOLUME_MAX {
            return Err(DtmfError::Volume(self.volume));
        }
        Ok(())
    }
}

/// Minimum length of a digit and of a pause, ns. Receivers may miss shorter ones, because ITU-T Q.24 requires detection of both only from
/// 40 ms on.
pub const DTMF_NS_MIN: u64 = 40_000_000;
/// Maximum length of a digit and of a pause, ns. It is longer than a person presses a digit.
pub const DTMF_NS_MAX: u64 = 5_000_000_000;
/// Maximum number of queued digits. It allows a card number with everything that is dialled before and after it.
pub const DTMF_DIGITS_MAX: usize = 64;
/// Maximum of the power level, whose field has six bits (RFC 4733, section 2.3.3).
const VOLUME_MAX: u8 = 63;
