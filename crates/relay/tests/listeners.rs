//! Who listens to a call, in virtual time.

mod common;

use std::time::Duration;

use common::media::{Bed, MS, call, leg, party, speech};
use threadbare_relay::{
    Board, Ears, Listening, MediaCall, MediaLine, Medium, Pace, PortId, PortionAudio,
};
use threadbare_rtp::call::{DirectionConfig, Line, Mode, Side, Target};
use threadbare_rtp::codec::Encoding;
use threadbare_rtp::g711;

/// A packet of each side.
fn talk(bed: &mut Bed<Medium>, number: u16) {
    talk_behind(bed, number, 0);
}

/// The same behind so many packet times in which nothing was sent.
fn talk_behind(bed: &mut Bed<Medium>, number: u16, pause: u32) {
    for (leg, side) in (0..).zip(Side::BOTH) {
        let payload_type = 8 * leg;
        let mut packet = speech(payload_type, 7, number);
        let timestamp = (u32::from(number) + pause) * 160;
        packet[4..8].copy_from_slice(&timestamp.to_be_bytes());
        bed.hand_in(PortId::rtp(leg), party(side), &packet);
    }
    bed.wait_ms(20);
}

/// Samples of each side, and the times of the portions.
fn taken(listening: &mut Listening) -> ([Vec<i16>; 2], Vec<u64>) {
    let (mut samples, mut times) = ([vec![], vec![]], vec![]);
    listening.take(|portion, pcm| {
        samples[portion.side as usize].extend_from_slice(pcm);
        times.push(portion.until_ns);
    });
    (samples, times)
}

fn bed(ears: &Ears) -> Bed<Medium> {
    let call = MediaCall::new(call(0, false), Duration::ZERO).heard_by(ears.clone());
    Bed::new(0, Medium::from(call))
}

fn look(bed: &mut Bed<Medium>) {
    let media = bed.call.audio_mut().expect("audio");
    media.look_who_listens();
}

fn set_mode(bed: &mut Bed<Medium>, side: Side, mode: Mode) {
    let media = bed.call.audio_mut().expect("audio");
    media.call_mut().set_mode(side, mode);
}

/// By the tables of G.711 (ITU-T G.711, tables 1 and 2): A speaks PCMU, B PCMA.
fn said(side: Side, number: u16) -> i16 {
    let code = usize::from(0x55 ^ number as u8);
    match side {
        Side::A => g711::ULAW_TO_LINEAR[code],
        Side::B => g711::ALAW_TO_LINEAR[code],
    }
}

#[test]
fn both_sides_are_heard_from_then_on_sample_by_sample() {
    let ears = Ears::default();
    let mut bed = bed(&ears);
    (0..5).for_each(|number| talk(&mut bed, number));
    let mut listening = ears.listen(1 << 14);
    look(&mut bed);
    bed.poll();
    assert_eq!(taken(&mut listening), ([vec![], vec![]], vec![]));
    let begun_ns = bed.now_ns;
    (5..10).for_each(|number| talk(&mut bed, number));
    let (samples, times) = taken(&mut listening);
    for side in Side::BOTH {
        let expected: Vec<i16> = (5..10)
            .flat_map(|number| [said(side, number); 160])
            .collect();
        assert_eq!(samples[side as usize], expected, "{side:?}");
    }
    // With the last packet.
    assert_eq!(times, [begun_ns + 4 * 20 * MS; 2]);
}

/// What comes behind a pause, and behind a mute, is not told as if it had followed at once.
#[test]
fn what_was_said_before_a_pause_or_a_change_has_its_own_time() {
    let ears = Ears::default();
    let (mut listening, mut bed) = (ears.listen(1 << 14), bed(&ears));
    look(&mut bed);
    let mut told = |bed: &mut Bed<Medium>, due: &[(u64, i16)]| {
        bed.poll();
        let mut found = Vec::new();
        listening.take(|portion, pcm| {
            if portion.side == Side::A {
                found.extend(
                    pcm.iter()
                        .step_by(160)
                        .map(|sample| (portion.until_ns, *sample)),
                );
            }
        });
        assert_eq!(found, due);
    };
    let begun_ns = bed.now_ns;
    (0..2).for_each(|number| talk(&mut bed, number));
    told(&mut bed, &[]);
    // Nothing follows: nobody waits for it for long.
    bed.wait_ms(100);
    let before = [0, 1].map(|number| (begun_ns + 20 * MS, said(Side::A, number)));
    told(&mut bed, &before);
    // The same where nobody has looked meanwhile, and behind a short pause.
    let mut begun_ns = bed.now_ns;
    talk(&mut bed, 2);
    for (number, pause_ms, behind) in [(3, 400, 20), (4, 40, 22)] {
        bed.now_ns += pause_ms * MS;
        let then_ns = bed.now_ns;
        talk_behind(&mut bed, number, behind);
        told(&mut bed, &[(begun_ns, said(Side::A, number - 1))]);
        begun_ns = then_ns;
    }
    // A mute is from then on.
    set_mode(&mut bed, Side::A, Mode::Mute);
    told(&mut bed, &[(begun_ns, said(Side::A, 4))]);
    let begun_ns = bed.now_ns;
    (5..10).for_each(|number| talk_behind(&mut bed, number, 22));
    told(&mut bed, &[(begun_ns + 80 * MS, 0); 5]);
}

