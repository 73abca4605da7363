//! Settings and commands that the owner gives to a running session.

use std::sync::Arc;

use super::direction::Tapped;
use super::flow::Flow;
use super::spec::FlowConfig;
use super::{
    Clip, DtmfDigit, DtmfError, Filter, LegId, Mode, Part, PlayError, PlayLeft, Session,
    SessionError, SessionSpec, SessionState, Sound, Substitute, apply, snapshot,
};
use crate::codec::CodecError;
use crate::leg::{Carries, Leg, Outage, PayloadMap};

impl Session {
    /// Makes the running session what `spec` says. Only what differs changes, so applying a specification again has no effect. Some parts
    /// apply only to new sessions: see [`SessionSpec`].
    ///
    /// # Errors
    /// Fails if the specification has other legs, or a packet time that the receiving party does not support; then nothing changes. Also
    /// fails if the encoder refuses a bit rate; then everything else has changed.
    pub fn apply(&mut self, now_ns: u64, spec: SessionSpec) -> Result<(), SessionError> {
        apply::apply(self, now_ns, spec)
    }

    /// Applies settings of a flow that have the same effect whenever they are applied again.
    pub(super) fn settle(&mut self, flow: &FlowConfig) {
        let direction = &flow.direction;
        self.block_keys(flow.from, direction.blocks_keys);
        self.pass_keys(flow.from, direction.passes_keys);
        if let Some(to) = flow.to {
            self.set_held(to, direction.holds_receiver);
        }
    }

    /// Returns the state that another process needs to continue. Settings are not part of it. Packets that are still queued here are left to
    /// that process.
    #[must_use]
    pub fn snapshot(&self, now_ns: u64) -> SessionState {
        snapshot::of(self, now_ns)
    }

    /// Continues from the state of another process, with its SSRCs, and with numbers and timestamps that follow. Call this only for a session
    /// that has neither sent nor received anything.
    pub fn restore(&mut self, now_ns: u64, state: &SessionState, outage: Outage) {
        snapshot::restore(self, now_ns, state, outage);
    }

    /// Continues the output of a stream that an earlier run has sent, with its SSRC, and with numbers and timestamps that follow. The
    /// senders must be learned again. Call this only for a stream that has not sent anything. Streams that forward packets verbatim, or send nowhere, do
    /// not change.
    pub fn resume(&mut self, now_ns: u64, state: &SessionState, outage: Outage) {
        snapshot::resume(self, now_ns, state, outage);
    }

    /// Sends media up to `ahead_ns` before they are due. With half of the interval between the owner's polls, media are on time on average.
    pub fn set_ahead_ns(&mut self, ahead_ns: u64) {
        self.ahead_ns = ahead_ns;
        for leg in &mut self.legs {
            leg.set_ahead_ns(ahead_ns);
        }
    }

    /// Returns the flow that a leg's media enter.
    fn input_mut(&mut self, leg: impl Into<LegId>) -> Option<&mut Flow> {
        self.flows.of_mut(leg.into().index())
    }

    /// Returns the flow that a leg's media enter.
    fn input(&self, leg: impl Into<LegId>) -> Option<&Flow> {
        self.flows.of(leg.into().index())
    }

    /// Returns the flow whose media a leg sends.
    fn output_mut(&mut self, to: impl Into<LegId>) -> Option<&mut Flow> {
        let to = to.into().index();
        self.flows.iter_mut().find(|flow| flow.to == to)
    }

    /// Sets what happens to this leg's media. Media that pass verbatim, or go only to listeners, are not affected.
    pub fn set_mode(&mut self, leg: impl Into<LegId>, mode: Mode) {
        if let Some(flow) = self.input_mut(leg).filter(|flow| !flow.is_silent) {
            flow.direction.set_mode(mode);
        }
    }

    /// Returns what currently happens to this leg's media.
    #[must_use]
    pub fn mode(&self, leg: impl Into<LegId>) -> Mode {
        let flow = self.input(leg).filter(|flow| !flow.is_silent);
        flow.map_or(Mode::Pass, |flow| flow.direction.mode())
    }

    /// Switches the echo of a call on or off at the next poll. With the echo, each party hears itself instead of the other party.
    /// [`set_mode`](Self::set_mode) still applies to each party's media, so neither party hears media with [`Mode::Hold`].
    pub fn set_echo(&mut self, echoes: bool) {
        self.echo.is_wanted = echoes;
    }

    /// Passes all audio of a leg through `filter`, after decoding. The audio has the rate and channels of the leg or, after
    /// [`hear_at_output`](Self::hear_at_output), those of the receiving party.
    pub fn set_filter(&mut self, leg: impl Into<LegId>, filter: Box<dyn Filter>) {
        if let Some(flow) = self.input_mut(leg) {
            flow.direction.set_filter(filter);
        }
    }

