//! The ticks of an interval, and the treatment of missed ticks.
//!
//! Sans-IO: time is a parameter, in nanoseconds of any monotonic clock. So the intervals of a context and those of another event
//! loop follow the same rules.

/// Treatment of ticks that were not taken before the next one was due.
///
/// For example, with a period of 10, and a first tick at 10 that is taken at 35:
///
/// | | scheduled times (ticks skipped) of the ticks taken at 35 | next tick at |
/// |---|---|---|
/// | `Burst` | 10 (0), 20 (0), 30 (0) | 40 |
/// | `Delay` | 10 (0) | 45 |
/// | `Skip` | 30 (2) | 40 |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissedTicks {
    /// Every missed tick is due at once. No tick is lost, and the times of later ticks do not move: the number of ticks is the
    /// number of periods.
    Burst,
    /// The next tick is due a whole period after the late one was taken. Two ticks are never less than a period apart, and each
    /// delay, however short, moves the grid.
    Delay,
    /// Only the last due tick is returned. Earlier ticks are skipped and counted ([`Tick::missed`]). The times of later ticks do
    /// not move.
    #[default]
    Skip,
}

/// A tick of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    /// Scheduled time in ns, at or before the time at which it was taken.
    pub at_ns: u64,
    /// Number of ticks skipped between the previous tick and this one. Only [`MissedTicks::Skip`] skips ticks.
    pub missed: u64,
}

/// Schedule of an interval. It has no clock: call [`take`](Ticks::take) at [`next_ns`](Ticks::next_ns) or later, until it returns
/// `None`.
///
/// ```
/// use threadbare_runtime::{MissedTicks, Tick, Ticks};
///
/// let mut ticks = Ticks::new(10, 10, MissedTicks::Skip);
/// assert_eq!(ticks.take(9), None);
/// assert_eq!(ticks.take(35), Some(Tick { at_ns: 30, missed: 2 }));
/// assert_eq!(ticks.take(35), None);
/// assert_eq!(ticks.next_ns(), 40);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticks {
    next_ns: u64,
    period_ns: u64,
    missed: MissedTicks,
}

impl Ticks {
    /// Creates ticks at `first_ns` and each `period_ns` after it. A period of 0 counts as 1 ns. A tick beyond `u64::MAX` is
    /// scheduled at that time, which a clock that begins near 0 never reaches.
    pub fn new(first_ns: u64, period_ns: u64, missed: MissedTicks) -> Self {
        Ticks {
            next_ns: first_ns,
            period_ns: period_ns.max(1),
            missed,
        }
    }

