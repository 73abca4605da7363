//! Decides the next output and its time.

use crate::config::{Release, Skew};
use crate::output::{DropReason, Output, ResyncCause};
use crate::ring::Mark;
use crate::{JitterBuffer, NS_PER_MS, REJECTS_MAX, SPACING_NS_MAX};
use threadbare_rtp_types::id::SeqNum;

/// The next output.
pub(crate) struct Head {
    pub(crate) what: Next,
    /// Index of the first packet held.
    pub(crate) index: u64,
    pub(crate) send_ns: i64,
}

pub(crate) enum Next {
    Packet,
    Resync(ResyncCause),
    /// This many packets are missing before the first packet held. Each had `step_ns` of audio, and the first one was sent at
    /// `send_ns`.
    Missing {
        packets: u32,
        step_ns: i64,
        send_ns: i64,
    },
}

impl<T> JitterBuffer<T> {
    /// Returns the next output, which is due now or later. `None`: the buffer holds nothing.
    pub(crate) fn head(&self) -> Option<Head> {
        if self.next > self.highest {
            return None;
        }
        let index = if self.ring.contains(self.next) {
            self.next
        } else {
            self.ring.next_present(self.next)?
        };
        let slot = self.ring.slot(index);
        let (seq, send_ns, mark) = (slot.seq, slot.send_ns, slot.mark);
        let missing = match mark {
            Mark::Gap => u32::from(seq.plus(u16::MAX).0.wrapping_sub(self.last_seq.0)),
            _ => (index - self.next) as u32,
        };
        let what = match mark {
            Mark::Resync(cause) => Next::Resync(cause),
            _ if missing == 0 => Next::Packet,
            _ => self.missing(missing, send_ns, slot.marker),
        };
        Some(Head {
            what,
            index,
            send_ns,
        })
    }

    /// Computes the duration of each of the `packets` packets that are missing before the packet sent at `head_send_ns`, and the
    /// send time of the first missing packet.
    ///
    /// The timestamps of the neighbouring packets give both values, unless a silence lies between. After a silence, the spacing
    /// of the stream gives the duration, and the marker of the following packet gives the position: "the first packet of a
    /// talkspurt [...] SHOULD be distinguished by setting the marker bit" (RFC 3551, section 4.1). With the marker, the missing
    /// packets end the previous talkspurt. Without it, they begin the present one.
    fn missing(&self, packets: u32, head_send_ns: i64, is_marked: bool) -> Next {
        let span_ns = head_send_ns.saturating_sub(self.last_send_ns).max(0);
        let step_ns = span_ns / (i64::from(packets) + 1);
        let spoken_ns = if self.spacing_ns > 0 && step_ns > self.spacing_ns.saturating_mul(2) {
            Some(self.spacing_ns)
        } else {
            (self.spacing_ns == 0 && step_ns > SPACING_NS_MAX).then_some(SPACING_NS_UNKNOWN)
        };
        let send_ns = match spoken_ns {
            Some(spoken_ns) if !is_marked => {
                head_send_ns.saturating_sub(spoken_ns.saturating_mul(i64::from(packets)))
            }
            step_ns_of_speech => {
                let step_ns = step_ns_of_speech.unwrap_or(step_ns);
                self.last_send_ns.saturating_add(step_ns)
            }
        };
        Next::Missing {
            packets,
            step_ns: spoken_ns.unwrap_or(step_ns),
            send_ns,
        }
    }

    pub(crate) fn due_ns(&self, head: &Head) -> i64 {
        let is_short_of_places = self.next + self.usable() <= self.highest;
        if is_short_of_places || (self.is_forced && self.next < self.cold.release_to) {
            return i64::MIN;
        }
        let send_ns = match (&head.what, self.release) {
            (Next::Missing { send_ns, .. }, _) => send_ns.saturating_add(self.ahead_ns),
            (_, Release::InOrder) => return i64::MIN,
            (_, Release::AtDeadline) => head.send_ns,
        };
        self.play_ns(send_ns).saturating_add(self.latency_ns)
    }

