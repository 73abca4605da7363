//! Program of `make bench`. It measures the figures of all targets and plots, including those of other programs for comparison.
//! One run writes one file.
//!
//! Each round measures all cases one after the other, so that other load of the machine affects all of them equally. Ratios are taken
//! within a round.

#![forbid(unsafe_code)]

mod driver;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use driver::cases::{CASES, Case, Mode};
use driver::figures::Rounds;
use driver::loudness::Loudness;
use driver::rows::{comparisons, rows};
use driver::run::Bench;
use driver::{demo, fallback};
use threadbare_bench::PACKETS_PER_SECOND;
use threadbare_bench::origin::Origin;
use threadbare_bench::render;
use threadbare_bench::results::{Demo, Latencies, Machine, Measured, Results, Runs, Samples};

/// Measures all targets and writes a results file.
#[derive(Parser)]
struct Options {
    /// Number of rounds. The tables show the medians of the rounds.
    #[arg(long, env = "BENCH_RUNS", default_value_t = 3)]
    runs: u32,
    /// Length of each run's measured window in seconds.
    #[arg(long, env = "BENCH_SECS", default_value_t = 4.0)]
    seconds: f64,
    /// Seconds before the measured window, during which packets already flow.
    #[arg(long, env = "BENCH_WARMUP", default_value_t = 2.0)]
    warmup: f64,
    /// Folder with our plugin and no other files.
    #[arg(long)]
    plugin_folder: PathBuf,
    /// Path of our libebur128.so.
    #[arg(long)]
    ebur128: PathBuf,
    /// Path of the program threadbare.
    #[arg(long)]
    threadbare: PathBuf,
    /// Folder for the results file. The name of the file begins with the date.
    #[arg(long)]
    results: PathBuf,
    /// Measures only cases with these names. Text that is not a case's name selects all names that contain it. Besides the
    /// cases, there are `loudness`, `fallback` and `demo`.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// Maximum lateness of the sender. It is the time between two packets of a stream.
const LATE_MS_MAX: f64 = 1000.0 / PACKETS_PER_SECOND as f64;
/// Seconds of audio per second of the measured window. Some measurements of audio take only a twentieth of the time that the audio lasts.
const AUDIO_PER_WINDOW: f64 = 10.0;

fn main() -> Result<()> {
    let options = Options::parse();
    gst::init()?;
    let origin = Origin::now()?;
    let programs = std::env::current_exe()?
        .parent()
        .context("cannot find the folder of this program")?
        .to_owned();
    let bench = Bench {
        scratch: programs.join("scratch"),
        programs,
        plugin_folder: options.plugin_folder.clone(),
        warmup_seconds: options.warmup,
        window_seconds: options.seconds,
    };
    std::fs::create_dir_all(&bench.scratch)?;
    let mut found = Found::default();
    found.measure(&bench, &options);
    let rounds = Rounds {
        runs: &found.runs,
        samples: &found.samples,
    };
    let mut rows = rows(&rounds);
    // Rows that were not selected are left out, instead of being reported as missing.
    rows.retain(|row| row.measured.is_some() || options.only.is_empty());
    let results = Results {
        date_utc: origin.date_utc,
        commit: origin.commit,
        tree_dirty: origin.tree_dirty,
        machine: Machine::here(gst::version_string().to_string()),
        rounds: options.runs,
        warmup_seconds: options.warmup,
        window_seconds: options.seconds,
        comparisons: comparisons(&rounds, &rows),
        rows,
        demo: found.demo,
        latencies: found.latencies,
        remarks: found.remarks,
        samples: found.samples,
        runs: found.runs,
    };
    println!("{}", render::document(&results));
    let path = results.write(&options.results)?;
    eprintln!("results: {}", path.display());
    Ok(())
}

/// The results so far.
#[derive(Default)]
struct Found {
    runs: Runs,
    samples: Samples,
    demo: Option<Demo>,
    latencies: Vec<Latencies>,
    remarks: Vec<String>,
}

impl Found {
    /// Measures everything that the options select. A failed case is not measured in the next rounds, because it would fail again.
    fn measure(&mut self, bench: &Bench, options: &Options) {
        let mut wanted: Vec<&Case> = CASES
            .iter()
            .filter(|case| options.wants(case.name))
            .collect();
        let mut loudness = self.prepare_loudness(bench, options);
        let mut progress = Progress::new(&wanted, options.runs);
        for round in 1..=options.runs {
            wanted.retain(|case| {
                progress.step(round, case.name);
                match bench.run(case) {
                    Ok(measured) => {
                        self.remarks.extend(late_sender(case, round, &measured));
                        self.runs
                            .entry(case.name.into())
                            .or_default()
                            .push(measured);
                        case.mode == Mode::EachRound
                    }
                    Err(error) => self.failed(case.name, &error),
                }
            });
            if let Some(ready) = &loudness {
                progress.note(round, "loudness");
                if let Err(error) = ready.measure(&mut self.samples) {
                    self.failed("loudness", &error);
                    loudness = None;
                }
            }
        }
        if options.wants("fallback") {
            progress.note(options.runs, "fallback");
            let (programs, plugins) = (&bench.programs, &bench.plugin_folder);
            if let Err(error) =
                fallback::measure(programs, plugins, &bench.scratch, &mut self.samples)
            {
                self.failed("fallback", &error);
            }
        }
        if options.wants("demo") {
            progress.note(options.runs, "demo");
            if let Err(error) = self.run_demo(bench, options) {
                self.failed("demo", &error);
            }
        }
    }

