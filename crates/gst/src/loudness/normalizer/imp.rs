//! Properties, pads and events of `audioloudnorm`.

use std::sync::{LazyLock, Mutex, MutexGuard};

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use gst_audio::AudioInfo;
use threadbare_loudness::NormalizerSettings;

use super::super::frames::{Format, template_caps};
use super::held::{Counts, Feed, Held, Item};
use super::timeline::Arrival;
use crate::kit::inline::{self, Inline, InlineElement};
use crate::kit::lock;

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "audioloudnorm",
        gst::DebugColorFlags::empty(),
        Some("Loudness normalisation"),
    )
});

const INTERVAL_NS_DEFAULT: u64 = 1_000_000_000;
/// Below, there is no K-weighting.
const RATE_HZ_LEAST: u32 = 4_000;
/// What is held, and said before there are caps.
const LATENCY: gst::ClockTime = gst::ClockTime::from_seconds(3);
/// A gap that is longer than this is no part of the programme: what is held comes out, and downstream gets the gap as it is.
const GAP_MAX: gst::ClockTime = gst::ClockTime::from_seconds(10);

#[derive(Properties)]
#[properties(wrapper_type = super::AudioLoudNorm)]
pub struct AudioLoudNorm {
    #[property(name = "loudness-target", nick = "Loudness target", blurb = "Target loudness, LUFS", type = f64, get = |s: &Self| s.told().loudness_target_lufs, set = |s: &Self, v| s.tell(|told| told.loudness_target_lufs = v), minimum = -70.0, maximum = -5.0, default = -24.0, mutable_playing, controllable)]
    #[property(name = "loudness-range-target", nick = "Loudness range target", blurb = "Target loudness range, LU", type = f64, get = |s: &Self| s.told().loudness_range_target_lu, set = |s: &Self, v| s.tell(|told| told.loudness_range_target_lu = v), minimum = 1.0, maximum = 20.0, default = 7.0, mutable_playing, controllable)]
    #[property(name = "max-true-peak", nick = "Maximum true peak", blurb = "Limit of the true peak, dBTP", type = f64, get = |s: &Self| s.told().max_true_peak_dbtp, set = |s: &Self, v| s.tell(|told| told.max_true_peak_dbtp = v), minimum = -9.0, maximum = 0.0, default = -2.0, mutable_playing, controllable)]
    #[property(name = "offset", nick = "Offset", blurb = "Added to the gain, before the limiter, LU", type = f64, get = |s: &Self| s.told().offset_lu, set = |s: &Self, v| s.tell(|told| told.offset_lu = v), minimum = -99.0, maximum = 99.0, default = 0.0, mutable_playing, controllable)]
    #[property(name = "post-messages", nick = "Post messages", blurb = "Post an element message audioloudnorm at the end of each interval", type = bool, get = |s: &Self| s.stream().is_posting, set = |s: &Self, v| s.stream().is_posting = v, default = false, mutable_playing)]
    #[property(name = "interval", nick = "Interval", blurb = "Interval between messages, ns of audio", type = u64, get = |s: &Self| s.stream().interval_ns, set = |s: &Self, v| s.stream().interval_ns = v, default = INTERVAL_NS_DEFAULT, mutable_playing)]
    /// Entered by the thread that pushes, and by those that set or read properties. Not held across a push or a message.
    stream: Mutex<Stream>,
    inline: Inline,
}

struct Stream {
    told: NormalizerSettings,
    is_posting: bool,
    interval_ns: u64,
    /// Frames that have gone out when the last message was due.
    reported: u64,
    segment: Option<gst::Segment>,
    /// Since the first caps.
    held: Option<Held>,
}

impl Stream {
    /// Latency of the stream, from the caps once there are some.
    fn latency(&self) -> gst::ClockTime {
        self.held.as_ref().map_or(LATENCY, Held::latency)
    }

