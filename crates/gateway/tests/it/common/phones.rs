//! Parties of calls that a relay serves. They keep the state of a receiver, so they notice if another process of the relay does not
//! continue their streams.

use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use rtp_types::RtpPacketBuilder;
use serde_json::{Value, json};
use threadbare_rtp::g711;
use threadbare_rtp::srtp::{Receiver, Sender};

use super::{LIMIT, Running, port_pair, socket, threadbare};

/// A relay that can be restarted, with a proxy that sends requests to it.
pub struct Relay {
    pub running: Running,
    arguments: Vec<String>,
    proxy: UdpSocket,
    /// The address of the relay's HTTP server, if it has one.
    pub http: Option<SocketAddr>,
    asked: u32,
}

impl Relay {
    /// Returns the command that starts the relay, which searches this range for free ports.
    pub fn command(arguments: &[String]) -> Command {
        let mut command = threadbare();
        command.args(["serve", "--ng", "127.0.0.1:0", "--ports", "20000-59999"]);
        command.args(["--delete-delay", "0"]);
        command.args(arguments);
        command.env_remove("STATE_DIRECTORY");
        command
    }

    pub fn start(arguments: &[&str]) -> Relay {
        Relay::start_as(arguments, |command| command)
    }

    /// Starts a relay whose files can be [limited](Self::limit_files).
    pub fn start_limited(arguments: &[&str]) -> Relay {
        let patient = ["bash", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""];
        Relay::start_through(&patient, arguments)
    }

    /// Starts a relay through another program, such as `unshare`.
    pub fn start_through(words: &[&str], arguments: &[&str]) -> Relay {
        Relay::start_as(arguments, |command| {
            let mut through = Command::new(words[0]);
            through.args(&words[1..]);
            through.arg(command.get_program()).args(command.get_args());
            through
        })
    }

    /// Limits the length of the process's files, in bytes, as if the disk were full.
    pub fn limit_files(&self, bytes: &str) {
        let pid = self.running.child.id().to_string();
        let limit = format!("--fsize={bytes}:unlimited");
        let limited = Command::new("prlimit")
            .args(["--pid", &pid, &limit])
            .status();
        assert!(limited.expect("util-linux").success());
    }

    fn start_as(arguments: &[&str], with: impl Fn(Command) -> Command) -> Relay {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let mut running = Running::spawn(with(Relay::command(&arguments)));
        let (proxy, http, _) = connected(&mut running);
        Relay {
            running,
            arguments,
            proxy,
            http,
            asked: 0,
        }
    }

    /// Ends the process, and starts another one. Returns the log of the new process up to the message that it serves.
    pub fn restart(&mut self, signal: nix::sys::signal::Signal) -> String {
        self.stop(signal);
        self.start_again()
    }

    pub fn stop(&mut self, signal: nix::sys::signal::Signal) {
        self.running.signal(signal);
        self.running.child.wait().expect("it ends");
    }

    pub fn start_again(&mut self) -> String {
        self.running = Running::spawn(Relay::command(&self.arguments));
        let (proxy, http, log) = connected(&mut self.running);
        (self.proxy, self.http) = (proxy, http);
        log
    }

    /// Returns the address to which the proxy sends requests.
    pub fn ng(&self) -> SocketAddr {
        self.proxy.peer_addr().expect("connected")
    }

    /// Sends a request, and returns the reply in JSON. As a proxy does, repeats a request without a reply, because the relay's socket may have
    /// been full.
    pub fn ask(&mut self, request: Value) -> Value {
        self.asked += 1;
        let cookie = format!("cookie{}", self.asked);
        let message = format!("{cookie} {request}");
        let limited = self.proxy.set_read_timeout(Some(REPEAT));
        limited.expect("a valid time-out");
        let (end, mut room) = (Instant::now() + LIMIT, [0; 65_536]);
        loop {
            self.proxy.send(message.as_bytes()).expect("sent");
            // A late reply to an earlier request has another cookie.
            while let Ok(len) = self.proxy.recv(&mut room) {
                let reply = std::str::from_utf8(&room[..len]).expect("JSON");
                match reply.split_once(' ').expect("a cookie") {
                    (own, reply) if own == cookie => {
                        return serde_json::from_str(reply).expect("JSON");
                    }
                    _ => {}
                }
            }
            assert!(Instant::now() < end, "no reply to {message}");
        }
    }

