//! Calls that change: re-offers, hold, forks, transfers.

use threadbare_control::fuzzing::Bench;
use threadbare_control::ng::Reply;

use super::common::*;

const BOB_PCMU: &str = "m=audio 5000 RTP/AVP 0\n";

#[test]
fn a_re_offer_keeps_ports_and_changes_nothing_before_its_answer() {
    // The relay's ports stay. "the offerer MUST be prepared to receive media on both the old and new ports as soon as the offer is sent"
    // (RFC 3264, section 8.3.1).
    let mut bench = call();
    let before = bench.only().spec.clone();
    let to_bob = sdp_of(bench.offer(&sdp(ALICE, "m=audio 4100 RTP/AVP 0\n"), &[("to-tag", "b")]));
    assert!(to_bob.contains("m=audio 30002 "), "{to_bob}");
    assert_eq!(bench.only().spec, before);
    assert_eq!(bench.only().updates, 0);
    let to_alice = sdp_of(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
    assert!(to_alice.contains("m=audio 30000 "), "{to_alice}");
    assert_eq!(bench.only().updates, 1);
    assert_eq!(
        bench.only().spec.sides[0].rtp,
        Some("198.51.100.1:4100".parse().unwrap())
    );
    assert_eq!(bench.ports.open().len(), 2);
}

#[test]
fn the_callee_re_offers_with_the_tags_swapped() {
    let mut bench = call();
    let keys = [
        ("command", "offer"),
        ("call-id", "c"),
        ("from-tag", "b"),
        ("to-tag", "a"),
    ];
    let offer = sdp(BOB, "m=audio 5100 RTP/AVP 0\n");
    let to_alice = sdp_of(bench.ask(&with(&keys, &[("sdp", &offer)])));
    assert!(to_alice.contains("m=audio 30000 "), "{to_alice}");
    let keys = [
        ("command", "answer"),
        ("call-id", "c"),
        ("from-tag", "b"),
        ("to-tag", "a"),
    ];
    let to_bob = sdp_of(bench.ask(&with(&keys, &[("sdp", &sdp(ALICE, PCMU))])));
    assert!(to_bob.contains("m=audio 30002 "), "{to_bob}");
    let spec = &bench.only().spec;
    assert_eq!(
        spec.sides[0].rtp,
        Some("198.51.100.1:4000".parse().unwrap())
    );
    assert_eq!(
        spec.sides[1].rtp,
        Some("198.51.100.2:5100".parse().unwrap())
    );
}

#[test]
fn repeated_answer_changes_nothing() {
    let mut bench = call();
    let again = sdp_of(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
    assert!(again.contains("m=audio 30000 "), "{again}");
    assert_eq!(bench.only().updates, 0);
}

#[test]
fn a_held_call_resumes() {
    // This is hold by "sendonly", answered by "recvonly" (RFC 3264, section 8.4).
    let mut bench = call();
    ok(bench.offer(
        &sdp(ALICE, &format!("{PCMU}a=sendonly\n")),
        &[("to-tag", "b")],
    ));
    ok(bench.answer(&sdp(BOB, &format!("{BOB_PCMU}a=recvonly\n")), &[]));
    let [a, b] = &bench.only().spec.sides;
    assert!(a.may_send && !a.may_receive && !b.may_send && b.may_receive);
    ok(bench.offer(&sdp(ALICE, PCMU), &[("to-tag", "b")]));
    ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
    let [a, b] = &bench.only().spec.sides;
    assert!(a.may_send && a.may_receive && b.may_send && b.may_receive);
}

#[test]
fn an_address_of_zeros_puts_the_party_on_hold() {
    // This is hold by a zero address. "a media section with a zero IP address would come out as `sendonly` or `inactive`", and "the zero
    // address in the SDP is passed through".
    let mut bench = call();
    let hold = sdp("0.0.0.0", PCMU);
    let to_bob = sdp_of(bench.offer(&hold, &[("to-tag", "b")]));
    assert!(
        to_bob.contains("c=IN IP4 0.0.0.0\r\n") && to_bob.contains("a=sendonly\r\n"),
        "{to_bob}"
    );
    // "With this option set, the zero address is replaced with a real address."
    let to_bob = sdp_of(bench.offer(&hold, &[("to-tag", "b"), ("replace", "zero-address")]));
    assert!(
        to_bob.contains("c=IN IP4 203.0.113.7\r\n") && to_bob.contains("a=sendonly\r\n"),
        "{to_bob}"
    );
    // The flag "will leave the media direction attributes [...] unchanged".
    let to_bob = sdp_of(bench.offer(&hold, &[("to-tag", "b"), ("flags", "original-sendrecv")]));
    assert!(!to_bob.contains("sendonly"), "{to_bob}");
    ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
    let [a, _] = &bench.only().spec.sides;
    assert!(a.may_send && !a.may_receive);
    // The hold address does not replace the party's address.
    assert_eq!(a.rtp, Some("198.51.100.1:4000".parse().unwrap()));
}

#[test]
fn a_line_can_be_added_rejected_and_accepted_again() {
    // Media are added, removed and changed (RFC 3264, sections 8.1 to 8.3).
    let mut bench = call();
    let video = "m=video 4002 RTP/AVP 96\na=rtpmap:96 VP8/90000\n";
    let both = sdp(ALICE, &format!("{PCMU}{video}"));
    let to_bob = sdp_of(bench.offer(&both, &[("to-tag", "b")]));
    assert!(
        to_bob.contains("m=audio 30002 ") && to_bob.contains("m=video 30006 "),
        "{to_bob}"
    );
    ok(bench.answer(
        &sdp(BOB, &format!("{BOB_PCMU}m=video 5002 RTP/AVP 96\n")),
        &[],
    ));
    assert_eq!(bench.streams.len(), 2);
    // The audio ends, and the video stays.
    let end = sdp(ALICE, &format!("m=audio 0 RTP/AVP 0\n{video}"));
    let to_bob = sdp_of(bench.offer(&end, &[("to-tag", "b")]));
    assert!(
        to_bob.contains("m=audio 0 ") && to_bob.contains("m=video 30006 "),
        "{to_bob}"
    );
    assert_eq!(bench.streams.len(), 2);
    let to_alice = sdp_of(bench.answer(
        &sdp(BOB, "m=audio 0 RTP/AVP 0\nm=video 5002 RTP/AVP 96\n"),
        &[],
    ));
    assert!(to_alice.contains("m=audio 0 "), "{to_alice}");
    assert_eq!(bench.streams.len(), 1);
    assert_eq!(bench.ports.open().len(), 2);
    // The audio returns on other ports.
    let to_bob = sdp_of(bench.offer(&both, &[("to-tag", "b")]));
    assert!(to_bob.contains("m=audio 30010 "), "{to_bob}");
    ok(bench.answer(
        &sdp(BOB, &format!("{BOB_PCMU}m=video 5002 RTP/AVP 96\n")),
        &[],
    ));
    assert_eq!(bench.streams.len(), 2);
}

#[test]
fn an_offer_without_an_answer_leaves_the_old_state() {
    let mut bench = call();
    let before = bench.only().spec.clone();
    let other = sdp(ALICE, "m=image 4000 udptl t38\n");
    ok(bench.offer(&other, &[("to-tag", "b")]));
    assert_eq!(bench.ports.open().len(), 4);
    // The offer is refused (488), and the caller keeps its audio.
    ok(bench.offer(&sdp(ALICE, PCMU), &[("to-tag", "b")]));
    assert_eq!(bench.ports.open().len(), 2);
    ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
    assert_eq!(bench.only().spec, before);
    assert_eq!(bench.only().updates, 0);
}

#[test]
fn a_re_offer_replaces_audio_by_fax() {
    let mut bench = call();
    let to_bob = sdp_of(bench.offer(
        &sdp(ALICE, "m=image 4000 udptl t38\na=T38FaxVersion:0\n"),
        &[("to-tag", "b")],
    ));
    assert!(
        to_bob.contains("m=image 30006 udptl t38\r\na=T38FaxVersion:0\r\n"),
        "{to_bob}"
    );
    ok(bench.answer(&sdp(BOB, "m=image 5000 udptl t38\n"), &[]));
    assert_eq!(bench.only().ports[0].number, 30_004);
    // T.38 fax has no RTCP.
    assert_eq!(bench.only().spec.sides[0].rtcp, None);
    assert_eq!(bench.ports.open().len(), 2);
}

#[test]
fn each_branch_of_a_forked_call_has_its_own_ports() {
    let mut bench = Bench::default();
    let offer = sdp(ALICE, PCMU);
    let first = sdp_of(bench.offer(&offer, &[("via-branch", "1")]));
    let second = sdp_of(bench.offer(&offer, &[("via-branch", "2")]));
    assert!(first.contains("m=audio 30002 ") && second.contains("m=audio 30006 "));
    // A second offer on the same branch is not a fork.
    let again = sdp_of(bench.offer(&offer, &[("via-branch", "1")]));
    assert_eq!(first, again);
    let to_alice = sdp_of(bench.answer(&sdp(BOB, BOB_PCMU), &[("via-branch", "1")]));
    assert!(to_alice.contains("m=audio 30000 "), "{to_alice}");
    assert_eq!(bench.streams.len(), 1);
    // The answered branch ends. The other branch can still be answered for a while.
    let keys = [
        ("command", "delete"),
        ("call-id", "c"),
        ("from-tag", "a"),
        ("to-tag", "b"),
        ("delete-delay", "0"),
    ];
    ok(bench.ask(&keys));
    assert_eq!(bench.ports.open().len(), 2);
    bench.advance(181 * S);
    assert!(bench.calls.is_empty() && bench.ports.open().is_empty());
}

#[test]
fn one_branch_of_a_forked_call_can_be_deleted() {
    let mut bench = Bench::default();
    let offer = sdp(ALICE, PCMU);
    ok(bench.offer(&offer, &[("via-branch", "1")]));
    ok(bench.offer(&offer, &[("via-branch", "2")]));
    let keys = [
        ("command", "delete"),
        ("call-id", "c"),
        ("from-tag", "a"),
        ("via-branch", "1"),
        ("delete-delay", "0"),
    ];
    ok(bench.ask(&keys));
    assert_eq!(bench.calls.len(), 1);
    assert_eq!(
        bench.ports.open().into_iter().collect::<Vec<_>>(),
        [30_004, 30_006]
    );
    ok(bench.answer(&sdp(BOB, BOB_PCMU), &[("via-branch", "2")]));
    assert_eq!(bench.streams.len(), 1);
}

#[test]
fn an_answer_of_another_phone_replaces_the_address_of_the_first() {
    let mut bench = call();
    let other = sdp("198.51.100.3", "m=audio 6000 RTP/AVP 0\n");
    let keys = [
        ("command", "answer"),
        ("call-id", "c"),
        ("from-tag", "a"),
        ("to-tag", "b2"),
        ("sdp", &other),
    ];
    let to_alice = sdp_of(bench.ask(&keys));
    assert!(to_alice.contains("m=audio 30000 "), "{to_alice}");
    assert_eq!(
        bench.only().spec.sides[1].rtp,
        Some("198.51.100.3:6000".parse().unwrap())
    );
    // From now on both tags select the dialog, and the later tag is the party's own.
    let to_bob = sdp_of(bench.offer(&sdp(ALICE, PCMU), &[("to-tag", "b2")]));
    assert!(to_bob.contains("m=audio 30002 "), "{to_bob}");
}

#[test]
fn an_answer_with_another_call_id_does_not_affect_a_call() {
    let mut bench = call();
    let offer = sdp(ALICE, PCMU);
    ok(bench.ask(&[
        ("command", "offer"),
        ("call-id", "d"),
        ("from-tag", "a"),
        ("sdp", &offer),
    ]));
    let reason = error(bench.ask(&[
        ("command", "answer"),
        ("call-id", "e"),
        ("from-tag", "a"),
        ("to-tag", "b"),
        ("sdp", &offer),
    ]));
    assert!(reason.contains("\"e\""), "{reason}");
    let reason = error(bench.ask(&[
        ("command", "answer"),
        ("call-id", "d"),
        ("from-tag", "x"),
        ("to-tag", "b"),
        ("sdp", &offer),
    ]));
    assert!(reason.contains("\"x\""), "{reason}");
    ok(bench.ask(&[
        ("command", "delete"),
        ("call-id", "d"),
        ("from-tag", "a"),
        ("delete-delay", "0"),
    ]));
    assert_eq!(bench.streams.len(), 1);
}

#[test]
fn later_signal_cancels_a_delayed_delete() {
    let mut bench = call();
    let delete = [
        ("command", "delete"),
        ("call-id", "c"),
        ("from-tag", "b"),
        ("to-tag", "a"),
    ];
    ok(bench.ask(&delete));
    bench.advance(29 * S);
    assert_eq!(bench.streams.len(), 1);
    ok(bench.offer(&sdp(ALICE, PCMU), &[("to-tag", "b")]));
    bench.advance(5 * S);
    assert_eq!(bench.streams.len(), 1);
    ok(bench.ask(&delete));
    bench.advance(30 * S);
    assert!(bench.calls.is_empty() && bench.ports.open().is_empty());
    assert_eq!(bench.calls.next_timeout(), None);
    let Reply::Ok(keys) = bench.ask(&delete) else {
        panic!()
    };
    assert!(keys.get("warning").is_some());
    error(bench.ask(&with(&delete, &[("flags", "fatal")])));
}

#[test]
fn offers_that_cross_do_not_mix() {
    // Both parties offer at the same time, and SIP refuses one of the offers (491). "If an agent receives an offer after having sent one,
    // but before receiving an answer to it, this is considered a "glare" condition." (RFC 3264, section 4)
    let mut bench = call();
    let before = bench.only().spec.clone();
    ok(bench.offer(
        &sdp(ALICE, &format!("{PCMU}a=sendonly\n")),
        &[("to-tag", "b")],
    ));
    let of_bob = [("call-id", "c"), ("from-tag", "b"), ("to-tag", "a")];
    let offer = sdp(BOB, "m=audio 5200 RTP/AVP 0\n");
    ok(bench.ask(&with(&of_bob, &[("command", "offer"), ("sdp", &offer)])));
    // Because the offer was refused, there is nothing to answer.
    error(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
    assert_eq!(bench.only().spec, before);
    ok(bench.ask(&with(
        &of_bob,
        &[("command", "answer"), ("sdp", &sdp(ALICE, PCMU))],
    )));
    let [a, b] = &bench.only().spec.sides;
    assert!(a.may_receive && b.may_send);
    assert_eq!(b.rtp, Some("198.51.100.2:5200".parse().unwrap()));
}

#[test]
fn an_offer_may_come_with_the_answer_of_an_invitation() {
    // The INVITE has no description. The callee offers in its 200 response, and the caller answers in its ACK. The proxy names both tags.
    let mut bench = Bench::default();
    let of_bob = [("call-id", "c"), ("from-tag", "b"), ("to-tag", "a")];
    let offer = sdp(BOB, BOB_PCMU);
    ok(bench.ask(&with(&of_bob, &[("command", "offer"), ("sdp", &offer)])));
    ok(bench.ask(&with(
        &of_bob,
        &[("command", "answer"), ("sdp", &sdp(ALICE, PCMU))],
    )));
    assert_eq!(
        bench.only().spec.sides[0].rtp,
        Some("198.51.100.2:5000".parse().unwrap())
    );
    // Each party may offer from now on.
    let to_bob = sdp_of(bench.offer(&sdp(ALICE, PCMU), &[("to-tag", "b")]));
    assert!(to_bob.contains("m=audio 30000 "), "{to_bob}");
    ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
    assert_eq!(bench.ports.open().len(), 2);
}
