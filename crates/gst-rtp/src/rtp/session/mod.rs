//! One RTP session on shared threads: the common part of a `ts-rtpsrc` and a `ts-rtpsink`.
//!
//! It has a pair of sockets and a [`Leg`], which handles accepted senders, queued packets, the RTCP of both directions and the
//! destinations. Elements with the same `session` property share one session. An element without a name has a separate one. An
//! agent on a context's thread sends and receives the RTCP ([`agent`]); the elements handle RTP themselves.
//!
//! | field | thread |
//! |---|---|
//! | `party` | any thread, under its lock; only for computation, never held across a push, a callback or a system call |
//! | `peer_version` | written with `party` locked, read by the thread that sends |
//! | `sockets`, `agent`, `feedback` | threads that change the element's state |

mod agent;
mod buffers;
mod feedback;
mod sockets;
pub(crate) mod stats;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};

use gst::glib;
use threadbare_rtp::id::{RtpTime, SeqNum, Ssrc};
use threadbare_rtp::jitter;
use threadbare_rtp::leg::{
    AdmissionConfig, Destination, Leg, LegConfig, LegError, LegEvent, PayloadMap, Receiving,
};
use threadbare_rtp::session::{Event, Profile};
use threadbare_runtime::{AgentHandle, clock_now_ns};

use super::identity::{cname, ntp_at_zero, seed};
use super::payloads;
use crate::kit::context::Place;
use crate::kit::lock;
pub(crate) use agent::PACKET_BYTES_MAX;
use agent::RtcpAgent;
pub(crate) use buffers::{ArrivingBuffer, Buffers, QueuedBuffer};
pub(crate) use feedback::FeedbackSettings;
pub(crate) use sockets::{Readers, SocketSettings, Sockets};

/// The shared state of one session's elements. The layout is fixed: fields used for each packet come first.
#[repr(C)]
pub(crate) struct RtpSession {
    peer_version: AtomicU32,
    party: Mutex<Party>,
    name: String,
    sockets: Mutex<Option<Arc<Sockets>>>,
    agent: Mutex<Running>,
    /// Receives the session's events.
    listeners: Mutex<Arc<[Weak<Listening>]>>,
    /// The elements' agreed settings.
    feedback: Mutex<FeedbackSettings>,
}

type Listening = dyn Fn(&Event) + Send + Sync;
/// Keeps a listener registered until this value is dropped.
pub(crate) type Listener = Arc<Listening>;

/// The other party, and the settings for joining again after a BYE.
#[repr(C)]
pub(crate) struct Party {
    pub(crate) leg: Leg<Buffers>,
    config: LegConfig,
    reduced_size: bool,
    /// Whether RTCP is disabled, by the source's properties and by the sink's.
    is_silent: bool,
    is_sink_silent: bool,
    /// SSRC set by an element's property.
    fixed_ssrc: Option<Ssrc>,
    /// Clock rate of the sink's caps, which may arrive before the session is joined.
    sent_rate_hz: Option<u32>,
    /// Whether the session waits for the SSRC of a sink's packets, which is unknown before the first one.
    awaits_ssrc: bool,
    /// Whether our SSRC may still change to that of the packets, because our SSRC has not been sent yet.
    ssrc_is_open: bool,
}

#[derive(Default)]
struct Running {
    users: u32,
    agent: Option<(AgentHandle<RtcpAgent>, Place)>,
}

impl RtpSession {
    /// Returns the session of this name if elements already use it, otherwise a new one. The name "" always gives a new one.
    pub(crate) fn join(name: &str) -> Result<Arc<RtpSession>, gst::ErrorMessage> {
        if name.is_empty() {
            return Ok(Arc::new(RtpSession::new(name)?));
        }
        let mut named = lock(&NAMED);
        if let Some(known) = named.get(name).and_then(Weak::upgrade) {
            return Ok(known);
        }
        named.retain(|_, session| session.strong_count() > 0);
        let session = Arc::new(RtpSession::new(name)?);
        named.insert(name.to_owned(), Arc::downgrade(&session));
        Ok(session)
    }

