//! The bodies of the fuzz targets. They are part of the crate so that `cargo test` can replay the corpora in `fuzz/corpus`
//! (`tests/it/corpus.rs`) without the nightly compiler that a fuzzer needs.
//!
//! Each function panics if an invariant does not hold.

mod bench;
mod calls;
mod fields;
mod ng;
mod saved;
mod sdp;

pub use bench::{Bench, Carried, FakePorts, Ports};
pub use calls::calls;
pub use fields::{with_unknown_fields, without_field};
pub use ng::ng;
pub use saved::saved;
pub use sdp::{lines_stand_alone, sdp};
