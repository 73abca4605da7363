//! Calls of `threadbare serve` that continue in another process, observed at their parties. Receivers treat a jump of up to 3000 numbers as
//! a gap (RFC 3550, appendix A.1). With SRTP, they have a rollover counter and replay protection (RFC 3711).

use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::phones::{Party, Relay, Seen, hear_each_other, port_of, talk};
use crate::common::{LIMIT, Running, wait_until};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use threadbare_rtp::srtp::{Crypto, MASTER_KEY_BYTES_MAX, MasterKey, Receiver, Sender, Suite};

const PCMU: &str = "m=audio PORT RTP/AVP 0";
const A_HZ: f64 = 437.0;
const B_HZ: f64 = 1013.0;
/// The largest jump in numbers that a receiver treats as a gap (MAX_DROPOUT in RFC 3550, appendix A.1).
const DROPOUT_MAX: u16 = 3000;

fn state(folder: &tempfile::TempDir) -> String {
    let path = folder.path().join("calls.redb");
    path.to_str().expect("a text").to_owned()
}

fn with_state() -> (Relay, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let relay = Relay::start(&["--state", &state(&folder)]);
    (relay, folder)
}

/// Sets up a call of PCMU on both sides. Returns the parties, and the port that each of them got.
fn call(relay: &mut Relay, name: &str) -> (Party, Party, [u16; 2]) {
    let (mut a, mut b) = (Party::new(0, A_HZ), Party::new(0, B_HZ));
    let ports = set_up(relay, name, &mut a, &mut b);
    (a, b, ports)
}

fn set_up(relay: &mut Relay, name: &str, a: &mut Party, b: &mut Party) -> [u16; 2] {
    let none = json!({});
    let to_b = relay.pass("offer", name, &none, &a.sdp(PCMU));
    let to_a = relay.pass("answer", name, &none, &b.sdp(PCMU));
    a.call(&to_a);
    b.call(&to_b);
    [port_of(&to_a), port_of(&to_b)]
}

/// Asserts that a stream continues: it has the same source, and its numbers and timestamps advance by no more than a gap.
fn go_on(before: Seen, after: &[Seen]) {
    let mut last = before;
    for next in after {
        assert_eq!(next.ssrc, before.ssrc);
        let step = next.number.wrapping_sub(last.number);
        assert!((1..DROPOUT_MAX).contains(&step), "{last:?} and {next:?}");
        let units = next.time.wrapping_sub(last.time);
        assert!(
            (1..8000 * LIMIT.as_secs() as u32).contains(&units),
            "{last:?} and {next:?}"
        );
        last = *next;
    }
}

/// Restarts the relay. Checks that both parties' streams continue afterwards.
fn over_restart(relay: &mut Relay, signal: Signal, a: &mut Party, b: &mut Party) -> String {
    hear_each_other(a, b);
    let log = relay.restart(signal);
    // Discard the packets that were sent before the restart.
    a.listen();
    b.listen();
    let before = [&*a, &*b].map(|party| *party.seen.last().expect("packets"));
    a.seen.clear();
    b.seen.clear();
    hear_each_other(a, b);
    go_on(before[0], &a.seen);
    go_on(before[1], &b.seen);
    log
}

