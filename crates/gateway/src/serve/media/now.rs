//! What is known of a stream without asking its thread.

use threadbare_control::calls::StreamId;
use threadbare_rtp::call::Side;

use super::MediaPlane;
use crate::serve::spec;
use crate::serve::trail::{Point, Trail};

/// A stream as it is signalled, and as it was heard last.
#[derive(Debug, Clone, Copy)]
pub(in crate::serve) struct StreamNow {
    pub(in crate::serve) is_recorded: bool,
    /// It can be listened to.
    pub(in crate::serve) is_decoded: bool,
    /// Nothing of this party passes to the other one, by its description or by request.
    pub(in crate::serve) is_held: [bool; 2],
    /// The other one hears silence.
    pub(in crate::serve) is_muted: [bool; 2],
    pub(in crate::serve) last: Option<Point>,
}

impl MediaPlane {
    /// Of a stream that runs.
    pub(in crate::serve) fn now(&self, stream: StreamId) -> Option<StreamNow> {
        let running = self.streams.get(&stream)?;
        let of = |side: Side| spec::of(&running.spec, side);
        let is_held = |side: Side| {
            let (own, other) = (of(side), of(side.other()));
            own.is_blocked || !own.may_send || !other.may_receive
        };
        Some(StreamNow {
            is_recorded: running.recording.is_some(),
            is_decoded: running.is_decoded(),
            is_held: Side::BOTH.map(is_held),
            is_muted: Side::BOTH.map(|side| of(side).is_silenced),
            last: running.trail.last().copied(),
        })
    }

    /// The last minutes of a stream that runs.
    pub(in crate::serve) fn trail(&self, stream: StreamId) -> Option<&Trail> {
        Some(&self.streams.get(&stream)?.trail)
    }
}
