//! Callers that give an address of one of the relay's own services as their media address. However such an address enters a call, the
//! service gets no packets.
//!
//! The service is the HTTP port. It uses TCP, so a test can open the UDP port of the same number and see all packets to it.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use crate::common::phones::Relay;
use crate::common::{port_pair, rtp, socket};
use serde_json::{Value, json};

/// What a caller tries.
struct Attempt {
    /// The `m=` lines of the caller and of the callee.
    lines: [&'static str; 2],
    /// Additional keys of the offer.
    keys: Value,
    /// Creates the callee's datagram with this number.
    datagram: fn(u16) -> Vec<u8>,
    /// Whether the callee sends from its RTCP port.
    is_rtcp: bool,
}

impl Attempt {
    fn new(line: &'static str, datagram: fn(u16) -> Vec<u8>) -> Attempt {
        Attempt {
            lines: [line, line],
            keys: json!({}),
            datagram,
            is_rtcp: false,
        }
    }
}

struct Scene {
    relay: Relay,
    /// A UDP socket on the port number of a service.
    service: UdpSocket,
    callee: [UdpSocket; 2],
}

impl Scene {
    fn new() -> Scene {
        Scene::with(&[])
    }

    fn with(arguments: &[&str]) -> Scene {
        let relay = Relay::start(&[&["--http", "127.0.0.1:0"], arguments].concat());
        let service =
            UdpSocket::bind(relay.http.expect("an address")).expect("TCP has it, UDP has not");
        service.set_nonblocking(true).expect("non-blocking");
        Scene {
            relay,
            service,
            callee: port_pair(),
        }
    }

    fn service_port(&self) -> u16 {
        self.service.local_addr().expect("bound").port()
    }

    fn request(&mut self, command: &str, more: Value, sdp: &str) -> Value {
        let mut request = json!({"command": command, "call-id": "1", "from-tag": "a", "sdp": sdp});
        let keys = request.as_object_mut().expect("keys");
        keys.extend(more.as_object().expect("keys").clone());
        let reply = self.relay.ask(request);
        assert_eq!(reply["result"], "ok", "{reply}");
        reply
    }

    /// Sets up the call with these descriptions. Returns the addresses to which the parties send, and the warnings.
    fn connect(&mut self, attempt: &Attempt, caller: &str) -> ([SocketAddr; 2], [Value; 2]) {
        let port = self.callee[0].local_addr().expect("bound").port();
        let offered = self.request("offer", attempt.keys.clone(), caller);
        let answered = self.request(
            "answer",
            json!({"to-tag": "b"}),
            &sdp(attempt.lines[1], port),
        );
        let to = [&answered, &offered].map(|reply| media_of(&reply["sdp"]));
        (
            to,
            [offered, answered].map(|reply| reply["warning"].clone()),
        )
    }

    /// Lets the callee send until the relay has accepted a second of media, with time for the jitter buffer.
    fn talk(&mut self, attempt: &Attempt, mut to: SocketAddr) {
        let from = &self.callee[usize::from(attempt.is_rtcp)];
        to.set_port(to.port() + u16::from(attempt.is_rtcp));
        let kind = if attempt.is_rtcp { "RTCP" } else { "RTP" };
        for number in 0.. {
            from.send_to(&(attempt.datagram)(number), to).expect("sent");
            std::thread::sleep(Duration::from_millis(5));
            let query = self.relay.ask(json!({"command": "query", "call-id": "1"}));
            let received = query["totals"][kind]["packets"].as_u64().expect("a count");
            if received >= 50 {
                return;
            }
            assert!(number < 6000, "nothing is taken: {query}");
        }
    }

