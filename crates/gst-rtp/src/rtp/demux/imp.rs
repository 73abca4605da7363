//! Properties, pads and states of `ts-rtpdemux`.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use gst::glib::subclass::Signal;
use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use threadbare_runtime::{Agent, AgentHandle, Cx, Precision, Ready, clock_now_ns};

use super::branch::{Branch, OnEnded};
use super::streams::{By, Limits, Streams, Way};
use crate::kit::context::{ContextSettings, Place, WAIT_MS_MAX};
use crate::kit::stats::StatsProperty;
use crate::kit::{add_latency, lock, pad_function};

#[derive(Debug, Clone)]
struct Settings {
    by: By,
    contexts: String,
    context_wait_ms: u32,
    streams_max: u32,
    idle_timeout_ms: u32,
    probation_packets: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            by: By::Ssrc,
            contexts: String::new(),
            context_wait_ms: 0,
            streams_max: STREAMS_DEFAULT,
            idle_timeout_ms: 0,
            probation_packets: PROBATION_DEFAULT,
        }
    }
}

/// Default of the maximum number of streams: more than most ports receive. A pad costs some kilobytes.
const STREAMS_DEFAULT: u32 = 1024;
const STREAMS_MAX: u32 = 65_536;
/// Default of the probation, in packets (RFC 3550, appendix A.1: MIN_SEQUENTIAL).
const PROBATION_DEFAULT: u32 = 2;
const PROBATION_MAX: u32 = 16;
/// Maximum number of contexts: more than the cores of any machine.
const CONTEXTS_MAX: usize = 256;

impl Settings {
    fn limits(&self) -> Limits {
        let idle_ms = Some(self.idle_timeout_ms).filter(|ms| *ms > 0);
        Limits {
            by: self.by,
            streams_max: self.streams_max as usize,
            idle_ns: idle_ms.map(|ms| u64::from(ms) * 1_000_000),
            probation_packets: self.probation_packets,
        }
    }

    /// Returns the contexts, given by number or by name.
    fn contexts(&self, element: &str) -> Vec<ContextSettings> {
        let named = |name: String| ContextSettings::named(name, self.context_wait_ms);
        let text = self.contexts.trim();
        match text.parse::<usize>() {
            Ok(count) => (0..count.min(CONTEXTS_MAX))
                .map(|i| named(format!("{element}-{i}")))
                .collect(),
            Err(_) => (text.split(',').map(str::trim))
                .filter(|name| !name.is_empty())
                .take(CONTEXTS_MAX)
                .map(|name| named(name.to_owned()))
                .collect(),
        }
    }
}

#[derive(Properties)]
#[properties(wrapper_type = super::RtpDemux)]
pub struct RtpDemux {
    #[property(name = "by", nick = "By", blurb = "Field that separates the streams", type = By, get = |s: &Self| s.settings().by, set = |s: &Self, v| s.settings().by = v, builder(By::Ssrc))]
    #[property(name = "contexts", nick = "Contexts", blurb = "Contexts to spread the streams over: their number, or their names separated by commas; empty or 0: the upstream thread pushes all streams", type = String, get = |s: &Self| s.settings().contexts.clone(), set = |s: &Self, v: Option<String>| s.settings().contexts = v.unwrap_or_default(), default = "")]
    #[property(name = "context-wait", nick = "Context wait", blurb = "Length of a slice of the contexts in the property contexts, ms; 0: they handle packets as they arrive", type = u32, get = |s: &Self| s.settings().context_wait_ms, set = |s: &Self, v| s.settings().context_wait_ms = v, maximum = WAIT_MS_MAX, default = 0)]
    #[property(name = "max-streams", nick = "Maximum streams", blurb = "Maximum number of pads; a further stream replaces the stream that has been silent longest", type = u32, get = |s: &Self| s.settings().streams_max, set = |s: &Self, v| s.settings().streams_max = v, minimum = 1, maximum = STREAMS_MAX, default = STREAMS_DEFAULT)]
    #[property(name = "idle-timeout", nick = "Idle timeout", blurb = "Time without packets after which a stream ends and its pad is removed (up to a second later), ms; 0: never", type = u32, get = |s: &Self| s.settings().idle_timeout_ms, set = |s: &Self, v| s.settings().idle_timeout_ms = v, default = 0)]
    #[property(name = "probation", nick = "Probation", blurb = "Number of packets after which a stream gets a pad; earlier packets are queued for the pad", type = u32, get = |s: &Self| s.settings().probation_packets, set = |s: &Self, v| s.settings().probation_packets = v, minimum = 1, maximum = PROBATION_MAX, default = PROBATION_DEFAULT)]
    settings: Mutex<Settings>,
    stats: Mutex<StatsProperty>,
    sink_pad: gst::Pad,
    /// The streams, in PAUSED and PLAYING. The lock is not held across a push, a signal or a change of pads.
    running: Mutex<Option<Running>>,
}

