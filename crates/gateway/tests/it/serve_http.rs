//! `threadbare serve --http` for programs and operators. The tests send requests as bytes on a socket to a real process (RFC 9112).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::common::http::{Answer, Relay, exchange, is_closed, parties, port_of, read_answer, sdp};
use crate::common::{LIMIT, rtp, socket, threadbare, wait_until};
use serde_json::{Value, json};

fn token_file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    std::fs::write(&path, text).expect("written");
    (folder, path)
}

#[test]
fn if_a_token_is_set_only_health_requests_and_files_of_the_page_need_none() {
    let (_folder, path) = token_file("0123456789abcdef-x\n");
    let mut relay = Relay::start(&["--http-token-file", path.to_str().expect("UTF-8")]);
    for path in ["/healthz", "/readyz"] {
        assert_eq!(relay.get(path).status, 200, "{path}");
    }
    // A browser needs these files before the user can enter the token.
    for path in [
        "/",
        "/wall.js",
        "/wall.css",
        "/listen.js",
        "/api",
        "/api.js",
    ] {
        assert_eq!(relay.get(path).status, 200, "{path}");
    }
    let closed = [
        "/v1/calls",
        "/v1/contexts",
        "/metrics",
        "/openapi.json",
        "/v1/streams/news/listen",
        "/v1/streams/news/log",
        "/ng",
        "/nothing",
    ];
    for token in [
        None,
        Some("0123456789abcdef-y"),
        Some("0123456789abcdef-x0"),
        Some(""),
    ] {
        relay.token = token.map(str::to_owned);
        for path in closed {
            let answer = relay.get(path);
            let problem = answer.problem(401);
            assert_eq!(problem["field"], "Authorization", "{problem}");
            // The header is required (RFC 9110, section 11.6.1).
            assert_eq!(answer.headers["www-authenticate"], "Bearer");
        }
    }
    relay.token = Some("0123456789abcdef-x".to_owned());
    assert_eq!(relay.get_json("/v1/calls"), json!({"calls": []}));
    // With the token, any host name is allowed.
    let host = "GET /v1/calls HTTP/1.1\r\nHost: relay.example\r\nConnection: close\r\nAuthorization: Bearer 0123456789abcdef-x\r\n\r\n";
    assert_eq!(exchange(relay.http, host.as_bytes()).status, 200);
}

#[test]
fn conflicting_arguments_are_refused_with_the_allowed_values() {
    let (_folder, empty) = token_file(" \n");
    let (_folder, short) = token_file("secret");
    let [empty, short] = [&empty, &short].map(|path| path.to_str().expect("UTF-8"));
    let http = "127.0.0.1:0";
    for (arguments, words) in [
        (
            &["--http", "0.0.0.0:8080"][..],
            &["0.0.0.0:8080", "--http-token-file"][..],
        ),
        (&["--http", "8080"], &["8080", "invalid socket address"]),
        (
            &["--http", http, "--http-token-file", empty],
            &["--http-token-file", "empty", "16"],
        ),
        (
            &["--http", http, "--http-token-file", short],
            &["--http-token-file", "6 bytes", "16"],
        ),
        (
            &["--http", http, "--http-token-file", "/nowhere"],
            &["--http-token-file", "/nowhere"],
        ),
        (&["--http-token-file", short], &["--http <ADDRESS:PORT>"]),
    ] {
        let mut command = threadbare();
        command
            .args(["serve", "--ng", "127.0.0.1:0"])
            .args(arguments);
        let output = command.stdin(Stdio::null()).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr).replace("\n  │ ", " ");
        assert!(!output.status.success(), "{arguments:?}");
        let has_all = words.iter().all(|word| said.contains(word));
        assert!(has_all && !said.contains("secret"), "{arguments:?}: {said}");
    }
}

