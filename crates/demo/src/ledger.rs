//! Accounts for every packet. Checks its stream, number, order, payload and delay.
//!
//! The gateway sets the numbers and timestamps of its packets itself. So this module recognises a packet by its payload (see
//! [`super::tone`]), and learns which packet of the caller belongs to a number of the gateway. If the caller's packet was lost or
//! overtaken, the gateway sends a concealed payload instead. In that case only the number identifies the packet. This module has no clock
//! and no socket.

use std::ops::RangeInclusive;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::tone::{DISTINCT_PACKETS, PACKET_SAMPLES, Tones};

/// Counts of all packets so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Packets sent by the parties, including those that the network lost before they reached the gateway.
    pub packets_sent: u64,
    /// Packets that came back. Each of them is counted once.
    pub packets_received: u64,
    /// Packets that a later packet of the same stream has overtaken, and that have not arrived since.
    pub passed_over: u64,
    /// Packets that arrived after a later packet of the same stream.
    pub reordered: u64,
    /// Packets received with a wrong payload.
    pub payload_errors: u64,
    /// Packets received with a discontinuous sequence number or timestamp.
    pub header_errors: u64,
    /// Packets received more than once, or that were never sent.
    pub unexpected: u64,
    /// Packets that the simulated network between parties and gateway has lost.
    pub network_lost: u64,
    /// Packets received with a payload that the gateway made to conceal a loss.
    pub concealed: u64,
    /// Packets that the gateway concealed because they reached it too late.
    pub too_late: u64,
    /// Median of the delay from the send call to the arrival in the other party's socket, in milliseconds.
    pub latency_ms_p50: f64,
    /// 99th percentile of that delay, in milliseconds.
    pub latency_ms_p99: f64,
    /// Maximum of that delay, in milliseconds.
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
    /// Number of packets that the caller has made.
    spoken: u32,
    /// Number of the packet after the latest received one.
    next: u32,
    /// The packets that have arrived before `next`. Bit n stands for packet `next - 1 - n`.
    came: u64,
    /// A sequence number and timestamp of the gateway, and the number of the packet to which they belong.
    anchor: Option<(Stamp, u32)>,
    /// The packet that begins with a transition from concealed audio.
    mended: Option<u32>,
    /// Number of packets that were sent. Lost packets do not count, and neither do packets that the network still holds.
    sent: u32,
    /// Number of the latest packet that was sent.
    latest_sent: u32,
    /// Number of packets that the network has lost.
    lost: u32,
    /// The last packets of the caller. Packet n is at index n modulo the length.
    packets: [Spoken; MEMORY_PACKETS],
}

/// The sequence number and the timestamp that the gateway gave to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Sequence number.
    pub(super) number: u16,
    /// Timestamp.
    pub(super) time: u32,
}

#[derive(Clone, Copy, Debug)]
struct Spoken {
    /// Time at which the packet was sent, in nanoseconds.
    at_ns: u64,
    /// Number of packets of the stream that were sent before this packet.
    order: u32,
    /// Number of packets of the stream that were lost up to and including this packet.
    lost: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The network still holds the packet.
    Held,
    Lost,
    Sent,
    /// The packet was sent after a later packet.
    SentLate,
}

impl Ledger {
    /// Creates a ledger for a number of streams.
    pub(super) fn new(streams: usize) -> Ledger {
        // The histogram has three significant digits and reaches up to a minute. Its bounds are valid constants.
        let latency_us = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("valid bounds");
        let spoken = Spoken {
            at_ns: 0,
            order: 0,
            lost: 0,
            state: State::Held,
        };
        let stream = Stream {
            spoken: 0,
            next: 0,
            came: 0,
            anchor: None,
            mended: None,
            sent: 0,
            latest_sent: 0,
            lost: 0,
            packets: [spoken; MEMORY_PACKETS],
        };
        Ledger {
            tones: Tones::new(streams),
            streams: vec![stream; streams],
            counters: Counters::default(),
            latency_us,
        }
    }

    /// Records that the caller has made its next packet, which is not sent yet. Returns the packet's number.
    pub(super) fn speak(&mut self, stream: usize) -> u32 {
        let state = &mut self.streams[stream];
        let packet = state.spoken;
        state.spoken += 1;
        let lost = state.lost;
        *state.packet_mut(packet) = Spoken {
            at_ns: 0,
            order: 0,
            lost,
            state: State::Held,
        };
        self.counters.packets_sent += 1;
        packet
    }