    fn prepare_loudness(&mut self, bench: &Bench, options: &Options) -> Option<Loudness> {
        if !options.wants("loudness") {
            return None;
        }
        let prepared = Loudness::prepare(
            &bench.programs,
            &bench.plugin_folder,
            &options.ebur128,
            &bench.scratch,
            (options.seconds * AUDIO_PER_WINDOW).ceil() as u32,
        );
        match prepared {
            Ok(loudness) => Some(loudness),
            Err(error) => {
                self.failed("loudness", &error);
                None
            }
        }
    }

    fn run_demo(&mut self, bench: &Bench, options: &Options) -> Result<()> {
        let (demo, latencies) = demo::gateway(&options.threadbare, &bench.scratch)?;
        self.demo = Some(demo);
        self.latencies.push(latencies);
        let worse = demo::worse_network(&options.threadbare, &bench.scratch)?;
        self.latencies.push(worse);
        Ok(())
    }

    /// Adds a remark about a missing figure. Always returns `false`.
    fn failed(&mut self, what: &str, error: &anyhow::Error) -> bool {
        eprintln!("  {error:#}");
        self.remarks.push(format!("{what}: {error:#}"));
        false
    }
}

/// Progress of the measurement: the number of the present run, and the number of all runs.
struct Progress {
    start: Instant,
    steps: usize,
    done: usize,
    rounds: u32,
}

impl Progress {
    fn new(cases: &[&Case], rounds: u32) -> Progress {
        let times = |case: &&Case| match case.mode {
            Mode::EachRound => rounds as usize,
            _ => 1,
        };
        Progress {
            start: Instant::now(),
            steps: cases.iter().map(times).sum(),
            done: 0,
            rounds,
        }
    }

    fn step(&mut self, round: u32, what: &str) {
        self.done += 1;
        self.note(round, what);
    }

    fn note(&self, round: u32, what: &str) {
        let seconds = self.start.elapsed().as_secs();
        let (done, steps, rounds) = (self.done, self.steps, self.rounds);
        eprintln!(
            "[{}:{:02}] round {round} of {rounds}, run {done} of {steps}: {what}",
            seconds / 60,
            seconds % 60
        );
    }
}

/// Returns a remark if the sender was late. In that case the load was wrong, and so the figure is wrong too.
fn late_sender(case: &Case, round: u32, measured: &Measured) -> Option<String> {
    let late_ms = measured
        .sender_late_ms_max
        .filter(|late_ms| *late_ms > LATE_MS_MAX)?;
    Some(format!(
        "{}, round {round}: the sender was up to {late_ms:.0} ms late",
        case.name
    ))
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        let is_wanted = |part: &String| {
            if CASES.iter().any(|case| case.name == part) {
                name == part
            } else {
                name.contains(part.as_str())
            }
        };
        self.only.is_empty() || self.only.iter().any(is_wanted)
    }
}
