//! Compares the media plane with a bare loop, in one run. It measures losses, and the costs of whole sessions, of calls, of a shared port,
//! of meters, of elements and of Opus. It prints the lines of `bench/results/media.jsonl`: the head, then a line for each measurement.
//!
//! Each measurement is a separate process. The kinds take turns, so that other load of the machine affects all of them. The CPU
//! time is that of the thread that forwards the packets, divided by the packets that the sender has sent in the measured
//! window. The sender also sends RTCP.

mod bare;
mod elements;
mod ours;
mod traffic;

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use threadbare_bench::libraries::Head;
use threadbare_bench::measure;
use threadbare_bench::media::{Figures, Kind, PLAN, Row};

use traffic::{Drain, Sender};

#[path = "../../../../tests/counting.rs"]
#[allow(unsafe_code, dead_code, reason = "tests use other parts of it")]
mod counting;

/// Compares the media plane with a bare loop.
#[derive(Parser)]
struct Options {
    /// Percentage of each measurement's streams that is used. For trials.
    #[arg(long, default_value_t = 100)]
    percent: u32,
    /// Length of a slice in milliseconds.
    #[arg(long, default_value_t = 20)]
    wait: u64,
    /// Seconds from the first packet to the measured window. In this time, all streams send a report.
    #[arg(long, default_value_t = 8.0)]
    warmup: f64,
    /// Length of the measured window in seconds.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Number of measurements of each kind.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Makes only measurements whose name begins with this text.
    #[arg(long, default_value = "")]
    only: String,
    /// Makes one measurement of this kind, in this process.
    #[arg(long, requires = "streams")]
    kind: Option<Kind>,
    /// Number of streams of that measurement.
    #[arg(long)]
    streams: Option<u32>,
}

/// A measured implementation.
trait Carrier {
    /// Returns the prefix of the threads' names.
    fn threads(&self) -> &'static str;
    /// Returns the destination of each stream.
    fn ports(&self) -> Vec<std::net::SocketAddr>;
    /// Returns the number of heap allocations of the thread so far, or `None` if it is unknown.
    fn allocations(&self) -> Option<u64> {
        None
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    measure::raise_descriptor_limit();
    match (options.kind, options.streams) {
        (Some(kind), Some(streams)) => {
            let figures = measure_one(&options, kind, streams)?;
            println!("{}", serde_json::to_string(&figures)?);
        }
        _ => run(&options)?,
    }
    // The thread with the bare loop does not end by itself.
    std::process::exit(0)
}

fn run(options: &Options) -> Result<()> {
    let gstreamer = gst::version_string().to_string();
    println!("{}", serde_json::to_string(&Head::now(gstreamer)?)?);
    for round in 0..options.rounds.max(1) {
        for (kind, streams) in PLAN {
            let streams = (streams * options.percent / 100).max(2);
            let name = format!("{kind:?}").to_lowercase();
            if !name.starts_with(&options.only.to_lowercase()) {
                continue;
            }
            eprintln!("round {round}: {name}, {streams} streams");
            match measure_apart(options, kind, streams) {
                Ok(figures) => {
                    let row = Row {
                        kind,
                        streams,
                        round,
                        figures,
                    };
                    println!("{}", serde_json::to_string(&row)?);
                }
                // If the plugin is missing, the other kinds are still measured.
                Err(error) if kind == Kind::Elements => eprintln!("not measured: {error:#}"),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

fn measure_apart(options: &Options, kind: Kind, streams: u32) -> Result<Figures> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--wait", &options.wait.to_string()])
        .args(["--warmup", &options.warmup.to_string()])
        .args(["--seconds", &options.seconds.to_string()])
        .args(["--kind", &format!("{kind:?}").to_lowercase()])
        .args(["--streams", &streams.to_string()])
        .stderr(std::process::Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "{kind:?}: {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn measure_one(options: &Options, kind: Kind, streams: u32) -> Result<Figures> {
    let drain = Drain::start()?;
    let to = |stream: u32| drain.address(stream);
    let slice = Duration::from_millis(options.wait);
    // The one-time allocations of the library must not count as memory of a stream.
    ours::warm_up(kind)?;
    let resident_kib_before = measure::resident_kib()?;
    let begun = std::time::Instant::now();
    let carrier: Box<dyn Carrier> = match kind {
        Kind::Bare | Kind::BareOpus => Box::new(bare::Bare::start(kind, streams, slice, to)?),
        Kind::Elements => Box::new(elements::Elements::start(streams, options.wait, to)?),
        Kind::Calls => Box::new(ours::Calls::start(streams, slice, to)?),
        Kind::Lines | Kind::Shared | Kind::Metered | Kind::Opus => {
            Box::new(ours::Lines::start(kind, streams, slice, to)?)
        }
    };
    let ready_ms = begun.elapsed().as_secs_f64() * 1e3;
    // The sender sends for longer than the window, so that packets still arrive at the end of the window.
    let duration = Duration::from_secs_f64(options.warmup + options.seconds) + SETTLE;
    let sender = Sender::start(carrier.ports(), kind == Kind::Calls, duration)?;
    std::thread::sleep(Duration::from_secs_f64(options.warmup));
    let first = (
        sender.sent(),
        thread_cpu_ns(carrier.threads())?,
        carrier.allocations(),
    );
    std::thread::sleep(Duration::from_secs_f64(options.seconds));
    let last = (
        sender.sent(),
        thread_cpu_ns(carrier.threads())?,
        carrier.allocations(),
    );
    let resident_kib = measure::resident_kib()?;
    let sent = sender.join()?;
    std::thread::sleep(SETTLE);
    let packets = (last.0 - first.0).max(1) as f64;
    let allocations = last.2.zip(first.2).map(|(last, first)| last - first);
    Ok(Figures {
        us_per_packet: (last.1 - first.1) as f64 / 1e3 / packets,
        sent,
        lost: sent as i64 - drain.drained() as i64,
        ready_ms,
        kib_per_stream: resident_kib.saturating_sub(resident_kib_before) as f64
            / f64::from(streams),
        allocations_per_packet: allocations.map(|count| count as f64 / packets),
    })
}

/// Returns the CPU time of the threads whose names begin with `name`.
fn thread_cpu_ns(name: &str) -> Result<u64> {
    let mut cpu_ns = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        if std::fs::read_to_string(task.join("comm"))?.starts_with(name) {
            let stat = std::fs::read_to_string(task.join("schedstat"))?;
            let first = stat
                .split_whitespace()
                .next()
                .context("the file schedstat is empty")?;
            cpu_ns += first.parse::<u64>()?;
        }
    }
    ensure!(cpu_ns > 0, "no thread {name} has run");
    Ok(cpu_ns)
}

/// Time after which all sent packets have arrived. It is longer than a jitter buffer's latency and two slices.
const SETTLE: Duration = Duration::from_millis(500);
