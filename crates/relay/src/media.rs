//! Calls of RTP: [`threadbare_rtp::call::Call`] on the engine.

use std::net::SocketAddr;
use std::time::Duration;

use threadbare_rtp::call::{
    Call, CallEvent, CallState, CallStats, Channel, Mode, Outgoing, Side, Tapped, TappedAudio,
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
use crate::listen::{Ears, Heard};
use crate::loudness::{LineMeter, Loudness, TAPPED_SAMPLES_MIN};
use crate::stray::{Early, Stray};
use crate::unsent::{Unsent, with_scratch};

/// Two parties that hear each other. Leg 0 of its ports is side A's, leg 1 is B's.
///
/// Each side is plain RTP, or SRTP once it has keys ([`set_keys`](MediaCall::set_keys)).
pub struct MediaCall {
    call: Call,
    protections: [Option<Box<Protection>>; 2],
    /// Of what each side sends.
    meters: Option<Box<[LineMeter; 2]>>,
    on_event: Option<EventHandler>,
    heard: Heard,
    /// Of what each side sends.
    untold: [Untold; 2],
    /// Others may listen.
    is_to_look: bool,
    /// What came to the process before may still come.
    early: Option<Box<Early>>,
    copies: Option<Box<Copies>>,
    /// What did not fit the last turn.
    unsent: Unsent,
}

/// What was tapped of a side for those who listen, and is told with what comes next: their rings have left the cache by the next packet.
#[derive(Debug, Clone, Copy)]
struct Untold {
    samples: usize,
    /// When the last of it was heard.
    until_ns: u64,
    mode: Mode,
}

impl Untold {
    const NOTHING: Untold = Untold {
        samples: 0,
        until_ns: 0,
        mode: Mode::Pass,
    };

    /// Whether there is some, and nothing more of it has come for so long.
    #[inline]
    fn is_older(&self, now_ns: u64, than_ns: u64) -> bool {
        self.samples > 0 && now_ns.saturating_sub(self.until_ns) >= than_ns
    }

    /// Whether the next packet is told at once.
    #[inline]
    fn is_nearly_due(&self) -> bool {
        self.samples + PACKET_SAMPLES >= GATHERED_SAMPLES
    }
}

/// Takes a call's events, on the shard's thread: it must not block.
pub type EventHandler = Box<dyn FnMut(CallEvent) + Send>;

/// Counters and gauges of a call, A's first.
#[derive(Debug, Clone, PartialEq)]
pub struct MediaCallStats {
    /// Its packets.
    pub call: CallStats,
    /// Their protection; `None`: the side is plain RTP.
    pub protections: [Option<ProtectionStats>; 2],
}

/// What a call keeps over a restart of the process, A's first. Holds keys: as secret as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaCallState {
    /// Its packets.
    pub call: CallState,
    /// Their protection; `None`: the side is plain RTP.
    pub protections: [Option<ProtectionState>; 2],
}

impl MediaCall {
    /// Carries a call in slices of this length: [`Settings::threads`](crate::Settings::threads).
    #[must_use]
    pub fn new(mut call: Call, slice: Duration) -> MediaCall {
        call.set_ahead_ns(slice.as_nanos() as u64 / 2);
        MediaCall {
            call,
            protections: [None, None],
            meters: None,
            on_event: None,
            heard: Heard::new(Ears::default()),
            untold: [Untold::NOTHING; 2],
            is_to_look: false,
            early: None,
            copies: None,
            unsent: Unsent::default(),
        }
    }

    /// Measures what both sides send.
    #[must_use]
    pub fn metered(mut self) -> MediaCall {
        for side in Side::BOTH {
            self.call.tap(side, true);
        }
        self.meters = Some(Box::default());
        self
    }

    /// Both sides are heard by those: what they say in order, losses filled in, as the other one is to hear it, so that a side that is muted or held is
    /// silent. While nobody listens, nothing is decoded for it. Those who listen already are found by [`look_who_listens`](Self::look_who_listens).
    #[must_use]
    pub fn heard_by(mut self, ears: Ears) -> MediaCall {
        self.heard = Heard::new(ears);
        self
    }

    /// Others have come: looks for them in this turn, or in the first one that finds the list free.
    pub fn look_who_listens(&mut self) {
        // That is not for those who come now.
        self.tell_rest();
        self.is_to_look = true;
    }

    /// Sends a copy of each RTP packet that a side sends, in the clear and at once, to these addresses of this machine, from the port that the party
    /// sends to. Packets that do not belong are not copied.
    pub fn set_copies(&mut self, side: Side, to: &[SocketAddr]) {
        self.change_copies(|copies| copies.set(side, to));
    }

