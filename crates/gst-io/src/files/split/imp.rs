//! Properties, pads and states of `ts-splitfilesink`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::Poll;

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use jiff::Timestamp;
use threadbare_runtime::{Precision, block_on, clock_now_ns, current_shard_id, sleep_until};

use super::SplitFileSink;
use super::cutter::{Cutter, Plan};
use super::rotation::Limits;
use super::template::Template;
use crate::files::outbox::bell;
use crate::files::settings::SplitDiskSettings;
use crate::files::target::Totals;
use crate::kit::context::{ContextSettings, Place};
use crate::kit::sink::{self, FileSyncProperties, Sink, SinkElement};
use crate::kit::stats::StatsProperty;
use crate::kit::{CAT, lock};

/// Maximum time for writing the end of all files when the element stops. Data that takes longer is written afterwards.
const CLOSE_WAIT_NS: u64 = 10_000_000_000;
/// Maximum time for a pipe. A reader that has read nothing by then will not read later either.
const CLOSE_WAIT_PIPE_NS: u64 = 1_000_000_000;

#[derive(Debug, Clone, Default)]
struct Settings {
    location: Option<String>,
    time_ns_max: u64,
    bytes_max: u64,
    files_max: u32,
    start_index: i32,
}

#[derive(Properties)]
#[properties(wrapper_type = SplitFileSink)]
pub struct Imp {
    #[property(name = "location", nick = "File location", blurb = "Template of the files' paths: %05d is the file's number, {time} or {time:%H-%M} its start time (UTC), {name} the element's name", type = Option<String>, get = |s: &Self| s.settings().location.clone(), set = |s: &Self, v| s.settings().location = v, mutable_ready)]
    #[property(name = "max-size-time", nick = "Longest file", blurb = "Maximum duration of a file, ns; a keyframe that would exceed it starts a new file; 0: no limit", type = u64, get = |s: &Self| s.settings().time_ns_max, set = |s: &Self, v| s.settings().time_ns_max = v, default = 0, mutable_ready)]
    #[property(name = "max-size-bytes", nick = "Largest file", blurb = "Maximum size of a file, bytes; a keyframe that would exceed it starts a new file; 0: no limit", type = u64, get = |s: &Self| s.settings().bytes_max, set = |s: &Self, v| s.settings().bytes_max = v, default = 0, mutable_ready)]
    #[property(name = "max-files", nick = "Most files", blurb = "Maximum number of files; the element removes the oldest files that it has written since it started; 0: no limit", type = u32, get = |s: &Self| s.settings().files_max, set = |s: &Self, v| s.settings().files_max = v, default = 0, mutable_ready)]
    #[property(name = "start-index", nick = "First number", blurb = "Number of the first file", type = i32, get = |s: &Self| s.settings().start_index, set = |s: &Self, v| s.settings().start_index = v, minimum = 0, default = 0, mutable_ready)]
    settings: Mutex<Settings>,
    context: Mutex<ContextSettings>,
    disk: Mutex<SplitDiskSettings>,
    sync: Mutex<FileSyncProperties>,
    stats: Mutex<StatsProperty>,
    totals: Arc<Totals>,
    files: Arc<AtomicU64>,
    sink_pad: gst::Pad,
    sink: OnceLock<Sink<Cutter>>,
}

impl Imp {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    /// Handles a wake-up by the disk service, or by a thread that has posted messages.
    fn rung(&self) {
        self.sink().with_renderer(Cutter::progress);
        self.sink().tell_renderer_changed();
    }

    fn structure(&self) -> gst::Structure {
        let (rendered, _) = self.sink().counts();
        let now = self.sink().with_renderer(|cutter| cutter.counts());
        let name = "application/x-ts-splitfilesink-stats";
        let stats = self.totals.structure(name, now, rendered);
        stats.field("files", self.files.load(Relaxed)).build()
    }

    fn plan(&self) -> Result<Plan, gst::ErrorMessage> {
        let wrong = |text: String| gst::error_msg!(gst::ResourceError::Settings, ["{text}"]);
        let settings = self.settings().clone();
        let location = settings.location.unwrap_or_default();
        let template =
            Template::parse("location", &location).map_err(|error| wrong(error.to_string()))?;
        let name = self.obj().name().to_string();
        // This finds mistakes in a name before anything is written.
        let first = template.path(0, &name, Timestamp::now());
        first.map_err(|error| wrong(error.to_string()))?;
        let limits = Limits {
            time_ns: settings.time_ns_max,
            bytes: settings.bytes_max,
        };
        if limits != Limits::default() && !template.is_numbered() {
            return Err(wrong(format!(
                "location={location}: all files would have the same name; expected %05d or {{time}} in the location"
            )));
        }
        let settings_of_disk = lock(&self.disk).clone().into_inner();
        Ok(Plan {
            disk: settings_of_disk.io_mode.disk()?,
            settings: settings_of_disk,
            template,
            limits,
            files_max: settings.files_max,
            first_number: u32::try_from(settings.start_index).unwrap_or(0),
            name,
        })
    }
}