    /// The message that is due, if one is.
    fn report(&mut self) -> Option<gst::Structure> {
        let held = self.held.as_mut()?;
        let frames = held.counts.frames_out;
        let interval = held.frames_in_ns(self.interval_ns).max(1);
        if frames < self.reported.saturating_add(interval) {
            return None;
        }
        self.reported = frames - frames % interval;
        let timestamp = held.time_out();
        let segment = self.segment.as_ref();
        let segment = segment.and_then(|s| s.downcast_ref::<gst::ClockTime>());
        let structure = gst::Structure::builder("audioloudnorm")
            .field("timestamp", timestamp)
            .field(
                "running-time",
                segment.and_then(|s| s.to_running_time(timestamp)),
            )
            .field(
                "stream-time",
                segment.and_then(|s| s.to_stream_time(timestamp)),
            );
        let mut structure = structure.build();
        add_state(&mut structure, held);
        held.forget_limiter();
        self.is_posting.then_some(structure)
    }
}

fn add_state(structure: &mut gst::StructureRef, held: &Held) {
    let state = held.state();
    structure.set("gain", state.gain_db);
    structure.set("limiter-gain", state.limiter_db);
    structure.set("shortterm-loudness-in", state.short_term_in_lufs);
    structure.set("shortterm-loudness-out", state.short_term_out_lufs);
    structure.set("global-loudness-out", state.integrated_out_lufs);
    structure.set("true-peak-out", state.true_peak_out_dbtp);
}

/// What else becomes of the stream once all that is held is out.
enum After {
    /// It goes on elsewhere.
    Restart,
    /// It is over.
    End,
}

type Flow = Result<gst::FlowSuccess, gst::FlowError>;

