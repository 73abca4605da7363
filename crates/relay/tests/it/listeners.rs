//! Listeners of a call in virtual time.

use std::time::Duration;

use crate::common::media::{Bed, MS, call, leg, party, speech};
use threadbare_relay::{
    AudioSession, Listeners, Listening, MediaSession, Pace, PortId, PortionAudio, SharedSnapshot,
};
use threadbare_rtp::call::{DirectionConfig, Mode, Session, SessionSpec, Side, Target};
use threadbare_rtp::codec::Encoding;
use threadbare_rtp::g711;

/// Lets each side send a packet.
fn talk(bed: &mut Bed<MediaSession>, number: u16) {
    talk_behind(bed, number, 0);
}

/// Acts as [`talk`], after `pause` packet times without packets.
fn talk_behind(bed: &mut Bed<MediaSession>, number: u16, pause: u32) {
    for (leg, side) in (0..).zip(Side::BOTH) {
        let payload_type = 8 * leg;
        let mut packet = speech(payload_type, 7, number);
        let timestamp = (u32::from(number) + pause) * 160;
        packet[4..8].copy_from_slice(&timestamp.to_be_bytes());
        bed.hand_in(PortId::rtp(leg), party(side), &packet);
    }
    bed.wait_ms(20);
}

/// Returns the samples of each side, and the times of the portions.
fn taken(listening: &mut Listening) -> ([Vec<i16>; 2], Vec<u64>) {
    let (mut samples, mut times) = ([vec![], vec![]], vec![]);
    listening.take(|portion, pcm| {
        samples[portion.side as usize].extend_from_slice(pcm);
        times.push(portion.until_ns);
    });
    (samples, times)
}

fn bed(listeners: &Listeners) -> Bed<MediaSession> {
    let call = AudioSession::new(call(0, false), Duration::ZERO).with_listeners(listeners.clone());
    Bed::new(0, MediaSession::from(call))
}

fn look(bed: &mut Bed<MediaSession>) {
    let media = bed.call.audio_mut().expect("audio");
    media.update_listeners();
}

fn set_mode(bed: &mut Bed<MediaSession>, side: Side, mode: Mode) {
    let media = bed.call.audio_mut().expect("audio");
    media.session_mut().set_mode(side, mode);
}

/// Returns the sample that a side sends in a packet, decoded by tables 1 and 2 of ITU-T G.711. A sends PCMU, and B sends PCMA.
fn said(side: Side, number: u16) -> i16 {
    let code = usize::from(0x55 ^ number as u8);
    match side {
        Side::A => g711::ULAW_TO_LINEAR[code],
        Side::B => g711::ALAW_TO_LINEAR[code],
    }
}

#[test]
fn new_listener_gets_every_sample_of_both_sides() {
    let listeners = Listeners::default();
    let mut bed = bed(&listeners);
    (0..5).for_each(|number| talk(&mut bed, number));
    let mut listening = listeners.listen(1 << 14);
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
    // The portions come with the last packet.
    assert_eq!(times, [begun_ns + 4 * 20 * MS; 2]);
}

