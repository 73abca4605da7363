//! Scenarios in milliseconds of virtual time, and random ones compared with a naive twin and the model of a decoder.

mod random;

use super::*;

const MS: u64 = 1_000_000;
const MAIN: InputId = 10;
const FALLBACK: InputId = 20;

pub(super) struct Bench {
    core: SwitchCore,
    now_ms: u64,
}

/// Returns settings, all of which differ from the existing element's defaults.
fn own() -> Settings {
    Settings {
        switches_on_eos: true,
        is_seamless: true,
        is_synced: false,
        ..Settings::default()
    }
}

/// Main and fallback, of raw audio, after the start of the clock.
fn bench(settings: Settings) -> Bench {
    let mut core = SwitchCore::default();
    core.handle_settings(0, settings);
    for (priority, id) in [MAIN, FALLBACK].into_iter().enumerate() {
        core.handle_add(0, id, priority as u32);
        core.handle_media(id, Media::Audio);
    }
    core.handle_start(0);
    Bench { core, now_ms: 0 }
}

fn at(begin_ms: u64, end_ms: u64) -> Arrival {
    Arrival {
        begin_ns: Some(begin_ms * MS),
        end_ns: Some(end_ms * MS),
        ..Arrival::default()
    }
}

fn delta(begin_ms: u64, end_ms: u64) -> Arrival {
    Arrival {
        is_delta: true,
        ..at(begin_ms, end_ms)
    }
}

impl Bench {
    fn arrive(&mut self, id: InputId, arrival: Arrival) -> Verdict {
        self.core.handle_buffer(self.now_ms * MS, id, &arrival);
        self.core.decide(self.now_ms * MS, id, &arrival)
    }

    /// Delivers the 20 ms that start now.
    fn feed(&mut self, id: InputId) -> Verdict {
        self.arrive(id, at(self.now_ms, self.now_ms + 20))
    }

    /// Runs the time-outs up to this time, each at its time.
    fn until(&mut self, now_ms: u64) {
        while let Some(due_ns) = self.core.next_timeout().filter(|ns| *ns <= now_ms * MS) {
            self.core.handle_timeout(due_ns);
        }
        self.now_ms = now_ms;
    }

    fn switches(&mut self) -> Vec<(Option<InputId>, InputId, Reason)> {
        let actions = std::iter::from_fn(|| self.core.poll_action());
        actions
            .filter_map(|action| match action {
                Action::Switched { from, to, reason } => Some((from, to, reason)),
                _ => None,
            })
            .collect()
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.core.poll_action()).collect()
    }

    /// Feeds both inputs, every 20 ms, until `end_ms`; the main one passes.
    fn both_until(&mut self, end_ms: u64) {
        while self.now_ms < end_ms {
            assert!(passes(self.feed(MAIN)));
            self.feed(FALLBACK);
            self.until(self.now_ms + 20);
        }
    }
}

fn passes(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Pass { .. })
}

fn whole(is_first: bool) -> Verdict {
    Verdict::Pass {
        is_first,
        is_joint: is_first,
        lead_ns: 0,
    }
}

#[test]
fn the_first_choice_passes_as_long_as_it_delivers() {
    let mut bench = bench(own());
    assert_eq!(bench.feed(MAIN), whole(true));
    assert_eq!(bench.feed(FALLBACK), Verdict::Drop);
    bench.until(20);
    assert_eq!(bench.feed(MAIN), whole(false));
    assert_eq!(bench.switches(), [(None, MAIN, Reason::Start)]);
    // One timeout after the last buffer's end, and not before.
    assert_eq!(bench.core.next_timeout(), Some(1020 * MS));
    bench.until(1010);
    assert_eq!(bench.feed(FALLBACK), Verdict::Drop);
    bench.until(1039);
    assert!(bench.core.input(MAIN).unwrap().is_healthy());
    bench.until(1040);
    assert_eq!(bench.switches(), [(Some(MAIN), FALLBACK, Reason::Timeout)]);
    bench.until(1050);
    assert_eq!(bench.feed(FALLBACK), whole(true));
}

