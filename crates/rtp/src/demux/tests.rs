use proptest::prelude::*;

use super::*;

const S: u64 = 1_000_000_000;
const LEARNING: Learning = Learning {
    packets: 3,
    strangers_max: 8,
    routes_max: 4,
    idle_ns: 10 * S,
};

fn address(host: u32) -> SocketAddr {
    if host.is_multiple_of(2) {
        SocketAddr::from((host.to_be_bytes(), 5000))
    } else {
        SocketAddr::from((u128::from(host).to_be_bytes(), 5000))
    }
}

fn filter(ssrc: Option<u32>, host: Option<u32>, payload_type: Option<u8>) -> Filter {
    Filter {
        ssrc: ssrc.map(Ssrc),
        from: host.map(address),
        payload_type: payload_type.map(PayloadType),
    }
}

impl Demux<u32> {
    fn find(&mut self, now_ns: u64, host: u32, ssrc: u32, payload_type: u8) -> Lookup<u32> {
        let found = self.lookup(now_ns, address(host), Ssrc(ssrc), PayloadType(payload_type));
        self.assert_sound();
        found
    }

    /// Asserts that lists, index and counters describe the same entries.
    fn assert_sound(&self) {
        let used = self.entries.len() - self.free.len();
        assert_eq!(self.index.len(), used);
        let in_lists: usize = self.lists.iter().map(|list| list.length).sum();
        assert_eq!(in_lists + self.static_routes, used);
        assert_eq!(self.routes_with.iter().sum::<usize>(), self.len());
        for (at, list) in self.lists.iter().enumerate() {
            let (mut count, mut entry, mut newest) = (0, list.oldest, NONE);
            while entry != NONE {
                assert_eq!(self.entries[entry as usize].older, newest);
                assert_eq!(list_of(&self.entries[entry as usize].kind), Some(at));
                (count, newest) = (count + 1, entry);
                entry = self.entries[entry as usize].newer;
            }
            assert_eq!((count, newest), (list.length, list.newest));
        }
    }
}

#[test]
fn the_most_specific_filter_wins() {
    let mut demux = Demux::new(None, 1);
    let filters = [
        filter(None, None, None),
        filter(None, None, Some(0)),
        filter(None, Some(4), None),
        filter(Some(7), None, None),
        filter(None, Some(4), Some(0)),
        filter(Some(7), None, Some(0)),
        filter(Some(7), Some(4), None),
        filter(Some(7), Some(4), Some(0)),
    ];
    for (route, filter) in filters.into_iter().enumerate() {
        assert_eq!(demux.add(filter, route as u32), Ok(()));
        assert_eq!(demux.add(filter, 99), Err(DemuxError::Duplicate));
        // Each filter is more specific than the previous ones.
        for _ in 0..2 {
            assert_eq!(demux.find(0, 4, 7, 0), Lookup::Route(route as u32));
        }
    }
    for (route, filter) in filters.into_iter().enumerate().rev() {
        assert_eq!(demux.find(0, 4, 7, 0), Lookup::Route(route as u32));
        assert_eq!(demux.remove(&filter), Some(route as u32));
        assert_eq!(demux.remove(&filter), None);
    }
    assert_eq!(demux.find(0, 4, 7, 0), Lookup::Unmatched);
    assert_eq!(demux.stats().unmatched, 1);
    assert!(demux.is_empty());
}

#[test]
fn ten_thousand_routes_are_found() {
    let mut demux = Demux::new(None, 1);
    for route in 0..10_000 {
        assert_eq!(demux.add(filter(Some(route), None, None), route), Ok(()));
    }
    for route in 0..10_000 {
        let found = demux.lookup(0, address(route * 3), Ssrc(route), PayloadType(0));
        assert_eq!(found, Lookup::Route(route));
    }
    // If all filters are of one kind, no flows are remembered.
    assert_eq!(demux.entries.len(), 10_000);
    demux.assert_sound();
}

#[test]
fn strangers_get_a_route_after_some_packets() {
    let mut demux = Demux::new(Some(LEARNING), 1);
    demux.add(filter(None, None, Some(96)), 1).expect("room");
    assert_eq!(demux.find(0, 2, 7, 0), Lookup::Probation);
    assert_eq!(demux.find(0, 4, 7, 0), Lookup::Probation); // from another address
    assert_eq!(demux.find(0, 2, 7, 0), Lookup::Probation);
    assert_eq!(demux.find(0, 2, 7, 0), Lookup::Stranger);
    assert_eq!(demux.find(0, 2, 7, 0), Lookup::Probation); // it was reported once
    assert_eq!(demux.learn(0, address(2), Ssrc(7), 5), Ok(()));
    // Packets of other payload types count too, such as events in addition to speech. Packets of a payload type that has a route do not
    // count.
    for payload_type in [0, 101, 0, 101] {
        assert_eq!(demux.find(0, 2, 7, payload_type), Lookup::Route(5));
    }
    assert_eq!(demux.find(0, 2, 9, 96), Lookup::Route(1));
    let stats = demux.stats();
    assert_eq!((stats.probation, stats.unclaimed, stats.matched), (3, 1, 5));
}

