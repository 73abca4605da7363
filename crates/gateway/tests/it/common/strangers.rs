//! Parties of calls, and unknown hosts that send to the ports of these calls.
//!
//! Each sender fills its packets with one code, so a receiver can identify the sender.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rtp_types::{RtpPacket, RtpPacketBuilder};
use serde_json::Value;
use threadbare_rtp::g711;
use threadbare_rtp::srtp::{Crypto, MASTER_KEY_BYTES_MAX, MasterKey, Receiver, Sender, Suite};

use super::LIMIT;
use super::phones::Relay;

/// The codes of A, of B and of an unknown host. They are µ-law codes with distinct levels.
pub const A: u8 = 0x20;
pub const B: u8 = 0x40;
pub const STRANGER: u8 = 0x30;
/// The code of another phone of A.
pub const NEW: u8 = 0x10;

/// Number of packets that a party sends in a scene. An unknown host may get three of them, which is 1 %.
pub const TALK: usize = 300;
pub const ENOUGH: usize = 297;

pub const PCMU: &str = "m=audio PORT RTP/AVP 0";
pub const SUITE: Suite = Suite::AesCm128HmacSha1_80;

/// The media that a phone sends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Rtp(u8),
    /// Datagrams that are not RTP.
    Fax,
}

pub struct Phone {
    pub socket: UdpSocket,
    pub to: Option<SocketAddr>,
    pub kind: Kind,
    pub mark: u8,
    pub ssrc: u32,
    pub number: u16,
    pub srtp: Option<(Sender, Receiver)>,
    /// Number of packets, by payload type and by their last byte as µ-law.
    pub heard: BTreeMap<(u8, u8), usize>,
}

