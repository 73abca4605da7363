//! Carries out decisions: cuts, offsets, and the element's messages.

use std::sync::Arc;

use gst::prelude::*;

use super::ToggleRecord;
use super::core::{Arrival, Media, Piece, Span, StreamId};
use super::turns::{Decision, Entry, Format, Task, Turn, Turns};
use crate::kit::clip::{clip_audio, duration_of, frames_before, frames_in};
use crate::kit::inputs::force_key_unit;
use crate::kit::queue::Item;

/// An item that passes from a sink pad to its source pad.
pub(super) struct Passing {
    pub(super) turns: Turns,
    pub(super) element: ToggleRecord,
    pub(super) src: gst::Pad,
    pub(super) format: Arc<Format>,
    pub(super) item: Item,
}

impl Passing {
    /// Carries out a decision. Returns `Some` if a remaining part must be decided next.
    pub(super) fn carry_out(
        &self,
        mut turn: Turn,
        decision: Decision,
    ) -> Result<Option<Turn>, gst::FlowError> {
        let id = turn.id();
        // The decision lets other streams continue while this part is being pushed.
        self.turns.wake();
        act(&self.turns, &self.element);
        let entry = *turn.entry();
        let mut has_rest = false;
        let result = match decision {
            Decision::Act => return Ok(Some(turn)),
            Decision::Push(piece) => {
                let pushed = self.push(id, entry, &piece);
                if let Entry::Data(span) = turn.entry_mut() {
                    span.from_ns = piece.to_ns;
                }
                has_rest = !piece.is_last && pushed.is_ok();
                pushed
            }
            Decision::PushEvent => {
                self.push_event(id);
                Ok(())
            }
            Decision::Drop => Ok(()),
            Decision::Flushing => Err(gst::FlowError::Flushing),
            Decision::Ended => Err(gst::FlowError::Eos),
        };
        let is_buffer = matches!(self.item, Item::Buffer(_));
        if is_buffer && !has_rest && decision != Decision::Flushing {
            let is_passed = matches!(decision, Decision::Push(_)) || entry.is_in_parts();
            self.turns.count(is_passed);
        }
        // Call this before the stream's next item gets its turn.
        self.turns.finish(id);
        let rest = has_rest.then_some(turn);
        act(&self.turns, &self.element);
        tell_of_ends(&self.turns, &self.element);
        result.map(|()| rest)
    }

    fn push_event(&self, id: StreamId) {
        let Item::Event(event) = &self.item else {
            return;
        };
        if event.type_() == gst::EventType::Eos
            && let Some((format, shift_ns)) = self.turns.end(id)
        {
            push_segment(&self.element, &self.src, &format, shift_ns);
        }
        self.src.push_event(event.clone());
    }

    fn push(&self, id: StreamId, entry: Entry, piece: &Piece) -> Result<(), gst::FlowError> {
        let Entry::Data(span) = entry else {
            return Ok(());
        };
        let Some(mut part) = cut(self.item.clone(), &span, piece, &self.format) else {
            return Ok(());
        };
        let is_buffer = matches!(part, Item::Buffer(_));
        let preface = (self.turns).preface(id, &self.format, piece.shift_ns, is_buffer);
        if let Some((format, shift_ns)) = preface.segment
            && !push_segment(&self.element, &self.src, &format, shift_ns)
        {
            return Err(gst::FlowError::Error);
        }
        if preface.is_discont {
            part.mark_discont();
        }
        part.push(&self.src).map(|_| ())
    }
}

/// Pushes a shifted segment. Downstream's times are those of the original segment plus the shift. If the times cannot be shifted,
/// posts an error and returns `false`.
fn push_segment(element: &ToggleRecord, src: &gst::Pad, format: &Format, shift_ns: i64) -> bool {
    let (Some(segment), Some(event)) = (&format.segment, &format.event) else {
        return true;
    };
    if shift_ns == 0 {
        src.push_event(event.clone());
        return true;
    }
    let mut moved = segment.clone();
    if moved.offset_running_time(shift_ns).is_err() {
        gst::element_error!(
            element,
            gst::StreamError::Format,
            [
                "{}: the segment cannot be moved by {shift_ns} ns",
                src.name()
            ]
        );
        return false;
    }
    let moved = gst::event::Segment::builder(&moved)
        .seqnum(event.seqnum())
        .running_time_offset(event.running_time_offset());
    src.push_event(moved.build());
    true
}

