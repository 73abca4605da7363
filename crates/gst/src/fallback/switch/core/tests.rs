//! Scenarios in milliseconds of virtual time, and random ones beside a naive twin and the model of a decoder.

mod random;

use super::*;

const MS: u64 = 1_000_000;
const MAIN: InputId = 10;
const FALLBACK: InputId = 20;

pub(super) struct Bench {
    core: SwitchCore,
    now_ms: u64,
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

    /// The 20 ms that begin now.
    fn feed(&mut self, id: InputId) -> Verdict {
        self.arrive(id, at(self.now_ms, self.now_ms + 20))
    }

    /// Lets the time-outs happen at their time.
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

    /// Both inputs, every 20 ms, until then; the main one passes.
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
    let mut bench = bench(Settings::default());
    assert_eq!(bench.feed(MAIN), whole(true));
    assert_eq!(bench.feed(FALLBACK), Verdict::Drop);
    bench.until(20);
    assert_eq!(bench.feed(MAIN), whole(false));
    assert_eq!(bench.switches(), [(None, MAIN, Reason::Start)]);
    // One timeout after the last buffer's time, and not before.
    assert_eq!(bench.core.next_timeout(), Some(1000 * MS));
    bench.until(1010);
    assert_eq!(bench.feed(FALLBACK), Verdict::Drop);
    bench.until(1019);
    assert!(bench.core.input(MAIN).unwrap().is_healthy());
    bench.until(1020);
    assert_eq!(bench.switches(), [(Some(MAIN), FALLBACK, Reason::Timeout)]);
    bench.until(1030);
    assert_eq!(bench.feed(FALLBACK), whole(true));
}

