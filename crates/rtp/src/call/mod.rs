//! Two legs joined: what one party sends, the other hears.
//!
//! ```text
//!  A ─→ Leg ─ media ─→ Direction ─ packets ─→ Leg ─→ B
//!  A ←─ Leg ←─ packets ─ Direction ←─ media ─ Leg ←─ B
//! ```
//!
//! A [`Direction`](direction) passes packets as they are where both sides have a format in common, converts codes by table between
//! the two laws of G.711, and decodes, converts and encodes otherwise. Losses are the far side's to conceal where packets are passed
//! or converted one by one: the gap in the numbers is passed on. Where audio is made anew, losses are filled in here.
//!
//! However few packets a party sends, it cannot cause more audio than it sent, but for a tail of [`TAIL_NS_MAX`].

#[cfg(test)]
mod command_tests;
mod commands;
#[cfg(test)]
mod direct_tests;
mod direction;
#[cfg(test)]
mod fallback_tests;
mod handover;
mod inputs;
#[cfg(test)]
mod key_tests;
mod keys;
mod line;
mod line_hold;
#[cfg(test)]
mod line_tests;
mod menders;
mod out;
mod state;
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
pub use commands::{KeyPress, PRESS_NS_MAX, PRESS_NS_MIN, PRESSES_MAX, PressError};
pub use direction::{DirectionStats, Tapped, TappedAudio};
pub use handover::{HOLD_NS, LineState, Passed};
pub use inputs::{Fallback, FallbackInput};
pub use keys::{KeyEvent, KeyPhase};
pub use line::{Line, LineDatagram, LineStats, Target};
pub use out::{SPARE_UNIT_NS, Scratch};
pub use state::{CallState, DirectionState};
pub use time_map::{Anchor, TimeState};
pub use transcoder::{Transcoded, Transcoder, TranscoderConfig};

use direction::Direction;
use out::{Out, Sending};

use crate::codec::{EncoderSettings, Format, FormatError};
use crate::id::RtpTime;
use crate::leg::{Leg, LegConfig, LegError, LegEvent, PayloadMap, Verdict};
use crate::tone::Tone;

/// A party of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The first one.
    A,
    /// The other one.
    B,
}

impl Side {
    /// Both.
    pub const BOTH: [Side; 2] = [Side::A, Side::B];

    /// The party at the far end.
    #[must_use]
    pub fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

/// A datagram to send.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// From which leg.
    pub side: Side,
    /// From which of its ports.
    pub channel: Channel,
    /// To where.
    pub to: SocketAddr,
    /// The datagram.
    pub bytes: &'a [u8],
}

/// What is done with what a party sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The far side hears it.
    #[default]
    Pass,
    /// The far side hears silence instead, as long as the party sends.
    Mute,
    /// Nothing is sent to the far side.
    Hold,
}

/// Settings of what one side sends to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectionConfig {
    /// Audio in a packet, ns; 0: as it comes in, or 20 ms. Passed Opus and codecs that cannot be decoded keep theirs.
    pub packet_ns: u64,
    /// For Opus.
    pub encoder: EncoderSettings,
    /// The first timestamp: random (RFC 3550, section 5.1).
    pub first_time: RtpTime,
    /// What happens at the beginning.
    pub mode: Mode,
    /// Listens for keys in the audio of a party without telephone events. They are told as [`CallEvent::Key`], and the far side gets
    /// telephone events in place of the tone, if it has those.
    pub detect_keys: bool,
    /// Audio is decoded and encoded even where the sides have a format in common.
    pub makes_anew: bool,
    /// Packets that need no conversion are passed on as they come, without the delay of the jitter buffer.
    pub passes_directly: bool,
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
        }
    }
}

/// Settings of a [`Call`].
#[derive(Debug, Clone)]
pub struct CallConfig {
    /// The legs, A first.
    pub legs: [LegConfig; 2],
    /// From A to B, and from B to A.
    pub directions: [DirectionConfig; 2],
}

