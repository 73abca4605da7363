//! The half of `ts-appsrc` on the context's thread.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex};

use gst::glib::subclass::SignalId;
use gst::prelude::*;
use threadbare_runtime::{Cx, Ready};

use crate::kit::queue::{Item, Queue};
use crate::kit::source::{self, Produced, Producer};
use crate::kit::time::RunningTime;
use crate::kit::{emit_if_heard, lock};

/// Settings that the element changes while the reader runs.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) do_timestamp: AtomicBool,
    /// Whether `enough-data` was emitted, and no `need-data` since then.
    pub(super) has_enough: AtomicBool,
    /// Whether the application can seek. If so, the segment's position follows the data.
    pub(super) is_seekable: AtomicBool,
    /// The segment of the data, with the position that has been reached.
    pub(super) segment: Mutex<OwnSegment>,
}

/// A segment, with the number of the seek that created it.
#[derive(Debug)]
pub(super) struct OwnSegment {
    pub(super) segment: gst::Segment,
    pub(super) seqnum: Option<gst::Seqnum>,
}

impl Default for OwnSegment {
    fn default() -> Self {
        OwnSegment {
            segment: gst::Segment::new(),
            seqnum: None,
        }
    }
}

impl OwnSegment {
    fn event(&self) -> gst::Event {
        let event = gst::event::Segment::builder(&self.segment);
        match self.seqnum {
            Some(seqnum) => event.seqnum(seqnum).build(),
            None => event.build(),
        }
    }

    /// Moves the position to the end of the item, as in the base class of the stock sources.
    fn advance(&mut self, item: &Item) {
        let (last, bytes) = match item {
            Item::Buffer(buffer) => (&**buffer, buffer.size()),
            Item::List(list) => {
                let last = list.len().checked_sub(1).and_then(|last| list.get(last));
                let Some(last) = last else { return };
                (last, list.calculate_size())
            }
            Item::Event(event) => {
                if let gst::EventView::Segment(segment) = event.view() {
                    self.segment = segment.segment().clone();
                }
                return;
            }
        };
        let format = self.segment.format();
        let reached = match format {
            gst::Format::Time => {
                let duration = last.duration().unwrap_or(gst::ClockTime::ZERO);
                let end = last.pts().map(|begin| begin + duration);
                end.and_then(|end| i64::try_from(end.nseconds()).ok())
            }
            gst::Format::Bytes => Some(self.segment.position().value() + bytes as i64),
            _ => None,
        };
        if let Some(reached) = reached {
            let reached = gst::GenericFormattedValue::new(format, reached);
            self.segment.set_position(reached);
        }
    }
}

/// Pushes the application's items from the queue, and requests more when it is empty.
pub struct AppReader {
    items: Queue,
    shared: Arc<Shared>,
    time: RunningTime,
    caps: Option<gst::Caps>,
    /// Whether `need-data` was emitted, and nothing has arrived since then.
    has_asked: bool,
    /// Whether the queue was empty after the item taken in this pass. In that case it wakes this reader.
    has_taken_last: bool,
    is_open: bool,
    pad: gst::Pad,
}

impl AppReader {
    pub(super) fn new(
        pad: &gst::Pad,
        items: Queue,
        shared: Arc<Shared>,
        caps: Option<gst::Caps>,
    ) -> Self {
        AppReader {
            items,
            shared,
            time: RunningTime::default(),
            caps,
            has_asked: false,
            has_taken_last: false,
            is_open: false,
            pad: pad.clone(),
        }
    }

    /// Sets the caps of later buffers; returns the event.
    pub(super) fn set_caps(&mut self, caps: Option<gst::Caps>) -> Option<gst::Event> {
        let is_same = self.caps == caps;
        self.caps = caps;
        let caps = self.caps.as_ref().filter(|_| !is_same)?;
        Some(gst::event::Caps::new(caps))
    }

    pub(super) fn segment_event(&self) -> gst::Event {
        lock(&self.shared.segment).event()
    }

