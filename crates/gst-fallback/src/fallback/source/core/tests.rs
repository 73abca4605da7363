//! Scenarios in milliseconds of virtual time, and random ones with invariants.

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const FALLBACK: SourceId = 1;
const SECOND_FALLBACK: SourceId = 2;
const BOTH: &[Kind] = &[Kind::Audio, Kind::Video];

/// An element around the core: sources start and stop at once.
struct World {
    core: SourceCore,
    now_ns: u64,
    up: Vec<Option<Run>>,
    done: Vec<Action>,
    random: u64,
}

fn world(sources: usize, settings: Settings) -> World {
    let mut world = World {
        core: SourceCore::default(),
        now_ns: 0,
        up: vec![None; sources],
        done: Vec::new(),
        random: 0,
    };
    world.core.handle_settings(0, settings);
    world.core.handle_start(sources, BOTH);
    world.core.handle_playing(0, true);
    world.act();
    world
}

impl World {
    fn now_ms(&self) -> u64 {
        self.now_ns / MS
    }

    fn act(&mut self) {
        while let Some(action) = self.core.poll_action() {
            self.done.push(action.clone());
            match action {
                Action::Start(run) => {
                    assert_eq!(self.up[run.source], None, "started twice");
                    self.up[run.source] = Some(run);
                }
                Action::Stop(run) => {
                    assert_eq!(
                        self.up[run.source].take(),
                        Some(run),
                        "stopped a source that is down"
                    );
                    self.core.handle_stopped(self.now_ns, run, self.random);
                }
                _ => {}
            }
        }
    }

    fn run(&self, source: SourceId) -> Run {
        self.up[source].expect("it is up")
    }

    fn call(&mut self, call: impl FnOnce(&mut SourceCore, u64)) {
        let now_ns = self.now_ns;
        call(&mut self.core, now_ns);
        self.act();
    }

    fn ready(&mut self, source: SourceId) {
        let run = self.run(source);
        self.call(|core, now| core.handle_ready(now, run, BOTH));
    }

    fn data(&mut self, source: SourceId) {
        let run = self.run(source);
        self.call(|core, now| core.handle_data(now, run));
    }

    /// Lets the source deliver data, which the outputs report.
    fn deliver(&mut self, source: SourceId) {
        self.ready(source);
        self.data(source);
        self.health(source, true);
    }

    fn health(&mut self, source: SourceId, is_healthy: bool) {
        for kind in BOTH {
            self.call(|core, now| core.handle_health(now, *kind, source, is_healthy));
        }
    }

    fn active(&mut self, active: Option<SourceId>) {
        for kind in BOTH {
            self.call(|core, now| core.handle_active(now, *kind, active));
        }
    }

    fn error(&mut self, source: SourceId) {
        let run = self.run(source);
        self.call(|core, now| core.handle_error(now, run));
    }

    fn eos(&mut self, source: SourceId) {
        let run = self.run(source);
        self.call(|core, now| core.handle_eos(now, run));
    }

    /// Lets time pass without data.
    fn until(&mut self, end_ms: u64) {
        while let Some(due_ns) = self.core.next_timeout().filter(|ns| *ns <= end_ms * MS) {
            self.now_ns = due_ns;
            self.call(|core, now| core.handle_timeout(now));
        }
        self.now_ns = end_ms * MS;
    }

    /// Lets time pass, with data of this source every 20 ms.
    fn fed_until(&mut self, source: SourceId, end_ms: u64) {
        while self.now_ms() < end_ms {
            self.data(source);
            self.until((self.now_ms() + 20).min(end_ms));
        }
        self.data(source);
    }

    fn delays_ms(&mut self) -> Vec<u64> {
        let done = std::mem::take(&mut self.done);
        let delays = done.iter().filter_map(|action| match action {
            Action::Retry { delay_ns, .. } => Some(delay_ns / MS),
            _ => None,
        });
        delays.collect()
    }

