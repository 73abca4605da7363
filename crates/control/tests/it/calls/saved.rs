//! Calls that continue in another process. Each is compared with a registry whose process does not restart: the same requests must get the
//! same replies.

use std::collections::BTreeSet;

use proptest::prelude::*;
use threadbare_control::calls::{CallId, Calls, PortUse, SavedError, Settings, Timeouts};
use threadbare_control::fuzzing::{Bench, Ports, saved};
use threadbare_control::saved::Reader;

use super::common::*;

/// A key as in RFC 4568, section 6.1: base64 of 30 bytes.
const KEY: &str = "WVNfX19zZW1jdGwgKCkgewkyMjA7fQp9CnVubGVz";
const OTHER: &str = "PS1uQCVeeCFCanVmcjkpPywjNWhcYD0mXXtxaVBR";

type Keys = &'static [(&'static str, &'static str)];

/// An offer with all supported features.
const RICH: Keys = &[
    ("transport-protocol", "RTP/SAVP"),
    ("via-branch", "first"),
    (
        "rtpp-flags",
        "codec-transcode-PCMA codec-mask-G722 strict-source SDES-only-AES_CM_128_HMAC_SHA1_80;AEAD_AES_256_GCM record-call=on \
      replace-origin replace-session-name rtcp-mux-offer generate-mid label=caller ptime=30 loop-protect TOS=184 metadata=x \
      sdp-attr-add-none-mine:1 sdp-attr-substitute-audio-rtcp-mux>rtcp-mux",
    ),
];

fn rich_offer() -> String {
    let lines = format!(
        "m=audio 4000 RTP/SAVP 0 9 101\na=rtpmap:101 telephone-event/8000\na=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:{KEY}\na=rtcp-mux\n\
         m=video 4010 RTP/AVP 96\na=rtpmap:96 VP8/90000\n"
    );
    sdp(ALICE, &lines)
}

fn rich_answer(to_bob: &str) -> String {
    let line = to_bob
        .lines()
        .find_map(|line| line.strip_prefix("a=crypto:"))
        .expect("a key");
    let (tag, rest) = line.split_once(' ').expect("a tag");
    let suite = rest.split(' ').next().expect("a suite");
    let key = match suite {
        "AES_CM_128_HMAC_SHA1_80" => OTHER,
        other => panic!("{other}"),
    };
    let lines = format!(
        "m=audio 5000 RTP/SAVP 8\na=crypto:{tag} {suite} inline:{key}\nm=video 0 RTP/AVP 96\n"
    );
    sdp(BOB, &lines)
}

