//! The fuzz targets' bodies. They stand here so that the corpora in `fuzz/corpus` replay under `cargo test`
//! (`tests/corpus.rs`), without the nightly compiler that a fuzzer needs.
//!
//! Each function panics where an invariant does not hold.

mod call;
mod codec;
mod jitter;
mod packet;
#[cfg(feature = "srtp")]
mod protection;
mod session;
#[cfg(feature = "srtp")]
mod srtp;

pub use call::{call, leg};
pub use codec::codec;
pub use jitter::{Watched, jitter};
pub use packet::packet;
#[cfg(feature = "srtp")]
pub use protection::protection;
pub use session::{rtcp, session};
#[cfg(feature = "srtp")]
pub use srtp::srtp;
