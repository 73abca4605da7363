//! Copies of parties' media for third parties: `subscribe request`, `subscribe answer`, `unsubscribe`, `publish`.

use threadbare_control::calls::{Copied, StreamId};
use threadbare_control::fuzzing::{Bench, Carried};
use threadbare_control::ng::{Dictionary, Reply, Value};
use threadbare_rtp_types::learn::Learn;
use threadbare_rtp_types::payload_map::Carries;
use threadbare_rtp_types::side::Side;

use super::common::*;

const RECORDER: &str = "198.51.100.9";

fn ask(bench: &mut Bench, command: &str, more: &[(&str, &str)]) -> Reply {
    bench.ask(&with(&[("command", command), ("call-id", "c")], more))
}

fn text<'a>(keys: &'a Dictionary, key: &str) -> &'a str {
    keys.get(key).and_then(Value::as_text).expect(key)
}

/// Sets up a call of PCMU and PCMA, with telephone events from Alice. Returns it with the recorder's offer for her media.
fn offered(more: &[(&str, &str)]) -> (Bench, Dictionary) {
    let mut bench = Bench::default();
    let lines = "m=audio 4000 RTP/AVP 0 101\na=rtpmap:101 telephone-event/8000\n";
    ok(bench.offer(&sdp(ALICE, lines), &[("label", "caller")]));
    ok(bench.answer(
        &sdp(
            BOB,
            "m=audio 5000 RTP/AVP 0 101\na=rtpmap:101 telephone-event/8000\n",
        ),
        &[],
    ));
    let keys = ok(ask(&mut bench, "subscribe request", more));
    (bench, keys)
}

fn answered(bench: &mut Bench, to: &str, lines: &str) {
    let sdp = sdp(RECORDER, lines);
    ok(ask(
        bench,
        "subscribe answer",
        &[("to-tag", to), ("sdp", &sdp)],
    ));
}

fn copies(bench: &Bench) -> Vec<(&StreamId, &Carried)> {
    let all = bench.streams.iter();
    all.filter(|(_, one)| one.spec.copies.is_some()).collect()
}

fn the_original(bench: &Bench) -> StreamId {
    let mut all = bench
        .streams
        .iter()
        .filter(|(_, one)| one.spec.copies.is_none());
    *all.next().expect("a stream").0
}

const TAKEN: &str = "m=audio 7000 RTP/AVP 0 101\na=rtpmap:101 telephone-event/8000\na=recvonly\n";

/// A subscription starts with an offer to the subscriber. "The reply message will contain a sendonly offer SDP in `sdp` which by default
/// will mirror the SDP of the call participant being subscribed to. [...] The reply message will also contain the `from-tag` [...] and the
/// `to-tag`".
#[test]
fn third_party_gets_a_copy_of_one_partys_media() {
    let (mut bench, keys) = offered(&[("from-tag", "a"), ("to-tag", "rec")]);
    assert_eq!(
        [text(&keys, "from-tag"), text(&keys, "to-tag")],
        ["a", "rec"]
    );
    let offer = text(&keys, "sdp");
    let media = offer
        .lines()
        .find(|line| line.starts_with("m="))
        .expect("a line");
    assert!(media.ends_with(" RTP/AVP 0 101"), "{offer}");
    assert!(
        offer.contains("\r\na=sendonly\r\n")
            && offer.contains("a=rtpmap:101 telephone-event/8000\r\n"),
        "{offer}"
    );
    assert!(offer.contains("c=IN IP4 203.0.113.7\r\n"), "{offer}");
    // The copy starts with the answer.
    assert_eq!(bench.streams.len(), 1);
    answered(&mut bench, "rec", TAKEN);
    let original = the_original(&bench);
    let (_, copy) = copies(&bench)[0];
    assert_eq!(
        copy.spec.copies,
        Some(Copied {
            stream: original,
            side: Side::A
        })
    );
    let [source, recorder] = &copy.spec.sides;
    assert_eq!(
        recorder.rtp,
        Some(format!("{RECORDER}:7000").parse().expect("an address"))
    );
    assert!(recorder.may_receive && !recorder.may_send && source.may_send);
    // The copy comes from the relay, and nothing is sent back.
    assert_eq!(
        (source.rtp, source.rtcp, source.learn),
        (None, None, Learn::Never)
    );
    // The copy comes from the port in the offer.
    assert!(
        media.contains(&format!(" {} ", copy.ports[1].number)),
        "{media}"
    );
    ok(ask(
        &mut bench,
        "unsubscribe",
        &[("from-tag", "a"), ("to-tag", "rec")],
    ));
    assert_eq!(bench.streams.len(), 1);
    assert_eq!(bench.ports.open().len(), 2);
}

