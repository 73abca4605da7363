//! The half of `ts-rtpdtmfsrc` on the context's thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use gst::glib;
use gst::prelude::*;
use threadbare_rtp::dtmf::{Config, Output, Packet, Request, Sender};
use threadbare_rtp::id::{RtpTime, SeqNum};
use threadbare_runtime::{Cx, Precision};

use crate::kit::pool::PoolOwner;
use crate::kit::receive::pool_of;
use crate::kit::source::{self, Produced, Producer};
use crate::kit::stats::Single;
use crate::kit::time::{ProducerTimer, RunningTime};

/// Settings of the stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    pub(super) clock_rate: u32,
    pub(super) payload_type: u8,
    pub(super) ssrc: u32,
    pub(super) copies: u8,
    pub(super) seq: SeqNum,
    pub(super) base: RtpTime,
}

/// Last sent values, for the properties.
#[derive(Debug, Default)]
pub(super) struct Last {
    pub(super) seq: AtomicU32,
    pub(super) timestamp: AtomicU32,
    pub(super) packets: Single,
    pub(super) requests: Single,
}

/// Default interval, the same as in the stock element. Downstream may request another one.
const INTERVAL_MS: u32 = 40;
/// Maximum interval. Longer packets would delay a digit too much.
const INTERVAL_MS_MAX: u32 = 1000;

pub struct Keyer {
    sender: Sender,
    stream: Stream,
    last: Arc<Last>,
    caps: Option<gst::Caps>,
    has_opened: bool,
    pool: Option<Arc<PoolOwner>>,
    timer: ProducerTimer,
    pad: gst::Pad,
    element: glib::WeakRef<gst::Element>,
}

impl Keyer {
    pub(super) fn new(
        element: &gst::Element,
        pad: &gst::Pad,
        stream: Stream,
        last: Arc<Last>,
    ) -> Self {
        let config = config(&stream, INTERVAL_MS);
        Keyer {
            sender: Sender::new(config, stream.seq, stream.base),
            stream,
            last,
            caps: None,
            has_opened: false,
            pool: None,
            timer: ProducerTimer::default(),
            pad: pad.clone(),
            element: element.downgrade(),
        }
    }

    /// Starts or ends a DTMF digit, as requested.
    pub(super) fn request(&mut self, cx: &Cx<'_>, request: Request) {
        self.last.requests.add(1);
        self.sender.request(request);
        cx.wake_self();
    }

    /// Sets the number of copies of the first and the last packet of an event, from now on.
    pub(super) fn set_copies(&mut self, copies: u8) {
        self.stream.copies = copies;
        // The other settings come from the caps, so negotiate again.
        self.caps = None;
    }

    /// Queries downstream. Returns whether its requests have changed.
    fn negotiate(&mut self) -> Result<bool, gst::ErrorMessage> {
        let decided = self.decide().ok_or_else(|| {
            gst::error_msg!(
                gst::StreamError::Format,
                ["downstream does not accept telephone events"]
            )
        })?;
        let (caps, interval_ms) = decided;
        self.sender.configure(config(&self.stream, interval_ms));
        let is_same = self.caps.as_ref() == Some(&caps);
        self.caps = Some(caps);
        Ok(!is_same)
    }

    /// Decides on payload type, rate, SSRC and packet time, which downstream may request.
    fn decide(&mut self) -> Option<(gst::Caps, u32)> {
        let mut caps = source::allowed_caps(&self.pad);
        if caps.is_empty() || caps.is_any() {
            return None;
        }
        caps.truncate();
        let stream = &mut self.stream;
        let structure = caps.make_mut().structure_mut(0)?;
        for (field, value) in [
            ("payload", i32::from(stream.payload_type)),
            ("clock-rate", i32::try_from(stream.clock_rate).ok()?),
        ] {
            if structure.has_field(field) {
                structure.fixate_field_nearest_int(field, value);
            } else {
                structure.set(field, value);
            }
        }
        stream.payload_type = u8::try_from(structure.get::<i32>("payload").ok()?).ok()?;
        stream.clock_rate = u32::try_from(structure.get::<i32>("clock-rate").ok()?).ok()?;
        if let Ok(ssrc) = structure.get::<u32>("ssrc") {
            stream.ssrc = ssrc;
        }
        let told = |field| structure.get::<u32>(field).ok().filter(|ms| *ms > 0);
        let interval_ms = told("ptime").or(told("maxptime").map(|most| most.min(INTERVAL_MS)));
        structure.set("ssrc", stream.ssrc);
        structure.set("timestamp-offset", stream.base.0);
        structure.set("seqnum-offset", u32::from(stream.seq.0));
        caps.fixate();
        let interval_ms = interval_ms.unwrap_or(INTERVAL_MS).min(INTERVAL_MS_MAX);
        Some((caps, interval_ms))
    }

