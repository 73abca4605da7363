//! Calls of a cluster: whatever fails, each call has one owner in the end.

use threadbare_member::{
    CallName, Entry, Incarnation, Key, Location, Member, NodeRecord, Revision, Value,
};

use crate::SECOND;
use crate::world::{Link, MS, Words, World, member_alone};

fn cluster(seed: u64, nodes: usize) -> World {
    let mut world = World::new(seed, nodes);
    (0..nodes).for_each(|node| world.start(node));
    world.run_for(SECOND);
    world.writes = 0;
    world
}

fn call(name: &str) -> CallName {
    name.into()
}

#[test]
fn a_call_costs_two_writes() {
    let mut world = cluster(1, 3);
    let call = call("a");
    world.call(0, &call);
    world.run_for(20 * MS);
    assert_eq!(world.parties(&call), [(0, true)]);
    assert_eq!(world.locate(0, &call), Location::Here);
    let Location::At(owner, _) = world.locate(1, &call) else {
        panic!("node 0 has it");
    };
    assert_eq!(&*owner.node.0, "node-0");
    world.run_for(60 * SECOND);
    world.hang_up(0, &call);
    world.run_for(20 * MS);
    assert_eq!(world.locate(1, &call), Location::Nowhere);
    assert_eq!((world.writes, world.call_keys()), (2, 0));
    assert!(world.unclaimed.is_empty());
}

/// A proxy sends its request to a second node when the first one is slow.
#[test]
fn only_one_of_two_nodes_gets_a_new_call() {
    for seed in 1..50 {
        let mut world = cluster(seed, 3);
        let call = call("a");
        world.call(0, &call);
        let between_ns = world.draw() % (3 * MS);
        world.run_for(between_ns);
        world.call(1, &call);
        world.run_for(50 * MS);
        let [(node, true)] = world.parties(&call)[..] else {
            panic!("seed {seed}: {:?}", world.parties(&call));
        };
        let taken = (1 - node, call.clone(), format!("node-{node}"));
        assert_eq!(world.taken, [taken], "seed {seed}");
    }
}

/// A call that ends while its key is being written leaves no key.
#[test]
fn a_short_call_leaves_no_key() {
    for seed in 1..50 {
        let mut world = cluster(seed, 3);
        let call = call("a");
        world.call(0, &call);
        let lasts_ns = world.draw() % (6 * MS);
        world.run_for(lasts_ns);
        world.hang_up(0, &call);
        world.run_for(50 * MS);
        assert_eq!(world.call_keys(), 0, "seed {seed}");
        // Another call of the same name follows at once.
        world.call(0, &call);
        world.hang_up(0, &call);
        world.call(0, &call);
        world.run_for(50 * MS);
        assert_eq!(world.parties(&call), [(0, true)], "seed {seed}");
    }
}

#[test]
fn a_call_that_the_store_cannot_record_in_time_is_reported_unclaimed() {
    let mut world = cluster(3, 3);
    let call = call("a");
    world.store_is_up = false;
    world.call(0, &call);
    world.run_for(990 * MS);
    assert!(world.unclaimed.is_empty());
    world.run_for(20 * MS);
    assert_eq!(world.unclaimed, std::slice::from_ref(&call));
    assert_eq!(world.parties(&call), [(0, false)]);
    // The request is repeated.
    world.store_is_up = true;
    world.run_for(3 * SECOND);
    assert_eq!(world.parties(&call), [(0, true)]);
    assert_eq!(world.unclaimed.len(), 1);
}

/// Other nodes have ended the life of a node whose media still runs.
#[test]
fn returning_node_keeps_its_untaken_calls() {
    let mut world = cluster(4, 3);
    let calls = [call("a"), call("b")];
    calls.iter().for_each(|one| world.call(0, one));
    world.run_for(20 * MS);
    let now_ns = world.now_ns;
    world.freeze(0, now_ns + 3 * SECOND);
    world.run_for(2 * SECOND);
    assert_eq!(world.locate(1, &calls[0]), Location::Nowhere);
    // The first call was made again, and arrived at another node.
    world.call(1, &calls[1]);
    world.run_for(20 * MS);
    assert_eq!(world.parties(&calls[1]), [(0, true), (1, true)]);
    world.run_for(4 * SECOND);
    assert_eq!(world.parties(&calls[0]), [(0, true)]);
    assert_eq!(world.parties(&calls[1]), [(1, true)]);
    assert_eq!(world.taken, [(0, calls[1].clone(), "node-1".to_owned())]);
    assert!(matches!(world.locate(2, &calls[0]), Location::At(..)));
}

#[test]
fn an_empty_store_is_filled_again() {
    let mut world = cluster(5, 3);
    let calls: Vec<CallName> = (0..300).map(|n| call(&n.to_string())).collect();
    for (n, one) in calls.iter().enumerate() {
        world.call(n % 3, one);
    }
    world.run_for(SECOND);
    assert_eq!(world.call_keys(), 300);
    world.lose_data();
    world.run_for(3 * SECOND);
    assert_eq!(world.call_keys(), 300);
    for (n, one) in calls.iter().enumerate() {
        assert_eq!(world.parties(one), [(n % 3, true)]);
    }
}

