//! Sessions: the legs of calls and streams, and the media between them.
//!
//! A [`Session`] moves media from leg to leg. For each way there is a [`Direction`](direction). It forwards packets unchanged if both sides
//! have a format in common. It converts codes by table between the two laws of G.711. In all other cases, it decodes, converts and encodes.
//! If packets are forwarded or converted one by one, the far side sees the gaps in the numbers and conceals losses itself. If audio is
//! re-encoded, losses are concealed here.
//!
//! A party cannot cause more audio than it has sent, plus a tail of at most [`TAIL_NS_MAX`], even if there are large gaps between its
//! packets.

mod apply;
#[cfg(test)]
mod command_tests;
mod concealers;
mod controls;
#[cfg(test)]
mod digit_tests;
#[cfg(test)]
mod direct_tests;
mod direction;
mod dtmf;
#[cfg(test)]
mod echo_tests;
#[cfg(test)]
mod fallback_tests;
mod flow;
mod handover;
mod inputs;
#[cfg(test)]
mod key_tests;
mod keys;
mod out;
mod poll;
#[cfg(test)]
mod quality_tests;
mod renamed;
mod session;
mod snapshot;
mod spec;
#[cfg(test)]
mod spec_tests;
mod state;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod substitute_tests;
#[cfg(test)]
mod test_bed;
#[cfg(test)]
mod tests;
mod time_map;
mod transcoder;
#[cfg(test)]
mod transcoder_tests;
mod voice;

use std::net::SocketAddr;
use std::sync::Arc;

use thiserror::Error;

pub use crate::packet::Channel;
pub use direction::{DirectionStats, Tapped, TappedAudio};
pub use dtmf::{DTMF_DIGITS_MAX, DTMF_NS_MAX, DTMF_NS_MIN, DtmfDigit, DtmfError};
pub use handover::HOLD_NS;
pub use inputs::{Fallback, FallbackInput};
pub use keys::{KeyEvent, KeyPhase};
pub use out::{SPARE_UNIT_NS, Scratch};
pub use renamed::*;
pub use session::{Session, SessionStats};
pub use spec::{SessionSpec, Target};
pub use state::{DirectionState, Passed, SessionState};
pub use threadbare_rtp_types::side::Side;
pub use time_map::{Anchor, TimeState};
pub use transcoder::{Transcoded, Transcoder, TranscoderConfig};

use spec::FlowConfig;

use crate::codec::{CodecError, EncoderSettings, Format, FormatError};
use crate::fallback::Switch;
use crate::id::{PayloadType, RtpTime};
use crate::leg::{LegError, LegEvent};
use crate::tone::Tone;

/// A datagram to send.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// The leg that sends the datagram.
    pub leg: LegId,
    /// Number of the ports that the datagram leaves from: see [`Session::handle_datagram`].
    pub ports: u8,
    /// Which of these ports the datagram leaves from. With mux, RTCP leaves from the RTP port (RFC 5761).
    pub leaves_from: Channel,
    /// Whether the datagram is RTP or RTCP.
    pub channel: Channel,
    /// Destination.
    pub to: SocketAddr,
    /// The bytes of the datagram.
    pub bytes: &'a [u8],
}

/// What happens to a party's media.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The far side hears the party.
    #[default]
    Pass,
    /// The far side hears silence while the party sends.
    Mute,
    /// Nothing is sent to the far side.
    Hold,
}

/// Settings of the direction from one side to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectionConfig {
    /// Packet time, ns. 0: as received, or 20 ms. Opus that is forwarded, and codecs that cannot be decoded, keep their packet time.
    pub packet_ns: u64,
    /// Settings of the encoder for Opus.
    pub encoder: EncoderSettings,
    /// The first timestamp, which must be random (RFC 3550, section 5.1).
    pub first_time: RtpTime,
    /// The mode at the start.
    pub mode: Mode,
    /// Whether DTMF digits are detected in the audio of a party without telephone events. They are reported as [`SessionEvent::Key`], and a
    /// far side that accepts telephone events gets these instead of the tone.
    pub detect_keys: bool,
    /// Whether audio is decoded and encoded even if the sides have a format in common.
    pub makes_anew: bool,
    /// Whether packets that need no conversion are forwarded on arrival, without the delay of the jitter buffer.
    pub passes_directly: bool,
    /// Whether the sending party's DTMF digits are blocked: see [`Session::block_keys`].
    pub blocks_keys: bool,
    /// Whether the sending party's telephone events are heard even while its audio is not: see [`Session::pass_keys`].
    pub passes_keys: bool,
    /// Whether the receiving party is held, so that it gets no RTP: see [`Session::set_held`].
    pub holds_receiver: bool,
}

impl Default for DirectionConfig {
    fn default() -> Self {
        DirectionConfig {
            packet_ns: 0,
            encoder: EncoderSettings::default(),
            first_time: RtpTime(0),
            mode: Mode::Pass,
            detect_keys: false,
            makes_anew: false,
            passes_directly: false,
            blocks_keys: false,
            passes_keys: false,
            holds_receiver: false,
        }
    }
}