/// Runs the whole life of a call, with `pause` between the steps. Returns the replies.
fn life(bench: &mut Bench, mut pause: impl FnMut(&mut Bench)) -> Vec<String> {
    let mut said = Vec::new();
    let mut ask = |bench: &mut Bench, keys: &[(&str, &str)]| {
        pause(bench);
        let reply = bench.ask(keys);
        said.push(format!("{reply:?}"));
        reply
    };
    let of_call = |command, more: &[(&'static str, &'static str)]| {
        [&[("command", command), ("call-id", "c")], more].concat()
    };
    let of_a = ("from-tag", "a");
    let (offer, b) = (rich_offer(), ("to-tag", "b"));
    let to_bob = sdp_of(ask(
        bench,
        &[&of_call("offer", &[of_a]), RICH, &[("sdp", &*offer)]].concat(),
    ));
    let answer = rich_answer(&to_bob);
    ok(ask(
        bench,
        &[&of_call("answer", &[of_a, b]), &[("sdp", &*answer)] as &[_]].concat(),
    ));
    // Another phone has answered too.
    ok(ask(
        bench,
        &[
            &of_call("answer", &[of_a, ("to-tag", "b2")]),
            &[("sdp", &*answer)] as &[_],
        ]
        .concat(),
    ));
    ok(ask(bench, &of_call("block media", &[of_a])));
    ok(ask(bench, &of_call("block DTMF", &[("label", "caller")])));
    // A recording server subscribes to Alice.
    let of_rec = ("to-tag", "rec");
    ok(ask(bench, &of_call("subscribe request", &[of_a, of_rec])));
    let listens = sdp("198.51.100.9", "m=audio 7000 RTP/AVP 0\na=recvonly\n");
    ok(ask(
        bench,
        &[
            &of_call("subscribe answer", &[of_rec]),
            &[("sdp", &*listens)] as &[_],
        ]
        .concat(),
    ));
    // Bob holds; Alice has not answered yet.
    let hold = rich_answer(&to_bob)
        .replace("m=video", "a=sendonly\r\nm=video")
        .replace("=- 1 1", "=- 1 2");
    let held = of_call(
        "offer",
        &[
            ("from-tag", "b2"),
            ("to-tag", "a"),
            ("transport-protocol", "RTP/SAVP"),
        ],
    );
    let to_alice = sdp_of(ask(bench, &[&held, &[("sdp", &*hold)] as &[_]].concat()));
    assert!(to_alice.contains("a=sendonly"), "{to_alice}");
    ok(ask(bench, &of_call("query", &[])));
    let line = to_alice
        .lines()
        .find_map(|line| line.strip_prefix("a=crypto:"))
        .expect("a key");
    let tag = line.split(' ').next().expect("a tag");
    let back = sdp(
        ALICE,
        &format!(
            "m=audio 4000 RTP/SAVP 0\na=recvonly\na=crypto:{tag} AES_CM_128_HMAC_SHA1_80 inline:{KEY}\nm=video 0 RTP/AVP 96\n"
        ),
    );
    ask(
        bench,
        &[
            &of_call("answer", &[("from-tag", "b2"), ("to-tag", "a")]),
            &[("sdp", &*back)] as &[_],
        ]
        .concat(),
    );
    ok(ask(bench, &of_call("unblock media", &[of_a])));
    ok(ask(bench, &of_call("query", &[])));
    // The proxy forks the call.
    let forked = of_call("offer", &[of_a, ("via-branch", "other")]);
    ok(ask(
        bench,
        &[&forked, &[("sdp", &*sdp(ALICE, PCMU))] as &[_]].concat(),
    ));
    ok(ask(
        bench,
        &of_call(
            "delete",
            &[of_a, ("via-branch", "other"), ("delete-delay", "5")],
        ),
    ));
    ok(ask(bench, &of_call("query", &[])));
    bench.advance(6 * S);
    ok(ask(bench, &of_call("query", &[])));
    ok(ask(bench, &of_call("delete", &[("delete-delay", "0")])));
    assert!(bench.ports.open().is_empty());
    said
}

#[test]
fn restored_call_behaves_like_the_original() {
    let mut still = Bench::default();
    let expected = life(&mut still, |_| {});
    let mut bench = Bench::default();
    assert_eq!(life(&mut bench, |bench| bench.restart(0)), expected);
    // The calls continue on another machine, whose clock started later. The wall clock is the same.
    let mut bench = Bench::default();
    bench.now_ns = 3600 * S;
    let mut still = Bench::default();
    still.now_ns = 3600 * S;
    let expected = life(&mut still, |_| {});
    assert_eq!(life(&mut bench, |bench| bench.restart(7 * S)), expected);
    assert_eq!(bench.ended.len(), 1);
    assert_eq!(bench.ended[0].reason, still.ended[0].reason);
    assert_eq!(bench.ended[0].streams, still.ended[0].streams);
}

/// A node continues the calls with its own stream numbers, and gives their parties the same replies. The first node sends
/// nothing more.
#[test]
fn a_call_continues_on_another_node() {
    let expected = life(&mut Bench::default(), |_| {});
    let mut bench = Bench::default();
    let said = life(&mut bench, Bench::hand_over);
    // A new description of ours contains the number of its stream ("o=- 7 1 IN ...", here as bytes). The two registries may use different
    // numbers.
    let without_number = |reply: &String| {
        let (before, rest) = reply.split_once("111, 61, 45, 32, ").unwrap_or((reply, ""));
        let behind = rest.split_once(" 32, ").map_or("", |(_, behind)| behind);
        (before.to_owned(), behind.to_owned())
    };
    for (n, (said, expected)) in said.iter().zip(&expected).enumerate() {
        let is_same = without_number(said) == without_number(expected);
        assert!(is_same, "reply {n}");
    }
}

