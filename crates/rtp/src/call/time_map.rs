//! Maps the timestamps of one side to those of the other.

use crate::id::{NS_PER_S, RtpTime};

/// The mapping from incoming to outgoing timestamps.
///
/// Outgoing timestamps keep the distances of the incoming ones, at the outgoing clock rate. If the incoming timestamps restart, the
/// outgoing ones continue after a pause, which is as long as the pause between the play times.
///
/// The anchor moves along with the stream in whole seconds, so that rounding errors do not add up.
#[derive(Debug)]
pub(super) struct TimeMap {
    from: RtpTime,
    to: RtpTime,
    from_hz: u32,
    to_hz: u32,
    is_anchored: bool,
    /// The timestamp at the end of the sent audio.
    end: RtpTime,
    end_play_ns: u64,
    has_sent: bool,
    /// Earliest play time of audio after a restart.
    begin_play_ns: u64,
    /// Shift added to play times, because the clock of a silent sender may have stopped.
    shift_ns: u64,
}

impl TimeMap {
    /// Creates a map whose first outgoing timestamp is `first`, which must be random (RFC 3550, section 5.1).
    pub(super) fn new(first: RtpTime) -> TimeMap {
        TimeMap {
            from: RtpTime(0),
            to: first,
            from_hz: 1,
            to_hz: 1,
            is_anchored: false,
            end: first,
            end_play_ns: 0,
            has_sent: false,
            begin_play_ns: 0,
            shift_ns: 0,
        }
    }

    /// Detaches the next incoming timestamp from the previous ones, because the sender's timestamps restart.
    pub(super) fn restart(&mut self) {
        self.is_anchored = false;
    }

    /// Starts the timestamps of another input at `now_ns`, whatever the input's own times are.
    pub(super) fn restart_at(&mut self, now_ns: u64) {
        self.is_anchored = false;
        self.begin_play_ns = now_ns;
    }

    /// Returns the outgoing timestamp for `time`, which is played at `play_ns`. Rates are in units per second, and not 0.
    #[inline]
    pub(super) fn map(&mut self, time: RtpTime, play_ns: u64, from_hz: u32, to_hz: u32) -> RtpTime {
        if !self.is_anchored || (from_hz, to_hz) != (self.from_hz, self.to_hz) {
            self.anchor(time, play_ns, from_hz, to_hz);
        }
        let units = time.distance_from(self.from);
        if from_hz == to_hz {
            return self.to.plus(units as u32);
        }
        let (from_rate, to_rate) = (i64::from(from_hz), i64::from(to_hz));
        if units >= 2 * from_rate {
            let seconds = units / from_rate;
            self.from = self.from.plus((seconds * from_rate) as u32);
            self.to = self.to.plus((seconds * to_rate) as u32);
        }
        let units = time.distance_from(self.from);
        self.to.plus((units * to_rate).div_euclid(from_rate) as u32)
    }

    /// Returns the outgoing timestamp for inserted audio that is played at `play_ns`. It is not before the end of the sent audio. After the
    /// inserted audio, the incoming timestamps restart.
    pub(super) fn at(&mut self, play_ns: u64, to_hz: u32) -> RtpTime {
        self.restart();
        self.map(RtpTime(0), play_ns, to_hz, to_hz)
    }

    /// Returns the play time of the end of the sent audio.
    pub(super) fn end_play_ns(&self) -> u64 {
        self.end_play_ns
    }

    /// Returns the outgoing clock rate in units per second.
    pub(super) fn rate_hz(&self) -> u32 {
        self.to_hz
    }

    /// Returns `time`, or the end of the sent audio if that is later. Re-encoded audio may be longer than the input by a part of a packet.
    pub(super) fn not_before_end(&self, time: RtpTime) -> RtpTime {
        let is_behind = self.has_sent && time.distance_from(self.end) < 0;
        if is_behind { self.end } else { time }
    }

    /// Returns the play time of the outgoing timestamp `time`, if anything was sent.
    pub(super) fn play_ns(&self, time: RtpTime) -> Option<u64> {
        let units = time.distance_from(self.end);
        let ns = units * NS_PER_S as i64 / i64::from(self.to_hz);
        self.has_sent
            .then(|| self.end_play_ns.saturating_add_signed(ns))
    }

    #[cold]
    fn anchor(&mut self, time: RtpTime, play_ns: u64, from_hz: u32, to_hz: u32) {
        self.shift_ns = self.begin_play_ns.saturating_sub(play_ns);
        let pause_ns = if self.has_sent {
            (play_ns + self.shift_ns)
                .saturating_sub(self.end_play_ns)
                .min(PAUSE_NS_MAX)
        } else {
            0
        };
        let pause = u128::from(pause_ns) * u128::from(to_hz) / u128::from(NS_PER_S);
        self.from = time;
        self.to = self.end.plus(pause as u32);
        (self.from_hz, self.to_hz) = (from_hz, to_hz);
        self.is_anchored = true;
    }

    /// Notes that `units` were sent from the timestamp `to` on, to be played at `play_ns`.
    #[inline]
    pub(super) fn note_sent(&mut self, to: RtpTime, units: u32, play_ns: u64) {
        let ns = u64::from(units) * NS_PER_S / u64::from(self.to_hz);
        self.end = to.plus(units);
        self.end_play_ns = play_ns.saturating_add(self.shift_ns + ns);
        self.has_sent = true;
    }
}

