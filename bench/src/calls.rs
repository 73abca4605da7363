//! Results file of calls, with one JSON object per line. The first line contains date, commit and machine. Each further line is
//! the row of a measurement. The program `calls` prints these lines, and `make bench-calls` writes the file.

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::libraries::Head;
use crate::lines;
use crate::results;
use crate::stats::Spread;

/// A measured relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Rtpengine,
    Threadbare,
    /// `threadbare serve` with XDP rings in addition to the sockets.
    ThreadbareXdp,
}

/// Kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// 500 calls, PCMU on one side, PCMA on the other.
    Transcoded500,
    /// 1000 calls, PCMU on one side, PCMA on the other.
    Transcoded1000,
    /// 1000 calls, PCMU on both sides.
    Passed1000,
    /// 500 calls, SRTP on one side (AES_CM_128_HMAC_SHA1_80).
    Srtp500,
    /// Offer, answer and delete of calls, one call after the other.
    Signalling,
    /// Offer, answer and delete of calls, 32 calls at a time, as fast as the relay can on one core. Some seconds ago, the process already
    /// had as many calls.
    Flood,
    /// Offer, answer and delete of the first calls of a process, 32 calls at a time, as fast as the relay can on one core.
    FirstFlood,
    /// Memory of a call, and duration of an offer during 1000 calls.
    Idle1000,
    /// 1000 calls, PCMU on both sides, each recorded to a WAV file of 16 bits. This is measured only for threadbare, and only
    /// on demand.
    Recorded1000,
    /// 1000 calls, PCMU on both sides, each recorded to a WAV file with the received G.711 codes. This is measured only for threadbare, and
    /// only on demand.
    Coded1000,
    /// 1000 calls, PCMU on both sides. The relay's process is killed and restarted. This is measured only for threadbare.
    Restarted1000,
}

/// One measurement and its results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub what: What,
    pub relay: Kind,
    pub round: u32,
    #[serde(flatten)]
    pub figures: Figures,
}

/// Results of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us_per_packet: Option<f64>,
    /// Number of packets that did not arrive at the other party.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    /// CPU time of the relay for offer, answer and delete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us_per_call: Option<f64>,
    /// Number of calls that were created and ended per second of wall-clock time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kib_per_call: Option<f64>,
    /// Time within which 99 % of offers are answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offer_ms_p99: Option<f64>,
    /// The longest time without a packet: the maximum over all parties, and the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap_ms: Option<[f64; 2]>,
    /// Number of the relay's threads at the end of the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// The maximum lateness of a slice of the media threads. It comes from the relay's metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_ms: Option<f64>,
    /// Time from the end of the process to the first answer of its successor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_ms: Option<f64>,
}

/// All results of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Calls {
    pub head: Head,
    pub rows: Vec<Row>,
}

/// Function that selects the figure that is compared.
type Figure = fn(&Figures) -> Option<f64>;

/// Maximum ratios of our figures to those of rtpengine in the same round.
const RATIOS: [(&str, What, f64, Figure); 5] = [
    (
        "500 calls, PCMU to PCMA: CPU per packet",
        What::Transcoded500,
        0.3,
        |figures| figures.us_per_packet,
    ),
    (
        "1000 calls, PCMU to PCMA: CPU per packet",
        What::Transcoded1000,
        0.3,
        |figures| figures.us_per_packet,
    ),
    (
        "1000 calls, forwarded unchanged: CPU per packet",
        What::Passed1000,
        0.5,
        |figures| figures.us_per_packet,
    ),
    (
        "500 calls, SRTP to RTP: CPU per packet",
        What::Srtp500,
        0.5,
        |figures| figures.us_per_packet,
    ),
    (
        "offer, answer and delete in the third burst, 32 at a time on one core: CPU per call",
        What::Flood,
        0.33,
        |figures| figures.us_per_call,
    ),
];

/// Maximum values of our figures.
const LIMITS: [(&str, &str, What, f64, Figure); 3] = [
    (
        "99 % of offers, 200 a second during 1000 calls: answered within",
        "ms",
        What::Idle1000,
        5.0,
        |figures| figures.offer_ms_p99,
    ),
    (
        "packets of the 1000 calls lost in this time",
        "packets",
        What::Idle1000,
        0.0,
        |figures| figures.lost.map(|lost| lost as f64),
    ),
    (
        "memory of an idle call",
        "KiB",
        What::Idle1000,
        30.0,
        |figures| figures.kib_per_call,
    ),
];

impl Calls {
    /// Reads the results file in this folder. Returns `None` if the file does not exist yet.
    pub fn read(folder: &Path) -> Result<Option<Calls>> {
        Calls::read_file(&folder.join(FILE_NAME))
    }

    /// Reads the results file of recorded calls in this folder.
    pub fn read_recordings(folder: &Path) -> Result<Option<Calls>> {
        Calls::read_file(&folder.join(RECORDINGS_FILE_NAME))
    }

    fn read_file(path: &Path) -> Result<Option<Calls>> {
        let read = lines::read(path)?;
        Ok(read.map(|(head, rows)| Calls { head, rows }))
    }

