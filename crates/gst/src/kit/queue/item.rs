//! What a queue of an element holds.

use gst::prelude::*;

use super::core::{EventKind, Size};

/// An item in the queue.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Buffer(gst::Buffer),
    List(gst::BufferList),
    Event(gst::Event),
}

impl Item {
    /// Pushes the item. The result of an event is not reported.
    pub(crate) fn push(self, pad: &gst::Pad) -> Result<gst::FlowSuccess, gst::FlowError> {
        match self {
            Item::Buffer(buffer) => pad.push(buffer),
            Item::List(list) => pad.push_list(list),
            Item::Event(event) => {
                pad.push_event(event);
                Ok(gst::FlowSuccess::Ok)
            }
        }
    }

    /// Its size; times as running time in `segment`.
    pub(super) fn size(&self, segment: &gst::FormattedSegment<gst::ClockTime>) -> Size {
        let running = |time| segment.to_running_time(time).unwrap_or(time).nseconds();
        let (buffers, bytes) = match self {
            Item::Buffer(buffer) => (1, buffer.size()),
            Item::List(list) => (list.len() as u32, list.calculate_size()),
            Item::Event(_) => return Size::default(),
        };
        Size {
            buffers,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            span_ns: self
                .span()
                .map(|(begin, end)| (running(begin), running(end))),
        }
    }

    /// Begin and end.
    fn span(&self) -> Option<(gst::ClockTime, gst::ClockTime)> {
        let of = |buffer: &gst::BufferRef| {
            let begin = buffer.dts_or_pts()?;
            Some((
                begin,
                begin + buffer.duration().unwrap_or(gst::ClockTime::ZERO),
            ))
        };
        match self {
            Item::Buffer(buffer) => of(buffer),
            Item::List(list) => Some((
                of(list.get(0)?)?.0,
                of(list.get(list.len().checked_sub(1)?)?)?.1,
            )),
            Item::Event(_) => None,
        }
    }

    /// Marks a buffer, or the first one of a list, as the first after a gap.
    #[cold]
    pub(crate) fn mark_discont(&mut self) {
        match self {
            Item::Buffer(buffer) => buffer.make_mut().set_flags(gst::BufferFlags::DISCONT),
            Item::List(list) => {
                if let Some(first) = list.make_mut().get_mut(0) {
                    first.set_flags(gst::BufferFlags::DISCONT);
                }
            }
            Item::Event(_) => {}
        }
    }

    /// A sticky event that stays valid through a flush.
    pub(super) fn into_lasting_event(self) -> Option<gst::Event> {
        match self {
            Item::Event(event)
                if event.is_sticky()
                    && !matches!(event.type_(), gst::EventType::Segment | gst::EventType::Eos) =>
            {
                Some(event)
            }
            _ => None,
        }
    }
}

/// What an event means to the queue.
pub(super) fn kind_of(event: &gst::EventRef) -> EventKind {
    match event.type_() {
        gst::EventType::StreamStart => EventKind::StreamStart,
        gst::EventType::Eos => EventKind::Eos,
        _ if event.is_sticky() => EventKind::Sticky,
        _ => EventKind::Other,
    }
}
