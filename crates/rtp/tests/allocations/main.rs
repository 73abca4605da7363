//! Running calls and sessions allocate nothing.

mod call;
#[path = "../../../../tests/counting.rs"]
mod counting;
mod session;
