//! The results file, with all measurements of one run. README, docs and plots are generated only from results files.

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
    /// Year, month, day, hour and minute in UTC.
    pub date_utc: String,
    pub commit: String,
    /// Whether files of the working tree differed from the commit.
    pub tree_dirty: bool,
    pub machine: Machine,
    pub rounds: u32,
    pub warmup_seconds: f64,
    /// Length of the measured window of each run.
    pub window_seconds: f64,
    pub rows: Vec<Row>,
    pub comparisons: Vec<Comparison>,
    pub demo: Option<Demo>,
    pub latencies: Vec<Latencies>,
    pub remarks: Vec<String>,
    pub samples: Samples,
    pub runs: Runs,
}

/// The machine and the software that were used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
    pub distribution: String,
    pub gstreamer: String,
}

/// A target and its figures. The figures are missing if a case that the target needs did not run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Heading above the row.
    pub part: String,
    pub what: String,
    pub unit: String,
    /// Maximum value.
    pub limit: f64,
    pub measured: Option<Spread>,
    pub pass: Option<bool>,
}

/// A comparison of another program with ours, for the same work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    pub what: String,
    pub unit: String,
    pub peer: String,
    pub theirs: Option<Spread>,
    pub ours: Option<Spread>,
    /// The row of the target that this comparison illustrates.
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
    /// Number of packets that were forwarded but did not arrive in the receiving process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_on_the_way_out: Option<i64>,
    /// 99th percentile of the lateness of the context's slices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_p99_us: Option<u64>,
}

/// The figures of one sample in all rounds.
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

/// Latencies of packets in a gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latencies {
    pub name: String,
    /// Entry n is the number of packets that took from n to n + 1 ms. The last entry also counts packets that took longer.
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
    /// Duration from an error of the source to the next buffer of the output, in buffers.
    pub after_error_buffers: f64,
    /// Duration from the last buffer of the source to the next buffer of the output, minus the timeout, in buffers.
    pub after_stall_buffers: f64,
    pub jitter_switches: u64,
}

impl Results {
    /// Returns the name of the file. The name begins with the date, so that files are sorted by age.
    pub fn file_name(&self) -> String {
        let date: String = self.date_utc.chars().filter(|c| *c != ':').collect();
        format!("{}-{}.json", date.replace(' ', "T"), self.commit)
    }

    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(self.file_name());
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    pub fn read(path: &Path) -> Result<Results> {
        let context = || format!("cannot read {}", path.display());
        let text = std::fs::read_to_string(path).with_context(context)?;
        serde_json::from_str(&text).with_context(context)
    }

    /// Reads the newest results file in a folder, according to its name. Returns `None` if the file or the folder does not exist.
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

    /// Returns the number of lost packets, both before the counted pad and after it.
    pub fn lost(&self) -> Option<f64> {
        let inside = self.done.as_ref()?.lost?;
        Some((inside + self.lost_on_the_way_out.unwrap_or(0)) as f64)
    }

    /// Returns the number of threads of the process.
    pub fn threads(&self) -> Option<f64> {
        Some(self.done.as_ref()?.threads as f64)
    }

    /// Returns the number of threads other than the context's thread. Each case of our plugin has one context with one thread.
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
