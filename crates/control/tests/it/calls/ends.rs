//! Limits, time-outs and reports of calls, by the names that rtpengine uses.

use std::collections::BTreeMap;

use threadbare_control::calls::{
    Counts, EndReason, Media, Quality, Settings, SourceStats, StreamId, StreamStats, Timeouts,
};
use threadbare_control::fuzzing::Bench;
use threadbare_control::ng::{Dictionary, Reply, Request, Value, json};

use super::common::*;

const BOB_PCMU: &str = "m=audio 5000 RTP/AVP 0\n";

/// Returns settings with short time-outs, which all differ.
fn short() -> Settings {
    Settings {
        timeouts: Timeouts {
            offer_ns: Some(10 * S),
            media_ns: Some(20 * S),
            silent_ns: Some(50 * S),
            final_ns: Some(100 * S),
            delete_delay_ns: 5 * S,
        },
        sessions_max: 2,
        unix_at_zero_ns: 1_700_000_000 * S,
        ..Settings::default()
    }
}

fn answered(bench: &mut Bench, lines: &str) {
    ok(bench.offer(&sdp(ALICE, &format!("{PCMU}{lines}")), &[]));
    ok(bench.answer(&sdp(BOB, BOB_PCMU), &[]));
}

/// Lets media arrive every second until `until_ns`.
fn talk(bench: &mut Bench, until_ns: u64) {
    while bench.now_ns < until_ns && !bench.streams.is_empty() {
        bench.advance(S);
        for stream in bench.streams.keys().copied().collect::<Vec<StreamId>>() {
            let media = Media {
                heard_ns: [Some(bench.now_ns), None],
            };
            bench.calls.handle_media(bench.now_ns, stream, media);
        }
    }
}

/// Returns the second at which the call ended, and the reason.
fn end(bench: &mut Bench) -> (u64, EndReason) {
    bench.advance(1000 * S);
    assert!(bench.calls.is_empty() && bench.streams.is_empty() && bench.ports.open().is_empty());
    assert_eq!(bench.calls.next_timeout(), None);
    let [record] = bench.ended.as_slice() else {
        panic!("{:?}", bench.ended)
    };
    (record.ended_ns / S, record.reason)
}

#[test]
fn a_call_whose_offer_gets_no_answer_ends() {
    let mut bench = Bench::new(short());
    ok(bench.offer(&sdp(ALICE, PCMU), &[]));
    bench.advance(4 * S);
    // A second offer starts the time-out again.
    ok(bench.offer(&sdp(ALICE, PCMU), &[]));
    assert_eq!(end(&mut bench), (14, EndReason::OfferTimeout));
    assert_eq!(bench.calls.totals().ended(EndReason::OfferTimeout), 1);
}

/// Offers without an answer may take only a share of the ports. Otherwise 44 offers of 16 lines could take all ports of the default range
/// for an hour.
#[test]
fn unanswered_offers_get_half_of_the_ports_and_limits_count_streams() {
    let settings = Settings {
        sessions_max: 40,
        unanswered_max: 20,
        ..Settings::default()
    };
    let mut bench = Bench::new(settings);
    let lines = PCMU.repeat(16);
    let offer = |bench: &mut Bench, call: &str, lines: &str| {
        bench.offer(&sdp(ALICE, lines), &[("call-id", call)])
    };
    ok(offer(&mut bench, "1", &lines));
    ok(offer(&mut bench, "2", &lines));
    assert_eq!(bench.calls.streams_len(), 32);
    let reason = error(offer(&mut bench, "3", PCMU));
    assert!(
        reason.contains("32 streams") && reason.contains("the limit is 20"),
        "{reason}"
    );
    // An answered offer no longer counts among the unanswered ones.
    let answer = sdp(BOB, &BOB_PCMU.repeat(16));
    ok(bench.answer(&answer, &[("call-id", "1")]));
    ok(offer(&mut bench, "3", PCMU));
    assert_eq!(bench.calls.streams_len(), 33);
    ok(bench.answer(&answer, &[("call-id", "2")]));
    ok(offer(&mut bench, "4", &PCMU.repeat(7)));
    let reason = error(offer(&mut bench, "5", PCMU));
    assert!(reason.contains("max-sessions"), "{reason}");
    // All calls end by their time-outs, and release their ports.
    bench.advance(1000 * S);
    assert_eq!((bench.calls.len(), bench.calls.streams_len()), (0, 0));
    ok(offer(&mut bench, "6", &lines));
}

#[test]
fn a_call_without_media_ends() {
    let mut bench = Bench::new(short());
    answered(&mut bench, "");
    talk(&mut bench, 30 * S);
    assert_eq!(end(&mut bench), (50, EndReason::MediaTimeout));
}

#[test]
fn a_call_that_is_held_or_blocked_may_be_silent_for_longer() {
    let mut bench = Bench::new(short());
    answered(&mut bench, "a=inactive\n");
    assert_eq!(end(&mut bench), (50, EndReason::SilentTimeout));
    let mut bench = Bench::new(short());
    answered(&mut bench, "");
    ok(bench.ask(&[("command", "block media"), ("call-id", "c")]));
    assert_eq!(end(&mut bench), (50, EndReason::SilentTimeout));
}