impl Phone {
    pub fn new(host: Ipv4Addr, kind: Kind, mark: u8) -> Phone {
        let socket = UdpSocket::bind((host, 0)).expect("all of 127.0.0.0/8 is here");
        socket.set_nonblocking(true).expect("non-blocking");
        Phone {
            socket,
            to: None,
            kind,
            mark,
            ssrc: u32::from(mark),
            number: 0,
            srtp: None,
            heard: BTreeMap::new(),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("bound")
    }

    /// Sets the destination to that in this description.
    pub fn call(&mut self, sdp: &str) {
        self.to = Some(media_of(sdp));
    }

    pub fn say(&mut self) {
        let codes = match self.kind {
            Kind::Rtp(8) => [g711::linear_to_alaw(linear(0, self.mark)); 160],
            _ => [self.mark; 160],
        };
        match self.kind {
            Kind::Fax => self.send(&codes[..40]),
            Kind::Rtp(payload_type) => self.say_as(payload_type, self.ssrc, &codes),
        }
    }

    /// Sends an RTP packet.
    pub fn say_as(&mut self, payload_type: u8, ssrc: u32, payload: &[u8]) {
        let mut packet = RtpPacketBuilder::<&[u8], &[u8]>::new()
            .payload_type(payload_type)
            .sequence_number(self.number)
            .timestamp(u32::from(self.number) * 160)
            .ssrc(ssrc)
            .payload(payload)
            .write_vec()
            .expect("a valid packet");
        if let Some((sender, _)) = &mut self.srtp {
            let len = packet.len();
            packet.resize(len + 32, 0);
            let len = sender.protect_rtp(&mut packet, len).expect("protected");
            packet.truncate(len);
        }
        self.number += 1;
        self.send(&packet);
    }

    pub fn send(&self, datagram: &[u8]) {
        let to = self.to.expect("a call");
        self.socket.send_to(datagram, to).expect("sent");
    }

    /// Reads and counts the waiting packets.
    pub fn listen(&mut self) {
        let mut room = [0; 2048];
        while let Ok(len) = self.socket.recv(&mut room) {
            let mut bytes = &mut room[..len];
            if self.kind == Kind::Fax {
                *self.heard.entry((0, bytes[len - 1])).or_default() += 1;
                continue;
            }
            if threadbare_rtp::packet::is_rtcp(bytes) {
                continue;
            }
            if let Some((_, receiver)) = &mut self.srtp {
                let len = receiver.unprotect_rtp(bytes).expect("it is ours");
                bytes = &mut bytes[..len];
            }
            let packet = RtpPacket::parse(bytes).expect("RTP");
            let payload_type = packet.payload_type();
            let last = *packet.payload().last().expect("a payload");
            let code = g711::linear_to_ulaw(linear(payload_type, last));
            *self.heard.entry((payload_type, code)).or_default() += 1;
        }
    }

    /// Returns the number of received packets with the audio of this sender.
    pub fn heard(&self, mark: u8) -> usize {
        let alike = |code: u8| linear(0, code).abs_diff(linear(0, mark)) < 200;
        let all = self.heard.iter();
        all.filter(|((payload_type, code), _)| *payload_type < 96 && alike(*code))
            .map(|(_, count)| count)
            .sum()
    }

    pub fn packets(&self) -> usize {
        self.heard.values().sum()
    }
}

pub fn linear(payload_type: u8, code: u8) -> i16 {
    let table = match payload_type {
        8 => &g711::ALAW_TO_LINEAR,
        _ => &g711::ULAW_TO_LINEAR,
    };
    table[usize::from(code)]
}

pub fn description(address: SocketAddr, lines: &str) -> String {
    let lines = lines.replace("PORT", &address.port().to_string());
    let ip = address.ip();
    format!("v=0\r\no=- 1 1 IN IP4 {ip}\r\ns=-\r\nc=IN IP4 {ip}\r\nt=0 0\r\n{lines}\r\n")
}

pub fn media_of(sdp: &str) -> SocketAddr {
    let line = sdp.lines().find_map(|line| line.strip_prefix("m="));
    let port = line.and_then(|line| line.split(' ').nth(1)?.parse().ok());
    (Ipv4Addr::LOCALHOST, port.expect("a port")).into()
}

/// A call, its parties, and an unknown host that sends to its ports.
pub struct Scene {
    pub name: String,
    pub a: Phone,
    pub b: Phone,
    pub stranger: Phone,
    /// The addresses of A and B in their descriptions.
    pub signalled: [SocketAddr; 2],
    pub lines: [String; 2],
}

impl Scene {
    pub fn new(name: &str, kinds: [Kind; 2], lines: [&str; 2]) -> Scene {
        static SCENES: AtomicU8 = AtomicU8::new(1);
        let network = SCENES.fetch_add(1, Relaxed);
        let host = |host| Ipv4Addr::new(127, 1, network, host);
        let a = Phone::new(host(10), kinds[0], A);
        let b = Phone::new(host(20), kinds[1], B);
        Scene {
            name: name.to_owned(),
            stranger: Phone::new(host(66), kinds[0], STRANGER),
            signalled: [a.address(), b.address()],
            a,
            b,
            lines: lines.map(str::to_owned),
        }
    }

    /// Sets up a call in which both parties use PCMU.
    pub fn pcmu(name: &str) -> Scene {
        Scene::new(name, [Kind::Rtp(0); 2], [PCMU; 2])
    }

    /// Creates another phone on a host of this scene.
    pub fn phone(&self, host: u8, mark: u8) -> Phone {
        let SocketAddr::V4(own) = self.a.address() else {
            unreachable!("IPv4")
        };
        let [first, second, network, _] = own.ip().octets();
        let host = Ipv4Addr::new(first, second, network, host);
        Phone::new(host, self.a.kind, mark)
    }

    /// Puts A behind a NAT. Its description names another phone, which does not send yet. Returns that phone.
    pub fn hide_a(&mut self) -> Phone {
        let hidden = self.phone(99, A);
        self.signalled[0] = hidden.address();
        hidden
    }