#[test]
fn pages_of_other_sites_are_refused() {
    let relay = Relay::start(&[]);
    let with = |header: &str| {
        let head = format!("GET /v1/calls HTTP/1.1\r\n{header}Connection: close\r\n\r\n");
        exchange(relay.http, head.as_bytes())
    };
    let port = relay.http.port();
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        let own = format!("Host: {host}:{port}\r\n");
        assert_eq!(with(&own).status, 200);
        assert_eq!(
            with(&format!("{own}Origin: http://{host}:{port}\r\n")).status,
            200
        );
        let problem = with(&format!("{own}Origin: https://evil.example\r\n")).problem(403);
        assert_eq!(problem["field"], "Origin", "{problem}");
    }
    let problem = with("Host: evil.example\r\n").problem(403);
    assert_eq!(problem["field"], "Host", "{problem}");
    assert!(
        problem["allowed"]
            .as_str()
            .is_some_and(|text| text.contains("localhost"))
    );
}

#[test]
fn calls_are_listed_page_by_page() {
    let mut relay = Relay::start(&[]);
    // A Call-ID is any word of SIP (RFC 3261, section 25.1), and may contain characters that have a meaning in a path.
    let ids: BTreeSet<String> = (0..30)
        .map(|n| format!("{n}/a b?#%41&é@host;x=1+2"))
        .collect();
    let party = socket();
    for id in &ids {
        let reply = relay.offer(id, &party);
        assert_eq!(reply["result"], "ok", "{reply}");
    }
    let mut path = "/v1/calls?limit=7".to_owned();
    let mut seen = Vec::new();
    let mut sizes = Vec::new();
    loop {
        let page = relay.get_json(&path);
        let calls = page["calls"].as_array().expect("calls");
        sizes.push(calls.len());
        for call in calls {
            seen.push(call["id"].as_str().expect("an id").to_owned());
            let path = call["path"].as_str().expect("a path");
            let detail = relay.get_json(path);
            assert_eq!(detail["id"], call["id"]);
            assert_eq!(
                detail["streams"].as_array().map(Vec::len),
                Some(1),
                "{detail}"
            );
        }
        match page["next"].as_str() {
            Some(next) => path = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(sizes, [7, 7, 7, 7, 2]);
    assert!(seen.iter().eq(&ids), "each once, in order: {seen:?}");
    let all = relay.get_json("/v1/calls");
    assert_eq!(all["calls"].as_array().map(Vec::len), Some(30));
    assert_eq!(all.get("next"), None, "{all}");
}

#[test]
fn errors_name_the_fault_and_the_allowed_values() {
    let relay = Relay::start(&[]);
    let problem = relay.get("/v1/calls/no%2Fbody").problem(404);
    let detail = problem["detail"].as_str().expect("a text");
    assert!(detail.contains("no/body"), "{problem}");
    assert_eq!(problem["field"], "id");
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=1e9", "limit"),
        ("size=1", "query"),
    ] {
        let problem = relay.get(&format!("/v1/calls?{query}")).problem(400);
        assert_eq!(problem["field"], field, "{problem}");
        assert!(problem["allowed"].is_string(), "{problem}");
    }
    relay.get("/v2").problem(404);
    relay.request("DELETE", "/v1/calls", "", b"").problem(405);
    for body in [&b"{"[..], b"{\"exit\": 1}", b"{\"exits\": true}", b"\xff"] {
        relay.request("POST", "/v1/drain", "", body).problem(400);
    }
    assert_eq!(
        relay.get("/readyz").status,
        200,
        "nothing of that has drained it"
    );
    for body in [&b""[..], b"x", b"x ", b"x y", b"x {\"result\":\"ok\"}"] {
        let problem = relay.request("POST", "/ng", "", body).problem(400);
        assert_eq!(problem["field"], "body", "{problem}");
    }
}

#[test]
fn a_call_is_ended_and_its_ports_are_closed() {
    let mut relay = Relay::start(&[]);
    let ports = relay.call("1", &parties());
    assert!(!ports.iter().any(|port| is_closed(*port)));
    let ended = relay.request("DELETE", "/v1/calls/1", "", b"");
    assert_eq!((ended.status, ended.body.len()), (204, 0));
    let line = relay.running.wait_for("the call has ended");
    assert_eq!(line["reason"], "operator");
    for port in ports {
        wait_until(|| is_closed(port));
    }
    relay.get("/v1/calls/1").problem(404);
    relay.request("DELETE", "/v1/calls/1", "", b"").problem(404);
    assert_eq!(relay.get_json("/v1/calls"), json!({"calls": []}));
}

#[test]
fn ng_requests_by_http_get_the_same_replies_as_by_udp() {
    let mut relay = Relay::start(&[]);
    let kind = "Content-Type: application/x-rtpengine-ng\r\n";
    let pong = relay.request("POST", "/ng", kind, b"7_1 d7:command4:pinge");
    assert_eq!(pong.text(), "7_1 d6:result4:ponge");
    assert_eq!(pong.headers["content-type"], "application/x-rtpengine-ng");
    // A repeated request on another connection gets the same reply, and is not carried out again.
    let party = socket();
    let offer = json!({"command": "offer", "call-id": "1", "from-tag": "a", "sdp": sdp(&party)});
    let offer = format!("again {offer}");
    let first = relay.request("POST", "/ng", kind, offer.as_bytes());
    let ports = |answer: &Answer| port_of(&answer.text().replace("\\r\\n", "\r\n"));
    let port = ports(&first);
    for _ in 0..3 {
        let same = relay.request("POST", "/ng", kind, offer.as_bytes());
        assert_eq!(same.text(), first.text());
    }
    let answered = relay.get_json("/v1/calls/1");
    let told = &answered["streams"][0]["sides"][1]["local_address"];
    assert_eq!(told, &json!(port.to_string()), "{answered}");
    // The same requests come by UDP.
    let proxy = socket();
    proxy
        .send_to(b"again {\"command\":\"list\"}", relay.ng)
        .expect("sent");
    let mut room = [0; 2048];
    let len = proxy.recv(&mut room).expect("a reply");
    let list = String::from_utf8_lossy(&room[..len]);
    assert!(list.contains(r#""calls":["1"]"#), "{list}");
    // Only the reply to this request waits for the file.
    let to_a = json!({"command": "answer", "call-id": "1", "from-tag": "a", "to-tag": "b", "sdp": sdp(&party)});
    assert_eq!(relay.ask(&to_a)["result"], "ok");
    let play =
        json!({"command": "play media", "call-id": "1", "from-tag": "a", "file": "/nowhere.wav"});
    let reply = relay.ask(&play);
    assert_eq!(reply["result"], "error", "{reply}");
    assert!(
        reply["error-reason"]
            .as_str()
            .is_some_and(|text| text.contains("/nowhere.wav"))
    );
    let query = relay.ask(&json!({"command": "query", "call-id": "1"}));
    assert_eq!(query["result"], "ok", "{query}");
}

#[test]
fn a_drained_relay_refuses_new_calls_and_ends_after_the_last_one() {
    let mut relay = Relay::start(&[]);
    let parties = parties();
    relay.call("1", &parties);
    let drain = relay.post("/v1/drain", &json!({})).json();
    assert_eq!(drain, json!({"draining": true, "exit": false, "calls": 1}));
    let reason = relay.get("/readyz").problem(503)["detail"].clone();
    assert!(
        reason.as_str().is_some_and(|text| text.contains("drained")),
        "{reason}"
    );
    assert_eq!(relay.get("/healthz").status, 200);
    let refused = relay.offer("2", &parties[0]);
    assert_eq!(refused["result"], "error", "{refused}");
    // Requests for the running call are still accepted.
    relay.call("1", &parties);
    let open = relay.request("DELETE", "/v1/drain", "", b"").json();
    assert_eq!(open, json!({"draining": false, "exit": false, "calls": 1}));
    assert_eq!(relay.get("/readyz").status, 200);
    assert_eq!(relay.offer("2", &parties[0])["result"], "ok");
    let drain = relay.post("/v1/drain", &json!({"exit": true})).json();
    assert_eq!(drain, json!({"draining": true, "exit": true, "calls": 2}));
    for id in ["1", "2"] {
        assert_eq!(relay.get("/healthz").status, 200, "there is a call");
        let path = format!("/v1/calls/{id}");
        assert_eq!(relay.request("DELETE", &path, "", b"").status, 204);
    }
    assert!(relay.running.child.wait().expect("it ends").success());
}

/// Sends from both parties at the pace of a call until `is_done`, leaving out some numbers. Returns the number of packets that each party
/// sent.
fn talk(
    parties: &[UdpSocket; 2],
    to: [SocketAddr; 2],
    left_out: &[u16],
    mut is_done: impl FnMut() -> bool,
) -> u16 {
    let begin = Instant::now();
    for number in 0_u16.. {
        for (party, to) in parties.iter().zip(to) {
            if !left_out.contains(&number) {
                party
                    .send_to(&rtp(0, number, &[0xff; 160]), to)
                    .expect("sent");
            }
        }
        if number % 25 == 24 && is_done() {
            return number + 1 - left_out.len() as u16;
        }
        assert!(begin.elapsed() < LIMIT, "{number} packets");
        let due = begin + Duration::from_millis(20) * u32::from(number);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    unreachable!("it ends before")
}

/// Parses the lines of the text format. Returns the value of each name with labels.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a sample");
            (name, value.parse().expect("a number"))
        })
        .collect()
}

/// Checks the text with another program: the reference parser of OpenMetrics, in Python.
fn check_open_metrics(text: &str) {
    let script = "import sys\n\
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as read\n\
        print(len(list(read(sys.stdin.read()))))";
    // Use Debian's own Python, which finds the modules of Debian's packages.
    let mut python = Command::new("/usr/bin/python3");
    python
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = python.spawn().expect("python3 (scripts/setup test)");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(text.as_bytes()).expect("read");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    assert!(
        output.status.success(),
        "python3-prometheus-client (scripts/setup test) refuses\n{text}"
    );
    let families: usize = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .expect("a number");
    assert!(families > 25, "{families}");
}

#[test]
fn metrics_count_calls_and_received_media() {
    let mut relay = Relay::start(&[]);
    check_open_metrics(relay.get("/metrics").text());
    let parties = parties();
    let to = relay.call("1", &parties);
    let left_out = [40, 41, 60];
    let mut detail = Value::Null;
    let http = &relay;
    let sent = talk(&parties, to, &left_out, || {
        detail = http.get_json("/v1/calls/1");
        let sides = detail["streams"][0]["sides"].as_array().expect("sides");
        sides.iter().all(|side| side["media"]["mos"].is_number())
    });
    let received = |call: &Value| {
        let sides = call["streams"][0]["sides"].as_array().expect("sides");
        let count = |side: &Value| side["media"]["packets_received"].as_u64();
        sides.iter().filter_map(count).sum::<u64>()
    };
    // The last packets may still be on their way.
    wait_until(|| received(&http.get_json("/v1/calls/1")) == u64::from(sent) * 2);
    for side in detail["streams"][0]["sides"].as_array().expect("sides") {
        let media = &side["media"];
        assert_eq!(side["codec"], "PCMU/8000", "{detail}");
        assert_eq!(media["packets_lost"], 3, "{detail}");
        let mos = media["mos"].as_f64().expect("a number");
        // A mean opinion score is between bad and excellent (ITU-T P.800). G.711 with these losses is neither.
        assert!((1.5..4.5).contains(&mos), "{detail}");
    }
    let up = relay.get("/metrics");
    let up = samples(up.text());
    assert_eq!(up["threadbare_calls"], 1.0);
    assert_eq!(up["threadbare_legs"], 2.0);
    assert_eq!(relay.request("DELETE", "/v1/calls/1", "", b"").status, 204);
    let quality = "threadbare_call_mos_count";
    wait_until(|| samples(http_text(&relay, "/metrics").as_str())[quality] == 2.0);
    let answer = relay.get("/metrics");
    let kind = &answer.headers["content-type"];
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    check_open_metrics(answer.text());
    let all = samples(answer.text());
    for (name, value) in [
        ("threadbare_calls", 0.0),
        ("threadbare_legs", 0.0),
        ("threadbare_calls_offered_total", 1.0),
        ("threadbare_calls_ended_total{reason=\"operator\"}", 1.0),
        ("threadbare_calls_ended_total{reason=\"timeout\"}", 0.0),
        (
            "threadbare_rtp_packets_total{direction=\"received\"}",
            f64::from(sent) * 2.0,
        ),
        // These are the RTP header and 20 ms of G.711.
        (
            "threadbare_rtp_received_bytes_total",
            f64::from(sent) * 2.0 * 172.0,
        ),
        ("threadbare_rtp_lost_packets_total", 6.0),
        ("threadbare_rtp_late_packets_total", 0.0),
        ("threadbare_call_loss_ratio_count", 2.0),
        ("threadbare_call_jitter_seconds_count", 2.0),
        ("threadbare_call_duration_seconds_count", 1.0),
        (
            "threadbare_ng_requests_total{command=\"offer\",result=\"ok\"}",
            1.0,
        ),
        (
            "threadbare_ng_requests_total{command=\"answer\",result=\"ok\"}",
            1.0,
        ),
        (
            "threadbare_ng_request_duration_seconds_count{command=\"offer\"}",
            1.0,
        ),
        ("threadbare_draining", 0.0),
    ] {
        assert_eq!(all.get(name), Some(&value), "{name} in\n{}", answer.text());
    }
    let contexts = relay.get_json("/v1/contexts");
    let threads = contexts["contexts"].as_array().expect("threads");
    assert!(!threads.is_empty());
    for thread in threads {
        let name = thread["name"].as_str().expect("a name");
        assert!(thread["lateness_ms"].is_number() && thread["busy_percent"].is_number());
        let labels = format!("{{thread=\"{name}\"}}");
        for family in [
            "busy_seconds_total",
            "lateness_seconds",
            "received_packets_total",
        ] {
            let key = format!("threadbare_context_{family}{labels}");
            assert!(all.contains_key(key.as_str()), "{key}");
        }
    }
}

fn http_text(relay: &Relay, path: &str) -> String {
    relay.get(path).text().to_owned()
}

#[test]
fn a_long_body_is_refused_and_the_next_request_is_answered() {
    let relay = Relay::start(&[]);
    let head = format!(
        "POST /ng HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: 1000000000\r\n\r\nc {{",
        relay.http
    );
    let problem = exchange(relay.http, head.as_bytes()).problem(413);
    assert_eq!(problem["field"], "body", "{problem}");
    // Without a length, the request is cut off when it becomes too long.
    let mut stream = TcpStream::connect(relay.http).expect("it listens");
    stream.set_read_timeout(Some(LIMIT)).expect("valid");
    let head = format!(
        "POST /v1/drain HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n",
        relay.http
    );
    stream.write_all(head.as_bytes()).expect("sent");
    let chunk = format!("8000\r\n{}\r\n", " ".repeat(0x8000));
    // At most 8 such connections are allowed.
    for _ in 0..9 {
        let _ = stream.write_all(chunk.as_bytes());
    }
    read_answer(&mut stream).problem(413);
    assert_eq!(relay.get("/healthz").status, 200);
}

#[test]
fn stalled_clients_are_dropped_without_delaying_others() {
    let relay = Relay::start(&[]);
    let begun = |bytes: &str| {
        let mut stream = TcpStream::connect(relay.http).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("valid");
        stream.write_all(bytes.as_bytes()).expect("sent");
        stream
    };
    let half_a_head = "GET /v1/calls HTTP/1.1\r\nHost: loc";
    let half_a_body = "POST /ng HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf";
    let mut heads: Vec<TcpStream> = (0..40).map(|_| begun(half_a_head)).collect();
    let mut bodies: Vec<TcpStream> = (0..40).map(|_| begun(half_a_body)).collect();
    assert_eq!(relay.get("/healthz").status, 200);
    assert_eq!(relay.get_json("/v1/calls"), json!({"calls": []}));
    for stream in &mut heads {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("closed in time");
    }
    for stream in &mut bodies {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("closed in time");
        assert!(
            rest.starts_with(b"HTTP/1.1 408 "),
            "{}",
            String::from_utf8_lossy(&rest)
        );
    }
}

/// Unknown clients on one host open as many connections as they can, and reconnect when one is closed.
#[test]
fn incomplete_requests_do_not_block_other_clients() {
    const STRANGERS: usize = 350;
    let (_folder, path) = token_file("0123456789abcdef-x\n");
    let mut relay = Relay::start(&["--http-token-file", path.to_str().expect("UTF-8")]);
    relay.token = Some("0123456789abcdef-x".to_owned());
    // All the time, a client with the token follows the events.
    let mut listener = TcpStream::connect(relay.http).expect("it listens");
    listener
        .write_all(b"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer 0123456789abcdef-x\r\n\r\n")
        .expect("sent");
    listener.set_read_timeout(Some(LIMIT)).expect("valid");
    let mut start = [0; 12];
    listener.read_exact(&mut start).expect("answered");
    assert_eq!(&start, b"HTTP/1.1 200");
    let (are_there, ends) = (Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let begin = || {
                let mut stream = TcpStream::connect(relay.http).ok()?;
                stream.write_all(b"GET / HTTP/1.1\r\nX:").ok()?;
                stream.set_nonblocking(true).ok()?;
                Some(stream)
            };
            let mut strangers: Vec<_> = (0..STRANGERS).map(|_| begin()).collect();
            are_there.wait();
            while !ends.load(Relaxed) {
                for one in &mut strangers {
                    let is_open = one.as_mut().is_some_and(|stream| {
                        let read = stream.read(&mut [0; 64]);
                        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
                    });
                    if !is_open {
                        *one = begin();
                    }
                }
            }
        });
        are_there.wait();
        // The answer must not have to wait until idle connections are closed.
        let ask = |path: &str| {
            let mut stream = TcpStream::connect(relay.http)?;
            stream.set_read_timeout(Some(Duration::from_secs(8)))?;
            let head = format!(
                "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer 0123456789abcdef-x\r\n\r\n"
            );
            stream.write_all(head.as_bytes())?;
            let mut status = [0; 12];
            stream.read_exact(&mut status)?;
            std::io::Result::Ok(status)
        };
        let paths = ["/healthz", "/metrics", "/v1/calls"];
        let answers: Vec<_> = (0..21).map(|n| ask(paths[n % 3])).collect();
        ends.store(true, Relaxed);
        for answer in answers {
            assert_eq!(&answer.expect("in time"), b"HTTP/1.1 200");
        }
    });
    listener.set_nonblocking(true).expect("valid");
    let mut rest = [0; 4096];
    while let Ok(count) = listener.read(&mut rest) {
        assert!(count > 0, "who has the token was sent away");
    }
}

