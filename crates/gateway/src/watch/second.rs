//! What is kept of a second of a stream.

use std::collections::VecDeque;

/// A second. Levels are `None` for silence and where nothing is measured.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Second {
    /// When it ended, s since 1970.
    pub unix_s: u64,
    /// The stream runs, and its sender is heard.
    pub is_heard: bool,
    /// Its loudness is measured.
    pub is_measured: bool,
    /// The loudest 400 ms, LUFS.
    pub momentary_lufs: Level,
    /// Of the last 3 s, LUFS.
    pub short_term_lufs: Level,
    /// Since the beginning, LUFS.
    pub integrated_lufs: Level,
    /// Since the beginning, LU.
    pub range_lu: Level,
    /// Of this second, dBTP.
    pub true_peak_dbtp: Level,
    /// RTP packets that came.
    pub packets: u32,
    /// Packets that missed their time.
    pub lost: u32,
    /// Packets that missed their time in the last 10 s, a thousandth of those that were to come.
    pub lost_permille: u16,
    /// How far the sender's clock has fallen behind since the stream began.
    pub skew_us: i64,
    /// Interarrival jitter, us.
    pub jitter_us: u32,
    /// Packets in the jitter buffer.
    pub held_packets: u32,
}

/// Each `step_s` seconds as one, which ends with the last of them: the highest levels, jitter and packets held, the sums of packets and losses; heard if
/// it was all the time. What counts from the beginning is as at the end.
///
/// # Panics
/// `step_s` is 0.
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

/// Tenths of a decibel, as exact as people read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level(i16);

impl Default for Level {
    fn default() -> Level {
        Level::NONE
    }
}

impl Level {
    /// Silence, or not measured.
    pub const NONE: Level = Level(i16::MIN);

    /// Of decibels; less than [`SILENCE`] is silence.
    #[must_use]
    pub fn new(db: f64) -> Level {
        match db.is_nan() || db < SILENCE {
            true => Level::NONE,
            false => Level((db * 10.0).round().min(f64::from(i16::MAX)) as i16),
        }
    }

    /// Decibels.
    #[must_use]
    pub fn db(self) -> Option<f64> {
        (self != Level::NONE).then(|| f64::from(self.0) / 10.0)
    }

    /// Of [`tenths`](Level::tenths).
    #[must_use]
    pub fn of_tenths(tenths: i16) -> Level {
        Level(tenths)
    }

    /// Tenths; the least number is none.
    #[must_use]
    pub fn tenths(self) -> i16 {
        self.0
    }

    /// The higher one.
    #[must_use]
    pub fn max(self, other: Level) -> Level {
        Level(self.0.max(other.0))
    }
}

/// Below it, filters ring and nothing sounds: less than a step of 16 bits, by far.
const SILENCE: f64 = -120.0;

/// The last seconds of a stream.
#[derive(Debug, Clone, Default)]
pub struct Recent(VecDeque<Second>);

impl Recent {
    /// The last one.
    #[must_use]
    pub fn latest(&self) -> Option<&Second> {
        self.0.back()
    }

    /// One more; the oldest goes.
    pub fn push(&mut self, second: Second) {
        if self.0.len() == RECENT_SECONDS {
            self.0.pop_front();
        }
        self.0.push_back(second);
    }

    /// The last `count`, oldest first.
    pub fn last(&self, count: usize) -> impl DoubleEndedIterator<Item = &Second> {
        self.0.iter().skip(self.0.len().saturating_sub(count))
    }
}

/// Ten minutes: some 25 KiB a stream.
pub const RECENT_SECONDS: usize = 600;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_of_a_step_are_one() {
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
            // The process was down.
            at(119, -40.0, 0),
            at(120, -50.0, 50),
            at(121, -60.0, 50),
        ];
        assert_eq!(merged(&seconds, 1), seconds);
        // By hand.
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
