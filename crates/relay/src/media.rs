//! Calls of RTP: [`threadbare_rtp::call::Session`] on the engine.

use std::net::SocketAddr;
use std::time::Duration;

use threadbare_rtp::call::{
    CallState, Channel, Mode, Outgoing, Session, SessionEvent, SessionStats, Side, Tapped,
    TappedAudio,
};
use threadbare_rtp::id::SeqNum;
use threadbare_rtp::leg::{LegState, Outage, Verdict};
use threadbare_rtp::srtp::{
    Keys, PacketIndex, Protection, ProtectionState, ProtectionStats, RestoreError, Rollover,
    SourceState, Unsaved,
};
use threadbare_runtime::prefetch;

use crate::call::{Datagram, Outbox};
use crate::copies::{Copies, PacketListener};
use crate::id::PortId;
use crate::late_packet::{Early, LatePacket};
use crate::listen::{Listeners, SessionListeners};
use crate::loudness::{LineMeter, Loudness, TAPPED_SAMPLES_MIN};
use crate::unsent::{Unsent, with_scratch};

/// Two parties whose media are exchanged. Leg 0 of its ports is side A's, leg 1 is B's.
///
/// Each side is plain RTP, or SRTP once it has keys ([`set_keys`](MediaCall::set_keys)).
pub struct MediaCall {
    call: Session,
    protections: [Option<Box<Protection>>; 2],
    /// Meters for the audio of each side.
    meters: Option<Box<[LineMeter; 2]>>,
    on_event: Option<EventHandler>,
    listeners: SessionListeners,
    /// Audio of each side that is queued for listeners.
    unreported: [Unreported; 2],
    /// New listeners may have been added.
    is_to_look: bool,
    /// Packets that arrived at the previous process may still follow.
    early: Option<Box<Early>>,
    copies: Option<Box<Copies>>,
    /// Datagrams that did not fit the last turn.
    unsent: Unsent,
}

/// Tapped audio of a side that is passed to the listeners together with the next packets, because the listeners' rings leave
/// the cache between two packets.
#[derive(Debug, Clone, Copy)]
struct Unreported {
    samples: usize,
    /// Time of its last sample.
    until_ns: u64,
    mode: Mode,
}

impl Unreported {
    const NOTHING: Unreported = Unreported {
        samples: 0,
        until_ns: 0,
        mode: Mode::Pass,
    };

    /// Whether it has audio, with no more for this long.
    #[inline]
    fn is_older(&self, now_ns: u64, than_ns: u64) -> bool {
        self.samples > 0 && now_ns.saturating_sub(self.until_ns) >= than_ns
    }

    /// Whether the next packet completes a portion.
    #[inline]
    fn is_nearly_due(&self) -> bool {
        self.samples + PACKET_SAMPLES >= GATHERED_SAMPLES
    }
}

/// Handles a call's events on the shard's thread: it must not block.
pub type EventHandler = Box<dyn FnMut(SessionEvent) + Send>;

/// Counters and gauges of a call, A's first.
#[derive(Debug, Clone, PartialEq)]
pub struct MediaCallStats {
    /// Its packets.
    pub call: SessionStats,
    /// Their encryption; `None`: the side is plain RTP.
    pub protections: [Option<ProtectionStats>; 2],
}

/// Saved state of a call for a restart of the process, A's first. It holds keys and is as secret as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaCallState {
    /// Its packets.
    pub call: CallState,
    /// Their encryption; `None`: the side is plain RTP.
    pub protections: [Option<ProtectionState>; 2],
}

impl MediaCall {
    /// Creates the media session of a call, with slices of this length: [`Settings::threads`](crate::Settings::threads).
    #[must_use]
    pub fn new(mut call: Session, slice: Duration) -> MediaCall {
        call.set_ahead_ns(slice.as_nanos() as u64 / 2);
        MediaCall {
            call,
            protections: [None, None],
            meters: None,
            on_event: None,
            listeners: SessionListeners::new(Listeners::default()),
            unreported: [Unreported::NOTHING; 2],
            is_to_look: false,
            early: None,
            copies: None,
            unsent: Unsent::default(),
        }
    }

    /// Measures the loudness of both sides.
    #[must_use]
    pub fn metered(mut self) -> MediaCall {
        for side in Side::BOTH {
            self.call.tap(side, true);
        }
        self.meters = Some(Box::default());
        self
    }