#[test]
fn a_call_ends_after_the_final_timeout() {
    let mut bench = Bench::new(short());
    answered(&mut bench, "");
    talk(&mut bench, 200 * S);
    assert_eq!(end(&mut bench), (100, EndReason::FinalTimeout));
    // 0 in the operator's file switches a time-out off.
    let mut settings = short();
    settings.timeouts.final_ns = None;
    let mut bench = Bench::new(settings);
    answered(&mut bench, "");
    talk(&mut bench, 200 * S);
    assert_eq!(bench.streams.len(), 1);
}

#[test]
fn changed_settings_apply_to_current_calls() {
    let mut bench = Bench::new(short());
    answered(&mut bench, "");
    let mut settings = short();
    settings.timeouts.media_ns = Some(7 * S);
    bench.calls.set_settings(settings);
    assert_eq!(end(&mut bench), (7, EndReason::MediaTimeout));
}

#[test]
fn sessions_are_limited() {
    // The reply may be just this string: "instead of replying with an error, rtpengine responds with the string `load limit`".
    let mut bench = Bench::new(short());
    let offer = sdp(ALICE, PCMU);
    let ask = |bench: &mut Bench, call: &str, more: &[(&str, &str)]| {
        bench.ask(&with(
            &[
                ("command", "offer"),
                ("call-id", call),
                ("from-tag", "a"),
                ("sdp", &offer),
            ],
            more,
        ))
    };
    ok(ask(&mut bench, "1", &[]));
    ok(ask(&mut bench, "2", &[]));
    let reason = error(ask(&mut bench, "3", &[]));
    assert!(
        reason.contains("2 streams") && reason.contains("max-sessions"),
        "{reason}"
    );
    let limited = ask(&mut bench, "3", &[("supports", "load limit")]);
    assert!(matches!(limited, Reply::LoadLimit(_)), "{limited:?}");
    // The limit does not affect running calls.
    ok(ask(&mut bench, "2", &[]));
    ok(bench.ask(&[
        ("command", "delete"),
        ("call-id", "1"),
        ("from-tag", "a"),
        ("delete delay", "0"),
    ]));
    bench
        .calls
        .set_load_limit(Some("context 1 is late by 30 ms".to_owned()));
    assert_eq!(
        error(ask(&mut bench, "3", &[])),
        "context 1 is late by 30 ms"
    );
    bench.calls.set_load_limit(None);
    bench.calls.set_draining(true);
    assert!(error(ask(&mut bench, "3", &[])).contains("drained"));
    bench.calls.set_draining(false);
    ok(ask(&mut bench, "3", &[]));
    assert_eq!(bench.calls.totals().refused, 4);
    // The number of a call's dialogs is limited too. The first offer with a branch continues the dialog that has no branch yet.
    for branch in 0..32 {
        ok(ask(
            &mut bench,
            "3",
            &[("via-branch", &format!("x{branch}"))],
        ));
    }
    assert!(error(ask(&mut bench, "3", &[("via-branch", "y")])).contains("32"));
}

fn read(reply: Reply) -> serde_json::Value {
    let mut text = Vec::new();
    json::encode(&reply.into_dictionary(), &mut text);
    serde_json::from_slice(&text).unwrap()
}

fn request(keys: &[(&str, &str)]) -> Request {
    let all = keys
        .iter()
        .map(|(key, value)| (key.as_bytes().to_vec(), Value::text(value)));
    Request::new(all.collect::<Dictionary>()).unwrap()
}

#[test]
fn query_has_the_time_of_creation_and_no_sources_before_media() {
    let mut bench = Bench::new(short());
    bench.now_ns = 1_250_000_000;
    ok(bench.offer(&sdp(ALICE, PCMU), &[]));
    let told = read(bench.request_with(
        &request(&[("command", "query"), ("call-id", "c")]),
        &BTreeMap::new(),
    ));
    assert_eq!(told["created"], 1_700_000_001_u64);
    assert_eq!(told["created_us"], 250_000);
    assert_eq!(told["SSRC"], serde_json::json!({}));
}

