//! Formats the results as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;
use threadbare_loudness::{integrated_of, range_of};

use super::measure::Measured;
use super::problem::Problem;
use super::tag::Tags;

/// The results of all files. The fields are the keys of `--json`, and scripts rely on them.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The value of `--target`.
    #[serde(skip_serializing_if = "Option::is_none")]
    target_lufs: Option<f64>,
    /// The value of `--tolerance`.
    #[serde(skip_serializing_if = "Option::is_none")]
    tolerance_lu: Option<f64>,
    files: Vec<Row>,
    /// All measured files, as one programme.
    total: Option<Readings>,
}

#[derive(Debug, Serialize)]
struct Row {
    file: String,
    #[serde(flatten)]
    outcome: Outcome,
    /// The tags that were written into the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    tags: Option<BTreeMap<&'static str, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag_error: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Outcome {
    Measured(Readings),
    Failed {
        error: String,
        #[serde(skip)]
        word: &'static str,
    },
}

/// The readings of a file. Minus infinity, which means silence, becomes `null`.
#[derive(Debug, Serialize)]
struct Readings {
    momentary_max_lufs: Option<f64>,
    short_term_max_lufs: Option<f64>,
    integrated_lufs: Option<f64>,
    range_lu: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    relative_threshold_lufs: Option<f64>,
    sample_peak_dbfs: Peak,
    true_peak_dbtp: Peak,
    duration_seconds: f64,
    /// The gain that brings the file to the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    to_target_lu: Option<f64>,
    /// Whether the file is within the tolerance. Absent for the total, which does not influence the exit status.
    #[serde(skip_serializing_if = "Option::is_none")]
    is_within_tolerance: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_hz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    channels: Option<usize>,
}

/// A peak in dB; `null` for silence, and `"inf"` if a sample is infinite.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(untagged)]
enum Peak {
    Level(f64),
    Silence,
    #[serde(serialize_with = "infinite")]
    Infinite,
}

fn infinite<S: serde::Serializer>(serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str("inf")
}

/// The required loudness of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Goal {
    pub(super) target_lufs: Option<f64>,
    /// The tolerance. It needs a target.
    pub(super) tolerance_lu: Option<f64>,
}

impl Goal {
    /// Returns the gain from a file's loudness to the target.
    fn to_target_lu(self, integrated_lufs: Option<f64>) -> Option<f64> {
        Some(rounded(self.target_lufs? - integrated_lufs?))
    }

    /// Returns whether a gain is within the tolerance. Silence never is. `None`: a tolerance was not given.
    fn admits(self, to_target_lu: Option<f64>) -> Option<bool> {
        let tolerance_lu = self.tolerance_lu?;
        Some(to_target_lu.is_some_and(|lu| lu.abs() <= tolerance_lu))
    }
}

impl Report {
    pub(super) fn new(
        files: &[PathBuf],
        results: &[Result<Measured, Problem>],
        goal: Goal,
    ) -> Report {
        let outcome = |result: &Result<Measured, Problem>| match result {
            Ok(measured) => Outcome::Measured(Readings::of(measured, goal)),
            Err(problem) => Outcome::Failed {
                error: problem.to_string(),
                word: problem.word(),
            },
        };
        let rows = files.iter().zip(results).map(|(file, result)| Row {
            file: file.display().to_string(),
            outcome: outcome(result),
            tags: None,
            tag_error: None,
        });
        let measured: Vec<&Measured> = results.iter().flatten().collect();
        Report {
            target_lufs: goal.target_lufs,
            tolerance_lu: goal.tolerance_lu,
            files: rows.collect(),
            total: Readings::of_all(&measured, goal),
        }
    }

    /// Adds the result of writing tags to the file with this index.
    pub(super) fn add_tags(&mut self, index: usize, written: &Result<Tags, Problem>) {
        let row = &mut self.files[index];
        match written {
            Ok(tags) => row.tags = Some(tags.iter().cloned().collect()),
            Err(problem) => row.tag_error = Some(problem.to_string()),
        }
    }