    /// Passes both sides' audio to these listeners: in order, with losses concealed, as the other side gets it. A side that is
    /// muted or held is silent. Without listeners, nothing is decoded for them. [`update_listeners`](Self::update_listeners)
    /// finds existing listeners.
    #[must_use]
    pub fn with_listeners(mut self, listeners: Listeners) -> MediaCall {
        self.listeners = SessionListeners::new(listeners);
        self
    }

    /// Takes listeners that were added since the last update: in this turn, or in the first one that finds the list unlocked.
    pub fn update_listeners(&mut self) {
        // Queued audio is not for the new listeners.
        self.flush_listeners();
        self.is_to_look = true;
    }

    /// Sends a copy of each RTP packet of a side, decrypted and at once, to these addresses of this machine. It leaves from the
    /// port that the party sends to. Refused packets are not copied.
    pub fn set_copies(&mut self, side: Side, to: &[SocketAddr]) {
        self.change_copies(|copies| copies.set(side, to));
    }

    /// Passes each RTP packet of a side, decrypted and at once, to a listener. Refused packets are not passed.
    pub fn set_packet_listener(&mut self, listener: Option<PacketListener>) {
        self.change_copies(|copies| copies.set_listener(listener));
    }

    fn change_copies(&mut self, change: impl FnOnce(&mut Copies)) {
        let mut copies = self.copies.take().unwrap_or_default();
        change(&mut copies);
        self.copies = Some(copies).filter(|copies| copies.is_wanted());
    }

