//! Alarms of calls, with the rules and the code of the streams' alarms.
//!
//! | data | threads |
//! |---|---|
//! | the list of calls, and [`WatchedCall::expect`] | the control thread writes, the observing thread reads |
//! | the snapshot of a party | the media thread writes, the observing thread reads |
//! | the alarms of a call | the observing thread writes once a second, any thread reads |
//!
//! A party needs some 2 KiB, because only the last seconds are stored.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use threadbare_base::lock;
use threadbare_relay::{LineSnapshot, Pace, SharedSnapshot};

use super::alarm::{Alarm, AlarmKind, Alarms, Change, Rules};
use super::gather::{AlarmChange, LOSS_SECONDS, PartyId, SILENT_NS, lost_permille, since_second};
use super::second::{Level, Recent, Second};

/// The current calls. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct WatchedCalls(Arc<Mutex<List>>);

#[derive(Debug, Default)]
struct List {
    /// The calls by the number of their stream. Numbers are not reused.
    calls: BTreeMap<u64, Arc<Call>>,
    /// Calls that have ended with a raised alarm, whose end was not reported yet.
    ended: Vec<(u64, Arc<Call>)>,
}

/// Handle to a stream between the two parties of a call. When it is dropped, the alarms of the parties end.
#[derive(Debug)]
pub struct WatchedCall {
    list: WatchedCalls,
    stream: u64,
    call: Arc<Call>,
}

#[derive(Debug)]
struct Call {
    name: Arc<str>,
    parties: [Party; 2],
}

#[derive(Debug, Default)]
struct Party {
    snapshot: SharedSnapshot,
    is_expected: AtomicBool,
    track: Mutex<PartyTrack>,
}

/// A party with an alarm.
#[derive(Debug, Clone, PartialEq)]
pub struct PartyAlarm {
    /// Name of the call.
    pub call: Arc<str>,
    /// The party.
    pub party: PartyId,
    /// The alarm.
    pub alarm: Alarm,
}

/// The last seconds of a party, and its alarms.
#[derive(Debug)]
struct PartyTrack {
    alarms: Alarms,
    recent: Recent,
    /// Counters of packets and losses at the end of the last second.
    second_from: (u64, u64),
    /// Time since which the party is expected to send. `None`: it is not.
    expected_ns: Option<u64>,
}

impl Default for PartyTrack {
    fn default() -> PartyTrack {
        PartyTrack {
            alarms: Alarms::default(),
            recent: Recent::with_room(LOSS_SECONDS),
            second_from: (0, 0),
            expected_ns: None,
        }
    }
}

impl WatchedCalls {
    /// Adds the stream of a call with this name. No party is expected to send yet.
    #[must_use]
    pub fn add(&self, stream: u64, name: &str) -> WatchedCall {
        let call = Arc::new(Call {
            name: name.into(),
            parties: Default::default(),
        });
        lock(&self.0).calls.insert(stream, call.clone());
        WatchedCall {
            list: self.clone(),
            stream,
            call,
        }
    }

    fn list(&self) -> Vec<(u64, Arc<Call>)> {
        let list = lock(&self.0);
        let calls = list.calls.iter();
        calls
            .map(|(stream, call)| (*stream, call.clone()))
            .collect()
    }

    /// Acknowledges an alarm of the parties of a stream. Returns `false` if it is not raised.
    #[must_use]
    pub fn acknowledge(&self, stream: u64, kind: AlarmKind) -> bool {
        let call = lock(&self.0).calls.get(&stream).cloned();
        let parties = call.iter().flat_map(|call| &call.parties);
        let known = parties.filter(|party| lock(&party.track).alarms.acknowledge(kind));
        known.count() > 0
    }

    /// Returns all raised alarms.
    #[must_use]
    pub fn raised(&self) -> Vec<PartyAlarm> {
        let mut all = Vec::new();
        for (stream, call) in self.list() {
            for (side, alarms) in call.alarms().into_iter().enumerate() {
                all.extend(alarms.into_iter().map(|alarm| PartyAlarm {
                    call: call.name.clone(),
                    party: PartyId { stream, side },
                    alarm,
                }));
            }
        }
        all
    }

    /// Evaluates the second that has just ended. Returns the changes of alarms.
    pub(super) fn end_second(
        &self,
        now_ns: u64,
        unix_s: u64,
        rules: &Rules,
        mut tell: impl FnMut(AlarmChange),
    ) {
        let rules = rules.only(&KINDS);
        let ended = std::mem::take(&mut lock(&self.0).ended);
        for (stream, call) in ended {
            for (side, party) in call.parties.iter().enumerate() {
                let mut track = lock(&party.track);
                let party = PartyId { stream, side };
                track.end_alarms(|change| tell(call.change(party, change)));
            }
        }
        for (stream, call) in self.list() {
            for (side, party) in call.parties.iter().enumerate() {
                let mut track = lock(&party.track);
                let is_expected = party.is_expected.load(Relaxed);
                let snapshot = is_expected.then(|| party.snapshot.take());
                let party = PartyId { stream, side };
                track.end_second(now_ns, unix_s, snapshot, &rules, |change| {
                    tell(call.change(party, change));
                });
            }
        }
    }
}

