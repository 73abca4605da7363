//! Invariants of the jitter buffer for any arrivals, checked with a simple model and by properties.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use threadbare_jitter::fuzzing::Watched;
use threadbare_jitter::{
    Adaptive, Arrival, Config, DropReason, JitterBuffer, Output, Release, Skew,
};
use threadbare_rtp_types::id::{RtpTime, SeqNum, Ssrc};

const MS: u64 = 1_000_000;
const SPACING: u64 = 20 * MS;
const LATENCY: u64 = 100 * MS;

/// Outputs by packet number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Packet {
        number: i64,
        play_ns: u64,
    },
    Lost {
        number: i64,
        packets: u32,
        play_ns: u64,
    },
    Dropped {
        number: i64,
        reason: DropReason,
    },
}

/// A simple model of the jitter buffer: a sorted map with the packets' true numbers, without wrap-around or clock skew. Packet n
/// is sent at n * 20 ms.
struct Twin {
    release: Release,
    held: BTreeMap<i64, ()>,
    given: BTreeSet<i64>,
    /// Play time of packet 0, which is known after the first packet.
    base_ns: Option<i64>,
    next: i64,
    has_begun: bool,
    dropped: Vec<Event>,
}

impl Twin {
    fn new(release: Release) -> Twin {
        Twin {
            release,
            held: BTreeMap::new(),
            given: BTreeSet::new(),
            base_ns: None,
            next: 0,
            has_begun: false,
            dropped: Vec::new(),
        }
    }

    fn handle(&mut self, at_ns: u64, number: i64) {
        if self.base_ns.is_none() {
            self.base_ns = Some(at_ns as i64 - number * SPACING as i64);
            self.next = number;
        }
        if !self.has_begun {
            self.next = self.next.min(number);
        }
        let reason = if self.held.contains_key(&number) || self.given.contains(&number) {
            DropReason::Duplicate
        } else if number < self.next {
            DropReason::Late
        } else {
            self.held.insert(number, ());
            return;
        };
        self.dropped.push(Event::Dropped { number, reason });
    }

    fn play_ns(&self, number: i64) -> u64 {
        (self.base_ns.unwrap() + number * SPACING as i64) as u64
    }

    fn due_ns(&self) -> Option<u64> {
        let (first, ()) = self.held.first_key_value()?;
        if *first == self.next && self.release == Release::InOrder {
            return Some(0);
        }
        Some(self.play_ns(self.next) + LATENCY)
    }

    fn drain(&mut self, now_ns: u64) -> Vec<Event> {
        let mut events = std::mem::take(&mut self.dropped);
        while self.due_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            self.has_begun = true;
            let first = *self.held.first_key_value().unwrap().0;
            let play_ns = self.play_ns(self.next);
            if first == self.next {
                self.held.remove(&first);
                self.given.insert(first);
                events.push(Event::Packet {
                    number: first,
                    play_ns,
                });
                self.next += 1;
            } else {
                let packets = (first - self.next) as u32;
                events.push(Event::Lost {
                    number: self.next,
                    packets,
                    play_ns,
                });
                self.next = first;
            }
        }
        events
    }
}

/// The actual buffer, with packet numbers as handles.
struct Real {
    buffer: JitterBuffer<i64>,
    first_seq: u16,
    first_time: u32,
}

impl Real {
    fn arrival(&self, number: i64) -> Arrival<i64> {
        Arrival {
            ssrc: Ssrc(9),
            seq: SeqNum(self.first_seq.wrapping_add(number as u16)),
            time: RtpTime(
                self.first_time
                    .wrapping_add((number as u32).wrapping_mul(160)),
            ),
            marker: false,
            arrival_ns: None,
            packet: number,
        }
    }

