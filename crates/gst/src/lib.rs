//! GStreamer elements that share threads.
//!
//! As a plugin file (`libgstthreadbare.so`), or linked into a program and registered with
//! [`plugin_register_static`]. [`sharing`] is for elements of your own.
#![warn(unreachable_pub)]

mod app;
mod blocking;
mod clocksync;
mod fallback;
mod files;
mod http;
mod hub;
pub mod inspect;
mod kit;
pub mod loudness;
mod queue;
mod rtp;
mod s3;
mod selector;
pub mod sharing;
mod tcp;
mod togglerecord;
mod tone;
mod udpsink;
mod udpsrc;

mod plugin {
    #![allow(missing_docs, reason = "made by the macro")]

    fn plugin_init(plugin: &gst::Plugin) -> Result<(), gst::glib::BoolError> {
        crate::inspect::register(Some(plugin))?;
        crate::udpsrc::register(Some(plugin))?;
        crate::udpsink::register(Some(plugin))?;
        crate::queue::register(Some(plugin))?;
        crate::hub::register(Some(plugin))?;
        crate::app::register(Some(plugin))?;
        crate::tcp::register(Some(plugin))?;
        crate::rtp::register(Some(plugin))?;
        crate::tone::register(Some(plugin))?;
        crate::loudness::register(Some(plugin))?;
        crate::clocksync::register(Some(plugin))?;
        crate::blocking::register(Some(plugin))?;
        crate::selector::register(Some(plugin))?;
        crate::fallback::register(Some(plugin))?;
        crate::togglerecord::register(Some(plugin))?;
        crate::files::register(Some(plugin))?;
        crate::http::register(Some(plugin))?;
        crate::s3::register(Some(plugin))
    }

    gst::plugin_define!(
        threadbare,
        env!("CARGO_PKG_DESCRIPTION"),
        plugin_init,
        env!("CARGO_PKG_VERSION"),
        "MIT/X11",
        env!("CARGO_PKG_NAME"),
        env!("CARGO_PKG_NAME"),
        "threadbare"
    );
}
pub use app::SampleStream;
pub use plugin::plugin_register_static;