    pub fn offer(&mut self, relay: &mut Relay, keys: &Value) {
        let sdp = description(self.signalled[0], &self.lines[0]);
        let to_b = relay.pass("offer", &self.name, keys, &sdp);
        self.b.call(&to_b);
        let Some(theirs) = key_in(&to_b) else { return };
        let own = own_key(theirs.tag, B);
        self.lines[1] += &line(&own);
        self.b.srtp = Some((Sender::new(&own.key), Receiver::new(&theirs.key)));
    }

    pub fn answer(&mut self, relay: &mut Relay, keys: &Value) {
        let sdp = description(self.signalled[1], &self.lines[1]);
        let to_a = relay.pass("answer", &self.name, keys, &sdp);
        self.a.call(&to_a);
        self.stranger.to = self.a.to;
        let Some(theirs) = key_in(&to_a) else { return };
        let own = own_key(theirs.tag, A);
        self.a.srtp = Some((Sender::new(&own.key), Receiver::new(&theirs.key)));
    }

    pub fn connect(&mut self, relay: &mut Relay, keys: &Value) {
        self.offer(relay, keys);
        self.answer(relay, keys);
    }

    pub fn listen(&mut self) {
        for phone in [&mut self.a, &mut self.b, &mut self.stranger] {
            phone.listen();
        }
    }

    pub fn is_heard(&self) -> bool {
        self.a.heard(B) >= ENOUGH && self.b.heard(A) >= ENOUGH
    }

    /// Returns the number of the parties' packets that the unknown host received. Encrypted packets do not show their sender.
    pub fn leaked(&self) -> usize {
        self.stranger.packets() - self.stranger.heard(STRANGER)
    }

    /// Asserts that the parties heard each other, and that the unknown host received at most three of their packets. A party
    /// may hear up to five packets of the unknown host, until the relay rejects it.
    pub fn assert_safe(&self) {
        let (a, b) = (&self.a.heard, &self.b.heard);
        let leaked = self.leaked();
        let strange = self.a.heard(STRANGER).max(self.b.heard(STRANGER));
        assert!(
            self.is_heard() && leaked <= 3 && strange <= 5,
            "{}: A heard {a:?}, B heard {b:?}, the stranger got {leaked} packets",
            self.name
        );
    }
}

pub fn own_key(tag: u32, mark: u8) -> Crypto {
    Crypto {
        tag,
        key: MasterKey::from_random(SUITE, &[mark; MASTER_KEY_BYTES_MAX]),
        lifetime_packets: None,
    }
}

pub fn line(crypto: &Crypto) -> String {
    format!("\r\na=crypto:{}", &*crypto.to_value())
}

/// Returns the relay's key from one of its SDPs, if the relay encrypts.
pub fn key_in(sdp: &str) -> Option<Crypto> {
    let lines = sdp
        .lines()
        .filter_map(|line| line.strip_prefix("a=crypto:"));
    let mut keys = lines.map(|line| Crypto::parse(line).expect("SDES"));
    keys.find(|one| one.key.suite() == SUITE)
}

/// Runs the scenes for this many ticks of 20 ms. Calls `each` in every tick.
pub fn play(scenes: &mut [Scene], ticks: usize, mut each: impl FnMut(usize, &mut Scene)) {
    let begin = Instant::now();
    for tick in 0..ticks {
        for scene in &mut *scenes {
            each(tick, scene);
            scene.listen();
        }
        let due = begin + Duration::from_millis(20) * (tick as u32 + 1);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Reads packets until `is_done`, because jitter buffers release packets late. Waits at most for a third of [`LIMIT`].
pub fn drain(scenes: &mut [Scene], is_done: impl Fn(&Scene) -> bool) {
    let begin = Instant::now();
    while begin.elapsed() < LIMIT / 3 {
        scenes.iter_mut().for_each(Scene::listen);
        if scenes.iter().all(&is_done) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
