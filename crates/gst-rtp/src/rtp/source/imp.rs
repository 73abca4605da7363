//! Properties, pad and states of `ts-rtpsrc`.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use threadbare_rtp::leg::LegError;
use threadbare_runtime::clock_now_ns;

use super::receiver::{Counts, Receiver};
use super::settings::{
    ClockSkew, LATENCY_MS_DEFAULT, LATENCY_MS_MAX, MAX_DROPOUT_MS_DEFAULT, MAX_MISORDER_MS_DEFAULT,
    MTU_DEFAULT, MTU_MAX, PORT_DEFAULT, SSRC_ANY, Settings,
};
use crate::kit::context::ContextSettings;
use crate::kit::lock;
use crate::kit::socket::MulticastSettings;
use crate::kit::source::{self, Driver, SourceElement};
use crate::kit::stats::StatsProperty;
use crate::rtp::playout::Playout;
use crate::rtp::port::{SharedPort, Tenancy};
use crate::rtp::session::{FeedbackSettings, Readers, RtpSession, Sockets};
use crate::rtp::upstream;

#[derive(Properties)]
#[properties(wrapper_type = super::RtpSrc)]
pub struct RtpSrc {
    #[property(name = "address", nick = "Address", blurb = "Address, host name or multicast group to receive on", type = String, get = |s: &Self| s.settings().address.clone(), set = |s: &Self, v: Option<String>| s.settings().address = v.unwrap_or_else(|| "0.0.0.0".into()), default = "0.0.0.0")]
    #[property(name = "port", nick = "Port", blurb = "Port to receive RTP on, 0: any free one (see used-port)", type = i32, get = |s: &Self| s.settings().port, set = |s: &Self, v| s.settings().port = v, minimum = 0, maximum = 65_535, default = PORT_DEFAULT)]
    #[property(name = "rtcp-port", nick = "RTCP port", blurb = "Port for RTCP, -1: the RTP port plus one", type = i32, get = |s: &Self| s.settings().rtcp_port, set = |s: &Self, v| s.settings().rtcp_port = v, minimum = -1, maximum = 65_535, default = -1)]
    #[property(name = "rtcp-mux", nick = "RTCP mux", blurb = "Use the RTP port for RTCP, too (RFC 5761)", type = bool, get = |s: &Self| s.settings().rtcp_mux, set = |s: &Self, v| s.settings().rtcp_mux = v, default = false)]
    #[property(name = "rtcp", nick = "RTCP", blurb = "Send and receive RTCP, also for a ts-rtpsink of the same session; false: open no RTCP socket", type = bool, get = |s: &Self| s.settings().rtcp, set = |s: &Self, v| s.settings().rtcp = v, default = true)]
    #[property(name = "used-port", nick = "Used port", blurb = "RTP port in use, 0 for none", type = i32, get = |s: &Self| s.used_port())]
    #[property(name = "reuse", nick = "Reuse", blurb = "Allow other sockets to use the same ports", type = bool, get = |s: &Self| s.settings().reuse, set = |s: &Self, v| s.settings().reuse = v, default = true)]
    #[property(name = "caps", nick = "Caps", blurb = "Caps of the source pad; NULL: the caps of the static payload type that is received (RFC 3551)", type = Option<gst::Caps>, get = |s: &Self| s.settings().caps.clone(), set = Self::set_caps)]
    #[property(name = "payload-types", nick = "Payload types", blurb = "Payload types to accept, such as 0,8,101; packets of other types are dropped and counted; empty: all", type = String, get = |s: &Self| s.settings().payload_types.to_string(), set = Self::set_payload_types, default = "", mutable_playing)]
    #[property(name = "mtu", nick = "Maximum transmission unit", blurb = "Largest packet expected, bytes; larger packets are dropped and counted", type = u32, get = |s: &Self| s.settings().mtu, set = |s: &Self, v| s.settings().mtu = v, minimum = 12, maximum = MTU_MAX, default = MTU_DEFAULT)]
    #[property(name = "buffer-size", nick = "Buffer size", blurb = "Size of the kernel's receive buffer, bytes; 0: the system's default", type = i32, get = |s: &Self| s.settings().buffer_size, set = |s: &Self, v| s.settings().buffer_size = v, minimum = 0, default = 0)]
    #[property(name = "latency", nick = "Latency", blurb = "Playout delay of the jitter buffer, ms", type = u32, get = |s: &Self| s.settings().latency_ms, set = |s: &Self, v| s.configure(|settings| settings.latency_ms = v), maximum = LATENCY_MS_MAX, default = LATENCY_MS_DEFAULT)]
    #[property(name = "drop-on-latency", nick = "Drop on latency", blurb = "Drop the oldest packets instead of holding more than the latency", type = bool, get = |s: &Self| s.settings().drop_on_latency, set = |s: &Self, v| s.configure(|settings| settings.drop_on_latency = v), default = false)]
    #[property(name = "do-lost", nick = "Do lost", blurb = "Push a GstRTPPacketLost event for packets that miss their deadline", type = bool, get = |s: &Self| s.settings().do_lost, set = |s: &Self, v| s.configure(|settings| settings.do_lost = v), default = true)]
    #[property(name = "do-retransmission", nick = "Do retransmission", blurb = "Request missing packets again (generic NACK, RFC 4585) if they can still arrive in time; needs rtp-profile=avpf", type = bool, get = |s: &Self| s.settings().do_retransmission, set = |s: &Self, v| s.settings().do_retransmission = v, default = false)]
    #[property(name = "clock-skew", nick = "Clock skew", blurb = "Method of following the sender's clock", type = ClockSkew, get = |s: &Self| s.settings().clock_skew, set = |s: &Self, v| s.settings().clock_skew = v, builder(ClockSkew::Window))]
    #[property(name = "adaptive", nick = "Adaptive", blurb = "Adapt the playout delay to the network jitter, up to latency", type = bool, get = |s: &Self| s.settings().adaptive, set = |s: &Self, v| s.settings().adaptive = v, default = false)]
    #[property(name = "latch", nick = "Latch", blurb = "Learn the sender's address from the first valid packets, and drop packets from other addresses (symmetric RTP)", type = bool, get = |s: &Self| s.settings().latch, set = |s: &Self, v| s.settings().latch = v, default = true)]
    #[property(name = "session", nick = "Session", blurb = "Name of the session. A ts-rtpsink with the same name uses the sockets and the RTCP session of this element; empty: no other element uses them", type = String, get = |s: &Self| s.settings().session.clone(), set = |s: &Self, v: Option<String>| s.settings().session = v.unwrap_or_default(), default = "")]
    #[property(name = "ssrc", nick = "SSRC", blurb = "Accept only packets with this SSRC, so that several sources can share a port; 4294967295: any SSRC", type = u32, get = |s: &Self| s.settings().ssrc, set = |s: &Self, v| s.settings().ssrc = v, default = SSRC_ANY)]
    #[property(name = "from", nick = "From", blurb = "Accept packets only from this address:port, so that several sources can share a port; NULL: from any address", type = Option<String>, get = |s: &Self| s.settings().from.map(|from| from.to_string()), set = Self::set_from)]
    #[property(name = "max-dropout-time", nick = "Maximum dropout time", blurb = "Largest step forward in the sequence numbers that counts as a loss, ms; a larger one is a restart of the stream", type = u32, get = |s: &Self| s.settings().max_dropout_ms, set = |s: &Self, v| s.configure(|settings| settings.max_dropout_ms = v), default = MAX_DROPOUT_MS_DEFAULT)]
    #[property(name = "max-misorder-time", nick = "Maximum misorder time", blurb = "Largest step back in the sequence numbers that counts as a late packet, ms; a larger one is a restart of the stream", type = u32, get = |s: &Self| s.settings().max_misorder_ms, set = |s: &Self, v| s.configure(|settings| settings.max_misorder_ms = v), default = MAX_MISORDER_MS_DEFAULT)]
    #[property(name = "uri", nick = "URI", blurb = "URI with the address and the port: rtp://host:port", type = String, get = |s: &Self| s.settings().uri(), set = Self::set_uri_property, default = "rtp://0.0.0.0:5004")]
    settings: Mutex<Settings>,
    context: Mutex<ContextSettings>,
    multicast: Mutex<MulticastSettings>,
    feedback: Mutex<FeedbackSettings>,
    src_pad: gst::Pad,
    opened: Mutex<Option<Opened>>,
    driver: Driver<Receiver>,
    /// Counters of the receiver, in PAUSED and PLAYING.
    counts: Mutex<Option<Arc<Counts>>>,
    stats: Mutex<StatsProperty>,
}

