//! The one place where the context's clock (CLOCK_MONOTONIC) becomes GStreamer running time.

use gst::glib::prelude::*;
use gst::prelude::*;
use threadbare_runtime::clock_now_ns;

/// Running time of an element, as long as it plays.
#[derive(Debug, Clone, Default)]
pub struct RunningTime {
    clock: Option<gst::Clock>,
    base_ns: u64,
    /// The pipeline's clock counts what the context counts: no clock call per packet.
    is_monotonic: bool,
}

impl RunningTime {
    /// As the element stands now; to be taken again when its clock or base time changes.
    pub fn of(element: &impl IsA<gst::Element>) -> Self {
        Self::with_clock(element, element.clock())
    }

    /// As the element will stand with `clock`: while it is being set, it does not have it yet.
    pub fn with_clock(element: &impl IsA<gst::Element>, clock: Option<gst::Clock>) -> Self {
        let base_ns = element.base_time().map_or(0, gst::ClockTime::nseconds);
        let is_monotonic = clock.as_ref().is_some_and(counts_monotonic);
        RunningTime {
            clock,
            base_ns,
            is_monotonic,
        }
    }

    /// Running time at `now_ns` of the context's clock, which was read this pass. `None` without a clock.
    #[inline]
    pub fn at(&self, now_ns: u64) -> Option<gst::ClockTime> {
        let clock = self.clock.as_ref()?;
        let clock_ns = if self.is_monotonic {
            now_ns
        } else {
            clock.time().nseconds()
        };
        Some(gst::ClockTime::from_nseconds(
            clock_ns.saturating_sub(self.base_ns),
        ))
    }

    /// Running time at `then_ns` of the context's clock, which reads `now_ns` now.
    #[inline]
    pub(crate) fn at_other(&self, now_ns: u64, then_ns: u64) -> Option<gst::ClockTime> {
        let now = self.at(now_ns)?.nseconds();
        let then = (now.saturating_add(then_ns)).saturating_sub(now_ns);
        Some(gst::ClockTime::from_nseconds(then))
    }

    /// The pipeline's clock.
    pub(crate) fn clock(&self) -> Option<&gst::Clock> {
        self.clock.as_ref()
    }

    /// Base time, nanoseconds of the pipeline's clock.
    pub(crate) fn base_ns(&self) -> u64 {
        self.base_ns
    }

    /// Whether a deadline on the pipeline's clock is one on the context's.
    pub(crate) fn is_monotonic(&self) -> bool {
        self.is_monotonic
    }
}

/// Whether a clock is the plain system clock, neither slaved nor set to another origin or rate.
fn counts_monotonic(clock: &gst::Clock) -> bool {
    if clock.type_() != gst::SystemClock::static_type() || clock.master().is_some() {
        return false;
    }
    let before = clock_now_ns();
    let time = clock.time().nseconds();
    (before..=clock_now_ns()).contains(&time)
}
