//! Properties, pads and negotiation of `ts-rtpg711`.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use threadbare_rtp::call::{
    DirectionConfig, Scratch, SessionError, Transcoded, Transcoder, TranscoderConfig,
};
use threadbare_rtp::codec::{Encoding, Format, FormatError};
use threadbare_rtp::id::{RtpTime, SeqNum, Ssrc};
use threadbare_rtp::leg::{Payload, PayloadMap, PayloadMapError};
use threadbare_rtp::payload::COMFORT_NOISE;

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

/// Value that selects the payload type automatically: the encoding's static type, or the first dynamic one.
const PAYLOAD_TYPE_AUTO: i32 = -1;
/// Value for a random SSRC, the same as in the stock payloaders.
const SSRC_RANDOM: u32 = u32::MAX;
/// Default payload type of telephone events. No number is assigned to them, but this one is common.
const TELEPHONE_EVENT_DEFAULT: i32 = 101;
const PTIME_MS_MAX: u32 = 200;

#[derive(Properties)]
#[properties(wrapper_type = super::RtpG711)]
pub struct RtpG711 {
    #[property(name = "encoding-name", nick = "Encoding name", blurb = "Encoding of the output: PCMU, PCMA or L16; NULL: the encoding of the input if downstream accepts it, otherwise one that downstream accepts", type = Option<String>, get = |s: &Self| s.settings().encoding_name.clone(), set = |s: &Self, v| s.settings().encoding_name = v)]
    #[property(name = "ptime", nick = "Packet time", blurb = "Packet time of the output, ms; 0: the packet time of the input", type = u32, get = |s: &Self| s.settings().ptime_ms, set = |s: &Self, v| s.settings().ptime_ms = v, maximum = PTIME_MS_MAX, default = 0)]
    #[property(name = "pt", nick = "Payload type", blurb = "Payload type of the output; -1: 0 for PCMU, 8 for PCMA, 96 for L16", type = i32, get = |s: &Self| s.settings().payload_type, set = |s: &Self, v| s.settings().payload_type = v, minimum = -1, maximum = 127, default = PAYLOAD_TYPE_AUTO)]
    #[property(name = "ssrc", nick = "SSRC", blurb = "SSRC of the output; 4294967295: a random one", type = u32, get = |s: &Self| s.settings().ssrc, set = |s: &Self, v| s.settings().ssrc = v, default = SSRC_RANDOM)]
    #[property(name = "telephone-event-pt", nick = "Telephone event payload type", blurb = "Payload type of telephone events (RFC 4733), which pass unchanged; -1: none", type = i32, get = |s: &Self| s.settings().telephone_event, set = |s: &Self, v| s.settings().telephone_event = v, minimum = -1, maximum = 127, default = TELEPHONE_EVENT_DEFAULT)]
    settings: Mutex<Settings>,
    #[property(name = "meter", nick = "Meter", blurb = "Measure the loudness of the output, for `stats`", type = bool, get = |s: &Self| s.is_measuring.load(Relaxed), set = Self::set_measuring, default = false, mutable_playing)]
    is_measuring: AtomicBool,
    /// The stream's state, which the pushing thread and `stats` use. The lock is not held across a push.
    stream: Mutex<Option<Stream>>,
    /// The meter, if it is switched on, from the first packet on. It is locked after `stream`.
    meter: Mutex<Option<LineMeter>>,
    memory: ElementMemory,
    inline: Inline,
}

/// A stream and its output format.
struct Stream {
    transcoder: Transcoder,
    plan: Plan,
}

/// The conversion.
#[derive(Debug, Clone)]
struct Plan {
    config: TranscoderConfig,
    /// The output format.
    to: Payload,
    format: Format,
}

