//! One RTP session on shared threads: the common part of a `ts-rtpsrc` and a `ts-rtpsink`.
//!
//! It has a pair of sockets, one RTCP session for both directions, and its peer's address. Elements with the same
//! `session` property share one; without a name each has its own. An agent on a context's thread sends and receives the
//! RTCP ([`agent`]); the elements handle RTP themselves.
//!
//! | field | who |
//! |---|---|
//! | `rtcp` | any thread, under its lock; computation only, never across a push, a callback or a system call |
//! | `sent` | the thread that sends adds to it, the agent reads it |
//! | `peer_version` | written with `rtcp` locked, read by the thread that sends |
//! | `sockets`, `agent`, `feedback` | state changes |

mod agent;
mod feedback;
mod sockets;
mod stats;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use gio::prelude::*;
use gst::glib;
use threadbare_rtp::id::{NS_PER_S, NtpTime, RtpTime, Ssrc};
use threadbare_rtp::latch::{LatchConfig, LatchVerdict, PeerLatch};
use threadbare_rtp::session::{Config, Event, MinimumInterval, RtpHeader, RtpVerdict, Session};
use threadbare_runtime::{AgentHandle, RawAddr, clock_now_ns};

use crate::kit::context::Place;
use crate::kit::lock;
pub(crate) use agent::PACKET_BYTES_MAX;
use agent::RtcpAgent;
pub(crate) use feedback::FeedbackSettings;
pub(crate) use sockets::{SocketSettings, Sockets};

/// The shared state of one session's elements. Laid out by hand: the fields of each packet come first.
#[repr(C)]
pub(crate) struct RtpSession {
    sent: Mutex<Sent>,
    peer_version: AtomicU32,
    rtcp: Mutex<Rtcp>,
    name: String,
    sockets: Mutex<Option<Arc<Sockets>>>,
    agent: Mutex<Running>,
    /// Receives the session's events.
    listeners: Mutex<Arc<[Weak<Listening>]>>,
    /// The elements' agreed settings.
    feedback: Mutex<FeedbackSettings>,
}

type Listening = dyn Fn(&Event) + Send + Sync;
/// Receives events until dropped.
pub(crate) type Listener = Arc<Listening>;

/// The RTCP state and the peer's address.
#[repr(C)]
pub(crate) struct Rtcp {
    peers: Option<PeerLatch>,
    /// The configured destination; overrides the learned one.
    destination: Option<SocketAddr>,
    rtcp_destination: Option<SocketAddr>,
    mux: bool,
    /// No RTCP goes out.
    silent: bool,
    /// Our SSRC may still change to that of a sink's packets: it has not been sent yet.
    ssrc_is_open: bool,
    /// Packets dropped because they came from another address than the peer's.
    pub(crate) strangers: u64,
    pub(crate) session: Session,
}

/// Sent packets, for the next sender report.
#[derive(Debug, Clone, Copy)]
struct Sent {
    ssrc: Ssrc,
    packets: u32,
    octets: u64,
    last_time: RtpTime,
    last_ns: u64,
}

#[derive(Default)]
struct Running {
    users: u32,
    agent: Option<(AgentHandle<RtcpAgent>, Place)>,
}

/// The verdict on a received RTP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It belongs to the stream, or its source is on probation.
    Admitted,
    /// It is another sender's, or our own.
    Refused,
}

impl RtpSession {
    /// The session of this name, if elements use it already, or a new one. "": always a new one.
    pub(crate) fn join(name: &str) -> Arc<RtpSession> {
        if name.is_empty() {
            return Arc::new(RtpSession::new(name));
        }
        let mut named = lock(&NAMED);
        if let Some(known) = named.get(name).and_then(Weak::upgrade) {
            return known;
        }
        named.retain(|_, session| session.strong_count() > 0);
        let session = Arc::new(RtpSession::new(name));
        named.insert(name.to_owned(), Arc::downgrade(&session));
        session
    }

    /// A private session.
    pub(crate) fn alone() -> Arc<RtpSession> {
        Arc::new(RtpSession::new(""))
    }

    fn new(name: &str) -> RtpSession {
        let now_ns = clock_now_ns();
        let config = Terms::default().config();
        RtpSession {
            name: name.to_owned(),
            sent: Mutex::new(Sent {
                ssrc: config.ssrc,
                packets: 0,
                octets: 0,
                last_time: RtpTime(0),
                last_ns: 0,
            }),
            rtcp: Mutex::new(Rtcp {
                session: Session::new(now_ns, config),
                peers: None,
                destination: None,
                rtcp_destination: None,
                mux: false,
                silent: false,
                ssrc_is_open: false,
                strangers: 0,
            }),
            peer_version: AtomicU32::new(0),
            sockets: Mutex::new(None),
            agent: Mutex::default(),
            listeners: Mutex::new(Arc::new([])),
            feedback: Mutex::default(),
        }
    }