#[test]
fn a_subscriber_without_a_tag_gets_a_new_tag() {
    let (mut bench, keys) = offered(&[("label", "caller")]);
    let tag = text(&keys, "to-tag").to_owned();
    assert!(!tag.is_empty());
    answered(&mut bench, &tag, TAKEN);
    assert_eq!(copies(&bench).len(), 1);
    let query = ok(ask(&mut bench, "query", &[]));
    let Some(Value::Dictionary(tags)) = query.get("tags") else {
        panic!("{query:?}");
    };
    let names: Vec<&[u8]> = tags.iter().map(|(key, _)| key).collect();
    assert_eq!(names, [b"a".as_slice(), b"b", tag.as_bytes()]);
}

/// With "multiple `from-tags`" or `all`, the description has an m= line for each stream.
#[test]
fn both_sides_are_copied_in_one_description() {
    let (mut bench, keys) = offered(&[("flags", "all"), ("to-tag", "rec")]);
    assert_eq!(text(&keys, "sdp").matches("m=audio ").count(), 2);
    let two = format!("{TAKEN}{}", TAKEN.replace("7000", "7002"));
    answered(&mut bench, "rec", &two);
    let sides: Vec<_> = copies(&bench)
        .iter()
        .filter_map(|(_, one)| Some(one.spec.copies?.side))
        .collect();
    assert_eq!(sides, [Side::A, Side::B]);
    // One of the streams is refused later (RFC 3264, section 6).
    ok(ask(&mut bench, "unsubscribe", &[("to-tag", "rec")]));
    assert_eq!(copies(&bench).len(), 0);
}

/// `start forwarding` is refused. Its replacement is a subscription to a party's audio as linear samples, whatever the party sends.
#[test]
fn a_subscriber_can_be_offered_only_linear_samples() {
    let (_, keys) = offered(&[
        ("from-tag", "a"),
        ("rtpp-flags", "codec-mask-all codec-transcode-L16"),
    ]);
    let offer = text(&keys, "sdp");
    let codecs: Vec<&str> = offer
        .lines()
        .filter_map(|line| line.strip_prefix("a=rtpmap:")?.split_once(' '))
        .map(|(_, codec)| codec)
        .collect();
    assert_eq!(codecs, ["L16/8000"], "{offer}");
}

/// The relay converts the audio if the subscriber does not accept its format. A's own codec does not change.
#[test]
fn a_subscriber_may_choose_another_codec() {
    let (mut bench, keys) = offered(&[
        ("from-tag", "a"),
        ("to-tag", "rec"),
        ("flags", "codec-transcode-PCMA"),
    ]);
    assert!(
        text(&keys, "sdp").contains(" RTP/AVP 0 101 8\r\n")
            || text(&keys, "sdp").contains(" RTP/AVP 0 8 101\r\n")
    );
    answered(&mut bench, "rec", "m=audio 7000 RTP/AVP 8\na=recvonly\n");
    let (_, copy) = copies(&bench)[0];
    let takes = copy.spec.sides[1].takes.as_ref().expect("codecs").audio();
    assert_eq!(takes.payload_type.0, 8);
    let sends = copy.spec.sides[0].sends.as_ref().expect("codecs");
    assert!(
        matches!(sends.audio().carries, Carries::Audio(format) if format.to_string() == "PCMU/8000")
    );
}

