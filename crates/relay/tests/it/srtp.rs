//! Calls with SRTP on one or both sides. The parties use the transforms of `threadbare-rtp`, which other tests compare with libsrtp.

use crate::common::media::{Bed, MS, Staged, call, party, party_keys, protected, speech};
use crate::common::receiver_report;
use threadbare_relay::{AudioSession, AudioStats, PortId};
use threadbare_rtp::call::Side;
use threadbare_rtp::leg::Outage;
use threadbare_rtp::srtp::{OLD_KEY_NS, Receiver, Sender, Suite};

use std::time::Duration;

const SLICE: Duration = Duration::ZERO;

fn bed(mux: bool) -> Bed<AudioSession> {
    Bed::new(0, AudioSession::new(call(0, mux), SLICE))
}

/// A party's transforms. `None`: the party uses plain RTP.
type Party = Option<(Sender, Receiver)>;

/// Gives a side of the call its keys.
fn secure(bed: &mut Bed<AudioSession>, side: Side, suite: Option<Suite>) -> Party {
    let (keys, sends, receives) = party_keys(suite?, side as u8);
    bed.call.set_keys(0, side, Some(keys));
    Some((sends, receives))
}

fn seal(party: &mut Party, packet: &[u8]) -> Vec<u8> {
    match party {
        Some((sender, _)) => protected(sender, packet),
        None => packet.to_vec(),
    }
}

fn open(party: &mut Party, staged: &Staged) -> Vec<u8> {
    match party {
        Some((_, receiver)) => staged.opened(receiver),
        None => staged.bytes.clone(),
    }
}

fn payload_type_of(side: Side) -> u8 {
    match side {
        Side::A => 0,
        Side::B => 8,
    }
}

/// Lets a party send its packets with these numbers. Returns the other party's datagrams.
fn speak(
    bed: &mut Bed<AudioSession>,
    side: Side,
    sender: &mut Party,
    numbers: std::ops::Range<u16>,
) -> Vec<Staged> {
    for number in numbers {
        let packet = speech(payload_type_of(side), 0x50 + side as u32, number);
        let packet = seal(sender, &packet);
        bed.hand_in(PortId::rtp(side as u8), party(side), &packet);
        bed.wait_ms(20);
    }
    bed.wait_ms(40);
    bed.take(PortId::rtp(side.other() as u8))
}

fn protection(stats: &AudioStats, side: Side) -> threadbare_rtp::srtp::ProtectionStats {
    stats.protections[side as usize].expect("the side is protected")
}

/// The call is compared with the same call that has plain RTP on both sides.
#[test]
fn any_mix_of_suites_and_plain_rtp_passes_the_same_packets() {
    let kinds: Vec<Option<Suite>> = Suite::ALL.into_iter().map(Some).chain([None]).collect();
    let mut plain = bed(false);
    let expected: Vec<Vec<u8>> = speak(&mut plain, Side::A, &mut None, 0..20)
        .into_iter()
        .map(|staged| staged.bytes)
        .collect();
    assert_eq!(expected.len(), 20);
    for a in &kinds {
        for b in &kinds {
            let mut bed = bed(false);
            let mut party_a = secure(&mut bed, Side::A, *a);
            let mut party_b = secure(&mut bed, Side::B, *b);
            let staged = speak(&mut bed, Side::A, &mut party_a, 0..20);
            let heard: Vec<Vec<u8>> = staged
                .iter()
                .map(|staged| {
                    assert_eq!(staged.to, party(Side::B));
                    open(&mut party_b, staged)
                })
                .collect();
            assert_eq!(heard, expected, "{a:?} {b:?}");
            // The packets in the other direction must pass too.
            let staged = speak(&mut bed, Side::B, &mut party_b, 0..20);
            let mut opened = staged.iter().map(|staged| open(&mut party_a, staged));
            assert_eq!(staged.len(), 20);
            assert!(opened.all(|packet| packet.len() == 172 && packet[1] & 0x7f == 0));
            let stats = bed.call.stats();
            for (side, kind) in [(Side::A, a), (Side::B, b)] {
                assert_eq!(stats.protections[side as usize].is_some(), kind.is_some());
                if kind.is_some() {
                    let counts = protection(&stats, side);
                    assert_eq!((counts.received, counts.unsent), (20, 0));
                    assert_eq!(counts.unauthentic + counts.replayed + counts.malformed, 0);
                }
            }
        }
    }
}

