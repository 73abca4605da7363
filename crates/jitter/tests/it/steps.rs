//! The delay of a stream steps up or down permanently, because the sender pauses together with its timestamps, or because the
//! path changes. The tests use a table of steps, jitters and drifts in virtual time.
//!
//! The bounds follow from the definition. If a packet's delay stays within the latency of its new path, the packet is not lost,
//! except in the first 200 ms after the step. From 2 s after the step, no packet waits longer than it would if the path had
//! always had the new delay.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::relay::{CALM, Event, Ledger, MS, Net, Random, SPACING, Sent};
use threadbare_jitter::{Adaptive, Config, Release, Stats};

/// A step before the packet at `step_at`, in ms.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The sender pauses, and so do its timestamps.
    Pause(u64),
    /// The path takes longer from this packet on.
    Longer(u64),
    /// The path takes less time from this packet on.
    Shorter(u64),
    /// The timestamps skip by this much, because the sender corrects its clock.
    Skip(u64),
}

impl Step {
    fn ms(self) -> u64 {
        match self {
            Step::Pause(ms) | Step::Longer(ms) | Step::Shorter(ms) | Step::Skip(ms) => ms,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    step: Step,
    jitter_ms: u64,
    drift_ppm: i64,
    latency_ms: u64,
    release: Release,
}

/// Number of packets before the step: 12 s fill the window, 1 s does not.
const STARTS: [usize; 2] = [600, 50];
const AFTER: usize = 500;

/// Length of the path, so that it can become 10 s shorter.
const PATH_MS: u64 = 11_000;

fn sent(case: &Case, step_at: usize, random: &mut Random) -> Vec<Sent> {
    let net = Net {
        drift_ppm: case.drift_ppm,
        ..CALM
    };
    let events = match case.step {
        Step::Pause(ms) => vec![(step_at, Event::Freeze { ms })],
        _ => vec![],
    };
    let mut sent = crate::relay::send(step_at + AFTER, 65_400, 77, &net, &events, random);
    if let Step::Skip(ms) = case.step {
        for packet in &mut sent[step_at..] {
            packet.time = packet.time.plus((ms * 8) as u32);
        }
    }
    sent
}

/// Returns the time on the path without jitter.
fn path_ms(step: Step, is_after: bool) -> u64 {
    match step {
        Step::Longer(ms) if is_after => PATH_MS + ms,
        Step::Shorter(ms) if is_after => PATH_MS - ms,
        _ => PATH_MS,
    }
}

fn run(case: &Case, step_at: usize) -> (Stats, Ledger) {
    let mut random = Random(case.step.ms() + case.jitter_ms);
    let sent = sent(case, step_at, &mut random);
    // Packets that are still on the longer path arrive together with the first packet of the shorter path.
    let joined_ns = sent[step_at].at_ns + path_ms(case.step, true) * MS;
    let heap: BinaryHeap<_> = sent
        .iter()
        .enumerate()
        .map(|(number, packet)| {
            let jitter_ns = random.below(case.jitter_ms * MS + 1);
            let path_ns = path_ms(case.step, number >= step_at) * MS;
            let at_ns = packet.at_ns + path_ns + jitter_ns;
            match case.step {
                Step::Shorter(_) if number < step_at => Reverse((at_ns.min(joined_ns), number)),
                _ => Reverse((at_ns, number)),
            }
        })
        .collect();
    let config = Config {
        release: case.release,
        ..Config::new(8_000, case.latency_ms * MS)
    };
    let (watched, ledger) = crate::relay::carry(config, sent, heap);
    watched.check_all_returned();
    (watched.buffer().stats(), ledger)
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ms in [20, 50, 100, 200, 300, 700, 1_000, 3_000, 10_000] {
        for step in [
            Step::Pause(ms),
            Step::Longer(ms),
            Step::Shorter(ms),
            Step::Skip(ms.min(900)),
        ] {
            for jitter_ms in [0, 10, 30, 60] {
                for drift_ppm in [-500, 0, 500] {
                    for release in [Release::AtDeadline, Release::InOrder] {
                        cases.push(Case {
                            step,
                            jitter_ms,
                            drift_ppm,
                            latency_ms: 100,
                            release,
                        });
                    }
                }
            }
        }
    }
    cases
}

/// Ten packets of 20 ms.
const LOST_MAX: u64 = 10;

#[test]
fn step_of_the_delay_loses_at_most_200_ms() {
    for case in cases() {
        for step_at in STARTS {
            let (stats, ledger) = run(&case, step_at);
            ledger.assert_in_order();
            // After a pause, nothing need be lost if the first packet arrives after its deadline, because it then shows the
            // pause.
            let allowed = match case.step {
                Step::Pause(ms) if ms >= case.latency_ms => 0,
                Step::Skip(_) | Step::Shorter(_) => 0,
                _ => LOST_MAX,
            };
            assert!(stats.lost <= allowed, "{case:?} after {step_at}: {stats:?}");
        }
    }
}

#[test]
fn two_seconds_after_a_step_the_delay_is_that_of_the_new_path() {
    for case in cases() {
        for step_at in STARTS {
            let (stats, ledger) = run(&case, step_at);
            let (least, greatest) = ledger.range(step_at + 150, |played, sent| {
                let path_ns = path_ms(case.step, played.number >= step_at) * MS;
                played.play_ns as i64 - (sent.at_ns + path_ns) as i64
            });
            // The estimate depends on the rare packets without jitter. With 60 ms of jitter, they are rarer.
            let allowed_ns = (6 * MS + case.jitter_ms * MS / 6) as i64;
            assert!(
                greatest <= allowed_ns,
                "{case:?} after {step_at}: {least}..{greatest} {stats:?}"
            );
            // If a step is smaller than the latency, it may have no effect until the window has passed.
            let below_ns = match case.step {
                Step::Pause(ms) | Step::Longer(ms) if ms <= case.latency_ms => ms * MS,
                _ => 0,
            };
            assert!(
                least >= -(below_ns as i64) - 6 * MS as i64,
                "{case:?} after {step_at}: {least}..{greatest} {stats:?}"
            );
        }
    }
}

/// After a pause of the path, the queued packets arrive in one burst, and the delay is as before.
#[test]
fn a_stall_does_not_change_the_delay() {
    for stall_ms in [150, 400, 1_500] {
        for release in [Release::AtDeadline, Release::InOrder] {
            let mut random = Random(stall_ms);
            let sent = crate::relay::send(1_000, 9, 9, &CALM, &[], &mut random);
            let resumes_ns = sent[500].at_ns + stall_ms * MS;
            let heap: BinaryHeap<_> = sent
                .iter()
                .enumerate()
                .map(|(number, packet)| match number {
                    500.. => Reverse((packet.at_ns.max(resumes_ns + number as u64), number)),
                    _ => Reverse((packet.at_ns, number)),
                })
                .collect();
            let config = Config {
                release,
                ..Config::new(8_000, 100 * MS)
            };
            let (watched, ledger) = crate::relay::carry(config, sent, heap);
            assert_eq!(watched.buffer().stats().lost, 0, "{stall_ms} {release:?}");
            let after = 500 + (stall_ms * MS / SPACING) as usize + 1;
            let (least, greatest) = ledger.range(after, |played, sent| {
                played.play_ns as i64 - sent.at_ns as i64
            });
            assert!(
                greatest - least <= MS as i64 && greatest < MS as i64,
                "{stall_ms} {release:?}: {least}..{greatest}"
            );
        }
    }
}

/// The adaptive latency covers jitter, but not steps: it does not grow when the length of the path changes.
#[test]
fn a_step_does_not_grow_the_adaptive_latency_for_good() {
    let mut random = Random(1);
    let net = Net {
        jitter_ms: 20,
        ..CALM
    };
    let sent = crate::relay::send(
        2_500,
        9,
        9,
        &net,
        &[(1_000, Event::Freeze { ms: 700 })],
        &mut random,
    );
    let heap = crate::relay::arrivals(&sent, &net, &mut random);
    let config = Config {
        adaptive: Some(Adaptive {
            min_ns: 20 * MS,
            max_ns: 500 * MS,
        }),
        ..Config::new(8_000, 60 * MS)
    };
    let (watched, _) = crate::relay::carry(config, sent, heap);
    let stats = watched.buffer().stats();
    assert!(stats.latency_ns <= 30 * MS, "{stats:?}");
    assert_eq!(stats.lost, 0, "{stats:?}");
}
