//! The RTCP of a session, on a context's thread: one timer for sending, one descriptor for receiving.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use threadbare_runtime::{
    Agent, AgentHandle, Cx, Interest, Precision, RawAddr, Ready, clock_now_ns, recv_timestamped,
    send_to,
};

use threadbare_rtp::packet::is_rtcp;

use super::sockets::Readers;
use super::{RtpSession, Sockets};
use crate::kit::context::Place;
use crate::kit::socket::Udp;
use crate::kit::time::SliceClock;
use crate::rtp::identity::address_of;

/// Receives and sends a session's RTCP.
pub(super) struct RtcpAgent {
    session: Arc<RtpSession>,
    sockets: Option<Arc<Sockets>>,
    clock: Arc<SliceClock>,
    label: String,
}

impl RtcpAgent {
    pub(super) fn start(
        session: Arc<RtpSession>,
        element: &gst::Element,
        place: &Place,
    ) -> Result<AgentHandle<RtcpAgent>, gst::ErrorMessage> {
        let agent = RtcpAgent {
            sockets: session.sockets(),
            session,
            clock: SliceClock::of(&place.shard),
            label: format!("{} (RTCP)", crate::kit::path_of(element)),
        };
        let handle = place
            .shard
            .call(move |local| local.add_agent(agent))
            .map_err(|e| gst::error_msg!(gst::CoreError::StateChange, ["{e}"]))?;
        handle.command(|agent: &mut RtcpAgent, cx| {
            if let Some(udp) = agent.rtcp_socket()
                && let Err(error) = cx.register(udp.fd(), 0, Interest::Read)
            {
                gst::warning!(crate::kit::CAT, "cannot watch the RTCP socket: {error}");
            }
            agent.arm(cx);
        });
        Ok(handle)
    }

    /// Sends a BYE at once, because the sockets are about to close. It need not wait, because the session is small.
    pub(super) fn leave(&mut self, cx: &mut Cx<'_>) {
        let now_ns = clock_now_ns();
        self.session.party().leg.leave(now_ns, "");
        self.transmit(now_ns);
        if let Some(udp) = self.rtcp_socket() {
            cx.deregister(udp.fd());
        }
        cx.clear_timer();
    }

    /// Returns the socket that only this agent reads. With rtcp-mux, the RTP receiver, if there is one, passes the RTCP on. The
    /// reader of a shared port does so, too.
    fn rtcp_socket(&self) -> Option<&Udp> {
        let sockets = self.sockets.as_ref()?;
        match sockets.readers {
            Readers::Port => None,
            Readers::Source => sockets.rtcp.as_ref(),
            Readers::Agent => Some(sockets.rtcp.as_ref().unwrap_or(&sockets.rtp)),
        }
    }

    fn receive(&mut self, cx: &Cx<'_>) {
        let Some(udp) = self.rtcp_socket() else {
            return;
        };
        let mut bytes = [0; PACKET_BYTES_MAX];
        for _ in 0..BUDGET {
            let mut from = RawAddr::empty();
            match recv_timestamped(udp.fd(), &mut bytes, Some(&mut from)) {
                Ok(received) => {
                    let packet = &bytes[..received.len];
                    // The delays in reports are measured from this time (RFC 3550, section 6.4.1), not from the start of the
                    // slice.
                    let at_ns = received
                        .timestamp_ns
                        .map_or_else(|| cx.now_ns(), |at_ns| self.clock.monotonic_ns(cx, at_ns));
                    if is_rtcp(packet) {
                        self.session.handle_rtcp(at_ns, address_of(&from), packet);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return cx.expect_no_more();
                }
                // This is the ICMP answer to an earlier packet, or a similar error.
                Err(_) => {}
            }
        }
    }

    /// Sends the packets that are due.
    fn transmit(&mut self, now_ns: u64) {
        if !self.session.party().may_report() {
            return;
        }
        let mut bytes = [0; PACKET_BYTES_MAX];
        for _ in 0..BUDGET {
            let (len, to, also_to) = {
                let leg = &mut self.session.party().leg;
                match leg.poll_rtcp(now_ns, &mut bytes) {
                    Some((len, to)) => (len, to, leg.rtcp_to_source()),
                    None => break,
                }
            };
            for to in std::iter::once(to).chain(also_to) {
                self.send(&bytes[..len], to);
            }
        }
        self.session.tell_events();
    }

    /// Sends a packet. If it cannot be sent, the next report makes up for it.
    fn send(&self, bytes: &[u8], to: SocketAddr) {
        if let Some(sockets) = &self.sockets {
            let udp = sockets.rtcp.as_ref().unwrap_or(&sockets.rtp);
            let to = sockets.reaching(to);
            if send_to(udp.fd(), bytes, &to)
                .is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
            {
                // The error was the ICMP answer to an earlier packet.
                let _ = send_to(udp.fd(), bytes, &to);
            }
        }
    }

    fn arm(&self, cx: &mut Cx<'_>) {
        let due_ns = {
            let party = self.session.party();
            let due_ns = party.leg.next_report();
            let now_ns = cx.now_ns();
            // A report that is held stays due, so check again later.
            match due_ns {
                Some(due_ns) if party.ssrc_is_open && due_ns <= now_ns => Some(now_ns + HELD_NS),
                due_ns => due_ns,
            }
        };
        match due_ns {
            Some(due_ns) => cx.set_timer(due_ns, Precision::About),
            None => cx.clear_timer(),
        }
    }
}

impl Agent for RtcpAgent {
    fn run(&mut self, cx: &mut Cx<'_>, ready: Ready) {
        // Poll sessions with the slice's time, because `About` may fire half a slice early.
        let now_ns = cx.now_ns();
        if let Ready::Io(_) = ready {
            self.receive(cx);
        }
        self.transmit(now_ns);
        self.arm(cx);
    }

    fn label(&self) -> String {
        self.label.clone()
    }
}

/// Maximum size of an RTCP packet. In a session with two members, it fits an Ethernet frame.
pub(crate) const PACKET_BYTES_MAX: usize = 1500;
/// Interval of checks for something to report on: half of RTCP's shortest usual interval (RFC 3550, section 6.2).
const HELD_NS: u64 = 2_500_000_000;
/// Maximum number of packets in one pass, in each direction.
const BUDGET: usize = 16;