#[test]
fn reports_are_srtcp_on_their_own_port_and_on_that_of_rtp() {
    for suite in Suite::ALL {
        for mux in [false, true] {
            let mut bed = bed(mux);
            let mut a = secure(&mut bed, Side::A, Some(suite));
            let rtcp = if mux { PortId::rtp(0) } else { PortId::rtcp(0) };
            speak(&mut bed, Side::A, &mut a, 0..5);
            speak(&mut bed, Side::B, &mut None, 0..5);
            bed.tray.staged.clear();
            let report = seal(&mut a, &receiver_report(0x50));
            let mut from = party(Side::A);
            from.set_port(from.port() + u16::from(!mux));
            bed.hand_in(rtcp, from, &report);
            let plain = receiver_report(0x50);
            bed.hand_in(rtcp, from, &plain);
            let stats = bed.call.stats();
            assert_eq!(
                stats.session.legs[0].session.rtcp_received, 1,
                "{suite} {mux}"
            );
            assert_ne!(
                protection(&stats, Side::A).malformed + protection(&stats, Side::A).unauthentic,
                0
            );
            // This makes a BYE due at once.
            bed.call.session_mut().leave(bed.now_ns, "");
            bed.poll();
            let staged = bed.take(rtcp);
            let last = staged.last().expect("a BYE");
            assert_eq!(last.to, from);
            let opened = open(&mut a, last);
            assert_ne!(opened, last.bytes);
            // A report comes first (RFC 3550, section 6.1). The type of a BYE is 203 (section 6.6).
            assert_eq!(opened[1], 201);
            assert!(opened.chunks(4).any(|word| word.get(1) == Some(&203)));
        }
    }
}

#[test]
fn forged_and_repeated_packets_are_counted_and_dropped() {
    let mut bed = bed(false);
    let mut a = secure(&mut bed, Side::A, Some(Suite::AesCm128HmacSha1_80));
    let heard = speak(&mut bed, Side::A, &mut a, 0..10).len();
    let next = seal(&mut a, &speech(0, 0x50, 10));
    let mut forged = next.clone();
    forged[40] ^= 1;
    let port = PortId::rtp(0);
    bed.hand_in(port, party(Side::A), &forged);
    bed.hand_in(port, party(Side::A), &next);
    bed.hand_in(port, party(Side::A), &next);
    // Plain RTP is refused.
    bed.hand_in(port, party(Side::A), &speech(0, 0x50, 11));
    bed.hand_in(port, party(Side::A), b"no packet");
    bed.wait_ms(100);
    assert_eq!(bed.take(PortId::rtp(1)).len() + heard, 11);
    let counts = protection(&bed.call.stats(), Side::A);
    assert_eq!(
        (
            counts.received,
            counts.unauthentic,
            counts.replayed,
            counts.malformed
        ),
        (11, 2, 1, 1)
    );
    // A packet that fails authentication does not make its address known.
    let stranger = "198.51.100.9:7".parse().unwrap();
    bed.wait_ms(10_000);
    for number in 11..40 {
        bed.hand_in(port, stranger, &speech(0, 0x50, number));
        bed.wait_ms(20);
    }
    assert_eq!(
        bed.call.stats().session.legs[0].rtp_to,
        Some(party(Side::A))
    );
}

/// Both parties change their keys within a talkspurt, and a packet with an old key arrives after the change.
#[test]
fn keys_change_while_the_call_runs() {
    for (old_suite, new_suite) in [
        (Suite::AesCm128HmacSha1_80, Suite::AesCm128HmacSha1_80),
        (Suite::AesCm128HmacSha1_32, Suite::AeadAes256Gcm),
    ] {
        let mut bed = bed(false);
        let mut a = secure(&mut bed, Side::A, Some(old_suite));
        let first = speak(&mut bed, Side::A, &mut a, 0..10);
        let on_the_way = seal(&mut a, &speech(0, 0x50, 10));
        let (keys, sends, mut receives) = party_keys(new_suite, 40);
        bed.call.set_keys(bed.now_ns, Side::A, Some(keys.clone()));
        bed.hand_in(PortId::rtp(0), party(Side::A), &on_the_way);
        let mut new = Some((sends, Receiver::new(&keys.send)));
        let second = speak(&mut bed, Side::A, &mut new, 11..20);
        let counts = protection(&bed.call.stats(), Side::A);
        assert_eq!((counts.received, counts.of_old_key), (20, 1));
        assert_eq!((counts.unauthentic, counts.replayed), (0, 0));
        let seqs: Vec<u16> = first.iter().chain(&second).map(Staged::seq).collect();
        assert_eq!(seqs.len(), 20);
        assert!(
            seqs.windows(2)
                .all(|pair| pair[1] == pair[0].wrapping_add(1))
        );
        // Packets to A use its new key.
        let back = speak(&mut bed, Side::B, &mut None, 0..5);
        assert!(
            back.iter()
                .all(|staged| staged.opened(&mut receives).len() == 172)
        );
        // After a second change, the keys are set again without a change. Nothing restarts.
        bed.call.set_keys(bed.now_ns, Side::A, Some(keys));
        let back = speak(&mut bed, Side::B, &mut None, 5..10);
        assert!(
            back.iter()
                .all(|staged| staged.opened(&mut receives).len() == 172)
        );
        // Some time after the new key was used, the old one is no longer accepted.
        let late = seal(&mut a, &speech(0, 0x50, 21));
        bed.wait_ms(OLD_KEY_NS / MS);
        bed.hand_in(PortId::rtp(0), party(Side::A), &late);
        let counts = protection(&bed.call.stats(), Side::A);
        assert_eq!(counts.of_old_key, 1);
        assert_eq!(counts.unauthentic + counts.malformed, 1);
    }
}