    /// Whether a measured file misses the target by more than the tolerance.
    pub(super) fn is_off_target(&self) -> bool {
        self.files.iter().any(|row| match &row.outcome {
            Outcome::Measured(readings) => readings.is_within_tolerance == Some(false),
            Outcome::Failed { .. } => false,
        })
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self)
            .unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }

    /// Returns the table: a heading, a line for each file, and a line for all files together.
    pub(super) fn to_table(&self) -> String {
        let goal = Goal {
            target_lufs: self.target_lufs,
            tolerance_lu: self.tolerance_lu,
        };
        let columns = COLUMNS
            + usize::from(goal.target_lufs.is_some())
            + usize::from(goal.tolerance_lu.is_some());
        let mut lines = vec![heading(goal), units(goal)];
        for row in &self.files {
            lines.push(match &row.outcome {
                Outcome::Measured(readings) => readings.cells(&row.file, goal),
                Outcome::Failed { word, .. } => {
                    let mut cells = vec![String::new(); columns];
                    cells[COLUMNS - 1] = (*word).to_owned();
                    cells.push(row.file.clone());
                    cells
                }
            });
        }
        if let Some(total) = self.total.as_ref().filter(|_| self.files.len() > 1) {
            lines.push(total.cells("all together", goal));
        }
        aligned(&lines)
    }
}

/// Number of columns, without the file name and the columns for a target.
const COLUMNS: usize = 8;

fn heading(goal: Goal) -> Vec<String> {
    let names = [
        "momentary",
        "short-term",
        "integrated",
        "range",
        "threshold",
        "sample peak",
        "true peak",
        "duration",
    ];
    let to_target = goal.target_lufs.map(|target| format!("to {target}"));
    let within = goal.tolerance_lu.map(|lu| format!("within {lu}"));
    let names = names.map(str::to_owned).into_iter();
    let names = names.chain(to_target).chain(within);
    names.chain(["file".to_owned()]).collect()
}

fn units(goal: Goal) -> Vec<String> {
    let units = [
        "max LUFS", "max LUFS", "LUFS", "LU", "LUFS", "dBFS", "dBTP", "",
    ];
    let to_target = goal.target_lufs.map(|_| "LU");
    let within = goal.tolerance_lu.map(|_| "LU");
    let units = units.into_iter().chain(to_target).chain(within).chain([""]);
    units.map(str::to_owned).collect()
}

