//! One run of a source: a bin around it, whose streams are held at their start, released, and stopped.
//!
//! Streams go from the source's pads, in its threads, through converters if `audio-caps` or `video-caps` are set, into a
//! `ts-queue`. From there they pass, on the element's context, through a `ts-clocksync`: a file becomes a live stream. Without a
//! named context, they continue in the source's threads, through a `clocksync`.

use std::sync::{Arc, Mutex};

use gst::glib;
use gst::prelude::*;

use super::FallbackSrc;
use super::core::{Kind, Run};
use super::output::copy_context;
use super::shell::Shell;
use crate::kit::down::take_down;
use crate::kit::lock;

mod mapping;

pub(super) use mapping::MAP_STREAMS;

pub(super) struct Running {
    pub(super) run: Run,
    shell: Shell,
    /// The bin, with everything that the source needs.
    pub(super) bin: gst::Bin,
    source: gst::Element,
    element: glib::WeakRef<FallbackSrc>,
    /// The lock is never held across a change of state, because the streams' threads take it.
    streams: Mutex<Streams>,
    /// Position at which all held streams resume. The first stream that reads it takes it.
    resume: Mutex<Option<gst::ClockTime>>,
}

#[derive(Default)]
struct Streams {
    list: Vec<Stream>,
    /// Further streams of the same kinds, which pass only if the application selects them.
    extras: Vec<Stream>,
    /// Whether the application has selected the streams, or no selection is needed.
    is_mapped: bool,
    /// Number of elements that may still add streams: the source itself, and decoders after it.
    awaited: u32,
    is_live: bool,
    is_released: bool,
    is_told_ready: bool,
    /// Running time of the end of the released data.
    end: Option<gst::ClockTime>,
    /// Whether a decoder of pictures is in use.
    decodes_pictures: bool,
}

struct Stream {
    kind: Kind,
    pad: gst::Pad,
    block: Option<gst::PadProbeId>,
    /// The held item, which is the first one.
    first_item: Option<FirstItem>,
    /// The pad towards the output; `None` for a picture.
    end: Option<gst::Pad>,
    is_ended: bool,
}

/// Content of a source's pad.
enum Content {
    /// A stream that passes unchanged.
    Stream(Kind),
    /// A stream that must be decoded first.
    Coded,
    /// A stream without an output.
    Other,
}

/// The first item of a stream.
#[derive(Clone)]
struct FirstItem {
    /// Running time.
    begin: Option<gst::ClockTime>,
    buffer: Option<gst::Buffer>,
}

impl Running {
    /// Creates the bin with the source; nothing is linked yet.
    pub(super) fn new(
        element: &FallbackSrc,
        run: Run,
        source: gst::Element,
        resume: Option<gst::ClockTime>,
    ) -> Result<Arc<Running>, glib::BoolError> {
        let bin = gst::Bin::with_name(&format!("source-{}-{}", run.source, run.number));
        let shell = Shell::new(&format!("shell-{}-{}", run.source, run.number));
        // A state change in the bin that is still running completes by itself, to the target of the next one.
        bin.set_property("async-handling", true);
        shell.add(&bin)?;
        bin.add(&source)?;
        let running = Arc::new(Running {
            run,
            shell,
            bin,
            source,
            element: element.downgrade(),
            streams: Mutex::new(Streams {
                awaited: 1,
                // The main source passes its first streams.
                is_mapped: run.source == 0 || !mapping::is_wanted(element),
                ..Streams::default()
            }),
            resume: Mutex::new(resume),
        });
        let weak = Arc::downgrade(&running);
        running.bin.connect_deep_element_added(move |_, _, added| {
            let class = added.metadata(gst::ELEMENT_METADATA_KLASS);
            if class.is_some_and(|class| class.contains("Decoder") && class.contains("Image"))
                && let Some(running) = weak.upgrade()
            {
                lock(&running.streams).decodes_pictures = true;
            }
        });
        Ok(running)
    }

