//! Tests with the nodes of a cluster in virtual time. Each stream must have exactly one sender.
//!
//! Whatever fails, a stream must never have two senders. After the last fault, it must have a sender within the time in which a
//! dead node is noticed, plus some round trips.

mod calls;
mod world;

use threadbare_member::{
    Action, Claim, Compare, Declaration, Entry, Epoch, Incarnation, Key, Life, Member, NodeRecord,
    Operation, Outcome, Reply, Revision, StreamName, Timing, Value,
};
use world::{Link, MS, Words, World};

const SECOND: u64 = 1000 * MS;

fn names(count: usize) -> Vec<StreamName> {
    let name = |n| StreamName::from(format!("programme-{n}").as_str());
    (0..count).map(name).collect()
}

/// Starts nodes, and runs until they carry all streams.
fn settled(seed: u64, nodes: usize, streams: &[StreamName]) -> World {
    let mut world = World::new(seed, nodes);
    (0..nodes).for_each(|node| world.start(node));
    world.run_for(SECOND / 2);
    for stream in streams {
        world.declare(stream, Some(Declaration::default()));
    }
    world.run_for(2 * SECOND);
    assert_eq!(world.silent(streams.iter()), 0);
    world
}

/// Returns the longest silence of any stream from now on.
fn silence_ns(world: &mut World, streams: &[StreamName], most_ns: u64) -> u64 {
    let begin_ns = world.now_ns;
    let mut last_ns = begin_ns;
    while world.now_ns < begin_ns + most_ns {
        world.run_for(5 * MS);
        if world.silent(streams.iter()) > 0 {
            last_ns = world.now_ns;
        }
    }
    last_ns - begin_ns
}

#[test]
fn a_single_node_carries_all_streams() {
    let streams = names(40);
    let mut world = settled(1, 1, &streams);
    assert_eq!(world.streams_of(0), 40);
    world.declare(&streams[0], None);
    world.run_for(SECOND);
    assert_eq!(world.streams_of(0), 39);
    assert_eq!(world.claims(), 39);
    // An idle stream causes no writes.
    let before = world.writes;
    world.run_for(10 * SECOND);
    assert_eq!(world.writes, before);
}

#[test]
fn streams_of_a_dead_node_are_carried_by_others() {
    let streams = names(300);
    let mut world = settled(2, 3, &streams);
    let before = [0, 1, 2].map(|node| world.streams_of(node));
    assert!(before.iter().all(|&count| count > 60), "{before:?}");
    world.moved.clear();
    world.kill(1);
    // The other nodes saw the last renewal of the stopped node at most 250 ms ago. After the wait, they delete its key and claim
    // its streams.
    let silence = silence_ns(&mut world, &streams, 3 * SECOND);
    let due = Timing::default().death_ns() + 100 * MS;
    assert!(silence <= due, "{} ms", silence / MS);
    // No stream of the other nodes has moved.
    assert_eq!(world.moved.len(), before[1]);
    // When it returns, it gets back exactly the streams for which it is the best node.
    world.start(1);
    world.run_for(5 * SECOND);
    let after = [0, 1, 2].map(|node| world.streams_of(node));
    let near = |(before, after): (&usize, &usize)| before.abs_diff(*after) <= 6;
    assert!(before.iter().zip(&after).all(near), "{before:?} {after:?}");
}

/// The process may end while its last renewal is in transit to the other nodes.
#[test]
fn streams_move_at_once_if_another_node_sees_the_end_of_the_process() {
    let streams = names(9);
    let mut world = settled(10, 3, &streams);
    for wait in 0..250 {
        world.kill_in_sight(1);
        // It takes four trips to the store of at most 2.2 ms each, and one more request if a renewal came in between.
        let silence = silence_ns(&mut world, &streams, SECOND);
        assert!(silence <= 20 * MS, "{} ms", silence / MS);
        world.start(1);
        world.run_for(SECOND + wait * MS);
        assert_eq!(world.silent(streams.iter()), 0);
    }
}

