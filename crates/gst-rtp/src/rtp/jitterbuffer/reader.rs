//! The downstream side of `ts-rtpjitterbuffer`, on its context's thread.
//!
//! The sink pad fills a queue. Each pass moves the queue's packets into the jitter buffer, and pushes those that are due in
//! order. The timer is only for missing packets.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gst::glib;
use gst::prelude::*;
use threadbare_rtp::leg::Fields;
use threadbare_rtp::packet::is_rtcp;
use threadbare_runtime::{Cx, Precision, Ready};

use super::orderer::{Orderer, Rate};
use crate::kit::lock;
use crate::kit::queue::{Item, Queue, fail_or_report};
use crate::kit::source::{Produced, Producer};
use crate::kit::time::{ProducerTimer, RunningTime};

/// State shared by both sides.
pub(super) struct Shared {
    /// The orderer. The context's thread uses it for each packet, and other threads use it for statistics and settings. The lock
    /// is not held across a push or a signal.
    pub(super) orderer: Mutex<Orderer>,
    /// Latency of upstream, ns.
    pub(super) upstream_ns: AtomicU64,
    pub(super) malformed: AtomicU64,
    has_warned: AtomicBool,
}

impl Shared {
    pub(super) fn new(orderer: Orderer) -> Self {
        Shared {
            orderer: Mutex::new(orderer),
            upstream_ns: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
            has_warned: AtomicBool::new(false),
        }
    }
}

pub(super) struct PacketReader {
    items: Queue,
    /// The remaining packets of a list.
    list: std::vec::IntoIter<gst::Buffer>,
    shared: Arc<Shared>,
    src_pad: gst::Pad,
    timer: ProducerTimer,
    element: glib::WeakRef<gst::Element>,
}

impl PacketReader {
    pub(super) fn new(
        element: &gst::Element,
        items: Queue,
        src_pad: gst::Pad,
        shared: Arc<Shared>,
    ) -> Self {
        PacketReader {
            items,
            list: Vec::new().into_iter(),
            shared,
            src_pad,
            timer: ProducerTimer::default(),
            element: element.downgrade(),
        }
    }

    /// Returns the running time of this pass, if a clock is set.
    fn now_ns(&self, cx: &Cx<'_>) -> Option<u64> {
        let now_ns = self.timer.time().at(cx.now_ns())?.nseconds();
        let upstream_ns = self.shared.upstream_ns.load(Ordering::Relaxed);
        Some(now_ns.saturating_sub(upstream_ns))
    }

    fn take(&self, now_ns: Option<u64>, buffer: gst::Buffer) {
        let map = buffer.map_readable().ok();
        let fields = map.filter(|map| !is_rtcp(map));
        let fields = fields.and_then(|map| Fields::of(&map));
        let Some(fields) = fields else {
            self.shared.malformed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let payload_type = fields.payload_type();
        let rate = lock(&self.shared.orderer).rate(payload_type);
        if rate == Rate::Ask {
            let caps = self.ask(payload_type.0);
            if !lock(&self.shared.orderer).answer(payload_type, caps.as_ref()) {
                self.warn_of(payload_type.0);
                return;
            }
        }
        lock(&self.shared.orderer).handle(now_ns, fields, buffer);
    }

    #[cold]
    fn ask(&self, payload_type: u8) -> Option<gst::Caps> {
        self.element
            .upgrade()?
            .emit_by_name::<Option<gst::Caps>>("request-pt-map", &[&u32::from(payload_type)])
    }

    #[cold]
    fn warn_of(&self, payload_type: u8) {
        if !self.shared.has_warned.swap(true, Ordering::Relaxed)
            && let Some(element) = self.element.upgrade()
        {
            gst::element_warning!(
                element,
                gst::StreamError::Format,
                [
                    "packets of dynamic payload type {payload_type} are dropped: its clock-rate is neither in the caps nor returned by request-pt-map"
                ]
            );
        }
    }

    fn arm(&mut self, cx: &Cx<'_>) {
        let due_ns = lock(&self.shared.orderer).next_timeout();
        let Some(due_ns) = due_ns else {
            return self.timer.clear(cx);
        };
        let upstream_ns = self.shared.upstream_ns.load(Ordering::Relaxed);
        let due_ns = due_ns.saturating_add(upstream_ns);
        self.timer.set(cx, due_ns, Precision::About);
    }
}

impl Producer for PacketReader {
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

    fn begin(&mut self, _cx: &mut Cx<'_>, _ready: Ready) {}

    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        let now_ns = self.now_ns(cx);
        // Outputs that are due within the next half slice are pushed now, because otherwise they would be up to half a slice
        // late.
        let half_slice_ns = cx.local().shard().wait().as_nanos() as u64 / 2;
        let due_ns = now_ns.map(|now_ns| now_ns.saturating_add(half_slice_ns));
        loop {
            let produced = lock(&self.shared.orderer).poll(due_ns, false);
            if let Some(produced) = produced {
                return produced;
            }
            if let Some(buffer) = self.list.next() {
                self.take(now_ns, buffer);
                continue;
            }
            match self.items.pop(|| cx.waker()) {
                Some(Item::Buffer(buffer)) => {
                    cx.count_packets(1);
                    self.take(now_ns, buffer);
                }
                Some(Item::List(list)) => {
                    cx.count_packets(list.len() as u64);
                    self.list = list.iter_owned().collect::<Vec<_>>().into_iter();
                }
                Some(Item::Event(event)) => lock(&self.shared.orderer).place(event),
                // By now all arrived packets have been added.
                None => {
                    if let Some(produced) = lock(&self.shared.orderer).poll(due_ns, true) {
                        return produced;
                    }
                    self.arm(cx);
                    return Produced::Idle;
                }
            }
        }
    }

    fn end_flush(&mut self, _event: gst::Event) -> Option<gst::Event> {
        let event = self.items.resume()?;
        self.list = Vec::new().into_iter();
        let still_true = lock(&self.shared.orderer).flush();
        for sticky in still_true {
            let _ = self.src_pad.store_sticky_event(&sticky);
        }
        Some(event)
    }

    fn push_failed(&mut self, error: gst::FlowError) {
        fail_or_report(&self.items, &self.element, error);
    }
}