impl SinkElement for Imp {
    type Renderer = Cutter;

    fn sink(&self) -> &Sink<Cutter> {
        self.sink.get_or_init(|| {
            let obj = self.obj();
            let waker = bell(&*obj, |element: &SplitFileSink| element.imp().rung());
            let (totals, files) = (self.totals.clone(), self.files.clone());
            let cutter = Cutter::new(obj.upcast_ref(), waker, totals, files);
            Sink::new(obj.upcast_ref(), cutter, lock(&self.sync).clone().into())
        })
    }

    fn activate(&self) -> Result<(), gst::ErrorMessage> {
        lock(&self.context).check()?;
        let plan = self.plan()?;
        let context = lock(&self.context).name().to_owned();
        self.sink()
            .with_renderer(|cutter| cutter.start(plan, context));
        Ok(())
    }

    /// Ends the last file, too, and reports its end. Waits for the end for a limited time, but does not wait on a context's
    /// thread.
    fn deactivate(&self) {
        let sink = self.sink();
        sink.with_renderer(Cutter::close_current);
        if current_shard_id().is_none() {
            let patience_ns = if sink.with_renderer(|cutter| cutter.has_pipe()) {
                CLOSE_WAIT_PIPE_NS
            } else {
                CLOSE_WAIT_NS
            };
            let deadline_ns = clock_now_ns().saturating_add(patience_ns);
            let mut patience = Box::pin(sleep_until(deadline_ns, Precision::NotBefore));
            let mut closed = Box::pin(sink.until(|cutter| {
                cutter.progress();
                if cutter.is_idle() {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            }));
            block_on(std::future::poll_fn(|cx| match closed.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => patience.as_mut().poll(cx),
            }));
        }
        // Drop the files without the lock.
        let left = sink.with_renderer(Cutter::stop);
        if !left.is_empty() {
            let files = left.len();
            gst::warning!(CAT, imp = self, "{files} files are not complete yet");
        }
    }

    fn notice_event(&self, event: &gst::Event) {
        if event.type_() == gst::EventType::Caps {
            self.sink().queue_event(event.clone());
        }
        if let Some(place) = Place::of_branch(event)
            && !lock(&self.context).is_named()
        {
            let name = place.context_name().to_owned();
            self.sink().with_renderer(|cutter| cutter.context = name);
        }
    }

    /// Tells muxers before they start that the stream is not seekable.
    fn answer_query(&self, query: &mut gst::QueryRef) -> bool {
        let gst::QueryViewMut::Seeking(query) = query.view_mut() else {
            return false;
        };
        let of = |value: i64| gst::GenericFormattedValue::new(query.format(), value);
        let (start, end) = (of(0), of(-1));
        query.set(false, start, end);
        true
    }
}

#[glib::object_subclass]
impl ObjectSubclass for Imp {
    const NAME: &'static str = "ThreadbareSplitFileSink";
    type Type = SplitFileSink;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        Imp {
            settings: Mutex::default(),
            context: Mutex::default(),
            disk: Mutex::default(),
            sync: Mutex::default(),
            stats: Mutex::default(),
            totals: Arc::default(),
            files: Arc::default(),
            sink_pad: sink::sink_pad::<Imp>(&crate::kit::template(klass, "sink")),
            sink: OnceLock::new(),
        }
    }
}

impl ObjectImpl for Imp {
    crate::kit::properties_with_groups!(context, disk, sync, stats);

    fn constructed(&self) {
        self.parent_constructed();
        let obj = self.obj();
        crate::kit::add_pads(obj.upcast_ref(), &[&self.sink_pad]);
        *lock(&self.stats) = StatsProperty::of(&*obj, |obj| obj.imp().structure());
    }
}

impl GstObjectImpl for Imp {}

impl ElementImpl for Imp {
    crate::kit::element_class!(
        "Thread-sharing splitting file sink",
        "Sink/File",
        "Cuts a stream into files at its keyframes, by the disk service of the process, without a separate thread";
        "sink": Sink Always gst::Caps::new_any()
    );

    crate::sink_life!();
}