    /// Records that the network loses the packet.
    pub(super) fn lose(&mut self, stream: usize, packet: u32) {
        let state = &mut self.streams[stream];
        state.lost += 1;
        let lost = state.lost;
        let spoken = state.packet_mut(packet);
        spoken.lost = lost;
        spoken.state = State::Lost;
        self.counters.network_lost += 1;
    }

    /// Records that a packet is sent at `now_ns`, and returns its payload.
    pub(super) fn send(&mut self, stream: usize, packet: u32, now_ns: u64) -> [u8; PACKET_SAMPLES] {
        let state = &mut self.streams[stream];
        let is_late = packet < state.latest_sent;
        state.latest_sent = state.latest_sent.max(packet);
        let order = state.sent;
        state.sent += 1;
        let spoken = state.packet_mut(packet);
        spoken.at_ns = now_ns;
        spoken.order = order;
        spoken.state = if is_late {
            State::SentLate
        } else {
            State::Sent
        };
        self.tones.sent(stream, packet)
    }

    /// Handles a packet that arrived for a stream at `arrival_ns`. The time is on the same clock as that of [`Ledger::send`].
    pub(super) fn receive(&mut self, stream: usize, stamp: Stamp, payload: &[u8], arrival_ns: u64) {
        let Some(state) = self.streams.get(stream) else {
            self.counters.unexpected += 1;
            return;
        };
        let by_number = state.packet_of(stamp.number);
        match self.recognise(stream, by_number, payload) {
            Some(packet) => self.take(stream, packet, stamp, arrival_ns),
            None => self.take_unknown(stream, by_number, stamp, payload, arrival_ns),
        }
    }

    /// Finds the packet with this payload. Most likely it has the number `by_number`, or it is the next one.
    fn recognise(&self, stream: usize, by_number: Option<u32>, payload: &[u8]) -> Option<u32> {
        let state = &self.streams[stream];
        let matches = |packet: &u32| {
            state.packet(*packet).state != State::Lost
                && self.tones.is_expected(stream, *packet, payload)
        };
        let likely = by_number.filter(|packet| *packet < state.spoken);
        let ahead = state.next
            ..state
                .spoken
                .min(state.next.saturating_add(DISTINCT_PACKETS));
        let behind = state.next.saturating_sub(DISTINCT_PACKETS)..state.next;
        let mut candidates = likely.into_iter().chain(ahead).chain(behind.rev());
        candidates.find(matches)
    }

    /// Handles a packet with an unknown payload. The payload is concealed audio, or has a transition from concealed audio, or is damaged.
    fn take_unknown(
        &mut self,
        stream: usize,
        by_number: Option<u32>,
        stamp: Stamp,
        payload: &[u8],
        arrival_ns: u64,
    ) {
        let state = &self.streams[stream];
        // A packet whose number is not known is most likely the next one.
        let packet = by_number.unwrap_or(state.next);
        if packet >= state.spoken {
            self.counters.unexpected += 1;
            return;
        }
        let is_mended =
            state.mended == Some(packet) && self.tones.ends_as_expected(stream, packet, payload);
        match state.packet(packet).state {
            _ if is_mended => {}
            State::Sent => self.counters.payload_errors += 1,
            fate => {
                // If the network still holds the packet, the packet will reach the gateway too late.
                self.streams[stream].mended = Some(packet + 1);
                self.counters.concealed += 1;
                self.counters.too_late += u64::from(fate != State::Lost);
            }
        }
        self.take(stream, packet, stamp, arrival_ns);
    }

    /// Handles a packet that belongs to no known stream, or that has an unexpected form.
    pub(super) fn receive_stranger(&mut self) {
        self.counters.unexpected += 1;
    }

    /// Records that all packets are sent. Losses at the end of a stream are removed from the counts, because the gateway cannot notice
    /// them.
    pub(super) fn finish(&mut self) {
        for state in &mut self.streams {
            while state.spoken > state.next && state.packet(state.spoken - 1).state == State::Lost {
                state.spoken -= 1;
                self.counters.packets_sent -= 1;
                self.counters.network_lost -= 1;
            }
        }
    }

    /// Whether every packet that was sent has come back.
    pub(super) fn is_complete(&self) -> bool {
        self.counters.packets_received >= self.counters.packets_sent
    }

