//! The contexts of this process: load, lateness of slices, the elements on them, and the elements that blocked them.
//!
//! [`contexts_json`] is for this process, [`serve`] for others (`threadbare inspect contexts`). The tracer
//! (`GST_TRACERS=ts-contexts`) starts [`serve`] in any GStreamer program. Without the tracer, a blockage is attributed to the
//! branch's source; with it, to the element.

mod tracer;

use gst::glib;
use gst::prelude::*;
use threadbare_base::NS_PER_MS;
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

/// Name of the tracer. It differs from the plugin's name: otherwise `gst-inspect-1.0 threadbare` would show the tracer.
const TRACER: &str = "ts-contexts";
