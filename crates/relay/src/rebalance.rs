//! Decides which thread hands a call to which other one.
//!
//! Two rules move calls. The first one is for threads with different loads. The second one is for threads with different numbers of calls,
//! because the load of an idle thread says little. A move of the second rule never goes to a thread with more load, so the rules do not
//! work against each other. Each rule starts at a large difference, and continues with the same thread until a small one. So noise in the
//! loads causes no moves back and forth.

use threadbare_base::NS_PER_S;

/// A call that was moved to another thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// The call's label: see [`Engine::create`](crate::Engine::create).
    pub label: String,
    /// Name of the thread that ran the call.
    pub from: String,
    /// Name of the thread that runs the call now.
    pub to: String,
}

/// A reading of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) calls: u64,
    /// Time in which the thread was not asleep, since its start.
    pub(crate) busy_ns: u64,
    /// Whether the slices of the thread are late.
    pub(crate) is_late: bool,
}

/// The last second of a thread.
#[derive(Debug, Clone, Copy)]
struct Second {
    calls: u64,
    /// Share of the second in which the thread was not asleep, in thousandths. A late thread counts as fully busy.
    busy: u64,
    is_late: bool,
}

/// The data for the next decision.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    /// The last readings, and their time. `None`: there are none yet.
    before: Option<(u64, Vec<Load>)>,
    /// The thread that handed over a call by the last decision. `None`: nothing moved.
    source: Option<usize>,
}

impl Balance {
    /// Returns the positions of the threads between which a call should move. `None`: the threads are balanced, or less than a second has
    /// passed since the last decision.
    pub(crate) fn choose(&mut self, now_ns: u64, loads: Vec<Load>) -> Option<(usize, usize)> {
        let Some((then_ns, before)) = &self.before else {
            self.before = Some((now_ns, loads));
            return None;
        };
        let elapsed_ns = now_ns.saturating_sub(*then_ns);
        if elapsed_ns < INTERVAL_NS {
            return None;
        }
        let seconds = loads.iter().zip(before).map(|(load, before)| Second {
            calls: load.calls,
            busy: if load.is_late {
                1000
            } else {
                (load.busy_ns.saturating_sub(before.busy_ns) * 1000 / elapsed_ns).min(1000)
            },
            is_late: load.is_late,
        });
        let seconds: Vec<Second> = seconds.collect();
        let chosen = by_load(&seconds, self.source).or_else(|| by_calls(&seconds, self.source));
        self.source = chosen.map(|(from, _)| from);
        self.before = Some((now_ns, loads));
        chosen
    }
}

/// Chooses the busiest and the idlest thread.
fn by_load(seconds: &[Second], last_source: Option<usize>) -> Option<(usize, usize)> {
    let (from, to) = extremes(seconds, |second| second.busy)?;
    let (source, target) = (seconds[from], seconds[to]);
    let is_started = last_source == Some(from);
    let least = if is_started { BUSY_STOP } else { BUSY_START };
    // A call of average load changes the difference by twice its load. The difference must not change its sign.
    let least = least.max(2 * source.busy / source.calls.max(1));
    let is_needed = source.busy >= BUSY_MIN && source.busy > target.busy + least;
    is_needed.then_some((from, to))
}

/// Chooses the thread with the most calls and the one with the fewest.
fn by_calls(seconds: &[Second], last_source: Option<usize>) -> Option<(usize, usize)> {
    let (from, to) = extremes(seconds, |second| second.calls)?;
    let (source, target) = (seconds[from], seconds[to]);
    let is_started = last_source == Some(from);
    // Before the start, the difference must exceed the one that the choice of a thread for a new call may cause.
    let hardly_more = target.calls / 16 + HARDLY_MORE + 1;
    let least = if is_started { 1 } else { hardly_more };
    let is_needed = source.calls > target.calls + least;
    (is_needed && target.busy <= source.busy + BUSY_NOISE).then_some((from, to))
}

/// Returns the positions of the largest value, and of the smallest one among the threads that are not late.
fn extremes(seconds: &[Second], value: impl Fn(&Second) -> u64) -> Option<(usize, usize)> {
    let all = || seconds.iter().enumerate();
    let (from, _) = all().max_by_key(|(_, second)| value(second))?;
    let others = all().filter(|(place, second)| *place != from && !second.is_late);
    let (to, _) = others.min_by_key(|(_, second)| value(second))?;
    Some((from, to))
}

