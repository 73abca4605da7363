//! Properties, pads and states of `ts-rtpjitterbuffer`.

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use gst::glib::subclass::Signal;
use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use threadbare_rtp::jitter::{self, Adaptive, LATENCY_NS_MAX, Skew, capacity_for};

use super::orderer::{Options, Orderer};
use super::reader::{PacketReader, Shared};
use crate::kit::context::ContextSettings;
use crate::kit::crossing::{Crossing, Passes};
use crate::kit::queue::{Item, Leaky, Level, Queue};
use crate::kit::stats::StatsProperty;
use crate::kit::time::RunningTime;
use crate::kit::{lock, pad_function};
use crate::rtp::source::ClockSkew;

/// Modes, with the stock element's numbers and nicks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "ThreadbareRtpJitterBufferMode")]
#[repr(i32)]
#[allow(unreachable_pub, reason = "the type of a public property")]
pub enum Mode {
    #[enum_value(name = "Only use RTP timestamps", nick = "none")]
    None = 0,
    #[default]
    #[enum_value(name = "Slave receiver to sender clock", nick = "slave")]
    Slave = 1,
    #[enum_value(name = "Not honoured: the same as slave", nick = "buffer")]
    Buffer = 2,
    #[enum_value(
        name = "Synchronized sender and receiver clocks: the same as none",
        nick = "synced"
    )]
    Synced = 4,
}

#[derive(Debug, Clone)]
struct Settings {
    latency_ms: u32,
    drop_on_latency: bool,
    do_lost: bool,
    mode: Mode,
    adaptive: bool,
    max_dropout_ms: u32,
    max_misorder_ms: u32,
    ts_offset_ns: i64,
    faststart_packets: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            latency_ms: LATENCY_MS_DEFAULT,
            drop_on_latency: false,
            do_lost: false,
            mode: Mode::Slave,
            adaptive: false,
            max_dropout_ms: MAX_DROPOUT_MS_DEFAULT,
            max_misorder_ms: MAX_MISORDER_MS_DEFAULT,
            ts_offset_ns: 0,
            faststart_packets: 0,
        }
    }
}

/// Default latency, the stock element's.
const LATENCY_MS_DEFAULT: u32 = 200;
const LATENCY_MS_MAX: u32 = (LATENCY_NS_MAX / 1_000_000) as u32;
const MAX_DROPOUT_MS_DEFAULT: u32 = 60_000;
const MAX_DROPOUT_MS_MAX: u32 = i32::MAX as u32;
const MAX_MISORDER_MS_DEFAULT: u32 = 2_000;
/// Maximum number of packets queued before the jitter buffer. An ordinary thread that pushes more blocks.
const WAITING_PACKETS_MAX: u32 = 200;

impl Settings {
    fn clock_skew(&self) -> ClockSkew {
        match self.mode {
            Mode::None | Mode::Synced => ClockSkew::None,
            Mode::Slave | Mode::Buffer => ClockSkew::Window,
        }
    }

    fn set_clock_skew(&mut self, skew: ClockSkew) {
        if skew != self.clock_skew() {
            self.mode = match skew {
                ClockSkew::None => Mode::None,
                ClockSkew::Window => Mode::Slave,
            };
        }
    }

    /// Returns the jitter buffer's settings. Until a packet's clock rate is known, it is that of telephony.
    fn jitter(&self) -> jitter::Config {
        let latency_ns = u64::from(self.latency_ms) * 1_000_000;
        jitter::Config {
            drop_on_latency: self.drop_on_latency,
            skew: match self.clock_skew() {
                ClockSkew::Window => Skew::Window,
                ClockSkew::None => Skew::None,
            },
            // The latency reported to the pipeline is the maximum.
            adaptive: self.adaptive.then_some(Adaptive {
                min_ns: 0,
                max_ns: latency_ns,
            }),
            max_dropout_ms: self.max_dropout_ms,
            max_misorder_ms: self.max_misorder_ms,
            // Room for 5 s of the usual packets, or for a longer latency.
            capacity_packets: capacity_for(latency_ns, 10_000_000).max(256),
            ..jitter::Config::new(8000, latency_ns)
        }
    }

    fn options(&self) -> Options {
        Options {
            do_lost: self.do_lost,
            ts_offset_ns: self.ts_offset_ns,
            faststart_packets: self.faststart_packets,
        }
    }

    /// Sets the limits of the input queue. A packet that is in order waits there only while downstream is busy. With
    /// `drop-on-latency`, queued packets may be dropped.
    fn limit(&self, items: &Queue) {
        let (leaky, time_ns) = if self.drop_on_latency {
            (Leaky::Downstream, u64::from(self.latency_ms) * 1_000_000)
        } else {
            (Leaky::No, 0)
        };
        let max = Level {
            buffers: WAITING_PACKETS_MAX,
            bytes: 0,
            time_ns,
        };
        items.limit(leaky, max);
    }
}

