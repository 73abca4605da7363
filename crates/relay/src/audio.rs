//! Sessions of RTP on the engine: [`threadbare_rtp::call::Session`] with SRTP, meters, listeners and a snapshot. Calls and streams are
//! handled in the same way. Only the legs and flows of their sessions differ.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use threadbare_loudness::NormalizeError;
use threadbare_rtp::call::{
    Channel, Clip, LegId, PlayError, Session, SessionError, SessionEvent, SessionSpec,
    SessionState, SessionStats, Side,
};
use threadbare_rtp::id::SeqNum;
use threadbare_rtp::leg::{Outage, SentState, Verdict};
use threadbare_rtp::srtp::{
    Keys, PacketIndex, Protection, ProtectionState, ProtectionStats, RestoreError, Rollover,
    SourceState, UnprotectError, Unsaved,
};
use threadbare_runtime::prefetch;

use crate::call::{Datagram, Outbox};
use crate::copies::{Copies, PacketListener};
use crate::id::{LEGS_MAX, PortId};
use crate::late_packet::{Early, LatePacket};
use crate::listen::{Listeners, SessionListeners};
use crate::loudness::{LineMeter, Loudness, LoudnessTarget, TAPPED_SAMPLES_MIN};
use crate::observer::{Observer, Observing};
use crate::publishing::Publishing;
use crate::snapshot::{Pace, SharedSnapshot};
use crate::tap::{GATHER_NS, GATHERED_SAMPLES, Metering, PAUSE_NS, Tap};
use crate::unsent::{Envelope, Unsent, with_scratch};

/// A call or a stream. Its ports have the numbers that [`Session::handle_datagram`] uses. Side A of a call has ports 0, and side B ports 1.
/// A stream has ports 0, and its fallbacks have the next numbers.
///
/// Each leg uses plain RTP, or SRTP if it has keys ([`set_keys`](AudioSession::set_keys)).
pub struct AudioSession {
    session: Session,
    /// The encryption of the legs, by [`LegId`]. It is empty without SRTP.
    protections: Vec<Option<Box<Protection>>>,
    /// The audio of the first two legs, on its way to meters and listeners.
    taps: [Tap; 2],
    /// Whether a leg's audio is tapped.
    is_tapped: bool,
    on_event: Option<EventHandler>,
    /// A leg whose packets have failed authentication, for the next event.
    unauthentic: Option<LegId>,
    listeners: SessionListeners,
    /// Whether new listeners may have been added.
    is_to_look: bool,
    /// Number of samples in a portion for listeners.
    portion_samples: usize,
    /// How the first legs publish their snapshots. It is empty without snapshots.
    publishing: Vec<Publishing>,
    /// Reports the session to other threads.
    observing: Option<Box<Observing<AudioSession>>>,
    /// Packets that must wait, because earlier ones may still come from the previous process.
    early: Option<Box<Early>>,
    copies: Option<Box<Copies>>,
    /// Datagrams for which the last turn had no room.
    unsent: Unsent,
}

/// Handles the events of a session on the shard's thread. It must not block.
pub type EventHandler = Box<dyn FnMut(SessionEvent) + Send>;

/// Counters and gauges of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct AudioStats {
    /// Counters and gauges of the session's packets.
    pub session: SessionStats,
    /// The encryption of the first two legs. `None`: the leg uses plain RTP.
    pub protections: [Option<ProtectionStats>; 2],
    /// Loudness of the first two legs' audio. `None`: it is not measured, or nothing was received yet.
    pub loudness: [Option<Loudness>; 2],
}

/// The saved state of an [`AudioSession`]. It contains keys, so keep it as secret as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AudioState {
    /// The state of the packets.
    pub session: SessionState,
    /// The encryption of the first two legs. `None`: the leg uses plain RTP.
    pub protections: [Option<ProtectionState>; 2],
}

impl AudioSession {
    /// Creates the media session that `spec` describes. `slice` is the length of the engine's slices: see
    /// [`Settings::threads`](crate::Settings::threads).
    ///
    /// # Errors
    /// Fails as [`Session::new`] does.
    pub fn create(
        now_ns: u64,
        mut spec: SessionSpec,
        slice: Duration,
    ) -> Result<AudioSession, SessionError> {
        let (keys, joins) = (spec.take_keys(), spec.joins());
        let mut audio = AudioSession::new(Session::new(now_ns, spec)?, slice);
        for (leg, keys) in keys {
            let protection = if joins {
                Protection::joining(keys)
            } else {
                Protection::new(keys)
            };
            *audio.protection_mut(leg) = Some(Box::new(protection));
            audio.session.set_authenticated(leg, true);
        }
        Ok(audio)
    }

