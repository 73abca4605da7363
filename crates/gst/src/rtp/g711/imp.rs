//! Properties, pads and negotiation of `ts-rtpg711`.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, MutexGuard};

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use threadbare_rtp::id::{NS_PER_S, PayloadType, RtpTime, SeqNum, Ssrc};
use threadbare_rtp::recode::{Config, Encoding, Handled, Recoder};

use super::line_meter::LineMeter;
use crate::kit::inline::{self, Inline, InlineElement};
use crate::kit::lock;
use crate::kit::prefetch::{self, ElementMemory};

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "ts-rtpg711",
        gst::DebugColorFlags::empty(),
        Some("G.711 and L16 over RTP, converted in one hop"),
    )
});

#[derive(Debug, Clone)]
struct Settings {
    encoding_name: Option<String>,
    ptime_ms: u32,
    payload_type: i32,
    ssrc: u32,
    telephone_event: i32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            encoding_name: None,
            ptime_ms: 0,
            payload_type: PAYLOAD_TYPE_AUTO,
            ssrc: SSRC_RANDOM,
            telephone_event: TELEPHONE_EVENT_DEFAULT,
        }
    }
}

/// By the encoding: the static one, or the first dynamic one.
const PAYLOAD_TYPE_AUTO: i32 = -1;
/// As in the stock payloaders.
const SSRC_RANDOM: u32 = u32::MAX;
/// No number is assigned; this one is common.
const TELEPHONE_EVENT_DEFAULT: i32 = 101;
const PTIME_MS_MAX: u32 = 200;

#[derive(Properties)]
#[properties(wrapper_type = super::RtpG711)]
pub struct RtpG711 {
    #[property(name = "encoding-name", nick = "Encoding name", blurb = "Encoding of the output: PCMU, PCMA or L16; NULL: that of the input if downstream accepts it, else one that downstream accepts", type = Option<String>, get = |s: &Self| s.settings().encoding_name.clone(), set = |s: &Self, v| s.settings().encoding_name = v)]
    #[property(name = "ptime", nick = "Packet time", blurb = "Packet time of the output, ms; 0: that of the input", type = u32, get = |s: &Self| s.settings().ptime_ms, set = |s: &Self, v| s.settings().ptime_ms = v, maximum = PTIME_MS_MAX, default = 0)]
    #[property(name = "pt", nick = "Payload type", blurb = "Payload type of the output; -1: 0 for PCMU, 8 for PCMA, 96 for L16", type = i32, get = |s: &Self| s.settings().payload_type, set = |s: &Self, v| s.settings().payload_type = v, minimum = -1, maximum = 127, default = PAYLOAD_TYPE_AUTO)]
    #[property(name = "ssrc", nick = "SSRC", blurb = "SSRC of the output; 4294967295: a random one", type = u32, get = |s: &Self| s.settings().ssrc, set = |s: &Self, v| s.settings().ssrc = v, default = SSRC_RANDOM)]
    #[property(name = "telephone-event-pt", nick = "Telephone event payload type", blurb = "Payload type of telephone events (RFC 4733), which pass unchanged; -1: none", type = i32, get = |s: &Self| s.settings().telephone_event, set = |s: &Self, v| s.settings().telephone_event = v, minimum = -1, maximum = 127, default = TELEPHONE_EVENT_DEFAULT)]
    settings: Mutex<Settings>,
    #[property(name = "meter", nick = "Meter", blurb = "Measure the loudness of the output, for `stats`", type = bool, get = |s: &Self| s.is_measuring.load(Relaxed), set = Self::set_measuring, default = false, mutable_playing)]
    is_measuring: AtomicBool,
    /// The stream's state: used by the pushing thread, and by `stats`. Not held across a push.
    recoder: Mutex<Option<Recoder>>,
    /// Since the first packet, while it is switched on. Locked after `recoder`.
    meter: Mutex<Option<LineMeter>>,
    memory: ElementMemory,
    inline: Inline,
}

impl RtpG711 {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    fn set_measuring(&self, is_measuring: bool) {
        self.is_measuring.store(is_measuring, Relaxed);
        if !is_measuring {
            *lock(&self.meter) = None;
        }
    }