    /// Returns the range for the number of packets that the gateway reports as lost. It reported, at `at_ns`, that packet `highest` of the
    /// stream was the latest one. Returns `None` if the gateway cannot have received that packet.
    ///
    /// Packets reach the gateway in the order of sending. So a packet that was sent after packet `highest`, but before the report, may have
    /// arrived or not.
    pub(super) fn missing(
        &self,
        stream: usize,
        highest: u32,
        at_ns: u64,
    ) -> Option<RangeInclusive<i64>> {
        let state = self.streams.get(stream)?;
        let is_known = highest < state.spoken
            && (state.spoken - highest) < MEMORY_PACKETS as u32 - DISTINCT_PACKETS;
        let latest = *state.packet(highest);
        if !is_known || !latest.is_sent() {
            return None;
        }
        let (mut least, mut most) = (i64::from(latest.lost), i64::from(latest.lost));
        for packet in highest.saturating_sub(DISTINCT_PACKETS)..highest {
            let spoken = state.packet(packet);
            if spoken.state == State::Held || spoken.is_sent() && spoken.at_ns > at_ns {
                least += 1;
                most += 1;
            } else if spoken.is_sent() && spoken.order > latest.order {
                most += 1;
            }
        }
        Some(least..=most)
    }

    /// Returns the current counts.
    pub(super) fn counters(&self) -> Counters {
        let ms = |us: u64| us as f64 / 1000.0;
        Counters {
            latency_ms_p50: ms(self.latency_us.value_at_quantile(0.50)),
            latency_ms_p99: ms(self.latency_us.value_at_quantile(0.99)),
            latency_ms_max: ms(self.latency_us.max()),
            ..self.counters.clone()
        }
    }

    /// Returns the number of packets for each millisecond of delay. Entry n is for delays from n to n + 1 ms, and the last of the
    /// [`LATENCY_BINS`] entries also counts all longer delays.
    pub(super) fn packets_by_ms(&self) -> Vec<u64> {
        let mut packets = vec![0; LATENCY_BINS];
        for value in self.latency_us.iter_recorded() {
            let ms = (value.value_iterated_to() / 1000) as usize;
            packets[ms.min(LATENCY_BINS - 1)] += value.count_at_value();
        }
        packets
    }

    /// Counts a received packet.
    fn take(&mut self, stream: usize, packet: u32, stamp: Stamp, arrival_ns: u64) {
        let state = &mut self.streams[stream];
        if packet >= state.next {
            self.counters.passed_over += u64::from(packet - state.next);
            let by = packet + 1 - state.next;
            state.came = state.came.checked_shl(by).unwrap_or(0) | 1;
            state.next = packet + 1;
        } else {
            let age = state.next - 1 - packet;
            if age >= u64::BITS || state.came & (1 << age) != 0 {
                self.counters.unexpected += 1;
                return;
            }
            state.came |= 1 << age;
            self.counters.reordered += 1;
            self.counters.passed_over -= 1;
        }
        let follows = state.follows(stamp, packet);
        self.counters.header_errors += u64::from(!follows);
        // The next packet is compared with this one, so that a jump counts only once.
        state.anchor = Some((stamp, packet));
        let spoken = state.packet(packet);
        if spoken.is_sent() {
            let latency_us = arrival_ns.saturating_sub(spoken.at_ns) / 1000;
            self.latency_us.saturating_record(latency_us.max(1));
        }
        self.counters.packets_received += 1;
    }
}

impl Stream {
    fn packet(&self, packet: u32) -> &Spoken {
        &self.packets[packet as usize % MEMORY_PACKETS]
    }

    fn packet_mut(&mut self, packet: u32) -> &mut Spoken {
        &mut self.packets[packet as usize % MEMORY_PACKETS]
    }

    /// Returns the caller's packet for a number of the gateway, if it is known.
    fn packet_of(&self, number: u16) -> Option<u32> {
        let (known, packet) = self.anchor?;
        packet.checked_add_signed(i32::from(number.wrapping_sub(known.number).cast_signed()))
    }

    /// Whether number and timestamp advance by 1 and 160 for each packet of the caller. They also advance for lost packets, because the
    /// gateway sends a packet for each of them.
    fn follows(&self, stamp: Stamp, packet: u32) -> bool {
        let Some((known, known_packet)) = self.anchor else {
            return true;
        };
        let packets = packet.wrapping_sub(known_packet);
        stamp.number.wrapping_sub(known.number) == packets as u16
            && stamp.time.wrapping_sub(known.time) == packets.wrapping_mul(PACKET_SAMPLES as u32)
    }
}

