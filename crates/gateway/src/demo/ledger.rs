//! Accounts for every packet: which stream, which packet, in order, the right payload, how late.
//!
//! The gateway numbers and stamps its packets itself, so a packet is recognised by its payload alone
//! (see [`super::tone`]). No clock and no socket in here.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::tone::{DISTINCT_PACKETS, PACKET_SAMPLES, Tones};

/// What came of all packets so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Sent by the callers.
    pub packets_sent: u64,
    /// Came back, each counted once.
    pub packets_received: u64,
    /// Passed over by a later packet of the same stream, and not come since.
    pub passed_over: u64,
    /// Came after a later packet of the same stream.
    pub reordered: u64,
    /// Came back with a payload or a header that is not right.
    pub payload_errors: u64,
    /// Came more than once, or were never sent.
    pub unexpected: u64,
    /// Milliseconds from the send call to the arrival in the listener's socket.
    pub latency_ms_p50: f64,
    /// The same, 99th percentile.
    pub latency_ms_p99: f64,
    /// The same, maximum.
    pub latency_ms_max: f64,
}

/// Keeps account of all streams.
#[derive(Debug)]
pub(super) struct Ledger {
    tones: Tones,
    streams: Vec<Stream>,
    counters: Counters,
    latency_us: Histogram<u64>,
}

#[derive(Clone, Debug)]
struct Stream {
    sent: u32,
    /// One past the latest packet that came back.
    next: u32,
    /// Bit n: packet `next - 1 - n` has come.
    came: u64,
    /// When packet n was sent, at n modulo the length; nanoseconds.
    sent_at_ns: [u64; SENT_AT_PACKETS],
}

impl Ledger {
    /// Accounts for so many streams.
    pub(super) fn new(streams: usize) -> Ledger {
        // Three digits, up to a minute; the bounds are constants that fit.
        let latency_us = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("valid bounds");
        let stream = Stream {
            sent: 0,
            next: 0,
            came: 0,
            sent_at_ns: [0; SENT_AT_PACKETS],
        };
        Ledger {
            tones: Tones::new(streams),
            streams: vec![stream; streams],
            counters: Counters::default(),
            latency_us,
        }
    }

    /// The payload of the next packet of a stream, which is being sent at `now_ns`.
    pub(super) fn send(&mut self, stream: usize, now_ns: u64) -> [u8; PACKET_SAMPLES] {
        let state = &mut self.streams[stream];
        let packet = state.sent;
        state.sent += 1;
        state.sent_at_ns[packet as usize % SENT_AT_PACKETS] = now_ns;
        self.counters.packets_sent += 1;
        self.tones.sent(stream, packet)
    }

    /// Takes a payload that arrived for a stream at `arrival_ns`, on the clock of [`Ledger::send`].
    pub(super) fn receive(&mut self, stream: usize, payload: &[u8], arrival_ns: u64) {
        let Some(state) = self.streams.get(stream) else {
            self.counters.unexpected += 1;
            return;
        };
        let (sent, next, came) = (state.sent, state.next, state.came);
        let matches = |packet: &u32| self.tones.expected(stream, *packet) == payload;
        let forward_end = sent.min(next.saturating_add(DISTINCT_PACKETS));
        if let Some(packet) = (next..forward_end).find(matches) {
            self.counters.passed_over += u64::from(packet - next);
            self.advance(stream, packet);
            self.account(stream, packet, arrival_ns);
            return;
        }
        let backward_start = next.saturating_sub(DISTINCT_PACKETS);
        match (backward_start..next).rev().find(matches) {
            Some(packet) if came & (1 << (next - 1 - packet)) == 0 => {
                self.streams[stream].came |= 1 << (next - 1 - packet);
                self.counters.reordered += 1;
                self.counters.passed_over -= 1;
                self.account(stream, packet, arrival_ns);
            }
            Some(_) => self.counters.unexpected += 1,
            None if next < sent => {
                // Spoilt on the way. Which one it was cannot be known; most likely the next.
                self.counters.payload_errors += 1;
                self.advance(stream, next);
                self.account(stream, next, arrival_ns);
            }
            None => self.counters.unexpected += 1,
        }
    }

    /// Takes a packet that no stream can be found for, or that is not what was asked for.
    pub(super) fn receive_stranger(&mut self) {
        self.counters.unexpected += 1;
    }

    /// Whether everything that was sent has come back.
    pub(super) fn is_complete(&self) -> bool {
        self.counters.packets_received >= self.counters.packets_sent
    }

    /// Where things stand.
    pub(super) fn counters(&self) -> Counters {
        let ms = |us: u64| us as f64 / 1000.0;
        Counters {
            latency_ms_p50: ms(self.latency_us.value_at_quantile(0.50)),
            latency_ms_p99: ms(self.latency_us.value_at_quantile(0.99)),
            latency_ms_max: ms(self.latency_us.max()),
            ..self.counters.clone()
        }
    }