    /// Returns the time of the next tick.
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Takes the next tick if it is due at `now_ns`. Call again until it returns `None`: with [`MissedTicks::Burst`], several
    /// ticks may be due.
    pub fn take(&mut self, now_ns: u64) -> Option<Tick> {
        let late_ns = now_ns.checked_sub(self.next_ns)?;
        let mut tick = Tick {
            at_ns: self.next_ns,
            missed: 0,
        };
        let period_begin_ns = match self.missed {
            MissedTicks::Burst => tick.at_ns,
            MissedTicks::Delay => now_ns,
            MissedTicks::Skip => {
                tick.missed = late_ns / self.period_ns;
                tick.at_ns += tick.missed * self.period_ns;
                tick.at_ns
            }
        };
        self.next_ns = period_begin_ns.saturating_add(self.period_ns);
        Some(tick)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the ticks that are due at `now_ns`, as (scheduled time, skipped).
    fn due(ticks: &mut Ticks, now_ns: u64) -> Vec<(u64, u64)> {
        let taken = std::iter::from_fn(|| ticks.take(now_ns));
        taken.map(|tick| (tick.at_ns, tick.missed)).collect()
    }

    #[test]
    fn a_tick_is_due_at_its_time_and_not_before() {
        for missed in [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip] {
            let mut ticks = Ticks::new(100, 10, missed);
            assert_eq!(due(&mut ticks, 99), []);
            for at_ns in [100, 110, 120] {
                assert_eq!(ticks.next_ns(), at_ns);
                assert_eq!(due(&mut ticks, at_ns), [(at_ns, 0)]);
            }
        }
    }

    #[test]
    fn late_ticks_are_handled_as_the_policy_says() {
        // The table of `MissedTicks`.
        for (missed, expected, next_ns) in [
            (MissedTicks::Burst, &[(10, 0), (20, 0), (30, 0)][..], 40),
            (MissedTicks::Delay, &[(10, 0)], 45),
            (MissedTicks::Skip, &[(30, 2)], 40),
        ] {
            let mut ticks = Ticks::new(10, 10, missed);
            assert_eq!(due(&mut ticks, 35), expected, "{missed:?}");
            assert_eq!(ticks.next_ns(), next_ns, "{missed:?}");
        }
    }

    #[test]
    fn a_tick_late_by_less_than_a_period_delays_later_ticks_only_in_mode_delay() {
        for (missed, next_ns) in [
            (MissedTicks::Burst, 20),
            (MissedTicks::Delay, 29),
            (MissedTicks::Skip, 20),
        ] {
            let mut ticks = Ticks::new(10, 10, missed);
            assert_eq!(due(&mut ticks, 19), [(10, 0)], "{missed:?}");
            assert_eq!(ticks.next_ns(), next_ns, "{missed:?}");
        }
    }

    #[test]
    fn a_period_of_zero_is_a_nanosecond() {
        let mut ticks = Ticks::new(5, 0, MissedTicks::Burst);
        assert_eq!(due(&mut ticks, 7), [(5, 0), (6, 0), (7, 0)]);
    }

    #[test]
    fn a_tick_beyond_the_clock_stays_at_its_end() {
        for missed in [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip] {
            let mut ticks = Ticks::new(10, u64::MAX, missed);
            assert!(ticks.take(20).is_some());
            assert_eq!(ticks.next_ns(), u64::MAX, "{missed:?}");
            assert_eq!(ticks.take(u64::MAX - 1), None);
        }
    }

    /// A simple model that goes over the grid tick by tick.
    fn naive(next_ns: &mut u64, period_ns: u64, missed: MissedTicks, now_ns: u64) -> Option<Tick> {
        if now_ns < *next_ns {
            return None;
        }
        let mut tick = Tick {
            at_ns: *next_ns,
            missed: 0,
        };
        *next_ns += period_ns;
        match missed {
            MissedTicks::Burst => {}
            MissedTicks::Delay => *next_ns = now_ns + period_ns,
            MissedTicks::Skip => {
                while *next_ns <= now_ns {
                    tick.missed += 1;
                    tick.at_ns = *next_ns;
                    *next_ns += period_ns;
                }
            }
        }
        Some(tick)
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 8 } else { 256 },
            // Miri gives tests no access to files.
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// At any time, the ticks equal those of the simple model. With `Burst` and `Skip`, taken and skipped ticks together
        /// equal the periods. With `Delay`, two ticks are taken at least a period apart.
        #[test]
        fn equals_the_naive_twin(
            first_ns in 0u64..500,
            period_ns in 1u64..50,
            missed in prop_oneof![
                Just(MissedTicks::Burst), Just(MissedTicks::Delay), Just(MissedTicks::Skip)
            ],
            steps in prop::collection::vec(0u64..300, 1..100),
        ) {
            let mut ticks = Ticks::new(first_ns, period_ns, missed);
            let mut next_ns = first_ns;
            let (mut now_ns, mut count, mut last_taken_ns) = (0, 0, None);
            for step in steps {
                now_ns += step;
                loop {
                    let tick = ticks.take(now_ns);
                    prop_assert_eq!(tick, naive(&mut next_ns, period_ns, missed, now_ns));
                    prop_assert_eq!(ticks.next_ns(), next_ns);
                    let Some(tick) = tick else { break };
                    count += 1 + tick.missed;
                    prop_assert!(tick.at_ns <= now_ns);
                    if missed == MissedTicks::Delay {
                        prop_assert!(last_taken_ns.is_none_or(|last| now_ns - last >= period_ns));
                        last_taken_ns = Some(now_ns);
                    }
                }
                prop_assert!(ticks.next_ns() > now_ns);
            }
            if missed != MissedTicks::Delay {
                let periods = now_ns.checked_sub(first_ns).map_or(0, |since| since / period_ns + 1);
                prop_assert_eq!(count, periods);
            }
        }
    }
}