    /// Sends an SDP through the relay. Returns the SDP of the reply.
    pub fn pass(&mut self, command: &str, call: &str, more: &Value, sdp: &str) -> String {
        let mut request = json!({"command": command, "call-id": call, "from-tag": "a", "to-tag": "b", "sdp": sdp});
        let more = more.as_object().expect("keys").clone();
        request.as_object_mut().expect("keys").extend(more);
        let reply = self.ask(request);
        assert_eq!(reply["result"], "ok", "{reply}");
        reply["sdp"].as_str().expect("an SDP").to_owned()
    }
}

fn connected(running: &mut Running) -> (UdpSocket, Option<SocketAddr>, String) {
    let (serving, log) = running.wait_past("serving");
    let ng = serving["ng"].as_str().expect("an address");
    let ng: SocketAddr = ng.parse().expect("an address");
    let proxy = socket();
    proxy.connect(ng).expect("loopback");
    let http = serving["http"].as_str();
    let http = http.map(|http| http.parse().expect("an address"));
    (proxy, http, log)
}

/// A packet as a receiver sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub ssrc: u32,
    pub number: u16,
    pub time: u32,
}

/// A phone.
pub struct Party {
    pub socket: UdpSocket,
    /// The socket for reports, on the port after the RTP port.
    pub reports: UdpSocket,
    pub to: Option<SocketAddr>,
    /// Number of the last packet that was sent. It does not wrap after 16 bits.
    number: u32,
    payload_type: u8,
    pub hz: f64,
    pub heard: Vec<f64>,
    pub seen: Vec<Seen>,
    pub srtp: Option<(Sender, Receiver)>,
}

impl Party {
    pub fn new(payload_type: u8, hz: f64) -> Party {
        Party::at(port_pair(), payload_type, hz)
    }

    /// Creates a party with these sockets, for RTP and for reports.
    pub fn at([socket, reports]: [UdpSocket; 2], payload_type: u8, hz: f64) -> Party {
        for socket in [&socket, &reports] {
            socket.set_nonblocking(true).expect("non-blocking");
        }
        Party {
            socket,
            reports,
            to: None,
            // The sequence numbers wrap soon, so that the rollover counter is tested.
            number: 65_500,
            payload_type,
            hz,
            heard: Vec::new(),
            seen: Vec::new(),
            srtp: None,
        }
    }

    /// Returns the phone's description, with these lines for `PORT`.
    pub fn sdp(&self, lines: &str) -> String {
        let own = self.socket.local_addr().expect("bound");
        let lines = lines.replace("PORT", &own.port().to_string());
        let ip = own.ip();
        format!("v=0\r\no=- 1 1 IN IP4 {ip}\r\ns=-\r\nc=IN IP4 {ip}\r\nt=0 0\r\n{lines}\r\n")
    }

    /// Sets the destination to the address in this description.
    pub fn call(&mut self, sdp: &str) {
        let line = sdp.lines().find_map(|line| line.strip_prefix("c=IN IP4 "));
        let ip: IpAddr = line.expect("an address").parse().expect("an address");
        self.to = Some((ip, port_of(sdp)).into());
    }

    /// Sends 20 ms of the party's tone.
    pub fn say(&mut self) {
        let encode = match self.payload_type {
            8 => g711::linear_to_alaw,
            _ => g711::linear_to_ulaw,
        };
        let sample = |n: u32| {
            let at = f64::from(self.number * 160 + n) / 8000.0;
            encode((LEVEL * (std::f64::consts::TAU * self.hz * at).sin()) as i16)
        };
        let codes: Vec<u8> = (0..160).map(sample).collect();
        let mut packet = RtpPacketBuilder::<&[u8], &[u8]>::new()
            .payload_type(self.payload_type)
            .sequence_number(self.number as u16)
            .timestamp(self.number * 160)
            .ssrc(self.hz as u32)
            .payload(&codes[..])
            .write_vec()
            .expect("a valid packet");
        if let Some((sender, _)) = &mut self.srtp {
            let len = packet.len();
            packet.resize(len + 32, 0);
            let len = sender.protect_rtp(&mut packet, len).expect("protected");
            packet.truncate(len);
        }
        self.number += 1;
        if let Some(to) = self.to {
            // While the relay restarts, its port is closed.
            let _ = self.socket.send_to(&packet, to);
        }
    }

