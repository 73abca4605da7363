//! Properties, pad and states of `ts-rtpsink`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use threadbare_rtp::id::Ssrc;
use threadbare_rtp::leg::Destination;
use threadbare_rtp::session::Event;

use super::sender::Sender;
use crate::kit::context::{ContextSettings, Place};
use crate::kit::lock;
use crate::kit::prefetch::{self, ElementMemory};
use crate::kit::resolve::{resolve, resolve_later};
use crate::kit::sink::{self, LiveSyncProperties, Sink, SinkElement};
use crate::kit::socket::{self, MulticastSettings, SocketError, format_host_port, split_host_port};
use crate::kit::stats::StatsProperty;
use crate::rtp::playout::clock_rate_of;
use crate::rtp::session::{
    FeedbackSettings, Listener, Readers, RtpSession, SocketSettings, Sockets,
};
use crate::rtp::upstream;

#[derive(Debug, Clone)]
struct Settings {
    host: String,
    port: i32,
    rtcp_port: i32,
    rtcp_mux: bool,
    bind_address: String,
    bind_port: i32,
    session: String,
    cname: Option<String>,
    /// SSRC to use. `None` means that of the packets or that of the session's reports, whichever is sent first.
    ssrc: Option<u32>,
    qos_dscp: i32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            host: String::new(),
            port: PORT_DEFAULT,
            rtcp_port: -1,
            rtcp_mux: false,
            bind_address: "0.0.0.0".into(),
            bind_port: 0,
            session: String::new(),
            cname: None,
            ssrc: None,
            qos_dscp: -1,
        }
    }
}

impl Settings {
    fn rtp_port(&self) -> u16 {
        u16::try_from(self.port).unwrap_or(0)
    }

    /// Returns the destination with the RTP address `rtp`, and the RTCP address that belongs to it.
    fn destination(&self, rtp: SocketAddr) -> Destination {
        let rtcp = match u16::try_from(self.rtcp_port) {
            _ if self.rtcp_mux => Some(rtp.port()),
            Ok(port) => Some(port),
            Err(_) => rtp.port().checked_add(1),
        };
        Destination::Fixed {
            rtp,
            rtcp: rtcp.map(|port| SocketAddr::new(rtp.ip(), port)),
        }
    }

    fn sends_rtcp(&self) -> bool {
        self.rtcp_mux || self.rtcp_port != 0
    }

    fn has_destination_of(&self, other: &Settings) -> bool {
        let destination = |s: &Settings| (s.host.clone(), s.port, s.rtcp_port, s.rtcp_mux);
        destination(self) == destination(other)
    }
}

const PORT_DEFAULT: i32 = 5004;
/// Value for the SSRC of the packets; the same number as in the stock payloaders.
const SSRC_OF_PACKETS: u32 = u32::MAX;

