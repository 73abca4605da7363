use super::*;
use proptest::prelude::*;

type Core = SinkCore<u32, char>;

const SYNC: Timing = Timing {
    sync: true,
    delay_ns: 0,
    max_lateness_ns: None,
};

fn at(begin_ns: u64, end_ns: u64) -> When {
    When::At { begin_ns, end_ns }
}

fn playing() -> Core {
    let mut core = Core::default();
    core.handle_change(Change::Start {
        asynchronous: false,
    });
    core.handle_change(Change::Play);
    core
}

fn prerolling() -> Core {
    let mut core = Core::default();
    core.handle_change(Change::Start { asynchronous: true });
    core
}

#[test]
fn an_item_that_was_not_rendered_is_not_counted() {
    let mut core = playing();
    for n in 0..2 {
        core.handle_item(Item::Data(n, When::Now)).unwrap();
    }
    core.give_up();
    let next = core.next(&Timing::default(), None);
    assert_eq!(next, Next::Render(&1, None));
    assert!(core.has_left(0) && !core.has_left(1));
    assert_eq!(core.counts(), (0, 0));
}

#[test]
fn a_start_waits_for_data_and_is_committed_once() {
    let mut core = prerolling();
    assert!(core.is_prerolling());
    let first = core.handle_item(Item::Data(1, When::Now)).unwrap();
    assert!(first.commit && first.preroll);
    let second = core.handle_item(Item::Data(2, When::Now)).unwrap();
    assert_eq!(second, Actions::default());
    assert_eq!(core.next(&SYNC, Some(0)), Next::Paused);
    assert!(!core.handle_change(Change::Play).async_done);
    assert_eq!(core.next(&SYNC, Some(0)), Next::Render(&1, None));
}

#[test]
fn a_gap_and_the_end_complete_a_start_and_an_event_does_not() {
    for (item, commits) in [
        (Item::Gap(When::Now), true),
        (Item::End, true),
        (Item::Event('e'), false),
    ] {
        let actions = prerolling().handle_item(item).unwrap();
        assert_eq!((actions.commit, actions.preroll), (commits, false));
    }
}

/// Data arrives after a pause, but before the pause is announced to the parent. If the change ended at once, the parent would see
/// its end before its announcement, and would wait for another end forever.
#[test]
fn data_ends_a_change_after_the_parent_is_notified() {
    for item in [Item::Data(1, When::Now), Item::Gap(When::Now), Item::End] {
        let mut core = prerolling();
        core.handle_change(Change::Play);
        assert!(core.handle_change(Change::Pause).announce);
        let actions = core.handle_item(item.clone()).unwrap();
        assert!(!actions.commit && core.is_prerolling());
        assert!(core.handle_announced().commit && !core.is_prerolling());
        // The same must hold without data between the pause and its announcement.
        let mut core = prerolling();
        core.handle_change(Change::Play);
        core.handle_change(Change::Pause);
        core.handle_item(Item::Event('e')).unwrap();
        assert_eq!(core.handle_announced(), Actions::default());
        assert!(core.handle_item(item).unwrap().commit);
    }
    let mut core = playing();
    assert!(!core.handle_change(Change::Pause).announce);
}

/// As in the base class of the stock sinks, each asynchronous change has an end, because the parent waits for it.
#[test]
fn a_stop_ends_an_asynchronous_change() {
    assert!(prerolling().handle_change(Change::Stop).async_done);
    assert!(!playing().handle_change(Change::Stop).async_done);
}

#[test]
fn playing_without_data_ends_an_asynchronous_change() {
    assert!(prerolling().handle_change(Change::Play).async_done);
}

#[test]
fn a_flush_loses_the_state_of_an_asynchronous_sink_and_drops_all() {
    let mut core = prerolling();
    core.handle_change(Change::Play);
    core.handle_item(Item::Data(1, at(5, 6))).unwrap();
    assert!(core.handle_flush_start().lose_state);
    assert_eq!(core.next(&SYNC, Some(9)), Next::Gone);
    assert!(core.has_left(0));
    assert_eq!(core.admit(), Err(Refused::Flushing));
    core.handle_flush_stop();
    assert!(core.handle_item(Item::Data(2, at(0, 1))).unwrap().commit);
    assert_eq!(core.next(&SYNC, Some(9)), Next::Paused, "until PLAYING");
    let mut live = playing();
    assert!(!live.handle_flush_start().lose_state);
    live.handle_flush_stop();
    live.handle_item(Item::Data(3, When::Now)).unwrap();
    assert_eq!(live.next(&SYNC, Some(0)), Next::Render(&3, None));
}