#[test]
fn copy_follows_changes_of_its_source() {
    let (mut bench, _) = offered(&[("from-tag", "a"), ("to-tag", "rec")]);
    answered(&mut bench, "rec", TAKEN);
    // If the party changes its codec, the formats of the copy change too.
    ok(bench.offer(&sdp(ALICE, "m=audio 4000 RTP/AVP 8\n"), &[("to-tag", "b")]));
    ok(bench.answer(&sdp(BOB, "m=audio 5000 RTP/AVP 8\n"), &[]));
    let (_, copy) = copies(&bench)[0];
    assert_eq!(
        copy.spec.sides[0].sends,
        bench.streams[&the_original(&bench)].spec.sides[0].sends
    );
    // The party's stream ends (RFC 3264, section 8.2).
    ok(bench.offer(&sdp(ALICE, "m=audio 0 RTP/AVP 8\n"), &[("to-tag", "b")]));
    ok(bench.answer(&sdp(BOB, "m=audio 0 RTP/AVP 8\n"), &[]));
    assert!(bench.streams.is_empty());
}

#[test]
fn a_call_ends_with_its_parties_and_not_with_its_copies() {
    let (mut bench, _) = offered(&[("from-tag", "a"), ("to-tag", "rec")]);
    answered(&mut bench, "rec", TAKEN);
    // Requests about a party do not affect its copy. The copy is not a party, so it is not recorded.
    ok(ask(&mut bench, "start recording", &[]));
    assert_eq!(bench.commands.len(), 1);
    ok(ask(
        &mut bench,
        "delete",
        &[("from-tag", "a"), ("to-tag", "b"), ("delete-delay", "0")],
    ));
    assert!(bench.streams.is_empty() && bench.ports.open().is_empty() && bench.calls.is_empty());
    assert_eq!(bench.ended.len(), 1);
}

#[test]
fn unanswered_subscription_ends() {
    let (mut bench, _) = offered(&[("from-tag", "a"), ("to-tag", "rec")]);
    assert_eq!(bench.ports.open().len(), 4);
    // The call itself continues.
    let offer_s = 300;
    for _ in 0..offer_s / 30 {
        bench.advance(30 * S);
        let stream = the_original(&bench);
        let heard_ns = [Some(bench.now_ns); 2];
        bench.calls.handle_media(
            bench.now_ns,
            stream,
            threadbare_control::calls::Media { heard_ns },
        );
    }
    assert_eq!(bench.ports.open().len(), 2);
    assert_eq!(bench.calls.len(), 1);
}

#[test]
fn repeated_subscription_replaces_the_first() {
    let (mut bench, _) = offered(&[("from-tag", "a"), ("to-tag", "rec")]);
    answered(&mut bench, "rec", TAKEN);
    ok(ask(
        &mut bench,
        "subscribe request",
        &[("from-tag", "b"), ("to-tag", "rec")],
    ));
    assert_eq!(copies(&bench).len(), 0);
    answered(&mut bench, "rec", TAKEN);
    assert_eq!(
        copies(&bench)[0].1.spec.copies.map(|one| one.side),
        Some(Side::B)
    );
    assert_eq!(bench.ports.open().len(), 4);
}

#[test]
fn subscription_to_a_missing_source_is_refused() {
    let mut bench = call();
    let before = bench.ports.open();
    for (more, says) in [
        (&[("from-tag", "x")][..], "from-tag"),
        (&[("label", "x")], "label"),
        (&[], "from-tags"),
    ] {
        let reason = error(ask(&mut bench, "subscribe request", more));
        assert!(reason.contains(says), "{reason}");
    }
    let reason = error(ask(
        &mut bench,
        "subscribe answer",
        &[("to-tag", "rec"), ("sdp", &sdp(RECORDER, TAKEN))],
    ));
    assert!(
        reason.contains("to-tag") && reason.contains("rec"),
        "{reason}"
    );
    error(ask(&mut bench, "unsubscribe", &[("to-tag", "b")]));
    // The call has no answer yet, so it has no media.
    let mut young = Bench::default();
    ok(young.offer(&sdp(ALICE, PCMU), &[]));
    error(ask(&mut young, "subscribe request", &[("from-tag", "a")]));
    assert_eq!(bench.ports.open(), before);
}

