//! Streams on the engine: [`threadbare_rtp::call::Session`].

use std::sync::{Arc, Mutex};
use std::time::Duration;

use threadbare_loudness::NormalizeError;
use threadbare_rtp::call::{
    Channel, KeyEvent, LegId, LineState, Session, SessionEvent, SessionStats, Side,
};
use threadbare_rtp::fallback::Switch;
use threadbare_rtp::id::PayloadType;
use threadbare_rtp::leg::{LegEvent, Refusal, Verdict};
use threadbare_runtime::prefetch;

use crate::call::{Datagram, Outbox};
use crate::id::PortId;
use crate::listen::SessionListeners;
use crate::loudness::{LineMeter, Loudness, LoudnessTarget, TAPPED_SAMPLES_MIN};
use crate::media::PAUSE_NS;
use crate::snapshot::{LineSnapshot, ListenerView, Pace, SenderView, SharedSnapshot};
use crate::sync::lock;
use crate::unsent::{Unsent, with_scratch};

/// An event for the owner of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineEvent {
    /// An event of the sending party.
    Leg(LegEvent),
    /// A DTMF digit of the sending party.
    Key(KeyEvent),
    /// Packets of this payload type are dropped: it was not agreed on. Reported once.
    PayloadType(PayloadType),
    /// Another input has become active.
    Input(Switch),
}

/// Handles a line's events on the shard's thread: it must not block.
pub type LineEventHandler = Box<dyn FnMut(LineEvent) + Send>;

/// A one-way stream. Leg 0 of its ports is the line's; the fallbacks that are senders have the next ones.
pub struct MediaLine {
    line: Session,
    meter: Metering,
    on_event: Option<LineEventHandler>,
    has_told_payload_type: bool,
    publishing: Option<Publishing>,
    /// Datagrams that did not fit the last turn.
    unsent: Unsent,
}

enum Metering {
    Off,
    /// Measures the input.
    Incoming(Box<LineMeter>),
    /// Measures the output of a loudness target.
    Target(Arc<Mutex<LineMeter>>),
}

/// How a line publishes its snapshots.
struct Publishing {
    snapshot: SharedSnapshot,
    pace: Pace,
    next_ns: u64,
    /// Time of the next reading of slow values.
    next_whole_ns: u64,
    /// The listeners.
    listeners: SessionListeners,
    /// Samples that waited in the tap after the last turn.
    tapped: usize,
    /// Time of the last tapped audio.
    tapped_ns: u64,
}

/// Counters, gauges and readings of a line.
#[derive(Debug, Clone, PartialEq)]
pub struct MediaLineStats {
    /// Its packets.
    pub line: SessionStats,
    /// Its loudness; `None`: not measured, or nothing was received yet.
    pub loudness: Option<Loudness>,
}

impl MediaLine {
    /// Creates the media session of a line, with slices of this length: [`Settings::threads`](crate::Settings::threads).
    #[must_use]
    pub fn new(mut line: Session, slice: Duration) -> MediaLine {
        line.set_ahead_ns(slice.as_nanos() as u64 / 2);
        MediaLine {
            line,
            meter: Metering::Off,
            on_event: None,
            has_told_payload_type: false,
            publishing: None,
            unsent: Unsent::default(),
        }
    }

    /// Measures the input's loudness.
    #[must_use]
    pub fn metered(mut self) -> MediaLine {
        self.line.tap(LegId::A, true);
        self.meter = Metering::Incoming(Box::default());
        self
    }

    /// Adjusts the audio to this loudness, with 3 s of delay, and measures the result.
    ///
    /// # Errors
    /// The target is out of range.
    pub fn with_loudness_target(mut self, target_lufs: f64) -> Result<MediaLine, NormalizeError> {
        let meter = Arc::new(Mutex::default());
        let target = LoudnessTarget::new(target_lufs, meter.clone())?;
        self.line.tap(LegId::A, false);
        self.line.set_filter(LegId::A, Box::new(target));
        self.meter = Metering::Target(meter);
        Ok(self)
    }

    /// Publishes the line's values in a snapshot, at this interval, while packets or timers run the line. Otherwise the values
    /// stay.
    #[must_use]
    pub fn publish_to(mut self, snapshot: SharedSnapshot, pace: Pace) -> MediaLine {
        let listeners = SessionListeners::new(snapshot.listeners().clone());
        self.publishing = Some(Publishing {
            snapshot,
            pace,
            next_ns: 0,
            next_whole_ns: 0,
            listeners,
            tapped: 0,
            tapped_ns: 0,
        });
        self
    }

