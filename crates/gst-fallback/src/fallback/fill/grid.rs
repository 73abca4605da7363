//! Schedule of a fill's items: an even grid of running time. The time of an item is computed from its number; times are not added
//! up. The schedule uses no clock and no GStreamer.

/// A number of items in a number of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace {
    /// Number of items, not 0.
    pub(super) items: u64,
    /// Number of seconds, not 0.
    pub(super) seconds: u64,
}

impl Pace {
    /// Returns the start of an item, ns from that of item 0.
    fn time_ns(self, item: u64) -> u64 {
        let ns = u128::from(item) * self.period() / u128::from(self.items);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Returns the last item that starts at this time or before.
    fn item_at(self, ns: u64) -> u64 {
        // time_ns(n) <= ns is n * period < (ns + 1) * items.
        let item = ((u128::from(ns) + 1) * u128::from(self.items) - 1) / self.period();
        u64::try_from(item).unwrap_or(u64::MAX)
    }

    /// Period in which `items` items start, ns.
    fn period(self) -> u128 {
        u128::from(self.seconds) * 1_000_000_000
    }
}

/// Decides which item is due. Times are running times, ns.
#[derive(Debug)]
pub(super) struct Grid {
    pace: Pace,
    place: Option<Place>,
    is_discont: bool,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    /// Start of item 0.
    base_ns: u64,
    next: u64,
    /// Time of the last call of [`Grid::next`].
    asked_ns: u64,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Ask again at this time.
    Wait(u64),
    Push(Item),
}

/// An item that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
    /// Whether the item does not continue the previous one.
    pub(super) is_discont: bool,
}

/// Maximum delay of an item that is still produced. Delays below it come from a busy machine, or from a small queue that waits
/// for its sink. A longer delay is abnormal.
pub(super) const LATE_NS_MAX: u64 = 200_000_000;
/// Running time that jumps back further than this has restarted.
const BACK_NS_MAX: u64 = LATE_NS_MAX;

impl Grid {
    pub(super) fn new(pace: Pace) -> Self {
        Grid {
            pace,
            place: None,
            is_discont: true,
        }
    }

    /// Changes the pace from the next item on; times continue.
    pub(super) fn set_pace(&mut self, pace: Pace) {
        self.place = self.place.map(|place| Place {
            base_ns: place.base_ns.saturating_add(self.pace.time_ns(place.next)),
            next: 0,
            ..place
        });
        self.pace = pace;
    }

    /// Restarts at the time of the next call.
    pub(super) fn restart(&mut self) {
        self.place = None;
        self.is_discont = true;
    }

    /// Notes that the next item does not continue the last one.
    pub(super) fn interrupt(&mut self) {
        self.is_discont = true;
    }