    /// Uses the pads of an element, and those that it adds later.
    fn follow(self: &Arc<Self>, of: &gst::Element) {
        let weak = Arc::downgrade(self);
        of.connect_pad_added(move |_, pad| {
            if let Some(running) = weak.upgrade()
                && pad.direction() == gst::PadDirection::Src
            {
                running.add(pad);
            }
        });
        let weak = Arc::downgrade(self);
        of.connect_no_more_pads(move |_| {
            if let Some(running) = weak.upgrade() {
                running.expect_no_more();
            }
        });
        for pad in of.src_pads() {
            self.add(&pad);
        }
        // Elements with sometimes pads emit `no-more-pads`.
        let may_come = of.pad_template_list().into_iter().any(|templ| {
            templ.direction() == gst::PadDirection::Src
                && templ.presence() == gst::PadPresence::Sometimes
        });
        if !may_come {
            self.expect_no_more();
        }
    }

    fn expect_no_more(&self) {
        {
            let mut streams = lock(&self.streams);
            streams.awaited = streams.awaited.saturating_sub(1);
        }
        self.look_whether_ready();
    }

    /// Adds a stream of the source.
    fn add(self: &Arc<Self>, pad: &gst::Pad) {
        let Some(element) = self.element.upgrade() else {
            return;
        };
        let added = match self.content_of(&element, pad) {
            Content::Stream(kind) if self.is_new(&element, kind) => {
                if kind == Kind::Video && self.is_picture(pad) {
                    self.add_picture(pad)
                } else {
                    self.add_stream(&element, kind, pad)
                }
            }
            Content::Stream(kind) if self.is_extra(&element, kind) => self.add_extra(kind, pad),
            Content::Stream(_) | Content::Other => self.discard(pad),
            Content::Coded => self.decode(pad),
        };
        if let Err(error) = added {
            gst::warning!(crate::kit::CAT, obj = element, "{}: {error}", pad.name());
        }
    }

    fn content_of(&self, element: &FallbackSrc, pad: &gst::Pad) -> Content {
        let caps = pad.current_caps().unwrap_or_else(|| pad.query_caps(None));
        let Some(name) = caps.structure(0).map(|first| first.name().to_string()) else {
            return Content::Coded;
        };
        let is_raw = name.ends_with("/x-raw");
        let kind = match name.split_once('/') {
            Some(("audio", _)) => Kind::Audio,
            Some(("video", _)) => Kind::Video,
            _ if is_raw => return Content::Other,
            _ => return Content::Coded,
        };
        let options = element.options();
        let is_asked_for = || (options.caps(kind)).is_some_and(|asked| asked.can_intersect(&caps));
        if is_raw || is_asked_for() {
            Content::Stream(kind)
        } else {
            Content::Coded
        }
    }

    /// Whether a stream of this kind would be the first one, and the kind has an output.
    fn is_new(&self, element: &FallbackSrc, kind: Kind) -> bool {
        let has_output = element.outputs().iter().any(|output| output.kind() == kind);
        let streams = lock(&self.streams);
        has_output && !streams.list.iter().any(|stream| stream.kind == kind)
    }

    /// Whether the element accepts further streams of this kind, because the application has not been asked yet.
    fn is_extra(&self, element: &FallbackSrc, kind: Kind) -> bool {
        let has_output = element.outputs().iter().any(|output| output.kind() == kind);
        has_output && !lock(&self.streams).is_mapped
    }

    fn add_extra(self: &Arc<Self>, kind: Kind, pad: &gst::Pad) -> Result<(), glib::BoolError> {
        lock(&self.streams).extras.push(Stream {
            kind,
            pad: pad.clone(),
            block: None,
            first_item: None,
            end: None,
            is_ended: false,
        });
        let block = self.block(pad);
        lock(&self.streams).with_pad(pad, |stream| stream.block = block);
        self.watch_data(pad);
        self.discard(pad)
    }