#[test]
fn an_input_that_is_to_be_linked_again_has_its_time() {
    let mut bench = bench(Settings {
        fails_unlinked: false,
        ..Settings::default()
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
    let mut bench = bench(Settings::default());
    assert_eq!(bench.feed(FALLBACK), Verdict::Drop);
    bench.until(990);
    assert_eq!(bench.feed(FALLBACK), Verdict::Drop);
    bench.until(1000);
    assert_eq!(bench.switches(), [(None, FALLBACK, Reason::Start)]);
    assert!(passes(bench.feed(FALLBACK)));
    let mut early = super::tests::bench(Settings {
        immediate_fallback: true,
        ..Settings::default()
    });
    assert_eq!(early.feed(FALLBACK), whole(true));
}

#[test]
fn nothing_times_out_before_the_clock_runs() {
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
fn what_is_ahead_of_its_time_is_held_and_passes_after_a_change() {
    let mut bench = bench(Settings {
        latency_ns: 5 * MS,
        ..Settings::default()
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
    // And without a change, not after its time.
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
fn a_stream_leaves_its_source_with_its_partner_and_comes_back_with_it() {
    let mut bench = bench(Settings {
        recover_after_ns: 100 * MS,
        ..Settings::default()
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
    // Its own health is older.
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
fn an_input_whose_partner_has_failed_is_left_for_another_only() {
    let mut bench = bench(Settings::default());
    assert_eq!(bench.feed(MAIN), whole(true));
    bench.core.handle_partners(0, &[(MAIN, false)]);
    bench.until(20);
    assert_eq!(bench.feed(MAIN), whole(false));
    bench.switches();
    // Several at once are one change.
    bench.core.handle_buffer(20 * MS, FALLBACK, &at(20, 40));
    assert_eq!(bench.switches(), [(Some(MAIN), FALLBACK, Reason::Partner)]);
    let swapped = [(MAIN, true), (FALLBACK, false)];
    bench.core.handle_partners(20 * MS, &swapped);
    assert_eq!(bench.switches(), [(Some(FALLBACK), MAIN, Reason::Partner)]);
}

#[test]
fn the_start_waits_for_the_partner_of_the_first_choice() {
    let mut bench = bench(Settings::default());
    let healths = |main, fallback| [(MAIN, main), (FALLBACK, fallback)];
    bench.core.handle_partners(0, &healths(false, false));
    assert!(!passes(bench.feed(MAIN)));
    assert!(!passes(bench.feed(FALLBACK)));
    bench.core.handle_partners(0, &healths(false, true));
    assert_eq!(bench.switches(), []);
    bench.core.handle_partners(0, &healths(true, true));
    assert_eq!(bench.switches(), [(None, MAIN, Reason::Start)]);
    // But not for longer than the timeout.
    let mut late = super::tests::bench(Settings::default());
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
    let mut bench = bench(Settings::default());
    // Before its first buffer, too: the start does not wait for it.
    bench.core.handle_error(0, MAIN);
    assert_eq!(bench.feed(FALLBACK), whole(true));
    bench.until(1500);
    bench.feed(FALLBACK);
    // Later than the timeout.
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
fn each_failure_switches_at_once_and_says_why() {
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
            ..Settings::default()
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
fn a_flush_is_a_failure_only_if_it_stays() {
    let mut bench = bench(Settings::default());
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
    let mut bench = bench(Settings::default());
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
fn hysteresis_keeps_a_flapping_input_out() {
    let mut bench = bench(Settings {
        timeout_ns: 100 * MS,
        recover_after_ns: 300 * MS,
        min_hold_ns: 2000 * MS,
        ..Settings::default()
    });
    bench.both_until(100);
    let mut log = Vec::new();
    // The main one delivers for 200 ms of each 400, then for good.
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
    // Up for good since 1800, the last change was at 180: 2180 is due.
    assert_eq!(log[2], (2180, MAIN));
}

#[test]
fn equal_priorities_do_not_replace_each_other() {
    let mut bench = bench(Settings {
        immediate_fallback: true,
        ..Settings::default()
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
fn raw_audio_goes_on_where_the_output_ends() {
    let mut bench = bench(Settings::default());
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
        let mut bench = bench(Settings::default());
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
fn times_far_ahead_do_not_shut_the_next_input_out() {
    let mut bench = bench(Settings::default());
    bench.feed(FALLBACK);
    bench.arrive(MAIN, at(3_600_000, 3_600_020));
    bench.core.handle_eos(0, MAIN);
    bench.until(20);
    assert_eq!(bench.feed(FALLBACK), whole(true));
}

/// Both coded, with a keyframe each 100 ms, those of the fallback 40 ms later.
fn coded(settings: Settings) -> Bench {
    let mut bench = bench(settings);
    for id in [MAIN, FALLBACK] {
        bench.core.handle_media(id, Media::Coded);
    }
    bench
}

#[test]
fn coded_streams_change_at_a_keyframe_and_ask_for_one() {
    let mut bench = coded(Settings::default());
    assert!(passes(bench.feed(MAIN)));
    bench.feed(FALLBACK);
    bench.until(980);
    bench.arrive(FALLBACK, delta(980, 1000));
    bench.until(1000);
    bench.actions();
    // The first choice comes back in the middle of its pictures: the other goes on.
    assert_eq!(bench.core.active(), Some(FALLBACK));
    assert!(passes(bench.arrive(FALLBACK, at(1000, 1020))));
    bench.until(1020);
    assert_eq!(bench.arrive(MAIN, delta(1020, 1040)), Verdict::Drop);
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
    bench.until(2020);
    assert_eq!(asked(&mut bench), 1);
    assert_eq!(bench.feed(MAIN), whole(true));
    assert_eq!(bench.core.active(), Some(MAIN));
    bench.until(2040);
    assert!(passes(bench.arrive(MAIN, delta(2040, 2060))));
    bench.until(3030);
    assert_eq!(asked(&mut bench), 0, "it has come");
}

#[test]
fn a_coded_stream_whose_held_keyframe_is_lost_begins_at_the_next_one() {
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
            ..Settings::default()
        });
        // Held: the start waits for the first choice.
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
fn after_a_failure_too_a_coded_stream_begins_at_a_keyframe() {
    let mut bench = coded(Settings::default());
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
fn a_gap_is_no_keyframe() {
    let mut bench = coded(Settings::default());
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
        ..Settings::default()
    });
    assert_eq!(bench.core.active(), Some(MAIN), "the first one");
    assert!(passes(bench.feed(MAIN)));
    bench.feed(FALLBACK);
    bench.actions();
    assert!(bench.core.handle_selection(10 * MS, FALLBACK));
    // It goes on until the other has something for the end of the output.
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
    // Its failure is the application's matter.
    bench.until(5000);
    bench.feed(MAIN);
    assert_eq!(bench.core.active(), Some(FALLBACK));
    bench.core.handle_remove(5000 * MS, FALLBACK);
    assert_eq!(bench.core.active(), None);
    assert!(bench.core.handle_selection(5000 * MS, MAIN));
    assert_eq!(
        bench.core.active(),
        Some(MAIN),
        "there is no other to go on"
    );
    let mut automatic = super::tests::bench(Settings::default());
    assert!(!automatic.core.handle_selection(0, FALLBACK));
}

#[test]
fn the_output_ends_with_the_last_input_or_with_the_active_one() {
    for stop_on_eos in [false, true] {
        let mut bench = bench(Settings {
            stop_on_eos,
            ..Settings::default()
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
        // Another stream on the same pad.
        bench.core.handle_stream_start(MAIN);
        bench.until(140);
        assert!(passes(bench.feed(MAIN)));
    }
}

#[test]
fn the_end_of_the_others_counts_when_the_last_other_is_released() {
    let mut bench = bench(Settings::default());
    bench.both_until(100);
    bench.core.handle_eos(100 * MS, FALLBACK);
    bench.actions();
    bench.core.handle_remove(100 * MS, MAIN);
    assert!(bench.actions().contains(&Action::Eos));
}

#[test]
fn running_time_that_is_set_back_sets_the_time_outs_back() {
    let mut bench = bench(Settings::default());
    bench.until(3_600_000);
    bench.feed(MAIN);
    bench.feed(FALLBACK);
    bench.actions();
    // A flushing seek: running time begins at 0 again.
    bench.until(0);
    bench.feed(FALLBACK);
    bench.until(990);
    bench.feed(FALLBACK);
    assert_eq!(bench.switches(), []);
    bench.until(1000);
    assert_eq!(bench.switches(), [(Some(MAIN), FALLBACK, Reason::Timeout)]);
}

#[test]
fn a_stop_forgets_all_but_inputs_and_settings() {
    let mut bench = bench(Settings::default());
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
fn an_input_without_its_partner_is_chosen_last() {
    let mut bench = bench(Settings::default());
    bench.both_until(100);
    bench.switches();
    bench.core.handle_partners(100 * MS, &[(FALLBACK, false)]);
    assert_eq!(bench.switches(), []);
    // One stream of a source is better than none.
    bench.core.handle_error(100 * MS, MAIN);
    assert_eq!(bench.switches(), [(Some(MAIN), FALLBACK, Reason::Error)]);
    assert_eq!(bench.feed(FALLBACK), whole(true));
    // But a whole source is better.
    bench.core.handle_buffer(100 * MS, MAIN, &at(100, 120));
    assert_eq!(bench.switches(), [(Some(FALLBACK), MAIN, Reason::Partner)]);
    assert_eq!(bench.core.next_timeout(), Some(1100 * MS));
}

#[test]
fn of_inputs_without_their_partners_the_first_choice_passes() {
    let mut bench = bench(Settings {
        recover_after_ns: 40 * MS,
        ..Settings::default()
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
