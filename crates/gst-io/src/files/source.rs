//! `ts-filesrc`: reads a file on the thread of a shared context. That thread does not wait for the disk.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use threadbare_files::{Access, File, Options};
use threadbare_runtime::current_shard_id;

use super::reader::{Counts, FileReader, Section, error_of};
use super::settings::IoMode;
use super::sink::path_of_uri;
use super::target::await_for;
use crate::kit::context::ContextSettings;
use crate::kit::lock;
use crate::kit::source::{self, Driver, SourceElement};
use crate::kit::stats::StatsProperty;

glib::wrapper! {
    /// Reads a file.
    pub struct FileSrc(ObjectSubclass<Imp>)
        @extends gst::Element, gst::Object,
        @implements gst::URIHandler;
}

pub(super) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    let kind = FileSrc::static_type();
    gst::Element::register(plugin, "ts-filesrc", gst::Rank::NONE, kind)
}

/// Default of `blocksize`, the same as in the stock element.
const BLOCK_BYTES: u32 = 4096;
const BLOCK_BYTES_MAX: u32 = 16 << 20;
const AHEAD: u32 = 4;
const AHEAD_MAX: u32 = 64;
/// Maximum time for opening a file. A source cannot start without its file.
const OPEN_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
struct Settings {
    location: Option<String>,
    block_bytes: u32,
    ahead: u32,
    io_mode: IoMode,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            location: None,
            block_bytes: BLOCK_BYTES,
            ahead: AHEAD,
            io_mode: IoMode::Auto,
        }
    }
}

#[derive(Properties)]
#[properties(wrapper_type = FileSrc)]
pub struct Imp {
    #[property(name = "location", nick = "File location", blurb = "Path of the file to read", type = Option<String>, get = |s: &Self| s.settings().location.clone(), set = |s: &Self, v| s.settings().location = v, mutable_ready)]
    #[property(name = "blocksize", nick = "Block size", blurb = "Size of the buffers, bytes", type = u32, get = |s: &Self| s.settings().block_bytes, set = |s: &Self, v| s.settings().block_bytes = v, minimum = 1, maximum = BLOCK_BYTES_MAX, default = BLOCK_BYTES, mutable_ready)]
    #[property(name = "read-ahead", nick = "Read ahead", blurb = "Number of buffers to read in advance", type = u32, get = |s: &Self| s.settings().ahead, set = |s: &Self, v| s.settings().ahead = v, minimum = 1, maximum = AHEAD_MAX, default = AHEAD, mutable_ready)]
    #[property(name = "io-mode", nick = "I/O mode", blurb = "Backend of the process's disk service", type = IoMode, get = |s: &Self| s.settings().io_mode, set = |s: &Self, v| s.settings().io_mode = v, builder(IoMode::Auto).mutable_ready())]
    settings: Mutex<Settings>,
    context: Mutex<ContextSettings>,
    stats: Mutex<StatsProperty>,
    counts: Arc<Counts>,
    file: Mutex<Option<Arc<File>>>,
    section: Arc<Mutex<Section>>,
    src_pad: gst::Pad,
    driver: Driver<FileReader>,
}

impl Imp {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    /// Returns the length of an open file, bytes.
    fn size(&self) -> Option<u64> {
        let stat = lock(&self.file).as_ref()?.stat()?;
        stat.is_regular.then_some(stat.bytes)
    }

    fn uri(&self) -> Option<glib::GString> {
        let location = self.settings().location.clone()?;
        let path = std::path::absolute(location).ok()?;
        glib::filename_to_uri(path, None).ok()
    }

    /// Returns the segment after a forward seek in bytes. Returns `None` for any other seek.
    fn after(&self, seek: &gst::event::Seek<gst::EventRef>) -> Option<Section> {
        use gst::format::Bytes;
        let size = self.size()?;
        let (rate, flags, start_type, start, stop_type, stop) = seek.get();
        let of = |value: gst::GenericFormattedValue| match value {
            gst::GenericFormattedValue::Bytes(bytes) => Some(bytes),
            _ => None,
        };
        let (start, stop): (Option<Bytes>, Option<Bytes>) = (of(start)?, of(stop)?);
        let section = lock(&self.section);
        let mut segment = section.segment.clone();
        segment.set_duration(Bytes::from_u64(size));
        let is_from_end = [start_type, stop_type].contains(&gst::SeekType::End);
        let begin = match start_type {
            gst::SeekType::Set => start.map_or(0, |start| *start),
            _ => segment.start().map_or(0, |start| *start),
        };
        let end = match stop_type {
            gst::SeekType::Set => stop,
            _ => segment.stop(),
        };
        let end = end.map_or(size, |end| *end);
        if rate <= 0.0 || is_from_end || begin > end || begin > size {
            return None;
        }
        segment.do_seek(rate, flags, start_type, start, stop_type, stop)?;
        Some(Section {
            segment,
            seqnum: Some(seek.seqnum()),
            number: section.number + 1,
        })
    }

    fn seek(&self, seek: &gst::event::Seek<gst::EventRef>) -> bool {
        if self.after(seek).is_none() {
            return false;
        }
        let seqnum = seek.seqnum();
        let flushes = seek.get().1.contains(gst::SeekFlags::FLUSH);
        if flushes {
            let start = gst::event::FlushStart::builder().seqnum(seqnum);
            self.src_pad.push_event(start.build());
        }
        // Compute the segment again, because the position may have changed.
        let after = self.after(seek);
        let is_done = after.is_some();
        if let Some(after) = after {
            *lock(&self.section) = after;
        }
        if flushes {
            let stop = gst::event::FlushStop::builder(true).seqnum(seqnum);
            self.driver.end_flush(stop.build());
        } else if is_done {
            self.driver.restart();
            self.driver.announce(|reader, _| {
                reader.adopt();
                Some(reader.segment_event())
            });
        }
        is_done
    }

