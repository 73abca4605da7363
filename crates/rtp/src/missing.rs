//! Decides which packets of a stream to request again, and when (generic NACK, RFC 4585, section 6.2.1).
//!
//! Not every gap is a loss, because packets overtake each other. And not every loss is worth a request: the packet may arrive too late for
//! playout, or so many packets are missing that the network must be down.

use crate::id::{SeqNum, Ssrc};
use crate::session::NACKS_MAX;

/// Time for which a missing packet is awaited before it is requested, because it may only have been overtaken, ns.
pub const REORDER_NS: u64 = 10_000_000;
/// Maximum number of requests for the same packet.
pub const TRIES_MAX: u8 = 3;
/// Minimum time between two requests for the same packet, ns. If the round trip is longer, it replaces this.
pub const RETRY_NS_MIN: u64 = 20_000_000;

/// The missing packets of one stream. **Contract.** Call [`handle`](Missing::handle) with every accepted packet, in the order of arrival.
/// At [`next_timeout`](Missing::next_timeout) or later, request the packets that [`poll`](Missing::poll) returns.
#[derive(Debug, Clone, Default)]
pub struct Missing {
    /// The packet with the highest number, and its source.
    newest: Option<(Ssrc, SeqNum)>,
    /// The missing packets, sorted by number. There are at most [`NACKS_MAX`].
    packets: Vec<Absent>,
    given_up: u64,
}

#[derive(Debug, Clone, Copy)]
struct Absent {
    seq: SeqNum,
    since_ns: u64,
    due_ns: u64,
    tries: u8,
}

impl Missing {
    /// Notes a packet that arrived at `now_ns`. Allocates nothing as long as no packet is missing.
    pub fn handle(&mut self, now_ns: u64, ssrc: Ssrc, seq: SeqNum) {
        let Some((_, newest)) = self.newest.filter(|(known, _)| *known == ssrc) else {
            return self.begin(ssrc, seq);
        };
        let step = seq.distance_from(newest);
        match step {
            1 => {}
            // The packet is late, or was requested.
            ..=0 if step > -STEP_MAX => {
                self.packets.retain(|absent| absent.seq != seq);
                return;
            }
            2..STEP_MAX => self.add(now_ns, newest, step - 1),
            // This is an outage, which requests do not repair, or the sender has changed its numbering.
            _ => return self.begin(ssrc, seq),
        }
        self.newest = Some((ssrc, seq));
    }

    fn begin(&mut self, ssrc: Ssrc, seq: SeqNum) {
        self.given_up += self.packets.len() as u64;
        self.packets.clear();
        self.newest = Some((ssrc, seq));
    }

    /// Adds the `count` packets after `newest`. If there are too many, the oldest ones are dropped.
    fn add(&mut self, now_ns: u64, newest: SeqNum, count: i32) {
        let count = usize::try_from(count).unwrap_or(0);
        let excess = (self.packets.len() + count).saturating_sub(NACKS_MAX);
        self.given_up += excess as u64;
        self.packets.drain(..excess.min(self.packets.len()));
        self.packets.extend((1..=count).map(|step| Absent {
            seq: newest.plus(step as u16),
            since_ns: now_ns,
            due_ns: now_ns.saturating_add(REORDER_NS),
            tries: 0,
        }));
    }

    /// Returns the time at which [`poll`](Missing::poll) has output if nothing arrives before.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        self.packets.iter().map(|absent| absent.due_ns).min()
    }

    /// Returns the stream and the packets to request at `now_ns`, in the order of their numbers. `rtt_ns` is the round-trip time, if it is
    /// known. Packets that have been missing for `useful_ns` are no longer requested.
    pub fn poll(
        &mut self,
        now_ns: u64,
        rtt_ns: Option<u64>,
        useful_ns: u64,
    ) -> Option<(Ssrc, Vec<SeqNum>)> {
        let (ssrc, _) = self.newest?;
        let retry_ns = rtt_ns.unwrap_or(0).max(RETRY_NS_MIN);
        let mut due = Vec::new();
        let before = self.packets.len();
        self.packets.retain_mut(|absent| {
            if absent.due_ns > now_ns {
                return true;
            }
            let age_ns = now_ns.saturating_sub(absent.since_ns);
            if absent.tries == TRIES_MAX || age_ns >= useful_ns {
                return false;
            }
            due.push(absent.seq);
            absent.tries += 1;
            absent.due_ns = now_ns.saturating_add(retry_ns);
            true
        });
        self.given_up += (before - self.packets.len()) as u64;
        (!due.is_empty()).then_some((ssrc, due))
    }

    /// Takes back the last request for these packets, which [`poll`](Missing::poll) returned but which could not be sent.
    pub fn not_asked(&mut self, seqs: &[SeqNum]) {
        for absent in &mut self.packets {
            if seqs.contains(&absent.seq) {
                absent.tries = absent.tries.saturating_sub(1);
            }
        }
    }

    /// Forgets the stream.
    pub fn clear(&mut self) {
        self.newest = None;
        self.packets.clear();
    }

    /// Returns the number of missing packets that are no longer requested.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.given_up
    }
}

