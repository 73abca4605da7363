//! An unusable line affects only itself, because each stream is accepted or rejected separately (RFC 3264, section 6).

use proptest::prelude::*;
use threadbare_control::fuzzing::Bench;

use super::common::*;

const GOOD: &str = "m=audio 4000 RTP/AVP 8\na=rtpmap:8 PCMA/8000\n";
const BOB_GOOD: &str = "m=audio 5000 RTP/AVP 8\n";

/// Unusable second lines: the line, its form for the other side, and a word of the warning.
const UNUSABLE: &[(&str, &str, &str)] = &[
    (
        "m=audio 5002 UDP/TLS/RTP/SAVPF 111\na=rtpmap:111 opus/48000/2\na=fingerprint:sha-256 AA:BB\na=setup:actpass\n",
        "m=audio 0 UDP/TLS/RTP/SAVPF 111",
        "DTLS",
    ),
    (
        "m=audio 5002 RTP/SAVP 8\n",
        "m=audio 0 RTP/SAVP 8",
        "without a key",
    ),
    (
        "m=audio 5002 RTP/AVP 101\na=rtpmap:101 telephone-event/8000\n",
        "m=audio 0 RTP/AVP 101",
        "codec",
    ),
    (
        "m=audio 5002 RTP/AVP 110\n",
        "m=audio 0 RTP/AVP 110",
        "codec",
    ),
    (
        "m=audio 5002 RTP/AVP 255\n",
        "m=audio 0 RTP/AVP 255",
        "codec",
    ),
    (
        "m=video 5002 RTP/AVP 96\nc=IN IP6 fe80::1%eth0\na=rtpmap:96 VP8/90000\n",
        "m=video 0 RTP/AVP 96",
        "fe80::1%eth0",
    ),
    ("m=audio x RTP/AVP 0\n", "m=audio 0 RTP/AVP 0", "m=audio x"),
    ("m=audio\n", "m=audio 0 RTP/AVP 0", "m=audio"),
    (
        "m=application 5002 UDP/DTLS/SCTP webrtc-datachannel\n",
        "m=application 0 UDP/DTLS/SCTP webrtc-datachannel",
        "UDP/DTLS/SCTP",
    ),
];

#[test]
fn only_the_unusable_line_of_an_offer_is_rejected() {
    for (line, rejected, word) in UNUSABLE {
        for (lines, bad) in [
            (format!("{GOOD}{line}"), 1),
            (format!("{line}{GOOD}"), 0_usize),
        ] {
            let mut bench = Bench::default();
            let reply = ok(bench.offer(&sdp(ALICE, &lines), &[]));
            let to_bob = text(&reply);
            let found = media(to_bob);
            assert_eq!(found.len(), 2, "{to_bob}");
            assert_eq!(found[bad], *rejected);
            assert!(found[1 - bad].starts_with("m=audio 3000"), "{to_bob}");
            // Neither this address nor a malformed one is passed on.
            assert!(!to_bob.contains("%eth0"), "{to_bob}");
            let named = format!("m= line {}", bad + 1);
            let warning = warning(&reply);
            assert!(
                warning.contains(&named) && warning.contains(word),
                "{warning}"
            );
            // Bob rejects the line with other formats, but A's answer has those of the offer.
            let refused = "m=audio 0 RTP/AVP 18\n";
            let answer = match bad {
                0 => format!("{refused}{BOB_GOOD}"),
                _ => format!("{BOB_GOOD}{refused}"),
            };
            let to_alice = sdp_of(bench.answer(&sdp(BOB, &answer), &[]));
            assert_eq!(media(&to_alice)[bad], *rejected, "{to_alice}");
            assert_eq!(bench.streams.len(), 1);
        }
    }
}

fn text(reply: &threadbare_control::ng::Dictionary) -> &str {
    let sdp = reply.get("sdp");
    sdp.and_then(threadbare_control::ng::Value::as_text)
        .expect("an SDP")
}