    /// Measures an outgoing packet.
    fn measure(&self, packet: &[u8], config: &Config) {
        if !self.is_measuring.load(Relaxed) {
            return;
        }
        match LineMeter::fit(&mut lock(&self.meter), config.clock_rate_hz) {
            Ok(meter) => meter.add_packet(packet, config),
            Err(error) => gst::debug!(CAT, imp = self, "not measured: {error}"),
        }
    }

    /// Sends the store's contents, packet by packet.
    fn drain(&self) -> Result<gst::FlowSuccess, gst::FlowError> {
        loop {
            let buffer = {
                let mut recoder = lock(&self.recoder);
                let recoder = recoder.as_mut().ok_or(gst::FlowError::NotNegotiated)?;
                let mut buffer = gst::Buffer::with_size(recoder.packet_bytes_max())
                    .map_err(|_| gst::FlowError::Error)?;
                let buffer_ref = buffer.make_mut();
                let stored = {
                    let mut map = buffer_ref
                        .map_writable()
                        .map_err(|_| gst::FlowError::Error)?;
                    let stored = recoder.poll_packet(&mut map);
                    if let Some(stored) = &stored {
                        self.measure(&map[..stored.len], recoder.config());
                    }
                    stored
                };
                let Some(stored) = stored else {
                    return Ok(gst::FlowSuccess::Ok);
                };
                buffer_ref.set_size(stored.len);
                let time = stored.play_ns.map(gst::ClockTime::from_nseconds);
                buffer_ref.set_pts(time);
                buffer_ref.set_dts(time);
                buffer
            };
            self.inline.src_pad.push(buffer)?;
        }
    }

    /// Packets of this total duration are missing.
    fn lost(&self, time: Option<gst::ClockTime>, duration: Option<gst::ClockTime>) {
        let Some(duration) = duration else { return };
        if let Some(recoder) = lock(&self.recoder).as_mut() {
            recoder.handle_loss(time.map(gst::ClockTime::nseconds), duration.nseconds());
        }
        if let Err(error) = self.drain() {
            gst::debug!(
                CAT,
                imp = self,
                "downstream refused concealed audio: {error}"
            );
        }
    }

    /// The output stream continues, but earlier input no longer counts.
    fn restart(&self) {
        let mut recoder = lock(&self.recoder);
        if let Some(old) = recoder.take() {
            let config = Config {
                first_seq: old.next_seq(),
                first_time: RtpTime(glib::random_int()),
                ..*old.config()
            };
            *recoder = Some(Recoder::new(config));
        }
    }

    fn negotiate(&self, caps: gst::Caps) -> bool {
        let (config, out) = match self.plan(&caps) {
            Ok(planned) => planned,
            Err(error) => {
                gst::element_imp_error!(self, gst::StreamError::Format, ["{error}"]);
                return false;
            }
        };
        gst::debug!(CAT, imp = self, "from {caps} to {out}");
        // The rest of the input in the old encoding.
        if let Some(recoder) = lock(&self.recoder).as_mut() {
            recoder.handle_end();
        }
        let _ = self.drain();
        let ssrc = {
            let mut slot = lock(&self.recoder);
            match slot.as_mut() {
                Some(recoder) => recoder.reconfigure(config),
                None => *slot = Some(Recoder::new(config)),
            }
            let recoder = slot.as_ref().expect("it has just been set");
            self.memory.set([
                prefetch::span(recoder.history()),
                prefetch::span(&self.recoder),
                prefetch::span(&self.inline.src_pad),
            ]);
            recoder.config().ssrc
        };
        let mut out = out;
        out.make_mut().set("ssrc", ssrc.0);
        self.inline.src_pad.push_event(gst::event::Caps::new(&out))
    }

