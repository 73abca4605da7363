//! Measures the resources that a process uses: CPU time, context switches, threads and memory.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::counter;

/// The counters of this process at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    at: Instant,
    cpu: Duration,
    switches: u64,
    counted: Counted,
    allocations: Option<u64>,
}

/// A number of buffers and the time at which it was read. The time is stored because it takes a while to read the counts of a thousand
/// elements.
#[derive(Clone, Copy, Debug)]
struct Counted {
    at: Instant,
    arrived: u64,
}

impl Counted {
    fn now() -> Counted {
        let at = Instant::now();
        let arrived = counter::arrived();
        Counted { at, arrived }
    }
}

/// The differences between two snapshots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    pub seconds: f64,
    pub buffers: u64,
    pub cpu_percent: f64,
    /// User and system time of the whole process, divided by the number of buffers that arrived.
    pub cpu_us_per_buffer: Option<f64>,
    pub switches_per_second: f64,
    /// Number of heap allocations per buffer. It is measured only if the counting allocator is preloaded.
    pub allocations_per_buffer: Option<f64>,
}

impl Snapshot {
    /// Takes the snapshot at the beginning of a window. The cost of the snapshot itself is not in the window.
    pub fn first() -> Snapshot {
        let counted = Counted::now();
        Snapshot::of(|| counted)
    }

    /// Takes the snapshot at the end of a window. The cost of the snapshot itself is not in the window.
    pub fn last() -> Snapshot {
        Snapshot::of(Counted::now)
    }

    fn of(counted: impl FnOnce() -> Counted) -> Snapshot {
        let usage = usage();
        let allocations = allocations();
        Snapshot {
            at: Instant::now(),
            cpu: duration_of(usage.ru_utime) + duration_of(usage.ru_stime),
            switches: (usage.ru_nvcsw + usage.ru_nivcsw) as u64,
            counted: counted(),
            allocations,
        }
    }

    /// Returns the user and system time of the whole process from this snapshot to `end`.
    pub fn cpu_ms_until(&self, end: &Snapshot) -> f64 {
        (end.cpu - self.cpu).as_secs_f64() * 1e3
    }

    pub fn until(&self, end: &Snapshot) -> Window {
        let seconds = (end.at - self.at).as_secs_f64();
        let cpu_seconds = (end.cpu - self.cpu).as_secs_f64();
        // The buffers were counted over a slightly longer time than the window. The count is scaled to the window.
        let counted = end.counted.arrived - self.counted.arrived;
        let counted_seconds = (end.counted.at - self.counted.at).as_secs_f64();
        let buffers = (counted as f64 * seconds / counted_seconds).round();
        let per_buffer = |total: f64| (buffers > 0.0).then(|| total / buffers);
        let allocations = self
            .allocations
            .zip(end.allocations)
            .map(|(first, last)| last - first);
        Window {
            seconds,
            buffers: buffers as u64,
            cpu_percent: 100.0 * cpu_seconds / seconds,
            cpu_us_per_buffer: per_buffer(cpu_seconds * 1e6),
            switches_per_second: (end.switches - self.switches) as f64 / seconds,
            allocations_per_buffer: allocations.and_then(|calls| per_buffer(calls as f64)),
        }
    }
}

fn usage() -> libc::rusage {
    // SAFETY: all zeros are a valid rusage, and the call only writes to it.
    unsafe {
        let mut usage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    }
}

fn duration_of(time: libc::timeval) -> Duration {
    Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000)
}

/// Returns the number of allocating calls so far, if the library `malloc-count` is preloaded.
fn allocations() -> Option<u64> {
    // SAFETY: the name is a C string. If it resolves, it is our function, which has this type.
    unsafe {
        let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"threadbare_malloc_count".as_ptr());
        if symbol.is_null() {
            return None;
        }
        let count: extern "C" fn() -> u64 = std::mem::transmute(symbol);
        Some(count())
    }
}

/// Returns the resident memory of this process.
pub fn resident_kib() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = status
        .lines()
        .find(|line| line.starts_with("Rss:"))
        .context("/proc/self/smaps_rollup has no line Rss")?;
    let kib = line
        .split_whitespace()
        .nth(1)
        .context("the line Rss of /proc/self/smaps_rollup has no number")?;
    Ok(kib.parse()?)
}

