//! Carries out the core's actions and time-outs.

use std::sync::Arc;

use gst::glib;
use gst::prelude::*;

use super::FallbackSrc;
use super::core::{Action, Reason, Run, SourceCore, SourceId};
use super::slot::Slot;
use super::state::Shared;

/// Handles the time-outs of an element from a start until it stops. `start` is the number of that start.
pub(super) async fn watch(shared: Shared, start: u64, element: glib::WeakRef<FallbackSrc>) {
    while shared.timed_out(start).await {
        let Some(element) = element.upgrade() else {
            return;
        };
        act(&element);
    }
}

/// Executes the core's actions, one thread at a time. Blocking work goes to a thread of GStreamer's pool.
pub(super) fn act(element: &FallbackSrc) {
    let shared = element.shared();
    while let Some(action) = shared.next_action() {
        carry_out(element, action);
        shared.acted();
    }
}

fn carry_out(element: &FallbackSrc, action: Action) {
    match action {
        Action::Start(run) => {
            with_slot(element, run, move |element, slot| slot.start(element, run));
        }
        Action::Stop(run) => with_slot(element, run, move |element, slot| {
            slot.stop(element);
            slot.show_still(element, run.source);
            let random = u64::from(glib::random_int()) << 32 | u64::from(glib::random_int());
            element.tell(|core, now_ns| core.handle_stopped(now_ns, run, random));
        }),
        Action::Release(run) => {
            let now = gst::ClockTime::from_nseconds(element.shared().now_ns());
            if let Some(slot) = element.slots().get(run.source)
                && let Some(running) = element.running(run)
            {
                running.release(slot.begin(now));
            }
        }
        Action::Hold(run) => {
            if let Some(running) = element.running(run) {
                running.hold();
            }
        }
        Action::Fail(run) => {
            for output in element.outputs().iter() {
                output.mark_failed(run.source);
            }
        }
        Action::Retry {
            source,
            reason,
            number,
            delay_ns,
        } => post(element, "fallback-retry", source, |details| {
            details
                .field("reason", reason.nick())
                .field("retry", number)
                .field("delay", delay_ns)
        }),
        Action::GiveUp { source, reason } => {
            post(element, "fallback-given-up", source, |details| {
                details.field("reason", reason.nick())
            });
        }
        Action::Fatal { reason } => fail(element, reason),
        Action::EndOutput => element.call_async(|element| {
            for output in element.outputs().iter() {
                output.end(element, element.slots().len());
            }
        }),
        Action::Fill(kind, _) => element.call_async(move |element| {
            for output in element.outputs().iter().filter(|o| o.kind() == kind) {
                output.update_fill(element, element.slots().len());
            }
        }),
        Action::StatusChanged => element.notify("status"),
        Action::Counted => element.notify("statistics"),
    }
}

fn with_slot(
    element: &FallbackSrc,
    run: Run,
    job: impl FnOnce(&FallbackSrc, &Arc<Slot>) + Send + 'static,
) {
    element.call_async(move |element| {
        if let Some(slot) = element.slots().get(run.source) {
            job(element, slot);
        }
    });
}

type Details = gst::structure::Builder;

fn post(element: &FallbackSrc, name: &str, source: SourceId, add: impl FnOnce(Details) -> Details) {
    let details = gst::Structure::builder(name)
        .field("source", source as u32)
        .field("uri", element.text_of(source));
    let message = gst::message::Element::builder(add(details).build()).src(element);
    let _ = element.post_message(message.build());
}

fn fail(element: &FallbackSrc, reason: Reason) {
    let sources: Vec<String> = element.slots().iter().map(|slot| slot.text()).collect();
    gst::element_error!(
        element,
        gst::ResourceError::Failed,
        ("No source delivers: all have been given up."),
        [
            "tried {}; the main source failed last by: {}",
            sources.join(", "),
            reason.nick()
        ]
    );
}

impl FallbackSrc {
    /// Passes an event to the core, and carries out its actions.
    pub(super) fn tell<R>(&self, tell: impl FnOnce(&mut SourceCore, u64) -> R) -> R {
        let result = self.shared().change(tell);
        act(self);
        result
    }

    /// Description of the source in a place.
    pub(super) fn text_of(&self, source: SourceId) -> String {
        let slots = self.slots();
        slots
            .get(source)
            .map(|slot| slot.text())
            .unwrap_or_default()
    }
}
