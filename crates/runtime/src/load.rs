//! Estimates how many packets a socket holds, to decide how many to request and whether to read again.
//!
//! Reading an empty socket costs more than a third of receiving a packet (measured). So in a throttled context, a socket is read
//! again only if another packet has probably arrived. This is the case if the time since the last packet is longer than the
//! shortest recent time between two packets. If a packet arrives sooner than expected, it stays in the socket until the next
//! slice. That slice reads the socket again, because the last packet is old by then.
//!
//! A socket with a packet in nearly every slice is *regular*: it is read in each slice without asking whether it is ready
//! ([`Cx::assume_ready`](crate::Cx::assume_ready)). This saves more than the reads of an empty socket cost.

/// Expected content of a socket after a packet was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expects {
    /// Nothing.
    Nothing,
    /// Another packet.
    One,
    /// Probably more packets. The traffic is so high that the sockets of other agents may have received packets, too.
    Many,
}

/// The traffic of one socket. Times are CLOCK_MONOTONIC, ns.
#[derive(Debug, Default)]
pub struct Load {
    /// Number of the last slice with this socket. It is truncated, because it is only compared with the next one.
    slice: u32,
    in_slice: u16,
    expected: u16,
    streak: u16,
    unthrottled: bool,
    always: bool,
    is_regular: bool,
    /// Increases with each slice that has a packet, and decreases faster with each slice that has none.
    regularity: u8,
    /// Arrival of the last packet.
    last_ns: u64,
    /// The shortest recent time between two packets.
    gap_ns: u32,
}

impl Load {
    /// Creates the estimate for a socket of one stream. `unthrottled`: whether the context has no wait, so that each slice is one
    /// pass of its loop.
    pub fn new(unthrottled: bool) -> Self {
        Load {
            unthrottled,
            ..Load::default()
        }
    }

    /// Creates the estimate for a socket of many streams: it is always read in full batches.
    #[must_use]
    pub fn shared() -> Self {
        Load {
            always: true,
            ..Load::default()
        }
    }

    /// Records that the socket is ready in this slice.
    #[inline]
    pub fn pass(&mut self, slice: u64) {
        let slice = slice as u32;
        if slice == self.slice {
            return;
        }
        self.expected = self.in_slice;
        self.note_regularity(slice);
        if self.unthrottled {
            // Being ready in one pass of the loop says little. A socket is busy if it is ready in many passes in a row.
            self.streak = if slice == self.slice.wrapping_add(1) {
                self.streak.saturating_add(1)
            } else {
                0
            };
            if self.streak > STREAK_BUSY {
                self.expected = RECV_BATCH as u16;
            }
        }
        self.slice = slice;
        self.in_slice = 0;
    }

    /// Updates the regularity when `slice` begins. The previous slice with this socket was `self.slice`.
    #[inline]
    fn note_regularity(&mut self, slice: u32) {
        let skipped = slice.wrapping_sub(self.slice).wrapping_sub(1);
        let missed = skipped.saturating_add(u32::from(self.in_slice == 0));
        self.regularity = match missed {
            0 => (self.regularity + 1).min(REGULAR_FROM),
            _ if self.is_regular => self.regularity.saturating_sub(MISS),
            _ => 0,
        };
        self.is_regular = if self.is_regular {
            self.regularity >= REGULAR_FROM / 2
        } else {
            self.regularity >= REGULAR_FROM
        } && !self.unthrottled;
    }

    /// Whether the socket had a packet in nearly every slice, as reported to [`Load::pass`].
    #[inline]
    pub fn is_regular(&self) -> bool {
        self.is_regular
    }

    /// Records that the socket held more packets than expected. The context then watches the socket again, until the socket is
    /// regular again.
    #[inline]
    pub fn has_burst(&mut self) {
        self.is_regular = false;
        self.regularity = 0;
    }

    /// Records that packets were read.
    #[inline]
    pub fn received(&mut self, packets: usize) {
        self.in_slice = self.in_slice.saturating_add(packets as u16);
    }

    /// Records a packet that arrived at `arrival_ns`. Returns how many packets have probably arrived since then.
    #[inline]
    pub fn expects(&mut self, now_ns: u64, arrival_ns: u64) -> Expects {
        if now_ns.saturating_sub(arrival_ns) < u64::from(self.shortest_gap(arrival_ns)) {
            Expects::Nothing
        } else if usize::from(self.in_slice) < BATCH_FROM {
            Expects::One
        } else {
            Expects::Many
        }
    }

    /// Returns the shortest recent time between two packets, including this one, in ns.
    #[inline]
    fn shortest_gap(&mut self, arrival_ns: u64) -> u32 {
        let last_ns = std::mem::replace(&mut self.last_ns, arrival_ns);
        if last_ns == 0 {
            return 0;
        }
        let gap_ns = arrival_ns.saturating_sub(last_ns).min(GAP_NS_MAX) as u32;
        self.gap_ns = match gap_ns.checked_sub(self.gap_ns) {
            Some(longer_ns) if self.gap_ns > 0 => self.gap_ns + longer_ns / GAPS,
            _ => gap_ns,
        };
        self.gap_ns
    }

    /// Returns the number of datagrams to request in one call, if a batch is worthwhile.
    #[inline]
    pub fn batch(&self) -> Option<usize> {
        if self.always {
            return Some(RECV_BATCH);
        }
        // One more than expected, so that the call itself detects that the socket is empty.
        let expected = usize::from(self.expected);
        (expected >= BATCH_FROM).then(|| (expected + 1).min(RECV_BATCH))
    }
}