#[test]
fn idle_routes_expire_and_busy_ones_do_not() {
    // If a filter uses the payload type, flows are remembered, and the use of a flow keeps its route.
    for with_flows in [false, true] {
        let mut demux = Demux::new(Some(LEARNING), 1);
        if with_flows {
            demux.add(filter(None, None, Some(96)), 1).expect("room");
        }
        demux.learn(0, address(2), Ssrc(7), 5).expect("room");
        demux.learn(0, address(2), Ssrc(8), 6).expect("room");
        for now_s in 0..60 {
            assert_eq!(demux.find(now_s * S, 2, 7, 0), Lookup::Route(5));
            demux.expire(now_s * S);
        }
        let expired = demux.poll_expired();
        assert_eq!(expired, Some((filter(Some(8), Some(2), None), 6)));
        assert_eq!(demux.poll_expired(), None);
        assert_eq!(demux.find(60 * S, 2, 8, 0), Lookup::Probation);
        demux.expire(100 * S);
        assert_eq!(demux.poll_expired().map(|(_, route)| route), Some(5));
        assert_eq!(demux.stats().routes_expired, 2);
    }
}

#[test]
fn the_least_used_learned_route_makes_room() {
    let mut demux = Demux::new(Some(LEARNING), 1);
    for ssrc in 0..4 {
        demux.learn(0, address(3), Ssrc(ssrc), ssrc).expect("room");
    }
    assert_eq!(demux.find(5 * S, 3, 0, 0), Lookup::Route(0));
    demux.learn(5 * S, address(3), Ssrc(4), 4).expect("room");
    assert_eq!(
        demux.poll_expired(),
        Some((filter(Some(1), Some(3), None), 1))
    );
    assert_eq!(demux.len(), 4);
    assert_eq!(demux.stats().routes_evicted, 1);
}

#[test]
fn flood_of_strangers_evicts_only_strangers() {
    let mut demux = Demux::new(Some(LEARNING), 1);
    demux.add(filter(Some(7), None, None), 1).expect("room");
    demux.learn(0, address(2), Ssrc(8), 2).expect("room");
    for round in 0..100_000_u32 {
        let found = demux.lookup(0, address(round), Ssrc(round | 1 << 31), PayloadType(0));
        assert_eq!(found, Lookup::Probation);
    }
    demux.assert_sound();
    assert!(demux.entries.len() <= 2 + LEARNING.strangers_max);
    assert_eq!(demux.find(0, 4, 7, 0), Lookup::Route(1));
    assert_eq!(demux.find(0, 2, 8, 0), Lookup::Route(2));
    assert!(demux.stats().strangers_evicted >= 99_000);
}

#[test]
fn flows_are_bounded() {
    let mut demux = Demux::new(None, 1);
    demux.add(filter(None, Some(2), None), 1).expect("room");
    demux.add(filter(Some(7), None, None), 2).expect("room");
    for ssrc in 100..100 + FLOWS_MAX as u32 + 1000 {
        let found = demux.lookup(u64::from(ssrc) * S, address(2), Ssrc(ssrc), PayloadType(0));
        assert_eq!(found, Lookup::Route(1));
    }
    assert_eq!(demux.lists[FLOWS].length, FLOWS_MAX);
    demux.assert_sound();
}

#[test]
fn addresses_differ_by_each_field() {
    let addresses: [SocketAddr; 6] = [
        "192.0.2.1:5000".parse().expect("an address"),
        "192.0.2.1:5001".parse().expect("an address"),
        "[::c000:201]:5000".parse().expect("an address"),
        "[::ffff:c000:201]:5000".parse().expect("an address"),
        "[fe80::1%2]:5000".parse().expect("an address"),
        "[fe80::1%3]:5000".parse().expect("an address"),
    ];
    let mut demux = Demux::new(
        Some(Learning {
            routes_max: 9,
            ..LEARNING
        }),
        1,
    );
    for (route, from) in addresses.into_iter().enumerate() {
        demux.learn(0, from, Ssrc(7), route as u32).expect("room");
    }
    for (route, from) in addresses.into_iter().enumerate() {
        let found = demux.lookup(0, from, Ssrc(7), PayloadType(0));
        assert_eq!(found, Lookup::Route(route as u32));
        let filter = Filter {
            ssrc: Some(Ssrc(7)),
            from: Some(from),
            payload_type: None,
        };
        assert_eq!(demux.remove(&filter), Some(route as u32));
    }
}

