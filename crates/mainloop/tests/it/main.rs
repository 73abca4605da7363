//! GLib's main loop with futures: the tests with C calls. The rest is in `pure.rs`, for Miri.

mod bridge;
mod channel;
mod executor;
mod streams;
