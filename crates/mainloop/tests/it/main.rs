//! GLib's main loop with futures: the tests with C calls. The other tests are in `pure.rs`, for Miri.

mod bridge;
mod channel;
mod executor;
mod streams;