    /// Joins anew, with counters and sources reset.
    pub(crate) fn rejoin(&self, terms: &Terms) {
        let config = terms.config();
        let mut rtcp = self.rtcp();
        *lock(&self.sent) = Sent {
            ssrc: config.ssrc,
            packets: 0,
            octets: 0,
            last_time: RtpTime(0),
            last_ns: 0,
        };
        rtcp.session = Session::new(clock_now_ns(), config);
        rtcp.strangers = 0;
    }

    /// Writes the next RTCP packet that is due, for senders without the sockets.
    pub(crate) fn poll_rtcp(&self, now_ns: u64, bytes: &mut [u8]) -> Option<usize> {
        let mut rtcp = self.rtcp();
        self.report_sent(&mut rtcp);
        rtcp.session.poll_transmit(now_ns, bytes)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sends events to `listener`, on the context's thread. It must hold no reference to an element.
    #[must_use]
    pub(crate) fn listen(&self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Listener {
        let listener: Listener = Arc::new(listener);
        let mut listeners = lock(&self.listeners);
        let known = listeners.iter().filter(|known| known.strong_count() > 0);
        let more = std::iter::once(Arc::downgrade(&listener));
        *listeners = known.cloned().chain(more).collect();
        listener
    }

    pub(crate) fn rtcp(&self) -> MutexGuard<'_, Rtcp> {
        lock(&self.rtcp)
    }

    /// The sockets, once an element has opened them.
    pub(crate) fn sockets(&self) -> Option<Arc<Sockets>> {
        lock(&self.sockets).clone()
    }

    /// Uses these sockets from now on.
    pub(crate) fn set_sockets(&self, sockets: Arc<Sockets>) {
        self.rtcp().mux = sockets.rtcp.is_none();
        *lock(&self.sockets) = Some(sockets);
    }

    /// Closes the sockets, if these are the ones.
    pub(crate) fn close(&self, sockets: &Arc<Sockets>) {
        let mut current = lock(&self.sockets);
        if current.as_ref().is_some_and(|c| Arc::ptr_eq(c, sockets)) {
            *current = None;
        }
    }

    /// Learns the peer's address from arriving packets.
    pub(crate) fn learn_peer(&self, learns: bool) {
        let mut rtcp = self.rtcp();
        let mux = rtcp.mux;
        rtcp.peers = learns.then(|| PeerLatch::new(LatchConfig::RTP, LatchConfig::RTCP, mux));
        drop(rtcp);
        self.peer_changed();
    }

    /// Sends no RTCP.
    pub(crate) fn set_silent(&self, silent: bool) {
        self.rtcp().silent = silent;
    }

    /// The outgoing packets' SSRC, if known before the first one: early reports bear it, too.
    pub(crate) fn set_ssrc(&self, ssrc: Ssrc) {
        lock(&self.sent).ssrc = ssrc;
        self.rtcp().session.set_ssrc(ssrc);
    }

    /// A sink has joined with an SSRC in its packets: the session uses that, if they come before the first report.
    pub(crate) fn await_ssrc(&self) {
        let mut rtcp = self.rtcp();
        rtcp.ssrc_is_open = !rtcp.session.has_sent();
    }

    /// The SSRC for packets with `ssrc`, from the first one on: an SSRC that the peer has seen, in RTP or RTCP, stays.
    #[cold]
    pub(crate) fn settle_ssrc(&self, ssrc: Ssrc) -> Ssrc {
        let mut rtcp = self.rtcp();
        if std::mem::take(&mut rtcp.ssrc_is_open) {
            rtcp.session.set_ssrc(ssrc);
        }
        rtcp.session.ssrc()
    }

    /// Sends to this address, overriding the learned one; `None`: to the peer.
    pub(crate) fn set_destination(&self, rtp: Option<SocketAddr>, rtcp: Option<SocketAddr>) {
        let mut state = self.rtcp();
        state.destination = rtp;
        state.rtcp_destination = rtcp;
        drop(state);
        self.peer_changed();
    }

    fn peer_changed(&self) {
        self.peer_version.fetch_add(1, Ordering::Release);
    }

    /// Changes when [`RtpSession::peer`] may have.
    #[inline]
    pub(crate) fn peer_version(&self) -> u32 {
        self.peer_version.load(Ordering::Acquire)
    }

    /// The destination of RTP.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.rtcp().rtp_address()
    }

