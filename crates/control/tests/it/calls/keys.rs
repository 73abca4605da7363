//! SRTP with keys in the description (RFC 4568), and profiles.

use threadbare_control::fuzzing::Bench;
use threadbare_rtp_types::srtp::{Crypto, Suite};

use super::common::*;

/// A key as in RFC 4568, section 6.1: base64 of 30 bytes.
const KEY: &str = "WVNfX19zZW1jdGwgKCkgewkyMjA7fQp9CnVubGVz";
const OTHER: &str = "PS1uQCVeeCFCanVmcjkpPywjNWhcYD0mXXtxaVBR";

/// Returns all `a=crypto` lines.
fn cryptos(sdp: &str) -> Vec<Crypto> {
    let values = sdp
        .lines()
        .filter_map(|line| line.strip_prefix("a=crypto:"));
    values
        .map(|value| Crypto::parse(value).expect(value))
        .collect()
}

/// Returns the tags and suites of all `a=crypto` lines.
fn suites(sdp: &str) -> Vec<(u32, &'static str)> {
    cryptos(sdp)
        .iter()
        .map(|one| (one.tag, one.key.suite().name()))
        .collect()
}

fn secure(port: u16, lines: &str) -> String {
    format!("m=audio {port} RTP/SAVP 0\n{lines}")
}

fn crypto(tag: u32, suite: &str, key: &str) -> String {
    format!("a=crypto:{tag} {suite} inline:{key}\n")
}

const SAVP: &[(&str, &str)] = &[("transport-protocol", "RTP/SAVP")];
const AVP: &[(&str, &str)] = &[("transport-protocol", "RTP/AVP")];

#[test]
fn plain_rtp_becomes_srtp() {
    let mut bench = Bench::default();
    let to_bob = sdp_of(bench.offer(&sdp(ALICE, PCMU), SAVP));
    assert!(to_bob.contains("m=audio 30002 RTP/SAVP 0\r\n"), "{to_bob}");
    // "all other supported SDES crypto suites are added to the outgoing offer by default".
    let expected: Vec<(u32, &str)> = (1..).zip(Suite::ALL.map(Suite::name)).collect();
    assert_eq!(suites(&to_bob), expected);
    // "trailing `=` characters used for padding should be omitted".
    assert!(
        !to_bob.contains('=') || !to_bob.lines().any(|line| line.ends_with('=')),
        "{to_bob}"
    );
    let ours = cryptos(&to_bob);
    let answer = sdp(
        BOB,
        &secure(5000, &crypto(2, "AES_CM_128_HMAC_SHA1_32", KEY)),
    );
    let to_alice = sdp_of(bench.answer(&answer, &[]));
    assert!(
        to_alice.contains("m=audio 30000 RTP/AVP 0\r\n") && !to_alice.contains("crypto"),
        "{to_alice}"
    );
    let [a, b] = &bench.only().spec.sides;
    assert!(a.srtp.is_none());
    let keys = b.srtp.as_ref().unwrap();
    assert_eq!(keys.receive, cryptos(&answer)[0].key);
    assert_eq!(keys.send, ours[1].key);
    assert!(!format!("{b:?}").contains(KEY), "keys stay out of logs");
}

#[test]
fn srtp_becomes_plain_rtp() {
    let mut bench = Bench::default();
    let lines =
        crypto(7, "AES_CM_128_HMAC_SHA1_32", KEY) + &crypto(8, "AES_CM_128_HMAC_SHA1_80", OTHER);
    let to_bob = sdp_of(bench.offer(&sdp(ALICE, &secure(4000, &lines)), AVP));
    assert!(
        to_bob.contains("m=audio 30002 RTP/AVP 0\r\n") && !to_bob.contains("crypto"),
        "{to_bob}"
    );
    let to_alice = sdp_of(bench.answer(&sdp(BOB, "m=audio 5000 RTP/AVP 0\n"), &[]));
    // The answer has the first suite with its tag (RFC 4568, section 5.1.2), and another key.
    assert_eq!(suites(&to_alice), [(7, "AES_CM_128_HMAC_SHA1_32")]);
    let keys = bench.only().spec.sides[0].srtp.clone().unwrap();
    assert_eq!(keys.send, cryptos(&to_alice)[0].key);
    assert_eq!(keys.receive, cryptos(&lines)[0].key);
    assert_ne!(keys.send, keys.receive);
}

