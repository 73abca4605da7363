use std::sync::Arc;

use super::*;
use crate::codec::{Encoding, Format};
use crate::g711;
use crate::id::{RtpTime, SeqNum, Ssrc};
use crate::leg::{Payload, PayloadMap};
use crate::packet::Packet;

const MS: u64 = 1_000_000;

fn payload(number: u8, encoding: Encoding) -> Payload {
    Payload::audio(number, Format::new(encoding, 8000, 1).unwrap())
}

fn map(audio: Payload) -> Arc<PayloadMap> {
    let all = [
        audio,
        Payload::comfort_noise(13, 8000),
        Payload::telephone_event(101, 8000),
    ];
    Arc::new(PayloadMap::new(&all).unwrap())
}

fn config(from: Payload, to: Payload, packet_ms: u64) -> TranscoderConfig {
    TranscoderConfig {
        from: map(from),
        is_any_audio: false,
        to: map(to),
        direction: DirectionConfig {
            packet_ns: packet_ms * MS,
            first_time: RtpTime(1000),
            ..DirectionConfig::default()
        },
        ssrc: Ssrc(7),
        first_seq: SeqNum(65_535),
    }
}

fn pcmu() -> Payload {
    payload(0, Encoding::Pcmu)
}

fn pcma() -> Payload {
    payload(8, Encoding::Pcma)
}