    /// An RTP packet arrived.
    #[inline]
    pub(crate) fn handle_rtp(
        &self,
        arrival_ns: u64,
        from: SocketAddr,
        packet: RtpHeader,
    ) -> Admission {
        let mut rtcp = self.rtcp();
        let verdict = rtcp.session.handle_rtp(arrival_ns, from, packet);
        let Admitting { admission, moved } = rtcp.admit(arrival_ns, from, packet.ssrc, verdict);
        drop(rtcp);
        if moved {
            self.peer_changed();
        }
        if verdict == RtpVerdict::Collision {
            self.wake_agent();
        }
        admission
    }

    /// An RTCP packet arrived; the agent answers if there is something to answer.
    pub(crate) fn handle_rtcp(&self, now_ns: u64, from: SocketAddr, bytes: &[u8]) {
        let mut rtcp = self.rtcp();
        // It is about packets already sent, perhaps with another SSRC than the session has.
        self.report_sent(&mut rtcp);
        if rtcp.session.handle_rtcp(now_ns, from, bytes).is_err() {
            return;
        }
        let Some(ssrc) = sender_of(bytes) else { return };
        if let Some(peers) = &mut rtcp.peers
            && let LatchVerdict::Latched | LatchVerdict::Moved { .. } =
                peers.handle_valid_rtcp(now_ns, from, ssrc)
        {
            drop(rtcp);
            self.peer_changed();
        }
    }

    /// The same for a packet on the RTP port (RFC 5761).
    #[cold]
    pub(crate) fn handle_rtcp_muxed(&self, now_ns: u64, from: SocketAddr, bytes: &[u8]) {
        self.handle_rtcp(now_ns, from, bytes);
        self.wake_agent();
    }

    /// An RTP packet of ours went out.
    #[inline]
    pub(crate) fn count_sent(&self, now_ns: u64, ssrc: Ssrc, time: RtpTime, payload_bytes: usize) {
        let mut sent = lock(&self.sent);
        sent.ssrc = ssrc;
        sent.packets += 1;
        sent.octets += payload_bytes as u64;
        sent.last_time = time;
        sent.last_ns = now_ns;
    }

    /// Tells the RTCP session about the packets sent since the last call.
    fn report_sent(&self, rtcp: &mut Rtcp) {
        let mut sent = lock(&self.sent);
        if sent.packets > 0 {
            if sent.ssrc != rtcp.session.ssrc() {
                rtcp.session.set_ssrc(sent.ssrc);
            }
            rtcp.session.handle_rtp_sent(
                sent.last_ns,
                sent.last_time,
                sent.octets as usize,
                sent.packets,
            );
            (sent.packets, sent.octets) = (0, 0);
        }
    }

    /// Runs the agent there, as long as an element uses it; if it runs already, returns its place.
    pub(crate) fn start(
        self: &Arc<Self>,
        element: &gst::Element,
        place: &Place,
    ) -> Result<(), gst::ErrorMessage> {
        let mut running = lock(&self.agent);
        if running.agent.is_none() {
            running.agent = Some((
                RtcpAgent::start(self.clone(), element, place)?,
                place.clone(),
            ));
        }
        running.users += 1;
        Ok(())
    }

    /// An element leaves the agent. With the last one the agent ends, and says BYE.
    pub(crate) fn stop(&self) {
        let agent = {
            let mut running = lock(&self.agent);
            running.users = running.users.saturating_sub(1);
            match running.users {
                0 => running.agent.take(),
                _ => None,
            }
        };
        if let Some((agent, place)) = agent {
            agent.command(RtcpAgent::leave);
            agent.remove();
            drop(place);
        }
    }

    /// Whether the agent runs.
    pub(crate) fn is_running(&self) -> bool {
        lock(&self.agent).agent.is_some()
    }

    /// The session's counters, as a structure with one of each source in `sources`.
    pub(crate) fn structure(&self) -> gst::Structure {
        let mut rtcp = self.rtcp();
        self.report_sent(&mut rtcp);
        stats::structure(&rtcp)
    }

    fn wake_agent(&self) {
        if let Some((agent, _)) = &lock(&self.agent).agent {
            agent.wake();
        }
    }

    /// Delivers events to the listener. Do not call it with `rtcp` locked.
    pub(crate) fn tell_events(&self) {
        loop {
            let Some(event) = self.rtcp().session.poll_event() else {
                return;
            };
            let listeners = lock(&self.listeners).clone();
            for listener in listeners.iter().filter_map(Weak::upgrade) {
                listener(&event);
            }
        }
    }
}

/// Settings for joining a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct Terms {
    /// `None`: this process's.
    pub(crate) cname: Option<String>,
    /// Bandwidth of the media, bits/s; `None`: that of a call.
    pub(crate) bandwidth_bps: Option<u64>,
    /// Reports more often where the bandwidth allows it (RFC 3550, section 6.2).
    pub(crate) reduced_minimum: bool,
}