    /// Whether a pad has a picture: decoded as such, and without a frame rate.
    fn is_picture(&self, pad: &gst::Pad) -> bool {
        let caps = pad.current_caps();
        let rate = caps.and_then(|caps| {
            let rate = caps.structure(0)?.get::<gst::Fraction>("framerate");
            rate.ok()
        });
        let has_rate = rate.is_some_and(|rate| rate.numer() > 0);
        lock(&self.streams).decodes_pictures && !has_rate
    }

    /// Adds a picture. It may have any format, because the fill converts it.
    fn add_picture(self: &Arc<Self>, pad: &gst::Pad) -> Result<(), glib::BoolError> {
        lock(&self.streams).list.push(Stream {
            kind: Kind::Video,
            pad: pad.clone(),
            block: self.block(pad),
            first_item: None,
            end: None,
            is_ended: false,
        });
        self.discard(pad)
    }

    fn decode(self: &Arc<Self>, pad: &gst::Pad) -> Result<(), glib::BoolError> {
        let decoder = gst::ElementFactory::make("decodebin").build()?;
        lock(&self.streams).awaited += 1;
        self.bin.add(&decoder)?;
        self.follow(&decoder);
        link(pad, &decoder)?;
        decoder.sync_state_with_parent()
    }

    fn discard(&self, pad: &gst::Pad) -> Result<(), glib::BoolError> {
        let sink = gst::ElementFactory::make("fakesink")
            .property("sync", false)
            .property("async", false)
            .property("enable-last-sample", false)
            .build()?;
        self.bin.add(&sink)?;
        link(pad, &sink)?;
        sink.sync_state_with_parent()
    }

    fn add_stream(
        self: &Arc<Self>,
        element: &FallbackSrc,
        kind: Kind,
        pad: &gst::Pad,
    ) -> Result<(), glib::BoolError> {
        let chain = self.chain(element, kind)?;
        let (first, last) = (&chain[0], &chain[chain.len() - 1]);
        let end = last.static_pad("src").expect("it has one");
        let inner = show_pad(&self.bin, kind, &end)?;
        let ghost = show_pad(&self.shell, kind, &inner)?;
        self.watch_end(kind, &end);
        self.watch_data(pad);
        {
            let mut streams = lock(&self.streams);
            let is_held = !streams.is_mapped || !streams.is_live && !streams.is_released;
            streams.list.push(Stream {
                kind,
                pad: pad.clone(),
                block: is_held.then(|| self.block(pad)).flatten(),
                first_item: None,
                end: Some(ghost),
                is_ended: false,
            });
        }
        for part in chain.iter().rev() {
            part.sync_state_with_parent()?;
        }
        self.link_output(element, kind);
        link(pad, first)
    }

    fn link_output(&self, element: &FallbackSrc, kind: Kind) {
        let end = {
            let streams = lock(&self.streams);
            let stream = streams.list.iter().find(|stream| stream.kind == kind);
            stream.and_then(|stream| stream.end.clone())
        };
        let Some(end) = end else { return };
        for output in element.outputs().iter().filter(|o| o.kind() == kind) {
            if output.link(element, self.run.source, &end).is_err() {
                gst::warning!(crate::kit::CAT, obj = element, "cannot link {}", end.name());
            }
        }
    }

