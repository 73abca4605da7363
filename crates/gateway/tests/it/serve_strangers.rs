//! Unknown hosts send to the ports of calls and streams. The parties still hear each other, and an unknown host gets at most
//! three of their packets.
//!
//! The tests of `threadbare_rtp::leg` have these scenes and more in virtual time.

use std::net::{Ipv4Addr, SocketAddr};

use crate::common::phones::Relay;
use crate::common::strangers::{
    A, B, ENOUGH, Kind, NEW, PCMU, STRANGER, Scene, TALK, drain, line, own_key, play,
};
use crate::common::{Running, free_port};
use rtp_types::RtpPacketBuilder;
use serde_json::{Value, json};

fn ways() -> [(&'static str, Value); 3] {
    [
        ("default", json!({})),
        ("strict", json!({"flags": ["strict-source"]})),
        ("heuristic", json!({"endpoint-learning": "heuristic"})),
    ]
}

/// Sets up a call for each kind of media, with these keys in the offer.
fn all_media(way: &str, keys: &Value) -> Vec<(Scene, Value)> {
    let srtp = format!("m=audio PORT RTP/SAVP 0{}", line(&own_key(1, A)));
    let fax = "m=image PORT udptl t38";
    let codec = json!({"transcode": ["PCMA"], "mask": ["PCMU"]});
    let (pcmu, pcma) = (Kind::Rtp(0), Kind::Rtp(8));
    let all = [
        ("passed on", [pcmu; 2], [PCMU; 2], json!({})),
        (
            "transcoded",
            [pcmu, pcma],
            [PCMU, "m=audio PORT RTP/AVP 8"],
            json!({"codec": codec}),
        ),
        ("fax", [Kind::Fax; 2], [fax; 2], json!({})),
        (
            "SRTP",
            [pcmu; 2],
            [&srtp, "m=audio PORT RTP/SAVP 0"],
            json!({}),
        ),
        (
            "recorded",
            [pcmu; 2],
            [PCMU; 2],
            json!({"record-call": "yes"}),
        ),
    ];
    let scenes = all.into_iter().map(|(media, kinds, lines, mut more)| {
        let own = more.as_object_mut().expect("keys");
        own.extend(keys.as_object().expect("keys").clone());
        (Scene::new(&format!("{way} {media}"), kinds, lines), more)
    });
    scenes.collect()
}

/// An unknown host sends five packets before the party's first one, and then one packet each second.
#[test]
fn a_stranger_before_the_first_packet_takes_no_call() {
    let folder = tempfile::tempdir().expect("a directory");
    let folder = folder.path().to_str().expect("a text");
    // The jitter buffer of the transcoded call is long enough for a busy machine.
    let mut relay = Relay::start(&["--latency", "200", "--recording-dir", folder]);
    let mut scenes = Vec::new();
    for (way, keys) in ways() {
        for (mut scene, keys) in all_media(way, &keys) {
            scene.connect(&mut relay, &keys);
            scenes.push(scene);
        }
    }
    play(&mut scenes, 5, |_, scene| scene.stranger.say());
    play(&mut scenes, TALK, |tick, scene| {
        if tick % 50 == 25 {
            scene.stranger.say();
        }
        scene.a.say();
        scene.b.say();
    });
    drain(&mut scenes, Scene::is_heard);
    scenes.iter().for_each(Scene::assert_safe);
    let encrypted = scenes.iter().filter(|scene| scene.name.ends_with("SRTP"));
    for scene in encrypted {
        let strange = scene.a.heard(STRANGER) + scene.b.heard(STRANGER);
        assert_eq!((scene.leaked(), strange), (0, 0), "{}", scene.name);
    }
    assert!(
        std::fs::read_dir(folder).expect("a directory").count() >= 3,
        "recordings"
    );
}

/// The unknown host sends to both sides. It sends as many packets as the parties, and starts before them.
#[test]
fn a_stranger_that_never_stops_starves_no_call() {
    let mut relay = Relay::start(&[]);
    let mut scenes = Vec::new();
    for (way, keys) in ways() {
        let mut scene = Scene::pcmu(way);
        scene.connect(&mut relay, &keys);
        scenes.push(scene);
    }
    let begin = 25;
    play(&mut scenes, begin + TALK, |tick, scene| {
        for to in [scene.a.to, scene.b.to] {
            scene.stranger.to = to;
            scene.stranger.say();
        }
        if tick >= begin {
            scene.a.say();
            scene.b.say();
        }
    });
    drain(&mut scenes, Scene::is_heard);
    scenes.iter().for_each(Scene::assert_safe);
}

/// A phone of an earlier call still sends to B's port when the offer opens the port.
#[test]
fn packets_between_offer_and_answer_set_no_address() {
    let mut relay = Relay::start(&[]);
    let mut scenes = Vec::new();
    let ways = ways()
        .into_iter()
        .chain([("immediate", json!({"endpoint-learning": "immediate"}))]);
    for (way, keys) in ways {
        for continues in [false, true] {
            let mut scene = Scene::pcmu(&format!("{way} {continues}"));
            scene.offer(&mut relay, &keys);
            scene.stranger.to = scene.b.to;
            (0..20).for_each(|_| scene.stranger.say());
            scene.answer(&mut relay, &keys);
            scene.stranger.to = scene.b.to;
            scenes.push(scene);
        }
    }
    play(&mut scenes, TALK, |_, scene| {
        if scene.name.ends_with("true") {
            scene.stranger.say();
        }
        scene.a.say();
        scene.b.say();
    });
    drain(&mut scenes, Scene::is_heard);
    for scene in &scenes {
        scene.assert_safe();
        let is_silent = scene.name.ends_with("false");
        assert!(
            !is_silent || scene.stranger.packets() == 0,
            "{}",
            scene.name
        );
    }
}

/// After an SDP with another address, media go to that address (RFC 3264, section 8.3.1), even if the old source still sends.
#[test]
fn a_new_address_is_accepted_while_the_old_source_still_sends() {
    let mut relay = Relay::start(&[]);
    let mut scenes = Vec::new();
    for (way, keys) in ways() {
        for side in ["A", "B"] {
            let mut scene = Scene::pcmu(&format!("{way} {side}"));
            scene.connect(&mut relay, &keys);
            scenes.push((scene, keys.clone()));
        }
    }
    let mut olds = Vec::new();
    let (mut scenes, keys): (Vec<_>, Vec<_>) = scenes.into_iter().unzip();
    play(&mut scenes, 50, |_, scene| {
        scene.a.say();
        scene.b.say();
    });
    for (scene, keys) in scenes.iter_mut().zip(&keys) {
        let is_a = scene.name.ends_with('A');
        let (at, mark) = if is_a { (0, A) } else { (1, B) };
        let new = scene.phone(30, mark);
        scene.signalled[at] = new.address();
        if is_a {
            olds.push(std::mem::replace(&mut scene.a, new));
            scene.offer(&mut relay, keys);
        } else {
            let from = scene.b.to;
            olds.push(std::mem::replace(&mut scene.b, new));
            scene.b.to = from;
        }
        scene.answer(&mut relay, keys);
        let old = olds.last_mut().expect("just pushed");
        (old.mark, old.ssrc) = (STRANGER, STRANGER.into());
        scene.listen();
        old.listen();
        for phone in [&mut scene.a, &mut scene.b, old] {
            phone.heard.clear();
        }
    }
    let mut at = 0;
    play(&mut scenes, TALK, |_, scene| {
        let old = &mut olds[at % 6];
        at += 1;
        old.say();
        old.listen();
        scene.a.say();
        scene.b.say();
    });
    drain(&mut scenes, Scene::is_heard);
    for (scene, old) in scenes.iter().zip(&olds) {
        assert!(old.packets() <= 3, "{}: {:?}", scene.name, old.heard);
        let strange = scene.a.heard(STRANGER) + scene.b.heard(STRANGER);
        assert!(
            scene.is_heard() && strange <= 3,
            "{}: A heard {:?}, B heard {:?}",
            scene.name,
            scene.a.heard,
            scene.b.heard
        );
    }
}

/// A is behind a NAT, so no packets come from its described address. An unknown host sends first. It looks like a party behind a NAT,
/// unless packets are authenticated (SRTP) or the proxy names A's host.
#[test]
fn stranger_is_latched_unless_keys_or_the_proxy_exclude_it() {
    let mut relay = Relay::start(&[]);
    let srtp = format!("m=audio PORT RTP/SAVP 0{}", line(&own_key(1, A)));
    let mut scenes = Vec::new();
    let mut hidden = Vec::new();
    for name in ["plain", "strict", "SRTP", "proxy"] {
        let mut scene = Scene::pcmu(name);
        if name == "SRTP" {
            scene.lines = [srtp.clone(), "m=audio PORT RTP/SAVP 0".to_owned()];
        }
        hidden.push(scene.hide_a());
        let own = scene.a.address().ip().to_string();
        let keys = match name {
            "strict" => json!({"flags": ["strict-source"]}),
            "proxy" => json!({"flags": ["SIP-source-address"], "received-from": ["IP4", own]}),
            _ => json!({}),
        };
        scene.offer(&mut relay, &keys);
        let answered = if name == "proxy" { json!({}) } else { keys };
        scene.answer(&mut relay, &answered);
        scenes.push(scene);
    }
    play(&mut scenes, 5, |_, scene| scene.stranger.say());
    play(&mut scenes, TALK, |tick, scene| {
        if tick % 50 == 25 {
            scene.stranger.say();
        }
        scene.a.say();
        scene.b.say();
    });
    let is_lost = |scene: &Scene| ["plain", "strict"].contains(&&*scene.name);
    let is_done = |scene: &Scene| is_lost(scene) || scene.b.heard(A) >= ENOUGH;
    drain(&mut scenes, is_done);
    for scene in &scenes {
        let counts = (scene.b.heard(A), scene.leaked());
        let is_as_expected = match &*scene.name {
            "SRTP" => counts.0 >= ENOUGH && counts.1 == 0,
            "proxy" => counts.0 >= ENOUGH - 5 && counts.1 <= 5,
            _ => counts.0 == 0 && counts.1 >= ENOUGH,
        };
        assert!(is_as_expected, "{}: {counts:?}", scene.name);
    }
}

/// The signalled address wins, even if an unknown host sent first.
#[test]
fn a_call_moves_from_a_stranger_to_the_signalled_address() {
    let mut relay = Relay::start(&[]);
    let mut scenes = Vec::new();
    for (way, keys) in ways() {
        let mut scene = Scene::pcmu(way);
        let late = scene.hide_a();
        scene.connect(&mut relay, &keys);
        let to = scene.a.to;
        scene.a = late;
        scene.a.to = to;
        scenes.push(scene);
    }
    play(&mut scenes, 250, |_, scene| {
        scene.stranger.say();
        scene.b.say();
    });
    for scene in &mut scenes {
        scene.listen();
        assert!(scene.leaked() > 200, "{}", scene.name);
        scene.stranger.heard.clear();
        scene.b.heard.clear();
    }
    play(&mut scenes, TALK, |_, scene| {
        scene.stranger.say();
        scene.a.say();
        scene.b.say();
    });
    drain(&mut scenes, Scene::is_heard);
    for scene in &scenes {
        // When A takes over the call, packets of the unknown host are still in the jitter buffer.
        let (heard, leaked) = (&scene.b.heard, scene.leaked());
        assert!(
            scene.is_heard() && leaked <= 3,
            "{}: B heard {heard:?}, the stranger got {leaked} packets",
            scene.name
        );
    }
}

/// A sends, is silent for four seconds, and sends again. The unknown host sends from the beginning of the pause.
#[test]
fn no_stranger_takes_a_call_during_a_pause() {
    let mut relay = Relay::start(&[]);
    let mut scenes = Vec::new();
    let mut hidden = Vec::new();
    for (way, keys) in ways() {
        for is_behind_nat in [false, true] {
            let mut scene = Scene::pcmu(&format!("{way} {is_behind_nat}"));
            if is_behind_nat {
                hidden.push(scene.hide_a());
            }
            scene.connect(&mut relay, &keys);
            scenes.push(scene);
        }
    }
    play(&mut scenes, 100, |_, scene| {
        scene.a.say();
        scene.b.say();
    });
    play(&mut scenes, 200, |_, scene| {
        scene.stranger.say();
        scene.b.say();
    });
    for scene in &mut scenes {
        assert_eq!(scene.b.heard(STRANGER), 0, "{}", scene.name);
        scene.b.heard.clear();
    }
    play(&mut scenes, TALK, |_, scene| {
        scene.stranger.say();
        scene.a.say();
        scene.b.say();
    });
    drain(&mut scenes, Scene::is_heard);
    scenes.iter().for_each(Scene::assert_safe);
}

/// RFC 4733 does not define the SSRC of events, and some gateways send events with another SSRC than the audio.
#[test]
fn events_under_another_ssrc_arrive_as_events() {
    const EVENTS: &str =
        "m=audio PORT RTP/AVP 0 101\r\na=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-15";
    let mut relay = Relay::start(&[]);
    let mut scene = Scene::new("events", [Kind::Rtp(0); 2], [EVENTS; 2]);
    scene.connect(&mut relay, &json!({}));
    let audio = 100;
    let mut scenes = [scene];
    let mut numbers = [0_u16; 2];
    play(&mut scenes, 200, |tick, scene| {
        scene.a.number = numbers[0];
        scene.a.say();
        numbers[0] += 1;
        scene.b.say();
        // Four digits of 11 packets; the last three of each have the end bit.
        let Some(packet) = tick.checked_sub(audio).filter(|packet| *packet < 44) else {
            return;
        };
        let (digit, packet) = (packet / 11, packet % 11);
        let end = if packet >= 8 { 0x80 } else { 0 };
        let duration = 160 * (packet.min(8) as u16 + 1);
        let [high, low] = duration.to_be_bytes();
        let mut event = RtpPacketBuilder::<&[u8], &[u8]>::new()
            .payload_type(101)
            .sequence_number(numbers[1])
            .timestamp(((audio + digit * 11) * 160) as u32)
            .ssrc(0x7777)
            .payload(&[digit as u8, end | 10, high, low][..])
            .write_vec()
            .expect("a valid packet");
        event[1] |= if packet == 0 { 0x80 } else { 0 };
        numbers[1] += 1;
        scene.a.send(&event);
    });
    let events = |scene: &Scene| -> usize {
        let all = scene.b.heard.iter();
        all.filter(|((payload_type, _), _)| *payload_type == 101)
            .map(|(_, count)| count)
            .sum()
    };
    drain(&mut scenes, |scene| {
        events(scene) >= 43 && scene.b.heard(A) >= 198
    });
    let heard = &scenes[0].b.heard;
    assert!(events(&scenes[0]) >= 43, "{heard:?}");
    assert!(scenes[0].b.heard(A) >= 198, "{heard:?}");
}

/// docs/ng.md, `media-handover`: another host is accepted after the old address is silent for 0.5 s.
#[test]
fn another_host_replaces_a_party_only_with_media_handover() {
    let mut relay = Relay::start(&[]);
    let mut scenes = Vec::new();
    for (name, keys) in [
        ("default", json!({})),
        ("handover", json!({"flags": ["media-handover"]})),
    ] {
        let mut scene = Scene::pcmu(name);
        scene.connect(&mut relay, &keys);
        scene.stranger.mark = NEW;
        scenes.push(scene);
    }
    // The leg stays with A while A sends.
    play(&mut scenes, 100, |_, scene| {
        scene.a.say();
        scene.stranger.say();
        scene.b.say();
    });
    for scene in &scenes {
        assert_eq!(scene.stranger.packets(), 0, "{}", scene.name);
        assert_eq!(scene.b.heard(NEW), 0, "{}", scene.name);
    }
    play(&mut scenes, 100, |_, scene| {
        scene.stranger.say();
        scene.b.say();
    });
    let is_done = |scene: &Scene| scene.name == "default" || scene.b.heard(NEW) >= 70;
    drain(&mut scenes, is_done);
    for scene in &scenes {
        let counts = (scene.b.heard(NEW), scene.stranger.heard(B));
        let is_followed = counts.0 >= 70 && counts.1 >= 65;
        let is_refused = counts == (0, 0);
        let is_as_expected = if scene.name == "default" {
            is_refused
        } else {
            is_followed
        };
        assert!(is_as_expected, "{}: {counts:?}", scene.name);
    }
}

/// docs/ng.md says about `asymmetric`: packets from any address are accepted, and with `strict-source` only those from the signalled
/// address.
#[test]
fn asymmetric_party_may_send_from_anywhere_but_receives_at_its_address() {
    let mut relay = Relay::start(&[]);
    let mut scenes = Vec::new();
    for (name, flags) in [
        ("anywhere", json!({"flags": ["asymmetric"]})),
        ("strict", json!({"flags": ["asymmetric", "strict-source"]})),
        ("off", json!({"endpoint-learning": "off"})),
    ] {
        let mut scene = Scene::pcmu(name);
        scene.offer(&mut relay, &flags);
        let keys = if name == "off" { flags } else { json!({}) };
        scene.answer(&mut relay, &keys);
        // A sends from this address, and receives at the one in its description.
        scene.stranger.mark = NEW;
        scenes.push(scene);
    }
    play(&mut scenes, TALK, |_, scene| {
        scene.stranger.say();
        scene.b.say();
    });
    drain(&mut scenes, |scene| {
        scene.a.heard(B) >= ENOUGH && (scene.name == "strict" || scene.b.heard(NEW) >= ENOUGH)
    });
    for scene in &scenes {
        let (name, heard) = (&scene.name, scene.b.heard(NEW));
        assert!(scene.a.heard(B) >= ENOUGH, "{name}: {:?}", scene.a.heard);
        assert_eq!(scene.stranger.packets(), 0, "{name}");
        let is_strict = name == "strict";
        assert!(
            if is_strict {
                heard == 0
            } else {
                heard >= ENOUGH
            },
            "{name}: {heard}"
        );
    }
    // The signalled address is heard in all scenes.
    scenes.iter_mut().for_each(|scene| scene.b.heard.clear());
    play(&mut scenes, TALK, |_, scene| scene.a.say());
    drain(&mut scenes, |scene| scene.b.heard(A) >= ENOUGH - 3);
    for scene in &scenes {
        let heard = scene.b.heard(A);
        assert!(heard >= ENOUGH - 3, "{}: {:?}", scene.name, scene.b.heard);
    }
}

/// Configures a stream from A to B. Returns its table for the file.
fn stream(scene: &mut Scene, keys: &str) -> String {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    (scene.a.to, scene.stranger.to) = (Some(listen), Some(listen));
    let (name, destination) = (&scene.name, scene.b.address());
    format!(
        "[[stream]]\nname = \"{name}\"\nlisten = \"{listen}\"\ndestination = \"{destination}\"\n\
         codec = \"PCMU\"\nlatency = 200\nrtcp = false\n{keys}\n"
    )
}

/// The settings of a stream, without and with a latch window.
const WINDOWS: [(&str, &str); 2] = [("open", ""), ("window", "latch-window = 3")];

/// This is the first scene, for streams whose `sources` name the party.
#[test]
fn a_stranger_before_the_first_packet_takes_no_stream_with_sources() {
    let mut file = String::new();
    let mut scenes = Vec::new();
    for (name, window) in WINDOWS {
        let mut scene = Scene::pcmu(name);
        let source = scene.a.address().ip();
        file += &stream(
            &mut scene,
            &format!("sources = [\"{source}/32\"]\n{window}"),
        );
        scenes.push(scene);
    }
    let (mut running, _folder) = Running::start(&file, &[]);
    running.wait_for("running");
    play(&mut scenes, 5, |_, scene| scene.stranger.say());
    play(&mut scenes, TALK, |tick, scene| {
        if tick % 50 == 25 {
            scene.stranger.say();
        }
        scene.a.say();
    });
    drain(&mut scenes, |scene| scene.b.heard(A) >= ENOUGH);
    for scene in &scenes {
        let (name, heard) = (&scene.name, &scene.b.heard);
        assert!(scene.b.heard(A) >= ENOUGH, "{name}: {heard:?}");
        assert_eq!(scene.b.heard(STRANGER), 0, "{name}");
    }
}

/// docs/gateway.md says that a stream without `sources` has no signalled address. Another host takes over after three seconds of silence,
/// but never with `latch-window`.
#[test]
fn a_stream_without_sources_accepts_its_first_sender() {
    let mut file = String::new();
    let mut scenes = Vec::new();
    for (name, window) in WINDOWS {
        for continues in [false, true] {
            let mut scene = Scene::pcmu(&format!("{name} {continues}"));
            file += &stream(&mut scene, window);
            scenes.push(scene);
        }
    }
    let (mut running, _folder) = Running::start(&file, &[]);
    running.wait_for("running");
    play(&mut scenes, 5, |_, scene| scene.stranger.say());
    play(&mut scenes, TALK, |tick, scene| {
        if tick % 50 == 25 && scene.name.ends_with("true") {
            scene.stranger.say();
        }
        scene.a.say();
    });
    let is_lost = |scene: &Scene| scene.name == "open false";
    drain(&mut scenes, |scene| {
        !is_lost(scene) || scene.b.heard(A) >= 100
    });
    for scene in &scenes {
        let heard = scene.b.heard(A);
        let is_as_expected = if is_lost(scene) {
            heard >= 100
        } else {
            heard == 0
        };
        assert!(is_as_expected, "{}: {:?}", scene.name, scene.b.heard);
    }
}
