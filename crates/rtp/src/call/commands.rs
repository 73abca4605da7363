//! What the owner changes while a call runs.

use thiserror::Error;

use super::{Call, CallError, Side};
use crate::codec::CodecError;
use crate::dtmf::Key;
use crate::leg::Carries;

/// A key to be heard by a party, as if the other one had pressed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyPress {
    /// Which one.
    pub key: Key,
    /// How long it is pressed, ns: [`PRESS_NS_MIN`] to [`PRESS_NS_MAX`].
    pub duration_ns: u64,
    /// The least time to the next key, ns: [`PRESS_NS_MIN`] to [`PRESS_NS_MAX`].
    pub pause_ns: u64,
    /// Power level, dBm0 with the sign dropped: 0 to 63.
    pub volume: u8,
}

/// A key that is not pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PressError {
    /// A time is out of range.
    #[error("{name} of a key: {ns} ns, allowed are {PRESS_NS_MIN} to {PRESS_NS_MAX} ns")]
    Time {
        /// `duration_ns` or `pause_ns`.
        name: &'static str,
        /// Its value.
        ns: u64,
    },
    /// The level is out of range.
    #[error("volume of a key: {0}, allowed are 0 to 63 (dBm0 with the sign dropped)")]
    Volume(u8),
    /// Too many keys wait.
    #[error("{PRESSES_MAX} keys wait already, allowed are {PRESSES_MAX}")]
    TooMany,
    /// The party takes neither telephone events nor audio that can be made.
    #[error("the party takes neither telephone events nor audio that can be made")]
    NoFormat,
}

impl KeyPress {
    fn check(&self) -> Result<(), PressError> {
        let times = [
            ("duration_ns", self.duration_ns),
            ("pause_ns", self.pause_ns),
        ];
        for (name, ns) in times {
            if !(PRESS_NS_MIN..=PRESS_NS_MAX).contains(&ns) {
                return Err(PressError::Time { name, ns });
            }
        }
        if self.volume > VOLUME_MAX {
            return Err(PressError::Volume(self.volume));
        }
        Ok(())
    }
}

impl Call {
    /// Presses a key in the name of `side`: the other party gets telephone events (RFC 4733), in the numbers and on the time line of the stream,
    /// or the key's tone if it takes no events. It is heard in place of what `side` sends, and of what is played to the other party. Several keys
    /// are pressed one after the other; a key that `side` itself is pressing ends first. A party that is held gets none.
    ///
    /// # Errors
    /// A value is out of range, too many keys wait, or the party takes nothing of the kind.
    pub fn press(&mut self, now_ns: u64, side: Side, press: KeyPress) -> Result<(), PressError> {
        press.check()?;
        let takes = self.legs[side.other() as usize].takes();
        let audio = takes.audio();
        let is_heard = takes.telephone_event(audio.clock_rate_hz).is_some()
            || matches!(audio.carries, Carries::Audio(_));
        if !is_heard {
            return Err(PressError::NoFormat);
        }
        self.directions[side as usize].press(now_ns, press)
    }

    /// Whether this party's keys are kept from the other one: its telephone events, and, where its keys are detected in audio
    /// ([`DirectionConfig::detect_keys`](super::DirectionConfig)), their tones from the time on that they are known. The owner is told of them as
    /// before.
    pub fn block_keys(&mut self, side: Side, blocks: bool) {
        self.directions[side as usize].block_keys(blocks);
    }

    /// Whether this party's telephone events reach the other one also while its audio does not ([`Mode::Mute`](super::Mode), `Hold`).
    pub fn pass_keys(&mut self, side: Side, passes: bool) {
        self.directions[side as usize].pass_keys(passes);
    }

    /// Whether keys are detected in this party's audio from now on, as [`DirectionConfig::detect_keys`](super::DirectionConfig) has it.
    pub fn set_detect_keys(&mut self, side: Side, detects: bool) {
        let payloads = self.legs[side as usize].payloads().clone();
        self.directions[side as usize].set_detect_keys(detects, &payloads);
    }

    /// Whether what this party sends is decoded and encoded even where it could pass, from now on, as
    /// [`DirectionConfig::makes_anew`](super::DirectionConfig) has it.
    pub fn set_makes_anew(&mut self, side: Side, makes_anew: bool) {
        self.directions[side as usize].set_makes_anew(makes_anew);
    }

    /// Audio in a packet of what this party sends to the other one, from now on, as [`DirectionConfig::packet_ns`](super::DirectionConfig) has it.
    ///
    /// # Errors
    /// No format of the side that hears allows it, or the packets do not fit a datagram. Nothing has changed then.
    pub fn set_packet_ns(&mut self, side: Side, packet_ns: u64) -> Result<(), CallError> {
        let takes = self.legs[side.other() as usize].takes().clone();
        self.directions[side as usize].set_packet_ns(packet_ns, &takes)
    }

    /// The bit rates of the encoder of what this party sends to the other one, from the next packet on, as
    /// [`EncoderSettings`](crate::codec::EncoderSettings) has them. Nothing else changes. Without effect on audio that passes.
    ///
    /// # Errors
    /// A value is out of range: nothing has changed then. Or the library refuses.
    pub fn set_bitrate(
        &mut self,
        side: Side,
        bitrate_bps: Option<u32>,
        bitrate_bps_max: Option<u32>,
    ) -> Result<(), CodecError> {
        self.directions[side as usize].set_bitrate(bitrate_bps, bitrate_bps_max)
    }

    /// A party that is held is sent no RTP, whatever the other one sends and whatever is played; its reports go on. Numbers continue, and
    /// timestamps count the pause.
    pub fn set_held(&mut self, side: Side, is_held: bool) {
        self.legs[side as usize].set_held(is_held);
        self.directions[side.other() as usize].set_held(is_held);
    }
}

/// Shorter ones are not heard: ITU-T Q.24 has receivers detect keys, and pauses between them, from 40 ms on.
pub const PRESS_NS_MIN: u64 = 40_000_000;
/// Longer than anybody presses one.
pub const PRESS_NS_MAX: u64 = 5_000_000_000;
/// Keys that wait: more than a card's number with all that is said before and behind.
pub const PRESSES_MAX: usize = 64;
/// Six bits (RFC 4733, section 2.3.3).
const VOLUME_MAX: u8 = 63;
