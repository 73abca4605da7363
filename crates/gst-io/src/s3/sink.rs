//! Common part of both sinks: settings, states and queries around a [`Writer`].

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::Poll;
use std::time::Duration;

use gst::glib;
use gst::prelude::*;
use threadbare_runtime::{Precision, block_on, clock_now_ns, current_shard_id, sleep_until};
use threadbare_s3::{Error, Place};

use super::access::error_of;
use super::settings::{Cut, Metadata, Values};
use super::writer::{Totals, Writer};
use crate::kit::sink::{FileSyncProperties, Sink};
use crate::kit::stats::StatsProperty;
use crate::kit::{CAT, lock};

/// Maximum wait until a store confirms that it accepts objects. After that time, the element continues, and queues data until the
/// confirmation arrives.
const OPEN_WAIT: Duration = Duration::from_secs(30);
/// Maximum wait for the end of objects when the element stops. Objects that take longer continue afterwards.
const CLOSE_WAIT: Duration = Duration::from_secs(10);
/// Maximum wait for the end of objects when a sink with a spool stops. It is shorter, because the spool keeps all data.
const CLOSE_WAIT_SPOOLED: Duration = Duration::from_secs(1);

/// Meaning of the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyKind {
    /// The key itself, as with the stock element.
    Plain,
    /// A template.
    Template,
}

pub(super) struct S3Sink {
    kind: KeyKind,
    values: Mutex<Values>,
    pub(super) metadata: Mutex<Metadata>,
    pub(super) cut: Mutex<Cut>,
    pub(super) sync: Mutex<FileSyncProperties>,
    pub(super) stats: Mutex<StatsProperty>,
    pub(super) totals: Arc<Totals>,
    pub(super) sink: OnceLock<Sink<Writer>>,
}

fn wait_for<T>(
    patience: Duration,
    mut poll: impl FnMut(&mut std::task::Context<'_>) -> Poll<T>,
) -> Option<T> {
    let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
    let deadline_ns = clock_now_ns().saturating_add(patience_ns);
    let mut sleep = Box::pin(sleep_until(deadline_ns, Precision::NotBefore));
    block_on(std::future::poll_fn(|cx| match poll(cx) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => sleep.as_mut().poll(cx).map(|()| None),
    }))
}

impl S3Sink {
    pub(super) fn new(kind: KeyKind) -> Self {
        S3Sink {
            kind,
            values: Mutex::default(),
            metadata: Mutex::default(),
            cut: Mutex::default(),
            sync: Mutex::default(),
            stats: Mutex::default(),
            totals: Arc::default(),
            sink: OnceLock::new(),
        }
    }

    pub(super) fn values(&self) -> MutexGuard<'_, Values> {
        lock(&self.values)
    }

    /// Sets the URI for the URI handler; refuses an invalid URI at once.
    pub(super) fn set_uri(&self, uri: &str) -> Result<(), glib::Error> {
        let set = self.values().access.set_uri(Some(uri));
        set.map_err(|error| glib::Error::new(gst::URIError::BadUri, &error.to_string()))
    }

    pub(super) fn structure(&self, sink: &Sink<Writer>) -> gst::Structure {
        let (rendered, _) = sink.counts();
        let now = sink.with_renderer(|writer| writer.counts());
        self.totals.structure(now, rendered)
    }

    /// Checks the store, and waits for the answer, so that wrong settings fail at this state change.
    pub(super) fn activate(
        &self,
        element: &gst::Element,
        sink: &Sink<Writer>,
    ) -> Result<(), gst::ErrorMessage> {
        let name = (self.kind == KeyKind::Template).then(|| element.name().to_string());
        let metadata = lock(&self.metadata).clone();
        let cut = lock(&self.cut).clone();
        let plan = self.values().plan(&metadata, &cut, name.as_deref());
        let place = "S3";
        let plan = plan.map_err(|error| error_of(&error, place))?;
        let shown = format!("s3://{}/{}", plan.region, plan.bucket);
        let opening = Place::open(plan.place.clone());
        if current_shard_id().is_none() {
            match wait_for(OPEN_WAIT, |cx| opening.poll_ready(cx)) {
                Some(Ok(place)) => {
                    if let Some(error) = place.away {
                        gst::warning!(
                            CAT,
                            obj = element,
                            "{shown}: {error}; data waits in the spool"
                        );
                    }
                }
                Some(Err(error)) => return Err(error_of(&error, &shown)),
                None => gst::warning!(
                    CAT,
                    obj = element,
                    "{shown}: the store has not answered yet"
                ),
            }
        }
        sink.with_renderer(|writer| writer.start(plan, opening));
        Ok(())
    }

    /// Ends the last object, too, as `on-error` says, and reports its end. Waits for the end for a limited time, but does not
    /// wait on a context's thread.
    pub(super) fn deactivate(&self, element: &gst::Element, sink: &Sink<Writer>) {
        sink.with_renderer(Writer::break_off);
        if current_shard_id().is_none() {
            let patience = if sink.with_renderer(|writer| writer.is_spooled()) {
                CLOSE_WAIT_SPOOLED
            } else {
                CLOSE_WAIT
            };
            let mut closed = Box::pin(sink.until(|writer| {
                writer.progress();
                if writer.is_idle() {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            }));
            wait_for(patience, |cx| closed.as_mut().poll(cx));
        }
        let left = sink.with_renderer(Writer::stop);
        for upload in &left {
            gst::warning!(
                CAT,
                obj = element,
                "{}: the upload is not complete yet",
                upload.key()
            );
        }
    }

    /// Tells muxers before they start that the stream is not seekable.
    pub(super) fn answer(&self, query: &mut gst::QueryRef) -> bool {
        match query.view_mut() {
            gst::QueryViewMut::Seeking(query) => {
                let of = |value: i64| gst::GenericFormattedValue::new(query.format(), value);
                let (start, end) = (of(0), of(-1));
                query.set(false, start, end);
                true
            }
            gst::QueryViewMut::Uri(query) => {
                query.set_uri(self.values().access.uri().as_deref());
                true
            }
            _ => false,
        }
    }

    /// Handles a wake-up by an upload, or by a thread that has posted messages.
    pub(super) fn rung(sink: &Sink<Writer>) {
        sink.with_renderer(Writer::progress);
        sink.tell_renderer_changed();
    }
}

/// Ignores the error of a property, because its setter cannot return it. The start of the element reports it.
pub(super) fn later(_: Result<(), Error>) {}
