//! Formats as phones write them, and packet times.

use threadbare_control::fuzzing::Bench;
use threadbare_rtp_types::payload_map::{Carries, PayloadMap};

use super::common::*;

fn numbers(map: &Option<std::sync::Arc<PayloadMap>>) -> Vec<u8> {
    let entries = map.iter().flat_map(|map| map.iter());
    entries.map(|one| one.payload_type.0).collect()
}

/// Returns the description that Alice gets if Bob gives this answer to her offer.
fn answered(offer: &str, answer: &str) -> (Bench, String) {
    let mut bench = Bench::default();
    let offer = format!("m=audio 4000 RTP/AVP {offer}\n");
    ok(bench.offer(&sdp(ALICE, &offer), &[]));
    let answer = format!("m=audio 5000 RTP/AVP {answer}\n");
    let to_alice = sdp_of(bench.answer(&sdp(BOB, &answer), &[]));
    (bench, to_alice)
}

#[test]
fn formats_are_matched_as_phones_write_them() {
    // The clock rate of G722 is 8000 (RFC 3551, section 4.5.2), Opus has two channels (RFC 7587, section 7), and events have the clock rate
    // of the audio (RFC 4733, section 2.1).
    for (offer, answer, formats) in [
        ("9\na=rtpmap:9 G722/16000", "9\na=rtpmap:9 G722/8000", "9"),
        ("9\na=rtpmap:9 G722/8000", "9\na=rtpmap:9 g722/16000/1", "9"),
        ("9", "109\na=rtpmap:109 G722/16000", "9"),
        (
            "96\na=rtpmap:96 opus/48000",
            "96\na=rtpmap:96 opus/48000/2",
            "96",
        ),
        (
            "96\na=rtpmap:96 opus/48000/2",
            "111\na=rtpmap:111 OPUS/48000/1",
            "96",
        ),
        (
            "0 101\na=rtpmap:101 telephone-event/16000",
            "0 101\na=rtpmap:101 telephone-event/8000",
            "0 101",
        ),
        (
            "0 101\na=rtpmap:101 telephone-event",
            "0 101\na=rtpmap:101 telephone-event/8000",
            "0 101",
        ),
        (
            "0 101\na=rtpmap:101 telephone-event/8000",
            "0 101\na=rtpmap:101 telephone-event",
            "0 101",
        ),
        ("0 8\na=rtpmap:0 PCMU", "0", "0"),
        ("18\na=rtpmap:18 G729A/8000", "18", "18"),
        ("0\na=rtpmap:0\tPCMU/8000", "0\na=rtpmap: 0 PCMU/8000", "0"),
        ("0 101\na=rtpmap:101 ", "0 101", "0 101"),
        ("0 255 x", "0", "0"),
    ] {
        let (bench, to_alice) = answered(offer, answer);
        assert_eq!(
            media(&to_alice),
            [format!("m=audio 30000 RTP/AVP {formats}")],
            "{offer}"
        );
        let [a, b] = &bench.only().spec.sides;
        assert_eq!(numbers(&a.takes).len(), numbers(&b.takes).len(), "{offer}");
    }
}

#[test]
fn g722_and_opus_are_recognised_as_phones_write_them() {
    for (map, number) in [("G722/16000", 9), ("opus/48000", 96)] {
        let one = format!("{number}\na=rtpmap:{number} {map}");
        let (bench, to_alice) = answered(&one, &one);
        // The answer has the offerer's own spelling, which the offerer can read.
        assert!(
            to_alice.contains(&format!("a=rtpmap:{number} {map}\r\n")),
            "{to_alice}"
        );
        let takes = bench.only().spec.sides[0].takes.clone().expect("a map");
        assert!(matches!(takes.audio().carries, Carries::Audio(_)), "{map}");
    }
}

