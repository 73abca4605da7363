//! The output of a direction.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::concealers::Concealers;
use super::{Channel, LegId, Outgoing};
use crate::id::{RtpTime, SeqNum, Ssrc};
use crate::leg::{HEADER_BYTES, Leg, MediaPacket, Payload, PayloadMap, Stamp};

/// Working memory for all calls of a thread.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The packet that is being built.
    pub(super) packet: Vec<u8>,
    /// Audio that is being converted.
    pub(super) work: Work,
    /// A received packet.
    pub(super) payload: Vec<u8>,
    pub(super) made: Made,
}

/// Packets that a transcoder has produced.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// The bytes of all datagrams, and the position at which each one ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    taken: usize,
}

impl Made {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.taken = 0;
    }

    #[inline]
    pub(super) fn push(&mut self, packet: &[u8]) {
        self.bytes.extend_from_slice(packet);
        self.ends.push(self.bytes.len());
    }

    /// Returns the number of packets that were not taken yet.
    pub(super) fn len(&self) -> usize {
        self.ends.len() - self.taken
    }

    /// Takes the next packet.
    pub(super) fn next(&mut self) -> Option<&[u8]> {
        let end = *self.ends.get(self.taken)?;
        let start = match self.taken {
            0 => 0,
            taken => self.ends[taken - 1],
        };
        self.taken += 1;
        self.bytes.get(start..end)
    }
}

impl Scratch {
    /// Sets the budget for optional work, which is the concealment of losses. A unit costs about [`SPARE_UNIT_NS`]. At first the budget is
    /// unlimited. Set one if the thread is short of time. Losses beyond the budget are left to the far side, as gaps in the numbers.
    pub fn set_spare(&mut self, units: u32) {
        self.work.spare = units;
    }

    /// Returns the number of packets of a [`Transcoder`](super::Transcoder) that were not taken yet.
    #[must_use]
    pub fn made(&self) -> usize {
        self.made.len()
    }

    /// Returns the budget that is left for optional work.
    #[must_use]
    pub fn spare(&self) -> u32 {
        self.work.spare
    }
}

impl Default for Work {
    fn default() -> Work {
        Work {
            decoded: Vec::new(),
            converted: Vec::new(),
            concealers: Concealers::default(),
            spare: u32::MAX,
        }
    }
}

impl Work {
    /// Takes `units` from the budget. Returns `false` if the budget is empty. Work that exceeds what is left is still done once, because a
    /// small rest would otherwise never be used.
    pub(super) fn spend(&mut self, units: u32) -> bool {
        let is_left = self.spare > 0;
        self.spare = self.spare.saturating_sub(units);
        is_left
    }
}

/// Working memory for audio on its way from one codec to the other.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) decoded: Vec<f32>,
    pub(super) converted: Vec<f32>,
    pub(super) concealers: Concealers,
    spare: u32,
}

/// The source of sequence numbers: a leg, or a [`Writer`] if there is no leg.
pub(super) enum Sending<'a> {
    Leg(&'a mut Leg),
    Writer(&'a mut Writer),
}

/// Numbers packets that another sender will send.
#[derive(Debug)]
pub(super) struct Writer {
    /// Payload types that the far side accepts.
    pub(super) takes: Arc<PayloadMap>,
    pub(super) ssrc: Ssrc,
    pub(super) seq: SeqNum,
}

impl Sending<'_> {
    #[inline]
    pub(super) fn takes(&self) -> &Arc<PayloadMap> {
        match self {
            Sending::Leg(leg) => leg.takes(),
            Sending::Writer(writer) => &writer.takes,
        }
    }

    /// Writes the header of a packet. If `seq` is set, it is the packet's number, else the next number is used. Returns the packet's
    /// destination. `None`: there is no destination, and nothing is written.
    #[inline]
    fn packetize(
        &mut self,
        now_ns: u64,
        seq: Option<SeqNum>,
        stamp: Stamp,
        payload_bytes: usize,
        out: &mut [u8; HEADER_BYTES],
    ) -> Option<SocketAddr> {
        let seq = seq.unwrap_or_else(|| self.next_seq());
        match self {
            Sending::Leg(leg) => leg.packetize_as(now_ns, seq, stamp, payload_bytes, out),
            Sending::Writer(writer) => {
                stamp.write(seq, writer.ssrc, out);
                writer.seq = seq.plus(1);
                Some(SOMEWHERE)
            }
        }
    }

    /// Returns the number of the next packet.
    #[inline]
    pub(super) fn next_seq(&self) -> SeqNum {
        match self {
            Sending::Leg(leg) => leg.next_seq(),
            Sending::Writer(writer) => writer.seq,
        }
    }

    /// Whether packets have a destination.
    pub(super) fn has_destination(&self) -> bool {
        match self {
            Sending::Leg(leg) => leg.rtp_to().is_some(),
            Sending::Writer(_) => true,
        }
    }

    pub(super) fn skip(&mut self, packets: u32) {
        match self {
            Sending::Leg(leg) => leg.skip(packets),
            Sending::Writer(writer) => writer.seq = writer.seq.plus(packets as u16),
        }
    }

    pub(super) fn set_sent_clock_rate(&mut self, clock_rate_hz: u32) {
        if let Sending::Leg(leg) = self {
            leg.set_sent_clock_rate(clock_rate_hz);
        }
    }
}