/// Applies settings that take effect while the element plays.
fn use_settings(session: &RtpSession, settings: &Settings) -> Result<(), LegError> {
    let payloads = settings.payloads()?;
    let mut party = session.party();
    party.set_payloads(payloads);
    party.set_jitter(settings.jitter())
}

/// State from READY on.
struct Opened {
    session: Arc<RtpSession>,
    sockets: Arc<Sockets>,
    /// The place on a shared port, if the port is shared.
    tenancy: Option<Tenancy>,
}

impl RtpSrc {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    fn counts(&self) -> Option<Arc<Counts>> {
        lock(&self.counts).clone()
    }

    /// Returns the session, while it receives.
    fn session(&self) -> Option<Arc<RtpSession>> {
        let opened = lock(&self.opened);
        let session = opened.as_ref().map(|opened| opened.session.clone());
        session.filter(|_| lock(&self.counts).is_some())
    }

    fn used_port(&self) -> i32 {
        let opened = lock(&self.opened);
        opened.as_ref().map_or(0, |o| o.sockets.rtp.port().into())
    }

    /// Changes a setting that also takes effect while playing.
    fn configure(&self, change: impl FnOnce(&mut Settings)) {
        let (settings, latency_changed) = {
            let mut settings = self.settings();
            let before_ms = settings.latency_ms;
            change(&mut settings);
            (settings.clone(), settings.latency_ms != before_ms)
        };
        if let Some(session) = self.session() {
            if let Err(error) = use_settings(&session, &settings) {
                gst::element_imp_warning!(self, gst::ResourceError::Settings, ["{error}"]);
            }
            let (do_lost, accepted) = (settings.do_lost, settings.payload_types);
            self.driver.with_producer(move |receiver, _| {
                receiver.playout().set_do_lost(do_lost);
                receiver.playout().set_accepted(accepted);
            });
            if latency_changed {
                let message = gst::message::Latency::builder().src(&*self.obj()).build();
                let _ = self.obj().post_message(message);
            }
        }
    }