    /// Makes a side SRTP with these keys from `now_ns` on, or plain RTP with `None`. Unchanged keys continue with their state;
    /// packets of a replaced key are accepted for a while, see [`Protection`]. `rollover` applies to the packets that we send.
    pub fn set_keys(&mut self, now_ns: u64, side: Side, keys: Option<Keys>, rollover: Rollover) {
        self.call.set_authenticated(side, keys.is_some());
        set_keys(&mut self.protections[side as usize], now_ns, keys, rollover);
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> MediaCallStats {
        MediaCallStats {
            call: self.call.stats(),
            protections: each(&self.protections, Protection::stats),
        }
    }

    /// The state that another process needs to continue this call. Settings are not part of it.
    #[must_use]
    pub fn snapshot(&self, now_ns: u64) -> Option<MediaCallState> {
        Some(MediaCallState {
            call: self.call.snapshot(now_ns)?,
            protections: each(&self.protections, Protection::snapshot),
        })
    }

    /// Continues a call of another process, with its SSRCs, its keys, and continuous numbers and timestamps, so that the parties
    /// notice only a gap. Only for a call that has neither sent nor received.
    ///
    /// # Errors
    /// A key's state is not one that [`snapshot`](Self::snapshot) returns. The call does not change then.
    pub fn restore(
        &mut self,
        now_ns: u64,
        state: &MediaCallState,
        outage: Outage,
    ) -> Result<(), RestoreError> {
        let mut protections = [None, None];
        for side in Side::BOTH {
            let at = side as usize;
            if let Some(protection) = &state.protections[at] {
                let packet_ns = state.call.directions[side.other() as usize].packet_ns;
                let unsaved = Unsaved {
                    rtp_packets: outage.skipped_packets(packet_ns),
                    rtcp_packets: outage.rtcp_packets(),
                };
                let mut protection = with_sender(protection, &state.call.legs[at]);
                if outage.unsaved_ns > 0 {
                    protection.forget_missing();
                }
                let protection = Protection::restore(&protection, unsaved)?;
                protections[at] = Some(Box::new(protection));
            }
        }
        self.call.restore(now_ns, &state.call, outage);
        self.protections = protections;
        Ok(())
    }

    /// Makes packets after a gap wait, until `until_ns`, for late packets of the process that saved this state. Late packets
    /// arrive by [`MediaSession::handle_late_packets`](crate::MediaSession::handle_late_packets).
    pub fn wait_for_late_packets(&mut self, until_ns: u64, state: &MediaCallState) {
        let next = |leg: &LegState| Some(leg.source?.2.plus(1).0);
        let next = state.call.legs.each_ref().map(next);
        self.early = Some(Box::new(Early::new(until_ns, next)));
    }

    /// Whether each side has RTP and RTCP on one port, A's first.
    pub(crate) fn mux(&self) -> [bool; 2] {
        Side::BOTH.map(|side| self.call.leg(side).is_mux())
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
        let side = match datagram.port.leg {
            0 => Side::A,
            _ => Side::B,
        };
        let channel = datagram.port.kind.channel();
        if self.listeners.is_wanted() {
            let unreported = &self.unreported[side as usize];
            if unreported.is_older(now_ns, PAUSE_NS) {
                // The next audio is not continuous with it.
                self.tell(side);
            } else if unreported.is_nearly_due() {
                self.listeners.prefetch();
            }
            self.call
                .prefetch_tap(side, |address| prefetch(address, PACKET_LINES));
        }
        let (at_ns, from, mut bytes) = (datagram.received_ns, datagram.from, datagram.bytes);
        if let Some(protection) = &mut self.protections[side as usize] {
            // The protection counts refused packets.
            let carried = channel.carried(self.call.leg(side).is_mux(), bytes);
            let Ok(len) = protection.unprotect(now_ns, carried, bytes) else {
                return;
            };
            bytes = &mut bytes[..len];
        }
        let verdict = self
            .call
            .handle_datagram(now_ns, at_ns, side as u8, channel, from, bytes);
        if let Some(copies) = &mut self.copies
            && verdict == Verdict::Media
        {
            copies.add(at_ns, side, from, bytes);
        }
    }

    /// Loudness of each side, A's first; gathered audio is measured first. `None`: not measured, or nothing was received yet.
    pub fn loudness(&mut self) -> [Option<Loudness>; 2] {
        self.measure(1);
        match &mut self.meters {
            Some(meters) => [meters[0].readings(), meters[1].readings()],
            None => [None, None],
        }
    }

    /// Measures the tapped audio once there is this much.
    #[inline]
    fn measure(&mut self, samples_min: usize) {
        if self.meters.is_none() {
            return;
        }
        for side in Side::BOTH {
            if self.call.tapped(side) >= samples_min {
                self.tell(side);
            }
        }
    }

    /// Passes the call's events to `handler`. Without one, they are dropped.
    #[must_use]
    pub fn on_event(mut self, handler: impl FnMut(SessionEvent) + Send + 'static) -> MediaCall {
        self.on_event = Some(Box::new(handler));
        self
    }

    /// The call.
    #[must_use]
    pub fn call(&self) -> &Session {
        &self.call
    }

    /// The call, for commands.
    pub fn call_mut(&mut self) -> &mut Session {
        &mut self.call
    }

    /// Passes queued audio to the listeners if it is enough for a portion, or if no audio follows it: listeners detect silence
    /// by a portion's time.
    #[inline]
    fn feed_listeners(&mut self, now_ns: u64) {
        if self.is_to_look || self.listeners.is_wanted() {
            self.feed_tapped(now_ns);
        }
    }

    #[cold]
    fn feed_tapped(&mut self, now_ns: u64) {
        if self.is_to_look {
            for side in Side::BOTH {
                // Audio is queued if the list was locked before.
                if self.unreported[side as usize].samples > 0 {
                    self.tell(side);
                }
            }
            self.listeners.look();
            self.is_to_look = self.listeners.has_news();
        }
        for side in Side::BOTH {
            let (samples, mode) = (self.call.tapped(side), self.call.mode(side));
            let unreported = &mut self.unreported[side as usize];
            if unreported.samples > 0 && unreported.mode != mode {
                self.tell(side);
            } else if samples != unreported.samples {
                *unreported = Unreported {
                    samples,
                    until_ns: now_ns,
                    mode,
                };
            }
            if samples >= GATHERED_SAMPLES
                || self.unreported[side as usize].is_older(now_ns, GATHER_NS)
            {
                self.tell(side);
            }
            let is_tapped = self.listeners.is_wanted() || self.meters.is_some();
            self.call.tap(side, is_tapped);
        }
    }

    /// Passes all audio until now to the listeners, as before a change of listeners. Dropping a call does the same.
    pub fn flush_listeners(&mut self) {
        Side::BOTH.into_iter().for_each(|side| self.tell(side));
    }

    fn tell(&mut self, side: Side) {
        let place = &mut self.unreported[side as usize];
        let unreported = std::mem::replace(place, Unreported::NOTHING);
        let (listeners, meters) = (&mut self.listeners, &mut self.meters);
        self.call.take_tapped(side, |tapped| {
            if let Some(meters) = meters {
                meters[side as usize].add_tapped(tapped);
            }
            let audio = match unreported.mode {
                Mode::Pass => tapped.audio,
                _ => TappedAudio::Silence(tapped.audio.len()),
            };
            listeners.put(unreported.until_ns, side, Tapped { audio, ..tapped });
        });
    }

    fn tell_events(&mut self) {
        while let Some(event) = self.call.poll_event() {
            if let Some(handler) = &mut self.on_event {
                handler(event);
            }
        }
    }
}

impl Drop for MediaCall {
    fn drop(&mut self) {
        self.flush_listeners();
    }
}

impl crate::Call for MediaCall {
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
        if self.unreported.iter().any(Unreported::is_nearly_due) {
            self.listeners.prefetch_room();
        }
        if !self.unsent.stage_waiting(&mut self.protections, out) {
            return;
        }
        if let Some(copies) = &mut self.copies
            && !copies.stage(out)
        {
            return;
        }
        let mux = self.mux();
        let (call, unsent) = (&mut self.call, &mut self.unsent);
        let protections = &mut self.protections;
        with_scratch(out, |scratch, out| {
            call.poll_transmit(now_ns, may_lose, scratch, &mut |outgoing| {
                let leg = outgoing.ports;
                let port = match outgoing.channel {
                    // RFC 5761: RTCP leaves from the RTP port.
                    Channel::Rtcp if !mux[usize::from(leg)] => PortId::rtcp(leg),
                    _ => PortId::rtp(leg),
                };
                let Outgoing {
                    channel, to, bytes, ..
                } = outgoing;
                unsent.stage(port, channel, to, bytes, protections, out);
            });
        });
        self.feed_listeners(now_ns);
        self.measure(TAPPED_SAMPLES_MIN);
        self.tell_events();
    }

