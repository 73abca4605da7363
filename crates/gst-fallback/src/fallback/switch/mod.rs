//! `fallbackswitch`: passes the best of several streams, and another one while that stream fails.
//!
//! - `core`: health of the inputs, the choice, and how one input continues the output of another.
//! - `turns`: the pads' streams, holds and time-outs on the pipeline's clock.
//! - `passing`: pushes, and cuts at a change.
//! - `acting`: messages, requests for keyframes, the end of the output.
//! - `partner`: the switch of another stream of the same sources.
//! - `imp`, `pad`: properties, pads, states.

mod acting;
mod core;
mod imp;
mod pad;
mod partner;
mod passing;
#[cfg(test)]
mod tests;
mod turns;

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;

glib::wrapper! {
    /// Passes the best of its inputs that deliver.
    pub struct FallbackSwitch(ObjectSubclass<imp::FallbackSwitch>) @extends gst::Element, gst::Object, @implements gst::ChildProxy;
}

impl FallbackSwitch {
    /// Reports an error of this input's source. The input fails at once, and stays failed until its next timely buffer. A pad of
    /// another element is refused with a warning.
    pub(crate) fn mark_failed(&self, pad: &gst::Pad) {
        self.imp().mark_failed(pad);
    }

    /// Gives an unlinked input the time-out to be linked again before it fails. This is for callers of
    /// [`FallbackSwitch::mark_failed`].
    pub(crate) fn keep_unlinked(&self) {
        self.imp().keep_unlinked();
    }

    /// Sets whether another stream of the same source is healthy. At first, it is. While it is not, the input is not chosen,
    /// whatever its own health (`is-healthy` of the pad). If the input is active, the switch leaves it at once if there is
    /// another input. This is for callers that connect switches themselves, without the property `partner`.
    pub(crate) fn set_partner_health(&self, pad: &gst::Pad, is_healthy: bool) {
        self.imp().set_partner_health(pad, is_healthy);
    }
}

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    let type_ = FallbackSwitch::static_type();
    gst::Element::register(plugin, "fallbackswitch", gst::Rank::NONE, type_)
}
