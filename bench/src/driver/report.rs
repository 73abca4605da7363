//! The tables that are printed, and the file for machines.

use std::fmt::Write as _;

use serde::Serialize;
use threadbare_bench::stats::Spread;

use super::cases::CASES;
use super::rows::{Row, Runs};
use super::run::Measured;

/// What the figures were measured on.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    gstreamer: String,
}

impl Machine {
    pub(crate) fn here() -> Machine {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let cpu = read("/proc/cpuinfo")
            .lines()
            .find_map(|line| line.strip_prefix("model name"))
            .map(|rest| rest.trim_start_matches([' ', '\t', ':']).to_owned());
        Machine {
            cpu: cpu.unwrap_or_else(|| "unknown".into()),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            gstreamer: gst::version_string().to_string(),
        }
    }
}

/// Everything, for the file.
#[derive(Serialize)]
pub(crate) struct Report<'a> {
    pub(crate) machine: Machine,
    pub(crate) rounds: u32,
    pub(crate) window_seconds: f64,
    pub(crate) rows: &'a [Row],
    pub(crate) runs: &'a Runs,
    pub(crate) remarks: &'a [String],
}

impl Report<'_> {
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        let Machine {
            cpu,
            cores,
            kernel,
            gstreamer,
        } = &self.machine;
        let _ = writeln!(
            text,
            "{cores} cores of {cpu}, Linux {kernel}, {gstreamer}; "
        );
        let (rounds, seconds) = (self.rounds, self.window_seconds);
        let _ = writeln!(
            text,
            "median (least to greatest) of {rounds} runs of {seconds} s each.\n"
        );
        text.push_str("| what | target | measured | |\n|---|---|---|---|\n");
        for row in self.rows {
            text.push_str(&row_line(row));
        }
        text.push_str(CASE_HEAD);
        for case in CASES {
            if let Some(runs) = self.runs.get(case.name) {
                text.push_str(&case_line(case.name, runs));
            }
        }
        if !self.remarks.is_empty() {
            text.push_str("\nRemarks:\n\n");
            for remark in self.remarks {
                let _ = writeln!(text, "- {remark}");
            }
        }
        text
    }
}

const CASE_HEAD: &str = "\n| case | CPU % | µs/packet | threads | switches/s | set-up s | KiB/stream | lost |\n\
                         |---|---|---|---|---|---|---|---|\n";

fn row_line(row: &Row) -> String {
    let verdict = match row.pass {
        Some(true) => "pass",
        Some(false) => "**falls short**",
        None => "not measured",
    };
    let measured = row.measured.map_or("–".into(), |spread| {
        format!("{} {}", with(spread), row.unit)
    });
    format!(
        "| {} | ≤ {} {} | {measured} | {verdict} |\n",
        row.what, row.limit, row.unit
    )
}

fn case_line(name: &str, runs: &[Measured]) -> String {
    let column = |metric: &dyn Fn(&Measured) -> Option<f64>| {
        let figures: Vec<f64> = runs.iter().filter_map(metric).collect();
        Spread::of(&figures).map_or("–".into(), with)
    };
    let window = |run: &Measured| run.done.as_ref().map(|done| done.window.clone());
    let columns = [
        column(&|run| Some(window(run)?.cpu_percent)),
        column(&|run| window(run)?.cpu_us_per_buffer),
        column(&|run| Some(run.done.as_ref()?.threads as f64)),
        column(&|run| Some(window(run)?.switches_per_second)),
        column(&|run| Some(run.ready.setup_seconds)),
        column(&super::rows::resident_kib_per_stream),
        column(&super::rows::lost),
    ];
    format!("| {name} | {} |\n", columns.join(" | "))
}

fn with(Spread { median, min, max }: Spread) -> String {
    if min == max {
        return figure(median);
    }
    format!("{} ({} to {})", figure(median), figure(min), figure(max))
}

/// Three digits that mean something, and whole numbers as such.
fn figure(value: f64) -> String {
    let size = value.abs();
    if value.fract() == 0.0 || size >= 100.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 0.01 {
        format!("{value:.2}")
    } else {
        format!("{value:.1e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_as_precise_as_they_are_sure() {
        assert_eq!(figure(0.0), "0");
        assert_eq!(figure(2.34567), "2.35");
        assert_eq!(figure(23.4567), "23.5");
        assert_eq!(figure(2345.67), "2346");
        assert_eq!(figure(0.00023), "2.3e-4");
    }

    #[test]
    fn a_row_that_falls_short_says_so() {
        let spread = Spread {
            median: 0.5,
            min: 0.25,
            max: 0.75,
        };
        let row = Row {
            what: "w",
            unit: "x",
            limit: 0.28,
            measured: Some(spread),
            pass: Some(false),
        };
        assert_eq!(
            row_line(&row),
            "| w | ≤ 0.28 x | 0.50 (0.25 to 0.75) x | **falls short** |\n"
        );
    }
}
