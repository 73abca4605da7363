//! All kinds of media sessions as one type, for one engine.

use threadbare_rtp::call::{SessionError, SessionSpec};

use crate::audio::AudioSession;
use crate::call::{Call, Datagram, Outbox};
use crate::diverted::Diverted;
use crate::forward::{Forward, ForwardSpec};
use crate::late_packet::{LatePacket, LatePacketHandler};

/// A media session of a call, for one `m=` line of its SDP. It is audio, or data that are only forwarded.
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all are audio, whose fields are fetched with the call"
)]
pub enum MediaSession {
    /// Audio that is parsed.
    Audio(AudioSession),
    /// Datagrams of another kind.
    Forward(Forward),
    /// Datagrams that go to another process: see [`MediaSession::divert`].
    Diverted(Diverted),
}

/// The specification of a [`MediaSession`].
#[derive(Debug, Clone)]
pub enum MediaSpec {
    /// That of audio.
    Audio(Box<SessionSpec>),
    /// That of datagrams of another kind.
    Forward(Box<ForwardSpec>),
}

impl MediaSession {
    /// Makes the running session what `spec` says. A session of another kind than the specification's does not change.
    ///
    /// # Errors
    /// Fails as [`AudioSession::apply`] does.
    pub fn apply(&mut self, now_ns: u64, spec: MediaSpec) -> Result<(), SessionError> {
        match (self, spec) {
            (MediaSession::Audio(audio), MediaSpec::Audio(spec)) => audio.apply(now_ns, *spec),
            (MediaSession::Forward(forward), MediaSpec::Forward(spec)) => {
                forward.apply(now_ns, *spec);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns the audio session, if this is one.
    pub fn audio_mut(&mut self) -> Option<&mut AudioSession> {
        match self {
            MediaSession::Audio(call) => Some(call),
            MediaSession::Forward(_) | MediaSession::Diverted(_) => None,
        }
    }

    /// Returns the session that forwards, if this is one.
    pub fn forward_mut(&mut self) -> Option<&mut Forward> {
        match self {
            MediaSession::Audio(_) | MediaSession::Diverted(_) => None,
            MediaSession::Forward(forward) => Some(forward),
        }
    }
}

impl MediaSession {
    /// Stops sending. Packets that were not played yet, and later packets, go to `take`, up to
    /// [`LATE_PACKET_BYTES_MAX`](crate::LATE_PACKET_BYTES_MAX) bytes.
    pub fn divert(&mut self, now_ns: u64, take: LatePacketHandler) {
        let mut diverted = Diverted::new(take);
        if let MediaSession::Audio(media) = self {
            media.give_up(now_ns, &mut |packet| diverted.give(packet));
        }
        *self = MediaSession::Diverted(diverted);
    }

    /// Handles packets that arrived at the previous process, all together. The packets of a party are handled in the order of their
    /// numbers, because a jitter buffer that starts with a later one would drop the earlier ones.
    pub fn handle_late_packets(&mut self, now_ns: u64, mut late_packets: Vec<LatePacket>) {
        let mux = match self {
            MediaSession::Audio(media) => media.mux(),
            MediaSession::Forward(forward) => forward.mux(),
            MediaSession::Diverted(_) => [false; 2],
        };
        let first = |leg: u8| {
            late_packets
                .iter()
                .find(|one| one.port.leg == leg)?
                .seq(mux)
        };
        let firsts = [first(0), first(1)];
        late_packets.sort_by_key(|one| {
            let first = firsts.get(usize::from(one.port.leg)).copied().flatten();
            let since = one.seq(mux).zip(first);
            since.map(|(seq, first)| seq.wrapping_sub(first) as i16)
        });
        for packet in late_packets {
            self.handle_late_packet(now_ns, packet);
        }
    }

    fn handle_late_packet(&mut self, now_ns: u64, mut packet: LatePacket) {
        match self {
            MediaSession::Audio(media) if packet.is_clear => media.handle_clear(now_ns, &packet),
            _ if packet.is_clear => {}
            _ => self.handle_datagram(
                now_ns,
                Datagram {
                    port: packet.port,
                    from: packet.from,
                    received_ns: packet.received_ns.min(now_ns),
                    bytes: &mut packet.bytes,
                },
            ),
        }
    }
}

impl From<AudioSession> for MediaSession {
    fn from(call: AudioSession) -> MediaSession {
        MediaSession::Audio(call)
    }
}

impl From<Forward> for MediaSession {
    fn from(forward: Forward) -> MediaSession {
        MediaSession::Forward(forward)
    }
}

impl Call for MediaSession {
    #[inline]
    fn handle_datagram(&mut self, now_ns: u64, datagram: Datagram<'_>) {
        match self {
            MediaSession::Audio(call) => call.handle_datagram(now_ns, datagram),
            MediaSession::Forward(forward) => forward.handle_datagram(now_ns, datagram),
            MediaSession::Diverted(diverted) => diverted.handle_datagram(now_ns, datagram),
        }
    }

    #[inline]
    fn poll_transmit(&mut self, now_ns: u64, may_lose: bool, out: &mut dyn Outbox) {
        match self {
            MediaSession::Audio(call) => call.poll_transmit(now_ns, may_lose, out),
            MediaSession::Forward(forward) => forward.poll_transmit(now_ns, may_lose, out),
            MediaSession::Diverted(diverted) => diverted.poll_transmit(now_ns, may_lose, out),
        }
    }

    #[inline]
    fn next_timeout(&self) -> Option<u64> {
        match self {
            MediaSession::Audio(call) => call.next_timeout(),
            MediaSession::Forward(forward) => forward.next_timeout(),
            MediaSession::Diverted(diverted) => diverted.next_timeout(),
        }
    }

    #[inline]
    fn prefetch(&self) {
        match self {
            MediaSession::Audio(call) => call.prefetch(),
            MediaSession::Forward(forward) => forward.prefetch(),
            MediaSession::Diverted(diverted) => diverted.prefetch(),
        }
    }
}