#[test]
fn the_end_waits_for_the_end_of_the_data_and_is_repeated_after_a_pause() {
    let mut core = playing();
    core.handle_item(Item::Data(1, at(10, 30))).unwrap();
    core.handle_item(Item::End).unwrap();
    assert_eq!(core.admit(), Err(Refused::Ended));
    assert_eq!(core.next(&SYNC, Some(10)), Next::Render(&1, Some(0)));
    core.finish(false);
    assert_eq!(core.next(&SYNC, Some(11)), Next::Until(30));
    assert_eq!(core.next(&SYNC, Some(30)), Next::End);
    core.finish(false);
    core.handle_change(Change::Pause);
    assert!(core.handle_change(Change::Play).repeat_eos);
    core.handle_stream_start();
    core.handle_change(Change::Pause);
    assert!(!core.handle_change(Change::Play).repeat_eos);
}

#[test]
fn times_are_shifted_and_late_data_is_dropped() {
    let mut core = playing();
    let timing = Timing {
        delay_ns: 100,
        max_lateness_ns: Some(5),
        ..SYNC
    };
    core.handle_item(Item::Data(1, at(10, 20))).unwrap();
    assert_eq!(core.next(&timing, Some(50)), Next::Until(110));
    // The data ends 10 after its start.
    assert_eq!(core.next(&timing, Some(125)), Next::Render(&1, Some(15)));
    assert_eq!(core.next(&timing, Some(126)), Next::Drop(&1, Some(16)));
    assert_eq!(core.next(&timing, None), Next::Render(&1, None));
    core.finish(true);
    core.handle_item(Item::Data(2, When::Never)).unwrap();
    assert_eq!(core.next(&timing, Some(0)), Next::Drop(&2, None));
    core.finish(true);
    assert_eq!(core.counts(), (0, 2));
}

#[test]
fn before_the_base_time_all_data_is_early() {
    let mut core = playing();
    core.handle_item(Item::Data(1, at(0, 1))).unwrap();
    assert_eq!(core.next(&SYNC, Some(-5)), Next::Until(0));
    assert_eq!(core.next(&SYNC, Some(0)), Next::Render(&1, Some(0)));
}

/// Half of the data may already have been sent, so its lateness does not count any more.
#[test]
fn data_that_waits_for_room_is_not_dropped_for_being_late() {
    let mut core = playing();
    let timing = Timing {
        max_lateness_ns: Some(5),
        ..SYNC
    };
    for n in 1..3 {
        core.handle_item(Item::Data(n, at(0, 1))).unwrap();
    }
    assert_eq!(core.next(&timing, Some(0)), Next::Render(&1, Some(0)));
    core.handle_begun();
    assert_eq!(core.waiting(), None);
    assert_eq!(core.next(&timing, Some(9)), Next::Render(&1, Some(9)));
    core.finish(false);
    assert_eq!(core.next(&timing, Some(9)), Next::Drop(&2, Some(9)));
}

#[test]
fn held_end_does_not_end_a_later_stream() {
    let mut core = playing();
    core.handle_item(Item::Data(1, at(50, 60))).unwrap();
    core.handle_item(Item::End).unwrap();
    core.handle_stream_start();
    core.handle_item(Item::Data(2, at(0, 5))).unwrap();
    core.finish(false);
    core.finish(false);
    core.handle_item(Item::End).unwrap();
    core.finish(false);
    assert_eq!(core.next(&SYNC, Some(5)), Next::End, "its own end counts");
}

/// Inputs, for the comparison with the naive twin.
#[derive(Debug, Clone)]
enum Step {
    Start(bool),
    Play,
    Pause,
    Stop,
    FlushStart,
    FlushStop,
    StreamStart,
    Data(u64),
    Event,
    Gap(u64),
    End,
    /// Time advances, and all due items leave.
    Run(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => any::<bool>().prop_map(Step::Start),
        3 => Just(Step::Play),
        2 => Just(Step::Pause),
        1 => Just(Step::Stop),
        1 => Just(Step::FlushStart),
        2 => Just(Step::FlushStop),
        1 => Just(Step::StreamStart),
        8 => (0..100_u64).prop_map(Step::Data),
        1 => Just(Step::Event),
        1 => (0..100_u64).prop_map(Step::Gap),
        1 => Just(Step::End),
        6 => (0..40_u64).prop_map(Step::Run),
    ]
}

/// A list and the rules read off the table, one `if` each.
#[derive(Default)]
struct Twin {
    started: bool,
    plays: bool,
    flushing: bool,
    ending: bool,
    asynchronous: bool,
    waits_for_data: bool,
    held: Vec<(char, u64, u32)>,
    end_ns: u64,
    out: Vec<u32>,
}

