//! Shows the progress of the demo on a terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::ledger::Counters;
use super::report::grouped;
use threadbare_process::usage::{self, Usage};

/// A progress bar with a table below it.
#[derive(Debug)]
pub(super) struct Live {
    bar: ProgressBar,
    streams: usize,
    last: (Instant, Usage, u64),
}

impl Live {
    /// Creates the view. It is visible only if standard error is a terminal.
    pub(super) fn new(streams: usize, seconds: u32) -> Live {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(u64::from(seconds) * 1000), target);
        if let Ok(style) = ProgressStyle::with_template("{bar:40.cyan/blue} {percent:>3} %\n{msg}")
        {
            bar.set_style(style);
        }
        bar.set_message(format!(
            "  calling on {} streams ...",
            grouped(streams as u64)
        ));
        Live {
            bar,
            streams,
            last: (Instant::now(), Usage::now(), 0),
        }
    }

    /// Shows the counts at `elapsed` after the calls began.
    pub(super) fn show(&mut self, elapsed: Duration, counters: &Counters) {
        let (now, usage) = (Instant::now(), Usage::now());
        let (then, usage_then, received_then) = self.last;
        let seconds = (now - then).as_secs_f64();
        if seconds < SHOW_EVERY.as_secs_f64() {
            return;
        }
        self.last = (now, usage, counters.packets_received);
        let rate = (counters.packets_received - received_then) as f64 / seconds;
        let cpu_percent = 100.0 * usage.since(&usage_then).cpu.as_secs_f64() / seconds;
        self.bar.set_position(elapsed.as_millis() as u64);
        self.bar.set_message(format!(
            "  streams     {:>10}\n  packets/s   {:>10}\n  gateway CPU {cpu_percent:>8.1} %\n  \
             threads     {:>10}\n  lost        {:>10}\n  concealed   {:>10}\n  latency     {:>7.1} ms  (99 %: {:.1} ms)",
            grouped(self.streams as u64),
            grouped(rate as u64),
            usage::threads(),
            grouped(counters.passed_over),
            grouped(counters.concealed),
            counters.latency_ms_p50,
            counters.latency_ms_p99,
        ));
    }

    /// Removes the view.
    pub(super) fn finish(self) {
        self.bar.finish_and_clear();
    }
}

/// Interval of updates. If it were shorter, the figures would change too quickly to read.
const SHOW_EVERY: Duration = Duration::from_millis(400);