impl Spoken {
    fn is_sent(&self) -> bool {
        matches!(self.state, State::Sent | State::SentLate)
    }
}

impl Counters {
    /// Returns the number of packets that were neither received nor replaced. The number is final when the parties have stopped waiting for
    /// packets.
    pub fn lost(&self) -> u64 {
        self.packets_sent.saturating_sub(self.packets_received)
    }

    /// Returns the number of packets with any other fault than loss or wrong order.
    pub fn wrong(&self) -> u64 {
        self.payload_errors + self.header_errors + self.unexpected
    }
}

/// Number of packets that are stored for each stream. 1024 packets of 20 ms are 20 s, which is more than any delay.
const MEMORY_PACKETS: usize = 1024;

/// Number of bins of 1 ms each. A packet that takes longer than a quarter of a second is useless in a call.
const LATENCY_BINS: usize = 250;

/// Upper limit of the histogram.
const LATENCY_US_MAX: u64 = 60_000_000;

#[cfg(test)]
mod tests {
    use super::super::tone::MENDED_SAMPLES;
    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns the sequence number and the timestamp that the gateway gives to a packet. Both wrap around.
    fn stamp(packet: u32) -> Stamp {
        Stamp {
            number: 65_500_u16.wrapping_add(packet as u16),
            time: (u32::MAX - 5000).wrapping_add(packet * 160),
        }
    }

