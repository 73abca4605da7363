//! Results file of the media plane, with one JSON object per line. The first line contains date, commit and machine. Each
//! further line is the row of a measurement. The program `media` prints these lines, and `make bench-media` writes the file.

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::libraries::Head;
use crate::lines;
use crate::results;
use crate::stats::Spread;

/// Kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub enum Kind {
    /// The bare loop, which receives, converts and sends.
    Bare,
    /// Whole one-way sessions on the media plane, each with its own socket.
    Lines,
    /// Whole one-way sessions on the media plane, all with one socket.
    Shared,
    /// Whole one-way sessions on the media plane, each with its own socket and a loudness meter.
    Metered,
    /// Two-way calls, which have two streams each.
    Calls,
    /// Whole sessions of the plugin's elements.
    Elements,
    /// The bare loop with an Opus encoder.
    BareOpus,
    /// Sessions from PCMU to Opus.
    Opus,
}

/// The measurements in the order in which each round makes them. Measurements that are compared are next to each other.
pub const PLAN: [(Kind, u32); 11] = [
    (Kind::Bare, 1000),
    (Kind::Lines, 1000),
    (Kind::Shared, 1000),
    (Kind::Elements, 1000),
    (Kind::Metered, 1000),
    (Kind::Bare, 2800),
    (Kind::Calls, 2800),
    (Kind::Lines, 3000),
    (Kind::Shared, 3000),
    (Kind::BareOpus, 100),
    (Kind::Opus, 100),
];

type What = (Kind, u32);

/// Maximum ratios of the first measurement's CPU time to that of the second one in the same round.
const RATIOS: [(&str, f64, What, What); 5] = [
    (
        "whole sessions on the media plane, 1000 streams: CPU compared with the bare loop",
        1.10,
        (Kind::Lines, 1000),
        (Kind::Bare, 1000),
    ),
    (
        "whole sessions of elements, 1000 streams: CPU compared with the bare loop",
        1.25,
        (Kind::Elements, 1000),
        (Kind::Bare, 1000),
    ),
    (
        "shared port, 1000 streams: CPU compared with a socket for each stream",
        0.75,
        (Kind::Shared, 1000),
        (Kind::Lines, 1000),
    ),
    (
        "shared port, 3000 streams: CPU compared with a socket for each stream",
        0.75,
        (Kind::Shared, 3000),
        (Kind::Lines, 3000),
    ),
    (
        "PCMU to Opus, 100 streams: CPU compared with the bare loop with an encoder",
        1.05,
        (Kind::Opus, 100),
        (Kind::BareOpus, 100),
    ),
];

const LOSSES: [(&str, What); 4] = [
    (
        "bare loop, 2800 streams: lost (for comparison)",
        (Kind::Bare, 2800),
    ),
    (
        "1400 calls, 2800 streams, on one thread: lost",
        (Kind::Calls, 2800),
    ),
    ("shared port, 1000 streams: lost", (Kind::Shared, 1000)),
    ("shared port, 3000 streams: lost", (Kind::Shared, 3000)),
];

const MEMORY: [(&str, f64, What); 2] = [
    (
        "memory of a one-way session, 1000 streams",
        10.0,
        (Kind::Lines, 1000),
    ),
    (
        "the same with a loudness meter",
        40.0,
        (Kind::Metered, 1000),
    ),
];

/// Maximum times from the first port to the first turn of the last stream. The last value is the number by which the time in milliseconds
/// is divided.
const READY: [(&str, &str, f64, What, f64); 2] = [
    (
        "time to set up a call, mean of 1400",
        "µs",
        50.0,
        (Kind::Calls, 2800),
        1.4,
    ),
    (
        "time until 3000 streams are ready",
        "s",
        0.2,
        (Kind::Lines, 3000),
        1000.0,
    ),
];

/// One measurement and its results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub kind: Kind,
    pub streams: u32,
    pub round: u32,
    #[serde(flatten)]
    pub figures: Figures,
}

/// Results of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// CPU time per packet of the thread that forwards the packets.
    pub us_per_packet: f64,
    /// Number of packets in the whole measurement.
    pub sent: u64,
    /// Number of those packets that were not forwarded.
    pub lost: i64,
    /// Time from the first port to the first turn of the last stream.
    pub ready_ms: f64,
    /// Resident memory per stream in the window, minus the memory before the first stream.
    pub kib_per_stream: f64,
    /// Number of heap allocations per packet of the thread that forwards the packets. `None` if they were not counted.
    pub allocations_per_packet: Option<f64>,
}

/// All results of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Media {
    pub head: Head,
    pub rows: Vec<Row>,
}

impl Media {
    /// Reads the results file in this folder. Returns `None` if the file does not exist yet.
    pub fn read(folder: &Path) -> Result<Option<Media>> {
        let read = lines::read(&folder.join(FILE_NAME))?;
        Ok(read.map(|(head, rows)| Media { head, rows }))
    }