    /// Creates the media session of a session without SRTP.
    #[must_use]
    pub fn new(mut session: Session, slice: Duration) -> AudioSession {
        session.set_ahead_ns(slice.as_nanos() as u64 / 2);
        AudioSession {
            session,
            protections: Vec::new(),
            taps: Default::default(),
            is_tapped: false,
            on_event: None,
            unauthentic: None,
            listeners: SessionListeners::new(Listeners::default()),
            is_to_look: false,
            portion_samples: GATHERED_SAMPLES,
            publishing: Vec::new(),
            observing: None,
            early: None,
            copies: None,
            unsent: Unsent::default(),
        }
    }

    /// Measures the loudness of each leg's audio.
    #[must_use]
    pub fn metered(mut self) -> AudioSession {
        for tap in &mut self.taps {
            tap.meter = Metering::Incoming(Box::default());
        }
        self.choose_tapped();
        self
    }

    /// Adjusts the first leg's audio to this loudness, which delays it by 3 s, and measures the result.
    ///
    /// # Errors
    /// Fails if the target is out of range.
    pub fn with_loudness_target(
        mut self,
        target_lufs: f64,
    ) -> Result<AudioSession, NormalizeError> {
        let meter: Arc<Mutex<LineMeter>> = Arc::default();
        let target = LoudnessTarget::new(target_lufs, meter.clone())?;
        self.session.set_filter(LegId::A, Box::new(target));
        self.taps[0].meter = Metering::Target(meter);
        self.choose_tapped();
        Ok(self)
    }

    /// Passes the audio of each leg to these listeners. They get it in order and with losses concealed, as the other side does. A leg that
    /// is muted or held is silent. If there are no listeners, nothing is decoded for them. [`update_listeners`](Self::update_listeners)
    /// finds listeners that exist already.
    #[must_use]
    pub fn with_listeners(mut self, listeners: Listeners) -> AudioSession {
        self.listeners = SessionListeners::new(listeners);
        self
    }

    /// Publishes the values of a stream in a snapshot, at this interval, as long as packets or timers run the session. Otherwise the values
    /// do not change. The session also notices listeners that the snapshot adds.
    #[must_use]
    pub fn publish_to(mut self, snapshot: SharedSnapshot, pace: Pace) -> AudioSession {
        self.listeners = SessionListeners::new(snapshot.listeners().clone());
        self.session.record_quality(LegId::A);
        self.portion_samples = TAPPED_SAMPLES_MIN;
        self.publishing = vec![Publishing::new(LegId::A, snapshot, pace)];
        self
    }

    /// Publishes the values of each party of a call in a snapshot, as [`publish_to`](Self::publish_to) does for a stream.
    #[must_use]
    pub fn publish_parties_to(
        mut self,
        snapshots: [SharedSnapshot; 2],
        pace: &Pace,
    ) -> AudioSession {
        let legs = [LegId::A, LegId::B].into_iter().zip(snapshots);
        let publishing = legs.map(|(leg, snapshot)| Publishing::new(leg, snapshot, pace.clone()));
        self.publishing = publishing.collect();
        self
    }

    /// Calls `observer` after a turn of the session, at most at this interval. If a turn changes something between two calls, the next
    /// call follows without a further packet.
    #[must_use]
    pub fn observed(mut self, observer: Observer<AudioSession>, pace: Pace) -> AudioSession {
        self.observing = Some(Observing::new(observer, pace));
        self
    }

    /// Plays a clip to the receiver of a stream, instead of the sender's audio. A clip that is being played ends.
    ///
    /// # Errors
    /// The stream sends nothing, or audio that cannot be encoded, or the clip's rate or channels are not supported.
    pub fn play(&mut self, now_ns: u64, clip: Clip) -> Result<(), PlayError> {
        let to = self.session.target().ok_or(PlayError::NoFormat)?;
        self.session.play(now_ns, to, clip)
    }

    /// Stops the clip that is being played to the receiver of a stream.
    pub fn stop_play(&mut self) {
        if let Some(to) = self.session.target() {
            self.session.stop_play(to);
        }
    }

    /// Receives without sending until [`go_on`](Self::go_on).
    #[must_use]
    pub fn held(mut self) -> AudioSession {
        self.session.hold();
        self
    }