thread_local! {
    /// Memory for the packets that are being made, shared by all streams of a thread.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
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
    fn measure(&self, packet: &[u8], plan: &Plan) {
        if !self.is_measuring.load(Relaxed) {
            return;
        }
        match LineMeter::fit(&mut lock(&self.meter), plan.format, plan.to.payload_type) {
            Ok(meter) => meter.add_packet(packet),
            Err(error) => gst::debug!(CAT, imp = self, "cannot measure the loudness: {error}"),
        }
    }

    /// Runs `work` on the stream, and pushes its output.
    fn work(
        &self,
        work: impl FnOnce(&mut Transcoder, &mut Scratch),
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        let made = {
            let mut stream = lock(&self.stream);
            let stream = stream.as_mut().ok_or(gst::FlowError::NotNegotiated)?;
            SCRATCH.with_borrow_mut(|scratch| {
                work(&mut stream.transcoder, scratch);
                self.take_made(stream, scratch)
            })?
        };
        self.push_all(made)
    }

    /// Returns the output packets as buffers. The scratch memory must be free by then, because other streams of the thread use it
    /// as soon as a buffer is pushed.
    fn take_made(
        &self,
        stream: &mut Stream,
        scratch: &mut Scratch,
    ) -> Result<Vec<gst::Buffer>, gst::FlowError> {
        let mut buffers = Vec::with_capacity(scratch.made());
        while let Some(made) = stream.transcoder.poll_packet(scratch) {
            self.measure(made.bytes, &stream.plan);
            buffers.push(new_buffer(&made)?);
        }
        Ok(buffers)
    }

    /// Pushes packet by packet.
    fn push_all(&self, buffers: Vec<gst::Buffer>) -> Result<gst::FlowSuccess, gst::FlowError> {
        for buffer in buffers {
            self.inline.src_pad.push(buffer)?;
        }
        Ok(gst::FlowSuccess::Ok)
    }

    /// Notes that packets of this total duration are missing.
    fn lost(&self, time: Option<gst::ClockTime>, duration: Option<gst::ClockTime>) {
        let Some(duration) = duration else { return };
        let play_ns = time.map(gst::ClockTime::nseconds);
        let result = self.work(|transcoder, scratch| {
            transcoder.handle_loss(play_ns, duration.nseconds(), scratch);
        });
        if let Err(error) = result {
            gst::debug!(
                CAT,
                imp = self,
                "downstream refused concealed audio: {error}"
            );
        }
    }

    /// Continues the output stream, but discards earlier input.
    fn restart(&self) {
        let mut stream = lock(&self.stream);
        if let Some(Stream { transcoder, plan }) = stream.take() {
            let config = TranscoderConfig {
                ssrc: transcoder.ssrc(),
                first_seq: transcoder.next_seq(),
                ..plan.config.clone()
            };
            // This cannot fail, because the settings are the same as before.
            *stream = Transcoder::new(config)
                .ok()
                .map(|transcoder| Stream { transcoder, plan });
        }
    }

    fn negotiate(&self, caps: gst::Caps) -> bool {
        let (ssrc, rest, out) = match self.plan(&caps).and_then(|(plan, out)| {
            let (ssrc, rest) = self.follow(plan)?;
            Ok((ssrc, rest, out))
        }) {
            Ok(planned) => planned,
            Err(error) => {
                gst::element_imp_error!(self, gst::StreamError::Format, ["{error}"]);
                return false;
            }
        };
        // The remaining input in the old format leaves first.
        let _ = self.push_all(rest);
        let mut out = out;
        out.make_mut().set("ssrc", ssrc.0);
        gst::debug!(CAT, imp = self, "converting from {caps} to {out}");
        self.inline.src_pad.push_event(gst::event::Caps::new(&out))
    }

    /// Switches to a plan. Returns the SSRC, and the remaining output of the old plan.
    fn follow(&self, plan: Plan) -> Result<(Ssrc, Vec<gst::Buffer>), PlanError> {
        let mut slot = lock(&self.stream);
        let mut rest = Vec::new();
        let transcoder = match slot.take() {
            Some(mut stream) => {
                let config = plan.config.clone();
                SCRATCH.with_borrow_mut(|scratch| -> Result<(), PlanError> {
                    stream.transcoder.reconfigure(config, scratch)?;
                    rest = self.take_made(&mut stream, scratch).unwrap_or_default();
                    Ok(())
                })?;
                stream.transcoder
            }
            None => Transcoder::new(plan.config.clone())?,
        };
        let ssrc = transcoder.ssrc();
        *slot = Some(Stream { transcoder, plan });
        let pad = prefetch::span(&self.inline.src_pad);
        self.memory.set(prefetch::spans(&self.stream).chain([pad]));
        Ok((ssrc, rest))
    }

    /// Returns the plan for these caps, and the output caps.
    fn plan(&self, caps: &gst::Caps) -> Result<(Plan, gst::Caps), PlanError> {
        let settings = self.settings().clone();
        let known = caps.structure(0);
        let input = known
            .and_then(Input::of)
            .ok_or_else(|| PlanError::Input(caps.clone()))?;
        let encoding = match &settings.encoding_name {
            Some(name) => encoding_of(name).ok_or_else(|| PlanError::Encoding(name.clone()))?,
            None => self.preferred(&input).ok_or(PlanError::Downstream)?,
        };
        let rate_hz = input.clock_rate_hz;
        if encoding != input.encoding && rate_hz != G711_RATE_HZ {
            return Err(PlanError::Rate(rate_hz));
        }
        let payload_type = match u8::try_from(settings.payload_type) {
            Ok(payload_type) => payload_type,
            Err(_) => default_payload_type(encoding),
        };
        let ssrc = match settings.ssrc {
            SSRC_RANDOM => glib::random_int(),
            ssrc => ssrc,
        };
        let format = Format::new(encoding, rate_hz, 1)?;
        let from = Format::new(input.encoding, rate_hz, 1)?;
        let payload_type_in = input
            .payload_type
            .unwrap_or(default_payload_type(input.encoding));
        let (from, to) = (
            Payload::audio(payload_type_in, from),
            Payload::audio(payload_type, format),
        );
        let keys = u8::try_from(settings.telephone_event).ok();
        let config = TranscoderConfig {
            from: with_others(from, keys)?,
            is_any_audio: input.payload_type.is_none(),
            to: with_others(to, keys)?,
            direction: DirectionConfig {
                packet_ns: u64::from(settings.ptime_ms) * 1_000_000,
                first_time: RtpTime(glib::random_int()),
                ..DirectionConfig::default()
            },
            ssrc: Ssrc(ssrc),
            first_seq: SeqNum(glib::random_int() as u16),
        };
        let out = gst::Caps::builder("application/x-rtp")
            .field("media", "audio")
            .field("clock-rate", rate_hz as i32)
            .field("encoding-name", encoding_name(encoding))
            .field("payload", i32::from(payload_type))
            .field("ssrc", ssrc);
        let plan = Plan { config, to, format };
        Ok((plan, out.build()))
    }

    /// Returns the input encoding if downstream accepts it, otherwise the first one that downstream accepts.
    fn preferred(&self, input: &Input) -> Option<Encoding> {
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
        "cannot convert L16 of {0} Hz, because G.711 has 8000 Hz; use a depayloader, audioresample and a payloader instead"
    )]
    Rate(u32),
    #[error("pt and telephone-event-pt cannot be used together: {0}")]
    PayloadType(#[from] PayloadMapError),
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error("ptime: {0}")]
    PacketTime(#[from] SessionError),
}

