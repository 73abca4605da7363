//! Helpers of the relay's tests: a call that forwards, its peers, and functions that wait.
#![allow(dead_code, reason = "each test binary uses its part of it")]

pub(crate) mod media;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use threadbare_relay::{
    Call, CallHandle, Datagram, Engine, LegPorts, Outbox, PortId, PortRange, PortUse,
    RangeSettings, Refused, Settings,
};

/// Maximum wait. Only a test that fails waits this long. It is generous, because the machine may have other work.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Returns an engine on its own context.
pub(crate) fn engine<C: Call>(wait_ms: u64, threads: i32) -> Engine<C> {
    Engine::new(settings(wait_ms, threads)).expect("an engine")
}

pub(crate) fn settings(wait_ms: u64, threads: i32) -> Settings {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut settings = Settings::new(&format!("relay{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    settings.threads.wait = Duration::from_millis(wait_ms);
    settings.threads.threads = threads;
    settings
}

/// Waits until a condition holds, by polling.
#[track_caller]
pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < DEADLINE, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Returns a range of ports below those that the system assigns. It starts at a random one and skips ports in use, so that tests do not
/// interfere.
pub(crate) fn range(port_use: PortUse) -> PortRange {
    PortRange::new(range_settings(LOCALHOST, port_use)).expect("a range")
}

pub(crate) fn range_settings(address: IpAddr, port_use: PortUse) -> RangeSettings {
    RangeSettings {
        port_use,
        ..RangeSettings::new(address, 10_000, 32_000)
    }
}

/// Returns a socket of a party.
pub(crate) fn peer() -> UdpSocket {
    peer_at("127.0.0.1:0")
}

pub(crate) fn peer_at(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).expect("a socket");
    socket.set_read_timeout(Some(DEADLINE)).expect("a time-out");
    socket
}

/// Waits for the next datagram of a party. Returns it with its source address.
#[track_caller]
pub(crate) fn next(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 4096];
    let (len, from) = socket.recv_from(&mut buffer).expect("a datagram comes");
    (buffer[..len].to_vec(), from)
}

/// A call that forwards datagrams from one leg's port to the other leg's fixed destination.
#[derive(Default)]
pub(crate) struct Forwarder {
    /// Destination of each leg's RTP and RTCP.
    pub(crate) to: [[Option<SocketAddr>; 2]; 2],
    /// The datagram that waits. Its memory is fixed.
    waiting: Option<(PortId, SocketAddr)>,
    bytes: Vec<u8>,
    pub(crate) received: u64,
    pub(crate) last_from: Option<SocketAddr>,
    pub(crate) refused: Vec<Refused>,
    /// Whether a leg's datagrams leave from the same leg.
    pub(crate) echoes: bool,
}

impl Forwarder {
    /// Sends a datagram of its own.
    pub(crate) fn send(&mut self, port: PortId, to: SocketAddr, bytes: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.waiting = Some((port, to));
    }

    /// Creates a call that sends from leg 0 to `b`, and from leg 1 to `a`. These are the addresses for RTP, and RTCP goes to the next port.
    pub(crate) fn new(a: SocketAddr, b: SocketAddr) -> Forwarder {
        Forwarder {
            to: [[Some(a), Some(next_port(a))], [Some(b), Some(next_port(b))]],
            bytes: Vec::with_capacity(2048),
            ..Forwarder::default()
        }
    }
}

pub(crate) fn next_port(mut address: SocketAddr) -> SocketAddr {
    address.set_port(address.port().wrapping_add(1));
    address
}

impl Call for Forwarder {
    fn handle_datagram(&mut self, now_ns: u64, datagram: Datagram<'_>) {
        assert!(datagram.received_ns <= now_ns);
        self.received += 1;
        self.last_from = Some(datagram.from);
        let leg = if self.echoes {
            datagram.port.leg
        } else {
            1 - datagram.port.leg
        };
        let port = PortId {
            leg,
            ..datagram.port
        };
        if let Some(to) = self.to[usize::from(leg)][datagram.port.kind as usize] {
            self.bytes.clear();
            self.bytes.extend_from_slice(datagram.bytes);
            self.waiting = Some((port, to));
        }
    }

    fn poll_transmit(&mut self, _now_ns: u64, _may_lose: bool, out: &mut dyn Outbox) {
        let Some((port, to)) = self.waiting else {
            return;
        };
        match out.stage(port, to, &self.bytes) {
            Ok(()) => self.waiting = None,
            Err(Refused::Full) => {}
            Err(why) => {
                self.refused.push(why);
                self.waiting = None;
            }
        }
    }

    fn next_timeout(&self) -> Option<u64> {
        None
    }
}

/// Makes the call send alternately to an unused address and to a party. Asserts that the party gets all its packets.
pub(crate) fn send_in_turn(call: &CallHandle<Forwarder>, nobody: SocketAddr, party: &UdpSocket) {
    let to = party.local_addr().expect("bound");
    for i in 0..20u8 {
        let port = PortId::rtp(0);
        let sent = call.with(move |call, _| call.send(port, nobody, b"lost"));
        sent.wait().expect("the call is there");
        let sent = call.with(move |call, _| call.send(port, to, &[i]));
        sent.wait().expect("the call is there");
        assert_eq!(next(party).0, [i]);
    }
}

/// Returns two legs of a range.
pub(crate) fn two_legs(range: &PortRange) -> Vec<LegPorts> {
    vec![range.lease().expect("ports"), range.lease().expect("ports")]
}

/// Returns an RTP packet with this SSRC and number. It consists of twelve bytes and `payload` (RFC 3550, section 5.1).
pub(crate) fn rtp(ssrc: u32, seq: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x80, 0];
    packet.extend(seq.to_be_bytes());
    packet.extend([0; 4]);
    packet.extend(ssrc.to_be_bytes());
    packet.extend(payload);
    packet
}

/// Returns an empty receiver report (RFC 3550, section 6.4.2).
pub(crate) fn receiver_report(ssrc: u32) -> Vec<u8> {
    let mut packet = vec![0x80, 201, 0, 1];
    packet.extend(ssrc.to_be_bytes());
    packet
}

/// Returns the number of open descriptors of this process.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// Returns the number of threads of this process.
pub(crate) fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("proc").count()
}
