//! Calls of one offer and one answer.

use threadbare_control::calls::StreamKind;
use threadbare_control::fuzzing::Bench;
use threadbare_rtp_types::learn::{Learn, Once};

use super::common::*;

#[test]
fn a_call_with_plain_rtp_is_relayed() {
    let mut bench = Bench::default();
    let offer = sdp(
        ALICE,
        "m=audio 4000 RTP/AVP 0 8 101\na=rtpmap:101 telephone-event/8000\na=x-own:1\na=rtcp:4007\n",
    );
    let to_bob = sdp_of(bench.offer(&offer, &[]));
    // There is "For each audio m-line a local port pair (even RTP, odd RTCP)", with the advertised address. Unknown lines are passed on in
    // their order.
    let expected = "v=0\no=- 1 1 IN IP4 198.51.100.1\ns=-\nc=IN IP4 203.0.113.7\nt=0 0\n\
        m=audio 30002 RTP/AVP 0 8 101\na=rtpmap:101 telephone-event/8000\na=x-own:1\na=rtcp:30003\n";
    assert_eq!(to_bob, expected.replace('\n', "\r\n"));
    assert!(bench.streams.is_empty(), "nothing runs before the answer");

    let answer = sdp(
        BOB,
        "m=audio 5000 RTP/AVP 8 101\na=rtpmap:101 telephone-event/8000\n",
    );
    let to_alice = sdp_of(bench.answer(&answer, &[]));
    assert!(to_alice.contains("c=IN IP4 203.0.113.7\r\n"), "{to_alice}");
    assert!(
        to_alice.contains("m=audio 30000 RTP/AVP 8 101\r\n"),
        "{to_alice}"
    );

    let stream = bench.only();
    assert_eq!(
        stream.ports.each_ref().map(|ports| ports.number),
        [30_000, 30_002]
    );
    assert_eq!(stream.spec.kind, StreamKind::Audio);
    let [a, b] = &stream.spec.sides;
    assert_eq!(a.rtp, Some("198.51.100.1:4000".parse().unwrap()));
    assert_eq!(a.rtcp, Some("198.51.100.1:4007".parse().unwrap()));
    assert_eq!(b.rtp, Some("198.51.100.2:5000".parse().unwrap()));
    assert_eq!(b.rtcp, Some("198.51.100.2:5001".parse().unwrap()));
    assert_eq!(a.learn, Learn::Once(Once::default()));
    for side in [a, b] {
        assert!(side.may_send && side.may_receive && side.srtp.is_none() && !side.mux);
        let numbers: Vec<u8> = side
            .takes
            .iter()
            .flat_map(|map| map.iter())
            .map(|one| one.payload_type.0)
            .collect();
        assert_eq!(numbers, [8, 101]);
    }

    ok(bench.ask(&[
        ("command", "delete"),
        ("call-id", "c"),
        ("from-tag", "a"),
        ("delete-delay", "0"),
    ]));
    assert!(bench.streams.is_empty() && bench.ports.open().is_empty() && bench.calls.is_empty());
    let record = &bench.ended[0];
    assert_eq!(record.reason.name(), "deleted");
    assert_eq!(record.streams[0].sides[1].tag, "b");
    assert_eq!(
        record.streams[0].sides[1].codec.as_deref(),
        Some("PCMA/8000")
    );
}

#[test]
fn a_refused_offer_leaves_no_call_and_no_ports() {
    let mut bench = Bench::default();
    let offer = sdp(ALICE, PCMU);
    for (key, value) in [
        ("direction", "elsewhere"),
        ("transport-protocol", "UDP/TLS/RTP/SAVPF"),
        ("media-address", "here"),
        ("address-family", "IPX"),
        ("rtcp-mux", "sometimes"),
    ] {
        let reason = error(bench.offer(&offer, &[(key, value)]));
        assert!(reason.contains(key) && reason.contains(value), "{reason}");
    }
    error(bench.offer("v=1", &[]));
    let dtls = sdp(
        ALICE,
        "m=audio 4000 UDP/TLS/RTP/SAVPF 0\na=fingerprint:sha-256 AA\n",
    );
    assert!(error(bench.offer(&dtls, &[])).contains("DTLS"));
    bench.ports.most = 1;
    assert!(error(bench.offer(&offer, &[])).contains("no port"));
    assert!(bench.calls.is_empty() && bench.ports.open().is_empty());
    assert_eq!(bench.calls.next_timeout(), None);
}
