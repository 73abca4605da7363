//! GStreamer elements that share threads.

fn plugin_init(_plugin: &gst::Plugin) -> Result<(), gst::glib::BoolError> {
    Ok(())
}

gst::plugin_define!(
    threadbare,
    env!("CARGO_PKG_DESCRIPTION"),
    plugin_init,
    env!("CARGO_PKG_VERSION"),
    "MIT/X11",
    "threadbare",
    "gst-plugin-threadbare",
    "threadbare"
);