#[test]
fn an_unlinked_input_that_may_be_linked_again_has_the_timeout() {
    let mut bench = bench(Settings {
        fails_unlinked: false,
        ..own()
    });
    bench.both_until(100);
    bench.core.handle_unlink(100 * MS, MAIN);
    assert_eq!(bench.core.active(), Some(MAIN));
    bench.until(1099);
    assert_eq!(bench.core.active(), Some(MAIN));
    bench.until(1100);
    bench.feed(FALLBACK);
    assert_eq!(bench.core.active(), Some(FALLBACK));
}

#[test]
fn the_start_waits_for_the_first_choice_up_to_the_timeout() {
    let mut bench = bench(own());
    assert_eq!(bench.feed(FALLBACK), Verdict::Drop);
    bench.until(990);
    assert_eq!(bench.feed(FALLBACK), Verdict::Drop);
    bench.until(1000);
    assert_eq!(bench.switches(), [(None, FALLBACK, Reason::Start)]);
    assert!(passes(bench.feed(FALLBACK)));
    let mut early = super::tests::bench(Settings {
        immediate_fallback: true,
        ..own()
    });
    assert_eq!(early.feed(FALLBACK), whole(true));
}

#[test]
fn no_input_times_out_before_the_clock_runs() {
    let mut core = SwitchCore::default();
    core.handle_add(0, MAIN, 0);
    core.handle_add(0, FALLBACK, 1);
    core.handle_buffer(0, FALLBACK, &at(0, 20));
    assert_eq!(core.decide(0, FALLBACK, &at(0, 20)), Verdict::Drop);
    assert_eq!(core.next_timeout(), None);
    core.handle_start(0);
    assert_eq!(core.next_timeout(), Some(1000 * MS));
}

#[test]
fn early_item_is_held_and_passes_after_a_switch() {
    let mut bench = bench(Settings {
        latency_ns: 5 * MS,
        ..own()
    });
    bench.both_until(100);
    bench.switches();
    assert!(passes(bench.feed(MAIN)));
    let ahead = at(120, 140);
    assert_eq!(
        bench.arrive(FALLBACK, ahead),
        Verdict::Hold { until_ns: 125 * MS }
    );
    bench.until(124);
    let again = bench.core.decide(124 * MS, FALLBACK, &ahead);
    assert_eq!(again, Verdict::Hold { until_ns: 125 * MS });
    bench.core.handle_eos(124 * MS, MAIN);
    assert_eq!(bench.switches(), [(Some(MAIN), FALLBACK, Reason::Eos)]);
    assert_eq!(bench.core.decide(124 * MS, FALLBACK, &ahead), whole(true));
    // Without a change, the buffer passes at its time.
    assert_eq!(
        bench.arrive(MAIN, at(200, 220)),
        Verdict::Hold { until_ns: 205 * MS }
    );
    assert_eq!(
        bench.core.decide(205 * MS, MAIN, &at(200, 220)),
        Verdict::Drop
    );
}

#[test]
fn partner_streams_leave_and_rejoin_a_source_together() {
    let mut bench = bench(Settings {
        recover_after_ns: 100 * MS,
        ..own()
    });
    bench.both_until(100);
    bench.switches();
    bench.core.handle_partners(100 * MS, &[(MAIN, false)]);
    assert_eq!(bench.switches(), [(Some(MAIN), FALLBACK, Reason::Partner)]);
    assert!(bench.core.input(MAIN).unwrap().is_healthy(), "by itself");
    let mut both_until = |end_ms: u64| {
        while bench.now_ms < end_ms {
            bench.feed(MAIN);
            assert!(passes(bench.feed(FALLBACK)));
            bench.until(bench.now_ms + 20);
        }
    };
    both_until(400);
    bench.core.handle_partners(400 * MS, &[(MAIN, true)]);
    // The input's own health started earlier.
    while bench.now_ms < 500 {
        assert!(!passes(bench.feed(MAIN)), "{}", bench.now_ms);
        bench.feed(FALLBACK);
        bench.until(bench.now_ms + 20);
    }
    assert!(passes(bench.feed(MAIN)));
    assert_eq!(
        bench.switches(),
        [(Some(FALLBACK), MAIN, Reason::Recovered)]
    );
}