#[test]
fn calls_survive_kill_9() {
    let (mut relay, folder) = with_state();
    let (mut a, mut b, ports) = call(&mut relay, "1");
    let log = over_restart(&mut relay, Signal::SIGKILL, &mut a, &mut b);
    assert!(log.contains("calls restored"), "{log}");
    let mode = std::fs::metadata(state(&folder))
        .expect("the file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    // The second restart shows that restored calls are saved too.
    over_restart(&mut relay, Signal::SIGKILL, &mut a, &mut b);
    assert_eq!(
        set_up(&mut relay, "1", &mut a, &mut b),
        ports,
        "a re-offer keeps its ports"
    );
    over_restart(&mut relay, Signal::SIGTERM, &mut a, &mut b);
    let reply = relay.ask(json!({"command": "query", "call-id": "1"}));
    assert_eq!(reply["tags"]["a"]["in dialogue with"], "b", "{reply}");
    let reply = relay.ask(json!({"command": "delete", "call-id": "1", "from-tag": "a"}));
    assert_eq!(reply["result"], "ok", "{reply}");
    wait_until(|| a.has_bye());
    let log = relay.restart(Signal::SIGTERM);
    assert!(!log.contains("calls restored"), "{log}");
}

/// If the process ends in order, no party gets a BYE, and the numbers continue without a large gap.
#[test]
fn an_orderly_restart_skips_few_numbers() {
    let (mut relay, _folder) = with_state();
    let (mut a, mut b, _) = call(&mut relay, "1");
    hear_each_other(&mut a, &mut b);
    relay.stop(Signal::SIGTERM);
    a.listen();
    let before = *a.seen.last().expect("packets");
    a.seen.clear();
    assert!(!a.has_bye() && !b.has_bye());
    relay.start_again();
    hear_each_other(&mut a, &mut b);
    // The numbers of one slice are skipped: see crates/rtp/src/leg/state.rs.
    let step = a.seen[0].number.wrapping_sub(before.number);
    assert!((1..32).contains(&step), "{step}");
}

fn crypto(tag: u32, suite: Suite, first: u8) -> Crypto {
    let bytes: [u8; MASTER_KEY_BYTES_MAX] = std::array::from_fn(|at| at as u8 ^ first);
    Crypto {
        tag,
        key: MasterKey::from_random(suite, &bytes),
        lifetime_packets: None,
    }
}

fn line(crypto: &Crypto) -> String {
    format!("\r\na=crypto:{}", &*crypto.to_value())
}

/// Returns the relay's sending key, from the line with this suite.
fn key_in(sdp: &str, suite: Suite) -> Crypto {
    let lines = sdp
        .lines()
        .filter_map(|line| line.strip_prefix("a=crypto:"));
    let mut cryptos = lines.map(|line| Crypto::parse(line).expect(line));
    cryptos
        .find(|crypto| crypto.key.suite() == suite)
        .expect("the suite")
}

#[test]
fn srtp_continues_with_the_same_keys() {
    const SAVP: &str = "m=audio PORT RTP/SAVP 0";
    let (mut relay, _folder) = with_state();
    for (suite, signal) in [
        (Suite::AesCm128HmacSha1_80, Signal::SIGKILL),
        (Suite::AeadAes256Gcm, Signal::SIGTERM),
    ] {
        let (mut a, mut b) = (Party::new(0, A_HZ), Party::new(0, B_HZ));
        let name = suite.name();
        let (none, of_a) = (json!({}), crypto(1, suite, 1));
        let offer = a.sdp(&format!("{SAVP}{}", line(&of_a)));
        let to_b = relay.pass("offer", name, &none, &offer);
        let for_b = key_in(&to_b, suite);
        let of_b = crypto(for_b.tag, suite, 2);
        let to_a = relay.pass(
            "answer",
            name,
            &none,
            &b.sdp(&format!("{SAVP}{}", line(&of_b))),
        );
        let for_a = key_in(&to_a, suite);
        a.call(&to_a);
        b.call(&to_b);
        for (party, own, relays) in [(&mut a, &of_a, &for_a), (&mut b, &of_b, &for_b)] {
            let (sender, receiver) = (Sender::new(&own.key), Receiver::new(&relays.key));
            party.srtp = Some((sender, receiver));
        }
        over_restart(&mut relay, signal, &mut a, &mut b);
        over_restart(&mut relay, signal, &mut a, &mut b);
        let reply = relay.ask(json!({"command": "query", "call-id": name}));
        assert!(reply.to_string().contains(name), "{reply}");
    }
}

#[test]
fn transcoding_continues_after_a_restart() {
    let (mut relay, _folder) = with_state();
    let (mut a, mut b) = (Party::new(0, A_HZ), Party::new(8, B_HZ));
    let rules = json!({"codec": {"mask": ["PCMU"], "transcode": ["PCMA"]}});
    let to_b = relay.pass("offer", "1", &rules, &a.sdp(PCMU));
    let to_a = relay.pass("answer", "1", &json!({}), &b.sdp("m=audio PORT RTP/AVP 8"));
    a.call(&to_a);
    b.call(&to_b);
    over_restart(&mut relay, Signal::SIGKILL, &mut a, &mut b);
}

#[test]
fn held_party_stays_held_and_a_pending_offer_is_answered() {
    let (mut relay, _folder) = with_state();
    let (mut a, mut b, ports) = call(&mut relay, "1");
    hear_each_other(&mut a, &mut b);
    let hold = json!({});
    let held = format!("{PCMU}\r\na=sendonly");
    relay.pass("offer", "1", &hold, &a.sdp(&held));
    relay.pass(
        "answer",
        "1",
        &hold,
        &b.sdp(&format!("{PCMU}\r\na=recvonly")),
    );
    // An offer ends the hold. Its answer goes to the next process.
    let to_b = relay.pass("offer", "1", &hold, &a.sdp(PCMU));
    assert_eq!(port_of(&to_b), ports[1]);
    talk(&mut a, &mut b, |_, b| b.heard.len() > 24_000);
    relay.restart(Signal::SIGKILL);
    a.listen();
    a.heard.clear();
    b.heard.clear();
    talk(&mut a, &mut b, |_, b| b.heard.len() > 8_000);
    assert!(a.heard.is_empty(), "the holding party hears nothing");
    let to_a = relay.pass("answer", "1", &hold, &b.sdp(PCMU));
    assert_eq!(port_of(&to_a), ports[0]);
    hear_each_other(&mut a, &mut b);
}

/// Media that are only forwarded continue, and the mutes of a party stay.
#[test]
fn other_media_and_mutes_continue_after_a_restart() {
    const LINES: &str =
        "m=audio PORT RTP/AVP 0\r\nm=video VIDEO RTP/AVP 96\r\na=rtpmap:96 VP8/90000";
    let (mut relay, _folder) = with_state();
    let (mut a, mut b) = (Party::new(0, A_HZ), Party::new(0, B_HZ));
    let [video_a, video_b] = [crate::common::socket(), crate::common::socket()];
    let lines = |socket: &UdpSocket| {
        let port = socket.local_addr().expect("bound").port();
        LINES.replace("VIDEO", &port.to_string())
    };
    let none = json!({});
    let to_b = relay.pass("offer", "1", &none, &a.sdp(&lines(&video_a)));
    let to_a = relay.pass("answer", "1", &none, &b.sdp(&lines(&video_b)));
    a.call(&to_a);
    b.call(&to_b);
    let video_port =
        |sdp: &str| port_of(&sdp.replace("m=audio", "m=").replace("m=video", "m=audio"));
    let to = [&to_a, &to_b].map(|sdp| SocketAddr::from(([127, 0, 0, 1], video_port(sdp))));
    let pass = |text: &[u8]| {
        let mut room = [0; 100];
        for (from, to, far) in [(&video_a, to[0], &video_b), (&video_b, to[1], &video_a)] {
            from.send_to(text, to).expect("sent");
            let len = far.recv(&mut room).expect("in time");
            assert_eq!(&room[..len], text);
        }
    };
    pass(b"before");
    hear_each_other(&mut a, &mut b);
    let block = json!({"command": "block media", "call-id": "1", "from-tag": "a"});
    assert_eq!(relay.ask(block.clone())["result"], "ok");
    a.heard.clear();
    talk(&mut a, &mut b, |a, _| a.heard.len() > 8000);
    relay.restart(Signal::SIGKILL);
    b.listen();
    b.heard.clear();
    a.heard.clear();
    talk(&mut a, &mut b, |a, _| a.heard.len() > 8000);
    assert!(b.heard.is_empty(), "A's audio is blocked");
    let block = json!({"command": "unblock media", "call-id": "1", "from-tag": "a"});
    assert_eq!(relay.ask(block)["result"], "ok");
    hear_each_other(&mut a, &mut b);
    // The block has ended, so the video passes in both directions.
    pass(b"after");
}

#[test]
fn recording_continues_in_another_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let recordings = tempfile::tempdir().expect("a folder");
    let path = recordings.path().to_str().expect("a text");
    let mut relay = Relay::start(&["--state", &state(&folder), "--recording-dir", path]);
    let (mut a, mut b, _) = call(&mut relay, "1");
    let start =
        json!({"command": "start recording", "call-id": "1", "recording-file": "asked.wav"});
    assert_eq!(relay.ask(start)["result"], "ok");
    hear_each_other(&mut a, &mut b);
    relay.restart(Signal::SIGKILL);
    hear_each_other(&mut a, &mut b);
    relay.ask(json!({"command": "delete", "call-id": "1"}));
    relay.stop(Signal::SIGTERM);
    let files = std::fs::read_dir(recordings.path()).expect("a folder");
    let files = files.map(|file| file.expect("a file"));
    // Leave out the journal.
    let files = files.filter(|file| file.path().extension() == Some("wav".as_ref()));
    let lengths: Vec<u64> = files
        .map(|file| file.metadata().expect("a file").len())
        .collect();
    // The file has at least a quarter of a second: two channels of 16 bits at 8 kHz. Data that the first process had not written are lost.
    assert!(
        lengths.len() == 2 && lengths.iter().all(|len| *len > 8000),
        "{lengths:?}"
    );
}

