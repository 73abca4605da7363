//! The only conversions between clocks: the context's (CLOCK_MONOTONIC), GStreamer running time, and the wall clock that the
//! kernel stamps packets with.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use gst::glib::prelude::*;
use gst::prelude::*;
use threadbare_runtime::{
    Cx, Precision, Shard, Sleep, clock_now_ns, sleep_until, wall_clock_ahead_ns,
};

use super::stats::Single;

/// Running time of an element, while it plays.
///
/// It keeps the element alive, so drop it when the element leaves PLAYING.
#[derive(Debug, Clone, Default)]
pub struct RunningTime {
    clock: Option<gst::Clock>,
    base: Base,
    /// Whether the pipeline's clock counts like the context's. Then no packet needs a clock call.
    is_monotonic: bool,
}

/// The clock's time at running time 0.
#[derive(Debug, Clone)]
enum Base {
    /// The element's base time. A pipeline changes it in PLAYING without notifying the element, for example after a flushing seek
    /// of another branch. So each use reads it again.
    Of(gst::Element),
    /// This time, ns.
    At(u64),
}

impl Default for Base {
    fn default() -> Self {
        Base::At(0)
    }
}

impl Base {
    #[inline]
    fn ns(&self) -> u64 {
        match self {
            Base::Of(element) => element.base_time().map_or(0, gst::ClockTime::nseconds),
            Base::At(ns) => *ns,
        }
    }
}

impl RunningTime {
    /// Creates the running time of an element that starts to play, from its current clock. Create it again when the clock
    /// changes.
    pub fn of(element: &impl IsA<gst::Element>) -> Self {
        Self::by(element.upcast_ref(), element.clock())
    }

    /// Acts as [`of`](Self::of), but with `clock`. Use it while the element's clock is being set. An element that does not play
    /// has no running time yet.
    pub fn with_clock(element: &impl IsA<gst::Element>, clock: Option<gst::Clock>) -> Self {
        if element.current_state() == gst::State::Playing {
            Self::by(element.upcast_ref(), clock)
        } else {
            RunningTime::default()
        }
    }

    fn by(element: &gst::Element, clock: Option<gst::Clock>) -> Self {
        let is_monotonic = clock.as_ref().is_some_and(counts_monotonic);
        RunningTime {
            clock,
            base: Base::Of(element.clone()),
            is_monotonic,
        }
    }

    /// Creates the time of an element without a clock: from the context's clock, with 0 at `base_ns`.
    #[doc(hidden)]
    pub fn of_context(base_ns: u64) -> Self {
        RunningTime {
            clock: None,
            base: Base::At(base_ns),
            is_monotonic: true,
        }
    }

    /// Returns the running time at `now_ns` of the context's clock, which was read in this pass. It is 0 before the base time.
    /// `None`: there is no clock.
    #[inline]
    pub fn at(&self, now_ns: u64) -> Option<gst::ClockTime> {
        let running_ns = self.signed_at(now_ns)?;
        Some(gst::ClockTime::from_nseconds(
            running_ns.max(0).unsigned_abs(),
        ))
    }

    /// Acts as [`at`](Self::at), with a result in ns, which is negative before the base time.
    #[inline]
    #[doc(hidden)]
    pub fn signed_at(&self, now_ns: u64) -> Option<i64> {
        let clock_ns = if self.is_monotonic {
            now_ns
        } else {
            self.clock.as_ref()?.time().nseconds()
        };
        // Both are far below 2^63 ns, which is 292 years.
        Some(clock_ns.wrapping_sub(self.base.ns()).cast_signed())
    }

    /// Returns the current running time in ns, which is negative before the base time. `None`: there is no clock.
    #[inline]
    #[doc(hidden)]
    pub fn now_ns(&self) -> Option<i64> {
        let clock_ns = if self.is_monotonic { clock_now_ns() } else { 0 };
        self.signed_at(clock_ns)
    }

    /// Returns a future that completes at this running time in ns, or at once if there is no clock. It works on a context's
    /// thread and in `block_on`.
    #[doc(hidden)]
    pub fn wait_until(&self, running_ns: u64) -> ClockWait {
        let due_ns = running_ns.saturating_add(self.base.ns());
        match &self.clock {
            _ if self.is_monotonic => {
                ClockWait::Monotonic(sleep_until(due_ns, Precision::NotBefore))
            }
            Some(clock) => ClockWait::Other {
                id: clock.new_single_shot_id(gst::ClockTime::from_nseconds(due_ns)),
                clock: clock.clone(),
                is_waiting: false,
            },
            None => ClockWait::Over,
        }
    }

    /// Returns the running time at `then_ns` of the context's clock. `now_ns`: the current time of that clock.
    #[inline]
    #[doc(hidden)]
    pub fn at_other(&self, now_ns: u64, then_ns: u64) -> Option<gst::ClockTime> {
        let now = self.at(now_ns)?.nseconds();
        let then = (now.saturating_add(then_ns)).saturating_sub(now_ns);
        Some(gst::ClockTime::from_nseconds(then))
    }

    /// Returns the pipeline's clock.
    #[doc(hidden)]
    pub fn clock(&self) -> Option<&gst::Clock> {
        self.clock.as_ref()
    }

    /// Whether a clock is set.
    #[doc(hidden)]
    pub fn has_clock(&self) -> bool {
        self.is_monotonic || self.clock.is_some()
    }
}