/// A call that cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallError {
    /// A fallback's sound.
    #[error(transparent)]
    Sound(#[from] PlayError),
    /// A leg's settings.
    #[error(transparent)]
    Leg(#[from] LegError),
    /// A packet time that no format of the side that hears allows.
    #[error(transparent)]
    PacketTime(#[from] FormatError),
    /// Packets of this length do not fit a datagram.
    #[error(
        "{format}: packet time {packet_us} µs, at most {us_max} µs fit a datagram of 1500 bytes"
    )]
    TooLong {
        /// The format.
        format: Format,
        /// The packet time asked for.
        packet_us: u64,
        /// The longest that fits.
        us_max: u64,
    },
}

/// What the owner of a call should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallEvent {
    /// Of a leg.
    Leg(Side, LegEvent),
    /// A key of this party.
    Key(Side, KeyEvent),
    /// What was played to this party has ended.
    PlayEnded(Side),
}

/// Counters and gauges of a call, A's first.
#[derive(Debug, Clone, PartialEq)]
pub struct CallStats {
    /// The legs.
    pub legs: [crate::leg::LegStats; 2],
    /// What the parties send to each other.
    pub directions: [DirectionStats; 2],
}

/// Audio to play to a party.
#[derive(Debug, Clone)]
pub struct Clip {
    /// Interleaved samples, full scale 1.
    pub pcm: Arc<[f32]>,
    /// Frames per second.
    pub rate_hz: u32,
    /// Samples of a frame.
    pub channels: u8,
    /// How often it is played; 0: until it is stopped.
    pub times: u32,
}

/// Which part of a clip is played. The default: all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Part {
    /// The first time begins with this frame. Behind the last one, that time is over at once.
    pub start_frame: u64,
    /// The longest that all times together last, ns.
    pub duration_ns: Option<u64>,
}

/// What of a clip has not been played yet: played so, it goes on where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlayLeft {
    /// How often, this time included, as [`Clip::times`] has it.
    pub times: u32,
    /// From where, and for how long.
    pub part: Part,
}

/// What a party hears instead of another one.
#[derive(Debug, Clone)]
pub enum Sound {
    /// Samples.
    Clip(Clip),
    /// A tone, until it is stopped.
    Tone(Box<Tone>),
    /// Silence, until it is stopped.
    Silence,
}

/// See the module.
///
/// **Contract.** After each `handle_*` and command, or after a batch of them, call [`poll_transmit`](Call::poll_transmit) once and drain
/// [`poll_event`](Call::poll_event); call them again at [`next_timeout`](Call::next_timeout). Times are ns on one monotonic clock.
#[derive(Debug)]
pub struct Call {
    legs: [Leg; 2],
    directions: [Direction; 2],
    ahead_ns: u64,
}

impl Call {
    /// A call that begins at `now_ns`.
    ///
    /// # Errors
    /// A setting is out of range.
    pub fn new(now_ns: u64, config: CallConfig) -> Result<Call, CallError> {
        let [a, b] = config.legs;
        let [to_b, to_a] = config.directions;
        let mut directions = [
            Direction::new(to_b, b.takes())?,
            Direction::new(to_a, a.takes())?,
        ];
        directions[0].set_sender(&a.payloads);
        directions[1].set_sender(&b.payloads);
        let mut legs = [Leg::new(now_ns, a)?, Leg::new(now_ns, b)?];
        for leg in &mut legs {
            leg.record_quality();
        }
        Ok(Call {
            legs,
            directions,
            ahead_ns: 0,
        })
    }

    /// Media leaves up to this much before its time: half of the distance between the owner's polls, so that it is on time on
    /// average.
    pub fn set_ahead_ns(&mut self, ahead_ns: u64) {
        self.ahead_ns = ahead_ns;
        for leg in &mut self.legs {
            leg.set_ahead_ns(ahead_ns);
        }
    }

