//! The pads of an element with several inputs and one output. One input at a time passes to the output.
#![allow(missing_docs, reason = "no stable interface")]

use gst::glib::object::IsClass;
use gst::prelude::*;
use gst::subclass::prelude::*;

use super::pad_function;
use super::queue::Item;

/// An element with several inputs, each with a number that is never reused.
pub trait ManyInputs: ElementImpl<Type: IsA<gst::Element>> {
    fn take(&self, id: u32, pad: &gst::Pad, item: Item)
    -> Result<gst::FlowSuccess, gst::FlowError>;

    fn sink_event(&self, id: u32, pad: &gst::Pad, event: gst::Event) -> bool;

    fn is_active(&self, id: u32) -> bool;

    fn active_pad(&self) -> Option<gst::Pad>;

    fn src_pad(&self) -> &gst::Pad;

    fn src_event(&self, event: gst::Event) -> bool;

    fn answer_latency(&self, query: &mut gst::query::Latency);
}

/// Creates an input pad.
pub fn input_pad<E: ManyInputs, P: IsA<gst::Pad> + IsA<gst::glib::Object> + IsClass>(
    templ: &gst::PadTemplate,
    id: u32,
    name: &str,
) -> P {
    let error = || Err(gst::FlowError::Error);
    let chain = move |pad: &P, parent: Option<&gst::Object>, item| {
        pad_function::<E, _>(parent, error, |imp| imp.take(id, pad.upcast_ref(), item))
    };
    gst::PadBuilder::<P>::from_template(templ)
        .name(name)
        .chain_function(move |pad, parent, buffer| chain(pad, parent, Item::Buffer(buffer)))
        .chain_list_function(move |pad, parent, list| chain(pad, parent, Item::List(list)))
        .event_function(move |pad, parent, event| {
            pad_function::<E, _>(
                parent,
                || false,
                |imp| imp.sink_event(id, pad.upcast_ref(), event),
            )
        })
        .query_function(move |pad, parent, query| {
            pad_function::<E, _>(
                parent,
                || false,
                |imp| sink_query(imp, id, pad.upcast_ref(), query),
            )
        })
        .build()
}

/// Creates the output pad.
pub fn output_pad<E: ManyInputs>(templ: &gst::PadTemplate) -> gst::Pad {
    gst::Pad::builder_from_template(templ)
        .event_function(|_, parent, event| {
            pad_function::<E, _>(parent, || false, |imp| imp.src_event(event))
        })
        .query_function(|pad, parent, query| {
            pad_function::<E, _>(parent, || false, |imp| src_query(imp, pad, query))
        })
        .build()
}

fn sink_query<E: ManyInputs>(imp: &E, id: u32, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
    match query.type_() {
        // An inactive input has no memory to share, and nothing to drain.
        _ if query.is_serialized() && !imp.is_active(id) => false,
        gst::QueryType::Caps | gst::QueryType::AcceptCaps if !imp.src_pad().is_linked() => {
            gst::Pad::query_default(pad, Some(&*imp.obj()), query)
        }
        _ => imp.src_pad().peer_query(query),
    }
}

fn src_query<E: ManyInputs>(imp: &E, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
    if let gst::QueryViewMut::Latency(latency) = query.view_mut() {
        imp.answer_latency(latency);
        return true;
    }
    match imp.active_pad() {
        Some(active) if active.is_linked() => active.peer_query(query),
        _ => gst::Pad::query_default(pad, Some(&*imp.obj()), query),
    }
}

/// Returns the common latency of the inputs: whether an input is live, minimum and maximum. It is computed from all live inputs
/// that answer, not only from the active one. So it does not change when the element switches to another input.
pub fn latency_of(pads: &[gst::Pad]) -> (bool, gst::ClockTime, Option<gst::ClockTime>) {
    let mut all = (false, gst::ClockTime::ZERO, gst::ClockTime::NONE);
    for pad in pads {
        let mut query = gst::query::Latency::new();
        if !pad.peer_query(&mut query) {
            continue;
        }
        let (is_live, min, max) = query.result();
        if is_live {
            let most = [all.2, max].into_iter().flatten().min();
            all = (true, all.1.max(min), most);
        }
    }
    all
}

/// Creates a request for a keyframe, like GStreamer's video library without a time and a count.
pub fn force_key_unit() -> gst::Event {
    let details = gst::Structure::builder("GstForceKeyUnit")
        .field("all-headers", true)
        .field("count", 0u32)
        .build();
    gst::event::CustomUpstream::new(details)
}
