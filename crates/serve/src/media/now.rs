//! The state of a stream that the control thread knows without asking the stream's thread.

use threadbare_rtp::call::Side;
use threadbare_watch::Alarm;

use super::Running;
use crate::quality_history::Point;
use crate::spec;

/// The state of a stream according to signalling, and its last measurement.
#[derive(Debug, Clone)]
pub(crate) struct StreamNow {
    pub(crate) is_recorded: bool,
    /// Whether the stream can be listened to.
    pub(crate) is_decoded: bool,
    /// For each party, whether its media are kept from the other party, because of its SDP or by request.
    pub(crate) is_held: [bool; 2],
    /// For each party, whether the other party hears silence instead of its media.
    pub(crate) is_muted: [bool; 2],
    pub(crate) last: Option<Point>,
    /// The raised alarms of each party.
    pub(crate) alarms: [Vec<Alarm>; 2],
}

impl StreamNow {
    /// Returns the state of a running stream.
    pub(super) fn of(running: &Running) -> StreamNow {
        let of = |side: Side| spec::of(&running.spec, side);
        let is_held = |side: Side| {
            let (own, other) = (of(side), of(side.other()));
            own.is_blocked || !own.may_send || !other.may_receive
        };
        StreamNow {
            is_recorded: running.recording.is_some(),
            is_decoded: running.is_decoded(),
            is_held: Side::BOTH.map(is_held),
            is_muted: Side::BOTH.map(|side| of(side).is_silenced),
            last: running.history.last().copied(),
            alarms: running.watched.alarms(),
        }
    }
}
