//! Late packets: datagrams that arrived at another process than the one that runs their call.

use std::net::SocketAddr;

use threadbare_rtp::call::Channel;

use crate::call::Datagram;
use crate::id::PortId;

/// A datagram that arrived at a process that does not run its call any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatePacket {
    /// The port that it arrived on.
    pub port: PortId,
    /// The sender.
    pub from: SocketAddr,
    /// Arrival time, ns of CLOCK_MONOTONIC.
    pub received_ns: u64,
    /// Whether it is already decrypted, because it was queued in the jitter buffer.
    pub is_clear: bool,
    /// The datagram.
    pub bytes: Vec<u8>,
}

impl LatePacket {
    /// Returns an owned copy of a datagram.
    pub(crate) fn of(datagram: &Datagram<'_>) -> LatePacket {
        LatePacket {
            port: datagram.port,
            from: datagram.from,
            received_ns: datagram.received_ns,
            is_clear: false,
            bytes: datagram.bytes.to_vec(),
        }
    }

    /// Returns the sequence number of an RTP packet. SRTP does not encrypt it. `mux`: whether each party multiplexes, A's first.
    pub(crate) fn seq(&self, mux: [bool; 2]) -> Option<u16> {
        let mux = mux.get(usize::from(self.port.leg)).copied()?;
        let channel = self.port.kind.channel().carried(mux, &self.bytes);
        let is_rtp = channel == Channel::Rtp;
        let seq = self.bytes.get(2..4).filter(|_| is_rtp)?;
        Some(u16::from_be_bytes([seq[0], seq[1]]))
    }
}

/// Takes late packets on the call's thread: it must not block.
pub type LatePacketHandler = Box<dyn FnMut(LatePacket) + Send>;

/// Packets received here while earlier ones may still be on their way from the previous process. A jitter buffer that started
/// with a later one would miss the earlier ones.
#[derive(Debug)]
pub(crate) struct Early {
    /// End of the diversion.
    until_ns: u64,
    /// The next number of each party's stream, A's first; `None`: any number.
    next: [Option<u16>; 2],
    held: Vec<LatePacket>,
    room_bytes: usize,
}

impl Early {
    pub(crate) fn new(until_ns: u64, next: [Option<u16>; 2]) -> Early {
        Early {
            until_ns,
            next,
            held: Vec::new(),
            room_bytes: EARLY_BYTES_MAX,
        }
    }

    pub(crate) fn until_ns(&self) -> u64 {
        self.until_ns
    }

    /// Adds a packet, or drops it if the queue is full.
    pub(crate) fn add(&mut self, packet: LatePacket) {
        if let Some(left) = self.room_bytes.checked_sub(packet.bytes.len()) {
            self.room_bytes = left;
            self.held.push(packet);
        }
    }

    /// Takes the next packet, if no earlier one can arrive any more.
    pub(crate) fn pop(&mut self, now_ns: u64, mux: [bool; 2]) -> Option<LatePacket> {
        let held = self.held.iter().enumerate();
        let (ahead, at) = held
            .map(|(at, packet)| (self.ahead(packet, mux), at))
            .min()?;
        if ahead > Some(0) && now_ns < self.until_ns {
            return None;
        }
        let packet = self.held.remove(at);
        self.room_bytes += packet.bytes.len();
        let next = self.next.get_mut(usize::from(packet.port.leg));
        if let (Some(next), Some(seq)) = (next, packet.seq(mux))
            && ahead >= next.map(|_| 0)
        {
            *next = Some(seq.wrapping_add(1));
        }
        Some(packet)
    }

    /// Returns the distance from the party's next number to this packet; `None`: it has no number, or any number is next.
    fn ahead(&self, packet: &LatePacket, mux: [bool; 2]) -> Option<i16> {
        let next = self.next.get(usize::from(packet.port.leg)).copied()??;
        Some(packet.seq(mux)?.wrapping_sub(next) as i16)
    }
}

/// Limit for one call, both parties: half a second of wideband audio.
const EARLY_BYTES_MAX: usize = 64 << 10;
