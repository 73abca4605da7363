//! Measures how long buffers take from one pad of a stream to another, for example through a queue or a proxy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use gst::prelude::*;
use serde::{Deserialize, Serialize};

/// Times of all hops of this process in the measured window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopTimes {
    pub hops: u64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
}

/// Maximum number of a stream's buffers between the two pads. A measured queue never contains as many.
const UNDERWAY_MAX: usize = 256;

/// Step of the histogram in µs.
const STEP_US: u64 = 100;
/// Number of steps of the histogram. The last step counts all longer times.
const STEPS: usize = 2000;

static TIMES_US: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// The buffers of one stream that are between the two pads. They stay in order, and none is lost.
struct Underway {
    epoch: Instant,
    entered_us: [AtomicU64; UNDERWAY_MAX],
    entered: AtomicU64,
    left: AtomicU64,
}

/// Starts to measure the time of each buffer from the pad `from` to the pad `to`.
pub fn time(from: &gst::Pad, to: &gst::Pad) {
    let underway = Arc::new(Underway {
        epoch: Instant::now(),
        entered_us: std::array::from_fn(|_| AtomicU64::new(0)),
        entered: AtomicU64::new(0),
        left: AtomicU64::new(0),
    });
    let enters = underway.clone();
    from.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        enters.enter();
        gst::PadProbeReturn::Ok
    });
    to.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        if let Some(us) = underway.leave() {
            note(us);
        }
        gst::PadProbeReturn::Ok
    });
}

impl Underway {
    /// Notes that a buffer passes the first pad. Call this only on the thread that pushes through this pad.
    fn enter(&self) {
        let number = self.entered.load(Ordering::Relaxed);
        let now_us = self.epoch.elapsed().as_micros() as u64;
        self.entered_us[number as usize % UNDERWAY_MAX].store(now_us, Ordering::Relaxed);
        self.entered.store(number + 1, Ordering::Release);
    }

    /// Notes that a buffer passes the second pad, and returns the time of the buffer between the pads. Call this only on the thread that
    /// pushes through this pad. Returns `None` for a buffer that passed the first pad before the measurement started.
    fn leave(&self) -> Option<u64> {
        let number = self.left.load(Ordering::Relaxed);
        if number >= self.entered.load(Ordering::Acquire) {
            return None;
        }
        self.left.store(number + 1, Ordering::Relaxed);
        let entered_us = self.entered_us[number as usize % UNDERWAY_MAX].load(Ordering::Relaxed);
        Some((self.epoch.elapsed().as_micros() as u64).saturating_sub(entered_us))
    }
}

fn note(us: u64) {
    let mut times = TIMES_US.lock().expect("no holder of the lock panics");
    if times.is_empty() {
        times.resize(STEPS, 0);
    }
    let step = (us / STEP_US) as usize;
    times[step.min(STEPS - 1)] += 1;
}

/// Forgets all hops so far, because hops during the start are not measured.
pub fn restart() {
    TIMES_US
        .lock()
        .expect("no holder of the lock panics")
        .clear();
}

/// Returns the times of all hops since the last [`restart`], rounded up to a tenth of a millisecond. Returns `None` if there were no hops.
pub fn times() -> Option<HopTimes> {
    summed_up(&TIMES_US.lock().expect("no holder of the lock panics"))
}

fn summed_up(steps: &[u64]) -> Option<HopTimes> {
    let hops = steps.iter().sum();
    let last = steps.iter().rposition(|count| *count > 0)?;
    let within = |share: f64| {
        let wanted = (hops as f64 * share).ceil() as u64;
        let mut sum = 0;
        let reached = steps.iter().position(|count| {
            sum += count;
            sum >= wanted
        });
        (reached.unwrap_or(last) as u64 + 1) * STEP_US
    };
    Some(HopTimes {
        hops,
        p50_us: within(0.5),
        p99_us: within(0.99),
        max_us: (last as u64 + 1) * STEP_US,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ninety_nine_of_a_hundred_hops_are_within_the_99th_percentile() {
        assert_eq!(summed_up(&[0; STEPS]), None);
        let mut steps = [0; STEPS];
        (steps[0], steps[3], steps[9]) = (60, 39, 1);
        assert_eq!(
            summed_up(&steps),
            Some(HopTimes {
                hops: 100,
                p50_us: 100,
                p99_us: 400,
                max_us: 1000,
            })
        );
    }
}
