//! Alarms of streams. A value that is bad for long enough raises an alarm, and a value that is good for long enough ends it. The
//! module reads no clock: the caller calls it once for each second.

use super::second::{Recent, Second};

/// A fault of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AlarmKind {
    /// The stream runs without packets, or does not run. Value: 1.
    NoPackets,
    /// Momentary loudness is too low, LUFS.
    Silence,
    /// Mean short-term loudness is too far from the target, LU.
    Loudness,
    /// True peaks are too high, dBTP.
    TruePeak,
    /// Too many packets are lost or late, percent.
    Loss,
    /// The sender's clock is too fast or too slow, ppm.
    Drift,
}

impl AlarmKind {
    /// All kinds.
    pub const ALL: [AlarmKind; 6] = [
        AlarmKind::NoPackets,
        AlarmKind::Silence,
        AlarmKind::Loudness,
        AlarmKind::TruePeak,
        AlarmKind::Loss,
        AlarmKind::Drift,
    ];

    /// Returns the name in files, metrics and events.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            AlarmKind::NoPackets => "no-packets",
            AlarmKind::Silence => "silence",
            AlarmKind::Loudness => "loudness",
            AlarmKind::TruePeak => "true-peak",
            AlarmKind::Loss => "loss",
            AlarmKind::Drift => "drift",
        }
    }

    /// Returns the kinds of alarms whose bits are set ([`Alarms::bits`]).
    pub fn of_bits(bits: u8) -> impl Iterator<Item = AlarmKind> {
        let is_set = move |kind: &AlarmKind| bits & (1 << *kind as u8) != 0;
        AlarmKind::ALL.into_iter().filter(is_set)
    }

    /// Whether the bit for acknowledged alarms is set ([`Alarms::bits`]).
    #[must_use]
    pub fn is_acknowledged(bits: u8) -> bool {
        bits & ACKNOWLEDGED != 0
    }

    /// Returns the unit of the values.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            AlarmKind::NoPackets => "",
            AlarmKind::Silence => "LUFS",
            AlarmKind::Loudness => "LU",
            AlarmKind::TruePeak => "dBTP",
            AlarmKind::Loss => "percent",
            AlarmKind::Drift => "ppm",
        }
    }
}

/// Conditions to raise and end an alarm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// A value beyond this threshold is bad.
    pub threshold: f64,
    /// Once the alarm is raised, a value must be better than the threshold by this much to be good.
    pub hysteresis: f64,
    /// Seconds in a row for which the value must be bad; at least 1.
    pub hold_s: u32,
    /// Seconds in a row for which the value must be good again.
    pub clear_s: u32,
}

/// The rules for all streams, one for each kind; `None`: the kind is disabled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules([Option<Rule>; AlarmKind::ALL.len()]);

impl Default for Rules {
    /// Returns the default rules. Their thresholds are beyond the usual variation of speech and networks.
    fn default() -> Rules {
        let rule = |threshold, hysteresis, hold_s, clear_s| {
            Some(Rule {
                threshold,
                hysteresis,
                hold_s,
                clear_s,
            })
        };
        Rules([
            rule(0.5, 0.0, 5, 2),
            // EBU Tech 3341 gates at -70 LUFS. No programme is below -60 LUFS for longer than a pause.
            rule(-60.0, 3.0, 15, 2),
            // EBU R 128 allows a deviation of 1 LU for a whole live programme. This rule covers only a minute, so it allows more.
            rule(3.0, 1.0, 60, 10),
            // The maximum true peak of EBU R 128 is -1 dBTP.
            rule(-1.0, 0.5, 1, 10),
            // Listeners start to notice a loss of 1 %.
            rule(1.0, 0.5, 10, 10),
            // Crystal clocks are better than 100 ppm each.
            rule(200.0, 50.0, 60, 60),
        ])
    }
}

impl Rules {
    /// Returns the rule of a kind.
    #[must_use]
    pub fn get(&self, kind: AlarmKind) -> Option<Rule> {
        self.0[kind as usize]
    }

