//! The values that are stored for each second of a stream.

use std::collections::VecDeque;

/// A second of a stream. Levels have no value during silence, and if loudness is not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Second {
    /// End of the second, s since 1970.
    pub unix_s: u64,
    /// Whether the stream runs and receives packets of its sender.
    pub is_heard: bool,
    /// Whether loudness is measured.
    pub is_measured: bool,
    /// Loudness of the loudest 400 ms, LUFS.
    pub momentary_lufs: Level,
    /// Short-term loudness (3 s), LUFS.
    pub short_term_lufs: Level,
    /// Loudness since the start, LUFS.
    pub integrated_lufs: Level,
    /// Loudness range since the start, LU.
    pub range_lu: Level,
    /// True peak of this second, dBTP.
    pub true_peak_dbtp: Level,
    /// RTP packets received.
    pub packets: u32,
    /// Packets lost or late.
    pub lost: u32,
    /// Packets lost or late in the last 10 s, in thousandths of the expected ones.
    pub lost_permille: u16,
    /// How far the sender's clock has fallen behind since the stream started, us.
    pub skew_us: i64,
    /// Interarrival jitter, us.
    pub jitter_us: u32,
    /// Packets in the jitter buffer.
    pub held_packets: u32,
}

/// Merges each group of `step_s` seconds into one second, with the end of the group's last second. Levels, jitter and held
/// packets are the maximum of the group, and packets and losses are the sum. The merged second counts as heard only if all
/// seconds of the group do. Values since the start are those of the group's last second.
///
/// # Panics
/// Panics if `step_s` is 0.
#[must_use]
pub fn merged(seconds: &[Second], step_s: u64) -> Vec<Second> {
    let step = |one: &Second| one.unix_s.div_ceil(step_s);
    let steps = seconds.chunk_by(|before, after| step(before) == step(after));
    let merge = |before: Second, after: &Second| Second {
        is_heard: before.is_heard && after.is_heard,
        is_measured: before.is_measured || after.is_measured,
        momentary_lufs: before.momentary_lufs.max(after.momentary_lufs),
        short_term_lufs: before.short_term_lufs.max(after.short_term_lufs),
        true_peak_dbtp: before.true_peak_dbtp.max(after.true_peak_dbtp),
        packets: before.packets.saturating_add(after.packets),
        lost: before.lost.saturating_add(after.lost),
        lost_permille: before.lost_permille.max(after.lost_permille),
        jitter_us: before.jitter_us.max(after.jitter_us),
        held_packets: before.held_packets.max(after.held_packets),
        ..*after
    };
    let merge_all = |step: &[Second]| {
        let (first, rest) = step.split_first()?;
        Some(rest.iter().fold(*first, merge))
    };
    steps.filter_map(merge_all).collect()
}

/// A level in tenths of a decibel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level(i16);

impl Default for Level {
    fn default() -> Level {
        Level::NONE
    }
}

impl Level {
    /// No value, because of silence, or because the level is not measured.
    pub const NONE: Level = Level(i16::MIN);

    /// Converts decibels. A level below [`SILENCE`] counts as silence.
    #[must_use]
    pub fn new(db: f64) -> Level {
        if db.is_nan() || db < SILENCE {
            Level::NONE
        } else {
            Level((db * 10.0).round().min(f64::from(i16::MAX)) as i16)
        }
    }

    /// Returns the level in decibels.
    #[must_use]
    pub fn db(self) -> Option<f64> {
        (self != Level::NONE).then(|| f64::from(self.0) / 10.0)
    }

    /// Converts from [`tenths`](Level::tenths).
    #[must_use]
    pub fn of_tenths(tenths: i16) -> Level {
        Level(tenths)
    }

    /// Returns the level in tenths of a decibel. The minimum means no value.
    #[must_use]
    pub fn tenths(self) -> i16 {
        self.0
    }

    /// Returns the higher of the two levels.
    #[must_use]
    pub fn max(self, other: Level) -> Level {
        Level(self.0.max(other.0))
    }
}

/// Level that counts as silence. It is far below one step of 16 bits: only the ringing of filters has such levels.
const SILENCE: f64 = -120.0;

/// The last seconds of a stream or party.
#[derive(Debug, Clone)]
pub struct Recent {
    seconds: VecDeque<Second>,
    seconds_max: usize,
}

impl Default for Recent {
    /// Creates a list for [`RECENT_SECONDS`] seconds.
    fn default() -> Recent {
        Recent {
            seconds: VecDeque::new(),
            seconds_max: RECENT_SECONDS,
        }
    }
}

impl Recent {
    /// Creates a list for this number of seconds.
    pub(super) fn with_room(seconds_max: usize) -> Recent {
        Recent {
            seconds: VecDeque::with_capacity(seconds_max),
            seconds_max,
        }
    }

    /// Returns the last second.
    #[must_use]
    pub fn latest(&self) -> Option<&Second> {
        self.seconds.back()
    }

    /// Adds a second. If the list is full, drops the oldest one.
    pub fn push(&mut self, second: Second) {
        if self.seconds.len() == self.seconds_max {
            self.seconds.pop_front();
        }
        self.seconds.push_back(second);
    }

    /// Returns the last `count` seconds, oldest first.
    pub fn last(&self, count: usize) -> impl DoubleEndedIterator<Item = &Second> {
        let skipped = self.seconds.len().saturating_sub(count);
        self.seconds.iter().skip(skipped)
    }
}

/// Number of seconds in memory: ten minutes, in some 25 KiB for each stream.
pub const RECENT_SECONDS: usize = 600;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seconds_of_a_step_are_merged() {
        let at = |unix_s, level, count: u32| Second {
            unix_s,
            is_heard: count > 0,
            momentary_lufs: Level::new(level),
            integrated_lufs: Level::new(level),
            packets: count,
            jitter_us: 10 * count,
            ..Second::default()
        };
        let seconds = [
            at(60, -10.0, 50),
            at(61, -20.0, 50),
            at(62, -30.0, 40),
            // Seconds are missing here, because the process did not run.
            at(119, -40.0, 0),
            at(120, -50.0, 50),
            at(121, -60.0, 50),
        ];
        assert_eq!(merged(&seconds, 1), seconds);
        // These values were computed by hand.
        let due = [
            at(60, -10.0, 50),
            Second {
                is_heard: false,
                momentary_lufs: Level::new(-20.0),
                packets: 140,
                jitter_us: 500,
                ..at(120, -50.0, 50)
            },
            at(121, -60.0, 50),
        ];
        assert_eq!(merged(&seconds, 60), due);
        assert_eq!(merged(&[], 60), []);
    }
}
