//! Carries out the core's actions: messages, notifications, requests for keyframes, the end of the output, time-outs.

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;

use super::turns::{Task, Turns};
use super::{FallbackSwitch, partner};
use crate::kit::inputs::force_key_unit;
use crate::kit::turns::announce;

/// Handles the time-outs of an element from a start until it stops. [`Turns::start`] returned the number of the start.
pub(super) async fn watch(turns: Turns, start: u64, element: glib::WeakRef<FallbackSwitch>) {
    while turns.timed_out(start).await {
        let Some(element) = element.upgrade() else {
            return;
        };
        act(&turns, &element);
        tell_of_end(&turns, &element);
    }
}

/// Ends the output if that is due and no push is running. If a push is running, the pushing thread ends the output.
pub(super) fn tell_of_end(turns: &Turns, element: &FallbackSwitch) {
    let Some(src_pad) = element.static_pad("src") else {
        return;
    };
    while let Some((pad, is_first)) = turns.take_eos() {
        if is_first {
            announce(&pad, &src_pad);
        }
        src_pad.push_event(gst::event::Eos::new());
        turns.told();
    }
}

/// Executes the core's actions, one thread at a time.
pub(super) fn act(turns: &Turns, element: &FallbackSwitch) {
    while let Some(task) = turns.next_task() {
        match task {
            Task::Tell { from, to, reason } => {
                let details = gst::Structure::builder("fallback-switch")
                    .field("from", from.map(String::from))
                    .field("to", to.as_str())
                    .field("reason", reason)
                    .build();
                let message = gst::message::Element::builder(details).src(element);
                let _ = element.post_message(message.build());
                element.notify("active-pad");
            }
            Task::RequestKeyframe(pad) => {
                pad.push_event(force_key_unit());
            }
            Task::NotifyHealth(pad) => {
                tell_partner(element);
                pad.notify("is-healthy");
            }
        }
        turns.acted();
    }
}

/// Reports a change of an input's health to the partner.
fn tell_partner(element: &FallbackSwitch) {
    if let Some(partner) = partner::tell(element) {
        act(&partner.imp().turns, &partner);
    }
}

/// Updates the partner after a change of the inputs, a start or a stop.
pub(super) fn meet_partner(element: &FallbackSwitch) {
    tell_partner(element);
    if let Some(partner) = partner::of(element) {
        tell_partner(&partner);
    }
}

pub(super) fn set_partner(element: &FallbackSwitch, partner: Option<&FallbackSwitch>) {
    if partner == Some(element) {
        let text = "partner: expected another fallbackswitch, not the element itself";
        gst::warning!(crate::kit::CAT, obj = element, "{text}");
        return;
    }
    let Some(parted) = partner::pair(element, partner) else {
        return;
    };
    act(&element.imp().turns, element);
    meet_partner(element);
    let others = parted.iter().chain(partner);
    for other in others.filter(|other| *other != element) {
        act(&other.imp().turns, other);
        other.notify("partner");
    }
}
