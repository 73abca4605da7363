//! `threadbare serve --xdp`. The parties are on a real link, and their packets bypass the sockets.

#[path = "../../../xdp/tests/common/link.rs"]
mod link;

use crate::common::http::exchange;
use crate::common::phones::{Party, Relay, hear_each_other, next_tos, talk};
use link::{DEVICE, HERE, Link, THERE, ip};
use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};
use threadbare_rtp::srtp::{Crypto, MASTER_KEY_BYTES_MAX, MasterKey, Receiver, Sender, Suite};

const PCMU: &str = "m=audio PORT RTP/AVP 0";

fn start(more: &[&str]) -> Relay {
    let own = ["--address", HERE, "--http", "127.0.0.1:0"];
    Relay::start(&[&own, more].concat())
}

fn by_rings(more: &[&str]) -> Relay {
    start(&[&["--xdp", DEVICE, "--threads", "2"], more].concat())
}

/// Returns the numbers of received and sent packets: of all, and of those through the rings.
fn counts(relay: &Relay) -> [[u64; 2]; 2] {
    let http = relay.http.expect("HTTP");
    let request = format!("GET /v1/contexts HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n");
    let contexts = exchange(http, request.as_bytes()).json();
    let threads = contexts["contexts"].as_array().expect("threads");
    let sum = |name: &str| {
        threads
            .iter()
            .map(|one| one[name].as_u64().expect(name))
            .sum()
    };
    [
        [sum("packets_received"), sum("packets_sent")],
        [sum("ring_packets_received"), sum("ring_packets_sent")],
    ]
}

fn party(link: &Link, payload_type: u8, hz: f64) -> Party {
    Party::at(link.pair(THERE), payload_type, hz)
}

fn agree(relay: &mut Relay, call: &str, keys: &Value, a: &mut Party, b: &mut Party, media: &str) {
    let to_b = relay.pass("offer", call, keys, &a.sdp(PCMU));
    b.call(&to_b);
    let to_a = relay.pass("answer", call, &json!({}), &b.sdp(media));
    a.call(&to_a);
}

/// Each party receives the other's tone in order, and almost all of it passes through the rings.
#[test]
fn all_kinds_of_calls_use_the_rings() {
    let Some(link) = Link::new() else { return };
    let mut relay = by_rings(&[]);
    for (call, keys, media, payload_type) in [
        ("passed", json!({}), PCMU, 0),
        (
            "transcoded",
            json!({"codec": {"transcode": ["PCMA"]}}),
            "m=audio PORT RTP/AVP 8",
            8,
        ),
        (
            "one port for both",
            json!({"rtcp-mux": ["offer"]}),
            "m=audio PORT RTP/AVP 0\r\na=rtcp-mux",
            0,
        ),
    ] {
        let (mut a, mut b) = (party(&link, 0, 437.0), party(&link, payload_type, 1013.0));
        let before = counts(&relay);
        agree(&mut relay, call, &keys, &mut a, &mut b, media);
        hear_each_other(&mut a, &mut b);
        for one in [&a, &b] {
            let numbers = one.seen.windows(2);
            let breaks = numbers.filter(|pair| pair[1].number != pair[0].number.wrapping_add(1));
            assert_eq!(breaks.count(), 0, "{call}");
        }
        let after = counts(&relay);
        let grown = |kind: usize, way: usize| after[kind][way] - before[kind][way];
        // The first packets use the sockets, because the ports are not registered yet and the way back is unknown.
        for way in [0, 1] {
            assert!(
                grown(1, way) * 10 > grown(0, way) * 8,
                "{call}: {before:?} {after:?}"
            );
        }
        relay.ask(json!({"command": "delete", "call-id": call, "from-tag": "a"}));
    }
}

/// The receiver at the far end can decrypt the media (RFC 4568 and RFC 3711).
#[test]
fn an_encrypted_side_can_decrypt_packets_that_left_through_the_rings() {
    let Some(link) = Link::new() else { return };
    let mut relay = by_rings(&[]);
    let (mut a, mut b) = (party(&link, 0, 437.0), party(&link, 0, 1013.0));
    let keys = json!({"transport-protocol": "RTP/SAVP"});
    let to_b = relay.pass("offer", "1", &keys, &a.sdp(PCMU));
    b.call(&to_b);
    let suite = Suite::AesCm128HmacSha1_80;
    let mut offered = to_b
        .lines()
        .filter_map(|line| line.strip_prefix("a=crypto:"));
    let theirs = offered.find_map(|one| {
        Crypto::parse(one)
            .ok()
            .filter(|one| one.key.suite() == suite)
    });
    let theirs = theirs.expect("the suite is offered");
    let own = MasterKey::from_random(suite, &[7; MASTER_KEY_BYTES_MAX]);
    b.srtp = Some((Sender::new(&own), Receiver::new(&theirs.key)));
    let crypto = Crypto {
        tag: theirs.tag,
        key: own,
        lifetime_packets: None,
    };
    let media = format!(
        "m=audio PORT RTP/SAVP 0\r\na=crypto:{}",
        crypto.to_value().as_str()
    );
    let to_a = relay.pass("answer", "1", &json!({}), &b.sdp(&media));
    a.call(&to_a);
    hear_each_other(&mut a, &mut b);
    let [_, [received, sent]] = counts(&relay);
    assert!(received > 100 && sent > 80, "{received} {sent}");
}

