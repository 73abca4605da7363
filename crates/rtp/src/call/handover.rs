//! Hands over a stream from one process to another that hears the same sender. The outgoing stream continues without a gap. The state is
//! defined here, and the code in [`poll`](super::poll) uses it.
//!
//! The next process prepares by *holding* its session. A held session receives from its senders, but sends nothing. It drops each output
//! packet [`HOLD_NS`] after the packet was due. The previous process stops between two packets and passes on a [`SessionState`], which
//! names the last packet that it sent. The held session continues after that packet, with the numbers and timestamps that follow.

use super::SessionState;
use crate::id::SeqNum;
use crate::leg::{Delivery, Media};

/// The state of a stream that receives without sending. It is boxed, because most streams are never held.
#[derive(Debug)]
pub(super) enum Hold {
    On,
    /// The next poll is the first one that sends.
    Ending(Option<SessionState>),
}

impl Hold {
    /// Returns the time after which an unsent packet is dropped, counted from when it was due.
    #[inline]
    pub(super) fn delay_ns(&self) -> u64 {
        match self {
            Hold::On => HOLD_NS,
            Hold::Ending(_) => 0,
        }
    }
}

/// Whether another process has forwarded this packet. It has forwarded all packets up to `until`.
#[inline]
pub(super) fn is_passed_on(until: &mut Option<SeqNum>, media: &Media<'_>) -> bool {
    let Some(last) = *until else { return false };
    let is_behind = match media {
        Media::Packet(packet) if packet.delivery == Delivery::Beside => true,
        Media::Packet(packet) => number(packet.whole).distance_from(last) > 0,
        Media::Lost(_) => false,
        Media::Restart => true,
    };
    if is_behind {
        *until = None;
    }
    !is_behind
}

/// Notes that this packet of the sender was forwarded.
#[inline]
pub(super) fn note_passed(last: &mut Option<SeqNum>, media: &Media<'_>) {
    match media {
        Media::Packet(packet) if packet.delivery == Delivery::Beside => {}
        Media::Packet(packet) => *last = Some(number(packet.whole)),
        Media::Lost(_) => {}
        Media::Restart => *last = None,
    }
}

/// Returns the sequence number of an RTP packet. A packet in a leg's store has a whole header.
#[inline]
fn number(packet: &[u8]) -> SeqNum {
    match packet {
        [_, _, high, low, ..] => SeqNum(u16::from_be_bytes([*high, *low])),
        _ => SeqNum(0),
    }
}

/// Time for which a held session keeps packets, ns. It is longer than the previous process takes to report to the next one through a busy
/// store on another machine.
pub const HOLD_NS: u64 = 500_000_000;