    fn open_file(&self, settings: &Settings) -> Result<File, gst::ErrorMessage> {
        let location = settings
            .location
            .clone()
            .filter(|location| !location.is_empty());
        let location = location.ok_or_else(|| {
            let kind = gst::ResourceError::NotFound;
            gst::error_msg!(
                kind,
                ["location is not set: expected the path of the file to read"]
            )
        })?;
        let disk = settings.io_mode.disk()?;
        let file = disk.open(PathBuf::from(&location), Options::new(Access::Read));
        if current_shard_id().is_some() {
            return Ok(file);
        }
        match await_for(file.opened(), OPEN_WAIT) {
            Some(Ok(_)) => Ok(file),
            Some(Err(failure)) => Err(error_of(&failure)),
            None => {
                file.give_up();
                let kind = gst::ResourceError::OpenRead;
                Err(gst::error_msg!(
                    kind,
                    ["{location}: the disk does not answer"]
                ))
            }
        }
    }
}

impl SourceElement for Imp {
    type Producer = FileReader;

    fn driver(&self) -> &Driver<FileReader> {
        &self.driver
    }

    fn src_pad(&self) -> &gst::Pad {
        &self.src_pad
    }

    fn is_live(&self) -> bool {
        false
    }

    fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
        let settings = self.settings().clone();
        let place = lock(&self.context).place(element)?;
        let file = Arc::new(self.open_file(&settings)?);
        *lock(&self.file) = Some(file.clone());
        {
            let mut section = lock(&self.section);
            *section = Section::default();
            if let Some(size) = self.size() {
                (section.segment).set_duration(gst::format::Bytes::from_u64(size));
            }
        }
        let early = self.driver.take_early_seek();
        if let Some(gst::EventView::Seek(seek)) = early.as_ref().map(|event| event.view()) {
            let after = self.after(seek).ok_or_else(|| {
                let kind = gst::ResourceError::Seek;
                gst::error_msg!(
                    kind,
                    ["the position of the seek before the start is not within the file"]
                )
            })?;
            *lock(&self.section) = after;
        }
        let block_bytes = usize::try_from(settings.block_bytes).unwrap_or(1);
        let blocks = (block_bytes, settings.ahead as usize);
        let (section, counts) = (self.section.clone(), self.counts.clone());
        let reader = FileReader::new(element, file, blocks, section, counts);
        self.driver.add(element, &self.src_pad, place, reader)
    }

    fn deactivate(&self) {
        self.driver.remove();
        let file = lock(&self.file).take();
        if let Some(file) = file {
            file.give_up();
        }
    }

    fn takes_early_seeks(&self) -> bool {
        true
    }

    fn handle_upstream_event(&self, event: gst::Event) -> Result<bool, gst::Event> {
        match event.view() {
            gst::EventView::Seek(seek) => Ok(self.seek(seek)),
            _ => Err(event),
        }
    }

    fn answer_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        use gst::format::Bytes;
        match query.view_mut() {
            gst::QueryViewMut::Duration(query) if query.format() == gst::Format::Bytes => {
                let size = self.size();
                query.set(size.map(Bytes::from_u64));
                size.is_some()
            }
            gst::QueryViewMut::Position(query) if query.format() == gst::Format::Bytes => {
                query.set(lock(&self.section).segment.position());
                true
            }
            gst::QueryViewMut::Seeking(query) if query.format() == gst::Format::Bytes => {
                let size = self.size();
                query.set(size.is_some(), Bytes::ZERO, size.map(Bytes::from_u64));
                true
            }
            gst::QueryViewMut::Uri(query) => {
                query.set_uri(self.uri().as_deref());
                true
            }
            gst::QueryViewMut::Scheduling(query) => {
                query.set(gst::SchedulingFlags::SEEKABLE, 1, -1, 0);
                query.add_scheduling_modes([gst::PadMode::Push]);
                true
            }
            _ => {
                let latency = (false, gst::ClockTime::ZERO, None);
                source::answer_query(pad, &*self.obj(), query, latency, || None)
            }
        }
    }
}

#[glib::object_subclass]
impl ObjectSubclass for Imp {
    const NAME: &'static str = "ThreadbareFileSrc";
    type Type = FileSrc;
    type ParentType = gst::Element;
    type Interfaces = (gst::URIHandler,);

    fn with_class(klass: &Self::Class) -> Self {
        let counts = Arc::<Counts>::default();
        let read = counts.clone();
        let stats = StatsProperty::new(move || {
            gst::Structure::builder("application/x-ts-filesrc-stats")
                .field("bytes-read", read.bytes.get())
                .field("buffers", read.buffers.get())
                .build()
        });
        Imp {
            settings: Mutex::default(),
            context: Mutex::default(),
            stats: Mutex::new(stats),
            counts,
            file: Mutex::default(),
            section: Arc::default(),
            src_pad: source::source_pad::<Imp>(&crate::kit::template(klass, "src")),
            driver: Driver::default(),
        }
    }
}

impl ObjectImpl for Imp {
    crate::kit::properties_with_groups!(context, stats);

    fn constructed(&self) {
        self.parent_constructed();
        crate::kit::add_pads(self.obj().upcast_ref(), &[&self.src_pad]);
    }
}

impl GstObjectImpl for Imp {}

impl ElementImpl for Imp {
    crate::kit::element_class!(
        "Thread-sharing file source",
        "Source/File",
        "Reads a file on the thread of a shared context, by the disk service of the process";
        "src": Src Always gst::Caps::new_any()
    );

    crate::source_life!();
}

impl URIHandlerImpl for Imp {
    const URI_TYPE: gst::URIType = gst::URIType::Src;

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