    /// Gives each RTP packet that a side sends, in the clear and at once, to a listener. Packets that do not belong are not given.
    pub fn set_packet_listener(&mut self, listener: Option<PacketListener>) {
        self.change_copies(|copies| copies.set_listener(listener));
    }

    fn change_copies(&mut self, change: impl FnOnce(&mut Copies)) {
        let mut copies = self.copies.take().unwrap_or_default();
        change(&mut copies);
        self.copies = Some(copies).filter(|copies| copies.is_wanted());
    }

    /// A side is SRTP with these keys from `now_ns` on, or plain RTP with `None`. Keys that stay go on where they are; packets of a key that was
    /// replaced are taken for a while, see [`Protection`]. `rollover` is about what we send.
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

    /// What another process needs to go on with this call. Settings are not among it.
    #[must_use]
    pub fn snapshot(&self, now_ns: u64) -> MediaCallState {
        MediaCallState {
            call: self.call.snapshot(now_ns),
            protections: each(&self.protections, Protection::snapshot),
        }
    }

    /// Goes on with a call that another process carried: with its SSRCs, its keys, and numbers and timestamps that continue, so that the parties
    /// notice no more than a gap. For a call that has neither sent nor received.
    ///
    /// # Errors
    /// A state of a key is none that [`snapshot`](Self::snapshot) gives. The call is as it was.
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

    /// What came to the process before, whose state it was restored by, may come until then by [`Medium::handle_strays`](crate::Medium::handle_strays):
    /// packets behind a gap wait for that.
    pub fn wait_for_strays(&mut self, until_ns: u64, state: &MediaCallState) {
        let next = |leg: &LegState| Some(leg.source?.2.plus(1).0);
        let next = state.call.legs.each_ref().map(next);
        self.early = Some(Box::new(Early::new(until_ns, next)));
    }

    /// Whether each side's RTP and RTCP have one port, A's first.
    pub(crate) fn mux(&self) -> [bool; 2] {
        Side::BOTH.map(|side| self.call.leg(side).is_mux())
    }

