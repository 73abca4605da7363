//! How much a socket is likely to hold: decides how many packets to ask for, and whether to ask again.
//!
//! To ask an empty socket costs more than a third of what receiving a packet does (measured). So a socket of a throttled
//! context is asked again only if another packet is likely to have come: if the one just read is older than the shortest
//! recent time between two packets. A packet that follows sooner than that waits for the next slice, which finds it old
//! and asks on.

/// What a socket is likely to hold after a packet was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expects {
    /// Nothing.
    Nothing,
    /// Another packet.
    One,
    /// Its traffic is so high that its neighbours' sockets may have filled meanwhile, too.
    Many,
}

/// The traffic of one socket. Times are CLOCK_MONOTONIC, ns.
#[derive(Debug, Default)]
pub struct Load {
    /// Truncated: only compared with its neighbours.
    slice: u32,
    in_slice: u16,
    expected: u16,
    streak: u16,
    unthrottled: bool,
    always: bool,
    /// When the last packet arrived.
    last_ns: u64,
    /// The shortest recent time between two packets.
    gap_ns: u32,
}

impl Load {
    /// Of a socket of one stream. `unthrottled`: each slice is one pass of the context's loop.
    pub fn new(unthrottled: bool) -> Self {
        Load {
            unthrottled,
            ..Load::default()
        }
    }

    /// Of a socket that many streams share: always in full batches.
    #[must_use]
    pub fn shared() -> Self {
        Load {
            always: true,
            ..Load::default()
        }
    }

    /// The socket is ready, in this slice.
    #[inline]
    pub fn pass(&mut self, slice: u64) {
        let slice = slice as u32;
        if slice == self.slice {
            return;
        }
        self.expected = self.in_slice;
        if self.unthrottled {
            // One pass of the loop is no measure: busy is a socket that is ready in pass after pass.
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

    /// Packets were read.
    #[inline]
    pub fn received(&mut self, packets: usize) {
        self.in_slice = self.in_slice.saturating_add(packets as u16);
    }

    /// A packet was read that arrived at `arrival_ns`. Returns what is likely to have come since.
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

    /// The shortest recent time between two packets, this one included, ns.
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

    /// Datagrams to request in one call, if a batch is worthwhile.
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

/// Datagrams per call on a busy socket.
pub const RECV_BATCH: usize = 64;
/// From this many packets in a slice, a batch is cheaper than single receives (measured).
const BATCH_FROM: usize = 4;
/// After this many passes in a row, a socket of a context without throttling counts as busy.
const STREAK_BUSY: u16 = 8;
/// A shorter gap is forgotten over about this many packets.
const GAPS: u32 = 64;
/// A longer gap is a silence, and says nothing about the traffic.
const GAP_NS_MAX: u64 = 100_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// A context with slices of 20 ms reads a socket to which packets come at `arrivals`. Returns how often it asked, and the
    /// longest wait of a packet.
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
    fn a_steady_stream_is_asked_once_a_packet() {
        for interval_ms in [5, 10, 20, 30, 60] {
            let arrivals: Vec<u64> = (0..1000).map(|i| (7 + i * interval_ms) * MS).collect();
            let (asked, wait_ns) = read(&arrivals);
            assert!(asked <= 1010, "{interval_ms} ms: asked {asked} times");
            assert!(wait_ns <= 20 * MS, "{interval_ms} ms: waited {wait_ns}");
        }
    }

    proptest! {
        /// Whatever comes: nothing waits for more than two slices, and nothing stays behind.
        #[test]
        fn no_packet_is_left_behind(gaps_us in prop::collection::vec(0_u64..60_000, 1..500)) {
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