/// The position of a direction's timestamps, for the process that continues it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeState {
    /// The timestamp that follows the last sent audio.
    pub end: RtpTime,
    /// Play time of that timestamp, relative to the snapshot, ns.
    pub end_in_ns: i64,
    /// Units per second.
    pub clock_rate_hz: u32,
}

/// The mapping from incoming to outgoing timestamps, for another process that receives from the same sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    /// An incoming timestamp.
    pub from: RtpTime,
    /// The outgoing timestamp that corresponds to it.
    pub to: RtpTime,
    /// Incoming units per second.
    pub from_hz: u32,
    /// Outgoing units per second.
    pub to_hz: u32,
}

impl TimeMap {
    /// Returns the mapping. `None`: the next timestamps are detached from the previous ones.
    pub(super) fn take_anchor(&self) -> Option<Anchor> {
        self.is_anchored.then_some(Anchor {
            from: self.from,
            to: self.to,
            from_hz: self.from_hz,
            to_hz: self.to_hz,
        })
    }

    /// Continues with the mapping of another process.
    pub(super) fn set_anchor(&mut self, anchor: Anchor) {
        (self.from, self.to) = (anchor.from, anchor.to);
        (self.from_hz, self.to_hz) = (anchor.from_hz.max(1), anchor.to_hz.max(1));
        (self.is_anchored, self.shift_ns) = (true, 0);
    }

    /// Returns the position of the outgoing timestamps. `None`: nothing was sent yet.
    pub(super) fn snapshot(&self, now_ns: u64) -> Option<TimeState> {
        self.has_sent.then(|| TimeState {
            end: self.end,
            end_in_ns: self.end_play_ns.wrapping_sub(now_ns).cast_signed(),
            clock_rate_hz: self.to_hz,
        })
    }

    /// Continues after `elapsed_ns`, which the timestamps include as a pause.
    pub(super) fn restore(&mut self, now_ns: u64, state: TimeState, elapsed_ns: u64) {
        let elapsed_ns = elapsed_ns.min(PAUSE_NS_MAX).cast_signed();
        let end_in_ns = state
            .end_in_ns
            .clamp(-PAUSE_NS_MAX.cast_signed(), PAUSE_NS_MAX.cast_signed());
        let passed_ns = elapsed_ns.saturating_sub(end_in_ns).max(0).unsigned_abs();
        let left_ns = end_in_ns.saturating_sub(elapsed_ns).max(0).unsigned_abs();
        let units = u128::from(passed_ns) * u128::from(state.clock_rate_hz) / u128::from(NS_PER_S);
        self.end = state.end.plus(units as u32);
        self.end_play_ns = now_ns.saturating_add(left_ns);
        self.to_hz = state.clock_rate_hz.max(1);
        self.has_sent = true;
        self.is_anchored = false;
    }
}

/// Maximum pause that timestamps include. Longer ones would be ambiguous. An hour at 90 kHz is still far from half the range of timestamps.
const PAUSE_NS_MAX: u64 = 3600 * NS_PER_S;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn hours_of_timestamps_keep_their_ratio() {
        for (from_hz, to_hz) in [
            (8000, 48_000),
            (48_000, 8000),
            (44_100, 48_000),
            (8000, 11_025),
        ] {
            let mut map = TimeMap::new(RtpTime(u32::MAX - 5));
            let step = u64::from(from_hz) / 50;
            for number in 0..3 * 3600 * 50_u64 {
                let from = RtpTime(77).plus((number * step) as u32);
                let to = map.map(from, number * 20 * MS, from_hz, to_hz);
                let exact = u128::from(number * step) * u128::from(to_hz) / u128::from(from_hz);
                assert_eq!(
                    to,
                    RtpTime(u32::MAX - 5).plus(exact as u32),
                    "{from_hz} {number}"
                );
            }
        }
    }

    /// If the clock of an input stops or is behind, it does not catch up later.
    #[test]
    fn another_input_begins_when_it_is_heard() {
        let mut map = TimeMap::new(RtpTime(1000));
        assert_eq!(map.map(RtpTime(5), 0, 8000, 8000), RtpTime(1000));
        map.note_sent(RtpTime(1000), 160, 0);
        for second in 1..4 {
            map.restart_at(second * 1000 * MS);
            let to = map.map(RtpTime(5), 20 * MS, 8000, 8000);
            assert_eq!(to, RtpTime(1000).plus(second as u32 * 8000));
            map.note_sent(to, 160, 20 * MS);
        }
    }

    #[test]
    fn after_a_restart_of_the_sender_the_pause_keeps_its_length() {
        let mut map = TimeMap::new(RtpTime(1000));
        assert_eq!(map.map(RtpTime(5), 0, 8000, 8000), RtpTime(1000));
        map.note_sent(RtpTime(1000), 160, 0);
        map.restart();
        // There are 20 ms of audio, and then nothing for 480 ms.
        let to = map.map(RtpTime(4_000_000_000), 500 * MS, 8000, 8000);
        assert_eq!(to, RtpTime(1000 + 4000));
        map.note_sent(to, 160, 500 * MS);
        // After a change of the clock rate, timestamps continue in other units.
        map.restart();
        assert_eq!(map.map(RtpTime(3), 520 * MS, 48_000, 48_000), to.plus(160));
    }
}
