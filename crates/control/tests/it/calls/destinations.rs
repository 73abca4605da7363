//! Addresses in descriptions to which no media may be sent.

use std::sync::Arc;

use threadbare_control::fuzzing::Bench;
use threadbare_control::ng::{Dictionary, Value};
use threadbare_rtp_types::policy::{MediaPolicy, MediaPorts};

use super::common::*;

/// Creates a registry whose calls have ports at the address of the test bench.
fn bench() -> Bench {
    let mut bench = Bench::default();
    let at = [203, 0, 113, 7].into();
    let media = MediaPorts {
        address: at,
        advertised: at,
        first: 30_000,
        last: 40_000,
        moves: false,
    };
    bench.calls.set_media_policy(Arc::new(MediaPolicy {
        services: vec![2223],
        media: vec![media],
        ..MediaPolicy::default()
    }));
    bench
}

fn warning(keys: &Dictionary) -> Option<&str> {
    keys.get("warning").and_then(Value::as_text)
}

#[test]
fn forbidden_address_rejects_only_its_line() {
    let mut bench = bench();
    let lines = "m=audio 4000 RTP/AVP 0\nm=image 2223 udptl t38\nc=IN IP4 127.0.0.1\n";
    let offered = ok(bench.offer(&sdp(ALICE, lines), &[]));
    let expected =
        "m= line 2: RTP is not sent to 127.0.0.1:2223: a service of this machine uses the address";
    assert_eq!(warning(&offered), Some(expected));
    let lines = "m=audio 5000 RTP/AVP 0\na=rtcp:2223 IN IP4 127.0.0.1\nm=image 5002 udptl t38\n";
    let answered = ok(bench.answer(&sdp(BOB, lines), &[]));
    let rtcp =
        "m= line 1: RTCP is not sent to 127.0.0.1:2223: a service of this machine uses the address";
    assert_eq!(warning(&answered), Some(&*format!("{rtcp}; {expected}")));
    let of = |kind: usize| {
        let (_, _, spec, _) = &bench.carried()[kind];
        spec.sides.each_ref().map(|side| (side.rtp, side.rtcp))
    };
    let at = |text: &str| Some(text.parse().unwrap());
    let alice = (at("198.51.100.1:4000"), at("198.51.100.1:4001"));
    assert_eq!(of(0), [alice, (at("198.51.100.2:5000"), None)]);
    assert_eq!(of(1), [(None, None), (at("198.51.100.2:5002"), None)]);
}

/// A re-offer with a forbidden address replaces the allowed one: nothing is sent to the party from then on.
#[test]
fn after_a_re_offer_with_a_forbidden_address_nothing_is_sent() {
    let mut bench = bench();
    let image = "m=image 4000 udptl t38\n";
    ok(bench.offer(&sdp(ALICE, image), &[]));
    ok(bench.answer(&sdp(BOB, image), &[]));
    assert_eq!(
        bench.only().spec.sides[0].rtp,
        Some("198.51.100.1:4000".parse().unwrap())
    );
    ok(bench.offer(&sdp("127.0.0.1", image), &[("to-tag", "b")]));
    ok(bench.answer(&sdp(BOB, image), &[]));
    assert_eq!(bench.only().spec.sides[0].rtp, None);
}
