//! Pending feedback, and the time at which it is sent (RFC 4585, section 3.5.2).

use crate::id::{NS_PER_S, SeqNum, Ssrc};

use super::interval::Timing;
use super::stats::FeedbackCounts;
use super::wire::Writer;

/// Maximum number of packets that wait for a request. If more are missing at once, this is an outage, which requests do not repair.
pub const NACKS_MAX: usize = 64;
/// Maximum number of sources that wait for a picture request, in each direction.
pub const PLIS_MAX: usize = 4;
/// Maximum size of all pending feedback in a packet. In the worst case, each number is the only entry of a separate message. All full intra
/// requests share one message.
pub(crate) const FEEDBACK_BYTES_MAX: usize = NACKS_MAX * 16 + PLIS_MAX * 12 + 12 + PLIS_MAX * 8;

/// Maximum number of sources whose full intra requests are numbered. Beyond it, the oldest source is forgotten.
const FIR_SOURCES_MAX: usize = 32;
/// Time within which a full intra request with the same number counts as a repetition. A round trip is shorter. Later, it counts as a new
/// request of a peer that does not increment the number, because too many pictures are better than none.
const FIR_REPETITION_NS: u64 = NS_PER_S;

/// Share of the interval that feedback may be delayed. RFC 4585, section 3.5.2: "T_dither_max = l * T_rr with l=0.5".
const DITHER_SHARE: f64 = 0.5;

/// Pending messages, and the state variables of RFC 4585, section 3.4.
#[derive(Debug)]
pub(crate) struct Feedback {
    nacks: Vec<(Ssrc, SeqNum)>,
    plis: Vec<Ssrc>,
    firs: Vec<Ssrc>,
    /// Number of our last full intra request to each source. `firs_heard` contains the last request from each source, with its time.
    fir_numbers: Vec<(Ssrc, u8)>,
    firs_heard: Vec<(Ssrc, u8, u64)>,
    /// "te": the time of the early packet.
    early_ns: Option<u64>,
    allow_early: bool,
    /// "t_rr_last": the time at which the last regular packet was sent.
    regular_ns: Option<u64>,
}

impl Feedback {
    pub(crate) fn new() -> Feedback {
        Feedback {
            nacks: Vec::new(),
            plis: Vec::new(),
            firs: Vec::new(),
            fir_numbers: Vec::new(),
            firs_heard: Vec::new(),
            early_ns: None,
            // RFC 4585, section 3.5.1: "Initially, R MUST set allow_early = TRUE and t_rr_last = NaN".
            allow_early: true,
            regular_ns: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nacks.is_empty() && self.plis.is_empty() && self.firs.is_empty()
    }

    /// Queues a request for one packet. Returns `false` if the queue is full.
    pub(crate) fn add_nack(&mut self, media: Ssrc, seq: SeqNum) -> bool {
        if self.nacks.contains(&(media, seq)) {
            return true;
        }
        let has_room = self.nacks.len() < NACKS_MAX;
        if has_room {
            self.nacks.push((media, seq));
        }
        has_room
    }

    /// Queues a picture loss indication. Returns `false` if the queue is full.
    pub(crate) fn add_pli(&mut self, media: Ssrc) -> bool {
        add_source(&mut self.plis, media)
    }

    /// Queues a full intra request. Returns `false` if the queue is full.
    pub(crate) fn add_fir(&mut self, media: Ssrc) -> bool {
        add_source(&mut self.firs, media)
    }

    /// Whether a full intra request from a source is a new one. "The sequence number SHALL be increased by 1 modulo 256 for each new
    /// command. A repetition SHALL NOT increase the sequence number." (RFC 5104, section 4.3.1.1)
    pub(crate) fn is_new_fir(&mut self, now_ns: u64, from: Ssrc, request: u8) -> bool {
        let known = self.firs_heard.iter_mut().find(|(ssrc, ..)| *ssrc == from);
        let Some((_, last, at_ns)) = known else {
            make_room(&mut self.firs_heard);
            self.firs_heard.push((from, request, now_ns));
            return true;
        };
        let is_new = *last != request || now_ns.saturating_sub(*at_ns) >= FIR_REPETITION_NS;
        if is_new {
            (*last, *at_ns) = (request, now_ns);
        }
        is_new
    }

    /// Returns the number of a new request. "The sequence number space is unique for each pairing of the SSRC of command source and the
    /// SSRC of the command target. [...] The initial value is arbitrary."
    fn next_fir_number(numbers: &mut Vec<(Ssrc, u8)>, media: Ssrc) -> u8 {
        if let Some((_, number)) = numbers.iter_mut().find(|(ssrc, _)| *ssrc == media) {
            *number = number.wrapping_add(1);
            return *number;
        }
        make_room(numbers);
        numbers.push((media, 0));
        0
    }

    /// Decides when feedback that was queued at `now_ns` is sent: in a separate packet, at once or after a random delay, or with the next
    /// regular packet. Returns `false` if it would come too late, and was dropped.
    pub(crate) fn schedule(&mut self, now_ns: u64, timing: &mut Timing, delay_ns_max: u64) -> bool {
        // Step 2a: "the new FB message MUST be included in the scheduled packet"
        if self.early_ns.is_some() {
            return true;
        }
        // Step 2b: "If the session is a point-to-point session, then T_dither_max = 0."
        let dither_ns = if timing.members <= 2 {
            0
        } else {
            (timing.interval_ns() as f64 * DITHER_SHARE) as u64
        };
        // Step 3a: "i.e., if t0 + T_dither_max > tn. [...] an Early RTCP packet MUST NOT be scheduled"
        if now_ns.saturating_add(dither_ns) > timing.next_ns {
            return true;
        }
        if self.allow_early {
            // Step 4b: "te = t0 + RND * T_dither_max"
            let delay_ns = dither_ns as f64 * timing.random_unit();
            self.early_ns = Some(now_ns.saturating_add(delay_ns as u64));
            return true;
        }
        // Step 4a: "If tn - t0 < T_max_fb_delay, then the feedback could still be useful for the sender [...] Otherwise,
        // R MUST discard the RTCP FB message."
        if timing.next_ns.saturating_sub(now_ns) < delay_ns_max {
            return true;
        }
        self.clear();
        false
    }

    /// Drops the request for these packets, because another member has requested them already. In step 5, "R MUST discard its own FB
    /// message".
    pub(crate) fn suppress_nack(&mut self, media: Ssrc, first: SeqNum, following: u16) {
        self.nacks.retain(|&(ours, seq)| {
            let after = seq.distance_from(first);
            let bits = u32::from(following) << 1 | 1;
            !(ours == media && (0..=16).contains(&after) && bits >> after & 1 == 1)
        });
        self.forget_if_empty();
    }

    /// Drops a picture loss indication, as [`suppress_nack`](Feedback::suppress_nack) does with requests for packets.
    pub(crate) fn suppress_pli(&mut self, media: Ssrc) {
        self.plis.retain(|ours| *ours != media);
        self.forget_if_empty();
    }

    fn forget_if_empty(&mut self) {
        if self.is_empty() {
            self.early_ns = None;
        }
    }

    /// Returns the number of bytes that the queues take on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.nacks.capacity() * size_of::<(Ssrc, SeqNum)>()
            + (self.plis.capacity() + self.firs.capacity()) * size_of::<Ssrc>()
            + self.fir_numbers.capacity() * size_of::<(Ssrc, u8)>()
            + self.firs_heard.capacity() * size_of::<(Ssrc, u8, u64)>()
    }