/// Minimum step of the numbers, in either direction, that is too large for a gap of a few packets.
const STEP_MAX: i32 = NACKS_MAX as i32 + 2;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    /// A time at which every request is due and no packet is too old.
    const LATER: u64 = 500 * MS;
    const A: Ssrc = Ssrc(7);

    fn missing_after(seqs: &[u16]) -> Missing {
        let mut missing = Missing::default();
        for seq in seqs {
            missing.handle(0, A, SeqNum(*seq));
        }
        missing
    }

    fn poll(missing: &mut Missing, now_ns: u64) -> Vec<u16> {
        let asked = missing.poll(now_ns, None, 1_000 * MS);
        asked.map_or(Vec::new(), |(ssrc, seqs)| {
            assert_eq!(ssrc, A);
            seqs.iter().map(|seq| seq.0).collect()
        })
    }

    #[test]
    fn gap_is_requested_unless_the_packets_arrive() {
        let mut missing = missing_after(&[65_533, 0, 4, 2]);
        assert_eq!(poll(&mut missing, REORDER_NS - 1), [0_u16; 0]);
        assert_eq!(missing.next_timeout(), Some(REORDER_NS));
        assert_eq!(poll(&mut missing, REORDER_NS), [65_534, 65_535, 1, 3]);
        missing.handle(REORDER_NS, A, SeqNum(1));
        missing.handle(REORDER_NS, A, SeqNum(1));
        assert_eq!(
            poll(&mut missing, REORDER_NS + RETRY_NS_MIN - 1),
            [0_u16; 0]
        );
        assert_eq!(
            poll(&mut missing, REORDER_NS + RETRY_NS_MIN),
            [65_534, 65_535, 3]
        );
        for seq in [3, 65_534, 65_535] {
            missing.handle(50 * MS, A, SeqNum(seq));
        }
        assert_eq!(missing.next_timeout(), None);
        assert_eq!(missing.given_up(), 0);
    }

    #[test]
    fn requests_are_bounded_and_wait_for_a_round_trip() {
        let mut missing = missing_after(&[0, 2]);
        let mut tries = Vec::new();
        while let Some(now_ns) = missing.next_timeout() {
            if missing.poll(now_ns, Some(100 * MS), 10_000 * MS).is_some() {
                tries.push(now_ns);
            }
        }
        assert_eq!(tries, [10 * MS, 110 * MS, 210 * MS]);
        assert_eq!(missing.given_up(), 1);
    }

    #[test]
    fn unsent_request_is_repeated() {
        let mut missing = missing_after(&[0, 2]);
        let mut tries = 0;
        while let Some((_, seqs)) = missing
            .next_timeout()
            .and_then(|now_ns| missing.poll(now_ns, None, 200 * MS))
        {
            missing.not_asked(&seqs);
            tries += 1;
        }
        // There is a request every 20 ms, from the 10th ms on, as long as the packet is useful.
        assert_eq!((tries, missing.given_up()), (10, 1));
    }

    #[test]
    fn packet_that_would_be_late_is_not_requested() {
        let mut missing = missing_after(&[0, 2]);
        assert_eq!(missing.poll(40 * MS, None, 40 * MS), None);
        assert_eq!((missing.next_timeout(), missing.given_up()), (None, 1));
    }

    #[test]
    fn outage_restart_and_new_sender_are_not_gaps() {
        let most = NACKS_MAX as u16;
        let mut missing = missing_after(&[0, most + 1]);
        assert_eq!(poll(&mut missing, LATER), (1..=most).collect::<Vec<_>>());
        for other in [most + 2, 30_000, 65_400] {
            let mut missing = missing_after(&[0, other]);
            assert_eq!(missing.next_timeout(), None, "{other}");
            missing.handle(0, A, SeqNum(other).plus(2));
            assert_eq!(poll(&mut missing, LATER), [SeqNum(other).plus(1).0]);
        }
        let mut missing = missing_after(&[0, 2]);
        missing.handle(0, Ssrc(8), SeqNum(9));
        assert_eq!((missing.next_timeout(), missing.given_up()), (None, 1));
    }

    #[test]
    fn the_list_of_missing_packets_is_bounded() {
        let mut missing = missing_after(&[0]);
        for number in 1..1000 {
            missing.handle(0, A, SeqNum(number * 30));
        }
        let asked = poll(&mut missing, LATER);
        assert_eq!(asked.len(), NACKS_MAX);
        assert_eq!(asked.last(), Some(&(999 * 30 - 1)));
        assert_eq!(missing.given_up() + NACKS_MAX as u64, 999 * 29);
    }
}