    /// Sends 100 packets on one of three streams, and receives the packets of `order` in this order. Returns the counts.
    fn play(order: &[u32]) -> Counters {
        let mut ledger = Ledger::new(3);
        for packet in 0..100 {
            ledger.speak(1);
            ledger.send(1, packet, u64::from(packet) * 20 * MS);
        }
        for packet in order {
            let payload = ledger.tones.expected(1, *packet);
            let arrival_ns = (u64::from(*packet) * 20 + 7) * MS;
            ledger.receive(1, stamp(*packet), &payload, arrival_ns);
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
    fn packets_are_identified_by_their_payload() {
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
    fn latency_is_measured_from_send_to_arrival() {
        let counters = play(&[0, 1, 2, 3]);
        assert!((counters.latency_ms_p50 - 7.0).abs() < 0.1, "{counters:?}");
        assert!((counters.latency_ms_max - 7.0).abs() < 0.1, "{counters:?}");
    }

    #[test]
    fn a_jump_in_sequence_numbers_or_timestamps_is_an_error() {
        for (number_off, time_off, errors) in [(0, 0, 0), (1, 0, 2), (0, 160, 2), (0, 1, 2)] {
            let mut ledger = Ledger::new(1);
            for packet in 0..5 {
                ledger.speak(0);
                ledger.send(0, packet, 0);
            }
            for packet in 0..5 {
                let mut stamp = stamp(packet);
                if packet == 3 {
                    stamp.number = stamp.number.wrapping_add(number_off);
                    stamp.time = stamp.time.wrapping_add(time_off);
                }
                let payload = ledger.tones.expected(0, packet);
                ledger.receive(0, stamp, &payload, 1);
            }
            // There is one jump forwards and one backwards.
            let counters = ledger.counters();
            assert_eq!((counters.header_errors, counters.wrong()), (errors, errors));
        }
    }

    #[test]
    fn every_packet_is_counted_in_the_histogram() {
        let mut ledger = Ledger::new(1);
        for (packet, ms) in [(0, 0), (1, 7), (2, 7), (3, 40), (4, 249), (5, 9000)] {
            ledger.speak(0);
            ledger.send(0, packet, 0);
            let payload = ledger.tones.expected(0, packet);
            ledger.receive(0, stamp(packet), &payload, ms * MS + MS / 2);
        }
        let packets = ledger.packets_by_ms();
        assert_eq!(packets.len(), LATENCY_BINS);
        let found = packets.iter().enumerate().filter(|(_, count)| **count > 0);
        let expected = [(0, 1), (7, 2), (40, 1), (249, 2)];
        assert!(
            found.map(|(ms, count)| (ms, *count)).eq(expected),
            "{packets:?}"
        );
    }

    #[test]
    fn a_damaged_packet_is_an_error_and_not_a_loss() {
        let mut ledger = Ledger::new(1);
        for packet in 0..3 {
            ledger.speak(0);
            ledger.send(0, packet, u64::from(packet));
        }
        for packet in 0..3 {
            let mut payload = ledger.tones.expected(0, packet);
            if packet == 1 {
                payload[80] ^= 1;
            }
            ledger.receive(0, stamp(packet), &payload, 10);
        }
        assert_eq!(brief(&ledger.counters()), [3, 0, 0, 1, 0]);
        assert!(ledger.is_complete());
    }

    #[test]
    fn unsent_packet_is_unexpected() {
        let mut ledger = Ledger::new(1);
        ledger.receive(0, stamp(1), &[0; PACKET_SAMPLES], 1);
        ledger.receive(7, stamp(1), &[0; PACKET_SAMPLES], 1);
        ledger.receive_stranger();
        assert_eq!(brief(&ledger.counters()), [0, 0, 0, 0, 3]);
    }

    /// Sends ten packets, of which 3 and 4 are lost, and 6 is sent after 7. The gateway sends ten packets, of which it conceals 3, 4 and
    /// `late`.
    fn play_harm(late: Option<u32>, spoil: Option<u32>) -> (Ledger, Counters) {
        let mut ledger = Ledger::new(1);
        for packet in 0..10 {
            ledger.speak(0);
            match packet {
                3 | 4 => ledger.lose(0, packet),
                6 => {}
                7 => {
                    ledger.send(0, 7, 140 * MS);
                    ledger.send(0, 6, 145 * MS);
                }
                _ => {
                    ledger.send(0, packet, u64::from(packet) * 20 * MS);
                }
            }
        }
        for packet in 0..10 {
            let mut payload = ledger.tones.expected(0, packet);
            if [Some(3), Some(4), late].contains(&Some(packet)) {
                payload = [0x55; PACKET_SAMPLES];
            }
            // The first packet after concealed audio has a transition.
            if packet == 5 || late.is_some_and(|late| packet == late + 1) {
                payload[..MENDED_SAMPLES].fill(0xd5);
            }
            if spoil == Some(packet) {
                payload[PACKET_SAMPLES - 1] ^= 1;
            }
            ledger.receive(0, stamp(packet), &payload, 200 * MS);
        }
        ledger.finish();
        let counters = ledger.counters();
        (ledger, counters)
    }

    #[test]
    fn concealment_is_allowed_for_lost_or_overtaken_packets() {
        let (ledger, counters) = play_harm(None, None);
        assert_eq!(brief(&counters), [10, 0, 0, 0, 0]);
        assert_eq!((counters.concealed, counters.too_late), (2, 0));
        assert!(ledger.is_complete());
        let (_, counters) = play_harm(Some(6), None);
        assert_eq!(brief(&counters), [10, 0, 0, 0, 0]);
        assert_eq!((counters.concealed, counters.too_late), (3, 1));
    }

    #[test]
    fn concealment_without_a_lost_or_overtaken_packet_is_an_error() {
        let (_, counters) = play_harm(Some(8), None);
        assert_eq!(counters.payload_errors, 2);
        for spoilt in [2, 5] {
            let (_, counters) = play_harm(None, Some(spoilt));
            assert_eq!(counters.payload_errors, 1, "{spoilt}");
        }
    }

    #[test]
    fn report_is_compared_with_the_sent_packets() {
        let (ledger, _) = play_harm(None, None);
        let missing = |highest, at_ms: u64| ledger.missing(0, highest, at_ms * MS);
        assert_eq!(missing(2, 40), Some(0..=0));
        assert_eq!(missing(5, 100), Some(2..=2));
        // A packet that was lost or not sent yet cannot be the highest.
        assert_eq!((missing(4, 100), missing(10, 500)), (None, None));
        // Packet 6 was sent after packet 7, so it may have arrived or not. Before it was sent, it cannot have arrived.
        assert_eq!(missing(7, 150), Some(2..=3));
        assert_eq!(missing(7, 141), Some(3..=3));
        assert_eq!(missing(8, 165), Some(2..=2));
    }

    #[test]
    fn packets_lost_at_the_end_are_not_waited_for() {
        let mut ledger = Ledger::new(1);
        for packet in 0..3 {
            ledger.speak(0);
            match packet {
                0 => {
                    ledger.send(0, 0, 1);
                }
                _ => ledger.lose(0, packet),
            }
        }
        let payload = ledger.tones.expected(0, 0);
        ledger.receive(0, stamp(9), &payload, 2);
        assert!(!ledger.is_complete());
        ledger.finish();
        assert!(ledger.is_complete());
        assert_eq!(ledger.counters().network_lost, 0);
    }
}