    /// Sends from now on, continuing after the packets that another process has forwarded: see [`Session::go_on`].
    pub fn go_on(&mut self, state: Option<SessionState>) {
        self.session.go_on(state);
    }

    /// Passes the session's events to `handler`. Without a handler, they are dropped.
    #[must_use]
    pub fn on_event(mut self, handler: impl FnMut(SessionEvent) + Send + 'static) -> AudioSession {
        self.on_event = Some(Box::new(handler));
        self
    }

    /// Finds listeners that were added since the last update. They get audio from this turn on, or from the first turn that finds the list
    /// unlocked.
    pub fn update_listeners(&mut self) {
        // Queued audio is from before the new listeners, so the others get it first.
        self.flush_listeners();
        self.is_to_look = true;
    }

    /// Sends a copy of each RTP packet of a side to these addresses of this machine, decrypted and at once. It leaves from the port to
    /// which the party sends. Refused packets are not copied.
    pub fn set_copies(&mut self, side: Side, to: &[SocketAddr]) {
        self.change_copies(|copies| copies.set(side, to));
    }

    /// Passes each RTP packet of both sides to a listener, decrypted and at once. Refused packets are not passed.
    pub fn set_packet_listener(&mut self, listener: Option<PacketListener>) {
        self.change_copies(|copies| copies.set_listener(listener));
    }

    fn change_copies(&mut self, change: impl FnOnce(&mut Copies)) {
        let mut copies = self.copies.take().unwrap_or_default();
        change(&mut copies);
        self.copies = Some(copies).filter(|copies| copies.is_wanted());
    }

    /// Makes the running session what `spec` says: see [`Session::apply`].
    ///
    /// # Errors
    /// Fails as [`Session::apply`] does.
    pub fn apply(&mut self, now_ns: u64, mut spec: SessionSpec) -> Result<(), SessionError> {
        let mut keys = spec.take_keys();
        match self.session.apply(now_ns, spec) {
            applied @ (Ok(()) | Err(SessionError::Codec(_))) => {
                for leg in (0..LEGS_MAX as u8).map(LegId) {
                    let own = keys.iter().position(|(protected, _)| *protected == leg);
                    let own = own.map(|at| keys.swap_remove(at).1);
                    if own.is_some() || usize::from(leg.0) < self.protections.len() {
                        self.set_keys(now_ns, leg, own);
                    }
                }
                applied
            }
            refused => refused,
        }
    }

    /// Switches a leg to SRTP with these keys from `now_ns` on, or to plain RTP with `None`. Keys that do not change keep their state.
    /// Packets with a replaced key are accepted for a while: see [`Protection`].
    pub fn set_keys(&mut self, now_ns: u64, leg: impl Into<LegId>, keys: Option<Keys>) {
        let leg = leg.into();
        self.session.set_authenticated(leg, keys.is_some());
        set_keys(self.protection_mut(leg), now_ns, keys);
    }

    /// Returns the place of a leg's encryption.
    fn protection_mut(&mut self, leg: LegId) -> &mut Option<Box<Protection>> {
        let index = usize::from(leg.0);
        if self.protections.len() <= index {
            self.protections.resize_with(index + 1, || None);
        }
        &mut self.protections[index]
    }

    /// Measures gathered audio, and returns counters, gauges and readings.
    pub fn stats(&mut self) -> AudioStats {
        AudioStats {
            session: self.session.stats(),
            protections: each(&self.protections, Protection::stats),
            loudness: self.loudness(),
        }
    }

    /// Measures gathered audio, and returns the loudness of the first two legs' audio. `None`: it is not measured, or nothing was received
    /// yet.
    pub fn loudness(&mut self) -> [Option<Loudness>; 2] {
        self.measure(1);
        let [a, b] = &mut self.taps;
        [a, b].map(|tap| tap.meter.with(LineMeter::readings).flatten())
    }

    /// Returns the state that another process needs to continue this session. Settings are not part of it.
    #[must_use]
    pub fn snapshot(&self, now_ns: u64) -> AudioState {
        AudioState {
            session: self.session.snapshot(now_ns),
            protections: each(&self.protections, Protection::snapshot),
        }
    }

