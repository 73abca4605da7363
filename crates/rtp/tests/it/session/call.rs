//! Two sessions are connected for hours, through links that lose, delay and duplicate packets.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use threadbare_rtp::session::{Event, RtcpSession};

use super::{MS, NTP, Random, S, address, config, packet};

/// One direction of the connection.
#[derive(Clone, Copy)]
struct Link {
    delay_ns: u64,
    /// Maximum of the random part of the delay. More than 20 ms causes reordering.
    shake_ns: u64,
    lost_permille: u64,
    doubled_permille: u64,
}

const CLEAN: Link = Link {
    delay_ns: 10 * MS,
    shake_ns: 0,
    lost_permille: 0,
    doubled_permille: 0,
};

struct Case {
    name: &'static str,
    hours: u64,
    there: Link,
    back: Link,
    /// Difference of B's wall clock from A's.
    clocks_apart_ns: u64,
    seed: u64,
}

const CASES: &[Case] = &[
    Case {
        name: "clean",
        hours: 2,
        there: CLEAN,
        back: CLEAN,
        clocks_apart_ns: 0,
        seed: 1,
    },
    Case {
        name: "lossy one way",
        hours: 3,
        there: Link {
            lost_permille: 50,
            ..CLEAN
        },
        back: CLEAN,
        clocks_apart_ns: 3_333 * MS,
        seed: 2,
    },
    Case {
        name: "satellite, reordering, both ways",
        hours: 2,
        there: Link {
            delay_ns: 300 * MS,
            shake_ns: 60 * MS,
            lost_permille: 10,
            doubled_permille: 0,
        },
        back: Link {
            delay_ns: 250 * MS,
            shake_ns: 15 * MS,
            lost_permille: 200,
            doubled_permille: 0,
        },
        clocks_apart_ns: 86_400 * S,
        seed: 3,
    },
    Case {
        name: "doubling",
        hours: 2,
        there: Link {
            shake_ns: 5 * MS,
            lost_permille: 10,
            doubled_permille: 100,
            ..CLEAN
        },
        back: CLEAN,
        clocks_apart_ns: 0,
        seed: 4,
    },
];

/// Facts about the packets that arrived from the other end. They are collected without the code under test.
#[derive(Default)]
struct Ledger {
    arrived: BTreeSet<u64>,
    arrivals: u64,
    jitter: f64,
    last: Option<(u64, u64)>,
    base: u64,
}

impl Ledger {
    /// Notes a packet. The first one that counts is the second of two consecutive packets (RFC 3550, appendix A.1).
    fn note(&mut self, now_ns: u64, number: u64) {
        if self.arrivals == 0 {
            if self.arrived.contains(&number.wrapping_sub(1))
                && self.last_number() == Some(number - 1)
            {
                self.base = number;
                self.arrived.clear();
            } else {
                self.arrived.insert(number);
                self.last = Some((now_ns, number));
                return;
            }
            self.last = None;
        }
        self.arrivals += 1;
        self.arrived.insert(number);
        if let Some((last_ns, last)) = self.last {
            // This is the jitter of RFC 3550, section 6.4.1, in units of the timestamp.
            let spacing = (now_ns as f64 - last_ns as f64) * 8000.0 / 1e9;
            let difference = (spacing - (number as f64 - last as f64) * 160.0).abs();
            self.jitter += (difference - self.jitter) / 16.0;
        }
        self.last = Some((now_ns, number));
    }

    fn last_number(&self) -> Option<u64> {
        self.last.map(|(_, number)| number)
    }

    fn highest(&self) -> u64 {
        self.arrived.last().copied().unwrap_or(0)
    }

    fn lost(&self) -> i64 {
        (self.highest() - self.base + 1) as i64 - self.arrivals as i64
    }
}

struct End {
    session: RtcpSession,
    link: Link,
    ssrc: u32,
    ledger: Ledger,
    reports: Vec<u64>,
    /// Delay of the last RTCP packet that arrived here.
    rtcp_delay_ns: u64,
    next_rtp: u64,
    rtts: usize,
    blocks: usize,
}

enum Thing {
    Rtp(u64),
    /// The bytes, their delay, and the delay of the last RTCP packet that their sender answers.
    Rtcp(Vec<u8>, u64, u64),
}

