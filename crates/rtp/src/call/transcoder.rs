//! Converts one direction without legs, for callers with their own sessions and jitter buffers. The input consists of packets in order and
//! of losses, and the output of packets.

use std::sync::Arc;

use super::direction::{Direction, DirectionStats, units_of};
use super::out::{Leaves, Out, Scratch, Sending, Writer};
use super::{DirectionConfig, Outgoing, SessionError};
use crate::id::{RtpTime, SeqNum, Ssrc};
use crate::leg::{Delivery, Lost, Media, MediaPacket, Payload, PayloadMap};
use crate::packet::Packet;

/// Settings of a [`Transcoder`].
#[derive(Debug, Clone)]
pub struct TranscoderConfig {
    /// Payload types of the input.
    pub from: Arc<PayloadMap>,
    /// Whether payload types that are missing in `from` are treated as the audio of `from`.
    pub is_any_audio: bool,
    /// Payload types of the output, the preferred audio first.
    pub to: Arc<PayloadMap>,
    /// Settings of the conversion.
    pub direction: DirectionConfig,
    /// The outgoing SSRC.
    pub ssrc: Ssrc,
    /// The first outgoing sequence number, which must be random (RFC 3550, section 5.1).
    pub first_seq: SeqNum,
}

/// An outgoing packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transcoded<'a> {
    /// The packet.
    pub bytes: &'a [u8],
    /// Play time of the packet's first sample, ns, on the clock of the incoming packets.
    pub play_ns: u64,
}

/// Converts one direction: see the module documentation. Outgoing sequence numbers are consecutive. Losses are concealed, with no more
/// audio than was received.
///
/// **Contract.** After each `handle_*`, [`finish`](Self::finish) and [`reconfigure`](Self::reconfigure), drain
/// [`poll_packet`](Self::poll_packet) with the same scratch, before another transcoder uses it.
#[derive(Debug)]
pub struct Transcoder {
    from: Arc<PayloadMap>,
    is_any_audio: bool,
    direction: Direction,
    config: DirectionConfig,
    writer: Writer,
    last_ssrc: Option<Ssrc>,
    /// The expected timestamp of the next packet.
    next_time: RtpTime,
    next_play_ns: u64,
    clock_rate_hz: u32,
    packets_made: u64,
    malformed: u64,
}

impl Transcoder {
    /// Creates a transcoder.
    ///
    /// # Errors
    /// Fails if the packet time is not possible with the format.
    pub fn new(config: TranscoderConfig) -> Result<Transcoder, SessionError> {
        let mut direction = Direction::new(config.direction, &config.to)?;
        direction.mend_all();
        Ok(Transcoder {
            clock_rate_hz: config.from.audio().clock_rate_hz,
            from: config.from,
            is_any_audio: config.is_any_audio,
            direction,
            config: config.direction,
            writer: Writer {
                takes: config.to,
                ssrc: config.ssrc,
                seq: config.first_seq,
            },
            last_ssrc: None,
            next_time: RtpTime(0),
            next_play_ns: 0,
            packets_made: 0,
            malformed: 0,
        })
    }

    /// Changes the formats. The outgoing stream continues with its SSRC, numbers and timestamps.
    ///
    /// # Errors
    /// Fails as [`new`](Self::new) does. In this case, nothing changes.
    pub fn reconfigure(
        &mut self,
        config: TranscoderConfig,
        scratch: &mut Scratch,
    ) -> Result<(), SessionError> {
        let mut direction = Direction::new(config.direction, &config.to)?;
        direction.mend_all();
        self.finish(scratch);
        let old = std::mem::replace(&mut self.direction, direction);
        self.direction.succeed(old);
        self.clock_rate_hz = config.from.audio().clock_rate_hz;
        (self.from, self.is_any_audio) = (config.from, config.is_any_audio);
        self.config = config.direction;
        self.writer.takes = config.to;
        Ok(())
    }

    /// Handles the next packet in order. It is played at `play_ns`, or right after the previous one if that is `None`. `is_restart` means
    /// that its number and timestamp do not follow from the previous packets.
    pub fn handle_packet(
        &mut self,
        bytes: &[u8],
        play_ns: Option<u64>,
        is_restart: bool,
        scratch: &mut Scratch,
    ) {
        scratch.made.clear();
        let Ok(packet) = Packet::parse(bytes) else {
            self.malformed += 1;
            return;
        };
        if is_restart || self.last_ssrc.is_some_and(|last| last != packet.ssrc()) {
            self.handle(Media::Restart, scratch);
            self.next_time = packet.time();
        }
        let play_ns = play_ns.unwrap_or_else(|| self.guess_play_ns(packet.time()));
        self.last_ssrc = Some(packet.ssrc());
        let audio = *self.from.audio();
        let known = self.from.get(packet.payload_type()).copied();
        let payload = known.or(self.is_any_audio.then_some(audio));
        if let Some(payload) = payload.filter(Payload::is_audio) {
            let units = units_of(&payload, packet.payload());
            self.next_time = packet.time().plus(units);
            self.next_play_ns = play_ns.saturating_add(self.ns_of(units));
        }
        self.handle(
            Media::Packet(MediaPacket {
                payload: payload.as_ref(),
                bytes: packet.payload(),
                whole: bytes,
                time: packet.time(),
                own_time: packet.time(),
                marker: packet.marker(),
                play_ns,
                discont: is_restart,
                delivery: Delivery::Ordered,
            }),
            scratch,
        );
    }