/// The tones of the file. Each lasts a second.
const SCALE_HZ: [f64; 6] = [300.0, 500.0, 700.0, 1100.0, 1500.0, 1900.0];

fn write_scale(path: &Path) {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: 8000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::create(path, spec).expect("created");
    for n in 0..SCALE_HZ.len() * 8000 {
        let angle = std::f64::consts::TAU * SCALE_HZ[n / 8000] * n as f64 / 8000.0;
        writer
            .write_sample((angle.sin() * 8000.0) as i16)
            .expect("written");
    }
    writer.finalize().expect("finished");
}

/// Returns the index of the tone in each 100 ms. `None`: there is no tone, or more than one.
fn tones(heard: &[f64]) -> Vec<Option<usize>> {
    let power = |pcm: &[f64], hz: f64| {
        let angle = |n: usize| std::f64::consts::TAU * hz * n as f64 / 8000.0;
        let part = |wave: fn(f64) -> f64| {
            let all = pcm.iter().enumerate();
            all.map(|(n, sample)| sample * wave(angle(n))).sum::<f64>()
        };
        2.0 * part(f64::sin).hypot(part(f64::cos)) / pcm.len() as f64
    };
    let tone = |pcm: &[f64]| SCALE_HZ.iter().position(|hz| power(pcm, *hz) > 6000.0);
    heard.chunks_exact(800).map(tone).collect()
}

