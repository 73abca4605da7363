//! The end of a hub that a context's thread pushes from.

use std::sync::{Arc, Mutex};

use gst::glib;
use gst::prelude::*;
use threadbare_runtime::{Cx, Ready};

use super::{Hub, Kind, Outlet, Settle};
use crate::kit::context::ContextSettings;
use crate::kit::crossing::Popper;
use crate::kit::lock;
use crate::kit::queue::Queue;
use crate::kit::source::{Driver, Produced, Producer};
use crate::kit::time::RunningTime;

/// Behaviour of `ts-proxysrc` and `ts-intersrc`.
pub(super) struct SourceEnd {
    kind: Kind,
    name: Mutex<String>,
    items: Queue,
    src_pad: gst::Pad,
    driver: Arc<Driver<Emptier>>,
    joined: Mutex<Joined>,
}

#[derive(Default)]
struct Joined {
    hub: Option<Arc<Hub>>,
    outlet: Option<Arc<Outlet>>,
}

impl SourceEnd {
    pub(super) fn new(kind: Kind, items: Queue, src_pad: gst::Pad) -> Self {
        SourceEnd {
            kind,
            name: Mutex::default(),
            items,
            src_pad,
            driver: Arc::default(),
            joined: Mutex::default(),
        }
    }

    pub(super) fn name(&self) -> String {
        lock(&self.name).clone()
    }

    pub(super) fn set_name(&self, name: Option<String>) {
        *lock(&self.name) = name.unwrap_or_default();
    }

    pub(super) fn driver(&self) -> &Driver<Emptier> {
        &self.driver
    }

    fn hub(&self) -> Option<Arc<Hub>> {
        lock(&self.joined).hub.clone()
    }

    pub(super) fn join(&self) -> Result<(), gst::ErrorMessage> {
        let hub = Hub::join_as_source(self.kind, &self.name())?;
        lock(&self.joined).hub = Some(hub);
        Ok(())
    }

    pub(super) fn leave(&self) {
        if let Some(hub) = lock(&self.joined).hub.take() {
            hub.leave_as_source();
        }
    }

    pub(super) fn activate(
        &self,
        element: &gst::Element,
        context: &Mutex<ContextSettings>,
    ) -> Result<(), gst::ErrorMessage> {
        let place = lock(context).place(element)?;
        let emptier = Emptier {
            popper: Popper::new(self.items.clone(), element.downgrade()),
            element: element.downgrade(),
            doubtful: None,
        };
        self.driver.add(element, &self.src_pad, place, emptier)?;
        let driver = self.driver.clone();
        let outlet = Arc::new(Outlet {
            items: self.items.clone(),
            pad: self.src_pad.clone(),
            settle: Box::new(move |settle| match settle {
                Settle::AwaitPass => driver.await_pass(),
                Settle::Restart => driver.restart(),
            }),
        });
        let hub = {
            let mut joined = lock(&self.joined);
            joined.outlet = Some(outlet.clone());
            joined.hub.clone()
        };
        if let Some(hub) = hub {
            hub.add(outlet);
        }
        Ok(())
    }

    pub(super) fn deactivate(&self) {
        let (hub, outlet) = {
            let mut joined = lock(&self.joined);
            (joined.hub.clone(), joined.outlet.take())
        };
        if let (Some(hub), Some(outlet)) = (hub, outlet) {
            hub.remove(&outlet);
        }
        self.driver.remove();
    }

    /// An upstream event continues behind the sink.
    pub(super) fn event(&self, event: gst::Event) -> bool {
        // This pipeline's latency is not the other's.
        if event.type_() == gst::EventType::Latency {
            return true;
        }
        let sink = self.hub().and_then(|hub| hub.sink_pad());
        sink.is_some_and(|sink| sink.push_event(event))
    }

    pub(super) fn query(
        &self,
        element: &gst::Element,
        context: &Mutex<ContextSettings>,
        pad: &gst::Pad,
        query: &mut gst::QueryRef,
    ) -> bool {
        let sink = self.hub().and_then(|hub| hub.sink_pad());
        match query.view_mut() {
            gst::QueryViewMut::Latency(latency) => {
                let wait = match self.driver.place() {
                    Some(place) => place.wait(),
                    None => lock(context).wait(),
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

/// Pushes the queue's items. The source's own stop is no failure: the other end survives it.
pub(crate) struct Emptier {
    popper: Popper,
    element: glib::WeakRef<gst::Element>,
    /// The result of a push while the element was not playing.
    doubtful: Option<gst::FlowError>,
}

impl Producer for Emptier {
    const REPORTS_FLOW: bool = false;

    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        self.popper.start(cx)
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.popper.stop(cx);
    }

    fn set_time(&mut self, _time: RunningTime) {
        // It plays again: there was no stop.
        if let Some(error) = self.doubtful.take() {
            self.popper.push_failed(error);
        }
    }

    fn begin(&mut self, cx: &mut Cx<'_>, ready: Ready) {
        self.popper.begin(cx, ready);
    }

    #[inline]
    fn prefetch(&self) {
        self.popper.prefetch();
    }

    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        self.popper.produce(cx)
    }

    fn push_failed(&mut self, error: gst::FlowError) {
        // A sink that is stopped during a push returns EOS.
        let plays = |element: gst::Element| element.current_state() == gst::State::Playing;
        if self.element.upgrade().is_some_and(plays) {
            self.popper.push_failed(error);
        } else {
            self.doubtful = Some(error);
        }
    }
}
