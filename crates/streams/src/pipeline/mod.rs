//! Streams of GStreamer's own elements. They are for comparison (`--stock`).

#[cfg(feature = "gstreamer")]
mod chain;
#[cfg(not(feature = "gstreamer"))]
mod none;
#[cfg(feature = "gstreamer")]
mod stock;

#[cfg(not(feature = "gstreamer"))]
pub use self::none::{RunningPipeline, Stock, StockError, load};
#[cfg(feature = "gstreamer")]
pub use self::{
    chain::StockError,
    stock::{RunningPipeline, Stock, load},
};

/// What carries the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// The relay. It uses no elements, except for those of a stream's `pipeline`.
    Threadbare,
    /// GStreamer's own elements, for comparison. Each stream has a thread, and another two with a jitter buffer. There is no RTCP.
    Stock,
}
