//! Gathers the current values of streams, and their last seconds.

use std::collections::BTreeMap;
use std::sync::Arc;

use threadbare_relay::LineSnapshot;

use super::alarm::{AlarmKind, Alarms, Change, Rules};
use super::directory::{Listed, Watched};
use super::history::Batch;
use super::second::{Level, RECENT_SECONDS, Recent, Second};

/// The gathered data of all streams. It reads no clock: the time is a parameter, as ns of CLOCK_MONOTONIC and as s since 1970.
#[derive(Debug, Default)]
pub struct Gatherer {
    generation: u64,
    tracks: BTreeMap<usize, Track>,
    /// The last complete second, s since 1970.
    unix_s: u64,
    rules: Rules,
    /// Number of changes of alarms so far.
    changes: u64,
}

/// Selects the streams whose seconds are saved now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// A sixtieth of all streams, which avoids a burst once a minute.
    Of(u64),
    /// All streams.
    All,
}

impl Turn {
    fn is_of(self, number: usize) -> bool {
        match self {
            Turn::Of(unix_s) => number as u64 % TURNS == unix_s % TURNS,
            Turn::All => true,
        }
    }
}

/// An alarm of a stream or of a party was raised, or has ended.
#[derive(Debug, Clone)]
pub struct AlarmChange {
    /// The stream or the call.
    pub name: Arc<str>,
    /// The party of the call. `None`: the alarm is that of a stream.
    pub party: Option<PartyId>,
    /// The change.
    pub change: Change,
}

/// A party of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartyId {
    /// Number of the call's stream.
    pub stream: u64,
    /// The side of the stream: 0 is the party that offered first.
    pub side: usize,
}

/// The data of one stream.
#[derive(Debug)]
pub struct Track {
    /// The data from the directory.
    pub watched: Watched,
    /// The last snapshot.
    pub snapshot: LineSnapshot,
    /// The current values.
    pub tile: Tile,
    /// The last seconds.
    pub recent: Recent,
    /// The alarms.
    pub alarms: Alarms,
    /// Counters of packets and losses at the end of the last complete second.
    second_from: (u64, u64),
    /// Start of the current programme, s since 1970; `None`: the programme started with the stream.
    pub programme_s: Option<u64>,
    /// Time up to which seconds were saved, s since 1970.
    kept_s: u64,
    /// Maximum momentary loudness in the current second.
    momentary_max: Level,
    peak_max: Level,
}

/// A summary of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tile {
    /// The state of the stream.
    pub state: TileState,
    /// Momentary loudness (400 ms), LUFS.
    pub momentary_lufs: Level,
    /// Short-term loudness (3 s), LUFS.
    pub short_term_lufs: Level,
    /// Maximum true peak since the last reading, dBTP.
    pub true_peak_dbtp: Level,
    /// Packets lost or late in the last 10 s, in thousandths of the expected ones.
    pub lost_permille: u16,
}

/// The state of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum TileState {
    /// The stream does not run, and will be restarted.
    #[default]
    Stopped = 0,
    /// The stream runs, but no packets come.
    Waiting = 1,
    /// The stream receives packets from its sender.
    Heard = 2,
    /// A fallback is active.
    Fallback = 3,
}

impl TileState {
    /// Returns the state with a number.
    #[must_use]
    pub fn of(number: u8) -> Option<TileState> {
        let all = [
            TileState::Stopped,
            TileState::Waiting,
            TileState::Heard,
            TileState::Fallback,
        ];
        all.get(usize::from(number)).copied()
    }

    /// Returns the name in `/v1/streams`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TileState::Stopped => "stopped",
            TileState::Waiting => "waiting",
            TileState::Heard => "heard",
            TileState::Fallback => "fallback",
        }
    }
}

impl Gatherer {
    /// Returns the rules of alarms.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Sets the rules of alarms.
    pub fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// Returns the number of changes of alarms so far.
    #[must_use]
    pub fn alarm_changes(&self) -> u64 {
        self.changes
    }