#[derive(Properties)]
#[properties(wrapper_type = super::RtpSink)]
pub struct RtpSink {
    #[property(name = "host", nick = "Host", blurb = "Host to send to; empty: the address from which the ts-rtpsrc of the session receives packets (symmetric RTP)", type = String, get = |s: &Self| s.settings().host.clone(), set = |s: &Self, v: Option<String>| s.change_destination(|settings| settings.host = v.unwrap_or_default()), default = "")]
    #[property(name = "port", nick = "Port", blurb = "RTP port to send to", type = i32, get = |s: &Self| s.settings().port, set = |s: &Self, v| s.change_destination(|settings| settings.port = v), minimum = 1, maximum = 65_535, default = PORT_DEFAULT)]
    #[property(name = "rtcp-port", nick = "RTCP port", blurb = "RTCP port to send to, -1: the RTP port plus one, 0: none", type = i32, get = |s: &Self| s.settings().rtcp_port, set = |s: &Self, v| s.change_destination(|settings| settings.rtcp_port = v), minimum = -1, maximum = 65_535, default = -1)]
    #[property(name = "rtcp-mux", nick = "RTCP mux", blurb = "Use the RTP port for RTCP, too (RFC 5761)", type = bool, get = |s: &Self| s.settings().rtcp_mux, set = |s: &Self, v| s.change_destination(|settings| settings.rtcp_mux = v), default = false)]
    #[property(name = "bind-address", nick = "Bind address", blurb = "Address to send from; it has no effect if the session has a ts-rtpsrc", type = String, get = |s: &Self| s.settings().bind_address.clone(), set = |s: &Self, v: Option<String>| s.settings().bind_address = v.unwrap_or_else(|| "0.0.0.0".into()), default = "0.0.0.0")]
    #[property(name = "bind-port", nick = "Bind port", blurb = "RTP port to send from; 0: any free port. It has no effect if the session has a ts-rtpsrc", type = i32, get = |s: &Self| s.settings().bind_port, set = |s: &Self, v| s.settings().bind_port = v, minimum = 0, maximum = 65_535, default = 0)]
    #[property(name = "session", nick = "Session", blurb = "Name of the session. The element uses the sockets and the RTCP session of the ts-rtpsrc with the same name; empty: it opens its own sockets", type = String, get = |s: &Self| s.settings().session.clone(), set = |s: &Self, v: Option<String>| s.settings().session = v.unwrap_or_default(), default = "")]
    #[property(name = "ssrc", nick = "SSRC", blurb = "SSRC of sent packets; 4294967295: the SSRC of the incoming packets, or the one that RTCP has already reported", type = u32, get = |s: &Self| s.property_ssrc(), set = |s: &Self, v| s.set_property_ssrc(v), default = SSRC_OF_PACKETS)]
    #[property(name = "cname", nick = "CNAME", blurb = "Canonical name in RTCP; NULL: a random one, the same for all sessions of the process (RFC 7022)", type = Option<String>, get = |s: &Self| s.settings().cname.clone(), set = |s: &Self, v| s.settings().cname = v)]
    #[property(name = "qos-dscp", nick = "QoS DSCP", blurb = "Differentiated Services code point of sent packets, -1: the system's default", type = i32, get = |s: &Self| s.settings().qos_dscp, set = |s: &Self, v| s.settings().qos_dscp = v, minimum = -1, maximum = 63, default = -1)]
    settings: Mutex<Settings>,
    context: Mutex<ContextSettings>,
    feedback: Mutex<FeedbackSettings>,
    stats: Mutex<StatsProperty>,
    sync: Mutex<LiveSyncProperties>,
    /// The SSRC to write into packets, or [`NO_SSRC`].
    ssrc: Arc<AtomicU64>,
    /// Whether the sender has failed to send, so that the failure must be reported.
    has_news: Arc<AtomicBool>,
    /// The SSRC that is replaced in packets; [`NO_SSRC`]: any.
    replaced: AtomicU64,
    /// Whether the session and the packets have the same SSRC.
    is_settled: AtomicBool,
    memory: ElementMemory,
    sink_pad: gst::Pad,
    sink: OnceLock<Sink<Sender>>,
    opened: Mutex<Option<Opened>>,
}

/// State from READY on.
struct Opened {
    session: Arc<RtpSession>,
    /// The sink's own sockets, if no source shares the session.
    sockets: Option<Arc<Sockets>>,
    is_started: bool,
    _listener: Listener,
}

/// A value above any SSRC.
const NO_SSRC: u64 = 1 << 32;

impl RtpSink {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    fn property_ssrc(&self) -> u32 {
        u32::try_from(self.ssrc.load(Ordering::Relaxed)).unwrap_or(SSRC_OF_PACKETS)
    }

    fn set_property_ssrc(&self, ssrc: u32) {
        let ssrc = (ssrc != SSRC_OF_PACKETS).then_some(ssrc);
        self.settings().ssrc = ssrc;
        self.replaced.store(NO_SSRC, Ordering::Relaxed);
        self.is_settled.store(ssrc.is_some(), Ordering::Relaxed);
        let session = lock(&self.opened).as_ref().map(|o| o.session.clone());
        if let (Some(ssrc), Some(session)) = (ssrc, session) {
            session.set_ssrc(Ssrc(ssrc));
        }
        self.ssrc
            .store(ssrc.map_or(NO_SSRC, u64::from), Ordering::Relaxed);
    }

    /// Called before the first packet. Either the packet gets the SSRC of the reports, or the session adopts the SSRC of the
    /// packet.
    #[cold]
    fn settle_ssrc(&self, buffer: &gst::BufferRef) {
        self.is_settled.store(true, Ordering::Relaxed);
        let mut ssrc = [0; 4];
        let session = lock(&self.opened).as_ref().map(|o| o.session.clone());
        if buffer.copy_to_slice(SSRC_AT, &mut ssrc).is_err() {
            return;
        }
        if let Some(session) = session {
            let ours = Ssrc(u32::from_be_bytes(ssrc));
            let settled = session.settle_ssrc(ours);
            if settled != ours {
                self.replaced.store(ours.0.into(), Ordering::Relaxed);
                self.ssrc.store(settled.0.into(), Ordering::Relaxed);
            }
        }
    }