fn end(ssrc: u32, link: Link, clocks_apart_ns: u64) -> End {
    let mut config = config(ssrc);
    config.ntp_at_zero = NTP.plus_ns(clocks_apart_ns);
    End {
        session: RtcpSession::new(0, config),
        link,
        ssrc,
        ledger: Ledger::default(),
        reports: Vec::new(),
        rtcp_delay_ns: 0,
        next_rtp: 0,
        rtts: 0,
        blocks: 0,
    }
}

/// Parses a compound with another parser, and checks its block against the facts.
fn check_against_ledger(name: &str, bytes: &[u8], ledger: &Ledger) -> usize {
    let compound = rtcp_types::Compound::parse(bytes).expect("a compound");
    let mut blocks = 0;
    for part in compound {
        let rtcp_types::Packet::Sr(report) = part.expect("a packet") else {
            continue;
        };
        for block in report.report_blocks() {
            blocks += 1;
            let lost = (block.cumulative_lost() << 8).cast_signed() >> 8;
            assert_eq!(i64::from(lost), ledger.lost(), "{name}: cumulative loss");
            // The ledger counts packets from sequence number 0. So its numbers include the cycles, as the extended number in the block
            // does.
            assert_eq!(
                u64::from(block.extended_sequence_number()),
                ledger.highest(),
                "{name}"
            );
            let jitter = f64::from(block.interarrival_jitter());
            assert!(
                (jitter - ledger.jitter).abs() < 1.01,
                "{name}: {jitter} for {}",
                ledger.jitter
            );
        }
    }
    blocks
}

fn run(case: &Case) -> [End; 2] {
    let mut ends = [
        end(0xa, case.there, 0),
        end(0xb, case.back, case.clocks_apart_ns),
    ];
    let mut random = Random(case.seed);
    // Entries are ordered by arrival time, then by the order of sending. The index is that in `things`.
    let mut flying: BinaryHeap<Reverse<(u64, u64, usize)>> = BinaryHeap::new();
    let mut things: Vec<Option<Thing>> = Vec::new();
    let mut out = [0; 1500];
    let end_ns = case.hours * 3600 * S;
    loop {
        let rtp_ns = |end: &End| end.next_rtp * 20 * MS;
        let timer_ns = |end: &End| end.session.next_timeout().expect("no end has left");
        let arrival_ns = flying
            .peek()
            .map_or(u64::MAX, |Reverse((at_ns, ..))| *at_ns);
        let now_ns = ends
            .iter()
            .map(|end| rtp_ns(end).min(timer_ns(end)))
            .min()
            .expect("two ends")
            .min(arrival_ns);
        if now_ns > end_ns {
            return ends;
        }
        if arrival_ns == now_ns {
            let Some(Reverse((_, order, to))) = flying.pop() else {
                unreachable!("it was just seen");
            };
            let thing = things[order as usize].take().expect("delivered once");
            deliver(case, &mut ends, now_ns, to, thing);
            continue;
        }
        for (at, end) in ends.iter_mut().enumerate() {
            let delay = |random: &mut Random| end.link.delay_ns + random.below(end.link.shake_ns);
            if rtp_ns(end) == now_ns {
                let arrival = packet(end.ssrc, end.next_rtp);
                end.session.handle_rtp_sent(now_ns, arrival.time, 160, 1);
                let copies = if random.below(1000) < end.link.lost_permille {
                    0
                } else {
                    1 + u64::from(random.below(1000) < end.link.doubled_permille)
                };
                for _ in 0..copies {
                    let at_ns = now_ns + delay(&mut random);
                    flying.push(Reverse((at_ns, things.len() as u64, 1 - at)));
                    things.push(Some(Thing::Rtp(end.next_rtp)));
                }
                end.next_rtp += 1;
            }
            if timer_ns(end) == now_ns {
                while let Some(bytes) = end.session.poll_transmit(now_ns, &mut out) {
                    let bytes = &out[..bytes];
                    end.blocks += check_against_ledger(case.name, bytes, &end.ledger);
                    end.reports.push(now_ns);
                    let delay_ns = delay(&mut random);
                    flying.push(Reverse((now_ns + delay_ns, things.len() as u64, 1 - at)));
                    things.push(Some(Thing::Rtcp(
                        bytes.to_vec(),
                        delay_ns,
                        end.rtcp_delay_ns,
                    )));
                }
            }
        }
    }
}