#[test]
fn an_input_with_a_failed_partner_is_replaced_only_by_a_healthy_input() {
    let mut bench = bench(own());
    assert_eq!(bench.feed(MAIN), whole(true));
    bench.core.handle_partners(0, &[(MAIN, false)]);
    bench.until(20);
    assert_eq!(bench.feed(MAIN), whole(false));
    bench.switches();
    // Several partners at once cause one change.
    bench.core.handle_buffer(20 * MS, FALLBACK, &at(20, 40));
    assert_eq!(bench.switches(), [(Some(MAIN), FALLBACK, Reason::Partner)]);
    let swapped = [(MAIN, true), (FALLBACK, false)];
    bench.core.handle_partners(20 * MS, &swapped);
    assert_eq!(bench.switches(), [(Some(FALLBACK), MAIN, Reason::Partner)]);
}

#[test]
fn the_start_waits_for_the_partner_of_the_first_choice() {
    let mut bench = bench(own());
    let healths = |main, fallback| [(MAIN, main), (FALLBACK, fallback)];
    bench.core.handle_partners(0, &healths(false, false));
    assert!(!passes(bench.feed(MAIN)));
    assert!(!passes(bench.feed(FALLBACK)));
    bench.core.handle_partners(0, &healths(false, true));
    assert_eq!(bench.switches(), []);
    bench.core.handle_partners(0, &healths(true, true));
    assert_eq!(bench.switches(), [(None, MAIN, Reason::Start)]);
    // It does not wait longer than the timeout.
    let mut late = super::tests::bench(own());
    late.core.handle_partners(0, &healths(false, true));
    late.until(990);
    late.feed(MAIN);
    late.feed(FALLBACK);
    assert_eq!(late.switches(), []);
    late.until(1000);
    assert_eq!(late.switches(), [(None, FALLBACK, Reason::Start)]);
}

#[test]
fn a_reported_error_lasts_until_the_next_timely_buffer() {
    let mut bench = bench(own());
    // An error also counts before the first buffer. So the start does not wait for that input.
    bench.core.handle_error(0, MAIN);
    assert_eq!(bench.feed(FALLBACK), whole(true));
    bench.until(1500);
    bench.feed(FALLBACK);
    // This buffer arrives later than the timeout.
    bench.arrive(MAIN, at(0, 20));
    assert!(!bench.core.input(MAIN).unwrap().is_healthy());
    bench.until(1520);
    bench.feed(MAIN);
    assert!(bench.core.input(MAIN).unwrap().is_healthy());
    assert_eq!(
        bench.switches(),
        [
            (None, FALLBACK, Reason::Start),
            (Some(FALLBACK), MAIN, Reason::Recovered)
        ]
    );
}

#[test]
fn each_failure_switches_at_once_and_states_its_reason() {
    type Fail = fn(&mut SwitchCore, u64);
    let failures: [(Reason, Fail); 4] = [
        (Reason::Eos, |core, now| core.handle_eos(now, MAIN)),
        (Reason::Removed, |core, now| core.handle_remove(now, MAIN)),
        (Reason::Unlinked, |core, now| core.handle_unlink(now, MAIN)),
        (Reason::Error, |core, now| core.handle_error(now, MAIN)),
    ];
    for (reason, fail) in failures {
        let mut bench = bench(Settings {
            min_hold_ns: 60_000 * MS,
            recover_after_ns: 60_000 * MS,
            ..own()
        });
        bench.both_until(100);
        bench.switches();
        fail(&mut bench.core, 101 * MS);
        assert_eq!(bench.switches(), [(Some(MAIN), FALLBACK, reason)]);
        bench.until(120);
        assert_eq!(bench.feed(FALLBACK), whole(true));
    }
}

#[test]
fn a_flush_counts_as_a_failure_only_if_it_does_not_end_in_time() {
    let mut bench = bench(own());
    bench.both_until(100);
    bench.switches();
    bench.core.handle_flush_start(101 * MS, MAIN);
    bench.until(900);
    bench.feed(FALLBACK);
    bench.core.handle_flush_stop(900 * MS, MAIN);
    bench.until(1899);
    bench.feed(FALLBACK);
    assert_eq!(
        bench.switches(),
        [],
        "a timeout from the end of the flush on"
    );
    bench.core.handle_flush_start(1899 * MS, MAIN);
    bench.until(1900);
    assert_eq!(bench.switches(), [(Some(MAIN), FALLBACK, Reason::Flush)]);
}

