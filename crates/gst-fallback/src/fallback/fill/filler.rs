//! The half of a fill on the context's thread: negotiates a format, and pushes each buffer when it starts.

use std::sync::Arc;

use gst::glib;
use gst::prelude::*;
use threadbare_runtime::{Cx, Precision};

use super::content;
use super::format::{Format, Info, Media};
use super::grid::{Grid, Item, LATE_NS_MAX, Step};
use super::painting::{Painted, Picture, paint_later};
use crate::kit::source::{self, Produced, Producer};
use crate::kit::time::{ProducerTimer, RunningTime};

/// The kind of a fill.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    Silence,
    Picture(Picture),
}

impl Kind {
    pub(super) fn media(&self) -> Media {
        match self {
            Kind::Silence => Media::Audio,
            Kind::Picture(_) => Media::Video,
        }
    }
}

/// Passes a picture to its filler, from any thread.
pub(super) type Deliver = Arc<dyn Fn(Painted) + Send + Sync>;

pub struct Filler {
    kind: Kind,
    wanted: Option<gst::Caps>,
    deliver: Deliver,
    late_ns_max: u64,
    format: Option<Format>,
    /// `None` while the picture is being converted.
    content: Option<gst::Buffer>,
    failure: Option<gst::ErrorMessage>,
    grid: Option<Grid>,
    has_opened: bool,
    timer: ProducerTimer,
    pad: gst::Pad,
    element: glib::WeakRef<gst::Element>,
}

impl Filler {
    /// Creates the filler. `wait` is the context's wait, by which buffers may always be late.
    pub(super) fn new(
        element: &gst::Element,
        pad: &gst::Pad,
        (kind, wanted): (Kind, Option<gst::Caps>),
        wait: gst::ClockTime,
        deliver: Deliver,
    ) -> Self {
        Filler {
            kind,
            wanted,
            deliver,
            late_ns_max: LATE_NS_MAX + wait.nseconds(),
            format: None,
            content: None,
            failure: None,
            grid: None,
            has_opened: false,
            timer: ProducerTimer::default(),
            pad: pad.clone(),
            element: element.downgrade(),
        }
    }

    /// Takes a converted picture, unless the format has changed since the conversion began.
    pub(super) fn take(&mut self, painted: Painted) {
        if self
            .format
            .as_ref()
            .is_none_or(|format| format.caps != painted.caps)
        {
            return;
        }
        if let (Some(warning), Some(element)) = (painted.warning, self.element.upgrade()) {
            gst::element_warning!(
                element,
                gst::StreamError::Format,
                ["black replaces the still picture: {warning}"]
            );
        }
        match painted.result {
            Ok(buffer) => self.content = Some(buffer),
            Err(error) => {
                let caps = painted.caps;
                self.failure = Some(gst::error_msg!(
                    gst::StreamError::Format,
                    ["cannot make a picture of {caps}: {error}"]
                ));
            }
        }
    }

    /// Negotiates with downstream. Returns whether the format has changed.
    fn negotiate(&mut self) -> Result<bool, gst::ErrorMessage> {
        let media = self.kind.media();
        let allowed = source::allowed_caps(&self.pad);
        let Some(format) = media.choose(self.wanted.as_ref(), &allowed) else {
            return Err(gst::error_msg!(
                gst::StreamError::Format,
                [
                    "downstream accepts {allowed}, this element makes {}",
                    media.caps()
                ]
            ));
        };
        if self
            .format
            .as_ref()
            .is_some_and(|known| known.caps == format.caps)
        {
            return Ok(false);
        }
        let pace = format.pace();
        match &mut self.grid {
            Some(grid) => grid.set_pace(pace),
            None => self.grid = Some(Grid::new(pace)),
        }
        self.content = match (&self.kind, &format.info) {
            (Kind::Silence, Info::Audio(info)) => Some(content::silence(info).map_err(failed)?),
            (Kind::Silence, Info::Video(_)) => None,
            (Kind::Picture(picture), _) => {
                let deliver = self.deliver.clone();
                let done = move |painted| deliver(painted);
                paint_later(picture.clone(), format.clone(), done).map_err(failed)?;
                None
            }
        };
        self.format = Some(format);
        Ok(true)
    }

    /// Returns the next buffer, if it is time for it.
    fn next(&mut self, cx: &mut Cx<'_>) -> Produced {
        let now = self.timer.time().at(cx.now_ns());
        let (Some(content), Some(grid), Some(now)) = (&self.content, &mut self.grid, now) else {
            return Produced::Idle;
        };
        match grid.next(now.nseconds(), self.late_ns_max) {
            Step::Wait(due_ns) => {
                self.timer.set(cx, due_ns, Precision::NotBefore);
                Produced::Idle
            }
            Step::Push(item) => {
                cx.count_packets(1);
                Produced::Buffer(stamped(content, item))
            }
        }
    }
}

fn failed(error: impl std::fmt::Display) -> gst::ErrorMessage {
    gst::error_msg!(gst::ResourceError::Failed, ["{error}"])
}

/// Returns the event of a segment in which times are running times.
fn segment() -> gst::Event {
    gst::event::Segment::new(&gst::FormattedSegment::<gst::ClockTime>::new())
}

/// Returns a buffer with the same memory and the times of an item.
fn stamped(content: &gst::Buffer, item: Item) -> gst::Buffer {
    let mut buffer = content.copy();
    let fields = buffer.make_mut();
    // No clock reaches a time 290 years away.
    let time = |ns: u64| gst::ClockTime::from_nseconds(ns.min(u64::MAX / 2));
    fields.set_pts(time(item.begin_ns));
    fields.set_duration(time(item.end_ns).saturating_sub(time(item.begin_ns)));
    if item.is_discont {
        fields.set_flags(gst::BufferFlags::DISCONT);
    }
    buffer
}

impl Producer for Filler {
    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        if !self.timer.time().has_clock() {
            self.timer.set_time(RunningTime::of_context(cx.now_ns()));
        }
        cx.wake_self();
        Ok(())
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.timer.clear(cx);
    }

    fn set_time(&mut self, time: RunningTime) {
        self.timer.set_time(time);
        if let Some(grid) = &mut self.grid {
            grid.interrupt();
        }
    }

    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        if let Some(failure) = self.failure.take() {
            return Produced::Failed(failure);
        }
        if self.pad.check_reconfigure() || self.format.is_none() {
            match self.negotiate() {
                Ok(true) if self.has_opened => {
                    let caps = self.format.as_ref().map(|format| &format.caps);
                    return caps.map_or(Produced::Again, |caps| {
                        Produced::Event(gst::event::Caps::new(caps))
                    });
                }
                Ok(_) => {}
                Err(error) => return Produced::Failed(error),
            }
        }
        self.next(cx)
    }

    fn opening(&mut self, pad: &gst::Pad) -> Vec<gst::Event> {
        self.has_opened = true;
        let caps = self.format.as_ref().map(|format| &format.caps);
        let element = self.element.upgrade();
        element.map_or_else(Vec::new, |element| source::opening(pad, &element, caps))
    }

    fn reopening(&mut self) -> Vec<gst::Event> {
        // Running time may have restarted.
        if let Some(grid) = &mut self.grid {
            grid.restart();
        }
        vec![segment()]
    }

    fn push_failed(&mut self, _error: gst::FlowError) {
        if let Some(grid) = &mut self.grid {
            grid.interrupt();
        }
    }
}
