//! Measures recordings to S3. The figures are the memory and the number of threads of a process with many recordings, and those of a
//! process with the same streams but without recordings.
//!
//! If no kind is given, the program makes all planned runs. Each run has two processes: the measured one and a server (moto).
//! The program prints a row per run, as a JSON object on one line, and then the medians. Plugins come from `GST_PLUGIN_PATH`.
//! `scripts/setup test` installs the server.

#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use gst::prelude::*;
use serde::{Deserialize, Serialize};
use threadbare_bench::measure::{Snapshot, raise_descriptor_limit};

/// Measures recordings to S3.
#[derive(Parser)]
struct Options {
    /// Measures only this kind, and prints its row.
    #[arg(long)]
    kind: Option<Kind>,
    /// Number of recordings, if a kind is given.
    #[arg(long, default_value_t = 200)]
    recordings: usize,
    /// Address of the server, if a kind is given.
    #[arg(long)]
    endpoint: Option<String>,
    /// Python interpreter with the server's packages.
    #[arg(long, default_value = "target/venv-moto/bin/python")]
    python: PathBuf,
    /// Script that starts the server.
    #[arg(long, default_value = "crates/gst/tests/common/store.py")]
    server: PathBuf,
    /// Length of each recording in seconds.
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Elements after the source, whose output is recorded. The default is G.711, 8 kB/s.
    #[arg(long, default_value = "audio/x-raw,rate=8000,channels=1 ! mulawenc")]
    format: String,
    /// Number of rounds of all planned runs.
    #[arg(long, default_value_t = 3)]
    runs: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// No recording: the streams end in `fakesink`.
    Nothing,
    /// Recordings by `ts-s3sink` with a spool.
    Spool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    kind: Kind,
    recordings: usize,
    /// Maximum memory of the process until the last object is complete.
    peak_kib: u64,
    cpu_percent: f64,
    threads: usize,
    /// Time from the EOS of all streams until the last object is complete.
    end_s: f64,
}

const PLAN: [(Kind, usize); 4] = [
    (Kind::Nothing, 200),
    (Kind::Spool, 200),
    (Kind::Nothing, 1000),
    (Kind::Spool, 1000),
];
/// Maximum wait for the last object. It is long, because the server is slow and all recordings end at the same time.
const END_WAIT: Duration = Duration::from_secs(300);

fn main() -> Result<()> {
    let options = Options::parse();
    raise_descriptor_limit();
    match options.kind {
        Some(kind) => {
            let row = measure(kind, &options)?;
            println!("{}", serde_json::to_string(&row)?);
            Ok(())
        }
        None => run_plan(&options),
    }
}

fn run_plan(options: &Options) -> Result<()> {
    let mut rows = Vec::new();
    for _ in 0..options.runs {
        for (kind, recordings) in PLAN {
            let row = run_one(kind, recordings, options)?;
            println!("{}", serde_json::to_string(&row)?);
            rows.push(row);
        }
    }
    let median = |kind, recordings| {
        let rows = rows
            .iter()
            .filter(|row| (row.kind, row.recordings) == (kind, recordings));
        let mut all: Vec<u64> = rows.map(|row| row.peak_kib).collect();
        all.sort_unstable();
        all[all.len() / 2]
    };
    for recordings in [200, 1000] {
        let more =
            median(Kind::Spool, recordings).saturating_sub(median(Kind::Nothing, recordings));
        let allowed = (64 << 10) + 16 * recordings as u64;
        println!(
            "{recordings} recordings use {more} KiB more memory than fakesinks; the limit is {allowed} KiB: 64 MiB, and 16 KiB for each \
            recording"
        );
    }
    Ok(())
}

/// The process of the server, and its address. It is killed on drop.
struct Server(Child, String);

impl Server {
    fn start(options: &Options) -> Result<Server> {
        let mut child = Command::new(&options.python)
            .arg(&options.server)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| {
                format!(
                    "cannot run {}, which `scripts/setup test` installs",
                    options.python.display()
                )
            })?;
        let mut line = String::new();
        BufReader::new(
            child
                .stdout
                .take()
                .context("the server process has no pipe for its output")?,
        )
        .read_line(&mut line)?;
        let said: serde_json::Value =
            serde_json::from_str(&line).context("the S3 server did not print its port as JSON")?;
        Ok(Server(child, format!("http://127.0.0.1:{}", said["port"])))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run_one(kind: Kind, recordings: usize, options: &Options) -> Result<Row> {
    let server = Server::start(options)?;
    let name = kind
        .to_possible_value()
        .context("the kind of sink has no name as an argument")?;
    let output = Command::new(std::env::current_exe()?)
        .args(["--kind", name.get_name(), "--endpoint", &server.1])
        .args(["--recordings", &recordings.to_string()])
        .args(["--seconds", &options.seconds.to_string()])
        .args(["--format", &options.format])
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(
        output.status.success(),
        "the run with {recordings} recordings of {kind:?} failed: {}",
        output.status
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn measure(kind: Kind, options: &Options) -> Result<Row> {
    gst::init()?;
    let endpoint = options
        .endpoint
        .as_deref()
        .context("the argument --endpoint is missing")?;
    let spool = std::env::temp_dir().join(format!("threadbare-bench-s3-{}", std::process::id()));
    // Each stream has packets of 20 ms and its own pipeline, as in applications.
    let pipelines: Vec<gst::Pipeline> = (0..options.recordings)
        .map(|number| {
            let sink = match kind {
                Kind::Nothing => "fakesink sync=false async=false".to_owned(),
                Kind::Spool => format!(
                    "ts-s3sink async=false key=bench/{number}.mulaw region=us-east-1 bucket=bucket endpoint-uri={endpoint} force-path-style=true access-key=a secret-access-key=b spool={}",
                    spool.display()
                ),
            };
            let source = format!("ts-tonesrc context=rec context-wait=20 ! {}", options.format);
            let pipeline = gst::parse::launch(&format!("{source} ! {sink}"))?;
            let pipeline = pipeline.downcast::<gst::Pipeline>();
            let pipeline = pipeline.map_err(|_| anyhow::anyhow!("the description does not make a pipeline"))?;
            pipeline.set_state(gst::State::Playing)?;
            Ok(pipeline)
        })
        .collect::<Result<_>>()?;
    let first = Snapshot::first();
    std::thread::sleep(Duration::from_secs_f64(options.seconds));
    let cpu_percent = first.cpu_ms_until(&Snapshot::last()) / options.seconds / 10.0;
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    let begin = Instant::now();
    for pipeline in &pipelines {
        pipeline.send_event(gst::event::Eos::new());
    }
    for pipeline in &pipelines {
        let bus = pipeline.bus().context("the pipeline has no bus")?;
        let left = END_WAIT.saturating_sub(begin.elapsed());
        let left = gst::ClockTime::from_nseconds(u64::try_from(left.as_nanos())?);
        let kinds = [gst::MessageType::Error, gst::MessageType::Eos];
        match bus.timed_pop_filtered(left, &kinds) {
            Some(message) if message.type_() == gst::MessageType::Eos => {}
            other => bail!("{other:?}"),
        }
    }
    let end_s = begin.elapsed().as_secs_f64();
    for pipeline in &pipelines {
        pipeline.set_state(gst::State::Null)?;
    }
    let _ = std::fs::remove_dir_all(spool);
    Ok(Row {
        kind,
        recordings: options.recordings,
        peak_kib: peak_kib()?,
        cpu_percent,
        threads,
        end_s,
    })
}

fn peak_kib() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB"));
    Ok(kib
        .context("/proc/self/status has no line VmHWM")?
        .trim()
        .parse()?)
}