#[test]
fn a_re_offer_keeps_the_keys() {
    let mut bench = Bench::default();
    let offer = sdp(
        ALICE,
        &secure(4000, &crypto(1, "AES_CM_128_HMAC_SHA1_80", KEY)),
    );
    let first = sdp_of(bench.offer(&offer, &[]));
    // The caller's suite comes first, then the rest.
    assert_eq!(suites(&first)[0], (1, "AES_CM_128_HMAC_SHA1_80"));
    assert_eq!(suites(&first).len(), 5);
    let gcm = crypto(
        4,
        "AEAD_AES_128_GCM",
        "WVNfX19zZW1jdGwgKCkgewkyMjA7fQp9Cnc1Mg",
    );
    let answer = sdp(BOB, &secure(5000, &gcm));
    ok(bench.answer(&answer, &[]));
    let before = bench.only().spec.clone();
    let again = sdp_of(bench.offer(&offer, &[("to-tag", "b")]));
    // The suite in use is offered first: an answer that repeats it changes nothing.
    assert_eq!(suites(&again)[0].1, "AEAD_AES_128_GCM");
    assert_eq!(
        cryptos(&again)[0].key,
        before.sides[1].srtp.as_ref().unwrap().send
    );
    let answer = answer.replace("crypto:4", "crypto:1");
    ok(bench.answer(&answer, &[]));
    assert_eq!(bench.only().spec, before);
    assert_eq!(bench.only().updates, 0);
}

#[test]
fn sdes_flags_select_the_offered_suites() {
    let offered = |flags: &str| {
        let mut bench = Bench::default();
        let reply = bench.offer(&sdp(ALICE, PCMU), &[SAVP[0], ("rtpp-flags", flags)]);
        let to_bob = sdp_of(reply);
        (
            suites(&to_bob)
                .into_iter()
                .map(|one| one.1)
                .collect::<Vec<_>>(),
            to_bob,
        )
    };
    // The options are "Exclude individual crypto suites", "Add only these individual crypto suites", and "The order, in which crypto suites
    // are being added".
    let (no, _) = offered("SDES-no-AES_CM_128_HMAC_SHA1_80 SDES-no-AEAD_AES_256_GCM");
    assert_eq!(
        no,
        [
            "AES_CM_128_HMAC_SHA1_32",
            "AES_256_CM_HMAC_SHA1_80",
            "AEAD_AES_128_GCM"
        ]
    );
    let (only, _) = offered("SDES-only-AEAD_AES_256_GCM SDES-no-AEAD_AES_256_GCM");
    assert_eq!(only, ["AEAD_AES_256_GCM"]);
    let (order, _) = offered("SDES-order:AEAD_AES_256_GCM;AES_256_CM_HMAC_SHA1_80;");
    assert_eq!(order[..2], ["AEAD_AES_256_GCM", "AES_256_CM_HMAC_SHA1_80"]);
    assert_eq!(order.len(), 5);
    let (_, padded) = offered("SDES-pad SDES-only-AES_256_CM_HMAC_SHA1_80");
    assert!(padded.contains("==\r\n"), "{padded}");
    // "Add the key lifetime parameter `2^31` to each crypto key."
    let (_, lifetime) = offered("SDES-lifetime");
    assert!(lifetime.contains("|2^31\r\n"), "{lifetime}");
    let mut bench = Bench::default();
    for flags in [
        "SDES-off",
        "SDES-only-NULL_HMAC_SHA1_32",
        "SDES-unencrypted_srtp",
    ] {
        let reason = error(bench.offer(&sdp(ALICE, PCMU), &[SAVP[0], ("rtpp-flags", flags)]));
        assert!(
            reason.contains("SDES") || reason.contains("suite"),
            "{reason}"
        );
    }
}

