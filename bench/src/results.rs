//! The results file with all measurements of one run. README, docs and plots are generated from this file alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::session::{Done, Idle, Ready};
use crate::stats::Spread;

/// The runs of each case, by the case's name, in the order of the rounds.
pub type Runs = BTreeMap<String, Vec<Measured>>;
/// Figures other than runs of streams, by name.
pub type Samples = BTreeMap<String, Sample>;

/// One run of the whole benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// Year, month, day, hour and minute, UTC.
    pub date_utc: String,
    pub commit: String,
    /// Whether files differed from the commit.
    pub tree_dirty: bool,
    pub machine: Machine,
    pub rounds: u32,
    pub warmup_seconds: f64,
    /// Measured time of each run of a case.
    pub window_seconds: f64,
    pub rows: Vec<Row>,
    pub comparisons: Vec<Comparison>,
    pub demo: Option<Demo>,
    pub latencies: Vec<Latencies>,
    pub remarks: Vec<String>,
    pub samples: Samples,
    pub runs: Runs,
}

/// Machine and software of the measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
    pub distribution: String,
    pub gstreamer: String,
}

/// A target and its figures; without any if a case that it needs did not run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Heading of the row.
    pub part: String,
    pub what: String,
    pub unit: String,
    /// Maximum value.
    pub limit: f64,
    pub measured: Option<Spread>,
    pub pass: Option<bool>,
}

/// The same work by another program and by ours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    pub what: String,
    pub unit: String,
    pub peer: String,
    pub theirs: Option<Spread>,
    pub ours: Option<Spread>,
    /// The row that judges.
    pub row: Row,
}

/// Results of one run of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    pub streams: u16,
    pub ready: Ready,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<Done>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender_late_ms_max: Option<f64>,
    /// Packets that were sent on, but did not arrive in the receiving process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_on_the_way_out: Option<i64>,
    /// Lateness of the context's slices, 99th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_p99_us: Option<u64>,
}

/// A figure of each round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    pub unit: String,
    pub by_round: Vec<f64>,
}

/// The demo's last screen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Demo {
    /// The command as a user types it.
    pub command: String,
    pub screen: String,
}

/// Latency of packets through a gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latencies {
    pub name: String,
    /// Packets that took from n to n + 1 ms; the last entry has the rest.
    pub packets_by_ms: Vec<u64>,
}

impl Machine {
    pub fn here(gstreamer: String) -> Machine {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name));
            value.map_or("unknown".into(), |rest| {
                rest.trim_matches([' ', '\t', ':', '=', '"']).to_owned()
            })
        };
        Machine {
            cpu: field(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            distribution: field(&read("/etc/os-release"), "PRETTY_NAME"),
            gstreamer,
        }
    }
}

/// Results of the program `fallback`: the worst cases in virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Frozen {
    /// Number of buffers from an error of the source to the next buffer of the output.
    pub after_error_buffers: f64,
    /// Number of buffers from the last buffer of a source to the next one of the output, less the timeout.
    pub after_stall_buffers: f64,
    pub jitter_switches: u64,
}

impl Results {
    /// Name of the file; it begins with the date, so that names sort by age.
    pub fn file_name(&self) -> String {
        let date: String = self.date_utc.chars().filter(|c| *c != ':').collect();
        format!("{}-{}.json", date.replace(' ', "T"), self.commit)
    }

    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(self.file_name());
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    pub fn read(path: &Path) -> Result<Results> {
        let context = || format!("reading {}", path.display());
        let text = std::fs::read_to_string(path).with_context(context)?;
        serde_json::from_str(&text).with_context(context)
    }

    /// Returns the newest file of a folder, by its name. Returns `None` if the file or the folder does not exist.
    pub fn newest(folder: &Path) -> Result<Option<Results>> {
        let Ok(entries) = std::fs::read_dir(folder) else {
            return Ok(None);
        };
        let mut files = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                files.push(path);
            }
        }
        let newest = files.into_iter().max();
        newest.map(|path| Results::read(&path)).transpose()
    }
}

impl Measured {
    pub fn us_per_packet(&self) -> Option<f64> {
        self.done.as_ref()?.window.cpu_us_per_buffer
    }

    pub fn cpu_percent(&self) -> Option<f64> {
        Some(self.done.as_ref()?.window.cpu_percent)
    }

    pub fn switches_per_second(&self) -> Option<f64> {
        Some(self.done.as_ref()?.window.switches_per_second)
    }

    pub fn allocations(&self) -> Option<f64> {
        self.done.as_ref()?.window.allocations_per_buffer
    }

    /// Before the counted pad, and after it on the way out.
    pub fn lost(&self) -> Option<f64> {
        let inside = self.done.as_ref()?.lost?;
        Some((inside + self.lost_on_the_way_out.unwrap_or(0)) as f64)
    }

    /// Number of threads of the whole process.
    pub fn threads(&self) -> Option<f64> {
        Some(self.done.as_ref()?.threads as f64)
    }

    /// Every case of ours runs on one context with one thread.
    pub fn threads_beside_the_context(&self) -> Option<f64> {
        Some(self.threads()? - 1.0)
    }

    pub fn resident_kib_per_stream(&self) -> Option<f64> {
        let more = self.done.as_ref()?.resident_kib as f64 - self.ready.resident_kib_first as f64;
        Some(more / f64::from(self.streams.max(2) - 1))
    }

    pub fn hop_p99_ms(&self) -> Option<f64> {
        Some(self.done.as_ref()?.hops?.p99_us as f64 / 1e3)
    }

    pub fn late_p99_us(&self) -> Option<f64> {
        self.late_p99_us.map(|us| us as f64)
    }

    pub fn setup_seconds(&self) -> Option<f64> {
        Some(self.ready.setup_seconds)
    }

    pub fn wake_ups(&self) -> Option<f64> {
        Some(self.idle.as_ref()?.switches.values().sum::<u64>() as f64)
    }

    pub fn idle_cpu_ms(&self) -> Option<f64> {
        Some(self.idle.as_ref()?.cpu_ms)
    }
}
