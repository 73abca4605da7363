//! Creates elements from a description.

use std::sync::mpsc::Sender;

use gst::glib;
use gst::prelude::*;
use threadbare_rtp::call::Filter;
use threadbare_rtp::codec::Format;

use super::DescriptionError;
use super::filter::PipelineFilter;
use crate::bus::Reports;
use crate::event::{Event, RunId};

/// Checks that GStreamer understands a description, and that its elements make a filter. This function starts no element.
///
/// # Errors
/// Fails with GStreamer's message, or with the name of the pad that is missing.
pub fn check(description: &str) -> Result<(), DescriptionError> {
    gst::init().map_err(refused)?;
    gstthreadbare::plugin_register_static().map_err(refused)?;
    parse(description).map(drop)
}

/// Creates and starts a filter of these elements for this format. If the filter fails later, this is reported as a failure of the stream's
/// run.
///
/// # Errors
/// Fails with GStreamer's message.
pub fn filter(
    description: &str,
    stream: &str,
    run: RunId,
    format: Format,
    events: Sender<Event>,
) -> Result<Box<dyn Filter>, DescriptionError> {
    let filter = parse(description)?;
    let reports = Reports::new(stream, run, events);
    let made = PipelineFilter::new(&filter, stream, format, &reports);
    let made = made.map_err(|error| match reports.first_error() {
        // The element that refused to start has posted the reason.
        Some(reason) => DescriptionError::Refused(reason),
        None => refused(error),
    });
    Ok(Box::new(made?))
}

/// Creates a bin with one sink pad and one source pad.
fn parse(description: &str) -> Result<gst::Element, DescriptionError> {
    let flags = gst::ParseFlags::FATAL_ERRORS;
    let bin = gst::parse::bin_from_description_full(description, true, None, flags);
    let bin = bin.map_err(refused)?;
    for pad in ["sink", "src"] {
        if bin.static_pad(pad).is_none() {
            let name = if pad == "src" { "source" } else { pad };
            return Err(DescriptionError::NoPad(name));
        }
    }
    Ok(bin)
}

fn refused(error: impl Into<RefusedBy>) -> DescriptionError {
    DescriptionError::Refused(error.into().0)
}

struct RefusedBy(String);

impl From<glib::Error> for RefusedBy {
    fn from(error: glib::Error) -> RefusedBy {
        RefusedBy(error.message().to_owned())
    }
}

impl From<glib::BoolError> for RefusedBy {
    fn from(error: glib::BoolError) -> RefusedBy {
        RefusedBy(error.message.into_owned())
    }
}
