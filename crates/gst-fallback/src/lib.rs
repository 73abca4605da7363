//! Elements with several inputs that select which input passes, and when.
//!
//! - `fallback`: `fallbackswitch` and `fallbacksrc`.
//! - `selector`: `ts-input-selector`.
//! - `togglerecord`: `togglerecord`.
//!
//! [`register`] is for the plugin, `gst-plugin-threadbare`.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod fallback;
mod selector;
mod togglerecord;

use threadbare_gst_kit::{kit, source_life};

/// Registers the elements.
///
/// # Errors
/// Fails if an element cannot be registered.
pub fn register(plugin: Option<&gst::Plugin>) -> Result<(), gst::glib::BoolError> {
    selector::register(plugin)?;
    fallback::register(plugin)?;
    togglerecord::register(plugin)
}
