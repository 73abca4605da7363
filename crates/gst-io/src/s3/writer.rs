//! The sink's handling of buffers: cuts the stream into objects, and passes each to an upload. It runs under the sink's lock and
//! never waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use gst::prelude::*;
use threadbare_s3::{
    Counts, Error, Object, ObjectUri, OnError, Opening, Place, Stored, Upload, UploadSettings,
};

use super::access::error_of;
use super::settings::Plan;
use crate::files::outbox::{Letter, Outbox, is_posting};
use crate::files::split::headers::{Headers, is_plain_header, piece_of};
use crate::files::split::rotation::{Extent, Limits, Rotation};
use crate::kit::sink::{Rendered, Renderer};

/// Maximum number of objects that are being completed while the stream continues in the next one. With a spool, their data is on
/// the disk.
const CLOSING_MAX: usize = 4;
const CLOSING_MAX_SPOOLED: usize = 64;

/// Counters of an element's data over all of its objects.
#[derive(Debug, Default)]
pub(super) struct Totals {
    stored: AtomicU64,
    dropped: AtomicU64,
    retries: AtomicU64,
    pub(super) objects: AtomicU64,
    pub(super) held_up: AtomicU64,
}

impl Totals {
    fn add(&self, counts: Counts) {
        for (total, count) in [
            (&self.stored, counts.stored),
            (&self.dropped, counts.dropped),
            (&self.retries, counts.retries),
        ] {
            total.fetch_add(count, Relaxed);
        }
    }

    /// Returns the statistics. `now` are the counts of incomplete objects.
    pub(super) fn structure(&self, now: Counts, rendered: u64) -> gst::Structure {
        let sum = |total: &AtomicU64, now: u64| total.load(Relaxed) + now;
        gst::Structure::builder("application/x-ts-s3sink-stats")
            .field("rendered", rendered)
            .field("held-up", self.held_up.load(Relaxed))
            .field("bytes-stored", sum(&self.stored, now.stored))
            .field("bytes-held", now.held)
            .field("bytes-dropped", sum(&self.dropped, now.dropped))
            .field("retries", sum(&self.retries, now.retries))
            .field("objects", self.objects.load(Relaxed))
            .build()
    }
}

/// An object.
struct Fragment {
    number: u32,
    upload: Upload,
}

/// An object that gets no more data.
struct Closing {
    fragment: Fragment,
    extent: Extent,
}

pub struct Writer {
    plan: Option<Plan>,
    opening: Option<Opening>,
    place: Option<Place>,
    rotation: Rotation,
    headers: Headers,
    current: Option<Fragment>,
    /// Number of bytes of the current buffer or header that the upload has got.
    offset: usize,
    /// Whether the current buffer has been inspected.
    is_begun: bool,
    closing: VecDeque<Closing>,
    number: u32,
    segment: Option<gst::FormattedSegment<gst::ClockTime>>,
    /// Number of bytes of the stream so far; unknown after a flush.
    position: Option<u64>,
    /// Whether the muxer rewrites data that the store already has.
    is_behind: bool,
    has_warned: bool,
    totals: Arc<Totals>,
    outbox: Outbox,
    waker: Waker,
    has_failed: bool,
    is_full: bool,
    has_ended: bool,
    element: gst::glib::WeakRef<gst::Element>,
}

impl Writer {
    pub(super) fn new(element: &gst::Element, waker: Waker, totals: Arc<Totals>) -> Self {
        Writer {
            plan: None,
            opening: None,
            place: None,
            rotation: Rotation::default(),
            headers: Headers::default(),
            current: None,
            offset: 0,
            is_begun: false,
            closing: VecDeque::new(),
            number: 0,
            segment: None,
            position: Some(0),
            is_behind: false,
            has_warned: false,
            totals,
            outbox: Outbox::new(element, waker.clone()),
            waker,
            has_failed: false,
            is_full: false,
            has_ended: false,
            element: element.downgrade(),
        }
    }

    /// Starts with a new plan. Until the bucket is confirmed, data is queued.
    pub(super) fn start(&mut self, plan: Plan, opening: Opening) {
        self.rotation = Rotation::new(plan.limits);
        self.number = plan.first_number;
        (self.plan, self.opening, self.place) = (Some(plan), Some(opening), None);
        self.headers.reset();
        (self.segment, self.position, self.has_warned) = (None, Some(0), false);
        (self.offset, self.is_begun, self.is_behind) = (0, false, false);
        (self.has_failed, self.is_full, self.has_ended) = (false, false, false);
    }

