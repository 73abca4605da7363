//! Late packets: datagrams that arrived at a process other than the one that runs their call.

use std::net::SocketAddr;

use threadbare_rtp::call::Channel;

use crate::call::Datagram;
use crate::id::PortId;

/// A datagram that arrived at a process that no longer runs its call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatePacket {
    /// The port on which the datagram arrived.
    pub port: PortId,
    /// The sender.
    pub from: SocketAddr,
    /// Arrival time, ns of CLOCK_MONOTONIC.
    pub received_ns: u64,
    /// Whether the datagram is already decrypted, because it was in the jitter buffer.
    pub is_clear: bool,
    /// The bytes of the datagram.
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

    /// Returns the sequence number of an RTP packet, which SRTP does not encrypt. `mux` states whether each party multiplexes, A's first.
    pub(crate) fn seq(&self, mux: [bool; 2]) -> Option<u16> {
        let mux = mux.get(usize::from(self.port.leg)).copied()?;
        let channel = self.port.kind.channel().carried(mux, &self.bytes);
        let is_rtp = channel == Channel::Rtp;
        let seq = self.bytes.get(2..4).filter(|_| is_rtp)?;
        Some(u16::from_be_bytes([seq[0], seq[1]]))
    }
}

/// Handles late packets on the call's thread. It must not block.
pub type LatePacketHandler = Box<dyn FnMut(LatePacket) + Send>;

/// Packets that were received here while earlier ones may still come from the previous process. If a jitter buffer started with a later
/// packet, it would drop the earlier ones.
#[derive(Debug)]
pub(crate) struct Early {
    /// The time until which earlier packets may still come.
    until_ns: u64,
    /// The next number of each party's stream, A's first. `None`: any number may be next.
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

    /// Removes and returns the next packet, if no earlier one can arrive any more.
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

    /// Returns the distance from the party's next number to this packet. `None`: the packet has no number, or any number may be next.
    fn ahead(&self, packet: &LatePacket, mux: [bool; 2]) -> Option<i16> {
        let next = self.next.get(usize::from(packet.port.leg)).copied()??;
        Some(packet.seq(mux)?.wrapping_sub(next) as i16)
    }
}

/// Maximum number of bytes for one call, of both parties. It is half a second of wideband audio.
const EARLY_BYTES_MAX: usize = 64 << 10;