impl AudioLoudNorm {
    fn stream(&self) -> MutexGuard<'_, Stream> {
        lock(&self.stream)
    }

    fn told(&self) -> NormalizerSettings {
        self.stream().told
    }

    fn tell(&self, change: impl FnOnce(&mut NormalizerSettings)) {
        let mut stream = self.stream();
        change(&mut stream.told);
        let told = stream.told;
        if let Some(held) = &mut stream.held
            && let Err(error) = held.set_settings(told)
        {
            gst::warning!(CAT, imp = self, "{error}");
        }
    }

    fn refuse(&self, error: &str) -> gst::FlowError {
        gst::element_imp_error!(self, gst::StreamError::Format, ["a buffer: {error}"]);
        gst::FlowError::Error
    }

    /// Something comes in that has this time: what is missing before it is filled, or what is held comes out first.
    fn arrive(&self, pts: Option<gst::ClockTime>) -> Flow {
        let arrival = match &mut self.stream().held {
            Some(held) => held.arrive(pts),
            None => return Ok(gst::FlowSuccess::Ok),
        };
        match arrival {
            Arrival::Follows => {}
            Arrival::Missing(frames) => {
                gst::debug!(CAT, imp = self, "{frames} frames are missing");
                self.pass(Feed::silence(frames))?;
                if let (Some(held), Some(pts)) = (&mut self.stream().held, pts) {
                    held.anchor(pts);
                }
            }
            Arrival::Elsewhere => {
                gst::debug!(CAT, imp = self, "goes on at {pts:?}");
                self.drain(After::Restart)?;
                if let Some(held) = &mut self.stream().held {
                    held.counts.jumps += 1;
                    held.arrive(pts);
                }
            }
        }
        Ok(gst::FlowSuccess::Ok)
    }

    /// Takes a buffer in and pushes the output.
    fn pass(&self, mut feed: Feed) -> Flow {
        loop {
            let added = match &mut self.stream().held {
                Some(held) => held.add(&mut feed).map_err(|error| error.to_string()),
                None => return Err(gst::FlowError::Flushing),
            };
            added.map_err(|error| self.refuse(&error))?;
            if feed.is_done() {
                return self.push_ready(feed.spare());
            }
            self.push_ready(None)?;
        }
    }

    fn push_ready(&self, mut spare: Option<gst::Buffer>) -> Flow {
        loop {
            let (next, report) = {
                let mut stream = self.stream();
                let Some(held) = &mut stream.held else {
                    return Ok(gst::FlowSuccess::Ok);
                };
                let next = held.next(spare.take());
                (next, stream.report())
            };
            if let Some(structure) = report {
                let obj = self.obj();
                let message = gst::message::Element::builder(structure).src(&*obj).build();
                // Nobody listens: an element outside of a pipeline has no bus.
                let _ = obj.post_message(message);
            }
            match next {
                Ok(None) => return Ok(gst::FlowSuccess::Ok),
                Ok(Some(Item::Buffer(buffer))) => {
                    self.inline.src_pad.push(buffer)?;
                }
                Ok(Some(Item::Event(event))) => {
                    self.inline.src_pad.push_event(event);
                }
                Err(error) => {
                    gst::element_imp_error!(self, gst::ResourceError::Failed, ["{error}"]);
                    return Err(gst::FlowError::Error);
                }
            }
        }
    }

    /// All that is held goes out. If downstream does not take it, the rest is forgotten.
    fn drain(&self, after: After) -> Flow {
        match &mut self.stream().held {
            Some(held) => held.drain(),
            None => return Ok(gst::FlowSuccess::Ok),
        }
        let result = self.push_ready(None);
        if let Some(held) = &mut self.stream().held {
            match after {
                After::Restart => held.restart(),
                After::End => held.flush(&self.inline.src_pad),
            }
        }
        result
    }

    /// A gap is silence.
    fn gap(
        &self,
        pad: &gst::Pad,
        (time, duration): (gst::ClockTime, Option<gst::ClockTime>),
        event: &gst::Event,
    ) -> bool {
        let is_long = duration.is_none_or(|duration| duration > GAP_MAX);
        if is_long || self.stream().held.is_none() {
            let _ = self.drain(After::Restart);
            return gst::Pad::event_default(pad, Some(&*self.obj()), event.clone());
        }
        if self.arrive(Some(time)).is_err() {
            return false;
        }
        let until = time + duration.unwrap_or_default();
        let frames = (self.stream().held.as_ref()).map_or(0, |held| held.frames_until(until));
        self.pass(Feed::silence(frames)).is_ok()
    }

    fn set_format(&self, format: Format, info: AudioInfo) -> Result<(), String> {
        let latency = {
            let stream = self.stream();
            if (stream.held.as_ref()).is_some_and(|held| *held.format() == format) {
                return Ok(());
            }
            stream.latency()
        };
        let _ = self.drain(After::End);
        let mut stream = self.stream();
        let before = stream.held.take();
        let counts = before.map_or(Counts::default(), |held| held.counts);
        let mut held = Held::new(format, info, stream.told).map_err(|error| error.to_string())?;
        held.counts = counts;
        stream.held = Some(held);
        let is_other = stream.latency() != latency;
        drop(stream);
        if is_other {
            let obj = self.obj();
            let _ = obj.post_message(gst::message::Latency::builder().src(&*obj).build());
        }
        Ok(())
    }
}

#[glib::object_subclass]
impl ObjectSubclass for AudioLoudNorm {
    const NAME: &'static str = "ThreadbareAudioLoudNorm";
    type Type = super::AudioLoudNorm;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        AudioLoudNorm {
            stream: Mutex::new(Stream {
                told: NormalizerSettings::default(),
                is_posting: false,
                interval_ns: INTERVAL_NS_DEFAULT,
                reported: 0,
                segment: None,
                held: None,
            }),
            inline: Inline::new::<Self, _>(klass, gst::PadFlags::PROXY_CAPS),
        }
    }
}

impl ObjectImpl for AudioLoudNorm {
    crate::kit::properties_with_groups!(inline.stats);

    fn constructed(&self) {
        self.parent_constructed();
        inline::constructed(self);
    }
}

impl GstObjectImpl for AudioLoudNorm {}

impl ElementImpl for AudioLoudNorm {
    crate::kit::element_class!(
        "EBU R128 loudness normaliser",
        "Filter/Effect/Audio",
        "Normalises live audio to a target loudness with a true-peak limit, on the upstream thread";
        "sink": Sink Always template_caps(RATE_HZ_LEAST),
        "src": Src Always template_caps(RATE_HZ_LEAST)
    );

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        inline::change_state(self, transition, || self.parent_change_state(transition))
    }
}