#[test]
fn unusable_keys_are_ignored_or_refused() {
    let mut bench = Bench::default();
    let unknown = crypto(1, "F8_128_HMAC_SHA1_80", KEY);
    let mki = format!("a=crypto:2 AES_CM_128_HMAC_SHA1_80 inline:{KEY}|1:129\n");
    let clear = format!("a=crypto:3 AES_CM_128_HMAC_SHA1_80 inline:{KEY} UNENCRYPTED_SRTP\n");
    let lines = unknown + &mki + &clear;
    let reason = error(bench.offer(&sdp(ALICE, &secure(4000, &lines)), &[]));
    assert!(
        reason.contains("F8_128") && !reason.contains(KEY),
        "{reason}"
    );
    let more = lines + &crypto(4, "AES_CM_128_HMAC_SHA1_80", OTHER);
    ok(bench.offer(&sdp(ALICE, &secure(4000, &more)), AVP));
    let to_alice = sdp_of(bench.answer(&sdp(BOB, "m=audio 5000 RTP/AVP 0\n"), &[]));
    assert_eq!(suites(&to_alice), [(4, "AES_CM_128_HMAC_SHA1_80")]);
    let reason = error(bench.offer(&sdp(ALICE, &secure(4000, "")), &[("to-tag", "b")]));
    assert!(reason.contains("without a key"), "{reason}");
}

#[test]
fn an_answer_without_a_key_is_refused_and_changes_nothing() {
    let mut bench = Bench::default();
    ok(bench.offer(&sdp(ALICE, PCMU), SAVP));
    error(bench.answer(&sdp(BOB, &secure(5000, "")), &[]));
    // A suite that was not offered is refused.
    error(bench.answer(
        &sdp(BOB, &secure(5000, &crypto(1, "F8_128_HMAC_SHA1_80", KEY))),
        &[],
    ));
    assert!(bench.streams.is_empty());
    ok(bench.answer(
        &sdp(
            BOB,
            &secure(5000, &crypto(1, "AES_CM_128_HMAC_SHA1_80", KEY)),
        ),
        &[],
    ));
    assert_eq!(bench.streams.len(), 1);
}

#[test]
fn key_identifiers_and_lifetimes_are_stored_with_the_keys() {
    // The key has an identifier (RFC 4568, section 6.1), which the packets of both sides contain. Ours equals that of the offer.
    let line = |rest: &str| format!("a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:{KEY}{rest}\n");
    let mut bench = Bench::default();
    let offer = sdp(ALICE, &secure(4000, &line("|2^31|1:4")));
    let to_bob = sdp_of(bench.offer(&offer, &[]));
    assert!(cryptos(&to_bob).iter().all(|one| one.key.mki().is_empty()));
    let answer = sdp(BOB, &secure(5000, &line("|2^48|258:2")));
    let to_alice = sdp_of(bench.answer(&answer, &[]));
    assert!(to_alice.contains("|1:4\r\n"), "{to_alice}");
    let mkis = |side: usize| {
        let keys = bench.only().spec.sides[side].srtp.clone().unwrap();
        [keys.receive, keys.send].map(|key| key.mki().to_vec())
    };
    assert_eq!(mkis(0), [[0, 0, 0, 1], [0, 0, 0, 1]]);
    assert_eq!(mkis(1), [vec![1, 2], vec![]]);
    // If the same offer comes again, our key stays. Another identifier gets another key.
    let before = cryptos(&to_alice)[0].key.clone();
    for (rest, is_same) in [("|2^31|1:4", true), ("|2:4", false)] {
        ok(bench.offer(&sdp(ALICE, &secure(4000, &line(rest))), &[("to-tag", "b")]));
        let again = sdp_of(bench.answer(&answer, &[]));
        let same = cryptos(&again)[0].key.expose_secret() == before.expose_secret();
        assert_eq!(same, is_same, "{rest}");
    }
    bench.restart(0);
}