    /// Receives without sending until [`go_on`](Self::go_on).
    #[must_use]
    pub fn held(mut self) -> MediaLine {
        self.line.hold();
        self
    }

    /// Sends from now on, after the packets that another process has forwarded: [`Session::go_on`].
    pub fn go_on(&mut self, state: Option<LineState>) {
        self.line.go_on(state);
    }

    /// The state for a process that continues the line: [`Session::state`]. Call it on a line that was
    /// [removed](crate::CallHandle::remove).
    #[must_use]
    pub fn state(&self, now_ns: u64) -> LineState {
        self.line.state(now_ns)
    }

    /// Passes the line's events to `handler`. Without one, they are dropped.
    #[must_use]
    pub fn on_event(mut self, handler: impl FnMut(LineEvent) + Send + 'static) -> MediaLine {
        self.on_event = Some(Box::new(handler));
        self
    }

    /// The line, for commands.
    pub fn line_mut(&mut self) -> &mut Session {
        &mut self.line
    }

    /// Counters, gauges and readings; gathered audio is measured first.
    pub fn stats(&mut self) -> MediaLineStats {
        self.measure(1);
        MediaLineStats {
            line: self.line.stats(),
            loudness: self.with_meter(LineMeter::readings).flatten(),
        }
    }

    fn with_meter<T>(&mut self, read: impl FnOnce(&mut LineMeter) -> T) -> Option<T> {
        match &mut self.meter {
            Metering::Off => None,
            Metering::Incoming(meter) => Some(read(meter)),
            Metering::Target(meter) => Some(read(&mut lock(meter))),
        }
    }

    fn show(&mut self, now_ns: u64) {
        let Some(publishing) = &mut self.publishing else {
            return;
        };
        if publishing.snapshot.take_programme() {
            (publishing.next_ns, publishing.next_whole_ns) = (0, 0);
            self.begin_programme();
        }
        let Some(publishing) = &self.publishing else {
            return;
        };
        if now_ns < publishing.next_ns {
            return;
        }
        let snapshot = publishing.snapshot.clone();
        let is_whole = now_ns >= publishing.next_whole_ns;
        // A reader has the snapshot, so the next turn writes it.
        let Some(mut values) = snapshot.try_write() else {
            return;
        };
        self.measure(1);
        let read = |meter: &mut LineMeter| {
            if is_whole {
                (meter.readings(), meter.take_peak())
            } else {
                (meter.quick_readings(), meter.take_peak())
            }
        };
        let (loudness, peak) = self.with_meter(read).unwrap_or_default();
        let (from, to) = (self.line.leg(LegId::A), self.line.receiver_of(LegId::A));
        let (source, direction) = (from.stats(), self.line.direction_stats(LegId::A));
        *values = LineSnapshot {
            shown_ns: Some(now_ns),
            heard_ns: source.heard_ns,
            packets: source.packets,
            lost: direction.lost,
            late: source.jitter.late,
            concealed_ns: direction.concealed_ns,
            refused: source.refused.total(),
            switches: direction.switches,
            active: direction.active,
            skew_ns: source.jitter.skew_ns,
            jitter_ns: source.jitter.jitter_ns,
            held_packets: source.jitter.held_packets,
            latency_ns: source.jitter.latency_ns,
            round_trip_ns: source.session.rtt_ns,
            source: source.source,
            payload: from.heard_payload(),
            rtp_to: to.rtp_to(),
            sender: SenderView::of(from),
            listener: ListenerView::of(to),
            loudness,
            peak: values.peak.max(peak),
        };
        drop(values);
        if let Some(publishing) = &mut self.publishing {
            publishing.next_ns = now_ns + publishing.pace.period_ns();
            if is_whole {
                publishing.next_whole_ns = now_ns + WHOLE_NS;
            }
        }
    }