struct Running {
    streams: Streams,
    places: Vec<Place>,
    sweeper: Option<(AgentHandle<Sweeper>, Place)>,
    packets: u64,
}

/// Ends silent streams, even if no input arrives.
struct Sweeper {
    element: glib::WeakRef<super::RtpDemux>,
    every_ns: u64,
}

impl Agent for Sweeper {
    fn label(&self) -> String {
        let element = self.element.upgrade();
        element.map_or_else(String::new, |element| {
            crate::kit::path_of(element.upcast_ref())
        })
    }

    fn run(&mut self, cx: &mut Cx<'_>, _ready: Ready) {
        if let Some(element) = self.element.upgrade() {
            element.imp().sweep();
            self.arm(cx);
        }
    }
}

impl Sweeper {
    fn arm(&self, cx: &Cx<'_>) {
        cx.set_timer(cx.now_ns().saturating_add(self.every_ns), Precision::About);
    }
}

/// Interval of the sweeps: short enough for time-outs in seconds.
const SWEEP_NS: u64 = 500_000_000;

impl RtpDemux {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    fn with_streams<R>(&self, f: impl FnOnce(&mut Streams) -> R) -> Option<R> {
        lock(&self.running).as_mut().map(|r| f(&mut r.streams))
    }

    fn open(&self) -> Result<(), gst::ErrorMessage> {
        let obj = self.obj();
        let element: &gst::Element = obj.upcast_ref();
        let settings = self.settings().clone();
        let contexts = settings.contexts(&obj.name());
        let places = contexts
            .iter()
            .map(|context| context.place(element))
            .collect::<Result<Vec<_>, _>>()?;
        let sweeper = match (settings.idle_timeout_ms, places.first()) {
            (0, _) => None,
            (_, Some(place)) => Some(self.start_sweeper(place.clone())?),
            (_, None) => {
                let place = ContextSettings::default().place(element)?;
                Some(self.start_sweeper(place)?)
            }
        };
        *lock(&self.running) = Some(Running {
            streams: Streams::new(settings.limits()),
            places,
            sweeper,
            packets: 0,
        });
        Ok(())
    }

    fn start_sweeper(
        &self,
        place: Place,
    ) -> Result<(AgentHandle<Sweeper>, Place), gst::ErrorMessage> {
        let sweeper = Sweeper {
            element: self.obj().downgrade(),
            every_ns: SWEEP_NS,
        };
        let handle = (place.shard)
            .call(move |local| local.add_agent(sweeper))
            .map_err(|e| gst::error_msg!(gst::CoreError::StateChange, ["{e}"]))?;
        handle.command(|sweeper: &mut Sweeper, cx| sweeper.arm(cx));
        Ok((handle, place))
    }

    /// Removes all pads, which are inactive.
    fn close(&self) {
        let Some(mut running) = lock(&self.running).take() else {
            return;
        };
        if let Some((sweeper, _)) = running.sweeper.take() {
            sweeper.remove();
        }
        for branch in running.streams.branches() {
            self.ended(&branch);
        }
    }

    fn sweep(&self) {
        let now_ns = clock_now_ns();
        let expired = self.with_streams(|streams| {
            streams.expire(now_ns);
            streams.take_expired()
        });
        self.end(expired.unwrap_or_default());
    }

    fn clear_ssrc(&self, number: u32) {
        let removed = self.with_streams(|streams| streams.remove(number));
        self.end(removed.flatten().into_iter().collect());
    }

    fn end(&self, branches: Vec<Arc<Branch>>) {
        for branch in branches {
            if branch.close() {
                self.ended(&branch);
            }
        }
    }

    /// Removes the pad of a stream whose end has been pushed.
    fn ended(&self, branch: &Arc<Branch>) {
        // Another stream gets the place only after the pad is removed.
        let _ = branch.pad.set_active(false);
        branch.stop();
        if !branch.leave() {
            return;
        }
        let obj = self.obj();
        let removed = obj.remove_pad(&branch.pad).is_ok();
        self.with_streams(|streams| streams.closed(branch));
        if removed {
            obj.emit_by_name::<()>("removed-ssrc-pad", &[&branch.number, &branch.pad]);
        }
    }