    fn gets_nothing(&self, what: &str) {
        let got = self.service.recv_from(&mut [0; 2048]);
        let error = got.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{what}");
    }
}

fn sdp(line: &str, port: u16) -> String {
    let line = line.replace("PORT", &port.to_string());
    format!("v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n{line}\r\n")
}

fn media_of(sdp: &Value) -> SocketAddr {
    let sdp = sdp.as_str().expect("an SDP");
    let line = sdp.lines().find_map(|line| line.strip_prefix("m="));
    let port = line.and_then(|line| line.split(' ').nth(1)?.parse().ok());
    ([127, 0, 0, 1], port.expect("a port")).into()
}

fn pcmu(number: u16) -> Vec<u8> {
    rtp(0, number, &[0x12; 160])
}

fn warns(warning: &Value, what: &str) {
    let text = warning
        .as_str()
        .unwrap_or_else(|| panic!("{what}: no warning"));
    assert!(
        text.contains("m= line 1") && text.contains("service of this machine"),
        "{text}"
    );
}

/// Asserts that an offer whose media address is the service is refused.
fn is_refused(what: &str, attempt: &Attempt) {
    let mut scene = Scene::new();
    let caller = sdp(attempt.lines[0], scene.service_port());
    let ([_, to_callee_port], [offered, answered]) = scene.connect(attempt, &caller);
    scene.talk(attempt, to_callee_port);
    scene.gets_nothing(what);
    warns(&offered, what);
    warns(&answered, what);
}

#[test]
fn audio_that_is_passed_on_reaches_no_service() {
    is_refused("passed on", &Attempt::new("m=audio PORT RTP/AVP 0", pcmu));
}

#[test]
fn audio_that_is_transcoded_reaches_no_service() {
    let attempt = Attempt {
        lines: ["m=audio PORT RTP/AVP 8", "m=audio PORT RTP/AVP 0"],
        keys: json!({"codec": {"transcode": ["PCMU"], "mask": ["PCMA"]}}),
        ..Attempt::new("", pcmu)
    };
    is_refused("transcoded", &attempt);
}

#[test]
fn fax_reaches_no_service() {
    let fax = |_| b"q1 d7:command4:liste".to_vec();
    is_refused("fax", &Attempt::new("m=image PORT udptl t38", fax));
}

#[test]
fn video_reaches_no_service() {
    let video = |number| rtp(96, number, b"q1 d7:command4:liste");
    is_refused("video", &Attempt::new("m=video PORT RTP/AVP 96", video));
}

/// RTCP may have another address than RTP (RFC 3605). Here, only the RTCP address is that of the service.
#[test]
fn rtcp_reaches_no_service() {
    let mut scene = Scene::new();
    // The report is an empty receiver report (RFC 3550, section 6.4.2).
    let report = |_| [&[0x80, 201, 0, 1][..], &[0, 0, 0, 7]].concat();
    let attempt = Attempt {
        is_rtcp: true,
        ..Attempt::new("m=video PORT RTP/AVP 96", report)
    };
    let party = socket();
    let caller = sdp(attempt.lines[0], party.local_addr().expect("bound").port());
    let caller = format!(
        "{caller}a=rtcp:{} IN IP4 127.0.0.1\r\n",
        scene.service_port()
    );
    let ([_, to], [offered, answered]) = scene.connect(&attempt, &caller);
    scene.talk(&attempt, to);
    scene.gets_nothing("RTCP");
    warns(&offered, "RTCP");
    warns(&answered, "RTCP");
}

/// A program on this machine sends from the address of the service. The relay would learn the address of an ordinary party in this way.
#[test]
fn a_service_is_not_learned_as_a_party() {
    let mut scene = Scene::new();
    let attempt = Attempt::new("m=image PORT udptl t38", |_| b"fax".to_vec());
    // The caller is behind a NAT, so no packets come from its described address.
    let party = socket();
    let caller = sdp(attempt.lines[0], party.local_addr().expect("bound").port());
    let ([to_caller_port, to], _) = scene.connect(&attempt, &caller);
    for _ in 0..20 {
        scene.service.send_to(b"fax", to_caller_port).expect("sent");
    }
    scene.talk(&attempt, to);
    scene.gets_nothing("learned");
}

#[test]
fn only_exceptions_in_a_denied_network_get_media() {
    let rules = [
        "--media-deny",
        "127.0.0.0/29",
        "--media-allow",
        "127.0.0.3",
        "--media-allow",
        "127.0.0.1",
    ];
    for (host, is_denied) in [
        ("127.0.0.2", true),
        ("127.0.0.3", false),
        ("127.0.0.9", false),
    ] {
        let mut scene = Scene::with(&rules);
        let attempt = Attempt::new("m=audio PORT RTP/AVP 0", pcmu);
        let party = UdpSocket::bind((host, 0)).expect("all of 127.0.0.0/8 is here");
        party.set_nonblocking(true).expect("non-blocking");
        let port = party.local_addr().expect("bound").port();
        let caller = sdp(attempt.lines[0], port).replace("IP4 127.0.0.1", &format!("IP4 {host}"));
        let ([_, to], [offered, _]) = scene.connect(&attempt, &caller);
        scene.talk(&attempt, to);
        assert_eq!(party.recv(&mut [0; 2048]).is_err(), is_denied, "{host}");
        let warning = offered.as_str().unwrap_or_default();
        assert_eq!(
            warning.contains("the configuration denies media"),
            is_denied,
            "{host}: {warning}"
        );
    }
}

#[test]
fn a_subscription_reaches_no_service() {
    let mut scene = Scene::new();
    let attempt = Attempt::new("m=audio PORT RTP/AVP 0", pcmu);
    let party = socket();
    let caller = sdp(attempt.lines[0], party.local_addr().expect("bound").port());
    let ([_, to], _) = scene.connect(&attempt, &caller);
    let asked =
        json!({"command": "subscribe request", "call-id": "1", "from-tag": "b", "to-tag": "s"});
    assert_eq!(scene.relay.ask(asked)["result"], "ok");
    let sdp = sdp("m=audio PORT RTP/AVP 0\r\na=recvonly", scene.service_port());
    let answer = json!({"command": "subscribe answer", "call-id": "1", "to-tag": "s", "sdp": sdp});
    let reply = scene.relay.ask(answer);
    assert_eq!(reply["result"], "ok", "{reply}");
    scene.talk(&attempt, to);
    scene.gets_nothing("a subscription");
    warns(&reply["warning"], "a subscription");
}

#[test]
fn a_call_made_by_http_reaches_no_service() {
    let relay = crate::common::http::Relay::start(&[]);
    let service = UdpSocket::bind(relay.http).expect("TCP has it, UDP has not");
    service.set_nonblocking(true).expect("non-blocking");
    let callee = socket();
    let sides = [
        json!({"address": relay.http.to_string(), "codec": "PCMU/8000"}),
        crate::common::plain::side(&callee, "PCMU/8000"),
    ];
    let made = crate::common::plain::made(&relay.post("/v1/calls", &json!({"sides": sides})));
    let mut callee = crate::common::plain::Party::new(callee, &made["sides"][1]);
    let path = made["path"].as_str().expect("a path");
    let received = || {
        let detail = relay.get_json(path);
        let count = &detail["streams"][0]["sides"][1]["media"]["packets_received"];
        count.as_u64().unwrap_or_else(|| panic!("{detail}"))
    };
    for _ in 0..6000 {
        callee.say(0x12);
        // Send at the pace of a call.
        std::thread::sleep(Duration::from_millis(15));
        if received() >= 50 {
            break;
        }
    }
    assert!(received() >= 50);
    assert_eq!(
        service.recv(&mut [0; 2048]).expect_err("nothing").kind(),
        ErrorKind::WouldBlock
    );
}

/// An accomplice sends requests as media, so that the relay forwards them to its own control port.
#[test]
fn the_control_port_ignores_requests_from_ports_of_calls() {
    let mut scene = Scene::new();
    let ng = scene.relay.ng().port();
    let delete = |_| b"q1 d7:call-id6:victim7:command6:delete12:delete-delayi0ee".to_vec();
    let attempt = Attempt::new("m=image PORT udptl t38", delete);
    let party = socket();
    let victim = sdp(
        "m=audio PORT RTP/AVP 0",
        party.local_addr().expect("bound").port(),
    );
    let offer = json!({"command": "offer", "call-id": "victim", "from-tag": "v", "sdp": victim});
    assert_eq!(scene.relay.ask(offer)["result"], "ok");
    let ([_, to], _) = scene.connect(&attempt, &sdp(attempt.lines[0], ng));
    scene.talk(&attempt, to);
    let list = scene.relay.ask(json!({"command": "list"}));
    assert_eq!(list["calls"], json!(["1", "victim"]));
}

/// A proxy has routed a call through the relay twice, so two calls send to ports of the relay. The audio still arrives.
#[test]
fn call_routed_through_the_relay_twice_has_audio() {
    let mut scene = Scene::new();
    let party = socket();
    let line = "m=image PORT udptl t38";
    let port = party.local_addr().expect("bound").port();
    let ask = |relay: &mut Relay, command: &str, call: &str, port: u16| {
        let request = json!({"command": command, "call-id": call, "from-tag": "a", "to-tag": "b", "sdp": sdp(line, port)});
        let reply = relay.ask(request);
        assert_eq!(
            (&reply["result"], &reply["warning"]),
            (&json!("ok"), &Value::Null),
            "{reply}"
        );
        media_of(&reply["sdp"])
    };
    let callee = scene.callee[0].local_addr().expect("bound").port();
    let between = ask(&mut scene.relay, "offer", "1", port);
    let to_callee = ask(&mut scene.relay, "offer", "2", between.port());
    let back = ask(&mut scene.relay, "answer", "2", callee);
    let to_caller = ask(&mut scene.relay, "answer", "1", back.port());
    let mut room = [0; 64];
    for (from, to, other) in [
        (&party, to_caller, &scene.callee[0]),
        (&scene.callee[0], to_callee, &party),
    ] {
        other
            .set_read_timeout(Some(Duration::from_millis(20)))
            .expect("valid");
        let heard = (0..1000).any(|_| {
            from.send_to(b"fax", to).expect("sent");
            other.recv(&mut room).is_ok()
        });
        assert!(heard, "from {from:?}");
    }
}

/// If two calls sent to each other, a datagram would loop for ever.
#[test]
fn calls_that_would_send_in_circles_cause_a_warning() {
    let mut scene = Scene::new();
    let line = "m=image PORT udptl t38";
    let ask = |relay: &mut Relay, command: &str, call: &str, port: u16| {
        let request = json!({"command": command, "call-id": call, "from-tag": "a", "to-tag": "b", "sdp": sdp(line, port)});
        let reply = relay.ask(request);
        assert_eq!(reply["result"], "ok", "{reply}");
        (media_of(&reply["sdp"]).port(), reply["warning"].clone())
    };
    let (b1, _) = ask(&mut scene.relay, "offer", "1", 4000);
    // The address is first the call's own port, and then the port of the call's other side.
    let (_, warning) = ask(&mut scene.relay, "answer", "1", b1);
    let text = warning.as_str().expect("a warning");
    assert!(
        text.contains("would return to a port of the same call"),
        "{text}"
    );
    let (a1, _) = ask(&mut scene.relay, "answer", "1", 4002);
    let (b2, _) = ask(&mut scene.relay, "offer", "2", a1);
    let (a2, _) = ask(&mut scene.relay, "answer", "2", b1);
    // Now call 2 sends to both ports of call 1; the other direction closes the loop.
    ask(&mut scene.relay, "offer", "1", b2);
    let (_, warning) = ask(&mut scene.relay, "answer", "1", a2);
    let text = warning.as_str().expect("a warning");
    assert!(
        text.contains("would return to a port of the same call"),
        "{text}"
    );
}
