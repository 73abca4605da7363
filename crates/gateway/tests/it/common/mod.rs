//! Parts that many tests use: ports, packets, and the program itself.
#![allow(unreachable_pub, reason = "other test files use it")]

pub mod fallback;
pub mod http;
pub mod listener;
pub mod phones;
pub mod plain;
pub mod strangers;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rtp_types::{RtpPacket, RtpPacketBuilder};
use threadbare_config::Config;
use threadbare_streams::event::Event;
use threadbare_streams::gateway::Gateway;
use threadbare_streams::init_gstreamer;
use threadbare_streams::pipeline::Elements;

/// Time limit of a test. No test takes this long unless it hangs.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Returns a command that runs the program, with the default settings of its logs.
pub fn threadbare() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_threadbare"));
    command.env_remove("THREADBARE_LOG").env_remove("GST_DEBUG");
    command
}

/// Returns a free even port of 127.0.0.1 for RTP. The next port, for RTCP, is free too. No port is returned twice, because a program that a
/// test has stopped may still have its port.
///
/// cargo-nextest runs several tests at once, each in its own process. If they share a network (`scripts/in-a-network`), each
/// slot of nextest has its own range of ports. The ranges are below the ports of calls and those that the kernel assigns.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<u16> = Mutex::new(0);
    let slot = std::env::var("NEXTEST_TEST_GLOBAL_SLOT").ok();
    let slot: u16 = slot.map_or(0, |text| text.parse().expect("a number"));
    assert!(slot < 16, "more tests at once than there are ports for");
    let first = 10_000 + slot * PORTS_PER_SLOT;
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let port = first + *given;
        *given += 2;
        assert!(*given <= PORTS_PER_SLOT, "no free port left");
        let is_free = |port| UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        let is_free_for_tcp = || TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        if is_free(port) && is_free(port + 1) && is_free_for_tcp() {
            return port;
        }
    }
}

const PORTS_PER_SLOT: u16 = 600;

/// Opens sockets on an even port of 127.0.0.1 and on the next one.
pub fn port_pair() -> [UdpSocket; 2] {
    let pair = |_| {
        let even = bind(0)?;
        let port = even.local_addr().expect("bound").port();
        let odd = port.is_multiple_of(2).then(|| bind(port + 1))??;
        Some([even, odd])
    };
    (0..1000).find_map(pair).expect("two free ports in a row")
}

/// Returns a socket on a free port of 127.0.0.1.
pub fn socket() -> UdpSocket {
    bind(0).expect("a free port")
}

fn bind(port: u16) -> Option<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
    let limited = socket.set_read_timeout(Some(LIMIT));
    limited.expect("a valid time-out");
    Some(socket)
}

/// Returns an RTP packet.
pub fn rtp(payload_type: u8, number: u16, payload: &[u8]) -> Vec<u8> {
    RtpPacketBuilder::<&[u8], &[u8]>::new()
        .payload_type(payload_type)
        .sequence_number(number)
        .timestamp(u32::from(number) * payload.len() as u32)
        .ssrc(0x1234)
        .payload(payload)
        .write_vec()
        .expect("a valid packet")
}

/// A received RTP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub payload_type: u8,
    pub marker: bool,
    pub sequence: u16,
    pub ssrc: u32,
    pub payload: Vec<u8>,
}

/// Returns the next packet that arrives. If none does, the test fails.
pub fn receive(socket: &UdpSocket) -> Received {
    let mut buffer = [0; 2048];
    let length = socket.recv(&mut buffer).expect("a packet in time");
    let packet = RtpPacket::parse(&buffer[..length]).expect("RTP");
    Received {
        payload_type: packet.payload_type(),
        marker: packet.marker_bit(),
        sequence: packet.sequence_number(),
        ssrc: packet.ssrc(),
        payload: packet.payload().to_vec(),
    }
}