    fn take_done(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.done)
    }

    fn has_done(&mut self, action: &Action) -> bool {
        self.take_done().contains(action)
    }
}

#[test]
fn the_main_source_and_the_first_fallback_start_at_once() {
    let world = world(3, Settings::default());
    let ups: Vec<bool> = world.up.iter().map(Option::is_some).collect();
    assert_eq!(ups, [true, true, false]);
}

#[test]
fn source_is_released_when_all_streams_exist() {
    let mut world = world(1, Settings::default());
    assert_eq!(world.core.status(), Status::Buffering);
    let run = world.run(MAIN);
    world.ready(MAIN);
    assert!(world.has_done(&Action::Release(run)));
    assert_eq!(world.core.status(), Status::Running);
}

#[test]
fn with_manual_unblock_the_application_releases_the_source() {
    let settings = Settings {
        manual_unblock: true,
        ..Settings::default()
    };
    let mut world = world(1, settings);
    let run = world.run(MAIN);
    world.ready(MAIN);
    // If the application takes its time, that is not a failure of the source.
    world.until(20_000);
    assert!(!world.has_done(&Action::Release(run)));
    assert_eq!(world.run(MAIN), run);
    world.call(|core, now| core.handle_unblock(now));
    assert!(world.has_done(&Action::Release(run)));
}

#[test]
fn a_live_source_waits_for_no_unblock() {
    let settings = Settings {
        manual_unblock: true,
        ..Settings::default()
    };
    let mut world = world(1, settings);
    let run = world.run(MAIN);
    world.call(|core, now| core.handle_started(now, run, true));
    world.ready(MAIN);
    assert!(world.has_done(&Action::Release(run)));
}

#[test]
fn live_source_is_released_once_known_to_be_live() {
    let settings = Settings {
        manual_unblock: true,
        ..Settings::default()
    };
    let mut world = world(1, settings);
    let run = world.run(MAIN);
    world.ready(MAIN);
    assert!(!world.has_done(&Action::Release(run)));
    world.call(|core, now| core.handle_started(now, run, true));
    assert!(world.has_done(&Action::Release(run)));
}

#[test]
fn a_source_starts_with_a_full_buffer_and_is_held_with_an_empty_one() {
    let mut world = world(1, Settings::default());
    let run = world.run(MAIN);
    world.call(|core, now| core.handle_buffering(now, run, 40));
    world.ready(MAIN);
    assert!(!world.has_done(&Action::Release(run)));
    assert_eq!(world.core.counters(MAIN).buffering_percent, 40);
    world.call(|core, now| core.handle_buffering(now, run, 100));
    assert!(world.has_done(&Action::Release(run)));
    world.data(MAIN);
    world.call(|core, now| core.handle_buffering(now, run, 10));
    assert!(world.has_done(&Action::Hold(run)));
    assert_eq!(world.core.status(), Status::Buffering);
    world.call(|core, now| core.handle_buffering(now, run, 100));
    world.ready(MAIN);
    assert!(world.has_done(&Action::Release(run)));
}

#[test]
fn only_a_filling_buffer_counts_as_activity() {
    let mut world = world(1, Settings::default());
    let run = world.run(MAIN);
    for percent in 1..5 {
        world.until(u64::from(percent) * 4000);
        world.call(|core, now| core.handle_buffering(now, run, percent));
    }
    assert_eq!(world.run(MAIN), run);
    for _ in 0..3 {
        world.until(world.now_ms() + 3000);
        let same = world.up[MAIN].unwrap_or(run);
        world.call(|core, now| core.handle_buffering(now, same, 4));
    }
    assert_eq!(world.core.counters(MAIN).last_reason, Reason::Timeout);
}

