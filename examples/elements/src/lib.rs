//! Three elements that share threads: `ts-exampleticker`, `ts-exampledelay` and `ts-examplecounter`.
//! `docs/writing-an-element.md` takes them apart.
#![forbid(unsafe_code)]

mod counter;
mod delay;
mod ticker;

mod plugin {
    #![allow(missing_docs, reason = "made by the macro")]

    use gst::prelude::*;

    fn plugin_init(plugin: &gst::Plugin) -> Result<(), gst::glib::BoolError> {
        let rank = gst::Rank::NONE;
        let (ticker, delay, counter) = (
            super::ticker::Ticker::static_type(),
            super::delay::Delay::static_type(),
            super::counter::Counter::static_type(),
        );
        gst::Element::register(Some(plugin), "ts-exampleticker", rank, ticker)?;
        gst::Element::register(Some(plugin), "ts-exampledelay", rank, delay)?;
        gst::Element::register(Some(plugin), "ts-examplecounter", rank, counter)
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
}
pub use plugin::plugin_register_static;