/// The position comes in the previous node's message, or through the store if nodes cannot reach one another.
#[test]
fn drained_node_hands_over_its_position() {
    for words in [Words::Come, Words::AreLost] {
        let streams = names(100);
        let mut world = settled(3, 3, &streams);
        world.words = words;
        let count = world.streams_of(0);
        world.resumed.clear();
        world.drain(0, true);
        let begin_ns = world.now_ns;
        let mut silent = 0;
        while world.claims_of(0) > 0 || world.is_handing_over(0) {
            world.run_for(MS / 5);
            silent += world.silent(streams.iter());
            assert!(world.now_ns < begin_ns + 5 * SECOND);
        }
        // From the stop to the start elsewhere, there is one trip between nodes of at most 2.2 ms, or one trip to the store and
        // one back.
        let most_ms = if words == Words::Come { 3 } else { 6 };
        assert!(silent <= count * most_ms * 5, "{silent} of {count}");
        assert!(silent > 0, "nothing is shown");
        world.run_for(SECOND);
        assert_eq!(world.silent(streams.iter()), 0);
        assert!(!world.is_preparing());
        assert_eq!(world.resumed.len(), count);
        // Sometimes the store is faster than the message.
        let most = world.by_word * 2 > count as u64;
        assert_eq!(most, words == Words::Come, "{}", world.by_word);
        for (stream, resume) in &world.resumed {
            let resume = String::from_utf8_lossy(resume).into_owned();
            assert!(resume.starts_with(&format!("{stream} at ")), "{resume}");
        }
        world.drain(0, false);
        world.run_for(5 * SECOND);
        assert!(world.streams_of(0) + 6 > count);
    }
}

/// A node may die at each moment of a hand-over. The next node does not send before it has the message, and in the end, the
/// surviving node carries the stream.
#[test]
fn node_that_dies_in_a_hand_over_is_replaced() {
    let streams = names(12);
    for wait in 0..40 {
        for is_next in [false, true] {
            let mut world = settled(20 + wait, 2, &streams);
            world.drain(0, true);
            world.run_for(wait * MS);
            // Its last message may still be in transit.
            world.words = Words::AreLost;
            world.kill(usize::from(is_next));
            world.run_for(3 * SECOND);
            let left = usize::from(!is_next);
            assert_eq!(world.streams_of(left), 12, "{wait}, {is_next}");
            assert_eq!(world.silent(streams.iter()), 0);
            assert_eq!(world.claims(), 12);
        }
    }
}

/// If the drained node ended as soon as it has stopped sending, the last streams would lose their positions.
#[test]
fn a_drained_node_is_empty_only_when_others_have_all_claims() {
    let streams = names(100);
    let mut world = settled(12, 3, &streams);
    world.drain(0, true);
    let mut waited = 0;
    while world.streams_of(0) > 0 || world.is_handing_over(0) {
        world.run_for(MS / 10);
        waited += usize::from(world.streams_of(0) == 0 && world.claims_of(0) > 0);
    }
    assert_eq!(world.claims_of(0), 0);
    assert!(waited > 0, "nothing is shown");
}

/// A position is used only once. Later, it would repeat numbers that listeners received long ago.
#[test]
fn hand_over_state_is_used_once() {
    let streams = names(60);
    let mut world = settled(9, 3, &streams);
    world.drain(0, true);
    world.run_for(5 * SECOND);
    assert!(!world.resumed.is_empty());
    world.resumed.clear();
    // All streams stop and start again.
    world.store_is_up = false;
    world.run_for(2 * SECOND);
    world.store_is_up = true;
    world.run_for(2 * SECOND);
    // One node takes the streams of the other.
    world.kill(1);
    world.run_for(3 * SECOND);
    assert_eq!(world.silent(streams.iter()), 0);
    let used = world
        .resumed
        .iter()
        .filter(|(_, resume)| !resume.is_empty());
    let stale: Vec<_> = used.map(|(stream, _)| stream).collect();
    assert!(stale.is_empty(), "{stale:?}");
}

/// A claim in the answer to a transaction may arrive before the watch delivers the key of its deputy. In this case, the deputy
/// is alive, and sends.
#[test]
fn a_deputy_is_removed_only_if_its_key_is_known_to_be_gone() {
    let mut member = world::member_alone();
    member.handle_snapshot(0, Revision(1), Vec::new());
    let commit = |member: &mut Member| match member.poll_action() {
        Some(Action::Commit(transaction)) => transaction,
        other => panic!("{other:?}"),
    };
    let joined = Reply {
        id: commit(&mut member).id,
        outcome: Outcome::Committed(Revision(2)),
    };
    member.handle_reply(1, joined);
    assert_eq!(member.poll_action(), None);
    let deputy = Life {
        node: "other".into(),
        incarnation: Incarnation(7),
    };
    let claim = Claim {
        owner: member.life(),
        epoch: Epoch(2),
        deputy: Some(deputy),
        next: None,
        resume: Vec::new(),
    };
    let (key, at) = (Key::Claim("programme".into()), Revision(4));
    let entry = Entry {
        key: key.clone(),
        value: Value::Claim(claim.clone()),
        created: at,
        modified: at,
    };
    member.handle_change(1, key.clone(), Some(entry), at);
    let asked = commit(&mut member);
    let others = Key::Node("other".into());
    let own = Key::Node("me".into());
    let when = [
        Compare::Modified(key.clone(), Revision(4)),
        Compare::Created(own, Revision(2)),
        Compare::Created(others, Revision::ABSENT),
    ];
    assert_eq!(asked.when, when);
    let without = Claim {
        deputy: None,
        ..claim
    };
    assert_eq!(asked.then, [Operation::Put(key, Value::Claim(without))]);
    // Nothing is sent before the answer.
    assert_eq!(member.poll_action(), None);
}