    /// Takes the next item, with its time. A seek that has flushed the queue gets the position after all items taken before.
    fn take(&mut self, cx: &Cx<'_>) -> Option<Item> {
        let mut follows =
            (self.shared.is_seekable.load(Relaxed)).then(|| lock(&self.shared.segment));
        let mut item;
        (item, self.has_taken_last) = self.items.take(|| cx.waker())?;
        if let Item::Buffer(buffer) = &mut item
            && self.shared.do_timestamp.load(Relaxed)
        {
            self.stamp(cx.now_ns(), buffer);
        }
        match &mut follows {
            Some(segment) => segment.advance(&item),
            None if matches!(item, Item::Event(_)) => lock(&self.shared.segment).advance(&item),
            None => {}
        }
        Some(item)
    }

    /// Requests data from the application, unless it has already been requested. The queue wakes this reader when an item
    /// arrives; a handler of the signal may already have pushed one.
    fn ask(&mut self) -> Produced {
        if std::mem::replace(&mut self.has_asked, true) {
            return Produced::Idle;
        }
        self.shared.has_enough.store(false, Relaxed);
        // If an application pushes one buffer at a time, this signal is due for each buffer. So it must cost little if no handler
        // is connected, as in most applications.
        let element = self.pad.parent_element();
        if element.is_some_and(|it| emit_if_heard(&it, *NEED_DATA, &[&NEED_UNKNOWN])) {
            Produced::Again
        } else {
            Produced::Idle
        }
    }

    fn stamp(&self, now_ns: u64, buffer: &mut gst::Buffer) {
        if buffer.pts().is_some() || buffer.dts().is_some() {
            return;
        }
        if let Some(time) = self.time.at(now_ns) {
            let buffer = buffer.make_mut();
            buffer.set_pts(time);
            buffer.set_dts(time);
        }
    }
}

impl Producer for AppReader {
    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        // The producer restarts after a flush from downstream. No other element handles the end of that flush.
        if self.items.resume().is_some() {
            self.has_asked = false;
        }
        cx.wake_self();
        Ok(())
    }

    fn stop(&mut self, _cx: &mut Cx<'_>) {}

    fn set_time(&mut self, time: RunningTime) {
        self.time = time;
    }

    #[inline]
    fn prefetch(&self) {
        self.items.prefetch();
    }

    fn begin(&mut self, _cx: &mut Cx<'_>, _ready: Ready) {
        self.has_taken_last = false;
    }

    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        let is_empty = std::mem::take(&mut self.has_taken_last);
        let item = if is_empty { None } else { self.take(cx) };
        let Some(item) = item else {
            return self.ask();
        };
        self.has_asked = false;
        match item {
            Item::Buffer(buffer) => Produced::Buffer(buffer),
            Item::List(list) => Produced::List(list),
            // The caps and the segment of the first sample belong to the opening events.
            Item::Event(event) => match event.view() {
                gst::EventView::Caps(caps) if !self.is_open => {
                    self.caps = Some(caps.caps_owned());
                    Produced::Again
                }
                gst::EventView::Segment(_) if !self.is_open => Produced::Again,
                _ => Produced::Event(event),
            },
        }
    }

    fn opening(&mut self, pad: &gst::Pad) -> Vec<gst::Event> {
        self.is_open = true;
        let element = self.pad.parent_element();
        let Some(element) = element else {
            return Vec::new();
        };
        let mut events = source::opening(pad, &element, self.caps.as_ref());
        events.pop_if(|event| event.type_() == gst::EventType::Segment);
        events.push(self.segment_event());
        events
    }

    fn end_flush(&mut self, event: gst::Event) -> Option<gst::Event> {
        self.items.resume();
        if let gst::EventView::FlushStop(stop) = event.view()
            && stop.resets_time()
        {
            // Running time starts at 0 again.
            let mut own = lock(&self.shared.segment);
            let zero = gst::GenericFormattedValue::new(own.segment.format(), 0);
            own.segment.set_base(zero);
        }
        Some(event)
    }

    fn reopening(&mut self) -> Vec<gst::Event> {
        self.has_asked = false;
        vec![self.segment_event()]
    }

    fn push_failed(&mut self, error: gst::FlowError) {
        // The source itself reports the error. A branch that flushes or stops does not end the stream: the source tries again
        // with the next item.
        if error != gst::FlowError::Flushing {
            self.items.fail(error);
        }
    }
}

static NEED_DATA: LazyLock<SignalId> = LazyLock::new(|| {
    SignalId::lookup("need-data", crate::app::AppSrc::static_type())
        .expect("the class has this signal")
});

/// Amount in `need-data`: any amount.
const NEED_UNKNOWN: u32 = u32::MAX;
