//! Results file of the libraries, with one JSON object per line. The first line contains date, commit and machine. The rows of
//! `crates/demux/benches/published.rs` and of the program `mainloop` follow. `make bench-libraries` writes the file.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::origin::Origin;
use crate::results::{Machine, Row};
use crate::stats::Spread;

/// All results of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Libraries {
    pub head: Head,
    pub demultiplexers: Vec<Demultiplexer>,
    pub main_loop: Vec<MainLoop>,
}

/// The first line: date, commit and machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Year, month, day, hour and minute in UTC.
    pub date_utc: String,
    pub commit: String,
    /// Whether files of the working tree differed from the commit.
    pub tree_dirty: bool,
    pub machine: Machine,
}

/// A design, a number of sinks and a payload, and the times that were measured with them.
#[derive(Clone, Debug, PartialEq)]
pub struct Demultiplexer {
    pub design: String,
    pub sinks: u32,
    pub payload: String,
    pub messages: u64,
    pub ns_by_round: BTreeMap<u32, f64>,
}

/// Times of our implementation and of another one for the same work.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MainLoop {
    pub what: String,
    pub peer: String,
    pub rounds: u32,
    pub peer_ns: f64,
    pub peer_ns_min: f64,
    pub peer_ns_max: f64,
    pub ours_ns: f64,
    pub ours_ns_min: f64,
    pub ours_ns_max: f64,
    pub ratio: f64,
    pub ratio_min: f64,
    pub ratio_max: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    design: String,
    sinks: u32,
    payload: String,
    messages: u64,
    ns_per_message: f64,
    round: u32,
    /// This field is not used, because the name of the design contains its value.
    #[serde(rename = "limited")]
    _limited: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Published(Published),
    MainLoop(MainLoop),
}

impl Head {
    pub fn now(gstreamer: String) -> Result<Head> {
        let Origin {
            date_utc,
            commit,
            tree_dirty,
        } = Origin::now()?;
        Ok(Head {
            date_utc,
            commit,
            tree_dirty,
            machine: Machine::here(gstreamer),
        })
    }
}

impl Libraries {
    /// Reads the results file in this folder. Returns `None` if the file does not exist yet.
    pub fn read(folder: &Path) -> Result<Option<Libraries>> {
        let path = folder.join(FILE_NAME);
        if !path.exists() {
            return Ok(None);
        }
        let context = || format!("cannot read {}", path.display());
        let text = std::fs::read_to_string(&path).with_context(context)?;
        Libraries::parse(&text).with_context(context).map(Some)
    }

    fn parse(text: &str) -> Result<Libraries> {
        let mut lines = text.lines();
        let Some(head) = lines.next() else {
            bail!("the file is empty; its first line must contain date, commit and machine");
        };
        let mut libraries = Libraries {
            head: serde_json::from_str(head)
                .context("line 1: expected date, commit and machine")?,
            demultiplexers: Vec::new(),
            main_loop: Vec::new(),
        };
        for (n, line) in lines.enumerate() {
            let context = || format!("line {}: expected a row of published or mainloop", n + 2);
            match serde_json::from_str(line).with_context(context)? {
                Line::Published(row) => libraries.add(row),
                Line::MainLoop(row) => libraries.main_loop.push(row),
            }
        }
        Ok(libraries)
    }

    fn add(&mut self, row: Published) {
        let Published {
            design,
            sinks,
            payload,
            messages,
            ns_per_message,
            round,
            _limited,
        } = row;
        let known = self.demultiplexers.iter_mut().find(|known| {
            (&known.design, known.sinks, &known.payload) == (&design, sinks, &payload)
        });
        if let Some(known) = known {
            known.ns_by_round.insert(round, ns_per_message);
            return;
        }
        self.demultiplexers.push(Demultiplexer {
            design,
            sinks,
            payload,
            messages,
            ns_by_round: BTreeMap::from([(round, ns_per_message)]),
        });
    }

    /// Returns the fastest of the baselines with this number of sinks and this payload.
    pub fn baseline(&self, sinks: u32, payload: &str) -> Option<&Demultiplexer> {
        let median = |of: &Demultiplexer| of.ns().map_or(f64::MAX, |ns| ns.median);
        self.demultiplexers
            .iter()
            .filter(|row| BASELINES.contains(&row.design.as_str()))
            .filter(|row| row.sinks == sinks && row.payload == payload)
            .min_by(|a, b| median(a).total_cmp(&median(b)))
    }

    fn find(&self, design: &str, sinks: u32, payload: &str) -> Option<&Demultiplexer> {
        let is_wanted = |row: &&Demultiplexer| {
            row.design == design && row.sinks == sinks && row.payload == payload
        };
        self.demultiplexers.iter().find(is_wanted)
    }

    /// Returns the targets of the demultiplexer.
    pub fn demultiplexer_targets(&self) -> Vec<Row> {
        let ours = |sinks, payload| self.find("demultiplexer", sinks, payload);
        let limited = |sinks| self.find("demultiplexer-limited", sinks, "u64");
        let ratio = |of: Option<&Demultiplexer>, to: Option<&Demultiplexer>| of?.ratio(to?);
        let published = ratio(ours(3, "String"), self.baseline(3, "String"));
        let unallocated = ours(3, "u64").and_then(Demultiplexer::ns);
        let many = ratio(ours(10_000, "u64"), ours(10, "u64"));
        let many_limited = ratio(limited(10_000), limited(10));
        [
            (PUBLISHED_TARGET, "x", 0.45, published),
            (
                "a payload without allocation: time per message",
                "ns",
                12.0,
                unallocated,
            ),
            (
                "10,000 sinks: time per message compared with 10 sinks",
                "x",
                1.0,
                many,
            ),
            (
                "10,000 sinks with a rate limit each: time per message compared with 10",
                "x",
                1.0,
                many_limited,
            ),
        ]
        .map(|(what, unit, limit, measured)| target("Demultiplexer", what, unit, limit, measured))
        .into()
    }