    fn play_ns(&self, send_ns: i64) -> i64 {
        send_ns
            .saturating_add(self.play_offset_ns())
            .max(self.last_play_ns)
    }

    pub(crate) fn play_offset_ns(&self) -> i64 {
        match self.skew {
            Skew::Window => self.offset.ns(),
            Skew::None => 0,
        }
    }

    pub(crate) fn give_out(&mut self, send_ns: i64) -> Option<Output<T>> {
        let play_ns = self.play_ns(send_ns);
        let slot = self.ring.slot(self.next);
        let (seq, time, marker) = (slot.seq, slot.time, slot.marker);
        let packet = self.ring.take(self.next)?;
        self.pass_by(seq, 1, send_ns);
        self.delivered_bits |= 1;
        self.delivered += 1;
        self.last_play_ns = play_ns;
        Some(Output::Packet {
            packet,
            seq,
            time,
            marker,
            play_ns: play_ns as u64,
            discont: std::mem::replace(&mut self.is_broken, false),
        })
    }

    /// Skips `packets` packets, up to the number `seq`. The last of them was sent at `send_ns`.
    fn pass_by(&mut self, seq: SeqNum, packets: u64, send_ns: i64) {
        self.next += packets;
        self.delivered_bits = u32::try_from(packets)
            .ok()
            .and_then(|packets| self.delivered_bits.checked_shl(packets))
            .unwrap_or(0);
        self.last_seq = seq;
        self.last_send_ns = send_ns;
    }

    #[cold]
    pub(crate) fn declare_lost(
        &mut self,
        head: &Head,
        packets: u32,
        step_ns: i64,
        send_ns: i64,
    ) -> Output<T> {
        let time = self.timeline.time(send_ns);
        let slot = self.ring.slot_mut(head.index);
        let first = SeqNum(slot.seq.0.wrapping_sub(packets as u16));
        let last = slot.seq.plus(u16::MAX);
        if slot.mark == Mark::Gap {
            slot.mark = Mark::Nothing;
        }
        let play_ns = self.play_ns(send_ns);
        let duration_ns = step_ns.saturating_mul(i64::from(packets));
        // Send time of the last missing packet.
        let end_ns = send_ns.saturating_add(duration_ns.saturating_sub(step_ns));
        // Missing packets that have no places do not advance the index.
        self.pass_by(last, head.index - self.next, end_ns);
        self.last_play_ns = play_ns;
        self.is_broken = true;
        self.cold.lost += u64::from(packets);
        Output::Lost {
            first,
            packets,
            time,
            play_ns: play_ns as u64,
            duration_ns: duration_ns as u64,
        }
    }

    #[cold]
    pub(crate) fn announce(&mut self, index: u64, cause: ResyncCause) -> Output<T> {
        self.ring.slot_mut(index).mark = Mark::Nothing;
        self.is_broken = true;
        Output::Resync {
            cause,
            ssrc: self.ssrc,
        }
    }

    #[cold]
    pub(crate) fn drop_head(&mut self, index: u64, reason: DropReason) -> Option<Output<T>> {
        let slot = self.ring.slot(index);
        let (seq, send_ns) = (slot.seq, slot.send_ns);
        let packet = self.ring.take(index)?;
        self.pass_by(seq, index + 1 - self.next, send_ns);
        self.is_broken = true;
        self.cold.drops.count(reason);
        Some(Output::Dropped { packet, reason })
    }

    #[cold]
    pub(crate) fn take_reject(&mut self) -> Option<Output<T>> {
        self.cold.rejects.rotate_left(1);
        self.rejects -= 1;
        let (packet, reason) = self.cold.rejects[REJECTS_MAX - 1].take()?;
        Some(Output::Dropped { packet, reason })
    }
}

/// RFC 3551, section 4.2: the default packet time.
const SPACING_NS_UNKNOWN: i64 = 20 * NS_PER_MS;