#[test]
fn one_late_buffer_of_a_better_input_does_not_switch() {
    let mut bench = bench(own());
    bench.both_until(100);
    bench.until(1090);
    bench.feed(FALLBACK);
    bench.until(1100);
    bench.feed(FALLBACK);
    assert_eq!(bench.switches().len(), 2);
    bench.until(1200);
    bench.arrive(MAIN, at(100, 120));
    bench.feed(FALLBACK);
    assert_eq!(bench.switches(), []);
    assert!(!bench.core.input(MAIN).unwrap().is_healthy());
}

#[test]
fn an_input_that_fails_repeatedly_does_not_replace_the_active_one() {
    let mut bench = bench(Settings {
        timeout_ns: 100 * MS,
        recover_after_ns: 300 * MS,
        min_hold_ns: 2000 * MS,
        ..own()
    });
    bench.both_until(100);
    let mut log = Vec::new();
    // The main input delivers for 200 ms of each 400 ms, and later without a pause.
    while bench.now_ms < 4000 {
        let is_up = bench.now_ms % 400 >= 200 || bench.now_ms >= 2000;
        if is_up {
            bench.feed(MAIN);
        }
        bench.feed(FALLBACK);
        let now_ms = bench.now_ms;
        log.extend(bench.switches().into_iter().map(|(_, to, _)| (now_ms, to)));
        bench.until(now_ms + 20);
    }
    assert_eq!(log.len(), 3, "{log:?}");
    assert_eq!(log[0].1, MAIN);
    assert_eq!(log[1].1, FALLBACK);
    // It has been healthy since 1800, and the last change was at 200, so 2200 is due.
    assert_eq!(log[2], (2200, MAIN));
}

#[test]
fn equal_priorities_do_not_replace_each_other() {
    let mut bench = bench(Settings {
        immediate_fallback: true,
        ..own()
    });
    bench.core.handle_priority(0, MAIN, 1);
    bench.feed(FALLBACK);
    bench.feed(MAIN);
    bench.until(20);
    bench.feed(MAIN);
    assert_eq!(bench.switches(), [(None, FALLBACK, Reason::Start)]);
    bench.core.handle_priority(20 * MS, MAIN, 0);
    bench.until(40);
    bench.feed(MAIN);
    assert_eq!(
        bench.switches(),
        [(Some(FALLBACK), MAIN, Reason::Recovered)]
    );
}

#[test]
fn raw_audio_continues_at_the_end_of_the_output() {
    let mut bench = bench(own());
    bench.both_until(100);
    bench.arrive(FALLBACK, at(70, 90));
    bench.core.handle_eos(100 * MS, MAIN);
    assert_eq!(bench.arrive(FALLBACK, at(70, 90)), Verdict::Drop);
    assert_eq!(bench.arrive(FALLBACK, at(80, 100)), Verdict::Drop);
    let overlapping = bench.arrive(FALLBACK, at(93, 113));
    assert_eq!(
        overlapping,
        Verdict::Pass {
            is_first: true,
            is_joint: true,
            lead_ns: 7 * MS
        }
    );
    assert_eq!(bench.arrive(FALLBACK, at(113, 133)), whole(false));
}

#[test]
fn a_picture_is_shown_unless_most_of_its_time_is_over() {
    for (begin_ms, is_shown) in [(79, false), (89, false), (90, true), (95, true)] {
        let mut bench = bench(own());
        for id in [MAIN, FALLBACK] {
            bench.core.handle_media(id, Media::Video);
        }
        bench.both_until(100);
        bench.core.handle_eos(100 * MS, MAIN);
        // The output ends at 100: of 20 ms from 90 on, half is left.
        let verdict = bench.arrive(FALLBACK, at(begin_ms, begin_ms + 20));
        assert_eq!(passes(verdict), is_shown, "{begin_ms}");
    }
}

#[test]
fn a_buffer_far_in_the_future_does_not_exclude_the_next_input() {
    let mut bench = bench(own());
    bench.feed(FALLBACK);
    bench.arrive(MAIN, at(3_600_000, 3_600_020));
    bench.core.handle_eos(0, MAIN);
    bench.until(20);
    assert_eq!(bench.feed(FALLBACK), whole(true));
}

/// Both inputs are coded, with a keyframe each 100 ms. The keyframes of the fallback come 40 ms later.
fn coded(settings: Settings) -> Bench {
    let mut bench = bench(settings);
    for id in [MAIN, FALLBACK] {
        bench.core.handle_media(id, Media::Coded);
    }
    bench
}

