//! Commands of the owner to a running call.

use thiserror::Error;

use super::{Call, CallError, Side};
use crate::codec::CodecError;
use crate::dtmf::Key;
use crate::leg::Carries;

/// A DTMF digit to send to a party, as if the other party had pressed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DtmfDigit {
    /// The digit.
    pub key: Key,
    /// Length of the digit, ns: [`DTMF_NS_MIN`] to [`DTMF_NS_MAX`].
    pub duration_ns: u64,
    /// Minimum pause before the next digit, ns: [`DTMF_NS_MIN`] to [`DTMF_NS_MAX`].
    pub pause_ns: u64,
    /// Power level, dBm0 with the sign dropped: 0 to 63.
    pub volume: u8,
}

/// Why a DTMF digit was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DtmfError {
    /// A time is out of range.
    #[error("{name} of a DTMF digit: {ns} ns, must be {DTMF_NS_MIN} to {DTMF_NS_MAX} ns")]
    Time {
        /// `duration_ns` or `pause_ns`.
        name: &'static str,
        /// Value of that field, ns.
        ns: u64,
    },
    /// The level is out of range.
    #[error("volume of a DTMF digit: {0}, must be 0 to 63 (dBm0 with the sign dropped)")]
    Volume(u8),
    /// Too many digits are queued.
    #[error("{DTMF_DIGITS_MAX} DTMF digits are queued already, the queue is full")]
    TooMany,
    /// The party accepts neither telephone events nor audio that can be encoded.
    #[error("the party accepts neither telephone events nor audio that can be encoded")]
    NoFormat,
}

impl DtmfDigit {
    fn check(&self) -> Result<(), DtmfError> {
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

impl Call {
    /// Sends a DTMF digit in the name of `side`. The other party gets telephone events (RFC 4733), with the numbers and
    /// timestamps of the stream, or the digit's tone if it accepts no events. The digit replaces the audio of `side` and anything
    /// played to the other party. Several digits follow one another; a digit that `side` itself is pressing ends first. A held
    /// party gets none.
    ///
    /// # Errors
    /// A value is out of range, too many digits are queued, or the party accepts neither events nor audio that can be encoded.
    pub fn insert_dtmf(
        &mut self,
        now_ns: u64,
        side: Side,
        digit: DtmfDigit,
    ) -> Result<(), DtmfError> {
        digit.check()?;
        let takes = self.legs[side.other() as usize].takes();
        let audio = takes.audio();
        let is_heard = takes.telephone_event(audio.clock_rate_hz).is_some()
            || matches!(audio.carries, Carries::Audio(_));
        if !is_heard {
            return Err(DtmfError::NoFormat);
        }
        self.directions[side as usize].insert_dtmf(now_ns, digit)
    }

    /// Blocks this party's DTMF digits: its telephone events and, if digits are detected in audio
    /// ([`DirectionConfig::detect_keys`](super::DirectionConfig)), the tones after detection. The owner still gets events for
    /// them.
    pub fn block_keys(&mut self, side: Side, blocks: bool) {
        let input = self.input(side);
        self.directions[input].block_keys(blocks);
    }

    /// Sets whether this party's telephone events reach the other party even while its audio does not
    /// ([`Mode::Mute`](super::Mode),
    /// `Hold`).
    pub fn pass_keys(&mut self, side: Side, passes: bool) {
        let input = self.input(side);
        self.directions[input].pass_keys(passes);
    }

    /// Sets [`DirectionConfig::detect_keys`](super::DirectionConfig) of this party's audio.
    pub fn set_detect_keys(&mut self, side: Side, detects: bool) {
        let payloads = self.legs[side as usize].payloads().clone();
        let input = self.input(side);
        self.directions[input].set_detect_keys(detects, &payloads);
    }

    /// Sets [`DirectionConfig::makes_anew`](super::DirectionConfig) of this party's audio.
    pub fn set_makes_anew(&mut self, side: Side, makes_anew: bool) {
        let input = self.input(side);
        self.directions[input].set_makes_anew(makes_anew);
    }

    /// Sets [`DirectionConfig::packet_ns`](super::DirectionConfig) of this party's audio.
    ///
    /// # Errors
    /// The receiving side has no format with this packet time, or the packets do not fit a datagram. Nothing changes then.
    pub fn set_packet_ns(&mut self, side: Side, packet_ns: u64) -> Result<(), CallError> {
        let takes = self.legs[side.other() as usize].takes().clone();
        self.directions[side as usize].set_packet_ns(packet_ns, &takes)
    }

    /// Sets the bit rates of the encoder for this party's audio, from the next packet on: see
    /// [`EncoderSettings`](crate::codec::EncoderSettings). Nothing else changes. Audio that passes unconverted is not affected.
    ///
    /// # Errors
    /// A value is out of range, in which case nothing changes, or the library refuses.
    pub fn set_bitrate(
        &mut self,
        side: Side,
        bitrate_bps: Option<u32>,
        bitrate_bps_max: Option<u32>,
    ) -> Result<(), CodecError> {
        self.directions[side as usize].set_bitrate(bitrate_bps, bitrate_bps_max)
    }

    /// Holds a party: it gets no RTP, neither the other party's audio nor clips. Its RTCP reports continue. Sequence numbers
    /// continue, and timestamps count the pause.
    pub fn set_held(&mut self, side: Side, is_held: bool) {
        self.legs[side as usize].set_held(is_held);
        self.directions[side.other() as usize].set_held(is_held);
    }
}

/// Minimum length of a digit and of a pause, ns. Receivers may miss shorter ones: ITU-T Q.24 has them detect both from 40 ms
/// on.
pub const DTMF_NS_MIN: u64 = 40_000_000;
/// Maximum length of a digit and of a pause, ns: longer than a person presses a digit.
pub const DTMF_NS_MAX: u64 = 5_000_000_000;
/// Maximum number of queued digits: more than a card number with everything dialled before and after it.
pub const DTMF_DIGITS_MAX: usize = 64;
/// Maximum of the level, a field of six bits (RFC 4733, section 2.3.3).
const VOLUME_MAX: u8 = 63;