/// A buffer that runs empty and fills again shortly before the end does not count as a failure.
#[test]
fn a_source_that_ends_soon_after_a_hold_has_not_failed() {
    for fills_again in [true, false] {
        let mut world = world(
            1,
            Settings {
                restart_on_eos: true,
                ..Settings::default()
            },
        );
        let run = world.run(MAIN);
        world.deliver(MAIN);
        world.fed_until(MAIN, 3000);
        world.call(|core, now| core.handle_buffering(now, run, 10));
        if fills_again {
            world.call(|core, now| core.handle_buffering(now, run, 100));
            world.ready(MAIN);
            world.data(MAIN);
        }
        world.take_done();
        world.eos(MAIN);
        assert!(!world.has_done(&Action::Fail(run)));
        assert_eq!(world.core.counters(MAIN).last_reason, Reason::Eos);
        // The source restarts at once, without a delay.
        assert_ne!(world.run(MAIN), run);
    }
}

#[test]
fn an_error_fails_the_source_at_once_and_starts_it_again_after_a_pause() {
    let mut world = world(2, Settings::default());
    world.deliver(MAIN);
    let run = world.run(MAIN);
    world.until(100);
    world.take_done();
    world.error(MAIN);
    let done = world.take_done();
    assert_eq!(done[..2], [Action::Fail(run), Action::Stop(run)]);
    assert_eq!(world.core.status(), Status::Retrying);
    assert_eq!(world.up[MAIN], None);
    // The random pause is at least half of the delay.
    world.until(100 + 499);
    assert_eq!(world.up[MAIN], None);
    world.until(100 + 500);
    assert_ne!(world.run(MAIN).number, run.number);
    let counters = world.core.counters(MAIN);
    assert_eq!((counters.retries, counters.last_reason), (1, Reason::Error));
}

#[test]
fn pauses_double_up_to_the_limit() {
    let settings = Settings {
        retry_delay_ns_max: 10_000 * MS,
        restart_timeout_ns: u64::MAX,
        retry_timeout_ns: u64::MAX,
        ..Settings::default()
    };
    for (random, expected) in [
        (u64::MAX, [999, 1999, 3999, 7999, 9999, 9999]),
        (0, [500, 1000, 2000, 4000, 5000, 5000]),
    ] {
        let mut world = world(1, settings);
        world.random = random;
        let mut delays = Vec::new();
        for _ in 0..6 {
            world.error(MAIN);
            delays.extend(world.delays_ms());
            world.until(world.now_ms() + 10_000);
        }
        assert_eq!(delays, expected, "random {random}");
    }
}

#[test]
fn the_failure_count_restarts_after_a_source_has_run_for_a_while() {
    let mut world = world(1, Settings::default());
    for _ in 0..3 {
        world.error(MAIN);
        world.until(world.now_ms() + 4000);
    }
    assert_eq!(world.delays_ms(), [500, 1000, 2000]);
    world.deliver(MAIN);
    // A single buffer does not count as a success of the source.
    world.error(MAIN);
    assert_eq!(world.delays_ms(), [4000]);
    world.until(world.now_ms() + 4000);
    world.deliver(MAIN);
    world.fed_until(MAIN, world.now_ms() + 5000);
    world.error(MAIN);
    assert_eq!(world.delays_ms(), [500]);
}

#[test]
fn a_silent_source_is_started_again_after_its_timeout() {
    let mut world = world(1, Settings::default());
    world.deliver(MAIN);
    world.fed_until(MAIN, 2000);
    world.until(6999);
    assert_eq!(world.delays_ms(), [0; 0]);
    world.until(7000);
    assert_eq!(world.delays_ms(), [500]);
    assert_eq!(world.core.counters(MAIN).last_reason, Reason::Timeout);
}

#[test]
fn a_source_that_never_begins_is_started_again() {
    let mut world = world(1, Settings::default());
    world.until(4999);
    assert_eq!(world.delays_ms(), [0; 0]);
    world.until(5000);
    assert_eq!(world.delays_ms(), [500]);
}

