//! Fills one file after another. It runs under the sink's lock and does not wait for files: while one file is being closed, the
//! next one is already written.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use gst::prelude::*;
use jiff::Timestamp;
use threadbare_files::{Access, Budget, Counts, Disk, Ending, File, Op, Stat};

use super::headers::{Headers, is_plain_header, piece_of};
use super::rotation::{Extent, Limits, Piece, Rotation};
use super::template::Template;
use crate::files::outbox::{Letter, Outbox, is_posting};
use crate::files::settings::DiskSettings;
use crate::files::sink::part_of;
use crate::files::target::{Stored, Target, Totals, error_of};
use crate::kit::sink::{Rendered, Renderer};

/// Maximum number of files that are being closed while the stream continues in the next one.
const CLOSING_MAX: usize = 4;

/// Values of the element's properties.
pub(super) struct Plan {
    pub(super) disk: Disk,
    pub(super) settings: DiskSettings,
    pub(super) template: Template,
    pub(super) limits: Limits,
    /// Maximum number of files; 0 for no limit.
    pub(super) files_max: u32,
    pub(super) first_number: u32,
    /// Name of the element, for the names of its files.
    pub(super) name: String,
}

/// A file.
struct Fragment {
    number: u32,
    location: PathBuf,
    /// Opening of the file; `None` as soon as the file is open.
    opening: Option<Op<Stat>>,
    begin_ns: Option<u64>,
}

/// A file that is complete and being closed.
struct Closing {
    fragment: Fragment,
    extent: Extent,
    file: File,
    op: Op<()>,
}

pub struct Cutter {
    plan: Option<Plan>,
    rotation: Rotation,
    current: Option<(Fragment, Target)>,
    headers: Headers,
    closing: VecDeque<Closing>,
    /// Files that `max-files` keeps, the oldest first.
    kept: VecDeque<PathBuf>,
    number: u32,
    segment: Option<gst::FormattedSegment<gst::ClockTime>>,
    /// Number of bytes of the stream so far; unknown after a flush.
    position: Option<u64>,
    /// Context of the budget: the element's own, or else that of the branch.
    pub(super) context: String,
    budget: Option<Budget>,
    totals: Arc<Totals>,
    files: Arc<AtomicU64>,
    outbox: Outbox,
    waker: Waker,
    has_failed: bool,
    is_full: bool,
    element: gst::glib::WeakRef<gst::Element>,
}

impl Cutter {
    pub(super) fn new(
        element: &gst::Element,
        waker: Waker,
        totals: Arc<Totals>,
        files: Arc<AtomicU64>,
    ) -> Self {
        Cutter {
            plan: None,
            rotation: Rotation::default(),
            current: None,
            headers: Headers::default(),
            closing: VecDeque::new(),
            kept: VecDeque::new(),
            number: 0,
            segment: None,
            position: Some(0),
            context: String::new(),
            budget: None,
            totals,
            files,
            outbox: Outbox::new(element, waker.clone()),
            waker,
            has_failed: false,
            is_full: false,
            element: element.downgrade(),
        }
    }

    /// Starts from scratch.
    pub(super) fn start(&mut self, plan: Plan, context: String) {
        self.rotation = Rotation::new(plan.limits);
        self.number = plan.first_number;
        self.plan = Some(plan);
        self.headers.reset();
        self.kept.clear();
        (self.segment, self.position) = (None, Some(0));
        self.context = context;
        self.budget = None;
        (self.has_failed, self.is_full) = (false, false);
    }

    /// Stops, and returns the incomplete files. The service completes them, except pipes without a reader.
    pub(super) fn stop(&mut self) -> Vec<File> {
        (self.plan, self.budget) = (None, None);
        let files: Vec<File> = self.closing.drain(..).map(|closing| closing.file).collect();
        for file in &files {
            self.totals.add(file.counts());
            if is_pipe(file) {
                file.give_up();
            }
        }
        files
    }

    /// Whether one of the files is a pipe, which no process may be reading.
    pub(super) fn has_pipe(&self) -> bool {
        self.closing.iter().any(|closing| is_pipe(&closing.file))
    }

    /// Whether all files are complete and all messages are posted. A message that this thread is posting does not count.
    pub(super) fn is_idle(&self) -> bool {
        self.closing.is_empty() && (self.outbox.is_empty() || is_posting())
    }

    pub(super) fn counts(&self) -> Counts {
        let files = self.closing.iter().map(|closing| closing.file.counts());
        let current = self.current.iter().map(|(_, target)| target.file.counts());
        files
            .chain(current)
            .fold(Counts::default(), |sum, file| Counts {
                written: sum.written + file.written,
                held: sum.held + file.held,
                dropped: sum.dropped + file.dropped,
                lost: sum.lost + file.lost,
                writes: sum.writes + file.writes,
                syncs: sum.syncs + file.syncs,
            })
    }

