//! GStreamer elements that share threads.
//!
//! They come as a plugin file (`libgstthreadbare.so`), or are linked into a program and registered with
//! [`plugin_register_static`]. [`sharing`] is for your own elements.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod app;
mod blocking;
mod clocksync;
mod hub;
pub mod inspect;
mod queue;
mod udpsink;
mod udpsrc;

use threadbare_gst_kit::kit;

mod plugin {
    #![allow(missing_docs, reason = "made by the macro")]

    fn plugin_init(plugin: &gst::Plugin) -> Result<(), gst::glib::BoolError> {
        crate::inspect::register(Some(plugin))?;
        crate::udpsrc::register(Some(plugin))?;
        crate::udpsink::register(Some(plugin))?;
        crate::queue::register(Some(plugin))?;
        crate::hub::register(Some(plugin))?;
        crate::app::register(Some(plugin))?;
        threadbare_gst_io::register(Some(plugin))?;
        threadbare_gst_rtp::register(Some(plugin))?;
        crate::clocksync::register(Some(plugin))?;
        crate::blocking::register(Some(plugin))?;
        threadbare_gst_fallback::register(Some(plugin))
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
#[doc(inline)]
pub use threadbare_gst_kit::{
    element, element_class, properties_with_groups, sharing, sink_life, source_life,
};
#[doc(inline)]
pub use threadbare_gst_rtp::loudness;