/// Returns the time of a buffer or a gap, in its segment's running time.
pub(super) fn arrival(item: &Item, format: &Format) -> Arrival {
    let running = |time: Option<gst::ClockTime>| {
        let running = format.segment.as_ref()?.to_running_time_full(time?)?;
        // An item that starts before the segment is treated as if it started with the segment.
        Some(running.positive().map_or(0, gst::ClockTime::nseconds))
    };
    let (begin, duration, decode, is_gap, is_delta) = match item {
        Item::Buffer(buffer) => (
            buffer.pts().or(buffer.dts()),
            duration_of(buffer, format.audio.as_ref()),
            buffer.dts(),
            false,
            buffer.flags().contains(gst::BufferFlags::DELTA_UNIT),
        ),
        Item::Event(event) => match event.view() {
            gst::EventView::Gap(gap) => {
                let (begin, duration) = gap.get();
                (Some(begin), duration, None, true, false)
            }
            _ => return Arrival::default(),
        },
        Item::List(_) => return Arrival::default(),
    };
    let end = begin.map(|begin| begin.saturating_add(duration.unwrap_or(gst::ClockTime::ZERO)));
    let media = format.media(is_gap);
    let (begin_ns, end_ns) = (running(begin), running(end));
    Arrival {
        // In reverse playback, the later time comes first.
        begin_ns: begin_ns.min(end_ns),
        end_ns: begin_ns.max(end_ns),
        decode_ns: running(decode),
        media,
        is_delta: is_delta && media != Media::Audio,
    }
}

/// Cuts the piece out of an item. Returns `None` if no frame starts in it.
fn cut(item: Item, span: &Span, piece: &Piece, format: &Format) -> Option<Item> {
    let (begin, duration) = match &item {
        Item::Buffer(buffer) => (buffer.pts(), duration_of(buffer, format.audio.as_ref())),
        Item::Event(event) => match event.view() {
            gst::EventView::Gap(gap) => (Some(gap.get().0), gap.get().1),
            _ => (None, None),
        },
        Item::List(_) => (None, None),
    };
    let (Some(begin), Some(duration)) = (begin, duration) else {
        return Some(item);
    };
    let end = begin.saturating_add(duration);
    let position = |running_ns: u64| {
        let segment = format.segment.as_ref()?;
        segment.position_from_running_time(gst::ClockTime::from_nseconds(running_ns))
    };
    let is_begun = piece.from_ns > span.begin_ns;
    let from = is_begun.then(|| position(piece.from_ns)).flatten();
    let is_cut_off = piece.to_ns < span.end_ns;
    let to = is_cut_off.then(|| position(piece.to_ns)).flatten();
    let (from, to) = (from.unwrap_or(begin).max(begin), to.unwrap_or(end).min(end));
    if from == begin && to == end {
        return Some(item);
    }
    match item {
        Item::Buffer(buffer) => {
            let to = (to < end).then_some(to);
            cut_buffer(buffer, format, from, to).map(Item::Buffer)
        }
        _ => {
            let rest = to.saturating_sub(from);
            (!rest.is_zero()).then(|| Item::Event(gst::event::Gap::new(from, rest)))
        }
    }
}

/// Cuts a buffer. `to` is set if the piece ends before the buffer.
fn cut_buffer(
    mut buffer: gst::Buffer,
    format: &Format,
    from: gst::ClockTime,
    to: Option<gst::ClockTime>,
) -> Option<gst::Buffer> {
    let begin = buffer.pts()?;
    let lead = from.saturating_sub(begin);
    let Some(audio) = &format.audio else {
        let duration = buffer.duration();
        let whole = buffer.make_mut();
        whole.set_pts(from);
        whole.set_duration(duration.map(|duration| duration.saturating_sub(lead)));
        return Some(buffer);
    };
    // Two adjacent pieces share no frame and lose none. No piece has a frame that starts before the piece's segment.
    let rate = audio.rate();
    let end = match to {
        Some(to) => frames_before(to.saturating_sub(begin), rate)?,
        None => frames_in(&buffer, audio),
    };
    let first = frames_before(lead, rate)?;
    let mut part = clip_audio(buffer, audio, first..end)?;
    let ahead = from.saturating_sub(part.pts()?);
    if !ahead.is_zero() {
        // Rounding errors are below 2 ns.
        let duration = part.duration();
        let whole = part.make_mut();
        whole.set_pts(from);
        whole.set_duration(duration.map(|duration| duration.saturating_sub(ahead)));
    }
    Some(part)
}

/// Executes the core's actions, one thread at a time.
pub(super) fn act(turns: &Turns, element: &ToggleRecord) {
    while let Some(task) = turns.next_task() {
        match task {
            Task::NotifyRecording => element.notify("recording"),
            Task::RequestKeyframe(sink) => {
                sink.push_event(force_key_unit());
            }
            Task::TellStalled {
                is_stalled,
                running_ns,
            } => {
                let name = if is_stalled {
                    "togglerecord-stalled"
                } else {
                    "togglerecord-resumed"
                };
                gst::warning!(
                    crate::kit::CAT,
                    obj = element,
                    "{name} at running time {running_ns} ns"
                );
                let details = gst::Structure::builder(name).field("running-time", running_ns);
                let message = gst::message::Element::builder(details.build()).src(element);
                let _ = element.post_message(message.build());
            }
        }
        turns.acted();
    }
}

/// Ends the streams that end with the main stream and have no running push. The other streams end themselves.
pub(super) fn tell_of_ends(turns: &Turns, element: &ToggleRecord) {
    while let Some((src, segment)) = turns.take_end() {
        if let Some((format, shift_ns)) = segment {
            push_segment(element, &src, &format, shift_ns);
        }
        src.push_event(gst::event::Eos::new());
    }
}
