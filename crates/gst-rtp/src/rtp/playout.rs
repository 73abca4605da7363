//! Converts a leg's output to items to push: GStreamer's times, caps and events.

use gst::prelude::*;
use threadbare_rtp::id::PayloadType;
use threadbare_rtp::jitter::CLOCK_RATE_HZ_MAX;
use threadbare_rtp::leg::{Due, DuePacket, Leg};
use threadbare_rtp::payload::{COMFORT_NOISE, PayloadTypes, static_payload};

use super::session::{Buffers, QueuedBuffer};
use crate::kit::source::Produced;
use crate::kit::time::RunningTime;

/// Converts a leg's output to items to push. It belongs to one receiver, on its thread.
pub(super) struct Playout {
    time: RunningTime,
    do_lost: bool,
    /// Whether the next packet is discontinuous.
    resync: bool,
    /// Whether packets were lost before the next packet.
    is_broken: bool,
    /// Caps set by the user. Without them, the caps of the payload type are used.
    caps: Option<gst::Caps>,
    /// The payload type of the announced caps.
    announced: Option<PayloadType>,
    /// A buffer to push after its caps.
    waiting: Option<gst::Buffer>,
    /// The accepted types. Packets of other types keep their place in the order, and are then dropped.
    accepted: PayloadTypes,
}

impl Playout {
    pub(super) fn new(caps: Option<gst::Caps>, do_lost: bool, accepted: PayloadTypes) -> Playout {
        Playout {
            time: RunningTime::default(),
            do_lost,
            resync: false,
            is_broken: false,
            caps,
            announced: None,
            waiting: None,
            accepted,
        }
    }

    pub(super) fn set_time(&mut self, time: RunningTime) {
        self.time = time;
    }

    pub(super) fn set_caps(&mut self, caps: Option<gst::Caps>) {
        self.caps = caps;
    }

    pub(super) fn set_accepted(&mut self, accepted: PayloadTypes) {
        self.accepted = accepted;
    }

    pub(super) fn accepted(&self) -> PayloadTypes {
        self.accepted
    }

    pub(super) fn set_do_lost(&mut self, do_lost: bool) {
        self.do_lost = do_lost;
    }

    /// Returns the next item to push at `now_ns`, when the context's clock reads `clock_ns`. Returns `None` if nothing is due.
    /// `losses` says whether packets may be declared lost.
    #[inline]
    pub(super) fn next(
        &mut self,
        leg: &mut Leg<Buffers>,
        now_ns: u64,
        clock_ns: u64,
        losses: bool,
    ) -> Option<Produced> {
        if let Some(buffer) = self.waiting.take() {
            return Some(Produced::Buffer(buffer));
        }
        loop {
            match leg.poll_due(now_ns, losses)? {
                Due::Packet(due) if !self.accepted.contains(due.payload_type) => {
                    self.is_broken |= due.discont;
                }
                Due::Packet(due) => return Some(self.finish(due, clock_ns)),
                Due::Lost {
                    first,
                    packets,
                    play_ns,
                    duration_ns,
                    ..
                } => {
                    if self.do_lost && duration_ns > 0 {
                        let time = self.time.at_other(clock_ns, play_ns);
                        return Some(Produced::Event(lost(first.0, packets, time, duration_ns)));
                    }
                }
                Due::Restart => self.resync = true,
            }
        }
    }

    /// Returns a packet with its time, or the caps that must precede it.
    #[inline]
    fn finish(&mut self, due: DuePacket<QueuedBuffer>, clock_ns: u64) -> Produced {
        let mut buffer = due.packet.buffer;
        let time = self.time.at_other(clock_ns, due.play_ns);
        let buffer_ref = buffer.make_mut();
        buffer_ref.set_pts(time);
        buffer_ref.set_dts(time);
        if due.discont | std::mem::take(&mut self.is_broken) {
            buffer_ref.set_flags(gst::BufferFlags::DISCONT);
            if std::mem::take(&mut self.resync) {
                buffer_ref.set_flags(gst::BufferFlags::RESYNC);
            }
        }
        if self.announced != Some(due.payload_type)
            && let Some(caps) = self.other_caps(due.payload_type)
        {
            self.waiting = Some(buffer);
            return Produced::Event(gst::event::Caps::new(&caps));
        }
        Produced::Buffer(buffer)
    }

    /// Whether a packet waits for its caps to be pushed.
    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Forgets the stream.
    pub(super) fn flush(&mut self) {
        self.waiting = None;
        self.is_broken = false;
    }

    /// Returns new caps if the payload type has changed. The caps of the first packet come with the opening of the stream. Later,
    /// the sender may change to another static payload type. Telephone events and comfort noise between packets change nothing.
    /// Caps from the user have priority.
    #[cold]
    fn other_caps(&mut self, payload_type: PayloadType) -> Option<gst::Caps> {
        let is_media = payload_type != COMFORT_NOISE && static_payload(payload_type).is_some();
        if self.caps.is_some() || !is_media {
            return None;
        }
        let was_announced = self.announced.replace(payload_type).is_some();
        caps_of(payload_type).filter(|_| was_announced)
    }

    /// Returns the source's caps, restricted to those of downstream.
    pub(super) fn negotiated_caps(&self, pad: &gst::Pad) -> Option<gst::Caps> {
        let own = match &self.caps {
            Some(caps) if !caps.is_any() && !caps.is_empty() => caps.clone(),
            _ => caps_of(self.announced?)?,
        };
        let mut common = pad.peer_query_caps(Some(&own)).intersect(&own);
        // If downstream will refuse the caps, they are pushed nevertheless, because the refusal gives the reason.
        if common.is_empty() {
            common = own;
        }
        common.fixate();
        Some(common)
    }
}

/// Returns the clock rate of caps.
pub(super) fn clock_rate_of(caps: &gst::Caps) -> Option<u32> {
    let rate = caps.structure(0)?.get::<i32>("clock-rate");
    u32::try_from(rate.ok()?)
        .ok()
        .filter(|rate| (1..=CLOCK_RATE_HZ_MAX).contains(rate))
}

/// Returns the event for lost packets. It is the same as in the stock jitter buffer, so that stock depayloaders turn it into
/// gaps, which decoders conceal.
pub(super) fn lost(
    first: u16,
    packets: u32,
    time: Option<gst::ClockTime>,
    duration_ns: u64,
) -> gst::Event {
    let structure = gst::Structure::builder("GstRTPPacketLost")
        .field("seqnum", u32::from(first))
        .field("packets", packets)
        .field("timestamp", time.unwrap_or_default().nseconds())
        .field("duration", duration_ns)
        .field("retry", 0u32)
        .build();
    gst::event::CustomDownstream::new(structure)
}

/// RTP caps of a static payload type.
fn caps_of(payload_type: PayloadType) -> Option<gst::Caps> {
    let known = static_payload(payload_type)?;
    let caps = gst::Caps::builder("application/x-rtp")
        .field("media", known.media)
        .field("payload", i32::from(payload_type.0))
        .field("clock-rate", known.clock_rate_hz as i32)
        .field("encoding-name", known.encoding_name);
    Some(match known.channels {
        0 | 1 => caps.build(),
        channels => caps
            .field("encoding-params", channels.to_string())
            .field("channels", channels as i32)
            .build(),
    })
}