#[test]
fn preferred_labels_decide_the_placement() {
    let streams = names(50);
    let mut world = World::new(4, 4);
    (0..4).for_each(|node| world.start(node));
    world.run_for(SECOND);
    for stream in &streams {
        let declaration = Declaration {
            prefer: vec!["rack-1".into()],
            ..Declaration::default()
        };
        world.declare(stream, Some(declaration));
    }
    world.run_for(3 * SECOND);
    // Nodes 1 and 3 are in the preferred rack.
    assert_eq!(world.streams_of(1) + world.streams_of(3), 50);
    world.kill(1);
    world.kill(3);
    world.run_for(4 * SECOND);
    assert_eq!(world.streams_of(0) + world.streams_of(2), 50);
}

#[test]
fn operator_can_place_a_stream() {
    let streams = names(30);
    let mut world = settled(10, 3, &streams);
    for stream in &streams {
        let declaration = Declaration {
            // The operator's choice outranks the node's label.
            avoid: vec!["rack-1".into()],
            at: Some("node-1".into()),
            ..Declaration::default()
        };
        world.declare(stream, Some(declaration));
    }
    world.run_for(5 * SECOND);
    assert_eq!(world.streams_of(1), 30);
    world.kill(1);
    world.run_for(3 * SECOND);
    assert_eq!(world.streams_of(0) + world.streams_of(2), 30);
}

#[test]
fn nodes_without_the_store_stop_in_time_and_return() {
    let streams = names(60);
    let mut world = settled(5, 3, &streams);
    world.store_is_up = false;
    world.run_for(900 * MS + 10 * MS);
    assert_eq!(world.silent(streams.iter()), 60);
    world.run_for(5 * SECOND);
    world.moved.clear();
    world.store_is_up = true;
    world.run_for(2 * SECOND);
    assert_eq!(world.silent(streams.iter()), 0);
    // No node treated the silence of others as death.
    assert_eq!(world.moved.len(), 0);
}

#[test]
fn frozen_node_sends_nothing_after_it_resumes() {
    let streams = names(60);
    let mut world = settled(6, 3, &streams);
    let now_ns = world.now_ns;
    world.freeze(0, now_ns + 10 * SECOND);
    world.run_for(2 * SECOND);
    assert_eq!(world.silent(streams.iter()), 0);
    // The world asserts that this node never sends a stream that another node sends.
    world.run_for(12 * SECOND);
    assert_eq!(world.silent(streams.iter()), 0);
    assert!(world.streams_of(0) > 0);
}

#[test]
fn a_node_that_is_cut_off_in_either_direction_is_replaced() {
    for (requests, answers) in [(true, false), (false, true), (true, true)] {
        let streams = names(60);
        let mut world = settled(7, 3, &streams);
        let link = Link {
            loses_requests: requests,
            loses_answers: answers,
            slow_ns: 0,
        };
        world.set_link(0, link);
        let silence = silence_ns(&mut world, &streams, 4 * SECOND);
        assert!(silence <= 1600 * MS, "{} ms", silence / MS);
        world.set_link(0, Link::default());
        world.run_for(5 * SECOND);
        assert_eq!(world.silent(streams.iter()), 0);
        assert!(world.streams_of(0) > 0);
    }
}

