use super::*;
use proptest::prelude::*;

type Core = QueueCore<u32, &'static str>;

const ONE: Size = Size {
    buffers: 1,
    bytes: 10,
    span_ns: None,
};

/// A state's name, and a function that brings a queue with the item 1 into it.
type Reached = (&'static str, fn(&mut Core));

const STATES: &[Reached] = &[
    ("stopped", |core| drop(core.stop())),
    ("flushing", |core| drop(core.handle_flush_start())),
    ("shut", |core| {
        core.shut(true);
    }),
    ("open", |_| ()),
    ("ended", |core| {
        core.handle_event(99, EventKind::Eos).unwrap();
    }),
    ("flushed", |core| {
        drop(core.handle_flush_start());
        core.handle_flush_stop(98);
    }),
    ("failed", |core| {
        core.handle_failure("broken");
    }),
    ("ended and failed", |core| {
        core.handle_event(99, EventKind::Eos).unwrap();
        core.handle_failure("broken");
    }),
];

fn in_state(enter: fn(&mut Core)) -> Core {
    let mut core = Core::default();
    core.open();
    push(&mut core, 1);
    enter(&mut core);
    core
}

fn push(core: &mut Core, item: u32) -> Pushed<u32, &'static str> {
    core.handle_push(item, ONE, WhenFull::Return).0
}

fn pop(core: &mut Core) -> Option<u32> {
    core.handle_pop().0.map(|popped| popped.item)
}