/// A placeholder for the address, which the actual sender knows.
const SOMEWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The leg that sends, and the consumer of its datagrams.
pub(super) struct Out<'a> {
    pub(super) now_ns: u64,
    /// The leg that sends, and the number of its ports.
    pub(super) leaves: Leaves,
    pub(super) leg: Sending<'a>,
    pub(super) packet: &'a mut Vec<u8>,
    pub(super) send: &'a mut dyn FnMut(Outgoing<'_>),
    /// The number of the next packet. `None`: the leg's next number.
    pub(super) number: Option<Number>,
}

/// The ports that packets leave from.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Leaves {
    pub(super) leg: LegId,
    pub(super) ports: u8,
}

impl Leaves {
    /// Returns the ports that the packets of a leg leave from. `is_shared` means that the first two legs use the same ports.
    #[inline]
    pub(super) fn of(leg: usize, is_shared: bool) -> Leaves {
        Leaves {
            leg: LegId(leg as u8),
            ports: (leg - usize::from(is_shared && leg > 0)) as u8,
        }
    }
}

/// The number of a packet that is forwarded directly.
#[derive(Debug, Clone, Copy)]
pub(super) struct Number {
    pub(super) seq: SeqNum,
    /// Whether later packets have already been sent.
    pub(super) is_late: bool,
}

impl Out<'_> {
    /// Starts a packet. The caller appends the payload to the result.
    #[inline]
    pub(super) fn begin(&mut self) -> &mut Vec<u8> {
        self.packet.clear();
        self.packet.extend_from_slice(&[0; HEADER_BYTES]);
        self.packet
    }

    /// Sends the packet that was started.
    #[inline]
    pub(super) fn send(&mut self, payload: &Payload, time: RtpTime, marker: bool, elapsed: u32) {
        let payload_bytes = self.packet.len() - HEADER_BYTES;
        let stamp = Stamp {
            payload_type: payload.payload_type,
            time,
            marker,
            elapsed,
        };
        let Some(header) = self.packet.first_chunk_mut() else {
            return;
        };
        let number = self.number;
        let seq = number.map(|number| number.seq);
        let to = self
            .leg
            .packetize(self.now_ns, seq, stamp, payload_bytes, header);
        if let Some(to) = to {
            self.number = None;
            self.pass(to);
        }
    }

    /// Sends a received packet with all bytes unchanged.
    #[inline]
    pub(super) fn forward(&mut self, packet: &MediaPacket<'_>) {
        if let Sending::Leg(leg) = &mut self.leg
            && let Some(to) = leg.forward(self.now_ns, packet)
        {
            (self.send)(Outgoing {
                leg: self.leaves.leg,
                ports: self.leaves.ports,
                leaves_from: Channel::Rtp,
                channel: Channel::Rtp,
                to,
                bytes: packet.whole,
            });
        }
    }

    /// Whether packets after the next one have already been sent.
    #[inline]
    pub(super) fn is_late(&self) -> bool {
        self.number.is_some_and(|number| number.is_late)
    }

    fn pass(&mut self, to: SocketAddr) {
        (self.send)(Outgoing {
            leg: self.leaves.leg,
            ports: self.leaves.ports,
            leaves_from: Channel::Rtp,
            channel: Channel::Rtp,
            to,
            bytes: self.packet,
        });
    }
}

/// Time that a unit of [`Scratch::set_spare`] stands for, ns. Concealing 20 ms of G.711 takes this long.
pub const SPARE_UNIT_NS: u64 = 5_000;
