//! Two joined legs: each party hears the other.
//!
//! ```text
//!  A ─→ Leg ─ media ─→ Direction ─ packets ─→ Leg ─→ B
//!  A ←─ Leg ←─ packets ─ Direction ←─ media ─ Leg ←─ B
//! ```
//!
//! A [`Direction`](direction) forwards packets unchanged if both sides have a format in common. It converts codes by table
//! between the two laws of G.711, and otherwise decodes, converts and encodes. If packets are forwarded or converted one by one,
//! the far side sees the gaps in the numbers and conceals losses. If audio is re-encoded, losses are concealed here.
//!
//! A party cannot cause more audio than it has sent, plus a tail of at most [`TAIL_NS_MAX`], even if it sends only a few packets.

#[cfg(test)]
mod command_tests;
mod commands;
mod concealers;
#[cfg(test)]
mod digit_tests;
#[cfg(test)]
mod direct_tests;
mod direction;
mod echo;
#[cfg(test)]
mod echo_tests;
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
mod out;
#[cfg(test)]
mod quality_tests;
mod renamed;
mod state;
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
pub use commands::{DTMF_DIGITS_MAX, DTMF_NS_MAX, DTMF_NS_MIN, DtmfDigit, DtmfError};
pub use direction::{DirectionStats, Tapped, TappedAudio};
pub use handover::{HOLD_NS, LineState, Passed};
pub use inputs::{Fallback, FallbackInput};
pub use keys::{KeyEvent, KeyPhase};
pub use line::{Line, LineDatagram, LineStats, Target};
pub use out::{SPARE_UNIT_NS, Scratch};
pub use renamed::*;
pub use state::{CallState, DirectionState};
pub use threadbare_rtp_types::side::Side;
pub use time_map::{Anchor, TimeState};
pub use transcoder::{Transcoded, Transcoder, TranscoderConfig};

use direction::Direction;
use echo::Echo;
use out::{Out, Sending};

use crate::codec::{CodecError, EncoderSettings, Format, FormatError};
use crate::id::RtpTime;
use crate::leg::{Carries, Leg, LegConfig, LegError, LegEvent, Outage, PayloadMap, Verdict};
use crate::tone::Tone;

/// A datagram to send.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// The leg that sends it.
    pub side: Side,
    /// The port that it leaves from.
    pub channel: Channel,
    /// Destination.
    pub to: SocketAddr,
    /// The datagram.
    pub bytes: &'a [u8],
}

/// Treatment of a party's media.
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
    /// Packet time, ns; 0: as received, or 20 ms. Forwarded Opus and codecs that cannot be decoded keep theirs.
    pub packet_ns: u64,
    /// For Opus.
    pub encoder: EncoderSettings,
    /// The first timestamp: random (RFC 3550, section 5.1).
    pub first_time: RtpTime,
    /// The mode at the start.
    pub mode: Mode,
    /// Detects DTMF digits in the audio of a party without telephone events. They are reported as [`CallEvent::Key`], and the far
    /// side gets telephone events in place of the tone, if it accepts them.
    pub detect_keys: bool,
    /// Decodes and encodes audio even if the sides have a format in common.
    pub makes_anew: bool,
    /// Forwards packets that need no conversion on arrival, without the delay of the jitter buffer.
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
    /// Settings from A to B, then from B to A.
    pub directions: [DirectionConfig; 2],
}

/// Why a call was not created.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallError {
    /// The sound of a fallback cannot be played.
    #[error(transparent)]
    Sound(#[from] PlayError),
    /// A leg's settings are invalid.
    #[error(transparent)]
    Leg(#[from] LegError),
    /// A packet time that no format of the receiving side allows.
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
        /// The longest that fits.
        us_max: u64,
    },
}

/// An event for the owner of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallEvent {
    /// An event of a leg.
    Leg(Side, LegEvent),
    /// A DTMF digit of this party.
    Key(Side, KeyEvent),
    /// The clip played to this party has ended.
    PlayEnded(Side),
}