    /// Returns the targets of the tools for the main loop.
    pub fn main_loop_targets(&self) -> Vec<Row> {
        let judged = |row: &MainLoop| {
            let limit = if row.what.starts_with("wake-up") {
                0.2
            } else {
                0.5
            };
            let what = format!("{}: compared with {}", row.what, row.peer);
            target("Main loop", &what, "x", limit, Some(row.ratio()))
        };
        self.main_loop.iter().map(judged).collect()
    }
}

fn target(part: &str, what: &str, unit: &str, limit: f64, measured: Option<Spread>) -> Row {
    Row {
        part: part.into(),
        what: what.into(),
        unit: unit.into(),
        limit,
        measured,
        pass: measured.map(|spread| spread.median <= limit),
    }
}

impl Demultiplexer {
    /// Returns the spread of the nanoseconds per message.
    pub fn ns(&self) -> Option<Spread> {
        let all: Vec<f64> = self.ns_by_round.values().copied().collect();
        Spread::of(&all)
    }

    /// Returns the ratio of the times within each round that measured both designs.
    pub fn ratio(&self, to: &Demultiplexer) -> Option<Spread> {
        let within = |(round, ns): (&u32, &f64)| Some(ns / to.ns_by_round.get(round)?);
        let ratios: Vec<f64> = self.ns_by_round.iter().filter_map(within).collect();
        Spread::of(&ratios)
    }
}

impl MainLoop {
    /// Returns the spread of the nanoseconds of GLib's own implementation, or of the implementation that is usual with GLib.
    pub fn theirs(&self) -> Spread {
        Spread {
            median: self.peer_ns,
            min: self.peer_ns_min,
            max: self.peer_ns_max,
        }
    }

    /// Returns the spread of the nanoseconds of our implementation.
    pub fn ours(&self) -> Spread {
        Spread {
            median: self.ours_ns,
            min: self.ours_ns_min,
            max: self.ours_ns_max,
        }
    }

    /// Returns the ratio of our time to the other time within each round.
    pub fn ratio(&self) -> Spread {
        Spread {
            median: self.ratio,
            min: self.ratio_min,
            max: self.ratio_max,
        }
    }
}

const FILE_NAME: &str = "libraries.jsonl";
const PUBLISHED_TARGET: &str =
    "the published benchmark: compared with its fastest design except `by-hand`";
/// Designs that the published benchmark described as lossless.
const BASELINES: [&str; 3] = ["select", "select-biased", "select-all"];

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Results of two rounds, with a few rows.
    pub(crate) fn sample() -> Libraries {
        let mut text = r#"{"date_utc":"2026-01-02 03:04","commit":"abc","tree_dirty":false,"machine":{"cpu":"C","cores":2,"kernel":"6","distribution":"D","gstreamer":"G"}}"#.to_owned();
        let mut row = |design, sinks, payload, ns: [f64; 2]| {
            for (n, ns) in ns.into_iter().enumerate() {
                let round = n + 1;
                text += &format!(
                    "\n{{\"design\":\"{design}\",\"sinks\":{sinks},\"payload\":\"{payload}\",\"messages\":1000,\
                     \"ns_per_message\":{ns},\"round\":{round},\"limited\":false}}"
                );
            }
        };
        row("select", 3, "String", [100.0, 200.0]);
        row("select-biased", 3, "String", [90.0, 110.0]);
        row("by-hand", 3, "String", [10.0, 10.0]);
        row("demultiplexer", 3, "String", [36.0, 55.0]);
        row("demultiplexer-channels", 3, "String", [200.0, 200.0]);
        row("demultiplexer", 10, "u64", [8.0, 8.0]);
        row("demultiplexer", 10_000, "u64", [8.0, 10.0]);
        text += "\n{\"what\":\"wake-up, 1 of 9 tasks per iteration\",\"peer\":\"glib\",\"rounds\":2,\
                 \"peer_ns\":100,\"peer_ns_min\":90,\"peer_ns_max\":110,\
                 \"ours_ns\":10,\"ours_ns_min\":9,\"ours_ns_max\":11,\
                 \"ratio\":0.1,\"ratio_min\":0.09,\"ratio_max\":0.11}\n";
        Libraries::parse(&text).expect("a results file")
    }

    #[test]
    fn the_baseline_is_the_fastest_design_that_was_published_as_lossless() {
        let sample = sample();
        let baseline = sample.baseline(3, "String").expect("a baseline");
        assert_eq!(baseline.design, "select-biased");
        assert_eq!(sample.baseline(10, "u64"), None);
    }

    #[test]
    fn targets_are_judged_by_ratios_within_a_round() {
        let targets = sample().demultiplexer_targets();
        // The medians of 36/90 and 55/110, and those of 8/8 and 10/8.
        let expected = [Some((0.45, true)), None, Some((1.125, false)), None];
        for (row, expected) in targets.iter().zip(expected) {
            let found = row.measured.map(|spread| spread.median).zip(row.pass);
            assert_eq!(found, expected, "{}", row.what);
        }
    }

    #[test]
    fn a_malformed_row_is_reported_with_its_line_number() {
        let head = r#"{"date_utc":"d","commit":"c","tree_dirty":false,"machine":{"cpu":"C","cores":2,"kernel":"6","distribution":"D","gstreamer":"G"}}"#;
        let error = Libraries::parse(&format!("{head}\n{{\"design\":1}}\n")).unwrap_err();
        assert!(format!("{error:#}").starts_with("line 2: "), "{error:#}");
        assert!(Libraries::parse("").is_err());
    }
}