    pub(crate) fn early_ns(&self) -> Option<u64> {
        self.early_ns
    }

    /// Whether a regular packet without feedback may be omitted. "Regular RTCP packets scheduled for transmission before tp+T_rr_interval
    /// will be suppressed if, for example, they do not contain any FB messages." (section 3.4)
    pub(crate) fn may_suppress(&self, now_ns: u64, interval_ns: u64) -> bool {
        let is_early = |last_ns: u64| last_ns.saturating_add(interval_ns) > now_ns;
        self.is_empty() && self.regular_ns.is_some_and(is_early)
    }

    /// Writes all pending feedback that fits, and clears the queues.
    pub(crate) fn write(&mut self, ssrc: Ssrc, writer: &mut Writer<'_>, sent: &mut FeedbackCounts) {
        // Each round takes at least one pending number.
        while let Some(&(media, _)) = self.nacks.first() {
            let lost = self.nacks.iter().filter(|(other, _)| *other == media);
            let count = lost.clone().count() as u64;
            if writer.nack(ssrc, media, lost.map(|(_, seq)| *seq)) {
                sent.nacks += count;
            }
            self.nacks.retain(|(other, _)| *other != media);
        }
        for &media in &self.plis {
            sent.plis += u64::from(writer.pli(ssrc, media));
        }
        if !self.firs.is_empty() {
            let numbers = &mut self.fir_numbers;
            let requests = self.firs.iter();
            let requests = requests.map(|&media| (media, Self::next_fir_number(numbers, media)));
            if writer.fir(ssrc, requests) {
                sent.firs += self.firs.len() as u64;
            }
        }
        self.clear();
    }

    /// Clears the queues.
    pub(crate) fn clear(&mut self) {
        self.nacks.clear();
        self.plis.clear();
        self.firs.clear();
        self.early_ns = None;
    }

    /// Notes that an early packet was sent. In step 6, "R then MUST set allow_early = FALSE".
    pub(crate) fn sent_early(&mut self) {
        self.allow_early = false;
    }

    /// Notes that a regular packet was sent or omitted. "Whenever a Regular RTCP packet is sent or suppressed, allow_early MUST be set to
    /// TRUE" (section 3.5.3).
    pub(crate) fn regular_passed(&mut self, now_ns: u64, is_sent: bool) {
        self.allow_early = true;
        if is_sent {
            self.regular_ns = Some(now_ns);
        }
    }
}

/// Queues a source, unless it is queued already. Returns `false` if the list is full.
fn add_source(sources: &mut Vec<Ssrc>, media: Ssrc) -> bool {
    if sources.contains(&media) {
        return true;
    }
    let has_room = sources.len() < PLIS_MAX;
    if has_room {
        sources.push(media);
    }
    has_room
}

/// Removes the oldest entry, if the list has its maximum length.
fn make_room<T>(entries: &mut Vec<T>) {
    if entries.len() >= FIR_SOURCES_MAX {
        entries.remove(0);
    }
}