    /// The recoder settings for these caps, and the output caps.
    fn plan(&self, caps: &gst::Caps) -> Result<(Config, gst::Caps), PlanError> {
        let settings = self.settings().clone();
        let known = caps.structure(0);
        let input = known
            .and_then(Format::of)
            .ok_or_else(|| PlanError::Input(caps.clone()))?;
        let encoding = match &settings.encoding_name {
            Some(name) => encoding_of(name).ok_or_else(|| PlanError::Encoding(name.clone()))?,
            None => self.preferred(&input).ok_or(PlanError::Downstream)?,
        };
        if encoding != input.encoding && input.clock_rate_hz != G711_RATE_HZ {
            return Err(PlanError::Rate(input.clock_rate_hz));
        }
        let payload_type = match u8::try_from(settings.payload_type) {
            Ok(payload_type) => payload_type,
            Err(_) => default_payload_type(encoding),
        };
        let ssrc = match settings.ssrc {
            SSRC_RANDOM => glib::random_int(),
            ssrc => ssrc,
        };
        let rate_hz = input.clock_rate_hz;
        let config = Config {
            from: input.encoding,
            to: encoding,
            clock_rate_hz: rate_hz,
            payload_type_in: input.payload_type.map(PayloadType),
            payload_type: PayloadType(payload_type),
            ssrc: Ssrc(ssrc),
            first_seq: SeqNum(glib::random_int() as u16),
            first_time: RtpTime(glib::random_int()),
            packet_samples: (u64::from(settings.ptime_ms) * 1_000_000 * u64::from(rate_hz)
                / NS_PER_S) as u32,
            telephone_event: u8::try_from(settings.telephone_event).ok().map(PayloadType),
        };
        let out = gst::Caps::builder("application/x-rtp")
            .field("media", "audio")
            .field("clock-rate", rate_hz as i32)
            .field("encoding-name", encoding_name(encoding))
            .field("payload", i32::from(payload_type))
            .field("ssrc", ssrc);
        Ok((config, out.build()))
    }

    /// The input encoding, if downstream takes it; else downstream's first.
    fn preferred(&self, input: &Format) -> Option<Encoding> {
        let accepted = self.inline.src_pad.peer_query_caps(None);
        let takes = |encoding| {
            let wanted = gst::Caps::builder("application/x-rtp")
                .field("media", "audio")
                .field("encoding-name", encoding_name(encoding))
                .build();
            accepted.is_any() || accepted.can_intersect(&wanted)
        };
        [
            input.encoding,
            Encoding::Pcma,
            Encoding::Pcmu,
            Encoding::L16,
        ]
        .into_iter()
        .find(|encoding| takes(*encoding))
    }
}

#[derive(Debug, thiserror::Error)]
enum PlanError {
    #[error("cannot convert {0}: expected mono PCMU or PCMA of 8000 Hz, or mono L16")]
    Input(gst::Caps),
    #[error("encoding-name={0}: expected PCMU, PCMA or L16")]
    Encoding(String),
    #[error("downstream accepts none of PCMU, PCMA and L16")]
    Downstream,
    #[error(
        "L16 of {0} Hz: G.711 has 8000 Hz, put a depayloader, audioresample and a payloader here"
    )]
    Rate(u32),
}

/// The relevant fields of a stream's caps.
#[derive(Debug, Clone, Copy)]
struct Format {
    encoding: Encoding,
    clock_rate_hz: u32,
    payload_type: Option<u8>,
}

impl Format {
    fn of(caps: &gst::StructureRef) -> Option<Format> {
        let payload = caps.get::<i32>("payload").ok();
        let payload_type = payload.and_then(|payload| u8::try_from(payload).ok());
        let encoding = match caps.get::<&str>("encoding-name") {
            Ok(name) => encoding_of(name)?,
            // The static payload types of RFC 3551, table 4, need no name.
            Err(_) => match payload_type? {
                0 => Encoding::Pcmu,
                8 => Encoding::Pcma,
                11 => Encoding::L16,
                _ => return None,
            },
        };
        let clock_rate_hz = match (caps.get::<i32>("clock-rate"), encoding) {
            (Ok(rate), _) => u32::try_from(rate).ok().filter(|rate| *rate > 0)?,
            (Err(_), Encoding::L16) => 44_100,
            (Err(_), _) => G711_RATE_HZ,
        };
        if encoding != Encoding::L16 && clock_rate_hz != G711_RATE_HZ {
            return None;
        }
        let channels = caps.get::<&str>("encoding-params").unwrap_or("1");
        let is_mono = channels == "1" && caps.get::<i32>("channels").unwrap_or(1) == 1;
        is_mono.then_some(Format {
            encoding,
            clock_rate_hz,
            payload_type,
        })
    }
}

