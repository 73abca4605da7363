//! Options of a request outside its SDP: ports, addresses, multiplexing, codecs.

use threadbare_control::calls::{Fallback, Settings, StreamKind};
use threadbare_control::fuzzing::Bench;
use threadbare_rtp_types::learn::{Learn, Method, Once};
use threadbare_rtp_types::payload_map::{Carries, PayloadMap};

use super::common::*;

const MUX: &str = "m=audio 4000 RTP/AVP 0\na=rtcp-mux\n";
const BOB_PCMU: &str = "m=audio 5000 RTP/AVP 0\n";
const BOB_MUX: &str = "m=audio 5000 RTP/AVP 0\na=rtcp-mux\n";

/// Whether RTP and RTCP share a port: in Bob's offer, in Alice's answer, and in the stream towards each of them.
fn muxed(offer: &str, flags: &str, answer: &str) -> [bool; 4] {
    let mut bench = Bench::default();
    let to_bob = sdp_of(bench.offer(&sdp(ALICE, offer), &[("rtpp-flags", flags)]));
    let to_alice = sdp_of(bench.answer(&sdp(BOB, answer), &[]));
    let [a, b] = &bench.only().spec.sides;
    if a.mux {
        assert_eq!(a.rtcp, a.rtp);
    }
    [to_bob, to_alice]
        .map(|one| one.contains("a=rtcp-mux"))
        .into_iter()
        .chain([a.mux, b.mux])
        .collect::<Vec<_>>()
        .try_into()
        .unwrap()
}

#[test]
fn rtcp_mux_is_agreed_on_with_each_side() {
    // Without an option, "The default behaviour is to go along with the client's preference."
    assert_eq!(muxed(MUX, "", BOB_MUX), [true, true, true, true]);
    assert_eq!(muxed(MUX, "", BOB_PCMU), [true, true, true, false]);
    assert_eq!(muxed(PCMU, "", BOB_PCMU), [false; 4]);
    // `offer` means "always offer rtcp-mux, even if the client itself doesn't offer it".
    assert_eq!(
        muxed(PCMU, "rtcp-mux-offer", BOB_MUX),
        [true, false, false, true]
    );
    // `require` "pretends that the receiving client has already accepted rtcp-mux".
    assert_eq!(
        muxed(PCMU, "rtcp-mux-require", BOB_PCMU),
        [true, false, false, true]
    );
    // `demux` means "don't offer it to the other side, but accept it back to the offering client".
    assert_eq!(
        muxed(MUX, "rtcp-mux-demux", BOB_PCMU),
        [false, true, true, false]
    );
    // `reject` means "Reject rtcp-mux if it has been offered. Can be used together with `offer`".
    assert_eq!(muxed(MUX, "rtcp-mux-reject", BOB_PCMU), [false; 4]);
    assert_eq!(
        muxed(MUX, "rtcp-mux=[reject offer]", BOB_MUX),
        [true, false, false, true]
    );
    // A side cannot accept multiplexing that it was not offered (RFC 5761, section 5.1.1).
    assert_eq!(muxed(PCMU, "", BOB_MUX), [false; 4]);
}

#[test]
fn offers_with_rtcp_mux_also_name_an_rtcp_port() {
    let rtcp = |flags: &str| {
        let mut bench = Bench::default();
        let to_bob = sdp_of(bench.offer(&sdp(ALICE, MUX), &[("rtpp-flags", flags)]));
        let to_alice = sdp_of(bench.answer(&sdp(BOB, BOB_MUX), &[]));
        [to_bob, to_alice].map(|sdp| attributes(&sdp, "rtcp").join(" "))
    };
    // An answerer that does not multiplex sends RTCP to the port in `a=rtcp` (RFC 5761, section 5.1.1).
    assert_eq!(rtcp(""), ["rtcp:30003", "rtcp:30000"]);
    assert_eq!(rtcp("rtcp-mux-offer"), ["rtcp:30003", "rtcp:30000"]);
    // With `require`, no other port is open.
    assert_eq!(rtcp("rtcp-mux-require"), ["rtcp:30002", "rtcp:30000"]);
}

