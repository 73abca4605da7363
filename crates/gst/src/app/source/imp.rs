//! Properties, signals and states of `ts-appsrc`.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use gst::glib::subclass::{Signal, SignalId};
use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;

use super::reader::{AppReader, OwnSegment, Shared};
use super::stream::{Stream, StreamType};
use crate::kit::context::ContextSettings;
use crate::kit::lock;
use crate::kit::queue::{Item, Leaky, Level, Queue, Unfit};
use crate::kit::source::{self, Driver, SourceElement};
use crate::kit::stats::StatsProperty;

#[derive(Debug, Clone)]
struct Settings {
    caps: Option<gst::Caps>,
    max: Level,
    leaky: Leaky,
    is_live: bool,
    block: bool,
    min_latency_ns: i64,
    max_latency_ns: i64,
    stream: Stream,
    handle_segment_change: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            caps: None,
            max: Level {
                buffers: BUFFERS_DEFAULT,
                bytes: 0,
                time_ns: 0,
            },
            leaky: Leaky::No,
            is_live: true,
            block: false,
            min_latency_ns: -1,
            max_latency_ns: -1,
            stream: Stream::default(),
            handle_segment_change: false,
        }
    }
}

/// Default of `max-buffers`, as existing pipelines expect.
const BUFFERS_DEFAULT: u32 = 10;

#[derive(Properties)]
#[properties(wrapper_type = crate::app::AppSrc)]
pub struct AppSrc {
    #[property(name = "caps", nick = "Caps", blurb = "Caps of the source pad", type = Option<gst::Caps>, get = |s: &Self| s.settings().caps.clone(), set = Self::set_caps)]
    #[property(name = "max-buffers", nick = "Maximum buffers", blurb = "Maximum number of buffers in the queue; 0: no limit", type = u32, get = |s: &Self| s.settings().max.buffers, set = |s: &Self, v| s.limit(|s| s.max.buffers = v), default = BUFFERS_DEFAULT)]
    #[property(name = "max-bytes", nick = "Maximum bytes", blurb = "Maximum number of bytes in the queue; 0: no limit", type = u32, get = |s: &Self| s.settings().max.bytes, set = |s: &Self, v| s.limit(|s| s.max.bytes = v), default = 0)]
    #[property(name = "max-time", nick = "Maximum time", blurb = "Maximum duration of the data in the queue, ns; 0: no limit", type = u64, get = |s: &Self| s.settings().max.time_ns, set = |s: &Self, v| s.limit(|s| s.max.time_ns = v), default = 0)]
    #[property(name = "leaky-type", nick = "Leaky", blurb = "End of the queue at which buffers are dropped when the queue is full", type = Leaky, get = |s: &Self| s.settings().leaky, set = |s: &Self, v| s.limit(|s| s.leaky = v), builder(Leaky::No))]
    #[property(name = "block", nick = "Block", blurb = "Block push-buffer while the queue is full (never on a context's thread)", type = bool, get = |s: &Self| s.settings().block, set = |s: &Self, v| s.settings().block = v, default = false)]
    #[property(name = "is-live", nick = "Is live", blurb = "Push only in PLAYING", type = bool, get = |s: &Self| s.settings().is_live, set = |s: &Self, v| s.settings().is_live = v, default = true)]
    #[property(name = "do-timestamp", nick = "Do timestamp", blurb = "Set the timestamp of each buffer that has none to the running time at which the application pushed it", type = bool, get = |s: &Self| s.shared.do_timestamp.load(Relaxed), set = |s: &Self, v| s.shared.do_timestamp.store(v, Relaxed), default = false)]
    #[property(name = "min-latency", nick = "Minimum latency", blurb = "Latency of the application, ns; context-wait is added to it; -1: none", type = i64, get = |s: &Self| s.settings().min_latency_ns, set = |s: &Self, v| s.set_latency(|s| s.min_latency_ns = v), minimum = -1, default = -1)]
    #[property(name = "max-latency", nick = "Maximum latency", blurb = "Longest time push-buffer may block, ns; -1: no limit", type = i64, get = |s: &Self| s.settings().max_latency_ns, set = |s: &Self, v| s.set_latency(|s| s.max_latency_ns = v), minimum = -1, default = -1)]
    #[property(name = "stream-type", nick = "Stream type", blurb = "Whether the application can seek in its data", type = StreamType, get = |s: &Self| s.settings().stream.kind, set = Self::set_stream_type, builder(StreamType::Stream))]
    #[property(name = "format", nick = "Format", blurb = "Format of segments and seeks", type = gst::Format, get = |s: &Self| s.settings().stream.format, set = |s: &Self, v| s.settings().stream.format = v, builder(gst::Format::Time))]
    #[property(name = "size", nick = "Size", blurb = "Bytes of the stream; -1: unknown", type = i64, get = |s: &Self| s.settings().stream.size, set = |s: &Self, v| s.set_length(|stream| stream.size = v), minimum = -1, default = -1)]
    #[property(name = "duration", nick = "Duration", blurb = "Duration of the stream, ns; the maximum value means unknown", type = u64, get = |s: &Self| s.settings().stream.duration.map_or(u64::MAX, gst::ClockTime::nseconds), set = |s: &Self, v| s.set_length(|stream| stream.duration = (v != u64::MAX).then(|| gst::ClockTime::from_nseconds(v))), default = u64::MAX)]
    #[property(name = "handle-segment-change", nick = "Handle segment change", blurb = "Push the segment of a sample if it differs from the segment of the previous sample (format=time)", type = bool, get = |s: &Self| s.settings().handle_segment_change, set = |s: &Self, v| s.settings().handle_segment_change = v, default = false)]
    #[property(name = "current-level-buffers", nick = "Buffers", blurb = "Buffers in the queue", type = u64, get = |s: &Self| u64::from(s.items.level().buffers))]
    #[property(name = "current-level-bytes", nick = "Bytes", blurb = "Bytes in the queue", type = u64, get = |s: &Self| u64::from(s.items.level().bytes))]
    #[property(name = "current-level-time", nick = "Time", blurb = "Duration of the data in the queue, ns", type = u64, get = |s: &Self| s.items.level().time_ns)]
    settings: Mutex<Settings>,
    context: Mutex<ContextSettings>,
    stats: Mutex<StatsProperty>,
    items: Queue,
    shared: Arc<Shared>,
    src_pad: gst::Pad,
    driver: Driver<AppReader>,
    /// The caps of the last pushed sample.
    sample_caps: Mutex<Option<gst::Caps>>,
    /// The segment of the last pushed sample.
    sample_segment: Mutex<Option<gst::Segment>>,
}

