//! Carries out decisions on items, and cuts at a change.

use gst::prelude::*;

use super::FallbackSwitch;
use super::acting::{act, tell_of_end};
use super::core::Arrival;
use super::turns::{Decision, Push, Turn, Turns};
use crate::kit::clip::{clip_audio, duration_of, frames_before, frames_in};
use crate::kit::queue::Item;
use crate::kit::turns::announce;

/// An item that passes from an input to the output.
pub(super) struct Passing {
    pub(super) turns: Turns,
    pub(super) element: FallbackSwitch,
    pub(super) pad: gst::Pad,
    pub(super) src_pad: gst::Pad,
    pub(super) item: Item,
}

impl Passing {
    pub(super) fn carry_out(
        self,
        turn: Turn,
        decision: Decision,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        let (turns, element) = (self.turns.clone(), self.element.clone());
        act(&turns, &element);
        let result = match decision {
            Decision::Push(push) => self.push(&turn, push),
            Decision::Drop => Ok(gst::FlowSuccess::Ok),
            Decision::Flushing => Err(gst::FlowError::Flushing),
            Decision::Ended => Err(gst::FlowError::Eos),
        };
        turns.finish(turn, decision);
        act(&turns, &element);
        tell_of_end(&turns, &element);
        result
    }

    fn push(self, turn: &Turn, push: Push) -> Result<gst::FlowSuccess, gst::FlowError> {
        if push.is_first {
            if self.turns.takes_over_flush(turn.id()) {
                self.src_pad.push_event(gst::event::FlushStop::new(false));
            }
            let is_start = |event: &gst::Event| event.type_() == gst::EventType::StreamStart;
            // At the start of another stream, the previous item does not matter.
            if !matches!(&self.item, Item::Event(event) if is_start(event)) {
                announce(&self.pad, &self.src_pad);
            }
        }
        let mut item = self.item;
        if push.lead_ns > 0 {
            let (segment, audio) = self.turns.state().stream_of(turn.id());
            // If the segment has another rate, its times do not advance as running time does.
            if segment.is_some_and(|segment| segment.rate() == 1.0) {
                let lead = gst::ClockTime::from_nseconds(push.lead_ns);
                match cut(item, lead, audio.as_ref()) {
                    Some(rest) => item = rest,
                    None => return Ok(gst::FlowSuccess::Ok),
                }
            }
        }
        if push.is_joint {
            // The source of this input has negotiated while another input passed.
            self.pad.push_event(gst::event::Reconfigure::new());
            item.mark_discont();
        }
        item.push(&self.src_pad)
    }
}

/// Returns the time of the item, as running time of its segment.
pub(super) fn arrival(
    item: &Item,
    segment: Option<&gst::FormattedSegment<gst::ClockTime>>,
    audio: Option<&gst_audio::AudioInfo>,
) -> Arrival {
    let running = |time: Option<gst::ClockTime>| Some(segment?.to_running_time(time?)?.nseconds());
    let is_delta = |buffer: &gst::BufferRef| buffer.flags().contains(gst::BufferFlags::DELTA_UNIT);
    let end = |buffer: &gst::BufferRef| {
        let begin = buffer.pts().or(buffer.dts())?;
        let duration = duration_of(buffer, audio);
        Some(begin.saturating_add(duration.unwrap_or(gst::ClockTime::ZERO)))
    };
    let of = |first: &gst::BufferRef, last: &gst::BufferRef| Arrival {
        begin_ns: running(first.pts().or(first.dts())),
        end_ns: running(end(last)),
        is_delta: is_delta(first),
        is_gap: false,
    };
    let arrival = match item {
        Item::Buffer(buffer) => of(buffer, buffer),
        Item::List(list) => {
            let last = list.len().checked_sub(1).and_then(|last| list.get(last));
            (list.get(0).zip(last)).map_or_else(Arrival::default, |(first, last)| of(first, last))
        }
        Item::Event(event) => {
            let (begin, duration) = match event.view() {
                gst::EventView::Gap(gap) => gap.get(),
                _ => return Arrival::default(),
            };
            let end = begin.saturating_add(duration.unwrap_or(gst::ClockTime::ZERO));
            Arrival {
                begin_ns: running(Some(begin)),
                end_ns: running(Some(end)),
                is_delta: false,
                is_gap: true,
            }
        }
    };
    match (arrival.begin_ns, arrival.end_ns) {
        // In reverse playback, the later time comes first.
        (Some(begin_ns), Some(end_ns)) => Arrival {
            begin_ns: Some(begin_ns.min(end_ns)),
            end_ns: Some(begin_ns.max(end_ns)),
            ..arrival
        },
        _ => arrival,
    }
}

/// Cuts off the first part, of length `lead`. Audio is cut at a frame; pictures are kept or dropped as a whole. Returns `None` if
/// nothing is left.
fn cut(item: Item, lead: gst::ClockTime, audio: Option<&gst_audio::AudioInfo>) -> Option<Item> {
    match item {
        Item::Buffer(buffer) => {
            let from = buffer.pts()? + lead;
            cut_buffer(buffer, from, audio).map(Item::Buffer)
        }
        Item::List(list) => {
            let from = list.get(0)?.pts()? + lead;
            let buffers = list.iter_owned();
            let rest: gst::BufferList = buffers
                .filter_map(|buffer| cut_buffer(buffer, from, audio))
                .collect();
            (!rest.is_empty()).then_some(Item::List(rest))
        }
        Item::Event(event) => {
            let gst::EventView::Gap(gap) = event.view() else {
                return Some(Item::Event(event));
            };
            let (begin, duration) = gap.get();
            let rest = duration.map(|duration| duration.saturating_sub(lead));
            Some(Item::Event(gst::event::Gap::new(begin + lead, rest)))
        }
    }
}

fn cut_buffer(
    mut buffer: gst::Buffer,
    from: gst::ClockTime,
    audio: Option<&gst_audio::AudioInfo>,
) -> Option<gst::Buffer> {
    let begin = buffer.pts()?;
    let lead = from.saturating_sub(begin);
    if lead.is_zero() {
        return Some(buffer);
    }
    let duration = duration_of(&buffer, audio)?;
    if lead >= duration {
        return None;
    }
    let Some(audio) = audio else {
        let picture = buffer.make_mut();
        picture.set_pts(from);
        picture.set_duration(duration - lead);
        return Some(buffer);
    };
    // No frame that starts before the output's end may stay.
    let frames = frames_before(lead, audio.rate())?;
    let frames_all = frames_in(&buffer, audio);
    clip_audio(buffer, audio, frames..frames_all)
}