    /// Links the elements after the source.
    fn chain(
        &self,
        element: &FallbackSrc,
        kind: Kind,
    ) -> Result<Vec<gst::Element>, glib::BoolError> {
        let make = gst::ElementFactory::make;
        let mut chain = Vec::new();
        let options = element.options();
        if let Some(caps) = options.caps(kind) {
            let is_raw = caps.iter().all(|s| s.name().ends_with("/x-raw"));
            let converters = match kind {
                _ if !is_raw => &[][..],
                Kind::Audio => &["audioconvert", "audioresample"][..],
                Kind::Video => &["videoconvert", "videoscale", "videorate"][..],
            };
            for name in converters {
                chain.push(make(name).build()?);
            }
            chain.push(make("capsfilter").property("caps", caps).build()?);
        }
        let context = element.context();
        if context.is_named() {
            let queue = make("ts-queue")
                .property("max-size-buffers", 0u32)
                .property("max-size-bytes", 0u32)
                .property("max-size-time", QUEUE_TIME.nseconds())
                .build()?;
            copy_context(&context, &queue);
            chain.extend([queue, make("ts-clocksync").build()?]);
        } else {
            chain.push(make("clocksync").build()?);
        }
        self.bin.add_many(&chain)?;
        gst::Element::link_many(&chain)?;
        Ok(chain)
    }

    /// Holds a stream at its next buffer, gap or end.
    fn block(self: &Arc<Self>, pad: &gst::Pad) -> Option<gst::PadProbeId> {
        let weak = Arc::downgrade(self);
        let types = gst::PadProbeType::BLOCK
            | gst::PadProbeType::BUFFER
            | gst::PadProbeType::BUFFER_LIST
            | gst::PadProbeType::EVENT_DOWNSTREAM;
        pad.add_probe(types, move |pad, info| {
            let (pts, buffer) = match &info.data {
                Some(gst::PadProbeData::Buffer(buffer)) => (buffer.pts(), Some(buffer.clone())),
                Some(gst::PadProbeData::BufferList(list)) => {
                    (list.get(0).and_then(|buffer| buffer.pts()), None)
                }
                Some(gst::PadProbeData::Event(event)) => match event.view() {
                    gst::EventView::Gap(gap) => (Some(gap.get().0), None),
                    gst::EventView::Eos(_) => (None, None),
                    _ => return gst::PadProbeReturn::Pass,
                },
                _ => return gst::PadProbeReturn::Pass,
            };
            if let Some(running) = weak.upgrade() {
                let begin = pts.and_then(|pts| running_time(pad, pts));
                running.note_first_item(pad, FirstItem { begin, buffer });
            }
            gst::PadProbeReturn::Ok
        })
    }

    fn note_first_item(self: &Arc<Self>, pad: &gst::Pad, first_item: FirstItem) {
        lock(&self.streams).with_pad(pad, |stream| stream.first_item = Some(first_item));
        self.look_whether_ready();
    }

    /// Reports to the core when all streams have arrived and are held.
    fn look_whether_ready(&self) {
        let Some(element) = self.element.upgrade() else {
            return;
        };
        let kinds: Vec<Kind> = element
            .outputs()
            .iter()
            .map(|output| output.kind())
            .collect();
        if let Some((all, first)) = self.streams_to_map() {
            self.map(&element, &all, &first);
        }
        let (present, still) = {
            let mut streams = lock(&self.streams);
            let list = &streams.list;
            let has = |kind: &Kind| list.iter().any(|stream| stream.kind == *kind);
            let is_complete = streams.awaited == 0 || kinds.iter().all(has);
            let all_wait = list.iter().all(|stream| stream.first_item.is_some());
            let is_done = streams.is_told_ready || !streams.is_mapped;
            if !is_complete || !(all_wait || streams.is_live) || is_done {
                return;
            }
            // A picture does not pass if there are other streams.
            let to_pass = list.iter().filter(|stream| stream.end.is_some());
            let present: Vec<Kind> = to_pass.map(|stream| stream.kind).collect();
            let still = streams.still();
            streams.is_told_ready = true;
            (present, still)
        };
        let run = self.run;
        if let Some(sample) = still {
            element.keep_still(run, sample);
            return;
        }
        if present.is_empty() {
            element.tell(|core, now_ns| core.handle_error(now_ns, run));
            return;
        }
        if let Some(position) = lock(&self.resume).take() {
            self.seek_elsewhere(&element, position);
            return;
        }
        for output in element.outputs().iter() {
            if !present.contains(&output.kind()) {
                output.release(run.source);
            }
        }
        element.tell(|core, now_ns| core.handle_ready(now_ns, run, &present));
    }

