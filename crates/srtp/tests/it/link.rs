//! Links that lose, delay, reorder and repeat, over wraps of the sequence number.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use threadbare_srtp::{REPLAY_WINDOW, SourceError, UnprotectError};

use super::*;

/// Fate of the next packet on the link.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Arrives,
    /// This many consecutive packets are lost.
    Lost(u16),
    /// The packet is overtaken by this many.
    Delayed(u16),
    Repeated,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Arrives),
        1 => prop_oneof![4 => 1..10_u16, 1 => 1..30_000_u16].prop_map(Fate::Lost),
        2 => prop_oneof![4 => 1..8_u16, 1 => 1..300_u16].prop_map(Fate::Delayed),
        1 => Just(Fate::Repeated),
    ]
}

fn suite() -> impl Strategy<Value = Suite> {
    prop::sample::select(&Suite::ALL[..])
}

/// Numbers of the delivered packets, in their order of arrival. The first packet is never lost, because the receiver gets the
/// rollover counter from it.
fn deliver(fates: &[Fate]) -> Vec<u32> {
    let mut arrivals = vec![(0, 0)];
    let mut number = 1_u32;
    for (fate, at) in fates.iter().zip(1_u32..) {
        match fate {
            Fate::Arrives => arrivals.push((at, number)),
            Fate::Lost(count) => number += u32::from(*count) - 1,
            Fate::Delayed(by) => arrivals.push((at + u32::from(*by), number)),
            Fate::Repeated => arrivals.extend([(at, number), (at + 3, number)]),
        }
        number += 1;
    }
    arrivals.sort_by_key(|(at, _)| *at);
    arrivals.into_iter().map(|(_, number)| number).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The model knows the number of each packet without wraps, and forgets nothing.
    #[test]
    fn each_packet_arrives_once_over_any_link(
        suite in suite(),
        first in any::<u16>(),
        fates in prop::collection::vec(fate(), 1..200),
    ) {
        let (mut sender, mut receiver) = pair(suite);
        let delivered = deliver(&fates);
        let wanted: BTreeSet<u32> = delivered.iter().copied().collect();
        let last = wanted.last().copied().expect("the first");
        let mut sent = BTreeMap::new();
        for number in 0..=last {
            // The sender also protects some of the lost packets, enough to keep its rollover counter right.
            if wanted.contains(&number) || number % 1000 == 0 {
                let packet = rtp(SSRC, SeqNum(first).plus(number as u16), number);
                sent.insert(number, (protect_rtp(&mut sender, &packet), packet));
            }
        }
        let mut seen = BTreeSet::new();
        for number in delivered {
            let newest = seen.last().copied();
            let (protected, plain) = &sent[&number];
            let mut buffer = protected.clone();
            // After a gap of 2^15 packets or more, no receiver knows the rollover counter (RFC 3711, section 3.3.1).
            if newest.is_some_and(|newest| number.abs_diff(newest) >= 1 << 15) {
                return Ok(());
            }
            let result = receiver.unprotect_rtp(&mut buffer);
            let is_old = newest.is_some_and(|newest| number + REPLAY_WINDOW <= newest);
            match result {
                Ok(bytes) => {
                    prop_assert_eq!(&buffer[..bytes], &plain[..]);
                    prop_assert!(!is_old && seen.insert(number), "{}", number);
                }
                Err(UnprotectError::Source(SourceError::Old { .. })) => prop_assert!(is_old, "{}", number),
                Err(UnprotectError::Source(SourceError::Repeated { .. })) => prop_assert!(seen.contains(&number)),
                Err(error) => prop_assert!(false, "{number}: {error}"),
            }
        }
    }
}

#[test]
fn hours_of_packets_go_over_many_wraps() {
    for suite in Suite::ALL {
        let (mut sender, mut receiver) = pair(suite);
        for number in (0..400_000_u32).step_by(20_000) {
            let packet = rtp(SSRC, SeqNum(number as u16), number);
            let mut buffer = protect_rtp(&mut sender, &packet);
            let bytes = receiver.unprotect_rtp(&mut buffer).expect("it arrives");
            assert_eq!(buffer[..bytes], packet);
        }
        let state = receiver
            .sources()
            .next()
            .expect("a source")
            .rtp
            .expect("packets");
        assert_eq!(state.get(), 380_000);
        assert_eq!(state.rollover(), 380_000 >> 16);
        assert_eq!(
            sender.sources().collect::<Vec<_>>(),
            receiver.sources().collect::<Vec<_>>()
        );
    }
}

#[test]
fn reports_arrive_once_and_in_any_order() {
    for suite in Suite::ALL {
        let (mut sender, mut receiver) = pair(suite);
        let packets: Vec<_> = (0..50).map(|number| rtcp(SSRC, number)).collect();
        let protected: Vec<_> = packets
            .iter()
            .map(|packet| protect_rtcp(&mut sender, packet))
            .collect();
        for number in [3, 1, 0, 2, 49, 10] {
            for again in [false, true] {
                let mut buffer = protected[number].clone();
                match receiver.unprotect_rtcp(&mut buffer) {
                    Ok(bytes) if !again => assert_eq!(buffer[..bytes], packets[number]),
                    Err(UnprotectError::Source(SourceError::Repeated { .. })) if again => {}
                    other => panic!("{number}: {other:?}"),
                }
            }
        }
        assert_eq!(receiver.sources().next().expect("a source").rtcp, Some(49));
    }
}

#[test]
fn a_sender_uses_no_index_twice() {
    for suite in Suite::ALL {
        let (mut sender, _) = pair(suite);
        protect_rtp(&mut sender, &rtp(SSRC, SeqNum(5), 1));
        protect_rtp(&mut sender, &rtp(SSRC, SeqNum(4), 1));
        protect_rtp(&mut sender, &rtp(Ssrc(1), SeqNum(5), 1));
        let packet = rtp(SSRC, SeqNum(5), 2);
        let mut buffer = [&packet[..], &[0; RTP_TRAILER_BYTES_MAX]].concat();
        let before = buffer.clone();
        let error = sender.protect_rtp(&mut buffer, packet.len()).unwrap_err();
        assert_eq!(error.to_string(), "SSRC 0x01020304: packet 5 is a replay");
        assert_eq!(buffer, before);
    }
}
