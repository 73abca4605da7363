//! The end of a hub that receives a pipeline's data.

use std::sync::{Arc, Mutex};

use gst::prelude::*;
use gst::subclass::prelude::*;

use super::{Hub, Kind};
use crate::kit::context::Place;
use crate::kit::queue::Item;
use crate::kit::stats::StatsProperty;
use crate::kit::{lock, or_post, pad_function};

/// `ts-proxysink` or `ts-intersink`.
pub(super) trait HubSink: ElementImpl
where
    Self::Type: IsA<gst::Element>,
{
    fn end(&self) -> &SinkEnd;
}

/// The hub, from READY on.
type Joined = Arc<Mutex<Option<Arc<Hub>>>>;

/// Behaviour of `ts-proxysink` and `ts-intersink`.
pub(super) struct SinkEnd {
    kind: Kind,
    name: Mutex<String>,
    pub(super) stats: Mutex<StatsProperty>,
    pub(super) sink_pad: gst::Pad,
    hub: Joined,
}

impl SinkEnd {
    /// `stats`: the name of the statistics.
    pub(super) fn new<E: HubSink>(
        kind: Kind,
        template: &gst::PadTemplate,
        stats: &'static str,
    ) -> Self
    where
        E::Type: IsA<gst::Element>,
    {
        let hub = Joined::default();
        let read = hub.clone();
        SinkEnd {
            kind,
            name: Mutex::default(),
            stats: Mutex::new(StatsProperty::new(move || structure(&read, stats))),
            sink_pad: sink_pad::<E>(template, hub.clone()),
            hub,
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

    fn chain(&self, pad: &gst::Pad, item: Item) -> Result<gst::FlowSuccess, gst::FlowError> {
        let hub = self.hub().ok_or(gst::FlowError::Flushing)?;
        hub.push(pad, item).map(|()| gst::FlowSuccess::Ok)
    }

    fn event(&self, element: &gst::Element, event: gst::Event) -> bool {
        let Some(hub) = self.hub() else { return false };
        // The other side runs on another context.
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

    fn query(&self, element: &gst::Element, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
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
            // The query is forwarded to a single listener only: an allocation that suits one listener may not suit the next.
            (_, [only]) => {
                let is_reached = !query.is_serialized() || only.reach_turn_of_query();
                is_reached && only.src_pad.peer_query(query)
            }
            _ => false,
        }
    }

    fn join(&self) -> Result<(), gst::ErrorMessage> {
        let hub = Hub::join_as_sink(self.kind, &self.name(), &self.sink_pad)?;
        *lock(&self.hub) = Some(hub);
        Ok(())
    }

    fn open(&self, is_open: bool) {
        if let Some(hub) = self.hub() {
            hub.open(is_open);
        }
    }
}

fn sink_pad<E: HubSink>(template: &gst::PadTemplate, hub: Joined) -> gst::Pad
where
    E::Type: IsA<gst::Element>,
{
    let error = || Err(gst::FlowError::Error);
    let no = || false;
    let chain = move |pad: &gst::Pad, parent: Option<&gst::Object>, item| {
        pad_function::<E, _>(parent, error, |imp| imp.end().chain(pad, item))
    };
    let pad = gst::Pad::builder_from_template(template)
        .chain_function(move |pad, parent, buffer| chain(pad, parent, Item::Buffer(buffer)))
        .chain_list_function(move |pad, parent, list| chain(pad, parent, Item::List(list)))
        .event_function(move |_, parent, event| {
            pad_function::<E, _>(parent, no, |imp| {
                imp.end().event(imp.obj().upcast_ref(), event)
            })
        })
        .query_function(move |pad, parent, query| {
            pad_function::<E, _>(parent, no, |imp| {
                imp.end().query(imp.obj().upcast_ref(), pad, query)
            })
        })
        .build();
    pad.connect_unlinked(move |_, _| {
        let hub = lock(&hub).clone();
        if let Some(hub) = hub {
            hub.unlink();
        }
    });
    pad
}

fn structure(hub: &Joined, name: &str) -> gst::Structure {
    let structure = gst::Structure::builder(name);
    let hub = lock(hub).clone();
    let Some(hub) = hub else {
        return structure.field("outlets", 0u64).build();
    };
    let state = hub.state();
    structure
        .field("outlets", state.outlets.len() as u64)
        .field("dropped", state.dropped)
        .build()
}

/// Changes the state: does its own part before and after `parent`, the state change of the parent class.
pub(super) fn change_state<E: HubSink>(
    imp: &E,
    transition: gst::StateChange,
    parent: impl FnOnce() -> Result<gst::StateChangeSuccess, gst::StateChangeError>,
) -> Result<gst::StateChangeSuccess, gst::StateChangeError>
where
    E::Type: IsA<gst::Element>,
{
    let end = imp.end();
    match transition {
        gst::StateChange::NullToReady => or_post(imp, end.join())?,
        gst::StateChange::ReadyToPaused => end.open(true),
        // This comes before the pad is deactivated, because the deactivation waits for a pusher that waits here.
        gst::StateChange::PausedToReady => end.open(false),
        _ => {}
    }
    let result = parent();
    if transition == gst::StateChange::ReadyToNull
        && let Some(hub) = lock(&end.hub).take()
    {
        hub.leave_as_sink();
    }
    result
}
