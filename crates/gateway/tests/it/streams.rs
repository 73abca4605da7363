//! The streams of a configuration file over HTTP: their state, their last seconds, and their alarms.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::http::{Relay, next_post};
use crate::common::listener::Listener;
use crate::common::{LIMIT, Running, free_port, rtp, socket, wait_until};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// A gateway with HTTP.
struct Gateway {
    relay: Relay,
    path: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

const HTTP: &str = "[http]\nlisten = \"127.0.0.1:0\"\n[ng]\nlisten = \"127.0.0.1:0\"\n";

impl Gateway {
    fn start(rest: &str) -> Gateway {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("gateway.toml");
        std::fs::write(&path, format!("{HTTP}{rest}")).expect("written");
        let mut command = crate::common::threadbare();
        command.arg("run").arg(&path);
        Gateway {
            relay: Relay::of(Running::spawn(command)),
            path,
            _directory: directory,
        }
    }

    fn stream(&self, name: &str) -> Value {
        self.relay.get_json(&format!("/v1/streams/{name}"))
    }

    /// Returns the raised alarms: for each, the stream, the alarm, and whether it is acknowledged.
    fn alarms(&self) -> Vec<(String, String, bool)> {
        let alarms = self.relay.get_json("/v1/alarms");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let all = alarms["alarms"].as_array().expect("a list").iter();
        all.map(|one| {
            let is_known = one["is_acknowledged"].as_bool().expect("a flag");
            (text(&one["stream"]), text(&one["alarm"]), is_known)
        })
        .collect()
    }
}

/// A sender of 50 packets a second. `mode` selects their kind.
struct Sender {
    mode: Arc<AtomicU32>,
}

const TONE: u32 = 0;
const NOTHING: u32 = 1;
const HALF: u32 = 2;
const SILENCE: u32 = 3;
const END: u32 = 4;

impl Sender {
    fn start(to: SocketAddr) -> Sender {
        let mode = Arc::new(AtomicU32::new(TONE));
        let (told, from) = (mode.clone(), socket());
        std::thread::spawn(move || send(&told, &from, to));
        Sender { mode }
    }