#[test]
fn a_generated_mid_stays_on_the_side_that_got_it() {
    let answer = format!("{BOB_PCMU}a=mid:1\n");
    for (offer, flags, expected) in [
        (PCMU.to_owned(), "generate-mid", ["mid:1", ""]),
        (format!("{PCMU}a=mid:1\n"), "", ["mid:1", "mid:1"]),
    ] {
        let mut bench = Bench::default();
        let to_bob = sdp_of(bench.offer(&sdp(ALICE, &offer), &[("rtpp-flags", flags)]));
        let to_alice = sdp_of(bench.answer(&sdp(BOB, &answer), &[]));
        let found = [to_bob, to_alice].map(|sdp| attributes(&sdp, "mid").join(" "));
        assert_eq!(found, expected);
    }
}

#[test]
fn an_address_of_zeros_sets_the_family_of_a_new_call() {
    let mut bench = Bench::default();
    let held = |zeros: &str| sdp(ALICE, PCMU).replace(&format!("IP4 {ALICE}"), zeros);
    let to_bob = sdp_of(bench.offer(&held("IP6 ::"), &[]));
    assert!(to_bob.contains("c=IN IP6 ::\r\n"), "{to_bob}");
    // A hold address of another family does not move a party of a running call to that family.
    let mut bench = call();
    let to_bob = sdp_of(bench.offer(&held("IP6 ::"), &[("to-tag", "b")]));
    assert!(to_bob.contains("c=IN IP4 0.0.0.0\r\n"), "{to_bob}");
}

#[test]
fn ports_are_replaced_if_rtcp_needs_a_separate_port() {
    let mut bench = Bench::default();
    ok(bench.offer(&sdp(ALICE, MUX), &[]));
    ok(bench.answer(&sdp(BOB, BOB_MUX), &[]));
    let to_bob = sdp_of(bench.offer(&sdp(ALICE, PCMU), &[("to-tag", "b")]));
    assert!(to_bob.contains("m=audio 30006 "), "{to_bob}");
    ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
    assert_eq!(bench.only().ports[0].number, 30_004);
    assert_eq!(bench.ports.open().len(), 2);
}

#[test]
fn interfaces_and_families_are_chosen_and_remembered() {
    let mut bench = Bench::default();
    let to_bob = sdp_of(bench.offer(
        &sdp(ALICE, PCMU),
        &[(
            "rtpp-flags",
            "direction=internal direction=default address-family=IP6 full-rtcp-attribute",
        )],
    ));
    assert!(to_bob.contains("c=IN IP6 2001:db8::7\r\n"), "{to_bob}");
    assert!(
        to_bob.contains("a=rtcp:30003 IN IP6 2001:db8::7\r\n"),
        "{to_bob}"
    );
    let answer = sdp(BOB, BOB_PCMU).replace(&format!("IP4 {BOB}"), "IP6 2001:db8::b");
    let to_alice = sdp_of(bench.answer(&answer, &[]));
    assert!(to_alice.contains("c=IN IP4 10.0.0.7\r\n"), "{to_alice}");
    // "for the `answer` and any subsequent offers [...] rtpengine will remember the selected network interface"
    let again = sdp_of(bench.offer(&sdp(ALICE, PCMU), &[("to-tag", "b")]));
    assert!(
        again.contains("c=IN IP6 2001:db8::7\r\n") && again.contains("m=audio 30002 "),
        "{again}"
    );
    // Ports of another interface replace those of each side.
    let moved = sdp_of(bench.offer(
        &sdp(ALICE, PCMU),
        &[
            ("to-tag", "b"),
            ("to-interface", "internal"),
            ("address-family", "IP4"),
        ],
    ));
    assert!(
        moved.contains("c=IN IP4 10.0.0.7\r\n") && moved.contains("m=audio 30006 "),
        "{moved}"
    );
    // The other interface applies only from the answer on, and that offer had none.
    let again = sdp_of(bench.offer(&sdp(ALICE, PCMU), &[("to-tag", "b")]));
    assert!(
        again.contains("c=IN IP6 2001:db8::7\r\n") && again.contains("m=audio 30002 "),
        "{again}"
    );
    let reason = error(bench.offer(
        &sdp(ALICE, PCMU),
        &[
            ("to-tag", "b"),
            ("to-interface", "internal"),
            ("address-family", "IP6"),
        ],
    ));
    assert!(
        reason.contains("address-family") && reason.contains("IP6"),
        "{reason}"
    );
}