/// A wait for a running time on any clock. Dropping it cancels the wait.
#[derive(Debug)]
pub enum ClockWait {
    /// On the clock of the contexts' timers.
    Monotonic(Sleep),
    /// Asynchronously on the pipeline's clock.
    Other {
        /// The pipeline's clock.
        clock: gst::Clock,
        /// The entry in the clock.
        id: gst::SingleShotClockId,
        /// Whether the clock knows the waker.
        is_waiting: bool,
    },
    /// The time has been reached.
    Over,
}

impl ClockWait {
    /// Creates a wait until this time of CLOCK_MONOTONIC in ns.
    pub fn until_monotonic(deadline_ns: u64) -> Self {
        ClockWait::Monotonic(sleep_until(deadline_ns, Precision::NotBefore))
    }
}

impl Future for ClockWait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut *self {
            ClockWait::Monotonic(sleep) => Pin::new(sleep).poll(cx),
            ClockWait::Other {
                clock,
                id,
                is_waiting,
            } => {
                if clock.time() >= id.time() {
                    return Poll::Ready(());
                }
                if !std::mem::replace(is_waiting, true) {
                    let waker = cx.waker().clone();
                    let begun = id.wait_async(move |_, _, _| waker.wake_by_ref());
                    if begun.is_err() {
                        // The clock has no asynchronous waits, so it is read again and again.
                        *self = ClockWait::until_monotonic(clock_now_ns() + ASK_AGAIN_NS);
                        return self.poll(cx);
                    }
                }
                Poll::Pending
            }
            ClockWait::Over => Poll::Ready(()),
        }
    }
}

impl Drop for ClockWait {
    fn drop(&mut self) {
        if let ClockWait::Other {
            id,
            is_waiting: true,
            ..
        } = self
        {
            id.unschedule();
        }
    }
}

/// The lead of the wall clock over CLOCK_MONOTONIC. The kernel stamps packets with the wall clock. The lead is read once per
/// slice for all sources of a thread.
#[derive(Debug, Default)]
pub struct SliceClock {
    slice: Single,
    ahead_ns: Single,
}

impl SliceClock {
    /// Returns the slice clock of the current thread.
    pub fn of(shard: &Shard) -> Arc<SliceClock> {
        shard.extension(|_| SliceClock::default())
    }

    /// Converts `wall_ns` of the wall clock to CLOCK_MONOTONIC. The result is within the last second, even if the wall clock has
    /// jumped.
    #[inline]
    pub fn monotonic_ns(&self, cx: &Cx<'_>, wall_ns: u64) -> u64 {
        let slice = cx.local().slice();
        if self.slice.get() != slice {
            self.ahead_ns.set(wall_clock_ahead_ns());
            self.slice.set(slice);
        }
        let now_ns = cx.now_ns();
        wall_ns
            .wrapping_sub(self.ahead_ns.get())
            .clamp(now_ns.saturating_sub(ARRIVAL_AGE_NS_MAX), now_ns)
    }
}

/// Maximum age of an arrival. A packet that waited longer in the kernel was not delayed by the network.
const ARRIVAL_AGE_NS_MAX: u64 = 1_000_000_000;

/// The running time of a producer, and a timer for such a time, on any clock.
#[derive(Debug, Default)]
pub struct ProducerTimer {
    time: RunningTime,
    /// For a clock other than that of the context's timers: the deadline in ns, and the wait.
    clock_wait: Option<(u64, gst::ClockId)>,
}

impl ProducerTimer {
    /// Returns the running time that the timer uses.
    pub fn time(&self) -> &RunningTime {
        &self.time
    }

    /// Sets the running time. Waits on the old clock end.
    pub fn set_time(&mut self, time: RunningTime) {
        self.cancel_clock_wait();
        self.time = time;
    }

    /// Sets the timer, replacing the earlier deadline. Without a clock, the timer never fires.
    pub fn set(&mut self, cx: &Cx<'_>, due_ns: u64, precision: Precision) {
        let clock_ns = due_ns.saturating_add(self.time.base.ns());
        if self.time.is_monotonic {
            self.cancel_clock_wait();
            cx.set_timer(clock_ns, precision);
            return;
        }
        if (self.clock_wait.as_ref()).is_some_and(|(waited_ns, _)| *waited_ns == clock_ns) {
            return;
        }
        self.clear(cx);
        let Some(clock) = &self.time.clock else {
            return;
        };
        let id = clock.new_single_shot_id(gst::ClockTime::from_nseconds(clock_ns));
        let waker = cx.waker();
        if id.wait_async(move |_, _, _| waker.wake_by_ref()).is_err() {
            cx.wake_self();
        }
        self.clock_wait = Some((clock_ns, id.into()));
    }

    /// Cancels the timer.
    pub fn clear(&mut self, cx: &Cx<'_>) {
        cx.clear_timer();
        self.cancel_clock_wait();
    }

    fn cancel_clock_wait(&mut self) {
        if let Some((_, id)) = self.clock_wait.take() {
            id.unschedule();
        }
    }
}

impl Drop for ProducerTimer {
    fn drop(&mut self) {
        self.cancel_clock_wait();
    }
}

/// Pause before a clock without asynchronous waits is read again.
const ASK_AGAIN_NS: u64 = 5_000_000;

/// Whether a clock is the plain system clock, without a master, another origin or another rate.
fn counts_monotonic(clock: &gst::Clock) -> bool {
    if clock.type_() != gst::SystemClock::static_type() || clock.master().is_some() {
        return false;
    }
    let before = clock_now_ns();
    let time = clock.time().nseconds();
    (before..=clock_now_ns()).contains(&time)
}
