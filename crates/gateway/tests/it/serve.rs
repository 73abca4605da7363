//! `threadbare serve` between a SIP proxy and two parties. The tests check requests of the ng protocol, session descriptions, and audio in
//! both directions.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{LIMIT, Running, port_pair, rtp, socket, threadbare, wait_until};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use threadbare_rtp::g711;
use threadbare_rtp::srtp::{Crypto, MASTER_KEY_BYTES_MAX, MasterKey, Receiver, Sender, Suite};

/// A relay, with the proxy that sends requests to it.
struct Relay {
    running: Running,
    proxy: UdpSocket,
    asked: u32,
}

impl Relay {
    fn start(arguments: &[&str]) -> Relay {
        let mut command = threadbare();
        // The relay searches this range for free ports.
        command.args(["serve", "--ng", "127.0.0.1:0", "--ports", "20000-59999"]);
        command.args(["--delete-delay", "0"]);
        command.args(arguments);
        let mut running = Running::spawn(command);
        let serving = running.wait_for("serving");
        let ng: SocketAddr = serving["ng"]
            .as_str()
            .expect("an address")
            .parse()
            .expect("an address");
        let proxy = socket();
        proxy.connect(ng).expect("loopback");
        Relay {
            running,
            proxy,
            asked: 0,
        }
    }

    /// Sends a request, and returns the reply in JSON.
    fn ask(&mut self, request: Value) -> Value {
        self.asked += 1;
        let message = format!("cookie{} {request}", self.asked);
        self.proxy.send(message.as_bytes()).expect("sent");
        let mut room = [0; 65_536];
        let len = self.proxy.recv(&mut room).expect("a reply in time");
        let reply = std::str::from_utf8(&room[..len]).expect("JSON");
        let (cookie, reply) = reply.split_once(' ').expect("a cookie");
        assert_eq!(cookie, format!("cookie{}", self.asked));
        serde_json::from_str(reply).expect("JSON")
    }

    /// Sends an SDP through the relay. Returns the SDP of the reply.
    fn pass(&mut self, command: &str, keys: Value, sdp: &str) -> String {
        let mut request = json!({"command": command, "call-id": "1", "from-tag": "a", "sdp": sdp});
        let more = keys.as_object().expect("keys").clone();
        request.as_object_mut().expect("keys").extend(more);
        let reply = self.ask(request);
        assert_eq!(reply["result"], "ok", "{reply}");
        reply["sdp"].as_str().expect("an SDP").to_owned()
    }
}

/// A phone: a socket for RTP, the received audio, and its encryption.
struct Party {
    socket: UdpSocket,
    /// The socket for reports, on the port after the RTP port.
    reports: UdpSocket,
    to: Option<SocketAddr>,
    number: u16,
    payload_type: u8,
    hz: f64,
    heard: Vec<f64>,
    sequences: Vec<u16>,
    srtp: Option<(Sender, Receiver)>,
}

impl Party {
    fn new(payload_type: u8, hz: f64) -> Party {
        let [socket, reports] = port_pair();
        socket.set_nonblocking(true).expect("non-blocking");
        reports
            .set_read_timeout(Some(LIMIT))
            .expect("a valid time-out");
        Party {
            socket,
            reports,
            to: None,
            number: 0,
            payload_type,
            hz,
            heard: Vec::new(),
            sequences: Vec::new(),
            srtp: None,
        }
    }

    /// Returns the phone's description, with these formats, and with `more` lines.
    fn sdp(&self, media: &str, more: &str) -> String {
        let port = self.socket.local_addr().expect("bound").port();
        let media = media.replace("PORT", &port.to_string());
        format!(
            "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n{media}\r\n{more}"
        )
    }

    /// Sets the destination to that in this description.
    fn call(&mut self, sdp: &str) {
        let media = sdp
            .lines()
            .find(|line| line.starts_with("m=audio"))
            .expect("audio");
        let port: u16 = media
            .split(' ')
            .nth(1)
            .and_then(|port| port.parse().ok())
            .expect("a port");
        self.to = Some(([127, 0, 0, 1], port).into());
    }