/// The clock of the other node may differ, so the media time-out starts again.
#[test]
fn an_adopted_call_gets_a_new_media_timeout() {
    let timeouts = Timeouts {
        media_ns: Some(60 * S),
        ..Timeouts::default()
    };
    let mut bench = Bench::new(Settings {
        timeouts,
        ..Settings::default()
    });
    bench.now_ns = 1000 * S;
    ok(bench.offer(&sdp(ALICE, PCMU), &[]));
    ok(bench.answer(&sdp(BOB, "m=audio 5000 RTP/AVP 0\n"), &[]));
    bench.advance(40 * S);
    bench.hand_over();
    bench.advance(60 * S - 1);
    assert!(bench.ended.is_empty());
    bench.advance(1);
    assert_eq!(bench.ended[0].reason.name(), "timeout");
    // A call that exists is refused.
    let mut bench = call();
    let bytes = bench
        .calls
        .export(&CallId::new(b"c"), Reader::Later)
        .expect("a call");
    let known = bench.calls.adopt(0, &bytes, &mut bench.ports);
    assert_eq!(known, Err(SavedError::Known(CallId::new(b"c"))));
}

/// The saved ports are the open ports. A process that takes over the call may open them before it restores the call.
#[test]
fn saved_call_lists_its_ports() {
    let bench = call();
    let bytes = bench
        .calls
        .export(&CallId::new(b"c"), Reader::Later)
        .expect("a call");
    let saved = Calls::<Ports>::saved_ports(&bytes).expect("it is whole");
    let numbers: BTreeSet<u16> = saved.iter().map(|(_, rtp, _)| rtp.port()).collect();
    assert_eq!(numbers, bench.ports.open());
    for (request, rtp, rtcp) in saved {
        assert_eq!(request.port_use, PortUse::Pair);
        assert_eq!(rtcp.map(|rtcp| rtcp.port()), Some(rtp.port() + 1));
    }
    let damaged = Calls::<Ports>::saved_ports(&bytes[1..]);
    assert!(damaged.is_err());
}

#[test]
fn time_outs_continue_in_a_restored_call() {
    let timeouts = Timeouts {
        media_ns: Some(60 * S),
        ..Timeouts::default()
    };
    let mut bench = Bench::new(Settings {
        timeouts,
        ..Settings::default()
    });
    bench.now_ns = 1000 * S;
    ok(bench.offer(&sdp(ALICE, PCMU), &[]));
    ok(bench.answer(&sdp(BOB, "m=audio 5000 RTP/AVP 0\n"), &[]));
    bench.advance(40 * S);
    bench.restart(900 * S);
    assert_eq!(bench.now_ns, 140 * S);
    bench.advance(20 * S - 1);
    assert!(bench.ended.is_empty());
    bench.advance(1);
    assert_eq!(bench.ended[0].reason.name(), "timeout");
    assert_eq!(bench.ended[0].ended_ns - bench.ended[0].created_ns, 60 * S);
}

/// After a restart of the machine, times before its time 0 become 0.
#[test]
fn times_before_the_start_of_the_clock_become_0() {
    let mut bench = call();
    bench.advance(10 * S);
    ok(bench.ask(&[
        ("command", "delete"),
        ("call-id", "c"),
        ("delete-delay", "30"),
    ]));
    bench.restart(5 * S);
    assert_eq!(bench.now_ns, 5 * S);
    let view = bench.calls.view(&CallId::new(b"c")).expect("the call");
    assert_eq!(
        (view.created_ns, view.end.map(|(at_ns, _)| at_ns)),
        (0, Some(35 * S))
    );
}