#[test]
fn pipeline_pause_is_not_silence() {
    let mut world = world(1, Settings::default());
    world.deliver(MAIN);
    world.until(1000);
    world.call(|core, now| core.handle_playing(now, false));
    assert_eq!(world.core.next_timeout(), None);
    world.call(|core, now| core.handle_playing(now, true));
    world.until(5999);
    assert_eq!(world.delays_ms(), [0; 0]);
    world.until(6000);
    assert_eq!(world.delays_ms(), [500]);
}

#[test]
fn the_end_of_the_main_source_ends_the_output_and_the_other_sources() {
    let mut world = world(3, Settings::default());
    world.deliver(MAIN);
    world.deliver(FALLBACK);
    world.fed_until(MAIN, 3000);
    world.eos(MAIN);
    let done = world.take_done();
    assert!(done.contains(&Action::EndOutput));
    assert_eq!(world.up[FALLBACK], None);
    assert_eq!(world.core.status(), Status::Stopped);
    world.until(500_000);
    assert_eq!(world.take_done(), []);
}

#[test]
fn with_restart_on_eos_an_ended_source_restarts_without_a_pause() {
    let settings = Settings {
        restart_on_eos: true,
        ..Settings::default()
    };
    let mut world = world(1, settings);
    world.deliver(MAIN);
    world.fed_until(MAIN, 3000);
    let run = world.run(MAIN);
    world.eos(MAIN);
    let fails = |action: &Action| matches!(action, Action::Fail(_));
    assert!(!world.done.iter().any(fails), "the output waits for it");
    assert_eq!(world.delays_ms(), [0]);
    assert_ne!(world.run(MAIN), run);
    assert_eq!(world.core.counters(MAIN).last_reason, Reason::Eos);
}

#[test]
fn source_that_ends_at_once_does_not_spin() {
    let settings = Settings {
        restart_on_eos: true,
        ..Settings::default()
    };
    let mut world = world(1, settings);
    for _ in 0..3 {
        world.ready(MAIN);
        world.eos(MAIN);
        world.until(world.now_ms() + 4000);
    }
    assert_eq!(world.delays_ms(), [500, 1000, 2000]);
}

#[test]
fn ended_fallback_restarts_with_any_setting() {
    let mut world = world(2, Settings::default());
    world.deliver(FALLBACK);
    world.fed_until(FALLBACK, 3000);
    world.eos(FALLBACK);
    assert_eq!(world.delays_ms(), [0]);
    assert!(world.up[FALLBACK].is_some());
    assert_eq!(world.core.counters(FALLBACK).retries, 1);
}

#[test]
fn a_later_fallback_runs_while_none_before_it_delivers() {
    let mut world = world(3, Settings::default());
    world.deliver(MAIN);
    world.deliver(FALLBACK);
    world.error(MAIN);
    assert_eq!(world.up[SECOND_FALLBACK], None, "the first one delivers");
    world.error(FALLBACK);
    assert!(world.up[SECOND_FALLBACK].is_some());
    world.deliver(SECOND_FALLBACK);
    world.until(2000);
    world.deliver(MAIN);
    world.data(SECOND_FALLBACK);
    assert!(world.up[SECOND_FALLBACK].is_some(), "the main one is young");
    world.fed_until(MAIN, 7000);
    assert_eq!(world.up[SECOND_FALLBACK], None);
}

#[test]
fn later_fallback_that_passes_continues() {
    let mut world = world(3, Settings::default());
    world.error(MAIN);
    world.error(FALLBACK);
    world.deliver(SECOND_FALLBACK);
    world.active(Some(SECOND_FALLBACK));
    world.until(2000);
    world.deliver(MAIN);
    while world.now_ms() < 10_000 {
        world.data(SECOND_FALLBACK);
        world.fed_until(MAIN, world.now_ms() + 1000);
    }
    assert!(world.up[SECOND_FALLBACK].is_some());
    world.active(Some(MAIN));
    assert_eq!(world.up[SECOND_FALLBACK], None);
}