#[derive(Properties)]
#[properties(wrapper_type = super::RtpJitterBuffer)]
pub struct RtpJitterBuffer {
    #[property(name = "latency", nick = "Latency", blurb = "Playout delay of the jitter buffer, which is also the longest wait for a missing packet, ms", type = u32, get = |s: &Self| s.settings().latency_ms, set = |s: &Self, v| s.configure(|settings| settings.latency_ms = v), maximum = LATENCY_MS_MAX, default = LATENCY_MS_DEFAULT)]
    #[property(name = "drop-on-latency", nick = "Drop on latency", blurb = "Drop the oldest packets instead of holding more than the latency", type = bool, get = |s: &Self| s.settings().drop_on_latency, set = |s: &Self, v| s.configure(|settings| settings.drop_on_latency = v), default = false)]
    #[property(name = "do-lost", nick = "Do lost", blurb = "Push a GstRTPPacketLost event for packets that miss their deadline; consecutive packets share one event", type = bool, get = |s: &Self| s.settings().do_lost, set = |s: &Self, v| s.configure(|settings| settings.do_lost = v), default = false)]
    #[property(name = "mode", nick = "Mode", blurb = "Method of following the sender's clock", type = Mode, get = |s: &Self| s.settings().mode, set = |s: &Self, v| s.settings().mode = v, builder(Mode::Slave))]
    #[property(name = "clock-skew", nick = "Clock skew", blurb = "Method of following the sender's clock; the same as mode, named as in ts-rtpsrc", type = ClockSkew, get = |s: &Self| s.settings().clock_skew(), set = |s: &Self, v| s.settings().set_clock_skew(v), builder(ClockSkew::Window))]
    #[property(name = "adaptive", nick = "Adaptive", blurb = "Adapt the playout delay to the network jitter, up to latency", type = bool, get = |s: &Self| s.settings().adaptive, set = |s: &Self, v| s.settings().adaptive = v, default = false)]
    #[property(name = "max-dropout-time", nick = "Maximum dropout time", blurb = "Largest step forward in the sequence numbers that counts as a loss, ms; a larger one is a restart of the stream", type = u32, get = |s: &Self| s.settings().max_dropout_ms, set = |s: &Self, v| s.configure(|settings| settings.max_dropout_ms = v), maximum = MAX_DROPOUT_MS_MAX, default = MAX_DROPOUT_MS_DEFAULT)]
    #[property(name = "max-misorder-time", nick = "Maximum misorder time", blurb = "Largest step back in the sequence numbers that counts as a late packet, ms; a larger one is a restart of the stream", type = u32, get = |s: &Self| s.settings().max_misorder_ms, set = |s: &Self, v| s.configure(|settings| settings.max_misorder_ms = v), default = MAX_MISORDER_MS_DEFAULT)]
    #[property(name = "ts-offset", nick = "Timestamp offset", blurb = "Offset added to the timestamps of the output, ns", type = i64, get = |s: &Self| s.settings().ts_offset_ns, set = |s: &Self, v| s.configure(|settings| settings.ts_offset_ns = v), default = 0)]
    #[property(name = "faststart-min-packets", nick = "Packets for a fast start", blurb = "Number of consecutive packets after which output starts; 0: output starts after the latency", type = u32, get = |s: &Self| s.settings().faststart_packets, set = |s: &Self, v| s.configure(|settings| settings.faststart_packets = v), default = 0)]
    #[property(name = "percent", nick = "Percent", blurb = "Duration of the buffered packets, percent of the latency", type = i32, get = |s: &Self| s.shared().map_or(0, |shared| lock(&shared.orderer).percent()), minimum = 0, maximum = 100)]
    settings: Mutex<Settings>,
    context: Mutex<ContextSettings>,
    stats: Mutex<StatsProperty>,
    items: Queue,
    sink_pad: gst::Pad,
    crossing: Crossing<PacketReader>,
    /// The state shared with the reader, in PAUSED and PLAYING.
    shared: Arc<Mutex<Option<Arc<Shared>>>>,
}

impl RtpJitterBuffer {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    fn shared(&self) -> Option<Arc<Shared>> {
        lock(&self.shared).clone()
    }

    /// Changes a setting that also takes effect while playing.
    fn configure(&self, change: impl FnOnce(&mut Settings)) {
        let (settings, latency_changed) = {
            let mut settings = self.settings();
            let before_ms = settings.latency_ms;
            change(&mut settings);
            (settings.clone(), settings.latency_ms != before_ms)
        };
        settings.limit(&self.items);
        if let Some(shared) = self.shared() {
            lock(&shared.orderer).configure(settings.jitter(), settings.options());
            if let Some(waker) = self.crossing.driver().waker() {
                waker.wake();
            }
            if latency_changed {
                let message = gst::message::Latency::builder().src(&*self.obj()).build();
                let _ = self.obj().post_message(message);
            }
        }
    }