    /// Acknowledges an alarm. Returns `false` if it is not raised.
    pub fn acknowledge(&mut self, name: &str, kind: AlarmKind) -> bool {
        let mut tracks = self.tracks.values_mut();
        let track = tracks.find(|one| &*one.watched.name == name);
        let is_raised = track.is_some_and(|track| track.alarms.acknowledge(kind));
        self.changes += u64::from(is_raised);
        is_raised
    }

    /// Reads all streams. Returns whether a second has ended, so that alarms may have changed.
    pub fn look(
        &mut self,
        now_ns: u64,
        unix_s: u64,
        listed: &Listed,
        mut tell: impl FnMut(AlarmChange),
    ) -> bool {
        // Skip the first second, because it is incomplete.
        let is_second = unix_s != self.unix_s && self.unix_s != 0;
        self.unix_s = unix_s;
        if listed.generation != self.generation {
            self.generation = listed.generation;
            let streams = &listed.streams;
            let known = |number: &usize| streams.binary_search_by_key(number, |(one, _)| *one);
            self.tracks.retain(|number, track| {
                let stays = known(number).is_ok();
                for alarm in track.alarms.raised().filter(|_| !stays) {
                    let name = track.watched.name.clone();
                    let change = Change::Cleared(*alarm);
                    let party = None;
                    tell(AlarmChange {
                        name,
                        party,
                        change,
                    });
                }
                stays
            });
            self.changes += 1;
        }
        for (number, watched) in &listed.streams {
            let track = self.tracks.entry(*number);
            let track = track.or_insert_with(|| Track::new(watched.clone()));
            track.watched.stopped.clone_from(&watched.stopped);
            track.look(now_ns, watched.snapshot.take());
            if is_second {
                track.end_second(unix_s);
                let name = track.watched.name.clone();
                let (target, recent) = (track.watched.target_lufs, &track.recent);
                let changes = &mut self.changes;
                track
                    .alarms
                    .end_second(&self.rules, target, recent, |change| {
                        *changes += 1;
                        let (name, party) = (name.clone(), None);
                        tell(AlarmChange {
                            name,
                            party,
                            change,
                        });
                    });
            }
        }
        is_second
    }

    /// Resets integrated loudness, range and true peak of a stream. Returns `false` if the stream does not exist, or is not
    /// measured.
    pub fn begin_programme(&mut self, name: &str) -> bool {
        let unix_s = self.unix_s;
        let mut tracks = self.tracks.values_mut();
        let track = tracks.find(|one| &*one.watched.name == name);
        track.is_some_and(|track| track.begin_programme(unix_s))
    }

    /// Acts as [`begin_programme`](Self::begin_programme) for all streams that have a reset at one of these times, in minutes
    /// after local midnight.
    pub fn begin_programmes(&mut self, minutes: &[u16]) {
        for track in self.tracks.values_mut() {
            if track.watched.resets.iter().any(|one| minutes.contains(one)) {
                track.begin_programme(self.unix_s);
            }
        }
    }

    /// Returns the unsaved seconds of the selected streams.
    #[must_use]
    pub(super) fn unkept(&self, turn: Turn) -> Batch {
        let due = self
            .tracks
            .iter()
            .filter(|(number, _)| turn.is_of(**number));
        let unkept = due.map(|(_, track)| {
            let seconds = track.recent.last(RECENT_SECONDS);
            let seconds = seconds.filter(|one| one.unix_s > track.kept_s).copied();
            (track.watched.name.clone(), seconds.collect::<Vec<_>>())
        });
        unkept.filter(|(_, seconds)| !seconds.is_empty()).collect()
    }

    /// Marks the seconds of the selected streams as saved.
    pub(super) fn note_kept(&mut self, turn: Turn) {
        let due = self.tracks.iter_mut();
        for (_, track) in due.filter(|(number, _)| turn.is_of(**number)) {
            track.kept_s = track.recent.latest().map_or(0, |one| one.unix_s);
        }
    }

    /// Returns the last complete second, s since 1970; 0: none yet.
    #[must_use]
    pub(super) fn unix_s(&self) -> u64 {
        self.unix_s
    }