#[test]
fn a_side_becomes_srtp_and_plain_again() {
    let mut bed = bed(false);
    speak(&mut bed, Side::A, &mut None, 0..5);
    let mut a = secure(&mut bed, Side::A, Some(Suite::AeadAes128Gcm));
    assert_eq!(speak(&mut bed, Side::A, &mut a, 5..10).len(), 5);
    bed.call.set_keys(bed.now_ns, Side::A, None);
    assert_eq!(speak(&mut bed, Side::A, &mut None, 10..15).len(), 5);
    assert_eq!(bed.call.stats().protections, [None, None]);
}

/// A turn has room for less than is due. Each packet is encrypted once, in order.
#[test]
fn queued_datagrams_are_protected_once() {
    let mut bed = bed(false);
    let mut b = secure(&mut bed, Side::B, Some(Suite::AeadAes128Gcm));
    bed.room = 1;
    for number in 0..12 {
        // The packets arrive together, so they are due together.
        bed.hand_in(PortId::rtp(0), party(Side::A), &speech(0, 0x50, number));
    }
    bed.wait_ms(500);
    let staged = bed.take(PortId::rtp(1));
    let seqs: Vec<u16> = staged.iter().map(Staged::seq).collect();
    assert_eq!(seqs.len(), 12);
    assert!(
        seqs.windows(2)
            .all(|pair| pair[1] == pair[0].wrapping_add(1))
    );
    for staged in &staged {
        assert_eq!(open(&mut b, staged).len(), 172);
    }
    let counts = protection(&bed.call.stats(), Side::B);
    assert_eq!(counts.unsent, 0);
    assert!(counts.sent >= 12);
}

/// The process dies some time after its last snapshot. The receivers of the parties accept the stream that follows: it has the same SSRC,
/// its numbers and timestamps are ahead, and each index of a key is used only once.
#[test]
fn state_continues_after_a_restart() {
    for suite in Suite::ALL {
        // The process dies before the first packet, or before or after a wrap of the numbers (65530 is the first).
        for before in [0, 3, 30] {
            let mut bed = bed(false);
            let mut a = secure(&mut bed, Side::A, Some(suite));
            let mut b = secure(&mut bed, Side::B, Some(suite));
            let mut heard = speak(&mut bed, Side::A, &mut a, 0..before);
            let (taken_ns, state) = (bed.now_ns, bed.call.snapshot(bed.now_ns));
            // These packets are not in the snapshot.
            heard.extend(speak(&mut bed, Side::A, &mut a, before..before + 20));
            let unsaved_ns = bed.now_ns - taken_ns;
            bed.wait_ms(300);
            let elapsed_ns = bed.now_ns - taken_ns;
            // This is another process, whose clock starts at another time.
            let now_ns = 7_777 * MS;
            let mut call = AudioSession::new(call(now_ns, false), SLICE);
            let outage = Outage {
                elapsed_ns,
                unsaved_ns,
            };
            call.restore(now_ns, &state, outage).expect("it goes on");
            let mut after = Bed::new(now_ns, call);
            let died = heard.last().expect("packets").clone();
            let first = before + 20;
            let next = speak(&mut after, Side::A, &mut a, first..first + 20);
            assert_eq!(next.len(), 20, "{suite} {before}");
            for staged in heard.iter().chain(&next) {
                assert_eq!(open(&mut b, staged).len(), 172, "{suite} {before}");
                assert_eq!(staged.ssrc(), 0xa1);
            }
            // The gap is acceptable to SRTP receivers (RFC 3711, section 3.3.1), and to RTP receivers (RFC 3550, appendix A.1).
            let skipped = next[0].seq().wrapping_sub(died.seq());
            assert!((1..3000).contains(&skipped), "{skipped}");
            if before > 0 {
                let units = next[0].time().wrapping_sub(died.time());
                let passed = (300 + 20 + 40) * 8;
                assert!(units.abs_diff(passed) <= 2 * 160, "{units} {passed}");
            }
            assert_eq!(
                after.call.stats().session.legs[0].rtp_to,
                Some(party(Side::A))
            );
            let counts = protection(&after.call.stats(), Side::B);
            assert_eq!(counts.unsent, 0);
        }
    }
}

#[test]
fn invalid_state_is_refused_with_the_reason() {
    let mut bed = bed(false);
    secure(&mut bed, Side::A, Some(Suite::AeadAes128Gcm));
    let mut state = bed.call.snapshot(0);
    let source = threadbare_rtp::srtp::SourceState {
        ssrc: threadbare_rtp::id::Ssrc(1),
        rtp: None,
        rtp_missing: 0,
        rtcp: Some(u32::MAX),
    };
    if let Some(protection) = &mut state.protections[0] {
        protection.sent.push(source);
    }
    let error = bed.call.restore(0, &state, Outage::default()).unwrap_err();
    assert!(
        error.to_string().contains("SRTCP index 4294967295"),
        "{error}"
    );
}