    fn chain(&self, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let now_ns = clock_now_ns();
        let (way, expired) = {
            let mut running = lock(&self.running);
            let running = running.as_mut().ok_or(gst::FlowError::Flushing)?;
            running.packets += 1;
            let streams = &mut running.streams;
            let Some(identity) = streams.identify(&buffer) else {
                streams.unmatched += 1;
                return Ok(gst::FlowSuccess::Ok);
            };
            match streams.find(now_ns, identity, &buffer) {
                Way::To(branch) => (Way::To(branch), Vec::new()),
                way => (way, streams.take_expired()),
            }
        };
        self.end(expired);
        match way {
            Way::To(branch) => self.push(&branch, buffer),
            Way::New(route) => match self.open_branch(route) {
                Some((branch, held)) => {
                    for buffer in held {
                        self.push(&branch, buffer)?;
                    }
                    self.push(&branch, buffer)
                }
                None => {
                    self.with_streams(|streams| streams.dropped += 1);
                    Ok(gst::FlowSuccess::Ok)
                }
            },
            Way::Nowhere => Ok(gst::FlowSuccess::Ok),
        }
    }

    /// Pushes into a stream. An error of one stream does not affect the others, so upstream gets only errors that affect all
    /// streams.
    #[inline]
    fn push(
        &self,
        branch: &Branch,
        buffer: gst::Buffer,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        if let Err(error) = branch.push(buffer) {
            if self.sink_pad.pad_flags().contains(gst::PadFlags::FLUSHING) {
                return Err(gst::FlowError::Flushing);
            }
            gst::log!(
                crate::kit::CAT,
                imp = self,
                "{}: {error}",
                branch.pad.name()
            );
            self.with_streams(|streams| streams.dropped += 1);
        }
        Ok(gst::FlowSuccess::Ok)
    }

    /// Creates a stream's pad, if a place is free.
    #[cold]
    fn open_branch(&self, route: usize) -> Option<(Arc<Branch>, Vec<gst::Buffer>)> {
        let obj = self.obj();
        let (number, place) = {
            let mut running = lock(&self.running);
            let running = running.as_mut()?;
            let (number, before) = running.streams.reserve(route)?;
            let places = &running.places;
            let place = (before as usize).checked_rem(places.len());
            (number, place.map(|at| places[at].clone()))
        };
        let branch = self.make_branch(number, place.is_some());
        let _ = branch.pad.set_active(true);
        // The signal's handlers link the pad, and then the stream's events are pushed.
        let added = obj.add_pad(&branch.pad).is_ok();
        obj.emit_by_name::<()>("new-ssrc-pad", &[&number, &branch.pad]);
        if let Some(place) = place
            && let Err(error) = branch.start(obj.upcast_ref(), place)
        {
            self.post_error_message(error);
        }
        for event in self.opening(&branch) {
            branch.push_event(event);
        }
        let opened = self.with_streams(|streams| streams.opened(route, &branch, added));
        match opened {
            Some(Ok(held)) => Some((branch, held)),
            // The branch was stopped or cleared in the meantime.
            _ => {
                self.ended(&branch);
                None
            }
        }
    }

    fn make_branch(&self, number: u32, is_queued: bool) -> Arc<Branch> {
        let obj = self.obj();
        let template = crate::kit::template(obj.class(), "src_%u");
        let pad = gst::Pad::builder_from_template(&template)
            .name(format!("src_{number}"))
            .query_function(|pad, parent, query| {
                pad_function::<RtpDemux, _>(parent, || false, |imp| imp.src_query(pad, query))
            })
            .build();
        let element = obj.downgrade();
        let ended: OnEnded = Arc::new(move |branch: &Arc<Branch>| {
            if let Some(element) = element.upgrade() {
                element.imp().ended(branch);
            }
        });
        Branch::new(pad, number, is_queued, ended)
    }

    /// Events for the start of this stream: the input's events so far, adapted to the stream.
    fn opening(&self, branch: &Branch) -> Vec<gst::Event> {
        let mut events = Vec::new();
        self.sink_pad.sticky_events_foreach(|event| {
            if event.type_() != gst::EventType::Eos
                && let Some(event) = self.event_for(branch, event)
            {
                events.push(event);
            }
            std::ops::ControlFlow::Continue(gst::EventForeachAction::Keep)
        });
        events
    }

    /// Adapts an event of the input to this stream.
    fn event_for(&self, branch: &Branch, event: &gst::Event) -> Option<gst::Event> {
        match event.view() {
            gst::EventView::StreamStart(start) => {
                let id = branch
                    .pad
                    .create_stream_id(&*self.obj(), Some(&format!("{:08x}", branch.number)));
                let own = gst::event::StreamStart::builder(&id)
                    .flags(start.stream_flags())
                    .group_id(start.group_id().unwrap_or_else(gst::GroupId::next));
                let own = own.build();
                // A queued branch announces its own place.
                match Place::announced(event) {
                    Some(place) if !branch.is_queued() => Some(place.announce(own)),
                    _ => Some(own),
                }
            }
            gst::EventView::Caps(caps) => {
                let mut own = caps.caps_owned();
                match self.settings().by {
                    By::Ssrc => own.make_mut().set("ssrc", branch.number),
                    By::PayloadType => own.make_mut().set("payload", branch.number as i32),
                    By::Sender => {}
                }
                Some(gst::event::Caps::new(&own))
            }
            _ => Some(event.clone()),
        }
    }