#[test]
fn offer_without_a_usable_line_is_refused_with_all_reasons() {
    let mut bench = Bench::default();
    let lines = "m=audio 4000 RTP/SAVP 8\nm=audio 4002 RTP/AVP 255\n";
    let reason = error(bench.offer(&sdp(ALICE, lines), &[]));
    for word in ["m= line 1", "without a key", "m= line 2", "codec"] {
        assert!(reason.contains(word), "{reason}");
    }
    assert!(bench.calls.is_empty() && bench.ports.open().is_empty());
    // Lines that their author rejects do not count as unusable.
    ok(bench.offer(&sdp(ALICE, "m=audio 0 RTP/AVP 8\n"), &[]));
}

#[test]
fn only_the_unusable_line_of_an_answer_is_rejected() {
    let two = format!("{GOOD}m=audio 4002 RTP/AVP 8\n");
    for (line, word) in [
        ("m=audio 6002 RTP/AVP 3\n", "codec"),
        ("m=audio 6002 RTP/AVP 255\n", "codec"),
        ("m=audio 6002 RTP/AVP 8\nc=IN IP4 1.2.3\n", "c="),
        ("m=audio 6002\n", "m=audio 6002"),
    ] {
        let mut bench = Bench::default();
        ok(bench.offer(&sdp(ALICE, &two), &[]));
        let reply = ok(bench.answer(&sdp(BOB, &format!("{BOB_GOOD}{line}")), &[]));
        let found = media(text(&reply));
        assert_eq!(found[0], "m=audio 30000 RTP/AVP 8");
        assert_eq!(found[1], "m=audio 0 RTP/AVP 8");
        let warning = warning(&reply);
        assert!(
            warning.contains("m= line 2") && warning.contains(word),
            "{warning}"
        );
        assert_eq!(bench.streams.len(), 1);
    }
    // The answer lacks the key.
    let mut bench = Bench::default();
    let savp = [("transport-protocol", "RTP/SAVP")];
    let to_bob = sdp_of(bench.offer(&sdp(ALICE, &two), &savp));
    let key = to_bob
        .lines()
        .find(|line| line.starts_with("a=crypto:1 "))
        .expect("a key");
    let answer = format!("m=audio 5000 RTP/SAVP 8\n{key}\nm=audio 5002 RTP/SAVP 8\n");
    let reply = ok(bench.answer(&sdp(BOB, &answer), &[]));
    assert_eq!(media(text(&reply))[1], "m=audio 0 RTP/AVP 8");
    assert!(warning(&reply).contains("m= line 2"), "{reply:?}");
    assert_eq!(bench.streams.len(), 1);
}

#[test]
fn answer_without_a_usable_line_is_refused_and_changes_nothing() {
    let mut bench = call();
    let before = bench.only().spec.clone();
    let two = format!("{PCMU}m=audio 4002 RTP/AVP 0\n");
    ok(bench.offer(&sdp(ALICE, &two), &[("to-tag", "b")]));
    let bad = "m=audio 5000 RTP/AVP 3\nm=audio 5002 RTP/AVP 255\n";
    let reason = error(bench.answer(&sdp(BOB, bad), &[]));
    assert!(
        reason.contains("m= line 1") && reason.contains("m= line 2"),
        "{reason}"
    );
    assert_eq!(bench.only().spec, before);
}

#[test]
fn answer_with_fewer_lines_is_completed() {
    // The answer has too few lines. "The answer to an offer MUST contain exactly the same number of m-lines" (RFC 3264, section 6).
    let mut bench = Bench::default();
    let two = format!("{GOOD}m=video 4002 RTP/AVP 96 97\n");
    ok(bench.offer(&sdp(ALICE, &two), &[]));
    for end in ["", "\n", "a=x"] {
        let answer = sdp(BOB, &format!("{BOB_GOOD}{end}"));
        let to_alice = sdp_of(bench.answer(&answer, &[]));
        assert_eq!(
            media(&to_alice),
            ["m=audio 30000 RTP/AVP 8", "m=video 0 RTP/AVP 96 97"]
        );
        let head = to_alice.split("\r\n\r\n").next().expect("a head");
        assert!(head.contains("m=video 0"), "{to_alice}");
    }
}

