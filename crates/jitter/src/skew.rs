//! Estimates the position of the sender's time line on the local clock: the least transit of the last seconds, smoothed.
//!
//! A packet's transit (arrival minus send time) is the difference of the two clocks, plus the path's constant delay, plus its
//! time in queues. The packet with the least transit waited least in queues. Its transit drifts as the clocks do.
//!
//! ```text
//!       a packet arrives after its deadline       no transit near the former minimum for PROOF_NS
//!  following ───────────────────────────────→ trying a step ───────────────────────────────────────→ following
//!      ↑                                            │                                        (the window starts again)
//!      └──── a transit near the former minimum ─────┘
//! ```
//!
//! - *Following*: the target is the least transit in the window, which contains the last [`WINDOW_NS`]. The offset moves towards
//!   the target smoothly, and faster if the path got shorter by a step.
//! - *Trying a step*: the sender has paused, or the path got longer. The offset is the least transit since then. If the reason
//!   was only a queue, which empties, the offset returns within the burst.

use threadbare_rtp_types::id::NS_PER_S;

/// The estimate. Every packet uses this part; the other part ([`Slices`]) is used once a second.
#[derive(Debug)]
pub(crate) struct Offset {
    /// Play time on the local clock minus send time.
    offset_ns: i64,
    /// End of the slice of time that is being filled.
    slice_end_ns: i64,
    /// Least transit in that slice.
    slice_min_ns: i64,
    /// Least transit in the finished slices of the window.
    finished_min_ns: i64,
    /// Until this time, the offset is the least transit without smoothing.
    fill_end_ns: i64,
}

/// Least transits of finished slices. Time and transit both ascend in this deque, so the front is the least transit that is not
/// too old.
#[derive(Debug, Default)]
pub(crate) struct Slices {
    entries: [Slice; SLICES],
    len: usize,
    trial: Option<Trial>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Slice {
    end_ns: i64,
    min_ns: i64,
}

/// A step up that is not confirmed yet.
#[derive(Debug, Clone, Copy)]
struct Trial {
    end_ns: i64,
    /// The least transit before the step.
    former_ns: i64,
}

impl Offset {
    pub(crate) fn new() -> Offset {
        Offset {
            offset_ns: 0,
            slice_end_ns: i64::MIN,
            slice_min_ns: i64::MAX,
            finished_min_ns: i64::MAX,
            fill_end_ns: i64::MIN,
        }
    }

    /// Returns the play time on the local clock minus the send time, in ns.
    pub(crate) fn ns(&self) -> i64 {
        self.offset_ns
    }

    fn min_ns(&self) -> i64 {
        self.slice_min_ns.min(self.finished_min_ns)
    }

    /// Begins a stream at `at_ns`. Its first packet has a transit of `transit_ns`. Forgets everything earlier.
    pub(crate) fn begin(&mut self, slices: &mut Slices, at_ns: i64, transit_ns: i64) {
        slices.len = 0;
        slices.trial = None;
        self.offset_ns = transit_ns;
        self.slice_end_ns = at_ns.saturating_add(SLICE_NS);
        self.slice_min_ns = transit_ns;
        self.finished_min_ns = i64::MAX;
        self.fill_end_ns = at_ns.saturating_add(FILL_NS);
    }

    /// Counts a packet. Returns how much longer it took than the fastest packet, in ns, at least 0.
    pub(crate) fn sample(&mut self, slices: &mut Slices, at_ns: i64, transit_ns: i64) -> i64 {
        if at_ns >= self.slice_end_ns {
            self.turn_over(slices, at_ns, transit_ns);
        }
        self.slice_min_ns = self.slice_min_ns.min(transit_ns);
        let min_ns = self.min_ns();
        if at_ns < self.fill_end_ns {
            self.offset_ns = min_ns;
            if let Some(trial) = slices.trial {
                return self.judge(slices, trial, at_ns, transit_ns);
            }
        } else {
            let way_ns = min_ns.saturating_sub(self.offset_ns);
            self.offset_ns += way_ns / if way_ns < -STEP_NS { SLEW_STEP } else { SLEW };
        }
        transit_ns.saturating_sub(min_ns)
    }

    /// Returns the same delay as [`Offset::sample`], but does not change the offset.
    pub(crate) fn delay_of(&self, slices: &Slices, transit_ns: i64) -> i64 {
        let former_ns = slices.trial.map_or(i64::MAX, |trial| trial.former_ns);
        let min_ns = self.min_ns().min(former_ns).min(transit_ns);
        transit_ns.saturating_sub(min_ns)
    }

