//! Packets that are forwarded directly, without a jitter buffer.

use proptest::prelude::*;

use super::test_bed::{Bed, MS, format, leg, with_keys};
use super::*;
use crate::codec::Encoding;
use crate::jitter;
use crate::leg::LegConfig;
use crate::leg::Payload;

fn pcmu() -> Format {
    format(Encoding::Pcmu, 8000, 1)
}

fn direct(passes_directly: bool) -> DirectionConfig {
    DirectionConfig {
        passes_directly,
        ..DirectionConfig::default()
    }
}

/// Returns a call with jitter buffers of 40 ms.
fn bed(a: &[Payload], b: &[Payload], passes_directly: bool) -> Bed {
    let direction = direct(passes_directly);
    let mut bed = Bed::new(a, b, direction);
    let leg = |side, payloads: &[Payload]| LegConfig {
        jitter: jitter::Config::new(8000, 40 * MS),
        ..leg(side, payloads)
    };
    let config = SessionSpec::call([leg(Side::A, a), leg(Side::B, b)], [direction; 2]);
    bed.call = Session::new(0, config).unwrap();
    bed
}

fn same() -> Bed {
    same_with(true)
}

fn same_with(passes_directly: bool) -> Bed {
    let (a, b) = (with_keys(pcmu(), 101, 8000), with_keys(pcmu(), 102, 8000));
    bed(&a, &b, passes_directly)
}

impl Bed {
    /// Returns a packet of 20 ms with this number, from 0, and this payload. The timestamp follows from the number.
    fn numbered(&mut self, number: u16, payload: &[u8]) -> Vec<u8> {
        let (seq, time) = (self.seq, self.time);
        self.seq = seq.wrapping_add(number);
        self.time = time.wrapping_add(160 * u32::from(number));
        let bytes = self.packet(96, false, payload);
        (self.seq, self.time) = (seq, time);
        bytes
    }
}

proptest! {
    /// A translator keeps the distances of the numbers, so that receivers see losses and reordering (RFC 3550, section 2.3). Each packet
    /// leaves once, in the order of arrival.
    #[test]
    fn packets_leave_in_arrival_order(
        delays in prop::collection::vec((0..200_u64, 0..10_u8), 2..120),
    ) {
        let mut bed = same();
        let mut arrivals = Vec::new();
        for (number, (delay_ms, fate)) in delays.iter().enumerate() {
            let at_ms = number as u64 * 20 + delay_ms * u64::from(*fate < 3);
            // Some packets are lost or duplicated, but not the first two, which start the stream.
            let copies = match fate {
                _ if number < 2 => 1,
                8 => 0,
                9 => 2,
                _ => 1,
            };
            let at_ms = if number < 2 { number as u64 * 20 } else { at_ms.max(41) };
            for copy in 0..copies {
                arrivals.push((at_ms + 5 * copy, number as u16));
            }
        }
        arrivals.sort();
        let mut seen = std::collections::BTreeSet::new();
        for (at_ms, number) in arrivals {
            let now_ms = bed.now_ns / MS;
            bed.wait_ms(at_ms - now_ms);
            let before = bed.heard.len();
            let bytes = bed.numbered(number, &[number as u8; 160]);
            bed.hand_in(&bytes);
            let is_new = seen.insert(number);
            let expected = match number {
                _ if seen.len() == 1 => 0,
                // Two consecutive packets validate a source (RFC 3550, appendix A.1).
                _ if seen.len() == 2 && is_new => 2,
                _ => usize::from(is_new),
            };
            prop_assert_eq!(bed.heard.len() - before, expected, "number {}", number);
        }
        bed.wait_ms(1000);
        prop_assert_eq!(bed.heard.len(), seen.len());
        let first = bed.heard[0].seq;
        let first_time = bed.heard[0].time;
        for heard in &bed.heard {
            let number = heard.seq.distance_from(first);
            prop_assert_eq!(heard.payload[0], number as u8);
            prop_assert_eq!(heard.time.distance_from(first_time), i64::from(number) * 160);
        }
    }
}

/// A listener hears the audio in order and in its full length, with losses concealed.
#[test]
fn listeners_hear_packets_in_order() {
    let mut bed = same();
    bed.call.tap(Side::A, true);
    let mut tapped = Vec::new();
    // Two packets arrive late, and one is lost.
    for number in [0, 1, 2, 4, 3, 5, 6, 8, 9, 10, 12, 11, 13, 14, 15] {
        let at_ms = (20 * u64::from(number)).max(bed.now_ns / MS);
        bed.wait_ms(at_ms - bed.now_ns / MS);
        let bytes = bed.numbered(number, &[number as u8; 160]);
        bed.hand_in(&bytes);
    }
    bed.wait_ms(200);
    bed.call.take_tapped(Side::A, |piece| match piece.audio {
        TappedAudio::Codes(codes) => tapped.extend(codes.iter().map(|code| Some(*code))),
        TappedAudio::Samples(samples) => tapped.extend(samples.iter().map(|_| None)),
        TappedAudio::Silence(samples) => tapped.extend((0..samples).map(|_| None)),
    });
    assert_eq!(tapped.len(), 16 * 160);
    for (number, packet) in tapped.chunks(160).enumerate().take(7) {
        assert!(
            packet.iter().all(|code| *code == Some(number as u8)),
            "{number}"
        );
    }
    assert!(tapped[7 * 160..8 * 160].iter().all(|code| *code != Some(8)));
    assert_eq!(bed.heard.len(), 15);
    let stats = bed.call.stats().directions[0];
    assert_eq!((stats.packets, stats.lost), (15, 1));
}

