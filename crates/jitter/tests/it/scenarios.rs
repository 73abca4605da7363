//! Hours of virtual time through the jitter buffer: a table of networks and senders.

use crate::relay::{CALM, Event, Ledger, Loss, MS, Net, Random, SECOND, SPACING};
use threadbare_jitter::{Config, Release, Stats};

struct Scenario {
    name: &'static str,
    net: Net,
    /// First sequence number and timestamp.
    start: (u16, u32),
    events: &'static [(usize, Event)],
    latency_ms: u64,
    expect: Expect,
}

struct Expect {
    /// Maximum number of late packets. All other packets that the network did not lose are played.
    late_max: u64,
    resyncs: u64,
    /// Maximum unevenness of the output in the mode [`Release::AtDeadline`], after the first 10 s of the stream.
    spread_ms_max: i64,
}

const SMOOTH: Expect = Expect {
    late_max: 0,
    resyncs: 0,
    spread_ms_max: 0,
};

/// Two hours and three minutes, 50 packets a second.
const PACKETS: usize = 369_000;

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "steady; sequence numbers wrap five times, timestamps once",
        net: CALM,
        start: (65_000, u32::MAX - 8_000 * 3_600),
        events: &[],
        latency_ms: 60,
        expect: SMOOTH,
    },
    Scenario {
        name: "uniform loss of 3%",
        net: Net {
            loss: Loss::Uniform { permille: 30 },
            jitter_ms: 15,
            ..CALM
        },
        start: (0, 0),
        events: &[],
        latency_ms: 60,
        expect: Expect {
            spread_ms_max: 1,
            ..SMOOTH
        },
    },
    Scenario {
        name: "bursts of loss, 10 packets on average",
        net: Net {
            loss: Loss::Bursts {
                to_bad: 5,
                to_good: 100,
            },
            jitter_ms: 15,
            ..CALM
        },
        start: (1, 1),
        events: &[],
        latency_ms: 60,
        expect: Expect {
            spread_ms_max: 1,
            ..SMOOTH
        },
    },
    Scenario {
        name: "reordered by two places, within the latency",
        net: Net {
            detour_permille: 100,
            detour_ms: 50,
            ..CALM
        },
        start: (65_535, u32::MAX),
        events: &[],
        latency_ms: 60,
        expect: SMOOTH,
    },
    Scenario {
        name: "reordered past the latency",
        net: Net {
            detour_permille: 10,
            detour_ms: 90,
            ..CALM
        },
        start: (0, 0),
        events: &[],
        latency_ms: 60,
        expect: Expect {
            late_max: 4_200,
            ..SMOOTH
        },
    },
    Scenario {
        name: "one in five comes twice",
        net: Net {
            duplicate_permille: 200,
            jitter_ms: 30,
            ..CALM
        },
        start: (0, 0),
        events: &[],
        latency_ms: 60,
        expect: Expect {
            spread_ms_max: 1,
            ..SMOOTH
        },
    },
    Scenario {
        name: "sender 200 ppm fast",
        net: Net {
            drift_ppm: 200,
            jitter_ms: 10,
            ..CALM
        },
        start: (0, u32::MAX - 80_000),
        events: &[],
        latency_ms: 60,
        expect: Expect {
            spread_ms_max: 3,
            ..SMOOTH
        },
    },
    Scenario {
        name: "sender 200 ppm slow",
        net: Net {
            drift_ppm: -200,
            jitter_ms: 10,
            ..CALM
        },
        start: (0, u32::MAX - 80_000),
        events: &[],
        latency_ms: 60,
        expect: Expect {
            spread_ms_max: 3,
            ..SMOOTH
        },
    },
    Scenario {
        name: "silence of ten minutes, of a minute and of three packets, at 200 ppm",
        net: Net {
            drift_ppm: -200,
            jitter_ms: 10,
            loss: Loss::Uniform { permille: 10 },
            ..CALM
        },
        start: (65_530, 7),
        events: &[
            (3_000, Event::Silence { ms: 600_000 }),
            (90_000, Event::Silence { ms: 60_000 }),
            (120_000, Event::Silence { ms: 60 }),
            (120_001, Event::Silence { ms: 600_000 }),
        ],
        latency_ms: 60,
        expect: Expect {
            spread_ms_max: 12,
            ..SMOOTH
        },
    },
    Scenario {
        name: "restarts: numbers far away, just behind, just ahead; timestamps alone; all as at the very start",
        net: Net {
            jitter_ms: 10,
            ..CALM
        },
        start: (100, 0),
        events: &[
            (
                10_000,
                Event::Restart {
                    seq: 50_000,
                    time: 0x8000_0000,
                },
            ),
            (
                20_000,
                Event::Restart {
                    seq: 59_950,
                    time: 12,
                },
            ),
            (
                30_000,
                Event::Restart {
                    seq: 4_430,
                    time: 0x7000_0000,
                },
            ),
            (
                40_000,
                Event::Restart {
                    seq: 14_430,
                    time: 0x1234_5678,
                },
            ),
            (50_000, Event::Restart { seq: 100, time: 0 }),
        ],
        latency_ms: 60,
        expect: Expect {
            resyncs: 5,
            spread_ms_max: 10,
            ..SMOOTH
        },
    },
    Scenario {
        name: "changes of source, back and forth",
        net: Net {
            jitter_ms: 15,
            ..CALM
        },
        start: (100, 0),
        events: &[
            (
                10_000,
                Event::NewSource {
                    ssrc: 2,
                    seq: 10_101,
                    time: 0x8000_0000,
                },
            ),
            (
                20_000,
                Event::NewSource {
                    ssrc: 3,
                    seq: 65_535,
                    time: u32::MAX,
                },
            ),
            (
                30_000,
                Event::NewSource {
                    ssrc: 1,
                    seq: 10_100,
                    time: 1_600_000,
                },
            ),
        ],
        latency_ms: 60,
        expect: Expect {
            resyncs: 3,
            spread_ms_max: 15,
            ..SMOOTH
        },
    },
];