/// Codes come as they are; what stands in for a loss, and the packet that joins on to it, come as samples in their place, and all of it has its own time.
#[test]
fn a_loss_is_filled_in_at_its_place_and_time() {
    let ears = Ears::default();
    let (mut listening, mut bed) = (ears.listen(1 << 14), bed(&ears));
    look(&mut bed);
    for number in 0..20 {
        if number == 10 {
            bed.wait_ms(20);
        } else {
            talk(&mut bed, number);
        }
    }
    let mut kinds = Vec::new();
    let (mut samples, mut ends) = (0, Vec::new());
    listening.take_coded(|portion, audio| {
        if portion.side == Side::B {
            return;
        }
        kinds.extend(match audio {
            PortionAudio::Codes(codes) => vec!['c'; codes.len() / 160],
            PortionAudio::Samples(samples) => vec!['s'; samples.len() / 160],
            PortionAudio::Silence(samples) => vec!['-'; samples / 160],
        });
        samples += audio.len() as u64;
        ends.push((portion.until_ns, samples));
    });
    let kinds: String = kinds.into_iter().collect();
    assert_eq!(kinds, "ccccccccccsscccccccc");
    // The loss was seen with the packet behind it: those are heard later than they are due, and then again each in its time.
    let behind_ns = |(until_ns, samples): &(u64, u64)| *until_ns as i64 - *samples as i64 * 125_000;
    let first_ns = behind_ns(&ends[0]);
    for end in &ends {
        assert!(behind_ns(end) - first_ns <= 20 * MS as i64, "{ends:?}");
    }
    assert_eq!(behind_ns(&ends[ends.len() - 1]), first_ns, "{ends:?}");
}

#[test]
fn who_is_muted_or_held_is_silent() {
    let ears = Ears::default();
    let (mut listening, mut bed) = (ears.listen(1 << 14), bed(&ears));
    look(&mut bed);
    for (first, mode) in [(0, Mode::Mute), (5, Mode::Hold)] {
        set_mode(&mut bed, Side::A, mode);
        (first..first + 5).for_each(|number| talk(&mut bed, number));
        let ([a, b], _) = taken(&mut listening);
        assert!(a.iter().all(|sample| *sample == 0), "{mode:?}");
        assert!(
            b.len() == 800 && b.iter().all(|sample| *sample != 0),
            "{mode:?}"
        );
    }
}

#[test]
fn each_listener_has_all_of_it_and_who_comes_or_goes_disturbs_nobody() {
    let ears = Ears::default();
    let (mut first, mut bed) = (ears.listen(1 << 14), bed(&ears));
    look(&mut bed);
    (0..5).for_each(|number| talk(&mut bed, number));
    let mut second = ears.listen(1 << 14);
    look(&mut bed);
    (5..10).for_each(|number| talk(&mut bed, number));
    let lens = |samples: [Vec<i16>; 2]| samples.map(|side| side.len());
    assert_eq!(lens(taken(&mut second).0), [800; 2]);
    drop(second);
    (10..15).for_each(|number| talk(&mut bed, number));
    let (samples, _) = taken(&mut first);
    let all: Vec<i16> = (0..15)
        .flat_map(|number| [said(Side::A, number); 160])
        .collect();
    assert_eq!(samples[0], all);
    // The call is over, and what was said last is still there.
    talk(&mut bed, 15);
    drop((bed, ears));
    assert!(first.is_over());
    assert_eq!(lens(taken(&mut first).0), [160; 2]);
}

/// A call that is re-negotiated to another medium and back.
#[test]
fn another_medium_goes_on_with_those_who_listen() {
    let ears = Ears::default();
    let (mut listening, mut first) = (ears.listen(1 << 14), bed(&ears));
    look(&mut first);
    (0..5).for_each(|number| talk(&mut first, number));
    first.call = Medium::from(threadbare_relay::Forward::new(0, Default::default()));
    assert!(!listening.is_over());
    let mut second = bed(&ears);
    look(&mut second);
    (5..10).for_each(|number| talk(&mut second, number));
    assert_eq!(taken(&mut listening).0[1].len(), 10 * 160);
}

/// What nobody measures, so that it is decoded for listeners alone.
#[test]
fn who_comes_later_takes_nothing_from_who_listens_to_a_line() {
    let board = Board::default();
    let line = Line::new(
        0,
        leg(Side::A, 0, Encoding::Pcmu),
        Target::Nobody,
        DirectionConfig::default(),
    );
    let pace = Pace::new(Duration::from_millis(100));
    let line = MediaLine::new(line.expect("a line"), Duration::ZERO).shown_on(board.clone(), pace);
    let mut bed = Bed::new(0, line);
    let mut first = board.listen();
    let mut others = Vec::new();
    for number in 0..60 {
        bed.hand_in(PortId::rtp(0), party(Side::A), &speech(0, 7, number));
        bed.wait_ms(20);
        // While some wait to be a portion.
        if number % 4 == 3 {
            others.push(board.listen());
        }
    }
    let (samples, _) = taken(&mut first);
    let all = (0..60).flat_map(|number| [said(Side::A, number); 160]);
    let all: Vec<i16> = all.take(samples[0].len()).collect();
    assert!(samples[0] == all && all.len() > 50 * 160, "{}", all.len());
}
