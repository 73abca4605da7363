//! Elements for connections, web servers, disks and object stores.
//!
//! - `tcp`: clients and servers.
//! - `files`: `ts-filesink`, `ts-filesrc`, `ts-splitfilesink`.
//! - `http`: `ts-httpsrc`, `reqwesthttpsrc`.
//! - `s3`: `ts-s3sink`, `ts-s3src`, `awss3sink`, `awss3src`.
//!
//! [`register`] is for the plugin, `gst-plugin-threadbare`.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod files;
mod http;
mod s3;
mod tcp;

use threadbare_gst_kit::{element, kit, sink_life, source_life};

/// Registers the elements.
///
/// # Errors
/// Fails if an element cannot be registered.
pub fn register(plugin: Option<&gst::Plugin>) -> Result<(), gst::glib::BoolError> {
    tcp::register(plugin)?;
    files::register(plugin)?;
    http::register(plugin)?;
    s3::register(plugin)
}