#[test]
fn a_hundred_requests_at_a_time_are_answered() {
    let mut relay = Relay::start(&[]);
    relay.call("1", &parties());
    let paths = [
        "/v1/calls",
        "/v1/calls/1",
        "/metrics",
        "/v1/contexts",
        "/healthz",
    ];
    let relay = &relay;
    std::thread::scope(|scope| {
        let ask = |n: usize| move || relay.get(paths[n % paths.len()]).status;
        let asked: Vec<_> = (0..100).map(|n| scope.spawn(ask(n))).collect();
        for one in asked {
            assert_eq!(one.join().expect("no panic"), 200);
        }
    });
}

/// The handshake has the answer for the key in section 1.3 of RFC 6455, and the frames are those of section 5.2. A client masks its
/// messages.
#[test]
fn ng_requests_are_answered_by_websocket() {
    let relay = Relay::start(&[]);
    let mut stream = std::net::TcpStream::connect(relay.http).expect("it listens");
    stream.set_read_timeout(Some(LIMIT)).expect("valid");
    let request = format!(
        "GET /ng HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: ng.rtpengine.com\r\n\r\n",
        relay.http
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a header in time");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("ASCII").to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    let accepts = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_ascii_lowercase();
    assert!(
        head.contains(&accepts) && head.contains("ng.rtpengine.com"),
        "{head}"
    );
    // The messages are a text in JSON, a binary one in bencode, and the second one again.
    for (opcode, message, says) in [
        (
            1_u8,
            "a1 {\"command\":\"ping\"}",
            "a1 {\"result\":\"pong\"}",
        ),
        (2, "a2 d7:command4:pinge", "a2 d6:result4:ponge"),
        (2, "a2 d7:command4:pinge", "a2 d6:result4:ponge"),
    ] {
        let mask = [1, 2, 3, 4];
        let len = u8::try_from(message.len()).expect("short");
        let mut frame = vec![0x80 | opcode, 0x80 | len];
        frame.extend(mask);
        frame.extend(
            message
                .bytes()
                .enumerate()
                .map(|(at, byte)| byte ^ mask[at % 4]),
        );
        stream.write_all(&frame).expect("sent");
        let mut head = [0; 2];
        stream.read_exact(&mut head).expect("a frame in time");
        assert_eq!(head, [0x80 | opcode, says.len() as u8]);
        let mut reply = vec![0; says.len()];
        stream.read_exact(&mut reply).expect("the rest");
        assert_eq!(String::from_utf8_lossy(&reply), says);
    }
    // This is not a WebSocket request.
    relay.get("/ng").problem(426);
}

#[test]
fn every_route_is_described() {
    let relay = Relay::start(&[]);
    let described = relay.get_json("/openapi.json");
    let version = described["openapi"].as_str().expect("a version");
    assert!(version.starts_with("3."), "{version}");
    let paths = described["paths"].as_object().expect("paths");
    // All parts that are referenced exist (RFC 6901).
    let text = described.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1) {
        let pointer = reference.split('"').next().expect("a pointer");
        assert!(described.pointer(pointer).is_some(), "{pointer}");
    }
    for one in [
        "/v1/calls",
        "/v1/calls/{id}",
        "/v1/events",
        "/v1/streams/{name}/history",
        "/v1/wall",
        "/v1/drain",
        "/metrics",
        "/ng",
    ] {
        assert!(paths.contains_key(one), "{one}");
    }
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().expect("operations") {
            assert!(operation["responses"].is_object(), "{method} {path}");
            let filled = path.replace("{id}", "nobody").replace("{name}", "nobody");
            let method = match path.as_str() {
                // The response to a GET never ends.
                "/v1/events" | "/v1/wall" => "HEAD".to_owned(),
                _ => method.to_uppercase(),
            };
            let answer = relay.request(&method, &filled, "", b"");
            assert_ne!(answer.status, 405, "{method} {path}");
            // These paths need a cluster.
            let may_miss = operation["responses"]["404"].is_object() && path.contains("/cluster");
            let is_unknown = answer.status == 404 && !path.contains('{') && !may_miss;
            assert!(!is_unknown, "{method} {path}");
        }
    }
}