#[test]
fn coded_streams_change_at_a_keyframe_and_ask_for_one() {
    let mut bench = coded(own());
    assert!(passes(bench.feed(MAIN)));
    bench.feed(FALLBACK);
    bench.until(1000);
    bench.arrive(FALLBACK, delta(1000, 1020));
    bench.until(1020);
    bench.actions();
    // The first choice returns between two keyframes, so the other input continues.
    assert_eq!(bench.core.active(), Some(FALLBACK));
    assert!(passes(bench.arrive(FALLBACK, at(1020, 1040))));
    bench.until(1040);
    assert_eq!(bench.arrive(MAIN, delta(1040, 1060)), Verdict::Drop);
    let asked = |bench: &mut Bench| {
        let actions = bench.actions().into_iter();
        let asked = actions.filter(|action| *action == Action::RequestKeyframe(MAIN));
        asked.count()
    };
    assert_eq!(asked(&mut bench), 1);
    while bench.now_ms < 2000 {
        assert!(passes(
            bench.arrive(FALLBACK, delta(bench.now_ms, bench.now_ms + 20))
        ));
        bench.until(bench.now_ms + 20);
        assert_eq!(
            bench.arrive(MAIN, delta(bench.now_ms, bench.now_ms + 20)),
            Verdict::Drop
        );
    }
    assert_eq!(asked(&mut bench), 0, "once a second");
    bench.until(2040);
    assert_eq!(asked(&mut bench), 1);
    assert_eq!(bench.feed(MAIN), whole(true));
    assert_eq!(bench.core.active(), Some(MAIN));
    bench.until(2060);
    assert!(passes(bench.arrive(MAIN, delta(2060, 2080))));
    bench.until(3030);
    assert_eq!(asked(&mut bench), 0, "it has come");
}

#[test]
fn a_coded_stream_whose_held_keyframe_is_lost_begins_at_the_next_keyframe() {
    type Lose = fn(&mut SwitchCore);
    let losses: [Lose; 2] = [
        |core| core.handle_unlink(0, FALLBACK),
        |core| {
            core.handle_flush_start(0, FALLBACK);
            core.handle_flush_stop(0, FALLBACK);
        },
    ];
    for lose in losses {
        let mut bench = coded(Settings {
            latency_ns: 5 * MS,
            ..own()
        });
        // The keyframe is held, because the start waits for the first choice.
        let held = bench.arrive(FALLBACK, at(0, 20));
        assert_eq!(held, Verdict::Hold { until_ns: 5 * MS });
        lose(&mut bench.core);
        bench.core.handle_unlink(0, MAIN);
        assert_eq!(bench.arrive(FALLBACK, delta(20, 40)), Verdict::Drop);
        assert_eq!(bench.switches(), [(None, FALLBACK, Reason::Start)]);
        assert!(passes(bench.arrive(FALLBACK, at(40, 60))));
    }
}

#[test]
fn a_coded_stream_begins_at_a_keyframe_even_after_a_failure() {
    let mut bench = coded(own());
    bench.feed(MAIN);
    bench.feed(FALLBACK);
    bench.actions();
    bench.core.handle_eos(10 * MS, MAIN);
    assert!(bench.actions().contains(&Action::RequestKeyframe(FALLBACK)));
    bench.until(20);
    assert_eq!(bench.arrive(FALLBACK, delta(20, 40)), Verdict::Drop);
    bench.until(40);
    assert_eq!(bench.feed(FALLBACK), whole(true));
}

#[test]
fn gap_is_not_a_keyframe() {
    let mut bench = coded(own());
    bench.feed(MAIN);
    bench.feed(FALLBACK);
    bench.core.handle_eos(10 * MS, MAIN);
    bench.until(20);
    let gap = Arrival {
        is_gap: true,
        ..at(20, 40)
    };
    assert_eq!(bench.arrive(FALLBACK, gap), Verdict::Drop);
}

