//! Lines on the engine: [`threadbare_rtp::call::Line`].

use std::sync::{Arc, Mutex};
use std::time::Duration;

use threadbare_loudness::NormalizeError;
use threadbare_rtp::call::{Channel, KeyEvent, Line, LineState, LineStats, Side};
use threadbare_rtp::fallback::Switch;
use threadbare_rtp::id::PayloadType;
use threadbare_rtp::leg::{LegEvent, Refusal, Verdict};
use threadbare_runtime::prefetch;

use crate::board::{Board, ListenerView, Pace, SenderView, Shown};
use crate::call::{Datagram, Outbox};
use crate::id::PortId;
use crate::listen::Heard;
use crate::loudness::{LineMeter, Loudness, LoudnessTarget, TAPPED_SAMPLES_MIN};
use crate::media::PAUSE_NS;
use crate::sync::lock;
use crate::unsent::{Unsent, with_scratch};

/// What the owner of a line should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineEvent {
    /// Of the party that sends.
    Leg(LegEvent),
    /// A key of the party that sends.
    Key(KeyEvent),
    /// Packets of this payload type are dropped: it was not agreed on. Told once.
    PayloadType(PayloadType),
    /// Another input is heard.
    Input(Switch),
}

/// Takes a line's events, on the shard's thread: it must not block.
pub type LineEventHandler = Box<dyn FnMut(LineEvent) + Send>;

/// A one-way stream. Leg 0 of its ports is the line's; then come those of its fallbacks that are senders.
pub struct MediaLine {
    line: Line,
    meter: Metering,
    on_event: Option<LineEventHandler>,
    has_told_payload_type: bool,
    shows: Option<Showing>,
    /// What did not fit the last turn.
    unsent: Unsent,
}

enum Metering {
    Off,
    /// Of what comes in.
    Incoming(Box<LineMeter>),
    /// Of what a loudness target makes of it.
    Target(Arc<Mutex<LineMeter>>),
}

/// How a line shows itself.
struct Showing {
    board: Board,
    pace: Pace,
    next_ns: u64,
    /// When to read what takes long.
    next_whole_ns: u64,
    /// Who listens.
    heard: Heard,
    /// Samples that waited in the tap after the last turn.
    tapped: usize,
    /// When the last of them were heard.
    tapped_ns: u64,
}

/// Counters, gauges and readings of a line.
#[derive(Debug, Clone, PartialEq)]
pub struct MediaLineStats {
    /// Its packets.
    pub line: LineStats,
    /// Its loudness; `None`: not measured, or nothing was heard yet.
    pub loudness: Option<Loudness>,
}

impl MediaLine {
    /// Carries a line in slices of this length: [`Settings::threads`](crate::Settings::threads).
    #[must_use]
    pub fn new(mut line: Line, slice: Duration) -> MediaLine {
        line.set_ahead_ns(slice.as_nanos() as u64 / 2);
        MediaLine {
            line,
            meter: Metering::Off,
            on_event: None,
            has_told_payload_type: false,
            shows: None,
            unsent: Unsent::default(),
        }
    }

    /// Measures what comes in.
    #[must_use]
    pub fn metered(mut self) -> MediaLine {
        self.line.tap(true);
        self.meter = Metering::Incoming(Box::default());
        self
    }

    /// Brings the audio to this loudness, 3 s later, and measures the result.
    ///
    /// # Errors
    /// The target is out of range.
    pub fn with_loudness_target(mut self, target_lufs: f64) -> Result<MediaLine, NormalizeError> {
        let meter = Arc::new(Mutex::default());
        let target = LoudnessTarget::new(target_lufs, meter.clone())?;
        self.line.tap(false);
        self.line.set_filter(Box::new(target));
        self.meter = Metering::Target(meter);
        Ok(self)
    }

    /// Shows the line's values on a board, at this pace as long as something happens: its values are those of then.
    #[must_use]
    pub fn shown_on(mut self, board: Board, pace: Pace) -> MediaLine {
        let heard = Heard::new(board.ears().clone());
        self.shows = Some(Showing {
            board,
            pace,
            next_ns: 0,
            next_whole_ns: 0,
            heard,
            tapped: 0,
            tapped_ns: 0,
        });
        self
    }

    /// Hears, and sends nothing, until [`go_on`](Self::go_on).
    #[must_use]
    pub fn held(mut self) -> MediaLine {
        self.line.hold();
        self
    }

    /// Sends from now on, behind what another process has passed on: [`Line::go_on`].
    pub fn go_on(&mut self, state: Option<LineState>) {
        self.line.go_on(state);
    }

    /// Where it is, for a process that goes on: [`Line::state`]. To be asked of a line that was [removed](crate::CallHandle::remove).
    #[must_use]
    pub fn state(&self, now_ns: u64) -> LineState {
        self.line.state(now_ns)
    }

    /// Gives the line's events to `handler`. Without one, they are dropped.
    #[must_use]
    pub fn on_event(mut self, handler: impl FnMut(LineEvent) + Send + 'static) -> MediaLine {
        self.on_event = Some(Box::new(handler));
        self
    }

    /// The line, to be commanded.
    pub fn line_mut(&mut self) -> &mut Line {
        &mut self.line
    }

