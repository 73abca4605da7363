//! Pushes a signal, buffer by buffer. Each buffer is pushed when its last sample is over. This is the half of the audio sources
//! on the context's thread.

use std::sync::Arc;

use gst::glib;
use gst::prelude::*;
use threadbare_runtime::{Cx, Precision};

use super::format::Format;
use crate::kit::pool::PoolOwner;
use crate::kit::receive::pool_of;
use crate::kit::source::{self, Produced, Producer};
use crate::kit::stats::Single;
use crate::kit::time::{ProducerTimer, RunningTime};

/// A signal to play.
pub trait Signal: Send + 'static {
    /// Sets the sample rate from the next sample on.
    fn set_rate(&mut self, rate: u32);
    /// Generates the next samples; 1.0 is full scale.
    fn fill(&mut self, out: &mut [f64]);
}

/// Division of the signal into buffers.
#[derive(Debug, Clone)]
pub struct Cut {
    pub(super) samples_per_buffer: u32,
    pub(super) is_live: bool,
    /// Offset added to the timestamps, ns.
    pub(super) timestamp_offset_ns: i64,
    /// Caps to which the user restricts the pad.
    pub(super) caps: Option<gst::Caps>,
    /// Default sample rate. Downstream may request another one.
    pub(super) rate_default: u32,
}

/// Maximum size of a buffer: a second of any audible format.
const BUFFER_BYTES_MAX: usize = 16 << 20;
/// Number of samples generated in one step, on the stack.
const CHUNK: usize = 128;

/// Counters, written by the context's thread and read by any.
#[derive(Debug, Default)]
pub(super) struct Made {
    pub(super) buffers: Single,
    pub(super) samples: Single,
}

pub struct Player<S> {
    signal: S,
    cut: Cut,
    /// Number of buffers until the end.
    buffers_left: Option<u64>,
    format: Option<(gst::Caps, Format)>,
    pool: Option<Arc<PoolOwner>>,
    count: Option<Count>,
    has_opened: bool,
    is_discont: bool,
    timer: ProducerTimer,
    made: Arc<Made>,
    pad: gst::Pad,
    element: glib::WeakRef<gst::Element>,
}

/// Times of samples, computed from their number, so that no error adds up.
#[derive(Debug, Clone, Copy)]
struct Count {
    /// Running time of sample 0.
    base_ns: u64,
    rate: u32,
    done: u64,
}

