//! From received packets to pushed items: the jitter buffer with GStreamer's times, caps and events.

use gst::prelude::*;
use threadbare_rtp::id::PayloadType;
use threadbare_rtp::jitter::{self, Arrival, DropReason, JitterBuffer, Output};
use threadbare_rtp::packet::Packet;
use threadbare_rtp::payload::{COMFORT_NOISE, PayloadTypes, static_payload};
use threadbare_rtp::session;

use crate::kit::source::Produced;
use crate::kit::time::RunningTime;

/// A packet in the jitter buffer.
struct Held {
    buffer: gst::Buffer,
    /// See [`Playout::next_addresses`].
    addresses: [usize; 3],
    payload_type: PayloadType,
}

/// The packet fields for the jitter buffer and the session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields {
    pub(super) arrival: session::RtpHeader,
    pub(super) marker: bool,
}

impl From<&Packet<'_>> for Fields {
    fn from(packet: &Packet<'_>) -> Fields {
        Fields {
            arrival: session::RtpHeader::from(packet),
            marker: packet.marker(),
        }
    }
}

/// Orders packets and returns the items to push.
pub(super) struct Playout {
    jitter: JitterBuffer<Held>,
    time: RunningTime,
    do_lost: bool,
    /// The next packet is discontinuous.
    resync: bool,
    /// The packet after the last one does not go on from it, and was not pushed.
    is_broken: bool,
    /// As the user gave them; without, those of the payload type.
    caps: Option<gst::Caps>,
    /// The payload type of the announced caps.
    announced: Option<PayloadType>,
    /// Pushed after its caps.
    waiting: Option<gst::Buffer>,
    /// Packets of other types keep their place in the order, and are dropped after it.
    accepted: PayloadTypes,
    /// Packets of a refused payload type, or of an unknown clock rate.
    unknown: u64,
}

/// Why a packet will not be pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Its clock rate is unknown.
    NoClockRate(PayloadType),
    /// The stream is of other types.
    NotAccepted(PayloadType, PayloadTypes),
}

impl Playout {
    pub(super) fn new(
        config: jitter::Config,
        caps: Option<gst::Caps>,
        do_lost: bool,
    ) -> Result<Playout, jitter::ConfigError> {
        Ok(Playout {
            jitter: JitterBuffer::new(config)?,
            time: RunningTime::default(),
            do_lost,
            resync: false,
            is_broken: false,
            caps,
            announced: None,
            waiting: None,
            accepted: PayloadTypes::ALL,
            unknown: 0,
        })
    }

    pub(super) fn set_time(&mut self, time: RunningTime) {
        self.time = time;
    }

    pub(super) fn set_caps(&mut self, caps: Option<gst::Caps>) {
        self.caps = caps;
        self.announced = None;
    }

    pub(super) fn set_accepted(&mut self, accepted: PayloadTypes) {
        self.accepted = accepted;
    }

    pub(super) fn set_do_lost(&mut self, do_lost: bool) {
        self.do_lost = do_lost;
    }

    pub(super) fn jitter(&self) -> jitter::Stats {
        self.jitter.stats()
    }

    pub(super) fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Changes jitter buffer settings that may change at run time.
    pub(super) fn configure(&mut self, config: jitter::Config) {
        self.jitter.set_drop_on_latency(config.drop_on_latency);
        self.jitter.set_release(config.release);
        self.jitter
            .set_tolerance_ms(config.max_dropout_ms, config.max_misorder_ms);
        if config.latency_ns != self.jitter.config().latency_ns {
            // Checked by the property's range.
            let _ = self.jitter.set_latency_ns(config.latency_ns);
        }
    }

    /// Takes a packet.
    #[inline]
    pub(super) fn handle(
        &mut self,
        now_ns: u64,
        arrival_ns: u64,
        fields: Fields,
        buffer: gst::Buffer,
        addresses: [usize; 3],
    ) -> Result<(), Refusal> {
        let session::RtpHeader {
            ssrc,
            seq,
            time,
            payload_type,
        } = fields.arrival;
        let is_accepted = self.accepted.contains(payload_type);
        if !is_accepted {
            self.unknown += 1;
        }
        let refusal = Refusal::NotAccepted(payload_type, self.accepted);
        if self.announced.is_none() {
            if !is_accepted {
                return Err(refusal);
            }
            self.begin(payload_type)?;
        }
        // Within the stream it keeps its place, so that nothing is missing there. Of another source it is not to be the
        // next stream.
        if !is_accepted && self.jitter.ssrc() != Some(ssrc) {
            return Err(refusal);
        }
        self.jitter.handle_packet(
            now_ns,
            Arrival {
                ssrc,
                seq,
                time,
                marker: fields.marker,
                arrival_ns: Some(arrival_ns),
                packet: Held {
                    buffer,
                    addresses,
                    payload_type,
                },
            },
        );
        if is_accepted { Ok(()) } else { Err(refusal) }
    }

    /// The first packet sets the clock rate, unless the caps do.
    #[cold]
    fn begin(&mut self, payload_type: PayloadType) -> Result<(), Refusal> {
        let rate_hz = self.clock_rate_hz(payload_type).ok_or_else(|| {
            self.unknown += 1;
            Refusal::NoClockRate(payload_type)
        })?;
        self.announced = Some(payload_type);
        self.restart(rate_hz);
        Ok(())
    }