    /// Returns the number of rounds.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.rows.iter().map(|row| row.round + 1).max().unwrap_or(0)
    }

    /// Returns the spread of a figure over all rounds.
    #[must_use]
    pub fn spread(&self, what: (Kind, u32), figure: fn(&Figures) -> Option<f64>) -> Option<Spread> {
        let rows = self
            .rows
            .iter()
            .filter(|row| (row.kind, row.streams) == what);
        let figures: Vec<f64> = rows.filter_map(|row| figure(&row.figures)).collect();
        Spread::of(&figures)
    }

    /// Returns the ratio of the measurement's CPU time to that of another measurement in the same round.
    #[must_use]
    pub fn ratio(&self, what: (Kind, u32), other: (Kind, u32)) -> Option<Spread> {
        let of = |what: (Kind, u32), round| {
            let found = |row: &&Row| (row.kind, row.streams) == what && row.round == round;
            self.rows
                .iter()
                .find(found)
                .map(|row| row.figures.us_per_packet)
        };
        let ratios = (0..self.rounds()).filter_map(|round| {
            of(what, round)
                .zip(of(other, round))
                .map(|(us, other_us)| us / other_us)
        });
        Spread::of(&ratios.collect::<Vec<_>>())
    }

    /// Returns the targets, and whether they are met.
    #[must_use]
    pub fn targets(&self) -> Vec<results::Row> {
        let mut rows: Vec<results::Row> = RATIOS
            .iter()
            .map(|(what, limit, of, against)| {
                target(what, "x", *limit, self.ratio(*of, *against), Judge::Median)
            })
            .collect();
        rows.extend(LOSSES.iter().map(|(what, of)| {
            let lost = self.spread(*of, |figures| Some(figures.lost as f64));
            target(what, "packets", 0.0, lost, Judge::Worst)
        }));
        rows.extend(MEMORY.iter().map(|(what, limit, of)| {
            let kib = self.spread(*of, |figures| Some(figures.kib_per_stream));
            target(what, "KiB", *limit, kib, Judge::Median)
        }));
        rows.extend(READY.iter().map(|(what, unit, limit, of, per)| {
            let ready = self.spread(*of, |figures| Some(figures.ready_ms));
            let ready = ready.map(|ready| Spread {
                median: ready.median / per,
                min: ready.min / per,
                max: ready.max / per,
            });
            target(what, unit, *limit, ready, Judge::Median)
        }));
        let what = "heap allocations per packet, sessions and calls";
        let allocations = self.spread_of_all(|figures| figures.allocations_per_packet);
        rows.push(target(what, "calls", 0.0, allocations, Judge::Worst));
        rows
    }

    fn spread_of_all(&self, figure: fn(&Figures) -> Option<f64>) -> Option<Spread> {
        let figures: Vec<f64> = self
            .rows
            .iter()
            .filter_map(|row| figure(&row.figures))
            .collect();
        Spread::of(&figures)
    }
}

enum Judge {
    Median,
    /// Each round must meet the limit.
    Worst,
}

fn target(
    what: &str,
    unit: &str,
    limit: f64,
    measured: Option<Spread>,
    judge: Judge,
) -> results::Row {
    let judged = |spread: Spread| match judge {
        Judge::Median => spread.median,
        Judge::Worst => spread.max,
    };
    results::Row {
        part: "Media plane".into(),
        what: what.into(),
        unit: unit.into(),
        limit,
        measured,
        pass: measured.map(|spread| judged(spread) <= limit),
    }
}

const FILE_NAME: &str = "media.jsonl";

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Media {
        let (head, rows) = lines::parse(text).unwrap();
        Media { head, rows }
    }

    fn sample() -> Media {
        let head = r#"{"date_utc":"d","commit":"c","tree_dirty":false,"machine":{"cpu":"C","cores":2,"kernel":"6","distribution":"D","gstreamer":"G"}}"#;
        let row = |kind, round, us, lost| {
            format!(
                "{{\"kind\":\"{kind}\",\"streams\":1000,\"round\":{round},\"us_per_packet\":{us},\"sent\":9,\"lost\":{lost},\
                 \"ready_ms\":70.0,\"kib_per_stream\":9.5,\"allocations_per_packet\":0.0}}"
            )
        };
        let all = [
            head.to_owned(),
            row("bare", 0, 6.0, 0),
            row("lines", 0, 6.6, 0),
            row("bare", 1, 10.0, 0),
            row("lines", 1, 9.0, 0),
            row("shared", 1, 4.5, 3),
        ];
        parsed(&all.join("\n"))
    }

    #[test]
    fn targets_are_judged_by_ratios_within_a_round() {
        let targets = sample().targets();
        let of = |what: &str| {
            let row = targets
                .iter()
                .find(|row| row.what.starts_with(what))
                .unwrap();
            (
                row.measured
                    .map(|spread| (spread.median * 1e4).round() / 1e4),
                row.pass,
            )
        };
        // The median of 6.6/6 and 9/10.
        assert_eq!(of("whole sessions on the media"), (Some(1.0), Some(true)));
        assert_eq!(
            of("shared port, 1000 streams: CPU"),
            (Some(0.5), Some(true))
        );
        assert_eq!(
            of("shared port, 1000 streams: lost"),
            (Some(3.0), Some(false))
        );
        assert_eq!(of("whole sessions of elements"), (None, None));
    }
}