/// Number of datagrams to request per call on a busy socket.
pub const RECV_BATCH: usize = 64;
/// From this number of packets in a slice, a batch is cheaper than single receives (measured).
const BATCH_FROM: usize = 4;
/// After this number of passes in a row, a socket of an unthrottled context counts as busy.
const STREAK_BUSY: u16 = 8;
/// Number of consecutive slices with a packet that make a socket regular.
const REGULAR_FROM: u8 = 64;
/// A slice without a packet undoes this many slices with a packet. The reason is that reading an empty socket costs more than a
/// third of receiving a packet, but not asking for readiness saves only about a tenth (both measured).
const MISS: u8 = 8;
/// A short gap is forgotten over about this many packets.
const GAPS: u32 = 64;
/// Maximum gap between packets. A longer one is a silence, and not a measure of the traffic.
const GAP_NS_MAX: u64 = 100_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// Simulates a context with slices of 20 ms that reads a socket with packets at `arrivals`. Returns the number of reads, and
    /// the longest wait of a packet.
    fn read(arrivals: &[u64]) -> (usize, u64) {
        let (mut load, mut asked, mut wait_ns) = (Load::new(false), 0, 0);
        let mut coming: VecDeque<u64> = arrivals.iter().copied().collect();
        let mut socket = VecDeque::new();
        for slice in 1.. {
            let now_ns = slice * 20 * MS;
            while coming.front().is_some_and(|at_ns| *at_ns <= now_ns) {
                socket.extend(coming.pop_front());
            }
            if coming.is_empty() && socket.is_empty() {
                break;
            }
            let mut asks = !socket.is_empty();
            while asks {
                asked += 1;
                let Some(arrival_ns) = socket.pop_front() else {
                    break;
                };
                wait_ns = wait_ns.max(now_ns - arrival_ns);
                asks = load.expects(now_ns, arrival_ns) != Expects::Nothing;
            }
        }
        (asked, wait_ns)
    }

    #[test]
    fn steady_stream_is_polled_once_per_packet() {
        for interval_ms in [5, 10, 20, 30, 60] {
            let arrivals: Vec<u64> = (0..1000).map(|i| (7 + i * interval_ms) * MS).collect();
            let (asked, wait_ns) = read(&arrivals);
            assert!(asked <= 1010, "{interval_ms} ms: asked {asked} times");
            assert!(wait_ns <= 20 * MS, "{interval_ms} ms: waited {wait_ns}");
        }
    }

    /// Simulates a socket that is read in each slice while it is regular, and otherwise only in slices with a packet. Returns for
    /// each slice whether the socket was regular, and the number of empty reads.
    fn regular(has_packet: impl IntoIterator<Item = bool>) -> (Vec<bool>, usize) {
        let (mut load, mut misses, mut was) = (Load::new(false), 0, Vec::new());
        for (slice, has_packet) in (1..).zip(has_packet) {
            if has_packet || load.is_regular() {
                load.pass(slice);
                load.received(usize::from(has_packet));
                misses += usize::from(!has_packet);
            }
            was.push(load.is_regular());
        }
        (was, misses)
    }

    #[test]
    fn a_stream_with_one_packet_per_slice_is_regular_until_it_ends() {
        let (was, misses) = regular((0..1100).map(|slice| slice < 1000));
        assert!(
            was[..REGULAR_FROM.into()]
                .iter()
                .all(|is_regular| !is_regular)
        );
        assert!(
            was[2 * usize::from(REGULAR_FROM)..1000]
                .iter()
                .all(|is_regular| *is_regular)
        );
        assert!(!was[1010] && misses <= 10, "{misses} tries for nothing");
    }

    #[test]
    fn one_packet_in_two_slices_is_not_regular() {
        let (was, misses) = regular((0..1000).map(|slice| slice % 2 == 0));
        assert!(misses == 0 && was.iter().all(|is_regular| !is_regular));
    }

    /// The packet arrives sometimes just before the slice, and sometimes just after it.
    #[test]
    fn few_missed_slices_change_nothing() {
        let (was, misses) = regular((0..2000).map(|slice| slice % 20 != 19 || slice < 500));
        assert!(was[500..].iter().all(|is_regular| *is_regular));
        assert_eq!(misses, 75);
    }

    #[test]
    fn without_throttling_nothing_is_regular() {
        let mut load = Load::new(true);
        for slice in 1..1000 {
            load.pass(slice);
            load.received(1);
            assert!(!load.is_regular());
        }
    }

    proptest! {
        /// For any traffic, at most about one read in nine is empty. Reads that detect that a socket is no longer regular do not
        /// count.
        #[test]
        fn empty_reads_are_few(runs in prop::collection::vec((0_usize..300, 0_usize..20), 1..30)) {
            let slices: Vec<bool> = runs
                .iter()
                .flat_map(|(with, without)| [vec![true; *with], vec![false; *without]].concat())
                .collect();
            let packets = slices.iter().filter(|has_packet| **has_packet).count();
            let (_, misses) = regular(slices);
            prop_assert!(misses * usize::from(MISS) <= packets + usize::from(MISS), "{misses} of {packets}");
        }

        /// For any traffic, no packet waits for more than two slices, and none is left in the socket.
        #[test]
        fn no_packet_is_left_unread(gaps_us in prop::collection::vec(0_u64..60_000, 1..500)) {
            let arrivals: Vec<u64> = gaps_us
                .iter()
                .scan(0, |at_ns, gap_us| {
                    *at_ns += gap_us * 1000;
                    Some(*at_ns)
                })
                .collect();
            let (_, wait_ns) = read(&arrivals);
            prop_assert!(wait_ns <= 40 * MS, "waited {wait_ns} ns");
        }
    }
}
