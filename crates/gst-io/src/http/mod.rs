//! HTTP sources: `ts-httpsrc` and `reqwesthttpsrc`. The latter is the same element, but uses its own thread if no context is
//! named.
//!
//! - `core`: the decisions of a transfer, without a socket or a clock.
//! - `client`: the clients of the process and their two threads. `fetch`: a task on these threads for each source.
//! - `pipe`: the bounded queue from a fetch to a context's thread. `reader`: pushes the queue's contents.
//! - `settings`, `source`, `elements`: the properties, the common part of both elements, their classes.
//!
//! ```text
//!   server --> client's threads: Fetch, decided by Transfer --Pipe, bounded--> context's thread: HttpReader --> pad
//! ```

mod client;
mod core;
mod elements;
mod fetch;
mod pipe;
mod reader;
mod settings;
mod source;
mod station;

use std::sync::LazyLock;

pub(crate) use self::elements::register;
pub(crate) use self::reader::HttpReader;
pub(crate) use self::settings::{BYTES_MAX_DEFAULT, Signed};
pub(crate) use self::source::{Alone, HttpSource};

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "ts-httpsrc",
        gst::DebugColorFlags::empty(),
        Some("Thread-sharing HTTP source"),
    )
});