/// Counters and gauges of a call, A's first.
#[derive(Debug, Clone, PartialEq)]
pub struct CallStats {
    /// The legs.
    pub legs: [crate::leg::LegStats; 2],
    /// The directions, from A first.
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
    /// Number of plays; 0: until stopped.
    pub times: u32,
}

/// The part of a clip to play. The default is all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Part {
    /// The first play starts with this frame. If it is past the last one, that play ends at once.
    pub start_frame: u64,
    /// Maximum length of all plays together, ns.
    pub duration_ns: Option<u64>,
}

/// The rest of a clip; playing it continues where the clip stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlayLeft {
    /// Remaining plays including the current one, as in [`Clip::times`].
    pub times: u32,
    /// The start position and the remaining time.
    pub part: Part,
}

/// Audio that a party hears instead of the other party.
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
/// **Contract.** After each `handle_*` and command, or after a batch of them, call [`poll_transmit`](Call::poll_transmit) once
/// and drain [`poll_event`](Call::poll_event); call them again at [`next_timeout`](Call::next_timeout). Times are ns on one
/// monotonic clock.
#[derive(Debug)]
pub struct Call {
    legs: [Leg; 2],
    /// The direction to B, and the direction to A.
    directions: [Direction; 2],
    ahead_ns: u64,
    echo: Echo,
}

/// Passes a party's report to the leg whose audio it is about.
#[cold]
fn note_report(at_ns: u64, of: &Leg, far: &mut Leg) {
    if let Some(report) = of.report_of_peer(at_ns) {
        far.note_far_report(report);
    }
}