#[test]
fn the_request_can_replace_the_address_of_a_party() {
    let rtp = |more: &[(&str, &str)]| {
        let mut bench = Bench::default();
        ok(bench.offer(&sdp(ALICE, "m=audio 4000 RTP/AVP 0\na=rtcp:4444\n"), more));
        ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
        let a = &bench.only().spec.sides[0];
        (a.rtp.unwrap().to_string(), a.rtcp.unwrap().to_string())
    };
    let of = |ip: &str| (format!("{ip}:4000"), format!("{ip}:4444"));
    let received = ("received-from", "192.0.2.1");
    assert_eq!(rtp(&[received]), of(ALICE));
    assert_eq!(rtp(&[received, ("flags", "trust-address")]), of(ALICE));
    assert_eq!(
        rtp(&[received, ("flags", "SIP-source-address")]),
        of("192.0.2.1")
    );
    // `media-address` overrides the other address: "Can be overridden through the `media address` key."
    let both = [
        received,
        ("flags", "SIP-source-address"),
        ("media-address", "192.0.2.9"),
    ];
    assert_eq!(rtp(&both), of("192.0.2.9"));
}

#[test]
fn the_flags_select_how_addresses_are_learned() {
    let learn = |flags: &str| {
        let mut bench = Bench::default();
        ok(bench.offer(&sdp(ALICE, PCMU), &[("rtpp-flags", flags)]));
        ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
        bench.only().spec.sides.each_ref().map(|side| side.learn)
    };
    let once = |method, fixed_ms| Learn::Once(Once { method, fixed_ms });
    let usual = once(Method::Heuristic, None);
    let strict = once(Method::Heuristic, Some(3000));
    let handover = Learn::Follow { silence_ms: 500 };
    assert_eq!(learn(""), [usual; 2]);
    assert_eq!(learn("strict-source"), [strict; 2]);
    assert_eq!(learn("media-handover"), [handover; 2]);
    assert_eq!(learn("strict-source media-handover"), [handover; 2]);
    for (way, method) in [
        ("immediate", Method::Immediate),
        ("delayed", Method::Delayed),
        ("heuristic", Method::Heuristic),
    ] {
        let flags = format!("endpoint-learning={way}");
        assert_eq!(learn(&flags), [once(method, None); 2]);
        let flags = format!("{flags} strict-source");
        assert_eq!(learn(&flags), [once(method, Some(3000)); 2]);
    }
    // `asymmetric` applies to the author of the message: "Advertises an RTP endpoint which uses asymmetric RTP".
    assert_eq!(learn("asymmetric"), [Learn::Anyone, usual]);
    assert_eq!(learn("asymmetric strict-source"), [Learn::Never, strict]);
    assert_eq!(learn("endpoint-learning=off"), [Learn::Anyone; 2]);
}

fn numbers(map: &Option<std::sync::Arc<PayloadMap>>) -> Vec<u8> {
    map.iter()
        .flat_map(|map| map.iter())
        .map(|one| one.payload_type.0)
        .collect()
}

#[test]
fn codecs_are_transcoded_by_request() {
    let mut bench = Bench::default();
    let to_bob = sdp_of(bench.offer(
        &sdp(ALICE, PCMU),
        &[("rtpp-flags", "transcode-PCMA ptime=40")],
    ));
    assert!(
        to_bob.contains("m=audio 30002 RTP/AVP 0 8\r\n") && to_bob.contains("a=ptime:40\r\n"),
        "{to_bob}"
    );
    let to_alice = sdp_of(bench.answer(&sdp(BOB, "m=audio 5000 RTP/AVP 8\na=ptime:40\n"), &[]));
    assert!(
        to_alice.contains("m=audio 30000 RTP/AVP 0\r\n"),
        "{to_alice}"
    );
    let [a, b] = &bench.only().spec.sides;
    assert_eq!([numbers(&a.sends), numbers(&a.takes)], [[0], [0]]);
    assert_eq!([numbers(&b.sends), numbers(&b.takes)], [[8], [8]]);
    assert_eq!((a.packet_ms, b.packet_ms), (Some(20), Some(40)));
}

