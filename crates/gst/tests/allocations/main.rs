//! Elements that allocate nothing for a buffer. A separate program: its allocator counts the allocations of each thread.

mod audioloudnorm;
#[path = "../it/common/mod.rs"]
mod common;
#[path = "../../../../tests/counting.rs"]
mod counting;
mod ebur128level;