/// The reply to a publication is "a recvonly answer SDP generated by rtpengine locally. Only one codec for each media section will be
/// listed, and by default this will be the first supported codec from the published media."
#[test]
fn published_media_can_be_subscribed_to() {
    let mut bench = Bench::default();
    let lines = "m=audio 4000 RTP/AVP 97 8 0\na=rtpmap:97 speex/8000\na=sendonly\n";
    let published = sdp(ALICE, lines);
    let reply = sdp_of(ask(
        &mut bench,
        "publish",
        &[("from-tag", "studio"), ("sdp", &published)],
    ));
    assert!(
        reply.contains(" RTP/AVP 8\r\n") && reply.contains("\r\na=recvonly\r\n"),
        "{reply}"
    );
    assert!(reply.contains("203.0.113.7"), "{reply}");
    let stream = the_original(&bench);
    assert_eq!(bench.streams[&stream].spec.sides[1].rtp, None);
    let keys = ok(ask(
        &mut bench,
        "subscribe request",
        &[("from-tag", "studio"), ("to-tag", "l")],
    ));
    assert!(text(&keys, "sdp").contains(" RTP/AVP 8\r\n"), "{keys:?}");
    answered(&mut bench, "l", "m=audio 7000 RTP/AVP 8\na=recvonly\n");
    assert_eq!(
        copies(&bench)[0].1.spec.copies,
        Some(Copied {
            stream,
            side: Side::A
        })
    );
    // If the publisher moves to another port, its stream continues.
    let moved = published.replace("4000", "4100");
    sdp_of(ask(
        &mut bench,
        "publish",
        &[("from-tag", "studio"), ("sdp", &moved)],
    ));
    assert_eq!(the_original(&bench), stream);
    assert_eq!(
        bench.streams[&stream].spec.sides[0]
            .rtp
            .map(|rtp| rtp.port()),
        Some(4100)
    );
    ok(ask(
        &mut bench,
        "delete",
        &[("from-tag", "studio"), ("delete-delay", "0")],
    ));
    assert!(bench.ports.open().is_empty() && bench.calls.is_empty());
}

#[test]
fn undecodable_media_is_not_published() {
    let mut bench = Bench::default();
    let published = sdp(
        ALICE,
        "m=audio 4000 RTP/AVP 97\na=rtpmap:97 speex/8000\na=sendonly\n",
    );
    error(ask(
        &mut bench,
        "publish",
        &[("from-tag", "studio"), ("sdp", &published)],
    ));
    assert!(bench.ports.open().is_empty() && bench.calls.is_empty());
}

/// A call has at most 32 dialogs. If a request is repeated, its dialog exists already, so the repetition works even in a full call.
#[test]
fn full_call_accepts_repeated_requests() {
    let mut bench = Bench::default();
    let published = sdp(ALICE, "m=audio 4000 RTP/AVP 8\na=sendonly\n");
    let publish = [("from-tag", "studio"), ("sdp", &*published)];
    ok(ask(&mut bench, "publish", &publish));
    let subscribe = |bench: &mut Bench, to: &str| {
        ask(
            bench,
            "subscribe request",
            &[("from-tag", "studio"), ("to-tag", to)],
        )
    };
    for n in 1..32 {
        ok(subscribe(&mut bench, &format!("l{n}")));
    }
    assert!(error(subscribe(&mut bench, "one more")).contains("32"));
    ok(subscribe(&mut bench, "l7"));
    ok(ask(&mut bench, "publish", &publish));
    let other = [("from-tag", "other"), ("sdp", &*published)];
    assert!(error(ask(&mut bench, "publish", &other)).contains("32"));
    assert_eq!(bench.ports.open().len(), 64);
}
