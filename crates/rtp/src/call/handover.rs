//! A line goes from one process to another, which hears the same sender: what leaves stays one stream, without a gap.
//!
//! The next process prepares: its line is *held*. A held line hears its senders, and what it would send is dropped [`HOLD_NS`] after it was due. The
//! process before stops between two packets, and tells by a [`LineState`] which was the last one. The held line passes on what comes behind that one,
//! with the numbers and timestamps that follow.

use super::line::{Line, LineDatagram};
use super::out::Scratch;
use super::time_map::{Anchor, TimeState};
use crate::id::{SeqNum, Ssrc};
use crate::leg::{Media, SentState};

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

/// Whether a line sends.
#[derive(Debug, Default)]
pub(super) enum Hold {
    #[default]
    Off,
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
            Hold::Off | Hold::Ending(_) => 0,
        }
    }
}

impl Line {
    /// Hears, and sends nothing, until [`go_on`](Self::go_on). For a line that has not been polled, and whose jitter buffer releases packets
    /// [at their deadline](crate::jitter::Release::AtDeadline): another one does not keep them.
    pub fn hold(&mut self) {
        self.hold = Hold::On;
    }

    /// Ends the [`hold`](Self::hold) with the next poll: behind what another process has passed on last, or, if nobody knows that, with what is due
    /// from now on.
    pub fn go_on(&mut self, state: Option<LineState>) {
        if matches!(self.hold, Hold::On) {
            self.hold = Hold::Ending(state);
        }
    }

    /// Where the line is, for a process that goes on. What it still holds is that one's.
    #[must_use]
    pub fn state(&self, now_ns: u64) -> LineState {
        let has_main = self.input().0 == 0;
        let source = self.source().source().filter(|_| has_main);
        let passed = source.zip(self.last_passed);
        LineState {
            sent: self.hears().sent_state(),
            time: self.direction.time_state(now_ns),
            passed: passed.map(|((_, ssrc), seq)| Passed {
                ssrc,
                seq,
                anchor: self.direction.anchor(),
            }),
        }
    }

    /// A poll while nothing, or nothing yet, is sent. `true`: go on with one that sends.
    #[cold]
    pub(super) fn poll_held(&mut self, now_ns: u64, may_lose: bool, scratch: &mut Scratch) -> bool {
        let Hold::Ending(state) = std::mem::take(&mut self.hold) else {
            self.hold = Hold::On;
            self.poll_all(now_ns, may_lose, scratch, &mut |_: LineDatagram<'_>| ());
            return false;
        };
        let heard = self.source().source().map(|(_, ssrc)| ssrc);
        let passed = state.and_then(|state| state.passed);
        let passed = passed.filter(|passed| Some(passed.ssrc) == heard && self.input().0 == 0);
        if passed.is_none() {
            // Nobody knows what of it was sent: what is late is not sent now.
            self.poll_all(now_ns, may_lose, scratch, &mut |_: LineDatagram<'_>| ());
        }
        if let Some(state) = state {
            self.with_out(now_ns, scratch, &mut |_| (), |direction, work, out| {
                direction.begin_anew(work, out);
            });
            let anchor = passed.and_then(|passed| passed.anchor);
            self.direction.go_on(now_ns, state.time, anchor);
            self.hears_mut().restore_sent(&state.sent);
            self.passed_until = passed.map(|passed| passed.seq);
            self.last_passed = self.passed_until.or(self.last_passed);
        }
        true
    }
}

/// Whether another process has passed this on: all up to `until`.
#[inline]
pub(super) fn is_passed_on(until: &mut Option<SeqNum>, media: &Media<'_>) -> bool {
    let Some(last) = *until else { return false };
    let is_behind = match media {
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
