//! Common part of both elements: settings, states, queries and seeks around a [`HttpReader`].

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use gst::glib;
use gst::prelude::*;

use super::client::Clients;
use super::core::Location;
use super::reader::{Course, HttpReader, Known, Shape, Shared};
use super::settings::{Counts, ExtraHeaders, Plan, SettingsError, Signed, Values};
use crate::kit::context::ContextSettings;
use crate::kit::lock;
use crate::kit::source::{self, Driver};
use crate::kit::stats::StatsProperty;

/// The thread of a source if no context is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alone {
    /// A separate thread, which downstream may block.
    Own,
    /// The thread of the context "".
    Shared,
}

pub(crate) struct HttpSource {
    alone: Alone,
    values: Mutex<Values>,
    pub(super) extra_headers: Mutex<ExtraHeaders>,
    pub(crate) context: Mutex<ContextSettings>,
    pub(crate) stats: Mutex<StatsProperty>,
    counts: Arc<Counts>,
    shared: Arc<Shared>,
    /// Clients set by the application or by another element.
    clients: Mutex<Option<Clients>>,
    pub(crate) src_pad: gst::Pad,
    pub(crate) driver: Driver<HttpReader>,
}

/// Maximum wait for a flush. A flush takes microseconds, unless an element of another branch blocks the context's thread. In that
/// case, the thread that waits here may be the one that must unblock the context's thread.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(1);
/// Name of a GStreamer context that has clients. Elements with the same value share their connections.
const CLIENTS_CONTEXT: &str = "gst.reqwest.client";
const CLIENTS_FIELD: &str = "client";

impl HttpSource {
    pub(crate) fn new(alone: Alone, src_pad: gst::Pad) -> Self {
        let counts = Arc::<Counts>::default();
        let shared = Arc::<Shared>::default();
        let (read, of_pipe) = (counts.clone(), shared.clone());
        let stats = StatsProperty::new(move || structure(&read, &of_pipe));
        HttpSource {
            alone,
            values: Mutex::default(),
            extra_headers: Mutex::default(),
            context: Mutex::default(),
            stats: Mutex::new(stats),
            counts,
            shared,
            clients: Mutex::default(),
            src_pad,
            driver: Driver::default(),
        }
    }