    /// Seeks on another thread, because a seek waits for the streams' threads.
    fn seek_elsewhere(&self, element: &FallbackSrc, position: gst::ClockTime) {
        let run = self.run;
        element.call_async(move |element| {
            let Some(running) = element.running(run) else {
                return;
            };
            let (pad, before) = {
                let mut streams = lock(&running.streams);
                streams.is_told_ready = false;
                let pad = streams.list.first().map(|stream| stream.pad.clone());
                let list = streams.list.iter_mut();
                let before: Vec<_> = list.map(|stream| stream.first_item.take()).collect();
                (pad, before)
            };
            if !pad.is_some_and(|pad| pad.send_event(seek_to(position))) {
                gst::info!(
                    crate::kit::CAT,
                    obj = element,
                    "cannot resume at {position}"
                );
                // Playback starts with the held item instead.
                let mut streams = lock(&running.streams);
                for (stream, first_item) in streams.list.iter_mut().zip(before) {
                    stream.first_item = first_item;
                }
                drop(streams);
                running.look_whether_ready();
            }
        });
    }

    /// Notes that the source is live, so that its streams must not be held.
    pub(super) fn go_live(&self) {
        {
            let mut streams = lock(&self.streams);
            streams.is_live = true;
            if streams.is_mapped {
                streams.unblock();
            }
        }
        self.look_whether_ready();
    }

    /// Releases the streams. The held items start at running time `at`.
    pub(super) fn release(&self, at: gst::ClockTime) {
        let mut streams = lock(&self.streams);
        streams.is_released = true;
        // The items start after the data that is still in the queue of this run.
        let at = streams.end.map_or(at, |end| end.max(at));
        let begins = streams
            .list
            .iter()
            .filter_map(|s| s.first_item.as_ref()?.begin);
        if let Some(begin) = begins.min().filter(|_| !streams.is_live) {
            let offset_ns = at.nseconds().cast_signed() - begin.nseconds().cast_signed();
            for stream in &streams.list {
                stream.pad.set_offset(offset_ns);
            }
        }
        streams.unblock();
    }

    /// Holds the streams again.
    pub(super) fn hold(self: &Arc<Self>) {
        let pads: Vec<gst::Pad> = {
            let mut streams = lock(&self.streams);
            (streams.is_released, streams.is_told_ready) = (false, false);
            streams.unblock();
            let list = streams.list.iter_mut();
            list.map(|stream| {
                stream.first_item = None;
                stream.pad.clone()
            })
            .collect()
        };
        for pad in pads {
            let block = self.block(&pad);
            lock(&self.streams).with_pad(&pad, |stream| stream.block = block);
        }
    }

    fn watch_data(self: &Arc<Self>, pad: &gst::Pad) {
        let weak = Arc::downgrade(self);
        pad.add_probe(
            gst::PadProbeType::BUFFER | gst::PadProbeType::BUFFER_LIST,
            move |pad, info| {
                if let Some(running) = weak.upgrade() {
                    running.note_data(pad, info);
                }
                gst::PadProbeReturn::Ok
            },
        );
    }

    fn note_data(&self, pad: &gst::Pad, info: &gst::PadProbeInfo<'_>) {
        let Some(element) = self.element.upgrade() else {
            return;
        };
        let last = match &info.data {
            Some(gst::PadProbeData::Buffer(buffer)) => Some(buffer.as_ref()),
            Some(gst::PadProbeData::BufferList(list)) => list.iter().last(),
            _ => None,
        };
        let end = last.and_then(|last| {
            let end = last.pts()? + last.duration().unwrap_or_default();
            let offset_ns = u64::try_from(pad.offset()).unwrap_or_default();
            Some(running_time(pad, end)? + gst::ClockTime::from_nseconds(offset_ns))
        });
        {
            let mut streams = lock(&self.streams);
            // If the application has selected another stream instead of this one, the data is dropped.
            if !streams.list.iter().any(|stream| stream.pad == *pad) {
                return;
            }
            streams.end = streams.end.max(end);
        }
        let run = self.run;
        element.tell(|core, now_ns| core.handle_data(now_ns, run));
    }

