//! Filters that work on the upstream thread: one sink pad, one source pad, no waits.
#![allow(missing_docs, reason = "no stable interface")]

use std::sync::Mutex;

use gst::glib::object::{Cast, IsA, IsClass};
use gst::subclass::prelude::*;

use super::stats::StatsProperty;
use super::{add_latency, add_pads, lock, or_post, pad_function, template};

/// The element-specific part. All methods except [`InlineElement::stats`] and [`InlineElement::forget`] run on the thread that
/// pushes or queries.
pub trait InlineElement: ElementImpl {
    /// Returns the element's pads and statistics.
    fn inline(&self) -> &Inline;

    /// Checks, before the element starts, whether its properties can be satisfied.
    fn check(&self) -> Result<(), gst::ErrorMessage> {
        Ok(())
    }

    /// Handles a buffer.
    fn chain(&self, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError>;

    /// Handles a list.
    fn chain_list(&self, list: gst::BufferList) -> Result<gst::FlowSuccess, gst::FlowError> {
        for buffer in list.iter_owned() {
            self.chain(buffer)?;
        }
        Ok(gst::FlowSuccess::Ok)
    }

    /// Handles an event from upstream.
    fn sink_event(&self, pad: &gst::Pad, event: gst::Event) -> bool;

    /// Answers a query from upstream.
    fn sink_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        gst::Pad::query_default(pad, Some(&*self.obj()), query)
    }

    /// Handles an event from downstream.
    fn src_event(&self, pad: &gst::Pad, event: gst::Event) -> bool {
        gst::Pad::event_default(pad, Some(&*self.obj()), event)
    }

    /// Returns the latency of the element.
    fn latency(&self) -> gst::ClockTime {
        gst::ClockTime::ZERO
    }

    /// Returns the value of the property `stats`.
    fn stats(&self) -> gst::Structure;

    /// Forgets the stream, because the element goes from PAUSED to READY: the next buffer is the first of another stream. No data
    /// passes during the call.
    fn forget(&self);
}

/// The pads and the statistics of an [`InlineElement`].
pub struct Inline {
    pub sink_pad: gst::Pad,
    pub src_pad: gst::Pad,
    pub stats: Mutex<StatsProperty>,
}

impl Inline {
    /// Creates the pads for `with_class`: `sink` and `src`, with these flags.
    pub fn new<E, C>(
        class: &impl std::ops::Deref<Target = gst::glib::Class<C>>,
        flags: gst::PadFlags,
    ) -> Self
    where
        E: InlineElement,
        E::Type: IsA<gst::Element>,
        C: IsA<gst::Element> + IsClass,
    {
        let error = || Err(gst::FlowError::Error);
        let no = || false;
        let sink_pad = gst::Pad::builder_from_template(&template(class, "sink"))
            .chain_function(move |_, parent, buffer| {
                pad_function::<E, _>(parent, error, |imp| imp.chain(buffer))
            })
            .chain_list_function(move |_, parent, list| {
                pad_function::<E, _>(parent, error, |imp| imp.chain_list(list))
            })
            .event_function(move |pad, parent, event| {
                pad_function::<E, _>(parent, no, |imp| imp.sink_event(pad, event))
            })
            .query_function(move |pad, parent, query| {
                pad_function::<E, _>(parent, no, |imp| imp.sink_query(pad, query))
            })
            .flags(flags)
            .build();
        let src_pad = gst::Pad::builder_from_template(&template(class, "src"))
            .event_function(move |pad, parent, event| {
                pad_function::<E, _>(parent, no, |imp| imp.src_event(pad, event))
            })
            .query_function(move |pad, parent, query| {
                pad_function::<E, _>(parent, no, |imp| {
                    let handled = gst::Pad::query_default(pad, Some(&*imp.obj()), query);
                    if handled {
                        add_latency(query, || imp.latency());
                    }
                    handled
                })
            })
            .flags(flags)
            .build();
        Inline {
            sink_pad,
            src_pad,
            stats: Mutex::default(),
        }
    }
}

/// Adds the pads and the statistics to the element. Call it in `constructed`.
pub fn constructed<E: InlineElement>(element: &E)
where
    E::Type: IsA<gst::Element> + Send + Sync,
{
    let (obj, inline) = (element.obj(), element.inline());
    add_pads(obj.upcast_ref(), &[&inline.sink_pad, &inline.src_pad]);
    *lock(&inline.stats) = StatsProperty::of(&*obj, |obj| E::from_obj(obj).stats());
}

/// Performs the state changes of an [`InlineElement`], around those of its parent class.
pub fn change_state<E: InlineElement>(
    element: &E,
    transition: gst::StateChange,
    parent: impl FnOnce() -> Result<gst::StateChangeSuccess, gst::StateChangeError>,
) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
    if transition == gst::StateChange::NullToReady {
        or_post(element, element.check())?;
    }
    let result = parent();
    if transition == gst::StateChange::PausedToReady {
        element.forget();
    }
    result
}