impl Call {
    /// Creates a call that starts at `now_ns`.
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
            echo: Echo::default(),
        })
    }

    /// Sends media up to this much before it is due. If this is half of the interval between the owner's polls, media is on
    /// time on average.
    pub fn set_ahead_ns(&mut self, ahead_ns: u64) {
        self.ahead_ns = ahead_ns;
        for leg in &mut self.legs {
            leg.set_ahead_ns(ahead_ns);
        }
    }

    /// Handles a datagram of a party that arrived at `at_ns`.
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
        if self.echo.is_on || self.echo.is_changing() {
            return self.handle_echoed(now_ns, at_ns, side, channel, from, bytes);
        }
        let [a, b] = &mut self.legs;
        let (leg, far) = match side {
            Side::A => (a, b),
            Side::B => (b, a),
        };
        let direction = &mut self.directions[side as usize];
        leg.set_direct_types(direction.direct_types(leg.payloads(), far.takes()));
        let verdict = match channel {
            Channel::Rtp => leg.handle_datagram(now_ns, at_ns, from, bytes),
            Channel::Rtcp => leg.handle_rtcp(at_ns, from, bytes),
        };
        if verdict == Verdict::Rtcp {
            note_report(at_ns, leg, far);
        }
        verdict
    }

    /// Passes everything due at `now_ns` to `send`. `may_lose`: no unread datagrams are left that could fill a gap.
    #[inline]
    pub fn poll_transmit(
        &mut self,
        now_ns: u64,
        may_lose: bool,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(Outgoing<'_>),
    ) {
        let media_ns = now_ns.saturating_add(self.ahead_ns);
        if self.echo.is_changing() {
            self.switch_echo(now_ns, scratch, send);
        }
        for side in Side::BOTH {
            if self.echo.is_on {
                self.poll_echo(now_ns, side, may_lose, scratch, send);
                continue;
            }
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
            direction.poll_beside(media_ns, work, &mut out);
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
            let input = self.input(side);
            if let Some(event) = self.directions[input].poll_key() {
                return Some(CallEvent::Key(side, event));
            }
            if self.directions[side as usize].take_play_ended() {
                return Some(CallEvent::PlayEnded(side.other()));
            }
        }
        None
    }

    /// Time of the next poll if nothing arrives before; 0: now.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        let reports = self.legs.iter().filter_map(Leg::next_report);
        let media = self.legs.iter().filter_map(Leg::next_media);
        let plays = self
            .directions
            .iter()
            .filter_map(Direction::next_play_without_dtmf);
        let digits = self.directions.iter().filter_map(Direction::next_dtmf);
        let media = media
            .chain(plays)
            .chain(digits)
            .map(|due_ns| due_ns.saturating_sub(self.ahead_ns));
        let unasked = self.directions.iter().filter_map(Direction::next_unasked);
        reports.chain(media).chain(unasked).min()
    }

    /// Sets the treatment of this party's media.
    pub fn set_mode(&mut self, side: Side, mode: Mode) {
        let input = self.input(side);
        self.directions[input].set_mode(mode);
    }

    /// The current treatment of this party's media.
    #[must_use]
    pub fn mode(&self, side: Side) -> Mode {
        self.directions[self.input(side)].mode()
    }

    /// Plays a clip to this party instead of the other one's audio. A clip that is being played ends.
    ///
    /// # Errors
    /// The clip's rate or channels are not supported, or this party accepts no audio that can be encoded.
    pub fn play(&mut self, now_ns: u64, to: Side, clip: Clip) -> Result<(), PlayError> {
        self.play_part(now_ns, to, clip, Part::default())
    }

    /// Plays a part of a clip to this party.
    ///
    /// # Errors
    /// The same as for [`play`](Self::play).
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

    /// The rest of the clip that is being played to this party, if any.
    #[must_use]
    pub fn play_left(&self, to: Side) -> Option<PlayLeft> {
        self.directions[to.other() as usize].play_left()
    }

    /// Stops the clip that is being played to this party.
    pub fn stop_play(&mut self, to: Side) {
        self.directions[to.other() as usize].end_play();
    }

    /// Starts or stops copying this party's audio for listeners, in order, with losses concealed.
    pub fn tap(&mut self, side: Side, is_on: bool) {
        let input = self.input(side);
        self.directions[input].tap(is_on);
    }

    /// Takes this party's audio tapped since the last call, in order, piece by piece: at most [`TAP_NS_MAX`] of it.
    #[inline]
    pub fn take_tapped(&mut self, side: Side, hear: impl FnMut(Tapped<'_>)) {
        let input = self.input(side);
        self.directions[input].take_tapped(hear);
    }

    /// Number of this party's samples queued in the tap.
    #[must_use]
    pub fn tapped(&self, side: Side) -> usize {
        self.directions[self.input(side)].tapped()
    }

    /// Address of memory that this party's next packet touches if it is tapped, for prefetching. Not to be dereferenced.
    #[must_use]
    #[inline]
    pub fn tapped_address(&self, side: Side) -> usize {
        self.directions[self.input(side)].tapped_address()
    }

    /// A party's leg.
    #[must_use]
    pub fn leg(&self, side: Side) -> &Leg {
        &self.legs[side as usize]
    }

    /// A party's leg, for new signalling.
    pub fn leg_mut(&mut self, side: Side) -> &mut Leg {
        // Input and output of this leg are chosen again with the next packet.
        for direction in &mut self.directions {
            direction.reroute();
        }
        &mut self.legs[side as usize]
    }

    /// Sets whether later datagrams of this party have passed SRTP's authentication.
    pub fn set_authenticated(&mut self, side: Side, is_authenticated: bool) {
        self.legs[side as usize].set_authenticated(is_authenticated);
    }

    /// Changes the payload types that this party sends and accepts; numbers and timestamps continue.
    pub fn set_payloads(&mut self, side: Side, sends: Arc<PayloadMap>, takes: Arc<PayloadMap>) {
        let input = self.input(side);
        self.directions[input].set_sender(&sends);
        self.directions[side.other() as usize].set_receiver(&takes);
        self.leg_mut(side).set_payloads(sends, takes);
    }

    /// Makes both legs leave their sessions; one more poll sends the BYEs.
    pub fn leave(&mut self, now_ns: u64, reason: &str) {
        for leg in &mut self.legs {
            leg.leave(now_ns, reason);
        }
    }

    /// Addresses of memory that the next packets touch, for prefetching. Not to be dereferenced.
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

    /// The state that another process needs to continue the call. Settings are not part of it.
    #[must_use]
    pub fn snapshot(&self, now_ns: u64) -> CallState {
        CallState {
            legs: [0, 1].map(|side: usize| self.legs[side].snapshot(now_ns)),
            directions: [0, 1]
                .map(|side: usize| DirectionState::of(&self.directions[side], now_ns)),
        }
    }

    /// Hands over all packets received from a side that were not forwarded yet: [`Leg::give_up`](crate::leg::Leg::give_up).
    pub fn give_up(&mut self, now_ns: u64, side: Side, give: impl FnMut(u64, SocketAddr, &[u8])) {
        self.legs[side as usize].give_up(now_ns, give);
    }

    /// Continues from another process's state, with its SSRCs, and with numbers and timestamps that continue. Only for a call
    /// that has neither sent nor received. Returns how many sequence numbers were skipped towards each party, A first.
    pub fn restore(&mut self, now_ns: u64, state: &CallState, outage: Outage) -> [u16; 2] {
        Side::BOTH.map(|side| {
            let direction = &state.directions[side.other() as usize];
            let skipped_packets = outage.skipped_packets(direction.packet_ns);
            let leg = &state.legs[side as usize];
            self.legs[side as usize].restore(now_ns, leg, skipped_packets);
            if let Some(time) = direction.time {
                let to = &mut self.directions[side.other() as usize];
                to.restore_time(now_ns, time, outage.elapsed_ns);
            }
            skipped_packets
        })
    }

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
    /// ([`DirectionConfig::detect_keys`](DirectionConfig)), the tones after detection. The owner still gets events for
    /// them.
    pub fn block_keys(&mut self, side: Side, blocks: bool) {
        let input = self.input(side);
        self.directions[input].block_keys(blocks);
    }

    /// Sets whether this party's telephone events reach the other party even while its audio does not
    /// ([`Mode::Mute`](Mode),
    /// `Hold`).
    pub fn pass_keys(&mut self, side: Side, passes: bool) {
        let input = self.input(side);
        self.directions[input].pass_keys(passes);
    }

    /// Sets [`DirectionConfig::detect_keys`](DirectionConfig) of this party's audio.
    pub fn set_detect_keys(&mut self, side: Side, detects: bool) {
        let payloads = self.legs[side as usize].payloads().clone();
        let input = self.input(side);
        self.directions[input].set_detect_keys(detects, &payloads);
    }

    /// Sets [`DirectionConfig::makes_anew`](DirectionConfig) of this party's audio.
    pub fn set_makes_anew(&mut self, side: Side, makes_anew: bool) {
        let input = self.input(side);
        self.directions[input].set_makes_anew(makes_anew);
    }

    /// Sets [`DirectionConfig::packet_ns`](DirectionConfig) of this party's audio.
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

/// Changes or measures audio between decoding and encoding.
pub trait Filter: Send + std::fmt::Debug {
    /// Replaces whole frames of interleaved samples in `pcm` with processed ones. It may delay frames, but in the long run it
    /// returns as many as it got.
    fn process(&mut self, format: Format, pcm: &mut Vec<f32>);

    /// Appends the delayed frames at the end of the stream.
    fn finish(&mut self, format: Format, pcm: &mut Vec<f32>) {
        let _ = (format, pcm);
    }
}

/// Why a clip cannot be played.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlayError {
    /// The clip has no samples, or its last frame is incomplete.
    #[error("a clip of {0} samples: must be a whole number of frames, at least one")]
    Length(usize),
    /// The party accepts no audio that can be encoded.
    #[error("this party accepts no audio that can be encoded")]
    NoFormat,
    /// The clip's rate or number of channels is not supported.
    #[error("{rate_hz} Hz, {channels} channels: not supported")]
    Format {
        /// Its rate.
        rate_hz: u32,
        /// Its channels.
        channels: u8,
    },
}

/// Audio that a party can cause after its last packet: concealed losses, the end of a DTMF tone.
pub const TAIL_NS_MAX: u64 = 200_000_000;
/// Maximum audio queued in a tap.
pub const TAP_NS_MAX: u64 = 1_000_000_000;
/// Maximum size of an RTCP packet, bytes: packets of a session this small fit an Ethernet frame.
const RTCP_BYTES_MAX: usize = 1500;
