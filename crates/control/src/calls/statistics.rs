//! Counters since the start, for the reply to `statistics`.

use super::failure::Failure;
use super::record::EndReason;
use super::spec::{StreamKind, StreamSpec};
use super::{Calls, Outcome};
use crate::ng::{Command, Dictionary, Reply};
use threadbare_base::NS_PER_S;

/// Counters since the start.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// Number of offered calls that were accepted.
    pub calls: u64,
    /// Number of calls that a limit refused.
    pub refused: u64,
    /// Number of requests that were answered with an error.
    pub errors: u64,
    /// Number of calls that have ended, for each reason in [`EndReason::ALL`].
    pub ended: [u64; EndReason::ALL.len()],
    /// Total duration of the ended calls, ns.
    pub duration_ns: u64,
    /// Number of requests, for each command in [`Command::NAMES`].
    pub requests: [u64; Command::NAMES.len()],
}

impl Totals {
    pub(super) fn count_request(&mut self, command: Command) {
        let place = Command::NAMES.iter().position(|(_, one)| *one == command);
        if let Some(count) = place.and_then(|place| self.requests.get_mut(place)) {
            *count += 1;
        }
    }

    pub(super) fn count_failure(&mut self, failure: &Failure) {
        self.errors += 1;
        self.refused += u64::from(matches!(failure, Failure::Limit(_)));
    }

    pub(super) fn count_end(&mut self, reason: EndReason, lasted_ns: u64) {
        self.ended[reason.place()] += 1;
        self.duration_ns = self.duration_ns.saturating_add(lasted_ns);
    }

    /// Returns the number of calls that ended for this reason.
    #[must_use]
    pub fn ended(&self, reason: EndReason) -> u64 {
        self.ended[reason.place()]
    }
}

impl EndReason {
    fn place(self) -> usize {
        let place = EndReason::ALL.iter().position(|one| *one == self);
        place.unwrap_or(0)
    }
}

/// The commands with the names of their counters. The reply must have "identical content and format as the `list jsonstats` CLI command".
const COUNTERS: &[(Command, &str)] = &[
    (Command::Ping, "totalpingcount"),
    (Command::Offer, "totaloffercount"),
    (Command::Answer, "totalanswercount"),
    (Command::Delete, "totaldeletecount"),
    (Command::Query, "totalquerycount"),
    (Command::List, "totallistcount"),
    (Command::StartRecording, "totalstartreccount"),
    (Command::StopRecording, "totalstopreccount"),
    (Command::StartForwarding, "totalstartfwdcount"),
    (Command::StopForwarding, "totalstopfwdcount"),
    (Command::BlockDtmf, "totalblkdtmfcount"),
    (Command::UnblockDtmf, "totalunblkdtmfcount"),
    (Command::BlockMedia, "totalblkmedia"),
    (Command::UnblockMedia, "totalunblkmedia"),
    (Command::PlayMedia, "totalplaymedia"),
    (Command::StopMedia, "totalstopmedia"),
    (Command::PlayDtmf, "totalplaydtmf"),
    (Command::Statistics, "totalstatistics"),
];

pub(super) fn handle_statistics<P>(calls: &Calls<P>, now_ns: u64) -> Outcome {
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let own = number(calls.len() as u64);
    let mut current = Dictionary::new();
    current.push("sessionsown", own);
    current.push("sessionsforeign", 0);
    current.push("sessionstotal", own);
    current.push("transcodedmedia", number(calls.streams()[1] as u64));
    let totals = &calls.totals;
    let mut all = Dictionary::new();
    let uptime_ns = now_ns.saturating_sub(calls.settings.started_ns);
    all.push("uptime", (uptime_ns / NS_PER_S).to_string());
    all.push("managedsessions", number(totals.calls));
    all.push("rejectedsessions", number(totals.refused));
    for (name, reason) in [
        ("timeoutsessions", EndReason::MediaTimeout),
        ("silenttimeoutsessions", EndReason::SilentTimeout),
        ("finaltimeoutsessions", EndReason::FinalTimeout),
        ("offertimeoutsessions", EndReason::OfferTimeout),
        ("regularterminatedsessions", EndReason::Deleted),
        ("forcedterminatedsessions", EndReason::Operator),
    ] {
        all.push(name, number(totals.ended(reason)));
    }
    let ended = totals.ended.iter().sum::<u64>().max(1);
    let average_us = totals.duration_ns / ended / 1000;
    let average = format!("{}.{:06}", average_us / 1_000_000, average_us % 1_000_000);
    all.push("avgcallduration", average);
    let mut control = Dictionary::new();
    for (command, name) in COUNTERS {
        let place = Command::NAMES.iter().position(|(_, one)| one == command);
        let count = place.map_or(0, |place| totals.requests[place]);
        control.push(*name, number(count));
    }
    control.push("totalerrorcount", number(totals.errors));
    let mut statistics = Dictionary::new();
    statistics.push("currentstatistics", current);
    statistics.push("totalstatistics", all);
    statistics.push("controlstatistics", control);
    let mut keys = Dictionary::new();
    keys.push("statistics", statistics);
    Outcome::Reply(Reply::Ok(keys))
}

/// Whether the audio that a side prefers to get differs from all formats that the other side sends.
pub(super) fn is_transcoded(spec: &StreamSpec) -> bool {
    let is_made = |from: usize, to: usize| {
        let (Some(sends), Some(takes)) = (&spec.sides[from].sends, &spec.sides[to].takes) else {
            return false;
        };
        let audio = sends.audio();
        let same = takes
            .iter()
            .any(|one| one.carries == audio.carries && one.clock_rate_hz == audio.clock_rate_hz);
        !same
    };
    spec.kind == StreamKind::Audio && (is_made(0, 1) || is_made(1, 0))
}
