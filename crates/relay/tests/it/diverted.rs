//! A call that moves to another process. Its queued packets, and those that still arrive at its old ports, reach the other party.

use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::media::{Bed, MS, Staged, call, party, party_keys, protected, speech};
use threadbare_relay::{AudioSession, LATE_PACKET_BYTES_MAX, LatePacket, MediaSession, PortId};
use threadbare_rtp::call::Side;
use threadbare_rtp::leg::Outage;
use threadbare_rtp::srtp::{Sender, Suite};

const A: PortId = PortId::rtp(0);
const B: PortId = PortId::rtp(1);
const SLICE: Duration = Duration::from_millis(10);

fn session(now_ns: u64) -> MediaSession {
    AudioSession::new(call(now_ns, false), SLICE).into()
}

/// Creates a call in which A uses SRTP with `suite`, if there is one. Also returns A's sender.
fn bed(suite: Option<Suite>) -> (Bed<MediaSession>, Option<Sender>) {
    let mut bed = Bed::new(0, session(0));
    let Some(suite) = suite else {
        return (bed, None);
    };
    let (keys, sender, _) = party_keys(suite, 1);
    let media = bed.call.audio_mut().expect("audio");
    media.set_keys(0, Side::A, Some(keys));
    (bed, Some(sender))
}

/// Returns the arrival time of each packet, ms, with its number. There is one packet every 20 ms. If `is_one_late` is set, number 12 is
/// late.
fn arrivals(is_one_late: bool) -> Vec<(u64, u16)> {
    let mut all: Vec<(u64, u16)> = (0..20)
        .map(|number| match number {
            12 if is_one_late => (265, 12),
            _ => (20 * u64::from(number), number),
        })
        .collect();
    all.sort_unstable();
    all
}

/// Returns the stream that B gets: for each packet, its number, and a byte from the middle of its audio.
fn heard(staged: &[Staged]) -> Vec<(u16, u8)> {
    let mut found = Vec::new();
    for one in staged {
        assert_eq!(one.ssrc(), 0xa1);
        found.push((one.seq(), one.bytes[12 + 80]));
    }
    found
}

/// Whenever the call moves, B gets the same packets as from a call that has never moved.
#[test]
fn nothing_is_lost_between_two_processes() {
    for suite in [
        None,
        Some(Suite::AesCm128HmacSha1_80),
        Some(Suite::AeadAes256Gcm),
    ] {
        // The call moves after the first packets, because a new sender is not accepted at once.
        for (moved_at, late_ms) in (3..20).flat_map(|at| [(at, 0), (at, 100)]) {
            let all = arrivals(late_ms == 0);
            let (mut stays, mut sender) = bed(suite);
            speak(&mut stays, &mut sender, 0, &all);
            stays.wait_ms(200);
            let due = heard(&stays.take(B));
            assert_eq!(due.len(), all.len());

            let (mut old, mut sender) = bed(suite);
            let (before, behind) = all.split_at(moved_at);
            speak(&mut old, &mut sender, 0, before);
            let mut found = old.take(B);
            let (now_ns, media) = (old.now_ns, old.call.audio_mut().expect("audio"));
            let state = media.snapshot(now_ns);
            let (give, late_packets) = channel();
            let take = move |packet| give.send(packet).expect("it is heard");
            old.call.divert(now_ns, Box::new(take));
            // Two more packets arrive at the old process.
            let (late, direct) = behind.split_at(behind.len().min(2));
            speak(&mut old, &mut sender, 0, late);
            assert_eq!(old.take(B), [], "a party that has left sends nothing");
            // The clock of the new process differs.
            let ahead_ms = 5000;
            let begun_ns = old.now_ns + ahead_ms * MS;
            let mut new = Bed::new(begun_ns, session(begun_ns));
            let outage = Outage {
                elapsed_ns: old.now_ns - now_ns,
                unsaved_ns: 0,
            };
            let media = new.call.audio_mut().expect("audio");
            media.restore(begun_ns, &state, outage).expect("it goes on");
            media.wait_for_late_packets(begun_ns + (late_ms + 20) * MS, &state);
            let mut late_packets: Vec<LatePacket> = late_packets.try_iter().collect();
            for packet in &mut late_packets {
                packet.received_ns += ahead_ms * MS;
            }
            // The late packets come after those that arrived here directly.
            let held = late_packets.iter().filter(|packet| packet.is_clear).count();
            let rest = late_packets.split_off(if late_ms > 0 {
                held
            } else {
                late_packets.len()
            });
            new.call.handle_late_packets(begun_ns, late_packets);
            new.poll();
            let is_first = |(at_ms, _): &&(u64, u16)| at_ms + ahead_ms < begun_ns / MS + late_ms;
            let first = direct.iter().take_while(is_first).count();
            speak(&mut new, &mut sender, ahead_ms, &direct[..first]);
            new.wait_ms((begun_ns / MS + late_ms).saturating_sub(new.now_ns / MS));
            new.call.handle_late_packets(new.now_ns, rest);
            new.poll();
            speak(&mut new, &mut sender, ahead_ms, &direct[first..]);
            new.wait_ms(200);
            found.extend(new.take(B));
            assert_eq!(
                heard(&found),
                due,
                "{suite:?} at {moved_at}, {late_ms} ms late"
            );
        }
    }
}

/// Lets packets arrive when they are due.
fn speak(
    bed: &mut Bed<MediaSession>,
    sender: &mut Option<Sender>,
    ahead_ms: u64,
    packets: &[(u64, u16)],
) {
    for (at_ms, number) in packets {
        let due_ms = (at_ms + ahead_ms).saturating_sub(bed.now_ns / MS);
        bed.wait_ms(due_ms);
        let packet = speech(0, 5, *number);
        let packet = match sender {
            Some(sender) => protected(sender, &packet),
            None => packet,
        };
        bed.hand_in(A, party(Side::A), &packet);
    }
}

/// A stranger floods the call. The number of its packets that are kept for the next process is bounded.
#[test]
fn late_packets_of_one_call_are_bounded() {
    let (mut bed, _) = bed(None);
    let (give, late_packets) = channel();
    bed.call.divert(
        0,
        Box::new(move |packet| give.send(packet).expect("it is heard")),
    );
    for _ in 0..1000 {
        bed.hand_in(A, party(Side::B), &[7; 1200]);
    }
    let bytes: usize = late_packets
        .try_iter()
        .map(|packet| packet.bytes.len())
        .sum();
    assert!(bytes <= LATE_PACKET_BYTES_MAX && bytes > LATE_PACKET_BYTES_MAX - 1200);
}