    /// Returns the number of rounds.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.rows.iter().map(|row| row.round + 1).max().unwrap_or(0)
    }

    /// Returns the spread of a figure over all rounds.
    #[must_use]
    pub fn spread(&self, what: What, relay: Kind, figure: Figure) -> Option<Spread> {
        let rows = self.rows.iter();
        let rows = rows.filter(|row| row.what == what && row.relay == relay);
        Spread::of(
            &rows
                .filter_map(|row| figure(&row.figures))
                .collect::<Vec<_>>(),
        )
    }

    /// Returns the ratio of a figure to that of rtpengine in the same round.
    #[must_use]
    pub fn ratio(&self, what: What, relay: Kind, figure: Figure) -> Option<Spread> {
        self.ratio_of((what, relay), (what, Kind::Rtpengine), figure)
    }

    /// Returns the ratio of the CPU time per packet of recorded calls to that of unrecorded calls in the same round. Both are
    /// figures of threadbare without XDP.
    #[must_use]
    pub fn recorded_ratio(&self, recorded: What) -> Option<Spread> {
        let [recorded, alone] = [recorded, What::Passed1000].map(|what| (what, Kind::Threadbare));
        self.ratio_of(recorded, alone, |figures| figures.us_per_packet)
    }

    fn ratio_of(&self, one: (What, Kind), other: (What, Kind), figure: Figure) -> Option<Spread> {
        let of = |(what, relay), round| {
            let mut rows = self.rows.iter();
            let row = rows.find(|row| (row.what, row.relay, row.round) == (what, relay, round))?;
            figure(&row.figures)
        };
        let rounds = 0..self.rounds();
        let ratios = rounds.filter_map(|round| Some(of(one, round)? / of(other, round)?));
        Spread::of(&ratios.collect::<Vec<_>>())
    }

    /// Returns the targets of one of our relays, and whether they are met.
    #[must_use]
    pub fn targets(&self, relay: Kind) -> Vec<results::Row> {
        let target = |what: &str, unit: &str, limit, measured: Option<Spread>| results::Row {
            part: "Calls".into(),
            what: what.into(),
            unit: unit.into(),
            limit,
            measured,
            pass: measured.map(|spread| spread.median <= limit),
        };
        let ratios = RATIOS.iter().map(|(name, what, limit, figure)| {
            target(name, "x", *limit, self.ratio(*what, relay, *figure))
        });
        let limits = LIMITS.iter().map(|(name, unit, what, limit, figure)| {
            target(name, unit, *limit, self.spread(*what, relay, *figure))
        });
        ratios.chain(limits).collect()
    }
}

const FILE_NAME: &str = "calls.jsonl";
const RECORDINGS_FILE_NAME: &str = "recordings.jsonl";

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#"{"date_utc":"d","commit":"c","tree_dirty":false,"machine":{"cpu":"C","cores":2,"kernel":"6","distribution":"D","gstreamer":""}}"#;

    fn row(what: &str, relay: &str, round: u32, us: f64) -> String {
        format!(
            r#"{{"what":"{what}","relay":"{relay}","round":{round},"us_per_packet":{us:?},"lost":0,"sent":1}}"#
        )
    }

    fn parsed(text: &str) -> Calls {
        let (head, rows) = lines::parse(text).unwrap();
        Calls { head, rows }
    }

    #[test]
    fn each_ratio_compares_cases_of_one_round() {
        let row = |relay, round, us| row("passed1000", relay, round, us);
        let all = [
            HEAD.to_owned(),
            row("rtpengine", 0, 10.0),
            row("threadbare-xdp", 0, 4.0),
            row("rtpengine", 1, 20.0),
            row("threadbare-xdp", 1, 6.0),
        ];
        let calls = parsed(&all.join("\n"));
        let us = |figures: &Figures| figures.us_per_packet;
        let ratio = calls
            .ratio(What::Passed1000, Kind::ThreadbareXdp, us)
            .unwrap();
        assert_eq!((ratio.min, ratio.max), (0.3, 0.4));
        assert_eq!(calls.ratio(What::Passed1000, Kind::Threadbare, us), None);
        let targets = calls.targets(Kind::ThreadbareXdp);
        let met: Vec<_> = targets
            .iter()
            .filter(|row| row.pass == Some(true))
            .collect();
        assert_eq!(met.len(), 1);
        assert!(targets.iter().filter(|row| row.pass.is_none()).count() == targets.len() - 1);
    }

    #[test]
    fn recordings_are_compared_with_the_calls_of_their_round() {
        let row = |what, round, us| row(what, "threadbare", round, us);
        let all = [
            HEAD.to_owned(),
            row("passed1000", 0, 8.0),
            row("recorded1000", 0, 10.0),
            row("passed1000", 1, 4.0),
            row("recorded1000", 1, 6.0),
            row("recorded1000", 2, 6.0),
        ];
        let ratio = parsed(&all.join("\n"))
            .recorded_ratio(What::Recorded1000)
            .unwrap();
        assert_eq!((ratio.min, ratio.max), (1.25, 1.5));
    }
}
