//! Chooses one of several inputs: the first one, in order, that delivers packets.
//!
//! ```text
//!               silent for `timeout`                 silent for `timeout`
//!   0: main ───────────────────────→ 1: fallback ───────────────────────→ 2: fallback ...
//!      ↑ ←─ healthy for `recover_after` ─┘ ←──── healthy for `recover_after` ─┘
//! ```
//!
//! An input is healthy from its first packet on, until no packet has arrived for the time-out of the next input. An input that is produced
//! here, such as a tone, is always healthy. When the active input falls silent, the first healthy input replaces it, or the last input if
//! none is healthy. If the active input is healthy but not the first, a better input replaces it when the better one has been healthy
//! without a break for the active input's `recover_after`.
//!
//! This is pure logic. The owner reports packets of each input, and asks which input should be active.

/// The health of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    /// No packet has arrived for the time-out, or ever.
    Silent,
    /// Packets arrive.
    Well { since_ns: u64, heard_ns: u64 },
    /// The input needs no packets.
    Constant,
}

/// Settings of a fallback, which is any input but the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FallbackConfig {
    /// Silence of the previous input after which this one replaces it, ns. The last input uses its time-out for itself too.
    pub timeout_ns: u64,
    /// Time for which a better input must be healthy before it replaces this one, ns.
    pub recover_after_ns: u64,
    /// Whether the input needs no packets, because it is a tone, silence or a file.
    pub is_constant: bool,
}

/// A change of the active input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// The previous input. 0 is the main one.
    pub from: usize,
    /// The new input.
    pub to: usize,
}

impl Switch {
    /// Whether the change is to a better input.
    #[must_use]
    pub fn is_recovery(self) -> bool {
        self.to < self.from
    }
}

/// Chooses one of several inputs: see the module documentation.
///
/// **Contract.** After each [`handle_heard`](Fallbacks::handle_heard), and at [`next_timeout`](Fallbacks::next_timeout), call
/// [`poll`](Fallbacks::poll) until it returns `None`. Times are ns on one monotonic clock.
#[derive(Debug)]
pub struct Fallbacks {
    /// Settings of all inputs except the first.
    configs: Vec<FallbackConfig>,
    healths: Vec<Health>,
    active: usize,
    switches: u64,
}

impl Fallbacks {
    /// Creates the state for the main input and these fallbacks. The main input is active, and must start within the time-out.
    #[must_use]
    pub fn new(now_ns: u64, configs: &[FallbackConfig]) -> Fallbacks {
        let main = Health::Well {
            since_ns: now_ns,
            heard_ns: now_ns,
        };
        let of_config = |config: &FallbackConfig| {
            if config.is_constant {
                Health::Constant
            } else {
                Health::Silent
            }
        };
        Fallbacks {
            healths: std::iter::once(main)
                .chain(configs.iter().map(of_config))
                .collect(),
            configs: configs.to_vec(),
            active: 0,
            switches: 0,
        }
    }

    /// Notes a packet of this input. Constant inputs, which need no packets, are ignored.
    #[inline]
    pub fn handle_heard(&mut self, now_ns: u64, input: usize) {
        self.expire(now_ns, input);
        match self.healths.get_mut(input) {
            Some(Health::Well { heard_ns, .. }) => *heard_ns = now_ns,
            Some(health @ Health::Silent) => {
                *health = Health::Well {
                    since_ns: now_ns,
                    heard_ns: now_ns,
                };
            }
            Some(Health::Constant) | None => {}
        }
    }

    /// Returns the change that is due, if there is one.
    #[inline]
    pub fn poll(&mut self, now_ns: u64) -> Option<Switch> {
        for input in 0..self.healths.len() {
            self.expire(now_ns, input);
        }
        let to = match self.healths[self.active] {
            Health::Silent => {
                let is_well = |health: &Health| *health != Health::Silent;
                let first = self.healths.iter().position(is_well);
                first.unwrap_or(self.healths.len() - 1)
            }
            Health::Well { .. } | Health::Constant => {
                let due = |input: &usize| self.recovers_at(*input).is_some_and(|at| at <= now_ns);
                (0..self.active).find(due)?
            }
        };
        let from = std::mem::replace(&mut self.active, to);
        (to != from).then(|| {
            self.switches += 1;
            Switch { from, to }
        })
    }