#[test]
fn items_after_the_failure_are_ignored() {
    let mut world = world(2, Settings::default());
    world.deliver(MAIN);
    let run = world.run(MAIN);
    world.take_done();
    world.error(MAIN);
    let done = world.take_done();
    let fails = done.iter().filter(|action| **action == Action::Fail(run));
    assert_eq!(fails.count(), 2, "{done:?}");
    let stopped = done.iter().position(|action| *action == Action::Stop(run));
    let failed = done.iter().rposition(|action| *action == Action::Fail(run));
    assert!(stopped < failed, "{done:?}");
}

#[test]
fn the_end_of_one_stream_of_the_main_source_needs_no_fill() {
    let mut world = world(1, Settings::default());
    world.deliver(MAIN);
    world.active(Some(MAIN));
    world.call(|core, now| core.handle_stream_end(now, Kind::Video));
    world.call(|core, now| core.handle_health(now, Kind::Video, MAIN, false));
    assert!(world.core.has_output_ended(Kind::Video));
    assert!(!world.core.fills(Kind::Video));
    world.error(MAIN);
    world.health(MAIN, false);
    assert!(!world.core.fills(Kind::Video));
    assert!(world.core.fills(Kind::Audio));
}

#[test]
fn a_later_fallback_starts_if_the_earlier_ones_deliver_nothing() {
    let settings = Settings {
        timeout_ns: 2000 * MS,
        ..Settings::default()
    };
    let mut world = world(3, settings);
    world.until(1999);
    assert_eq!(world.up[SECOND_FALLBACK], None);
    world.until(2000);
    assert!(world.up[SECOND_FALLBACK].is_some());
}

#[test]
fn a_source_is_given_up_after_its_retries() {
    let settings = Settings {
        retries_max: Some(2),
        retry_timeout_ns: u64::MAX,
        ..Settings::default()
    };
    let mut world = world(2, settings);
    world.deliver(FALLBACK);
    for _ in 0..3 {
        world.error(MAIN);
        world.fed_until(FALLBACK, world.now_ms() + 3000);
    }
    let done = world.take_done();
    let given_up = Action::GiveUp {
        source: MAIN,
        reason: Reason::Error,
    };
    assert!(done.contains(&given_up));
    let fatal = |action: &Action| matches!(action, Action::Fatal { .. });
    assert!(!done.iter().any(fatal), "the fallback goes on");
    assert_eq!(world.up[MAIN], None);
    assert_eq!(world.core.counters(MAIN).retries, 2);
    for _ in 0..3 {
        world.error(FALLBACK);
        world.until(world.now_ms() + 3000);
    }
    assert!(world.take_done().iter().any(fatal), "nothing is left");
}

#[test]
fn all_sources_are_given_up_after_a_minute_without_data() {
    let mut world = world(1, Settings::default());
    world.deliver(MAIN);
    world.fed_until(MAIN, 10_000);
    world.error(MAIN);
    world.until(69_999);
    let fatal = Action::Fatal {
        reason: Reason::Timeout,
    };
    assert!(!world.has_done(&fatal));
    world.until(70_000);
    assert!(world.has_done(&fatal));
    assert_eq!(world.up[MAIN], None);
    assert_eq!(world.core.status(), Status::Stopped);
    world.until(1_000_000);
    assert_eq!(
        world.take_done(),
        [],
        "reported once, and nothing is started"
    );
}

#[test]
fn a_fallback_that_delivers_keeps_the_retries_going() {
    let mut world = world(2, Settings::default());
    world.deliver(FALLBACK);
    for _ in 0..100 {
        if world.up[MAIN].is_some() {
            world.error(MAIN);
        }
        world.fed_until(FALLBACK, world.now_ms() + 10_000);
    }
    let fatal = |action: &Action| matches!(action, Action::Fatal { .. });
    assert!(!world.take_done().iter().any(fatal));
    assert!(world.core.counters(MAIN).retries > 30);
}