    /// Returns the rules of these kinds only.
    pub(super) fn only(&self, kinds: &[AlarmKind]) -> Rules {
        let mut rules = Rules([None; AlarmKind::ALL.len()]);
        kinds
            .iter()
            .for_each(|kind| rules.set(*kind, self.get(*kind)));
        rules
    }

    /// Sets the rule of a kind.
    pub fn set(&mut self, kind: AlarmKind, rule: Option<Rule>) {
        self.0[kind as usize] = rule;
    }
}

/// An alarm of a stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alarm {
    /// The kind.
    pub kind: AlarmKind,
    /// Time at which the alarm was raised, s since 1970.
    pub since_unix_s: u64,
    /// The worst value so far.
    pub worst: f64,
    /// Whether an operator has acknowledged the alarm.
    pub is_acknowledged: bool,
}

/// A change of an alarm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// The alarm was raised.
    Raised(Alarm),
    /// The alarm has ended.
    Cleared(Alarm),
}

/// The alarms of one stream.
#[derive(Debug, Clone, Default)]
pub struct Alarms([Latch; AlarmKind::ALL.len()]);

#[derive(Debug, Clone, Copy, Default)]
struct Latch {
    /// Seconds in a row for which the value was bad; if the alarm is raised, for which it was good.
    seconds: u32,
    raised: Option<Alarm>,
}

impl Alarms {
    /// Evaluates the second that has just ended. `recent`: the last seconds, including this one. Returns the changes.
    pub fn end_second(
        &mut self,
        rules: &Rules,
        target_lufs: Option<f64>,
        recent: &Recent,
        mut tell: impl FnMut(Change),
    ) {
        let Some(second) = recent.latest() else {
            return;
        };
        for kind in AlarmKind::ALL {
            let latch = &mut self.0[kind as usize];
            let Some(rule) = rules.get(kind) else {
                // The rule was disabled.
                if let Some(alarm) = std::mem::take(latch).raised {
                    tell(Change::Cleared(alarm));
                }
                continue;
            };
            let value = value(kind, &rule, target_lufs, second, recent);
            // For these kinds, the value already covers the whole hold time, so one bad second is enough.
            let hold_s = match kind {
                AlarmKind::Loudness | AlarmKind::Drift => 1,
                _ => rule.hold_s.max(1),
            };
            let rule = Rule { hold_s, ..rule };
            if let Some(change) = latch.step(kind, &rule, second.unix_s, value) {
                tell(change);
            }
        }
    }

    /// Returns a bit for each unacknowledged alarm, in the order of [`AlarmKind::ALL`]. The highest bit shows that there are
    /// acknowledged alarms.
    #[must_use]
    pub fn bits(&self) -> u8 {
        let bit = |alarm: &Alarm| {
            if alarm.is_acknowledged {
                ACKNOWLEDGED
            } else {
                1 << alarm.kind as u8
            }
        };
        self.raised().map(bit).fold(0, |bits, bit| bits | bit)
    }

    /// Returns the raised alarms.
    pub fn raised(&self) -> impl Iterator<Item = &Alarm> {
        self.0.iter().filter_map(|latch| latch.raised.as_ref())
    }

    /// Acknowledges an alarm. Returns `false` if it is not raised.
    pub fn acknowledge(&mut self, kind: AlarmKind) -> bool {
        let raised = self.0[kind as usize].raised.as_mut();
        raised.map(|alarm| alarm.is_acknowledged = true).is_some()
    }
}

impl Latch {
    /// Handles the value of a second. `None`: the value is missing, so nothing changes.
    fn step(
        &mut self,
        kind: AlarmKind,
        rule: &Rule,
        unix_s: u64,
        value: Option<f64>,
    ) -> Option<Change> {
        let value = value?;
        // How far the value is beyond the threshold.
        let excess = match kind {
            AlarmKind::Silence => rule.threshold - value,
            _ => value - rule.threshold,
        };
        match &mut self.raised {
            None if excess > 0.0 => {
                self.seconds += 1;
                if self.seconds < rule.hold_s {
                    return None;
                }
                let alarm = Alarm {
                    kind,
                    since_unix_s: unix_s,
                    worst: value,
                    is_acknowledged: false,
                };
                self.seconds = 0;
                self.raised = Some(alarm);
                Some(Change::Raised(alarm))
            }
            None => {
                self.seconds = 0;
                None
            }
            Some(alarm) => {
                let is_worse = match kind {
                    AlarmKind::Silence => value < alarm.worst,
                    _ => value > alarm.worst,
                };
                if is_worse {
                    alarm.worst = value;
                }
                if excess <= -rule.hysteresis {
                    self.seconds += 1
                } else {
                    self.seconds = 0
                }
                if self.seconds < rule.clear_s.max(1) {
                    return None;
                }
                self.seconds = 0;
                self.raised.take().map(Change::Cleared)
            }
        }
    }
}