    /// Continues a session of another process, with its SSRCs, its keys, and continuous numbers and timestamps. So the parties notice only a
    /// gap. Call this only for a session that has neither sent nor received anything.
    ///
    /// # Errors
    /// Fails if the state of a key is not one that [`snapshot`](Self::snapshot) returns. In this case, the session does not change.
    pub fn restore(
        &mut self,
        now_ns: u64,
        state: &AudioState,
        outage: Outage,
    ) -> Result<(), RestoreError> {
        let session = &state.session;
        let mut protections = vec![None, None];
        let legs = session.legs.iter().zip(&state.protections);
        for (index, (leg, protection)) in legs.enumerate() {
            let Some(protection) = protection else {
                continue;
            };
            let direction = session.direction_to(LegId(index as u8));
            let packet_ns = direction.map(|direction| direction.packet_ns);
            let unsaved = Unsaved {
                rtp_packets: packet_ns.map_or(0, |packet_ns| outage.skipped_packets(packet_ns)),
                rtcp_packets: outage.rtcp_packets(),
            };
            let mut protection = with_sender(protection, &leg.sent);
            if outage.unsaved_ns > 0 {
                protection.forget_missing();
            }
            protections[index] = Some(Box::new(Protection::restore(&protection, unsaved)?));
        }
        self.session.restore(now_ns, session, outage);
        self.protections = protections;
        Ok(())
    }

    /// Until `until_ns`, keeps packets after a gap, because late packets of the process that saved this state may fill it. Late packets
    /// arrive by [`MediaSession::handle_late_packets`](crate::MediaSession::handle_late_packets).
    pub fn wait_for_late_packets(&mut self, until_ns: u64, state: &AudioState) {
        let next = |index: usize| Some(state.session.legs.get(index)?.source?.2.plus(1).0);
        let next = [next(0), next(1)];
        self.early = Some(Box::new(Early::new(until_ns, next)));
    }

    /// Whether each side uses one port for RTP and RTCP, A's first.
    pub(crate) fn mux(&self) -> [bool; 2] {
        [0, 1].map(|ports| self.session.is_mux(ports))
    }

    #[cold]
    fn handle_early(&mut self, now_ns: u64, packet: Option<LatePacket>) {
        let Some(mut early) = self.early.take() else {
            return;
        };
        packet.into_iter().for_each(|packet| early.add(packet));
        while let Some(mut packet) = early.pop(now_ns, self.mux()) {
            let datagram = Datagram {
                port: packet.port,
                from: packet.from,
                received_ns: packet.received_ns.min(now_ns),
                bytes: &mut packet.bytes,
            };
            self.handle(now_ns, datagram);
        }
        self.early = Some(early).filter(|early| now_ns < early.until_ns());
    }

    #[inline]
    fn handle(&mut self, now_ns: u64, datagram: Datagram<'_>) {
        let ports = datagram.port.leg;
        let channel = datagram.port.kind.channel();
        if self.is_tapped {
            self.prepare_taps(now_ns, ports);
        }
        let (at_ns, from, mut bytes) = (datagram.received_ns, datagram.from, datagram.bytes);
        if !self.protections.is_empty() {
            let leg = self.session.leg_of(ports, channel, from, bytes);
            if let Some(Some(protection)) = self.protections.get_mut(usize::from(leg.0)) {
                // Refused packets are counted by the protection.
                let carried = channel.carried(self.session.is_mux(ports), bytes);
                match protection.unprotect(now_ns, carried, bytes) {
                    Ok(len) => bytes = &mut bytes[..len],
                    Err(error) => {
                        let stats = protection.stats();
                        // Each such error counts, so this happens once.
                        let is_forged = matches!(error, UnprotectError::Forged { .. });
                        if is_forged && (stats.received, stats.unauthentic) == (0, UNAUTHENTIC_MAX)
                        {
                            self.unauthentic = Some(leg);
                        }
                        return;
                    }
                }
            }
        }
        let verdict = self
            .session
            .handle_datagram(now_ns, at_ns, ports, channel, from, bytes);
        if let Some(copies) = &mut self.copies
            && verdict == Verdict::Media
        {
            copies.add(at_ns, LegId(ports).side(), from, bytes);
        }
    }

    /// Passes on audio from before a pause, with the time at which it ended. Fetches the memory that this leg's next audio touches.
    #[inline]
    fn prepare_taps(&mut self, now_ns: u64, ports: u8) {
        for index in 0..self.taps.len() {
            if self.taps[index].unreported.is_older(now_ns, PAUSE_NS) {
                // The next audio does not follow this audio without a gap.
                self.tell(index);
            }
        }
        let is_next = self.taps.get(usize::from(ports));
        if is_next.is_some_and(|tap| tap.unreported.is_nearly_due(self.portion_samples)) {
            self.listeners.prefetch();
        }
        self.session
            .prefetch_tap(LegId(ports), |address| prefetch(address, PACKET_LINES));
    }

