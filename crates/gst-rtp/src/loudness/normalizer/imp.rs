//! Properties, pads and events of `audioloudnorm`.

use std::sync::{LazyLock, Mutex, MutexGuard};

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use gst_audio::AudioInfo;
use threadbare_loudness::NormalizerSettings;

use super::super::frames::{Format, template_caps};
use super::queue::{Counts, Feed, Item, NormalizerQueue};
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
/// Minimum rate. The K-weighting is undefined below it.
const RATE_HZ_LEAST: u32 = 4_000;
/// The normaliser's delay, which is reported even before the caps are known.
const LATENCY: gst::ClockTime = gst::ClockTime::from_seconds(3);
/// Maximum gap that is filled. A longer gap is not part of the programme: queued audio leaves first, and then downstream gets the
/// gap unchanged.
const GAP_MAX: gst::ClockTime = gst::ClockTime::from_seconds(10);

#[derive(Properties)]
#[properties(wrapper_type = super::AudioLoudNorm)]
pub struct AudioLoudNorm {
    #[property(name = "loudness-target", nick = "Loudness target", blurb = "Target loudness, LUFS", type = f64, get = |s: &Self| s.told().loudness_target_lufs, set = |s: &Self, v| s.tell(|told| told.loudness_target_lufs = v), minimum = -70.0, maximum = -5.0, default = -24.0, mutable_playing, controllable)]
    #[property(name = "loudness-range-target", nick = "Loudness range target", blurb = "Target loudness range, LU", type = f64, get = |s: &Self| s.told().loudness_range_target_lu, set = |s: &Self, v| s.tell(|told| told.loudness_range_target_lu = v), minimum = 1.0, maximum = 20.0, default = 7.0, mutable_playing, controllable)]
    #[property(name = "max-true-peak", nick = "Maximum true peak", blurb = "Limit of the true peak, dBTP", type = f64, get = |s: &Self| s.told().max_true_peak_dbtp, set = |s: &Self, v| s.tell(|told| told.max_true_peak_dbtp = v), minimum = -9.0, maximum = 0.0, default = -2.0, mutable_playing, controllable)]
    #[property(name = "offset", nick = "Offset", blurb = "Offset added to the gain before the limiter, LU", type = f64, get = |s: &Self| s.told().offset_lu, set = |s: &Self, v| s.tell(|told| told.offset_lu = v), minimum = -99.0, maximum = 99.0, default = 0.0, mutable_playing, controllable)]
    #[property(name = "post-messages", nick = "Post messages", blurb = "Post an element message audioloudnorm at the end of each interval", type = bool, get = |s: &Self| s.stream().is_posting, set = |s: &Self, v| s.stream().is_posting = v, default = false, mutable_playing)]
    #[property(name = "interval", nick = "Interval", blurb = "Interval between messages, ns of audio", type = u64, get = |s: &Self| s.stream().interval_ns, set = |s: &Self, v| s.stream().interval_ns = v, default = INTERVAL_NS_DEFAULT, mutable_playing)]
    /// The stream. The pushing thread locks it, and so do threads that access properties. The lock is not held across a push or a
    /// message.
    stream: Mutex<Stream>,
    inline: Inline,
}

struct Stream {
    told: NormalizerSettings,
    is_posting: bool,
    interval_ns: u64,
    /// Number of output frames at the last message.
    reported: u64,
    segment: Option<gst::Segment>,
    /// The queue, from the first caps on.
    queue: Option<NormalizerQueue>,
}

impl Stream {
    /// Returns the latency of the stream. It depends on the caps.
    fn latency(&self) -> gst::ClockTime {
        self.queue
            .as_ref()
            .map_or(LATENCY, NormalizerQueue::latency)
    }

    /// Returns the message, if one is due.
    fn report(&mut self) -> Option<gst::Structure> {
        let queue = self.queue.as_mut()?;
        let frames = queue.counts.frames_out;
        let interval = queue.frames_in_ns(self.interval_ns).max(1);
        if frames < self.reported.saturating_add(interval) {
            return None;
        }
        self.reported = frames - frames % interval;
        let timestamp = queue.time_out();
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
        add_state(&mut structure, queue);
        queue.forget_limiter();
        self.is_posting.then_some(structure)
    }
}

fn add_state(structure: &mut gst::StructureRef, queue: &NormalizerQueue) {
    let state = queue.state();
    structure.set("gain", state.gain_db);
    structure.set("limiter-gain", state.limiter_db);
    structure.set("shortterm-loudness-in", state.short_term_in_lufs);
    structure.set("shortterm-loudness-out", state.short_term_out_lufs);
    structure.set("global-loudness-out", state.integrated_out_lufs);
    structure.set("true-peak-out", state.true_peak_out_dbtp);
}