#[test]
fn the_source_of_a_still_picture_stops_after_the_picture_was_decoded() {
    let mut world = world(3, Settings::default());
    let run = world.run(FALLBACK);
    world.call(|core, now| core.handle_still(now, run));
    assert_eq!(world.up[FALLBACK], None);
    world.error(MAIN);
    world.until(300_000);
    assert_eq!(world.up[FALLBACK], None);
    assert_eq!(world.up[SECOND_FALLBACK], None, "the picture is there");
    let fatal = |action: &Action| matches!(action, Action::Fatal { .. });
    assert!(!world.take_done().iter().any(fatal));
}

#[test]
fn events_of_an_earlier_run_are_ignored() {
    let mut world = world(1, Settings::default());
    let old = world.run(MAIN);
    world.error(MAIN);
    world.until(1000);
    let run = world.run(MAIN);
    world.take_done();
    world.call(|core, now| core.handle_error(now, old));
    world.call(|core, now| core.handle_eos(now, old));
    world.call(|core, now| core.handle_stopped(now, old, 0));
    world.call(|core, now| core.handle_ready(now, old, BOTH));
    assert_eq!(world.take_done(), []);
    assert_eq!(world.run(MAIN), run);
}

#[test]
fn silence_and_black_fill_until_a_source_passes() {
    let mut world = world(1, Settings::default());
    world.deliver(MAIN);
    world.active(Some(MAIN));
    world.fed_until(MAIN, 2000);
    assert!(!world.core.fills(Kind::Audio));
    world.error(MAIN);
    world.health(MAIN, false);
    assert!(world.core.fills(Kind::Audio) && world.core.fills(Kind::Video));
    world.active(None);
    world.until(3000);
    world.deliver(MAIN);
    assert!(
        world.core.fills(Kind::Audio),
        "the source may still have to wait"
    );
    world.active(Some(MAIN));
    assert!(!world.core.fills(Kind::Audio) && !world.core.fills(Kind::Video));
}

#[test]
fn at_the_start_silence_waits_for_the_first_data_up_to_the_timeout() {
    let mut world = world(1, Settings::default());
    world.until(4999);
    assert!(!world.core.fills(Kind::Audio));
    world.until(5000);
    assert!(world.core.fills(Kind::Audio));
}

#[test]
fn silence_at_the_start_does_not_wait_for_failed_or_absent_sources() {
    let mut failed = world(1, Settings::default());
    failed.error(MAIN);
    assert!(failed.core.fills(Kind::Audio));

    let mut absent = world(1, Settings::default());
    let run = absent.run(MAIN);
    absent.call(|core, now| core.handle_ready(now, run, &[Kind::Audio]));
    assert!(absent.core.fills(Kind::Video));
    assert!(!absent.core.fills(Kind::Audio));

    let settings = Settings {
        immediate_fallback: true,
        ..Settings::default()
    };
    assert!(world(1, settings).core.fills(Kind::Audio));
}

#[test]
fn fillers_are_absent_if_disabled() {
    let settings = Settings {
        has_fill: false,
        ..Settings::default()
    };
    let mut world = world(1, settings);
    world.error(MAIN);
    world.until(50_000);
    assert!(!world.core.fills(Kind::Audio));
}

#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Ready(usize),
    Live(usize),
    Data(usize),
    Error(usize),
    Eos(usize),
    Still(usize),
    Buffering(usize, u32),
    Health(usize, bool),
    Active(Option<usize>),
    Playing(bool),
    Unblock,
}

fn step() -> impl Strategy<Value = Step> {
    let id = 0..3usize;
    prop_oneof![
        4 => (1..8000u64).prop_map(Step::Wait),
        3 => id.clone().prop_map(Step::Ready),
        1 => id.clone().prop_map(Step::Live),
        4 => id.clone().prop_map(Step::Data),
        2 => id.clone().prop_map(Step::Error),
        2 => id.clone().prop_map(Step::Eos),
        1 => id.clone().prop_map(Step::Still),
        1 => (id.clone(), 0..=100u32).prop_map(|(id, percent)| Step::Buffering(id, percent)),
        3 => (id.clone(), any::<bool>()).prop_map(|(id, is)| Step::Health(id, is)),
        2 => prop::option::of(id).prop_map(Step::Active),
        1 => any::<bool>().prop_map(Step::Playing),
        1 => Just(Step::Unblock),
    ]
}