/// The table at the start of the file: each state's reaction to each input.
#[test]
fn each_state_handles_each_input_as_documented() {
    const OK: &str = "taken";
    const FLUSHING: &str = "flushing";
    const ENDED: &str = "ended";
    const FAILED: &str = "failed";
    let word = |refusal| match refusal {
        Refusal::Flushing => FLUSHING,
        Refusal::Ended => ENDED,
        Refusal::Failed { .. } => FAILED,
        Refusal::Unlinked => "unlinked",
    };
    let event = |core: &mut Core, kind| core.handle_event(7, kind).map_or_else(word, |_| OK);
    // State; a push; a stream's start; another sticky event; the end; a pop; the reader's resuming; a failure.
    let expected = [
        (
            "stopped",
            FLUSHING,
            [FLUSHING, FLUSHING, FLUSHING],
            None,
            None,
            Failure::DoesNotCount,
        ),
        (
            "flushing",
            FLUSHING,
            [FLUSHING, FLUSHING, FLUSHING],
            None,
            None,
            Failure::DoesNotCount,
        ),
        (
            "shut",
            FLUSHING,
            [FLUSHING, FLUSHING, FLUSHING],
            Some(1),
            None,
            Failure::Noted,
        ),
        ("open", OK, [OK, OK, OK], Some(1), None, Failure::Noted),
        (
            "ended",
            ENDED,
            [OK, ENDED, ENDED],
            Some(1),
            None,
            Failure::Unseen,
        ),
        (
            "flushed",
            OK,
            [OK, OK, OK],
            None,
            Some(98),
            Failure::DoesNotCount,
        ),
        (
            "failed",
            FAILED,
            [OK, OK, FAILED],
            None,
            None,
            Failure::DoesNotCount,
        ),
        (
            "ended and failed",
            FAILED,
            [OK, OK, FAILED],
            None,
            None,
            Failure::DoesNotCount,
        ),
    ];
    for ((name, enter), row) in STATES.iter().zip(expected) {
        let (row_name, pushed, events, popped, resumed, failure) = row;
        assert_eq!(*name, row_name);
        let said = match push(&mut in_state(*enter), 2) {
            Pushed::Taken { .. } => OK,
            Pushed::Refused(refusal) => word(refusal),
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(said, pushed, "{name}: a push");
        let kinds = [EventKind::StreamStart, EventKind::Sticky, EventKind::Eos];
        for (kind, expected) in kinds.into_iter().zip(events) {
            assert_eq!(
                event(&mut in_state(*enter), kind),
                expected,
                "{name}: {kind:?}"
            );
        }
        assert_eq!(pop(&mut in_state(*enter)), popped, "{name}: a pop");
        assert_eq!(
            in_state(*enter).handle_resume(),
            resumed,
            "{name}: resuming"
        );
        assert_eq!(
            in_state(*enter).handle_failure("late").0,
            failure,
            "{name}: a failure"
        );
    }
}

#[test]
fn an_error_is_seen_by_one_push_and_again_by_the_next() {
    let mut core = in_state(|core| {
        core.handle_failure("broken");
    });
    for is_seen in [false, true] {
        let refusal = core.handle_event(7, EventKind::Eos).unwrap_err();
        assert_eq!(
            refusal,
            Refusal::Failed {
                error: "broken",
                is_seen
            }
        );
        assert!(matches!(
            push(&mut core, 2),
            Pushed::Refused(Refusal::Failed { .. })
        ));
    }
    assert!(!core.handle_mended("another").0);
    assert!(core.handle_mended("broken").0);
    assert_eq!(pop(&mut core), Some(1));
}

#[test]
fn a_writer_waits_until_there_is_room_or_its_pad_is_unlinked() {
    let mut core = in_state(|_| ());
    core.handle_limits(|limits| limits.max.buffers = 1);
    let ticket = core.ticket();
    assert_eq!(core.ask_for_room(ticket), Ok(false));
    assert_eq!(core.handle_unlink().wake, ROOM);
    // The refusal because of the unlink stays, even if the queue fails later.
    core.handle_failure("broken");
    assert_eq!(core.ask_for_room(ticket), Err(Refusal::Unlinked));
    core.handle_mended("broken");
    let ticket = core.ticket();
    assert_eq!(core.ask_for_room(ticket), Ok(false));
    pop(&mut core);
    assert_eq!(core.ask_for_room(ticket), Ok(true));
}

/// A reader's push may return after the whole flush. If it fails, the failure belongs to the time before the flush.
#[test]
fn a_push_from_before_a_flush_fails_without_effect() {
    let mut core = in_state(|_| ());
    pop(&mut core);
    drop(core.handle_flush_start());
    core.handle_flush_stop(98);
    push(&mut core, 2);
    assert_eq!(core.handle_failure("flushing").0, Failure::DoesNotCount);
    assert_eq!(pop(&mut core), None, "not before the end of the flush");
    assert_eq!(core.handle_resume(), Some(98));
    assert_eq!(pop(&mut core), Some(2));
}

/// If data leaks before the reader returns, only data is dropped, never the end of the flush.
#[test]
fn a_leaky_queue_never_drops_the_end_of_a_flush() {
    let mut core = in_state(|_| ());
    core.handle_limits(|limits| {
        limits.max = Level {
            buffers: 1,
            ..Level::default()
        };
        limits.leaky = Leaky::Downstream;
    });
    drop(core.handle_flush_start());
    core.handle_flush_stop(98);
    for item in [1, 2, 3] {
        push(&mut core, item);
    }
    assert_eq!(core.handle_resume(), Some(98));
    assert_eq!(pop(&mut core), Some(3));
}

#[test]
fn of_two_flushes_the_reader_passes_on_the_newer_end() {
    let mut core = in_state(|_| ());
    for event in [50, 51] {
        drop(core.handle_flush_start());
        assert_eq!(core.handle_resume(), None);
        core.handle_flush_stop(event);
    }
    assert_eq!(core.handle_resume(), Some(51));
    assert_eq!(core.handle_resume(), None);
}

#[test]
fn a_drain_waits_until_the_push_of_the_reader_returns() {
    let mut core = in_state(|_| ());
    assert_eq!(core.is_drained(), Ok(false));
    assert_eq!(pop(&mut core), Some(1));
    assert_eq!(core.is_drained(), Ok(false), "it is on its way");
    let (nothing, actions) = core.handle_pop();
    assert!(nothing.is_none() && actions.wake == DRAINED);
    assert_eq!(core.is_drained(), Ok(true));
}

#[test]
fn full_queue_follows_its_leak_setting() {
    let full = |leaky, when_full| {
        let mut core = in_state(|_| ());
        core.handle_limits(|limits| {
            limits.max.buffers = 2;
            limits.leaky = leaky;
        });
        push(&mut core, 2);
        let (pushed, actions) = core.handle_push(3, ONE, when_full);
        assert!(actions.overrun);
        let items: Vec<_> = std::iter::from_fn(|| core.handle_pop().0)
            .map(|popped| (popped.item, popped.follows_gap))
            .collect();
        push(&mut core, 4);
        let next = core.handle_pop().0.unwrap();
        (pushed, items, next.follows_gap, core.leaked())
    };
    let taken = |exceeds| Pushed::Taken {
        exceeds,
        is_full: true,
    };
    let all = [(1, false), (2, false)];
    assert_eq!(
        full(Leaky::No, WhenFull::Return),
        (Pushed::Full(3), all.to_vec(), false, 0)
    );
    assert_eq!(
        full(Leaky::No, WhenFull::Drop),
        (Pushed::Dropped, all.to_vec(), true, 1)
    );
    assert_eq!(
        full(Leaky::Upstream, WhenFull::Return),
        (Pushed::Dropped, all.to_vec(), true, 1)
    );
    let over = vec![(1, false), (2, false), (3, false)];
    assert_eq!(
        full(Leaky::No, WhenFull::Exceed),
        (taken(true), over, false, 0)
    );
    let new = vec![(2, true), (3, false)];
    assert_eq!(
        full(Leaky::Downstream, WhenFull::Return),
        (taken(false), new, false, 1)
    );
}

/// A simple model, which recomputes everything from a list.
#[derive(Default)]
struct Twin {
    items: Vec<(u32, Size, bool)>,
    limits: Limits,
    gap_at_head: bool,
    gap_at_tail: bool,
    leaked: u64,
}

impl Twin {
    fn level(&self) -> Level {
        let times = || self.items.iter().filter_map(|(_, size, _)| size.span_ns);
        Level {
            buffers: self.items.iter().map(|(_, size, _)| size.buffers).sum(),
            bytes: self.items.iter().map(|(_, size, _)| size.bytes).sum(),
            time_ns: match (times().next(), times().next_back()) {
                (Some((begin, _)), Some((_, end))) => end.saturating_sub(begin),
                _ => 0,
            },
        }
    }

    fn is_full(&self) -> bool {
        let (level, max) = (self.level(), self.limits.max);
        max.buffers > 0 && level.buffers >= max.buffers
            || max.bytes > 0 && level.bytes >= max.bytes
            || max.time_ns > 0 && level.time_ns >= max.time_ns
    }

    fn push(&mut self, item: u32, size: Size) -> &'static str {
        if self.is_full() {
            match self.limits.leaky {
                Leaky::No => return "full",
                Leaky::Upstream => {
                    self.leaked += u64::from(size.buffers);
                    self.gap_at_tail = true;
                    return "dropped";
                }
                Leaky::Downstream => {
                    while self.is_full()
                        && let Some(at) =
                            self.items.iter().position(|(_, size, _)| size.buffers > 0)
                    {
                        self.leaked += u64::from(self.items.remove(at).1.buffers);
                        self.gap_at_head = true;
                    }
                }
            }
        }
        self.items
            .push((item, size, std::mem::take(&mut self.gap_at_tail)));
        "taken"
    }

    fn pop(&mut self) -> Option<(u32, bool)> {
        let (item, size, follows_gap) = (!self.items.is_empty()).then(|| self.items.remove(0))?;
        let follows_gap =
            size.buffers > 0 && (std::mem::take(&mut self.gap_at_head) || follows_gap);
        Some((item, follows_gap))
    }
}