#[test]
fn the_application_chooses_without_auto_switch() {
    let mut bench = bench(Settings {
        auto_switch: false,
        ..own()
    });
    assert_eq!(bench.core.active(), Some(MAIN), "the first one");
    assert!(passes(bench.feed(MAIN)));
    bench.feed(FALLBACK);
    bench.actions();
    assert!(bench.core.handle_selection(10 * MS, FALLBACK));
    // The active input continues until the other one has data for the end of the output.
    bench.until(20);
    assert!(passes(bench.feed(MAIN)));
    assert_eq!(
        bench.arrive(FALLBACK, at(35, 55)),
        Verdict::Pass {
            is_first: true,
            is_joint: true,
            lead_ns: 5 * MS
        }
    );
    assert_eq!(
        bench.switches(),
        [(Some(MAIN), FALLBACK, Reason::Application)]
    );
    // The application decides how to handle the failure, so the switch does nothing.
    bench.until(5000);
    bench.feed(MAIN);
    assert_eq!(bench.core.active(), Some(FALLBACK));
    bench.core.handle_remove(5000 * MS, FALLBACK);
    assert_eq!(bench.core.active(), None);
    assert!(bench.core.handle_selection(5000 * MS, MAIN));
    assert_eq!(
        bench.core.active(),
        Some(MAIN),
        "no other input can continue"
    );
    let mut automatic = super::tests::bench(own());
    assert!(!automatic.core.handle_selection(0, FALLBACK));
}

#[test]
fn the_output_ends_with_the_last_input_or_with_any_input_as_configured() {
    for stop_on_eos in [false, true] {
        let mut bench = bench(Settings {
            stop_on_eos,
            ..own()
        });
        bench.both_until(100);
        bench.actions();
        bench.core.handle_eos(100 * MS, MAIN);
        let has_ended = bench.actions().contains(&Action::Eos);
        assert_eq!(has_ended, stop_on_eos);
        assert_eq!(bench.feed(FALLBACK) == Verdict::Ended, stop_on_eos);
        bench.core.handle_eos(120 * MS, FALLBACK);
        let has_ended = bench.actions().contains(&Action::Eos);
        assert_eq!(has_ended, !stop_on_eos);
        // Other streams start on the same pads.
        bench.core.handle_stream_start(FALLBACK);
        bench.core.handle_stream_start(MAIN);
        bench.until(140);
        assert!(passes(bench.feed(MAIN)));
    }
}

#[test]
fn the_output_ends_when_the_last_input_that_has_not_ended_is_released() {
    let mut bench = bench(own());
    bench.both_until(100);
    bench.core.handle_eos(100 * MS, FALLBACK);
    bench.actions();
    bench.core.handle_remove(100 * MS, MAIN);
    assert!(bench.actions().contains(&Action::Eos));
}

#[test]
fn if_running_time_restarts_the_time_outs_restart() {
    let mut bench = bench(own());
    bench.until(3_600_000);
    bench.feed(MAIN);
    bench.feed(FALLBACK);
    bench.actions();
    // A flushing seek: running time restarts at 0.
    bench.until(0);
    bench.feed(FALLBACK);
    bench.until(990);
    bench.feed(FALLBACK);
    assert_eq!(bench.switches(), []);
    bench.until(1020);
    assert_eq!(bench.switches(), [(Some(MAIN), FALLBACK, Reason::Timeout)]);
}

#[test]
fn a_stop_resets_everything_except_inputs_and_settings() {
    let mut bench = bench(own());
    bench.both_until(100);
    bench.actions();
    bench.core.handle_stop();
    assert_eq!(bench.core.active(), None);
    assert_eq!(bench.core.next_timeout(), None);
    let now_unhealthy = [MAIN, FALLBACK].map(Action::HealthChanged);
    assert_eq!(bench.actions(), now_unhealthy);
    bench.now_ms = 0;
    assert_eq!(bench.feed(MAIN), whole(true));
}

#[test]
fn an_input_with_a_failed_partner_is_chosen_last() {
    let mut bench = bench(own());
    bench.both_until(100);
    bench.switches();
    bench.core.handle_partners(100 * MS, &[(FALLBACK, false)]);
    assert_eq!(bench.switches(), []);
    // One stream of a source is better than no stream.
    bench.core.handle_error(100 * MS, MAIN);
    assert_eq!(bench.switches(), [(Some(MAIN), FALLBACK, Reason::Error)]);
    assert_eq!(bench.feed(FALLBACK), whole(true));
    // But a source with all its streams is better than one stream.
    bench.core.handle_buffer(100 * MS, MAIN, &at(100, 120));
    assert_eq!(bench.switches(), [(Some(FALLBACK), MAIN, Reason::Partner)]);
    assert_eq!(bench.core.next_timeout(), Some(1120 * MS));
}