    /// Reads the packets that have arrived. With SRTP, the receiver refuses repeated packets, and those with another
    /// rollover counter.
    pub fn listen(&mut self) {
        let mut room = [0; 2048];
        loop {
            let len = match self.socket.recv(&mut room) {
                Ok(len) => len,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                // The port is closed while the relay restarts.
                Err(_) => continue,
            };
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
            self.seen.push(Seen {
                ssrc: packet.ssrc(),
                number: packet.sequence_number(),
                time: packet.timestamp(),
            });
        }
    }

    /// Whether one of the waiting reports is a BYE.
    pub fn has_bye(&self) -> bool {
        let mut room = [0; 2048];
        std::iter::from_fn(|| {
            self.reports
                .recv(&mut room)
                .ok()
                .map(|len| room[..len].to_vec())
        })
        .any(|bytes| {
            let packets = rtcp_types::Compound::parse(&bytes).expect("RTCP");
            packets
                .into_iter()
                .any(|packet| matches!(packet.expect("RTCP"), rtcp_types::Packet::Bye(_)))
        })
    }

    /// Returns the amplitude of a tone in the last second, relative to the amplitude of the sent tone.
    pub fn level(&self, hz: f64) -> f64 {
        let pcm = &self.heard[self.heard.len().saturating_sub(8000)..];
        let angle = |n: usize| std::f64::consts::TAU * hz * n as f64 / 8000.0;
        let part = |wave: fn(f64) -> f64| {
            let all = pcm.iter().enumerate();
            let sum: f64 = all.map(|(n, sample)| sample * wave(angle(n))).sum();
            2.0 * sum / pcm.len().max(1) as f64
        };
        part(f64::sin).hypot(part(f64::cos)) / LEVEL
    }
}

/// Returns the next waiting packet with its type of service, which the kernel reports (ip(7), `IP_RECVTOS`).
pub fn next_tos(party: &Party) -> Option<(u8, Vec<u8>)> {
    let mut room = [0; 2048];
    let mut control = nix::cmsg_space!(u8);
    let (len, tos) = {
        let mut parts = [IoSliceMut::new(&mut room)];
        let socket = party.socket.as_raw_fd();
        let flags = MsgFlags::empty();
        let received = recvmsg::<()>(socket, &mut parts, Some(&mut control), flags).ok()?;
        let tos = received
            .cmsgs()
            .expect("room for it")
            .find_map(|one| match one {
                ControlMessageOwned::Ipv4Tos(tos) => Some(tos),
                _ => None,
            });
        (received.bytes, tos.expect("it was asked for"))
    };
    Some((tos, room[..len].to_vec()))
}

/// Returns the RTP port in a description.
pub fn port_of(sdp: &str) -> u16 {
    let media = sdp.lines().find(|line| line.starts_with("m=audio"));
    let port = media.and_then(|line| line.split(' ').nth(1)?.parse().ok());
    port.expect("a port")
}

/// Lets both parties send at the pace of a call until `is_done`.
pub fn talk(a: &mut Party, b: &mut Party, mut is_done: impl FnMut(&Party, &Party) -> bool) {
    let begin = Instant::now();
    for number in 0.. {
        a.say();
        b.say();
        a.listen();
        b.listen();
        if is_done(a, b) {
            return;
        }
        let heard = [&a.heard, &b.heard].map(Vec::len);
        assert!(begin.elapsed() < LIMIT, "{heard:?} samples");
        let due = begin + Duration::from_millis(20) * number;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Asserts that each party receives a second of the other's tone, and nothing else.
pub fn hear_each_other(a: &mut Party, b: &mut Party) {
    a.heard.clear();
    b.heard.clear();
    talk(a, b, |a, b| a.heard.len().min(b.heard.len()) > 9600);
    for (own, far) in [(&*a, &*b), (&*b, &*a)] {
        let (wanted, other) = (own.level(far.hz), own.level(own.hz));
        assert!(
            (wanted - 1.0).abs() < 0.03 && other < 0.03,
            "{wanted} and {other}"
        );
    }
}

const LEVEL: f64 = 8000.0;

/// Time after which a request without a reply is repeated.
const REPEAT: Duration = Duration::from_secs(2);
