//! Streams and calls on one thread are spread over two, while the receivers check every packet.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::common::http::{Relay, parties};
use crate::common::{LIMIT, Running, free_port, rtp, socket, threadbare, wait_until};
use nix::sys::signal::Signal;
use rtp_types::RtpPacket;
use serde_json::{Value, json};

/// One direction of a stream or call.
struct Flow {
    from: UdpSocket,
    to: SocketAddr,
    hears: UdpSocket,
    sent: u16,
    heard: u16,
    /// SSRC, number and timestamp of the first packet, as the receiver sees them.
    first: Option<(u32, u16, u32)>,
}

impl Flow {
    fn new(from: UdpSocket, to: SocketAddr, hears: UdpSocket) -> Flow {
        hears.set_nonblocking(true).expect("non-blocking");
        Flow {
            from,
            to,
            hears,
            sent: 0,
            heard: 0,
            first: None,
        }
    }

    fn send(&mut self) {
        let packet = rtp(0, self.sent, &payload(self.sent));
        self.from.send_to(&packet, self.to).expect("sent");
        self.sent += 1;
    }

    /// Asserts that the packets that have arrived continue the stream.
    fn check(&mut self) {
        let mut room = [0; 2048];
        while let Ok(len) = self.hears.recv(&mut room) {
            if threadbare_rtp::packet::is_rtcp(&room[..len]) {
                continue;
            }
            let packet = RtpPacket::parse(&room[..len]).expect("RTP");
            let (number, time) = (packet.sequence_number(), packet.timestamp());
            let first = *self.first.get_or_insert((packet.ssrc(), number, time));
            assert_eq!(packet.ssrc(), first.0);
            assert_eq!(number, first.1.wrapping_add(self.heard));
            assert_eq!(time, first.2.wrapping_add(u32::from(self.heard) * 160));
            assert_eq!(packet.payload(), payload(self.heard), "packet {number}");
            self.heard += 1;
        }
    }
}

/// Returns 20 ms of PCMU that identify a packet.
fn payload(number: u16) -> [u8; 160] {
    [0x80 | number as u8 & 0x3f; 160]
}