    pub(super) fn values(&self) -> MutexGuard<'_, Values> {
        lock(&self.values)
    }

    /// Sets the URI for the URI handler; refuses a location that cannot be fetched.
    pub(super) fn set_uri(&self, uri: &str) -> Result<(), glib::Error> {
        if self.driver.place().is_some() {
            return Err(glib::Error::new(
                gst::URIError::BadState,
                "the location can be changed only in READY and NULL",
            ));
        }
        Location::parse(uri).map_err(|error| {
            glib::Error::new(gst::URIError::BadUri, &format!("location={error}"))
        })?;
        self.values().location = Some(uri.to_owned());
        Ok(())
    }

    pub(crate) fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
        let values = self.values().clone();
        let extra = lock(&self.extra_headers).clone();
        let plan = values.plan(&extra, &self.clients(element), self.counts.clone());
        let plan = plan.map_err(|error: SettingsError| gst::ErrorMessage::from(error))?;
        self.start(element, plan, &values)
    }

    /// Acts as [`Self::activate`], for an object in S3.
    pub(crate) fn activate_signed(
        &self,
        element: &gst::Element,
        signed: Signed,
    ) -> Result<(), gst::ErrorMessage> {
        let plan = signed.plan(&Clients::of_process(), self.counts.clone());
        let plan = plan.map_err(|error: SettingsError| gst::ErrorMessage::from(error))?;
        self.start(element, plan, &Values::default())
    }

    fn start(
        &self,
        element: &gst::Element,
        plan: Plan,
        values: &Values,
    ) -> Result<(), gst::ErrorMessage> {
        let place = self.placing(element).place(element)?;
        *lock(&self.shared.course) = self.first_course();
        *lock(&self.shared.known) = None;
        let shape = Shape {
            block_bytes: values.block_bytes as usize,
            buffers_max: u32::try_from(values.buffers_max).ok(),
            do_timestamp: values.do_timestamp,
            is_live: values.is_live,
        };
        let reader = HttpReader::new(element, Arc::new(plan), self.shared.clone(), shape);
        self.driver.add(element, &self.src_pad, place, reader)
    }

    /// Returns the first course: from the start of the resource, or from the position of a seek that was sent before the start.
    fn first_course(&self) -> Course {
        let mut course = Course::default();
        if let Some(event) = self.driver.take_early_seek()
            && let gst::EventView::Seek(seek) = event.view()
            && let Some(segment) = after(&course.segment, seek, None)
        {
            (course.segment, course.seqnum) = (segment, Some(seek.seqnum()));
        }
        course
    }

    pub(crate) fn deactivate(&self) {
        self.driver.remove();
        let pipe = lock(&self.shared.pipe).take();
        drop(pipe);
    }

    /// Returns the context to run on.
    fn placing(&self, element: &gst::Element) -> ContextSettings {
        /// The name needs a number, because element names are not unique.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let context = lock(&self.context).clone();
        if self.alone == Alone::Shared || context.is_named() {
            return context;
        }
        let number = NEXT.fetch_add(1, Relaxed);
        context.with_name(format!("{}#{number}", element.name()))
    }

    pub(crate) fn answer_query(
        &self,
        element: &gst::Element,
        pad: &gst::Pad,
        query: &mut gst::QueryRef,
    ) -> bool {
        let known = lock(&self.shared.known).clone();
        let is_seekable = known.as_ref().is_some_and(|known| known.is_seekable);
        let size = known.as_ref().and_then(size_of);
        let unknown = gst::GenericFormattedValue::new(gst::Format::Bytes, -1);
        match query.view_mut() {
            gst::QueryViewMut::Uri(uri) => {
                let location = self.values().location.clone();
                uri.set_uri(location.as_deref());
                if let Some((place, is_permanent)) = known.and_then(|known| known.redirect) {
                    uri.set_redirection(Some(place.as_str()), is_permanent);
                }
                location.is_some()
            }
            gst::QueryViewMut::Duration(duration) if duration.format() == gst::Format::Bytes => {
                if let Some(size) = size {
                    duration.set(size);
                }
                size.is_some()
            }
            gst::QueryViewMut::Position(position) if position.format() == gst::Format::Bytes => {
                position.set(lock(&self.shared.course).segment.position());
                true
            }
            gst::QueryViewMut::Seeking(seeking) if seeking.format() == gst::Format::Bytes => {
                let first = gst::GenericFormattedValue::new(gst::Format::Bytes, 0);
                seeking.set(is_seekable, first, size.unwrap_or(unknown));
                true
            }
            gst::QueryViewMut::Scheduling(scheduling) => {
                let flags = if is_seekable {
                    gst::SchedulingFlags::SEEKABLE
                } else {
                    gst::SchedulingFlags::SEQUENTIAL
                };
                let flags = flags | gst::SchedulingFlags::BANDWIDTH_LIMITED;
                scheduling.set(flags, 1, -1, 0);
                scheduling.add_scheduling_modes([gst::PadMode::Push]);
                true
            }
            _ => {
                let wait = self.driver.wait(&self.context);
                let latency = (self.values().is_live, wait, None);
                source::answer_query(pad, element, query, latency, || pad.current_caps())
            }
        }
    }

    /// Fetches from another position. Returns `false` if the server does not support ranges, or if the seek is not a forward one
    /// in bytes.
    pub(crate) fn seek(&self, seek: &gst::event::Seek<gst::EventRef>) -> bool {
        let known = lock(&self.shared.known).clone();
        // Before the first response, seeking is assumed to be possible. The request will show whether it is.
        if known.as_ref().is_some_and(|known| !known.is_seekable) {
            return false;
        }
        let size = known.as_ref().and_then(size_of);
        if after(&lock(&self.shared.course).segment, seek, size).is_none() {
            return false;
        }
        let seqnum = seek.seqnum();
        let flushes = seek.get().1.contains(gst::SeekFlags::FLUSH);
        if flushes {
            let start = gst::event::FlushStart::builder().seqnum(seqnum);
            self.src_pad.push_event(start.build());
        }
        {
            let mut course = lock(&self.shared.course);
            // The segment is computed again, because the position may have advanced.
            let Some(segment) = after(&course.segment, seek, size) else {
                return false;
            };
            *course = Course {
                segment,
                seqnum: Some(seqnum),
                generation: course.generation + 1,
                must_announce: !flushes,
            };
        }
        if flushes {
            let stop = gst::event::FlushStop::builder(true).seqnum(seqnum).build();
            self.end_flush(stop);
        } else {
            self.driver.restart();
        }
        true
    }

    /// Ends the flush of a seek, and waits until it has ended, because the pad refuses another seek before that. It does not wait
    /// on a context's thread, which must not wait for other threads.
    fn end_flush(&self, stop: gst::Event) {
        let (tell, told) = sync_channel(1);
        self.driver.end_flush_and_tell(stop, move || {
            let _ = tell.send(());
        });
        if threadbare_runtime::current_shard_id().is_none() {
            let _ = told.recv_timeout(FLUSH_TIME_MAX);
        }
    }

    /// Returns the clients of the pipeline, or those of the process if the pipeline has none.
    fn clients(&self, element: &gst::Element) -> Clients {
        let given = || lock(&self.clients).clone();
        if let Some(clients) = given() {
            return clients;
        }
        let mut query = gst::query::Context::new(CLIENTS_CONTEXT);
        if self.src_pad.peer_query(&mut query)
            && let Some(context) = query.context_owned()
        {
            self.set_context(&context);
        }
        if let Some(clients) = given() {
            return clients;
        }
        let need = gst::message::NeedContext::builder(CLIENTS_CONTEXT).src(element);
        let _ = element.post_message(need.build());
        if let Some(clients) = given() {
            return clients;
        }
        let clients = Clients::of_process();
        let mut context = gst::Context::new(CLIENTS_CONTEXT, true);
        let fields = context.get_mut().expect("a new context").structure_mut();
        fields.set(CLIENTS_FIELD, clients.clone());
        element.set_context(&context);
        let have = gst::message::HaveContext::builder(context).src(element);
        let _ = element.post_message(have.build());
        clients
    }

    /// Uses the clients of a GStreamer context, if it is one of ours.
    pub(super) fn set_context(&self, context: &gst::Context) {
        if context.context_type() != CLIENTS_CONTEXT {
            return;
        }
        // A context of the same name by another plugin has a value of another type.
        if let Ok(clients) = context.structure().get::<Clients>(CLIENTS_FIELD) {
            *lock(&self.clients) = Some(clients);
        }
    }
}