    /// Stops, and returns the incomplete objects. With a spool, they continue.
    pub(super) fn stop(&mut self) -> Vec<Upload> {
        (self.plan, self.opening, self.place) = (None, None, None);
        let left: Vec<Upload> = self
            .closing
            .drain(..)
            .map(|closing| closing.fragment.upload)
            .collect();
        for upload in &left {
            self.totals.add(upload.counts());
        }
        left
    }

    /// Ends the stream, although it has not reached its regular end.
    pub(super) fn break_off(&mut self) {
        let Some(plan) = &self.plan else { return };
        let is_spooled = self
            .place
            .as_ref()
            .is_some_and(|place| place.spool.is_some());
        match plan.on_error {
            // Data in a spool becomes an object, in the same way as the data of a file sink stays in its file.
            OnError::DoNothing if is_spooled => self.close_current(),
            OnError::Complete => self.close_current(),
            on_error => self.give_up_current(on_error),
        }
    }

    fn give_up_current(&mut self, on_error: OnError) {
        let Some(fragment) = self.current.take() else {
            return;
        };
        fragment.upload.give_up(on_error);
        let extent = self.rotation.finish();
        self.headers.end_file();
        self.closing.push_back(Closing { fragment, extent });
    }

    /// Whether all objects are complete and all messages are posted. A message that this thread is posting does not count.
    pub(super) fn is_idle(&self) -> bool {
        self.closing.is_empty() && (self.outbox.is_empty() || is_posting())
    }

    pub(super) fn is_spooled(&self) -> bool {
        self.place
            .as_ref()
            .is_some_and(|place| place.spool.is_some())
    }

    pub(super) fn counts(&self) -> Counts {
        let closing = self.closing.iter().map(|closing| &closing.fragment.upload);
        let all = closing.chain(self.current.iter().map(|fragment| &fragment.upload));
        all.fold(Counts::default(), |sum, upload| {
            let counts = upload.counts();
            Counts {
                stored: sum.stored + counts.stored,
                held: sum.held + counts.held,
                dropped: sum.dropped + counts.dropped,
                retries: sum.retries + counts.retries,
            }
        })
    }

    /// Handles a wake-up by an upload, or by a thread that has posted messages.
    pub(super) fn progress(&mut self) {
        let waker = self.waker.clone();
        let cx = &mut Context::from_waker(&waker);
        while let Some(closing) = self.closing.front() {
            let Poll::Ready(result) = closing.fragment.upload.poll_stored(cx) else {
                break;
            };
            let Some(closing) = self.closing.pop_front() else {
                break;
            };
            self.totals.add(closing.fragment.upload.counts());
            match result {
                Ok(stored) => self.announce(&closing, &stored),
                // This upload was given up at our own request.
                Err(Error::GivenUp) => {}
                Err(error) => drop(self.fail(&error)),
            }
        }
        let error = self
            .current
            .as_ref()
            .and_then(|fragment| fragment.upload.error());
        if let Some(error) = error {
            self.fail(&error);
        }
        if let (None, Some(opening)) = (&self.place, &self.opening)
            && let Poll::Ready(Err(error)) = opening.poll_ready(cx)
        {
            self.fail(&error);
        }
    }

    fn announce(&mut self, closing: &Closing, stored: &Stored) {
        self.totals.objects.fetch_add(1, Relaxed);
        let (Some(element), Some(plan)) = (self.element.upgrade(), &self.plan) else {
            return;
        };
        let key = closing.fragment.upload.key();
        let uri = ObjectUri {
            region: plan.region.clone(),
            bucket: plan.bucket.clone(),
            key: key.into(),
            version: None,
        };
        let time = |ns: Option<u64>| ns.map(gst::ClockTime::from_nseconds);
        let span = closing.extent.end_ns.zip(closing.extent.begin_ns);
        let structure = gst::Structure::builder("s3-object-stored")
            .field("uri", uri.to_string())
            .field("bucket", &plan.bucket)
            .field("key", key)
            .field("etag", &stored.etag)
            .field("bytes", stored.bytes)
            .field("fragment-id", closing.fragment.number)
            .field("running-time", time(closing.extent.begin_ns))
            .field(
                "fragment-duration",
                time(span.map(|(end, begin)| end.saturating_sub(begin))),
            )
            .build();
        let message = gst::message::Element::builder(structure)
            .src(&element)
            .build();
        self.outbox.put(Letter::Message(message));
    }