    fn sink_event(&self, pad: &gst::Pad, event: gst::Event) -> bool {
        let is_flush = matches!(
            event.type_(),
            gst::EventType::FlushStart | gst::EventType::FlushStop
        );
        if !event.is_serialized() && !is_flush {
            return gst::Pad::event_default(pad, Some(&*self.obj()), event);
        }
        let branches = self.with_streams(|streams| {
            if is_flush {
                streams.flush();
            }
            streams.branches()
        });
        for branch in branches.unwrap_or_default() {
            if let Some(event) = self.event_for(&branch, &event) {
                branch.push_event(event);
            }
        }
        true
    }

    fn src_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        let handled = gst::Pad::query_default(pad, Some(&*self.obj()), query);
        if handled {
            add_latency(query, || {
                let branches = self.with_streams(|streams| streams.branches());
                let branch = branches.unwrap_or_default();
                branch
                    .iter()
                    .find(|branch| branch.pad == *pad)
                    .map_or(gst::ClockTime::ZERO, |branch| branch.latency())
            });
        }
        handled
    }

    fn structure(&self) -> gst::Structure {
        let running = lock(&self.running);
        let structure = gst::Structure::builder("application/x-ts-rtpdemux-stats");
        let Some(running) = running.as_ref() else {
            return structure.field("streams", 0u64).build();
        };
        let stats = running.streams.stats();
        structure
            .field("packets", running.packets)
            .field("matched", stats.matched)
            .field("unmatched", running.streams.unmatched + stats.unmatched)
            .field("probation", stats.probation)
            .field("dropped", running.streams.dropped)
            .field("evicted", stats.routes_evicted)
            .field("expired", stats.routes_expired)
            .field("strangers-evicted", stats.strangers_evicted)
            .field("streams", running.streams.pads() as u64)
            .build()
    }
}

#[glib::object_subclass]
impl ObjectSubclass for RtpDemux {
    const NAME: &'static str = "ThreadbareRtpDemux";
    type Type = super::RtpDemux;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        let sink_pad = gst::Pad::builder_from_template(&crate::kit::template(klass, "sink"))
            .chain_function(|_, parent, buffer| {
                let error = || Err(gst::FlowError::Error);
                pad_function::<RtpDemux, _>(parent, error, |imp| imp.chain(buffer))
            })
            .event_function(|pad, parent, event| {
                pad_function::<RtpDemux, _>(parent, || false, |imp| imp.sink_event(pad, event))
            })
            .build();
        RtpDemux {
            settings: Mutex::default(),
            stats: Mutex::default(),
            sink_pad,
            running: Mutex::new(None),
        }
    }
}

impl ObjectImpl for RtpDemux {
    crate::kit::properties_with_groups!(stats);

    fn signals() -> &'static [Signal] {
        static SIGNALS: LazyLock<Vec<Signal>> = LazyLock::new(|| {
            let with_pad = |name| {
                Signal::builder(name)
                    .param_types([u32::static_type(), gst::Pad::static_type()])
                    .build()
            };
            vec![
                with_pad("new-ssrc-pad"),
                with_pad("removed-ssrc-pad"),
                Signal::builder("clear-ssrc")
                    .param_types([u32::static_type()])
                    .action()
                    .class_handler(|values| {
                        let element = values[0].get::<super::RtpDemux>().ok()?;
                        element.imp().clear_ssrc(values[1].get().ok()?);
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
        obj.add_pad(&self.sink_pad)
            .expect("a new element takes its pad");
        *lock(&self.stats) = StatsProperty::of(&*obj, |obj| obj.imp().structure());
    }
}

impl GstObjectImpl for RtpDemux {}

impl ElementImpl for RtpDemux {
    crate::kit::element_class!(
        "Thread-sharing RTP demultiplexer",
        "Demux/Network/RTP",
        "Gives each RTP stream of its input a pad, and spreads the pads over contexts";
        "sink": Sink Always gst::Caps::new_empty_simple("application/x-rtp"),
        "src_%u": Src Sometimes gst::Caps::new_empty_simple("application/x-rtp")
    );

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        match transition {
            gst::StateChange::ReadyToPaused => crate::kit::or_post(self, self.open())?,
            // Release pushers before the pads are deactivated, because the deactivation waits for a pusher that waits here.
            gst::StateChange::PausedToReady => {
                let branches = self.with_streams(|streams| streams.branches());
                for branch in branches.unwrap_or_default() {
                    branch.release();
                }
            }
            _ => {}
        }
        let result = self.parent_change_state(transition);
        if transition == gst::StateChange::PausedToReady {
            self.close();
        }
        result
    }
}