impl Twin {
    fn input(&mut self, step: &Step, n: u32) {
        let takes = self.started && !self.flushing && !self.ending;
        match *step {
            Step::Start(asynchronous) if !self.started => {
                *self = Twin {
                    started: true,
                    asynchronous,
                    waits_for_data: asynchronous,
                    out: std::mem::take(&mut self.out),
                    ..Twin::default()
                };
            }
            Step::Play if self.started => {
                self.plays = true;
                self.waits_for_data = false;
            }
            Step::Pause if self.plays => {
                self.plays = false;
                self.waits_for_data = self.asynchronous && self.held.is_empty() && !self.ending;
            }
            Step::Stop => {
                self.started = false;
                self.plays = false;
                self.waits_for_data = false;
                self.held.clear();
                self.end_ns = 0;
            }
            Step::FlushStart => {
                self.flushing = true;
                self.ending = false;
                self.held.clear();
                self.end_ns = 0;
                if self.started && self.asynchronous {
                    self.plays = false;
                    self.waits_for_data = true;
                }
            }
            Step::FlushStop => {
                self.flushing = false;
                self.ending = false;
                self.held.clear();
                self.end_ns = 0;
            }
            Step::StreamStart => self.ending = false,
            Step::Data(ns) if takes => self.hold('d', ns, n),
            Step::Gap(ns) if takes => self.hold('g', ns, n),
            Step::Event if takes => self.held.push(('e', 0, n)),
            Step::End if takes => {
                self.hold('x', 0, n);
                self.ending = true;
            }
            _ => {}
        }
    }

    fn hold(&mut self, kind: char, ns: u64, n: u32) {
        self.held.push((kind, ns, n));
        self.waits_for_data = false;
    }

    fn run(&mut self, now_ns: u64) {
        while self.started && self.plays && !self.flushing {
            let Some(&(kind, ns, n)) = self.held.first() else {
                return;
            };
            let due = match kind {
                'x' => self.end_ns,
                'e' => 0,
                _ => ns,
            };
            if due > now_ns {
                return;
            }
            self.held.remove(0);
            match kind {
                'x' => self.end_ns = 0,
                'e' => {}
                _ => self.end_ns = self.end_ns.max(ns + 3),
            }
            if kind == 'd' {
                self.out.push(n);
            }
        }
    }
}

fn run(core: &mut Core, now_ns: u64, out: &mut Vec<u32>) {
    loop {
        match core.next(&SYNC, Some(signed(now_ns))) {
            Next::Render(data, _) => out.push(*data),
            Next::Event(_) | Next::Skip | Next::End => {}
            Next::Until(ns) => return assert!(ns > now_ns),
            Next::Drop(..) => panic!("nothing is dropped here"),
            Next::Paused | Next::Empty | Next::Gone => return,
        }
        core.finish(false);
    }
}

proptest! {
    #[test]
    fn behaves_like_a_naive_list(steps in prop::collection::vec(step(), 0..120)) {
        let (mut core, mut twin) = (Core::default(), Twin::default());
        let (mut out, mut now_ns) = (Vec::new(), 0);
        for (n, step) in steps.iter().enumerate() {
            let n = n as u32;
            twin.input(step, n);
            match *step {
                Step::Start(asynchronous) => {
                    core.handle_change(Change::Start { asynchronous });
                }
                Step::Play => drop(core.handle_change(Change::Play)),
                Step::Pause => {
                    core.handle_change(Change::Pause);
                    core.handle_announced();
                }
                Step::Stop => drop(core.handle_change(Change::Stop)),
                Step::FlushStart => drop(core.handle_flush_start()),
                Step::FlushStop => core.handle_flush_stop(),
                Step::StreamStart => core.handle_stream_start(),
                Step::Data(ns) => drop(core.handle_item(Item::Data(n, at(ns, ns + 3)))),
                Step::Gap(ns) => drop(core.handle_item(Item::Gap(at(ns, ns + 3)))),
                Step::Event => drop(core.handle_item(Item::Event('e'))),
                Step::End => drop(core.handle_item(Item::End)),
                Step::Run(ns) => {
                    now_ns += ns;
                    twin.run(now_ns);
                    run(&mut core, now_ns, &mut out);
                }
            }
            prop_assert_eq!(&out, &twin.out);
            prop_assert_eq!(core.len(), twin.held.len());
            prop_assert_eq!(core.is_playing(), twin.plays);
            prop_assert_eq!(core.is_prerolling(), twin.waits_for_data);
            prop_assert_eq!(core.is_gone(), !twin.started || twin.flushing);
        }
    }
}