#[test]
fn payload_numbers_belong_to_each_side() {
    // Each side uses its own payload types (RFC 3264, section 6.1).
    let mut bench = Bench::default();
    let events = "a=rtpmap:101 telephone-event/8000\na=rtpmap:97 AMR/8000\na=rtpmap:98 AMR/8000\na=fmtp:98 octet-align=1\n";
    ok(bench.offer(
        &sdp(ALICE, &format!("m=audio 4000 RTP/AVP 97 98 101\n{events}")),
        &[],
    ));
    let answer = "m=audio 5000 RTP/AVP 120 96\na=rtpmap:120 AMR/8000\na=fmtp:120 octet-align=1\na=rtpmap:96 telephone-event/8000\n";
    let to_alice = sdp_of(bench.answer(&sdp(BOB, answer), &[]));
    assert!(
        to_alice.contains("m=audio 30000 RTP/AVP 98 101\r\n"),
        "{to_alice}"
    );
    let [a, b] = &bench.only().spec.sides;
    assert_eq!(b.codec.as_deref(), Some("AMR/8000"));
    assert_eq!(numbers(&a.takes), [98, 101]);
    assert_eq!(numbers(&b.takes), [120, 96]);
    // An answerer may also send with the numbers of the offer.
    assert_eq!(numbers(&b.sends), [120, 96, 98, 101]);
    let carries = |map: &Option<std::sync::Arc<PayloadMap>>, at: usize| {
        map.as_ref().unwrap().iter().nth(at).unwrap().carries
    };
    assert!(matches!(carries(&a.takes, 0), Carries::Opaque(_)));
    assert_eq!(carries(&a.takes, 0), carries(&b.takes, 0));
    assert_eq!(carries(&a.sends, 0), carries(&b.sends, 2));
    assert_eq!(carries(&b.takes, 1), Carries::TelephoneEvent);
}

#[test]
fn an_answer_may_be_stripped_and_shortened() {
    let mut bench = Bench::default();
    ok(bench.offer(&sdp(ALICE, "m=audio 4000 RTP/AVP 0 8 9\n"), &[]));
    let answer = sdp(BOB, "m=audio 5000 RTP/AVP 0 8 9\n");
    let stripped = sdp_of(bench.answer(&answer, &[("flags", "codec-strip-PCMU")]));
    assert!(
        stripped.contains("m=audio 30000 RTP/AVP 8 9\r\n"),
        "{stripped}"
    );
    let single = sdp_of(bench.answer(&answer, &[("flags", "single-codec")]));
    assert!(single.contains("m=audio 30000 RTP/AVP 0\r\n"), "{single}");
    let reason = error(bench.answer(&sdp(BOB, "m=audio 5000 RTP/AVP 18\n"), &[]));
    assert!(
        reason.contains("m= line 1") && reason.contains("codec"),
        "{reason}"
    );
}

#[test]
fn codecs_in_use_are_preferred_by_request() {
    // The order of the running stream stays: "Codecs that were listed as preferred in the past will be kept as preferred even if the
    // re-offer lists other codecs".
    let mut bench = Bench::default();
    ok(bench.offer(&sdp(ALICE, "m=audio 4000 RTP/AVP 8 0\n"), &[]));
    ok(bench.answer(&sdp(BOB, "m=audio 5000 RTP/AVP 8 0\n"), &[]));
    let turned = sdp(ALICE, "m=audio 4000 RTP/AVP 0 8\n");
    let plain = sdp_of(bench.offer(&turned, &[("to-tag", "b")]));
    assert!(plain.contains(" RTP/AVP 0 8\r\n"), "{plain}");
    let reused = sdp_of(bench.offer(&turned, &[("to-tag", "b"), ("flags", "reuse-codecs")]));
    assert!(reused.contains(" RTP/AVP 8 0\r\n"), "{reused}");
}

