//! Orders packets, keeps events in their place, and sets output times.
//!
//! Input and output times are running times: a buffer's timestamp is its arrival, on any pipeline clock.

use std::collections::VecDeque;

use threadbare_rtp::id::{PayloadType, SeqNum};
use threadbare_rtp::jitter::{self, Arrival, JitterBuffer, Output, Release, Stats};
use threadbare_rtp::leg::Fields;
use threadbare_rtp::payload::static_payload;

use crate::kit::source::Produced;
use crate::rtp::playout::lost;

/// A packet in the jitter buffer.
struct QueuedBuffer {
    buffer: gst::Buffer,
    /// Number of the packet, which is the number of packets before it.
    number: u64,
}

/// An event that waits for all earlier packets.
struct Waiting {
    event: gst::Event,
    /// Number of the first packet after the event.
    before: u64,
    /// Number of earlier packets that are still queued.
    left: u32,
}

/// Settings of the stream that the jitter buffer does not have.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Options {
    pub(super) do_lost: bool,
    pub(super) ts_offset_ns: i64,
    /// Number of consecutive packets that start the stream before the latency has passed; 0 disables this.
    pub(super) faststart_packets: u32,
}

/// The source of a payload type's clock rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rate {
    Known,
    /// The application must be asked.
    Ask,
}

pub(super) struct Orderer {
    jitter: JitterBuffer<QueuedBuffer>,
    options: Options,
    payload_type: Option<PayloadType>,
    /// Clock rates by payload type, from the application.
    told: Vec<(PayloadType, u32)>,
    caps: Option<gst::Caps>,
    segment_in: gst::FormattedSegment<gst::ClockTime>,
    segment_out: gst::FormattedSegment<gst::ClockTime>,
    events: VecDeque<Waiting>,
    numbered: u64,
    arrival_ns: u64,
    starting: Option<Starting>,
    /// Whether the next packet is discontinuous.
    resync: bool,
    unknown: u64,
}

/// Start of a stream: the first packets are held for the latency, because earlier ones may still arrive.
#[derive(Debug, Clone, Copy, Default)]
struct Starting {
    last: Option<SeqNum>,
    run: u32,
}

impl Orderer {
    pub(super) fn new(
        config: jitter::Config,
        options: Options,
    ) -> Result<Orderer, jitter::ConfigError> {
        Ok(Orderer {
            jitter: JitterBuffer::new(jitter::Config {
                release: Release::AtDeadline,
                ..config
            })?,
            options,
            payload_type: None,
            told: Vec::new(),
            caps: None,
            segment_in: gst::FormattedSegment::new(),
            segment_out: gst::FormattedSegment::new(),
            events: VecDeque::new(),
            numbered: 0,
            arrival_ns: 0,
            starting: Some(Starting::default()),
            resync: false,
            unknown: 0,
        })
    }

    /// Changes settings at run time.
    pub(super) fn configure(&mut self, config: jitter::Config, options: Options) {
        self.options = options;
        self.jitter.set_drop_on_latency(config.drop_on_latency);
        self.jitter
            .set_tolerance_ms(config.max_dropout_ms, config.max_misorder_ms);
        let _ = self.jitter.grow(config.capacity_packets);
        if config.latency_ns != self.jitter.config().latency_ns {
            // The property's range ensures that this latency is valid.
            let _ = self.jitter.set_latency_ns(config.latency_ns);
        }
    }

    /// Whether the clock rate of this payload type is known. Fast for the type of the last packet.
    #[inline]
    pub(super) fn rate(&mut self, payload_type: PayloadType) -> Rate {
        if self.payload_type == Some(payload_type) {
            return Rate::Known;
        }
        match self.find_rate(payload_type) {
            Some(rate_hz) => {
                self.use_rate(payload_type, rate_hz);
                Rate::Known
            }
            None => Rate::Ask,
        }
    }

    fn find_rate(&self, payload_type: PayloadType) -> Option<u32> {
        let told = self.told.iter().find(|(known, _)| *known == payload_type);
        self.caps
            .as_ref()
            .and_then(|caps| rate_of(caps, payload_type))
            .or(told.map(|(_, rate_hz)| *rate_hz))
    }