/// Sends packets, starting with number `first`, until an answer shows that the stream is running. Returns the next number.
pub fn knock(
    from: &UdpSocket,
    to: SocketAddr,
    answer: &UdpSocket,
    payload_type: u8,
    first: u16,
    payload: &[u8],
) -> u16 {
    answer
        .set_read_timeout(Some(Duration::from_millis(20)))
        .expect("a valid time-out");
    let start = Instant::now();
    let mut buffer = [0; 2048];
    let mut number = first;
    loop {
        assert!(start.elapsed() < LIMIT, "nothing comes back from {to}");
        // While the port is closed, the kernel may report an error.
        let _ = from.send_to(&rtp(payload_type, number, payload), to);
        number = number.wrapping_add(1);
        if answer.recv(&mut buffer).is_ok() {
            break;
        }
    }
    // Read the answers to the other packets, which may still be on their way or in a jitter buffer.
    answer
        .set_read_timeout(Some(QUIET))
        .expect("a valid time-out");
    while answer.recv(&mut buffer).is_ok() {}
    answer
        .set_read_timeout(Some(LIMIT))
        .expect("a valid time-out");
    number
}

/// After this time, no more packets are expected. It is several times the latency of the jitter buffer and the slice.
const QUIET: Duration = Duration::from_millis(300);

/// Waits for a condition by polling.
pub fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "it does not come true");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A gateway on a separate thread. It stops when this is dropped.
pub struct Background {
    pub events: Sender<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Runs a configuration in this process.
    pub fn start(config: &str, elements: Elements) -> Background {
        init_gstreamer().expect("GStreamer");
        let config = Config::from_toml("test", config).expect("a good configuration");
        let mut gateway = Gateway::start(config, elements).expect("all elements");
        let events = gateway.sender();
        let thread = std::thread::spawn(move || {
            gateway.handle_for(None);
            gateway.drain_and_stop(Duration::from_secs(2));
        });
        Background {
            events,
            thread: Some(thread),
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.events.send(Event::Stop { cause: "the test" });
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the gateway ends well");
        }
    }
}

/// Starts a stream with `keys` and without RTCP that sends to our socket. Returns the gateway, the sender's socket, the stream's address,
/// and the receiving socket.
pub fn call(keys: &str) -> (Background, UdpSocket, SocketAddr, UdpSocket) {
    let (answer, from) = (socket(), socket());
    let to = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let destination = answer.local_addr().expect("bound");
    let gateway = Background::start(
        &format!(
            "[contexts]\nwait = 5\n[[stream]]\nname = \"test\"\nlisten = \"{to}\"\n\
             destination = \"{destination}\"\nrtcp = false\n{keys}"
        ),
        Elements::Threadbare,
    );
    (gateway, from, to, answer)
}

/// A running gateway process with its log. The process is killed when this is dropped.
pub struct Running {
    pub child: Child,
    log: BufReader<ChildStderr>,
}

impl Running {
    /// Runs a configuration.
    pub fn start(config: &str, arguments: &[&str]) -> (Running, tempfile::TempDir) {
        Running::start_with(config, arguments, &[])
    }

    /// Runs a configuration with a changed environment.
    pub fn start_with(
        config: &str,
        arguments: &[&str],
        environment: &[(&str, &std::path::Path)],
    ) -> (Running, tempfile::TempDir) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("gateway.toml");
        std::fs::write(&path, config).expect("written");
        let mut command = threadbare();
        command
            .arg("run")
            .arg(path)
            .args(arguments)
            .envs(environment.iter().copied());
        (Running::spawn(command), directory)
    }

    /// Runs this command.
    pub fn spawn(mut command: Command) -> Running {
        command.args(["--log-format", "json"]);
        Running::spawn_as(command)
    }

    /// Runs a command with its arguments unchanged. Its log must be JSON.
    pub fn spawn_as(mut command: Command) -> Running {
        let mut child = command
            // Without a terminal, SIGHUP is a request to reload the configuration.
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let log = BufReader::new(child.stderr.take().expect("piped"));
        Running { child, log }
    }

    /// Waits for the next log line with this message, and returns it.
    pub fn wait_for(&mut self, message: &str) -> serde_json::Value {
        self.wait_past(message).0
    }

    /// Waits for the next log line with this message. Returns it, and all lines before it.
    pub fn wait_past(&mut self, message: &str) -> (serde_json::Value, String) {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            assert!(
                self.log.read_line(&mut line).expect("a log") > 0,
                "no {message:?} in\n{seen}"
            );
            let Ok(event) = serde_json::from_str::<serde_json::Value>(&line) else {
                // A library's own warning begins with an empty line.
                let mut next = String::new();
                let _ = self.log.read_line(&mut next);
                panic!("not a line of the log: {line:?} {next:?}");
            };
            if event["message"] == message {
                return (event, seen);
            }
            seen.push_str(&line);
        }
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into().expect("a pid"));
        nix::sys::signal::kill(pid, signal).expect("it runs");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
