//! The base of Threadbare's GStreamer elements: contexts, tasks of pads, queues, sinks, sockets.
//!
//! [`sharing`] is for your own elements; the crate `gst-plugin-threadbare` exports it under the same name. The rest is for the
//! elements of this repository and has no stable interface.
#![warn(unreachable_pub)]

// Hidden from readers. The lint for missing documentation still covers it, because `sharing` consists of its items.
#[cfg_attr(doc, doc(hidden))]
#[allow(
    rustdoc::private_intra_doc_links,
    reason = "whoever reads the source finds them"
)]
pub mod kit;
pub mod sharing;