    /// Tries a step to this packet's transit. The packet came after its deadline, and no earlier packet is still in time, so the
    /// listener has already waited. [`Offset::sample`] confirms or undoes the step.
    #[cold]
    pub(crate) fn step_up(&mut self, slices: &mut Slices, at_ns: i64, transit_ns: i64) {
        let former_ns = match slices.trial {
            Some(trial) => trial.former_ns,
            None => self.min_ns(),
        };
        self.begin(slices, at_ns, transit_ns);
        slices.trial = Some(Trial {
            end_ns: at_ns.saturating_add(PROOF_NS),
            former_ns,
        });
    }

    /// Moves the offset to its target at once. This is for the first packet after a silence, where the listener does not notice
    /// it.
    pub(crate) fn settle(&mut self) {
        self.offset_ns = self.min_ns();
    }

    /// Confirms or undoes a step. Returns the packet's delay. Until the step is confirmed, the delay is measured from the former
    /// least transit.
    #[cold]
    fn judge(&mut self, slices: &mut Slices, trial: Trial, at_ns: i64, transit_ns: i64) -> i64 {
        if transit_ns.saturating_sub(trial.former_ns) <= STEP_NS {
            // The step was only a delay: the former window is still valid, and its least transit stays.
            slices.trial = None;
            slices.push(Slice {
                end_ns: self.slice_end_ns.saturating_sub(SLICE_NS),
                min_ns: trial.former_ns,
            });
            self.finished_min_ns = trial.former_ns;
            self.offset_ns = self.min_ns();
        } else if at_ns >= trial.end_ns {
            slices.trial = None;
            return transit_ns.saturating_sub(self.min_ns());
        }
        transit_ns.saturating_sub(trial.former_ns).max(0)
    }

    #[cold]
    fn turn_over(&mut self, slices: &mut Slices, at_ns: i64, transit_ns: i64) {
        slices.trial = slices.trial.filter(|trial| at_ns < trial.end_ns);
        let pause_ns = at_ns.saturating_sub(self.slice_end_ns);
        if pause_ns >= WINDOW_NS {
            let drifted_ns = self.offset_ns.saturating_add(pause_ns / DRIFT_PART);
            let is_other_path = transit_ns.saturating_sub(drifted_ns) > OTHER_PATH_NS;
            // A single packet after a silence proves little, because it may have been delayed. So its transit is limited to what
            // clock drift since then can explain, unless the excess is so large that it shows another path.
            let believed_ns = if is_other_path {
                transit_ns
            } else {
                transit_ns.min(drifted_ns)
            };
            self.begin(slices, at_ns, believed_ns);
            return;
        }
        let finished = Slice {
            end_ns: self.slice_end_ns,
            min_ns: self.slice_min_ns,
        };
        self.slice_end_ns += SLICE_NS * (1 + pause_ns / SLICE_NS);
        slices.expire(self.slice_end_ns - SLICE_NS - WINDOW_NS);
        slices.push(finished);
        self.slice_min_ns = i64::MAX;
        self.finished_min_ns = slices.entries[0].min_ns;
    }
}

impl Slices {
    /// Removes slices that ended at `end_ns` or before.
    fn expire(&mut self, end_ns: i64) {
        let old = self.entries[..self.len]
            .iter()
            .take_while(|slice| slice.end_ns <= end_ns)
            .count();
        self.entries.copy_within(old..self.len, 0);
        self.len -= old;
    }

    fn push(&mut self, slice: Slice) {
        // An older transit that is not smaller can never become the least again.
        while self.len > 0 && self.entries[self.len - 1].min_ns >= slice.min_ns {
            self.len -= 1;
        }
        // Ends of slices are at least a slice apart and within the window, so a place is free.
        self.len = self.len.min(SLICES - 1);
        self.entries[self.len] = slice;
        self.len += 1;
    }
}

/// Length of the window. It is short enough that 200 ppm of drift stay below 2 ms within it, and long enough to contain an
/// undelayed packet even on a busy path. GStreamer's rtpjitterbuffer uses the last 512 packets, usually 10 s.
const WINDOW_NS: i64 = SLICES as i64 * SLICE_NS;

const SLICE_NS: i64 = NS_PER_S as i64;

const SLICES: usize = 8;

/// Time for which a stream's first packets set the offset directly. After that, the offset changes smoothly.
const FILL_NS: i64 = 2 * NS_PER_S as i64;

/// Divisor of the offset's change: each packet moves it by 1/128 of the way to the least transit, most of it within 2.5 s.
const SLEW: i64 = 128;

/// The same divisor after the path got shorter by a step: the offset moves most of the way within 0.3 s.
const SLEW_STEP: i64 = 16;

/// Minimum difference of transits that counts as a step. A smaller one may be drift or noise in the estimate.
const STEP_NS: i64 = 10_000_000;

/// Time within which a queue empties: ten packets of 20 ms. If the delay stays for longer, the path has changed.
const PROOF_NS: i64 = 200_000_000;

/// Maximum drift of two clocks: 1/2000 (500 ppm) of the time. Crystals do not reach half of that.
const DRIFT_PART: i64 = 2_000;

/// Minimum excess of a transit that shows another path, because a queue does not cause so much delay.
const OTHER_PATH_NS: i64 = NS_PER_S as i64;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    /// Feeds a packet every 20 ms, with its transit from `transit(n)`. Returns the greatest distance of the estimate from
    /// `truth(n)` after the window has filled once.
    fn worst_error_ns(
        packets: i64,
        transit: impl Fn(i64) -> i64,
        truth: impl Fn(i64) -> i64,
    ) -> i64 {
        let (mut offset, mut slices) = (Offset::new(), Slices::default());
        let mut worst = 0;
        for n in 0..packets {
            let at = n * 20 * MS + transit(n);
            if n == 0 {
                offset.begin(&mut slices, at, transit(0));
            }
            offset.sample(&mut slices, at, transit(n));
            if n > 600 {
                worst = worst.max((offset.ns() - truth(n)).abs());
            }
        }
        worst
    }

