//! Where the sender's time line lies on the local clock: the least transit of the last seconds, followed smoothly.
//!
//! A packet's transit (arrival minus send time) is the difference of the two clocks, plus the path's constant delay,
//! plus its time in queues. The packet with the least transit queued least, and its transit drifts as the clocks do.

use crate::id::NS_PER_S;

/// The estimate, in one part that every packet touches and one ([`Slices`]) that is touched once a second.
#[derive(Debug)]
pub(super) struct Offset {
    /// Local time of play minus send time.
    offset_ns: i64,
    /// End of the slice of time that is being filled.
    slice_end_ns: i64,
    /// Least transit in it.
    slice_min_ns: i64,
    /// Least transit in the finished slices of the window.
    finished_min_ns: i64,
    /// Until then the least transit is used unsmoothed.
    fill_end_ns: i64,
}

/// The least transits of finished slices: a deque in which both time and transit ascend, so that the front is the least
/// of all that are not too old.
#[derive(Debug, Default)]
pub(super) struct Slices {
    entries: [Slice; SLICES],
    len: usize,
}

#[derive(Debug, Default, Clone, Copy)]
struct Slice {
    end_ns: i64,
    min_ns: i64,
}

impl Offset {
    pub(super) fn new() -> Offset {
        Offset {
            offset_ns: 0,
            slice_end_ns: i64::MIN,
            slice_min_ns: i64::MAX,
            finished_min_ns: i64::MAX,
            fill_end_ns: i64::MIN,
        }
    }

    /// Local time of play minus send time, in ns.
    pub(super) fn ns(&self) -> i64 {
        self.offset_ns
    }

    /// A stream begins at `at_ns`; its first packet has a transit of `transit_ns`. Forgets everything earlier.
    pub(super) fn begin(&mut self, slices: &mut Slices, at_ns: i64, transit_ns: i64) {
        slices.len = 0;
        self.offset_ns = transit_ns;
        self.slice_end_ns = at_ns.saturating_add(SLICE_NS);
        self.slice_min_ns = transit_ns;
        self.finished_min_ns = i64::MAX;
        self.fill_end_ns = at_ns.saturating_add(FILL_NS);
    }

    /// Counts a packet. Returns how much longer it took than the fastest, in ns, at least 0.
    pub(super) fn sample(&mut self, slices: &mut Slices, at_ns: i64, transit_ns: i64) -> i64 {
        if at_ns >= self.slice_end_ns {
            self.turn_over(slices, at_ns, transit_ns);
        }
        self.slice_min_ns = self.slice_min_ns.min(transit_ns);
        let min_ns = self.slice_min_ns.min(self.finished_min_ns);
        if at_ns < self.fill_end_ns {
            self.offset_ns = min_ns;
        } else {
            self.offset_ns += min_ns.saturating_sub(self.offset_ns) / SLEW;
        }
        transit_ns.saturating_sub(min_ns)
    }

    /// As [`Offset::sample`], with the offset left as it is.
    pub(super) fn delay_of(&self, transit_ns: i64) -> i64 {
        let min_ns = self.slice_min_ns.min(self.finished_min_ns).min(transit_ns);
        transit_ns.saturating_sub(min_ns)
    }

    #[cold]
    fn turn_over(&mut self, slices: &mut Slices, at_ns: i64, transit_ns: i64) {
        let pause_ns = at_ns.saturating_sub(self.slice_end_ns);
        if pause_ns >= WINDOW_NS {
            let drifted_ns = self.offset_ns.saturating_add(pause_ns / DRIFT_PART);
            let is_other_path = transit_ns.saturating_sub(drifted_ns) > OTHER_PATH_NS;
            // A single packet proves little after a silence: it may have been delayed. It counts at most for the
            // clocks' possible drift meanwhile, unless drift cannot explain it.
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
    /// Forgets what ended at `end_ns` or before.
    fn expire(&mut self, end_ns: i64) {
        let old = self.entries[..self.len]
            .iter()
            .take_while(|slice| slice.end_ns <= end_ns)
            .count();
        self.entries.copy_within(old..self.len, 0);
        self.len -= old;
    }

    fn push(&mut self, slice: Slice) {
        // An older transit that is not less can never be the least again.
        while self.len > 0 && self.entries[self.len - 1].min_ns >= slice.min_ns {
            self.len -= 1;
        }
        // Ends lie at least a slice apart and within the window, so there is a place.
        self.len = self.len.min(SLICES - 1);
        self.entries[self.len] = slice;
        self.len += 1;
    }
}

/// Short enough that 200 ppm of drift within the window stay below 2 ms, long enough that it holds an undelayed packet
/// even on a busy path. GStreamer's rtpjitterbuffer looks back over 512 packets, 10 s of the usual ones.
const WINDOW_NS: i64 = SLICES as i64 * SLICE_NS;

const SLICE_NS: i64 = NS_PER_S as i64;

const SLICES: usize = 8;

/// A stream's first packets set the offset directly; later it changes smoothly.
const FILL_NS: i64 = 2 * NS_PER_S as i64;

/// Share of the way to the least transit that the offset moves with each packet: most of it within 2.5 s.
const SLEW: i64 = 128;

/// Two clocks drift apart by at most 1/2000 (500 ppm) of the time; crystals do not reach half of that.
const DRIFT_PART: i64 = 2_000;

/// A transit longer by this much is not caused by a queue.
const OTHER_PATH_NS: i64 = NS_PER_S as i64;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    /// A packet every 20 ms, its transit by `transit(n)`; gives the greatest distance of the estimate from `truth(n)`
    /// after the window has filled once.
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
            // Every seventh packet undelayed, the others by up to 30 ms.
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

    #[test]
    fn one_delayed_packet_after_a_silence_is_not_believed() {
        let (mut offset, mut slices) = (Offset::new(), Slices::default());
        offset.begin(&mut slices, 0, 0);
        offset.sample(&mut slices, 0, 0);
        // Ten minutes: 300 ms of drift is possible, 80 ms more is queueing.
        let at = 600_000 * MS;
        let delay = offset.sample(&mut slices, at, 380 * MS);
        assert!(
            (offset.ns() - 300 * MS).abs() < 2 * MS,
            "{} {delay}",
            offset.ns()
        );
        // A sender whose timestamps stand still in silence.
        let at = at + 600_000 * MS;
        offset.sample(&mut slices, at, 600_000 * MS);
        assert_eq!(offset.ns(), 600_000 * MS);
    }

    /// The naive twin: all samples of the window, looked through for each packet.
    #[test]
    fn the_deque_gives_the_least_of_the_window() {
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