/// Returns a payload map of audio, telephone events and comfort noise.
fn with_others(audio: Payload, keys: Option<u8>) -> Result<Arc<PayloadMap>, PayloadMapError> {
    let rate_hz = audio.clock_rate_hz;
    let keys = keys.map(|number| Payload::telephone_event(number, rate_hz));
    let noise = Payload::comfort_noise(COMFORT_NOISE.0, rate_hz);
    let others = keys.into_iter().chain([noise]);
    let others = others.filter(|other| other.payload_type != audio.payload_type);
    let all: Vec<Payload> = std::iter::once(audio).chain(others).collect();
    Ok(PayloadMap::new(&all)?.shared())
}

fn new_buffer(made: &Transcoded<'_>) -> Result<gst::Buffer, gst::FlowError> {
    let mut buffer = gst::Buffer::with_size(made.bytes.len()).map_err(|_| gst::FlowError::Error)?;
    write(buffer.make_mut(), made)?;
    Ok(buffer)
}

/// Puts a packet into a buffer that has room for it.
fn write(buffer: &mut gst::BufferRef, made: &Transcoded<'_>) -> Result<(), gst::FlowError> {
    let time = gst::ClockTime::from_nseconds(made.play_ns);
    buffer.set_size(made.bytes.len());
    buffer.set_pts(time);
    buffer.set_dts(time);
    buffer
        .copy_from_slice(0, made.bytes)
        .map_err(|_| gst::FlowError::Error)
}

