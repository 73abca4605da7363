//! The last minutes of a stream of a call: how its parties were heard.

use std::collections::VecDeque;

use super::reading::{Reading, SideReading};

/// One point every few seconds. Small: each stream of each call has one.
#[derive(Debug, Default)]
pub(super) struct Trail {
    points: VecDeque<Point>,
    /// What the next point is told from.
    before: Option<(u64, Reading)>,
}

/// How both parties were heard since the point before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    /// On the monotonic clock, s.
    pub(super) at_s: u32,
    pub(super) sides: [Heard; 2],
}

/// How a party was heard. In steps that people can tell apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Heard {
    mos_hundredths: u16,
    loss_tenths: u16,
    jitter_tenths: u16,
}

impl Heard {
    /// The mean opinion score; `None`: no report was due.
    pub(super) fn mos(self) -> Option<f64> {
        (self.mos_hundredths > 0).then(|| f64::from(self.mos_hundredths) / 100.0)
    }

    /// Of its packets, those that were lost or late. `None`: none came.
    pub(super) fn loss_percent(self) -> Option<f64> {
        (self.loss_tenths != NOTHING).then(|| f64::from(self.loss_tenths) / 10.0)
    }

    /// Interarrival jitter. `None`: nothing came.
    pub(super) fn jitter_ms(self) -> Option<f64> {
        (self.loss_tenths != NOTHING).then(|| f64::from(self.jitter_tenths) / 10.0)
    }
}

impl Trail {
    /// A reading of the stream: a point, if the last one is some seconds old.
    pub(super) fn note(&mut self, now_ns: u64, reading: &Reading) {
        let Some((at_ns, before)) = &self.before else {
            self.before = Some((now_ns, *reading));
            return;
        };
        if now_ns.saturating_sub(*at_ns) < STEP_NS {
            return;
        }
        let sides = [0, 1].map(|side: usize| heard(&before.sides[side], &reading.sides[side]));
        if self.points.len() == POINTS_MAX {
            self.points.pop_front();
        }
        self.points.push_back(Point {
            at_s: (now_ns / NS_PER_S) as u32,
            sides,
        });
        self.before = Some((now_ns, *reading));
    }

    /// Oldest first.
    pub(super) fn points(&self) -> impl Iterator<Item = &Point> {
        self.points.iter()
    }

    /// The latest.
    pub(super) fn last(&self) -> Option<&Point> {
        self.points.back()
    }
}

fn heard(before: &SideReading, now: &SideReading) -> Heard {
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

const NS_PER_S: u64 = 1_000_000_000;
/// As often as reports come (RFC 3550, section 6.2).
const STEP_NS: u64 = 5 * NS_PER_S;
/// Ten minutes, and 2 KiB.
const POINTS_MAX: usize = 120;
/// Of tenths: there is none.
const NOTHING: u16 = u16::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(packets: u64, lost: u64, scores: (f64, u64)) -> Reading {
        let mut reading = Reading::default();
        let side = &mut reading.sides[0];
        (side.counts.packets, side.counts.lost) = (packets, lost);
        (side.scores, side.jitter_ms) = (scores, 2.54);
        reading
    }

    #[test]
    fn each_point_is_of_its_own_time() {
        let mut trail = Trail::default();
        trail.note(0, &reading(100, 0, (4.4, 1)));
        trail.note(STEP_NS - 1, &reading(900, 900, (4.4, 1)));
        assert_eq!(trail.last(), None);
        // Two more scores, of 4 and 3; a tenth is lost.
        trail.note(STEP_NS, &reading(325, 25, (11.4, 3)));
        let [a, b] = trail.last().expect("a point").sides;
        let told = (a.mos(), a.loss_percent(), a.jitter_ms());
        assert_eq!(told, (Some(3.5), Some(10.0), Some(2.5)));
        assert_eq!(
            (b.mos(), b.loss_percent(), b.jitter_ms()),
            (None, None, None)
        );
        // Nothing comes; then the stream begins anew.
        trail.note(2 * STEP_NS, &reading(325, 25, (11.4, 3)));
        assert_eq!(trail.last().expect("a point").sides[0].loss_percent(), None);
        trail.note(3 * STEP_NS, &reading(50, 50, (4.0, 1)));
        let point = trail.last().expect("a point");
        assert_eq!(
            (point.at_s, point.sides[0].loss_percent()),
            (15, Some(50.0))
        );
        for n in 4..2 * POINTS_MAX as u64 {
            trail.note(n * STEP_NS, &Reading::default());
        }
        assert_eq!(trail.points().count(), POINTS_MAX);
    }
}