    /// Counters, gauges and readings; what is being gathered is measured first.
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
        let Some(shows) = &mut self.shows else { return };
        if shows.board.take_programme() {
            (shows.next_ns, shows.next_whole_ns) = (0, 0);
            self.begin_programme();
        }
        let Some(shows) = &self.shows else { return };
        if now_ns < shows.next_ns {
            return;
        }
        let board = shows.board.clone();
        let is_whole = now_ns >= shows.next_whole_ns;
        // Somebody looks: the next turn will do.
        let Some(mut shown) = board.try_write() else {
            return;
        };
        self.measure(1);
        let read = |meter: &mut LineMeter| match is_whole {
            true => (meter.readings(), meter.take_peak()),
            false => (meter.quick_readings(), meter.take_peak()),
        };
        let (loudness, peak) = self.with_meter(read).unwrap_or_default();
        let (source, direction) = (self.line.source().stats(), self.line.direction_stats());
        let (active, switches) = self.line.input();
        *shown = Shown {
            shown_ns: Some(now_ns),
            heard_ns: source.heard_ns,
            packets: source.packets,
            lost: direction.lost,
            late: source.jitter.late,
            concealed_ns: direction.concealed_ns,
            refused: source.refused.total(),
            switches,
            active,
            skew_ns: source.jitter.skew_ns,
            jitter_ns: source.jitter.jitter_ns,
            held_packets: source.jitter.held_packets,
            latency_ns: source.jitter.latency_ns,
            round_trip_ns: source.session.rtt_ns,
            source: source.source,
            payload: self.line.source().heard_payload(),
            rtp_to: self.line.hears().rtp_to(),
            sender: SenderView::of(self.line.source()),
            listener: ListenerView::of(self.line.hears()),
            loudness,
            peak: shown.peak.max(peak),
        };
        drop(shown);
        if let Some(shows) = &mut self.shows {
            shows.next_ns = now_ns + shows.pace.period_ns();
            if is_whole {
                shows.next_whole_ns = now_ns + WHOLE_NS;
            }
        }
    }

    /// Measures what was tapped, once it is this much, and hands it to those who listen.
    fn measure(&mut self, samples_min: usize) {
        if self.line.tapped() < samples_min {
            return;
        }
        let (line, meter, shows) = (&mut self.line, &mut self.meter, &mut self.shows);
        line.take_tapped(|tapped| {
            if let Metering::Incoming(meter) = meter {
                meter.add_tapped(tapped);
            }
            if let Some(shows) = shows {
                shows.heard.put(shows.tapped_ns, Side::A, tapped);
            }
        });
        if let Some(shows) = shows {
            shows.tapped = 0;
        }
    }

    /// Audio from before a pause has its own time: it does not wait for what comes after the pause.
    #[inline]
    fn end_pause(&mut self, now_ns: u64) {
        if let Some(shows) = &self.shows
            && shows.tapped > 0
            && now_ns.saturating_sub(shows.tapped_ns) >= PAUSE_NS
        {
            self.measure(1);
        }
    }

    /// Looks who listens. What nobody measures is decoded for them alone.
    #[inline]
    fn look_who_listens(&mut self, now_ns: u64) {
        let Some(shows) = &mut self.shows else { return };
        let tapped = self.line.tapped();
        if tapped != shows.tapped {
            (shows.tapped, shows.tapped_ns) = (tapped, now_ns);
        }
        if shows.heard.has_news() {
            shows.heard.look();
        }
        if !matches!(self.meter, Metering::Incoming(_)) {
            self.line.tap(shows.heard.is_wanted());
        }
    }

    fn begin_programme(&mut self) {
        // What was heard before belongs to the last one.
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
            self.tell(LineEvent::Leg(event));
        }
        while let Some(switch) = self.line.poll_switch() {
            self.tell(LineEvent::Input(switch));
        }
        while let Some(key) = self.line.poll_key() {
            self.tell(LineEvent::Key(key));
        }
    }
}

impl crate::Call for MediaLine {
    #[inline]
    fn handle_datagram(&mut self, now_ns: u64, datagram: Datagram<'_>) {
        let channel = datagram.port.kind.channel();
        self.end_pause(now_ns);
        let (at_ns, from) = (datagram.received_ns, datagram.from);
        if datagram.port.leg > 0 {
            let (leg, bytes) = (datagram.port.leg, datagram.bytes);
            // The session counts what does not belong.
            let _ = self
                .line
                .handle_fallback_datagram(now_ns, at_ns, leg, channel, from, bytes);
            return;
        }
        let verdict = self
            .line
            .handle_datagram(now_ns, at_ns, channel, from, datagram.bytes);
        if let Verdict::Refused(Refusal::PayloadType(payload_type)) = verdict
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
                    Channel::Rtp => PortId::rtp(datagram.leg),
                    Channel::Rtcp => PortId::rtcp(datagram.leg),
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
        self.look_who_listens(now_ns);
        self.measure(TAPPED_SAMPLES_MIN);
        self.show(now_ns);
        self.tell_events();
    }

    fn next_timeout(&self) -> Option<u64> {
        self.line.next_timeout()
    }

    #[inline]
    fn prefetch(&self) {
        for address in self.line.next_addresses() {
            prefetch(address as *const u8, PACKET_LINES);
        }
    }
}

/// Integrated loudness and range: nobody sees them move.
const WHOLE_NS: u64 = 1_000_000_000;
/// Cache lines of 20 ms of G.711.
const PACKET_LINES: usize = 3;