fn encoding_of(name: &str) -> Option<Encoding> {
    match name.to_ascii_uppercase().as_str() {
        "PCMU" => Some(Encoding::Pcmu),
        "PCMA" => Some(Encoding::Pcma),
        "L16" => Some(Encoding::L16),
        _ => None,
    }
}

fn encoding_name(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Pcmu => "PCMU",
        Encoding::Pcma => "PCMA",
        Encoding::L16 => "L16",
    }
}

/// RFC 3551, table 4; L16 of 8000 Hz has none.
fn default_payload_type(encoding: Encoding) -> u8 {
    match encoding {
        Encoding::Pcmu => 0,
        Encoding::Pcma => 8,
        Encoding::L16 => 96,
    }
}

fn template_caps() -> gst::Caps {
    let audio = gst::Structure::builder("application/x-rtp")
        .field("media", "audio")
        .field("encoding-name", gst::List::new(["PCMU", "PCMA", "L16"]))
        .build();
    // Caps with a static payload type may omit the name.
    let by_type = gst::Structure::builder("application/x-rtp")
        .field("media", "audio")
        .field("payload", gst::List::new([0i32, 8, 11]))
        .build();
    gst::Caps::builder_full()
        .structure(audio)
        .structure(by_type)
        .build()
}

/// As in the stock jitter buffer.
const PACKET_LOST: &str = "GstRTPPacketLost";
/// As in the stock session.
const COLLISION: &str = "GstRTPCollision";
const G711_RATE_HZ: u32 = 8000;

#[glib::object_subclass]
impl ObjectSubclass for RtpG711 {
    const NAME: &'static str = "ThreadbareRtpG711";
    type Type = super::RtpG711;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        RtpG711 {
            settings: Mutex::default(),
            is_measuring: AtomicBool::new(false),
            recoder: Mutex::new(None),
            meter: Mutex::new(None),
            memory: ElementMemory::default(),
            inline: Inline::new::<Self, _>(klass, gst::PadFlags::empty()),
        }
    }
}

impl ObjectImpl for RtpG711 {
    crate::kit::properties_with_groups!(inline.stats);

    fn constructed(&self) {
        self.parent_constructed();
        inline::constructed(self);
        self.memory.attach(&*self.obj());
    }
}

impl GstObjectImpl for RtpG711 {}

impl ElementImpl for RtpG711 {
    crate::kit::element_class!(
        "Thread-sharing G.711 converter",
        "Codec/Converter/Network/RTP",
        "Converts RTP packets between PCMU, PCMA and L16 in one element, and conceals losses";
        "sink": Sink Always template_caps(),
        "src": Src Always template_caps()
    );

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        inline::change_state(self, transition, || self.parent_change_state(transition))
    }
}

impl InlineElement for RtpG711 {
    fn inline(&self) -> &Inline {
        &self.inline
    }

    fn check(&self) -> Result<(), gst::ErrorMessage> {
        match &self.settings().encoding_name {
            Some(name) if encoding_of(name).is_none() => {
                let error = PlanError::Encoding(name.clone());
                Err(gst::error_msg!(gst::ResourceError::Settings, ["{error}"]))
            }
            _ => Ok(()),
        }
    }

