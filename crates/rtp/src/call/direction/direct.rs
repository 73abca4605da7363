//! Forwards packets directly: no jitter buffer delays them, and the far side sees losses and reordering.
//!
//! Outgoing numbers keep the distances of the incoming ones, so that a reordered packet fills its own gap. Packets that this side
//! inserts (DTMF events, comfort noise) shift the later numbers.

use super::Direction;
use crate::call::Mode;
use crate::call::out::{Number, Out};
use crate::id::SeqNum;
use crate::leg::{Carries, Payload, PayloadMap};

/// Mapping from incoming to outgoing numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbering {
    /// The first incoming number with the current `offset`.
    first: SeqNum,
    /// The highest incoming number so far.
    highest: SeqNum,
    /// The difference of outgoing and incoming numbers.
    offset: u16,
    /// The next outgoing number, unless this side inserts packets.
    next_out: SeqNum,
}

impl Direction {
    /// The party's payload types that may be forwarded directly now, a bit for each; 0: none.
    #[inline]
    pub(in crate::call) fn direct_types(&mut self, sends: &PayloadMap, takes: &PayloadMap) -> u128 {
        let is_free = self.config.passes_directly
            && self.mode() == Mode::Pass
            && self.playing.is_none()
            && !self.has_queued_dtmf()
            && self.inband_dtmf.is_none()
            && self.filter.is_none()
            && self.gaps.is_none()
            && !self.is_sounding
            && !self.mends_all;
        if !is_free {
            return 0;
        }
        match self.direct_types {
            Some(types) => types,
            None => *self
                .direct_types
                .insert(self.find_direct_types(sends, takes)),
        }
    }

    /// Finds the types that are not converted. Types that were not agreed on count, too: their packets are dropped without a
    /// gap in the numbers.
    #[cold]
    fn find_direct_types(&self, sends: &PayloadMap, takes: &PayloadMap) -> u128 {
        let has_events = takes.telephone_event(takes.audio().clock_rate_hz).is_some();
        let is_passed = |payload: &Payload| match payload.carries {
            Carries::TelephoneEvent => has_events,
            Carries::ComfortNoise => true,
            Carries::Audio(_) | Carries::Opaque(_) => {
                let is_same = |other: &Payload| {
                    other.carries == payload.carries && other.clock_rate_hz == payload.clock_rate_hz
                };
                takes.iter().any(is_same) && self.config.packet_ns == 0 && !self.config.makes_anew
            }
        };
        let converted = sends.iter().filter(|payload| !is_passed(payload));
        converted.fold(u128::MAX, |types, payload| {
            types & !(1 << (payload.payload_type.0 & 0x7f))
        })
    }

    /// Gives the next packet the outgoing number for this incoming one. Returns `false` if that number was used already.
    #[inline]
    pub(super) fn number(&mut self, seq: SeqNum, out: &mut Out<'_>) -> bool {
        let next_out = out.leg.next_seq();
        let known = self.numbering.filter(|known| {
            let step = seq.distance_from(known.highest);
            (-MISORDER_PACKETS_MAX..=DROPOUT_PACKETS_MAX).contains(&step)
        });
        let mut numbering = known.unwrap_or(Numbering {
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
        self.numbering = Some(numbering);
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
    pub(super) fn note_numbered(&mut self, seq: SeqNum, out: &mut Out<'_>) {
        let unsent = out.number.take();
        let Some(numbering) = &mut self.numbering else {
            return;
        };
        if seq.distance_from(numbering.highest) <= 0 {
            return;
        }
        numbering.highest = seq;
        numbering.next_out = out.leg.next_seq();
        if unsent.is_some() {
            numbering.offset = numbering.offset.wrapping_sub(1);
            numbering.first = seq.plus(1);
        }
    }
}

/// RFC 3550, appendix A.1: MAX_MISORDER.
const MISORDER_PACKETS_MAX: i32 = 100;
/// RFC 3550, appendix A.1: MAX_DROPOUT.
const DROPOUT_PACKETS_MAX: i32 = 3000;
