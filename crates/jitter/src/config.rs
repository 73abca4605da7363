//! Settings of a jitter buffer.

use thiserror::Error;

pub use threadbare_rtp_types::id::CLOCK_RATE_HZ_MAX;

use threadbare_rtp_types::id::NS_PER_S;

/// When the next packet in order is output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Each packet is output at its playout deadline, never before. The output is as even as the sender's.
    AtDeadline,
    /// Each packet is output at once. Only a missing packet delays the output, until the deadline of that packet.
    InOrder,
}

/// How times of the sender's clock are converted to the local clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skew {
    /// The mapping follows the least delayed packets of the last seconds, so that clock drift does not add up.
    Window,
    /// The first packet determines the mapping for the whole stream. After that, only the RTP timestamps count. This is for
    /// clocks that are known to agree.
    None,
}

/// Bounds of a latency that adapts to the measured delays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adaptive {
    /// Minimum latency, in ns.
    pub min_ns: u64,
    /// Maximum latency, in ns.
    pub max_ns: u64,
}

/// Settings of a [`JitterBuffer`](super::JitterBuffer).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Units of the RTP timestamp in a second, 1..=[`CLOCK_RATE_HZ_MAX`].
    pub clock_rate_hz: u32,
    /// Time from the arrival of an undelayed packet to its playout deadline, at most [`LATENCY_NS_MAX`]. If [`Config::adaptive`]
    /// is set, this is the initial value.
    pub latency_ns: u64,
    /// When packets are output.
    pub release: Release,
    /// Whether the oldest packets are dropped if the buffer holds more than [`Config::latency_ns`] of audio. Otherwise packets
    /// stay until their deadlines, or until no place is left.
    pub drop_on_latency: bool,
    /// How times of the sender's clock are converted to the local clock.
    pub skew: Skew,
    /// Bounds of an adaptive latency; `None` for a fixed one.
    pub adaptive: Option<Adaptive>,
    /// Maximum step forward in the sequence numbers, as a time, that counts as a gap. A larger step counts as a restart (RFC
    /// 3550, appendix A.1, MAX_DROPOUT).
    pub max_dropout_ms: u32,
    /// Maximum age of a packet that counts as late or as a duplicate. An older packet indicates a restart (RFC 3550, appendix
    /// A.1, MAX_MISORDER).
    pub max_misorder_ms: u32,
    /// Number of places for packets, a power of two in [`CAPACITY_PACKETS_MIN`]..=[`CAPACITY_PACKETS_MAX`]. Two of them stay free
    /// between arrivals, because the first two packets of a source are inserted together.
    pub capacity_packets: u16,
}

impl Config {
    /// Creates the usual settings for this clock rate and latency: [`Release::AtDeadline`], [`Skew::Window`], a fixed latency,
    /// and the bounds of GStreamer's rtpjitterbuffer for gaps and restarts.
    #[must_use]
    pub fn new(clock_rate_hz: u32, latency_ns: u64) -> Config {
        Config {
            clock_rate_hz,
            latency_ns,
            release: Release::AtDeadline,
            drop_on_latency: false,
            skew: Skew::Window,
            adaptive: None,
            max_dropout_ms: 60_000,
            max_misorder_ms: 2_000,
            capacity_packets: CAPACITY_PACKETS_MIN,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.clock_rate_hz == 0 || self.clock_rate_hz > CLOCK_RATE_HZ_MAX {
            return Err(ConfigError::ClockRate(self.clock_rate_hz));
        }
        check_latency(self.latency_ns)?;
        if let Some(Adaptive { min_ns, max_ns }) = self.adaptive {
            check_latency(max_ns)?;
            if min_ns > max_ns {
                return Err(ConfigError::Adaptive { min_ns, max_ns });
            }
        }
        let capacity = self.capacity_packets;
        if !capacity.is_power_of_two()
            || !(CAPACITY_PACKETS_MIN..=CAPACITY_PACKETS_MAX).contains(&capacity)
        {
            return Err(ConfigError::Capacity(capacity));
        }
        Ok(())
    }
}

/// Why settings are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// [`Config::clock_rate_hz`] is out of range.
    #[error("clock rate {0} Hz, must be 1 to {CLOCK_RATE_HZ_MAX}")]
    ClockRate(u32),
    /// [`Config::latency_ns`] is out of range.
    #[error("latency {0} ns, must be at most {LATENCY_NS_MAX}")]
    Latency(u64),
    /// The bounds of [`Config::adaptive`] are in the wrong order.
    #[error(
        "adaptive latency from {min_ns} to {max_ns} ns: the lower bound must not be above the upper bound"
    )]
    Adaptive {
        /// The given lower bound.
        min_ns: u64,
        /// The given upper bound.
        max_ns: u64,
    },
    /// [`Config::capacity_packets`] is out of range.
    #[error(
        "capacity of {0} packets, must be a power of two \
         from {CAPACITY_PACKETS_MIN} to {CAPACITY_PACKETS_MAX}"
    )]
    Capacity(u16),
}

pub(crate) fn check_latency(latency_ns: u64) -> Result<(), ConfigError> {
    if latency_ns > LATENCY_NS_MAX {
        return Err(ConfigError::Latency(latency_ns));
    }
    Ok(())
}

/// Maximum latency. With a delay above one minute, audio is not live any more.
pub const LATENCY_NS_MAX: u64 = 60 * NS_PER_S;

/// Minimum capacity: 1.28 s of the usual 20 ms packets, which needs one word of the bitmap.
pub const CAPACITY_PACKETS_MIN: u16 = 64;

/// Maximum capacity: enough for the longest latency with packets of 10 ms, or for 1 s of AES67's shortest packets.
pub const CAPACITY_PACKETS_MAX: u16 = 8192;

/// Returns the capacity for this latency in packets of `packet_ns`, doubled so that a burst fits, too.
#[must_use]
pub fn capacity_for(latency_ns: u64, packet_ns: u64) -> u16 {
    let packets = 2 * latency_ns / packet_ns.max(1);
    let most = u64::from(CAPACITY_PACKETS_MAX);
    (packets.min(most).next_power_of_two() as u16).max(CAPACITY_PACKETS_MIN)
}