const ACKNOWLEDGED: u8 = 0x80;

fn value(
    kind: AlarmKind,
    rule: &Rule,
    target_lufs: Option<f64>,
    second: &Second,
    recent: &Recent,
) -> Option<f64> {
    // If no packets arrive, only the alarm for missing packets applies.
    if kind != AlarmKind::NoPackets && !second.is_heard {
        return None;
    }
    match kind {
        AlarmKind::NoPackets => Some(f64::from(u8::from(!second.is_heard))),
        AlarmKind::Silence => {
            let is_measured = second.is_measured;
            is_measured.then(|| second.momentary_lufs.db().unwrap_or(f64::NEG_INFINITY))
        }
        AlarmKind::Loudness => {
            let target_lufs = target_lufs?;
            let window = recent.last(rule.hold_s.max(1) as usize);
            let levels = window.filter_map(|one| one.short_term_lufs.db());
            let sum = levels.fold((0.0, 0), |(sum, count), db| (sum + db, count + 1));
            let (sum, count): (f64, u32) = sum;
            // Half of the window must have values. A minute of speech with pauses has enough, but the first seconds of a stream
            // do not.
            (count >= rule.hold_s.max(1).div_ceil(2))
                .then(|| (sum / f64::from(count) - target_lufs).abs())
        }
        AlarmKind::TruePeak => second
            .is_measured
            .then(|| second.true_peak_dbtp.db().unwrap_or(f64::NEG_INFINITY)),
        AlarmKind::Loss => Some(f64::from(second.lost_permille) / 10.0),
        AlarmKind::Drift => drift_ppm(rule, recent),
    }
}

/// Returns the drift of the sender's clock over the rule's `hold` seconds.
fn drift_ppm(rule: &Rule, recent: &Recent) -> Option<f64> {
    let seconds = rule.hold_s.max(1) as usize + 1;
    let mut window = recent.last(seconds);
    let (first, last) = (window.next()?, window.next_back()?);
    let elapsed_s = last.unix_s.checked_sub(first.unix_s)?;
    let is_whole = elapsed_s + 1 >= seconds as u64 && first.is_heard;
    is_whole.then(|| ((last.skew_us - first.skew_us) as f64 / elapsed_s as f64).abs())
}

#[cfg(test)]
mod tests {
    use super::super::second::Level;
    use super::*;

    /// A function that makes a second bad.
    type Wrong = fn(&mut Second);

    /// Returns a second of a healthy stream.
    fn well(unix_s: u64) -> Second {
        Second {
            unix_s,
            is_heard: true,
            is_measured: true,
            momentary_lufs: Level::new(-20.0),
            short_term_lufs: Level::new(-23.0),
            true_peak_dbtp: Level::new(-6.0),
            packets: 50,
            ..Second::default()
        }
    }

    /// Runs a stream of seconds. `parts`: how often a second is repeated, and its fault. Returns when alarms were raised and
    /// cleared.
    fn run(rules: &Rules, parts: &[(u32, Wrong)]) -> Vec<(u64, &'static str, AlarmKind)> {
        let (mut alarms, mut recent) = (Alarms::default(), Recent::default());
        let mut told = Vec::new();
        let mut unix_s = 0;
        for (seconds, change) in parts {
            for _ in 0..*seconds {
                unix_s += 1;
                let mut second = well(unix_s);
                change(&mut second);
                recent.push(second);
                alarms.end_second(rules, Some(-23.0), &recent, |change| {
                    told.push(match change {
                        Change::Raised(alarm) => (unix_s, "raised", alarm.kind),
                        Change::Cleared(alarm) => (unix_s, "cleared", alarm.kind),
                    });
                });
            }
        }
        told
    }