#[test]
fn if_all_partners_have_failed_the_best_input_passes() {
    let mut bench = bench(Settings {
        recover_after_ns: 40 * MS,
        ..own()
    });
    let none = [(MAIN, false), (FALLBACK, false)];
    bench.core.handle_partners(0, &none);
    // The start waits for partners, too.
    bench.until(980);
    bench.feed(FALLBACK);
    assert_eq!(bench.switches(), []);
    bench.until(1000);
    assert_eq!(bench.switches(), [(None, FALLBACK, Reason::Start)]);
    while bench.now_ms < 1040 {
        assert!(passes(bench.feed(FALLBACK)));
        assert!(!passes(bench.feed(MAIN)));
        bench.until(bench.now_ms + 20);
    }
    assert!(passes(bench.feed(MAIN)));
    let back = (Some(FALLBACK), MAIN, Reason::Recovered);
    assert_eq!(bench.switches(), [back]);
}

// ---- the defaults of the existing element

/// Lets the fallback take over at 3000 ms, when its next buffer is at 1000 ms. With `begin`, the main input delivers at first.
fn taken_over_late(begin: bool, media: Media, latency_ms: u64) -> Bench {
    let mut bench = bench(Settings {
        timeout_ns: 3000 * MS,
        latency_ns: latency_ms * MS,
        ..Settings::default()
    });
    for id in [MAIN, FALLBACK] {
        bench.core.handle_media(id, media);
    }
    bench.until(latency_ms);
    if begin {
        assert!(passes(bench.arrive(MAIN, at(0, 0))));
    }
    bench.arrive(FALLBACK, at(1000, 1000));
    // The time is not checked until well after the timeout.
    bench.now_ms = 3015 + latency_ms;
    bench
}

#[test]
fn data_from_before_a_timeout_is_dropped() {
    for begin in [false, true] {
        for media in [Media::Audio, Media::Video] {
            for latency_ms in [0, 10] {
                let mut bench = taken_over_late(begin, media, latency_ms);
                let again = bench
                    .core
                    .decide(bench.now_ms * MS, FALLBACK, &at(1000, 1000));
                assert_eq!(again, Verdict::Drop, "{begin} {media:?}");
                assert_eq!(bench.core.active(), Some(FALLBACK));
                assert_eq!(bench.arrive(FALLBACK, at(2000, 2000)), Verdict::Drop);
                assert_eq!(bench.arrive(FALLBACK, at(2980, 2990)), Verdict::Drop);
                assert!(passes(bench.arrive(FALLBACK, at(3000, 3000))));
            }
        }
    }
}

#[test]
fn audio_is_cut_at_the_running_time_of_the_timeout() {
    let mut bench = taken_over_late(true, Media::Audio, 0);
    let across = bench.arrive(FALLBACK, at(2990, 3010));
    let cut = Verdict::Pass {
        is_first: true,
        is_joint: true,
        lead_ns: 10 * MS,
    };
    assert_eq!(across, cut);
    // The result does not depend on the length of the timeout.
    let mut bench = super::tests::bench(Settings {
        timeout_ns: 600_000 * MS,
        ..Settings::default()
    });
    bench.feed(MAIN);
    bench.arrive(FALLBACK, at(1000, 1020));
    bench.now_ms = 600_021;
    assert_eq!(bench.arrive(FALLBACK, at(1000, 1020)), Verdict::Drop);
}

#[test]
fn coded_data_passes_from_the_new_inputs_position() {
    let mut bench = taken_over_late(true, Media::Coded, 0);
    assert!(passes(bench.arrive(FALLBACK, delta(1000, 1040))));
    let asks = |action: &Action| matches!(action, Action::RequestKeyframe(_));
    assert!(!bench.actions().iter().any(asks));
}

#[test]
fn a_long_buffer_keeps_an_input_healthy_to_its_end() {
    let mut bench = bench(Settings::default());
    assert!(passes(bench.arrive(MAIN, at(0, 5000))));
    bench.until(5990);
    bench.feed(FALLBACK);
    assert_eq!(bench.core.active(), Some(MAIN));
    bench.until(6000);
    assert_eq!(bench.core.active(), Some(FALLBACK));
}

