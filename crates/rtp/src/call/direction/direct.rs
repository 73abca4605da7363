//! Forwards packets directly. No jitter buffer delays them, and the far side sees losses and reordering.
//!
//! Outgoing numbers keep the distances of the incoming ones, so that a reordered packet fills its own gap. Packets that this side
//! inserts (DTMF events, comfort noise) shift the later numbers.

use crate::call::out::{Number, Out};
use crate::id::SeqNum;

/// The numbers of packets that are forwarded directly. `None`: there was no packet yet.
#[derive(Debug, Default)]
pub(super) struct Numbering(Option<Numbers>);

/// How incoming numbers become outgoing ones.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    /// The first incoming number for which `offset` is valid.
    first: SeqNum,
    /// The highest incoming number so far.
    highest: SeqNum,
    /// The outgoing number minus the incoming one.
    offset: u16,
    /// The next outgoing number, as long as this side inserts no packets.
    next_out: SeqNum,
}

impl Numbering {
    /// Makes the next packet start new numbers.
    pub(super) fn restart(&mut self) {
        self.0 = None;
    }

    /// Gives the next packet the outgoing number for this incoming one. Returns `false` if that number was used already.
    #[inline]
    pub(super) fn number(&mut self, seq: SeqNum, out: &mut Out<'_>) -> bool {
        let next_out = out.leg.next_seq();
        let known = self.0.filter(|known| {
            let step = seq.distance_from(known.highest);
            (-MISORDER_PACKETS_MAX..=DROPOUT_PACKETS_MAX).contains(&step)
        });
        let mut numbering = known.unwrap_or(Numbers {
            first: seq,
            highest: SeqNum(seq.0.wrapping_sub(1)),
            offset: next_out.0.wrapping_sub(seq.0),
            next_out,
        });
        if next_out != numbering.next_out {
            let inserted = next_out.0.wrapping_sub(numbering.next_out.0);
            numbering.offset = numbering.offset.wrapping_add(inserted);
            numbering.first = numbering.highest.plus(1);
            numbering.next_out = next_out;
        }
        self.0 = Some(numbering);
        let is_late = seq.distance_from(numbering.highest) <= 0;
        if is_late && seq.distance_from(numbering.first) < 0 {
            return false;
        }
        out.number = Some(Number {
            seq: seq.plus(numbering.offset),
            is_late,
        });
        true
    }

    /// Notes whether the numbered packet was sent. If not, the next packet gets its number.
    #[inline]
    pub(super) fn note_sent(&mut self, seq: SeqNum, out: &mut Out<'_>) {
        let unsent = out.number.take();
        let Some(numbering) = &mut self.0 else {
            return;
        };
        if seq.distance_from(numbering.highest) <= 0 {
            return;
        }
        numbering.highest = seq;
        numbering.next_out = out.leg.next_seq();
        let inserted = if unsent.is_some() {
            u16::MAX
        } else {
            // Audio that was gathered for an earlier packet time leaves before the packet, and takes its number.
            let due = seq.plus(numbering.offset).plus(1);
            numbering.next_out.0.wrapping_sub(due.0)
        };
        if inserted != 0 {
            numbering.offset = numbering.offset.wrapping_add(inserted);
            numbering.first = seq.plus(1);
        }
    }
}

/// MAX_MISORDER of RFC 3550, appendix A.1.
const MISORDER_PACKETS_MAX: i32 = 100;
/// MAX_DROPOUT of RFC 3550, appendix A.1.
const DROPOUT_PACKETS_MAX: i32 = 3000;