impl WatchedCall {
    /// Returns the snapshots that the media thread must update, and how often.
    #[must_use]
    pub fn snapshots(&self) -> ([SharedSnapshot; 2], Pace) {
        let parties = self.call.parties.each_ref();
        let snapshots = parties.map(|party| party.snapshot.clone());
        (snapshots, Pace::new(Duration::from_secs(1)))
    }

    /// Sets whether each party is expected to send, and the other one can hear it. Otherwise the party has no alarms.
    pub fn expect(&self, are_expected: [bool; 2]) {
        for (party, is_expected) in self.call.parties.iter().zip(are_expected) {
            party.is_expected.store(is_expected, Relaxed);
        }
    }

    /// Returns the raised alarms of each party.
    #[must_use]
    pub fn alarms(&self) -> [Vec<Alarm>; 2] {
        self.call.alarms()
    }
}

impl Drop for WatchedCall {
    fn drop(&mut self) {
        let mut list = lock(&self.list.0);
        if let Some(call) = list.calls.remove(&self.stream)
            && call.alarms().iter().any(|alarms| !alarms.is_empty())
        {
            list.ended.push((self.stream, call));
        }
    }
}

impl Call {
    fn alarms(&self) -> [Vec<Alarm>; 2] {
        let raised = |party: &Party| {
            lock(&party.track)
                .alarms
                .raised()
                .copied()
                .collect::<Vec<_>>()
        };
        self.parties.each_ref().map(raised)
    }

    fn change(&self, party: PartyId, change: Change) -> AlarmChange {
        AlarmChange {
            name: self.name.clone(),
            party: Some(party),
            change,
        }
    }
}

impl PartyTrack {
    /// Ends all alarms.
    fn end_alarms(&mut self, mut tell: impl FnMut(Change)) {
        let alarms = std::mem::take(&mut self.alarms);
        alarms
            .raised()
            .for_each(|alarm| tell(Change::Cleared(*alarm)));
    }

    /// Evaluates a second. `snapshot` is `None` if the party is not expected to send.
    fn end_second(
        &mut self,
        now_ns: u64,
        unix_s: u64,
        snapshot: Option<LineSnapshot>,
        rules: &Rules,
        tell: impl FnMut(Change),
    ) {
        let Some(snapshot) = snapshot else {
            self.expected_ns = None;
            return self.end_alarms(tell);
        };
        // The time before counts neither as silence nor as loss.
        let expected_ns = *self.expected_ns.get_or_insert_with(|| {
            self.second_from = (snapshot.packets, snapshot.lost);
            self.recent = Recent::with_room(LOSS_SECONDS);
            now_ns
        });
        let heard_ns = snapshot.heard_ns.unwrap_or(0).max(expected_ns);
        let (packets, lost) = since_second(&snapshot, self.second_from);
        let loudness = snapshot.loudness.as_ref();
        self.recent.push(Second {
            unix_s,
            is_heard: now_ns.saturating_sub(heard_ns) < SILENT_NS,
            is_measured: loudness.is_some(),
            momentary_lufs: loudness.map_or(Level::NONE, |all| Level::new(all.momentary_lufs)),
            packets,
            lost,
            lost_permille: lost_permille((packets, lost), &self.recent),
            ..Second::default()
        });
        self.second_from = (snapshot.packets, snapshot.lost);
        self.alarms.end_second(rules, None, &self.recent, tell);
    }
}

/// The kinds of alarms that calls have. Calls have no target loudness, and their clocks do not have to be exact.
pub(super) const KINDS: [AlarmKind; 3] =
    [AlarmKind::NoPackets, AlarmKind::Silence, AlarmKind::Loss];

#[cfg(test)]
mod tests {
    use threadbare_relay::Loudness;

    use super::*;

    const S: u64 = 1_000_000_000;

    /// A party whose seconds a test sets.
    #[derive(Default)]
    struct Bed {
        track: PartyTrack,
        now_s: u64,
        snapshot: LineSnapshot,
        told: Vec<(u64, &'static str, AlarmKind)>,
    }