    fn made(&mut self, cx: &Cx<'_>, packet: &Packet) -> gst::Buffer {
        let pool = (self.pool).get_or_insert_with(|| pool_of(cx.local().shard(), PACKET_BYTES));
        let mut pooled = pool.acquire(cx);
        let data = &mut pooled.data()[..PACKET_BYTES];
        // Version 2, no padding, no extension, no CSRC (RFC 3550, section 5.1).
        data[0] = 0x80;
        data[1] = u8::from(packet.marker) << 7 | self.stream.payload_type & 0x7f;
        data[2..4].copy_from_slice(&packet.seq.0.to_be_bytes());
        data[4..8].copy_from_slice(&packet.timestamp.0.to_be_bytes());
        data[8..12].copy_from_slice(&self.stream.ssrc.to_be_bytes());
        data[12..].copy_from_slice(&packet.payload);
        self.last.packets.add(1);
        self.last.seq.store(packet.seq.0.into(), Relaxed);
        self.last.timestamp.store(packet.timestamp.0, Relaxed);
        let pts = gst::ClockTime::from_nseconds(packet.time_ns);
        let mut buffer = pooled.finish(0, PACKET_BYTES, Some(pts), None);
        let fields = buffer.make_mut();
        fields.set_dts(gst::ClockTime::NONE);
        fields.set_duration(gst::ClockTime::from_nseconds(packet.duration_ns));
        if packet.marker {
            fields.set_flags(gst::BufferFlags::MARKER);
        }
        buffer
    }

    /// Reports a request's result to the application, like the stock element.
    fn tell(&self, name: &str, request: Request) {
        let Some(element) = self.element.upgrade() else {
            return;
        };
        let structure = gst::Structure::builder(name)
            .field("type", 1i32)
            .field("method", 1i32)
            .field("start", request != Request::Stop);
        let structure = match request {
            Request::Start { key, volume } => structure
                .field("number", i32::from(key.number()))
                .field("volume", i32::from(volume)),
            Request::Stop => structure,
        };
        let message = gst::message::Element::builder(structure.build());
        let _ = element.post_message(message.src(&element).build());
    }
}

fn config(stream: &Stream, interval_ms: u32) -> Config {
    Config {
        clock_rate: stream.clock_rate,
        interval_ns: u64::from(interval_ms) * 1_000_000,
        copies: stream.copies,
    }
}

const PACKET_BYTES: usize = 16;

impl Producer for Keyer {
    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage> {
        if !self.timer.time().has_clock() {
            self.timer.set_time(RunningTime::of_context(cx.now_ns()));
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
        if self.pad.check_reconfigure() || self.caps.is_none() {
            match self.negotiate() {
                Ok(true) if self.has_opened => {
                    if let Some(caps) = &self.caps {
                        return Produced::Event(gst::event::Caps::new(caps));
                    }
                }
                Ok(_) => {}
                Err(error) => return Produced::Failed(error),
            }
        }
        let Some(now) = self.timer.time().at(cx.now_ns()) else {
            return Produced::Idle;
        };
        match self.sender.poll(now.nseconds()) {
            Some(Output::Packet(packet)) => {
                cx.count_packets(1);
                Produced::Buffer(self.made(cx, &packet))
            }
            Some(Output::Taken(request)) => {
                self.tell("dtmf-event-processed", request);
                Produced::Again
            }
            Some(Output::Dropped(request)) => {
                self.tell("dtmf-event-dropped", request);
                Produced::Again
            }
            None => {
                match self.sender.next_timeout() {
                    Some(due_ns) => {
                        (self.timer).set(cx, due_ns, Precision::NotBefore);
                    }
                    None => self.timer.clear(cx),
                }
                Produced::Idle
            }
        }
    }

    fn opening(&mut self, pad: &gst::Pad) -> Vec<gst::Event> {
        self.has_opened = true;
        let element = self.element.upgrade();
        element.map_or_else(Vec::new, |element| {
            source::opening(pad, &element, self.caps.as_ref())
        })
    }

    fn reopening(&mut self) -> Vec<gst::Event> {
        let segment = gst::FormattedSegment::<gst::ClockTime>::new();
        vec![gst::event::Segment::new(&segment)]
    }
}
