//! Lines of a description: some are replaced, and the others stay.

use threadbare_control::calls::CallId;
use threadbare_control::fuzzing::Bench;

use super::common::*;

#[test]
fn connection_lines_are_replaced_in_place() {
    let mut bench = Bench::default();
    // The address is in the medium only, in both, or in the session only while another medium has its own.
    let media = "v=0\no=- 1 1 IN IP4 192.0.2.9\ns=-\nt=0 0\nm=audio 4000 RTP/AVP 0\ni=x\nc=IN IP4 192.0.2.1\nb=AS:64\n";
    let to_bob = sdp_of(bench.offer(media, &[]));
    // Line endings do not change either.
    assert_eq!(
        to_bob,
        "v=0\no=- 1 1 IN IP4 192.0.2.9\ns=-\nt=0 0\nm=audio 30002 RTP/AVP 0\ni=x\nc=IN IP4 203.0.113.7\nb=AS:64\na=rtcp:30003\n"
    );
    let both = media.replace("t=0 0", "c=IN IP4 192.0.2.2\nt=0 0");
    let to_bob = sdp_of(bench.offer(&both, &[]));
    assert_eq!(
        to_bob.matches("c=IN IP4 203.0.113.7\n").count(),
        2,
        "{to_bob}"
    );
    ok(bench.answer(&sdp(BOB, "m=audio 5000 RTP/AVP 0\n"), &[]));
    // The medium's own address has precedence (RFC 8866, section 5.7).
    assert_eq!(
        bench.only().spec.sides[0].rtp,
        Some("192.0.2.1:4000".parse().unwrap())
    );
    let none = "v=0\ns=-\nt=0 0\nm=audio 4000 RTP/AVP 0\n";
    assert!(error(bench.offer(none, &[("call-id", "d")])).contains("c="));
    let to_bob = sdp_of(bench.offer(none, &[("call-id", "d"), ("media-address", "192.0.2.5")]));
    assert!(
        to_bob.contains("m=audio 30006 RTP/AVP 0\nc=IN IP4 203.0.113.7\n"),
        "{to_bob}"
    );
}

#[test]
fn held_line_keeps_its_own_connection_address() {
    let mut bench = Bench::default();
    let lines = "m=audio 4000 RTP/AVP 0\nm=audio 4002 RTP/AVP 0\nc=IN IP4 0.0.0.0\n";
    let to_bob = sdp_of(bench.offer(&sdp(ALICE, lines), &[]));
    assert!(
        to_bob.contains("t=0 0\r\nm=audio 30002 RTP/AVP 0\r\na=rtcp"),
        "{to_bob}"
    );
    assert!(
        to_bob.contains("c=IN IP4 203.0.113.7\r\n") && to_bob.contains("c=IN IP4 0.0.0.0\r\n"),
        "{to_bob}"
    );
}

#[test]
fn party_with_a_host_name_is_learned() {
    // A host name is not resolved, because the peer's packets show its address.
    let mut bench = Bench::default();
    let offer = sdp(ALICE, PCMU).replace("c=IN IP4 198.51.100.1", "c=IN IP4 phone.example");
    ok(bench.offer(&offer, &[]));
    ok(bench.answer(&sdp(BOB, "m=audio 5000 RTP/AVP 0\n"), &[]));
    assert_eq!(bench.only().spec.sides[0].rtp, None);
}

#[test]
fn the_view_of_a_call_has_its_parties_and_streams() {
    let mut bench = call();
    let id = CallId::new(b"c");
    let view = bench.calls.view(&id).unwrap();
    assert_eq!(view.answered_ns, Some(0));
    assert_eq!(view.end.map(|(due_ns, _)| due_ns), Some(60 * S));
    let [a, b] = &view.streams[0].sides;
    assert_eq!([a.tag.as_str(), b.tag.as_str()], ["a", "b"]);
    assert_eq!(a.advertised, Some("203.0.113.7:30000".parse().unwrap()));
    assert_eq!(b.codec.as_deref(), Some("PCMU/8000"));
    let (of, spec) = bench.calls.stream(view.streams[0].stream).unwrap();
    assert_eq!((of, spec), (&id, &bench.only().spec));
    ok(bench.ask(&[
        ("command", "delete"),
        ("call-id", "c"),
        ("delete-delay", "0"),
    ]));
    assert_eq!(bench.calls.view(&id), None);
    assert_eq!(bench.calls.stream(view.streams[0].stream), None);
}

#[test]
fn attributes_are_edited_by_request() {
    // Patterns: "`a=foo:bar baz quuz` would match any of `foo`, `foo:bar`, or `foo:bar baz quuz`".
    let lines = "m=audio 4000 RTP/AVP 0\na=foo:bar baz\na=foo:other\na=x\na=xy\na=ptime:20\n";
    let edited = |flags: &str| {
        let mut bench = Bench::default();
        let to_bob = sdp_of(bench.offer(&sdp(ALICE, lines), &[("rtpp-flags", flags)]));
        let attributes = to_bob.lines().filter_map(|line| line.strip_prefix("a="));
        attributes
            .filter(|one| !one.starts_with("rtcp"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let all = ["foo:bar baz", "foo:other", "x", "xy", "ptime:20"];
    assert_eq!(edited(""), all);
    assert_eq!(edited("sdp-attr=[audio=[remove=[foo]]]"), all[2..]);
    assert_eq!(
        edited("sdp-attr=[audio=[remove=[foo:bar x]]]"),
        [all[1], all[3], all[4]]
    );
    assert_eq!(edited("sdp-attr=[video=[remove=[foo]]]"), all);
    assert_eq!(edited("sdp-attr=[none=[add=[mine:1]]]")[0], "mine:1");
    assert_eq!(
        edited("sdp-attr=[audio=[add=[x mine]]]"),
        [&all[..], &["mine"]].concat()
    );
    // In flags, "equals sign (`=`) can be escaped as double dashes (`--`) and spaces can be escaped as double periods (`..`)".
    assert_eq!(edited("sdp-attr-remove-audio-foo:bar..baz"), all[1..]);
    assert_eq!(
        edited("sdp-attr-substitute-audio-ptime:20>ptime:40 sdp-attr-substitute-audio-x>y--z")[2..],
        ["y=z", "xy", "ptime:40"]
    );
    let mut bench = Bench::default();
    for flags in [
        "sdp-attr=[image=[remove=[foo]]]",
        "sdp-attr=[audio=[cut=[foo]]]",
        "sdp-attr=x",
    ] {
        assert!(
            error(bench.offer(&sdp(ALICE, lines), &[("rtpp-flags", flags)])).contains("sdp-attr")
        );
    }
}

/// RFC 3264, section 6: "The answer to an offer MUST contain exactly the same number of m-lines". An answer without any would end
/// media that no party has refused.
#[test]
fn an_answer_without_lines_is_refused() {
    let two = format!("{PCMU}m=audio 4002 RTP/AVP 0\n");
    for lines in ["", &format!("{two}{PCMU}")] {
        let mut bench = Bench::default();
        ok(bench.offer(&sdp(ALICE, &two), &[]));
        let reason = error(bench.answer(&sdp(BOB, lines), &[]));
        assert!(reason.contains("RFC 3264"), "{reason}");
        assert!(bench.streams.is_empty());
        ok(bench.answer(&sdp(BOB, &two), &[]));
        assert_eq!(bench.streams.len(), 2);
    }
}
