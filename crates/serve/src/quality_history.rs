//! The quality of a call's parties over the last minutes.

use std::collections::VecDeque;
use threadbare_base::NS_PER_S;

use super::measured::{Measured, MeasuredSide};

/// The quality of a stream's parties, with one point every few seconds. It is small, because it exists for each stream of each call.
#[derive(Debug, Default)]
pub(super) struct QualityHistory {
    points: VecDeque<Point>,
    /// The previous measurement, from which the next point is computed.
    before: Option<(u64, Measured)>,
}

/// The quality of both parties since the previous point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    /// Time on the monotonic clock, s.
    pub(super) at_s: u32,
    pub(super) sides: [Heard; 2],
}

/// The quality of a party at a point, rounded to differences that people can perceive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Heard {
    mos_hundredths: u16,
    loss_tenths: u16,
    jitter_tenths: u16,
}

impl Heard {
    /// Returns the mean opinion score. `None`: no report was due.
    pub(super) fn mos(self) -> Option<f64> {
        (self.mos_hundredths > 0).then(|| f64::from(self.mos_hundredths) / 100.0)
    }

    /// Returns the share of the party's packets that were lost or late. `None`: no packets came.
    pub(super) fn loss_percent(self) -> Option<f64> {
        (self.loss_tenths != NOTHING).then(|| f64::from(self.loss_tenths) / 10.0)
    }

    /// Returns the interarrival jitter. `None`: no packets came.
    pub(super) fn jitter_ms(self) -> Option<f64> {
        (self.loss_tenths != NOTHING).then(|| f64::from(self.jitter_tenths) / 10.0)
    }
}

impl QualityHistory {
    /// Handles a measurement of the stream. Adds a point if the last one is at least [`STEP_NS`] old.
    pub(super) fn note(&mut self, now_ns: u64, measured: &Measured) {
        let Some((at_ns, before)) = &self.before else {
            self.before = Some((now_ns, *measured));
            return;
        };
        if now_ns.saturating_sub(*at_ns) < STEP_NS {
            return;
        }
        let sides = [0, 1].map(|side: usize| heard(&before.sides[side], &measured.sides[side]));
        if self.points.len() == POINTS_MAX {
            self.points.pop_front();
        }
        self.points.push_back(Point {
            at_s: (now_ns / NS_PER_S) as u32,
            sides,
        });
        self.before = Some((now_ns, *measured));
    }

    /// Returns the points, oldest first.
    pub(super) fn points(&self) -> impl Iterator<Item = &Point> {
        self.points.iter()
    }

    /// Returns the latest point.
    pub(super) fn last(&self) -> Option<&Point> {
        self.points.back()
    }
}

fn heard(before: &MeasuredSide, now: &MeasuredSide) -> Heard {
    let added = now.counts.since(&before.counts);
    let due = added.packets + added.lost;
    let ((sum_before, scores_before), (sum, scores)) = (before.scores, now.scores);
    let mos = match scores.checked_sub(scores_before) {
        Some(0) | None => 0.0,
        Some(more) => (sum - sum_before) / more as f64,
    };
    let steps = |value: f64| (value.round() as u16).min(NOTHING - 1);
    Heard {
        mos_hundredths: steps(mos * 100.0),
        loss_tenths: match due {
            0 => NOTHING,
            due => steps(added.lost as f64 * 1000.0 / due as f64),
        },
        jitter_tenths: steps(now.jitter_ms * 10.0),
    }
}

/// Minimum time between points. It is the interval of RTCP reports (RFC 3550, section 6.2).
const STEP_NS: u64 = 5 * NS_PER_S;
/// Maximum number of points: ten minutes, in 2 KiB.
const POINTS_MAX: usize = 120;
/// Marks a missing value.
const NOTHING: u16 = u16::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(packets: u64, lost: u64, scores: (f64, u64)) -> Measured {
        let mut measured = Measured::default();
        let side = &mut measured.sides[0];
        (side.counts.packets, side.counts.lost) = (packets, lost);
        (side.scores, side.jitter_ms) = (scores, 2.54);
        measured
    }

    #[test]
    fn each_point_covers_its_own_interval() {
        let mut history = QualityHistory::default();
        history.note(0, &measured(100, 0, (4.4, 1)));
        history.note(STEP_NS - 1, &measured(900, 900, (4.4, 1)));
        assert_eq!(history.last(), None);
        // Two more scores have come, 4 and 3, and a tenth of the packets was lost.
        history.note(STEP_NS, &measured(325, 25, (11.4, 3)));
        let [a, b] = history.last().expect("a point").sides;
        let told = (a.mos(), a.loss_percent(), a.jitter_ms());
        assert_eq!(told, (Some(3.5), Some(10.0), Some(2.5)));
        assert_eq!(
            (b.mos(), b.loss_percent(), b.jitter_ms()),
            (None, None, None)
        );
        // No packets come, and then the stream is restarted.
        history.note(2 * STEP_NS, &measured(325, 25, (11.4, 3)));
        assert_eq!(
            history.last().expect("a point").sides[0].loss_percent(),
            None
        );
        history.note(3 * STEP_NS, &measured(50, 50, (4.0, 1)));
        let point = history.last().expect("a point");
        assert_eq!(
            (point.at_s, point.sides[0].loss_percent()),
            (15, Some(50.0))
        );
        for n in 4..2 * POINTS_MAX as u64 {
            history.note(n * STEP_NS, &Measured::default());
        }
        assert_eq!(history.points().count(), POINTS_MAX);
    }
}