    /// Makes `packet` the latest that came.
    fn advance(&mut self, stream: usize, packet: u32) {
        let state = &mut self.streams[stream];
        let by = packet + 1 - state.next;
        state.came = state.came.checked_shl(by).unwrap_or(0) | 1;
        state.next = packet + 1;
    }

    fn account(&mut self, stream: usize, packet: u32, arrival_ns: u64) {
        let sent_at_ns = self.streams[stream].sent_at_ns[packet as usize % SENT_AT_PACKETS];
        let latency_us = arrival_ns.saturating_sub(sent_at_ns) / 1000;
        self.latency_us.saturating_record(latency_us.max(1));
        self.counters.packets_received += 1;
    }
}

impl Counters {
    /// Sent and never come back. Final once the listener has stopped waiting.
    pub fn lost(&self) -> u64 {
        self.packets_sent.saturating_sub(self.packets_received)
    }

    /// Wrong in any way but loss and order.
    pub fn wrong(&self) -> u64 {
        self.payload_errors + self.unexpected
    }
}

/// Send times kept per stream; 1024 packets of 20 ms are 20 s, later than any packet is waited for.
const SENT_AT_PACKETS: usize = 1024;

/// Later than this counts as this.
const LATENCY_US_MAX: u64 = 60_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Sends 100 packets on one of three streams, and has those of `order` come back.
    fn play(order: &[u32]) -> Counters {
        let mut ledger = Ledger::new(3);
        for packet in 0..100 {
            ledger.send(1, packet * 20 * MS);
        }
        for packet in order {
            let payload = ledger.tones.expected(1, *packet);
            ledger.receive(1, &payload, (u64::from(*packet) * 20 + 7) * MS);
        }
        ledger.counters()
    }

    fn brief(counters: &Counters) -> [u64; 5] {
        let Counters {
            packets_received,
            passed_over,
            reordered,
            payload_errors,
            unexpected,
            ..
        } = *counters;
        [
            packets_received,
            passed_over,
            reordered,
            payload_errors,
            unexpected,
        ]
    }

    #[test]
    fn packets_are_told_apart_by_their_payload() {
        let all = (0..100).collect::<Vec<_>>();
        let cases: &[(&str, Vec<u32>, [u64; 5])] = &[
            ("all in order", all.clone(), [100, 0, 0, 0, 0]),
            (
                "one lost",
                [&all[..40], &all[41..]].concat(),
                [99, 1, 0, 0, 0],
            ),
            (
                "many lost",
                [&all[..10], &all[70..]].concat(),
                [40, 60, 0, 0, 0],
            ),
            (
                "two swapped",
                [&all[..40], &[41, 40], &all[42..]].concat(),
                [100, 0, 1, 0, 0],
            ),
            (
                "one twice",
                [&all[..40], &[39], &all[40..]].concat(),
                [100, 0, 0, 0, 1],
            ),
            (
                "one late, then again",
                [&all[..40], &[41, 42, 40, 40], &all[43..]].concat(),
                [100, 0, 1, 0, 1],
            ),
            ("the last ones lost", all[..90].to_vec(), [90, 0, 0, 0, 0]),
        ];
        for (what, order, expected) in cases {
            assert_eq!(brief(&play(order)), *expected, "{what}");
        }
    }

    #[test]
    fn latency_is_from_send_to_arrival() {
        let counters = play(&[0, 1, 2, 3]);
        assert!((counters.latency_ms_p50 - 7.0).abs() < 0.1, "{counters:?}");
        assert!((counters.latency_ms_max - 7.0).abs() < 0.1, "{counters:?}");
    }

    #[test]
    fn a_spoilt_packet_is_an_error_and_no_loss() {
        let mut ledger = Ledger::new(1);
        for now_ns in 0..3 {
            ledger.send(0, now_ns);
        }
        for packet in 0..3 {
            let mut payload = ledger.tones.expected(0, packet);
            if packet == 1 {
                payload[80] ^= 1;
            }
            ledger.receive(0, &payload, 10);
        }
        assert_eq!(brief(&ledger.counters()), [3, 0, 0, 1, 0]);
        assert!(ledger.is_complete());
    }

    #[test]
    fn what_was_never_sent_is_unexpected() {
        let mut ledger = Ledger::new(1);
        ledger.receive(0, &[0; PACKET_SAMPLES], 1);
        ledger.receive(7, &[0; PACKET_SAMPLES], 1);
        ledger.receive_stranger();
        assert_eq!(brief(&ledger.counters()), [0, 0, 0, 0, 3]);
    }
}