/// The payload type alternates between one that is forwarded and one that is converted. No packet is lost, repeated or out of order.
#[test]
fn direct_and_delayed_packets_are_one_stream() {
    let alaw = format(Encoding::Pcma, 8000, 1);
    let mut payloads = with_keys(pcmu(), 101, 8000);
    payloads.push(Payload::audio(8, alaw));
    let mut bed = bed(&payloads, &with_keys(pcmu(), 102, 8000), true);
    let mut sent = 0;
    for round in 0..6 {
        // PCMA is converted after the jitter buffer, and PCMU is forwarded.
        let payload_type = if round % 2 == 0 { 96 } else { 8 };
        for _ in 0..10 {
            bed.speak(payload_type, &[0x55; 160]);
            bed.time = bed.time.wrapping_add(160);
            bed.wait_ms(20);
            sent += 1;
        }
    }
    bed.wait_ms(200);
    assert_eq!(bed.heard.len(), sent);
    for pair in bed.heard.windows(2) {
        assert_eq!(pair[1].seq, pair[0].seq.plus(1));
        assert_eq!(pair[1].time.distance_from(pair[0].time), 160);
    }
}

/// Outgoing numbers and timestamps continue after the source or its numbers have changed.
#[test]
fn a_new_source_continues_the_stream() {
    for changes_ssrc in [true, false] {
        let mut bed = same();
        for _ in 0..4 {
            for _ in 0..20 {
                bed.speak(96, &[0x33; 160]);
                bed.time = bed.time.wrapping_add(160);
                bed.wait_ms(20);
            }
            bed.seq = bed.seq.wrapping_add(20_000);
            bed.time = bed.time.wrapping_add(1_000_000_000);
            bed.ssrc += u32::from(changes_ssrc);
        }
        assert_eq!(bed.heard.len(), 80, "{changes_ssrc}");
        for pair in bed.heard.windows(2) {
            assert_eq!(pair[1].seq, pair[0].seq.plus(1), "{changes_ssrc}");
            let step = pair[1].time.distance_from(pair[0].time);
            assert!((0..=480).contains(&step), "{changes_ssrc}: {step}");
        }
    }
}

/// Events have the numbers of the audio, or another SSRC (RFC 4733). A blocked event leaves no gap.
#[test]
fn events_pass_with_the_audio() {
    for (own_ssrc, blocks) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut bed = same();
        bed.call.block_keys(Side::A, blocks);
        let speak = |bed: &mut Bed, packets| {
            for _ in 0..packets {
                bed.speak(96, &[0x33; 160]);
                bed.time = bed.time.wrapping_add(160);
                bed.wait_ms(20);
            }
        };
        speak(&mut bed, 10);
        let (ssrc, mut event_seq) = (bed.ssrc, 5_000_u16);
        for tick in 1..=5_u16 {
            let mut event = vec![5, if tick == 5 { 0x88 } else { 8 }];
            event.extend((tick * 160).to_be_bytes());
            let (seq, time) = (bed.seq, bed.time);
            bed.time = 77_000;
            if own_ssrc {
                (bed.ssrc, bed.seq) = (99, event_seq);
            }
            bed.speak(101, &event);
            if own_ssrc {
                (bed.ssrc, bed.seq, event_seq) = (ssrc, seq, event_seq + 1);
            }
            bed.time = time;
            speak(&mut bed, 1);
        }
        speak(&mut bed, 10);
        let name = format!("own SSRC {own_ssrc}, blocks {blocks}");
        let events = bed.heard.iter().filter(|heard| heard.payload_type == 102);
        assert_eq!(events.count(), if blocks { 0 } else { 5 }, "{name}");
        let audio = bed.heard.iter().filter(|heard| heard.payload_type == 96);
        assert_eq!(audio.count(), 25, "{name}");
        for pair in bed.heard.windows(2) {
            assert_eq!(pair[1].seq, pair[0].seq.plus(1), "{name}");
        }
    }
}

#[test]
fn requested_jitter_buffer_delays_packets() {
    for (passes_directly, delay_ns) in [(true, 20 * MS), (false, 40 * MS)] {
        let mut bed = same_with(passes_directly);
        for _ in 0..3 {
            bed.speak(96, &[0x33; 160]);
            bed.time = bed.time.wrapping_add(160);
            bed.wait_ms(20);
        }
        // The first packet waits for the second one, which validates the source.
        assert_eq!(bed.heard[0].at_ns, delay_ns);
    }
}