#[test]
fn other_media_are_relayed_or_rejected() {
    let mut bench = Bench::default();
    let lines = "m=video 4002 RTP/AVP 96\na=rtpmap:96 VP8/90000\na=rtcp-fb:96 nack\nm=message 4004 TCP/MSRP *\nm=application 4006 UDP/DTLS/SCTP x\nm=audio 4000 RTP/AVP 0\nm=audio 0 RTP/AVP 8\n";
    let to_bob = sdp_of(bench.offer(&sdp(ALICE, lines), &[]));
    let media: Vec<&str> = to_bob
        .lines()
        .filter(|line| line.starts_with("m="))
        .collect();
    assert_eq!(
        media,
        [
            "m=video 30002 RTP/AVP 96",
            "m=message 4004 TCP/MSRP *",
            "m=application 0 UDP/DTLS/SCTP x",
            "m=audio 30006 RTP/AVP 0",
            "m=audio 0 RTP/AVP 8"
        ]
    );
    assert!(to_bob.contains("a=rtcp-fb:96 nack"), "{to_bob}");
    let answer = "m=video 5002 RTP/AVP 96\nm=message 0 TCP/MSRP *\nm=application 0 UDP/DTLS/SCTP x\nm=audio 5000 RTP/AVP 0\n";
    // A line that the answer lacks is rejected. An answer with a surplus line is invalid (RFC 3264, section 6).
    ok(bench.answer(&sdp(BOB, answer), &[]));
    let kinds: Vec<StreamKind> = bench.streams.values().map(|one| one.spec.kind).collect();
    assert_eq!(kinds, [StreamKind::Packets, StreamKind::Audio]);
    let many = format!("{lines}m=audio 1 RTP/AVP 0\n");
    assert!(error(bench.answer(&sdp(BOB, &many), &[])).contains('6'));
    // An unsupported line keeps its encryption.
    let to_bob = sdp_of(bench.offer(
        &sdp(ALICE, &format!("{PCMU}m=video 4002 RTP/AVP 96\n")),
        &[("call-id", "v"), ("transport-protocol", "RTP/SAVP")],
    ));
    assert!(to_bob.contains("m=video 0 "), "{to_bob}");
}

#[test]
fn the_origin_is_replaced_by_request() {
    let mut bench = Bench::default();
    let offer = sdp(ALICE, PCMU);
    let origin = |sdp: &str| sdp.lines().nth(1).unwrap().to_owned();
    let name = |sdp: &str| sdp.lines().nth(2).unwrap().to_owned();
    assert_eq!(
        origin(&sdp_of(bench.offer(&offer, &[]))),
        "o=- 1 1 IN IP4 198.51.100.1"
    );
    let replaced = sdp_of(bench.offer(&offer, &[("replace", "origin")]));
    assert_eq!(origin(&replaced), "o=- 1 1 IN IP4 203.0.113.7");
    // The first values stay: "will make sure the username field in the `o=` line always remains the same", and "Same as `username` but for
    // the entire contents of the `s=` line".
    let other = offer.replace("o=- 1 1", "o=x 2 5").replace("s=-", "s=y");
    let kept = sdp_of(bench.offer(&other, &[("rtpp-flags", "replace=[username session-name]")]));
    assert_eq!(
        (origin(&kept), name(&kept)),
        ("o=- 2 5 IN IP4 198.51.100.1".to_owned(), "s=-".to_owned())
    );
    let full = sdp_of(bench.offer(&other, &[("replace", "origin-full")]));
    assert_eq!(origin(&full), "o=- 1 1 IN IP4 203.0.113.7");
}

#[test]
fn the_version_of_the_description_increases_with_each_change() {
    // "make sure it's increased every time the SDP changes, and left unchanged if the SDP is the same"
    let mut bench = Bench::default();
    let mut version = |port: u16, own: u32, more: &str| {
        let offer = sdp(ALICE, &format!("m=audio 4000 RTP/AVP 0\na=x:{port}\n"))
            .replace("o=- 1 1", &format!("o=- 1 {own}"));
        let to_bob = sdp_of(bench.offer(&offer, &[("rtpp-flags", more)]));
        to_bob
            .lines()
            .nth(1)
            .unwrap()
            .split(' ')
            .nth(2)
            .unwrap()
            .to_owned()
    };
    assert_eq!(version(1, 7, "replace-SDP-version"), "7");
    assert_eq!(version(1, 7, "replace-SDP-version"), "7");
    assert_eq!(version(2, 7, "replace-SDP-version"), "8");
    // The versions of another branch may have counted differently.
    assert_eq!(version(2, 90, "replace-SDP-version"), "8");
    assert_eq!(version(2, 7, "replace-force-increment-sdp-ver"), "9");
}

#[test]
fn a_description_with_the_loop_mark_of_the_relay_is_unchanged() {
    let settings = Settings {
        instance: "7".to_owned(),
        ..Settings::default()
    };
    let mut bench = Bench::new(settings);
    let to_bob = sdp_of(bench.offer(&sdp(ALICE, PCMU), &[("flags", "loop-protect")]));
    assert!(to_bob.contains("a=x-threadbare:7\r\n"), "{to_bob}");
    let again = sdp_of(bench.offer(&to_bob, &[("flags", "loop-protect"), ("via-branch", "2")]));
    assert_eq!(again, to_bob);
    assert_eq!(bench.ports.open().len(), 2);
    // Only our own mark counts, not that of another relay.
    let other = to_bob.replace("threadbare:7", "threadbare:8");
    assert_ne!(
        sdp_of(bench.offer(&other, &[("flags", "loop-protect")])),
        other
    );
}