    /// Takes the application's answer. Without an answer, a static payload type has its own rate. Any other packet in a stream of
    /// a known rate gets that rate. Returns `false` if the packet cannot be placed in the order.
    pub(super) fn answer(&mut self, payload_type: PayloadType, caps: Option<&gst::Caps>) -> bool {
        let present = self
            .payload_type
            .map(|_| self.jitter.config().clock_rate_hz);
        let rate_hz = caps
            .and_then(|caps| rate_of(caps, payload_type))
            .or_else(|| static_payload(payload_type).map(|known| known.clock_rate_hz))
            .or(present);
        let Some(rate_hz) = rate_hz else {
            self.unknown += 1;
            return false;
        };
        // This is requested at most once for each of the 128 types.
        self.told.push((payload_type, rate_hz));
        self.use_rate(payload_type, rate_hz);
        true
    }

    fn use_rate(&mut self, payload_type: PayloadType, rate_hz: u32) {
        self.payload_type = Some(payload_type);
        if self.jitter.config().clock_rate_hz != rate_hz {
            // Queued packets keep their times. This cannot fail, because the rate was checked together with the caps.
            let _ = self.jitter.announce_clock_rate(rate_hz);
        }
    }

    /// Forgets the application's answers, because its caps for payload types have changed.
    pub(super) fn clear_told(&mut self) {
        self.told.clear();
        self.payload_type = None;
    }

    /// Adds a packet. `now_ns` is the running time, if there is a clock.
    #[inline]
    pub(super) fn handle(&mut self, now_ns: Option<u64>, fields: Fields, buffer: gst::Buffer) {
        let stamped = buffer
            .dts_or_pts()
            .and_then(|time| self.segment_in.to_running_time(time))
            .map(gst::ClockTime::nseconds);
        let arrival_ns = stamped.or(now_ns).unwrap_or(self.arrival_ns);
        self.arrival_ns = arrival_ns;
        let (ssrc, seq, time) = (fields.ssrc(), fields.seq(), fields.time());
        if self.starting.is_some() {
            self.begin(seq);
        }
        let number = self.numbered;
        self.numbered += 1;
        self.jitter.handle_packet(
            // Upstream may be ahead of the clock, so the later time counts.
            now_ns.map_or(arrival_ns, |now_ns| now_ns.max(arrival_ns)),
            Arrival {
                ssrc,
                seq,
                time,
                marker: fields.marker(),
                arrival_ns: Some(arrival_ns),
                packet: QueuedBuffer { buffer, number },
            },
        );
    }

    /// Starts the stream if the queued packets allow it.
    #[cold]
    fn begin(&mut self, seq: SeqNum) {
        let Some(starting) = &mut self.starting else {
            return;
        };
        let follows = starting.last == Some(SeqNum(seq.0.wrapping_sub(1)));
        starting.run = if follows { starting.run + 1 } else { 1 };
        starting.last = Some(seq);
        let is_run = (1..=starting.run).contains(&self.options.faststart_packets);
        // The sender has announced its first number.
        let base = self.caps.as_ref().and_then(|caps| caps.structure(0));
        let base = base.and_then(|caps| caps.get::<u32>("seqnum-base").ok());
        if is_run || base == Some(u32::from(seq.0)) {
            self.started();
        }
    }

    fn started(&mut self) {
        self.starting = None;
        self.jitter.set_release(Release::InOrder);
    }

    /// Queues a serialized event after all earlier packets.
    pub(super) fn place(&mut self, event: gst::Event) {
        match event.view() {
            gst::EventView::Caps(caps) => {
                self.caps = Some(caps.caps_owned());
                self.payload_type = None;
            }
            gst::EventView::Segment(segment) => {
                if let Some(segment) = segment.segment().downcast_ref::<gst::ClockTime>() {
                    self.segment_in = segment.clone();
                }
            }
            gst::EventView::Eos(_) => self.jitter.release_all(),
            _ => {}
        }
        self.events.push_back(Waiting {
            event,
            before: self.numbered,
            left: self.jitter.held_packets(),
        });
    }

    /// Returns the next item to push at running time `now_ns`. Without a clock, returns any queued item. `losses` says whether
    /// packets may be declared lost.
    #[inline]
    pub(super) fn poll(&mut self, now_ns: Option<u64>, losses: bool) -> Option<Produced> {
        if let Some(event) = self.due_event() {
            return Some(event);
        }
        let now_ns = now_ns.unwrap_or(u64::MAX);
        self.poll_jitter(now_ns, losses)
            .or_else(|| self.due_event())
    }