    fn restart(&mut self, clock_rate_hz: u32) {
        let config = self.jitter.config();
        if config.clock_rate_hz != clock_rate_hz
            && let Ok(jitter) = JitterBuffer::new(jitter::Config {
                clock_rate_hz,
                ..config
            })
        {
            self.jitter = jitter;
        }
    }

    fn clock_rate_hz(&self, payload_type: PayloadType) -> Option<u32> {
        self.clock_rate_by_caps()
            .or_else(|| static_payload(payload_type).map(|known| known.clock_rate_hz))
    }

    /// Fields of the user's caps.
    pub(super) fn clock_rate_by_caps(&self) -> Option<u32> {
        let rate = self.caps.as_ref()?.structure(0)?.get::<i32>("clock-rate");
        u32::try_from(rate.ok()?)
            .ok()
            .filter(|rate| (1..=jitter::CLOCK_RATE_HZ_MAX).contains(rate))
    }

    /// The next item to push at `now_ns`, when the context's clock reads `clock_ns`. `None`: nothing yet. `losses`:
    /// packets may be declared lost.
    #[inline]
    pub(super) fn next(&mut self, now_ns: u64, clock_ns: u64, losses: bool) -> Option<Produced> {
        if let Some(buffer) = self.waiting.take() {
            return Some(Produced::Buffer(buffer));
        }
        loop {
            let output = if losses {
                self.jitter.poll_output(now_ns)
            } else {
                self.jitter.poll_before_loss(now_ns)
            };
            match output? {
                Output::Packet {
                    packet, discont, ..
                } if !self.accepted.contains(packet.payload_type) => self.is_broken |= discont,
                Output::Packet {
                    packet:
                        Held {
                            mut buffer,
                            payload_type,
                            ..
                        },
                    play_ns,
                    discont,
                    ..
                } => {
                    let time = self.time.at_other(clock_ns, play_ns);
                    let buffer_ref = buffer.make_mut();
                    buffer_ref.set_pts(time);
                    buffer_ref.set_dts(time);
                    if discont | std::mem::take(&mut self.is_broken) {
                        buffer_ref.set_flags(gst::BufferFlags::DISCONT);
                        if std::mem::take(&mut self.resync) {
                            buffer_ref.set_flags(gst::BufferFlags::RESYNC);
                        }
                    }
                    if self.announced != Some(payload_type)
                        && let Some(caps) = self.other_caps(payload_type)
                    {
                        self.waiting = Some(buffer);
                        return Some(Produced::Event(gst::event::Caps::new(&caps)));
                    }
                    return Some(Produced::Buffer(buffer));
                }
                Output::Lost {
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
                Output::Resync { .. } => self.resync = true,
                Output::Dropped { packet, reason } => {
                    debug_assert!(reason != DropReason::Full, "outputs are always drained");
                    drop(packet);
                }
            }
        }
    }

    /// Whether [`Playout::next`] without losses stops at one that an unread packet might prevent.
    #[inline]
    pub(super) fn is_loss_due(&self, at_ns: u64) -> bool {
        self.jitter.is_loss_due(at_ns)
    }

    /// When [`Playout::next`] has output if nothing arrives before.
    #[inline]
    pub(super) fn next_timeout(&self) -> Option<u64> {
        self.jitter.next_timeout()
    }

    /// Memory of the next packet out, as passed in with it, and of its place and the next place in: worth prefetching.
    /// Reading these addresses is cheap at the end of a pass.
    #[inline]
    pub(super) fn next_addresses(&self) -> ([usize; 3], [usize; 2]) {
        let packet = self.jitter.peek().map_or([0; 3], |held| held.addresses);
        (packet, self.jitter.next_places())
    }

    /// Forgets the stream.
    pub(super) fn flush(&mut self, now_ns: u64) {
        self.jitter.flush();
        self.waiting = None;
        self.is_broken = false;
        while self.jitter.poll_output(now_ns).is_some() {}
    }

    /// The sender changed to another static payload type. Telephone events and comfort noise in between change nothing;
    /// with caps from the user, those win.
    #[cold]
    fn other_caps(&mut self, payload_type: PayloadType) -> Option<gst::Caps> {
        if self.caps.is_some() || payload_type == COMFORT_NOISE {
            return None;
        }
        let known = static_payload(payload_type)?;
        let before = self.announced.and_then(static_payload)?;
        if known.clock_rate_hz != before.clock_rate_hz {
            self.restart(known.clock_rate_hz);
        }
        self.announced = Some(payload_type);
        caps_of(payload_type)
    }

    /// The source's caps, narrowed to those that downstream takes.
    pub(super) fn negotiated_caps(&self, pad: &gst::Pad) -> Option<gst::Caps> {
        let own = match &self.caps {
            Some(caps) if !caps.is_any() && !caps.is_empty() => caps.clone(),
            _ => caps_of(self.announced?)?,
        };
        let mut common = pad.peer_query_caps(Some(&own)).intersect(&own);
        // Caps that downstream will refuse are pushed too: the refusal gives the reason.
        if common.is_empty() {
            common = own;
        }
        common.fixate();
        Some(common)
    }
}

/// As the stock jitter buffer does, so that stock depayloaders turn it into gaps, which decoders conceal.
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
