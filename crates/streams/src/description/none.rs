//! Replaces the module `built_in` in a program without GStreamer.

use std::sync::mpsc::Sender;

use threadbare_rtp::call::Filter;
use threadbare_rtp::codec::Format;

use super::DescriptionError;
use crate::event::{Event, RunId};

/// Refuses any description.
///
/// # Errors
/// Fails in every case.
pub fn check(_description: &str) -> Result<(), DescriptionError> {
    Err(DescriptionError::NoGStreamer)
}

/// Refuses to create a filter.
///
/// # Errors
/// Fails in every case.
pub fn filter(
    _description: &str,
    _stream: &str,
    _run: RunId,
    _format: Format,
    _events: Sender<Event>,
) -> Result<Box<dyn Filter>, DescriptionError> {
    Err(DescriptionError::NoGStreamer)
}