    /// Sets the caps. While the element runs, new caps are announced before the next packet.
    fn set_caps(&self, caps: Option<gst::Caps>) {
        self.configure(|settings| settings.caps = caps.clone());
        if self.session().is_some() {
            self.driver.announce(move |receiver, pad| {
                let playout = receiver.playout();
                playout.set_caps(caps);
                let caps = playout.negotiated_caps(pad);
                caps.as_ref().map(gst::event::Caps::new)
            });
        }
    }

    fn set_payload_types(&self, payload_types: Option<String>) {
        match payload_types.unwrap_or_default().parse() {
            Ok(payload_types) => self.configure(|settings| settings.payload_types = payload_types),
            Err(error) => gst::element_imp_warning!(
                self,
                gst::ResourceError::Settings,
                ["payload-types: {error}"]
            ),
        }
    }

    fn set_uri_property(&self, uri: Option<String>) {
        if let Some(uri) = uri
            && let Err(error) = self.settings().set_uri(&uri)
        {
            gst::element_imp_warning!(self, gst::ResourceError::Settings, ["uri: {error}"]);
        }
    }

    fn set_from(&self, from: Option<String>) {
        let parsed = from.as_deref().filter(|from| !from.is_empty());
        match parsed.map(str::parse::<SocketAddr>).transpose() {
            Ok(from) => self.settings().from = from,
            Err(_) => gst::element_imp_warning!(
                self,
                gst::ResourceError::Settings,
                [
                    "from={}: expected address:port, or [address]:port for IPv6",
                    from.unwrap_or_default()
                ]
            ),
        }
    }

