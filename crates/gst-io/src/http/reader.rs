//! The source's part on its context's thread: pushes data of a fetch without a copy.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use gst::glib;
use gst::prelude::*;
use threadbare_runtime::Cx;

use super::CAT;
use super::core::{Media, Problem, Shortfall, Span};
use super::fetch::Fetch;
use super::pipe::{Item, Opened};
use super::settings::Plan;
use crate::kit::lock;
use crate::kit::source::{self, Produced, Producer};
use crate::kit::time::RunningTime;

/// Data shared by the element and its reader.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) course: Mutex<Course>,
    pub(super) known: Mutex<Option<Known>>,
    /// Queue of the current fetch. It is here so that its level can be read.
    pub(super) pipe: Mutex<Option<super::pipe::Pipe>>,
}

/// Position of the stream, and the seek that set it.
pub(super) struct Course {
    /// Segment in bytes, with the reached position.
    pub(super) segment: gst::Segment,
    /// Number of the seek that created the segment.
    pub(super) seqnum: Option<gst::Seqnum>,
    /// Incremented by each seek, which starts a new fetch.
    pub(super) generation: u64,
    /// Whether the new segment must be sent without a flush.
    pub(super) must_announce: bool,
}

impl Default for Course {
    fn default() -> Self {
        let mut segment = gst::Segment::new();
        segment.reset_with_format(gst::Format::Bytes);
        Course {
            segment,
            seqnum: None,
            generation: 0,
            must_announce: false,
        }
    }
}

impl Course {
    fn span(&self) -> Span {
        let byte = |value: gst::GenericFormattedValue| u64::try_from(value.value()).ok();
        Span {
            first: byte(self.segment.start()).unwrap_or(0),
            end: byte(self.segment.stop()),
        }
    }

    fn event(&self) -> gst::Event {
        let event = gst::event::Segment::builder(&self.segment);
        match self.seqnum {
            Some(seqnum) => event.seqnum(seqnum).build(),
            None => event.build(),
        }
    }
}

/// Information from the last response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    /// Size of the resource in bytes.
    pub(super) size: Option<u64>,
    pub(super) is_seekable: bool,
    /// Target of redirections, and whether they are permanent.
    pub(super) redirect: Option<(String, bool)>,
}

/// Settings for the buffers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Size of a buffer; 0 means that buffers are as received from the network.
    pub(super) block_bytes: usize,
    /// Number of buffers after which the stream ends.
    pub(super) buffers_max: Option<u32>,
    pub(super) do_timestamp: bool,
    pub(super) is_live: bool,
}

pub struct HttpReader {
    plan: Arc<Plan>,
    shared: Arc<Shared>,
    shape: Shape,
    fetch: Option<(u64, Fetch)>,
    /// Events to push before the next data.
    events: VecDeque<gst::Event>,
    /// Data left after the last buffer, and its position.
    rest: Option<(Bytes, u64)>,
    caps: Option<gst::Caps>,
    /// Whether the stream has started, so that new caps must be pushed as separate events.
    is_open: bool,
    is_discont: bool,
    /// Whether downstream flushes. Nothing is pushed until the flush ends.
    is_held: bool,
    has_data: bool,
    /// Whether everything has been pushed. After a flush without a seek, the same end is pushed again.
    has_ended: bool,
    buffers: u32,
    time: RunningTime,
    element: glib::WeakRef<gst::Element>,
}

impl HttpReader {
    pub(super) fn new(
        element: &gst::Element,
        plan: Arc<Plan>,
        shared: Arc<Shared>,
        shape: Shape,
    ) -> Self {
        HttpReader {
            plan,
            shared,
            shape,
            fetch: None,
            events: VecDeque::new(),
            rest: None,
            caps: None,
            is_open: false,
            is_discont: true,
            is_held: false,
            has_data: false,
            has_ended: false,
            buffers: 0,
            time: RunningTime::default(),
            element: element.downgrade(),
        }
    }

    fn segment_event(&self) -> gst::Event {
        lock(&self.shared.course).event()
    }

