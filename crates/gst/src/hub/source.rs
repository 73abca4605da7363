//! The end of a hub that a context's thread pushes from.

use std::sync::{Arc, Mutex};

use gst::glib;
use gst::prelude::*;
use threadbare_runtime::{Cx, Ready};

use super::{Hub, Kind, Outlet};
use crate::kit::context::ContextSettings;
use crate::kit::lock;
use crate::kit::queue::{Queue, QueueEnd, QueueProperties, QueueReader};
use crate::kit::source::{Driver, Produced, Producer};
use crate::kit::time::RunningTime;

/// Behaviour of `ts-proxysrc` and `ts-intersrc`.
pub(super) struct SourceEnd {
    kind: Kind,
    name: Mutex<String>,
    pub(super) context: Mutex<ContextSettings>,
    pub(super) queue: Mutex<QueueProperties>,
    outlet: Arc<Outlet>,
    hub: Mutex<Option<Arc<Hub>>>,
}

impl SourceEnd {
    pub(super) fn new(kind: Kind, src_pad: gst::Pad) -> Self {
        let items = Queue::new(|_| {});
        SourceEnd {
            kind,
            name: Mutex::default(),
            context: Mutex::default(),
            queue: Mutex::new(QueueProperties(items.clone())),
            outlet: Arc::new(QueueEnd {
                items,
                src_pad,
                reader: Driver::default(),
            }),
            hub: Mutex::new(None),
        }
    }

    pub(super) fn name(&self) -> String {
        lock(&self.name).clone()
    }

    pub(super) fn set_name(&self, name: Option<String>) {
        *lock(&self.name) = name.unwrap_or_default();
    }

    pub(super) fn driver(&self) -> &Driver<StoppingReader> {
        &self.outlet.reader
    }

    fn hub(&self) -> Option<Arc<Hub>> {
        lock(&self.hub).clone()
    }

    pub(super) fn join(&self) -> Result<(), gst::ErrorMessage> {
        let hub = Hub::join_as_source(self.kind, &self.name())?;
        *lock(&self.hub) = Some(hub);
        Ok(())
    }

    pub(super) fn leave(&self) {
        if let Some(hub) = lock(&self.hub).take() {
            hub.leave_as_source();
        }
    }

    pub(super) fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
        let place = lock(&self.context).place(element)?;
        let outlet = &self.outlet;
        let reader = StoppingReader {
            reader: QueueReader::new(outlet.items.clone(), element.downgrade()),
            element: element.downgrade(),
            doubtful: None,
        };
        (outlet.reader).add(element, &outlet.src_pad, place, reader)?;
        if let Some(hub) = self.hub() {
            hub.add(outlet.clone());
        }
        Ok(())
    }

    pub(super) fn deactivate(&self) {
        if let Some(hub) = self.hub() {
            hub.remove(&self.outlet);
        }
        self.outlet.reader.remove();
    }

    /// Forwards an upstream event to the sink's pipeline.
    pub(super) fn event(&self, event: gst::Event) -> bool {
        self.outlet.notice_upstream(&event);
        // This pipeline's latency differs from the other's.
        if event.type_() == gst::EventType::Latency {
            return true;
        }
        let sink = self.hub().and_then(|hub| hub.sink_pad());
        sink.is_some_and(|sink| sink.push_event(event))
    }

    pub(super) fn query(
        &self,
        element: &gst::Element,
        pad: &gst::Pad,
        query: &mut gst::QueryRef,
    ) -> bool {
        let sink = self.hub().and_then(|hub| hub.sink_pad());
        match query.view_mut() {
            gst::QueryViewMut::Latency(latency) => {
                let wait = match self.outlet.reader.place() {
                    Some(place) => place.wait(),
                    None => lock(&self.context).wait(),
                };
                let mut upstream = gst::query::Latency::new();
                let (min, max) = match sink {
                    Some(sink) if sink.peer_query(&mut upstream) => {
                        let (_, min, max) = upstream.result();
                        (min, max)
                    }
                    _ => (gst::ClockTime::ZERO, None),
                };
                latency.set(true, min + wait, max.map(|max| max + wait));
                true
            }
            gst::QueryViewMut::Scheduling(scheduling) => {
                scheduling.set(gst::SchedulingFlags::SEQUENTIAL, 1, -1, 0);
                scheduling.add_scheduling_modes([gst::PadMode::Push]);
                true
            }
            gst::QueryViewMut::Caps(caps) => {
                let known = match sink {
                    Some(sink) => sink
                        .current_caps()
                        .unwrap_or_else(|| sink.peer_query_caps(None)),
                    None => gst::Caps::new_any(),
                };
                let result = match caps.filter() {
                    Some(filter) => {
                        filter.intersect_with_mode(&known, gst::CapsIntersectMode::First)
                    }
                    None => known,
                };
                caps.set_result(&result);
                true
            }
            gst::QueryViewMut::AcceptCaps(_) => gst::Pad::query_default(pad, Some(element), query),
            _ => sink.is_some_and(|sink| sink.peer_query(query)),
        }
    }
}

/// Pushes the queue's items. If this source is stopped, that is not a failure of the queue: the other end continues.
pub struct StoppingReader {
    reader: QueueReader,
    element: glib::WeakRef<gst::Element>,
    /// The result of a push while the element was leaving PLAYING.
    doubtful: Option<gst::FlowError>,
}

impl Producer for StoppingReader {
    const REPORTS_FLOW: bool = false;

    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        self.reader.start(cx)
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.reader.stop(cx);
    }

    fn set_time(&mut self, time: RunningTime) {
        // The element plays again, so the push did not fail because of a stop.
        if time.has_clock()
            && let Some(error) = self.doubtful.take()
        {
            self.reader.push_failed(error);
        }
    }

    fn begin(&mut self, cx: &mut Cx<'_>, ready: Ready) {
        self.reader.begin(cx, ready);
    }

    #[inline]
    fn prefetch(&self) {
        self.reader.prefetch();
    }

    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        self.reader.produce(cx)
    }

    fn end_flush(&mut self, event: gst::Event) -> Option<gst::Event> {
        self.doubtful = None;
        self.reader.end_flush(event)
    }

    fn push_failed(&mut self, error: gst::FlowError) {
        // The failure may come from the stop: for example, a sink that is stopped during a push returns EOS.
        let is_leaving = self.element.upgrade().is_none_or(|element| {
            let (_, current, pending) = element.state(gst::ClockTime::ZERO);
            is_leaving(current, pending)
        });
        if is_leaving {
            self.doubtful = Some(error);
        } else {
            self.reader.push_failed(error);
        }
    }
}

/// Whether an element leaves PLAYING, or has left it. While the state rises, nothing stops: the task starts before the state is
/// PLAYING.
fn is_leaving(current: gst::State, pending: gst::State) -> bool {
    match pending {
        gst::State::VoidPending => current != gst::State::Playing,
        target => target != gst::State::Playing,
    }
}

#[cfg(test)]
mod tests {
    use super::is_leaving;
    use gst::State::{Null, Paused, Playing, Ready, VoidPending};

    #[test]
    fn a_refused_push_is_an_error_only_if_the_source_does_not_start() {
        for (current, pending, expected) in [
            (Playing, VoidPending, false),
            (Paused, Playing, false),
            (Ready, Playing, false),
            (Paused, VoidPending, true),
            (Playing, Paused, true),
            (Paused, Ready, true),
            (Paused, Null, true),
        ] {
            assert_eq!(
                is_leaving(current, pending),
                expected,
                "{current:?} {pending:?}"
            );
        }
    }
}