    #[cold]
    fn handle_early(&mut self, now_ns: u64, stray: Option<Stray>) {
        let Some(mut early) = self.early.take() else {
            return;
        };
        stray.into_iter().for_each(|stray| early.add(stray));
        while let Some(mut stray) = early.pop(now_ns, self.mux()) {
            let datagram = Datagram {
                port: stray.port,
                from: stray.from,
                received_ns: stray.received_ns.min(now_ns),
                bytes: &mut stray.bytes,
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
        if self.heard.is_wanted() {
            let untold = &self.untold[side as usize];
            if untold.is_older(now_ns, PAUSE_NS) {
                // What comes does not follow it.
                self.tell(side);
            } else if untold.is_nearly_due() {
                self.heard.prefetch();
            }
            prefetch(self.call.tapped_address(side) as *const u8, PACKET_LINES);
        }
        let (at_ns, from, mut bytes) = (datagram.received_ns, datagram.from, datagram.bytes);
        if let Some(protection) = &mut self.protections[side as usize] {
            // What is refused is counted there.
            let carried = channel.carried(self.call.leg(side).is_mux(), bytes);
            let Ok(len) = protection.unprotect(now_ns, carried, bytes) else {
                return;
            };
            bytes = &mut bytes[..len];
        }
        let verdict = self
            .call
            .handle_datagram(now_ns, at_ns, side, channel, from, bytes);
        if let Some(copies) = &mut self.copies
            && verdict == Verdict::Media
        {
            copies.add(at_ns, side, from, bytes);
        }
    }

    /// The loudness of what each side sends, A's first; what is being gathered is measured first. `None`: not measured, or nothing was heard
    /// yet.
    pub fn loudness(&mut self) -> [Option<Loudness>; 2] {
        self.measure(1);
        match &mut self.meters {
            Some(meters) => [meters[0].readings(), meters[1].readings()],
            None => [None, None],
        }
    }

    /// Measures what was tapped, once it is this much.
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

    /// Gives the call's events to `handler`. Without one, they are dropped.
    #[must_use]
    pub fn on_event(mut self, handler: impl FnMut(CallEvent) + Send + 'static) -> MediaCall {
        self.on_event = Some(Box::new(handler));
        self
    }

    /// The call.
    #[must_use]
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// The call, to be commanded.
    pub fn call_mut(&mut self) -> &mut Call {
        &mut self.call
    }

    /// Tells those who listen what was said, if it is much or nothing follows it: they know by its time when a side was silent.
    #[inline]
    fn tell_heard(&mut self, now_ns: u64) {
        if self.is_to_look || self.heard.is_wanted() {
            self.tell_tapped(now_ns);
        }
    }

    #[cold]
    fn tell_tapped(&mut self, now_ns: u64) {
        if self.is_to_look {
            for side in Side::BOTH {
                // The list was not free before.
                if self.untold[side as usize].samples > 0 {
                    self.tell(side);
                }
            }
            self.heard.look();
            self.is_to_look = self.heard.has_news();
        }
        for side in Side::BOTH {
            let (samples, mode) = (self.call.tapped(side), self.call.mode(side));
            let untold = &mut self.untold[side as usize];
            if untold.samples > 0 && untold.mode != mode {
                self.tell(side);
            } else if samples != untold.samples {
                *untold = Untold {
                    samples,
                    until_ns: now_ns,
                    mode,
                };
            }
            if samples >= GATHERED_SAMPLES || self.untold[side as usize].is_older(now_ns, GATHER_NS)
            {
                self.tell(side);
            }
            let is_tapped = self.heard.is_wanted() || self.meters.is_some();
            self.call.tap(side, is_tapped);
        }
    }

    /// Tells those who listen all that was said until now, as before a change of who listens. Dropped, a call does so, too.
    pub fn tell_rest(&mut self) {
        Side::BOTH.into_iter().for_each(|side| self.tell(side));
    }

    fn tell(&mut self, side: Side) {
        let place = &mut self.untold[side as usize];
        let untold = std::mem::replace(place, Untold::NOTHING);
        let (heard, meters) = (&mut self.heard, &mut self.meters);
        self.call.take_tapped(side, |tapped| {
            if let Some(meters) = meters {
                meters[side as usize].add_tapped(tapped);
            }
            let audio = match untold.mode {
                Mode::Pass => tapped.audio,
                _ => TappedAudio::Silence(tapped.audio.len()),
            };
            heard.put(untold.until_ns, side, Tapped { audio, ..tapped });
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
        self.tell_rest();
    }
}

impl crate::Call for MediaCall {
    #[inline]
    fn handle_datagram(&mut self, now_ns: u64, datagram: Datagram<'_>) {
        if self.early.is_some() {
            return self.handle_early(now_ns, Some(Stray::of(&datagram)));
        }
        self.handle(now_ns, datagram);
    }

    #[inline]
    fn poll_transmit(&mut self, now_ns: u64, may_lose: bool, out: &mut dyn Outbox) {
        if self.early.is_some() {
            self.handle_early(now_ns, None);
        }
        if self.untold.iter().any(Untold::is_nearly_due) {
            self.heard.prefetch_room();
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
                let leg = outgoing.side as u8;
                let port = match outgoing.channel {
                    // RFC 5761: RTCP leaves from the port that RTP leaves from.
                    Channel::Rtcp if !mux[usize::from(leg)] => PortId::rtcp(leg),
                    _ => PortId::rtp(leg),
                };
                let Outgoing {
                    channel, to, bytes, ..
                } = outgoing;
                unsent.stage(port, channel, to, bytes, protections, out);
            });
        });
        self.tell_heard(now_ns);
        self.measure(TAPPED_SAMPLES_MIN);
        self.tell_events();
    }

    fn next_timeout(&self) -> Option<u64> {
        let early_ns = self.early.as_ref().map(|early| early.until_ns());
        let untold = self.untold.iter().filter(|untold| untold.samples > 0);
        let told_ns = untold.map(|untold| untold.until_ns + GATHER_NS);
        let all = self.call.next_timeout().into_iter().chain(early_ns);
        all.chain(told_ns).min()
    }

    #[inline]
    fn prefetch(&self) {
        for address in self.call.next_addresses().as_flattened() {
            prefetch(*address as *const u8, PACKET_LINES);
        }
        if let Some(address) = self.heard.next_address() {
            prefetch(address, 1);
        }
    }
}

/// Other keys for a side, its first ones, or none.
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

/// Something of each side's protection.
pub(crate) fn each<T>(
    protections: &[Option<Box<Protection>>; 2],
    of: impl Fn(&Protection) -> T,
) -> [Option<T>; 2] {
    [0, 1].map(|at: usize| protections[at].as_deref().map(&of))
}

/// The state, with our own stream among what was sent: packets that left behind the snapshot may have been its first.
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
/// Five of them. Of other codecs, a packet or two.
const GATHERED_SAMPLES: usize = 5 * PACKET_SAMPLES;
/// How long what was said waits for more.
const GATHER_NS: u64 = 100_000_000;
/// What comes behind so long a time does not join on: slices and the network's jitter make less of it.
pub(crate) const PAUSE_NS: u64 = 60_000_000;
