//! A line goes from one process to another, which hears the same sender: what leaves stays one stream, without a gap. What a line knows of it is here; what it
//! does is in [`line_hold`](super::line_hold).
//!
//! The next process prepares: its line is *held*. A held line hears its senders, and what it would send is dropped [`HOLD_NS`] after it was due. The
//! process before stops between two packets, and tells by a [`LineState`] which was the last one. The held line passes on what comes behind that one,
//! with the numbers and timestamps that follow.

use super::time_map::{Anchor, TimeState};
use crate::id::{SeqNum, Ssrc};
use crate::leg::{Delivery, Media, SentState};

/// Where a line has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineState {
    /// Our stream.
    pub sent: SentState,
    /// Its timestamps; `None`: nothing was sent, or packets are passed on as they come.
    pub time: Option<TimeState>,
    /// The sender that was heard, and the last of its packets that was passed on.
    pub passed: Option<Passed>,
}

/// How far a sender's stream was passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    /// The sender's stream.
    pub ssrc: Ssrc,
    /// Its last packet.
    pub seq: SeqNum,
    /// Which timestamps of ours are which of the sender's.
    pub anchor: Option<Anchor>,
}

/// That a line sends nothing. In a box: most lines are never held.
#[derive(Debug)]
pub(super) enum Hold {
    On,
    /// The next poll is the first that sends.
    Ending(Option<LineState>),
}

impl Hold {
    /// How much later than due a packet is dropped that is not sent.
    #[inline]
    pub(super) fn delay_ns(&self) -> u64 {
        match self {
            Hold::On => HOLD_NS,
            Hold::Ending(_) => 0,
        }
    }
}

/// Whether another process has passed this on: all up to `until`.
#[inline]
pub(super) fn is_passed_on(until: &mut Option<SeqNum>, media: &Media<'_>) -> bool {
    let Some(last) = *until else { return false };
    let is_behind = match media {
        Media::Packet(packet) if packet.delivery == Delivery::Beside => true,
        Media::Packet(packet) => number(packet.whole).distance_from(last) > 0,
        Media::Lost { .. } => false,
        Media::Restart => true,
    };
    if is_behind {
        *until = None;
    }
    !is_behind
}

/// How far the sender's stream is passed on with this.
#[inline]
pub(super) fn note_passed(last: &mut Option<SeqNum>, media: &Media<'_>) {
    match media {
        Media::Packet(packet) if packet.delivery == Delivery::Beside => {}
        Media::Packet(packet) => *last = Some(number(packet.whole)),
        Media::Lost { .. } => {}
        Media::Restart => *last = None,
    }
}

/// Of an RTP packet. One that is in a leg's store has a whole header.
#[inline]
fn number(packet: &[u8]) -> SeqNum {
    match packet {
        [_, _, high, low, ..] => SeqNum(u16::from_be_bytes([*high, *low])),
        _ => SeqNum(0),
    }
}

/// Longer than it takes to tell the next process, by a store on another machine that is busy.
pub const HOLD_NS: u64 = 500_000_000;
