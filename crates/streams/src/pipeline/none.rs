//! Replaces the module `stock` in a program without GStreamer.

use std::convert::Infallible;
use std::sync::mpsc::Sender;

use crate::event::{Event, RunId};
use threadbare_config::StreamSpec;
use threadbare_process::NO_GSTREAMER;

/// A type without values, because this program has no GStreamer.
#[derive(Debug)]
pub struct Stock(Infallible);

/// A type without values, because this program has no GStreamer.
#[derive(Debug)]
pub struct RunningPipeline(Infallible);

/// The reason why `--stock` is refused.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("--stock needs GStreamer, but {NO_GSTREAMER}")]
pub struct StockError;

/// Refuses to load elements.
///
/// # Errors
/// Fails in every case.
pub fn load(_streams: &[StreamSpec]) -> Result<(), StockError> {
    Err(StockError)
}

impl Stock {
    /// Refuses to carry streams.
    ///
    /// # Errors
    /// Fails in every case.
    pub fn new(_streams: &[StreamSpec], _events: Sender<Event>) -> Result<Stock, StockError> {
        Err(StockError)
    }

    /// Cannot be called, because its type has no values.
    ///
    /// # Errors
    /// Fails in no case.
    pub fn start(&self, _spec: &StreamSpec, _run: RunId) -> Result<RunningPipeline, StockError> {
        match self.0 {}
    }
}

impl RunningPipeline {
    /// Cannot be called, because its type has no values.
    pub fn drain(&self) -> bool {
        match self.0 {}
    }
}