/// The playback to a caller continues from the last saved state, which is at most a second old, and runs to its end.
#[test]
fn playback_continues_after_a_restart() {
    let (mut relay, folder) = with_state();
    let file = folder.path().join("scale.wav");
    write_scale(&file);
    let (mut a, mut b, _) = call(&mut relay, "1");
    hear_each_other(&mut a, &mut b);
    a.heard.clear();
    let play = json!({"command": "play media", "call-id": "1", "from-tag": "a", "file": file, "repeat-times": 2});
    assert_eq!(relay.ask(play)["result"], "ok");
    let last = SCALE_HZ.len() - 1;
    // The file plays twice, and the process ends during the second repetition.
    let is_again = |heard: &[f64]| {
        let tones = tones(heard);
        let end = tones.iter().position(|tone| *tone == Some(last));
        end.is_some_and(|end| tones[end..].contains(&Some(2)))
    };
    talk(&mut a, &mut b, |a, _| is_again(&a.heard));
    relay.restart(Signal::SIGKILL);
    a.listen();
    let before = *a.seen.last().expect("packets");
    let reached = tones(&a.heard).into_iter().flatten().last();
    let reached = reached.expect("a tone");
    a.seen.clear();
    a.heard.clear();
    // A hears the rest of the file, and then B.
    talk(&mut a, &mut b, |a, _| {
        a.heard.len() > 9600 && (a.level(B_HZ) - 1.0).abs() < 0.03
    });
    go_on(before, &a.seen);
    let heard: Vec<usize> = tones(&a.heard).into_iter().flatten().collect();
    let first = *heard.first().expect("a tone");
    assert!(
        first + 1 >= reached && first <= reached,
        "{reached}, then {heard:?}"
    );
    assert!(heard.is_sorted() && heard.contains(&last), "{heard:?}");
    // A playback that has ended or was stopped is not started again.
    for is_stopped in [false, true] {
        if is_stopped {
            let play = json!({"command": "play media", "call-id": "1", "from-tag": "a", "file": file, "repeat-times": 9});
            assert_eq!(relay.ask(play)["result"], "ok");
            a.heard.clear();
            talk(&mut a, &mut b, |a, _| tones(&a.heard).contains(&Some(1)));
            let stop = json!({"command": "stop media", "call-id": "1", "from-tag": "a"});
            assert_eq!(relay.ask(stop)["result"], "ok");
            hear_each_other(&mut a, &mut b);
        }
        relay.restart(Signal::SIGKILL);
        a.listen();
        hear_each_other(&mut a, &mut b);
        assert!(tones(&a.heard).iter().all(Option::is_none));
    }
}