    /// Changes a setting that also takes effect while playing. Another thread looks up the name. If several settings overlap, the
    /// latest one applies.
    fn change_destination(&self, change: impl FnOnce(&mut Settings)) {
        let settings = {
            let mut settings = self.settings();
            change(&mut settings);
            settings.clone()
        };
        let session = lock(&self.opened).as_ref().map(|o| o.session.clone());
        let Some(session) = session else { return };
        if settings.host.is_empty() {
            return session.set_destination(Destination::Peer, true);
        }
        let obj = self.obj().downgrade();
        let host = settings.host.clone();
        resolve_later(&host, settings.rtp_port(), move |answer| {
            let Some(obj) = obj.upgrade() else { return };
            let imp = obj.imp();
            if !imp.settings().has_destination_of(&settings) {
                return;
            }
            match answer {
                Ok(rtp) => {
                    session.set_destination(settings.destination(rtp), settings.sends_rtcp());
                }
                Err(error) => {
                    gst::element_imp_warning!(imp, gst::ResourceError::Settings, ["{error}"]);
                }
            }
        });
    }

    /// Sets the destination at the start, which fails if the host has no address.
    fn set_destination(&self, session: &RtpSession) -> Result<(), SocketError> {
        let settings = self.settings().clone();
        if settings.host.is_empty() {
            session.set_destination(Destination::Peer, true);
            return Ok(());
        }
        let rtp = resolve(&settings.host, settings.rtp_port())?;
        session.set_destination(settings.destination(rtp), settings.sends_rtcp());
        Ok(())
    }

    fn start(
        &self,
        opened: &mut Opened,
        announced: Option<Place>,
    ) -> Result<(), gst::ErrorMessage> {
        if opened.is_started {
            return Ok(());
        }
        let place = match announced {
            Some(place) => place,
            None => lock(&self.context).place(self.obj().upcast_ref())?,
        };
        opened.session.start(self.obj().upcast_ref(), &place)?;
        opened.is_started = true;
        Ok(())
    }

    /// Starts the agent at the place that the branch announces, if any.
    fn start_by(&self, announced: Option<Place>) {
        let mut opened = lock(&self.opened);
        if let Some(opened) = opened.as_mut()
            && let Err(error) = self.start(opened, announced)
        {
            self.post_error_message(error);
        }
    }

    /// Whether a packet's SSRC is replaced.
    fn is_replaced(&self, buffer: &gst::BufferRef) -> bool {
        let replaced = self.replaced.load(Ordering::Relaxed);
        let mut ssrc = [0; 4];
        replaced == NO_SSRC
            || buffer.copy_to_slice(SSRC_AT, &mut ssrc).is_ok()
                && u64::from(u32::from_be_bytes(ssrc)) == replaced
    }

    #[cold]
    fn tell_failure(&self) {
        self.has_news.store(false, Ordering::Relaxed);
        if let Some((to, error)) = self.sink().with_renderer(Sender::take_failure) {
            gst::element_imp_warning!(
                self,
                gst::ResourceError::Write,
                ["cannot send to {to}: {error}"]
            );
        }
    }

    fn structure(&self) -> gst::Structure {
        let (rendered, dropped) = self.sink().counts();
        let stats = gst::Structure::builder("application/x-ts-rtpsink-stats")
            .field("rendered", rendered)
            .field("dropped", dropped);
        let stats = self.sink().with_renderer(|sender| {
            stats
                .field("packets-sent", sender.packets)
                .field("bytes-sent", sender.bytes)
                .field("send-errors", sender.errors)
                .field("unsent", sender.unsent)
                .field("malformed", sender.malformed)
        });
        match lock(&self.opened).as_ref() {
            Some(opened) => stats.field("rtcp", opened.session.structure()).build(),
            None => stats.build(),
        }
    }
}

/// Returns the local address, in the destination's address family.
fn own_address(settings: &Settings) -> Result<String, SocketError> {
    let is_default = settings.bind_address == Settings::default().bind_address;
    if is_default && resolve(&settings.host, 0)?.is_ipv6() {
        return Ok("::".into());
    }
    Ok(settings.bind_address.clone())
}

/// Offset of the SSRC in a packet (RFC 3550, section 5.1).
const SSRC_AT: usize = 8;

