//! The limits of a meter, and the errors that name them.

use thiserror::Error;

use crate::mode::Mode;

/// Minimum rate, in Hz.
pub const RATE_HZ_MIN: u32 = 16;
/// Maximum rate, in Hz: that of DSD64.
pub const RATE_HZ_MAX: u32 = 2_822_400;
/// Maximum number of channels.
pub const CHANNELS_MAX: usize = 64;

/// Maximum total number of channels of a batch.
pub const BATCH_CHANNELS_MAX: usize = 1 << 20;

/// Maximum length of a window, in ms. An hour at 48 kHz is 1.4 GB of frames.
pub(crate) const WINDOW_MS_MAX: u64 = 60 * 60 * 1_000;

/// Why a meter was not built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BuildError {
    /// The rate is out of range.
    #[error("sample rate {0} Hz, must be {RATE_HZ_MIN} to {RATE_HZ_MAX}")]
    Rate(u32),
    /// The number of channels is out of range.
    #[error("{0} channels, must be 1 to {CHANNELS_MAX}")]
    Channels(usize),
    /// The mode measures nothing.
    #[error("mode {0:?} does not include momentary loudness, which all measurements need")]
    Mode(Mode),
    /// [`Channel::DualMono`](crate::Channel::DualMono) was used together with other channels.
    #[error("dual mono needs exactly one channel, not {0} channels")]
    DualMono(usize),
    /// The longest window is too long.
    #[error("a window of {0} ms, must be at most {WINDOW_MS_MAX}")]
    Window(u64),
    /// The number of streams is zero or too large.
    #[error(
        "{streams} streams of {channels} channels each: the total must be 1 to {BATCH_CHANNELS_MAX} channels"
    )]
    Streams {
        /// Number of streams.
        streams: usize,
        /// Channels per stream.
        channels: usize,
    },
    /// There is not enough memory for such a long window.
    #[error("not enough memory for the window")]
    Memory,
}
