//! Random schedules of orders, messages, slow and failing sinks, compared with a simple model.
//!
//! These invariants hold for any schedule. Each message is accounted for after each poll. No sink gets a message twice, out of
//! order, or with another key. A sink that blocks and never fails gets all messages from its order to its end.

use std::collections::HashMap;

use crate::common::*;
use proptest::prelude::*;
use threadbare_demux::*;

#[derive(Debug, Clone)]
enum Step {
    Put(u32),
    Subscribe(u32, Policy, usize, Option<usize>),
    Unsubscribe(usize),
    Room(usize, usize),
    Break(usize),
    Mend(usize),
    HoldFlush(usize, bool),
    Run(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let policy = prop_oneof![
        3 => Just(Policy::Block),
        2 => Just(Policy::DropNewest),
        2 => Just(Policy::DropOldest),
        1 => (1..4_u32).prop_map(Policy::DisconnectAfter),
    ];
    let room = prop::option::of(0..4_usize);
    let at = 0..8_usize;
    prop_oneof![
        8 => (0..5_u32).prop_map(Step::Put),
        3 => (0..4_u32, policy, 0..3_usize, room).prop_map(|(key, policy, buffer, room)| Step::Subscribe(key, policy, buffer, room)),
        1 => at.clone().prop_map(Step::Unsubscribe),
        4 => (at.clone(), 1..4_usize).prop_map(|(at, room)| Step::Room(at, room)),
        1 => at.clone().prop_map(Step::Break),
        1 => at.clone().prop_map(Step::Mend),
        1 => (at, any::<bool>()).prop_map(|(at, holds)| Step::HoldFlush(at, holds)),
        6 => (1..3_usize).prop_map(Step::Run),
    ]
}

struct Known {
    key: u32,
    sink: Basket,
    policy: Policy,
    has_broken: bool,
    guard: Option<Guard<u32, Basket>>,
    /// Number of messages with the sink's key before the sink's order (`from`), and before the next order for that key or the
    /// sink's end (`until`).
    from: usize,
    until: Option<usize>,
}

fn verdicts() -> impl Strategy<Value = Verdict> {
    prop_oneof![Just(Verdict::Remove), Just(Verdict::Keep)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn every_lost_message_is_counted(
        verdict in verdicts(),
        several in any::<bool>(),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let input = Feed::default();
        let mut built = builder(verdict);
        if several {
            built = built.several_per_key();
        }
        let demultiplexer = built.build(input.clone());
        let handle = demultiplexer.handle();
        let mut task = Task::new(demultiplexer);
        let mut known: Vec<Known> = Vec::new();
        let (mut put, mut number) = (HashMap::<u32, Vec<u64>>::new(), 0);
        for step in steps {
            match step {
                Step::Put(key) => {
                    number += 1;
                    put.entry(key).or_default().push(number);
                    input.put((key, number));
                }
                Step::Subscribe(key, policy, buffer, room) => {
                    // The model knows when an order is applied only if nothing is before it in the input.
                    task.run();
                    if input.len() > 0 {
                        continue;
                    }
                    let sink = Basket::default();
                    sink.inside().room = room;
                    let from = put.get(&key).map_or(0, Vec::len);
                    if !several {
                        for other in known.iter_mut().filter(|other| other.key == key) {
                            other.until.get_or_insert(from);
                        }
                    }
                    let service = Service { policy, buffer, limit: None };
                    let guard = handle.subscribe(Target::Key(key), sink.clone(), service).unwrap();
                    known.push(Known { key, sink, policy, has_broken: false, guard: Some(guard), from, until: None });
                    task.run();
                }
                Step::Unsubscribe(at) => {
                    if let Some(known) = known.get_mut(at) {
                        // How many of the remaining messages the sink gets is unknown.
                        known.until.get_or_insert(0);
                        known.guard = None;
                    }
                }
                Step::Room(at, room) => if let Some(known) = known.get(at) {
                    known.sink.make_room(room);
                },
                Step::Break(at) => if let Some(known) = known.get_mut(at) {
                    known.has_broken = true;
                    known.sink.change(|inside| inside.breaks = true);
                },
                Step::Mend(at) => if let Some(known) = known.get(at) {
                    known.sink.change(|inside| inside.breaks = false);
                },
                Step::HoldFlush(at, holds) => if let Some(known) = known.get(at) {
                    known.sink.change(|inside| inside.keeps_flush = holds);
                },
                Step::Run(steps) => for _ in 0..steps {
                    task.step();
                    let statistics = handle.statistics();
                    prop_assert!(statistics.are_complete(), "{:?}", statistics);
                },
            }
        }
        // All sinks become fast, and the input ends.
        for known in &known {
            known.sink.change(|inside| (inside.room, inside.keeps_flush) = (None, false));
        }
        task.run();
        input.end();
        task.run();
        let report = task.report.expect("nothing holds it up");
        prop_assert_eq!(report.end, End::Complete);
        prop_assert_eq!(report.statistics.received, number);
        for known in &known {
            let taken = known.sink.numbers();
            prop_assert!(taken.windows(2).all(|pair| pair[0] < pair[1]), "in order, once: {:?}", taken);
            let empty = Vec::new();
            let of_key = put.get(&known.key).unwrap_or(&empty);
            prop_assert!(taken.iter().all(|n| of_key[known.from..].contains(n)));
            if known.policy == Policy::Block && !known.has_broken && known.guard.is_some() {
                let until = known.until.unwrap_or(of_key.len());
                prop_assert_eq!(&taken[..], &of_key[known.from..until]);
            }
        }
    }
}