/// If the file is missing, the log reports it, and the party hears the other party instead.
#[test]
fn missing_file_of_a_playback_is_reported() {
    let (mut relay, folder) = with_state();
    let file = folder.path().join("scale.wav");
    write_scale(&file);
    let (mut a, mut b, _) = call(&mut relay, "1");
    let play = json!({"command": "play media", "call-id": "1", "from-tag": "a", "file": file, "repeat-times": 100});
    assert_eq!(relay.ask(play)["result"], "ok");
    talk(&mut a, &mut b, |a, _| tones(&a.heard).contains(&Some(0)));
    relay.stop(Signal::SIGTERM);
    std::fs::remove_file(&file).expect("it was there");
    let mut log = relay.start_again();
    // The file is opened while the service starts, so the message may have come already.
    if !log.contains("cannot play a file") {
        log = relay.running.wait_for("cannot play a file").to_string();
    }
    assert!(log.contains("scale.wav"), "{log}");
    a.listen();
    hear_each_other(&mut a, &mut b);
}

#[test]
fn time_outs_include_the_time_of_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut relay = Relay::start(&["--state", &state(&folder), "--timeout", "2"]);
    let (mut a, mut b, _) = call(&mut relay, "1");
    hear_each_other(&mut a, &mut b);
    let silent = Instant::now();
    relay.stop(Signal::SIGKILL);
    // Nothing shows that the time-out has been reached, so wait that long.
    std::thread::sleep(Duration::from_millis(2100).saturating_sub(silent.elapsed()));
    let log = relay.start_again();
    let ended = log.lines().find(|line| line.contains("the call has ended"));
    let ended: Value = serde_json::from_str(ended.expect(&log)).expect("JSON");
    assert_eq!(ended["reason"], "timeout");
    let reply = relay.ask(json!({"command": "list"}));
    assert_eq!(reply["calls"], json!([]));
}

#[test]
fn only_the_call_whose_port_is_taken_is_dropped() {
    let (mut relay, _folder) = with_state();
    let (mut a, mut b, ports) = call(&mut relay, "1");
    let (mut c, mut d, _) = call(&mut relay, "2");
    hear_each_other(&mut a, &mut b);
    hear_each_other(&mut c, &mut d);
    relay.stop(Signal::SIGKILL);
    let _taken = UdpSocket::bind(("127.0.0.1", ports[0])).expect("the port is free");
    let log = relay.start_again();
    let lost = log
        .lines()
        .find(|line| line.contains("a call is not restored"));
    let lost: Value = serde_json::from_str(lost.expect(&log)).expect("JSON");
    assert_eq!(lost["call"], "1");
    let reason = lost["error"].as_str().expect("a reason");
    assert!(reason.contains(&ports[0].to_string()), "{reason}");
    hear_each_other(&mut c, &mut d);
    assert_eq!(relay.ask(json!({"command": "list"}))["calls"], json!(["2"]));
}

