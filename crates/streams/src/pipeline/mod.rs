//! Streams of GStreamer's own elements, for comparison: `--stock`.

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

/// The elements that carry the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// The relay: no elements, except those of a stream's `pipeline`.
    Threadbare,
    /// GStreamer's own, for comparison: a thread per stream, another two with a jitter buffer, and no RTCP.
    Stock,
}