/// Returns the name of each thread of this process and the number of its voluntary context switches so far, by thread id.
pub fn switches_by_thread() -> Result<BTreeMap<u32, (String, u64)>> {
    let mut threads = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        let entry = entry?;
        let id = entry.file_name().to_string_lossy().parse()?;
        let status = std::fs::read_to_string(entry.path().join("status"))?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            line.map(|line| line[name.len()..].trim().to_owned())
        };
        let name = field("Name:").context("/proc/self/task/TID/status has no line Name")?;
        let switches = field("voluntary_ctxt_switches:")
            .context("/proc/self/task/TID/status has no line voluntary_ctxt_switches")?
            .parse()?;
        threads.insert(id, (name, switches));
    }
    Ok(threads)
}

/// The resources that a child process used until its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChildUsage {
    /// User and system time.
    pub cpu_ms: f64,
    /// Maximum resident memory.
    pub resident_kib_max: u64,
}

/// Runs a program until it ends, and drops its output. Returns an error if the program fails.
pub fn run_child(command: &mut Command) -> Result<ChildUsage> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let mut status = 0;
    // SAFETY: all zeros are a valid rusage. `status` and `usage` outlive the call. No other code waits for the child, because
    // its handle is dropped without a wait.
    let (waited, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let pid = child.id() as libc::pid_t;
        (libc::wait4(pid, &mut status, 0, &mut usage), usage)
    };
    if waited < 0 {
        return Err(std::io::Error::last_os_error())
            .with_context(|| format!("cannot wait for {name}"));
    }
    if status != 0 {
        bail!("{name} failed (wait status {status:#x})");
    }
    let cpu = duration_of(usage.ru_utime) + duration_of(usage.ru_stime);
    Ok(ChildUsage {
        cpu_ms: cpu.as_secs_f64() * 1e3,
        resident_kib_max: usage.ru_maxrss as u64,
    })
}

/// Returns the CPU time of the calling thread.
pub fn thread_cpu() -> Duration {
    // SAFETY: all zeros are a valid timespec, and the call only writes to it. The clock exists in Linux.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
        time
    };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Restricts all threads of a process to these cores from now on. The cores are a list such as `0` or `0-3`.
///
/// # Errors
/// Fails if the process, the core or `taskset` does not exist.
pub fn pin(process: u32, cores: &str) -> Result<()> {
    let mut command = Command::new("taskset");
    command.args([
        "--all-tasks",
        "--cpu-list",
        "--pid",
        cores,
        &process.to_string(),
    ]);
    let status = command.stdout(Stdio::null()).status();
    if !status.context("taskset")?.success() {
        bail!("process {process} cannot run on cores {cores}");
    }
    Ok(())
}

/// Raises this process's limit of open descriptors to the maximum that the system permits.
pub fn raise_descriptor_limit() {
    // SAFETY: the calls only read and write plain data. If they fail, the limit is unchanged, and a later attempt to open sockets fails.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_window_are_per_received_buffer() {
        let at = Instant::now();
        let first = Snapshot {
            at,
            cpu: Duration::ZERO,
            switches: 5,
            counted: Counted { at, arrived: 100 },
            allocations: Some(7),
        };
        let last = Snapshot {
            at: at + Duration::from_secs(2),
            cpu: Duration::from_millis(500),
            switches: 25,
            // A thousand more buffers arrived while the count was read.
            counted: Counted {
                at: at + Duration::from_secs(4),
                arrived: 2100,
            },
            allocations: Some(507),
        };
        let window = first.until(&last);
        assert_eq!(window.buffers, 1000);
        assert_eq!(window.cpu_percent, 25.0);
        assert_eq!(window.cpu_us_per_buffer, Some(500.0));
        assert_eq!(window.switches_per_second, 10.0);
        assert_eq!(window.allocations_per_buffer, Some(0.5));
    }

    #[test]
    fn a_run_in_which_nothing_arrived_has_no_figure() {
        let now = Snapshot::first();
        assert_eq!(now.until(&Snapshot::last()).cpu_us_per_buffer, None);
    }

    #[test]
    fn a_child_process_is_measured_and_its_failure_is_an_error() {
        let usage = run_child(
            Command::new("sh").args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"]),
        );
        let usage = usage.unwrap();
        assert!(
            usage.cpu_ms > 0.0 && usage.resident_kib_max > 0,
            "{usage:?}"
        );
        let failed = run_child(Command::new("sh").args(["-c", "exit 3"]));
        assert!(failed.unwrap_err().to_string().contains("sh failed"));
    }

    #[test]
    fn the_process_measures_itself() {
        assert!(resident_kib().unwrap() > 0);
        let threads = switches_by_thread().unwrap();
        assert!(threads.contains_key(&std::process::id()));
    }
}