#[test]
fn an_answer_with_an_offered_suite_under_another_tag_is_accepted() {
    // RFC 4568, section 5.1.2, requires the tag of the offer, but some phones write others. The suite shows which of our keys is meant.
    let mut bench = Bench::default();
    let to_bob = sdp_of(bench.offer(&sdp(ALICE, PCMU), SAVP));
    let ours = cryptos(&to_bob);
    for (tag, is_own) in [(2, false), (1, true), (77, true)] {
        let line = crypto(tag, "AES_CM_128_HMAC_SHA1_32", KEY);
        let reply = ok(bench.answer(&sdp(BOB, &secure(5000, &line)), &[]));
        assert_eq!(warning(&reply).contains("tag"), is_own, "{tag}");
        let keys = bench.only().spec.sides[1].srtp.clone().unwrap();
        assert_eq!(keys.send, ours[1].key);
        assert_eq!(keys.receive, cryptos(&line)[0].key);
    }
}

#[test]
fn each_side_has_its_own_feedback_profile() {
    let mut bench = Bench::default();
    let offer = sdp(ALICE, "m=audio 4000 RTP/AVPF 0\na=rtcp-fb:0 nack\n");
    let to_bob = sdp_of(bench.offer(&offer, AVP));
    assert!(
        to_bob.contains(" RTP/AVP 0") && !to_bob.contains("rtcp-fb"),
        "{to_bob}"
    );
    let to_alice = sdp_of(bench.answer(&sdp(BOB, "m=audio 5000 RTP/AVP 0\n"), &[]));
    assert!(to_alice.contains(" RTP/AVPF 0"), "{to_alice}");
    let [a, b] = &bench.only().spec.sides;
    assert!(a.has_feedback && !b.has_feedback);
}

#[test]
fn an_answer_with_another_profile_is_passed_on_by_request() {
    // "By default [...] rtpengine will use the transport protocol that was originally offered."
    let mut bench = Bench::default();
    ok(bench.offer(&sdp(ALICE, PCMU), &[]));
    let answer = sdp(BOB, "m=audio 5000 RTP/AVPF 0\n");
    assert!(sdp_of(bench.answer(&answer, &[])).contains(" RTP/AVP 0"));
    let accepted = sdp_of(bench.answer(&answer, &[("transport-protocol", "accept")]));
    assert!(accepted.contains(" RTP/AVPF 0"), "{accepted}");
}

#[test]
fn ice_and_dtls_are_removed_if_there_is_an_alternative() {
    let mut bench = Bench::default();
    let lines = "a=ice-ufrag:x\na=ice-pwd:y\na=candidate:1 1 udp 1 198.51.100.1 4000 typ host\na=fingerprint:sha-256 AA\n\
        a=setup:actpass\na=x-other:1\n".to_owned() + &crypto(1, "AES_CM_128_HMAC_SHA1_80", KEY);
    let offer = sdp(ALICE, &secure(4000, &lines))
        .replace("t=0 0", "t=0 0\r\na=group:BUNDLE 0\r\na=ice-lite");
    let to_bob = sdp_of(bench.offer(&offer, &[AVP[0], ("ICE", "remove")]));
    for word in [
        "ice",
        "candidate",
        "fingerprint",
        "setup",
        "BUNDLE",
        "crypto",
    ] {
        assert!(!to_bob.contains(word), "{to_bob}");
    }
    assert!(to_bob.contains("a=x-other:1"), "{to_bob}");
    let reason = error(bench.offer(&offer, &[("ICE", "force"), ("to-tag", "b")]));
    assert!(
        reason.contains("ICE") && reason.contains("force") && reason.contains("remove"),
        "{reason}"
    );
}
