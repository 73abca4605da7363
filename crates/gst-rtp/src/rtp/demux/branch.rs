//! A source pad of `ts-rtpdemux`, and its pushes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use gst::glib;
use gst::prelude::*;
use threadbare_runtime::{Cx, Ready};

use crate::kit::context::Place;
use crate::kit::crossing::{Crossing, Passes};
use crate::kit::queue::{Item, Queue, QueueReader};
use crate::kit::source::{Produced, Producer};

/// Called when an ending branch has pushed its last item.
pub(super) type OnEnded = Arc<dyn Fn(&Arc<Branch>) + Send + Sync>;

/// A stream's output.
pub(super) struct Branch {
    pub(super) pad: gst::Pad,
    pub(super) number: u32,
    /// The queue to a context's thread. `None` means that the thread that pushes into the element also pushes here.
    crossing: Option<Crossing<BranchReader>>,
    is_closing: AtomicBool,
    is_gone: AtomicBool,
}

impl Branch {
    pub(super) fn new(pad: gst::Pad, number: u32, is_queued: bool, ended: OnEnded) -> Arc<Branch> {
        Arc::new_cyclic(|weak: &Weak<Branch>| {
            let weak = weak.clone();
            let crossing = is_queued.then(|| {
                let items = Queue::new(|_| {});
                let of_reader = items.clone();
                let make = move |_: &gst::Element| BranchReader {
                    // A failure of one branch does not affect the others.
                    reader: QueueReader::new(of_reader.clone(), glib::WeakRef::new()),
                    branch: weak.clone(),
                    ended: ended.clone(),
                    has_ended: false,
                };
                Crossing::new(items, pad.clone(), Passes::AsTheyAre, make)
            });
            Branch {
                pad,
                number,
                crossing,
                is_closing: AtomicBool::new(false),
                is_gone: AtomicBool::new(false),
            }
        })
    }

    /// Whether a context's thread pushes.
    pub(super) fn is_queued(&self) -> bool {
        self.crossing.is_some()
    }

    /// Starts pushing on a context's thread.
    pub(super) fn start(
        &self,
        element: &gst::Element,
        place: Place,
    ) -> Result<(), gst::ErrorMessage> {
        match &self.crossing {
            Some(crossing) => crossing.open_at(element, place),
            None => Ok(()),
        }
    }

    #[inline]
    pub(super) fn push(&self, buffer: gst::Buffer) -> Result<(), gst::FlowError> {
        match &self.crossing {
            Some(crossing) => crossing.end().items.push(None, Item::Buffer(buffer)),
            None => self.pad.push(buffer).map(|_| ()),
        }
    }

    /// Pushes a serialized event, or the start of a flush.
    pub(super) fn push_event(&self, event: gst::Event) -> bool {
        let Some(crossing) = &self.crossing else {
            return self.pad.push_event(event);
        };
        match event.type_() {
            gst::EventType::FlushStart => crossing.end().begin_flush(|| self.pad.push_event(event)),
            gst::EventType::FlushStop => crossing.end().end_flush(event),
            _ if event.is_serialized() => crossing.end().items.push_event(event).is_ok(),
            _ => self.pad.push_event(event),
        }
    }

    /// Ends the stream after all items that were pushed. Returns `true` if it has already ended; otherwise its end is reported
    /// later.
    pub(super) fn close(&self) -> bool {
        self.is_closing.store(true, Ordering::Release);
        let is_under_way = self.push_event(gst::event::Eos::new());
        self.crossing.is_none() || !is_under_way
    }

    /// Releases threads that wait for room.
    pub(super) fn release(&self) {
        if let Some(crossing) = &self.crossing {
            crossing.release();
        }
    }

    /// Ends the task. The pad must be inactive.
    pub(super) fn stop(&self) {
        if let Some(crossing) = &self.crossing {
            crossing.close();
        }
    }

    /// Decides which caller removes the pad from the element: only one caller gets `true`. The stream may end on its context's
    /// thread while the element stops.
    pub(super) fn leave(&self) -> bool {
        !self.is_gone.swap(true, Ordering::AcqRel)
    }

    /// Returns the latency of the branch.
    pub(super) fn latency(&self) -> gst::ClockTime {
        let place = self.crossing.as_ref().and_then(|c| c.driver().place());
        place.map_or(gst::ClockTime::ZERO, |place| place.wait())
    }
}

/// Pushes the queue's items, and reports the last one.
struct BranchReader {
    reader: QueueReader,
    branch: Weak<Branch>,
    ended: OnEnded,
    has_ended: bool,
}

impl BranchReader {
    fn tell(&self) {
        if let Some(branch) = self.branch.upgrade()
            && branch.is_closing.load(Ordering::Acquire)
        {
            (self.ended)(&branch);
        }
    }
}

impl Producer for BranchReader {
    const REPORTS_FLOW: bool = false;

    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        self.reader.start(cx)
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.reader.stop(cx);
    }

    fn begin(&mut self, cx: &mut Cx<'_>, ready: Ready) {
        self.reader.begin(cx, ready);
    }

    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        // The end of the stream has been pushed by now.
        if std::mem::take(&mut self.has_ended) {
            self.tell();
        }
        let produced = self.reader.produce(cx);
        if let Produced::Event(event) = &produced {
            self.has_ended = event.type_() == gst::EventType::Eos;
        }
        produced
    }

    fn end_flush(&mut self, event: gst::Event) -> Option<gst::Event> {
        self.reader.end_flush(event)
    }

    fn push_failed(&mut self, error: gst::FlowError) {
        self.reader.push_failed(error);
        // The end of the stream will not be pushed any more.
        self.tell();
    }
}
