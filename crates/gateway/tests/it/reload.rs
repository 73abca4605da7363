//! A configuration file with streams and calls changes while they run.

use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;

use crate::common::{Running, free_port, knock, receive, rtp, socket, threadbare};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// A running `threadbare serve FILE`.
struct Gateway {
    running: Running,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Gateway {
    fn start(config: &str) -> Gateway {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("gateway.toml");
        std::fs::write(&path, config).expect("written");
        let mut command = threadbare();
        command.arg("serve").arg(&path);
        Gateway {
            running: Running::spawn(command),
            path,
            _directory: directory,
        }
    }

    /// Changes the file, and reloads it. Returns the log line with `message`.
    fn reload(&mut self, config: &str, message: &str) -> Value {
        std::fs::write(&self.path, config).expect("written");
        self.running.signal(Signal::SIGHUP);
        self.running.wait_for(message)
    }

    /// Returns the address for proxies' requests.
    fn ng(&mut self) -> SocketAddr {
        let serving = self.running.wait_for("serving");
        let ng = serving["ng"].as_str().expect("an address");
        ng.parse().expect("an address")
    }
}

/// A stream from PCMU to PCMA, with its sender and receiver.
struct Line {
    name: &'static str,
    listen: SocketAddr,
    sender: UdpSocket,
    hears: UdpSocket,
    next: u16,
}

impl Line {
    fn new(name: &'static str) -> Line {
        Line {
            name,
            listen: SocketAddr::from(([127, 0, 0, 1], free_port())),
            sender: socket(),
            hears: socket(),
            next: 0,
        }
    }

    fn toml(&self, keys: &str) -> String {
        let (name, listen) = (self.name, self.listen);
        let to = self.hears.local_addr().expect("bound");
        format!(
            "[[stream]]\nname = \"{name}\"\nlisten = \"{listen}\"\ndestination = \"{to}\"\ncodec = \"PCMU\"\ncodec-out = \"PCMA\"\n\
             rtcp = false\nlatency = 0\n{keys}\n"
        )
    }

    /// Waits until the stream is running.
    fn runs(&mut self) {
        let from = (&self.sender, self.listen, &self.hears);
        self.next = knock(from.0, from.1, from.2, 0, self.next, &[0xd5; 160]);
    }