/// Sends on all flows at the pace of telephony until `is_done`. Asserts that every packet arrives.
fn talk(flows: &mut [Flow], mut is_done: impl FnMut() -> bool) {
    let begin = Instant::now();
    for round in 1.. {
        flows.iter_mut().for_each(Flow::send);
        flows.iter_mut().for_each(Flow::check);
        if is_done() {
            break;
        }
        assert!(begin.elapsed() < LIMIT, "it does not come true");
        let due = begin + Duration::from_millis(20) * round;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    while flows.iter().any(|flow| flow.heard < flow.sent) {
        assert!(begin.elapsed() < 2 * LIMIT, "a packet is missing");
        flows.iter_mut().for_each(Flow::check);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the `moved` events of a gateway.
fn moves(http: SocketAddr) -> Receiver<Value> {
    let mut stream = TcpStream::connect(http).expect("it listens");
    let head = format!("GET /v1/events HTTP/1.1\r\nHost: {http}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    let mut lines = BufReader::new(stream).lines();
    let status = lines.next().expect("a status").expect("a line");
    assert!(status.contains("200"), "{status}");
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let mut name = String::new();
        for line in lines.map_while(Result::ok) {
            if let Some(text) = line.strip_prefix("event: ") {
                text.clone_into(&mut name);
            } else if let Some(data) = line.strip_prefix("data: ")
                && name == "moved"
            {
                let _ = tell.send(serde_json::from_str(data).expect("JSON"));
            }
        }
    });
    told
}

/// Adds the events that have come. Returns whether both threads now have half of the sessions. At first, the thread of the first event has
/// all of them.
fn is_even(told: &Receiver<Value>, events: &mut Vec<Value>) -> bool {
    events.extend(told.try_iter());
    let Some(first) = events.first().map(|event| event["from"].clone()) else {
        return false;
    };
    // On a busy machine, a thread may be late, and hand back a session.
    let (out, back): (Vec<&Value>, Vec<&Value>) =
        events.iter().partition(|event| event["from"] == first);
    assert!(back.iter().all(|event| event["to"] == first), "{events:?}");
    out.len() - back.len() == SESSIONS / 2
}

/// Asserts that the metric has counted the moves.
fn check_metric(relay: &Relay, events: &[Value]) {
    let metrics = relay.get("/metrics");
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for event in events {
        let from = event["from"].as_str().expect("a thread");
        *counts.entry(from).or_default() += 1;
    }
    for (thread, count) in counts {
        let name = format!("threadbare_thread_moved_sessions_total{{thread=\"{thread}\"}} ");
        let mut lines = metrics.text().lines();
        let value = lines.find_map(|line| line.strip_prefix(&name)?.parse::<u32>().ok());
        assert!(value >= Some(count), "{value:?} {count}");
    }
}

#[test]
fn streams_of_one_context_are_spread_over_two_without_a_gap() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("gateway.toml");
    let mut flows = Vec::new();
    let mut streams = Vec::new();
    for number in 0..SESSIONS {
        // The gateway starts each second stream on the second context, unless a context is late by a slice, which is long here. These
        // streams end before the test.
        let hears = socket();
        let (to, ended) = (SocketAddr::from(([127, 0, 0, 1], free_port())), free_port());
        let destination = hears.local_addr().expect("bound");
        let stays = format!(
            "[[stream]]\nname = \"{number}\"\nlisten = \"{to}\"\ndestination = \"{destination}\"\n\
             codec = \"PCMU\"\nssrc = {}\nrtcp = false\nlatency = 400\n",
            7 + number
        );
        let ends = format!("[[stream]]\nname = \"end-{number}\"\nlisten = \"127.0.0.1:{ended}\"\n");
        streams.push([stays, ends]);
        flows.push(Flow::new(socket(), to, hears));
    }
    let head = "[http]\nlisten = \"127.0.0.1:0\"\n[ng]\nlisten = \"127.0.0.1:0\"\n[contexts]\ncount = 2\nwait = 100\n";
    let all = streams.concat().concat();
    std::fs::write(&path, format!("{head}{all}")).expect("written");
    let mut command = threadbare();
    command.arg("run").arg(&path);
    let mut relay = Relay::of(Running::spawn(command));
    let told = moves(relay.http);
    let staying: String = streams.into_iter().map(|[stays, _]| stays).collect();
    std::fs::write(&path, format!("{head}{staying}")).expect("written");
    relay.running.signal(Signal::SIGHUP);
    relay.running.wait_for("reloaded");
    let mut events = Vec::new();
    talk(&mut flows, || is_even(&told, &mut events));
    let names: Vec<String> = (0..SESSIONS).map(|number| number.to_string()).collect();
    for event in &events {
        let name = event["stream"].as_str().expect("a stream");
        assert!(names.iter().any(|one| one == name), "{event}");
    }
    check_metric(&relay, &events);
}

/// Returns the number of calls on each of the two media threads.
fn carried(relay: &Relay) -> [u64; 2] {
    let contexts = relay.get_json("/v1/contexts");
    let streams = |thread: usize| contexts["contexts"][thread]["streams"].as_u64();
    [0, 1].map(|thread| streams(thread).expect("a number"))
}

/// Sets up calls that all run on the first of two threads. Returns their names and flows.
fn calls_on_one_thread(relay: &mut Relay) -> (Vec<String>, Vec<Flow>) {
    let (mut calls, mut flows, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for number in 1.. {
        let (id, sockets, before) = (number.to_string(), parties(), carried(relay));
        let to = relay.call(&id, &sockets);
        wait_until(|| carried(relay).iter().sum::<u64>() == number);
        if carried(relay)[0] == before[0] {
            // The calls of the second thread end later, because the next call must start on the first one.
            others.push(id);
            continue;
        }
        calls.push(id);
        let [a, b] = &sockets;
        let both = [(a, to[0], b), (b, to[1], a)];
        let clone = |socket: &UdpSocket| socket.try_clone().expect("a descriptor");
        flows.extend(both.map(|(from, to, hears)| Flow::new(clone(from), to, clone(hears))));
        if calls.len() == SESSIONS {
            break;
        }
    }
    for id in others {
        let deleted = relay.ask(&json!({"command": "delete", "call-id": id, "from-tag": "a"}));
        assert_eq!(deleted["result"], "ok", "{deleted}");
    }
    (calls, flows)
}

#[test]
fn calls_of_one_thread_are_spread_over_two_without_a_gap() {
    let mut relay = Relay::start(&["--threads", "2"]);
    let told = moves(relay.http);
    let (calls, mut flows) = calls_on_one_thread(&mut relay);
    let mut events: Vec<Value> = Vec::new();
    talk(&mut flows, || {
        events.extend(told.try_iter());
        // The last event may come after the last move.
        events.len() >= SESSIONS / 2 && carried(&relay) == [SESSIONS as u64 / 2; 2]
    });
    for event in &events {
        let id = event["id"].as_str().expect("a call");
        assert_eq!(event["path"], format!("/v1/calls/{id}"));
        assert!(calls.iter().any(|one| one == id), "{event}");
    }
    check_metric(&relay, &events);
}

#[test]
fn calls_stay_on_their_threads_if_rebalance_is_off() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("calls.toml");
    let text = "[contexts]\nrebalance = false\n[ng]\nlisten = \"127.0.0.1:0\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
                [interfaces.default]\naddress = \"127.0.0.1\"\nports = \"20000-59999\"\n[timeouts]\ndelete-delay = 0\n[calls]\nthreads = 2\n";
    std::fs::write(&path, text).expect("written");
    let mut command = threadbare();
    command.arg("serve").arg(&path);
    let mut relay = Relay::of(Running::spawn(command));
    let _flows = calls_on_one_thread(&mut relay);
    let expected = [SESSIONS as u64, 0];
    wait_until(|| carried(&relay) == expected);
    // With `rebalance`, this time is enough for a move.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(carried(&relay), expected);
}

/// Number of sessions that one thread carries at first.
const SESSIONS: usize = 10;