impl AppSrc {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    fn set_caps(&self, caps: Option<gst::Caps>) {
        self.settings().caps = caps.clone();
        self.driver.announce(move |reader, _| reader.set_caps(caps));
    }

    fn set_stream_type(&self, kind: StreamType) {
        self.settings().stream.kind = kind;
        let is_seekable = kind != StreamType::Stream;
        self.shared.is_seekable.store(is_seekable, Relaxed);
    }

    fn limit(&self, change: impl FnOnce(&mut Settings)) {
        let settings = {
            let mut settings = self.settings();
            change(&mut settings);
            settings.clone()
        };
        self.items.limit(settings.leaky, settings.max);
    }

    /// Changes a property of the stream. A running element then posts that its duration has changed, and the application queries
    /// it again.
    fn set_length(&self, change: impl FnOnce(&mut Stream)) {
        change(&mut self.settings().stream);
        if self.driver.place().is_some() {
            let obj = self.obj();
            let message = gst::message::DurationChanged::builder().src(&*obj);
            let _ = obj.post_message(message.build());
        }
    }

    /// Changes a setting of the latency. A running element then asks the pipeline to query it again.
    fn set_latency(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings());
        if self.driver.place().is_some() {
            let obj = self.obj();
            let _ = obj.post_message(gst::message::Latency::builder().src(&*obj).build());
        }
    }

    /// Pushes an item. Returns `false` if the queue is full or does not run, or if the stream has ended.
    fn push(&self, item: Item) -> bool {
        let is_full = match self.items.offer(item) {
            Ok(is_full) => is_full,
            Err(Unfit::Full(item)) if self.may_wait() => {
                return self.items.push(None, item).is_ok();
            }
            Err(Unfit::Full(_)) => {
                self.say_enough();
                return false;
            }
            Err(Unfit::Ended) => return false,
        };
        if is_full {
            self.say_enough();
        }
        true
    }

    fn may_wait(&self) -> bool {
        self.settings().block && threadbare_runtime::current_shard_id().is_none()
    }

    fn say_enough(&self) {
        if !self.shared.has_enough.swap(true, Relaxed) {
            self.obj().emit_by_name::<()>("enough-data", &[]);
        }
    }

    fn push_sample(&self, sample: &gst::Sample) -> bool {
        if let Some(caps) = sample.caps_owned() {
            let mut known = lock(&self.sample_caps);
            if known.as_ref() != Some(&caps) {
                if self.items.push_event(gst::event::Caps::new(&caps)).is_err() {
                    return false;
                }
                *known = Some(caps);
            }
        }
        if !self.push_segment(sample) {
            return false;
        }
        match (sample.buffer_owned(), sample.buffer_list_owned()) {
            (Some(buffer), _) => self.push(Item::Buffer(buffer)),
            (None, Some(list)) => self.push(Item::List(list)),
            (None, None) => true,
        }
    }

    /// Pushes the sample's segment, if `handle-segment-change` is set and the segment differs from that of the last sample.
    fn push_segment(&self, sample: &gst::Sample) -> bool {
        let (handles, format) = {
            let settings = self.settings();
            (settings.handle_segment_change, settings.stream.format)
        };
        let Some(segment) = sample
            .segment()
            .filter(|segment| handles && format == gst::Format::Time && segment.format() == format)
        else {
            return true;
        };
        let mut known = lock(&self.sample_segment);
        if known.as_ref() == Some(segment) {
            return true;
        }
        *known = Some(segment.clone());
        drop(known);
        let event = gst::event::Segment::new(segment);
        self.items.push_event(event).is_ok()
    }

    fn end_of_stream(&self) -> bool {
        self.items.push_event(gst::event::Eos::new()).is_ok()
    }
}

