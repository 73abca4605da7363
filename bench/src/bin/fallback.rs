//! Measures how long the output of `fallbackswitch` freezes, and whether jitter makes it switch. The program runs in virtual
//! time, so the figures are the same on any machine. Both streams are raw audio with buffers of 20 ms. The offset between the
//! streams and the time of the failure are varied in steps of a millisecond. The result is the worst case.

#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use gst::prelude::*;
use gst_check::TestClock;
use threadbare_bench::results::Frozen;

const BUFFER_MS: u64 = 20;
/// Default timeout of the element.
const TIMEOUT_MS: u64 = 1000;
/// Time before a failure, during which both streams deliver buffers.
const BEFORE_MS: u64 = 200;
const JITTER_MS: u64 = 600_000;
const CAPS: &str = "audio/x-raw,format=S16LE,rate=8000,channels=1,layout=interleaved";

fn main() -> Result<()> {
    gst::init()?;
    let buffers = |ms: u64| ms as f64 / BUFFER_MS as f64;
    let (mut error_ms, mut stall_ms) = (0, 0);
    for phase_ms in 0..BUFFER_MS {
        for end_ms in BEFORE_MS..BEFORE_MS + BUFFER_MS {
            error_ms = error_ms.max(Switch::new()?.after_error_ms(phase_ms, end_ms)?);
        }
        stall_ms = stall_ms.max(Switch::new()?.after_stall_ms(phase_ms)?);
    }
    let frozen = Frozen {
        after_error_buffers: buffers(error_ms),
        after_stall_buffers: buffers(stall_ms.saturating_sub(TIMEOUT_MS)),
        jitter_switches: Switch::new()?.switches_under_jitter()?,
    };
    println!("{}", serde_json::to_string(&frozen)?);
    Ok(())
}

/// A `fallbackswitch` between pads of this program, with a clock that is set manually.
struct Switch {
    element: gst::Element,
    clock: TestClock,
    main: gst::Pad,
    fallback: gst::Pad,
    /// Pad that receives the output. It is stored only to keep the link alive.
    _drain: gst::Pad,
    passed: Arc<AtomicU64>,
}

impl Switch {
    fn new() -> Result<Switch> {
        let element = gst::ElementFactory::make("fallbackswitch")
            .property("seamless", true)
            .property("switch-on-eos", true)
            .property("sync", false)
            .build()?;
        let clock = TestClock::new();
        element.set_clock(Some(&clock))?;
        element.set_base_time(gst::ClockTime::ZERO);
        let passed = Arc::new(AtomicU64::new(0));
        let counter = passed.clone();
        let drain = gst::Pad::builder(gst::PadDirection::Sink)
            .chain_function(move |_, _, _| {
                counter.fetch_add(1, Ordering::Relaxed);
                Ok(gst::FlowSuccess::Ok)
            })
            .build();
        drain.set_active(true)?;
        let src = element
            .static_pad("src")
            .context("the element has no source pad")?;
        src.link(&drain)?;
        let [main, fallback] = [feed(&element)?, feed(&element)?];
        element.set_state(gst::State::Playing)?;
        for (pad, name) in [(&main, "main"), (&fallback, "fallback")] {
            pad.push_event(gst::event::StreamStart::new(name));
            pad.push_event(gst::event::Caps::new(&CAPS.parse()?));
            let segment = gst::FormattedSegment::<gst::ClockTime>::new();
            pad.push_event(gst::event::Segment::new(&segment));
        }
        Ok(Switch {
            element,
            clock,
            main,
            fallback,
            _drain: drain,
            passed,
        })
    }

    fn set_ms(&self, ms: u64) {
        self.clock.set_time(ms * gst::ClockTime::MSECOND);
        while self.clock.process_next_clock_id().is_some() {}
    }

    fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// Pushes the buffers of both streams that are due up to and including `end_ms`. Each buffer of the fallback is due `phase_ms` after a
    /// buffer of the main stream.
    fn play_until(&self, phase_ms: u64, end_ms: u64) -> Result<()> {
        for ms in 0..=end_ms {
            self.set_ms(ms);
            if ms.is_multiple_of(BUFFER_MS) {
                push(&self.main, ms)?;
            }
            self.play_fallback(phase_ms, ms)?;
        }
        Ok(())
    }

    fn play_fallback(&self, phase_ms: u64, ms: u64) -> Result<()> {
        if ms % BUFFER_MS == phase_ms {
            push(&self.fallback, ms)
        } else {
            Ok(())
        }
    }

    /// Returns the time from `since_ms` until the next buffer passes. The buffers due at `since_ms` must already have been pushed.
    fn frozen_ms(&self, phase_ms: u64, since_ms: u64) -> Result<u64> {
        let passed = self.passed();
        let mut ms = since_ms;
        while self.passed() == passed {
            ms += 1;
            anyhow::ensure!(ms < 10 * TIMEOUT_MS, "the output stays frozen");
            self.set_ms(ms);
            self.play_fallback(phase_ms, ms)?;
        }
        Ok(ms - since_ms)
    }

    /// Returns how long the output freezes if the main stream's source reports an error at `end_ms` and sends no more.
    fn after_error_ms(&self, phase_ms: u64, end_ms: u64) -> Result<u64> {
        self.play_until(phase_ms, end_ms)?;
        let pad = self.main.peer().context("the input is not linked")?;
        self.element.emit_by_name::<()>("mark-failed", &[&pad]);
        self.frozen_ms(phase_ms, end_ms)
    }

    /// Returns how long the output freezes if the main stream stops silently after its buffer at `BEFORE_MS`.
    fn after_stall_ms(&self, phase_ms: u64) -> Result<u64> {
        self.play_until(phase_ms, BEFORE_MS)?;
        self.frozen_ms(phase_ms, BEFORE_MS)
    }

    /// Returns how often the output switches if buffers of the main stream are late. They arrive in order, at most the timeout minus the
    /// duration of one buffer too late.
    fn switches_under_jitter(&self) -> Result<u64> {
        let mut random = 1u64;
        let (mut n, mut due_ms) = (0, 0);
        for ms in 0..JITTER_MS {
            self.set_ms(ms);
            while due_ms <= ms {
                push(&self.main, n * BUFFER_MS)?;
                n += 1;
                // Random numbers by Knuth's generator for MMIX.
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let late_ms = (random >> 33) % (TIMEOUT_MS - BUFFER_MS);
                due_ms = due_ms.max(n * BUFFER_MS + late_ms);
            }
            self.play_fallback(BUFFER_MS / 2, ms)?;
        }
        let stats = self.element.property::<gst::Structure>("stats");
        let switches = stats.iter().filter_map(|(name, value)| {
            let is_counted = name.starts_with("switches-") && name != "switches-start";
            is_counted.then(|| value.get::<u64>())
        });
        switches
            .sum::<std::result::Result<u64, _>>()
            .context("a counter in the property stats is not a 64-bit number")
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        // The process ends even if this fails.
        let _ = self.element.set_state(gst::State::Null);
    }
}

fn feed(element: &gst::Element) -> Result<gst::Pad> {
    let sink = element
        .request_pad_simple("sink_%u")
        .context("the element does not add another sink pad")?;
    let pad = gst::Pad::builder(gst::PadDirection::Src).build();
    pad.set_active(true)?;
    pad.link(&sink)?;
    Ok(pad)
}

/// Pushes a buffer of 20 ms that starts at `begin_ms`.
fn push(pad: &gst::Pad, begin_ms: u64) -> Result<()> {
    let mut buffer = gst::Buffer::from_slice([0; 320]);
    let inner = buffer.get_mut().context("the new buffer is not writable")?;
    inner.set_pts(begin_ms * gst::ClockTime::MSECOND);
    inner.set_duration(BUFFER_MS * gst::ClockTime::MSECOND);
    pad.push(buffer)?;
    Ok(())
}
