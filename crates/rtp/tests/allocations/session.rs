//! A running call allocates nothing, neither for packets nor for reports, and fits into a few cache lines.

use std::net::SocketAddr;

use crate::counting::allocations;
use threadbare_rtp::demux::{Demux, Filter, Lookup};
use threadbare_rtp::id::{PayloadType, RtpTime, SeqNum, Ssrc};
use threadbare_rtp::session::{Config, RtcpSession, RtpHeader, RtpVerdict};

const PACKET_NS: u64 = 20_000_000;

fn address(host: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, host as u8], 5000))
}

/// The memory that the receiving thread has for each call, and the table of the shared port.
struct Call {
    ends: [RtcpSession; 2],
    demux: Demux<u32>,
}

impl Call {
    /// Runs 20 ms of the call: a packet in each direction, and any RTCP that is due.
    fn step(&mut self, number: u64) {
        let now_ns = number * PACKET_NS;
        let mut out = [0; 1500];
        for at in 0..2 {
            let header = RtpHeader {
                ssrc: self.ends[at].ssrc(),
                seq: SeqNum(number as u16),
                time: RtpTime((number as u32).wrapping_mul(160)),
                payload_type: PayloadType(if number % 100 == 99 { 101 } else { 0 }),
            };
            self.ends[at].handle_rtp_sent(now_ns, header.time, 160, 1);
            let from = address(at);
            let found = self
                .demux
                .lookup(now_ns, from, header.ssrc, header.payload_type);
            assert!(matches!(found, Lookup::Route(_)));
            let verdict = self.ends[1 - at].handle_rtp(now_ns, from, header);
            assert!(verdict == RtpVerdict::Valid || number == 0);
            if self.ends[at]
                .next_timeout()
                .is_some_and(|at_ns| at_ns <= now_ns)
            {
                while let Some(bytes) = self.ends[at].poll_transmit(now_ns, &mut out) {
                    let result = self.ends[1 - at].handle_rtcp(now_ns, from, &out[..bytes]);
                    assert_eq!(result, Ok(()));
                }
            }
            while self.ends[at].poll_event().is_some() {}
        }
    }
}

#[test]
fn two_hours_of_a_call_allocate_nothing() {
    let mut call = Call {
        ends: [1, 2].map(|ssrc| {
            RtcpSession::new(
                0,
                Config::call(Ssrc(ssrc), "us@example.org", 8000, ssrc.into()),
            )
        }),
        demux: Demux::new(None, 1),
    };
    let by_ssrc = Filter {
        ssrc: Some(Ssrc(1)),
        ..Filter::default()
    };
    let by_address = Filter {
        from: Some(address(1)),
        ..Filter::default()
    };
    call.demux.add(by_ssrc, 1).expect("room");
    call.demux.add(by_address, 2).expect("room");
    // After this time, each side has received the other's name.
    for number in 0..1000 {
        call.step(number);
    }
    let before = allocations();
    assert!(before > 0, "allocations are counted");
    for number in 1000..360_000 {
        call.step(number);
    }
    assert_eq!(allocations() - before, 0);
    for end in &call.ends {
        assert!(end.stats().rtcp_sent > 1000);
        let bytes = end.memory_bytes();
        assert!(
            bytes <= 1536,
            "{bytes} bytes, {} of them in place",
            size_of::<RtcpSession>()
        );
    }
}