    /// Takes a datagram from a party that arrived at `at_ns`.
    #[inline]
    pub fn handle_datagram(
        &mut self,
        now_ns: u64,
        at_ns: u64,
        side: Side,
        channel: Channel,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Verdict {
        let [a, b] = &mut self.legs;
        let (leg, far) = match side {
            Side::A => (a, b),
            Side::B => (b, a),
        };
        let direction = &mut self.directions[side as usize];
        leg.set_direct_types(direction.direct_types(leg.payloads(), far.takes()));
        match channel {
            Channel::Rtp => leg.handle_datagram(now_ns, at_ns, from, bytes),
            Channel::Rtcp => leg.handle_rtcp(at_ns, from, bytes),
        }
    }

    /// Gives `send` everything that is due at `now_ns`. `may_lose`: there are no datagrams left that could prevent a loss.
    #[inline]
    pub fn poll_transmit(
        &mut self,
        now_ns: u64,
        may_lose: bool,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(Outgoing<'_>),
    ) {
        let media_ns = now_ns.saturating_add(self.ahead_ns);
        for side in Side::BOTH {
            let Scratch { packet, work, .. } = &mut *scratch;
            let [a, b] = &mut self.legs;
            let (from, to) = match side {
                Side::A => (a, b),
                Side::B => (b, a),
            };
            let direction = &mut self.directions[side as usize];
            let mut out = Out {
                now_ns,
                side: side.other(),
                leg: Sending::Leg(to),
                packet,
                send,
                number: None,
            };
            direction.note_latency(from.latency_ns());
            while let Some(media) = from.poll_media(media_ns, may_lose) {
                direction.handle(media, work, &mut out);
            }
            direction.expire_key(work, &mut out);
            direction.fill_pause(work, &mut out);
            direction.press_on(media_ns, work, &mut out);
            direction.play(media_ns, work, &mut out);
        }
        for side in Side::BOTH {
            self.poll_reports(now_ns, side, scratch, send);
        }
    }

    #[inline]
    fn poll_reports(
        &mut self,
        now_ns: u64,
        side: Side,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(Outgoing<'_>),
    ) {
        let leg = &mut self.legs[side as usize];
        if leg.next_report().is_none_or(|due_ns| due_ns > now_ns) {
            return;
        }
        scratch.packet.resize(RTCP_BYTES_MAX, 0);
        while let Some((len, to)) = leg.poll_rtcp(now_ns, &mut scratch.packet) {
            send(Outgoing {
                side,
                channel: Channel::Rtcp,
                to,
                bytes: &scratch.packet[..len],
            });
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<CallEvent> {
        for side in Side::BOTH {
            if let Some(event) = self.legs[side as usize].poll_event() {
                return Some(CallEvent::Leg(side, event));
            }
            let direction = &mut self.directions[side as usize];
            if let Some(event) = direction.poll_key() {
                return Some(CallEvent::Key(side, event));
            }
            if direction.take_play_ended() {
                return Some(CallEvent::PlayEnded(side.other()));
            }
        }
        None
    }

    /// When to poll next if nothing comes before. 0: now.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        let reports = self.legs.iter().filter_map(Leg::next_report);
        let media = self.legs.iter().filter_map(Leg::next_media);
        let plays = self
            .directions
            .iter()
            .filter_map(Direction::next_unpressed_play);
        let presses = self.directions.iter().filter_map(Direction::next_press);
        let media = media
            .chain(plays)
            .chain(presses)
            .map(|due_ns| due_ns.saturating_sub(self.ahead_ns));
        let unasked = self.directions.iter().filter_map(Direction::next_unasked);
        reports.chain(media).chain(unasked).min()
    }

    /// What is done with what this party sends.
    pub fn set_mode(&mut self, side: Side, mode: Mode) {
        self.directions[side as usize].set_mode(mode);
    }

    /// What is done with what this party sends, as things are.
    #[must_use]
    pub fn mode(&self, side: Side) -> Mode {
        self.directions[side as usize].mode()
    }

    /// Plays to this party, instead of what the other one sends. What was played before ends.
    ///
    /// # Errors
    /// The clip's rate or channels are not supported, or this party takes no audio that can be made.
    pub fn play(&mut self, now_ns: u64, to: Side, clip: Clip) -> Result<(), PlayError> {
        self.play_part(now_ns, to, clip, Part::default())
    }

    /// Plays a part of a clip to this party.
    ///
    /// # Errors
    /// As [`play`](Self::play).
    pub fn play_part(
        &mut self,
        now_ns: u64,
        to: Side,
        clip: Clip,
        part: Part,
    ) -> Result<(), PlayError> {
        let payloads = self.legs[to as usize].takes().clone();
        let sound = Sound::Clip(clip);
        self.directions[to.other() as usize].begin_play(now_ns, sound, part, &payloads)
    }

    /// What of a clip is still to be played to this party; `None`: no clip is being played.
    #[must_use]
    pub fn play_left(&self, to: Side) -> Option<PlayLeft> {
        self.directions[to.other() as usize].play_left()
    }

    /// Ends what is being played to this party.
    pub fn stop_play(&mut self, to: Side) {
        self.directions[to.other() as usize].end_play();
    }

    /// Begins or ends a copy of what this party says, in order, losses filled in.
    pub fn tap(&mut self, side: Side, is_on: bool) {
        self.directions[side as usize].tap(is_on);
    }

    /// Takes what was tapped of this party since the last call, in order, piece by piece: at most [`TAP_NS_MAX`] of it.
    #[inline]
    pub fn take_tapped(&mut self, side: Side, hear: impl FnMut(Tapped<'_>)) {
        self.directions[side as usize].take_tapped(hear);
    }

    /// Samples of this party that wait in the tap.
    #[must_use]
    pub fn tapped(&self, side: Side) -> usize {
        self.directions[side as usize].tapped()
    }

    /// Memory that the next packet of this party touches, if it is tapped, for prefetching. Not to be dereferenced.
    #[must_use]
    #[inline]
    pub fn tapped_address(&self, side: Side) -> usize {
        self.directions[side as usize].tapped_address()
    }

    /// A party's leg.
    #[must_use]
    pub fn leg(&self, side: Side) -> &Leg {
        &self.legs[side as usize]
    }

    /// A party's leg, to be signalled anew.
    pub fn leg_mut(&mut self, side: Side) -> &mut Leg {
        // What goes to it and what comes from it is chosen again with the next packet.
        for direction in &mut self.directions {
            direction.reroute();
        }
        &mut self.legs[side as usize]
    }

    /// Says whether later datagrams of this party have passed SRTP's authentication.
    pub fn set_authenticated(&mut self, side: Side, is_authenticated: bool) {
        self.legs[side as usize].set_authenticated(is_authenticated);
    }

    /// This party sends and takes other payload types from now on: numbers and timestamps continue.
    pub fn set_payloads(&mut self, side: Side, sends: Arc<PayloadMap>, takes: Arc<PayloadMap>) {
        self.directions[side as usize].set_sender(&sends);
        self.directions[side.other() as usize].set_receiver(&takes);
        self.leg_mut(side).set_payloads(sends, takes);
    }

    /// Both legs leave their sessions: poll once more for their BYEs.
    pub fn leave(&mut self, now_ns: u64, reason: &str) {
        for leg in &mut self.legs {
            leg.leave(now_ns, reason);
        }
    }

    /// Memory that the next packets touch, for prefetching. Not to be dereferenced.
    #[must_use]
    pub fn next_addresses(&self) -> [[usize; 4]; 2] {
        [0, 1].map(|side: usize| {
            let [a, b, c] = self.legs[side].next_addresses();
            [a, b, c, self.directions[side].next_address()]
        })
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> CallStats {
        CallStats {
            legs: [self.legs[0].stats(), self.legs[1].stats()],
            directions: [self.directions[0].stats(), self.directions[1].stats()],
        }
    }
}

/// Changes or measures audio between decoding and encoding.
pub trait Filter: Send + std::fmt::Debug {
    /// Takes whole frames of interleaved samples, and leaves what is to go on: as many on the whole, though a filter may hold
    /// some back.
    fn process(&mut self, format: Format, pcm: &mut Vec<f32>);

    /// The stream has ended: appends what was held back.
    fn finish(&mut self, format: Format, pcm: &mut Vec<f32>) {
        let _ = (format, pcm);
    }
}

/// A clip that cannot be played.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlayError {
    /// It has no samples, or not whole frames.
    #[error("a clip of {0} samples: whole frames are expected, at least one")]
    Length(usize),
    /// The party takes no audio that can be made.
    #[error("this party takes no audio that can be made")]
    NoFormat,
    /// Its rate or channels are not supported.
    #[error("{rate_hz} Hz, {channels} channels: not supported")]
    Format {
        /// Its rate.
        rate_hz: u32,
        /// Its channels.
        channels: u8,
    },
}

/// A party that sends nothing more causes no more audio than this: losses that are filled in, the end of a key's tone.
pub const TAIL_NS_MAX: u64 = 200_000_000;
/// Audio that waits to be taken from a tap.
pub const TAP_NS_MAX: u64 = 1_000_000_000;
/// No RTCP packet of a session this small is longer than an Ethernet frame.
const RTCP_BYTES_MAX: usize = 1500;