    /// Returns the session.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the session, for commands.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Taps the audio of the legs whose meters or listeners want it.
    fn choose_tapped(&mut self) {
        let is_heard = self.listeners.is_wanted();
        self.is_tapped = false;
        for (index, tap) in self.taps.iter().enumerate() {
            let is_tapped = is_heard || tap.meter.is_incoming();
            self.session.tap(LegId(index as u8), is_tapped);
            self.is_tapped |= is_tapped;
        }
    }

    /// Passes queued audio to the listeners if it is enough for a portion, or if no audio follows it. A listener detects silence by the
    /// times of the portions.
    #[inline]
    fn feed_listeners(&mut self, now_ns: u64) {
        // A snapshot adds listeners without a command to this session.
        self.is_to_look |= !self.publishing.is_empty() && self.listeners.has_news();
        if self.is_to_look || self.is_tapped {
            self.feed_tapped(now_ns);
        }
    }

    #[cold]
    fn feed_tapped(&mut self, now_ns: u64) {
        if self.is_to_look {
            for index in 0..self.taps.len() {
                // If the list was locked before, audio is queued. It is from before the new listeners.
                if self.taps[index].unreported.samples > 0 {
                    self.tell(index);
                }
            }
            self.listeners.look();
            self.is_to_look = self.listeners.has_news();
        }
        let gathered_samples = if self.listeners.is_wanted() {
            self.portion_samples
        } else {
            TAPPED_SAMPLES_MIN
        };
        for index in 0..self.taps.len() {
            let leg = LegId(index as u8);
            let (samples, mode) = (self.session.tapped(leg), self.session.mode(leg));
            let unreported = &mut self.taps[index].unreported;
            if unreported.samples > 0 && unreported.mode != mode {
                self.tell(index);
            } else {
                unreported.note(samples, now_ns, mode);
            }
            let is_due = samples >= gathered_samples
                || self.taps[index].unreported.is_older(now_ns, GATHER_NS);
            if is_due {
                self.tell(index);
            }
        }
        self.choose_tapped();
    }

    /// Passes all audio until now to the listeners, for example before the listeners change. Dropping a session has the same effect.
    pub fn flush_listeners(&mut self) {
        (0..self.taps.len()).for_each(|index| self.tell(index));
    }

    /// Measures the tapped audio if there are at least `samples_min` samples, and passes it to the listeners.
    #[inline]
    fn measure(&mut self, samples_min: usize) {
        for index in 0..self.taps.len() {
            if self.is_tapped && self.session.tapped(LegId(index as u8)) >= samples_min {
                self.tell(index);
            }
        }
    }

    /// Passes a leg's tapped audio to its meter and to the listeners.
    fn tell(&mut self, index: usize) {
        let (tap, listeners) = (&mut self.taps[index], &mut self.listeners);
        let (leg, side) = (LegId(index as u8), LegId(index as u8).side());
        let (unreported, meter) = tap.begin();
        self.session.take_tapped(leg, |tapped| {
            if let Metering::Incoming(meter) = meter {
                meter.add_tapped(tapped);
            }
            listeners.put(unreported.until_ns, side, unreported.heard(tapped));
        });
    }

    /// Publishes the snapshots that are due.
    fn publish(&mut self, now_ns: u64) {
        let mut all = std::mem::take(&mut self.publishing);
        for (index, publishing) in all.iter_mut().enumerate() {
            if publishing.begins_programme() {
                // The audio so far belongs to the previous programme.
                self.measure(1);
                self.taps[index].meter.with(LineMeter::begin_programme);
            }
            if publishing.is_due(now_ns) {
                self.measure(1);
                let protection = self.protections.get(index).and_then(Option::as_ref);
                let refused = protection.map_or(0, |one| one.stats().refused());
                let meter = &mut self.taps[index].meter;
                publishing.publish(now_ns, &self.session, refused, meter);
            }
        }
        self.publishing = all;
    }

    fn tell_events(&mut self) {
        let mut unauthentic = self.unauthentic.take().map(SessionEvent::Unauthentic);
        while let Some(event) = self.session.poll_event().or_else(|| unauthentic.take()) {
            if let Some(handler) = &mut self.on_event {
                handler(event);
            }
        }
    }
}

impl Drop for AudioSession {
    fn drop(&mut self) {
        self.flush_listeners();
    }
}

