//! Timers on a main context.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use threadbare_runtime::{MissedTicks, Tick, Ticks, clock_now_ns};

/// Returns a stream that ticks each `period`. Missed ticks are skipped and counted ([`MissedTicks::Skip`]).
pub fn interval_stream(period: Duration) -> Interval {
    interval_stream_with(period, MissedTicks::Skip)
}

/// Returns a stream that ticks each `period`. The first tick comes one period after the first poll, and the stream does not end.
/// `missed` selects the treatment of ticks that become due while the reader or the main context is busy.
///
/// Poll it in a future of a main context. For Threadbare's contexts, use [`threadbare_runtime::interval_stream_with`] instead. A
/// tick is never early. On an idle context, it is up to a millisecond late, the unit of GLib's timers; a shorter period counts as
/// one millisecond. glib's `interval_stream` counts each period from the previous tick, and so drifts ([`MissedTicks::Delay`]).
///
/// ```
/// use std::time::Duration;
/// use futures_util::StreamExt;
/// use threadbare_mainloop::{MissedTicks, interval_stream_with};
///
/// glib::MainContext::new().block_on(async {
///     let mut ticks = interval_stream_with(Duration::from_millis(1), MissedTicks::Burst);
///     let (first, second) = (ticks.next().await.unwrap(), ticks.next().await.unwrap());
///     assert_eq!(second.at_ns - first.at_ns, 1_000_000);
/// });
/// ```
pub fn interval_stream_with(period: Duration, missed: MissedTicks) -> Interval {
    let period = period.max(PERIOD_MIN);
    Interval {
        period_ns: u64::try_from(period.as_nanos()).unwrap_or(u64::MAX),
        missed,
        ticks: None,
        timer: None,
    }
}

/// The stream of [`interval_stream`]. Its items are [`Tick`]s, in CLOCK_MONOTONIC.
#[must_use = "streams do nothing unless polled"]
pub struct Interval {
    period_ns: u64,
    missed: MissedTicks,
    ticks: Option<Ticks>,
    timer: Option<Timer>,
}

type Timer = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Stream for Interval {
    type Item = Tick;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Tick>> {
        let this = &mut *self;
        let ticks = this.ticks.get_or_insert_with(|| {
            let first_ns = clock_now_ns().saturating_add(this.period_ns);
            Ticks::new(first_ns, this.period_ns, this.missed)
        });
        loop {
            let now_ns = clock_now_ns();
            if let Some(tick) = ticks.take(now_ns) {
                this.timer = None;
                return Poll::Ready(Some(tick));
            }
            let timer = this.timer.get_or_insert_with(|| {
                let left = Duration::from_nanos(ticks.next_ns().saturating_sub(now_ns));
                // GLib's timers count whole milliseconds. Round up, because a timer that fires too early would have to be set
                // again.
                Box::pin(glib::timeout_future(left + Duration::from_micros(999)))
            });
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            this.timer = None;
        }
    }
}

impl fmt::Debug for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interval")
            .field("ticks", &self.ticks)
            .finish_non_exhaustive()
    }
}

const PERIOD_MIN: Duration = Duration::from_millis(1);