/// Number of calls that makes no difference to a thread that runs thousands.
pub(crate) const HARDLY_MORE: u64 = 4;
/// Time between two decisions. It is a little less than a second, because the owner's calls are not exactly a second apart.
const INTERVAL_NS: u64 = NS_PER_S / 100 * 99;
/// Minimum load of a thread that hands over calls because of its load, in thousandths.
const BUSY_MIN: u64 = 500;
/// Difference of loads above which moves start. It is larger than the difference between two seconds of the same calls.
const BUSY_START: u64 = 200;
/// Difference of loads at which moves stop.
const BUSY_STOP: u64 = 100;
/// Difference of loads that says nothing about the calls.
const BUSY_NOISE: u64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates threads whose calls have the loads `calls`, in thousandths of a thread. `noise` is added to the measured load of a thread.
    struct Threads {
        calls: Vec<Vec<u64>>,
        noise: fn(usize) -> u64,
        balance: Balance,
        busy_ns: Vec<u64>,
        seconds: usize,
        moves: Vec<(usize, usize)>,
    }

    impl Threads {
        fn new(calls: Vec<Vec<u64>>) -> Threads {
            let busy_ns = vec![0; calls.len()];
            Threads {
                calls,
                noise: |_| 0,
                balance: Balance::default(),
                busy_ns,
                seconds: 0,
                moves: Vec::new(),
            }
        }

        fn busy(&self, thread: usize) -> u64 {
            self.calls[thread].iter().sum::<u64>()
        }

        /// Runs for this number of seconds.
        fn run(&mut self, seconds: usize) {
            for _ in 0..seconds {
                self.seconds += 1;
                let loads = (0..self.calls.len()).map(|thread| {
                    let noise = (self.noise)(self.seconds * 7 + thread * 3);
                    let busy = (self.busy(thread) + noise).min(1000);
                    self.busy_ns[thread] += busy * 1_000_000;
                    Load {
                        calls: self.calls[thread].len() as u64,
                        busy_ns: self.busy_ns[thread],
                        is_late: self.busy(thread) > 1000,
                    }
                });
                let loads = loads.collect();
                let now_ns = self.seconds as u64 * NS_PER_S;
                if let Some((from, to)) = self.balance.choose(now_ns, loads) {
                    let call = self.calls[from].remove(0);
                    self.calls[to].push(call);
                    self.moves.push((from, to));
                }
            }
        }

        fn counts(&self) -> Vec<usize> {
            self.calls.iter().map(Vec::len).collect()
        }

        /// Whether calls left a thread to which others were moved.
        fn went_back(&self) -> bool {
            let froms = self.moves.iter().map(|(from, _)| from);
            froms.into_iter().any(|from| {
                let mut all = self.moves.iter();
                all.any(|(_, to)| to == from)
            })
        }
    }

    #[test]
    fn a_thousand_calls_on_one_of_two_threads_are_spread_within_ten_minutes() {
        for load in [0, 1] {
            let mut threads = Threads::new(vec![vec![load; 1000], Vec::new()]);
            threads.noise = |n| (n as u64 * 13) % 40;
            threads.run(600);
            let counts = threads.counts();
            assert!(
                counts.iter().all(|count| (450..=550).contains(count)),
                "{load}: {counts:?}"
            );
            assert!(!threads.went_back());
        }
    }

    #[test]
    fn balanced_threads_move_nothing() {
        for counts in [[0, 0], [1, 0], [5, 0], [5, 5], [500, 530]] {
            let mut threads = Threads::new(counts.map(|count| vec![1; count]).into());
            threads.noise = |n| (n as u64 * 13) % 100;
            threads.run(300);
            assert_eq!(threads.moves, [], "{counts:?}");
        }
    }

    #[test]
    fn few_calls_are_spread_evenly() {
        let mut threads = Threads::new(vec![vec![1; 10], Vec::new(), Vec::new()]);
        threads.run(60);
        let mut counts = threads.counts();
        counts.sort_unstable();
        assert_eq!(counts, [3, 3, 4]);
        assert!(!threads.went_back());
    }

    /// The calls of the first thread need ten times as much work. So the first thread keeps fewer of them than the second one.
    #[test]
    fn calls_of_different_load_are_spread_by_load_without_moves_back() {
        let mut threads = Threads::new(vec![vec![10; 98], vec![1; 98]]);
        threads.noise = |n| (n as u64 * 13) % 50;
        threads.run(600);
        let busy = [threads.busy(0), threads.busy(1)];
        assert!(busy[0].abs_diff(busy[1]) <= BUSY_START, "{busy:?}");
        assert!(!threads.went_back(), "{:?}", threads.moves);
        let moves = threads.moves.len();
        threads.run(600);
        assert_eq!(threads.moves.len(), moves);
    }

    #[test]
    fn a_single_busy_call_stays() {
        let mut threads = Threads::new(vec![vec![900], vec![10]]);
        threads.run(60);
        assert_eq!(threads.moves, []);
    }

    #[test]
    fn late_threads_hand_over_calls_and_get_none() {
        let load = |calls, is_late| Load {
            calls,
            busy_ns: 0,
            is_late,
        };
        let choose = |loads: [Load; 3]| {
            let mut balance = Balance::default();
            assert_eq!(balance.choose(0, loads.into()), None);
            balance.choose(NS_PER_S, loads.into())
        };
        let late = load(10, true);
        assert_eq!(
            choose([load(10, false), late, load(12, false)]),
            Some((1, 0))
        );
        assert_eq!(choose([late, late, late]), None);
        // The second thread has no calls, but it is late.
        assert_eq!(
            choose([load(20, false), load(0, true), load(20, false)]),
            None
        );
    }

    #[test]
    fn there_is_one_decision_in_a_second() {
        let loads = |calls| {
            let load = |calls| Load {
                calls,
                busy_ns: 0,
                is_late: false,
            };
            vec![load(calls), load(0)]
        };
        let mut balance = Balance::default();
        let times_ms = [0, 500, 995, 1500, 1990, 2990];
        let chosen = times_ms.map(|ms| balance.choose(ms * 1_000_000, loads(100)).is_some());
        assert_eq!(chosen, [false, false, true, false, true, true]);
    }
}
