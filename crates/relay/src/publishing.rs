//! Publishes the snapshot of a session, on the session's thread.

use threadbare_rtp::call::{LegId, Session};
use threadbare_rtp::quality::Quality;

use crate::loudness::LineMeter;
use crate::snapshot::{LineSnapshot, ListenerView, Pace, SenderView, SharedSnapshot};
use crate::tap::Metering;

/// How the values of a leg's media are published.
#[derive(Debug)]
pub(crate) struct Publishing {
    leg: LegId,
    snapshot: SharedSnapshot,
    pace: Pace,
    next_ns: u64,
    /// Time at which the slow values are read next.
    next_whole_ns: u64,
    scores: Scores,
}

/// The mean opinion scores of a leg, one for each of our RTCP reports.
#[derive(Debug, Default)]
struct Scores {
    /// Sum and number of the scores so far.
    sum: (f64, u64),
    /// Mean of the scores since the previous reading with new scores.
    latest: Option<f64>,
}

impl Scores {
    fn read(&mut self, quality: Option<&Quality>) -> Option<f64> {
        if let Some(mos) = quality.and_then(|quality| quality.mos) {
            let sum = mos.sum();
            let new = sum.1.saturating_sub(self.sum.1);
            if new > 0 {
                self.latest = Some((sum.0 - self.sum.0) / new as f64);
                self.sum = sum;
            }
        }
        self.latest
    }
}

impl Publishing {
    pub(crate) fn new(leg: LegId, snapshot: SharedSnapshot, pace: Pace) -> Publishing {
        Publishing {
            leg,
            snapshot,
            pace,
            next_ns: 0,
            next_whole_ns: 0,
            scores: Scores::default(),
        }
    }

    /// Whether a new programme was requested. If so, a whole snapshot is due at once.
    pub(crate) fn begins_programme(&mut self) -> bool {
        let begins = self.snapshot.take_programme();
        if begins {
            (self.next_ns, self.next_whole_ns) = (0, 0);
        }
        begins
    }

    #[inline]
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// Writes the snapshot. If a reader is using it, the next turn writes it. `unauthentic` is the number of datagrams of the sender that
    /// SRTP refused.
    pub(crate) fn publish(
        &mut self,
        now_ns: u64,
        session: &Session,
        unauthentic: u64,
        meter: &mut Metering,
    ) {
        let is_whole = now_ns >= self.next_whole_ns;
        let Some(mut values) = self.snapshot.try_write() else {
            return;
        };
        let read = |meter: &mut LineMeter| {
            if is_whole {
                (meter.readings(), meter.take_peak())
            } else {
                (meter.quick_readings(), meter.take_peak())
            }
        };
        let (loudness, peak) = meter.with(read).unwrap_or_default();
        let (from, to) = (session.leg(self.leg), session.receiver_of(self.leg));
        let (source, direction) = (from.stats(), session.direction_stats(self.leg));
        *values = LineSnapshot {
            shown_ns: Some(now_ns),
            heard_ns: source.heard_ns,
            packets: source.packets,
            lost: direction.lost,
            late: source.jitter.late,
            concealed_ns: direction.concealed_ns,
            refused: source.refused.total() + unauthentic,
            switches: direction.switches,
            active: direction.active,
            skew_ns: source.jitter.skew_ns,
            jitter_ns: source.jitter.jitter_ns,
            held_packets: source.jitter.held_packets,
            latency_ns: source.jitter.latency_ns,
            mos: self.scores.read(source.quality.as_ref()),
            round_trip_ns: source.session.rtt_ns,
            source: source.source,
            payload: from.heard_payload(),
            rtp_to: to.rtp_to(),
            sender: SenderView::of(from),
            listener: ListenerView::of(to),
            loudness,
            peak: values.peak.max(peak),
        };
        drop(values);
        self.snapshot.publish_state(now_ns, session);
        self.next_ns = now_ns + self.pace.period_ns();
        if is_whole {
            self.next_whole_ns = now_ns + WHOLE_NS;
        }
    }
}

/// Interval at which integrated loudness and range are published, ns. They change so slowly that more often is useless.
const WHOLE_NS: u64 = 1_000_000_000;
