//! Media for the offerer before the answer.

use threadbare_control::calls::{StreamCommand, StreamKind};
use threadbare_control::fuzzing::Bench;
use threadbare_control::ng::Reply;
use threadbare_rtp_types::learn::Learn;
use threadbare_rtp_types::side::Side;

use super::common::*;

fn play(bench: &mut Bench, tag: &str) -> Reply {
    let keys = [
        ("command", "play media"),
        ("call-id", "c"),
        ("from-tag", tag),
        ("file", "ring.wav"),
    ];
    bench.ask(&keys)
}

fn is_play(command: &StreamCommand) -> bool {
    matches!(command, StreamCommand::Play { to: Side::A, .. })
}

#[test]
fn ringback_goes_to_the_address_of_the_offer_and_the_answer_continues_its_stream() {
    // The other side is offered plain RTP once, and SRTP once.
    for more in [&[][..], &[("transport-protocol", "RTP/SAVP")]] {
        let mut bench = Bench::default();
        let to_bob = sdp_of(bench.offer(&sdp(ALICE, "m=audio 4000 RTP/AVP 18 0\n"), more));
        assert!(bench.streams.is_empty());
        ok(play(&mut bench, "a"));
        let carried = bench.only();
        assert_eq!(carried.spec.kind, StreamKind::Audio);
        let [alice, bob] = &carried.spec.sides;
        assert_eq!(alice.rtp, Some("198.51.100.1:4000".parse().unwrap()));
        assert!(alice.may_receive);
        // G.729 cannot be encoded here, but PCMU can.
        assert_eq!(alice.codec.as_deref(), Some("PCMU/8000"));
        assert_eq!(
            (bob.rtp, bob.learn),
            (None, Learn::Never),
            "there is no such party yet"
        );
        let ports = carried.ports.each_ref().map(|ports| ports.number);
        assert!(is_play(&bench.commands.pop().unwrap().1));
        // A second playback uses the same stream.
        ok(play(&mut bench, "a"));
        assert_eq!(bench.streams.len(), 1);
        let crypto = to_bob.lines().find(|line| line.starts_with("a=crypto"));
        let answer = match crypto {
            Some(line) => format!("m=audio 5000 RTP/SAVP 0\n{line}\n"),
            None => "m=audio 5000 RTP/AVP 0\n".to_owned(),
        };
        ok(bench.answer(&sdp(BOB, &answer), &[]));
        let carried = bench.only();
        assert_eq!(
            carried.spec.sides[1].rtp,
            Some("198.51.100.2:5000".parse().unwrap())
        );
        assert_eq!(carried.spec.sides[1].srtp.is_some(), crypto.is_some());
        assert_ne!(carried.spec.sides[1].learn, Learn::Never);
        assert_eq!(carried.ports.each_ref().map(|ports| ports.number), ports);
    }
}

#[test]
fn an_early_stream_ends_if_the_answer_rejects_it_or_the_call_ends() {
    for is_rejected in [true, false] {
        let mut bench = Bench::default();
        ok(bench.offer(&sdp(ALICE, PCMU), &[("record-call", "yes")]));
        ok(play(&mut bench, "a"));
        let recorded = bench
            .commands
            .iter()
            .any(|(_, one)| matches!(one, StreamCommand::StartRecording(_)));
        assert!(recorded, "as other streams of the call");
        if is_rejected {
            ok(bench.answer(&sdp(BOB, "m=audio 0 RTP/AVP 0\n"), &[]));
        } else {
            let keys = [
                ("command", "delete"),
                ("call-id", "c"),
                ("from-tag", "a"),
                ("delete-delay", "0"),
            ];
            ok(bench.ask(&keys));
        }
        assert!(bench.streams.is_empty());
    }
}

#[test]
fn nothing_is_played_before_the_answer_to_a_party_without_an_address() {
    let mut bench = Bench::default();
    let fax = "m=image 4000 udptl t38\n";
    ok(bench.offer(&sdp(ALICE, fax), &[("to-tag", "b")]));
    assert!(
        error(play(&mut bench, "a")).contains("answered"),
        "fax is no audio"
    );
    ok(bench.offer(&sdp(ALICE, PCMU), &[("to-tag", "b")]));
    assert!(error(play(&mut bench, "b")).contains("answered"));
    assert!(bench.streams.is_empty());
}

/// A forking proxy offers the same party several times. The party hears one ringback, not one for each branch.
#[test]
fn latest_of_forked_offers_gets_the_playback() {
    let mut bench = Bench::default();
    for branch in ["x", "y"] {
        ok(bench.offer(&sdp(ALICE, PCMU), &[("via-branch", branch)]));
    }
    ok(play(&mut bench, "a"));
    assert_eq!(bench.streams.len(), 1);
    ok(bench.answer(
        &sdp(BOB, "m=audio 5000 RTP/AVP 0\n"),
        &[("via-branch", "x")],
    ));
    assert_eq!(bench.streams.len(), 2);
}