/// The kernel at the far end reads the type of service (RFC 2474).
#[test]
fn packets_through_the_rings_have_the_type_of_service() {
    let Some(link) = Link::new() else { return };
    let mut relay = by_rings(&[]);
    let (mut a, mut b) = (party(&link, 0, 437.0), party(&link, 0, 1013.0));
    agree(&mut relay, "1", &json!({"TOS": 184}), &mut a, &mut b, PCMU);
    hear_each_other(&mut a, &mut b);
    for (tos, expected) in [(184, 184), (136, 136)] {
        relay.pass("offer", "1", &json!({"TOS": tos}), &a.sdp(PCMU));
        relay.pass("answer", "1", &json!({"TOS": -1}), &b.sdp(PCMU));
        setsockopt(&b.socket, sockopt::IpRecvTos, &true).expect("Linux");
        let mut in_turn = 0;
        let before = counts(&relay)[1][1];
        let mut silent = party(&link, 0, 1.0);
        // The test reads B's packets itself.
        talk(&mut a, &mut silent, |_, _| {
            b.say();
            while let Some((tos, _)) = next_tos(&b) {
                in_turn = if tos == expected { in_turn + 1 } else { 0 };
            }
            in_turn > 20
        });
        assert!(counts(&relay)[1][1] > before + 20, "by rings");
    }
}

/// A process that has only the capabilities named in docs/xdp.md carries calls through the rings.
#[test]
fn the_capabilities_of_the_documentation_are_enough() {
    let Some(link) = Link::new() else { return };
    let page = include_str!("../../../../docs/xdp.md");
    let mut lines = page.lines().map(str::trim);
    let line = lines.find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names = line.expect("the drop-in").split(' ');
    let names = names.map(|name| format!(",+{}", name.trim_start_matches("CAP_").to_lowercase()));
    let only = format!("-all{}", names.collect::<String>());
    let own = ["--address", HERE, "--http", "127.0.0.1:0", "--xdp", DEVICE];
    let words = ["setpriv", "--bounding-set", &only];
    let mut relay = Relay::start_through(&words, &own);
    let (mut a, mut b) = (party(&link, 0, 437.0), party(&link, 0, 1013.0));
    agree(&mut relay, "1", &json!({}), &mut a, &mut b, PCMU);
    hear_each_other(&mut a, &mut b);
    let [_, [received, sent]] = counts(&relay);
    assert!(received > 100 && sent > 80, "{received} {sent}");
}

/// The next process uses the rings at once, and the streams continue.
#[test]
fn calls_use_the_rings_again_after_the_gateway_was_killed() {
    let Some(link) = Link::new() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("calls.redb").display().to_string();
    let mut relay = by_rings(&["--state", &state]);
    let (mut a, mut b) = (party(&link, 0, 437.0), party(&link, 0, 1013.0));
    agree(&mut relay, "1", &json!({}), &mut a, &mut b, PCMU);
    hear_each_other(&mut a, &mut b);
    let ssrc = a.seen.last().expect("heard").ssrc;
    // The call's state is saved within 50 ms, so it has been saved after a second of audio.
    relay.restart(Signal::SIGKILL);
    hear_each_other(&mut a, &mut b);
    assert_eq!(a.seen.last().expect("heard").ssrc, ssrc);
    let [_, [received, sent]] = counts(&relay);
    assert!(received > 100 && sent > 80, "{received} {sent}");
}

/// A device goes down and comes back, as if a cable was unplugged.
#[test]
fn calls_continue_after_a_link_was_down() {
    let Some(link) = Link::new() else { return };
    let mut relay = by_rings(&[]);
    let (mut a, mut b) = (party(&link, 0, 437.0), party(&link, 0, 1013.0));
    agree(&mut relay, "1", &json!({}), &mut a, &mut b, PCMU);
    hear_each_other(&mut a, &mut b);
    ip(&format!("link set {DEVICE} down"));
    for _ in 0..20 {
        a.say();
        b.say();
    }
    ip(&format!("link set {DEVICE} up"));
    hear_each_other(&mut a, &mut b);
}

#[test]
fn unusable_device_fails_the_start_by_name() {
    let Some(_link) = Link::new() else { return };
    for (device, says) in [
        ("lo", "not an Ethernet device"),
        ("eth77", "no such network device"),
    ] {
        let mut command = crate::common::threadbare();
        command.args([
            "serve",
            "--ng",
            "127.0.0.1:0",
            "--address",
            HERE,
            "--xdp",
            device,
        ]);
        let done = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success(), "{said}");
        // The report is wrapped at the width of the terminal.
        let words: Vec<&str> = said
            .split_whitespace()
            .filter(|word| *word != "│")
            .collect();
        let said = words.join(" ");
        assert!(said.contains(device) && said.contains(says), "{said}");
    }
}
