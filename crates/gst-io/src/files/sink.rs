//! `ts-filesink`: writes a stream to a file without its own thread.
//!
//! ```text
//!   Closed --READY to PAUSED--> Open --EOS--> finished: written, synced, named; more may follow
//!                                `---a failure, or a disk too slow---> Failed, reported once
//! ```
//!
//! | field | thread |
//! |---|---|
//! | `Writer` | the pushing thread, and any thread that wakes the sink, under the sink's lock |
//! | `Outbox` | any thread; its messages are posted by a thread that holds no lock |

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use threadbare_files::{Access, Counts, Ending, Op};
use threadbare_runtime::current_shard_id;

use super::outbox::{Letter, Outbox, bell};
use super::settings::DiskSettings;
use super::target::{Stored, Target, Totals, await_for, error_of};
use crate::kit::context::{ContextSettings, Place};
use crate::kit::sink::{self, FileSyncProperties, Rendered, Renderer, Sink, SinkElement};
use crate::kit::stats::StatsProperty;
use crate::kit::{CAT, lock};

glib::wrapper! {
    /// Writes a stream to a file.
    pub struct FileSink(ObjectSubclass<Imp>)
        @extends gst::Element, gst::Object,
        @implements gst::URIHandler;
}

pub(super) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    let kind = FileSink::static_type();
    gst::Element::register(plugin, "ts-filesink", gst::Rank::NONE, kind)
}

/// Maximum time for opening a file. After that time, the element continues without the result.
const OPEN_WAIT: Duration = Duration::from_secs(5);
/// Suffix of an incomplete file's name.
const PART: &str = ".part";

/// Returns the temporary name of an atomic file.
pub(super) fn part_of(location: &Path) -> PathBuf {
    let mut name = location.as_os_str().to_owned();
    name.push(PART);
    name.into()
}

/// The file of the sink; under the sink's lock.
pub struct Writer {
    target: Option<Target>,
    settings: DiskSettings,
    location: PathBuf,
    /// Context of the budget: the element's own, or else that of the branch.
    context: String,
    has_budget: bool,
    totals: Arc<Totals>,
    outbox: Outbox,
    waker: Waker,
    has_failed: bool,
    /// Whether the last buffer did not fit the budget.
    is_full: bool,
    /// Finishing of the file, once the end of the stream has begun.
    finishing: Option<Op<()>>,
}

impl Writer {
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

    /// Reports a failure of the file, even if no more data arrives.
    fn notice_failure(&mut self) {
        let failure = self
            .target
            .as_ref()
            .and_then(|target| target.file.failure());
        if let Some(failure) = failure.filter(|failure| !failure.is_cancelled()) {
            self.fail(error_of(&failure));
        }
    }

    fn counts(&self) -> Counts {
        let counts = self.target.as_ref().map(|target| target.file.counts());
        counts.unwrap_or_default()
    }
}

impl Renderer for Writer {
    fn render(&mut self, buffer: &gst::Buffer) -> Rendered {
        if self.has_failed {
            return self.failed();
        }
        let Some(target) = &mut self.target else {
            return Rendered::Failed(gst::FlowError::Flushing);
        };
        if !std::mem::replace(&mut self.has_budget, true) {
            target.file.set_budget(self.settings.budget(&self.context));
        }
        self.finishing = None;
        match target.write(buffer, &self.waker, &self.totals) {
            Stored::Yes => {
                self.is_full = false;
                Rendered::Done
            }
            Stored::Full => {
                if !std::mem::replace(&mut self.is_full, true) {
                    self.totals.held_up.fetch_add(1, Relaxed);
                }
                Rendered::Full
            }
            Stored::Failed(error) => self.fail(error),
        }
    }

    fn event(&mut self, event: &gst::Event) {
        if let gst::EventView::Segment(segment) = event.view()
            && let Some(segment) = segment.segment().downcast_ref::<gst::format::Bytes>()
            && let (Some(target), Some(start)) = (&mut self.target, segment.start())
        {
            self.finishing = None;
            target.seek(*start);
        }
    }

    /// Handles the end of the stream: everything is written, synced if the policy says so, and renamed.
    fn end(&mut self) -> Rendered {
        if self.has_failed {
            return self.failed();
        }
        let Some(target) = &self.target else {
            return Rendered::Done;
        };
        let finishing = self.finishing.get_or_insert_with(|| {
            let is_part = self.settings.is_atomic && target.file.path() != self.location;
            target.file.finish(Ending {
                sync: self.settings.syncs_at_end(),
                rename_to: is_part.then(|| self.location.clone()),
            })
        });
        let cx = &mut Context::from_waker(&self.waker);
        match Pin::new(finishing).poll(cx) {
            Poll::Pending => Rendered::Full,
            Poll::Ready(Ok(())) => {
                self.finishing = None;
                Rendered::Done
            }
            Poll::Ready(Err(failure)) => self.fail(error_of(&failure)),
        }
    }