    fn next_timeout(&self) -> Option<u64> {
        let early_ns = self.early.as_ref().map(|early| early.until_ns());
        let unreported = self
            .unreported
            .iter()
            .filter(|unreported| unreported.samples > 0);
        let due_ns = unreported.map(|unreported| unreported.until_ns + GATHER_NS);
        let all = self.call.next_timeout().into_iter().chain(early_ns);
        all.chain(due_ns).min()
    }

    #[inline]
    fn prefetch(&self) {
        self.call
            .prefetch(|address| prefetch(address, PACKET_LINES));
        if let Some(address) = self.listeners.next_address() {
            prefetch(address, 1);
        }
    }
}

/// Sets a side's keys, or removes them.
pub(crate) fn set_keys(
    protection: &mut Option<Box<Protection>>,
    now_ns: u64,
    keys: Option<Keys>,
    rollover: Rollover,
) {
    match (protection.as_mut(), keys) {
        (Some(protection), Some(keys)) => protection.set_keys(now_ns, keys, rollover),
        (None, Some(keys)) => *protection = Some(Box::new(Protection::new(keys))),
        (_, None) => *protection = None,
    }
}

/// Applies `of` to each side's protection.
pub(crate) fn each<T>(
    protections: &[Option<Box<Protection>>; 2],
    of: impl Fn(&Protection) -> T,
) -> [Option<T>; 2] {
    [0, 1].map(|at: usize| protections[at].as_deref().map(&of))
}

/// The state, with our stream added to the sent ones: packets that left after the snapshot may have been its first.
fn with_sender(state: &ProtectionState, leg: &LegState) -> ProtectionState {
    let mut state = state.clone();
    let first = PacketIndex::new(0, SeqNum(leg.next_seq.0.saturating_sub(1)));
    let own = state.sent.iter_mut().find(|own| own.ssrc == leg.ssrc);
    match own {
        Some(own) => own.rtp = own.rtp.or(Some(first)),
        None => state.sent.push(SourceState {
            ssrc: leg.ssrc,
            rtp: Some(first),
            rtp_missing: 0,
            rtcp: None,
        }),
    }
    state
}

/// Cache lines of 20 ms of G.711.
const PACKET_LINES: usize = 3;

/// 20 ms of G.711.
const PACKET_SAMPLES: usize = 160;
/// Five packets of G.711. A packet or two of other codecs.
const GATHERED_SAMPLES: usize = 5 * PACKET_SAMPLES;
/// Maximum time that audio is queued for more.
const GATHER_NS: u64 = 100_000_000;
/// Maximum gap in continuous audio: slices and network jitter cause shorter gaps.
pub(crate) const PAUSE_NS: u64 = 60_000_000;