    /// Returns the time of the next poll if no packet arrives before.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        let better = (0..self.active).filter_map(|input| self.recovers_at(input));
        better.chain(self.expires_at(self.active)).min()
    }

    /// Returns the active input.
    #[must_use]
    pub fn active(&self) -> usize {
        self.active
    }

    /// Returns the number of changes of the active input.
    #[must_use]
    pub fn switches(&self) -> u64 {
        self.switches
    }

    fn expire(&mut self, now_ns: u64, input: usize) {
        if self.expires_at(input).is_some_and(|at_ns| at_ns <= now_ns) {
            self.healths[input] = Health::Silent;
        }
    }

    /// Returns the time at which a healthy input becomes silent if no more packets arrive.
    fn expires_at(&self, input: usize) -> Option<u64> {
        let Health::Well { heard_ns, .. } = *self.healths.get(input)? else {
            return None;
        };
        // An input uses the time-out of the next one.
        let config = self.configs.get(input).or(self.configs.last())?;
        Some(heard_ns.saturating_add(config.timeout_ns))
    }

    /// Returns the time at which a better input becomes active if it stays healthy.
    fn recovers_at(&self, input: usize) -> Option<u64> {
        let Health::Well { since_ns, .. } = self.healths[input] else {
            return None;
        };
        let config = self.configs.get(self.active.checked_sub(1)?)?;
        Some(since_ns.saturating_add(config.recover_after_ns))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn live(timeout_ms: u64, recover_after_ms: u64) -> FallbackConfig {
        FallbackConfig {
            timeout_ns: timeout_ms * MS,
            recover_after_ns: recover_after_ms * MS,
            is_constant: false,
        }
    }

    fn tone(timeout_ms: u64, recover_after_ms: u64) -> FallbackConfig {
        FallbackConfig {
            is_constant: true,
            ..live(timeout_ms, recover_after_ms)
        }
    }

    /// Reports packets of inputs, by milliseconds, in order. Returns the changes.
    fn play(
        configs: &[FallbackConfig],
        heard: &[(u64, usize)],
        until_ms: u64,
    ) -> Vec<(u64, Switch)> {
        let mut fallbacks = Fallbacks::new(0, configs);
        let mut changes = Vec::new();
        let mut heard = heard.iter().peekable();
        loop {
            let packet_ns = heard.peek().map_or(u64::MAX, |(ms, _)| ms * MS);
            let due_ns = fallbacks.next_timeout().unwrap_or(u64::MAX);
            let now_ns = packet_ns.min(due_ns);
            if now_ns > until_ms * MS {
                return changes;
            }
            // As on a shard, packets that have arrived are handled before timers.
            while let Some((_, input)) = heard.next_if(|(ms, _)| ms * MS == now_ns) {
                fallbacks.handle_heard(now_ns, *input);
            }
            while let Some(change) = fallbacks.poll(now_ns) {
                changes.push((now_ns / MS, change));
            }
        }
    }

    /// Returns the packets of an input, 20 ms apart.
    fn stream(input: usize, from_ms: u64, to_ms: u64) -> Vec<(u64, usize)> {
        let times = (from_ms..to_ms).step_by(20);
        times.map(|ms| (ms, input)).collect()
    }

    fn to(at_ms: u64, from: usize, to: usize) -> (u64, Switch) {
        (at_ms, Switch { from, to })
    }

    #[test]
    fn main_input_that_never_starts_times_out() {
        assert_eq!(play(&[tone(500, 2000)], &[], 60_000), [to(500, 0, 1)]);
    }

    #[test]
    fn a_pause_shorter_than_the_time_out_changes_nothing() {
        let heard = [stream(0, 0, 1000), stream(0, 1479, 3000)].concat();
        assert_eq!(play(&[tone(500, 2000)], &heard, 2999), []);
    }

    #[test]
    fn main_input_returns_after_being_healthy_for_long_enough() {
        let heard = [stream(0, 0, 1001), stream(0, 5000, 9000)].concat();
        let changes = play(&[tone(500, 2000)], &heard, 8999);
        assert_eq!(changes, [to(1500, 0, 1), to(7000, 1, 0)]);
    }

    /// The input comes and goes, half a second on and a second off, so it is never healthy for two seconds.
    #[test]
    fn an_input_that_fails_repeatedly_is_not_used_again_too_soon() {
        let flapping = (0..30).flat_map(|n| stream(0, 1000 + n * 1500, 1500 + n * 1500));
        let heard: Vec<_> = flapping.collect();
        assert_eq!(play(&[tone(500, 2000)], &heard, 45_000), [to(500, 0, 1)]);
    }

    #[test]
    fn silent_fallback_is_skipped_and_the_last_one_stays_even_if_silent() {
        let configs = [live(500, 1000), live(300, 1000), tone(200, 1000)];
        assert_eq!(play(&configs, &[], 60_000), [to(500, 0, 3)]);
        let configs = [live(500, 1000), live(300, 1000)];
        assert_eq!(play(&configs, &[], 60_000), [to(500, 0, 2)]);
        // A fallback that sends packets replaces the silent one at once. It stays active until 300 ms after its last packet.
        let heard = stream(1, 10_000, 10_101);
        let changes = play(&configs, &heard, 60_000);
        assert_eq!(changes, [to(500, 0, 2), to(10_000, 2, 1), to(10_400, 1, 2)]);
    }

    #[test]
    fn recovered_inputs_replace_worse_ones_in_order() {
        let configs = [live(500, 1000), tone(300, 2000)];
        let heard = {
            let mut heard = [stream(1, 4000, 20_000), stream(0, 10_000, 20_000)].concat();
            heard.sort_unstable();
            heard
        };
        let expected = [to(500, 0, 2), to(6000, 2, 1), to(11_000, 1, 0)];
        assert_eq!(play(&configs, &heard, 19_999), expected);
    }

    /// Evaluates the rules each millisecond from the whole history.
    fn naively(
        configs: &[FallbackConfig],
        heard: &[(u64, usize)],
        until_ms: u64,
    ) -> Vec<(u64, Switch)> {
        let mut changes = Vec::new();
        let mut active = 0;
        let limit_ms = |input: usize| configs[input.min(configs.len() - 1)].timeout_ns / MS;
        for now in 0..=until_ms {
            // The beginning of the time for which an input has been healthy.
            let well_since = |input: usize| {
                if input > 0 && configs[input - 1].is_constant {
                    return Some(0);
                }
                let begin = (input == 0).then_some((0, 0));
                let packets = heard.iter().filter(|(ms, of)| *of == input && *ms <= now);
                let mut times: Vec<u64> = begin.iter().chain(packets).map(|(ms, _)| *ms).collect();
                times.push(now);
                times.reverse();
                let last = *times.get(1)?;
                if now - last >= limit_ms(input) {
                    return None;
                }
                let gap = times[1..]
                    .windows(2)
                    .position(|pair| pair[0] - pair[1] >= limit_ms(input));
                Some(gap.map_or(*times.last()?, |at| times[1 + at]))
            };
            loop {
                let to = match well_since(active) {
                    None => (0..=configs.len())
                        .find(|input| well_since(*input).is_some())
                        .unwrap_or(configs.len()),
                    Some(_) => {
                        let wait_ms = |at: usize| configs[at - 1].recover_after_ns / MS;
                        let is_back = |input: &usize| {
                            well_since(*input).is_some_and(|since| now - since >= wait_ms(active))
                        };
                        (0..active).find(is_back).unwrap_or(active)
                    }
                };
                if to == active {
                    break;
                }
                changes.push((now, Switch { from: active, to }));
                active = to;
            }
        }
        changes
    }

    proptest! {
        #[test]
        fn behaves_like_its_naive_twin(
            settings in prop::collection::vec((1_u64..60, 0_u64..200), 1..4),
            has_tone: bool,
            steps in prop::collection::vec((1_u64..90, 0_usize..4), 0..80),
        ) {
            let count = settings.len();
            let configs: Vec<_> = settings
                .into_iter()
                .enumerate()
                .map(|(n, (timeout_ms, recover_ms))| if has_tone && n + 1 == count { tone(timeout_ms, recover_ms) } else { live(timeout_ms, recover_ms) })
                .collect();
            let mut at_ms = 0;
            let heard: Vec<_> = steps
                .into_iter()
                .filter(|(_, input)| *input <= count && !(has_tone && *input == count))
                .map(|(step, input)| { at_ms += step / 3; (at_ms, input) })
                .collect();
            let until_ms = at_ms + 500;
            prop_assert_eq!(play(&configs, &heard, until_ms), naively(&configs, &heard, until_ms));
        }
    }
}