    /// Returns the generation of the list of streams.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns all streams, in the order of the configuration.
    pub fn tracks(&self) -> impl ExactSizeIterator<Item = &Track> {
        self.tracks.values()
    }

    /// Returns the stream with a name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Track> {
        self.tracks.values().find(|one| &*one.watched.name == name)
    }
}

impl Track {
    fn new(watched: Watched) -> Track {
        Track {
            watched,
            snapshot: LineSnapshot::default(),
            tile: Tile::default(),
            recent: Recent::default(),
            alarms: Alarms::default(),
            second_from: (0, 0),
            programme_s: None,
            kept_s: 0,
            momentary_max: Level::NONE,
            peak_max: Level::NONE,
        }
    }

    /// Returns the name of the active input, if there are fallbacks.
    #[must_use]
    pub fn active(&self) -> Option<&str> {
        let inputs = &self.watched.inputs;
        let active = inputs
            .get(self.snapshot.active)
            .filter(|_| inputs.len() > 1);
        active.map(String::as_str)
    }

    fn begin_programme(&mut self, unix_s: u64) -> bool {
        let is_measured = self.snapshot.loudness.is_some();
        if is_measured {
            self.watched.snapshot.begin_programme();
            self.programme_s = Some(unix_s);
        }
        is_measured
    }

    fn look(&mut self, now_ns: u64, snapshot: LineSnapshot) {
        self.snapshot = snapshot;
        let state = self.state(now_ns);
        let levels = snapshot.loudness.filter(|_| state >= TileState::Heard);
        let level = |of: fn(&threadbare_relay::Loudness) -> f64| {
            levels
                .as_ref()
                .map_or(Level::NONE, |all| Level::new(of(all)))
        };
        let true_peak_dbtp = match levels {
            Some(_) => Level::new(20.0 * snapshot.peak.log10()),
            None => Level::NONE,
        };
        self.tile = Tile {
            state,
            momentary_lufs: level(|all| all.momentary_lufs),
            short_term_lufs: level(|all| all.short_term_lufs),
            true_peak_dbtp,
            lost_permille: lost_permille(
                since_second(&self.snapshot, self.second_from),
                &self.recent,
            ),
        };
        self.momentary_max = self.momentary_max.max(self.tile.momentary_lufs);
        self.peak_max = self.peak_max.max(true_peak_dbtp);
    }

    fn state(&self, now_ns: u64) -> TileState {
        let snapshot = &self.snapshot;
        let is_recent = |at_ns: u64| now_ns.saturating_sub(at_ns) < SILENT_NS;
        if self.watched.stopped.is_some() {
            return TileState::Stopped;
        }
        if snapshot.active > 0 && snapshot.shown_ns.is_some_and(is_recent) {
            return TileState::Fallback;
        }
        if snapshot.heard_ns.is_some_and(is_recent) {
            TileState::Heard
        } else {
            TileState::Waiting
        }
    }

    fn end_second(&mut self, unix_s: u64) {
        let (packets, lost) = since_second(&self.snapshot, self.second_from);
        self.second_from = (self.snapshot.packets, self.snapshot.lost);
        let loudness = self.snapshot.loudness.as_ref();
        let level = |of: fn(&threadbare_relay::Loudness) -> f64| {
            loudness.map_or(Level::NONE, |all| Level::new(of(all)))
        };
        self.recent.push(Second {
            unix_s,
            is_heard: self.tile.state >= TileState::Heard,
            is_measured: loudness.is_some(),
            momentary_lufs: std::mem::take(&mut self.momentary_max),
            short_term_lufs: self.tile.short_term_lufs,
            integrated_lufs: level(|all| all.integrated_lufs),
            range_lu: level(|all| all.range_lu),
            true_peak_dbtp: std::mem::take(&mut self.peak_max),
            packets,
            lost,
            lost_permille: self.tile.lost_permille,
            skew_us: self.snapshot.skew_ns / 1000,
            jitter_us: (self.snapshot.jitter_ns / 1000) as u32,
            held_packets: self.snapshot.held_packets,
        });
    }
}