    fn open(&self) -> Result<(), gst::ErrorMessage> {
        let settings = self.settings().clone();
        let orderer = Orderer::new(settings.jitter(), settings.options())
            .map_err(|e| gst::error_msg!(gst::ResourceError::Settings, ["{e}"]))?;
        *lock(&self.shared) = Some(Arc::new(Shared::new(orderer)));
        settings.limit(&self.items);
        self.crossing.open(self.obj().upcast_ref(), &self.context)
    }

    fn chain(&self, mut item: Item) -> Result<gst::FlowSuccess, gst::FlowError> {
        if let Item::Buffer(buffer) = &mut item
            && buffer.dts_or_pts().is_none()
        {
            self.stamp(buffer);
        }
        self.crossing
            .chain(self.obj().upcast_ref(), &self.context, &self.sink_pad, item)
    }

    /// Sets the time of a packet that has none to the present time.
    #[cold]
    fn stamp(&self, buffer: &mut gst::Buffer) {
        let segment = self.sink_pad.sticky_event::<gst::event::Segment>(0);
        let segment = segment.as_ref().and_then(|event| {
            let segment = event.segment();
            segment.downcast_ref::<gst::ClockTime>().cloned()
        });
        let now = self.obj().current_running_time();
        let position =
            segment.and_then(|segment| now.and_then(|now| segment.position_from_running_time(now)));
        if position.is_some() {
            buffer.make_mut().set_dts(position);
        }
    }

    fn sink_event(&self, pad: &gst::Pad, event: gst::Event) -> bool {
        self.crossing
            .sink_event(self.obj().upcast_ref(), &self.context, pad, event)
    }

    fn sink_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        self.crossing
            .sink_query(self.obj().upcast_ref(), &self.context, pad, query)
    }

    fn src_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        let gst::QueryViewMut::Latency(latency) = query.view_mut() else {
            return gst::Pad::query_default(pad, Some(&*self.obj()), query);
        };
        let mut upstream = gst::query::Latency::new();
        if !self.sink_pad.peer_query(&mut upstream) {
            return false;
        }
        let (_, min, _) = upstream.result();
        if let Some(shared) = self.shared() {
            shared.upstream_ns.store(min.nseconds(), Ordering::Relaxed);
        }
        let own = gst::ClockTime::from_mseconds(self.settings().latency_ms.into());
        let slice = self.crossing.latency(&self.context);
        // The element waits for missing packets by the clock, so it is live, and its maximum latency is unlimited.
        latency.set(true, min + own + slice, gst::ClockTime::NONE);
        true
    }

    fn clear_pt_map(&self) {
        if let Some(shared) = self.shared() {
            lock(&shared.orderer).clear_told();
        }
    }

    fn structure(&self) -> gst::Structure {
        let (stats, unknown, malformed) = self.shared().map_or_else(Default::default, |shared| {
            let orderer = lock(&shared.orderer);
            let malformed = shared.malformed.load(Ordering::Relaxed);
            (orderer.stats(), orderer.unknown(), malformed)
        });
        gst::Structure::builder("application/x-rtp-jitterbuffer-stats")
            .field("num-pushed", stats.delivered)
            .field("num-lost", stats.lost)
            .field("num-late", stats.late)
            .field("num-duplicates", stats.duplicates)
            .field("avg-jitter", stats.jitter_ns)
            // The element sends no retransmission requests.
            .field("rtx-count", 0u64)
            .field("rtx-success-count", 0u64)
            .field("rtx-per-packet", 0f64)
            .field("rtx-rtt", 0u64)
            .field("num-dropped", stats.dropped())
            .field("num-resyncs", stats.resyncs)
            .field("num-held", stats.held_packets)
            .field("malformed", malformed)
            .field("unknown-payload-type", unknown)
            .field("latency", stats.latency_ns)
            .field("skew", stats.skew_ns)
            .build()
    }
}

