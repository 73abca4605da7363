//! The contexts of this process: load, lateness of slices, the elements that live there, and the elements that held them up.
//!
//! [`contexts_json`] is for this process, [`serve`] for others (`threadbare inspect contexts`). The tracer
//! (`GST_TRACERS=ts-contexts`) starts [`serve`] in any GStreamer program. Without the tracer a hold names the branch's source; with the
//! tracer, the element.

mod tracer;

use gst::glib;
use gst::prelude::*;
pub use threadbare_runtime::inspect::{ServeError, contexts_json, serve, socket_path};

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    threadbare_runtime::on_blocked(|shard, blocked| {
        gst::warning!(
            crate::kit::CAT,
            "context thread {} was held up for {} ms by {}; put a ts-blocking-adapter before an element that blocks",
            shard.name(),
            blocked.for_ns / NS_PER_MS,
            blocked.by
        );
    });
    gst::Tracer::register(plugin, TRACER, tracer::Tracer::static_type())
}

/// Not the plugin's name: `gst-inspect-1.0 threadbare` would show the tracer in its place.
const TRACER: &str = "ts-contexts";
const NS_PER_MS: u64 = 1_000_000;
