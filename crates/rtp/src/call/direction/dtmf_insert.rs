//! DTMF digits that the owner inserts on behalf of a party. They are telephone events for a side that accepts these, and tones for any
//! other side.

use std::collections::VecDeque;

use super::output::Output;
use crate::call::dtmf::{DTMF_DIGITS_MAX, DtmfDigit, DtmfError};
use crate::call::keys::{Key, KeyPayload};
use crate::call::out::Out;
use crate::id::{NS_PER_S, RtpTime};
use crate::leg::Payload;

#[derive(Debug, Default)]
pub(super) struct DtmfQueue {
    pub(super) waiting: VecDeque<DtmfDigit>,
    pub(super) current: Option<SendingDigit>,
    /// Earliest start of the next digit.
    pub(super) next_ns: u64,
    /// Play time from which the party's packets are forwarded again.
    pub(super) until_ns: u64,
    /// Time from which the party's packets are forwarded whatever their play time is, because a sender whose timestamps stopped during a
    /// pause stays behind.
    pub(super) until_now_ns: u64,
}

/// The digit that is being sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendingDigit {
    pub(super) digit: DtmfDigit,
    pub(super) start_ns: u64,
    /// Start of the digit on the time line of the incoming audio.
    pub(super) play_ns: u64,
    /// Time of the next packet or piece of tone.
    pub(super) due_ns: u64,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Event {
        to: Payload,
        time: RtpTime,
        /// Start of the segment that was sent last, in timestamp units.
        before: u32,
    },
    Tone {
        made_ns: u64,
    },
}

impl SendingDigit {
    pub(super) fn end_ns(&self) -> u64 {
        self.start_ns + self.digit.duration_ns
    }

    /// Notes how much of a digit was sent to the far side. The next audio continues there, whatever its timestamps are.
    pub(super) fn note_sent(&self, sent_ns: u64, output: &mut Output) {
        if let Kind::Event { time, .. } = self.kind {
            let units = u128::from(sent_ns) * u128::from(output.map.rate_hz());
            let units = (units / u128::from(NS_PER_S)) as u32;
            output.map.note_sent(time, units, self.play_ns);
        }
        output.map.restart();
    }
}

impl DtmfQueue {
    /// Queues a digit.
    pub(super) fn push(&mut self, now_ns: u64, digit: DtmfDigit) -> Result<(), DtmfError> {
        if self.waiting.len() == DTMF_DIGITS_MAX {
            return Err(DtmfError::TooMany);
        }
        if self.waiting.is_empty() && self.current.is_none() {
            self.next_ns = self.next_ns.max(now_ns);
        }
        self.waiting.push_back(digit);
        Ok(())
    }

    /// Whether a digit replaces the audio that is played at `play_ns`.
    #[inline]
    pub(super) fn replaces(&self, play_ns: u64, now_ns: u64) -> bool {
        let is_before_end = play_ns < self.until_ns && now_ns < self.until_now_ns;
        self.current.is_some() || is_before_end
    }

    /// Whether a digit is being sent or queued.
    #[inline]
    pub(super) fn has_digit(&self) -> bool {
        self.current.is_some() || !self.waiting.is_empty()
    }
}

/// A digit for a side that accepts events.
pub(super) struct Event {
    pub(super) digit: DtmfDigit,
    pub(super) to: Payload,
    pub(super) time: RtpTime,
}

impl Event {
    /// Sends the digit's length so far, and at its end three times (RFC 4733, section 2.5.1.4). An event that is longer than the duration
    /// field allows is sent in segments. Each segment has the maximum duration, and the next one starts where it ends (section 2.5.1.3).
    pub(super) fn send_update(
        &self,
        sent_ns: u64,
        is_end: bool,
        is_first: bool,
        before: &mut u32,
        out: &mut Out<'_>,
    ) {
        let hz = self.to.clock_rate_hz;
        let mut key = Key::begin(self.time, hz, self.digit.key.number());
        key.units = sent_ns * u64::from(hz) / NS_PER_S;
        let (segment, duration) = key.segment(hz);
        let mut marker = is_first;
        while *before < segment {
            self.send(*before, u16::MAX, false, std::mem::take(&mut marker), out);
            *before += u32::from(u16::MAX);
        }
        for _ in 0..if is_end { ENDS } else { 1 } {
            self.send(segment, duration, is_end, std::mem::take(&mut marker), out);
        }
    }

    fn send(&self, before: u32, duration: u16, is_end: bool, marker: bool, out: &mut Out<'_>) {
        let payload = KeyPayload {
            event: self.digit.key.number(),
            is_end,
            volume: self.digit.volume,
            duration,
        };
        payload.write(out.begin());
        let time = self.time.plus(before);
        out.send(&self.to, time, marker, u32::from(duration));
    }
}

/// Interval between the packets of an event, as recommended by RFC 4733, section 2.5.1.2.
pub(super) const UPDATE_NS: u64 = 50_000_000;
/// Number of copies of an event's last packet (RFC 4733, section 2.5.1.4).
const ENDS: usize = 3;
