//! Timeouts and intervals, with the names of GLib's main context.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;

use crate::sys::clock_now_ns;
use crate::task::{Sleep, sleep_until, timer_now_ns};
use crate::ticks::{MissedTicks, Tick, Ticks};
use crate::wheel::Precision;

/// Completes after `duration`, counted from the first poll; never early. A context with a wait rounds the time up to its next
/// slice edge. A context without a wait rounds it up to a millisecond.
///
/// # Panics
/// Panics if it is polled outside of a context's thread and of [`block_on`](crate::block_on).
pub fn timeout_future(duration: Duration) -> Timeout {
    Timeout {
        duration_ns: nanos(duration),
        sleep: None,
    }
}

/// Acts as [`timeout_future`], with the duration in seconds.
///
/// # Panics
/// Panics if it is polled outside of a context's thread and of [`block_on`](crate::block_on).
pub fn timeout_future_seconds(seconds: u32) -> Timeout {
    timeout_future(Duration::from_secs(seconds.into()))
}

/// Returns a stream of ticks, one per `period`. The first tick comes one period after the first poll. No tick is early, and the
/// stream never ends. Missed ticks are skipped and counted; the times of later ticks do not move ([`MissedTicks::Skip`]).
///
/// GLib's intervals do not catch up missed ticks either, but they drift: a period begins when the previous tick was dispatched
/// ([`MissedTicks::Delay`]). On a context with a wait, that would round each period up to whole slices.
///
/// Ticks are scheduled by the exact clock and delivered in the next slice, so the average period is exact. A period below 1 ms
/// counts as 1 ms, the resolution of a context's timers.
///
/// # Panics
/// Panics if it is polled outside of a context's thread and of [`block_on`](crate::block_on).
pub fn interval_stream(period: Duration) -> Interval {
    interval_stream_with(period, MissedTicks::Skip)
}

/// Returns an [`interval_stream`] that treats missed ticks as `missed` says.
///
/// # Panics
/// Panics if it is polled outside of a context's thread and of [`block_on`](crate::block_on).
pub fn interval_stream_with(period: Duration, missed: MissedTicks) -> Interval {
    Interval {
        period_ns: nanos(period.max(PERIOD_MIN)),
        missed,
        ticks: None,
        sleep: None,
    }
}

/// The future of [`timeout_future`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Timeout {
    duration_ns: u64,
    sleep: Option<Sleep>,
}

impl Future for Timeout {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        now_ns("timeout_future");
        let duration_ns = self.duration_ns;
        let sleep = self.sleep.get_or_insert_with(|| sleep_for(duration_ns));
        Pin::new(sleep).poll(cx)
    }
}

/// The stream of [`interval_stream`]. Its items are [`Tick`]s, in CLOCK_MONOTONIC.
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Interval {
    period_ns: u64,
    missed: MissedTicks,
    ticks: Option<Ticks>,
    sleep: Option<Sleep>,
}

impl Stream for Interval {
    type Item = Tick;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Tick>> {
        let this = &mut *self;
        let ticks = this.ticks.get_or_insert_with(|| {
            let first_ns = clock_now_ns().saturating_add(this.period_ns);
            Ticks::new(first_ns, this.period_ns, this.missed)
        });
        loop {
            // On a context, this uses the time of the pass. If it used the exact time, a task that needs longer than a period for
            // each tick would never let other tasks run.
            if let Some(tick) = ticks.take(now_ns("interval_stream")) {
                this.sleep = None;
                return Poll::Ready(Some(tick));
            }
            let next_ns = ticks.next_ns();
            let sleep = this
                .sleep
                .get_or_insert_with(|| sleep_until(next_ns, Precision::NotBefore));
            if Pin::new(sleep).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

fn sleep_for(duration_ns: u64) -> Sleep {
    sleep_until(
        clock_now_ns().saturating_add(duration_ns),
        Precision::NotBefore,
    )
}

/// Returns the present time for the timers of this thread.
fn now_ns(what: &str) -> u64 {
    timer_now_ns().unwrap_or_else(|| {
        panic!("{what} was polled outside of a context's thread and of block_on")
    })
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Minimum period. It also limits the number of ticks in one pass with [`MissedTicks::Burst`].
const PERIOD_MIN: Duration = Duration::from_millis(1);