/// Events from downstream.
impl AppSrc {
    /// Seeks to the start of the stream, if the application can seek. The stock element does the same.
    fn ask_for_beginning(&self) -> Result<(), gst::ErrorMessage> {
        let kind = self.settings().stream.kind;
        if kind == StreamType::Stream || self.obj().emit::<bool>(*SEEK_DATA, &[&0u64]) {
            return Ok(());
        }
        Err(gst::error_msg!(
            gst::ResourceError::Seek,
            [
                "stream-type={kind:?}, but no handler of seek-data has accepted the seek to the beginning; set stream-type=stream for \
                data without positions"
            ]
        ))
    }

    /// Requests another position from the application and pushes the segment from there. Drops queued data, whether the seek
    /// flushes or not. Returns `false` if the application refuses the seek, or if the kind of stream does not allow it.
    fn seek(&self, seek: &gst::event::Seek<gst::EventRef>) -> bool {
        let stream = self.settings().stream.clone();
        let after = || stream.after(&lock(&self.shared.segment).segment, seek);
        if after().is_none() {
            return false;
        }
        let seqnum = seek.seqnum();
        let flushes = seek.get().1.contains(gst::SeekFlags::FLUSH);
        if flushes {
            let start = gst::event::FlushStart::builder().seqnum(seqnum);
            self.src_pad.push_event(start.build());
        }
        self.items.begin_flush();
        // Compute the segment again: no item is taken from the queue now, so the position no longer changes.
        let segment = after().and_then(|segment| {
            let offset = u64::try_from(segment.position().value()).ok()?;
            let is_done = self.obj().emit::<bool>(*SEEK_DATA, &[&offset]);
            is_done.then_some(segment)
        });
        let is_done = segment.is_some();
        if let Some(segment) = segment {
            let seqnum = Some(seqnum);
            *lock(&self.shared.segment) = OwnSegment { segment, seqnum };
        }
        let stop = gst::event::FlushStop::builder(true).seqnum(seqnum).build();
        // This marks the flush in the queue. The flush itself may not be visible downstream.
        self.items.end_flush(stop.clone());
        if flushes {
            self.driver.end_flush(stop);
        } else {
            self.driver.restart();
            self.driver
                .announce(move |reader, _| is_done.then(|| reader.segment_event()));
        }
        is_done
    }
}

static SEEK_DATA: LazyLock<SignalId> = LazyLock::new(|| {
    SignalId::lookup("seek-data", crate::app::AppSrc::static_type())
        .expect("the class has this signal")
});

#[glib::object_subclass]
impl ObjectSubclass for AppSrc {
    const NAME: &'static str = "ThreadbareAppSrc";
    type Type = crate::app::AppSrc;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        let src_pad = source::source_pad::<AppSrc>(&crate::kit::template(klass, "src"));
        let items = Queue::new(|_| {});
        let settings = Settings::default();
        items.limit(settings.leaky, settings.max);
        AppSrc {
            settings: Mutex::new(settings),
            context: Mutex::default(),
            stats: Mutex::new(items.stats_property("application/x-ts-appsrc-stats")),
            items,
            shared: Arc::default(),
            src_pad,
            driver: Driver::default(),
            sample_caps: Mutex::default(),
            sample_segment: Mutex::default(),
        }
    }
}

impl ObjectImpl for AppSrc {
    crate::kit::properties_with_groups!(context, stats);