    /// Handles a loss of `duration_ns`, which begins at `play_ns`, or right after the previous packet if that is `None`.
    pub fn handle_loss(&mut self, play_ns: Option<u64>, duration_ns: u64, scratch: &mut Scratch) {
        scratch.made.clear();
        if self.last_ssrc.is_none() {
            return;
        }
        let play_ns = play_ns.unwrap_or(self.next_play_ns);
        self.handle(
            Media::Lost(Lost {
                packets: 1,
                time: self.next_time,
                play_ns,
                duration_ns,
                is_sent: false,
                next: &[],
            }),
            scratch,
        );
        let units = u128::from(duration_ns) * u128::from(self.clock_rate_hz) / 1_000_000_000;
        self.next_time = self.next_time.plus(units as u32);
        self.next_play_ns = play_ns.saturating_add(duration_ns);
    }

    /// Ends the stream. Queued audio can be taken now.
    pub fn finish(&mut self, scratch: &mut Scratch) {
        scratch.made.clear();
        self.with_out(scratch, |direction, work, out| direction.finish(work, out));
    }

    fn handle(&mut self, media: Media<'_>, scratch: &mut Scratch) {
        self.with_out(scratch, |direction, work, out| {
            direction.handle(media, work, out);
        });
    }

    fn with_out(
        &mut self,
        scratch: &mut Scratch,
        work: impl FnOnce(&mut Direction, &mut super::out::Work, &mut Out<'_>),
    ) {
        let Scratch {
            packet,
            work: audio,
            made,
            ..
        } = scratch;
        let before = made.len();
        let mut send = |outgoing: Outgoing<'_>| made.push(outgoing.bytes);
        let mut out = Out {
            now_ns: self.next_play_ns,
            leaves: Leaves::default(),
            leg: Sending::Writer(&mut self.writer),
            packet,
            send: &mut send,
            number: None,
        };
        work(&mut self.direction, audio, &mut out);
        self.packets_made += (made.len() - before) as u64;
    }

    /// Returns the next outgoing packet.
    pub fn poll_packet<'a>(&mut self, scratch: &'a mut Scratch) -> Option<Transcoded<'a>> {
        let bytes = scratch.made.next()?;
        let time = bytes.get(4..8)?.try_into().ok()?;
        let time = RtpTime(u32::from_be_bytes(time));
        let play_ns = self.direction.play_ns(time);
        Some(Transcoded {
            bytes,
            play_ns: play_ns.unwrap_or(self.next_play_ns),
        })
    }

    /// Returns the total number of packets produced.
    #[must_use]
    pub fn packets_made(&self) -> u64 {
        self.packets_made
    }

    /// Changes the outgoing SSRC, after a collision.
    pub fn set_ssrc(&mut self, ssrc: Ssrc) {
        self.writer.ssrc = ssrc;
    }

    /// Returns the outgoing SSRC.
    #[must_use]
    pub fn ssrc(&self) -> Ssrc {
        self.writer.ssrc
    }

    /// Returns the next outgoing sequence number.
    #[must_use]
    pub fn next_seq(&self) -> SeqNum {
        self.writer.seq
    }

    /// Returns the longest time that audio waits until a packet is full, ns.
    #[must_use]
    pub fn delay_ns(&self) -> u64 {
        self.config.packet_ns
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> DirectionStats {
        let stats = self.direction.stats();
        DirectionStats {
            undecodable: stats.undecodable + self.malformed,
            ..stats
        }
    }

    /// Derives the play time from the distance of the timestamp to that of the previous packet.
    fn guess_play_ns(&self, time: RtpTime) -> u64 {
        let units = time.distance_from(self.next_time);
        let ns = self.ns_of(units.unsigned_abs().min(u64::from(u32::MAX)) as u32);
        if units < 0 || self.last_ssrc.is_none() {
            self.next_play_ns
        } else {
            self.next_play_ns.saturating_add(ns)
        }
    }

    fn ns_of(&self, units: u32) -> u64 {
        u64::from(units) * 1_000_000_000 / u64::from(self.clock_rate_hz)
    }
}