    /// Watches the pad at which the streams leave for the output, when their time has come.
    fn watch_end(self: &Arc<Self>, kind: Kind, end: &gst::Pad) {
        let weak = Arc::downgrade(self);
        let types = gst::PadProbeType::EVENT_DOWNSTREAM
            | gst::PadProbeType::BUFFER
            | gst::PadProbeType::BUFFER_LIST;
        end.add_probe(types, move |pad, info| {
            let Some(running) = weak.upgrade() else {
                return gst::PadProbeReturn::Ok;
            };
            match &info.data {
                // Data that a failed source sent before would make it look healthy again.
                Some(gst::PadProbeData::Buffer(_) | gst::PadProbeData::BufferList(_))
                    if !running.is_current() =>
                {
                    gst::PadProbeReturn::Handled
                }
                Some(gst::PadProbeData::Buffer(buffer)) => {
                    running.note_position(pad, buffer);
                    gst::PadProbeReturn::Ok
                }
                Some(gst::PadProbeData::Event(event)) if event.type_() == gst::EventType::Eos => {
                    running.note_end(kind)
                }
                _ => gst::PadProbeReturn::Ok,
            }
        });
    }

    fn is_current(&self) -> bool {
        let element = self.element.upgrade();
        element.is_some_and(|element| element.shared().is_current(self.run))
    }

    fn note_position(&self, pad: &gst::Pad, buffer: &gst::Buffer) {
        let Some(element) = self.element.upgrade() else {
            return;
        };
        let (Some(segment), Some(pts)) = (segment_of(pad), buffer.pts()) else {
            return;
        };
        let source = self.run.source;
        let end = pts + buffer.duration().unwrap_or_default();
        if element.resumes()
            && let Some(position) = segment.to_stream_time(end)
        {
            element.note_position(source, position);
        }
        if let Some(end) = segment.to_running_time(end) {
            element.note_end(source, end);
        }
    }

    /// Drops an end of stream that does not end the output: it restarts the source, or follows an error.
    fn note_end(&self, kind: Kind) -> gst::PadProbeReturn {
        let Some(element) = self.element.upgrade() else {
            return gst::PadProbeReturn::Ok;
        };
        if !self.is_current() {
            return gst::PadProbeReturn::Handled;
        }
        let have_all_ended = {
            let mut streams = lock(&self.streams);
            if let Some(stream) = streams.list.iter_mut().find(|stream| stream.kind == kind) {
                stream.is_ended = true;
            }
            streams.list.iter().all(|stream| stream.is_ended)
        };
        let run = self.run;
        let passes = element.shared().state().core.passes_eos(run.source);
        if passes {
            element.tell(|core, now_ns| core.handle_stream_end(now_ns, kind));
        }
        if have_all_ended {
            element.forget_position(run.source);
            element.tell(|core, now_ns| core.handle_eos(now_ns, run));
        }
        if passes {
            gst::PadProbeReturn::Ok
        } else {
            gst::PadProbeReturn::Handled
        }
    }

    /// Adds the run to the element, with the streams that the source already has.
    pub(super) fn add_to(self: &Arc<Self>, element: &FallbackSrc) -> Result<(), glib::BoolError> {
        element.add(&self.shell)?;
        self.follow(&self.source);
        Ok(())
    }

    pub(super) fn set_state(
        &self,
        element: &FallbackSrc,
        state: gst::State,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        // The shell does not pass on the element's change of state, so this sets the times of the bin.
        self.bin
            .set_base_time(element.base_time().unwrap_or_default());
        self.bin.set_start_time(element.start_time());
        self.bin.set_state(state)
    }