/// The relevant fields of a stream's caps.
#[derive(Debug, Clone, Copy)]
struct Input {
    encoding: Encoding,
    clock_rate_hz: u32,
    payload_type: Option<u8>,
}

impl Input {
    fn of(caps: &gst::StructureRef) -> Option<Input> {
        let payload = caps.get::<i32>("payload").ok();
        let payload_type = payload.and_then(|payload| u8::try_from(payload).ok());
        let encoding = match caps.get::<&str>("encoding-name") {
            Ok(name) => encoding_of(name)?,
            // The static payload types of RFC 3551, table 4, are valid without a name.
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
        is_mono.then_some(Input {
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
        _ => "L16",
    }
}

/// Returns the static payload type of an encoding (RFC 3551, table 4). L16 of 8000 Hz has none.
fn default_payload_type(encoding: Encoding) -> u8 {
    match encoding {
        Encoding::Pcmu => 0,
        Encoding::Pcma => 8,
        _ => 96,
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

/// Name of the event in the stock jitter buffer.
const PACKET_LOST: &str = "GstRTPPacketLost";
/// Name of the event in the stock session.
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
            stream: Mutex::new(None),
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

    /// Handles a packet. If it does not grow, it is converted in its own buffer.
    fn chain(&self, mut buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let play_ns = buffer.pts().map(gst::ClockTime::nseconds);
        let is_restart = buffer.flags().contains(gst::BufferFlags::RESYNC);
        let others = SCRATCH.with_borrow_mut(|scratch| {
            let mut stream = lock(&self.stream);
            let stream = stream.as_mut().ok_or(gst::FlowError::NotNegotiated)?;
            {
                let map = buffer.map_readable().map_err(|_| gst::FlowError::Error)?;
                let transcoder = &mut stream.transcoder;
                transcoder.handle_packet(&map, play_ns, is_restart, scratch);
            }
            if scratch.made() != 1 {
                return self.take_made(stream, scratch).map(Some);
            }
            if let Some(made) = stream.transcoder.poll_packet(scratch) {
                self.measure(made.bytes, &stream.plan);
                if made.bytes.len() <= buffer.size() {
                    write(buffer.make_mut(), &made)?
                } else {
                    buffer = new_buffer(&made)?
                }
            }
            Ok(None)
        })?;
        match others {
            Some(others) => self.push_all(others),
            None => self.inline.src_pad.push(buffer),
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
            gst::EventView::Eos(_) => drop(self.work(Transcoder::finish)),
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
        // A session that has found another sender with this SSRC requests a new one (RFC 3550, section 8.2).
        if let Some(collision) = event.structure().filter(|s| s.name() == COLLISION)
            && let Ok(ssrc) = collision.get::<u32>("ssrc")
        {
            if let Some(Stream { transcoder, .. }) = lock(&self.stream).as_mut()
                && transcoder.ssrc() == Ssrc(ssrc)
            {
                transcoder.set_ssrc(Ssrc(glib::random_int()));
            }
            return true;
        }
        gst::Pad::event_default(pad, Some(&*self.obj()), event)
    }

    fn latency(&self) -> gst::ClockTime {
        let stream = lock(&self.stream);
        let delay_ns = stream.as_ref().map_or(0, |s| s.transcoder.delay_ns());
        gst::ClockTime::from_nseconds(delay_ns)
    }

    fn stats(&self) -> gst::Structure {
        let (stats, packets_out) = match &*lock(&self.stream) {
            Some(Stream { transcoder, .. }) => (transcoder.stats(), transcoder.packets_made()),
            None => Default::default(),
        };
        let passed_on = stats.key_packets + stats.noise_packets;
        let dropped = stats.dropped + stats.undecodable;
        let mut structure = gst::Structure::builder("application/x-ts-rtpg711-stats")
            .field("packets-in", stats.packets + passed_on + dropped)
            .field("packets-out", packets_out)
            .field("concealed-ms", stats.concealed_ns / 1_000_000)
            .field("passed-on", passed_on)
            .field("dropped", dropped)
            .build();
        if let Some(meter) = &mut *lock(&self.meter) {
            meter.add_readings(&mut structure);
        }
        structure
    }

    fn forget(&self) {
        *lock(&self.stream) = None;
        *lock(&self.meter) = None;
    }
}