fn run(scenario: &Scenario, release: Release) -> (Stats, Ledger) {
    let mut random = Random(scenario.name.len() as u64);
    let (seq, time) = scenario.start;
    let sent = crate::relay::send(
        PACKETS,
        seq,
        time,
        &scenario.net,
        scenario.events,
        &mut random,
    );
    let heap = crate::relay::arrivals(&sent, &scenario.net, &mut random);
    let config = Config {
        release,
        ..Config::new(8_000, scenario.latency_ms * MS)
    };
    let (watched, ledger) = crate::relay::carry(config, sent, heap);
    watched.check_all_returned();
    (watched.buffer().stats(), ledger)
}

#[test]
fn every_scenario_passes_in_both_modes() {
    for scenario in SCENARIOS {
        for release in [Release::AtDeadline, Release::InOrder] {
            let what = format!("{}, {release:?}", scenario.name);
            let (stats, ledger) = run(scenario, release);
            check_packets(&what, scenario, &stats, &ledger);
            check_times(&what, scenario, release, &ledger);
        }
    }
}

fn check_packets(what: &str, scenario: &Scenario, stats: &Stats, ledger: &Ledger) {
    let expect = &scenario.expect;
    ledger.assert_in_order();
    let arrived = PACKETS as u64 - ledger.lost_by_net;
    assert!(stats.late <= expect.late_max, "{what}: {stats:?}");
    assert_eq!(stats.delivered, arrived - stats.late, "{what}: {stats:?}");
    assert_eq!(
        stats.lost,
        ledger.lost_by_net + stats.late,
        "{what}: {stats:?}"
    );
    assert_eq!(stats.dropped(), 0, "{what}: {stats:?}");
    assert_eq!(
        (stats.resyncs, ledger.resyncs),
        (expect.resyncs, expect.resyncs),
        "{what}"
    );
    if scenario.net.duplicate_permille == 0 {
        assert_eq!(stats.duplicates, 0, "{what}");
    } else {
        let share = stats.duplicates * 1000 / arrived;
        assert!(
            share.abs_diff(u64::from(scenario.net.duplicate_permille)) < 10,
            "{what}"
        );
    }
    let (packets, duration_ns) = ledger.losses.iter().fold((0, 0), |(packets, sum), loss| {
        (packets + u64::from(loss.1), sum + loss.2)
    });
    assert_eq!(packets, stats.lost, "{what}");
    assert_eq!(duration_ns, packets * SPACING, "{what}: audio lost");
}