    /// Starts the fetch of the first part, or of another part after a seek.
    fn follow(&mut self) -> Result<(), gst::ErrorMessage> {
        let (generation, span, segment) = {
            let course = lock(&self.shared.course);
            let segment = course.must_announce.then(|| course.event());
            (course.generation, course.span(), segment)
        };
        if self
            .fetch
            .as_ref()
            .is_some_and(|(known, _)| *known == generation)
        {
            return Ok(());
        }
        self.rest = None;
        self.has_ended = false;
        self.is_discont = true;
        self.events.extend(segment.filter(|_| self.is_open));
        // Close the old connection before the new request.
        self.fetch = None;
        let fetch = Fetch::begin(self.plan.clone(), span)
            .map_err(|error| gst::error_msg!(gst::ResourceError::OpenRead, ["{error}"]))?;
        let replaced = lock(&self.shared.pipe).replace(fetch.pipe.clone());
        drop(replaced);
        self.fetch = Some((generation, fetch));
        Ok(())
    }

    /// Handles the start of a response.
    fn opened(&mut self, opened: Opened) {
        let Some(element) = self.element.upgrade() else {
            return;
        };
        let known = Known {
            size: opened.size,
            is_seekable: opened.is_seekable,
            redirect: opened.redirect,
        };
        let before = lock(&self.shared.known).replace(known);
        if before.is_none_or(|before| before.size != opened.size) {
            let message = gst::message::DurationChanged::builder().src(&element);
            let _ = element.post_message(message.build());
        }
        // A stream that restarts begins with a whole metadata interval, which new caps announce to the demultiplexer.
        let caps = caps_of(&opened.media);
        let begins_anew = opened.is_break && matches!(opened.media, Media::Icy { .. });
        if self.is_open && (caps != self.caps || begins_anew) {
            self.events.extend(caps.as_ref().map(gst::event::Caps::new));
        }
        self.caps = caps;
        self.is_discont |= opened.is_break;
        let message = gst::message::Element::builder(opened.headers.clone()).src(&element);
        let _ = element.post_message(message.build());
        self.events
            .push_back(gst::event::CustomDownstreamSticky::new(opened.headers));
        self.events.extend(opened.tags.map(gst::event::Tag::new));
    }

    /// Returns the next buffer of the available data.
    fn buffer(&mut self, cx: &Cx<'_>, mut bytes: Bytes, position: u64) -> Produced {
        let block = self.shape.block_bytes;
        if block > 0 && bytes.len() > block {
            let rest = bytes.split_off(block);
            self.rest = Some((rest, position + block as u64));
        }
        let end = position.saturating_add(bytes.len() as u64);
        self.plan.counts.bytes.add(bytes.len() as u64);
        self.plan.counts.buffers.add(1);
        {
            let mut course = lock(&self.shared.course);
            let is_present = self
                .fetch
                .as_ref()
                .is_some_and(|(own, _)| *own == course.generation);
            if let Some(end) = i64::try_from(end).ok().filter(|_| is_present) {
                let end = gst::GenericFormattedValue::new(gst::Format::Bytes, end);
                course.segment.set_position(end);
            }
        }
        let mut buffer = gst::Buffer::from_slice(bytes);
        let fields = buffer.get_mut().expect("a new buffer is writable");
        fields.set_offset(position);
        fields.set_offset_end(end);
        if self.shape.do_timestamp
            && let Some(time) = self.time.at(cx.now_ns())
        {
            fields.set_pts(time);
            fields.set_dts(time);
        }
        if std::mem::take(&mut self.is_discont) {
            fields.set_flags(gst::BufferFlags::DISCONT);
        }
        self.has_data = true;
        self.buffers = self.buffers.saturating_add(1);
        Produced::Buffer(buffer)
    }

    /// Handles the end of the requested data.
    fn end(&mut self) -> Produced {
        let (position, seqnum, is_segment) = {
            let course = lock(&self.shared.course);
            let is_segment = course.segment.flags().contains(gst::SegmentFlags::SEGMENT);
            (course.segment.position(), course.seqnum, is_segment)
        };
        if !is_segment {
            self.has_ended = true;
            let eos = gst::event::Eos::builder();
            return Produced::Event(match seqnum {
                Some(seqnum) => eos.seqnum(seqnum).build(),
                None => eos.build(),
            });
        }
        if let Some(element) = self.element.upgrade() {
            let done = gst::message::SegmentDone::builder(position).src(&element);
            let _ = element.post_message(match seqnum {
                Some(seqnum) => done.seqnum(seqnum).build(),
                None => done.build(),
            });
        }
        Produced::Event(gst::event::SegmentDone::new(position))
    }