#[test]
fn attributes_are_added_and_removed_by_request() {
    let mut bench = Bench::default();
    let offer = sdp(
        ALICE,
        "m=audio 4000 RTP/AVP 0\na=extmap:1 urn:x\na=rtcp:4001\n",
    );
    let to_bob = sdp_of(bench.offer(
        &offer,
        &[(
            "rtpp-flags",
            "no-rtcp-attribute generate-mid strip-extmap TOS=96 NAT-wait",
        )],
    ));
    assert!(
        !to_bob.contains("rtcp") && !to_bob.contains("extmap") && to_bob.contains("a=mid:1"),
        "{to_bob}"
    );
    ok(bench.answer(&sdp(BOB, BOB_PCMU), &[("TOS", "-1")]));
    let spec = &bench.only().spec;
    assert_eq!(spec.tos, Some(96));
    assert!(spec.sides.iter().all(|side| side.waits_for_nat));
    // Without the key, "If this key is not present or its value is too large (256 or more), then the TOS value is reverted to the default".
    ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
    assert_eq!(bench.only().spec.tos, None);
}

/// The key is an extension. It applies to both parties until another request has it.
#[test]
fn fallback_stays_until_another_request_sets_it() {
    let mut bench = Bench::default();
    let name = |file: &str| Fallback::File(file.into());
    ok(bench.offer(&sdp(ALICE, PCMU), &[("fallback", "/a b.wav")]));
    ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
    assert_eq!(bench.only().spec.fallback, name("/a b.wav"));
    for (key, expected) in [
        (None, name("/a b.wav")),
        (Some("off"), Fallback::Off),
        (None, Fallback::Off),
        (Some("other.wav"), name("other.wav")),
        (Some("default"), Fallback::Default),
    ] {
        let keys: Vec<_> = key.iter().map(|value| ("fallback", *value)).collect();
        ok(bench.offer(&sdp(ALICE, PCMU), &[]));
        ok(bench.answer(&sdp(BOB, BOB_PCMU), &keys));
        assert_eq!(bench.only().spec.fallback, expected, "{key:?}");
    }
    for value in ["", &"x".repeat(4097)] {
        let refused = error(bench.offer(&sdp(ALICE, PCMU), &[("fallback", value)]));
        assert!(
            refused.contains("fallback") && refused.contains("off, default"),
            "{refused}"
        );
    }
}

/// The limit is in the party's description. "maxaveragebitrate: Specifies the maximum average receive bitrate of a session in bits per
/// second (bit/s) [...] Any positive integer is allowed, but values outside the range of 6000 to 510000 SHOULD be ignored" (RFC 7587,
/// section 6.1).
#[test]
fn the_relay_respects_the_bit_rate_limit_of_a_party() {
    let opus = |port: u16, bps: &str| {
        format!(
            "m=audio {port} RTP/AVP 96\na=rtpmap:96 opus/48000/2\na=fmtp:96 useinbandfec=1; maxaveragebitrate={bps}\n"
        )
    };
    for (of_a, of_b, expected) in [
        ("20000", "510000", [Some(20_000), Some(510_000)]),
        ("5999", "510001", [None, None]),
        ("x", "", [None, None]),
    ] {
        let mut bench = Bench::default();
        ok(bench.offer(&sdp(ALICE, &opus(4000, of_a)), &[]));
        ok(bench.answer(&sdp(BOB, &opus(5000, of_b)), &[]));
        let carried = bench.streams.values().next().expect("a stream");
        let limits = carried
            .spec
            .sides
            .each_ref()
            .map(|side| side.bitrate_bps_max);
        assert_eq!(limits, expected);
    }
    // The bit rate in a request is limited to the range that the codec allows.
    let mut bench = Bench::default();
    let set = [("flags", "codec-set-opus/48000/2/1000")];
    ok(bench.offer(&sdp(ALICE, &opus(4000, "6000")), &set));
    ok(bench.answer(&sdp(BOB, &opus(5000, "6000")), &[]));
    let carried = bench.streams.values().next().expect("a stream");
    assert_eq!(carried.spec.sides[1].bitrate_bps, Some(6_000));
}
