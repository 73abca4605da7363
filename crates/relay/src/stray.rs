//! Datagrams that came to another process than the one that carries their call.

use std::net::SocketAddr;

use threadbare_rtp::call::Channel;

use crate::call::Datagram;
use crate::id::PortId;

/// A datagram that came to a process that does not carry its call any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    /// The port that it came to.
    pub port: PortId,
    /// The sender.
    pub from: SocketAddr,
    /// When it came, ns of CLOCK_MONOTONIC.
    pub received_ns: u64,
    /// What protected it is off already: it was waiting in the jitter buffer.
    pub is_clear: bool,
    /// The datagram.
    pub bytes: Vec<u8>,
}

impl Stray {
    /// The same by itself.
    pub(crate) fn of(datagram: &Datagram<'_>) -> Stray {
        Stray {
            port: datagram.port,
            from: datagram.from,
            received_ns: datagram.received_ns,
            is_clear: false,
            bytes: datagram.bytes.to_vec(),
        }
    }

    /// The number of an RTP packet. SRTP leaves it as it is. `mux`: whether each party multiplexes, A's first.
    pub(crate) fn seq(&self, mux: [bool; 2]) -> Option<u16> {
        let mux = mux.get(usize::from(self.port.leg)).copied()?;
        let channel = self.port.kind.channel().carried(mux, &self.bytes);
        let is_rtp = channel == Channel::Rtp;
        let seq = self.bytes.get(2..4).filter(|_| is_rtp)?;
        Some(u16::from_be_bytes([seq[0], seq[1]]))
    }
}

/// Takes strays, on the call's thread: it must not block.
pub type StrayTaker = Box<dyn FnMut(Stray) + Send>;

/// Packets that have come by themselves, while earlier ones may still be on their way from the process before: a jitter buffer that begins with a later one
/// has missed the earlier ones.
#[derive(Debug)]
pub(crate) struct Early {
    /// It is over then.
    until_ns: u64,
    /// The number that each party's stream goes on with, A's first; `None`: with any.
    next: [Option<u16>; 2],
    held: Vec<Stray>,
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

    /// What there is no room for, is lost.
    pub(crate) fn add(&mut self, stray: Stray) {
        if let Some(left) = self.room_bytes.checked_sub(stray.bytes.len()) {
            self.room_bytes = left;
            self.held.push(stray);
        }
    }

    /// What is to be taken now: the earliest that nothing can come before.
    pub(crate) fn pop(&mut self, now_ns: u64, mux: [bool; 2]) -> Option<Stray> {
        let held = self.held.iter().enumerate();
        let (ahead, at) = held.map(|(at, stray)| (self.ahead(stray, mux), at)).min()?;
        if ahead > Some(0) && now_ns < self.until_ns {
            return None;
        }
        let stray = self.held.remove(at);
        self.room_bytes += stray.bytes.len();
        let next = self.next.get_mut(usize::from(stray.port.leg));
        if let (Some(next), Some(seq)) = (next, stray.seq(mux))
            && ahead >= next.map(|_| 0)
        {
            *next = Some(seq.wrapping_add(1));
        }
        Some(stray)
    }

    /// How many numbers are between the party's next packet and this one; `None`: it has no number, or any is the next.
    fn ahead(&self, stray: &Stray, mux: [bool; 2]) -> Option<i16> {
        let next = self.next.get(usize::from(stray.port.leg)).copied()??;
        Some(stray.seq(mux)?.wrapping_sub(next) as i16)
    }
}

/// Of one call, both parties: half a second of wide-band audio.
const EARLY_BYTES_MAX: usize = 64 << 10;