fn packet(seq: u16, time: u32, payload_type: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80, payload_type];
    bytes.extend(seq.to_be_bytes());
    bytes.extend(time.to_be_bytes());
    bytes.extend(0xaaaa_u32.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Sequence number, timestamp, marker, payload type, payload and play time in ms of a packet that was produced.
type Made = (u16, u32, bool, u8, Vec<u8>, u64);

struct Bed {
    transcoder: Transcoder,
    scratch: Scratch,
    made: Vec<Made>,
}

impl Bed {
    fn new(config: TranscoderConfig) -> Bed {
        Bed {
            transcoder: Transcoder::new(config).unwrap(),
            scratch: Scratch::default(),
            made: Vec::new(),
        }
    }

    fn handle(&mut self, bytes: &[u8], play_ms: Option<u64>) {
        let play_ns = play_ms.map(|ms| ms * MS);
        self.transcoder
            .handle_packet(bytes, play_ns, false, &mut self.scratch);
        self.drain();
    }

    fn lose(&mut self, ms: u64) {
        self.transcoder
            .handle_loss(None, ms * MS, &mut self.scratch);
        self.drain();
    }

    fn finish(&mut self) {
        self.transcoder.finish(&mut self.scratch);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(made) = self.transcoder.poll_packet(&mut self.scratch) {
            let packet = Packet::parse(made.bytes).expect("what goes out is RTP");
            assert_eq!(packet.ssrc(), Ssrc(7));
            self.made.push((
                packet.seq().0,
                packet.time().0,
                packet.marker(),
                packet.payload_type().0,
                packet.payload().to_vec(),
                made.play_ns / MS,
            ));
        }
    }
}

/// Converts codes by the tables of ITU-T G.711, from the same source as in the other tests: see g711.rs.
fn to_alaw(codes: &[u8]) -> Vec<u8> {
    let code = |code: &u8| g711::ULAW_TO_ALAW[usize::from(*code)];
    codes.iter().map(code).collect()
}

#[test]
fn codes_are_converted_and_renumbered() {
    let mut bed = Bed::new(config(pcmu(), pcma(), 0));
    let codes: Vec<u8> = (0..160).collect();
    bed.handle(&packet(5, 77, 0, &codes), Some(100));
    bed.handle(&packet(6, 237, 0, &codes), Some(120));
    // The marker is for the first packet after silence (RFC 3551, section 4.1).
    assert_eq!(bed.made[0], (65_535, 1000, true, 8, to_alaw(&codes), 100));
    assert_eq!(bed.made[1], (0, 1160, false, 8, to_alaw(&codes), 120));
}

#[test]
fn csrcs_extensions_and_padding_are_removed() {
    let mut bed = Bed::new(config(pcmu(), pcma(), 0));
    let mut bytes = packet(1, 0, 0, &[]);
    bytes[0] = 0xb1;
    bytes.extend([0, 0, 0, 9, 0xbe, 0xde, 0, 1, 1, 2, 3, 4]);
    bytes.extend([0xff, 0xff, 0, 2]);
    bed.handle(&bytes, None);
    assert_eq!(bed.made[0].4, [0xd5, 0xd5]);
}

#[test]
fn another_packet_time_keeps_every_byte_and_the_time() {
    for packet_ms in [10, 30, 50] {
        let mut bed = Bed::new(config(pcmu(), pcmu(), packet_ms));
        let mut sent = Vec::new();
        for i in 0..30_u32 {
            let codes: Vec<u8> = (0..160).map(|k| (k * 7 + i) as u8).collect();
            sent.extend(&codes);
            let bytes = packet(i as u16, i * 160, 0, &codes);
            bed.handle(&bytes, Some(500 + u64::from(i) * 20));
        }
        bed.finish();
        let back: Vec<u8> = bed.made.iter().flat_map(|made| made.4.clone()).collect();
        assert_eq!(back, sent);
        for (i, made) in (0_u64..).zip(&bed.made) {
            assert_eq!(made.0, 65_535_u16.wrapping_add(i as u16));
            assert_eq!(u64::from(made.1), 1000 + i * packet_ms * 8);
            assert_eq!(made.5, 500 + i * packet_ms);
        }
    }
}

#[test]
fn loss_is_concealed_and_numbers_continue() {
    for to in [pcmu(), pcma()] {
        let tone = |i: u32| -> Vec<u8> {
            let sample = |k: u32| {
                let t = f64::from(i * 160 + k) / 8000.0;
                ((t * 400.0 * std::f64::consts::TAU).sin() * 8000.0) as i16
            };
            (0..160).map(|k| g711::linear_to_ulaw(sample(k))).collect()
        };
        let linear = |code: u8| {
            if to == pcmu() {
                g711::ULAW_TO_LINEAR[usize::from(code)]
            } else {
                g711::ALAW_TO_LINEAR[usize::from(code)]
            }
        };
        let mut bed = Bed::new(config(pcmu(), to, 0));
        for i in 0..9_u32 {
            match i {
                5 => bed.lose(20),
                _ => bed.handle(&packet(i as u16, i * 160, 0, &tone(i)), None),
            }
        }
        assert_eq!(bed.transcoder.stats().concealed_ns, 20 * MS);
        assert_eq!(bed.made.len(), 9);
        for (i, made) in (0_u32..).zip(&bed.made) {
            let seq = 65_535_u16.wrapping_add(i as u16);
            assert_eq!((made.0, made.1), (seq, 1000 + i * 160));
            assert_eq!((made.4.len(), made.5), (160, u64::from(i) * 20));
        }
        // The concealed audio must be nearer to the lost audio than silence is.
        let error = |heard: &dyn Fn(usize) -> f64| -> f64 {
            let lost = tone(5)
                .into_iter()
                .map(|code| g711::ULAW_TO_LINEAR[usize::from(code)]);
            let squares = lost
                .enumerate()
                .map(|(k, lost)| (f64::from(lost) - heard(k)).powi(2));
            squares.sum()
        };
        let made = error(&|k| f64::from(linear(bed.made[5].4[k])));
        assert!(made < error(&|_| 0.0) / 10.0, "{made}");
    }
}

/// If a sender sends few packets, little is concealed, even if its numbers claim more.
#[test]
fn gaps_in_sequence_numbers_cause_no_amplification() {
    for gap in [1, 9, 50, 2000] {
        for samples in [1, 7, 8, 80, 160] {
            let mut bed = Bed::new(config(pcmu(), pcma(), 0));
            for i in 0..20_u32 {
                let (seq, time) = ((i * (gap + 1)) as u16, i * (gap + 1) * 160);
                bed.handle(&packet(seq, time, 0, &vec![0; samples]), None);
                bed.lose(u64::from(gap) * 20);
            }
            let bytes: usize = bed.made.iter().map(|made| made.4.len()).sum();
            // At most as much may leave as was received, plus a tail of 200 ms.
            let tail = 200 * 8;
            assert!(bytes <= 2 * 20 * samples + tail, "{gap} {samples}: {bytes}");
        }
    }
}

#[test]
fn digits_and_noise_pass_between_the_audio() {
    let mut bed = Bed::new(config(pcmu(), pcma(), 0));
    let event = [5, 0x0a, 0, 160];
    bed.handle(&packet(1, 0, 0, &[0xff; 160]), None);
    // All packets of an event have the timestamp of its start (RFC 4733, section 2.2).
    bed.handle(&packet(2, 160, 101, &event), None);
    bed.handle(&packet(3, 160, 101, &event), None);
    bed.handle(&packet(4, 320, 13, &[60]), None);
    bed.handle(&packet(5, 480, 0, &[0xff; 160]), None);
    bed.handle(&packet(6, 640, 97, &[0; 4]), None);
    let seen: Vec<_> = bed
        .made
        .iter()
        .map(|made| (made.0, made.1, made.3))
        .collect();
    let expected = [
        (65_535, 1000, 8),
        (0, 1160, 101),
        (1, 1160, 101),
        (2, 1320, 13),
        (3, 1480, 8),
    ];
    assert_eq!(seen, expected);
    assert_eq!(
        (&bed.made[1].4[..], &bed.made[3].4[..]),
        (&event[..], &[60][..])
    );
    assert_eq!(bed.transcoder.stats().dropped, 1);
}

#[test]
fn packets_of_a_new_sender_continue_the_numbers_of_the_previous_sender() {
    let mut bed = Bed::new(config(pcmu(), pcma(), 0));
    let mut second = packet(9, 70_000, 0, &[0; 160]);
    second[8] = 1;
    bed.handle(&packet(100, 5000, 0, &[0; 160]), Some(1000));
    // By the play times, there are 100 ms of silence between the packets.
    bed.handle(&second, Some(1120));
    assert_eq!((bed.made[1].0, bed.made[1].1), (0, 1000 + 160 + 800));
}

#[test]
fn format_change_continues_the_stream() {
    let mut bed = Bed::new(config(pcmu(), pcma(), 0));
    bed.handle(&packet(1, 0, 0, &[0x12; 160]), Some(0));
    let other = TranscoderConfig {
        ssrc: Ssrc(99),
        first_seq: SeqNum(5),
        ..config(pcma(), pcma(), 0)
    };
    bed.transcoder.reconfigure(other, &mut bed.scratch).unwrap();
    bed.handle(&packet(2, 160, 8, &[0x34; 160]), Some(20));
    assert_eq!((bed.made[1].0, bed.made[1].1), (0, 1160));
    assert_eq!(bed.made[1].4, [0x34; 160]);
    assert_eq!(bed.transcoder.stats().packets, 2);
}

#[test]
fn linear_audio_is_exact_both_ways() {
    let samples: Vec<i16> = (0..160).map(|k| k * 200 - 16_000).collect();
    let linear: Vec<u8> = samples.iter().flat_map(|s| s.to_be_bytes()).collect();
    let coded: Vec<u8> = samples.iter().map(|s| g711::linear_to_alaw(*s)).collect();
    let l16 = payload(96, Encoding::L16);
    let mut narrows = Bed::new(TranscoderConfig {
        is_any_audio: true,
        ..config(l16, pcma(), 0)
    });
    narrows.handle(&packet(1, 0, 97, &linear), None);
    assert_eq!(narrows.made[0].4, coded);
    let mut widens = Bed::new(config(pcma(), l16, 0));
    widens.handle(&packet(1, 0, 8, &coded), None);
    let decode = |code: &u8| g711::ALAW_TO_LINEAR[usize::from(*code)].to_be_bytes();
    let decoded: Vec<u8> = coded.iter().flat_map(decode).collect();
    assert_eq!(widens.made[0].4, decoded);
}

/// If a stream leaves its output in a thread's scratch, it does not go to another stream.
#[test]
fn streams_that_share_a_scratch_get_their_own_packets() {
    let mut one = Bed::new(config(pcmu(), pcma(), 0));
    let mut other = Bed::new(config(pcmu(), pcma(), 0));
    let packet = packet(1, 0, 0, &[0x55; 160]);
    one.transcoder
        .handle_packet(&packet, Some(0), false, &mut one.scratch);
    assert_eq!(one.scratch.made(), 1);
    std::mem::swap(&mut one.scratch, &mut other.scratch);
    other.handle(b"no RTP", None);
    other.lose(20);
    assert_eq!(other.made, []);
}