impl SinkElement for RtpSink {
    type Renderer = Sender;

    fn sink(&self) -> &Sink<Sender> {
        self.sink.get_or_init(|| {
            Sink::new(
                self.obj().upcast_ref(),
                Sender::new(self.has_news.clone()),
                lock(&self.sync).clone().into(),
            )
        })
    }

    /// Opens the session. If the session has a source, the source changes its state later than the sink, and then finds the
    /// session.
    fn open(&self) -> Result<(), gst::ErrorMessage> {
        lock(&self.context).check()?;
        let settings = self.settings().clone();
        let session = RtpSession::join(&settings.session)?;
        if let Some(cname) = &settings.cname {
            session.set_cname(cname);
        }
        self.set_destination(&session)?;
        let (sink_pad, ssrc) = (self.sink_pad.downgrade(), self.ssrc.clone());
        let listener = session.listen(move |event| match *event {
            // The SSRC may change only if this sink writes it into packets.
            Event::Collision { old, new } if ssrc.load(Ordering::Relaxed) == u64::from(old.0) => {
                ssrc.store(new.0.into(), Ordering::Relaxed);
            }
            _ => {
                if let Some(pad) = sink_pad.upgrade() {
                    upstream::tell(&pad, event);
                }
            }
        });
        session.agree(self.obj().upcast_ref(), *lock(&self.feedback));
        *lock(&self.opened) = Some(Opened {
            session,
            sockets: None,
            is_started: false,
            _listener: listener,
        });
        Ok(())
    }

    /// Activates the sink. By now, the session's source, if any, has its sockets.
    fn activate(&self) -> Result<(), gst::ErrorMessage> {
        let settings = self.settings().clone();
        let mut opened = lock(&self.opened);
        let opened = opened.as_mut().ok_or_else(|| {
            gst::error_msg!(gst::CoreError::StateChange, ["the element has no session"])
        })?;
        let session = opened.session.clone();
        let ssrc = settings.ssrc.map_or(NO_SSRC, u64::from);
        self.ssrc.store(ssrc, Ordering::Relaxed);
        self.replaced.store(NO_SSRC, Ordering::Relaxed);
        self.is_settled
            .store(settings.ssrc.is_some(), Ordering::Relaxed);
        match settings.ssrc {
            Some(ssrc) => session.set_ssrc(Ssrc(ssrc)),
            None => session.await_ssrc(),
        }
        let sockets = match session.sockets() {
            Some(sockets) => sockets,
            None if settings.host.is_empty() => {
                return Err(gst::error_msg!(
                    gst::ResourceError::Settings,
                    [
                        "the destination is unknown, because host is empty and session '{}' has no ts-rtpsrc that is READY",
                        settings.session
                    ]
                ));
            }
            None => {
                let asked = SocketSettings {
                    address: own_address(&settings)?,
                    port: u16::try_from(settings.bind_port).unwrap_or(0),
                    rtcp_port: None,
                    mux: settings.rtcp_mux,
                    reuse: false,
                    buffer_bytes: 0,
                    multicast: MulticastSettings::default(),
                };
                let sockets = Arc::new(Sockets::open(&asked, Readers::Agent)?);
                session.set_sockets(sockets.clone());
                opened.sockets = Some(sockets.clone());
                sockets
            }
        };
        socket::set_dscp(sockets.rtp.socket(), settings.qos_dscp)?;
        self.sink()
            .with_renderer(|sender| sender.open(session.clone(), Some(sockets.clone())));
        let own = [
            prefetch::span(&self.ssrc),
            prefetch::span(&*self.ssrc),
            prefetch::span(&self.sink),
            prefetch::span(&sockets.rtp),
        ];
        self.memory.set(own.into_iter().chain(self.sink().spans()));
        // If a source runs, the agent is already at the source's place. Otherwise the agent starts on a named context, or else at
        // the place that the branch will announce.
        if session.is_running() || lock(&self.context).is_named() {
            self.start(opened, None)?;
        }
        Ok(())
    }

    fn deactivate(&self) {
        let closing = lock(&self.opened).as_mut().map(|opened| {
            (
                opened.session.clone(),
                opened.sockets.take(),
                std::mem::take(&mut opened.is_started),
            )
        });
        if let Some((session, sockets, was_started)) = closing {
            if was_started {
                session.stop();
            }
            self.sink().with_renderer(Sender::close);
            if let Some(sockets) = sockets {
                session.close(&sockets);
            }
        }
    }