    fn latency(&self) -> gst::ClockTime {
        let wait = self
            .driver
            .place()
            .map_or_else(|| lock(&self.context).wait(), |place| place.wait());
        gst::ClockTime::from_mseconds(self.settings().latency_ms.into()) + wait
    }

    fn structure(&self) -> gst::Structure {
        let stats = gst::Structure::builder("application/x-ts-rtpsrc-stats");
        let stats = match self.counts().zip(self.session()) {
            Some((counts, session)) => {
                let jitter = session.party().leg.stats().jitter;
                let stats = match counts.last_ns.get() {
                    0 => stats,
                    last_ns => {
                        let age_ns = clock_now_ns().saturating_sub(last_ns);
                        stats.field("since-last-packet", age_ns)
                    }
                };
                stats
                    .field("packets-received", counts.packets.get())
                    .field("bytes-received", counts.bytes.get())
                    .field("malformed", counts.malformed.get())
                    .field("truncated", counts.truncated.get())
                    .field("socket-errors", counts.socket_errors.get())
                    .field("unknown-payload-type", counts.unknown.get())
                    .field("num-pushed", jitter.delivered)
                    .field("num-lost", jitter.lost)
                    .field("num-late", jitter.late)
                    .field("num-duplicates", jitter.duplicates)
                    .field("num-dropped", jitter.dropped())
                    .field("num-resyncs", jitter.resyncs)
                    .field("num-held", jitter.held_packets)
                    .field("avg-jitter", jitter.jitter_ns)
                    .field("latency", jitter.latency_ns)
                    .field("skew", jitter.skew_ns)
            }
            None => stats,
        };
        match lock(&self.opened).as_ref() {
            Some(opened) => {
                let stats = stats.field("rtcp", opened.session.structure());
                match &opened.tenancy {
                    Some(tenancy) => {
                        let port = tenancy.port_stats();
                        stats
                            .field("port-unmatched", port.unmatched)
                            .field("port-malformed", port.malformed)
                            .field("port-overflowed", port.overflowed)
                            .build()
                    }
                    None => stats.build(),
                }
            }
            None => stats.build(),
        }
    }
}

impl SourceElement for RtpSrc {
    type Producer = Receiver;

    fn driver(&self) -> &Driver<Receiver> {
        &self.driver
    }

    fn src_pad(&self) -> &gst::Pad {
        &self.src_pad
    }

    /// Sends requests from downstream, such as that of a decoder that cannot continue, to the sender.
    fn handle_upstream_event(&self, event: gst::Event) -> Result<bool, gst::Event> {
        let session = lock(&self.opened).as_ref().map(|o| o.session.clone());
        let caps = self.settings().caps.clone();
        session
            .and_then(|session| upstream::ask(&session, caps.as_ref(), &event))
            .ok_or(event)
    }