    fn due_event(&mut self) -> Option<Produced> {
        let first = self.events.front()?;
        // A packet that may belong to a new source does not hold back events.
        if first.left > 0 && self.jitter.next_timeout().is_some() {
            return None;
        }
        let event = self.events.pop_front()?.event;
        if let gst::EventView::Segment(segment) = event.view()
            && let Some(segment) = segment.segment().downcast_ref::<gst::ClockTime>()
        {
            self.segment_out = segment.clone();
        }
        Some(Produced::Event(event))
    }

    #[inline]
    fn poll_jitter(&mut self, now_ns: u64, losses: bool) -> Option<Produced> {
        loop {
            let output = if losses {
                self.jitter.poll_output(now_ns)
            } else {
                self.jitter.poll_before_loss(now_ns)
            };
            match output? {
                Output::Packet {
                    packet,
                    play_ns,
                    discont,
                    ..
                } => {
                    if self.starting.is_some() {
                        self.started();
                    }
                    self.gone(packet.number);
                    return Some(Produced::Buffer(self.finish(
                        packet.buffer,
                        play_ns,
                        discont,
                    )));
                }
                Output::Lost {
                    first,
                    packets,
                    play_ns,
                    duration_ns,
                    ..
                } => {
                    if self.options.do_lost {
                        let time = self.position(play_ns);
                        return Some(Produced::Event(lost(first.0, packets, time, duration_ns)));
                    }
                }
                Output::Resync { .. } => self.resync = true,
                Output::Dropped { packet, .. } => self.gone(packet.number),
            }
            // An event may be due now.
            if let Some(event) = self.due_event() {
                return Some(event);
            }
        }
    }

    fn finish(&mut self, mut buffer: gst::Buffer, play_ns: u64, discont: bool) -> gst::Buffer {
        let time = self.position(play_ns);
        let buffer_ref = buffer.make_mut();
        buffer_ref.set_pts(time);
        buffer_ref.set_dts(time);
        if discont {
            buffer_ref.set_flags(gst::BufferFlags::DISCONT);
            if std::mem::take(&mut self.resync) {
                buffer_ref.set_flags(gst::BufferFlags::RESYNC);
            }
        } else {
            buffer_ref.unset_flags(gst::BufferFlags::DISCONT);
        }
        buffer
    }

    /// Converts a running time to a timestamp in the segment downstream.
    fn position(&self, play_ns: u64) -> Option<gst::ClockTime> {
        let play_ns = play_ns.saturating_add_signed(self.options.ts_offset_ns);
        self.segment_out
            .position_from_running_time(gst::ClockTime::from_nseconds(play_ns))
    }

    #[inline]
    fn gone(&mut self, number: u64) {
        for waiting in &mut self.events {
            if number < waiting.before {
                waiting.left = waiting.left.saturating_sub(1);
            }
        }
    }

    /// Returns the running time at which [`Orderer::poll`] has output unless a packet arrives first.
    pub(super) fn next_timeout(&self) -> Option<u64> {
        self.jitter.next_timeout()
    }

    /// Drops all queued items, and returns the sticky events that are still valid.
    pub(super) fn flush(&mut self) -> Vec<gst::Event> {
        self.jitter.flush();
        while self.jitter.poll_output(u64::MAX).is_some() {}
        self.jitter.set_release(Release::AtDeadline);
        self.starting = Some(Starting::default());
        self.segment_in = gst::FormattedSegment::new();
        self.segment_out = gst::FormattedSegment::new();
        let events = self.events.drain(..).map(|waiting| waiting.event);
        events
            .filter(|event| {
                event.is_sticky()
                    && !matches!(event.type_(), gst::EventType::Segment | gst::EventType::Eos)
            })
            .collect()
    }

    pub(super) fn stats(&self) -> Stats {
        self.jitter.stats()
    }

    pub(super) fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Fill level: the queued audio as a share of the latency.
    pub(super) fn percent(&self) -> i32 {
        let part = self.jitter.held_ns().saturating_mul(100);
        part.checked_div(self.jitter.latency_ns())
            .map_or(0, |percent| percent.min(100) as i32)
    }
}

/// Returns the clock rate of a payload type, from caps.
fn rate_of(caps: &gst::Caps, payload_type: PayloadType) -> Option<u32> {
    let structure = caps.structure(0)?;
    if let Ok(payload) = structure.get::<i32>("payload")
        && payload != i32::from(payload_type.0)
    {
        return None;
    }
    let rate_hz = u32::try_from(structure.get::<i32>("clock-rate").ok()?).ok()?;
    (1..=jitter::CLOCK_RATE_HZ_MAX)
        .contains(&rate_hz)
        .then_some(rate_hz)
}
