//! Branches of a forking proxy, and parties that move to another address family.

use threadbare_control::fuzzing::Bench;

use super::common::*;

const BOB_PCMU: &str = "m=audio 5000 RTP/AVP 0\n";

fn answer_of(bench: &mut Bench, tag: &str, branch: &str) -> String {
    let more = [("to-tag", tag), ("via-branch", branch)];
    let base = [
        ("command", "answer"),
        ("call-id", "c"),
        ("from-tag", "a"),
        ("sdp", &sdp(BOB, BOB_PCMU)),
    ];
    sdp_of(bench.ask(&with(&base, &more)))
}

/// Alice offers on two branches, and the second one answers.
fn forked() -> Bench {
    let mut bench = Bench::default();
    for branch in ["1", "2"] {
        ok(bench.offer(&sdp(ALICE, PCMU), &[("via-branch", branch)]));
    }
    answer_of(&mut bench, "b2", "2");
    bench
}

fn delete(bench: &mut Bench, more: &[(&str, &str)]) -> threadbare_control::ng::Dictionary {
    let base = [
        ("command", "delete"),
        ("call-id", "c"),
        ("delete-delay", "0"),
    ];
    ok(bench.ask(&with(&base, more)))
}

#[test]
fn after_deleting_one_branch_the_other_branches_can_be_answered() {
    for more in [
        &[("from-tag", "a"), ("to-tag", "b2"), ("via-branch", "2")][..],
        &[("from-tag", "b2"), ("to-tag", "a"), ("via-branch", "2")],
        &[("from-tag", "a"), ("to-tag", "b2")],
        &[("via-branch", "2")],
    ] {
        let mut bench = forked();
        delete(&mut bench, more);
        assert!(bench.streams.is_empty(), "{more:?}");
        // The other branch may ring as long as any INVITE: more than three minutes (RFC 3261, section 16.6, timer C).
        bench.advance(179 * S);
        let to_alice = answer_of(&mut bench, "b1", "1");
        assert!(to_alice.contains("m=audio 30000 "), "{more:?}: {to_alice}");
        assert_eq!(bench.streams.len(), 1, "{more:?}");
        bench.advance(59 * S);
        assert_eq!(bench.calls.len(), 1, "{more:?}");
    }
}

#[test]
fn unanswered_branches_are_deleted_three_minutes_after_the_answered_branch() {
    let mut bench = forked();
    delete(&mut bench, &[("from-tag", "a"), ("to-tag", "b2")]);
    bench.advance(181 * S);
    assert!(bench.calls.is_empty() && bench.ports.open().is_empty());
}

#[test]
fn deleting_an_unknown_branch_deletes_nothing() {
    let mut bench = forked();
    let reply = delete(&mut bench, &[("via-branch", "3")]);
    assert!(!warning(&reply).is_empty());
    assert_eq!(bench.streams.len(), 1);
    delete(&mut bench, &[]);
    assert!(bench.calls.is_empty());
}

const V6: &str = "2001:db8::a";

fn v6(host: &str, lines: &str) -> String {
    sdp(host, lines).replace("IN IP4 2001", "IN IP6 2001")
}