    /// Sends 20 ms of the phone's tone.
    fn say(&mut self) {
        let encode = match self.payload_type {
            8 => g711::linear_to_alaw,
            _ => g711::linear_to_ulaw,
        };
        let sample = |n: u32| {
            let at = f64::from(u32::from(self.number) * 160 + n) / 8000.0;
            encode((LEVEL * (std::f64::consts::TAU * self.hz * at).sin()) as i16)
        };
        let codes: Vec<u8> = (0..160).map(sample).collect();
        let mut packet = rtp(self.payload_type, self.number, &codes);
        if let Some((sender, _)) = &mut self.srtp {
            let len = packet.len();
            packet.resize(len + 32, 0);
            let len = sender.protect_rtp(&mut packet, len).expect("protected");
            packet.truncate(len);
        }
        self.number += 1;
        if let Some(to) = self.to {
            // After the end of the call, the port is closed.
            let _ = self.socket.send_to(&packet, to);
        }
    }

    fn listen(&mut self) {
        let mut room = [0; 2048];
        while let Ok(len) = self.socket.recv(&mut room) {
            let mut bytes = &mut room[..len];
            if threadbare_rtp::packet::is_rtcp(bytes) {
                continue;
            }
            if let Some((_, receiver)) = &mut self.srtp {
                let len = receiver.unprotect_rtp(bytes).expect("it is ours");
                bytes = &mut bytes[..len];
            }
            let packet = rtp_types::RtpPacket::parse(bytes).expect("RTP");
            assert_eq!(packet.payload_type(), self.payload_type);
            let table = match self.payload_type {
                8 => &g711::ALAW_TO_LINEAR,
                _ => &g711::ULAW_TO_LINEAR,
            };
            let codes = packet.payload().iter();
            self.heard
                .extend(codes.map(|code| f64::from(table[usize::from(*code)])));
            self.sequences.push(packet.sequence_number());
        }
    }

    /// Returns the amplitude of a tone in the last second, relative to the sent one.
    fn level(&self, hz: f64) -> f64 {
        let pcm = &self.heard[self.heard.len().saturating_sub(8000)..];
        let angle = |n: usize| std::f64::consts::TAU * hz * n as f64 / 8000.0;
        let part = |wave: fn(f64) -> f64| {
            let all = pcm.iter().enumerate();
            let sum: f64 = all.map(|(n, sample)| sample * wave(angle(n))).sum();
            2.0 * sum / pcm.len().max(1) as f64
        };
        part(f64::sin).hypot(part(f64::cos)) / LEVEL
    }

    /// Waits for a BYE, which a participant sends when it leaves (RFC 3550, section 6.6).
    fn await_bye(&self) {
        let mut room = [0; 2048];
        let is_bye = |packet: Result<rtcp_types::Packet<'_>, _>| {
            matches!(packet.expect("RTCP"), rtcp_types::Packet::Bye(_))
        };
        loop {
            let len = self.reports.recv(&mut room).expect("a BYE in time");
            let mut packets = rtcp_types::Compound::parse(&room[..len]).expect("RTCP");
            if packets.any(is_bye) {
                return;
            }
        }
    }

    fn forget(&mut self) {
        self.heard.clear();
        self.sequences.clear();
    }
}