    /// Sends a packet through the stream. Returns the SSRC and sequence number that arrive.
    fn pass(&mut self) -> (u32, u16) {
        let packet = rtp(0, self.next, &[0xd5; 160]);
        self.next += 1;
        self.sender.send_to(&packet, self.listen).expect("sent");
        let received = receive(&self.hears);
        assert_eq!(received.payload_type, 8);
        (received.ssrc, received.sequence)
    }
}

/// Sends a request, and returns the reply in JSON.
fn ask(proxy: &UdpSocket, ng: SocketAddr, cookie: &str, request: &Value) -> Value {
    let message = format!("{cookie} {request}");
    proxy.send_to(message.as_bytes(), ng).expect("sent");
    let mut room = [0; 65_536];
    let len = proxy.recv(&mut room).expect("a reply in time");
    let reply = std::str::from_utf8(&room[..len]).expect("JSON");
    let reply = reply.strip_prefix(cookie).expect("the cookie");
    serde_json::from_str(reply).expect("JSON")
}

fn offer(call: &str) -> Value {
    let sdp = "v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0\r\n";
    json!({"command": "offer", "call-id": call, "from-tag": "a", "sdp": sdp, "direction": ["inside", "outside"]})
}

/// Changed limits and time-outs apply after the reload, even to running calls. A call keeps its ports.
#[test]
fn settings_of_calls_are_applied_to_running_calls() {
    let mut gateway = Gateway::start(CALLS);
    let ng = gateway.ng();
    let proxy = socket();
    let first = ask(&proxy, ng, "1", &offer("x"));
    assert_eq!(first["result"], "ok", "{first}");
    let tighter = format!("{CALLS}[limits]\nmax-sessions = 1\n");
    gateway.reload(&tighter, "reloaded");
    let refused = ask(&proxy, ng, "2", &offer("y"));
    assert_eq!(refused["result"], "error", "{refused}");
    assert!(
        refused["error-reason"]
            .as_str()
            .is_some_and(|why| why.contains("the limit is 1"))
    );
    // The same offer again gets the same ports.
    let again = ask(&proxy, ng, "3", &offer("x"));
    let port = |reply: &Value| {
        let sdp = reply["sdp"].as_str().expect("an SDP").to_owned();
        sdp.lines()
            .find(|line| line.starts_with("m="))
            .map(str::to_owned)
    };
    assert_eq!(port(&again), port(&first));
    let impatient = format!("{CALLS}[timeouts]\noffer-timeout = 1\n");
    gateway.reload(&impatient, "reloaded");
    let ended = gateway.running.wait_for("the call has ended");
    assert_eq!(ended["reason"], "offer-timeout");
    // The proxy has lost its permission, so it gets no reply.
    let closed = CALLS.replace("127.0.0.1:0\"", "127.0.0.1:0\"\nallow = [\"192.0.2.1\"]");
    gateway.reload(&closed, "reloaded");
    proxy
        .send_to(b"4 {\"command\":\"ping\"}", ng)
        .expect("sent");
    gateway
        .running
        .wait_for("dropped a request from an address that is not allowed (--allow)");
    gateway.running.signal(Signal::SIGTERM);
    gateway.running.wait_for("stopped");
}

const CALLS: &str = "[ng]\nlisten = \"127.0.0.1:0\"\n\
    [interfaces.outside]\naddress = \"127.0.0.1\"\nadvertised = \"203.0.113.7\"\nports = \"20000-59999\"\n\
    [interfaces.inside]\naddress = \"127.0.0.2\"\nports = \"20000-59999\"\n";

#[test]
fn one_file_configures_streams_and_calls() {
    let mut line = Line::new("a");
    let mut gateway = Gateway::start(&format!("{CALLS}{}", line.toml("")));
    let ng = gateway.ng();
    line.runs();
    line.pass();
    let proxy = socket();
    let reply = ask(&proxy, ng, "1", &offer("x"));
    // The answering party is outside, so it gets the advertised address.
    let sdp = reply["sdp"].as_str().expect("an SDP");
    assert!(sdp.contains("c=IN IP4 203.0.113.7\r\n"), "{sdp}");
    gateway.running.signal(Signal::SIGTERM);
    assert_eq!(gateway.running.wait_for("stopping")["calls"], 1);
    gateway.running.wait_for("stopped");
    assert!(gateway.running.child.wait().expect("ends").success());
}

/// One stream stays, one changes, one ends, and one starts. The receivers of the unchanged and of the changed stream get a single RTP stream
/// each (RFC 3550, section 5.1).
#[test]
fn a_reload_affects_only_changed_streams() {
    let [mut stays, mut changes, ends, mut begins] = ["a", "b", "c", "d"].map(Line::new);
    let all = [stays.toml(""), changes.toml(""), ends.toml("")].concat();
    let mut gateway = Gateway::start(&all);
    assert_eq!(gateway.running.wait_for("running")["streams"], 3);
    stays.runs();
    changes.runs();
    let (before, changed_before) = (stays.pass(), changes.pass());
    let all = [stays.toml(""), changes.toml("ptime = 10"), begins.toml("")].concat();
    let told = gateway.reload(&all, "reloaded");
    assert_eq!(
        [&told["added"], &told["removed"], &told["restarted"]],
        [1, 1, 1]
    );
    assert_eq!(stays.pass(), (before.0, before.1.wrapping_add(1)));
    changes.runs();
    changes.pass();
    let (ssrc, _) = {
        // The stream now sends two packets of 10 ms for each received packet of 20 ms.
        let second = receive(&changes.hears);
        (second.ssrc, second.sequence)
    };
    assert_eq!(ssrc, changed_before.0);
    begins.runs();
    begins.pass();
    UdpSocket::bind(ends.listen).expect("its port is free again");
    gateway.running.signal(Signal::SIGTERM);
    gateway.running.wait_for("stopped");
}

#[test]
fn a_file_that_cannot_be_applied_changes_nothing() {
    let mut line = Line::new("a");
    let config = line.toml("");
    let mut gateway = Gateway::start(&config);
    gateway.running.wait_for("running");
    line.runs();
    let (ssrc, sequence) = line.pass();
    let mistaken = config.replace("PCMA", "PCMB");
    let told = gateway.reload(
        &mistaken,
        "the configuration file is not applied, and nothing changes",
    );
    assert!(
        told["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("line 6: ") && reason.contains("PCMB")),
        "{told}"
    );
    let slower = format!(
        "[contexts]\nwait = 40\n[ng]\n{}",
        config.replace("name = \"a\"", "name = \"b\"")
    );
    let told = gateway.reload(
        &slower,
        "the configuration file is not applied, and nothing changes",
    );
    let keys = told["reason"].as_str().expect("the keys");
    assert!(
        keys.contains("[contexts] wait: the gateway runs with 20, but the file has 40"),
        "{keys}"
    );
    assert!(
        keys.contains("[ng]: the gateway runs with no calls, but the file has calls"),
        "{keys}"
    );
    assert_eq!(line.pass(), (ssrc, sequence.wrapping_add(1)));
    gateway.running.signal(Signal::SIGTERM);
    gateway.running.wait_for("stopped");
}

/// The HTTP reply contains the applied changes, or the reason why none was applied.
#[test]
fn reload_by_http_returns_its_changes() {
    let line = Line::new("a");
    let file = format!("{CALLS}[http]\nlisten = \"127.0.0.1:0\"\n");
    let mut gateway = Gateway::start(&file);
    let http = gateway.running.wait_for("serving")["http"].clone();
    let http: SocketAddr = http
        .as_str()
        .expect("an address")
        .parse()
        .expect("an address");
    let reload = |file: &str| {
        std::fs::write(&gateway.path, file).expect("written");
        let request = format!(
            "POST /v1/reload HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        );
        let answer = crate::common::http::exchange(http, request.as_bytes());
        let told: Value = serde_json::from_slice(&answer.body).expect("JSON");
        (answer.status, told)
    };
    let more = format!("{file}[limits]\nmax-sessions = 5\n{}", line.toml(""));
    let (status, told) = reload(&more);
    assert_eq!(
        (status, &told["streams_added"], &told["calls_changed"]),
        (200, &json!(1), &json!(true))
    );
    let (status, told) = reload(&more);
    assert_eq!(
        (status, &told["streams_added"], &told["calls_changed"]),
        (200, &json!(0), &json!(false))
    );
    let (status, told) = reload(&more.replace("max-sessions = 5", "max-sessions = 0"));
    let detail = told["detail"].as_str().expect("why");
    assert!(
        status == 422 && detail.contains("`max-sessions` cannot be 0"),
        "{told}"
    );
    let (status, told) = reload(&format!("[contexts]\ncount = 2\n{more}"));
    let detail = told["detail"].as_str().expect("why");
    assert!(
        status == 409
            && detail.contains("[contexts] count: the gateway runs with 1, but the file has 2"),
        "{told}"
    );
    gateway.running.signal(Signal::SIGTERM);
    gateway.running.wait_for("stopped");
}