/// Finds the route of the most specific filter that matches.
fn naive(routes: &[(Filter, u32)], host: u32, ssrc: u32, payload_type: u8) -> Option<u32> {
    let fits = |filter: &Filter| {
        filter.ssrc.is_none_or(|its| its == Ssrc(ssrc))
            && filter.from.is_none_or(|its| its == address(host))
            && filter
                .payload_type
                .is_none_or(|its| its == PayloadType(payload_type))
    };
    let says = |filter: &Filter| {
        let (ssrc, from, payload_type) = (
            filter.ssrc.is_some(),
            filter.from.is_some(),
            filter.payload_type.is_some(),
        );
        let fields = u8::from(ssrc) + u8::from(from) + u8::from(payload_type);
        (fields, ssrc, from)
    };
    let all = routes.iter().filter(|(filter, _)| fits(filter));
    all.max_by_key(|(filter, _)| says(filter))
        .map(|(_, route)| *route)
}

proptest! {
    #[test]
    fn random_routes_equal_those_of_a_simple_table(
        steps in prop::collection::vec(
            (0..6_u8, prop::option::of(0..4_u32), prop::option::of(0..4_u32), prop::option::of(0..3_u8)),
            1..200),
        seed in any::<u64>(),
    ) {
        let mut demux = Demux::new(None, seed);
        let mut routes: Vec<(Filter, u32)> = Vec::new();
        for (at, (kind, ssrc, host, payload_type)) in steps.into_iter().enumerate() {
            let filter = filter(ssrc, host, payload_type);
            let known = routes.iter().position(|(other, _)| *other == filter);
            match kind {
                0 => {
                    let added = demux.add(filter, at as u32);
                    prop_assert_eq!(added.is_ok(), known.is_none());
                    if added.is_ok() {
                        routes.push((filter, at as u32));
                    }
                }
                1 => {
                    let expected = known.map(|known| routes.remove(known).1);
                    prop_assert_eq!(demux.remove(&filter), expected);
                }
                _ => {
                    let (ssrc, host) = (ssrc.unwrap_or(9), host.unwrap_or(9));
                    let payload_type = payload_type.unwrap_or(9);
                    let found = demux.find(at as u64 * S, host, ssrc, payload_type);
                    let expected = naive(&routes, host, ssrc, payload_type);
                    prop_assert_eq!(found, expected.map_or(Lookup::Unmatched, Lookup::Route));
                }
            }
        }
    }

    #[test]
    fn a_table_that_learns_routes_keeps_its_invariants(
        steps in prop::collection::vec((0..8_u8, 0..12_u32, 0..3_u32, 0..3_u8, 0..4_u64), 1..300),
    ) {
        let mut demux = Demux::new(Some(LEARNING), 1);
        let (mut now_ns, mut learned) = (0, 0);
        for (kind, ssrc, host, payload_type, wait_s) in steps {
            now_ns += wait_s * S;
            let announced = match kind {
                0 => {
                    let _ = demux.add(filter(Some(ssrc), None, None), 1);
                    false
                }
                1 => {
                    let _ = demux.add(filter(None, None, Some(payload_type)), 2);
                    false
                }
                2 => {
                    let _ = demux.remove(&filter(Some(ssrc), None, None));
                    let _ = demux.remove(&filter(None, None, Some(payload_type)));
                    false
                }
                3 => {
                    demux.expire(now_ns);
                    false
                }
                _ => demux.find(now_ns, host, ssrc, payload_type) == Lookup::Stranger,
            };
            if announced {
                prop_assert_eq!(demux.learn(now_ns, address(host), Ssrc(ssrc), 1000 + learned), Ok(()));
                learned += 1;
                prop_assert_eq!(
                    demux.find(now_ns, host, ssrc, payload_type), Lookup::Route(999 + learned));
            }
            demux.assert_sound();
            prop_assert!(demux.lists[STRANGERS].length <= LEARNING.strangers_max);
            prop_assert!(demux.lists[LEARNED].length <= LEARNING.routes_max);
        }
        // Every learned route is either present or was reported.
        let mut gone = 0;
        while demux.poll_expired().is_some() {
            gone += 1;
        }
        let stats = demux.stats();
        prop_assert_eq!(gone + stats.expired_dropped, stats.routes_evicted + stats.routes_expired);
    }
}