#[test]
fn only_keys_of_dead_nodes_are_deleted() {
    let mut world = cluster(6, 3);
    let calls: Vec<CallName> = (0..30).map(|n| call(&n.to_string())).collect();
    for (n, one) in calls.iter().enumerate() {
        world.call(n % 3, one);
    }
    world.run_for(SECOND);
    world.sweep(1);
    world.run_for(SECOND);
    assert_eq!(world.call_keys(), 30);
    world.kill(0);
    world.run_for(2 * SECOND);
    world.sweep(1);
    // In the meantime, one call is made again.
    world.call(2, &calls[0]);
    world.run_for(SECOND);
    assert_eq!(world.call_keys(), 21);
    assert_eq!(world.parties(&calls[0]), [(2, true)]);
}

/// Returns a cluster in which each node has a service.
fn serving(seed: u64, nodes: usize) -> World {
    let mut world = cluster(seed, nodes);
    world.declare_services();
    world.run_for(SECOND);
    world.writes = 0;
    world
}

/// Returns the only node that has the call.
fn party(world: &World, call: &CallName) -> usize {
    match world.parties(call)[..] {
        [(node, true)] => node,
        ref parties => panic!("{call} at {parties:?}"),
    }
}

#[test]
fn service_moves_with_its_calls_and_returns() {
    for seed in 1..20 {
        let mut world = serving(seed, 3);
        let calls: Vec<CallName> = (0..30).map(|n| call(&n.to_string())).collect();
        calls.iter().for_each(|one| world.call(0, one));
        world.run_for(SECOND);
        // Three writes for each call: its key, its state, and its state after the call was answered.
        assert_eq!(world.writes, 60);
        let state = world.change(0, &calls[0]);
        world.run_for(SECOND);
        assert_eq!(world.writes, 61);
        assert!(world.states().iter().any(|(.., written)| *written == state));
        world.kill(0);
        for _ in 0..30 {
            world.run_for(50 * MS);
            // If the call seemed to be nowhere, it would be created again.
            assert_ne!(world.locate(1, &calls[0]), Location::Nowhere);
        }
        let heir = party(&world, &calls[0]);
        assert!(heir != 0 && calls.iter().all(|one| party(&world, one) == heir));
        assert_eq!(world.locate(heir, &calls[0]), Location::Here);
        let Location::At(owner, _) = world.locate(3 - heir, &calls[0]) else {
            panic!("seed {seed}: the other one has them");
        };
        assert_eq!(*owner.node.0, *format!("node-{heir}"));
        // One call ends while the service is at the other node.
        world.hang_up(heir, &calls[1]);
        world.run_for(100 * MS);
        world.start(0);
        world.run_for(5 * SECOND);
        assert_eq!(party(&world, &calls[0]), 0, "seed {seed}");
        assert!(world.parties(&calls[1]).is_empty());
        assert!(world.states().iter().any(|(.., written)| *written == state));
        world.sweep(0);
        world.run_for(SECOND);
        assert_eq!((world.call_keys(), world.states().len()), (29, 29));
        calls.iter().for_each(|one| world.hang_up(0, one));
        world.run_for(SECOND);
        assert_eq!((world.call_keys(), world.states().len()), (0, 0));
        assert!(world.taken.is_empty(), "seed {seed}: {:?}", world.taken);
    }
}

/// A node is frozen or cut off, and other nodes take its calls. After it wakes, it gets the calls back.
#[test]
fn a_frozen_node_that_resumes_does_not_end_calls_of_other_nodes() {
    for seed in 1..20 {
        let mut world = serving(seed, 3);
        let one = call("a");
        world.call(0, &one);
        world.run_for(100 * MS);
        let until_ns = world.now_ns + 3 * SECOND;
        world.freeze(0, until_ns);
        world.run_for(2 * SECOND);
        let has_told = |(node, told): &(usize, bool)| *node != 0 && *told;
        assert!(world.parties(&one).iter().any(has_told), "seed {seed}");
        world.run_for(5 * SECOND);
        assert_eq!(party(&world, &one), 0, "seed {seed}");
        assert!(world.taken.is_empty() && world.call_keys() == 1);
        // The same happens at an operator's request, without a fault.
        world.drain(0, true);
        world.run_for(2 * SECOND);
        assert_ne!(party(&world, &one), 0, "seed {seed}");
        assert_eq!(world.streams_of(0), 0);
    }
}

#[test]
fn a_call_has_one_owner_in_the_end() {
    for seed in 1..=60 {
        storm(seed * 104_729, false);
        storm(seed * 104_729, true);
    }
}