impl Count {
    fn time_ns(&self, sample: u64) -> u64 {
        let ns = u128::from(sample) * 1_000_000_000 / u128::from(self.rate);
        self.base_ns
            .saturating_add(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

impl<S: Signal> Player<S> {
    pub(super) fn new(
        element: &gst::Element,
        pad: &gst::Pad,
        signal: S,
        cut: Cut,
        num_buffers: Option<u64>,
        made: Arc<Made>,
    ) -> Self {
        Player {
            signal,
            cut,
            buffers_left: num_buffers,
            format: None,
            pool: None,
            count: None,
            has_opened: false,
            is_discont: true,
            timer: ProducerTimer::default(),
            made,
            pad: pad.clone(),
            element: element.downgrade(),
        }
    }

    /// Returns the signal, to be changed from the next buffer on.
    pub(super) fn signal(&mut self) -> &mut S {
        &mut self.signal
    }

    /// Changes how the signal is cut, from the next buffer on.
    pub(super) fn set_cut(&mut self, cut: Cut) {
        if self.cut.caps != cut.caps {
            self.pad.mark_reconfigure();
        }
        self.cut = cut;
    }

    /// Negotiates with downstream. Returns whether the format has changed.
    fn negotiate(&mut self) -> Result<bool, gst::ErrorMessage> {
        let Some(decided) = self.cut.decide(&self.pad) else {
            return Err(gst::error_msg!(
                gst::StreamError::Format,
                ["downstream and caps have no format of this element in common"]
            ));
        };
        if self.format.as_ref() == Some(&decided) {
            return Ok(false);
        }
        let rate = decided.1.rate;
        self.signal.set_rate(rate);
        // The times continue with the new rate.
        self.count = self.count.map(|count| Count {
            base_ns: count.time_ns(count.done),
            rate,
            done: 0,
        });
        self.format = Some(decided);
        Ok(true)
    }

    fn now_ns(&self, cx: &Cx<'_>) -> Option<u64> {
        self.timer
            .time()
            .at(cx.now_ns())
            .map(gst::ClockTime::nseconds)
    }

    /// Returns the next buffer, if it is due.
    fn next(&mut self, cx: &mut Cx<'_>, format: Format) -> Produced {
        let now_ns = self.now_ns(cx);
        let count = *self.count.get_or_insert(Count {
            base_ns: now_ns.filter(|_| self.cut.is_live).unwrap_or(0),
            rate: format.rate,
            done: 0,
        });
        let samples = u64::from(self.cut.samples_per_buffer);
        let end_ns = count.time_ns(count.done + samples);
        if self.cut.is_live && now_ns.is_none_or(|now_ns| now_ns < end_ns) {
            self.timer.set(cx, end_ns, Precision::NotBefore);
            return Produced::Idle;
        }
        let Some(bytes) = (self.cut.samples_per_buffer as usize)
            .checked_mul(format.frame_bytes())
            .filter(|bytes| *bytes <= BUFFER_BYTES_MAX)
        else {
            return Produced::Failed(gst::error_msg!(
                gst::ResourceError::Settings,
                [
                    "samples-per-buffer={samples} would make buffers of more than {BUFFER_BYTES_MAX} bytes"
                ]
            ));
        };
        let buffer = self.make(cx, format, bytes, count, end_ns);
        self.count = Some(Count {
            done: count.done + samples,
            ..count
        });
        self.buffers_left = self.buffers_left.map(|left| left - 1);
        cx.count_packets(1);
        self.made.buffers.add(1);
        self.made.samples.add(samples);
        Produced::Buffer(buffer)
    }

    fn make(
        &mut self,
        cx: &Cx<'_>,
        format: Format,
        bytes: usize,
        count: Count,
        end_ns: u64,
    ) -> gst::Buffer {
        let pool = match &self.pool {
            Some(pool) if (bytes..2 * bytes + POOL_SLACK).contains(&pool.capacity()) => pool,
            _ => self.pool.insert(pool_of(cx.local().shard(), bytes)),
        };
        let mut pooled = pool.acquire(cx);
        let frame = format.frame_bytes();
        let mut samples = [0.0; CHUNK];
        for room in pooled.data()[..bytes].chunks_mut(CHUNK * frame) {
            let samples = &mut samples[..room.len() / frame];
            self.signal.fill(samples);
            format.write(samples, room);
        }
        let begin_ns = count.time_ns(count.done);
        let pts_ns = begin_ns.saturating_add_signed(self.cut.timestamp_offset_ns);
        let pts = gst::ClockTime::from_nseconds(pts_ns.min(u64::MAX - 1));
        let mut buffer = pooled.finish(0, bytes, Some(pts), None);
        let fields = buffer.make_mut();
        fields.set_dts(gst::ClockTime::NONE);
        fields.set_duration(gst::ClockTime::from_nseconds(end_ns - begin_ns));
        fields.set_offset(count.done);
        fields.set_offset_end(count.done + u64::from(self.cut.samples_per_buffer));
        if std::mem::take(&mut self.is_discont) {
            fields.set_flags(gst::BufferFlags::DISCONT);
        }
        buffer
    }
}

/// Maximum amount by which a pool rounds up the size of its buffers.
const POOL_SLACK: usize = 1024;

impl<S: Signal> Producer for Player<S> {
    fn outlives_flushing(&self) -> bool {
        self.cut.is_live
    }

    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        if self.timer.time().clock().is_none() {
            let done_ns = self.count.map_or(0, |count| count.time_ns(count.done));
            self.timer
                .set_time(RunningTime::of_context(cx.now_ns().saturating_sub(done_ns)));
        }
        cx.wake_self();
        Ok(())
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.timer.clear(cx);
    }

    fn set_time(&mut self, time: RunningTime) {
        self.timer.set_time(time);
    }

    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced {
        if self.buffers_left == Some(0) {
            return Produced::Event(gst::event::Eos::new());
        }
        if self.pad.check_reconfigure() || self.format.is_none() {
            match self.negotiate() {
                Ok(true) if self.has_opened => {
                    let caps = self.format.as_ref().map(|(caps, _)| caps);
                    return caps.map_or(Produced::Again, |caps| {
                        Produced::Event(gst::event::Caps::new(caps))
                    });
                }
                Ok(_) => {}
                Err(error) => return Produced::Failed(error),
            }
        }
        match self.format {
            Some((_, format)) => self.next(cx, format),
            None => Produced::Idle,
        }
    }

    fn opening(&mut self, pad: &gst::Pad) -> Vec<gst::Event> {
        self.has_opened = true;
        let caps = self.format.as_ref().map(|(caps, _)| caps);
        let element = self.element.upgrade();
        element.map_or_else(Vec::new, |element| source::opening(pad, &element, caps))
    }

    fn reopening(&mut self) -> Vec<gst::Event> {
        // Running time may have restarted.
        self.count = None;
        self.is_discont = true;
        let segment = gst::FormattedSegment::<gst::ClockTime>::new();
        vec![gst::event::Segment::new(&segment)]
    }
}