    /// Handles a wake-up by the disk service, or by a thread that has posted messages.
    pub(super) fn progress(&mut self) {
        let waker = self.waker.clone();
        let cx = &mut Context::from_waker(&waker);
        while let Some(closing) = self.closing.front_mut() {
            if let Some(message) = opened(&mut closing.fragment, cx, &self.element) {
                self.outbox.put(Letter::Message(message));
            }
            let Poll::Ready(result) = Pin::new(&mut closing.op).poll(cx) else {
                break;
            };
            let Some(closing) = self.closing.pop_front() else {
                break;
            };
            self.totals.add(closing.file.counts());
            match result {
                Ok(()) => self.announce_closed(&closing),
                Err(failure) => drop(self.fail(error_of(&failure))),
            }
        }
        // The messages of each file come in order.
        if self.closing.is_empty()
            && let Some((fragment, _)) = &mut self.current
            && let Some(message) = opened(fragment, cx, &self.element)
        {
            self.outbox.put(Letter::Message(message));
        }
        let failure = self
            .current
            .as_ref()
            .and_then(|(_, target)| target.file.failure());
        if let Some(failure) = failure.filter(|failure| !failure.is_cancelled()) {
            self.fail(error_of(&failure));
        }
        self.remove_old();
    }

    fn announce_closed(&mut self, closing: &Closing) {
        self.files.fetch_add(1, Relaxed);
        let end_ns = closing.extent.end_ns.or(closing.fragment.begin_ns);
        let message = message(
            "splitmuxsink-fragment-closed",
            &closing.fragment,
            end_ns,
            &self.element,
        );
        let message = message.map(|(element, structure)| {
            let span_ns = closing.extent.end_ns.zip(closing.extent.begin_ns);
            let duration = span_ns
                .map(|(end, begin)| gst::ClockTime::from_nseconds(end.saturating_sub(begin)));
            let structure = structure
                .field("fragment-duration", duration)
                .field("bytes", closing.extent.bytes)
                .build();
            gst::message::Element::builder(structure)
                .src(&element)
                .build()
        });
        if let Some(message) = message {
            self.outbox.put(Letter::Message(message));
        }
    }

    /// Removes the oldest complete files if there are more than the maximum.
    fn remove_old(&mut self) {
        let Some(plan) = &self.plan else { return };
        let max = plan.files_max as usize;
        while max > 0 && self.kept.len() > max {
            let oldest = self.kept.front();
            let is_closing = |closing: &Closing| Some(&closing.fragment.location) == oldest;
            if self.closing.iter().any(is_closing) {
                return;
            }
            if let Some(oldest) = self.kept.pop_front() {
                // Another program may already have removed the file.
                drop(plan.disk.remove(oldest));
            }
        }
    }

    fn fail(&mut self, error: gst::ErrorMessage) -> Rendered {
        if !std::mem::replace(&mut self.has_failed, true) {
            self.outbox.put(Letter::Error(error));
        }
        self.failed()
    }

    /// Reports a failure. The error message comes before the flow error.
    fn failed(&mut self) -> Rendered {
        self.is_full = !self.outbox.is_empty();
        if self.is_full {
            Rendered::Full
        } else {
            Rendered::Failed(gst::FlowError::Error)
        }
    }

    /// Closes the current file.
    pub(super) fn close_current(&mut self) {
        let Some((fragment, target)) = self.current.take() else {
            return;
        };
        let Some(plan) = &self.plan else { return };
        let rename_to = plan.settings.is_atomic.then(|| fragment.location.clone());
        let op = target.file.close(Ending {
            sync: plan.settings.syncs_at_end(),
            rename_to,
        });
        let extent = self.rotation.finish();
        self.headers.end_file();
        self.closing.push_back(Closing {
            fragment,
            extent,
            file: target.file,
            op,
        });
    }

    fn open_next(&mut self, begin_ns: Option<u64>) -> Result<(), gst::ErrorMessage> {
        let Some(plan) = &self.plan else {
            return Ok(());
        };
        let path = plan
            .template
            .path(self.number, &plan.name, Timestamp::now());
        let location =
            path.map_err(|error| gst::error_msg!(gst::ResourceError::Settings, ["{error}"]))?;
        let path = if plan.settings.is_atomic {
            part_of(&location)
        } else {
            location.clone()
        };
        let mut options = plan.settings.options(Access::Write);
        options.with_parents = true;
        let budget = self
            .budget
            .get_or_insert_with(|| plan.settings.budget(&self.context));
        options.budget = Some(budget.clone());
        let file = plan.disk.open(path, options);
        let fragment = Fragment {
            number: self.number,
            location: location.clone(),
            opening: Some(file.opened()),
            begin_ns,
        };
        self.current = Some((fragment, Target::new(file, &plan.settings, &self.waker)));
        self.headers.begin_file();
        self.kept.push_back(location);
        self.number += 1;
        self.remove_old();
        Ok(())
    }

    fn count(&mut self, buffer: &gst::Buffer) {
        self.position = self
            .position
            .map(|position| position + buffer.size() as u64);
    }

    fn cannot_go_back(&self) -> gst::ErrorMessage {
        gst::error_msg!(
            gst::StreamError::Format,
            [
                "the muxer goes back to write its header again, but that file may already be complete; expected a format without an \
                index, such as MPEG-TS, Ogg, or matroskamux streamable=true; for other formats, use splitmuxsink"
            ]
        )
    }

