//! A place in the order of sources: its source and its current run.

use std::sync::{Arc, Mutex};

use gst::glib;
use gst::prelude::*;

use super::FallbackSrc;
use super::core::{Run, SourceId};
use super::options::Origin;
use super::running::Running;
use crate::kit::lock;

/// A place in the order. `moving` is locked while the source is started or stopped, which may take long. The other locks are
/// never held across an outgoing call.
pub(super) struct Slot {
    origin: Mutex<Origin>,
    moving: Mutex<()>,
    running: Mutex<Option<Arc<Running>>>,
    /// Stream time of the end of the data that passed last.
    position: Mutex<Option<gst::ClockTime>>,
    /// Running time of the end of that data.
    end: Mutex<Option<gst::ClockTime>>,
    still: Mutex<Option<gst::Sample>>,
}

impl Slot {
    pub(super) fn new(origin: Origin) -> Self {
        Slot {
            origin: Mutex::new(origin),
            moving: Mutex::default(),
            running: Mutex::default(),
            position: Mutex::default(),
            end: Mutex::default(),
            still: Mutex::default(),
        }
    }

    pub(super) fn text(&self) -> String {
        lock(&self.origin).text()
    }

    pub(super) fn running(&self) -> Option<Arc<Running>> {
        lock(&self.running).clone()
    }

    pub(super) fn note_position(&self, position: Option<gst::ClockTime>) {
        *lock(&self.position) = position;
    }

    pub(super) fn note_end(&self, end: gst::ClockTime) {
        let mut latest = lock(&self.end);
        *latest = (*latest).max(Some(end));
    }

    /// Returns the earliest running time at which a run may start. It is not before the end of the previous run, whose data the
    /// output may already have.
    pub(super) fn begin(&self, now: gst::ClockTime) -> gst::ClockTime {
        lock(&self.end).map_or(now, |end| end.max(now))
    }

    pub(super) fn keep_still(&self, sample: gst::Sample) {
        *lock(&self.still) = Some(sample);
    }

    /// Starts the source. Waits for the source's state change.
    pub(super) fn start(&self, element: &FallbackSrc, run: Run) {
        let started = {
            let _moving = lock(&self.moving);
            if !element.shared().is_current(run) {
                return;
            }
            let resume = *lock(&self.position);
            let running = self
                .source(element)
                .and_then(|source| Running::new(element, run, source, resume));
            running.and_then(|running| {
                *lock(&self.running) = Some(running.clone());
                running.begin(element)
            })
        };
        match started {
            Ok(is_live) => {
                element.tell(|core, now_ns| core.handle_started(now_ns, run, is_live));
            }
            Err(error) => {
                gst::warning!(crate::kit::CAT, obj = element, "{}: {error}", self.text());
                element.tell(|core, now_ns| core.handle_start_failed(now_ns, run));
            }
        }
        self.follow(element);
    }

    /// Changes the source to the element's state, PAUSED or PLAYING. If another thread is already changing the source, this call
    /// returns at once, and that thread makes this change afterwards.
    pub(super) fn follow(&self, element: &FallbackSrc) {
        element.shared().follow(|state| {
            let Ok(_moving) = self.moving.try_lock() else {
                return false;
            };
            if let Some(running) = self.running() {
                // If the change fails, the source itself reports it.
                let _ = running.set_state(element, state);
            }
            true
        });
    }

    /// Stops the source. Waits for the source's threads.
    pub(super) fn stop(&self, element: &FallbackSrc) {
        let _moving = lock(&self.moving);
        let running = lock(&self.running).take();
        if let Some(running) = running {
            running.take_down(element);
        }
    }

    /// Shows the picture that the source delivered.
    pub(super) fn show_still(&self, element: &FallbackSrc, source: SourceId) {
        let still = lock(&self.still).take();
        if let Some(sample) = still {
            for output in element.outputs().iter() {
                match output.kind() {
                    super::core::Kind::Video => output.show_still(element, source, sample.clone()),
                    super::core::Kind::Audio => output.release(source),
                }
            }
        }
    }

    /// Returns the source element. For a URI, it may be a new one each time.
    fn source(&self, element: &FallbackSrc) -> Result<gst::Element, glib::BoolError> {
        let uri = match &*lock(&self.origin) {
            Origin::Element(source) => return Ok(source.clone()),
            Origin::Uri(uri) => uri.clone(),
        };
        let uri = element.emit_by_name::<Option<String>>("update-uri", &[&uri]);
        let uri = uri.filter(|uri| !uri.is_empty());
        let uri =
            uri.ok_or_else(|| glib::bool_error!("the handler of update-uri returned no URI"))?;
        *lock(&self.origin) = Origin::Uri(uri.clone());
        let options = element.options();
        let source = gst::ElementFactory::make("uridecodebin")
            .property("uri", &uri)
            .property("use-buffering", true)
            .property("buffer-duration", options.buffer_duration_ns)
            .build()?;
        let coded = [&options.audio_caps, &options.video_caps];
        for caps in coded.into_iter().flatten() {
            if !caps.iter().all(|s| s.name().ends_with("/x-raw")) {
                let mut all = source.property::<gst::Caps>("caps");
                all.merge(caps.clone());
                source.set_property("caps", all);
            }
        }
        Ok(source)
    }
}

impl Running {
    /// Starts the source up to PAUSED. Returns `true` if it is live.
    fn begin(self: &Arc<Self>, element: &FallbackSrc) -> Result<bool, glib::BoolError> {
        self.add_to(element)?;
        let changed = self.set_state(element, gst::State::Paused);
        changed.map_err(|_| glib::bool_error!("the source cannot be started"))?;
        let is_live = self.is_live();
        if is_live {
            self.go_live();
        }
        Ok(is_live)
    }
}

impl FallbackSrc {
    /// Returns the current run of a source, if it is this one.
    pub(super) fn running(&self, run: Run) -> Option<Arc<Running>> {
        let running = self.slots().get(run.source)?.running()?;
        (running.run == run).then_some(running)
    }

    /// Keeps the picture of a source.
    pub(super) fn keep_still(&self, run: Run, sample: gst::Sample) {
        if let Some(slot) = self.slots().get(run.source) {
            slot.keep_still(sample);
        }
        self.tell(|core, now_ns| core.handle_still(now_ns, run));
    }

    /// Notes the end of the data that a source has delivered, in running time.
    pub(super) fn note_end(&self, source: SourceId, end: gst::ClockTime) {
        if let Some(slot) = self.slots().get(source) {
            slot.note_end(end);
        }
    }

    pub(super) fn note_position(&self, source: SourceId, position: gst::ClockTime) {
        if let Some(slot) = self.slots().get(source) {
            slot.note_position(Some(position));
        }
    }

    pub(super) fn forget_position(&self, source: SourceId) {
        if let Some(slot) = self.slots().get(source) {
            slot.note_position(None);
        }
    }
}