    fn fail(&mut self, error: &Error) -> Rendered {
        if !std::mem::replace(&mut self.has_failed, true) {
            let place = match &self.plan {
                Some(plan) => format!("s3://{}/{}", plan.region, plan.bucket),
                None => "s3".into(),
            };
            self.outbox.put(Letter::Error(error_of(error, &place)));
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

    fn full(&mut self) -> Rendered {
        if !std::mem::replace(&mut self.is_full, true) {
            self.totals.held_up.fetch_add(1, Relaxed);
        }
        Rendered::Full
    }

    /// Ends the data of the current object.
    fn close_current(&mut self) {
        let Some(fragment) = self.current.take() else {
            return;
        };
        fragment.upload.finish();
        fragment.upload.watch(self.waker.clone());
        let extent = self.rotation.finish();
        self.headers.end_file();
        self.closing.push_back(Closing { fragment, extent });
    }

    fn open_next(&mut self) -> Result<(), Error> {
        let (Some(plan), Some(place)) = (&self.plan, &self.place) else {
            return Err(Error::GivenUp);
        };
        let object = Object {
            key: plan.keys.key(self.number)?,
            ..plan.object.clone()
        };
        let settings = UploadSettings {
            spool: place.spool.clone(),
            ..plan.upload.clone()
        };
        let upload = Upload::begin(&place.store, object, &settings)?;
        upload.watch(self.waker.clone());
        self.current = Some(Fragment {
            number: self.number,
            upload,
        });
        self.headers.begin_file();
        self.number += 1;
        Ok(())
    }

    fn is_cut(&self) -> bool {
        self.plan
            .as_ref()
            .is_some_and(|plan| plan.limits != Limits::default())
    }

    /// Opens the bucket. `Pending`: the store has not answered yet.
    fn reach(&mut self) -> Poll<Result<(), Error>> {
        if self.place.is_some() {
            return Poll::Ready(Ok(()));
        }
        let waker = self.waker.clone();
        let Some(opening) = &self.opening else {
            return Poll::Ready(Err(Error::GivenUp));
        };
        let ready = opening.poll_ready(&mut Context::from_waker(&waker));
        ready.map_ok(|place| self.place = Some(place))
    }

    /// Writes the remaining part of a buffer. Returns `false` if the upload is full. The waker is woken when it has room.
    fn write(&mut self, buffer: &gst::Buffer) -> Result<bool, Error> {
        let Some(fragment) = &self.current else {
            return Ok(true);
        };
        let unreadable = |_| Error::Setting("a buffer cannot be read".into());
        let map = buffer.map_readable().map_err(unreadable)?;
        let cx = &mut Context::from_waker(&self.waker);
        while self.offset < map.len() {
            match fragment.upload.poll_write(cx, &map[self.offset..]) {
                Poll::Ready(Ok(count)) => self.offset += count,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(false),
            }
        }
        self.offset = 0;
        Ok(true)
    }

    fn store(&mut self, buffer: &gst::Buffer) -> Result<bool, Error> {
        while let Some(header) = self.headers.next().cloned() {
            if !self.write(&header)? {
                return Ok(false);
            }
            self.rotation.add_header(header.size() as u64);
            self.headers.advance();
        }
        if !self.write(buffer)? {
            return Ok(false);
        }
        if is_plain_header(buffer) && !self.rotation.has_data() {
            self.rotation.add_header(buffer.size() as u64);
            self.headers.begin_with(buffer);
        } else {
            self.rotation.add(&piece_of(buffer, self.segment.as_ref()))
        }
        Ok(true)
    }

    /// Prepares the object for the buffer. Returns `Some` if the buffer must wait, or is dropped.
    fn begin(&mut self, buffer: &gst::Buffer) -> Option<Rendered> {
        match self.reach() {
            Poll::Pending => return Some(self.full()),
            Poll::Ready(Err(error)) => return Some(self.fail(&error)),
            Poll::Ready(Ok(())) => {}
        }
        // The headers of a single object are not changed, because its muxer knows which ones it needs.
        if self.is_cut() && self.headers.is_repeated(buffer) {
            self.count(buffer);
            return Some(Rendered::Done);
        }
        let piece = piece_of(buffer, self.segment.as_ref());
        if self.rotation.ends_before(&piece) {
            let max = if self.is_spooled() {
                CLOSING_MAX_SPOOLED
            } else {
                CLOSING_MAX
            };
            self.progress();
            if self.closing.len() >= max {
                return Some(self.full());
            }
            self.close_current();
        }
        if self.current.is_none()
            && let Err(error) = self.open_next()
        {
            return Some(self.fail(&error));
        }
        if !self.is_cut() {
            self.headers.end_file();
        }
        self.is_begun = true;
        None
    }

    /// Handles the start of a segment in bytes. A muxer that seeks back rewrites data that the store already has, such as a
    /// header with the length. This is not supported, because an object is written once.
    fn handle_position(&mut self, start: Option<u64>) {
        let (Some(start), Some(now)) = (start, self.position) else {
            self.position = start.or(self.position);
            self.is_behind = false;
            return;
        };
        self.is_behind = now > 0 && start < now;
        if self.is_behind {
            self.warn("the muxer goes back to write its header again, but an object in S3 cannot be rewritten: the new header is left \
            out. Expected a format without an index, such as MPEG-TS, Ogg, or matroskamux streamable=true");
        } else if now > 0 && start > now {
            let text = format!(
                "the stream jumps from byte {now} to byte {start}; an object in S3 cannot have gaps"
            );
            self.fail(&Error::Setting(text));
        } else {
            self.position = Some(start);
        }
    }

    /// Reports that this stream waits because parts of other streams fill the memory.
    fn tell_of_others(&mut self) {
        let Some(plan) = self
            .plan
            .as_ref()
            .filter(|_| !self.is_spooled() && !self.has_warned)
        else {
            return;
        };
        let max = plan.upload.pool.max();
        if self.counts().held < plan.upload.part_bytes {
            self.has_warned = true;
            self.warn(&format!("the parts of all streams fill the memory (buffer-max-bytes={max}): this stream waits until other parts are sent. Increase buffer-max-bytes, or set a spool"));
        }
    }

    fn warn(&self, text: &str) {
        let Some(element) = self.element.upgrade() else {
            return;
        };
        let warning = gst::message::Warning::builder(gst::StreamError::Format, text);
        self.outbox
            .put(Letter::Message(warning.src(&element).build()));
    }

    fn count(&mut self, buffer: &gst::Buffer) {
        let bytes = buffer.size() as u64;
        self.position = self.position.map(|position| position + bytes);
    }
}

impl Renderer for Writer {
    fn render(&mut self, buffer: &gst::Buffer) -> Rendered {
        if self.has_failed {
            return self.failed();
        }
        self.has_ended = false;
        if self.is_behind {
            return Rendered::Done;
        }
        if !self.is_begun
            && let Some(rendered) = self.begin(buffer)
        {
            return rendered;
        }
        match self.store(buffer) {
            Ok(true) => {
                (self.is_full, self.is_begun) = (false, false);
                self.count(buffer);
                Rendered::Done
            }
            Ok(false) => {
                self.tell_of_others();
                self.full()
            }
            Err(error) => self.fail(&error),
        }
    }

    fn event(&mut self, event: &gst::Event) {
        match event.view() {
            gst::EventView::Segment(segment) => {
                self.segment = segment.segment().downcast_ref().cloned();
                let bytes = segment.segment().downcast_ref::<gst::format::Bytes>();
                let start = bytes.and_then(|segment| segment.start());
                self.handle_position(start.map(|start| *start));
            }
            gst::EventView::Caps(caps) => {
                let (has_file, has_data) = (self.current.is_some(), self.rotation.has_data());
                if self.headers.handle_caps(caps.caps(), has_file, has_data) && self.is_cut() {
                    self.rotation.end_at_keyframe();
                }
            }
            _ => {}
        }
    }

    /// Handles the end of the stream: the object is complete, and its message is posted.
    fn end(&mut self) -> Rendered {
        if self.has_failed {
            return self.failed();
        }
        match self.reach() {
            Poll::Pending => return self.full(),
            Poll::Ready(Err(error)) => return self.fail(&error),
            Poll::Ready(Ok(())) => {}
        }
        // A stream without data becomes an object of no bytes.
        if !std::mem::replace(&mut self.has_ended, true)
            && self.current.is_none()
            && self.closing.is_empty()
            && self.number == self.plan.as_ref().map_or(0, |plan| plan.first_number)
            && let Err(error) = self.open_next()
        {
            return self.fail(&error);
        }
        self.close_current();
        self.progress();
        if self.has_failed {
            return self.failed();
        }
        if self.is_idle() {
            self.is_full = false;
            Rendered::Done
        } else {
            self.full()
        }
    }

    /// Handles a flush: the object restarts. If the stream is cut into several objects, the data before the flush becomes one of
    /// them.
    fn flush(&mut self) {
        (self.is_full, self.position) = (false, None);
        (self.offset, self.is_begun, self.is_behind) = (0, false, false);
        match self.is_cut() {
            _ if self.has_failed => {}
            true => self.close_current(),
            false => {
                if self.current.is_some() {
                    self.number = self.number.saturating_sub(1);
                }
                self.give_up_current(OnError::Abort);
            }
        }
    }

    fn has_room(&self) -> bool {
        !self.is_full
    }
}
