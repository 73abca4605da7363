//! The bodies of the fuzz targets. They are part of the crate so that `cargo test` can replay the corpora in `fuzz/corpus`
//! (`tests/it/corpus.rs`) without the nightly compiler that a fuzzer needs.
//!
//! Each function panics if an invariant is violated.

mod call;
mod codec;
mod packet;
mod session;

pub use call::{call, leg};
pub use codec::codec;
pub use packet::packet;
pub use session::{rtcp, session};
pub use threadbare_jitter::fuzzing::{Watched, jitter};
#[cfg(feature = "srtp")]
pub use threadbare_srtp::fuzzing::{protection, srtp};
