//! The end of a queue inside an element: handles flushes, relinks, the end of the stream and queries. It is common to all
//! elements that push from a queue.

use gst::glib;
use gst::prelude::*;
use threadbare_runtime::{Cx, Ready};

use super::{Item, Queue};
use crate::kit::source::{Driver, Produced, Producer};

/// A queue and its reader, which pushes on a source pad.
pub struct QueueEnd<R> {
    pub items: Queue,
    pub src_pad: gst::Pad,
    pub reader: R,
}

/// The task that pops the items.
pub trait Reader {
    /// Announces the reader's place in the event.
    fn announce(&self, event: gst::Event) -> gst::Event;

    /// Makes the reader push the end of a flush, when its current push has returned. Returns `false` without a reader.
    fn end_flush(&self, event: gst::Event) -> bool;

    /// Restarts a reader that has ended.
    fn restart(&self);
}

impl<P: Producer> Reader for Driver<P> {
    fn announce(&self, event: gst::Event) -> gst::Event {
        match self.place() {
            Some(place) => place.announce(event),
            None => event,
        }
    }

    fn end_flush(&self, event: gst::Event) -> bool {
        let exists = self.place().is_some();
        Driver::end_flush(self, event);
        exists
    }

    fn restart(&self) {
        Driver::restart(self);
    }
}

/// A reader that is an ordinary thread. It waits in [`Queue::next`] and needs none of these calls.
pub struct OwnThread;

impl Reader for OwnThread {
    fn announce(&self, event: gst::Event) -> gst::Event {
        event
    }

    fn end_flush(&self, _event: gst::Event) -> bool {
        true
    }

    fn restart(&self) {}
}

impl<R: Reader> QueueEnd<R> {
    /// Starts a flush; `pass` forwards it.
    pub fn begin_flush(&self, pass: impl FnOnce() -> bool) -> bool {
        let passed = pass();
        for sticky in self.items.begin_flush() {
            let _ = self
                .src_pad
                .store_sticky_event(&self.reader.announce(sticky));
        }
        passed
    }

    /// Ends a flush through the queue: the reader pushes the event after its push from before the flush has returned. This does
    /// not wait for the reader.
    pub fn end_flush(&self, event: gst::Event) -> bool {
        self.items.end_flush(event.clone());
        if !self.reader.end_flush(event)
            && let Some(event) = self.items.resume()
        {
            return self.src_pad.push_event(event);
        }
        true
    }

    /// Queues a serialized event.
    pub fn push_event(&self, element: &gst::Element, event: gst::Event) -> bool {
        use super::Refusal::Failed;
        let kind = event.type_();
        let Err(refusal) = self.items.push_event(event) else {
            return true;
        };
        // After the end of the stream, no push follows that could return the error. So report the error.
        if let (gst::EventType::Eos, Failed { error, is_seen }) = (kind, refusal)
            && !is_seen
        {
            report_unseen(element, error);
        }
        false
    }

    /// Handles an event that passes the source pad upstream. After pads were linked, downstream asks upstream to reconfigure. If
    /// the queue has failed because it was not linked, it then continues.
    pub fn notice_upstream(&self, event: &gst::EventRef) {
        if event.type_() == gst::EventType::Reconfigure && self.items.relink() {
            self.reader.restart();
        }
    }

    /// Makes a serialized query wait for all earlier pushes. A context's thread cannot wait, so its query overtakes these pushes.
    /// Returns `false` if the queued items will not leave.
    pub fn reach_turn_of_query(&self) -> bool {
        threadbare_runtime::current_shard_id().is_some() || self.items.wait_drained()
    }
}

/// A producer that passes on a queue's items.
pub struct QueueReader {
    items: Queue,
    /// The element. While it exists, it posts the errors that no push upstream returns.
    element: glib::WeakRef<gst::Element>,
}

impl QueueReader {
    pub fn new(items: Queue, element: glib::WeakRef<gst::Element>) -> Self {
        QueueReader { items, element }
    }
}

impl Producer for QueueReader {
    const REPORTS_FLOW: bool = false;

    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        cx.wake_self();
        Ok(())
    }

    fn stop(&mut self, _cx: &mut Cx<'_>) {}

    fn begin(&mut self, _cx: &mut Cx<'_>, _ready: Ready) {}

    #[inline]
    fn prefetch(&self) {
        self.items.prefetch();
    }

    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        match self.items.pop(|| cx.waker()) {
            Some(item) => item.into(),
            None => Produced::Idle,
        }
    }

    fn end_flush(&mut self, _event: gst::Event) -> Option<gst::Event> {
        self.items.resume()
    }

    fn push_failed(&mut self, error: gst::FlowError) {
        fail_or_report(&self.items, &self.element, error);
    }
}

impl From<Item> for Produced {
    fn from(item: Item) -> Self {
        match item {
            Item::Buffer(buffer) => Produced::Buffer(buffer),
            Item::List(list) => Produced::List(list),
            Item::Event(event) => Produced::Event(event),
        }
    }
}

/// Notes a failure downstream: the next push into the queue returns the error. If upstream has ended, no push follows, so the
/// application gets the error.
pub fn fail_or_report(items: &Queue, element: &glib::WeakRef<gst::Element>, error: gst::FlowError) {
    if items.fail(error)
        && let Some(element) = element.upgrade()
    {
        report_unseen(&element, error);
    }
}

/// Reports a flow error that is not the result of any push upstream.
fn report_unseen(element: &gst::Element, error: gst::FlowError) {
    if !matches!(error, gst::FlowError::Flushing | gst::FlowError::Eos) {
        gst::element_error!(
            element,
            gst::StreamError::Failed,
            ("Internal data stream error."),
            ["streaming stopped at the end of the stream, reason {error:?}"]
        );
    }
}