/// Aligns all columns to the right, except for the last one.
fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = lines.iter().map(|cells| cells[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut table = String::new();
    for cells in lines {
        let mut line = String::new();
        for (cell, width) in cells[..columns - 1].iter().zip(&widths) {
            let _ = write!(line, "{cell:>width$}  ");
        }
        line.push_str(&cells[columns - 1]);
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

impl Readings {
    fn of(measured: &Measured, goal: Goal) -> Readings {
        let integrated_lufs = measured.meter.integrated().ok().and_then(finite);
        let to_target_lu = goal.to_target_lu(integrated_lufs);
        Readings {
            momentary_max_lufs: finite(measured.momentary_max_lufs),
            short_term_max_lufs: finite(measured.short_term_max_lufs),
            integrated_lufs,
            range_lu: rounded(measured.meter.range().map_or(0.0, |range| range.lu)),
            relative_threshold_lufs: measured.meter.relative_threshold().ok().and_then(finite),
            sample_peak_dbfs: decibels(measured.sample_peak),
            true_peak_dbtp: decibels(measured.true_peak),
            duration_seconds: rounded(measured.seconds),
            to_target_lu,
            is_within_tolerance: goal.admits(to_target_lu),
            rate_hz: Some(measured.rate_hz),
            channels: Some(measured.channels),
        }
    }

    /// Returns the readings of all files, gated together as one programme.
    fn of_all(all: &[&Measured], goal: Goal) -> Option<Readings> {
        let largest = |of: fn(&Measured) -> f64| {
            all.iter()
                .map(|measured| of(measured))
                .fold(f64::NEG_INFINITY, f64::max)
        };
        if all.is_empty() {
            return None;
        }
        let meters = all.iter().map(|measured| &measured.meter);
        let integrated_lufs = integrated_of(meters.clone()).ok().and_then(finite);
        Some(Readings {
            momentary_max_lufs: finite(largest(|m| m.momentary_max_lufs)),
            short_term_max_lufs: finite(largest(|m| m.short_term_max_lufs)),
            integrated_lufs,
            range_lu: rounded(range_of(meters).map_or(0.0, |range| range.lu)),
            relative_threshold_lufs: None,
            sample_peak_dbfs: decibels(largest(|m| m.sample_peak)),
            true_peak_dbtp: decibels(largest(|m| m.true_peak)),
            duration_seconds: rounded(all.iter().map(|measured| measured.seconds).sum()),
            to_target_lu: goal.to_target_lu(integrated_lufs),
            is_within_tolerance: None,
            rate_hz: None,
            channels: None,
        })
    }

    fn cells(&self, name: &str, goal: Goal) -> Vec<String> {
        let level =
            |value: Option<f64>| value.map_or("-inf".to_owned(), |value| format!("{value:.1}"));
        let threshold = self.relative_threshold_lufs;
        let mut cells = vec![
            level(self.momentary_max_lufs),
            level(self.short_term_max_lufs),
            level(self.integrated_lufs),
            format!("{:.1}", self.range_lu),
            threshold.map_or(String::new(), |value| format!("{value:.1}")),
            self.sample_peak_dbfs.cell(),
            self.true_peak_dbtp.cell(),
            clock(self.duration_seconds),
        ];
        if goal.target_lufs.is_some() {
            cells.push(
                self.to_target_lu
                    .map_or(String::new(), |lu| format!("{lu:+.1}")),
            );
        }
        if goal.tolerance_lu.is_some() {
            let word = match self.is_within_tolerance {
                Some(true) => "yes",
                Some(false) => "no",
                None => "",
            };
            cells.push(word.to_owned());
        }
        cells.push(name.to_owned());
        cells
    }
}

/// Rounds to a thousandth, because more digits would exceed the standard's precision.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then(|| rounded(value))
}

fn decibels(peak: f64) -> Peak {
    match finite(20.0 * peak.log10()) {
        Some(level) => Peak::Level(level),
        None if peak > 0.0 => Peak::Infinite,
        None => Peak::Silence,
    }
}

impl Peak {
    fn cell(self) -> String {
        match self {
            Peak::Level(level) => format!("{level:.1}"),
            Peak::Silence => "-inf".to_owned(),
            Peak::Infinite => "inf".to_owned(),
        }
    }
}

/// Formats a duration as minutes and seconds, with hours if there are any.
pub(super) fn clock(seconds: f64) -> String {
    let tenths = (seconds * 10.0).round() as u64;
    let (hours, minutes) = (tenths / 36_000, tenths / 600 % 60);
    let seconds = (tenths % 600) as f64 / 10.0;
    match hours {
        0 => format!("{minutes}:{seconds:04.1}"),
        _ => format!("{hours}:{minutes:02}:{seconds:04.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_formatted_as_on_a_clock() {
        assert_eq!(clock(0.04), "0:00.0");
        assert_eq!(clock(59.96), "1:00.0");
        assert_eq!(clock(3_725.5), "1:02:05.5");
    }

    #[test]
    fn loudness_at_the_edge_of_the_tolerance_passes_and_silence_does_not() {
        let goal = Goal {
            target_lufs: Some(-23.0),
            tolerance_lu: Some(0.5),
        };
        let admits = |lufs| goal.admits(goal.to_target_lu(lufs));
        assert_eq!(admits(Some(-22.5)), Some(true));
        assert_eq!(admits(Some(-23.5)), Some(true));
        assert_eq!(admits(Some(-22.499)), Some(false));
        assert_eq!(admits(Some(-23.501)), Some(false));
        assert_eq!(admits(None), Some(false));
        let any = Goal {
            tolerance_lu: None,
            ..goal
        };
        assert_eq!(any.admits(any.to_target_lu(Some(0.0))), None);
    }

    #[test]
    fn columns_line_up() {
        let line = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let table = aligned(&[line(["a", "long", "file"]), line(["-23.0", "", "x"])]);
        assert_eq!(table, "    a  long  file\n-23.0        x\n");
    }
}