    /// Whether the source is live; the elements after it also affect the state of the bin.
    pub(super) fn is_live(&self) -> bool {
        let (changed, ..) = self.source.state(gst::ClockTime::ZERO);
        changed == Ok(gst::StateChangeSuccess::NoPreroll)
    }

    pub(super) fn is_in(&self, shell: &Shell) -> bool {
        self.shell == *shell
    }

    /// Removes the run from the element. The source can be used again.
    pub(super) fn take_down(&self, element: &FallbackSrc) {
        let ends: Vec<gst::Pad> = {
            let streams = lock(&self.streams);
            streams
                .list
                .iter()
                .filter_map(|stream| stream.end.clone())
                .collect()
        };
        for end in ends {
            if let Some(peer) = end.peer() {
                let _ = end.unlink(&peer);
            }
        }
        if !take_down(self.bin.upcast_ref()) {
            let text = "the source does not shut down";
            gst::warning!(crate::kit::CAT, obj = self.source, "{text}");
        }
        lock(&self.streams).unblock();
        let _ = element.remove(&self.shell);
        let _ = self.bin.remove(&self.source);
    }
}

impl Streams {
    fn unblock(&mut self) {
        for stream in self.list.iter_mut().chain(&mut self.extras) {
            stream.unblock();
        }
    }

    fn with_pad(&mut self, pad: &gst::Pad, change: impl FnOnce(&mut Stream)) {
        let mut all = self.list.iter_mut().chain(&mut self.extras);
        if let Some(stream) = all.find(|stream| stream.pad == *pad) {
            change(stream);
        }
    }

    /// Returns the picture, if the source is a picture without other streams.
    fn still(&self) -> Option<gst::Sample> {
        let [only] = &self.list[..] else { return None };
        let buffer = only.first_item.as_ref()?.buffer.as_ref()?;
        let caps = only.pad.current_caps()?;
        let sample = || gst::Sample::builder().buffer(buffer).caps(&caps).build();
        only.end.is_none().then(sample)
    }
}

impl Stream {
    fn unblock(&mut self) {
        if let Some(block) = self.block.take() {
            self.pad.remove_probe(block);
        }
    }
}

fn link(pad: &gst::Pad, to: &gst::Element) -> Result<(), glib::BoolError> {
    let sink = to.static_pad("sink").expect("it has one");
    let linked = pad.link(&sink);
    linked
        .map(|_| ())
        .map_err(|error| glib::bool_error!("cannot link {} to {}: {error}", pad.name(), to.name()))
}

/// Exposes a pad of an element in a bin as a pad of the bin.
fn show_pad(
    bin: &impl IsA<gst::Element>,
    kind: Kind,
    target: &gst::Pad,
) -> Result<gst::Pad, glib::BoolError> {
    let ghost = gst::GhostPad::builder_with_target(target)?
        .name(kind.nick())
        .build();
    ghost.set_active(true)?;
    bin.add_pad(&ghost)?;
    Ok(ghost.upcast())
}

fn seek_to(position: gst::ClockTime) -> gst::Event {
    let flags = gst::SeekFlags::FLUSH | gst::SeekFlags::ACCURATE;
    let (set, none) = (gst::SeekType::Set, gst::SeekType::None);
    gst::event::Seek::new(1.0, flags, set, position, none, gst::ClockTime::NONE)
}

fn segment_of(pad: &gst::Pad) -> Option<gst::FormattedSegment<gst::ClockTime>> {
    let event = pad.sticky_event::<gst::event::Segment>(0)?;
    event.segment().downcast_ref().cloned()
}

fn running_time(pad: &gst::Pad, pts: gst::ClockTime) -> Option<gst::ClockTime> {
    segment_of(pad)?.to_running_time(pts)
}

/// Maximum duration of decoded data before the wait for the clock. It is enough for a decoder that works in bursts.
const QUEUE_TIME: gst::ClockTime = gst::ClockTime::from_mseconds(500);