#[test]
fn a_malformed_attribute_is_ignored_with_a_warning() {
    for (attribute, gone) in [
        ("a=rtcp:\n", "a=rtcp:\r\n"),
        ("a=rtcp:x\n", "a=rtcp:x"),
        ("a=rtcp:4001 IN IP4 ::1\n", "::1"),
        ("a=ptime:20ms\n", "20ms"),
        ("a=fmtp:8\n", "a=fmtp:8\r\n"),
        ("a=fmtp:\n", "a=fmtp:\r\n"),
        ("a=rtpmap:\n", "a=rtpmap:\r\n"),
    ] {
        let mut bench = Bench::default();
        let reply = ok(bench.offer(&sdp(ALICE, &format!("{GOOD}{attribute}")), &[]));
        let to_bob = text(&reply);
        assert_eq!(media(to_bob), ["m=audio 30002 RTP/AVP 8"]);
        assert!(!to_bob.contains(gone), "{to_bob}");
        let warning = warning(&reply);
        assert!(
            warning.contains("m= line 1") && warning.contains(attribute.trim_end()),
            "{warning}"
        );
        let reply = ok(bench.answer(&sdp(BOB, &format!("{BOB_GOOD}{attribute}")), &[]));
        assert!(reply.get("warning").is_some(), "{attribute}");
        let [a, b] = &bench.only().spec.sides;
        // Without the attribute, RTCP uses the next port (RFC 3605).
        assert_eq!(a.rtcp, Some(format!("{ALICE}:4001").parse().expect("one")));
        assert_eq!(b.rtcp, Some(format!("{BOB}:5001").parse().expect("one")));
    }
}

#[test]
fn good_description_has_no_warning() {
    let mut bench = Bench::default();
    assert_eq!(warning(&ok(bench.offer(&sdp(ALICE, GOOD), &[]))), "");
    assert_eq!(warning(&ok(bench.answer(&sdp(BOB, BOB_GOOD), &[]))), "");
}

#[test]
fn lines_above_the_limit_are_rejected() {
    let mut bench = Bench::default();
    let lines: String = (0..17)
        .map(|at| format!("m=audio {} RTP/AVP 8\n", 4000 + 2 * at))
        .collect();
    let reply = ok(bench.offer(&sdp(ALICE, &lines), &[]));
    let found = media(text(&reply));
    let rejected: Vec<usize> = (0..17)
        .filter(|at| found[*at].starts_with("m=audio 0 "))
        .collect();
    assert_eq!(rejected, [16]);
    assert!(warning(&reply).contains("m= line 17"), "{reply:?}");
}

#[test]
fn new_lines_are_inserted_before_a_blank_line() {
    // RFC 8866 has no empty lines, and many parsers stop at the first one.
    for end in ["\r\n", "\n"] {
        for rest in ["", "a=direction:active"] {
            let mut bench = Bench::default();
            let offer = sdp(ALICE, "m=audio 4000 RTP/AVP 0\na=sendrecv\n").replace("\r\n", end);
            let offer = format!("{offer}{end}{rest}");
            let asked = [("transport-protocol", "RTP/SAVP"), ("rtcp-mux", "offer")];
            let to_bob = sdp_of(bench.offer(&offer, &asked));
            let blank = format!("{end}{end}");
            let (head, behind) = to_bob.split_once(&blank).expect("the blank line stays");
            for line in ["a=crypto:1 ", "a=rtcp-mux", "a=rtcp:"] {
                assert!(head.contains(line), "{line}: {to_bob}");
            }
            assert_eq!(behind, rest);
        }
    }
    // The line is between two media.
    let mut bench = Bench::default();
    let to_bob = sdp_of(bench.offer(&sdp(ALICE, &format!("{GOOD}\n{GOOD}")), &[]));
    let (first, second) = to_bob.split_once("\r\n\r\n").expect("the blank line stays");
    assert!(
        first.contains("a=rtcp:30003") && second.contains("a=rtcp:30007"),
        "{to_bob}"
    );
}