    fn drain(&mut self, now_ns: u64) -> Vec<Event> {
        let mut events = Vec::new();
        // Find the packet with this sequence number that is nearest to the last known packet.
        let mut near = 0;
        while let Some(output) = self.buffer.poll_output(now_ns) {
            events.push(match output {
                Output::Packet {
                    packet,
                    seq,
                    time,
                    play_ns,
                    ..
                } => {
                    let sent = self.arrival(packet);
                    assert_eq!((seq, time), (sent.seq, sent.time));
                    near = packet;
                    Event::Packet {
                        number: packet,
                        play_ns,
                    }
                }
                Output::Lost {
                    first,
                    packets,
                    time: _,
                    play_ns,
                    duration_ns,
                } => {
                    assert_eq!(duration_ns, u64::from(packets) * SPACING);
                    let seq = SeqNum(self.first_seq.wrapping_add(near as u16));
                    let number = near + i64::from(first.distance_from(seq));
                    Event::Lost {
                        number,
                        packets,
                        play_ns,
                    }
                }
                Output::Dropped { packet, reason } => Event::Dropped {
                    number: packet,
                    reason,
                },
                Output::Resync { .. } => panic!("{output:?}"),
            });
        }
        events
    }
}

/// For each packet: its delay in ms, whether it is lost, and whether it is duplicated.
fn travels() -> impl Strategy<Value = Vec<(u64, bool, bool)>> {
    let delay = prop_oneof![6 => 0..40_u64, 2 => 40..100_u64, 1 => 100..400_u64];
    prop::collection::vec(
        (delay, prop::bool::weighted(0.1), prop::bool::weighted(0.1)),
        2..400,
    )
}

/// Returns the arrival times of the packets. At most every third packet is delayed beyond the latency, because several
/// consecutive late packets would count as a restart. The first packet is neither lost nor late.
fn schedule(travels: &[(u64, bool, bool)]) -> Vec<(u64, i64)> {
    let mut schedule = Vec::new();
    for (number, (delay_ms, is_lost, is_twice)) in travels.iter().enumerate() {
        let delay_ms = if number % 3 == 1 {
            *delay_ms
        } else {
            delay_ms % 100
        };
        let at_ns = 1_000 * MS + number as u64 * SPACING + delay_ms * MS;
        if *is_lost && number > 0 {
            continue;
        }
        schedule.push((at_ns, number as i64));
        if *is_twice {
            schedule.push((at_ns + 3 * MS, number as i64));
        }
    }
    schedule.sort_unstable();
    schedule
}

fn config(release: Release, skew: Skew) -> Config {
    Config {
        release,
        skew,
        ..Config::new(8_000, LATENCY)
    }
}