#[test]
fn malformed_rtpmaps_are_not_passed_to_the_other_side() {
    let mut bench = Bench::default();
    let lines = "m=audio 4000 RTP/AVP 0 101 102\na=rtpmap:101 telephone-event\na=rtpmap:102 \na=fmtp:102\na=fmtp:101 0-15\n";
    let reply = ok(bench.offer(&sdp(ALICE, lines), &[]));
    assert!(warning(&reply).contains("a=rtpmap:102"), "{reply:?}");
    let mut bench = Bench::default();
    let to_bob = sdp_of(bench.offer(&sdp(ALICE, lines), &[]));
    assert_eq!(
        attributes(&to_bob, "rtpmap"),
        ["rtpmap:101 telephone-event/8000"]
    );
    assert_eq!(attributes(&to_bob, "fmtp"), ["fmtp:101 0-15"]);
}

#[test]
fn payload_types_64_to_95_cause_a_warning_with_mux() {
    let mut bench = Bench::default();
    let lines = "m=audio 4000 RTP/AVP 0 72\na=rtpmap:72 opus/48000/2\na=rtcp-mux\n";
    let reply = ok(bench.offer(&sdp(ALICE, lines), &[]));
    assert!(warning(&reply).contains("72"), "{reply:?}");
    let bob = lines.replace("4000", "5000");
    let reply = ok(bench.answer(&sdp(BOB, &bob), &[]));
    assert!(warning(&reply).contains("72"), "{reply:?}");
    for side in &bench.only().spec.sides {
        assert!(side.mux);
        assert_eq!(
            (numbers(&side.sends), numbers(&side.takes)),
            (vec![0], vec![0])
        );
    }
    // Without another codec, the whole line is unusable.
    let alone = lines.replace(" 0 72", " 72");
    let reason = error(bench.offer(&sdp(ALICE, &alone), &[("call-id", "d")]));
    assert!(reason.contains("codec"), "{reason}");
}

#[test]
fn payload_types_64_to_95_are_codecs_without_mux() {
    let lines =
        "m=audio 4000 RTP/AVP 72 95\na=rtpmap:72 opus/48000/2\na=rtpmap:95 telephone-event/48000\n";
    let mut bench = Bench::default();
    let bob = lines.replace("4000", "5000");
    let reply = ok(bench.offer(&sdp(ALICE, lines), &[]));
    assert_eq!(warning(&reply), "");
    let reply = ok(bench.answer(&sdp(BOB, &bob), &[]));
    assert_eq!(warning(&reply), "");
    for side in &bench.only().spec.sides {
        assert!(!side.mux);
        let all = vec![72, 95];
        assert_eq!(
            (numbers(&side.sends), numbers(&side.takes)),
            (all.clone(), all)
        );
    }
    // Each side may multiplex independently of the other: with `rtcp-mux-demux`, or if the answer lacks the attribute.
    for (more, mux) in [("", "a=rtcp-mux\n"), ("rtcp-mux-demux", "")] {
        let mut bench = Bench::default();
        let offer = format!("{}a=rtcp-mux\n", lines.replace(" 72", " 0 72"));
        ok(bench.offer(&sdp(ALICE, &offer), &[("flags", more)]));
        let answer = format!("{}{mux}", bob.replace(" 72", " 0 72"));
        ok(bench.answer(&sdp(BOB, &answer), &[]));
        let of_bob = if mux.is_empty() {
            vec![0, 72, 95]
        } else {
            vec![0]
        };
        let sides = &bench.only().spec.sides;
        assert_eq!(numbers(&sides[0].takes), [0]);
        assert_eq!(numbers(&sides[1].takes), of_bob);
    }
    // If a new offer has multiplexing, the payload types are negotiated again.
    let mux = |lines: &str| format!("{}a=rtcp-mux\n", lines.replace(" 72", " 0 72"));
    ok(bench.offer(&sdp(ALICE, &mux(lines)), &[("to-tag", "b")]));
    ok(bench.answer(&sdp(BOB, &mux(&bob)), &[]));
    for side in &bench.only().spec.sides {
        assert_eq!(
            (numbers(&side.sends), numbers(&side.takes)),
            (vec![0], vec![0])
        );
    }
}

