//! The data for the page's call panel in `/v1/calls`: reports of both sides, hold and mute, the recording, and the last
//! minutes.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::common::http::Relay;
use crate::common::plain::{act, call, done};
use crate::common::{socket, wait_until};
use serde_json::{Value, json};

fn path(made: &Value) -> &str {
    made["path"].as_str().expect("a path")
}

/// The reports are the parties' RTCP about the relay's media (RFC 3550, section 6.4.2), and the relay's own RTCP about incoming media.
#[test]
fn rtcp_reports_of_both_sides_are_shown() {
    let relay = Relay::start(&[]);
    let (made, [mut a, mut b]) = call(&relay, ["PCMU/8000", "PCMA/8000"]);
    let side = |place: usize| {
        let detail = relay.get_json(path(&made));
        detail["streams"][0]["sides"][place]["media"].clone()
    };
    assert!(side(0).get("sender_report").is_none());
    // A and B send packets; every sixth packet of A is lost.
    for number in 0..60 {
        match number % 6 {
            3 => a.number += 1,
            _ => a.say(0x12),
        }
        b.say(0x34);
        std::thread::sleep(Duration::from_millis(20));
    }
    wait_until(|| side(0)["sender_report"]["packets_lost"] == 10);
    assert_eq!(side(1)["sender_report"]["packets_lost"], 0);
    let ssrc = crate::common::receive(&a.socket).ssrc;
    // According to the report, a quarter of the last packets is lost, five packets in all, and the jitter is 10 ms at 8000 Hz.
    let mut report = vec![0x81, 201, 0, 7];
    let words = [0x5678, ssrc, 64 << 24 | 5, 60, 80, 0, 0];
    report.extend(words.iter().flat_map(|word: &u32| word.to_be_bytes()));
    report.extend([0x81, 202, 0, 2, 0, 0, 0x56, 0x78, 1, 1, b'a', 0]);
    let to = SocketAddr::new(a.to.ip(), a.to.port() + 1);
    socket().send_to(&report, to).expect("loopback");
    wait_until(|| side(0).get("listener_report").is_some());
    let due = json!({"ssrc": 0x5678, "packets_lost": 5, "loss_percent": 25.0, "jitter_ms": 10.0});
    assert_eq!(side(0)["listener_report"], due);
    assert!(side(1).get("listener_report").is_none());
}

#[test]
fn hold_mute_and_recording_are_shown() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path().display().to_string();
    let relay = Relay::start(&["--recording-dir", &folder]);
    let (made, [mut a, _b]) = call(&relay, ["PCMU/8000", "PCMA/8000"]);
    a.say(0x12);
    let tag = json!({"tag": made["sides"][0]["tag"]});
    // The reply for the call contains hold and mute of each side, and the recording. The list contains the same values.
    let is_now = |sides: [[bool; 2]; 2], recorded: bool| {
        let detail = relay.get_json(path(&made));
        let stream = &detail["streams"][0];
        for (side, [held, muted]) in stream["sides"].as_array().expect("two").iter().zip(sides) {
            assert_eq!(
                (&side["held"], &side["muted"]),
                (&json!(held), &json!(muted)),
                "{stream}"
            );
        }
        assert_eq!(
            (&stream["decoded"], &stream["recorded"]),
            (&json!(true), &json!(recorded))
        );
        let list = relay.get_json("/v1/calls");
        let own = &list["calls"][0];
        assert_eq!(own["held"], json!(sides.iter().any(|[held, _]| *held)));
        assert_eq!(own["recorded"], json!(recorded));
    };
    is_now([[false; 2]; 2], false);
    done(&act(&relay, &made, "hold", &tag));
    is_now([[true, false], [false, false]], false);
    done(&act(&relay, &made, "resume", &tag));
    done(&act(&relay, &made, "mute", &tag));
    done(&act(&relay, &made, "record", &json!({})));
    is_now([[false, true], [false, false]], true);
    done(&act(&relay, &made, "unmute", &tag));
    done(&act(&relay, &made, "record/stop", &json!({})));
    is_now([[false; 2]; 2], false);
    let list = relay.get_json("/v1/calls");
    for (place, codec) in ["PCMU/8000", "PCMA/8000"].into_iter().enumerate() {
        let party = &list["calls"][0]["parties"][place];
        assert_eq!(party["codec"], codec);
        assert_eq!(party["tag"], made["sides"][place]["tag"]);
    }
}

/// There is at most one point every five seconds. The tests in `quality_history.rs` check the values.
#[test]
fn history_of_a_call_has_its_last_minutes() {
    let relay = Relay::start(&[]);
    let (made, [mut a, mut b]) = call(&relay, ["PCMU/8000", "PCMA/8000"]);
    // While a client waits for events, calls are checked every two seconds.
    let mut reader = TcpStream::connect(relay.http).expect("it listens");
    let head = format!("GET /v1/events HTTP/1.1\r\nHost: {}\r\n\r\n", relay.http);
    reader.write_all(head.as_bytes()).expect("sent");
    let history = || relay.get_json(&format!("{}/history", path(&made)));
    let empty = json!({"mos": [], "loss_percent": [], "jitter_ms": []});
    let stream = json!({"unix_s": [], "sides": [empty, empty]});
    assert_eq!(history(), json!({"id": made["id"], "streams": [stream]}));
    // Every fifth packet of A is lost.
    let turn = std::cell::RefCell::new(|| {
        a.say(0x12);
        if a.number % 5 == 4 {
            a.number += 1;
        }
        b.say(0x34);
        std::thread::sleep(Duration::from_millis(20));
    });
    wait_until(|| {
        (turn.borrow_mut())();
        history()["streams"][0]["unix_s"]
            .as_array()
            .is_some_and(|times| !times.is_empty())
    });
    let stream = history()["streams"][0].clone();
    let loss = |place: usize| {
        stream["sides"][place]["loss_percent"][0]
            .as_f64()
            .expect("a number")
    };
    assert!((15.0..25.0).contains(&loss(0)), "{stream}");
    assert_eq!(loss(1), 0.0, "{stream}");
    assert!(stream["sides"][0]["jitter_ms"][0].is_number(), "{stream}");
    relay.get("/v1/calls/nobody/history").problem(404);
    let list = relay.get_json("/v1/calls");
    assert_eq!(list["calls"][0]["loss_percent"], loss(0));
}