    /// Restarts the file at the end of a flush, as the stock element does.
    fn flush(&mut self) {
        (self.is_full, self.finishing) = (false, None);
        if let Some(target) = &mut self.target {
            target.restart();
        }
    }

    fn has_room(&self) -> bool {
        !self.is_full
    }
}

#[derive(Debug, Clone, Default)]
struct Settings {
    location: Option<String>,
    append: bool,
}

#[derive(Properties)]
#[properties(wrapper_type = FileSink)]
pub struct Imp {
    #[property(name = "location", nick = "File location", blurb = "Path of the file to write", type = Option<String>, get = |s: &Self| s.settings().location.clone(), set = |s: &Self, v| s.settings().location = v, mutable_ready)]
    #[property(name = "append", nick = "Append", blurb = "Append to an existing file; write positions are then relative to the previous end of the file", type = bool, get = |s: &Self| s.settings().append, set = |s: &Self, v| s.settings().append = v, default = false, mutable_ready)]
    settings: Mutex<Settings>,
    context: Mutex<ContextSettings>,
    disk: Mutex<DiskSettings>,
    sync: Mutex<FileSyncProperties>,
    stats: Mutex<StatsProperty>,
    totals: Arc<Totals>,
    sink_pad: gst::Pad,
    sink: OnceLock<Sink<Writer>>,
}

impl Imp {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    /// Handles a wake-up by the disk service, or by a thread that has posted messages.
    fn rung(&self) {
        self.sink().with_renderer(Writer::notice_failure);
        self.sink().resume();
    }

    fn structure(&self) -> gst::Structure {
        let (rendered, _) = self.sink().counts();
        let now = self.sink().with_renderer(|writer| writer.counts());
        let name = "application/x-ts-filesink-stats";
        self.totals.structure(name, now, rendered).build()
    }

    fn uri(&self) -> Option<glib::GString> {
        let location = self.settings().location.clone()?;
        let path = std::path::absolute(location).ok()?;
        glib::filename_to_uri(path, None).ok()
    }

    /// Answers queries of the pad and of the element like the stock element.
    fn answer(&self, query: &mut gst::QueryRef) -> bool {
        use gst::format::{Bytes, Default};
        match query.view_mut() {
            gst::QueryViewMut::Position(query)
                if matches!(query.format(), gst::Format::Bytes | gst::Format::Default) =>
            {
                let of = |writer: &mut Writer| writer.target.as_ref().map(|it| it.position);
                let position = self.sink().with_renderer(of).unwrap_or(0);
                match query.format() {
                    gst::Format::Bytes => query.set(Bytes::from_u64(position)),
                    _ => query.set(Default::from_u64(position)),
                }
                true
            }
            gst::QueryViewMut::Formats(query) => {
                query.set([gst::Format::Default, gst::Format::Bytes]);
                true
            }
            gst::QueryViewMut::Uri(query) => {
                query.set_uri(self.uri().as_deref());
                true
            }
            gst::QueryViewMut::Seeking(query) => {
                let of = |writer: &mut Writer| writer.target.as_ref().map(Target::is_seekable);
                let is_seekable = self.sink().with_renderer(of).unwrap_or(true);
                match query.format() {
                    gst::Format::Bytes => query.set(is_seekable, Bytes::ZERO, Bytes::NONE),
                    gst::Format::Default => query.set(is_seekable, Default::ZERO, Default::NONE),
                    format => query.set(
                        false,
                        gst::GenericFormattedValue::new(format, 0),
                        gst::GenericFormattedValue::new(format, -1),
                    ),
                }
                true
            }
            _ => false,
        }
    }
}

impl SinkElement for Imp {
    type Renderer = Writer;

    fn sink(&self) -> &Sink<Writer> {
        self.sink.get_or_init(|| {
            let obj = self.obj();
            let waker = bell(&*obj, |element| element.imp().rung());
            let writer = Writer {
                target: None,
                settings: DiskSettings::default(),
                location: PathBuf::new(),
                context: String::new(),
                has_budget: false,
                totals: self.totals.clone(),
                outbox: Outbox::new(obj.upcast_ref(), waker.clone()),
                waker,
                has_failed: false,
                is_full: false,
                finishing: None,
            };
            Sink::new(obj.upcast_ref(), writer, lock(&self.sync).clone().into())
        })
    }

