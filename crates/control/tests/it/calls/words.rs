//! Words of requests and their effects.

use threadbare_control::calls::StreamKind;
use threadbare_control::fuzzing::Bench;
use threadbare_control::ng::{Dictionary, Value, json};
use threadbare_rtp_types::srtp::Crypto;

use super::common::*;

const BOB_PCMU: &str = "m=audio 5000 RTP/AVP 0\n";
/// A key as in RFC 4568, section 6.1: base64 of 30 bytes.
const KEY: &str = "WVNfX19zZW1jdGwgKCkgewkyMjA7fQp9CnVubGVz";

fn numbers(map: &Option<std::sync::Arc<threadbare_rtp_types::payload_map::PayloadMap>>) -> Vec<u8> {
    let entries = map.iter().flat_map(|map| map.iter());
    entries.map(|one| one.payload_type.0).collect()
}

#[test]
fn masked_codec_that_is_accepted_is_in_the_answer() {
    // `mask` hides a codec from the other side, and `accept` accepts it from the offerer. The answer of rtpengine 10.5.3.5 contains it too.
    let opus = "m=audio 4000 RTP/AVP 120 8 101\na=rtpmap:120 opus/48000/2\na=rtpmap:101 telephone-event/8000\n";
    for flags in [
        "codec-mask-opus codec-accept-opus",
        "codec-mask-opus codec-accept-all",
        "codec-mask-opus always-transcode",
    ] {
        let mut bench = Bench::default();
        let to_bob = sdp_of(bench.offer(&sdp(ALICE, opus), &[("rtpp-flags", flags)]));
        assert_eq!(media(&to_bob), ["m=audio 30002 RTP/AVP 8 101"], "{flags}");
        let answer = "m=audio 5000 RTP/AVP 8 101\na=rtpmap:101 telephone-event/8000\n";
        let to_alice = sdp_of(bench.answer(&sdp(BOB, answer), &[]));
        assert_eq!(media(&to_alice), ["m=audio 30000 RTP/AVP 120 8 101"]);
    }
    let events = "m=audio 4000 RTP/AVP 0 101\na=rtpmap:101 telephone-event/8000\na=fmtp:101 0-15\n";
    for flags in [
        "codec-mask-telephone-event codec-accept-telephone-event",
        "codec-mask-telephone-event codec-accept-all",
    ] {
        let mut bench = Bench::default();
        let to_bob = sdp_of(bench.offer(&sdp(ALICE, events), &[("rtpp-flags", flags)]));
        assert_eq!(media(&to_bob), ["m=audio 30002 RTP/AVP 0"], "{flags}");
        let to_alice = sdp_of(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
        assert_eq!(media(&to_alice), ["m=audio 30000 RTP/AVP 0 101"], "{flags}");
        assert!(to_alice.contains("a=fmtp:101 0-15"), "{to_alice}");
        // The events become tones, and Bob's tones become events.
        assert!(bench.only().spec.sides[1].detects_keys);
    }
}

#[test]
fn a_stripped_codec_stays_in_the_offer_if_offer_names_it() {
    let lines = "m=audio 4000 RTP/AVP 0 8 101\na=rtpmap:101 telephone-event/8000\n";
    for list in ["strip", "mask", "consume"] {
        let mut bench = Bench::default();
        let flags = format!("codec-{list}-telephone-event codec-offer-telephone-event");
        let to_bob = sdp_of(bench.offer(&sdp(ALICE, lines), &[("rtpp-flags", &flags)]));
        assert_eq!(media(&to_bob), ["m=audio 30002 RTP/AVP 0 8 101"]);
    }
    // The option works in an answer too.
    let mut bench = Bench::default();
    ok(bench.offer(&sdp(ALICE, lines), &[]));
    let answer = lines.replace("4000", "5000");
    let flags = "codec-strip-PCMU codec-offer-PCMU codec-strip-PCMA";
    let to_alice = sdp_of(bench.answer(&sdp(BOB, &answer), &[("rtpp-flags", flags)]));
    assert_eq!(media(&to_alice), ["m=audio 30000 RTP/AVP 0 101"]);
}

#[test]
fn stripped_codec_of_a_copy_is_converted() {
    for list in ["strip", "mask", "consume"] {
        let mut bench = Bench::default();
        let published = sdp(ALICE, "m=audio 7000 RTP/AVP 8\na=sendonly\n");
        let ask = |bench: &mut Bench, command: &str, more: &[(&str, &str)]| {
            bench.ask(&with(&[("command", command), ("call-id", "c")], more))
        };
        let publish = [("from-tag", "p"), ("sdp", &*published)];
        ok(ask(&mut bench, "publish", &publish));
        let flags = format!("codec-{list}-PCMA codec-transcode-PCMU");
        let asked = [("from-tag", "p"), ("to-tag", "l"), ("rtpp-flags", &*flags)];
        let offer = sdp_of(ask(&mut bench, "subscribe request", &asked));
        assert_eq!(media(&offer), ["m=audio 30006 RTP/AVP 0"], "{list}");
        let answer = sdp(BOB, "m=audio 7010 RTP/AVP 0\na=recvonly\n");
        let answered = [("to-tag", "l"), ("sdp", &*answer)];
        ok(ask(&mut bench, "subscribe answer", &answered));
        let mut copies = bench.streams.values();
        let copy = copies
            .find(|one| one.spec.copies.is_some())
            .expect("a copy");
        let [source, listener] = &copy.spec.sides;
        assert_eq!(numbers(&source.sends), [8], "{list}");
        assert_eq!(numbers(&listener.takes), [0], "{list}");
    }
}

#[test]
fn an_answer_has_no_excluded_suite_if_another_one_is_offered() {
    // This is documented: if no suite is left, the answer still has the first one of the offer.
    let line = |tag: u32, suite: &str| format!("a=crypto:{tag} {suite} inline:{KEY}\n");
    let (long, short) = ("AES_CM_128_HMAC_SHA1_80", "AES_CM_128_HMAC_SHA1_32");
    let both = line(1, long) + &line(2, short);
    for (lines, sdes, tag) in [
        (&both, format!("SDES-no-{long}"), 2),
        (&both, format!("SDES-only-{short}"), 2),
        (&both, format!("SDES-no-{long} SDES-only-{long}"), 1),
        (&both, format!("SDES-no-{long} SDES-nonew"), 1),
        (&line(1, long), format!("SDES-no-{long}"), 1),
    ] {
        let mut bench = Bench::default();
        let offer = sdp(ALICE, &format!("m=audio 4000 RTP/SAVP 0\n{lines}"));
        let asked = [("transport-protocol", "RTP/AVP"), ("rtpp-flags", &*sdes)];
        ok(bench.offer(&offer, &asked));
        let to_alice = sdp_of(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
        let found = attributes(&to_alice, "crypto")[0];
        assert!(
            found.starts_with(&format!("crypto:{tag} ")),
            "{sdes}: {found}"
        );
    }
}

#[test]
fn keys_are_recognised_in_capitals_and_small_letters() {
    let offer = sdp(ALICE, "m=audio 4000 RTP/AVP 0\na=test\na=sendrecv\n");
    let request = |more: &str| {
        let sdp = serde_json::to_string(&offer).expect("a text");
        let text =
            format!(r#"{{"command":"offer","call-id":"c","from-tag":"a","SDP":{sdp},{more}}}"#);
        let keys: Dictionary = json::decode(text.as_bytes()).expect("JSON");
        let request = threadbare_control::ng::Request::new(keys).expect("a request");
        let mut bench = Bench::default();
        let reply = sdp_of(bench.request(&request));
        assert_eq!(bench.calls.unknown_words(), 0, "{more}");
        reply
    };
    for more in [
        r#""SDP-attr":{"audio":{"remove":["test"]}}"#,
        r#""SDP attr":{"audio":{"remove":["test"]}}"#,
        r#""rtpp-flags":"SDP-attr=[audio=[remove=[test]]]""#,
        r#""flags":["SDP-attr-remove-audio-test"]"#,
    ] {
        assert!(!request(more).contains("a=test"), "{more}");
    }
    assert!(request(r#""flags":["no-rtcp-attribute"]"#).contains("a=test"));
}

#[test]
fn subscription_for_a_recording_server_has_labels() {
    // The labels are those of RFC 7866, section 7.1.1, and RFC 4574.
    for flag in ["SIPREC", "siprec"] {
        let mut bench = call();
        let flags = format!("all {flag}");
        let asked = [
            ("command", "subscribe request"),
            ("call-id", "c"),
            ("rtpp-flags", &*flags),
        ];
        let keys = ok(bench.ask(&asked));
        let offer = keys.get("sdp").and_then(Value::as_text).expect("an SDP");
        assert_eq!(attributes(offer, "label"), ["label:1", "label:2"]);
        // The text is a reply of Debian's rtpengine 10.5.3.5.
        let mut text = Vec::new();
        json::encode(&keys, &mut text);
        let reply: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let medium = |label: &str| serde_json::json!({"index": 1, "type": "audio", "mode": "sendrecv", "label": label});
        assert_eq!(
            reply["tag-medias"],
            serde_json::json!([
                {"tag": "a", "medias": [medium("1")]},
                {"tag": "b", "medias": [medium("2")]},
            ])
        );
        assert_eq!(
            reply["media-labels"]["2"],
            serde_json::json!({"index": 1, "type": "audio", "mode": "sendrecv", "tag": "b"})
        );
        assert_eq!(bench.calls.unknown_words(), 0);
    }
}

#[test]
fn a_trickle_ice_offer_without_candidates_does_not_hold_the_call() {
    // "0.0.0.0" and port 9 stand for ICE candidates that come later (RFC 8840, section 4.1.1).
    let mut bench = Bench::default();
    let lines = "m=audio 9 RTP/AVP 0\na=ice-ufrag:x\na=ice-pwd:y\na=ice-options:trickle\n";
    let to_bob = sdp_of(bench.offer(&sdp("0.0.0.0", lines), &[("ICE", "remove")]));
    assert!(to_bob.contains("c=IN IP4 203.0.113.7"), "{to_bob}");
    assert!(!to_bob.contains("sendonly"), "{to_bob}");
    ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
    let a = &bench.only().spec.sides[0];
    assert!(a.may_receive && a.may_send);
    // Until the party's packets show its address, it is unknown.
    assert_eq!((a.rtp, a.rtcp), (None, None));
    // Without ICE, the address of zeros is the old form of hold.
    let mut bench = Bench::default();
    let hold = "m=audio 9 RTP/AVP 0\n";
    let to_bob = sdp_of(bench.offer(&sdp("0.0.0.0", hold), &[]));
    assert!(to_bob.contains("sendonly"), "{to_bob}");
}

#[test]
fn transparent_audio_passes_with_its_keys() {
    let lines = format!(
        "m=audio 4000 UDP/TLS/RTP/SAVPF 111\na=rtpmap:111 opus/48000/2\na=fingerprint:sha-256 AA\na=setup:actpass\na=rtcp-mux\nm=audio 4002 RTP/SAVP 0\na=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:{KEY}\n"
    );
    let mut bench = Bench::default();
    let asked = [("transport-protocol", "transparent")];
    let to_bob = sdp_of(bench.offer(&sdp(ALICE, &lines), &asked));
    assert_eq!(
        media(&to_bob),
        [
            "m=audio 30002 UDP/TLS/RTP/SAVPF 111",
            "m=audio 30006 RTP/SAVP 0"
        ]
    );
    for line in ["fingerprint:", "setup:actpass", KEY] {
        assert!(to_bob.contains(line), "{line}: {to_bob}");
    }
    let answer = lines
        .replace("m=audio 4", "m=audio 5")
        .replace("actpass", "active");
    let to_alice = sdp_of(bench.answer(&sdp(BOB, &answer), &[]));
    assert!(
        to_alice.contains("setup:active") && to_alice.contains(KEY),
        "{to_alice}"
    );
    for carried in bench.streams.values() {
        assert_eq!(carried.spec.kind, StreamKind::Packets);
        assert!(carried.spec.sides.iter().all(|side| side.srtp.is_none()));
    }
}

#[test]
fn opportunistic_keys_are_accepted_by_request() {
    // The offer is RTP/AVP with a=crypto. An answer with a=crypto accepts SRTP, and one without it keeps RTP (RFC 8643, section 2).
    let offer = sdp(
        ALICE,
        &format!("{PCMU}a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:{KEY}\n"),
    );
    // If the request does not name the protocol, the keys are also offered to Bob, who decides.
    let accept = [("OSRTP", "accept")];
    let keyed = format!("{BOB_PCMU}a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:{KEY}\n");
    for (of_offer, answer, of_answer, is_secure) in [
        (&[][..], BOB_PCMU, &[][..], [false, false]),
        (&[], &*keyed, &[], [true, true]),
        (&accept, BOB_PCMU, &[], [true, false]),
        (&[], BOB_PCMU, &accept, [true, false]),
    ] {
        let mut bench = Bench::default();
        let to_bob = sdp_of(bench.offer(&offer, of_offer));
        assert_eq!(media(&to_bob), ["m=audio 30002 RTP/AVP 0"]);
        assert_eq!(attributes(&to_bob, "crypto").len(), 5, "{to_bob}");
        let to_alice = sdp_of(bench.answer(&sdp(BOB, answer), of_answer));
        assert_eq!(media(&to_alice), ["m=audio 30000 RTP/AVP 0"]);
        let keys = attributes(&to_alice, "crypto").len();
        assert_eq!(keys, usize::from(is_secure[0]), "{to_alice}");
        let sides = bench.only().spec.sides.each_ref();
        assert_eq!(sides.map(|side| side.srtp.is_some()), is_secure);
    }
    // A request that names the protocol does not pass on the keys, and neither does one that switches SDES off.
    for asked in [("transport-protocol", "RTP/AVP"), ("SDES", "off")] {
        let to_bob = sdp_of(Bench::default().offer(&offer, &[asked]));
        assert!(!to_bob.contains("a=crypto"), "{to_bob}");
    }
}

#[test]
fn opportunistic_keys_are_offered_by_request() {
    for is_accepted in [false, true] {
        let mut bench = Bench::default();
        let to_bob = sdp_of(bench.offer(&sdp(ALICE, PCMU), &[("OSRTP", "offer")]));
        assert_eq!(media(&to_bob), ["m=audio 30002 RTP/AVP 0"]);
        let ours = attributes(&to_bob, "crypto");
        assert_eq!(ours.len(), 5, "{to_bob}");
        let key = format!("a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:{KEY}\n");
        let answer = format!("{BOB_PCMU}{}", if is_accepted { &*key } else { "" });
        let to_alice = sdp_of(bench.answer(&sdp(BOB, &answer), &[]));
        assert!(!to_alice.contains("a=crypto"), "{to_alice}");
        let [a, b] = &bench.only().spec.sides;
        let sent = b.srtp.as_ref().map(|keys| keys.send.clone());
        let first = Crypto::parse(ours[0].trim_start_matches("crypto:")).expect("a line");
        assert_eq!(sent, is_accepted.then_some(first.key));
        assert!(a.srtp.is_none());
    }
}

#[test]
fn unsupported_words_cause_one_warning() {
    for (key, value, word) in [
        ("flags", "RTCP-mirror", "RTCP-mirror"),
        ("flags", "rtcp mirror", "rtcp-mirror"),
        ("rtpp-flags", "pierce-NAT pierce-NAT", "pierce-NAT"),
        ("DTMF-log-dest", "192.0.2.1:1", "DTMF-log-dest"),
        ("xmlrpc-callback", "192.0.2.1", "xmlrpc-callback"),
        ("OSRTP", "accept-legacy", "OSRTP accept-legacy"),
        ("rtpp-flags", "codec-transcode-CN", "codec-transcode CN"),
    ] {
        let mut bench = Bench::default();
        let reply = ok(bench.offer(&sdp(ALICE, PCMU), &[(key, value)]));
        let told = warning(&reply);
        assert_eq!(told.matches(word).count(), 1, "{key} {value}: {told}");
        let answered = ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
        assert_eq!(warning(&answered), "", "{key} {value}");
    }
}

#[test]
fn warnings_of_words_follow_those_of_lines() {
    let lines = format!("{PCMU}m=audio 4002 RTP/SAVP 0\n");
    let mut bench = Bench::default();
    let reply = ok(bench.offer(&sdp(ALICE, &lines), &[("flags", "RTCP-mirror")]));
    let told = warning(&reply);
    let line = told.find("m= line 2");
    assert!(
        line.is_some() && line < told.find("; RTCP-mirror: "),
        "{told}"
    );
}

#[test]
fn media_are_removed_by_request() {
    let lines = format!("{PCMU}m=video 4002 RTP/AVP 96\n");
    for (key, value) in [
        ("sdp-media-remove", "video"),
        ("rtpp-flags", "sdp-media-remove=[video message]"),
        ("flags", "sdp-media-remove-video"),
    ] {
        let mut bench = Bench::default();
        let to_bob = sdp_of(bench.offer(&sdp(ALICE, &lines), &[(key, value)]));
        assert_eq!(
            media(&to_bob),
            ["m=audio 30002 RTP/AVP 0", "m=video 0 RTP/AVP 96"]
        );
        let to_alice = sdp_of(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
        assert_eq!(
            media(&to_alice),
            ["m=audio 30000 RTP/AVP 0", "m=video 0 RTP/AVP 96"]
        );
    }
}

#[test]
fn line_that_the_rules_leave_without_codecs_is_rejected_by_request() {
    let lines = format!("{PCMU}m=audio 4002 RTP/AVP 8\n");
    let mut bench = Bench::default();
    let flags = [("rtpp-flags", "allow-no-codec-media codec-strip-PCMA")];
    let reply = ok(bench.offer(&sdp(ALICE, &lines), &flags));
    let to_bob = reply.get("sdp").and_then(Value::as_text).expect("an SDP");
    assert_eq!(
        media(to_bob),
        ["m=audio 30002 RTP/AVP 0", "m=audio 0 RTP/AVP 8"]
    );
    // A line that is rejected by request needs no warning.
    assert_eq!(warning(&reply), "");
    let only = sdp(ALICE, "m=audio 4002 RTP/AVP 8\n");
    let reason = error(bench.offer(&only, &[flags[0], ("call-id", "d")]));
    assert!(reason.contains("allow-no-codec-media"), "{reason}");
}