#[test]
fn datagrams_of_other_protocols_are_relayed() {
    for line in [
        "m=application 4000 UDP/BFCP *",
        "m=image 4000 UDPTL t38",
        "m=application 4000 udp x",
        "m=video 4000 rtp/avp 96",
    ] {
        let mut bench = Bench::default();
        let to_bob = sdp_of(bench.offer(&sdp(ALICE, &format!("{line}\n")), &[]));
        assert_eq!(media(&to_bob), [line.replace("4000", "30002")]);
        ok(bench.answer(
            &sdp(BOB, &format!("{}\n", line.replace("4000", "5000"))),
            &[],
        ));
        assert_eq!(bench.streams.len(), 1, "{line}");
    }
    for line in [
        "m=application 4000 UDP/TLS/BFCP *",
        "m=image 4000 UDP/TLS/UDPTL t38",
        "m=application 4000 DTLS/SCTP 5000",
    ] {
        let mut bench = Bench::default();
        let reply = ok(bench.offer(&sdp(ALICE, &format!("{GOOD}{line}\n")), &[]));
        assert_eq!(media(text(&reply))[1], line.replace("4000", "0"));
    }
}

#[test]
fn lines_for_tcp_between_the_parties_pass_unchanged() {
    let chat = "m=message 4000 TCP/TLS/MSRP *\na=setup:active\na=fingerprint:SHA-1 AA\na=path:msrps://198.51.100.1:4000/x;tcp\n";
    for (own, line) in [("", chat), (GOOD, chat)] {
        let mut bench = Bench::default();
        let reply = ok(bench.offer(&sdp(ALICE, &format!("{own}{line}")), &[]));
        let to_bob = text(&reply);
        let (first, rest) = chat.split_once('\n').unwrap();
        let expected = match own {
            // The description has only this line.
            "" => format!("c=IN IP4 {ALICE}\nt=0 0\n{chat}"),
            _ => format!("{first}\nc=IN IP4 {ALICE}\n{rest}"),
        };
        assert!(to_bob.contains(&expected.replace('\n', "\r\n")), "{to_bob}");
        assert_eq!(warning(&reply), "");
        // The answer is forwarded too. Port 0 ends the connection.
        for port in ["5000", "0"] {
            let line = format!("m=message {port} TCP/TLS/MSRP *\n");
            let own = own.replace("4000", "5002");
            let reply = ok(bench.answer(&sdp(BOB, &format!("{own}{line}")), &[]));
            let last = media(text(&reply)).pop().unwrap().to_owned();
            assert_eq!(last, line.trim_end());
        }
    }
}

/// Returns usable and unusable lines with their attributes.
fn some_line() -> impl Strategy<Value = String> {
    let usable = [
        GOOD,
        "m=audio 4002 RTP/AVP 0 101\na=rtpmap:101 telephone-event/8000\na=rtcp-mux\n",
        "m=audio 4004 RTP/SAVP 0\na=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:WVNfX19zZW1jdGwgKCkgewkyMjA7fQp9CnVubGVz\n",
        "m=audio 4006 RTP/AVP 96\nc=IN IP6 2001:db8::5\na=rtpmap:96 opus/48000\na=ptime:20ms\n",
        "m=audio 4008 RTP/AVP 0\nc=IN IP4 0.0.0.0\n",
        "m=video 4010 RTP/AVP 96\na=rtcp:\na=sendonly\n",
        "m=application 4012 UDP/BFCP *\n",
        "m=message 4014 TCP/MSRP *\na=setup:active\n",
        "m=audio 0 RTP/AVP 0\n",
    ];
    let unusable = UNUSABLE.iter().map(|(line, ..)| *line);
    let all: Vec<String> = usable
        .into_iter()
        .chain(unusable)
        .map(str::to_owned)
        .collect();
    prop::sample::select(all)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn an_unusable_line_does_not_affect_a_usable_one(
        lines in prop::collection::vec(some_line(), 1..6),
        other in some_line(),
    ) {
        let asked = sdp(ALICE, &lines.concat()).replace("t=0 0\r\n", "t=0 0\r\na=tool:x\r\n");
        threadbare_control::fuzzing::lines_stand_alone(asked.as_bytes());
        let more = sdp(ALICE, &[other, lines.concat()].concat());
        threadbare_control::fuzzing::lines_stand_alone(more.as_bytes());
    }
}