    /// Opens the file and waits for the result, so that a wrong path fails at this state change.
    fn activate(&self) -> Result<(), gst::ErrorMessage> {
        let settings = self.settings().clone();
        let disk_settings = lock(&self.disk).clone();
        lock(&self.context).check()?;
        let location = settings.location.filter(|location| !location.is_empty());
        let location = PathBuf::from(location.ok_or_else(|| {
            let kind = gst::ResourceError::NotFound;
            gst::error_msg!(
                kind,
                ["location is not set: expected the path of the file to write"]
            )
        })?);
        if disk_settings.is_atomic && settings.append {
            return Err(gst::error_msg!(
                gst::ResourceError::Settings,
                ["atomic and append exclude each other: a file to append to already has its name"]
            ));
        }
        let access = if settings.append {
            Access::Append
        } else {
            Access::Write
        };
        let path = if disk_settings.is_atomic {
            part_of(&location)
        } else {
            location.clone()
        };
        let file = disk_settings
            .io_mode
            .disk()?
            .open(path, disk_settings.options(access));
        if current_shard_id().is_none() {
            match await_for(file.opened(), OPEN_WAIT) {
                Some(Ok(_)) => {}
                Some(Err(failure)) => return Err(error_of(&failure)),
                None => gst::warning!(
                    CAT,
                    imp = self,
                    "{}: the file is not open yet, because the disk is slow",
                    location.display()
                ),
            }
        }
        let context = lock(&self.context).name().to_owned();
        self.sink().with_renderer(|writer| {
            writer.target = Some(Target::new(file, &disk_settings, &writer.waker));
            writer.settings = disk_settings;
            writer.location = location;
            writer.context = context;
            writer.has_budget = false;
            (writer.has_failed, writer.is_full) = (false, false);
            writer.finishing = None;
        });
        Ok(())
    }

    /// Writes all data that has arrived, and closes the file.
    fn deactivate(&self) {
        let (target, has_failed, sync) = self.sink().with_renderer(|writer| {
            let syncs = writer.settings.syncs_at_end();
            (writer.target.take(), writer.has_failed, syncs)
        });
        let Some(target) = target else { return };
        let path = target.file.path();
        let (counts, error) = target.close(Ending {
            sync,
            rename_to: None,
        });
        if counts.held > 0 {
            let held = counts.held;
            gst::warning!(
                CAT,
                imp = self,
                "{}: {held} bytes are not written yet",
                path.display()
            );
        }
        self.totals.add(counts);
        if let Some(error) = error.filter(|_| !has_failed) {
            self.post_error_message(error);
        }
    }

    fn notice_event(&self, event: &gst::Event) {
        if let Some(place) = Place::of_branch(event)
            && !lock(&self.context).is_named()
        {
            let name = place.context_name().to_owned();
            self.sink().with_renderer(|writer| writer.context = name);
        }
    }

    fn answer_query(&self, query: &mut gst::QueryRef) -> bool {
        self.answer(query)
    }
}

#[glib::object_subclass]
impl ObjectSubclass for Imp {
    const NAME: &'static str = "ThreadbareFileSink";
    type Type = FileSink;
    type ParentType = gst::Element;
    type Interfaces = (gst::URIHandler,);

    fn with_class(klass: &Self::Class) -> Self {
        Imp {
            settings: Mutex::default(),
            context: Mutex::default(),
            disk: Mutex::default(),
            sync: Mutex::default(),
            stats: Mutex::default(),
            totals: Arc::default(),
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
        "Thread-sharing file sink",
        "Sink/File",
        "Writes a stream to a file by the disk service of the process, without a separate thread";
        "sink": Sink Always gst::Caps::new_any()
    );

    crate::sink_life!(answer);
}

impl URIHandlerImpl for Imp {
    const URI_TYPE: gst::URIType = gst::URIType::Sink;

    fn protocols() -> &'static [&'static str] {
        &["file"]
    }

    fn uri(&self) -> Option<String> {
        self.uri().map(Into::into)
    }

    fn set_uri(&self, uri: &str) -> Result<(), glib::Error> {
        self.settings().location = Some(path_of_uri(uri)?);
        Ok(())
    }
}

/// Returns the path of a `file` URI of this machine.
pub(super) fn path_of_uri(uri: &str) -> Result<String, glib::Error> {
    let (path, host) = glib::filename_from_uri(uri)?;
    if let Some(host) = host.filter(|host| host != "localhost") {
        return Err(glib::Error::new(
            gst::URIError::BadUri,
            &format!(
                "{uri}: the file is on the host {host}; expected a file of this machine, file:///..."
            ),
        ));
    }
    path.into_os_string().into_string().map_err(|_| {
        let text = format!("{uri}: the path is not UTF-8");
        glib::Error::new(gst::URIError::BadUri, &text)
    })
}