    fn new(name: &str) -> Result<RtpSession, gst::ErrorMessage> {
        Ok(RtpSession {
            name: name.to_owned(),
            party: Mutex::new(Party::new().map_err(refused)?),
            peer_version: AtomicU32::new(0),
            sockets: Mutex::new(None),
            agent: Mutex::default(),
            listeners: Mutex::new(Arc::new([])),
            feedback: Mutex::default(),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Calls `listener` with events, on the context's thread. `listener` must not hold a reference to an element.
    #[must_use]
    pub(crate) fn listen(&self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Listener {
        let listener: Listener = Arc::new(listener);
        let mut listeners = lock(&self.listeners);
        let known = listeners.iter().filter(|known| known.strong_count() > 0);
        let more = std::iter::once(Arc::downgrade(&listener));
        *listeners = known.cloned().chain(more).collect();
        listener
    }

    pub(crate) fn party(&self) -> MutexGuard<'_, Party> {
        lock(&self.party)
    }

    /// Returns the sockets, once an element has opened them.
    pub(crate) fn sockets(&self) -> Option<Arc<Sockets>> {
        lock(&self.sockets).clone()
    }

    /// Uses these sockets from now on.
    pub(crate) fn set_sockets(&self, sockets: Arc<Sockets>) {
        let mut party = self.party();
        party.config.mux = sockets.rtcp.is_none();
        let mux = party.config.mux;
        party.leg.set_mux(mux);
        drop(party);
        *lock(&self.sockets) = Some(sockets);
    }

    /// Closes the sockets if they are the current ones.
    pub(crate) fn close(&self, sockets: &Arc<Sockets>) {
        let mut current = lock(&self.sockets);
        if current.as_ref().is_some_and(|c| Arc::ptr_eq(c, sockets)) {
            *current = None;
        }
    }

    /// Receives with these settings from now on, as if nothing had been received before.
    pub(crate) fn receive(&self, receiving: Receiving) -> Result<(), gst::ErrorMessage> {
        let mut party = self.party();
        party.leg.receive_anew(receiving.clone()).map_err(refused)?;
        party.config.payloads = receiving.payloads;
        party.config.jitter = receiving.jitter;
        party.config.admission = receiving.admission;
        drop(party);
        self.peer_changed();
        Ok(())
    }

    /// Stops or resumes RTCP.
    pub(crate) fn set_silent(&self, is_silent: bool) {
        let mut party = self.party();
        party.is_silent = is_silent;
        party.silence();
    }

    /// Changes the canonical name.
    pub(crate) fn set_cname(&self, cname: &str) {
        let mut party = self.party();
        party.config.cname = cname.into();
        party.leg.set_cname(cname);
    }

    /// Sets the SSRC of outgoing packets before the first one, so that early reports use it, too.
    pub(crate) fn set_ssrc(&self, ssrc: Ssrc) {
        let mut party = self.party();
        party.fixed_ssrc = Some(ssrc);
        (party.awaits_ssrc, party.ssrc_is_open) = (false, false);
        party.leg.set_ssrc(ssrc);
    }

    /// Notes that a sink has joined whose packets have an SSRC. The session uses that SSRC if a packet is sent before the first
    /// report.
    pub(crate) fn await_ssrc(&self) {
        let mut party = self.party();
        party.fixed_ssrc = None;
        party.awaits_ssrc = true;
        party.ssrc_is_open = !party.leg.has_sent();
    }

    /// Returns the SSRC for packets that have `ssrc`. It is fixed from the first packet on. If the peer has already seen another
    /// SSRC, in RTP or RTCP, that one stays.
    #[cold]
    pub(crate) fn settle_ssrc(&self, ssrc: Ssrc) -> Ssrc {
        let mut party = self.party();
        if std::mem::take(&mut party.ssrc_is_open) {
            party.leg.set_ssrc(ssrc);
        }
        party.leg.ssrc()
    }

    /// Sets the clock rate of sent packets: the units of their timestamps per second.
    pub(crate) fn set_sent_clock_rate(&self, clock_rate_hz: u32) {
        let mut party = self.party();
        party.sent_rate_hz = Some(clock_rate_hz);
        party.leg.set_sent_clock_rate(clock_rate_hz);
    }

    /// Sends to this destination from now on. With `Peer`, packets go to the address that the peer sends from. `rtcp` says
    /// whether RTCP is sent, too.
    pub(crate) fn set_destination(&self, destination: Destination, rtcp: bool) {
        let mut party = self.party();
        party.config.destination = destination;
        party.is_sink_silent = !rtcp;
        party.silence();
        party.leg.set_destination(destination);
        drop(party);
        self.peer_changed();
    }

    /// Notes that the leg's destination has changed.
    pub(crate) fn peer_changed(&self) {
        self.peer_version.fetch_add(1, Ordering::Release);
    }

    /// Returns a number that changes when [`RtpSession::peer`] may have changed.
    #[inline]
    pub(crate) fn peer_version(&self) -> u32 {
        self.peer_version.load(Ordering::Acquire)
    }

    /// Returns the destination of RTP.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.party().leg.rtp_to()
    }

    /// Handles an RTCP packet; the agent replies if needed.
    pub(crate) fn handle_rtcp(&self, at_ns: u64, from: SocketAddr, bytes: &[u8]) {
        self.party().leg.handle_rtcp(at_ns, from, bytes);
    }

    /// Acts as [`handle_rtcp`](Self::handle_rtcp), for a packet on the RTP port (RFC 5761).
    #[cold]
    pub(crate) fn handle_rtcp_muxed(&self, at_ns: u64, from: SocketAddr, bytes: &[u8]) {
        self.handle_rtcp(at_ns, from, bytes);
        self.wake_agent();
    }

    /// Notes that we have sent an RTP packet.
    #[inline]
    pub(crate) fn note_sent(&self, now_ns: u64, ssrc: Ssrc, time: RtpTime, payload_bytes: usize) {
        let mut party = self.party();
        party.leg.note_sent(now_ns, ssrc, time, payload_bytes);
    }

    /// Runs the agent at a place while an element uses it. If the agent already runs, returns its place.
    pub(crate) fn start(
        self: &Arc<Self>,
        element: &gst::Element,
        place: &Place,
    ) -> Result<(), gst::ErrorMessage> {
        let mut running = lock(&self.agent);
        if running.agent.is_none() {
            self.party().join_again().map_err(refused)?;
            running.agent = Some((
                RtcpAgent::start(self.clone(), element, place)?,
                place.clone(),
            ));
        }
        running.users += 1;
        Ok(())
    }

    /// Ends an element's use of the agent. When the last element stops using it, the agent sends a BYE and ends.
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

    /// Returns the session's counters, as a structure with one per source in `sources`.
    pub(crate) fn structure(&self) -> gst::Structure {
        let party = self.party();
        let stats = party.leg.stats();
        let refused = stats.refused;
        let strangers =
            refused.not_allowed + refused.strangers + refused.other_sources + refused.own_ssrc;
        let structure = stats::structure(&stats.session, party.leg.sources(), strangers);
        let structure = match party.leg.rtp_to() {
            Some(address) => structure.field("rtp-to", address.to_string()),
            None => structure,
        };
        match party
            .leg
            .rtcp_to()
            .filter(|_| !party.is_silent && !party.is_sink_silent)
        {
            Some(address) => structure.field("rtcp-to", address.to_string()).build(),
            None => structure.build(),
        }
    }

    pub(crate) fn wake_agent(&self) {
        if let Some((agent, _)) = &lock(&self.agent).agent {
            agent.wake();
        }
    }

    /// Delivers events to the listeners. Do not call it with `party` locked.
    pub(crate) fn tell_events(&self) {
        loop {
            let Some(event) = self.party().leg.poll_event() else {
                return;
            };
            let LegEvent::Report(event) = event else {
                continue;
            };
            let listeners = lock(&self.listeners).clone();
            for listener in listeners.iter().filter_map(Weak::upgrade) {
                listener(&event);
            }
        }
    }
}

impl Party {
    fn new() -> Result<Party, LegError> {
        let payloads = payloads::any()?;
        let config = LegConfig {
            ssrc: Ssrc(glib::random_int()),
            // Sinks get packets that already have their sequence numbers.
            first_seq: SeqNum(0),
            cname: cname(),
            seed: seed(),
            ntp_at_zero: ntp_at_zero(),
            payloads,
            takes: None,
            jitter: jitter::Config::new(CLOCK_RATE_HZ, 0),
            admission: AdmissionConfig::default(),
            destination: Destination::Peer,
            mux: false,
            bandwidth_bps: BANDWIDTH_BPS,
            profile: Profile::Avp,
        };
        Ok(Party {
            leg: Leg::with_keeper(clock_now_ns(), config.clone(), Buffers)?,
            config,
            reduced_size: false,
            is_silent: false,
            is_sink_silent: false,
            fixed_ssrc: None,
            sent_rate_hz: None,
            awaits_ssrc: false,
            ssrc_is_open: false,
        })
    }

    /// Joins the session again, with counters and sources reset, because after a BYE the session is another participant.
    fn join_again(&mut self) -> Result<(), LegError> {
        let now_ns = clock_now_ns();
        self.config.ssrc = self.fixed_ssrc.unwrap_or(Ssrc(glib::random_int()));
        self.config.seed = seed();
        self.leg = Leg::with_keeper(now_ns, self.config.clone(), Buffers)?;
        let (profile, reduced_size) = (self.config.profile, self.reduced_size);
        self.leg.set_profile(now_ns, profile, reduced_size);
        self.silence();
        if let Some(clock_rate_hz) = self.sent_rate_hz {
            self.leg.set_sent_clock_rate(clock_rate_hz);
        }
        self.ssrc_is_open = self.awaits_ssrc;
        Ok(())
    }

    fn silence(&mut self) {
        let is_silent = self.is_silent || self.is_sink_silent;
        self.leg.set_silent(is_silent);
    }

    /// Sets the rules for feedback, as both sides agreed.
    fn set_profile(&mut self, profile: Profile, reduced_size: bool) {
        (self.config.profile, self.reduced_size) = (profile, reduced_size);
        self.leg.set_profile(clock_now_ns(), profile, reduced_size);
    }

    /// Sets the payload types that the peer sends from now on.
    pub(crate) fn set_payloads(&mut self, payloads: Arc<PayloadMap>) {
        self.config.payloads = payloads.clone();
        self.leg.set_payloads(payloads.clone(), payloads);
    }

    /// Changes those settings of the jitter buffer that can change at run time.
    pub(crate) fn set_jitter(&mut self, config: jitter::Config) -> Result<(), LegError> {
        self.config.jitter = config;
        self.leg.set_jitter(&config)
    }

    /// Whether RTCP may be sent now. While the SSRC is open, there must be something to report first. When a report is sent, the
    /// SSRC is fixed.
    fn may_report(&mut self) -> bool {
        if self.ssrc_is_open && self.leg.source().is_some() {
            self.ssrc_is_open = false;
        }
        !self.ssrc_is_open
    }
}

fn refused(error: LegError) -> gst::ErrorMessage {
    gst::error_msg!(gst::ResourceError::Settings, ["{error}"])
}

/// Initial clock rate of the session: that of telephone audio. Received payload types have their own rates.
const CLOCK_RATE_HZ: u32 = 8000;
/// Bandwidth of a call.
const BANDWIDTH_BPS: u64 = 80_000;

static NAMED: LazyLock<Mutex<HashMap<String, Weak<RtpSession>>>> = LazyLock::new(Mutex::default);