/// Returns the segment after a seek. Without a flush, running time continues from the position.
fn after(
    segment: &gst::Segment,
    seek: &gst::event::Seek<gst::EventRef>,
    size: Option<gst::GenericFormattedValue>,
) -> Option<gst::Segment> {
    let (rate, flags, start_type, start, stop_type, stop) = seek.get();
    if rate <= 0.0 || start.format() != gst::Format::Bytes {
        return None;
    }
    let mut segment = segment.clone();
    let unknown = gst::GenericFormattedValue::new(gst::Format::Bytes, -1);
    segment.set_duration(size.unwrap_or(unknown));
    segment.do_seek(rate, flags, start_type, start, stop_type, stop)?;
    Some(segment)
}

fn size_of(known: &Known) -> Option<gst::GenericFormattedValue> {
    let size = i64::try_from(known.size?).ok()?;
    Some(gst::GenericFormattedValue::new(gst::Format::Bytes, size))
}

fn structure(counts: &Counts, shared: &Shared) -> gst::Structure {
    let pipe = lock(&shared.pipe).clone();
    let queued = pipe.map_or(0, |pipe| pipe.bytes());
    gst::Structure::builder("application/x-ts-http-stats")
        .field("bytes-received", counts.bytes.get())
        .field("buffers", counts.buffers.get())
        .field("bytes-queued", queued as u64)
        .field("requests", counts.requests.get())
        .field("redirects", counts.redirects.get())
        .field("retries", counts.retries.get())
        .field("resumed", counts.resumed.get())
        .field("reconnected", counts.reconnected.get())
        .field("bytes-skipped", counts.skipped.get())
        .field("timeouts", counts.timeouts.get())
        .field("too-slow", counts.slow.get())
        .build()
}