fn settings() -> impl Strategy<Value = Settings> {
    let flags = any::<[bool; 4]>();
    (flags, prop::option::of(0..4u32), 1..9000u64).prop_map(|(flags, retries_max, delay_ms)| {
        Settings {
            restart_on_eos: flags[0],
            immediate_fallback: flags[1],
            manual_unblock: flags[2],
            has_fill: flags[3],
            retries_max,
            retry_delay_ns: delay_ms * MS,
            ..Settings::default()
        }
    })
}

proptest! {
    /// In any case, a source runs at most once (asserted by the world), time-outs make progress, and delays stay within their
    /// bounds. After each failure, the source is retried or given up. Nothing starts after the end.
    #[test]
    fn random_histories_keep_the_invariants(settings in settings(), random in any::<u64>(), steps in prop::collection::vec(step(), 0..120)) {
        let mut world = world(3, settings);
        world.random = random;
        let (mut has_ended, mut is_playing) = (false, true);
        for step in steps {
            match step {
                Step::Wait(ms) => {
                    let end_ns = world.now_ns + ms * MS;
                    let mut turns = 0;
                    while let Some(due_ns) = world.core.next_timeout().filter(|ns| *ns <= end_ns) {
                        world.now_ns = due_ns;
                        world.call(|core, now| core.handle_timeout(now));
                        prop_assert!(world.core.next_timeout().is_none_or(|ns| ns > due_ns), "it does not lead on");
                        turns += 1;
                        prop_assert!(turns < 1000);
                    }
                    world.now_ns = end_ns;
                    world.call(|core, now| core.handle_timeout(now));
                }
                Step::Playing(playing) => {
                    is_playing = playing;
                    world.call(|core, now| core.handle_playing(now, playing));
                }
                Step::Unblock => world.call(|core, now| core.handle_unblock(now)),
                Step::Health(id, is) => world.health(id, is),
                Step::Active(active) => world.active(active),
                Step::Ready(id) | Step::Live(id) | Step::Data(id) | Step::Error(id) | Step::Eos(id) | Step::Still(id) | Step::Buffering(id, _) => {
                    let Some(run) = world.up[id] else { continue };
                    world.call(|core, now| match step {
                        Step::Ready(_) => core.handle_ready(now, run, BOTH),
                        Step::Live(_) => core.handle_started(now, run, true),
                        Step::Data(_) => core.handle_data(now, run),
                        Step::Error(_) => core.handle_error(now, run),
                        Step::Eos(_) => core.handle_eos(now, run),
                        Step::Still(_) => core.handle_still(now, run),
                        Step::Buffering(_, percent) => core.handle_buffering(now, run, percent),
                        _ => unreachable!(),
                    });
                }
            }
            prop_assert!(is_playing || world.core.next_timeout().is_none());
            for action in world.take_done() {
                match action {
                    Action::Retry { number, delay_ns, .. } => {
                        let doubled = settings.retry_delay_ns.saturating_mul(1 << number.saturating_sub(1).min(20));
                        let longest_ns = doubled.min(settings.retry_delay_ns_max);
                        let bounds = if number == 0 { 0..=0 } else { longest_ns / 2..=longest_ns };
                        prop_assert!(bounds.contains(&delay_ns), "{delay_ns} of {bounds:?}");
                    }
                    Action::EndOutput => has_ended = true,
                    Action::Start(run) => prop_assert!(!has_ended, "{run:?} after the end"),
                    _ => {}
                }
            }
        }
    }
}