fn check_times(what: &str, scenario: &Scenario, release: Release, ledger: &Ledger) {
    let expect = &scenario.expect;
    let latency_ns = (scenario.latency_ms * MS) as i64;
    // Play times follow the send times.
    let (least, greatest) = ledger.range(500, |played, sent| {
        played.play_ns as i64 - sent.at_ns as i64
    });
    let spread_ns = expect.spread_ms_max * MS as i64;
    assert!(
        greatest - least <= spread_ns,
        "{what}: play {least}..{greatest}"
    );
    let (least, greatest) =
        ledger.range(500, |played, sent| played.at_ns as i64 - sent.at_ns as i64);
    match release {
        Release::AtDeadline => {
            assert!(
                greatest - least <= spread_ns,
                "{what}: out {least}..{greatest}"
            );
            assert!(least >= latency_ns - spread_ns, "{what}: out {least}");
        }
        Release::InOrder => {
            assert!(
                least >= 0 && greatest <= latency_ns + spread_ns,
                "{what}: out {least}..{greatest}"
            );
        }
    }
}

#[test]
fn consecutive_losses_are_one_event() {
    let scenario = &SCENARIOS[2];
    for release in [Release::AtDeadline, Release::InOrder] {
        let (_, ledger) = run(scenario, release);
        let bursts = ledger
            .sent
            .windows(2)
            .filter(|pair| pair[1].is_lost && !pair[0].is_lost)
            .count();
        assert_eq!(ledger.losses.len(), bursts);
        assert!(ledger.losses.iter().any(|(_, packets, _)| *packets > 40));
    }
}

/// In another implementation, the jitter value never decreased. After half an hour of jitter, it must return to zero.
#[test]
fn the_jitter_returns_to_zero_after_half_an_hour_of_jitter() {
    let mut random = Random(5);
    let rough = Net {
        jitter_ms: 40,
        ..CALM
    };
    let sent = crate::relay::send(100_000, 0, 0, &rough, &[], &mut random);
    let rough_until = 90_000;
    let mut heap = crate::relay::arrivals(&sent[..rough_until], &rough, &mut random);
    let (watched, _) = crate::relay::carry(Config::new(8_000, 60 * MS), sent.clone(), heap.clone());
    let jitter_ns = watched.buffer().stats().jitter_ns;
    // The mean difference of two delays that are evenly distributed from 0 to 40 ms is a third of 40 ms.
    assert!((9 * MS..18 * MS).contains(&jitter_ns), "{jitter_ns}");
    for (number, packet) in sent.iter().enumerate().skip(rough_until) {
        heap.push(std::cmp::Reverse((packet.at_ns, number)));
    }
    let (watched, _) = crate::relay::carry(Config::new(8_000, 60 * MS), sent, heap);
    assert_eq!(watched.buffer().stats().jitter_ns, 0);
}

/// In another implementation, arrival times were truncated to 32 bits of µs, so that the jitter value exploded after 71.6
/// minutes.
#[test]
fn jitter_does_not_change_after_71_minutes() {
    let scenario = Scenario {
        name: "three hours",
        net: Net {
            jitter_ms: 8,
            ..CALM
        },
        start: (0, 0),
        events: &[],
        latency_ms: 60,
        expect: SMOOTH,
    };
    let mut random = Random(71);
    let packets = 3 * 3600 * 50;
    let sent = crate::relay::send(packets, 0, 0, &scenario.net, &[], &mut random);
    let wrap_ns = (1_u64 << 32) * 1_000;
    let mut watched =
        threadbare_jitter::fuzzing::Watched::new(Config::new(8_000, 60 * MS)).unwrap();
    let mut heap = crate::relay::arrivals(&sent, &scenario.net, &mut random);
    let mut worst_ns = 0;
    while let Some(std::cmp::Reverse((at_ns, number))) = heap.pop() {
        let packet = sent[number];
        // The stream starts a few seconds before the first wrap, and lasts until after the second one.
        let now_ns = at_ns + wrap_ns - 20 * SECOND;
        watched.handle(
            now_ns,
            threadbare_jitter::Arrival {
                ssrc: packet.ssrc,
                seq: packet.seq,
                time: packet.time,
                marker: packet.marker,
                arrival_ns: None,
                packet: (),
            },
        );
        watched.drain(now_ns);
        worst_ns = worst_ns.max(watched.buffer().stats().jitter_ns);
    }
    assert!(worst_ns < 8 * MS, "{worst_ns}");
    assert_eq!(watched.buffer().stats().lost, 0);
}
