//! Stores samples until the application pulls them.

use std::collections::VecDeque;
use std::task::Poll;

use crate::kit::sink::{Rendered, Renderer};

/// A bounded store of samples; under the sink's lock.
pub struct Store {
    samples: VecDeque<gst::Sample>,
    /// Contents of the store, except the time, which is computed when a limit needs it.
    level: Level,
    pub(super) max: Level,
    preroll: Option<gst::Sample>,
    caps: Option<gst::Caps>,
    segment: Option<gst::Segment>,
    pub(super) drops: bool,
    pub(super) takes_lists: bool,
    pub(super) waits_on_eos: bool,
    is_eos: bool,
    is_stopped: bool,
    pub(super) dropped: u64,
    pub(super) news: News,
    /// Removed samples, which must not be dropped under the lock.
    discarded: Vec<gst::Sample>,
}

/// Contents of the store, or its limits; 0: no limit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Level {
    pub(super) buffers: u32,
    pub(super) bytes: u64,
    pub(super) time_ns: u64,
}

/// Signals not emitted yet.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) preroll: bool,
    pub(super) samples: u32,
    pub(super) eos: bool,
}

/// Four seconds in slices of 20 ms: an application that lags further blocks its source.
pub(super) const BUFFERS_DEFAULT: u32 = 200;

impl Default for Store {
    fn default() -> Self {
        Store {
            samples: VecDeque::new(),
            level: Level::default(),
            max: Level {
                buffers: BUFFERS_DEFAULT,
                ..Level::default()
            },
            preroll: None,
            caps: None,
            segment: None,
            drops: false,
            takes_lists: false,
            waits_on_eos: true,
            is_eos: false,
            is_stopped: true,
            dropped: 0,
            news: News::default(),
            discarded: Vec::new(),
        }
    }
}

impl Store {
    /// Removes the oldest sample; returns `None` after the end.
    pub(super) fn take(&mut self) -> Poll<Option<gst::Sample>> {
        if let Some(sample) = self.remove_first() {
            return Poll::Ready(Some(sample));
        }
        self.none_yet()
    }

    /// Takes the preroll sample; returns `None` after the end.
    pub(super) fn take_preroll(&mut self) -> Poll<Option<gst::Sample>> {
        match self.preroll.take() {
            Some(sample) => Poll::Ready(Some(sample)),
            None => self.none_yet(),
        }
    }