    /// Lets filter and tap of a leg get the outgoing audio, in the receiving party's format, whatever the input is.
    pub fn hear_at_output(&mut self, leg: impl Into<LegId>) {
        if let Some(flow) = self.input_mut(leg) {
            flow.direction.hear_at_output();
        }
    }

    /// Plays a clip to this party instead of the other party's audio. A clip that is being played ends.
    ///
    /// # Errors
    /// Fails if the clip's rate or channels are not supported, or this party accepts no audio that can be encoded.
    pub fn play(&mut self, now_ns: u64, to: impl Into<LegId>, clip: Clip) -> Result<(), PlayError> {
        self.play_part(now_ns, to, clip, Part::default())
    }

    /// Plays a part of a clip to this party.
    ///
    /// # Errors
    /// Fails as [`play`](Self::play) does.
    pub fn play_part(
        &mut self,
        now_ns: u64,
        to: impl Into<LegId>,
        clip: Clip,
        part: Part,
    ) -> Result<(), PlayError> {
        let to = to.into();
        let payloads = self.legs[to.index()].takes().clone();
        let flow = self.output_mut(to).ok_or(PlayError::NoFormat)?;
        flow.direction
            .begin_play(now_ns, Sound::Clip(clip), part, &payloads)
    }

    /// Returns the rest of the clip that is being played to this party, if any.
    #[must_use]
    pub fn play_left(&self, to: impl Into<LegId>) -> Option<PlayLeft> {
        let to = to.into().index();
        let flow = self.flows.iter().find(|flow| flow.to == to)?;
        flow.direction.play_left()
    }

    /// Stops the clip that is being played to this party.
    pub fn stop_play(&mut self, to: impl Into<LegId>) {
        if let Some(flow) = self.output_mut(to) {
            flow.direction.end_play();
        }
    }

    /// Sets the sound that the other party hears while this party sends nothing. A sound that is being played ends.
    pub fn set_substitute(&mut self, leg: impl Into<LegId>, substitute: Option<Arc<Substitute>>) {
        // With the echo, the flows have exchanged their parties, but a substitute stays with its flow.
        if let Some(flow) = self.flows.get_mut(leg.into().index()) {
            flow.direction.set_substitute(substitute);
        }
    }

    /// Starts or stops copying this leg's audio for listeners. They get it in order, with losses concealed.
    pub fn tap(&mut self, leg: impl Into<LegId>, is_on: bool) {
        if let Some(flow) = self.input_mut(leg) {
            flow.direction.tap(is_on);
        }
    }