#[test]
fn the_active_input_passes_when_it_is_due() {
    let mut bench = bench(Settings {
        latency_ns: 5 * MS,
        ..Settings::default()
    });
    let held = Verdict::Hold { until_ns: 45 * MS };
    assert_eq!(bench.arrive(MAIN, at(40, 60)), held);
    assert_eq!(bench.core.active(), Some(MAIN));
    bench.until(45);
    assert!(passes(bench.core.decide(45 * MS, MAIN, &at(40, 60))));
}

#[test]
fn a_better_input_replaces_the_active_one_with_its_first_timely_buffer() {
    let mut bench = coded(Settings::default());
    bench.feed(MAIN);
    bench.feed(FALLBACK);
    bench.until(1020);
    bench.arrive(FALLBACK, at(1020, 1040));
    assert_eq!(bench.core.active(), Some(FALLBACK));
    // This buffer is ahead of its time, and is not a keyframe.
    let held = Verdict::Hold {
        until_ns: 1500 * MS,
    };
    assert_eq!(bench.arrive(MAIN, delta(1500, 1520)), held);
    assert_eq!(bench.core.active(), Some(MAIN));
    bench.until(1040);
    assert!(!passes(bench.feed(FALLBACK)));
    bench.until(1500);
    let verdict = bench.core.decide(1500 * MS, MAIN, &delta(1500, 1520));
    assert_eq!(verdict, whole(true));
}

#[test]
fn a_choice_of_the_application_switches_at_once() {
    let mut bench = bench(Settings {
        auto_switch: false,
        ..Settings::default()
    });
    bench.feed(MAIN);
    bench.feed(FALLBACK);
    bench.until(20);
    bench.core.handle_selection(20 * MS, FALLBACK);
    assert_eq!(bench.feed(MAIN), Verdict::Drop);
    assert_eq!(bench.feed(FALLBACK), whole(true));
}

#[test]
fn the_end_of_the_active_input_ends_the_output_and_of_another_does_not() {
    for ends_first in [FALLBACK, MAIN] {
        let mut bench = bench(Settings::default());
        bench.both_until(100);
        bench.actions();
        bench.core.handle_eos(100 * MS, ends_first);
        let ends = bench.actions().contains(&Action::Eos);
        assert_eq!(ends, ends_first == MAIN);
    }
}

#[test]
fn an_ended_output_resumes_with_another_input_after_the_timeout() {
    let mut bench = bench(Settings::default());
    bench.both_until(100);
    bench.core.handle_eos(100 * MS, MAIN);
    bench.actions();
    assert_eq!(bench.feed(MAIN), Verdict::Ended);
    while bench.now_ms < 1100 {
        assert_eq!(bench.feed(FALLBACK), Verdict::Drop, "{}", bench.now_ms);
        assert!(bench.core.has_ended());
        bench.until(bench.now_ms + 20);
    }
    assert_eq!(bench.switches(), [(Some(MAIN), FALLBACK, Reason::Eos)]);
    assert!(!bench.core.has_ended());
    assert_eq!(bench.feed(FALLBACK), whole(true));
    // The output ends with the last input.
    bench.core.handle_eos(1120 * MS, FALLBACK);
    assert!(bench.actions().contains(&Action::Eos));
    bench.until(5000);
    assert_eq!(bench.feed(FALLBACK), Verdict::Ended);
    assert_eq!(bench.switches(), []);
}

#[test]
fn an_ended_output_resumes_with_its_own_next_stream_or_a_better_input() {
    let mut bench = bench(Settings::default());
    bench.both_until(100);
    bench.core.handle_eos(100 * MS, MAIN);
    bench.core.handle_stream_start(FALLBACK);
    assert!(bench.core.has_ended());
    bench.core.handle_stream_start(MAIN);
    assert!(passes(bench.feed(MAIN)));
    let mut other = super::tests::bench(Settings {
        immediate_fallback: true,
        ..Settings::default()
    });
    other.feed(FALLBACK);
    other.core.handle_eos(20 * MS, FALLBACK);
    other.until(40);
    assert_eq!(other.feed(MAIN), whole(true));
}
