//! Requests about the media of running calls.

use threadbare_control::calls::{MediaSource, Recording, StreamCommand};
use threadbare_control::fuzzing::Bench;
use threadbare_rtp_types::side::Side;

use super::common::*;

const BOB_PCMU: &str = "m=audio 5000 RTP/AVP 0\n";

fn ask(bench: &mut Bench, command: &str, more: &[(&str, &str)]) -> threadbare_control::ng::Reply {
    bench.ask(&with(&[("command", command), ("call-id", "c")], more))
}

/// Returns for Alice and for Bob: whether media are blocked, whether they are silenced, and whether DTMF is blocked.
fn mutes(bench: &Bench) -> [[bool; 3]; 2] {
    let sides = &bench.only().spec.sides;
    sides
        .each_ref()
        .map(|side| [side.is_blocked, side.is_silenced, side.blocks_keys])
}

const NONE: [bool; 3] = [false; 3];

#[test]
fn parties_are_blocked_and_silenced() {
    let mut bench = call();
    ok(ask(&mut bench, "block media", &[("from-tag", "a")]));
    assert_eq!(mutes(&bench), [[true, false, false], NONE]);
    ok(ask(&mut bench, "silence media", &[("address", BOB)]));
    assert_eq!(mutes(&bench), [[true, false, false], [false, true, false]]);
    ok(ask(&mut bench, "block DTMF", &[]));
    assert_eq!(mutes(&bench), [[true, false, true], [false, true, true]]);
    // This does not affect mutes of single parties: "Unblocking packets for the entire call [...] does not automatically unblock packets
    // for participants which had their packets blocked directionally, unless the string `all`".
    ok(ask(&mut bench, "unblock media", &[]));
    assert_eq!(mutes(&bench)[0], [true, false, true]);
    ok(ask(&mut bench, "unblock media", &[("flags", "all")]));
    ok(ask(
        &mut bench,
        "unsilence media",
        &[("from-tag", "b"), ("to-tag", "a")],
    ));
    ok(ask(&mut bench, "unblock DTMF", &[]));
    assert_eq!(mutes(&bench), [NONE, NONE]);
    for (key, value) in [("from-tag", "x"), ("address", "192.0.2.99"), ("label", "y")] {
        let reason = error(ask(&mut bench, "block media", &[(key, value)]));
        assert!(reason.contains(key) && reason.contains(value), "{reason}");
    }
    error(ask(&mut bench, "block media", &[("address", "here")]));
    error(ask(
        &mut bench,
        "block media",
        &[("from-tag", "a"), ("to-tag", "z")],
    ));
    assert!(
        error(ask(&mut bench, "block DTMF", &[("DTMF-security", "tone")]))
            .contains("DTMF-security")
    );
    assert_eq!(mutes(&bench), [NONE, NONE]);
}

#[test]
fn block_survives_a_re_offer() {
    let mut bench = Bench::default();
    ok(bench.offer(
        &sdp(ALICE, PCMU),
        &[("label", "caller"), ("flags", "block-DTMF")],
    ));
    ok(ask(&mut bench, "block media", &[("label", "caller")]));
    ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
    assert_eq!(mutes(&bench), [[true, false, true], NONE]);
    assert_eq!(bench.only().updates, 0);
    ok(bench.offer(&sdp(ALICE, "m=audio 4100 RTP/AVP 0\n"), &[("to-tag", "b")]));
    ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
    assert_eq!(mutes(&bench), [[true, false, true], NONE]);
    assert_eq!(bench.only().updates, 1);
}

#[test]
fn traffic_is_dropped_by_request() {
    let mut bench = call();
    ok(bench.offer(
        &sdp(ALICE, PCMU),
        &[("to-tag", "b"), ("drop-traffic", "start")],
    ));
    assert_eq!(mutes(&bench), [[true, false, true]; 2]);
    ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
    assert_eq!(mutes(&bench), [[true, false, true]; 2]);
    ok(bench.offer(
        &sdp(ALICE, PCMU),
        &[("to-tag", "b"), ("drop-traffic", "stop")],
    ));
    assert_eq!(mutes(&bench), [NONE, NONE]);
}