    impl Bed {
        /// Lets some seconds pass. In each of them, `change` updates the snapshot. `None`: the party is not expected to send.
        fn pass(&mut self, seconds: u64, change: Option<fn(&mut LineSnapshot, u64)>) {
            for _ in 0..seconds {
                self.now_s += 1;
                let now_s = self.now_s;
                let snapshot = change.map(|change| {
                    change(&mut self.snapshot, now_s * S);
                    self.snapshot
                });
                let told = &mut self.told;
                self.track
                    .end_second(now_s * S, now_s, snapshot, &Rules::default(), |change| {
                        told.push(match change {
                            Change::Raised(alarm) => (now_s, "raised", alarm.kind),
                            Change::Cleared(alarm) => (now_s, "cleared", alarm.kind),
                        });
                    });
            }
        }
    }

    fn talks(snapshot: &mut LineSnapshot, now_ns: u64) {
        snapshot.heard_ns = Some(now_ns);
        snapshot.packets += 50;
    }

    #[test]
    fn missing_packets_raise_an_alarm_unless_the_party_is_on_hold() {
        let mut bed = Bed::default();
        bed.pass(20, Some(talks));
        // The party counts as silent after 3 s, and the rule holds for 5 s.
        bed.pass(8, Some(|_, _| ()));
        bed.pass(10, Some(talks));
        let no_packets = AlarmKind::NoPackets;
        assert_eq!(
            bed.told,
            [(27, "raised", no_packets), (30, "cleared", no_packets)]
        );
        bed.told.clear();
        // On hold, it raises none, and the time starts again after the hold.
        bed.pass(60, None);
        bed.pass(7, Some(|_, _| ()));
        assert_eq!(bed.told, []);
        bed.pass(1, Some(|_, _| ()));
        assert_eq!(bed.told, [(106, "raised", no_packets)]);
        // The hold ends a raised alarm at once.
        bed.pass(1, None);
        assert_eq!(bed.told[1..], [(107, "cleared", no_packets)]);
    }

    #[test]
    fn losses_and_silence_raise_alarms() {
        let mut bed = Bed::default();
        bed.pass(20, Some(talks));
        bed.pass(
            20,
            Some(|snapshot, now_ns| {
                talks(snapshot, now_ns);
                snapshot.lost += 2;
            }),
        );
        let kinds = |bed: &Bed| {
            bed.told
                .iter()
                .map(|(_, what, kind)| (*what, *kind))
                .collect::<Vec<_>>()
        };
        assert_eq!(kinds(&bed), [("raised", AlarmKind::Loss)]);
        bed.pass(30, Some(talks));
        bed.told.clear();
        bed.pass(
            20,
            Some(|snapshot, now_ns| {
                talks(snapshot, now_ns);
                snapshot.loudness = Some(Loudness {
                    momentary_lufs: -80.0,
                    short_term_lufs: -80.0,
                    integrated_lufs: -23.0,
                    range_lu: 0.0,
                    true_peak_dbtp: -20.0,
                });
            }),
        );
        assert_eq!(kinds(&bed), [("raised", AlarmKind::Silence)]);
        // Losses during a hold do not count.
        let mut held = Bed::default();
        held.pass(20, Some(talks));
        held.pass(60, None);
        held.snapshot.lost += 1000;
        held.pass(30, Some(talks));
        assert_eq!(held.told, []);
    }

    /// There may be thousands of calls.
    #[test]
    fn a_party_needs_at_most_2_kib() {
        let seconds = LOSS_SECONDS * size_of::<Second>();
        let bytes = size_of::<Party>() + seconds + size_of::<LineSnapshot>();
        assert!(bytes <= 2048, "{bytes}");
        let mut recent = Recent::with_room(LOSS_SECONDS);
        (0..100).for_each(|_| recent.push(Second::default()));
        assert_eq!(recent.last(100).count(), LOSS_SECONDS);
    }

    #[test]
    fn alarms_of_an_ended_call_end() {
        let calls = WatchedCalls::default();
        let call = calls.add(7, "1");
        call.expect([true, false]);
        let mut told = Vec::new();
        let mut pass = |seconds: std::ops::Range<u64>| {
            for second in seconds {
                calls.end_second(second * S, second, &Rules::default(), |change| {
                    told.push((
                        second,
                        change.party.map(|party| party.side),
                        matches!(change.change, Change::Raised(_)),
                    ));
                });
            }
            std::mem::take(&mut told)
        };
        assert_eq!(pass(1..20), [(8, Some(0), true)]);
        let raised = calls.raised();
        let party = PartyId { stream: 7, side: 0 };
        assert_eq!((raised.len(), raised[0].party), (1, party));
        assert!(
            !calls.acknowledge(7, AlarmKind::Loss) && !calls.acknowledge(8, AlarmKind::NoPackets)
        );
        assert!(calls.acknowledge(7, AlarmKind::NoPackets));
        assert!(call.alarms()[0][0].is_acknowledged && call.alarms()[1].is_empty());
        drop(call);
        assert_eq!(calls.raised(), []);
        assert_eq!(pass(20..25), [(20, Some(0), false)]);
    }
}
