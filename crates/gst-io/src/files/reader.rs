//! Reads a file in blocks on a context's thread: the disk service reads the next blocks while one is pushed.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use gst::glib;
use gst::prelude::*;
use threadbare_files::{Failure, File, Op};
use threadbare_runtime::{Cx, Ready};

use crate::kit::lock;
use crate::kit::source::{self, Produced, Producer};
use crate::kit::stats::Single;

/// The part of the file to read. The reader and the threads that seek share it.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) segment: gst::FormattedSegment<gst::format::Bytes>,
    pub(super) seqnum: Option<gst::Seqnum>,
    /// Number of seeks.
    pub(super) number: u64,
}

impl Default for Section {
    fn default() -> Self {
        Section {
            segment: gst::FormattedSegment::new(),
            seqnum: None,
            number: 0,
        }
    }
}

impl Section {
    pub(super) fn event(&self) -> gst::Event {
        let event = gst::event::Segment::builder(&self.segment);
        match self.seqnum {
            Some(seqnum) => event.seqnum(seqnum).build(),
            None => event.build(),
        }
    }
}

/// Counters, written by the context's thread and read by any.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) bytes: Single,
    pub(super) buffers: Single,
}

pub struct FileReader {
    file: Arc<File>,
    block_bytes: usize,
    /// Number of blocks requested ahead.
    ahead: usize,
    section: Arc<Mutex<Section>>,
    /// Number of the seek that `next` and `asked` belong to.
    number: u64,
    /// Start of the next block to request, and end of the section.
    next: u64,
    stop: Option<u64>,
    asked: VecDeque<(u64, Op<Vec<u8>>)>,
    is_discont: bool,
    has_ended: bool,
    counts: Arc<Counts>,
    element: glib::WeakRef<gst::Element>,
}

impl FileReader {
    pub(super) fn new(
        element: &gst::Element,
        file: Arc<File>,
        (block_bytes, ahead): (usize, usize),
        section: Arc<Mutex<Section>>,
        counts: Arc<Counts>,
    ) -> Self {
        let mut reader = FileReader {
            file,
            block_bytes,
            ahead,
            section,
            number: 0,
            next: 0,
            stop: None,
            asked: VecDeque::new(),
            is_discont: true,
            has_ended: false,
            counts,
            element: element.downgrade(),
        };
        reader.adopt();
        reader
    }

    /// Switches to the current section if it has changed. Blocks of the earlier section are dropped when they arrive.
    pub(super) fn adopt(&mut self) {
        let section = lock(&self.section);
        let segment = &section.segment;
        let bytes = |bytes: Option<gst::format::Bytes>| bytes.map(|bytes| *bytes);
        let start = bytes(segment.position()).or_else(|| bytes(segment.start()));
        self.next = start.unwrap_or(0);
        self.stop = bytes(segment.stop());
        self.number = section.number;
        drop(section);
        self.asked.clear();
        (self.is_discont, self.has_ended) = (true, false);
    }

    pub(super) fn segment_event(&self) -> gst::Event {
        lock(&self.section).event()
    }

    /// Requests blocks, up to the limit. Each block is read after the previous one.
    fn ask(&mut self) {
        while self.asked.len() < self.ahead.max(1) {
            let left = self
                .stop
                .map_or(u64::MAX, |stop| stop.saturating_sub(self.next));
            let bytes =
                usize::try_from(left).map_or(self.block_bytes, |left| left.min(self.block_bytes));
            if bytes == 0 {
                return;
            }
            self.asked
                .push_back((self.next, self.file.read(self.next, bytes)));
            self.next += bytes as u64;
        }
    }

    fn buffer(&mut self, at: u64, bytes: Vec<u8>) -> gst::Buffer {
        let len = bytes.len() as u64;
        self.counts.bytes.add(len);
        self.counts.buffers.add(1);
        {
            // A seek that does not flush starts here.
            let mut section = lock(&self.section);
            if section.number == self.number {
                section
                    .segment
                    .set_position(gst::format::Bytes::from_u64(at + len));
            }
        }
        let mut buffer = gst::Buffer::from_mut_slice(bytes);
        let fields = buffer.make_mut();
        fields.set_offset(at);
        fields.set_offset_end(at + len);
        if std::mem::take(&mut self.is_discont) {
            fields.set_flags(gst::BufferFlags::DISCONT);
        }
        buffer
    }

    fn end(&mut self) -> Produced {
        self.has_ended = true;
        self.asked.clear();
        Produced::Event(gst::event::Eos::new())
    }
}

impl Producer for FileReader {
    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        cx.wake_self();
        Ok(())
    }

    fn stop(&mut self, _cx: &mut Cx<'_>) {}

    fn begin(&mut self, _cx: &mut Cx<'_>, _ready: Ready) {}

    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        if self.has_ended {
            return Produced::Idle;
        }
        self.ask();
        let Some((at, op)) = self.asked.front_mut() else {
            return self.end();
        };
        let at = *at;
        let waker = cx.waker();
        match Pin::new(op).poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => Produced::Idle,
            Poll::Ready(Ok(bytes)) if bytes.is_empty() => self.end(),
            Poll::Ready(Ok(bytes)) => {
                self.asked.pop_front();
                Produced::Buffer(self.buffer(at, bytes))
            }
            Poll::Ready(Err(failure)) => {
                self.has_ended = true;
                Produced::Failed(error_of(&failure))
            }
        }
    }

    fn opening(&mut self, pad: &gst::Pad) -> Vec<gst::Event> {
        let element = self.element.upgrade();
        let Some(element) = element else {
            return Vec::new();
        };
        let mut events = source::opening(pad, &element, None);
        events.pop_if(|event| event.type_() == gst::EventType::Segment);
        events.push(self.segment_event());
        events
    }

    fn end_flush(&mut self, event: gst::Event) -> Option<gst::Event> {
        self.adopt();
        Some(event)
    }

    fn reopening(&mut self) -> Vec<gst::Event> {
        vec![self.segment_event()]
    }

    fn outlives_flushing(&self) -> bool {
        false
    }
}

/// Returns the error message for the application.
pub(super) fn error_of(failure: &Failure) -> gst::ErrorMessage {
    let kind = match (failure.operation(), failure.errno()) {
        ("open", libc::ENOENT) => gst::ResourceError::NotFound,
        ("open", libc::EACCES | libc::EPERM) => gst::ResourceError::NotAuthorized,
        ("open" | "inspect", _) => gst::ResourceError::OpenRead,
        _ => gst::ResourceError::Read,
    };
    gst::error_msg!(kind, ["{failure}"])
}