    /// Measures the tapped audio once it has `samples_min` samples, and passes it to the listeners.
    fn measure(&mut self, samples_min: usize) {
        if self.line.tapped(LegId::A) < samples_min {
            return;
        }
        let (line, meter, publishing) = (&mut self.line, &mut self.meter, &mut self.publishing);
        line.take_tapped(LegId::A, |tapped| {
            if let Metering::Incoming(meter) = meter {
                meter.add_tapped(tapped);
            }
            if let Some(publishing) = publishing {
                publishing
                    .listeners
                    .put(publishing.tapped_ns, Side::A, tapped);
            }
        });
        if let Some(publishing) = publishing {
            publishing.tapped = 0;
        }
    }

    /// Passes on the audio from before a pause with its own time: it does not wait for the audio after the pause.
    #[inline]
    fn end_pause(&mut self, now_ns: u64) {
        if let Some(publishing) = &self.publishing
            && publishing.tapped > 0
            && now_ns.saturating_sub(publishing.tapped_ns) >= PAUSE_NS
        {
            self.measure(1);
        }
    }

    /// Finds new listeners. Without a meter, audio is decoded only for them.
    #[inline]
    fn update_listeners(&mut self, now_ns: u64) {
        let Some(publishing) = &mut self.publishing else {
            return;
        };
        let tapped = self.line.tapped(LegId::A);
        if tapped != publishing.tapped {
            (publishing.tapped, publishing.tapped_ns) = (tapped, now_ns);
        }
        if publishing.listeners.has_news() {
            publishing.listeners.look();
        }
        if !matches!(self.meter, Metering::Incoming(_)) {
            self.line.tap(LegId::A, publishing.listeners.is_wanted());
        }
    }

    fn begin_programme(&mut self) {
        // The audio so far belongs to the previous programme.
        self.measure(1);
        self.with_meter(LineMeter::begin_programme);
    }

    fn tell(&mut self, event: LineEvent) {
        if let Some(handler) = &mut self.on_event {
            handler(event);
        }
    }

    fn tell_events(&mut self) {
        while let Some(event) = self.line.poll_event() {
            match event {
                SessionEvent::Leg(LegId::A, event) => self.tell(LineEvent::Leg(event)),
                SessionEvent::Key(LegId::A, key) => self.tell(LineEvent::Key(key)),
                SessionEvent::Input(switch) => self.tell(LineEvent::Input(switch)),
                _ => {}
            }
        }
    }
}

impl crate::Call for MediaLine {
    #[inline]
    fn handle_datagram(&mut self, now_ns: u64, datagram: Datagram<'_>) {
        let channel = datagram.port.kind.channel();
        self.end_pause(now_ns);
        let (at_ns, from) = (datagram.received_ns, datagram.from);
        let ports = datagram.port.leg;
        let verdict =
            self.line
                .handle_datagram(now_ns, at_ns, ports, channel, from, datagram.bytes);
        if let Verdict::Refused(Refusal::PayloadType(payload_type)) = verdict
            && ports == 0
            && !std::mem::replace(&mut self.has_told_payload_type, true)
        {
            self.tell(LineEvent::PayloadType(payload_type));
        }
    }

    #[inline]
    fn poll_transmit(&mut self, now_ns: u64, may_lose: bool, out: &mut dyn Outbox) {
        if !self.unsent.stage_waiting(&mut [], out) {
            return;
        }
        let (line, unsent) = (&mut self.line, &mut self.unsent);
        with_scratch(out, |scratch, out| {
            line.poll_transmit(now_ns, may_lose, scratch, &mut |datagram| {
                let port = match datagram.channel {
                    Channel::Rtp => PortId::rtp(datagram.ports),
                    Channel::Rtcp => PortId::rtcp(datagram.ports),
                };
                unsent.stage(
                    port,
                    datagram.channel,
                    datagram.to,
                    datagram.bytes,
                    &mut [],
                    out,
                );
            });
        });
        self.update_listeners(now_ns);
        self.measure(TAPPED_SAMPLES_MIN);
        self.show(now_ns);
        self.tell_events();
    }

    fn next_timeout(&self) -> Option<u64> {
        self.line.next_timeout()
    }

    #[inline]
    fn prefetch(&self) {
        self.line
            .prefetch(|address| prefetch(address, PACKET_LINES));
    }
}

/// Interval of integrated loudness and range, which change too slowly to be watched.
const WHOLE_NS: u64 = 1_000_000_000;
/// Cache lines of 20 ms of G.711.
const PACKET_LINES: usize = 3;