    fn set(&self, mode: u32) {
        self.mode.store(mode, Relaxed);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.set(END);
    }
}

fn send(mode: &AtomicU32, from: &UdpSocket, to: SocketAddr) {
    // The codes are one period of 1000 Hz at 8000 Hz. They are the µ-law codes of 0, 11,900 and 16,764 of 32,768, and of the negatives
    // (ITU-T G.711, table 2a).
    let period = [0xff, 0x98, 0x8f, 0x98, 0xff, 0x18, 0x0f, 0x18];
    let tone: Vec<u8> = period.iter().copied().cycle().take(160).collect();
    let begun = Instant::now();
    for number in 0..u16::MAX {
        let payload = match mode.load(Relaxed) {
            TONE => Some(&tone[..]),
            HALF if number % 2 == 0 => Some(&tone[..]),
            SILENCE => Some(&[0xff; 160][..]),
            END => return,
            _ => None,
        };
        if let Some(payload) = payload {
            let _ = from.send_to(&rtp(0, number, payload), to);
        }
        let due = begun + Duration::from_millis(20) * (u32::from(number) + 1);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

fn stream(name: &str, listen: SocketAddr) -> String {
    format!(
        "[[stream]]\nname = \"{name}\"\nlisten = \"{listen}\"\ncodec = \"PCMU\"\nrtcp = false\n"
    )
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

#[test]
fn history_has_the_last_seconds_of_a_stream() {
    let (heard, quiet) = (address(), address());
    let file = format!("{}{}", stream("news / 1", heard), stream("quiet", quiet));
    let gateway = Gateway::start(&file);
    let _sender = Sender::start(heard);
    wait_until(|| gateway.stream("news%20%2F%201")["loudness"]["short_term_lufs"].is_number());
    wait_until(|| gateway.stream("news%20%2F%201")["packets"].as_u64() > Some(200));
    let one = gateway.stream("news%20%2F%201");
    assert_eq!(
        (&one["name"], &one["state"]),
        (&json!("news / 1"), &json!("heard"))
    );
    // A sine of 1 kHz at full scale in one channel has -3.01 LUFS (ITU-R BS.1770-4, annex 1).
    let due = 20.0 * (16_764.0_f64 / 32_768.0).log10() - 3.01;
    let told = one["loudness"]["short_term_lufs"]
        .as_f64()
        .expect("a level");
    assert!((told - due).abs() < 0.5, "{told} instead of {due}");
    assert_eq!(one["packets_lost"], 0);
    let other = gateway.stream("quiet");
    assert_eq!(
        (&other["state"], &other["packets"]),
        (&json!("waiting"), &json!(0))
    );
    assert!(other.get("loudness").is_none());
    let all = gateway.relay.get_json("/v1/streams");
    let names: Vec<&Value> = all["streams"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| &one["name"])
        .collect();
    assert_eq!(names, ["news / 1", "quiet"]);

    let history = gateway
        .relay
        .get_json("/v1/streams/news%20%2F%201/history?seconds=2");
    let columns = history.as_object().expect("an object");
    for (name, column) in columns.iter().filter(|(name, _)| *name != "name") {
        assert_eq!(column.as_array().map(Vec::len), Some(2), "{name}");
    }
    let times: Vec<u64> = history["unix_s"]
        .as_array()
        .expect("times")
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    assert!(times[0] < times[1], "{times:?}");
    let metrics = gateway.relay.get("/metrics");
    for line in [
        "threadbare_stream_up{stream=\"news / 1\"} 1",
        "threadbare_stream_up{stream=\"quiet\"} 0",
        "threadbare_stream_lost_packets_total{stream=\"news / 1\"} 0",
    ] {
        assert!(metrics.text().contains(line), "{line}");
    }

    let get = |path: &str| gateway.relay.get(path);
    assert_eq!(get("/v1/streams/nobody").problem(404)["field"], "name");
    assert_eq!(
        get("/v1/streams/quiet/history?seconds=0").problem(400)["field"],
        "seconds"
    );
    assert_eq!(
        get("/v1/streams/quiet/history?minutes=1").problem(400)["allowed"],
        "seconds, until or step"
    );
    assert_eq!(
        get("/v1/streams/quiet/history?seconds=86401").problem(400)["allowed"],
        "a whole number from 1 to 86400"
    );
}

/// Returns the columns of a history that stay the same if seconds are merged.
fn seconds_of(history: &Value) -> Vec<(u64, Value)> {
    let column = |name: &str| history[name].as_array().expect("a column").clone();
    let times = column("unix_s");
    let names = ["momentary_lufs", "true_peak_dbtp", "packets", "is_heard"];
    let columns: Vec<Vec<Value>> = names.into_iter().map(column).collect();
    let at = |n: usize| columns.iter().map(|column| column[n].clone()).collect();
    let times = times.iter().map(|time| time.as_u64().expect("a time"));
    times.enumerate().map(|(n, time)| (time, at(n))).collect()
}

#[test]
fn history_is_kept_over_a_restart_if_a_folder_is_set() {
    let listen = address();
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("history");
    let file = format!(
        "{}[history]\ndir = \"{}\"\n",
        stream("news / 1", listen),
        dir.display()
    );
    let path = "/v1/streams/news%20%2F%201/history";
    let gateway = Gateway::start(&file);
    let sender = Sender::start(listen);
    let count = |gateway: &Gateway| seconds_of(&gateway.relay.get_json(path)).len();
    wait_until(|| count(&gateway) > 3);
    // A second process cannot open the folder, and reports why.
    let mut other = crate::common::threadbare();
    other.arg("run").arg(&gateway.path);
    let refused = other.output().expect("it ends");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    for word in ["[history]", "dir", "another process"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let before = seconds_of(&gateway.relay.get_json(path));
    let mut gateway = gateway;
    gateway.relay.running.signal(Signal::SIGTERM);
    gateway.relay.running.wait_for("stopped");

    // The next process has the same seconds. The query below merges only those of the first process.
    drop(sender);
    let gateway = Gateway::start(&file);
    wait_until(|| count(&gateway) > before.len());
    let after = seconds_of(&gateway.relay.get_json(&format!("{path}?seconds=86400")));
    assert_eq!(after[..before.len()], before);
    let last = before.last().expect("some").0;
    let text = format!("{path}?until={last}&step=3600");
    let steps = seconds_of(&gateway.relay.get_json(&text));
    let packets = |seconds: &[(u64, Value)]| -> u64 {
        let counts = seconds.iter().map(|(_, values)| values[2].as_u64());
        counts.map(|count| count.expect("a count")).sum()
    };
    // If an hour has ended in between, there are two.
    assert!(steps.len() <= 2, "{steps:?}");
    assert_eq!(packets(&steps), packets(&before));
    assert_eq!(steps.last().expect("one").0, last);
    // After this change, no history is stored.
    let off = file.replace(&format!("\"{}\"", dir.display()), "false");
    std::fs::write(&gateway.path, format!("{HTTP}{off}")).expect("written");
    gateway.relay.running.signal(Signal::SIGHUP);
    wait_until(|| std::fs::File::open(dir.join("lock")).is_ok_and(|lock| lock.try_lock().is_ok()));
}

#[test]
fn integrated_loudness_restarts_on_request() {
    let listen = address();
    let gateway = Gateway::start(&stream("news", listen));
    let reset = |name: &str| {
        let path = format!("/v1/streams/{name}/loudness/reset");
        gateway.relay.request("POST", &path, "", b"")
    };
    reset("nobody").problem(404);
    reset("news").problem(409);
    let sender = Sender::start(listen);
    let is_measured = || gateway.stream("news")["loudness"]["integrated_lufs"].is_number();
    wait_until(is_measured);
    let before = gateway.stream("news");
    assert!(before["loudness"].get("programme_unix_s").is_none());
    sender.set(SILENCE);
    // Wait until the loud audio is older than the window of 400 ms.
    wait_until(|| gateway.stream("news")["loudness"]["momentary_lufs"].is_null());
    assert_eq!(reset("news").status, 204);
    wait_until(|| !is_measured());
    let after = gateway.stream("news");
    assert!(after["loudness"]["true_peak_dbtp"].is_null(), "{after}");
    assert!(after["loudness"]["programme_unix_s"].is_number(), "{after}");
    sender.set(TONE);
    wait_until(is_measured);
}

#[test]
fn alarms_are_raised_acknowledged_and_ended() {
    let listen = address();
    let hook = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let url = format!("http://{}/alarms", hook.local_addr().expect("bound"));
    let rules = "[alarms.no-packets]\nhold = 1\nclear = 1\n[alarms.loss]\nhold = 1\nclear = 1\n[alarms.silence]\nhold = 2\nclear = 1\n";
    let file = format!(
        "{}[alarms]\nwebhook = \"{url}\"\n{rules}",
        stream("news", listen)
    );
    let mut gateway = Gateway::start(&file);
    let next = |alarm: &str, state: &str| {
        let said = next_post(&hook);
        assert_eq!(
            (&said["stream"], &said["alarm"], &said["state"]),
            (&json!("news"), &json!(alarm), &json!(state)),
            "{said}"
        );
        said
    };
    // No sender is running yet.
    next("no-packets", "raised");
    let sender = Sender::start(listen);
    next("no-packets", "cleared");
    assert_eq!(gateway.alarms(), []);
    sender.set(SILENCE);
    let silence = next("silence", "raised");
    assert_eq!(
        (&silence["worst"], &silence["unit"]),
        (&Value::Null, &json!("LUFS"))
    );
    sender.set(TONE);
    next("silence", "cleared");
    sender.set(HALF);
    let loss = next("loss", "raised");
    assert!(loss["worst"].as_f64() > Some(1.0), "{loss}");
    assert_eq!(
        gateway.alarms(),
        [("news".to_owned(), "loss".to_owned(), false)]
    );
    let path = "/v1/streams/news/alarms/loss/acknowledge";
    assert_eq!(gateway.relay.request("POST", path, "", b"").status, 204);
    assert_eq!(
        gateway.alarms(),
        [("news".to_owned(), "loss".to_owned(), true)]
    );
    for path in [
        "news/alarms/drift",
        "news/alarms/noise",
        "nobody/alarms/loss",
    ] {
        let path = format!("/v1/streams/{path}/acknowledge");
        gateway.relay.request("POST", &path, "", b"").problem(404);
    }
    let metrics = gateway.relay.get("/metrics");
    assert!(
        metrics
            .text()
            .contains("threadbare_stream_alarm{stream=\"news\",alarm=\"loss\"} 1")
    );
    // If a rule is removed while its alarm is raised, the alarm ends too.
    std::fs::write(
        &gateway.path,
        format!("{HTTP}{file}[alarms.true-peak]\nenabled = false\n").replace(
            "[alarms.loss]\nhold = 1\nclear = 1\n",
            "[alarms.loss]\nenabled = false\n",
        ),
    )
    .expect("written");
    gateway.relay.running.signal(Signal::SIGHUP);
    gateway.relay.running.wait_for("reloaded");
    next("loss", "cleared");
    assert_eq!(gateway.alarms(), []);
    // The stream is gone, and so are its alarms.
    sender.set(NOTHING);
    next("no-packets", "raised");
    std::fs::write(
        &gateway.path,
        format!("{HTTP}[alarms]\nwebhook = \"{url}\"\n"),
    )
    .expect("written");
    gateway.relay.running.signal(Signal::SIGHUP);
    next("no-packets", "cleared");
}

#[test]
fn wall_sends_streams_then_tiles_threads_and_alarms() {
    let listen = address();
    let gateway = Gateway::start(&format!(
        "{}[alarms.no-packets]\nhold = 1\n",
        stream("news", listen)
    ));
    let mut connection = TcpStream::connect(gateway.relay.http).expect("it listens");
    connection.set_read_timeout(Some(LIMIT)).expect("valid");
    let head = format!(
        "GET /v1/wall HTTP/1.1\r\nHost: {}\r\n\r\n",
        gateway.relay.http
    );
    connection.write_all(head.as_bytes()).expect("sent");
    let mut lines = BufReader::new(connection)
        .lines()
        .map(|line| line.expect("a line in time"));
    let mut event = || {
        let name = lines.find_map(|line| line.strip_prefix("event: ").map(str::to_owned));
        let data = lines.next().expect("data");
        let data = data.strip_prefix("data: ").expect("data");
        (
            name.expect("an event"),
            serde_json::from_str::<Value>(data).expect("JSON"),
        )
    };
    let (name, streams) = event();
    assert_eq!(
        (&*name, &streams["streams"]),
        ("streams", &json!([{"name": "news"}]))
    );
    let mut seen = std::collections::BTreeSet::new();
    while !["tiles", "threads", "alarms"]
        .iter()
        .all(|name| seen.contains(*name))
    {
        let (name, data) = event();
        match &*name {
            "tiles" => {
                assert_eq!(data["generation"], streams["generation"]);
                // The columns of one stream have ten bytes: state `waiting`, no alarms, no measurement, no loss.
                let columns = data["columns"].as_str().expect("base64");
                assert_eq!(columns.len(), 16, "{columns}");
            }
            "threads" => assert!(
                data["threads"]
                    .as_array()
                    .is_some_and(|all| !all.is_empty())
            ),
            "alarms" if data["alarms"] == json!([]) => continue,
            "alarms" => assert_eq!(data["alarms"][0]["alarm"], "no-packets"),
            other => panic!("{other}: {data}"),
        }
        seen.insert(name);
    }
}

fn open_listener(gateway: &Gateway, name: &str) -> Listener {
    Listener::open(gateway.relay.http, &format!("/v1/streams/{name}/listen"))
}

/// Returns the texts of a stream's log lines, newest first.
fn log_of(gateway: &Gateway, name: &str) -> Vec<String> {
    let log = gateway.relay.get_json(&format!("/v1/streams/{name}/log"));
    assert_eq!(log["name"], name);
    let lines = log["lines"].as_array().expect("a list").iter();
    lines
        .map(|line| {
            let of = |key: &str| line[key].as_str().expect("a text").to_owned();
            assert!(line["unix_ms"].as_u64() > Some(1_700_000_000_000), "{line}");
            format!("{} {}", of("level"), of("text"))
        })
        .collect()
}

/// The listener hears the tone without a gap, then silence during a pause. The file ends when the stream's settings change.
#[test]
fn a_client_can_listen_to_a_stream() {
    let (listen, destination) = (address(), socket());
    let to = destination.local_addr().expect("bound");
    // The stream `news` has a meter, so it is decoded anyway. The stream `plain` is decoded only for the listener.
    let news = format!(
        "{}latency = 200\ndestination = \"{to}\"\ncodec-out = \"PCMA\"\n",
        stream("news", listen)
    );
    let plain = address();
    let other = format!("{}latency = 200\nmeter = false\n", stream("plain", plain));
    let gateway = Gateway::start(&format!("{news}{other}"));
    let senders = [Sender::start(listen), Sender::start(plain)];
    for name in ["news", "plain"] {
        let mut listener = open_listener(&gateway, name);
        assert_eq!((listener.rate_hz, listener.channels), (8000, 1));
        let heard = listener.samples(2 * 8000).expect("two seconds");
        // G.711, table 2a: the values of the sender's codes.
        let period = [0, 11_900, 16_764, 11_900, 0, -11_900, -16_764, -11_900];
        for (n, sample) in heard.iter().enumerate() {
            assert_eq!(*sample, period[n % 8], "{name}: sample {n}");
        }
    }
    let mut listener = open_listener(&gateway, "news");
    listener.samples(800).expect("some");
    senders[0].set(NOTHING);
    let mut is_silent = false;
    while !is_silent {
        let second = listener.samples(8000).expect("it goes on");
        is_silent = second.iter().all(|sample| *sample == 0);
    }
    senders[0].set(TONE);
    while listener
        .samples(800)
        .expect("it goes on")
        .iter()
        .all(|one| *one == 0)
    {}
    // The name now belongs to another stream.
    let changed = news.replace("PCMA", "PCMU");
    std::fs::write(&gateway.path, format!("{HTTP}{changed}{other}")).expect("written");
    gateway.relay.running.signal(Signal::SIGHUP);
    while listener.samples(800).is_some() {}
}

/// 48 kHz in stereo quickly fills the buffer of a listener that does not read. The destination still gets each packet
/// unchanged.
#[test]
fn a_listener_that_does_not_read_delays_no_stream() {
    const PACKETS: u16 = 1200;
    let (listen, destination, from) = (address(), socket(), socket());
    let to = destination.local_addr().expect("bound");
    let file = format!(
        "[[stream]]\nname = \"news\"\nlisten = \"{listen}\"\ndestination = \"{to}\"\ncodec = \"L16/48000/2\"\npayload-type-in = 97\nrtcp = false\n"
    );
    let gateway = Gateway::start(&file);
    wait_until(|| gateway.stream("news")["state"] == "waiting");
    let sending = std::thread::spawn(move || {
        let begun = Instant::now();
        for number in 0..PACKETS {
            let mut packet = rtp(97, number, &[0x11; 960]);
            // Each packet has 5 ms.
            packet[4..8].copy_from_slice(&(u32::from(number) * 240).to_be_bytes());
            from.send_to(&packet, listen).expect("loopback");
            let due = begun + Duration::from_millis(5) * u32::from(number);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    });
    let listener = open_listener(&gateway, "news");
    assert_eq!((listener.rate_hz, listener.channels), (48_000, 2));
    let mut numbers = Vec::new();
    while numbers.last() != Some(&(PACKETS - 1)) {
        numbers.push(crate::common::receive(&destination).sequence);
    }
    sending.join().expect("sent");
    // When the sender is validated, the packets from before are forwarded too.
    let first = numbers[0];
    assert!(first < 3, "{first}");
    assert!(numbers.iter().copied().eq(first..PACKETS));
    assert_eq!(gateway.stream("news")["packets_lost"], 0);
    drop(listener);
    let missed = || -> Option<u64> {
        let lines = log_of(&gateway, "news");
        let line = lines
            .iter()
            .find(|line| line.contains("a client that listens to the stream was too slow"))?;
        line.split("missed_ms=").nth(1)?.parse().ok()
    };
    wait_until(|| missed().is_some());
    let kept_ms = u64::from(PACKETS) * 5 - missed().expect("told");
    // Audio that was not missed is in the ring (1.4 s), in buffers of the kernel, or on its way.
    assert!(kept_ms < 4000, "{kept_ms}");
}

#[test]
fn a_listener_that_a_stream_refuses_gets_the_reason() {
    let (heard, quiet, any) = (address(), address(), address());
    let to = socket().local_addr().expect("bound");
    let file = format!(
        "{}{}[[stream]]\nname = \"any\"\nlisten = \"{any}\"\ndestination = \"{to}\"\nrtcp = false\n",
        stream("news", heard),
        stream("quiet", quiet),
    );
    let gateway = Gateway::start(&file);
    let _sender = Sender::start(heard);
    let refused = |name: &str, status: u16| {
        let answer = gateway.relay.get(&format!("/v1/streams/{name}/listen"));
        answer.problem(status)["detail"]
            .as_str()
            .expect("a text")
            .to_owned()
    };
    wait_until(|| gateway.stream("news")["state"] == "heard");
    refused("nobody", 404);
    assert!(refused("any", 409).contains("without decoding"));
    assert_eq!(gateway.stream("any")["is_decoded"], false);
    // This stream has no RTCP and no destination.
    let news = gateway.stream("news");
    for absent in ["local_rtcp_address", "codec_out", "destination_address"] {
        assert!(news.get(absent).is_none(), "{absent}: {news}");
    }
    assert_eq!(news["destination"], "nobody");
    assert!(refused("quiet", 409).contains("has had no audio"));
    let mut listeners: Vec<Listener> = (0..16).map(|_| open_listener(&gateway, "news")).collect();
    assert!(refused("news", 503).contains("16 listeners"));
    listeners.pop();
    let has_room = || {
        let mut probe = TcpStream::connect(gateway.relay.http).expect("it listens");
        probe.set_read_timeout(Some(LIMIT)).expect("valid");
        let host = gateway.relay.http;
        let head = format!("GET /v1/streams/news/listen HTTP/1.1\r\nHost: {host}\r\n\r\n");
        probe.write_all(head.as_bytes()).expect("sent");
        let mut line = [0; 12];
        probe.read_exact(&mut line).expect("a status");
        line == *b"HTTP/1.1 200"
    };
    wait_until(has_room);
}

#[test]
fn the_log_of_a_stream_has_its_failure_and_restart() {
    let (listen, well) = (address(), address());
    let taken = UdpSocket::bind(listen).expect("free");
    let gateway = Gateway::start(&format!(
        "{}{}",
        stream("news", listen),
        stream("well", well)
    ));
    wait_until(|| gateway.stream("news")["state"] == "stopped");
    wait_until(|| !log_of(&gateway, "news").is_empty());
    let first = log_of(&gateway, "news").pop().expect("a line");
    assert!(first.starts_with("error the stream failed"), "{first}");
    assert!(first.contains("retry_ms=500"), "{first}");
    drop(taken);
    wait_until(|| gateway.stream("news")["state"] == "waiting");
    let last = log_of(&gateway, "news").swap_remove(0);
    assert_eq!(last, "info restarting the stream");
    assert_eq!(log_of(&gateway, "well"), [""; 0]);
    let path = "/v1/streams/nobody/log";
    assert_eq!(gateway.relay.get(path).problem(404)["field"], "name");
}

/// The codec is known because the payload type is static (RFC 3551, section 6).
#[test]
fn received_codec_is_shown() {
    let (listen, to, from) = (address(), address(), socket());
    let gateway = Gateway::start(&format!(
        "[[stream]]\nname = \"any\"\nlisten = \"{listen}\"\ndestination = \"{to}\"\nclock-rate = 90000\nrtcp = false\n"
    ));
    wait_until(|| gateway.stream("any")["state"] == "waiting");
    let before = gateway.stream("any");
    assert_eq!(
        (&before["codec_in"], &before["codec_heard"]),
        (&json!("auto"), &Value::Null)
    );
    let number = std::cell::Cell::new(0);
    for (payload_type, due) in [
        (8, "PCMA/8000"),
        (18, "G729/8000"),
        (10, "L16/44100/2"),
        (97, "payload type 97"),
    ] {
        wait_until(|| {
            number.set(number.get() + 1);
            let packet = rtp(payload_type, number.get(), &[0x55; 160]);
            from.send_to(&packet, listen).expect("loopback");
            gateway.stream("any")["codec_heard"] == due
        });
    }
}

/// The stream has RTCP of both parties: losses on the way from the sender, and the receiver's report (RFC 3550, section 6.4.2).
#[test]
fn addresses_and_reports_of_a_stream_are_shown() {
    let (listen, to) = (address(), address());
    let next_port = |address: SocketAddr| SocketAddr::new(address.ip(), address.port() + 1);
    let heard = UdpSocket::bind(to).expect("free");
    let reports = UdpSocket::bind(next_port(to)).expect("free");
    for one in [&heard, &reports] {
        one.set_read_timeout(Some(LIMIT)).expect("valid");
    }
    let gateway = Gateway::start(&format!(
        "[[stream]]\nname = \"news\"\nlisten = \"{listen}\"\ndestination = \"{to}\"\ncodec = \"PCMU\"\ncodec-out = \"PCMA\"\n"
    ));
    wait_until(|| gateway.stream("news")["state"] == "waiting");
    let before = gateway.stream("news");
    for absent in ["remote_address", "ssrc", "sender_report", "listener_report"] {
        assert!(before.get(absent).is_none(), "{before}");
    }
    let from = socket();
    // Ten of 60 packets are lost.
    for number in (0..40).chain(50..60) {
        let packet = rtp(0, number, &[0x98; 160]);
        from.send_to(&packet, listen).expect("loopback");
        std::thread::sleep(Duration::from_millis(20));
    }
    wait_until(|| gateway.stream("news")["sender_report"]["packets_lost"] == 10);
    let now = gateway.stream("news");
    let text = |address: SocketAddr| json!(address.to_string());
    for (name, due) in [
        ("local_address", text(listen)),
        ("local_rtcp_address", text(next_port(listen))),
        ("remote_address", text(from.local_addr().expect("bound"))),
        ("ssrc", json!(0x1234)),
        ("destination", text(to)),
        ("destination_address", text(to)),
        ("codec_in", json!("PCMU")),
        ("codec_out", json!("PCMA")),
        ("is_decoded", json!(true)),
    ] {
        assert_eq!(now[name], due, "{name}");
    }
    assert!(now["sender_report"]["loss_percent"].is_number(), "{now}");
    let ssrc = crate::common::receive(&heard).ssrc;
    // According to the report, a quarter of the last packets is lost, five packets in all, and the jitter is 10 ms at 8000 Hz.
    let report = |last: u32, delay: u32| {
        let mut packet = vec![0x81, 201, 0, 7];
        let words = [0x5678, ssrc, 64 << 24 | 5, 60, 80, last, delay];
        packet.extend(words.iter().flat_map(|word: &u32| word.to_be_bytes()));
        packet.extend([0x81, 202, 0, 2, 0, 0, 0x56, 0x78, 1, 1, b'a', 0]);
        packet
    };
    let told = |packet: &[u8]| {
        reports
            .send_to(packet, next_port(listen))
            .expect("loopback");
    };
    told(&report(0, 0));
    let of_listener = || gateway.stream("news")["listener_report"].clone();
    // Statistics are updated when the stream handles packets, so the sender must continue.
    let (begun, sent) = (Instant::now(), std::cell::Cell::new(0_u16));
    let wait_sending = |condition: &dyn Fn() -> bool| {
        wait_until(|| {
            let number = sent.get();
            if begun.elapsed() >= Duration::from_millis(20) * u32::from(number) {
                let packet = rtp(0, 60 + number, &[0x98; 160]);
                from.send_to(&packet, listen).expect("loopback");
                sent.set(number + 1);
            }
            condition()
        });
    };
    wait_sending(&|| !of_listener().is_null());
    let due = json!({"ssrc": 0x5678, "packets_lost": 5, "loss_percent": 25.0, "jitter_ms": 10.0});
    assert_eq!(of_listener(), due);
    // The report quotes the middle 32 bits of the sender report's NTP timestamp (RFC 3550, section 6.4.1), set back by 100 ms, and states
    // no delay.
    reports.set_nonblocking(true).expect("valid");
    let last = std::cell::Cell::new(0);
    wait_sending(&|| {
        let mut room = [0; 2048];
        if reports.recv(&mut room).is_ok() && room[1] == 200 {
            last.set(u32::from_be_bytes([room[10], room[11], room[12], room[13]]));
        }
        last.get() != 0
    });
    const TENTH_OF_A_SECOND: u32 = 65_536 / 10 + 1;
    told(&report(last.get().wrapping_sub(TENTH_OF_A_SECOND), 0));
    wait_sending(&|| of_listener()["round_trip_ms"].as_f64() >= Some(100.0));
    let round_trip_ms = of_listener()["round_trip_ms"].as_f64().expect("a time");
    assert!(round_trip_ms < 5000.0, "{round_trip_ms}");
}
