//! The downstream side of `ts-clocksync`: holds one item until its time, on the branch's thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

use gst::glib;
use gst::prelude::*;
use threadbare_runtime::{Cx, Precision};

use crate::kit::queue::{Item, Queue, fail_or_report};
use crate::kit::source::{Produced, Producer};
use crate::kit::time::{ProducerTimer, RunningTime};

/// State that the element changes while it runs.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) sync: AtomicBool,
    pub(super) offset_ns: AtomicI64,
    pub(super) to_first: AtomicBool,
    /// While this is false, everything with a time is held.
    pub(super) is_playing: AtomicBool,
    /// Upstream's minimum latency.
    pub(super) upstream_ns: AtomicU64,
}

impl Default for Shared {
    fn default() -> Self {
        Shared {
            sync: AtomicBool::new(true),
            offset_ns: AtomicI64::new(0),
            to_first: AtomicBool::new(false),
            is_playing: AtomicBool::new(false),
            upstream_ns: AtomicU64::new(0),
        }
    }
}

pub struct ClockReader {
    items: Queue,
    shared: Arc<Shared>,
    held: Option<Item>,
    /// Whether the offset has been taken from the first buffer.
    has_first: bool,
    segment: Option<gst::FormattedSegment<gst::ClockTime>>,
    timer: ProducerTimer,
    element: glib::WeakRef<gst::Element>,
}

impl ClockReader {
    pub(super) fn new(element: &gst::Element, items: Queue, shared: Arc<Shared>) -> Self {
        ClockReader {
            items,
            shared,
            held: None,
            has_first: false,
            segment: None,
            timer: ProducerTimer::default(),
            element: element.downgrade(),
        }
    }

    /// Returns the running time of an item, if it has one: that of a buffer, of a list's first buffer, or of a gap.
    fn running_ns(&self, item: &Item) -> Option<i64> {
        let time = match item {
            Item::Buffer(buffer) => buffer.pts().or(buffer.dts()),
            Item::List(list) => list.get(0).and_then(|first| first.pts().or(first.dts())),
            Item::Event(event) => match event.view() {
                gst::EventView::Gap(gap) => Some(gap.get().0),
                _ => None,
            },
        };
        let running = self.segment.as_ref()?.to_running_time(time?)?;
        i64::try_from(running.nseconds()).ok()
    }

    /// Returns `Ok` if `item` may pass now. If it must be held, returns the wait as an error.
    fn must_wait(&mut self, cx: &Cx<'_>, item: &Item) -> Result<(), Wait> {
        if !self.shared.sync.load(Relaxed) {
            return Ok(());
        }
        let Some(running_ns) = self.running_ns(item) else {
            return Ok(());
        };
        if !self.shared.is_playing.load(Relaxed) {
            return Err(Wait::ForPlaying);
        }
        // Without a clock, nothing is held.
        let Some(now_ns) = self.timer.time().signed_at(cx.now_ns()) else {
            return Ok(());
        };
        if self.shared.to_first.load(Relaxed) && !std::mem::replace(&mut self.has_first, true) {
            let offset_ns = now_ns - running_ns;
            self.shared.offset_ns.store(offset_ns, Relaxed);
            if let Some(element) = self.element.upgrade() {
                element.notify("ts-offset");
            }
        }
        let upstream_ns = self.shared.upstream_ns.load(Relaxed);
        let due_ns = running_ns
            .saturating_add(self.shared.offset_ns.load(Relaxed))
            .saturating_add_unsigned(upstream_ns);
        match u64::try_from(due_ns) {
            Ok(due_at_ns) if due_ns > now_ns => Err(Wait::Until(due_at_ns)),
            _ => Ok(()),
        }
    }
}

enum Wait {
    ForPlaying,
    /// Until this running time, ns.
    Until(u64),
}

impl Producer for ClockReader {
    const REPORTS_FLOW: bool = false;

    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        cx.wake_self();
        Ok(())
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.timer.clear(cx);
    }

    fn set_time(&mut self, time: RunningTime) {
        self.timer.set_time(time);
    }

    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        let next = self.held.take().or_else(|| self.items.pop(|| cx.waker()));
        let Some(item) = next else {
            return Produced::Idle;
        };
        if let Err(wait) = self.must_wait(cx, &item) {
            self.held = Some(item);
            match wait {
                Wait::ForPlaying => self.timer.clear(cx),
                Wait::Until(due_ns) => {
                    (self.timer).set(cx, due_ns, Precision::NotBefore);
                }
            }
            return Produced::Idle;
        }
        if let Item::Event(event) = &item
            && let gst::EventView::Segment(segment) = event.view()
        {
            self.segment = segment.segment().downcast_ref().cloned();
        }
        item.into()
    }

    fn end_flush(&mut self, _event: gst::Event) -> Option<gst::Event> {
        let event = self.items.resume()?;
        self.held = None;
        self.has_first = false;
        Some(event)
    }

    fn push_failed(&mut self, error: gst::FlowError) {
        fail_or_report(&self.items, &self.element, error);
    }
}