impl crate::Call for AudioSession {
    #[inline]
    fn handle_datagram(&mut self, now_ns: u64, datagram: Datagram<'_>) {
        if self.early.is_some() {
            return self.handle_early(now_ns, Some(LatePacket::of(&datagram)));
        }
        self.handle(now_ns, datagram);
    }

    #[inline]
    fn poll_transmit(&mut self, now_ns: u64, may_lose: bool, out: &mut dyn Outbox) {
        if self.early.is_some() {
            self.handle_early(now_ns, None);
        }
        if self.is_tapped {
            let mut taps = self.taps.iter();
            if taps.any(|tap| tap.unreported.is_nearly_due(self.portion_samples)) {
                self.listeners.prefetch_room();
            }
        }
        if !self.unsent.stage_waiting(&mut self.protections, out) {
            return;
        }
        if let Some(copies) = &mut self.copies
            && !copies.stage(out)
        {
            return;
        }
        let (session, unsent) = (&mut self.session, &mut self.unsent);
        let protections = &mut self.protections;
        with_scratch(out, |scratch, out| {
            session.poll_transmit(now_ns, may_lose, scratch, &mut |outgoing| {
                let port = match outgoing.leaves_from {
                    Channel::Rtp => PortId::rtp(outgoing.ports),
                    Channel::Rtcp => PortId::rtcp(outgoing.ports),
                };
                let envelope = Envelope {
                    leg: outgoing.leg,
                    port,
                    channel: outgoing.channel,
                    to: outgoing.to,
                };
                unsent.stage(envelope, outgoing.bytes, protections, out);
            });
        });
        self.feed_listeners(now_ns);
        if !self.publishing.is_empty() {
            self.publish(now_ns);
        }
        Observing::poll(now_ns, self, |session| &mut session.observing);
        self.tell_events();
    }

    fn next_timeout(&self) -> Option<u64> {
        let early_ns = self.early.as_ref().map(|early| early.until_ns());
        let observer_ns = self.observing.as_ref().and_then(|one| one.next_timeout());
        let all = self.session.next_timeout().into_iter();
        let all = all.chain(early_ns).chain(observer_ns);
        if !self.listeners.is_wanted() {
            return all.min();
        }
        let unreported = self.taps.iter().map(|tap| &tap.unreported);
        let unreported = unreported.filter(|unreported| unreported.samples > 0);
        let due_ns = unreported.map(|unreported| unreported.until_ns + GATHER_NS);
        all.chain(due_ns).min()
    }

    #[inline]
    fn prefetch(&self) {
        self.session
            .prefetch(|address| prefetch(address, PACKET_LINES));
        if let Some(address) = self.listeners.next_address() {
            prefetch(address, 1);
        }
    }
}

/// Sets a side's keys, or removes them.
pub(crate) fn set_keys(protection: &mut Option<Box<Protection>>, now_ns: u64, keys: Option<Keys>) {
    match (protection.as_mut(), keys) {
        (Some(protection), Some(keys)) => protection.set_keys(now_ns, keys, Rollover::Kept),
        (None, Some(keys)) => *protection = Some(Box::new(Protection::new(keys))),
        (_, None) => *protection = None,
    }
}

/// Applies `of` to the protection of each of the first two legs.
pub(crate) fn each<T>(
    protections: &[Option<Box<Protection>>],
    of: impl Fn(&Protection) -> T,
) -> [Option<T>; 2] {
    [0, 1].map(|at: usize| protections.get(at)?.as_deref().map(&of))
}

/// Returns the state, with our stream added to those that were sent. The packets that left after the snapshot may have been its first ones.
fn with_sender(state: &ProtectionState, sent: &SentState) -> ProtectionState {
    let mut state = state.clone();
    let first = PacketIndex::new(0, SeqNum(sent.next_seq.0.saturating_sub(1)));
    let own = state.sent.iter_mut().find(|own| own.ssrc == sent.ssrc);
    match own {
        Some(own) => own.rtp = own.rtp.or(Some(first)),
        None => state.sent.push(SourceState {
            ssrc: sent.ssrc,
            rtp: Some(first),
            rtp_missing: 0,
            rtcp: None,
        }),
    }
    state
}

/// Number of packets that fail authentication before [`SessionEvent::Unauthentic`]. It is some seconds of audio, because a receiver that
/// joins must search for the rollover counter.
const UNAUTHENTIC_MAX: u64 = 250;
/// Number of cache lines that 20 ms of G.711 take.
const PACKET_LINES: usize = 3;
