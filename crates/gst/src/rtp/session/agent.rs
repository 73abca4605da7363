//! The RTCP of a session, on a context's thread: one timer for sending, one descriptor for receiving.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use threadbare_runtime::{
    Agent, AgentHandle, Cx, Interest, Precision, RawAddr, Ready, clock_now_ns, recv_from, send_to,
};

use super::{RtpSession, Sockets, address_of};
use crate::kit::context::Place;
use crate::kit::socket::Udp;

/// Receives and sends a session's RTCP.
pub(super) struct RtcpAgent {
    session: Arc<RtpSession>,
    sockets: Option<Arc<Sockets>>,
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

    /// Sends BYE at once: the sockets are about to close, and the session is small.
    pub(super) fn leave(&mut self, cx: &mut Cx<'_>) {
        let now_ns = clock_now_ns();
        {
            let mut rtcp = self.session.rtcp();
            self.session.report_sent(&mut rtcp);
            rtcp.session.send_bye(now_ns, "");
        }
        self.transmit(now_ns);
        if let Some(udp) = self.rtcp_socket() {
            cx.deregister(udp.fd());
        }
        cx.clear_timer();
    }

    /// The socket that this agent alone reads. With rtcp-mux the RTP's receiver passes on the RTCP, and so does the
    /// reader of a shared port.
    fn rtcp_socket(&self) -> Option<&Udp> {
        self.sockets
            .as_ref()
            .filter(|sockets| !sockets.is_shared)?
            .rtcp
            .as_ref()
    }

    fn receive(&mut self, cx: &Cx<'_>) {
        let Some(udp) = self.rtcp_socket() else {
            return;
        };
        let mut bytes = [0; PACKET_BYTES_MAX];
        for _ in 0..BUDGET {
            let mut from = RawAddr::empty();
            match recv_from(udp.fd(), &mut bytes, &mut from) {
                Ok(received) => {
                    let packet = &bytes[..received.len];
                    self.session
                        .handle_rtcp(cx.now_ns(), address_of(&from), packet);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return cx.expect_no_more();
                }
                // The ICMP answer to an earlier packet, and similar errors.
                Err(_) => {}
            }
        }
    }

    /// Sends the packets that are due.
    fn transmit(&mut self, now_ns: u64) {
        if !self.session.rtcp().may_report() {
            return;
        }
        let mut bytes = [0; PACKET_BYTES_MAX];
        for _ in 0..BUDGET {
            let (len, to) = {
                let mut rtcp = self.session.rtcp();
                self.session.report_sent(&mut rtcp);
                match rtcp.session.poll_transmit(now_ns, &mut bytes) {
                    Some(len) => (len, rtcp.rtcp_address()),
                    None => break,
                }
            };
            if let Some(to) = to {
                self.send(&bytes[..len], to);
            }
        }
        self.session.tell_events();
    }

    /// The next packet makes up for RTCP that could not be sent.
    fn send(&self, bytes: &[u8], to: SocketAddr) {
        if let Some(sockets) = &self.sockets {
            let udp = sockets.rtcp.as_ref().unwrap_or(&sockets.rtp);
            let to = sockets.reaching(to);
            if send_to(udp.fd(), bytes, &to)
                .is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
            {
                // That was the ICMP answer to an earlier one.
                let _ = send_to(udp.fd(), bytes, &to);
            }
        }
    }

    fn arm(&self, cx: &mut Cx<'_>) {
        let due_ns = {
            let rtcp = self.session.rtcp();
            let due_ns = rtcp.session.next_timeout();
            let now_ns = cx.now_ns();
            // What is held stays due.
            match due_ns {
                Some(due_ns) if rtcp.ssrc_is_open && due_ns <= now_ns => Some(now_ns + HELD_NS),
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
        // Sessions are polled with the slice's time; `About` may fire half a slice early.
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

/// No RTCP packet of a session this small is longer than an Ethernet frame.
pub(crate) const PACKET_BYTES_MAX: usize = 1500;
/// How often to check for something to report on: half of RTCP's shortest usual interval (RFC 3550, section 6.2).
const HELD_NS: u64 = 2_500_000_000;
/// Packets in one pass, in each direction.
const BUDGET: usize = 16;
