//! Resources of this process: CPU time, threads, memory, descriptors.

use std::time::Duration;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::time::TimeValLike;

/// Resources used so far, by all threads of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    /// User and system time.
    pub cpu: Duration,
    /// Voluntary and involuntary.
    pub context_switches: u64,
}

impl Usage {
    /// The present values; zeros if the kernel does not tell.
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

    /// Resources used since `earlier`.
    pub fn since(&self, earlier: &Usage) -> Usage {
        Usage {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            context_switches: self
                .context_switches
                .saturating_sub(earlier.context_switches),
        }
    }
}

/// Threads of this process.
pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, |tasks| tasks.count())
}

/// Resident memory of this process in KiB.
pub fn resident_kib() -> u64 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .as_deref()
        .and_then(|status| status.lines().find_map(|line| line.strip_prefix("VmRSS:")))
        .and_then(|value| value.split_whitespace().next())
        .and_then(|kib| kib.parse().ok())
        .unwrap_or(0)
}

/// The limit of open descriptors: the present one, and the maximum.
pub fn descriptor_limits() -> Option<(u64, u64)> {
    getrlimit(Resource::RLIMIT_NOFILE).ok()
}

/// Raises the limit of open descriptors to the maximum; returns the new one.
pub fn raise_descriptor_limit() -> Option<u64> {
    let (soft, hard) = descriptor_limits()?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).ok()?;
    }
    descriptor_limits().map(|(soft, _)| soft)
}

/// A kernel setting that is one number, such as `net/core/rmem_max`.
pub fn sysctl(path: &str) -> Option<u64> {
    std::fs::read_to_string(format!("/proc/sys/{path}"))
        .ok()?
        .trim()
        .parse()
        .ok()
}