    #[test]
    fn drift_is_followed_for_three_hours() {
        for ppm in [-200, 200] {
            let drift = |n: i64| n * 20 * MS * ppm / 1_000_000;
            // Every seventh packet is undelayed, the others are delayed by up to 30 ms.
            let transit = |n: i64| drift(n) + (n % 7) * 5 * MS;
            let worst = worst_error_ns(3 * 3600 * 50, transit, drift);
            assert!(worst < 3 * MS, "{ppm} ppm: {worst} ns");
        }
    }

    #[test]
    fn the_window_forgets_a_shorter_path() {
        let transit = |n: i64| if n < 1000 { 10 * MS } else { 40 * MS };
        let (mut offset, mut slices) = (Offset::new(), Slices::default());
        for n in 0..3000 {
            let at = n * 20 * MS + transit(n);
            if n == 0 {
                offset.begin(&mut slices, at, transit(0));
            }
            offset.sample(&mut slices, at, transit(n));
            if n == 1350 {
                assert_eq!(offset.ns(), 10 * MS, "within the window");
            }
        }
        assert!((offset.ns() - 40 * MS).abs() < MS / 10, "{}", offset.ns());
    }

    /// After a silence, delays are measured on the new path, even if no packet came during the trial.
    #[test]
    fn a_silence_ends_the_trial_of_a_step() {
        let (mut offset, mut slices) = (Offset::new(), Slices::default());
        offset.begin(&mut slices, 0, 10 * MS);
        offset.sample(&mut slices, 1_000 * MS, 310 * MS);
        offset.step_up(&mut slices, 1_000 * MS, 310 * MS);
        assert_eq!(offset.delay_of(&slices, 320 * MS), 310 * MS, "on trial");
        offset.sample(&mut slices, 4_000 * MS, 315 * MS);
        assert_eq!(offset.delay_of(&slices, 320 * MS), 10 * MS);
    }

    #[test]
    fn one_delayed_packet_after_a_silence_does_not_count_as_drift() {
        let (mut offset, mut slices) = (Offset::new(), Slices::default());
        offset.begin(&mut slices, 0, 0);
        offset.sample(&mut slices, 0, 0);
        // In ten minutes, clocks may drift by 300 ms. The other 80 ms are a delay in a queue.
        let at = 600_000 * MS;
        let delay = offset.sample(&mut slices, at, 380 * MS);
        assert!(
            (offset.ns() - 300 * MS).abs() < 2 * MS,
            "{} {delay}",
            offset.ns()
        );
        // The sender's timestamps do not advance during silence.
        let at = at + 600_000 * MS;
        offset.sample(&mut slices, at, 600_000 * MS);
        assert_eq!(offset.ns(), 600_000 * MS);
    }

    /// Compares the deque with a simple model, which keeps all samples of the window and searches them for each packet.
    #[test]
    fn the_deque_returns_the_minimum_of_the_window() {
        let (mut offset, mut slices) = (Offset::new(), Slices::default());
        let mut all: Vec<(i64, i64)> = Vec::new();
        let mut seed = 7_u64;
        let mut at = 0;
        for n in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            at += (seed >> 33) as i64 % (40 * MS) + if n % 997 == 0 { 3_000 * MS } else { 0 };
            let transit = (seed >> 40) as i64 % (50 * MS);
            if n == 0 {
                offset.begin(&mut slices, at, transit);
            }
            let delay = offset.sample(&mut slices, at, transit);
            all.push((at, transit));
            // Slices are counted from the first packet.
            let slice = |t: i64| (t - all[0].0) / SLICE_NS;
            let oldest = slice(at) - SLICES as i64;
            let least = all
                .iter()
                .rev()
                .take(1000)
                .filter(|(t, _)| slice(*t) >= oldest)
                .map(|(_, transit)| *transit)
                .min();
            assert_eq!(Some(transit - delay), least, "packet {n}");
        }
    }
}