#[test]
fn each_change_is_reported_once() {
    let mut bench = call();
    assert_eq!(bench.calls.poll_changed(), None, "nobody has asked");
    bench.calls.track_changes();
    let id = CallId::new(b"c");
    ok(bench.ask(&[("command", "query"), ("call-id", "c")]));
    error(bench.ask(&[
        ("command", "block media"),
        ("call-id", "c"),
        ("from-tag", "nobody"),
    ]));
    assert_eq!(bench.calls.poll_changed(), None, "nothing has changed");
    for command in ["block media", "silence media"] {
        ok(bench.ask(&[("command", command), ("call-id", "c")]));
    }
    assert_eq!(bench.calls.poll_changed(), Some(id.clone()));
    assert_eq!(bench.calls.poll_changed(), None);
    // This is the time-out of a call on hold.
    bench.advance(3601 * S);
    assert!(bench.calls.is_empty(), "no media came");
    assert_eq!(bench.calls.poll_changed(), Some(id.clone()));
    assert_eq!(bench.calls.export(&id, Reader::Later), None);
}

#[test]
fn a_call_whose_port_cannot_be_opened_is_not_restored() {
    let bench = call();
    let id = CallId::new(b"c");
    let bytes = bench.calls.export(&id, Reader::Later).expect("a call");
    let mut other = Bench::default();
    // Another call takes the second of the saved call's ports.
    ok(other.ask(&[
        ("command", "offer"),
        ("call-id", "d"),
        ("from-tag", "a"),
        ("sdp", &sdp(ALICE, PCMU)),
    ]));
    let open = other.ports.open();
    let error = other
        .calls
        .restore(0, &bytes, &mut other.ports)
        .expect_err("it is taken");
    assert_eq!(error.to_string(), "call \"c\": port 30000 is in use");
    assert_eq!((other.ports.open(), other.calls.len()), (open, 1));
}

#[test]
fn the_error_describes_the_damage() {
    let bench = call();
    let bytes = bench
        .calls
        .export(&CallId::new(b"c"), Reader::Later)
        .expect("a call");
    let refused = |bytes: &[u8]| {
        let mut other = Bench::default();
        let error = other.calls.restore(0, bytes, &mut other.ports);
        error.expect_err("damage").to_string()
    };
    let mut newer = bytes.clone();
    newer[0] += 2;
    let (read, found) = (bytes[0], newer[0]);
    assert_eq!(
        refused(&newer),
        format!(
            "the saved call is not readable: the state was saved in format version {found}, but this program reads version {read}"
        )
    );
    for len in 0..bytes.len() {
        assert!(refused(&bytes[..len]).contains("damaged"), "{len} bytes");
    }
    assert!(refused(&[&bytes[..], &[0]].concat()).contains("there are bytes after its end"));
    let mut twice = call();
    let known = twice.calls.restore(0, &bytes, &mut twice.ports);
    assert_eq!(known, Err(SavedError::Known(CallId::new(b"c"))));
}

/// Returns the saved states of calls at several points of their life.
fn examples() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    life(&mut Bench::default(), |bench| {
        all.extend(bench.calls.export(&CallId::new(b"c"), Reader::Later));
    });
    all
}

/// If `SAVED_CORPUS=FOLDER` is set, the test also writes the examples as a start corpus for the fuzzer.
#[test]
fn saved_examples_are_restored() {
    let folder = std::env::var_os("SAVED_CORPUS").map(std::path::PathBuf::from);
    for (at, bytes) in examples().into_iter().enumerate() {
        saved(&bytes);
        if let Some(folder) = &folder {
            std::fs::write(folder.join(format!("rich-{at}")), &bytes).expect("written");
        }
    }
}

proptest! {
    /// The damage is of the kinds that a disk causes.
    #[test]
    fn damaged_calls_are_refused_or_restored_completely(
        example: prop::sample::Index, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let all = examples();
        let mut bytes = example.get(&all).clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        saved(&bytes);
    }
}