    fn chain(&self, mut buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let play_ns = buffer.pts().map(gst::ClockTime::nseconds);
        let resync = buffer.flags().contains(gst::BufferFlags::RESYNC);
        loop {
            let handled = {
                let mut recoder = lock(&self.recoder);
                let recoder = recoder.as_mut().ok_or(gst::FlowError::NotNegotiated)?;
                let buffer = buffer.make_mut();
                let mut map = buffer.map_writable().map_err(|_| gst::FlowError::Error)?;
                let handled = recoder.handle_packet(&mut map, play_ns, resync);
                if let Handled::InPlace(range) = &handled {
                    self.measure(&map[range.clone()], recoder.config());
                }
                handled
            };
            match handled {
                Handled::InPlace(range) => {
                    let buffer_ref = buffer.make_mut();
                    if range.start > 0 || range.end < buffer_ref.size() {
                        buffer_ref
                            .resize(range)
                            .map_err(|_| gst::FlowError::Error)?;
                    }
                    return self.inline.src_pad.push(buffer);
                }
                Handled::Stored => return self.drain(),
                Handled::DrainFirst => {
                    self.drain()?;
                }
                Handled::Dropped(reason) => {
                    gst::debug!(CAT, imp = self, "dropped: {reason:?}");
                    return Ok(gst::FlowSuccess::Ok);
                }
            }
        }
    }

    fn sink_event(&self, pad: &gst::Pad, event: gst::Event) -> bool {
        match event.view() {
            gst::EventView::Caps(caps) => return self.negotiate(caps.caps_owned()),
            gst::EventView::Gap(gap) => {
                let (time, duration) = gap.get();
                self.lost(Some(time), duration);
                return true;
            }
            gst::EventView::CustomDownstream(_) => {
                if let Some(lost) = event.structure().filter(|s| s.name() == PACKET_LOST) {
                    let ns = |name| {
                        lost.get::<u64>(name)
                            .ok()
                            .map(gst::ClockTime::from_nseconds)
                    };
                    self.lost(ns("timestamp"), ns("duration"));
                    return true;
                }
            }
            gst::EventView::FlushStop(_) => self.restart(),
            gst::EventView::Eos(_) => {
                if let Some(recoder) = lock(&self.recoder).as_mut() {
                    recoder.handle_end();
                }
                let _ = self.drain();
            }
            _ => {}
        }
        gst::Pad::event_default(pad, Some(&*self.obj()), event)
    }

    fn sink_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        if let gst::QueryViewMut::Caps(caps) = query.view_mut() {
            let template = pad.pad_template_caps();
            let result = match caps.filter() {
                Some(filter) => {
                    filter.intersect_with_mode(&template, gst::CapsIntersectMode::First)
                }
                None => template,
            };
            caps.set_result(&result);
            return true;
        }
        gst::Pad::query_default(pad, Some(&*self.obj()), query)
    }

    fn src_event(&self, pad: &gst::Pad, event: gst::Event) -> bool {
        // A session that found another sender with this SSRC requests a new one (RFC 3550, section 8.2).
        if let Some(collision) = event.structure().filter(|s| s.name() == COLLISION)
            && let Ok(ssrc) = collision.get::<u32>("ssrc")
        {
            if let Some(recoder) = lock(&self.recoder).as_mut()
                && recoder.config().ssrc == Ssrc(ssrc)
            {
                recoder.set_ssrc(Ssrc(glib::random_int()));
            }
            return true;
        }
        gst::Pad::event_default(pad, Some(&*self.obj()), event)
    }

    fn latency(&self) -> gst::ClockTime {
        let delay_ns = lock(&self.recoder).as_ref().map_or(0, Recoder::delay_ns);
        gst::ClockTime::from_nseconds(delay_ns)
    }

    fn stats(&self) -> gst::Structure {
        let recoder = lock(&self.recoder);
        let stats = recoder.as_ref().map(Recoder::stats).unwrap_or_default();
        let rate_hz = recoder.as_ref().map_or(1, |r| r.config().clock_rate_hz);
        let mut structure = gst::Structure::builder("application/x-ts-rtpg711-stats")
            .field("packets-in", stats.packets_in)
            .field("packets-out", stats.packets_out)
            .field(
                "concealed-ms",
                stats.concealed_samples * 1000 / u64::from(rate_hz.max(1)),
            )
            .field("passed-on", stats.passed_on)
            .field("dropped", stats.dropped)
            .build();
        if let Some(meter) = &mut *lock(&self.meter) {
            meter.add_readings(&mut structure);
        }
        structure
    }

    fn forget(&self) {
        *lock(&self.recoder) = None;
        *lock(&self.meter) = None;
    }
}