fn deliver(case: &Case, ends: &mut [End; 2], now_ns: u64, to: usize, thing: Thing) {
    let [a, b] = ends;
    let (end, other) = if to == 0 { (a, b) } else { (b, a) };
    match thing {
        Thing::Rtp(number) => {
            let arrival = packet(other.ssrc, number);
            end.session
                .handle_rtp(now_ns, address(other.ssrc as u16), arrival);
            end.ledger.note(now_ns, number);
        }
        Thing::Rtcp(bytes, delay_ns, there_ns) => {
            let from = address(other.ssrc as u16 + 1);
            end.session
                .handle_rtcp(now_ns, from, &bytes)
                .expect("a good packet");
            end.rtcp_delay_ns = delay_ns;
            while let Some(event) = end.session.poll_event() {
                let Event::ReportAboutUs { view, .. } = event else {
                    continue;
                };
                let Some(rtt_ns) = view.rtt_ns else { continue };
                // The true time is our delay plus the peer's, each rounded to 65536ths of a second.
                let true_ns = there_ns + delay_ns;
                let off_ns = rtt_ns.abs_diff(true_ns);
                assert!(
                    off_ns <= 2 * S / 65_536,
                    "{}: {rtt_ns} for {true_ns}",
                    case.name
                );
                end.rtts += 1;
            }
        }
    }
}

#[test]
fn reports_have_the_losses_and_counts() {
    for case in CASES {
        for end in run(case) {
            let reports_min = (case.hours * 3600 / 6) as usize;
            assert!(end.reports.len() >= reports_min, "{}", case.name);
            assert!(
                end.blocks >= reports_min,
                "{}: {} blocks",
                case.name,
                end.blocks
            );
            assert!(
                end.rtts >= reports_min,
                "{}: {} round trips",
                case.name,
                end.rtts
            );
            let stats = end.session.stats();
            assert_eq!((stats.members, stats.senders), (2, 2), "{}", case.name);
            assert_eq!(stats.rtt_refused, 0, "{}", case.name);
            assert_eq!(stats.rtcp_errors.total(), 0, "{}", case.name);
            assert_eq!(stats.events_dropped, 0, "{}", case.name);
            let source = end.session.sources().next().expect("the other end");
            assert_eq!(source.lost, end.ledger.lost(), "{}", case.name);
            assert_eq!(source.cname, Some("us@example.org"));
            assert_eq!(source.restarts, 0);
        }
    }
}

/// An interval is 0.5 to 1.5 times 5 s, divided by e - 3/2. The first one is half of that (RFC 3550, section 6.3.1).
#[test]
fn intervals_are_random_within_their_bounds() {
    const COMPENSATION: f64 = 1.218_28;
    for end in run(&CASES[0]) {
        let seconds: Vec<f64> = end
            .reports
            .iter()
            .map(|at_ns| *at_ns as f64 / 1e9)
            .collect();
        let first = seconds[0];
        assert!(
            (1.25 / COMPENSATION..3.75 / COMPENSATION).contains(&first),
            "{first}"
        );
        let mut intervals: Vec<f64> = seconds.windows(2).map(|pair| pair[1] - pair[0]).collect();
        for interval in &intervals {
            let bounds = 2.5 / COMPENSATION - 0.001..7.5 / COMPENSATION + 0.001;
            assert!(bounds.contains(interval), "{interval}");
        }
        let mean = intervals.iter().sum::<f64>() / intervals.len() as f64;
        // The division compensates for the effect of reconsideration on the mean.
        assert!((4.5..5.5).contains(&mean), "{mean}");
        intervals.sort_by(f64::total_cmp);
        intervals.dedup();
        assert!(intervals.len() > end.reports.len() / 2, "they repeat");
        let spread = intervals[intervals.len() - 1] - intervals[0];
        assert!(spread > 3.0, "{spread}");
    }
}

/// With the same seed, the packets are the same, so every failure can be replayed.
#[test]
fn equal_seeds_give_equal_calls() {
    let case = Case {
        hours: 1,
        ..CASES[2]
    };
    let [first, second] = [run(&case), run(&case)];
    for (first, second) in first.iter().zip(&second) {
        assert_eq!(first.reports, second.reports);
        assert_eq!(first.session.stats(), second.session.stats());
    }
}
