//! The part of a measurement that runs in the measured process.
//!
//! ```text
//! measured -> driver   {"Ready": ...}       the streams are set up; the sender may start
//!                      (first packet, warm-up, window)
//! driver -> measured   {"sent": N}          the sender has finished
//!                      (until N packets have arrived, or no more arrive)
//! measured -> driver   {"Done": ...}
//! ```

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::counter;
use crate::hop::{self, HopTimes};
use crate::measure::{self, Snapshot, Window};

/// Polling interval of the main thread before and after the window. During the window, the main thread sleeps.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum wait for the first packet. After this time, the measurement fails.
const FIRST_PACKET_PATIENCE: Duration = Duration::from_secs(30);
/// Time without packets after which missing packets count as lost.
const QUIET: Duration = Duration::from_secs(1);

/// A line from the measured process.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    Ready(Ready),
    Done(Done),
    Idle(Idle),
}

/// State of the measured process after set-up and before the first packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// Time from the start of building the first stream until the last one plays.
    pub setup_seconds: f64,
    /// Resident memory when the first stream played and the others did not exist yet.
    pub resident_kib_first: u64,
}

/// Figures of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    pub window: Window,
    pub threads: usize,
    pub resident_kib: u64,
    pub arrived: u64,
    /// Number of lost packets, or `None` if the number of sent packets is unknown.
    pub lost: Option<i64>,
    /// Times of buffers from one marked pad to the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hops: Option<HopTimes>,
}

/// Activity of an idle process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Idle {
    pub seconds: f64,
    /// Number of voluntary context switches by thread name, without the main thread.
    pub switches: BTreeMap<String, u64>,
    /// CPU time of the process. It shows whether a thread spins, because such a thread has no voluntary context switches.
    pub cpu_ms: f64,
}

/// The driver's message that the sender has finished.
#[derive(Debug, Serialize, Deserialize)]
pub struct Finished {
    pub sent: u64,
    /// Maximum delay of the sender behind its schedule. If it exceeds the 20 ms of a packet, the sender did not produce the requested load.
    pub late_ms_max: f64,
}

/// Source of the streams' data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The sender. The driver reports when it has finished.
    Sender,
    /// The streams generate their data themselves.
    Within,
}

/// Reports that the streams are ready, measures, and reports the results.
pub fn run(ready: Ready, warmup: Duration, window: Duration, origin: Origin) -> Result<()> {
    report(&Report::Ready(ready))?;
    let patience_end = Instant::now() + FIRST_PACKET_PATIENCE;
    while counter::arrived() == 0 {
        if Instant::now() > patience_end {
            bail!("no packet arrived within {FIRST_PACKET_PATIENCE:?}");
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    std::thread::sleep(warmup);
    hop::restart();
    let first = Snapshot::first();
    std::thread::sleep(window);
    let last = Snapshot::last();

    let threads = measure::switches_by_thread()?.len();
    let resident_kib = measure::resident_kib()?;
    let hops = hop::times();
    let (arrived, lost) = match origin {
        Origin::Sender => {
            let sent = finished()?.sent;
            let arrived = wait_for_stragglers(sent);
            (arrived, Some(sent as i64 - arrived as i64))
        }
        Origin::Within => (counter::arrived(), None),
    };
    let window = first.until(&last);
    report(&Report::Done(Done {
        window,
        threads,
        resident_kib,
        arrived,
        lost,
        hops,
    }))
}

/// Reports that the streams are ready, and counts the wake-ups of threads while nothing is sent.
pub fn run_idle(ready: Ready, warmup: Duration, window: Duration) -> Result<()> {
    report(&Report::Ready(ready))?;
    std::thread::sleep(warmup);
    let first = measure::switches_by_thread()?;
    let start = Snapshot::first();
    std::thread::sleep(window);
    let cpu_ms = start.cpu_ms_until(&Snapshot::last());
    let last = measure::switches_by_thread()?;
    let mut switches = BTreeMap::new();
    for (id, (name, count)) in last.iter().filter(|(id, _)| **id != std::process::id()) {
        let before = first.get(id).map_or(0, |(_, before)| *before);
        *switches.entry(name.clone()).or_insert(0) += count - before;
    }
    report(&Report::Idle(Idle {
        seconds: window.as_secs_f64(),
        switches,
        cpu_ms,
    }))
}

fn finished() -> Result<Finished> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    serde_json::from_str(&line).context("the driver ended before the sender did")
}

fn wait_for_stragglers(sent: u64) -> u64 {
    let mut arrived = counter::arrived();
    let mut quiet_since = Instant::now();
    while arrived < sent && quiet_since.elapsed() < QUIET {
        std::thread::sleep(LOOK_INTERVAL);
        let now = counter::arrived();
        if now != arrived {
            (arrived, quiet_since) = (now, Instant::now());
        }
    }
    arrived
}

fn report(report: &Report) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, report)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}