#[test]
fn party_that_moves_to_another_family_is_followed() {
    for family in [None, Some(("address-family", "IP4"))] {
        let more: Vec<(&str, &str)> = family.into_iter().collect();
        let mut bench = Bench::default();
        let to_bob = sdp_of(bench.offer(&v6(V6, PCMU), &[("address-family", "IP4")]));
        assert!(to_bob.contains("c=IN IP4 203.0.113.7"), "{to_bob}");
        let to_alice = sdp_of(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
        assert!(to_alice.contains("c=IN IP6 2001:db8::7"), "{to_alice}");
        // Alice moves to IPv4, and back.
        for (offer, ours) in [
            (sdp(ALICE, PCMU), "c=IN IP4 203.0.113.7"),
            (v6(V6, PCMU), "c=IN IP6 2001:db8::7"),
        ] {
            let to_bob = sdp_of(bench.offer(&offer, &with(&[("to-tag", "b")], &more)));
            assert!(to_bob.contains("c=IN IP4 203.0.113.7"), "{to_bob}");
            let to_alice = sdp_of(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
            assert!(to_alice.contains(ours), "{to_alice}");
            assert_eq!(bench.streams.len(), 1);
        }
    }
}

#[test]
fn callee_that_moves_to_another_family_is_followed() {
    let mut bench = call();
    let of_bob = [("call-id", "c"), ("from-tag", "b"), ("to-tag", "a")];
    let offer = v6("2001:db8::b", BOB_PCMU);
    let to_alice = sdp_of(bench.ask(&with(&of_bob, &[("command", "offer"), ("sdp", &offer)])));
    assert!(to_alice.contains("c=IN IP4 203.0.113.7"), "{to_alice}");
    let answer = sdp(ALICE, PCMU);
    let to_bob = sdp_of(bench.ask(&with(&of_bob, &[("command", "answer"), ("sdp", &answer)])));
    assert!(to_bob.contains("c=IN IP6 2001:db8::7"), "{to_bob}");
    // The old form of hold, an address of all zeros, does not show the party's address family.
    let hold = sdp("0.0.0.0", BOB_PCMU);
    ok(bench.ask(&with(&of_bob, &[("command", "offer"), ("sdp", &hold)])));
    let to_bob = sdp_of(bench.ask(&with(&of_bob, &[("command", "answer"), ("sdp", &answer)])));
    assert!(to_bob.contains("c=IN IP6 2001:db8::7"), "{to_bob}");
}

#[test]
fn answer_from_another_family_than_its_ports_is_learned() {
    let mut bench = Bench::default();
    ok(bench.offer(&sdp(ALICE, PCMU), &[]));
    let reply = ok(bench.answer(&v6("2001:db8::b", BOB_PCMU), &[]));
    assert!(warning(&reply).contains("IP6"), "{reply:?}");
    assert_eq!(bench.only().spec.sides[1].rtp, None);
}

#[test]
fn lines_of_two_families_get_separate_addresses() {
    let mut bench = Bench::default();
    let lines = format!("{PCMU}m=audio 4002 RTP/AVP 0\nc=IN IP6 {V6}\n");
    ok(bench.offer(&sdp(ALICE, &lines), &[]));
    let two = format!("{BOB_PCMU}m=audio 5002 RTP/AVP 0\nc=IN IP6 2001:db8::b\n");
    let to_alice = sdp_of(bench.answer(&sdp(BOB, &two), &[]));
    let is_of_both =
        |sdp: &str| sdp.contains("c=IN IP4 203.0.113.7") && sdp.contains("c=IN IP6 2001:db8::7");
    assert!(is_of_both(&to_alice), "{to_alice}");
    let ports = bench.ports.open();
    // A later offer by either party keeps the family and the ports of each line.
    let of_bob = [("call-id", "c"), ("from-tag", "b"), ("to-tag", "a")];
    let offer = sdp(BOB, &two);
    let to_alice = sdp_of(bench.ask(&with(&of_bob, &[("command", "offer"), ("sdp", &offer)])));
    assert!(is_of_both(&to_alice), "{to_alice}");
    let hold = sdp("0.0.0.0", &lines.replace(&format!("c=IN IP6 {V6}\n"), ""));
    ok(bench.offer(&hold, &[("to-tag", "b")]));
    assert_eq!(bench.ports.open(), ports);
}

const HOSTS: [&str; 2] = [ALICE, BOB];

/// Returns the ports to which the RTCP of Alice and of Bob is sent, and whether RTP goes to the same port.
fn rtcp(offer: &str, flags: &str, answer: &str) -> [(u16, bool); 2] {
    let mut bench = Bench::default();
    ok(bench.offer(&sdp(ALICE, &format!("m={offer}")), &[("rtpp-flags", flags)]));
    ok(bench.answer(&sdp(BOB, &format!("m={answer}")), &[]));
    let sides = &bench.only().spec.sides;
    [0, 1].map(|at: usize| {
        let rtcp = sides[at].rtcp.expect("a place");
        assert_eq!(rtcp.ip().to_string(), HOSTS[at]);
        (rtcp.port(), sides[at].mux)
    })
}

#[test]
fn rtcp_keeps_its_port_if_multiplexing_is_not_answered() {
    // An answer without the attribute refuses multiplexing (RFC 5761, section 5.1.1).
    let audio = |port: u16, more: &str| format!("audio {port} RTP/AVP 0\n{more}");
    let mux = "a=rtcp-mux\n";
    let apart = "a=rtcp-mux\na=rtcp:4444\n";
    let offers = [audio(4000, mux), audio(4000, apart)];
    let plain = audio(5000, "");
    assert_eq!(
        rtcp(&offers[0], "rtcp-mux-reject", &plain),
        [(4001, false), (5001, false)]
    );
    assert_eq!(
        rtcp(&offers[1], "rtcp-mux-reject", &plain),
        [(4444, false), (5001, false)]
    );
    assert_eq!(rtcp(&offers[1], "", &plain), [(4000, true), (5001, false)]);
    // Bob accepts multiplexing, which was not offered.
    assert_eq!(
        rtcp(&audio(4000, ""), "", &audio(5000, mux)),
        [(4001, false), (5001, false)]
    );
    assert_eq!(
        rtcp(&offers[0], "", &audio(5000, mux)),
        [(4000, true), (5000, true)]
    );
    // If media are only forwarded, the parties negotiate multiplexing with each other.
    let video = |port: u16, more: &str| format!("video {port} RTP/AVP 96\n{more}");
    assert_eq!(
        rtcp(&video(4000, mux), "", &video(5000, "")),
        [(4001, false), (5001, false)]
    );
    assert_eq!(
        rtcp(&video(4000, apart), "", &video(5000, "a=rtcp:5555\n")),
        [(4444, false), (5555, false)]
    );
    assert_eq!(
        rtcp(&video(4000, mux), "", &video(5000, mux)),
        [(4000, true), (5000, true)]
    );
}