/// Lets both parties send at the pace of a call until `is_done`.
fn talk(a: &mut Party, b: &mut Party, mut is_done: impl FnMut(&Party, &Party) -> bool) {
    let begin = Instant::now();
    for number in 0.. {
        a.say();
        b.say();
        a.listen();
        b.listen();
        if is_done(a, b) {
            return;
        }
        assert!(
            begin.elapsed() < LIMIT,
            "{} and {} samples",
            a.heard.len(),
            b.heard.len()
        );
        let due = begin + Duration::from_millis(20) * number;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Asserts that each party receives a second of the other's tone, and nothing else.
fn hear_each_other(a: &mut Party, b: &mut Party) {
    a.forget();
    b.forget();
    talk(a, b, |a, b| a.heard.len().min(b.heard.len()) > 9600);
    for (own, far) in [(&*a, &*b), (&*b, &*a)] {
        let (wanted, other) = (own.level(far.hz), own.level(own.hz));
        assert!(
            (wanted - 1.0).abs() < 0.03 && other < 0.03,
            "{wanted} and {other}"
        );
        let goes_on = |pair: &[u16]| pair[1] == pair[0].wrapping_add(1);
        assert!(own.sequences.windows(2).all(goes_on), "{:?}", own.sequences);
    }
}

const PCMU: &str = "m=audio PORT RTP/AVP 0";
const LEVEL: f64 = 8000.0;
/// Frequency of A's tone. It has whole periods in a second, and many different values, so that G.711's rounding errors cancel.
const A_HZ: f64 = 437.0;
const B_HZ: f64 = 1013.0;

fn tags() -> Value {
    json!({"to-tag": "b"})
}

/// Sets up a call of PCMU on both sides.
fn plain_call(relay: &mut Relay) -> (Party, Party) {
    let (mut a, mut b) = (Party::new(0, A_HZ), Party::new(0, B_HZ));
    let to_b = relay.pass("offer", json!({}), &a.sdp(PCMU, ""));
    b.call(&to_b);
    let to_a = relay.pass("answer", tags(), &b.sdp(PCMU, ""));
    a.call(&to_a);
    (a, b)
}

/// Whether the port is closed. If so, a connected socket gets the kernel's ICMP error.
fn is_closed(address: SocketAddr) -> bool {
    let probe = socket();
    probe.connect(address).expect("loopback");
    let _ = probe.send(b"?");
    let closed = |error: std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
    probe.send(b"?").is_err_and(closed)
}

#[test]
fn two_parties_hear_each_other_until_the_call_is_deleted() {
    let mut relay = Relay::start(&[]);
    assert_eq!(relay.ask(json!({"command": "ping"}))["result"], "pong");
    let (mut a, mut b) = plain_call(&mut relay);
    hear_each_other(&mut a, &mut b);
    let query = relay.ask(json!({"command": "query", "call-id": "1"}));
    let received = |tag: &str| {
        let stats = &query["tags"][tag]["medias"][0]["streams"][0]["stats"];
        stats["packets"].as_u64().unwrap_or(0)
    };
    for (tag, sent) in [("a", a.number), ("b", b.number)] {
        assert!(
            received(tag) + 5 > u64::from(sent),
            "{tag} sent {sent}: {query}"
        );
    }
    let reply = relay.ask(json!({"command": "delete", "call-id": "1", "from-tag": "a"}));
    assert_eq!(reply["result"], "ok", "{reply}");
    assert!(
        reply["totals"]["RTP"]["packets"].as_u64() > Some(100),
        "{reply}"
    );
    let ended = relay.running.wait_for("the call has ended");
    assert_eq!(ended["reason"], "deleted", "{ended}");
    for party in [&a, &b] {
        party.await_bye();
        let port = party.to.expect("a port");
        wait_until(|| is_closed(port));
    }
    let list = relay.ask(json!({"command": "list"}));
    assert_eq!(list["calls"], json!([]), "{list}");
}

#[test]
fn a_codec_that_one_side_lacks_is_converted() {
    let mut relay = Relay::start(&[]);
    let (mut a, mut b) = (Party::new(0, A_HZ), Party::new(8, B_HZ));
    let keys = json!({"codec": {"transcode": ["PCMA"]}});
    let to_b = relay.pass("offer", keys, &a.sdp(PCMU, ""));
    assert!(to_b.contains("RTP/AVP 0 8\r\n"), "{to_b}");
    b.call(&to_b);
    let to_a = relay.pass("answer", tags(), &b.sdp("m=audio PORT RTP/AVP 8", ""));
    assert!(to_a.contains("RTP/AVP 0\r\n"), "{to_a}");
    a.call(&to_a);
    hear_each_other(&mut a, &mut b);
}

/// B uses SRTP (RFC 4568), and A does not.
#[test]
fn a_call_may_be_encrypted_on_one_side_only() {
    for suite in [Suite::AesCm128HmacSha1_80, Suite::AeadAes256Gcm] {
        let mut relay = Relay::start(&[]);
        let (mut a, mut b) = (Party::new(0, A_HZ), Party::new(0, B_HZ));
        let to_b = relay.pass(
            "offer",
            json!({"transport-protocol": "RTP/SAVP"}),
            &a.sdp(PCMU, ""),
        );
        assert!(to_b.contains("RTP/SAVP 0\r\n"), "{to_b}");
        let offered = to_b
            .lines()
            .filter_map(|line| line.strip_prefix("a=crypto:"));
        let mut offered = offered.map(|value| Crypto::parse(value).expect("SDES"));
        let theirs = offered
            .find(|one| one.key.suite() == suite)
            .expect("all suites are offered");
        let own = MasterKey::from_random(suite, &[7; MASTER_KEY_BYTES_MAX]);
        b.srtp = Some((Sender::new(&own), Receiver::new(&theirs.key)));
        let own = Crypto {
            tag: theirs.tag,
            lifetime_packets: None,
            key: own,
        };
        let crypto = format!("a=crypto:{}\r\n", own.to_value().as_str());
        b.call(&to_b);
        let answer = b.sdp("m=audio PORT RTP/SAVP 0", &crypto);
        let to_a = relay.pass("answer", tags(), &answer);
        assert!(
            to_a.contains("RTP/AVP 0\r\n") && !to_a.contains("crypto"),
            "{to_a}"
        );
        a.call(&to_a);
        hear_each_other(&mut a, &mut b);
        // Unencrypted media are not accepted.
        let heard = a.heard.len();
        let srtp = b.srtp.take();
        talk(&mut a, &mut b, |_, b| b.number > 100);
        b.srtp = srtp;
        assert!(
            a.heard.len() < heard + 8 * 160,
            "{heard}, then {}",
            a.heard.len()
        );
    }
}

/// Both sides are put on hold with `inactive`, then resumed with `sendrecv` on the same ports (RFC 3264, section 8.4).
#[test]
fn held_call_resumes() {
    let mut relay = Relay::start(&[]);
    let (mut a, mut b) = plain_call(&mut relay);
    hear_each_other(&mut a, &mut b);
    let ports = (a.to, b.to);
    let mut last = BTreeMap::new();
    for direction in ["inactive", "sendrecv"] {
        let line = format!("a={direction}\r\n");
        let both = json!({"to-tag": "b"});
        let to_b = relay.pass("offer", both.clone(), &a.sdp(PCMU, &line));
        b.call(&to_b);
        let to_a = relay.pass("answer", both, &b.sdp(PCMU, &line));
        a.call(&to_a);
        assert_eq!((a.to, b.to), ports, "nothing has changed but the direction");
        if direction == "inactive" {
            // Packets that were on their way arrive while a few more are sent.
            let until = a.number + 15;
            talk(&mut a, &mut b, |a, _| a.number > until);
            last = BTreeMap::from([
                ("a", a.sequences.last().copied()),
                ("b", b.sequences.last().copied()),
            ]);
            let (quiet_a, quiet_b) = (a.heard.len(), b.heard.len());
            let until = a.number + 50;
            talk(&mut a, &mut b, |a, _| a.number > until);
            assert_eq!((a.heard.len(), b.heard.len()), (quiet_a, quiet_b));
        }
    }
    hear_each_other(&mut a, &mut b);
    for (name, party) in [("a", &a), ("b", &b)] {
        let next = last[name].map(|last| last.wrapping_add(1));
        assert_eq!(
            party.sequences.first().copied(),
            next,
            "{name} takes a gap for a loss"
        );
    }
}

#[test]
fn a_call_without_media_ends() {
    let mut relay = Relay::start(&["--timeout", "1"]);
    let (a, _b) = plain_call(&mut relay);
    let ended = relay.running.wait_for("the call has ended");
    assert_eq!(ended["reason"], "timeout", "{ended}");
    let port = a.to.expect("a port");
    wait_until(|| is_closed(port));
}

#[test]
fn calls_end_when_the_relay_ends() {
    let mut relay = Relay::start(&[]);
    let (mut a, mut b) = plain_call(&mut relay);
    hear_each_other(&mut a, &mut b);
    relay.running.signal(Signal::SIGTERM);
    let ended = relay.running.wait_for("the call has ended");
    assert_eq!(ended["reason"], "operator", "{ended}");
    a.await_bye();
    b.await_bye();
    assert!(relay.running.child.wait().expect("it ends").success());
}

#[test]
fn calls_beyond_max_sessions_are_refused_with_the_limit() {
    let mut relay = Relay::start(&["--max-sessions", "1"]);
    let a = Party::new(0, A_HZ);
    relay.pass("offer", json!({}), &a.sdp(PCMU, ""));
    let other =
        json!({"command": "offer", "call-id": "2", "from-tag": "a", "sdp": a.sdp(PCMU, "")});
    let refused = relay.ask(other);
    assert_eq!(refused["result"], "error", "{refused}");
    let reason = refused["error-reason"]
        .as_str()
        .expect("a reason")
        .to_owned();
    assert!(reason.contains('1'), "{reason}");
    let refused =
        relay.ask(json!({"command": "offer", "call-id": "3", "from-tag": "a", "sdp": "v=1\r\n"}));
    let reason = refused["error-reason"]
        .as_str()
        .expect("a reason")
        .to_owned();
    assert!(reason.contains("v=1"), "{reason}");
}

/// The limit is so low that every thread exceeds it.
#[test]
fn new_calls_are_refused_while_the_threads_are_late() {
    let mut relay = Relay::start(&["--lateness-limit", "0"]);
    let (mut a, mut b) = plain_call(&mut relay);
    hear_each_other(&mut a, &mut b);
    let offer =
        json!({"command": "offer", "call-id": "2", "from-tag": "a", "sdp": a.sdp(PCMU, "")});
    let refused = relay.ask(offer);
    assert_eq!(refused["result"], "error", "{refused}");
    let reason = refused["error-reason"].as_str().expect("a reason");
    assert!(
        reason.contains("late") && reason.contains("0 ms"),
        "{reason}"
    );
    // The limit does not affect the running call.
    hear_each_other(&mut a, &mut b);
}

#[test]
fn new_calls_are_refused_while_the_threads_are_busy() {
    let mut relay = Relay::start(&[
        "--cpu-limit",
        "0",
        "--threads",
        "1",
        "--lateness-limit",
        "60000",
    ]);
    let (a, _b) = plain_call(&mut relay);
    let offer =
        json!({"command": "offer", "call-id": "2", "from-tag": "a", "sdp": a.sdp(PCMU, "")});
    let begin = Instant::now();
    // Repetitions of the same packet are refused, but still take CPU time.
    let (packet, to) = (rtp(0, 1, &[0xff; 160]), a.to.expect("called"));
    let refused = loop {
        assert!(begin.elapsed() < LIMIT, "never busy");
        for _ in 0..2000 {
            a.socket.send_to(&packet, to).expect("sent");
        }
        let reply = relay.ask(offer.clone());
        if reply["result"] == "error" {
            break reply;
        }
        relay.ask(json!({"command": "delete", "call-id": "2", "from-tag": "a"}));
    };
    let reason = refused["error-reason"].as_str().expect("a reason");
    assert!(
        reason.contains("busy") && reason.contains("the limit is 0 %"),
        "{reason}"
    );
}

#[test]
fn forbidden_sender_gets_no_reply() {
    let mut relay = Relay::start(&["--allow", "192.0.2.0/24"]);
    relay.proxy.send(b"1 d7:command4:pinge").expect("sent");
    relay
        .running
        .wait_for("dropped a request from an address that is not allowed (--allow)");
    relay.proxy.set_nonblocking(true).expect("non-blocking");
    let none = relay.proxy.recv(&mut [0; 16]).map_err(|error| error.kind());
    assert_eq!(none, Err(ErrorKind::WouldBlock));
}

#[test]
fn conflicting_arguments_are_refused_with_the_allowed_values() {
    for (arguments, words) in [
        (&["--ng", "0.0.0.0:2223"][..], ["0.0.0.0:2223", "--allow"]),
        (
            &["--ng-tcp", "0.0.0.0:2223"],
            ["--ng-tcp 0.0.0.0:2223", "--allow"],
        ),
        (&["--address", "0.0.0.0"], ["0.0.0.0", "expected"]),
        (
            &["--address", "a/127.0.0.1", "--address", "a/127.0.0.2"],
            ["127.0.0.2", "inside/10.0.0.1"],
        ),
        // This is a documentation address (RFC 5737), which no machine has.
        (&["--address", "203.0.113.7"], ["203.0.113.7", "10.0.0.1!"]),
        (&["--ports", "7-7"], ["7-7", "FIRST-LAST"]),
        (&["--allow", "proxy"], ["proxy", "192.0.2.0/24"]),
    ] {
        let mut command = threadbare();
        let output = command
            .arg("serve")
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("runs");
        let said = String::from_utf8_lossy(&output.stderr).replace("\n  │ ", " ");
        assert!(!output.status.success(), "{arguments:?}");
        assert!(
            words.iter().all(|word| said.contains(word)),
            "{arguments:?}: {said}"
        );
    }
}