#[test]
fn query_returns_the_known_state() {
    let mut bench = Bench::new(short());
    ok(bench.offer(&sdp(ALICE, PCMU), &[("label", "caller")]));
    bench.advance(2 * S);
    ok(bench.answer(&sdp(BOB, "m=audio 5000 RTP/AVP 0\na=rtcp-mux\n"), &[]));
    let stream = *bench.streams.keys().next().unwrap();
    let mut stats = StreamStats::default();
    stats.sides[0].rtp = Counts {
        packets: 100,
        bytes: 17_200,
        errors: 1,
    };
    stats.sides[0].rtcp = Counts {
        packets: 2,
        bytes: 200,
        errors: 0,
    };
    stats.sides[1].rtp = Counts {
        packets: 50,
        bytes: 8_600,
        errors: 0,
    };
    stats.sides[0].heard_ns = Some(5 * S);
    stats.sides[0].rtp_to = Some("192.0.2.77:4000".parse().unwrap());
    let quality = Quality {
        mos_tenths: 43,
        jitter_ms: 3,
        round_trip_us: 20_000,
        loss_percent: 1,
    };
    stats.sides[0].sources.push(SourceStats {
        ssrc: 77,
        samples: 4,
        average: Some(quality),
        lowest: Some((4 * S, quality)),
        highest: None,
    });
    let query = request(&[("command", "query"), ("call-id", "c")]);
    let told = read(bench.request_with(&query, &BTreeMap::from([(stream, stats.clone())])));
    assert_eq!(told["result"], "ok");
    assert_eq!(told["created"], 1_700_000_000_u64);
    assert_eq!(told["created_us"], 0);
    assert_eq!(told["last signal"], 1_700_000_002_u64);
    let caller = &told["tags"]["a"];
    assert_eq!(
        (
            &caller["tag"],
            &caller["label"],
            &caller["in dialogue with"]
        ),
        (&"a".into(), &"caller".into(), &"b".into())
    );
    let media = &caller["medias"][0];
    assert_eq!(
        (&media["index"], &media["type"], &media["protocol"]),
        (&1.into(), &"audio".into(), &"RTP/AVP".into())
    );
    assert_eq!(media["flags"], serde_json::json!(["initialized"]));
    let rtp = &media["streams"][0];
    assert_eq!(rtp["local port"], 30_000);
    assert_eq!(
        rtp["endpoint"],
        serde_json::json!({"family": "IPv4", "address": "192.0.2.77", "port": 4000})
    );
    assert_eq!(rtp["advertised endpoint"]["address"], ALICE);
    assert_eq!(rtp["last packet"], 1_700_000_005_u64);
    assert_eq!(
        rtp["flags"],
        serde_json::json!(["RTP", "filled", "confirmed"])
    );
    assert_eq!(
        rtp["stats"],
        serde_json::json!({"packets": 100, "bytes": 17_200, "errors": 1})
    );
    assert_eq!(media["streams"][1]["local port"], 30_001);
    assert_eq!(
        told["totals"]["RTP"],
        serde_json::json!({"packets": 150, "bytes": 25_800, "errors": 1})
    );
    assert_eq!(told["totals"]["RTCP"]["packets"], 2);
    assert_eq!(told["SSRC"]["77"]["average MOS"]["MOS"], 43);
    assert_eq!(told["SSRC"]["77"]["lowest MOS"]["reported at"], 4);
    error(bench.ask(&[("command", "query"), ("call-id", "x")]));
    // The reply to `delete` has the same report, unless the request asks for the short form.
    let delete = request(&[
        ("command", "delete"),
        ("call-id", "c"),
        ("from-tag", "a"),
        ("to-tag", "b"),
    ]);
    let told = read(bench.request_with(&delete, &BTreeMap::from([(stream, stats)])));
    assert_eq!(told["totals"]["RTP"]["packets"], 150);
    let fast = read(bench.ask(&[("command", "delete"), ("call-id", "c"), ("flags", "fast")]));
    assert_eq!(fast, serde_json::json!({"result": "ok"}));
}

#[test]
fn calls_are_listed_and_counted() {
    let mut bench = Bench::default();
    let offer = sdp(ALICE, PCMU);
    for call in 0..40 {
        ok(bench.ask(&[
            ("command", "offer"),
            ("call-id", &format!("{call:02}")),
            ("from-tag", "a"),
            ("sdp", &offer),
        ]));
    }
    // "This list is limited to 32 elements by default."
    let listed = |bench: &mut Bench, more: &[(&str, &str)]| {
        read(bench.ask(&with(&[("command", "list")], more)))["calls"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(listed(&mut bench, &[]), 32);
    assert_eq!(listed(&mut bench, &[("limit", "3")]), 3);
    assert_eq!(listed(&mut bench, &[("limit", "100")]), 40);
    assert!(error(bench.ask(&[("command", "list"), ("limit", "0")])).contains("limit"));
    ok(bench.ask(&[
        ("command", "delete"),
        ("call-id", "00"),
        ("from-tag", "a"),
        ("delete-delay", "0"),
    ]));
    let told = read(bench.ask(&[("command", "statistics")]));
    let told = &told["statistics"];
    assert_eq!(told["currentstatistics"]["sessionstotal"], 39);
    assert_eq!(told["totalstatistics"]["managedsessions"], 40);
    assert_eq!(told["totalstatistics"]["regularterminatedsessions"], 1);
    assert_eq!(told["controlstatistics"]["totaloffercount"], 40);
    assert_eq!(told["controlstatistics"]["totalerrorcount"], 1);
}

/// The registry's clock counts from the start of the machine, but the uptime is that of the process.
#[test]
fn the_uptime_counts_from_the_start() {
    let mut bench = Bench::new(Settings {
        started_ns: 86_400 * S,
        ..Settings::default()
    });
    bench.now_ns = 86_407 * S;
    let told = read(bench.ask(&[("command", "statistics")]));
    assert_eq!(told["statistics"]["totalstatistics"]["uptime"], "7");
}