impl Terms {
    fn config(&self) -> Config {
        let own = cname();
        let cname = self.cname.as_deref().unwrap_or(&own);
        let mut config = Config::call(Ssrc(glib::random_int()), cname, CLOCK_RATE_HZ, seed());
        config.ntp_at_zero = ntp_at_zero();
        if let Some(bandwidth_bps) = self.bandwidth_bps {
            config.session_bandwidth_bps = bandwidth_bps;
        }
        if self.reduced_minimum {
            config.minimum_interval = MinimumInterval::Reduced;
        }
        config
    }
}

struct Admitting {
    admission: Admission,
    moved: bool,
}

impl Rtcp {
    fn admit(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        ssrc: Ssrc,
        verdict: RtpVerdict,
    ) -> Admitting {
        let mut moved = false;
        let is_ours = match verdict {
            RtpVerdict::Valid | RtpVerdict::Restarted => match &mut self.peers {
                None => true,
                Some(peers) => match peers.rtp.handle_valid(now_ns, from, ssrc) {
                    LatchVerdict::Peer => true,
                    LatchVerdict::Latched | LatchVerdict::Moved { .. } => {
                        moved = true;
                        true
                    }
                    LatchVerdict::Stranger => false,
                },
            },
            // Not valid yet: accepted from the peer's address, if that is known.
            RtpVerdict::Probation | RtpVerdict::OutOfRange => self
                .peers
                .as_ref()
                .and_then(|peers| peers.rtp.address())
                .is_none_or(|address| address == from),
            RtpVerdict::Conflict | RtpVerdict::Collision | RtpVerdict::Loop => false,
        };
        if !is_ours {
            self.strangers += 1;
        }
        Admitting {
            admission: if is_ours {
                Admission::Admitted
            } else {
                Admission::Refused
            },
            moved,
        }
    }

    /// Whether RTCP may be sent yet. While the SSRC is open, a report block is needed first; sending then fixes the
    /// SSRC.
    fn may_report(&mut self) -> bool {
        if self.ssrc_is_open && self.session.current_ssrc().is_some() {
            self.ssrc_is_open = false;
        }
        !self.ssrc_is_open
    }

    /// Whether packets of this source have arrived.
    fn knows(&self, ssrc: Ssrc) -> bool {
        self.session.current_ssrc() == Some(ssrc)
            || self.session.sources().any(|source| source.ssrc == ssrc)
    }

    fn rtp_address(&self) -> Option<SocketAddr> {
        self.destination
            .or_else(|| self.peers.as_ref().and_then(|peers| peers.rtp.address()))
    }

    fn rtcp_address(&self) -> Option<SocketAddr> {
        if self.silent {
            return None;
        }
        if self.destination.is_some() {
            return self.rtcp_destination;
        }
        self.peers.as_ref().and_then(PeerLatch::rtcp_address)
    }
}

/// The sender's SSRC of a valid RTCP packet: that of its first report (RFC 3550, section 6.4).
pub(crate) fn sender_of(bytes: &[u8]) -> Option<Ssrc> {
    let bytes = bytes.get(4..8)?.try_into().ok()?;
    Some(Ssrc(u32::from_be_bytes(bytes)))
}

/// The same for all sessions of this process, and unique to it (RFC 7022, section 4.2: 96 random bits, in base 64; ours
/// are in base 16).
fn cname() -> String {
    static CNAME: LazyLock<String> = LazyLock::new(|| {
        (0..3)
            .map(|_| format!("{:08x}", glib::random_int()))
            .collect()
    });
    CNAME.clone()
}

pub(crate) fn seed() -> u64 {
    u64::from(glib::random_int()) << 32 | u64::from(glib::random_int())
}

/// The wall clock when the monotonic clock was 0.
fn ntp_at_zero() -> NtpTime {
    let since_1970_ns = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64);
    NtpTime::at_unix_ns(since_1970_ns.saturating_sub(clock_now_ns()))
}

/// A buffer's sender address, if the receiver attached it.
pub(crate) fn sender_address(buffer: &gst::BufferRef) -> Option<SocketAddr> {
    let meta = buffer.meta::<gst_net::NetAddressMeta>()?;
    let address = meta.addr().downcast::<gio::InetSocketAddress>().ok()?;
    Some(SocketAddr::new(address.address().into(), address.port()))
}

/// The kernel's address, as the pure parts use it.
#[inline]
pub(crate) fn address_of(raw: &RawAddr) -> SocketAddr {
    // A datagram socket always gives the sender; otherwise all of them would be the same stranger.
    raw.to_socket_addr()
        .unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)))
}

/// Of telephone audio; received payload types have their own.
const CLOCK_RATE_HZ: u32 = 8000;
const _: () = assert!(NS_PER_S == 1_000_000_000);

static NAMED: LazyLock<Mutex<HashMap<String, Weak<RtpSession>>>> = LazyLock::new(Mutex::default);