#[test]
fn calls_can_be_listed_and_ended_from_a_shell() {
    let (_folder, path) = token_file("0123456789abcdef");
    let token = path.to_str().expect("UTF-8").to_owned();
    let mut relay = Relay::start(&["--http-token-file", &token]);
    relay.token = Some("0123456789abcdef".to_owned());
    relay.call("up/and away", &parties());
    assert_eq!(relay.offer("rings", &socket())["result"], "ok");
    let url = format!("http://{}/", relay.http);
    let run = |arguments: &[&str]| {
        let mut command = threadbare();
        // The command must not use an HTTP proxy.
        command.env("http_proxy", "http://127.0.0.1:9");
        command.arg("calls").args(arguments).args(["--http", &url]);
        let output = command.stdin(Stdio::null()).output().expect("runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.success(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let with_token = ["--token-file", token.as_str()];
    let (done, list, said) = run(&[&["list"], &with_token[..]].concat());
    assert!(done, "{said}");
    let rows: Vec<Vec<&str>> = list
        .lines()
        .map(|line| {
            line.split("  ")
                .filter(|cell| !cell.is_empty())
                .map(str::trim)
                .collect()
        })
        .collect();
    assert_eq!(rows[0], ["CALL", "STATE", "SECONDS", "STREAMS"]);
    assert_eq!(rows[1][..2], ["rings", "rings"]);
    assert_eq!(rows[2][..2], ["up/and away", "up"]);
    let (done, list, _) = run(&[&["list", "--json"], &with_token[..]].concat());
    let list: Value = serde_json::from_str(&list).expect("JSON");
    assert!(done && list[1]["id"] == "up/and away", "{list}");
    let show = [&["show", "up/and away"], &with_token[..]].concat();
    let (done, shown, _) = run(&show);
    assert!(
        done && shown.contains("PCMU/8000") && shown.contains("audio"),
        "{shown}"
    );
    let (done, ended, _) = run(&[&["end", "up/and away"], &with_token[..]].concat());
    assert!(done && ended.contains("has ended"), "{ended}");
    let (done, _, said) = run(&show);
    assert!(!done && said.contains("does not exist"), "{said}");
    let (done, _, said) = run(&["list"]);
    assert!(!done && said.contains("--token-file"), "{said}");
    drop(relay);
    let (done, _, said) = run(&["list"]);
    assert!(!done && said.contains("does not answer"), "{said}");
}

#[test]
fn the_page_loads_nothing_from_elsewhere() {
    let relay = Relay::start(&[]);
    for path in ["/", "/api"] {
        check_page(&relay, path);
    }
}

/// Checks that a page and its files refer only to each other.
fn check_page(relay: &Relay, path: &str) {
    let page = relay.get(path);
    assert!(page.headers["content-type"].starts_with("text/html"));
    let policy = &page.headers["content-security-policy"];
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    for part in page.text().split(['"', ' ', '\n']) {
        assert!(!part.contains("//"), "{part}");
    }
    let named = page
        .text()
        .split("=\"")
        .filter_map(|part| part.split_once('"'));
    let files = named
        .map(|(file, _)| file)
        .filter(|file| file.ends_with(".js") || file.ends_with(".css"));
    let mut files: Vec<String> = files.map(str::to_owned).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    let mut at = 0;
    while let Some(file) = files.get(at).cloned() {
        let answer = relay.get(&format!("/{file}"));
        assert_eq!((answer.status, answer.body.is_empty()), (200, false));
        for line in answer.text().lines() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            assert!(!line.contains("//"), "{file}: {line}");
            if let Some((_, from)) = line.split_once(" from \"./") {
                let imported = from.trim_end_matches("\";").to_owned();
                if !files.contains(&imported) {
                    files.push(imported);
                }
            }
        }
        at += 1;
    }
}