/// The reason why a session was not created or changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SessionError {
    /// A running session cannot get other legs, or other ways between them.
    #[error("a running session keeps its legs and the ways between them: create another session")]
    Shape,
    /// The encoder does not accept its settings.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The sound of a fallback cannot be played.
    #[error(transparent)]
    Sound(#[from] PlayError),
    /// A leg's settings are invalid.
    #[error(transparent)]
    Leg(#[from] LegError),
    /// No format of the receiving side allows this packet time.
    #[error(transparent)]
    PacketTime(#[from] FormatError),
    /// Packets of this length do not fit a datagram.
    #[error(
        "{format}: packet time {packet_us} µs, at most {us_max} µs fit a datagram of 1500 bytes"
    )]
    TooLong {
        /// The format.
        format: Format,
        /// The requested packet time.
        packet_us: u64,
        /// The longest packet time that fits, µs.
        us_max: u64,
    },
}

/// Number of a leg in its session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct LegId(pub u8);

impl LegId {
    /// The first leg: party A of a call, or the sender of a stream.
    pub const A: LegId = LegId(0);
    /// The second leg: party B of a call, or the destination of a stream.
    pub const B: LegId = LegId(1);

    /// Returns the party of a call that uses this leg.
    #[must_use]
    pub fn side(self) -> Side {
        if self == LegId::A { Side::A } else { Side::B }
    }
}

impl From<Side> for LegId {
    fn from(side: Side) -> LegId {
        LegId(side as u8)
    }
}

/// An event for the owner of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent {
    /// An event of a leg.
    Leg(LegId, LegEvent),
    /// A DTMF digit of this leg's party.
    Key(LegId, KeyEvent),
    /// The clip played to this leg's party has ended.
    PlayEnded(LegId),
    /// Another input has become active.
    Input(Switch),
    /// The [substitute](Substitute) of this leg's silent party has begun (`true`) or ended (`false`).
    Substitute(LegId, bool),
    /// Packets of this payload type are dropped, because the leg's party did not agree on it. A session reports this once.
    PayloadType(LegId, PayloadType),
    /// Many packets of this leg's party have failed authentication, and none has passed it. A session does not see its encryption, so its
    /// owner adds this event.
    Unauthentic(LegId),
}

/// Audio to play to a party.
#[derive(Debug, Clone)]
pub struct Clip {
    /// Interleaved samples, full scale 1.
    pub pcm: Arc<[f32]>,
    /// Frames per second.
    pub rate_hz: u32,
    /// Number of samples in a frame.
    pub channels: u8,
    /// Number of plays. 0: the clip is repeated until it is stopped.
    pub times: u32,
}

/// The part of a clip to play. The default is all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Part {
    /// The frame with which the first play starts. If it is past the last frame, the first play ends at once.
    pub start_frame: u64,
    /// Maximum length of all plays together, ns.
    pub duration_ns: Option<u64>,
}

/// The rest of a clip. Playing it continues where the clip was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlayLeft {
    /// Number of remaining plays, including the current one, as in [`Clip::times`].
    pub times: u32,
    /// The start position and the remaining time.
    pub part: Part,
}

/// Audio that a party hears instead of the other party.
#[derive(Debug, Clone)]
pub enum Sound {
    /// The samples of a clip.
    Clip(Clip),
    /// A tone, until it is stopped.
    Tone(Box<Tone>),
    /// Silence, until it is stopped.
    Silence,
}

/// A sound that the other party hears while a party of a call sends no packets, although it is expected to send. A party is not expected to
/// send while it is on hold or muted, while the other party is on hold or has no address yet, and during an echo.
///
/// The sound begins when no packet of the party was due for [`after_ns`](Substitute::after_ns). It ends with the party's next packet. A clip
/// that the owner [plays](Session::play) has priority.
#[derive(Debug, Clone)]
pub struct Substitute {
    /// Time without packets after which the sound begins, ns.
    pub after_ns: u64,
    /// The sound. A clip should be repeated until it is stopped.
    pub sound: Sound,
}

/// Changes or measures audio between decoding and encoding.
pub trait Filter: Send + std::fmt::Debug {
    /// Replaces the interleaved samples in `pcm`, which are whole frames, with processed ones. It may delay frames, but in the long run it
    /// returns as many as it got.
    fn process(&mut self, format: Format, pcm: &mut Vec<f32>);

    /// Appends the frames that are still delayed, at the end of the stream.
    fn finish(&mut self, format: Format, pcm: &mut Vec<f32>) {
        let _ = (format, pcm);
    }
}

/// The reason why a clip cannot be played.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlayError {
    /// The clip has no samples, or its last frame is incomplete.
    #[error("a clip of {0} samples: expected a whole number of frames, at least one")]
    Length(usize),
    /// The party accepts no audio that can be encoded.
    #[error("this party accepts no audio that can be encoded")]
    NoFormat,
    /// The clip's rate or number of channels is not supported.
    #[error("audio with {rate_hz} Hz and {channels} channels is not supported")]
    Format {
        /// The sample rate of the clip.
        rate_hz: u32,
        /// The number of channels of the clip.
        channels: u8,
    },
}

/// Duration of audio that a party can cause after its last packet, by concealed losses and the end of a DTMF tone, ns.
pub const TAIL_NS_MAX: u64 = 200_000_000;
/// Maximum duration of audio queued in a tap, ns.
pub const TAP_NS_MAX: u64 = 1_000_000_000;
/// Maximum size of an RTCP packet, bytes. The packets of such a small session fit an Ethernet frame.
const RTCP_BYTES_MAX: usize = 1500;