#[test]
fn dtmf_digits_are_played() {
    // The duration "defaults to 250 ms, with a minimum of 100 and a maximum of 5000". The volume "defaults to -8 dB, [...] positive
    // integers being interpreted as negative". The code is one of "(`0` - `9`, `*`, `#`, `A` - `D`)", and 10 means `*`, 11 `#` (RFC 4733,
    // section 3.2).
    let mut bench = call();
    let mut key = |more: &[(&str, &str)]| {
        ok(ask(
            &mut bench,
            "play DTMF",
            &with(&[("from-tag", "a")], more),
        ));
        let (_, command) = bench.commands.pop().unwrap();
        match command {
            StreamCommand::PlayKey {
                of: Side::A,
                key,
                duration_ms,
                volume_dbm0,
                pause_ms,
            } => (key, duration_ms, volume_dbm0, pause_ms),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(key(&[("code", "5")]), (5, 250, -8, 100));
    assert_eq!(
        key(&[
            ("digit", "#"),
            ("duration", "50"),
            ("volume", "70"),
            ("pause", "9000")
        ]),
        (11, 100, -63, 5000)
    );
    assert_eq!(
        key(&[("code", "*"), ("volume", "-20")]),
        (10, 250, -20, 100)
    );
    assert_eq!(key(&[("code", "d")]).0, 15);
    assert_eq!(key(&[("code", "12")]).0, 12);
    for code in ["16", "E", "", "1 "] {
        assert!(
            error(ask(
                &mut bench,
                "play DTMF",
                &[("from-tag", "a"), ("code", code)]
            ))
            .contains("code")
        );
    }
    error(ask(&mut bench, "play DTMF", &[("from-tag", "a")]));
    error(ask(&mut bench, "play DTMF", &[("code", "1")]));
    ok(ask(
        &mut bench,
        "play DTMF",
        &[("code", "1"), ("flags", "all")],
    ));
    assert_eq!(bench.commands.len(), 2);
}

#[test]
fn a_to_tag_equal_to_the_from_tag_selects_that_party() {
    let mut bench = call();
    let stop = StreamCommand::StopPlay { to: Side::B };
    for keys in [
        [("from-tag", "b"), ("to-tag", "b")],
        [("from-tag", "b"), ("to-tag", "a")],
    ] {
        ok(ask(&mut bench, "stop media", &keys));
        assert_eq!(bench.commands.pop().unwrap().1, stop, "{keys:?}");
    }
    let reason = error(ask(
        &mut bench,
        "stop media",
        &[("from-tag", "b"), ("to-tag", "z")],
    ));
    assert!(reason.contains("no such party"), "{reason}");
}

#[test]
fn requested_media_are_played() {
    let mut bench = call();
    ok(ask(
        &mut bench,
        "play media",
        &[
            ("from-tag", "b"),
            ("file", "a.wav"),
            ("repeat-times", "3"),
            ("start-pos", "8000"),
            ("repeat-duration", "900"),
        ],
    ));
    let play = StreamCommand::Play {
        to: Side::B,
        source: MediaSource::File("a.wav".to_owned()),
        times: 3,
        duration_ms: Some(900),
        start_frame: 8000,
    };
    assert_eq!(bench.commands.pop().unwrap().1, play);
    ok(ask(&mut bench, "stop media", &[("from-tag", "b")]));
    assert_eq!(
        bench.commands.pop().unwrap().1,
        StreamCommand::StopPlay { to: Side::B }
    );
    ok(ask(
        &mut bench,
        "play media",
        &[("from-tag", "a"), ("blob", "RIFF")],
    ));
    assert!(matches!(
        bench.commands.pop().unwrap().1,
        StreamCommand::Play {
            to: Side::A,
            source: MediaSource::Bytes(_),
            times: 1,
            ..
        }
    ));
    assert!(
        error(ask(
            &mut bench,
            "play media",
            &[("from-tag", "a"), ("db-id", "1")]
        ))
        .contains("db-id")
    );
    error(ask(&mut bench, "play media", &[("from-tag", "a")]));
    // Before the answer, no stream is running.
    ok(bench.offer(&sdp(ALICE, PCMU), &[("call-id", "d")]));
    let reason = error(bench.ask(&[
        ("command", "stop media"),
        ("call-id", "d"),
        ("from-tag", "a"),
    ]));
    assert!(reason.contains("answered"), "{reason}");
}

/// Whether the parties hear themselves, and whether each is blocked.
fn echo(bench: &Bench) -> (bool, [bool; 2]) {
    let spec = &bench.only().spec;
    (
        spec.echoes,
        spec.sides.each_ref().map(|side| side.is_blocked),
    )
}

#[test]
fn echo_is_for_the_sender_or_the_receiver_of_the_message() {
    for (way, expected) in [
        ("blackhole", (false, [true, true])),
        ("sinkhole", (false, [true, true])),
        ("forward", (true, [true, false])),
        ("fw", (true, [true, false])),
        ("backwards", (true, [false, true])),
        ("bk", (true, [false, true])),
        ("both", (true, [false, false])),
    ] {
        let mut bench = Bench::default();
        ok(bench.offer(&sdp(ALICE, PCMU), &[("media-echo", way)]));
        ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
        assert_eq!(echo(&bench), expected, "{way}");
        // The DTMF digits of a party that is not heard are dropped too.
        let keys = mutes(&bench).map(|side| side[2]);
        assert_eq!(keys, expected.1, "{way}");
        // Here the option is in the answer, whose author is Bob.
        let mut bench = Bench::default();
        ok(bench.offer(&sdp(ALICE, PCMU), &[]));
        ok(bench.answer(&sdp(BOB, BOB_PCMU), &[("media-echo", way)]));
        let (echoes, [a, b]) = expected;
        assert_eq!(echo(&bench), (echoes, [b, a]), "{way}");
    }
    let mut bench = Bench::default();
    let reason = error(bench.offer(&sdp(ALICE, PCMU), &[("media-echo", "sideways")]));
    assert!(
        reason.contains("sideways") && reason.contains("backwards"),
        "{reason}"
    );
}

#[test]
fn echo_stays_until_another_request() {
    let mut bench = call();
    assert_eq!(echo(&bench), (false, [false, false]));
    let again = |bench: &mut Bench, more: &[(&str, &str)]| {
        ok(bench.offer(&sdp(ALICE, PCMU), &with(&[("to-tag", "b")], more)));
    };
    again(&mut bench, &[("media-echo", "both")]);
    assert_eq!(echo(&bench), (true, [false, false]));
    ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
    assert_eq!(echo(&bench), (true, [false, false]));
    // The echo still applies after a restart.
    bench.restart(0);
    assert_eq!(echo(&bench), (true, [false, false]));
    // The echo and other reasons for a block are independent of each other.
    again(&mut bench, &[("drop-traffic", "start")]);
    assert_eq!(echo(&bench), (true, [true, true]));
    again(
        &mut bench,
        &[("drop-traffic", "stop"), ("media-echo", "forward")],
    );
    assert_eq!(echo(&bench), (true, [true, false]));
    again(&mut bench, &[("media-echo", "blackhole")]);
    assert_eq!(echo(&bench), (false, [true, true]));
}

#[test]
fn calls_are_recorded() {
    let mut bench = Bench::default();
    ok(bench.offer(&sdp(ALICE, PCMU), &[("metadata", "k:v")]));
    ok(ask(
        &mut bench,
        "start recording",
        &[("recording-file", "/tmp/x"), ("recording-dir", "/tmp")],
    ));
    assert!(bench.commands.is_empty());
    ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
    let recording = Recording {
        destination: Some("/tmp/x".to_owned()),
        directory: Some("/tmp".to_owned()),
        metadata: Some("k:v".to_owned()),
    };
    assert_eq!(
        bench.commands.pop().unwrap().1,
        StreamCommand::StartRecording(recording)
    );
    for (command, more) in [
        ("pause recording", ("flags", "")),
        ("stop recording", ("flags", "pause")),
        ("stop recording", ("pause", "yes")),
    ] {
        ok(ask(&mut bench, command, &[more]));
        assert_eq!(
            bench.commands.pop().unwrap().1,
            StreamCommand::PauseRecording
        );
    }
    ok(ask(
        &mut bench,
        "stop recording",
        &[("flags", "discard-recording")],
    ));
    assert_eq!(
        bench.commands.pop().unwrap().1,
        StreamCommand::StopRecording { discard: true }
    );
    // The option records from the first packet on, "Identical to setting `record call` to `on`".
    let mut bench = Bench::default();
    ok(bench.offer(&sdp(ALICE, PCMU), &[("flags", "record-call")]));
    ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
    assert!(matches!(
        bench.commands.pop().unwrap().1,
        StreamCommand::StartRecording(_)
    ));
    ok(bench.offer(
        &sdp(ALICE, PCMU),
        &[("to-tag", "b"), ("record-call", "off")],
    ));
    assert_eq!(
        bench.commands.pop().unwrap().1,
        StreamCommand::StopRecording { discard: false }
    );
}

#[test]
fn missing_target_is_reported() {
    let mut bench = call();
    for command in ["start forwarding", "stop forwarding"] {
        let reason = error(ask(&mut bench, command, &[]));
        assert!(
            reason.contains(command) && reason.contains("not supported"),
            "{reason}"
        );
        for instead in ["subscribe request", "start recording"] {
            assert!(reason.contains(instead), "{reason}");
        }
    }
    assert!(error(bench.ask(&[("command", "block media"), ("call-id", "x")])).contains("\"x\""));
}

#[test]
fn unknown_words_are_reported_once() {
    let mut bench = Bench::default();
    let offer = sdp(ALICE, PCMU);
    for _ in 0..3 {
        ok(bench.offer(
            &offer,
            &[(
                "rtpp-flags",
                "fancy-thing key-of-mine=1 codec-transcode-PCMA trust-address",
            )],
        ));
    }
    let told: Vec<String> = std::iter::from_fn(|| bench.calls.poll_unknown())
        .map(|one| one.0)
        .collect();
    assert_eq!(told, ["flag \"fancy-thing\"", "key \"key-of-mine\""]);
    assert_eq!(bench.calls.unknown_words(), 6);
    for number in 0..1000 {
        ok(bench.offer(&offer, &[("flags", &format!("f{number}"))]));
    }
    assert!(std::iter::from_fn(|| bench.calls.poll_unknown()).count() < 300);
}

#[test]
fn refused_words_are_named() {
    let mut bench = Bench::default();
    let offer = sdp(ALICE, PCMU);
    for (key, value) in [
        ("ICE", "force"),
        ("delay-buffer", "20"),
        ("moh", "x"),
        ("trigger", "123"),
        ("flags", "WebRTC"),
        ("T.38", "force"),
        ("OSRTP", "offer-legacy"),
        ("SDES", "unencrypted_srtp"),
    ] {
        let reason = error(bench.offer(&offer, &[(key, value)]));
        assert!(reason.contains(key) && reason.contains(value), "{reason}");
    }
    assert!(bench.calls.is_empty());
    for (key, value) in [
        ("ICE", "remove"),
        ("delay-buffer", "0"),
        ("T.38", "no-ECM"),
        ("DTLS", "off"),
        ("OSRTP", "accept"),
    ] {
        ok(bench.offer(&offer, &[(key, value)]));
    }
}