    fn none_yet(&self) -> Poll<Option<gst::Sample>> {
        if self.has_ended() {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.is_stopped || (self.is_eos && self.samples.is_empty())
    }

    /// Stops or restarts the store, with the element.
    pub(super) fn stop(&mut self, is_stopped: bool) {
        self.flush();
        self.is_stopped = is_stopped;
        self.caps = None;
        self.segment = None;
    }

    fn is_full(&self) -> bool {
        let (level, max) = (&self.level, &self.max);
        (max.buffers > 0 && level.buffers >= max.buffers)
            || (max.bytes > 0 && level.bytes >= max.bytes)
            || (max.time_ns > 0 && self.time_ns() >= max.time_ns)
    }

    fn remove_first(&mut self) -> Option<gst::Sample> {
        let sample = self.samples.pop_front()?;
        let of = size_of(&sample);
        self.level.buffers = self.level.buffers.saturating_sub(of.buffers);
        self.level.bytes = self.level.bytes.saturating_sub(of.bytes);
        Some(sample)
    }

    fn add(&mut self, sample: gst::Sample) -> Rendered {
        if !self.has_room() {
            return Rendered::Full;
        }
        while self.is_full() {
            let Some(dropped) = self.remove_first() else {
                break;
            };
            self.dropped += u64::from(size_of(&dropped).buffers);
            self.discarded.push(dropped);
        }
        let of = size_of(&sample);
        self.level.buffers = self.level.buffers.saturating_add(of.buffers);
        self.level.bytes = self.level.bytes.saturating_add(of.bytes);
        self.samples.push_back(sample);
        self.news.samples += 1;
        Rendered::Done
    }

    /// Returns the time from the start of the first buffer to the end of the last one, ns.
    fn time_ns(&self) -> u64 {
        let begin_ns = self
            .samples
            .front()
            .and_then(|first| Some(span_ns(first)?.0));
        let end_ns = self.samples.back().and_then(|last| Some(span_ns(last)?.1));
        match (begin_ns, end_ns) {
            (Some(begin_ns), Some(end_ns)) => end_ns.saturating_sub(begin_ns),
            _ => 0,
        }
    }

    fn sample(&self, of: Of<'_>) -> gst::Sample {
        let sample = gst::Sample::builder().caps_if_some(self.caps.as_ref());
        let sample = match of {
            Of::Buffer(buffer) => sample.buffer(buffer),
            Of::List(list) => sample.buffer_list(list),
        };
        match &self.segment {
            Some(segment) => sample.segment(segment).build(),
            None => sample.build(),
        }
    }
}

enum Of<'a> {
    Buffer(&'a gst::Buffer),
    List(&'a gst::BufferList),
}

fn size_of(sample: &gst::SampleRef) -> Level {
    let (buffers, bytes) = match (sample.buffer(), sample.buffer_list()) {
        (Some(buffer), _) => (1, buffer.size()),
        (None, Some(list)) => (list.len(), list.calculate_size()),
        (None, None) => (0, 0),
    };
    Level {
        buffers: buffers as u32,
        bytes: bytes as u64,
        time_ns: 0,
    }
}

/// Returns the start and end of a sample, ns.
fn span_ns(sample: &gst::SampleRef) -> Option<(u64, u64)> {
    let (first, last) = match (sample.buffer(), sample.buffer_list()) {
        (Some(buffer), _) => (buffer, buffer),
        (None, Some(list)) => (list.get(0)?, list.get(list.len().checked_sub(1)?)?),
        (None, None) => return None,
    };
    let last_begin = last.dts_or_pts()?;
    let end = last_begin + last.duration().unwrap_or(gst::ClockTime::ZERO);
    Some((first.dts_or_pts()?.nseconds(), end.nseconds()))
}

impl Renderer for Store {
    fn render(&mut self, buffer: &gst::Buffer) -> Rendered {
        if !self.has_room() {
            return Rendered::Full;
        }
        self.add(self.sample(Of::Buffer(buffer)))
    }

    fn takes_lists(&self) -> bool {
        self.takes_lists
    }

    fn render_list(&mut self, list: &gst::BufferList) -> Rendered {
        if !self.has_room() {
            return Rendered::Full;
        }
        self.add(self.sample(Of::List(list)))
    }

    fn preroll(&mut self, buffer: &gst::Buffer) {
        let shown = self.sample(Of::Buffer(buffer));
        self.discarded.extend(self.preroll.replace(shown));
        self.news.preroll = true;
    }

    fn event(&mut self, event: &gst::Event) {
        match event.view() {
            gst::EventView::Caps(caps) => self.caps = Some(caps.caps_owned()),
            gst::EventView::Segment(segment) => self.segment = Some(segment.segment().clone()),
            _ => {}
        }
    }

    fn end_is_next(&mut self) {
        self.is_eos = true;
    }

    fn end(&mut self) -> Rendered {
        if self.waits_on_eos && !self.samples.is_empty() {
            return Rendered::Full;
        }
        self.news.eos = true;
        Rendered::Done
    }

    fn flush(&mut self) {
        self.discarded.extend(self.samples.drain(..));
        self.discarded.extend(self.preroll.take());
        self.level = Level::default();
        self.is_eos = false;
        self.news = News::default();
    }

    fn take_discarded(&mut self) -> Vec<gst::Sample> {
        std::mem::take(&mut self.discarded)
    }

    fn has_room(&self) -> bool {
        self.drops || !self.is_full()
    }
}