    fn signals() -> &'static [Signal] {
        static SIGNALS: LazyLock<Vec<Signal>> = LazyLock::new(|| {
            vec![
                Signal::builder("need-data")
                    .param_types([u32::static_type()])
                    .build(),
                Signal::builder("enough-data").build(),
                Signal::builder("seek-data")
                    .param_types([u64::static_type()])
                    .return_type::<bool>()
                    .build(),
                action(
                    "push-buffer",
                    Some(gst::Buffer::static_type()),
                    |imp, value| {
                        let buffer = value.and_then(|value| value.get::<gst::Buffer>().ok());
                        buffer.is_some_and(|buffer| imp.push(Item::Buffer(buffer)))
                    },
                ),
                action(
                    "push-buffer-list",
                    Some(gst::BufferList::static_type()),
                    |imp, value| {
                        let list = value.and_then(|value| value.get::<gst::BufferList>().ok());
                        list.is_some_and(|list| imp.push(Item::List(list)))
                    },
                ),
                action(
                    "push-sample",
                    Some(gst::Sample::static_type()),
                    |imp, value| {
                        let sample = value.and_then(|value| value.get::<gst::Sample>().ok());
                        sample.is_some_and(|sample| imp.push_sample(&sample))
                    },
                ),
                action("end-of-stream", None, |imp, _| imp.end_of_stream()),
            ]
        });
        &SIGNALS
    }

    fn constructed(&self) {
        self.parent_constructed();
        crate::kit::add_timed_pad(&*self.obj(), &self.src_pad);
    }
}

/// Returns an action signal that returns whether it succeeded.
fn action(
    name: &str,
    parameter: Option<glib::Type>,
    act: impl Fn(&AppSrc, Option<&glib::Value>) -> bool + Send + Sync + 'static,
) -> Signal {
    let types: Vec<glib::Type> = parameter.into_iter().collect();
    Signal::builder(name)
        .param_types(types)
        .return_type::<bool>()
        .action()
        .class_handler(move |values| {
            let element = values[0].get::<crate::app::AppSrc>().ok()?;
            Some(act(element.imp(), values.get(1)).to_value())
        })
        .build()
}

impl GstObjectImpl for AppSrc {}

impl ElementImpl for AppSrc {
    crate::kit::element_class!(
        "Thread-sharing application source",
        "Source/Generic",
        "Pushes the application's buffers on the thread of a shared context";
        "src": Src Always gst::Caps::new_any()
    );

    crate::source_life!();
}

impl SourceElement for AppSrc {
    type Producer = AppReader;

    fn driver(&self) -> &Driver<AppReader> {
        &self.driver
    }

    fn src_pad(&self) -> &gst::Pad {
        &self.src_pad
    }

    fn handle_upstream_event(&self, event: gst::Event) -> Result<bool, gst::Event> {
        match event.view() {
            gst::EventView::Seek(seek) => Ok(self.seek(seek)),
            _ => Err(event),
        }
    }

    fn answer_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        let settings = self.settings().clone();
        if let Some(answered) = settings.stream.answer(query) {
            return answered;
        }
        let own = |ns: i64| u64::try_from(ns).ok().map(gst::ClockTime::from_nseconds);
        let wait = self.driver.wait(&self.context);
        let min = own(settings.min_latency_ns).unwrap_or_default() + wait;
        let max = own(settings.max_latency_ns).map(|max| max + wait);
        let latency = (settings.is_live, min, max);
        source::answer_query(pad, &*self.obj(), query, latency, || settings.caps)
    }

    fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
        let place = lock(&self.context).place(element)?;
        let settings = self.settings().clone();
        *lock(&self.shared.segment) = OwnSegment {
            segment: settings.stream.segment(),
            seqnum: None,
        };
        let (items, shared) = (self.items.clone(), self.shared.clone());
        let reader = AppReader::new(&self.src_pad, items, shared, settings.caps);
        self.driver.add(element, &self.src_pad, place, reader)?;
        *lock(&self.sample_caps) = None;
        *lock(&self.sample_segment) = None;
        self.shared.has_enough.store(false, Relaxed);
        self.items.open();
        self.ask_for_beginning()
    }

    fn deactivate(&self) {
        self.items.stop();
        self.driver.remove();
    }

    fn is_live(&self) -> bool {
        self.settings().is_live
    }

    fn flush(&self, flushing: bool) {
        if flushing {
            self.items.begin_flush();
        } else {
            // This marks the flush in the queue. The event itself goes to the reader.
            self.items.end_flush(gst::event::FlushStop::new(true));
        }
    }
}