#[glib::object_subclass]
impl ObjectSubclass for RtpJitterBuffer {
    const NAME: &'static str = "ThreadbareRtpJitterBuffer";
    type Type = super::RtpJitterBuffer;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        let error = || Err(gst::FlowError::Error);
        let no = || false;
        let sink_pad = gst::Pad::builder_from_template(&crate::kit::template(klass, "sink"))
            .chain_function(move |_, parent, buffer| {
                pad_function::<RtpJitterBuffer, _>(parent, error, |imp| {
                    imp.chain(Item::Buffer(buffer))
                })
            })
            .chain_list_function(move |_, parent, list| {
                pad_function::<RtpJitterBuffer, _>(parent, error, |imp| imp.chain(Item::List(list)))
            })
            .event_function(move |pad, parent, event| {
                pad_function::<RtpJitterBuffer, _>(parent, no, |imp| imp.sink_event(pad, event))
            })
            .query_function(move |pad, parent, query| {
                pad_function::<RtpJitterBuffer, _>(parent, no, |imp| imp.sink_query(pad, query))
            })
            .flags(gst::PadFlags::PROXY_CAPS | gst::PadFlags::PROXY_ALLOCATION)
            .build();
        let src_pad = gst::Pad::builder_from_template(&crate::kit::template(klass, "src"))
            .event_function(move |_, parent, event| {
                pad_function::<RtpJitterBuffer, _>(parent, no, |imp| {
                    imp.crossing.src_event(imp.obj().upcast_ref(), event)
                })
            })
            .query_function(move |pad, parent, query| {
                pad_function::<RtpJitterBuffer, _>(parent, no, |imp| imp.src_query(pad, query))
            })
            .flags(gst::PadFlags::PROXY_CAPS | gst::PadFlags::PROXY_ALLOCATION)
            .build();
        let items = Queue::new(|_| {});
        let shared = Arc::new(Mutex::new(None::<Arc<Shared>>));
        let (of_reader, shared_by_reader) = ((items.clone(), src_pad.clone()), shared.clone());
        let make = move |element: &gst::Element| {
            let shared = lock(&shared_by_reader).clone();
            let shared = shared.expect("it is open while it has a task");
            PacketReader::new(element, of_reader.0.clone(), of_reader.1.clone(), shared)
        };
        RtpJitterBuffer {
            settings: Mutex::default(),
            context: Mutex::default(),
            stats: Mutex::default(),
            crossing: Crossing::new(items.clone(), src_pad, Passes::Otherwise, make),
            items,
            sink_pad,
            shared,
        }
    }
}

impl ObjectImpl for RtpJitterBuffer {
    crate::kit::properties_with_groups!(context, stats);

    fn signals() -> &'static [Signal] {
        static SIGNALS: LazyLock<Vec<Signal>> = LazyLock::new(|| {
            vec![
                Signal::builder("request-pt-map")
                    .param_types([u32::static_type()])
                    .return_type::<Option<gst::Caps>>()
                    .build(),
                Signal::builder("clear-pt-map")
                    .action()
                    .class_handler(|values| {
                        let element = values[0].get::<super::RtpJitterBuffer>().ok()?;
                        element.imp().clear_pt_map();
                        None
                    })
                    .build(),
            ]
        });
        &SIGNALS
    }

    fn constructed(&self) {
        self.parent_constructed();
        let obj = self.obj();
        self.crossing.add_to(&*obj, &self.sink_pad);
        *lock(&self.stats) = StatsProperty::of(&*obj, |obj| obj.imp().structure());
    }
}

impl GstObjectImpl for RtpJitterBuffer {}

impl ElementImpl for RtpJitterBuffer {
    crate::kit::element_class!(
        "Thread-sharing RTP jitter buffer",
        "Filter/Network/RTP",
        "Orders RTP packets, smooths their times and reports losses, on the thread of a shared context";
        "sink": Sink Always gst::Caps::new_empty_simple("application/x-rtp"),
        "src": Src Always gst::Caps::new_empty_simple("application/x-rtp")
    );

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        match transition {
            gst::StateChange::ReadyToPaused => crate::kit::or_post(self, self.open())?,
            gst::StateChange::PlayingToPaused => self.crossing.pause(),
            gst::StateChange::PausedToReady => self.crossing.release(),
            _ => {}
        }
        let result = self.parent_change_state(transition);
        match transition {
            gst::StateChange::PausedToReady => {
                self.crossing.close();
                *lock(&self.shared) = None;
            }
            _ if result.is_err() => {}
            gst::StateChange::PausedToPlaying => {
                self.crossing.start(RunningTime::of(&*self.obj()));
            }
            // The element waits by the clock, which runs only in PLAYING.
            gst::StateChange::ReadyToPaused | gst::StateChange::PlayingToPaused => {
                return Ok(gst::StateChangeSuccess::NoPreroll);
            }
            _ => {}
        }
        result
    }

    fn set_clock(&self, clock: Option<&gst::Clock>) -> bool {
        let accepted = self.parent_set_clock(clock);
        let time = RunningTime::with_clock(&*self.obj(), clock.cloned());
        self.crossing
            .driver()
            .with_producer(move |reader, _| crate::kit::source::Producer::set_time(reader, time));
        accepted
    }
}