/// Returns the numbers of packets and losses since the current second started. `from`: the counters at that time. After a restart
/// of the stream, its counters start at 0.
pub(super) fn since_second(snapshot: &LineSnapshot, from: (u64, u64)) -> (u32, u32) {
    let since = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
    let (packets, lost) = (
        since(snapshot.packets, from.0),
        since(snapshot.lost, from.1),
    );
    (packets as u32, lost as u32)
}

/// Returns the losses of the last 10 s in thousandths. `current`: packets and losses of the current second.
pub(super) fn lost_permille(current: (u32, u32), recent: &Recent) -> u16 {
    let (mut packets, mut lost) = current;
    for second in recent.last(LOSS_SECONDS - 1) {
        packets += second.packets;
        lost += second.lost;
    }
    match u64::from(packets) + u64::from(lost) {
        0 => 0,
        // Late packets count both as received and as lost.
        due => (u64::from(lost) * 1000 / due).min(1000) as u16,
    }
}

/// Time without packets after which a stream is waiting. It is well above a second, because without observers, streams update
/// their snapshots once a second, and because packets may be sparse.
pub(super) const SILENT_NS: u64 = 3_000_000_000;
/// Number of parts of [`Turn::Of`]. Each stream is saved once a minute.
const TURNS: u64 = 60;
/// Window of [`Tile::lost_permille`].
pub(super) const LOSS_SECONDS: usize = 10;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use threadbare_relay::{Loudness, SharedSnapshot};

    use super::*;
    use crate::Way;

    #[test]
    fn the_loudness_of_metered_streams_is_reset_on_schedule() {
        let watched = |name: &str, resets: &[u16]| Watched {
            name: name.into(),
            target_lufs: None,
            inputs: [name.to_owned()].into(),
            resets: resets.into(),
            way: Arc::new(Way {
                listen: SocketAddr::from(([127, 0, 0, 1], 5004)),
                listen_rtcp: None,
                destination: "nobody".to_owned(),
                codec_in: "PCMU".to_owned(),
                codec_out: None,
                clock_rate_out_hz: None,
                is_decoded: true,
            }),
            stopped: None,
            snapshot: SharedSnapshot::default(),
            session: None,
        };
        let streams = [
            watched("morning", &[6 * 60, 22 * 60]),
            watched("evening", &[22 * 60]),
            watched("always", &[]),
            watched("silent", &[6 * 60]),
        ];
        let listed = Listed {
            generation: 1,
            streams: streams.into_iter().enumerate().collect(),
        };
        let mut gatherer = Gatherer::default();
        let look = |gatherer: &mut Gatherer, unix_s| {
            gatherer.look(0, unix_s, &listed, |_| ());
            // Set the values that snapshots of metered streams would have.
            for track in gatherer.tracks.values_mut().take(3) {
                track.snapshot.loudness = Some(Loudness {
                    momentary_lufs: -23.0,
                    short_term_lufs: -23.0,
                    integrated_lufs: -23.0,
                    range_lu: 0.0,
                    true_peak_dbtp: -20.0,
                });
            }
        };
        let begun = |gatherer: &Gatherer| {
            let tracks = gatherer.tracks();
            tracks.map(|one| one.programme_s).collect::<Vec<_>>()
        };
        look(&mut gatherer, 1000);
        gatherer.begin_programmes(&[6 * 60 - 1]);
        assert_eq!(begun(&gatherer), [None; 4]);
        gatherer.begin_programmes(&[6 * 60]);
        assert_eq!(begun(&gatherer), [Some(1000), None, None, None]);
        look(&mut gatherer, 2000);
        gatherer.begin_programmes(&[22 * 60 - 1, 22 * 60]);
        assert_eq!(begun(&gatherer), [Some(2000), Some(2000), None, None]);
        assert!(gatherer.begin_programme("always") && !gatherer.begin_programme("silent"));
        assert_eq!(begun(&gatherer)[2], Some(2000));
    }
}
