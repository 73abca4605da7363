//! Tests of whole RTCP sessions in virtual time: calls of hours over links with loss and delay, groups of a thousand, and known errors of
//! other implementations.

mod call;
mod feedback;
mod group;
mod odd;

use std::net::SocketAddr;

use threadbare_rtp::id::{NtpTime, PayloadType, RtpTime, SeqNum, Ssrc};
use threadbare_rtp::session::{Config, Event, RtcpSession, RtpHeader};

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;
/// The wall clock at monotonic time 0, for tests in which it does not matter.
const NTP: NtpTime = NtpTime(0xe0e0_e0e0_1234_5678);

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], port))
}

fn config(ssrc: u32) -> Config {
    let mut config = Config::call(Ssrc(ssrc), "us@example.org", 8000, u64::from(ssrc));
    config.ntp_at_zero = NTP;
    config
}

fn session(ssrc: u32) -> RtcpSession {
    RtcpSession::new(0, config(ssrc))
}

/// Returns the packet `number` of a stream of 20 ms packets with 8000 units/s.
fn packet(ssrc: u32, number: u64) -> RtpHeader {
    RtpHeader {
        ssrc: Ssrc(ssrc),
        seq: SeqNum(number as u16),
        time: RtpTime((number as u32).wrapping_mul(160)),
        payload_type: PayloadType(0),
    }
}

/// Returns a receiver report without blocks, the CNAME of a source, and a BYE if `bye` is set.
fn compound(ssrc: u32, bye: bool) -> Vec<u8> {
    let mut bytes = vec![0x80, 201, 0, 1];
    bytes.extend(ssrc.to_be_bytes());
    bytes.extend([0x81, 202, 0, 3]);
    bytes.extend(ssrc.to_be_bytes());
    bytes.extend([1, 4]);
    bytes.extend(format!("{:04x}", ssrc as u16).bytes());
    bytes.extend([0, 0]);
    if bye {
        bytes.extend([0x81, 203, 0, 1]);
        bytes.extend(ssrc.to_be_bytes());
    }
    bytes
}

/// Runs the session's timer up to `until_ns`. Returns the packets that were sent, with their times.
fn run(session: &mut RtcpSession, until_ns: u64) -> Vec<(u64, Vec<u8>)> {
    let mut sent = Vec::new();
    let mut out = [0; 1500];
    while let Some(at_ns) = session.next_timeout().filter(|at_ns| *at_ns <= until_ns) {
        let mut has_sent = false;
        while let Some(bytes) = session.poll_transmit(at_ns, &mut out) {
            sent.push((at_ns, out[..bytes].to_vec()));
            has_sent = true;
        }
        let next_ns = session.next_timeout();
        assert!(
            has_sent || next_ns.is_none_or(|next_ns| next_ns > at_ns),
            "the timer stands still at {at_ns}"
        );
    }
    sent
}

fn events(session: &mut RtcpSession) -> Vec<Event> {
    std::iter::from_fn(|| session.poll_event()).collect()
}

/// A generator of pseudo-random numbers for the tests.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }
}