    fn close(&self) {
        *lock(&self.opened) = None;
    }

    fn handle_buffer(&self, mut buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        if !self.is_settled.load(Ordering::Relaxed) {
            self.settle_ssrc(&buffer);
        }
        let ssrc = self.ssrc.load(Ordering::Relaxed);
        if let Ok(ssrc) = u32::try_from(ssrc)
            && self.is_replaced(&buffer)
        {
            let _ = buffer
                .make_mut()
                .copy_from_slice(SSRC_AT, &ssrc.to_be_bytes());
        }
        let result = self.sink().chain(buffer);
        if self.has_news.load(Ordering::Relaxed) {
            self.tell_failure();
        }
        result
    }

    fn handle_list(&self, list: gst::BufferList) -> Result<gst::FlowSuccess, gst::FlowError> {
        for buffer in list.iter_owned() {
            self.handle_buffer(buffer)?;
        }
        Ok(gst::FlowSuccess::Ok)
    }

    fn notice_event(&self, event: &gst::Event) {
        if let gst::EventView::Caps(caps) = event.view()
            && let Some(clock_rate_hz) = clock_rate_of(&caps.caps_owned())
            && let Some(opened) = lock(&self.opened).as_ref()
        {
            // The reports need the clock rate, because they relate timestamps to the wall clock.
            opened.session.set_sent_clock_rate(clock_rate_hz);
        }
        if let Some(place) = Place::of_branch(event) {
            self.start_by(Some(place));
        } else if event.type_() == gst::EventType::Segment {
            self.start_by(None);
        }
    }
}

#[glib::object_subclass]
impl ObjectSubclass for RtpSink {
    const NAME: &'static str = "ThreadbareRtpSink";
    type Type = super::RtpSink;
    type ParentType = gst::Element;
    type Interfaces = (gst::URIHandler,);

    fn with_class(klass: &Self::Class) -> Self {
        let sink_pad = sink::sink_pad::<RtpSink>(&crate::kit::template(klass, "sink"));
        RtpSink {
            settings: Mutex::default(),
            context: Mutex::default(),
            feedback: Mutex::default(),
            stats: Mutex::default(),
            sync: Mutex::default(),
            ssrc: Arc::new(AtomicU64::new(NO_SSRC)),
            has_news: Arc::default(),
            replaced: AtomicU64::new(NO_SSRC),
            is_settled: AtomicBool::new(false),
            memory: ElementMemory::default(),
            sink_pad,
            sink: OnceLock::new(),
            opened: Mutex::new(None),
        }
    }
}

impl ObjectImpl for RtpSink {
    crate::kit::properties_with_groups!(context, feedback, sync, stats);

    fn constructed(&self) {
        self.parent_constructed();
        let obj = self.obj();
        crate::kit::add_timed_pad(&*obj, &self.sink_pad);
        self.memory.attach(&*obj);
        *lock(&self.stats) = StatsProperty::of(&*obj, |obj| obj.imp().structure());
    }
}

impl GstObjectImpl for RtpSink {}

impl ElementImpl for RtpSink {
    crate::kit::element_class!(
        "Thread-sharing RTP sink",
        "Sink/Network/RTP",
        "Sends RTP and RTCP of a session, also from the sockets of a ts-rtpsrc (symmetric RTP)";
        "sink": Sink Always gst::Caps::new_empty_simple("application/x-rtp")
    );

    crate::sink_life!();
}

impl URIHandlerImpl for RtpSink {
    const URI_TYPE: gst::URIType = gst::URIType::Sink;

    fn protocols() -> &'static [&'static str] {
        &["rtp"]
    }

    fn uri(&self) -> Option<String> {
        let settings = self.settings();
        Some(format!(
            "rtp://{}",
            format_host_port(&settings.host, settings.port)
        ))
    }

    fn set_uri(&self, uri: &str) -> Result<(), glib::Error> {
        let parsed = uri
            .strip_prefix("rtp://")
            .and_then(|rest| split_host_port(rest.trim_end_matches('/')));
        let Some((host, port)) = parsed else {
            return Err(glib::Error::new(
                gst::URIError::BadUri,
                &format!("'{uri}': expected rtp://host:port"),
            ));
        };
        self.change_destination(|settings| {
            settings.host = host.into();
            settings.port = port.map_or(PORT_DEFAULT, i32::from);
        });
        Ok(())
    }
}