    fn store(&mut self, buffer: &gst::Buffer, piece: &Piece) -> Stored {
        let Some((_, target)) = &mut self.current else {
            return Stored::Yes;
        };
        while let Some(header) = self.headers.next() {
            match target.write(header, &self.waker, &self.totals) {
                Stored::Yes => self.rotation.add_header(header.size() as u64),
                other => return other,
            }
            self.headers.advance();
        }
        let stored = target.write(buffer, &self.waker, &self.totals);
        if matches!(stored, Stored::Yes) {
            if is_plain_header(buffer) && !self.rotation.has_data() {
                self.begin_with(buffer)
            } else {
                self.rotation.add(piece)
            }
        }
        stored
    }

    fn begin_with(&mut self, header: &gst::Buffer) {
        self.rotation.add_header(header.size() as u64);
        self.headers.begin_with(header);
    }
}

fn is_pipe(file: &File) -> bool {
    file.stat().is_some_and(|stat| !stat.is_regular)
}

/// Handles the opening of a file. Returns its message.
fn opened(
    fragment: &mut Fragment,
    cx: &mut Context<'_>,
    element: &gst::glib::WeakRef<gst::Element>,
) -> Option<gst::Message> {
    let opening = fragment.opening.as_mut()?;
    let Poll::Ready(result) = Pin::new(opening).poll(cx) else {
        return None;
    };
    fragment.opening = None;
    // If the opening failed, the file itself reports the failure.
    result.ok()?;
    let (element, structure) = message(
        "splitmuxsink-fragment-opened",
        fragment,
        fragment.begin_ns,
        element,
    )?;
    Some(
        gst::message::Element::builder(structure.build())
            .src(&element)
            .build(),
    )
}

/// Creates a message with the names and types of splitmuxsink's messages.
fn message(
    name: &str,
    fragment: &Fragment,
    running_ns: Option<u64>,
    element: &gst::glib::WeakRef<gst::Element>,
) -> Option<(gst::Element, gst::structure::Builder)> {
    let element = element.upgrade()?;
    let structure = gst::Structure::builder(name)
        .field("location", fragment.location.to_string_lossy().as_ref())
        .field(
            "running-time",
            running_ns.map(gst::ClockTime::from_nseconds),
        )
        .field("sink", &element)
        .field("fragment-id", fragment.number);
    Some((element, structure))
}

impl Renderer for Cutter {
    fn render(&mut self, buffer: &gst::Buffer) -> Rendered {
        if self.has_failed {
            return self.failed();
        }
        let was_full = std::mem::take(&mut self.is_full);
        if self.headers.is_repeated(buffer) {
            self.count(buffer);
            return Rendered::Done;
        }
        let piece = piece_of(buffer, self.segment.as_ref());
        if self.rotation.ends_before(&piece) {
            if self.closing.len() >= CLOSING_MAX {
                self.progress();
            }
            if self.closing.len() >= CLOSING_MAX {
                self.is_full = true;
                return Rendered::Full;
            }
            self.close_current();
        }
        if self.current.is_none()
            && let Err(error) = self.open_next(piece.begin_ns)
        {
            return self.fail(error);
        }
        if !self.closing.is_empty() || self.current.iter().any(|(it, _)| it.opening.is_some()) {
            self.progress();
        }
        match self.store(buffer, &piece) {
            Stored::Yes => {
                self.count(buffer);
                Rendered::Done
            }
            Stored::Full => {
                self.totals.held_up.fetch_add(u64::from(!was_full), Relaxed);
                self.is_full = true;
                Rendered::Full
            }
            Stored::Failed(error) => self.fail(error),
        }
    }

    fn event(&mut self, event: &gst::Event) {
        match event.view() {
            gst::EventView::Segment(segment) => {
                self.segment = segment.segment().downcast_ref().cloned();
                let bytes = segment.segment().downcast_ref::<gst::format::Bytes>();
                let start = bytes
                    .and_then(|segment| segment.start())
                    .map(|start| *start);
                if start.is_some() && self.position.is_some_and(|now| Some(now) != start) {
                    self.fail(self.cannot_go_back());
                }
                self.position = start.or(self.position);
            }
            gst::EventView::Caps(caps) => {
                let (has_file, has_data) = (self.current.is_some(), self.rotation.has_data());
                if self.headers.handle_caps(caps.caps(), has_file, has_data) {
                    self.rotation.end_at_keyframe();
                }
            }
            _ => {}
        }
    }

    /// Handles the end of the stream: all files are written, and their messages are posted.
    fn end(&mut self) -> Rendered {
        self.close_current();
        self.progress();
        if self.has_failed {
            return self.failed();
        }
        if self.is_idle() {
            Rendered::Done
        } else {
            Rendered::Full
        }
    }

    /// Handles a flush. The data before the flush is a separate file.
    fn flush(&mut self) {
        (self.is_full, self.position) = (false, None);
        if !self.has_failed {
            self.close_current();
        }
    }

    fn has_room(&self) -> bool {
        !self.is_full
    }
}