    #[test]
    fn a_healthy_stream_raises_no_alarm() {
        assert_eq!(run(&Rules::default(), &[(1000, |_| ())]), []);
    }

    #[test]
    fn alarms_are_raised_and_cleared_after_the_times_of_their_rules() {
        // Kind; fault; seconds from the start of the fault to the alarm; seconds from the end of the fault to the end of the
        // alarm.
        let cases: [(AlarmKind, Wrong, u64, u64); 6] = [
            (AlarmKind::NoPackets, |one| one.is_heard = false, 5, 2),
            (
                AlarmKind::Silence,
                |one| one.momentary_lufs = Level::NONE,
                15,
                2,
            ),
            (
                AlarmKind::TruePeak,
                |one| one.true_peak_dbtp = Level::new(-0.5),
                1,
                10,
            ),
            (AlarmKind::Loss, |one| one.lost_permille = 11, 10, 10),
            // A deviation of 5 LU for 36 of 60 s gives a mean of 3 LU, so the 37th second raises the alarm. The mean is back at 2
            // LU when only 24 of the 60 s are bad. The alarm ends 10 s later.
            (
                AlarmKind::Loudness,
                |one| one.short_term_lufs = Level::new(-18.0),
                37,
                36 + 9,
            ),
            // The clock starts to drift by 300 us a second. In a window of 60 s, the mean is above 200 us a second from the 41st
            // second on. The alarm ends 60 s after the mean has fallen below 150 us a second.
            (
                AlarmKind::Drift,
                |one| one.skew_us = 300 * (one.unix_s as i64 - 100),
                41,
                30 + 59,
            ),
        ];
        for (kind, wrong, raised, cleared) in cases {
            let right: Wrong = match kind {
                AlarmKind::Drift => |one| one.skew_us = 300 * 100,
                _ => |_| (),
            };
            let told = run(
                &Rules::default(),
                &[(100, |_| ()), (100, wrong), (200, right)],
            );
            let due = [
                (100 + raised, "raised", kind),
                (200 + cleared, "cleared", kind),
            ];
            assert_eq!(told, due, "{kind:?}");
        }
    }

    #[test]
    fn brief_fault_raises_no_alarm() {
        let parts: Vec<(u32, Wrong)> = (0..20)
            .flat_map(|_| {
                let wrong: Wrong = |one| {
                    one.lost_permille = 500;
                    one.momentary_lufs = Level::NONE;
                };
                [(9, wrong), (1, |_: &mut Second| ())]
            })
            .collect();
        assert_eq!(run(&Rules::default(), &parts), []);
    }

    #[test]
    fn between_threshold_and_hysteresis_an_alarm_does_not_change() {
        // The values are between the threshold of 1 % and the lower one of 0.5 %.
        let told = run(
            &Rules::default(),
            &[
                (20, |one| one.lost_permille = 20),
                (100, |one| one.lost_permille = 8),
            ],
        );
        assert_eq!(told, [(10, "raised", AlarmKind::Loss)]);
    }

    #[test]
    fn disabling_a_rule_ends_its_alarm() {
        let (mut alarms, mut recent) = (Alarms::default(), Recent::default());
        let mut rules = Rules::default();
        let mut told = Vec::new();
        for unix_s in 1..=5 {
            recent.push(Second {
                is_heard: false,
                ..well(unix_s)
            });
            alarms.end_second(&rules, None, &recent, |change| told.push(change));
        }
        assert!(alarms.acknowledge(AlarmKind::NoPackets));
        assert!(!alarms.acknowledge(AlarmKind::Loss));
        assert!(alarms.raised().all(|alarm| alarm.is_acknowledged));
        rules.set(AlarmKind::NoPackets, None);
        alarms.end_second(&rules, None, &recent, |change| told.push(change));
        assert!(
            matches!(told[..], [Change::Raised(_), Change::Cleared(_)]),
            "{told:?}"
        );
    }
}
