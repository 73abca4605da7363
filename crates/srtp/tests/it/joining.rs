//! Receivers of a sender that has been sending for a long time.

use threadbare_srtp::{
    PacketIndex, ROLLOVER_MAX, ROLLOVERS_PER_PACKET, SOURCES_MAX, SourceState, UnprotectError,
};

use super::*;

/// A sender whose sequence number has wrapped this many times. Its next packet is number 100.
fn sender_after(suite: Suite, ssrc: Ssrc, wraps: u32) -> Sender {
    let mut sender = Sender::new(&key(suite, 1));
    let state = SourceState {
        ssrc,
        rtp: Some(PacketIndex::new(wraps, SeqNum(99))),
        rtp_missing: 0,
        rtcp: None,
    };
    sender.restore(state).expect("a new sender");
    sender
}

/// Sends packets until one is authentic, at most `packets_max`. Returns how many were refused.
fn refused_before_the_first(
    sender: &mut Sender,
    receiver: &mut Receiver,
    packets_max: u32,
) -> Option<u32> {
    (0..packets_max).find(|number| {
        let packet = rtp(SSRC, SeqNum(100 + *number as u16), *number);
        let mut buffer = protect_rtp(sender, &packet);
        match receiver.unprotect_rtp(&mut buffer) {
            Ok(bytes) => {
                assert_eq!(buffer[..bytes], packet);
                true
            }
            Err(error) => {
                assert_eq!(error, UnprotectError::Forged { ssrc: SSRC });
                false
            }
        }
    })
}

/// RFC 3711, section 3.3.1: a receiver that joins needs the rollover counter, which no packet contains.
#[test]
fn a_joining_receiver_finds_the_rollover_counter() {
    let at_once = ROLLOVERS_PER_PACKET;
    for suite in Suite::ALL {
        for (wraps, refused) in [
            (0, 0),
            (1, 0),
            (at_once, 0),
            (at_once + 1, 1),
            (300, (300 - 1) / at_once),
        ] {
            let mut sender = sender_after(suite, SSRC, wraps);
            let mut receiver = Receiver::joining(&key(suite, 1));
            let found = refused_before_the_first(&mut sender, &mut receiver, 1000);
            assert_eq!(found, Some(refused), "{suite:?} after {wraps} wraps");
            // The next packets are authentic, across a wrap, too.
            for number in [30_000, 60_000, 65_535, 65_536, 90_000] {
                let packet = rtp(SSRC, SeqNum(number as u16), number);
                let mut buffer = protect_rtp(&mut sender, &packet);
                let bytes = receiver.unprotect_rtp(&mut buffer).expect("authentic");
                assert_eq!(buffer[..bytes], packet);
            }
        }
    }
}

#[test]
fn a_receiver_that_does_not_join_expects_zero() {
    let mut sender = sender_after(Suite::AesCm128HmacSha1_80, SSRC, 3);
    let mut receiver = Receiver::new(&key(Suite::AesCm128HmacSha1_80, 1));
    assert_eq!(
        refused_before_the_first(&mut sender, &mut receiver, 100),
        None
    );
}

/// The search starts again after the highest counter, so that packets of strangers cannot make it miss the right one.
#[test]
fn forged_packets_do_not_end_the_search() {
    let suite = Suite::AesCm128HmacSha1_80;
    let mut receiver = Receiver::joining(&key(suite, 1));
    let mut stranger = Sender::new(&key(suite, 2));
    for number in 0..ROLLOVER_MAX / ROLLOVERS_PER_PACKET + 3 {
        let mut forged = protect_rtp(&mut stranger, &rtp(SSRC, SeqNum(number as u16), number));
        receiver.unprotect_rtp(&mut forged).expect_err("forged");
    }
    // The search is at 25, so it needs all other counters first.
    let mut sender = sender_after(suite, SSRC, 2);
    let due = (ROLLOVER_MAX - 24) / ROLLOVERS_PER_PACKET;
    let found = refused_before_the_first(&mut sender, &mut receiver, due + 2);
    assert_eq!(found, Some(due));
}

/// Strangers cannot make the receiver search once the sender is known.
#[test]
fn the_search_ends_with_the_first_authentic_packet() {
    let suite = Suite::AeadAes128Gcm;
    let mut receiver = Receiver::joining(&key(suite, 1));
    let mut sender = sender_after(suite, SSRC, 5);
    assert_eq!(
        refused_before_the_first(&mut sender, &mut receiver, 1),
        Some(0)
    );
    let other = Ssrc(77);
    let mut late = sender_after(suite, other, 1);
    let mut buffer = protect_rtp(&mut late, &rtp(other, SeqNum(100), 1));
    let error = receiver.unprotect_rtp(&mut buffer).expect_err("no search");
    assert_eq!(error, UnprotectError::Forged { ssrc: other });
}

/// A key in a file stays for months, and a sender has another SSRC after each of its restarts.
#[test]
fn a_joining_receiver_forgets_the_oldest_source() {
    let suite = Suite::AesCm128HmacSha1_80;
    let mut receiver = Receiver::joining(&key(suite, 1));
    for ssrc in (1..=2 * SOURCES_MAX as u32).map(Ssrc) {
        let mut restarted = Sender::new(&key(suite, 1));
        let protected = protect_rtp(&mut restarted, &rtp(ssrc, SeqNum(1), 1));
        let accepted = receiver.unprotect_rtp(&mut protected.clone());
        accepted.expect("authentic");
        let replay = receiver.unprotect_rtp(&mut protected.clone());
        replay.expect_err("a replay");
    }
    assert_eq!(receiver.sources().count(), SOURCES_MAX);
}
