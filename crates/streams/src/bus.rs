//! Reports from the elements in one run of a stream. Errors go to the gateway's thread, and warnings go to the log.
//!
//! Each run has its own bus, so that its messages cannot be mistaken for those of another run. The bus has no queue, so it
//! needs no descriptor, no thread and no main loop.

use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use gst::glib;
use gst::prelude::*;

use crate::event::{Event, RunId};
use crate::reason;
use threadbare_process::limit::{LineLimit, Verdict};

/// Where the reports of one run go.
#[derive(Debug)]
pub(crate) struct Reports {
    stream: String,
    run: RunId,
    events: Sender<Event>,
    first_error: OnceLock<String>,
    warnings: LineLimit,
}

impl Reports {
    pub(crate) fn new(stream: &str, run: RunId, events: Sender<Event>) -> Arc<Reports> {
        Arc::new(Reports {
            stream: stream.to_owned(),
            run,
            events,
            first_error: OnceLock::new(),
            warnings: LineLimit::new(WARNINGS_PER_SECOND),
        })
    }

    /// Creates a bus that handles each message at once and stores no message.
    pub(crate) fn bus(self: &Arc<Reports>) -> gst::Bus {
        let bus: gst::Bus = glib::Object::builder()
            .property("enable-async", false)
            .build();
        let reports = self.clone();
        bus.set_sync_handler(move |_, message| {
            reports.handle(message);
            gst::BusSyncReply::Drop
        });
        bus
    }

    fn handle(&self, message: &gst::Message) {
        match message.view() {
            gst::MessageView::Error(error) => {
                self.fail(&plain_reason(
                    message,
                    &error.error(),
                    error.debug().as_deref(),
                ));
            }
            gst::MessageView::Eos(_) => self.tell(Event::Ended { run: self.run }),
            gst::MessageView::Warning(warning) => {
                self.warn(&plain_reason(
                    message,
                    &warning.error(),
                    warning.debug().as_deref(),
                ));
            }
            _ => {}
        }
    }

    /// Reports that the run cannot continue. Only the first reason counts, because a failing pipeline may post several errors.
    pub(crate) fn fail(&self, reason: &str) {
        if self.first_error.set(reason.to_owned()).is_ok() {
            self.tell(Event::Failed {
                run: self.run,
                reason: reason.to_owned(),
            });
        }
    }

    pub(crate) fn first_error(&self) -> Option<String> {
        self.first_error.get().cloned()
    }

    pub(crate) fn warn(&self, warning: &str) {
        if let Verdict::Write { suppressed } = self.warnings.check(Instant::now()) {
            let stream = &self.stream;
            tracing::warn!(
                stream,
                warning,
                suppressed,
                "an element of the stream posted a warning"
            );
        }
    }

    fn tell(&self, event: Event) {
        // This fails only if the gateway no longer exists.
        let _ = self.events.send(event);
    }
}

/// Returns an element's error or warning as a sentence. Writes its details to the debug log.
fn plain_reason(message: &gst::Message, error: &glib::Error, detail: Option<&str>) -> String {
    let element = message.src().map(|src| src.name().to_string());
    let element = element.unwrap_or_default();
    tracing::debug!(element, %error, detail, "an element posted a message");
    reason::plain(&element, &error.to_string(), detail)
}

/// Maximum number of warnings per second. It is limited because elements warn about bad packets, and the senders of such packets must not
/// be able to fill the log.
const WARNINGS_PER_SECOND: u32 = 2;