#[derive(Debug, Clone)]
enum Step {
    Push(Size),
    Event,
    Pop,
    Limits(Level, u8),
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = (1..4u32, 0..50u32, prop::option::of((0..100u64, 0..20u64))).prop_map(
        |(buffers, bytes, span)| Size {
            buffers,
            bytes,
            span_ns: span.map(|(begin, length)| (begin, begin + length)),
        },
    );
    let limits =
        (0..6u32, 0..100u32, 0..80u64, 0..3u8).prop_map(|(buffers, bytes, time_ns, leaky)| {
            let max = Level {
                buffers,
                bytes,
                time_ns,
            };
            Step::Limits(max, leaky)
        });
    let step = prop_oneof![
        8 => size.prop_map(Step::Push),
        3 => Just(Step::Event),
        6 => Just(Step::Pop),
        2 => limits,
        1 => Just(Step::Flush),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    #[test]
    fn the_queue_equals_a_list_that_is_recounted(steps in steps()) {
        let (mut core, mut twin) = (Core::default(), Twin::default());
        core.open();
        for (n, step) in steps.into_iter().enumerate() {
            let n = n as u32;
            match step {
                Step::Push(size) => {
                    let pushed = match core.handle_push(n, size, WhenFull::Return).0 {
                        Pushed::Taken { .. } => "taken",
                        Pushed::Dropped => "dropped",
                        Pushed::Full(_) => "full",
                        Pushed::Refused(_) => "refused",
                    };
                    prop_assert_eq!(pushed, twin.push(n, size));
                }
                Step::Event => {
                    prop_assert!(core.handle_event(n, EventKind::Other).is_ok());
                    twin.items.push((n, Size::default(), false));
                }
                Step::Pop => {
                    let popped = core.handle_pop().0;
                    let popped = popped.map(|popped| (popped.item, popped.follows_gap));
                    prop_assert_eq!(popped, twin.pop());
                }
                Step::Limits(max, leaky) => {
                    let leaky = [Leaky::No, Leaky::Upstream, Leaky::Downstream][usize::from(leaky)];
                    core.handle_limits(|limits| {
                        limits.max = max;
                        limits.leaky = leaky;
                    });
                    twin.limits = core.limits().clone();
                }
                Step::Flush => {
                    let flushed: Vec<u32> = core.handle_flush_start().0.collect();
                    let kept: Vec<u32> = twin.items.iter().map(|(item, ..)| *item).collect();
                    prop_assert_eq!(flushed, kept);
                    core.handle_flush_stop(n);
                    prop_assert_eq!(core.handle_resume(), Some(n));
                    twin = Twin { limits: twin.limits, leaked: twin.leaked, ..Twin::default() };
                }
            }
            prop_assert_eq!(core.level(), twin.level());
            prop_assert_eq!(core.leaked(), twin.leaked);
            prop_assert_eq!(core.is_empty(), twin.items.is_empty());
        }
    }
}