/// Calls continue, and are saved once the disk has space again.
#[test]
fn full_disk_is_reported_and_recovered_from() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = state(&folder);
    let mut relay = Relay::start_limited(&["--state", &path]);
    let (mut a, mut b, _) = call(&mut relay, "1");
    hear_each_other(&mut a, &mut b);
    let bytes = std::fs::metadata(&path).expect("the file").len();
    relay.limit_files(&bytes.to_string());
    let sdp = a.sdp(PCMU);
    let mut calls = 0;
    // These calls are not answered, so they have no media.
    while calls < 1500 {
        relay.pass("offer", &format!("waiting-{calls}"), &json!({}), &sdp);
        calls += 1;
    }
    let line = relay
        .running
        .wait_for("cannot save calls; if the process ends now, these calls are lost");
    assert_eq!(line["level"], "ERROR");
    hear_each_other(&mut a, &mut b);
    relay.limit_files("unlimited");
    relay
        .running
        .wait_for("calls are saved without delay again");
    let log = relay.restart(Signal::SIGKILL);
    let back = log.lines().find(|line| line.contains("calls restored"));
    let back: Value = serde_json::from_str(back.expect(&log)).expect("JSON");
    // Meanwhile, another program on this machine may have taken one of some thousand ports.
    let taken = log
        .lines()
        .filter(|line| line.contains("a call is not restored"));
    let lost = taken.clone().count();
    assert_eq!(back["calls"], calls + 1 - lost);
    assert!(
        lost < 10 && taken.clone().all(|line| line.contains("in use")),
        "{log}"
    );
}

#[test]
fn without_state_calls_end_with_the_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Relay::command(&["--no-state".to_owned()]);
    command.env("STATE_DIRECTORY", folder.path());
    let mut running = Running::spawn(command);
    running.wait_for("serving");
    let empty = std::fs::read_dir(folder.path())
        .expect("a folder")
        .next()
        .is_none();
    assert!(empty, "--no-state counts more than systemd's folder");
    drop(running);
    let mut relay = Relay::start(&[]);
    let (mut a, mut b, _) = call(&mut relay, "1");
    hear_each_other(&mut a, &mut b);
    relay.stop(Signal::SIGTERM);
    wait_until(|| a.has_bye());
    relay.start_again();
    assert_eq!(relay.ask(json!({"command": "list"}))["calls"], json!([]));
}

/// Returns the error text of a process that refuses to start.
fn refused(path: &Path) -> String {
    let path = path.to_str().expect("a text").to_owned();
    let output = Relay::command(&["--state".to_owned(), path])
        .output()
        .expect("the program");
    assert!(!output.status.success());
    // Error texts are wrapped at the width of the terminal.
    let said = String::from_utf8(output.stderr).expect("a text");
    said.replace(['\n', '│'], " ")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn systemd_sets_the_folder_and_a_file_in_use_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Relay::command(&[]);
    let two = format!("{}:/nowhere", folder.path().display());
    command.env("STATE_DIRECTORY", two);
    let mut running = Running::spawn(command);
    running.wait_for("serving");
    let path = folder.path().join("calls.redb");
    assert!(path.is_file());
    let said = refused(&path);
    assert!(said.contains("another process uses the file"), "{said}");
}

/// If the gateway refused to start, all future calls would fail. So it starts, and only the calls in the damaged file are lost.
#[test]
fn a_damaged_file_is_renamed_and_the_gateway_starts() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("calls.redb");
    let bytes = b"no state of calls";
    std::fs::write(&path, bytes).expect("written");
    let mut running = Running::spawn(Relay::command(&[
        "--state".to_owned(),
        path.to_str().expect("a text").to_owned(),
    ]));
    let line =
        running.wait_for("the state file is damaged: it was renamed, and its calls are lost");
    assert_eq!(line["level"], "ERROR", "{line}");
    running.wait_for("serving");
    let aside = folder.path().join("calls.redb.damaged");
    assert_eq!(std::fs::read(&aside).expect("the file"), bytes);
    let said = refused(&folder.path().join("missing/calls.redb"));
    assert!(said.contains("--no-state"), "{said}");
}