/// Audio after a pause or a mute is not reported as if it had followed at once.
#[test]
fn audio_before_a_pause_or_change_keeps_its_time() {
    let listeners = Listeners::default();
    let (mut listening, mut bed) = (listeners.listen(1 << 14), bed(&listeners));
    look(&mut bed);
    let mut told = |bed: &mut Bed<MediaSession>, due: &[(u64, i16)]| {
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
    // No audio follows, so the portion comes after a short wait.
    bed.wait_ms(100);
    let before = [0, 1].map(|number| (begun_ns + 20 * MS, said(Side::A, number)));
    told(&mut bed, &before);
    // The same must hold without a poll in between, and after a short pause.
    let mut begun_ns = bed.now_ns;
    talk(&mut bed, 2);
    for (number, pause_ms, behind) in [(3, 400, 20), (4, 40, 22)] {
        bed.now_ns += pause_ms * MS;
        let then_ns = bed.now_ns;
        talk_behind(&mut bed, number, behind);
        told(&mut bed, &[(begun_ns, said(Side::A, number - 1))]);
        begun_ns = then_ns;
    }
    // A mute takes effect from this moment on.
    set_mode(&mut bed, Side::A, Mode::Mute);
    told(&mut bed, &[(begun_ns, said(Side::A, 4))]);
    let begun_ns = bed.now_ns;
    (5..10).for_each(|number| talk_behind(&mut bed, number, 22));
    told(&mut bed, &[(begun_ns + 80 * MS, 0); 5]);
}

/// Codes stay unchanged. The concealment of a loss, and the packet that is joined to it, are samples in the right place, with the right
/// times.
#[test]
fn a_loss_is_filled_in_at_its_place_and_time() {
    let listeners = Listeners::default();
    let (mut listening, mut bed) = (listeners.listen(1 << 14), bed(&listeners));
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
    // The loss was detected with the packet after it, so those samples are late. Later samples come without delay.
    let behind_ns = |(until_ns, samples): &(u64, u64)| *until_ns as i64 - *samples as i64 * 125_000;
    let first_ns = behind_ns(&ends[0]);
    for end in &ends {
        assert!(behind_ns(end) - first_ns <= 20 * MS as i64, "{ends:?}");
    }
    assert_eq!(behind_ns(&ends[ends.len() - 1]), first_ns, "{ends:?}");
}

#[test]
fn muted_or_held_party_is_silent() {
    let listeners = Listeners::default();
    let (mut listening, mut bed) = (listeners.listen(1 << 14), bed(&listeners));
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
fn joining_and_leaving_listeners_do_not_disturb_others() {
    let listeners = Listeners::default();
    let (mut first, mut bed) = (listeners.listen(1 << 14), bed(&listeners));
    look(&mut bed);
    (0..5).for_each(|number| talk(&mut bed, number));
    let mut second = listeners.listen(1 << 14);
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
    // The call has ended, but its last audio can still be taken.
    talk(&mut bed, 15);
    drop((bed, listeners));
    assert!(first.is_over());
    assert_eq!(lens(taken(&mut first).0), [160; 2]);
}

/// By new signalling, the call changes to another kind of media, and back.
#[test]
fn new_media_session_keeps_the_listeners() {
    let listeners = Listeners::default();
    let (mut listening, mut first) = (listeners.listen(1 << 14), bed(&listeners));
    look(&mut first);
    (0..5).for_each(|number| talk(&mut first, number));
    first.call = MediaSession::from(threadbare_relay::Forward::new(
        0,
        threadbare_relay::ForwardSpec::default(),
    ));
    assert!(!listening.is_over());
    let mut second = bed(&listeners);
    look(&mut second);
    (5..10).for_each(|number| talk(&mut second, number));
    assert_eq!(taken(&mut listening).0[1].len(), 10 * 160);
}

/// Without a meter, audio is decoded only for listeners.
#[test]
fn later_listener_of_a_line_does_not_disturb_the_first() {
    let snapshot = SharedSnapshot::default();
    let source = leg(Side::A, 0, Encoding::Pcmu);
    let config = SessionSpec::stream(source, Target::Nobody, DirectionConfig::default());
    let line = Session::new(0, config).expect("a stream");
    let pace = Pace::new(Duration::from_millis(100));
    let line = AudioSession::new(line, Duration::ZERO).publish_to(snapshot.clone(), pace);
    let mut bed = Bed::new(0, line);
    let mut first = snapshot.listen();
    let mut others = Vec::new();
    for number in 0..60 {
        bed.hand_in(PortId::rtp(0), party(Side::A), &speech(0, 7, number));
        bed.wait_ms(20);
        // Some samples wait until a portion is complete.
        if number % 4 == 3 {
            others.push(snapshot.listen());
        }
    }
    let (samples, _) = taken(&mut first);
    let all = (0..60).flat_map(|number| [said(Side::A, number); 160]);
    let all: Vec<i16> = all.take(samples[0].len()).collect();
    assert!(samples[0] == all && all.len() > 50 * 160, "{}", all.len());
}