    /// Passes the audio of this leg that was tapped since the last call to `hear`, in order, piece by piece. That is at most
    /// [`TAP_NS_MAX`](super::TAP_NS_MAX) of audio.
    #[inline]
    pub fn take_tapped(&mut self, leg: impl Into<LegId>, hear: impl FnMut(Tapped<'_>)) {
        if let Some(flow) = self.input_mut(leg) {
            flow.direction.take_tapped(hear);
        }
    }

    /// Returns the number of this leg's samples that are queued in the tap.
    #[must_use]
    pub fn tapped(&self, leg: impl Into<LegId>) -> usize {
        self.input(leg).map_or(0, |flow| flow.direction.tapped())
    }

    /// Returns a leg, for changes by new signalling.
    ///
    /// # Panics
    /// Panics if the session has no such leg.
    pub fn leg_mut(&mut self, leg: impl Into<LegId>) -> &mut Leg {
        // The next packet chooses input and output of this leg again.
        for flow in self.flows.iter_mut() {
            flow.direction.reroute();
        }
        &mut self.legs[leg.into().index()]
    }

    /// Sets whether later datagrams of this leg have passed SRTP's authentication.
    pub fn set_authenticated(&mut self, leg: impl Into<LegId>, is_authenticated: bool) {
        self.legs[leg.into().index()].set_authenticated(is_authenticated);
    }

    /// Records the quality of a leg's media from now on: [`LegStats::quality`](crate::leg::LegStats::quality). Calls record it by
    /// default.
    ///
    /// # Panics
    /// Panics if the session has no such leg.
    pub fn record_quality(&mut self, leg: impl Into<LegId>) {
        self.legs[leg.into().index()].record_quality();
    }

    /// Changes the payload types that this party sends and accepts. Numbers and timestamps continue.
    pub fn set_payloads(
        &mut self,
        leg: impl Into<LegId>,
        sends: Arc<PayloadMap>,
        takes: Arc<PayloadMap>,
    ) {
        let leg = leg.into();
        if let Some(flow) = self.input_mut(leg) {
            flow.direction.set_sender(&sends);
        }
        if let Some(flow) = self.output_mut(leg) {
            flow.direction.set_receiver(&takes);
        }
        self.leg_mut(leg).set_payloads(sends, takes);
    }

    /// Makes all legs leave their sessions. One more poll sends the BYEs.
    pub fn leave(&mut self, now_ns: u64, reason: &str) {
        for leg in &mut self.legs {
            leg.leave(now_ns, reason);
        }
    }

    /// Sends a DTMF digit on behalf of `side`'s party. The party that hears it gets telephone events (RFC 4733), with the numbers and
    /// timestamps of the stream. If that party accepts no events, it gets the digit's tone. The digit replaces the audio of `side` and
    /// anything that is played to the other party. Several digits follow one another. If `side` itself is pressing a digit, that digit ends
    /// first. A held party gets no digits.
    ///
    /// # Errors
    /// Fails if a value is out of range, too many digits are queued, or the party accepts neither events nor audio that can be encoded.
    pub fn insert_dtmf(
        &mut self,
        now_ns: u64,
        side: impl Into<LegId>,
        digit: DtmfDigit,
    ) -> Result<(), DtmfError> {
        digit.check()?;
        let Session { flows, legs, .. } = self;
        let flow = flows.get_mut(side.into().index());
        let flow = flow.ok_or(DtmfError::NoFormat)?;
        let takes = legs[flow.to].takes();
        let audio = takes.audio();
        let is_heard = takes.telephone_event(audio.clock_rate_hz).is_some()
            || matches!(audio.carries, Carries::Audio(_));
        if !is_heard {
            return Err(DtmfError::NoFormat);
        }
        flow.direction.insert_dtmf(now_ns, digit)
    }

    /// Blocks this party's DTMF digits. This means its telephone events and, if digits are detected in audio
    /// ([`DirectionConfig::detect_keys`](super::DirectionConfig)), the tones from their detection on. The owner still gets events for the
    /// digits.
    pub fn block_keys(&mut self, leg: impl Into<LegId>, blocks: bool) {
        if let Some(flow) = self.input_mut(leg) {
            flow.direction.block_keys(blocks);
        }
    }

    /// Sets whether this party's telephone events reach the other party even while its audio does not ([`Mode::Mute`],
    /// [`Mode::Hold`]).
    pub fn pass_keys(&mut self, leg: impl Into<LegId>, passes: bool) {
        if let Some(flow) = self.input_mut(leg) {
            flow.direction.pass_keys(passes);
        }
    }

    /// Sets [`DirectionConfig::detect_keys`](super::DirectionConfig) of this party's audio.
    pub fn set_detect_keys(&mut self, leg: impl Into<LegId>, detects: bool) {
        let leg = leg.into();
        let payloads = self.legs[leg.index()].payloads().clone();
        if let Some(flow) = self.input_mut(leg) {
            flow.direction.set_detect_keys(detects, &payloads);
        }
    }

    /// Sets [`DirectionConfig::makes_anew`](super::DirectionConfig) of this party's audio.
    pub fn set_makes_anew(&mut self, leg: impl Into<LegId>, makes_anew: bool) {
        if let Some(flow) = self.input_mut(leg) {
            flow.direction.set_makes_anew(makes_anew);
        }
    }

    /// Sets [`DirectionConfig::packet_ns`](super::DirectionConfig) of the audio that goes from this leg to the other one.
    ///
    /// # Errors
    /// Fails if the receiving side has no format with this packet time, or if the packets do not fit a datagram. In this case, nothing
    /// changes.
    pub fn set_packet_ns(
        &mut self,
        leg: impl Into<LegId>,
        packet_ns: u64,
    ) -> Result<(), SessionError> {
        let Session { flows, legs, .. } = self;
        match flows.get_mut(leg.into().index()) {
            Some(flow) => flow
                .direction
                .set_packet_ns(packet_ns, legs[flow.to].takes()),
            None => Ok(()),
        }
    }

    /// Sets the bit rates of the encoder for the audio that goes from this leg to the other one, from the next packet on: see
    /// [`EncoderSettings`](crate::codec::EncoderSettings). Nothing else changes. Audio that is not re-encoded is not affected.
    ///
    /// # Errors
    /// Fails if a value is out of range, in which case nothing changes, or if the library refuses the change.
    pub fn set_bitrate(
        &mut self,
        leg: impl Into<LegId>,
        bitrate_bps: Option<u32>,
        bitrate_bps_max: Option<u32>,
    ) -> Result<(), CodecError> {
        match self.flows.get_mut(leg.into().index()) {
            Some(flow) => flow.direction.set_bitrate(bitrate_bps, bitrate_bps_max),
            None => Ok(()),
        }
    }

    /// Holds a party, so that it gets no RTP: neither the other party's audio nor clips. Its RTCP reports continue. Sequence numbers
    /// continue, and timestamps include the pause.
    pub fn set_held(&mut self, leg: impl Into<LegId>, is_held: bool) {
        let leg = leg.into();
        self.legs[leg.index()].set_held(is_held);
        if let Some(flow) = self.output_mut(leg) {
            flow.direction.set_held(is_held);
        }
    }
}
