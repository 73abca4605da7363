//! The fuzz targets' bodies; `threadbare-rtp` replays their corpora.
//!
//! Each function panics if an invariant is violated.

mod packets;
mod protection;

pub use packets::srtp;
pub use protection::protection;
