//! An element with one sink pad and a [`Sink`] behind it: the pad functions.

use gst::prelude::*;
use gst::subclass::prelude::*;

use super::{Renderer, Sink};
use crate::kit::pad_function;

/// An element with a [`Sink`].
pub trait SinkElement: ElementImpl
where
    Self::Type: IsA<gst::Element>,
{
    /// Renders each buffer.
    type Renderer: Renderer;

    /// Created on first use, since it refers to the element.
    fn sink(&self) -> &Sink<Self::Renderer>;

    /// A buffer arrives.
    ///
    /// # Errors
    /// The flow error for the pusher.
    fn handle_buffer(&self, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.sink().chain(buffer)
    }

    /// A list arrives.
    ///
    /// # Errors
    /// As those of [`SinkElement::handle_buffer`].
    fn handle_list(&self, list: &gst::BufferList) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.sink().chain_list(list)
    }

    /// An event arrives, and its [`Sink`] has not seen it yet.
    fn notice_event(&self, _event: &gst::Event) {}

    /// A query arrives. `false`: use the default answer.
    fn answer_query(&self, _query: &mut gst::QueryRef) -> bool {
        false
    }
}

/// The pad of a sink element, from its template: buffers, lists and events go to its [`Sink`].
pub fn sink_pad<T: SinkElement>(template: &gst::PadTemplate) -> gst::Pad
where
    T::Type: IsA<gst::Element>,
{
    let error = || Err(gst::FlowError::Error);
    gst::Pad::builder_from_template(template)
        .chain_function(move |_, parent, buffer| {
            pad_function::<T, _>(parent, error, |imp| imp.handle_buffer(buffer))
        })
        .chain_list_function(move |_, parent, list| {
            pad_function::<T, _>(parent, error, |imp| imp.handle_list(&list))
        })
        .event_function(|pad, parent, event| {
            pad_function::<T, _>(
                parent,
                || false,
                |imp| {
                    imp.notice_event(&event);
                    imp.sink().event(&event)
                        || gst::Pad::event_default(pad, Some(&*imp.obj()), event)
                },
            )
        })
        .query_function(|pad, parent, query| {
            pad_function::<T, _>(
                parent,
                || false,
                |imp| {
                    imp.answer_query(query)
                        || gst::Pad::query_default(pad, Some(&*imp.obj()), query)
                },
            )
        })
        .build()
}