    fn retries(&self, problem: &Problem, position: u64, delay_ns: u64) {
        let Some(element) = self.element.upgrade() else {
            return;
        };
        let place = self.plan.place();
        gst::warning!(
            CAT,
            obj = element,
            "{place}: {problem}; the next attempt is in {} ms",
            delay_ns / 1_000_000
        );
        let structure = gst::Structure::builder("http-retry")
            .field("reason", problem.to_string())
            .field("position", position)
            .field("delay", delay_ns)
            .build();
        let message = gst::message::Element::builder(structure).src(&element);
        let _ = element.post_message(message.build());
    }

    fn failed(&self, problem: &Problem, shortfall: Option<Shortfall>) -> Produced {
        let place = self.plan.place();
        let kind = problem.kind(self.has_data);
        let shortfall = shortfall.map_or(String::new(), |shortfall| format!("; {shortfall}"));
        Produced::Failed(gst::error_msg!(kind, ["{place}: {problem}{shortfall}"]))
    }
}

fn caps_of(media: &Media) -> Option<gst::Caps> {
    match media {
        Media::Icy {
            interval,
            content_type,
        } => {
            let caps = gst::Caps::builder("application/x-icy").field("metadata-interval", interval);
            Some(match content_type {
                Some(content_type) => caps.field("content-type", content_type).build(),
                None => caps.build(),
            })
        }
        Media::L16 { rate, channels } => {
            let caps = gst::Caps::builder("audio/x-unaligned-raw")
                .field("format", "S16BE")
                .field("layout", "interleaved")
                .field("rate", rate)
                .field("channels", channels);
            Some(caps.build())
        }
        Media::Unknown => None,
    }
}

impl Producer for HttpReader {
    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        self.is_held = false;
        self.follow()?;
        cx.wake_self();
        Ok(())
    }

    fn stop(&mut self, _cx: &mut Cx<'_>) {}

    fn set_time(&mut self, time: RunningTime) {
        self.time = time;
    }

    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        if self.is_held {
            return Produced::Idle;
        }
        if let Some(event) = self.events.pop_front() {
            return Produced::Event(event);
        }
        if self
            .shape
            .buffers_max
            .is_some_and(|max| self.buffers >= max)
        {
            self.fetch = None;
            return Produced::Event(gst::event::Eos::new());
        }
        if let Some((bytes, position)) = self.rest.take() {
            return self.buffer(cx, bytes, position);
        }
        if self.has_ended {
            return self.end();
        }
        let item = self
            .fetch
            .as_ref()
            .map(|(_, fetch)| fetch.pipe.take(|| cx.waker()));
        match item.flatten() {
            None => Produced::Idle,
            Some(Item::Opened(opened)) => {
                self.opened(*opened);
                Produced::Again
            }
            Some(Item::Data { bytes, position }) => self.buffer(cx, bytes, position),
            Some(Item::Retry {
                problem,
                position,
                delay_ns,
            }) => {
                self.retries(&problem, position, delay_ns);
                Produced::Again
            }
            Some(Item::End) => self.end(),
            Some(Item::Failed { problem, shortfall }) => self.failed(&problem, shortfall),
        }
    }

    fn opening(&mut self, pad: &gst::Pad) -> Vec<gst::Event> {
        self.is_open = true;
        let Some(element) = self.element.upgrade() else {
            return Vec::new();
        };
        let mut events = source::opening(pad, &element, self.caps.as_ref());
        events.pop_if(|event| event.type_() == gst::EventType::Segment);
        events.push(self.segment_event());
        events
    }

    fn end_flush(&mut self, event: gst::Event) -> Option<gst::Event> {
        if let gst::EventView::FlushStop(stop) = event.view()
            && stop.resets_time()
        {
            // Running time restarts at 0.
            let zero = gst::GenericFormattedValue::new(gst::Format::Bytes, 0);
            lock(&self.shared.course).segment.set_base(zero);
        }
        Some(event)
    }

    fn reopening(&mut self) -> Vec<gst::Event> {
        vec![self.segment_event()]
    }

    fn push_failed(&mut self, error: gst::FlowError) {
        // As in the stock source, wait for the end of the flush. Data that is pushed before it would be lost.
        self.is_held = error == gst::FlowError::Flushing && !self.shape.is_live;
    }

    fn outlives_flushing(&self) -> bool {
        self.shape.is_live
    }
}