/// Lets all faults happen at the same time, followed by a time without faults.
fn storm(seed: u64, has_services: bool) {
    let mut world = if has_services {
        serving(seed, 5)
    } else {
        cluster(seed, 5)
    };
    world.repeat_requests();
    world.words = Words::Fail;
    let calls: Vec<CallName> = (0..40).map(|n| call(&n.to_string())).collect();
    for _ in 0..200 {
        let pause_ns = world.draw() % (200 * MS);
        world.run_for(pause_ns);
        let node = world.draw() as usize % world.len();
        let one = &calls[world.draw() as usize % calls.len()];
        match world.draw() % 12 {
            0 => world.kill(node),
            1 | 2 if !world.is_up(node) => world.start(node),
            1 => {
                let until_ns = world.now_ns + world.draw() % (3 * SECOND);
                world.freeze(node, until_ns);
            }
            2 => {
                let bits = world.draw();
                let link = Link {
                    loses_requests: bits & 1 != 0,
                    loses_answers: bits & 2 != 0,
                    slow_ns: world.draw() % (800 * MS),
                };
                world.set_link(node, link);
            }
            3 => world.set_link(node, Link::default()),
            4 => world.store_is_up = !world.draw().is_multiple_of(3),
            // Skip this with services, because a node that is cut off would not know that the claims of dead nodes are gone.
            5 if !has_services && world.draw().is_multiple_of(8) => world.lose_data(),
            6 | 7 => world.hang_up(node, one),
            8 => world.store_is_up = true,
            _ => world.call(node, one),
        }
    }
    world.store_is_up = true;
    for node in 0..world.len() {
        world.set_link(node, Link::default());
        if !world.is_up(node) {
            world.start(node);
        }
    }
    world.run_for(10 * SECOND);
    (0..world.len()).for_each(|node| world.sweep(node));
    world.run_for(SECOND);
    let mut up = 0;
    for one in &calls {
        match world.parties(one)[..] {
            [] => {}
            [(_, true)] => up += 1,
            ref parties => panic!("seed {seed}: {one} at {parties:?}"),
        }
    }
    assert_eq!(world.call_keys(), up, "seed {seed}");
    let states = if has_services { up } else { 0 };
    assert_eq!(world.states().len(), states, "seed {seed}");
}

fn member(room: Option<u8>, others: &[(&str, Option<u8>, bool)]) -> Member {
    let mut member = member_alone();
    member.set_room(room);
    let all = others.iter().chain([&("me", None, false)]);
    for (n, (name, room, draining)) in all.enumerate() {
        let link = threadbare_member::Link {
            address: ([127, 0, 0, 1], 1).into(),
            process: n as u64,
        };
        let record = NodeRecord {
            incarnation: Incarnation(n as u64),
            beat: 0,
            weight: 1.0,
            labels: Vec::new(),
            draining: *draining,
            link: Some(link),
            room: *room,
        };
        let at = Revision(n as u64 + 1);
        let entry = Entry {
            key: Key::Node((*name).into()),
            value: Value::Node(record),
            created: at,
            modified: at,
        };
        member.handle_change(0, entry.key.clone(), Some(entry), at);
    }
    member
}

/// Returns how many of a thousand calls each node gets.
fn spread(member: &Member) -> Vec<(String, usize)> {
    let mut counts = std::collections::BTreeMap::new();
    for draw in 0..1000 {
        let name = match member.roomiest(draw) {
            None => "nobody".to_owned(),
            Some(Location::At(life, _)) => life.node.to_string(),
            Some(Location::Here) => "me".to_owned(),
            Some(Location::Nowhere | Location::Soon) => panic!("no place"),
        };
        *counts.entry(name).or_insert(0) += 1;
    }
    counts.into_iter().collect()
}

#[test]
fn new_calls_go_to_the_node_with_most_room() {
    let all = |name: &str| vec![(name.to_owned(), 1000)];
    // This node has the most room, or nearly the most.
    assert_eq!(
        spread(&member(Some(90), &[("a", Some(100), false)])),
        all("me")
    );
    assert_eq!(
        spread(&member(Some(80), &[("a", Some(100), false)])),
        all("a")
    );
    // A node that takes no calls, is full or draining has no room.
    for others in [
        ("a", None, false),
        ("a", Some(0), false),
        ("a", Some(100), true),
    ] {
        assert_eq!(spread(&member(Some(1), &[others])), all("me"));
        assert_eq!(spread(&member(None, &[others])), all("nobody"));
    }
    // Before the next renewal, not all calls may go to the same node.
    let others = [
        ("a", Some(91), false),
        ("b", Some(100), false),
        ("c", Some(60), false),
    ];
    let counts = spread(&member(Some(0), &others));
    let [(a, of_a), (b, of_b)] = &counts[..] else {
        panic!("{counts:?}");
    };
    assert_eq!((&**a, &**b), ("a", "b"));
    assert!(*of_a > 400 && *of_b > 400, "{counts:?}");
}