/// What follows after all queued audio has left.
enum After {
    /// The stream continues at another position.
    Restart,
    /// The stream has ended.
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
        if let Some(queue) = &mut stream.queue
            && let Err(error) = queue.set_settings(told)
        {
            gst::warning!(CAT, imp = self, "{error}");
        }
    }

    fn refuse(&self, error: &str) -> gst::FlowError {
        gst::element_imp_error!(self, gst::StreamError::Format, ["a buffer: {error}"]);
        gst::FlowError::Error
    }

    /// Handles the time of an arriving item. Fills the missing audio before the item, or first lets the queued audio leave.
    fn arrive(&self, pts: Option<gst::ClockTime>) -> Flow {
        let arrival = match &mut self.stream().queue {
            Some(queue) => queue.arrive(pts),
            None => return Ok(gst::FlowSuccess::Ok),
        };
        match arrival {
            Arrival::Follows => {}
            Arrival::Missing(frames) => {
                gst::debug!(CAT, imp = self, "{frames} frames are missing");
                self.pass(Feed::silence(frames))?;
                if let (Some(queue), Some(pts)) = (&mut self.stream().queue, pts) {
                    queue.anchor(pts);
                }
            }
            Arrival::Elsewhere => {
                gst::debug!(CAT, imp = self, "the stream continues at {pts:?}");
                self.drain(After::Restart)?;
                if let Some(queue) = &mut self.stream().queue {
                    queue.counts.jumps += 1;
                    queue.arrive(pts);
                }
            }
        }
        Ok(gst::FlowSuccess::Ok)
    }

    /// Adds a buffer and pushes the output.
    fn pass(&self, mut feed: Feed) -> Flow {
        loop {
            let added = match &mut self.stream().queue {
                Some(queue) => queue.add(&mut feed).map_err(|error| error.to_string()),
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
                let Some(queue) = &mut stream.queue else {
                    return Ok(gst::FlowSuccess::Ok);
                };
                let next = queue.next(spare.take());
                (next, stream.report())
            };
            if let Some(structure) = report {
                let obj = self.obj();
                let message = gst::message::Element::builder(structure).src(&*obj).build();
                // Without a bus, the message is dropped. Only elements in a pipeline have a bus.
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

    /// Pushes all queued audio. If downstream refuses a buffer, the remaining audio is dropped.
    fn drain(&self, after: After) -> Flow {
        match &mut self.stream().queue {
            Some(queue) => queue.drain(),
            None => return Ok(gst::FlowSuccess::Ok),
        }
        let result = self.push_ready(None);
        if let Some(queue) = &mut self.stream().queue {
            match after {
                After::Restart => queue.restart(),
                After::End => queue.flush(&self.inline.src_pad),
            }
        }
        result
    }

    /// Handles a gap as silence.
    fn gap(
        &self,
        pad: &gst::Pad,
        (time, duration): (gst::ClockTime, Option<gst::ClockTime>),
        event: &gst::Event,
    ) -> bool {
        let is_long = duration.is_none_or(|duration| duration > GAP_MAX);
        if is_long || self.stream().queue.is_none() {
            let _ = self.drain(After::Restart);
            return gst::Pad::event_default(pad, Some(&*self.obj()), event.clone());
        }
        if self.arrive(Some(time)).is_err() {
            return false;
        }
        let until = time + duration.unwrap_or_default();
        let frames = (self.stream().queue.as_ref()).map_or(0, |queue| queue.frames_until(until));
        self.pass(Feed::silence(frames)).is_ok()
    }

    fn set_format(&self, format: Format, info: AudioInfo) -> Result<(), String> {
        let latency = {
            let stream = self.stream();
            if (stream.queue.as_ref()).is_some_and(|queue| *queue.format() == format) {
                return Ok(());
            }
            stream.latency()
        };
        let _ = self.drain(After::End);
        let mut stream = self.stream();
        let before = stream.queue.take();
        let counts = before.map_or(Counts::default(), |queue| queue.counts);
        let mut queue =
            NormalizerQueue::new(format, info, stream.told).map_err(|error| error.to_string())?;
        queue.counts = counts;
        stream.queue = Some(queue);
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
                queue: None,
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
            let Some(queue) = &mut stream.queue else {
                drop(stream);
                gst::element_imp_error!(self, gst::CoreError::Negotiation, ["no caps received"]);
                return Err(gst::FlowError::NotNegotiated);
            };
            queue.feed(buffer).map_err(|error| error.to_string())
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
                if let Some(queue) = &mut stream.queue {
                    queue.flush(&self.inline.src_pad);
                }
            }
            _ => {}
        }
        let event = match &mut self.stream().queue {
            Some(queue) if event.is_serialized() => queue.hold(event),
            _ => Some(event),
        };
        // A queued event leaves after the earlier audio.
        event.is_none_or(|event| gst::Pad::event_default(pad, Some(&*self.obj()), event))
    }

    fn sink_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        match query.type_() {
            // The output uses other buffers.
            gst::QueryType::Allocation => return false,
            // The answer must come after the input so far.
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
            .queue
            .as_ref()
            .map_or(Counts::default(), |queue| queue.counts);
        let mut structure = gst::Structure::builder("application/x-audioloudnorm-stats")
            .field("frames-in", counts.frames_in)
            .field("frames-out", counts.frames_out)
            .field("frames-filled", counts.frames_filled)
            .field("jumps", counts.jumps)
            .build();
        if let Some(queue) = &stream.queue {
            add_state(&mut structure, queue);
        }
        structure
    }

    fn forget(&self) {
        let mut stream = self.stream();
        (stream.queue, stream.segment, stream.reported) = (None, None, 0);
    }
}