    fn answer_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        if let gst::QueryViewMut::Uri(uri) = query.view_mut() {
            uri.set_uri(Some(self.settings().uri().as_str()));
            return true;
        }
        // Due packets may wait for the start of a slice, and unread packets wait in the kernel.
        let latency = (true, self.latency(), None);
        source::answer_query(pad, &*self.obj(), query, latency, || {
            let caps = self.settings().caps.clone();
            Some(caps.unwrap_or_else(|| pad.pad_template_caps()))
        })
    }

    fn open(&self) -> Result<(), gst::ErrorMessage> {
        let settings = self.settings().clone();
        let asked = settings.sockets(&lock(&self.multicast));
        let session = RtpSession::join(&settings.session)?;
        if session.sockets().is_some() {
            return Err(gst::error_msg!(
                gst::ResourceError::Busy,
                ["session '{}' has a ts-rtpsrc already", session.name()]
            ));
        }
        let tenancy = match settings.filter() {
            Some(filter) => Some(SharedPort::rent(&asked, filter, &session)?),
            None => None,
        };
        let sockets = match &tenancy {
            Some(tenancy) => tenancy.sockets().clone(),
            None => Arc::new(Sockets::open(&asked, Readers::Source)?),
        };
        session.set_sockets(sockets.clone());
        session.set_silent(!settings.rtcp);
        session.agree(self.obj().upcast_ref(), *lock(&self.feedback));
        *lock(&self.opened) = Some(Opened {
            session,
            sockets,
            tenancy,
        });
        self.obj().notify("used-port");
        Ok(())
    }

    fn close(&self) {
        let opened = lock(&self.opened).take();
        if let Some(Opened {
            session, sockets, ..
        }) = opened
        {
            session.close(&sockets);
        }
    }

    /// Places the receiver and the session's agent on their context's thread.
    fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
        let settings = self.settings().clone();
        let opened = lock(&self.opened);
        let Opened {
            session,
            sockets,
            tenancy,
        } = opened.as_ref().ok_or_else(|| {
            gst::error_msg!(gst::CoreError::StateChange, ["the element has no socket"])
        })?;
        let playout = Playout::new(
            settings.caps.clone(),
            settings.do_lost,
            settings.payload_types,
        );
        let receiving = settings
            .receiving()
            .map_err(|e| gst::error_msg!(gst::ResourceError::Settings, ["{e}"]))?;
        session.receive(receiving)?;
        let place = lock(&self.context).place(element)?;
        session.start(element, &place)?;
        if let Some(tenancy) = tenancy {
            tenancy.start(&place, settings.mtu)?;
        }
        if settings.do_retransmission && !session.has_feedback() {
            gst::element_warning!(
                element,
                gst::ResourceError::Settings,
                ["do-retransmission has no effect without rtp-profile=avpf"]
            );
        }
        let mut receiver = Receiver::new(
            element,
            &place.shard,
            session.clone(),
            sockets.clone(),
            tenancy.as_ref().map(|tenancy| tenancy.mailbox().clone()),
            playout,
            settings.mtu,
        );
        *lock(&self.counts) = Some(receiver.counts().clone());
        if settings.do_retransmission {
            receiver.ask_again();
        }
        self.driver.add(element, &self.src_pad, place, receiver)
    }

    fn deactivate(&self) {
        self.driver.remove();
        let has_run = lock(&self.counts).take().is_some();
        if has_run && let Some(opened) = lock(&self.opened).as_ref() {
            opened.session.stop();
            if let Some(tenancy) = &opened.tenancy {
                tenancy.stop();
            }
        }
    }
}

#[glib::object_subclass]
impl ObjectSubclass for RtpSrc {
    const NAME: &'static str = "ThreadbareRtpSrc";
    type Type = super::RtpSrc;
    type ParentType = gst::Element;
    type Interfaces = (gst::URIHandler,);

    fn with_class(klass: &Self::Class) -> Self {
        let src_pad = source::source_pad::<RtpSrc>(&crate::kit::template(klass, "src"));
        RtpSrc {
            settings: Mutex::default(),
            context: Mutex::default(),
            multicast: Mutex::default(),
            feedback: Mutex::default(),
            src_pad,
            opened: Mutex::new(None),
            driver: Driver::default(),
            counts: Mutex::new(None),
            stats: Mutex::default(),
        }
    }
}

impl ObjectImpl for RtpSrc {
    crate::kit::properties_with_groups!(context, multicast, feedback, stats);

    fn constructed(&self) {
        self.parent_constructed();
        let obj = self.obj();
        crate::kit::add_timed_pad(&*obj, &self.src_pad);
        *lock(&self.stats) = StatsProperty::of(&*obj, |obj| obj.imp().structure());
    }
}

impl GstObjectImpl for RtpSrc {}

impl ElementImpl for RtpSrc {
    crate::kit::element_class!(
        "Thread-sharing RTP source",
        "Source/Network/RTP",
        "Receives RTP and RTCP of a session with a jitter buffer, on the thread of a shared context";
        "src": Src Always gst::Caps::new_empty_simple("application/x-rtp")
    );

    crate::source_life!();
}

impl URIHandlerImpl for RtpSrc {
    const URI_TYPE: gst::URIType = gst::URIType::Src;

    fn protocols() -> &'static [&'static str] {
        &["rtp"]
    }

    fn uri(&self) -> Option<String> {
        Some(self.settings().uri())
    }

    fn set_uri(&self, uri: &str) -> Result<(), glib::Error> {
        self.settings().set_uri(uri)
    }
}
