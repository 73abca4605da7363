//! Resource usage of this process: CPU time, threads, memory, descriptors.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::time::TimeValLike;

/// Resources used so far, by all threads of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    /// User and system time.
    pub cpu: Duration,
    /// Voluntary and involuntary context switches.
    pub context_switches: u64,
}

impl Usage {
    /// Returns the current values. They are 0 if the kernel does not provide them.
    pub fn now() -> Usage {
        let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else {
            return Usage::default();
        };
        let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        let switches = usage.voluntary_context_switches() + usage.involuntary_context_switches();
        Usage {
            cpu: Duration::from_micros(micros.unsigned_abs()),
            context_switches: switches.unsigned_abs(),
        }
    }

    /// Returns the resources used since `earlier`.
    pub fn since(&self, earlier: &Usage) -> Usage {
        Usage {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            context_switches: self
                .context_switches
                .saturating_sub(earlier.context_switches),
        }
    }
}

/// Times in which the machine kept this process from running.
#[derive(Clone, Debug, Default)]
pub struct Starvation {
    /// For each thread, the time in which it was ready to run, but had no CPU, ns.
    waited_ns: BTreeMap<String, u64>,
    /// The time in which the host ran other virtual machines, averaged over all CPUs.
    stolen: Duration,
}

impl Starvation {
    /// Returns the current values. They are 0 if the kernel does not provide them (`CONFIG_SCHED_INFO`).
    pub fn now() -> Starvation {
        let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten();
        let waited = threads.flatten().filter_map(|thread| {
            let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            let name = thread.file_name().to_string_lossy().into_owned();
            Some((name, waited_ns(&text)?))
        });
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Starvation {
            waited_ns: waited.collect(),
            stolen: stolen(&stat).unwrap_or_default(),
        }
    }

    /// Returns the time lost since `earlier`, for the thread that lost the most time.
    pub fn longest_since(&self, earlier: &Starvation) -> Duration {
        let lost = |(thread, waited_ns): (&String, &u64)| {
            let before = earlier.waited_ns.get(thread).copied().unwrap_or(0);
            waited_ns.saturating_sub(before)
        };
        let waited_ns = self.waited_ns.iter().map(lost).max().unwrap_or(0);
        Duration::from_nanos(waited_ns) + self.stolen.saturating_sub(earlier.stolen)
    }
}

/// Parses the waiting time: the second number of `/proc/PID/task/TID/schedstat` (Documentation/scheduler/sched-stats of Linux).
fn waited_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

/// Parses the stolen time: the eighth number of the line `cpu` in `/proc/stat`, in ticks of 10 ms of all CPUs together
/// (proc_stat(5)).
fn stolen(stat: &str) -> Option<Duration> {
    let ticks: u64 = stat
        .lines()
        .next()?
        .split_whitespace()
        .nth(8)?
        .parse()
        .ok()?;
    let cpus = stat
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with("cpu"))
        .count();
    Some(Duration::from_millis(ticks * 10 / cpus.max(1) as u64))
}

/// Returns the number of threads of this process.
pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, |tasks| tasks.count())
}

/// Returns the resident memory of this process in KiB.
pub fn resident_kib() -> u64 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .as_deref()
        .and_then(|status| status.lines().find_map(|line| line.strip_prefix("VmRSS:")))
        .and_then(|value| value.split_whitespace().next())
        .and_then(|kib| kib.parse().ok())
        .unwrap_or(0)
}

/// Returns the current and the maximum limit of open descriptors.
pub fn descriptor_limits() -> Option<(u64, u64)> {
    getrlimit(Resource::RLIMIT_NOFILE).ok()
}

/// Raises the limit of open descriptors to the maximum. Returns the new limit.
pub fn raise_descriptor_limit() -> Option<u64> {
    let (soft, hard) = descriptor_limits()?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).ok()?;
    }
    descriptor_limits().map(|(soft, _)| soft)
}

/// Returns a kernel setting that is one number, such as `net/core/rmem_max`.
pub fn sysctl(path: &str) -> Option<u64> {
    std::fs::read_to_string(format!("/proc/sys/{path}"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts are from proc_stat(5), and from Linux' documentation of scheduler statistics.
    #[test]
    fn starvation_is_read_from_the_kernels_texts() {
        assert_eq!(waited_ns("812345678 20000000 4711\n"), Some(20_000_000));
        assert_eq!(waited_ns(""), None);
        let stat = "cpu  10 0 20 900 0 0 5 400 0 0\ncpu0 5 0 10 450 0 0 5 200 0 0\n\
                    cpu1 5 0 10 450 0 0 0 200 0 0\nintr 1\n";
        assert_eq!(stolen(stat), Some(Duration::from_secs(2)));
        assert_eq!(stolen("cpu 1"), None);
    }

    #[test]
    fn starvation_is_the_longest_wait_of_a_thread_plus_stolen_time() {
        let at = |waits: &[(&str, u64)], stolen_ms| Starvation {
            waited_ns: waits
                .iter()
                .map(|(thread, ns)| ((*thread).to_owned(), *ns))
                .collect(),
            stolen: Duration::from_millis(stolen_ms),
        };
        let before = at(&[("1", 50_000_000)], 10);
        let after = at(&[("1", 60_000_000), ("2", 30_000_000)], 15);
        assert_eq!(after.longest_since(&before), Duration::from_millis(35));
        assert_eq!(before.longest_since(&after), Duration::ZERO);
    }
}
