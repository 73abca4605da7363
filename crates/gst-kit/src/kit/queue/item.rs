//! The items of an element's queue.

use gst::prelude::*;

use super::core::{EventKind, Size};

/// The parts of the segment that running times need.
#[derive(Default)]
pub(super) struct RunningTime {
    /// `None` if running times equal timestamps, as in most live streams. In this case, less memory must be accessed for each
    /// item.
    segment: Option<Box<gst::FormattedSegment<gst::ClockTime>>>,
}

impl RunningTime {
    pub(super) fn of(segment: &gst::FormattedSegment<gst::ClockTime>) -> Self {
        let zero = Some(gst::ClockTime::ZERO);
        let is_plain = segment.rate() == 1.0
            && segment.stop().is_none()
            && [segment.start(), segment.base(), segment.offset()] == [zero; 3];
        RunningTime {
            segment: (!is_plain).then(|| Box::new(segment.clone())),
        }
    }

    /// Returns the running time of the timestamp `time` in ns. If `time` is outside of the segment, returns `time` itself.
    fn ns(&self, time: gst::ClockTime) -> u64 {
        let segment = self.segment.as_ref();
        segment
            .and_then(|segment| segment.to_running_time(time))
            .unwrap_or(time)
            .nseconds()
    }
}

/// An item in the queue.
#[derive(Clone, Debug)]
pub enum Item {
    Buffer(gst::Buffer),
    List(gst::BufferList),
    Event(gst::Event),
}

impl Item {
    /// Pushes the item. The result of an event is not reported.
    pub fn push(self, pad: &gst::Pad) -> Result<gst::FlowSuccess, gst::FlowError> {
        match self {
            Item::Buffer(buffer) => pad.push(buffer),
            Item::List(list) => pad.push_list(list),
            Item::Event(event) => {
                pad.push_event(event);
                Ok(gst::FlowSuccess::Ok)
            }
        }
    }

    /// Returns the size of the item, with running times.
    pub(super) fn size(&self, running_time: &RunningTime) -> Size {
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
                .map(|(begin, end)| (running_time.ns(begin), running_time.ns(end))),
        }
    }

    /// Returns start and end of the item.
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

    /// Marks a buffer, or the first one of a list, as discontinuous.
    #[cold]
    pub fn mark_discont(&mut self) {
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

    /// Returns a sticky event that stays valid through a flush.
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

/// Returns the kind of an event for the queue.
pub(super) fn kind_of(event: &gst::EventRef) -> EventKind {
    match event.type_() {
        gst::EventType::StreamStart => EventKind::StreamStart,
        gst::EventType::Eos => EventKind::Eos,
        _ if event.is_sticky() => EventKind::Sticky,
        _ => EventKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Expected: GStreamer's result for the whole segment.
        #[test]
        fn running_times_are_computed_with_the_segment(
            values in prop::collection::vec(prop_oneof![Just(0), 1..1000_u64], 4),
            (rate, stop) in prop_oneof![
                (Just(1.0), prop::option::of(1000..2000_u64)),
                (Just(2.0), prop::option::of(1000..2000_u64)),
                // Backwards from an end, which must be set.
                (Just(-1.0), (1000..2000_u64).prop_map(Some)),
            ],
            time in 0..3000_u64,
        ) {
            gst::init().unwrap();
            let ns = gst::ClockTime::from_nseconds;
            let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
            segment.set_rate(rate);
            segment.set_start(ns(values[0]));
            segment.set_base(ns(values[1]));
            segment.set_offset(ns(values[2]));
            segment.set_time(ns(values[3]));
            segment.set_stop(stop.map(ns));
            let expected = segment.to_running_time(ns(time)).map_or(time, |time| time.nseconds());
            prop_assert_eq!(RunningTime::of(&segment).ns(ns(time)), expected);
        }
    }
}