#[test]
fn a_codec_that_cannot_be_transcoded_causes_a_warning() {
    // As documented, such a codec is not added.
    let mut bench = Bench::default();
    let reply = ok(bench.offer(&sdp(ALICE, PCMU), &[("flags", "codec-transcode-G729")]));
    let found = warning(&reply);
    assert!(
        found.contains("codec-transcode") && found.contains("G729") && found.contains("PCMA"),
        "{found}"
    );
    let mut bench = Bench::default();
    // As documented, rules that would leave no codec change nothing.
    let reply = ok(bench.offer(&sdp(ALICE, PCMU), &[("flags", "codec-strip-all")]));
    assert!(warning(&reply).contains("codec-strip"), "{reply:?}");
    let reply = ok(bench.offer(
        &sdp(ALICE, PCMU),
        &[("call-id", "d"), ("flags", "codec-transcode-PCMA")],
    ));
    assert_eq!(warning(&reply), "");
}

#[test]
fn the_answer_does_not_change_the_packet_time_to_the_offerer() {
    // `ptime` is for the receiver of the offer. The offerer states its own wish in a=ptime (RFC 8866, section 6.4), and rtpengine 10.5.3.5
    // keeps that.
    let mut bench = Bench::default();
    let lines = |port: u16, ms: u32| format!("m=audio {port} RTP/AVP 0\na=ptime:{ms}\n");
    let to_bob = sdp_of(bench.offer(&sdp(ALICE, &lines(4000, 50)), &[("ptime", "30")]));
    assert_eq!(attributes(&to_bob, "ptime"), ["ptime:30"]);
    let to_alice = sdp_of(bench.answer(&sdp(BOB, &lines(5000, 30)), &[]));
    assert_eq!(attributes(&to_alice, "ptime"), ["ptime:50"]);
    let [a, b] = &bench.only().spec.sides;
    assert_eq!([a.packet_ms, b.packet_ms], [Some(50), Some(30)]);
    // An offerer that states no wish gets the default (RFC 3551, section 4.2), whatever the other side sends.
    let mut bench = Bench::default();
    ok(bench.offer(&sdp(ALICE, PCMU), &[("ptime", "30")]));
    ok(bench.answer(&sdp(BOB, &lines(5000, 60)), &[]));
    let [a, b] = &bench.only().spec.sides;
    assert_eq!([a.packet_ms, b.packet_ms], [Some(20), Some(30)]);
    // A value for the offerer in the request overrides the offerer's own.
    let mut bench = Bench::default();
    let both = [("ptime", "30"), ("ptime-reverse", "40")];
    ok(bench.offer(&sdp(ALICE, &lines(4000, 50)), &both));
    let to_alice = sdp_of(bench.answer(&sdp(BOB, &lines(5000, 30)), &[]));
    assert_eq!(attributes(&to_alice, "ptime"), ["ptime:40"]);
}

#[test]
fn codec_specification_sets_the_packet_time_of_an_added_codec() {
    // After the bit rate, the documentation has packet time, format parameters and encoder options.
    let mut bench = Bench::default();
    let flags = [("flags", "codec-transcode-PCMA////40")];
    assert_eq!(warning(&ok(bench.offer(&sdp(ALICE, PCMU), &flags))), "");
    ok(bench.answer(&sdp(BOB, "m=audio 5000 RTP/AVP 8\n"), &[]));
    let [a, b] = &bench.only().spec.sides;
    assert_eq!([a.packet_ms, b.packet_ms], [None, Some(40)]);
    // The reply warns if encoder options are ignored.
    let mut bench = Bench::default();
    let flags = [(
        "flags",
        "codec-transcode-opus/48000/2////compression_level=2",
    )];
    let reply = ok(bench.offer(&sdp(ALICE, PCMU), &flags));
    assert!(warning(&reply).contains("compression_level"), "{reply:?}");
}