fn release() -> impl Strategy<Value = Release> {
    prop_oneof![Just(Release::AtDeadline), Just(Release::InOrder)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn behaves_like_the_naive_twin(
        travels in travels(),
        release in release(),
        first_seq: u16,
        first_time: u32,
    ) {
        let mut twin = Twin::new(release);
        let buffer = JitterBuffer::new(config(release, Skew::None)).unwrap();
        let mut real = Real { buffer, first_seq, first_time };
        for (at_ns, number) in schedule(&travels) {
            prop_assert_eq!(real.buffer.next_timeout(), twin.due_ns());
            while let Some(due_ns) = twin.due_ns().filter(|due_ns| *due_ns < at_ns) {
                let expected = twin.drain(due_ns);
                let mut events = real.drain(due_ns);
                renumber(&mut events, &expected);
                prop_assert_eq!(events, expected);
                prop_assert_eq!(real.buffer.next_timeout(), twin.due_ns());
            }
            twin.handle(at_ns, number);
            let arrival = real.arrival(number);
            real.buffer.handle_packet(at_ns, arrival);
            let expected = twin.drain(at_ns);
            let mut events = real.drain(at_ns);
            renumber(&mut events, &expected);
            prop_assert_eq!(events, expected);
        }
    }

    /// If all packets arrive within the latency, their order makes no difference to the output. If packets are output at once,
    /// the first output determines the start of the stream. So in this mode, the first packet arrives first.
    #[test]
    fn packets_in_any_order_within_the_latency_give_the_same_output(
        delays_ms in prop::collection::vec(0..99_u64, 2..300),
        release in release(),
        is_window: bool,
        first_seq: u16,
    ) {
        let skew = if is_window { Skew::Window } else { Skew::None };
        let mut schedule: Vec<(u64, i64)> = delays_ms
            .iter()
            .enumerate()
            .map(|(number, delay_ms)| {
let is_fixed = number == 0 && release == Release::InOrder;
 let delay_ms = if is_fixed { 0 } else { *delay_ms };
(1_000 * MS + number as u64 * SPACING + delay_ms * MS, number as i64)
            })
            .collect();
        schedule.sort_unstable();
        let buffer = JitterBuffer::new(config(release, skew)).unwrap();
        let mut real = Real { buffer, first_seq, first_time: 0 };
        let mut numbers = Vec::new();
        let mut now_ns = 0;
        for (at_ns, number) in schedule {
            now_ns = at_ns;
            let arrival = real.arrival(number);
            real.buffer.handle_packet(now_ns, arrival);
            numbers.extend(real.drain(now_ns));
        }
        numbers.extend(real.drain(now_ns + LATENCY + 100 * MS));
        let numbers: Vec<i64> = numbers
            .into_iter()
            .map(|event| match event {
                Event::Packet { number, .. } => number,
                other => panic!("{other:?}"),
            })
            .collect();
        prop_assert_eq!(numbers, (0..delays_ms.len() as i64).collect::<Vec<_>>());
    }

    /// Checks all invariants of the fuzz target. Each packet is in one place and is returned once. Play times do not decrease.
    /// The ring never holds more packets than places, and always has a place for the next one. No output comes before the
    /// announced time.
    #[test]
    fn arbitrary_arrivals_keep_the_fuzzing_invariants(
        arrivals in prop::collection::vec(
            (0..3_u32, any::<u16>(), any::<u32>(), any::<bool>(), 0..2_000_000_000_u64, 0..4_u8),
            1..300,
        ),
        release in release(),
        is_adaptive: bool,
        drop_on_latency: bool,
        looks_on: bool,
    ) {
        let adaptive = is_adaptive.then_some(Adaptive { min_ns: 0, max_ns: 500 * MS });
        let config = Config { adaptive, drop_on_latency, ..config(release, Skew::Window) };
        let mut watched = Watched::new(config).unwrap();
        let (mut now_ns, mut seq, mut time) = (0, SeqNum(0), RtpTime(0));
        for (ssrc, any_seq, any_time, marker, pause_ns, kind) in arrivals {
            (seq, time) = match kind {
                0 => (SeqNum(any_seq), RtpTime(any_time)),
                1 => (seq.plus(any_seq % 100), time.plus(160 * (u32::from(any_seq) % 100))),
                _ => (seq.plus(1), time.plus(160)),
            };
            now_ns += if kind == 3 { 20 * MS } else { pause_ns };
            let ssrc = Ssrc(if kind == 0 { ssrc } else { 1 });
            let arrival = Arrival { ssrc, seq, time, marker, arrival_ns: None, packet: () };
            watched.handle(now_ns, arrival);
            // Until the socket is empty, which here is when a packet comes 20 ms after the one before, the caller acts as if its
            // socket held more packets.
            if looks_on && kind != 3 {
                watched.drain_before_loss(now_ns);
            } else {
                watched.drain(now_ns);
            }
        }
        watched.buffer_mut().release_all();
        watched.drain(now_ns);
        watched.buffer_mut().flush();
        watched.drain(now_ns);
        prop_assert_eq!(watched.buffer().held_packets(), 0);
        watched.check_all_returned();
    }
}

/// A lost packet's number is known only modulo 2^16. The model's number is used if both agree modulo 2^16.
fn renumber(events: &mut [Event], expected: &[Event]) {
    for (event, twin) in events.iter_mut().zip(expected) {
        if let (
            Event::Lost { number, .. },
            Event::Lost {
                number: true_number,
                ..
            },
        ) = (event, twin)
            && (*number - true_number) % (1 << 16) == 0
        {
            *number = *true_number;
        }
    }
}
