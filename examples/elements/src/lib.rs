//! Three elements that share threads: `ts-exampleticker`, `ts-exampledelay` and `ts-examplecounter`.
//! `docs/writing-an-element.md` explains them.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "an example")]

mod counter;
mod delay;
mod ticker;

use gst::prelude::*;

fn plugin_init(plugin: &gst::Plugin) -> Result<(), gst::glib::BoolError> {
    for (name, kind) in [
        ("ts-exampleticker", ticker::Ticker::static_type()),
        ("ts-exampledelay", delay::Delay::static_type()),
        ("ts-examplecounter", counter::Counter::static_type()),
    ] {
        gst::Element::register(Some(plugin), name, gst::Rank::NONE, kind)?;
    }
    Ok(())
}

gst::plugin_define!(
    threadbareexamples,
    env!("CARGO_PKG_DESCRIPTION"),
    plugin_init,
    env!("CARGO_PKG_VERSION"),
    "MIT/X11",
    env!("CARGO_PKG_NAME"),
    env!("CARGO_PKG_NAME"),
    "threadbare"
);
