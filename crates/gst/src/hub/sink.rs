//! The end of a hub that receives a pipeline's data.

use std::sync::{Arc, Mutex};

use gst::prelude::*;

use super::{Hub, Kind};
use crate::kit::context::Place;
use crate::kit::lock;
use crate::kit::queue::Item;

/// Behaviour of `ts-proxysink` and `ts-intersink`.
pub(super) struct SinkEnd {
    kind: Kind,
    name: Mutex<String>,
    hub: Mutex<Option<Arc<Hub>>>,
}

impl SinkEnd {
    pub(super) fn new(kind: Kind) -> Self {
        SinkEnd {
            kind,
            name: Mutex::default(),
            hub: Mutex::new(None),
        }
    }

    pub(super) fn name(&self) -> String {
        lock(&self.name).clone()
    }

    pub(super) fn set_name(&self, name: Option<String>) {
        *lock(&self.name) = name.unwrap_or_default();
    }

    fn hub(&self) -> Option<Arc<Hub>> {
        lock(&self.hub).clone()
    }

    pub(super) fn chain(
        &self,
        pad: &gst::Pad,
        item: Item,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        let hub = self.hub().ok_or(gst::FlowError::Flushing)?;
        hub.push(pad, item).map(|()| gst::FlowSuccess::Ok)
    }

    pub(super) fn unlink(&self) {
        if let Some(hub) = self.hub() {
            hub.unlink();
        }
    }

    pub(super) fn event(&self, element: &gst::Element, event: gst::Event) -> bool {
        let Some(hub) = self.hub() else { return false };
        // The other side runs elsewhere.
        let event = &Place::unannounced(event);
        match event.view() {
            gst::EventView::FlushStart(_) | gst::EventView::FlushStop(_) => {
                hub.flush(event);
            }
            gst::EventView::Eos(_) => {
                let _ = hub.push_event(event);
                let eos = gst::message::Eos::builder().src(element);
                let _ = element.post_message(eos.seqnum(event.seqnum()).build());
            }
            gst::EventView::StreamStart(start) => {
                let _ = hub.push_event(event);
                let message = gst::message::StreamStart::builder().src(element);
                let message = message.seqnum(event.seqnum());
                let message = match start.group_id() {
                    Some(group) => message.group_id(group).build(),
                    None => message.build(),
                };
                let _ = element.post_message(message);
            }
            _ if event.is_serialized() => return hub.push_event(event).is_ok(),
            _ => {
                for outlet in hub.outlets().iter() {
                    outlet.src_pad.push_event(event.clone());
                }
            }
        }
        true
    }

    pub(super) fn query(
        &self,
        element: &gst::Element,
        pad: &gst::Pad,
        query: &mut gst::QueryRef,
    ) -> bool {
        let Some(hub) = self.hub() else {
            return gst::Pad::query_default(pad, Some(element), query);
        };
        let outlets = hub.outlets();
        match (query.view_mut(), &*outlets) {
            (gst::QueryViewMut::Caps(caps), outlets) => {
                let common = outlets.iter().fold(gst::Caps::new_any(), |common, outlet| {
                    common.intersect(&outlet.src_pad.peer_query_caps(None))
                });
                let result = match caps.filter() {
                    Some(filter) => {
                        filter.intersect_with_mode(&common, gst::CapsIntersectMode::First)
                    }
                    None => common,
                };
                caps.set_result(&result);
                true
            }
            (gst::QueryViewMut::AcceptCaps(_), _) => {
                gst::Pad::query_default(pad, Some(element), query)
            }
            // Forwarded for a single listener only; an allocation that suits one listener may not suit the next.
            (_, [only]) => {
                let is_reached = !query.is_serialized() || only.reach_turn_of_query();
                is_reached && only.src_pad.peer_query(query)
            }
            _ => false,
        }
    }

    pub(super) fn structure(&self, name: &str) -> gst::Structure {
        let structure = gst::Structure::builder(name);
        let Some(hub) = self.hub() else {
            return structure.field("outlets", 0u64).build();
        };
        let state = hub.state();
        structure
            .field("outlets", state.outlets.len() as u64)
            .field("dropped", state.dropped)
            .build()
    }

    /// Around the parent's state change.
    pub(super) fn before(
        &self,
        pad: &gst::Pad,
        transition: gst::StateChange,
    ) -> Result<(), gst::ErrorMessage> {
        match transition {
            gst::StateChange::NullToReady => {
                *lock(&self.hub) = Some(Hub::join_as_sink(self.kind, &self.name(), pad)?);
            }
            gst::StateChange::ReadyToPaused => self.open(true),
            // Before the pad is deactivated, which waits for a pusher that waits here.
            gst::StateChange::PausedToReady => self.open(false),
            _ => {}
        }
        Ok(())
    }

    pub(super) fn after(&self, transition: gst::StateChange) {
        if transition == gst::StateChange::ReadyToNull
            && let Some(hub) = lock(&self.hub).take()
        {
            hub.leave_as_sink();
        }
    }

    fn open(&self, is_open: bool) {
        if let Some(hub) = self.hub() {
            hub.open(is_open);
        }
    }
}