    /// Returns the next step. The first item is due at once, each other item at its start. After an interruption, or if items are
    /// more than `late_ns_max` late, the missed items are skipped, except the current one.
    pub(super) fn next(&mut self, now_ns: u64, late_ns_max: u64) -> Step {
        let begun = Place {
            base_ns: now_ns,
            next: 0,
            asked_ns: now_ns,
        };
        let went_back = |place: &Place| place.asked_ns.saturating_sub(now_ns) > BACK_NS_MAX;
        if self.place.as_ref().is_none_or(went_back) {
            self.place = Some(begun);
            self.is_discont = true;
        }
        let place = self.place.get_or_insert(begun);
        place.asked_ns = now_ns;
        let time_ns = |item| place.base_ns.saturating_add(self.pace.time_ns(item));
        let due_ns = time_ns(place.next);
        if now_ns < due_ns {
            return Step::Wait(due_ns);
        }
        let late_ns = now_ns - due_ns;
        if self.is_discont || late_ns > late_ns_max {
            let current = self.pace.item_at(now_ns - place.base_ns);
            self.is_discont |= current != place.next;
            place.next = current;
        }
        let item = Item {
            begin_ns: time_ns(place.next),
            end_ns: time_ns(place.next + 1),
            is_discont: std::mem::take(&mut self.is_discont),
        };
        place.next += 1;
        Step::Push(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const NTSC: Pace = Pace {
        items: 30_000,
        seconds: 1001,
    };
    const TEN_A_SECOND: Pace = Pace {
        items: 10,
        seconds: 1,
    };

    fn item(grid: &mut Grid, now_ns: u64) -> Item {
        match grid.next(now_ns, LATE_NS_MAX) {
            Step::Push(item) => item,
            Step::Wait(due_ns) => panic!("at {now_ns}: wait until {due_ns}"),
        }
    }

    /// Checks a pace item by item, each at its time. The twin is the definition in whole numbers.
    fn assert_even(pace: Pace, items: std::ops::Range<u64>) {
        let base_ns = 7 * SECOND + 13;
        let twin = |n: u64| {
            base_ns
                + (n as u128 * u128::from(pace.seconds) * 1_000_000_000 / u128::from(pace.items))
                    as u64
        };
        let mut grid = Grid::new(pace);
        item(&mut grid, base_ns);
        if items.start > 0 {
            // This looks like a delay until the first item.
            item(&mut grid, twin(items.start));
        }
        for n in items.start + 1..items.end {
            assert_eq!(grid.next(twin(n) - 1, LATE_NS_MAX), Step::Wait(twin(n)));
            let item = item(&mut grid, twin(n));
            assert_eq!((item.begin_ns, item.end_ns), (twin(n), twin(n + 1)));
            assert!(!item.is_discont);
        }
    }

    #[test]
    fn times_of_items_do_not_drift_even_after_hours() {
        let cd = Pace {
            items: 44_100,
            seconds: 882,
        };
        let odd = Pace {
            items: 11_025,
            seconds: 220,
        };
        for pace in [NTSC, TEN_A_SECOND, cd, odd] {
            assert_even(pace, 0..1000);
            // A year.
            let year = 365 * 86_400 * pace.items / pace.seconds;
            assert_even(pace, year..year + 1000);
        }
    }

    #[test]
    fn the_item_that_covers_a_time_is_found() {
        for n in (0..1000).chain(90_000_000..90_001_000) {
            let begin_ns = NTSC.time_ns(n);
            assert_eq!(NTSC.item_at(begin_ns), n);
            assert_eq!(NTSC.item_at(NTSC.time_ns(n + 1) - 1), n);
        }
    }

    #[test]
    fn slightly_late_item_is_made_without_a_gap() {
        let mut grid = Grid::new(TEN_A_SECOND);
        assert!(item(&mut grid, 0).is_discont);
        let late = [250, 250].map(|ms| item(&mut grid, ms * SECOND / 1000));
        assert_eq!(late.map(|item| item.begin_ns), [SECOND / 10, SECOND / 5]);
        assert_eq!(late.map(|item| item.is_discont), [false, false]);
    }

    #[test]
    fn items_missed_while_blocked_are_skipped() {
        let mut grid = Grid::new(TEN_A_SECOND);
        item(&mut grid, SECOND);
        let now_ns = 3600 * SECOND + SECOND / 20;
        let after = item(&mut grid, now_ns);
        assert_eq!((after.begin_ns, after.is_discont), (3600 * SECOND, true));
        assert_eq!(grid.next(now_ns, LATE_NS_MAX), Step::Wait(after.end_ns));
        assert!(!item(&mut grid, after.end_ns).is_discont);
    }

    #[test]
    fn items_missed_in_an_interruption_are_not_made_later() {
        let mut grid = Grid::new(TEN_A_SECOND);
        item(&mut grid, 0);
        grid.interrupt();
        let after = item(&mut grid, SECOND / 4);
        assert_eq!((after.begin_ns, after.is_discont), (SECOND / 5, true));
        // Nothing was missed: the grid continues.
        grid.interrupt();
        assert_eq!(
            grid.next(after.begin_ns, LATE_NS_MAX),
            Step::Wait(after.end_ns)
        );
        assert!(item(&mut grid, after.end_ns).is_discont);
    }

    #[test]
    fn the_grid_follows_a_restarted_running_time() {
        let mut grid = Grid::new(TEN_A_SECOND);
        item(&mut grid, 100 * SECOND);
        let after = item(&mut grid, 3);
        assert_eq!((after.begin_ns, after.is_discont), (3, true));
        // A small step back is waited for, so that times do not overlap.
        let before = item(&mut grid, after.end_ns);
        assert_eq!(grid.next(3, LATE_NS_MAX), Step::Wait(before.end_ns));
    }

    #[test]
    fn changed_pace_continues_after_the_last_item() {
        let mut grid = Grid::new(Pace {
            items: 1,
            seconds: 2,
        });
        let long = item(&mut grid, 5);
        grid.set_pace(TEN_A_SECOND);
        assert_eq!(grid.next(6, LATE_NS_MAX), Step::Wait(long.end_ns));
        let short = item(&mut grid, long.end_ns);
        assert_eq!((short.begin_ns, short.is_discont), (long.end_ns, false));
        assert_eq!(short.end_ns, long.end_ns + SECOND / 10);
    }

    #[test]
    fn a_long_item_that_is_late_is_still_made() {
        let mut grid = Grid::new(Pace {
            items: 1,
            seconds: 10,
        });
        item(&mut grid, 0);
        let late = item(&mut grid, 15 * SECOND);
        assert_eq!((late.begin_ns, late.is_discont), (10 * SECOND, false));
    }
}
