//! `make bench`: every row of the table of targets, measured beside what it is compared with.
//!
//! Rounds interleave the cases, so that whatever else the machine does falls on all of them alike; ratios
//! are taken within a round.

#![forbid(unsafe_code)]

mod driver;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use driver::cases::{CASES, Case, Mode};
use driver::report::{Machine, Report};
use driver::rows::{Row, Runs, TARGETS};
use driver::run::{Bench, Measured};
use threadbare_bench::PACKETS_PER_SECOND;

/// Measures the table of targets.
#[derive(Parser)]
struct Options {
    /// Rounds; the table has their median.
    #[arg(long, env = "BENCH_RUNS", default_value_t = 5)]
    runs: u32,
    /// Seconds that each run measures.
    #[arg(long, env = "BENCH_SECS", default_value_t = 10.0)]
    seconds: f64,
    /// Seconds before that, while packets already flow.
    #[arg(long, env = "BENCH_WARMUP", default_value_t = 3.0)]
    warmup: f64,
    /// The folder that holds our plugin, and nothing else.
    #[arg(long)]
    plugin_folder: PathBuf,
    /// Where to write everything as JSON.
    #[arg(long)]
    json: PathBuf,
    /// Only cases whose name contains one of these.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// One packet's time.
const LATE_MS_MAX: f64 = 1000.0 / PACKETS_PER_SECOND as f64;

fn main() -> Result<()> {
    let options = Options::parse();
    gst::init()?;
    let programs = std::env::current_exe()?
        .parent()
        .context("a program lies in a folder")?
        .to_owned();
    let bench = Bench {
        scratch: programs.join("scratch"),
        programs,
        plugin_folder: options.plugin_folder.clone(),
        warmup_seconds: options.warmup,
        window_seconds: options.seconds,
    };
    std::fs::create_dir_all(&bench.scratch)?;
    let (runs, remarks) = measure(&bench, &options);
    let mut rows: Vec<Row> = TARGETS.iter().map(|target| target.judge(&runs)).collect();
    // What was not asked for is not missing.
    rows.retain(|row| row.measured.is_some() || options.only.is_empty());
    let report = Report {
        machine: Machine::here(),
        rounds: options.runs,
        window_seconds: options.seconds,
        rows: &rows,
        runs: &runs,
        remarks: &remarks,
    };
    println!("{}", report.markdown());
    let file = std::fs::File::create(&options.json)
        .with_context(|| format!("writing {}", options.json.display()))?;
    serde_json::to_writer_pretty(file, &report)?;
    eprintln!("all figures: {}", options.json.display());
    Ok(())
}

/// A case that fails once is not tried again: what it lacks will not come in the next round.
fn measure(bench: &Bench, options: &Options) -> (Runs, Vec<String>) {
    let mut wanted: Vec<&Case> = CASES
        .iter()
        .filter(|case| is_wanted(case, options))
        .collect();
    let (mut runs, mut remarks) = (Runs::new(), Vec::new());
    for round in 1..=options.runs {
        wanted.retain(|case| {
            eprintln!("round {round} of {}: {}", options.runs, case.name);
            match bench.run(case) {
                Ok(measured) => {
                    remarks.extend(late_sender(case, round, &measured));
                    runs.entry(case.name).or_default().push(measured);
                    case.mode == Mode::EachRound
                }
                Err(error) => {
                    eprintln!("  {error:#}");
                    remarks.push(format!("{}: {error:#}", case.name));
                    false
                }
            }
        });
    }
    (runs, remarks)
}

/// On a machine that has other work to do, the load is not what it should be, and neither is the figure.
fn late_sender(case: &Case, round: u32, measured: &Measured) -> Option<String> {
    let late_ms = measured
        .sender_late_ms_max
        .filter(|late_ms| *late_ms > LATE_MS_MAX)?;
    Some(format!(
        "{}, round {round}: the sender was up to {late_ms:.0} ms late",
        case.name
    ))
}

fn is_wanted(case: &Case, options: &Options) -> bool {
    options.only.is_empty()
        || options
            .only
            .iter()
            .any(|part| case.name.contains(part.as_str()))
}