impl InlineElement for AudioLoudNorm {
    fn inline(&self) -> &Inline {
        &self.inline
    }

    fn chain(&self, buffer: gst::Buffer) -> Flow {
        let pts = buffer.pts();
        if self.obj().has_active_control_bindings() {
            let segment = self.stream().segment.clone();
            let segment = segment.and_then(|s| s.downcast::<gst::ClockTime>().ok());
            if let Some(time) = segment.and_then(|s| s.to_stream_time(pts)) {
                let _ = self.obj().sync_values(time);
            }
        }
        self.arrive(pts)?;
        let feed = {
            let mut stream = self.stream();
            let Some(held) = &mut stream.held else {
                drop(stream);
                gst::element_imp_error!(self, gst::CoreError::Negotiation, ["no caps came"]);
                return Err(gst::FlowError::NotNegotiated);
            };
            held.feed(buffer).map_err(|error| error.to_string())
        };
        match feed {
            Ok(feed) => self.pass(feed),
            Err(error) => Err(self.refuse(&error)),
        }
    }

    fn sink_event(&self, pad: &gst::Pad, event: gst::Event) -> bool {
        use gst::EventView as View;
        match event.view() {
            View::Caps(caps) => {
                let format = AudioInfo::from_caps(caps.caps())
                    .map_err(|error| error.to_string())
                    .and_then(|info| Ok((Format::of(&info).map_err(|e| e.to_string())?, info)));
                if let Err(reason) = format.and_then(|(format, info)| self.set_format(format, info))
                {
                    gst::element_imp_error!(
                        self,
                        gst::StreamError::Format,
                        ["{}: {reason}", caps.caps()]
                    );
                    return false;
                }
            }
            View::Segment(segment) => {
                let segment = segment.segment();
                if self.stream().segment.as_ref() != Some(segment) {
                    let _ = self.drain(After::Restart);
                    self.stream().segment = Some(segment.clone());
                }
            }
            View::Gap(gap) => return self.gap(pad, gap.get(), &event),
            View::StreamStart(_) => {
                let _ = self.drain(After::End);
            }
            View::SegmentDone(_) | View::Eos(_) => {
                let _ = self.drain(After::Restart);
            }
            View::FlushStop(_) => {
                let mut stream = self.stream();
                stream.segment = None;
                if let Some(held) = &mut stream.held {
                    held.flush(&self.inline.src_pad);
                }
            }
            _ => {}
        }
        let event = match &mut self.stream().held {
            Some(held) if event.is_serialized() => held.hold(event),
            _ => Some(event),
        };
        // Where it is held, it goes out behind what came in before it.
        event.is_none_or(|event| gst::Pad::event_default(pad, Some(&*self.obj()), event))
    }

    fn sink_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        match query.type_() {
            // The output is in buffers of its own.
            gst::QueryType::Allocation => return false,
            // The answer is to be about what has come in so far.
            _ if query.is_serialized() => {
                let _ = self.drain(After::Restart);
            }
            _ => {}
        }
        gst::Pad::query_default(pad, Some(&*self.obj()), query)
    }

    fn latency(&self) -> gst::ClockTime {
        self.stream().latency()
    }

    fn stats(&self) -> gst::Structure {
        let stream = self.stream();
        let counts = stream
            .held
            .as_ref()
            .map_or(Counts::default(), |held| held.counts);
        let mut structure = gst::Structure::builder("application/x-audioloudnorm-stats")
            .field("frames-in", counts.frames_in)
            .field("frames-out", counts.frames_out)
            .field("frames-filled", counts.frames_filled)
            .field("jumps", counts.jumps)
            .build();
        if let Some(held) = &stream.held {
            add_state(&mut structure, held);
        }
        structure
    }

    fn forget(&self) {
        let mut stream = self.stream();
        (stream.held, stream.segment, stream.reported) = (None, None, 0);
    }
}