/// Lets all faults happen at the same time for 20 s, followed by a time without faults.
fn storm(seed: u64, nodes: usize, streams: usize) {
    let streams = names(streams);
    let mut world = settled(seed, nodes, &streams);
    world.repeat_requests();
    world.words = Words::Fail;
    for _ in 0..100 {
        let pause_ns = world.draw() % (400 * MS);
        world.run_for(pause_ns);
        let node = world.draw() as usize % world.len();
        match world.draw() % 10 {
            0 if world.draw().is_multiple_of(2) => world.kill(node),
            0 => world.kill_in_sight(node),
            1 | 2 if !world.is_up(node) => world.start(node),
            1 => {
                let until_ns = world.now_ns + world.draw() % (3 * SECOND);
                world.freeze(node, until_ns);
            }
            2 | 3 => {
                let bits = world.draw();
                let link = Link {
                    loses_requests: bits & 1 != 0,
                    loses_answers: bits & 2 != 0,
                    slow_ns: world.draw() % (800 * MS),
                };
                world.set_link(node, link);
            }
            4 | 5 => world.set_link(node, Link::default()),
            6 => {
                let draining = world.draw().is_multiple_of(2);
                world.drain(node, draining);
            }
            7 => world.store_is_up = !world.draw().is_multiple_of(3),
            8 => {
                let stream = &streams[world.draw() as usize % streams.len()];
                world.declare(stream, None);
                world.run_for(3 * MS);
                world.declare(stream, Some(Declaration::default()));
            }
            _ => world.store_is_up = true,
        }
    }
    world.store_is_up = true;
    for node in 0..world.len() {
        world.set_link(node, Link::default());
        if !world.is_up(node) {
            world.start(node);
        }
    }
    world.words = Words::Come;
    // The longest freeze and the slowest message may take another 3 s.
    world.run_for(8 * SECOND);
    assert_eq!(world.silent(streams.iter()), 0, "seed {seed}");
    assert_eq!(world.claims(), streams.len(), "seed {seed}");
}

/// Seeds that failed in the past. 39: a late change restored the claim of a stream that was gone.
const FAILED: [u64; 1] = [39];

#[test]
fn a_stream_never_has_two_senders_and_finally_has_one() {
    for seed in FAILED.into_iter().chain(1..=100) {
        storm(seed * 7919, 5, 40);
    }
}

#[test]
fn a_hundred_nodes_carry_twenty_thousand_streams() {
    let streams = names(20_000);
    let mut world = settled(8, 100, &streams);
    let share = streams.len() / 100;
    world.moved.clear();
    world.kill(17);
    let silence = silence_ns(&mut world, &streams, 2 * SECOND);
    assert!(silence <= 1600 * MS, "{} ms", silence / MS);
    assert!(
        world.moved.len() <= share * 12 / 10,
        "{}",
        world.moved.len()
    );
    world.moved.clear();
    world.start(17);
    world.run_for(4 * SECOND);
    assert_eq!(world.silent(streams.iter()), 0);
    assert!(
        world.moved.len() <= share * 12 / 10,
        "{}",
        world.moved.len()
    );
}

/// Operators and other versions read the keys and values.
#[test]
fn keys_and_values_are_paths_and_json() {
    let stream = Key::Claim("news / 1".into());
    assert_eq!(stream.path(), "/threadbare/claims/news / 1");
    assert_eq!(Key::of_path(stream.path().as_bytes()), Some(stream.clone()));
    assert_eq!(Key::of_path(b"/threadbare/claims/"), None);
    assert_eq!(Key::of_path(b"/other/nodes/a"), None);
    let life = |name: &str, number| Life {
        node: name.into(),
        incarnation: Incarnation(number),
    };
    let claim = Value::Claim(Claim {
        owner: life("a", 1),
        epoch: Epoch(3),
        deputy: Some(life("c", 3)),
        next: Some(life("b", 2)),
        resume: vec![1, 2],
    });
    let json = claim.to_bytes().expect("numbers");
    let text = r#"{"node":"a","incarnation":1,"epoch":3,"deputy":{"node":"c","incarnation":3},"next":{"node":"b","incarnation":2},"resume":[1,2]}"#;
    assert_eq!(String::from_utf8_lossy(&json), text);
    assert_eq!(stream.read(&json), Ok(claim));
    let node = Key::Node("a".into());
    let record = node.read(br#"{"incarnation":1,"beat":0,"weight":2.5,"later":true}"#);
    let due = NodeRecord {
        incarnation: Incarnation(1),
        beat: 0,
        weight: 2.5,
        labels: Vec::new(),
        draining: false,
        link: None,
        room: None,
    };
    assert_eq!(record, Ok(Value::Node(due)));
    let refused = node.read(br#"{"incarnation":1,"beat":0,"weight":0}"#);
    let said = refused.expect_err("no share").to_string();
    assert_eq!(
        said,
        "/threadbare/nodes/a: weight 0; expected 0.001 to 1000"
    );
    let long = vec![b' '; 10_000];
    assert!(stream.read(&long).is_err());
}
