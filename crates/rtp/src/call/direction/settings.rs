//! Settings of a direction that change while the call runs, and the parts of its saved state.

use std::mem::swap;

use super::inband_dtmf::InbandDtmf;
use super::route::Route;
use super::{Direction, ns_of_frames};
use crate::call::keys::KeyPhase;
use crate::call::out::{Out, Work};
use crate::call::time_map::{Anchor, TimeState};
use crate::call::voice::PAYLOAD_BYTES_MAX;
use crate::call::{DirectionConfig, Filter, Mode, SessionError};
use crate::codec::CodecError;
use crate::id::RtpTime;
use crate::leg::{Carries, Payload, PayloadMap};

impl Direction {
    /// Returns the settings. The mode may have changed since.
    pub(in crate::call) fn config(&self) -> &DirectionConfig {
        &self.output.config
    }

    /// Sets the payload types that the far side accepts from now on. Audio that was gathered for another type is dropped, because the far
    /// side could not decode it.
    #[cold]
    pub(in crate::call) fn set_receiver(&mut self, to: &PayloadMap) {
        let takes = |payload: &Payload| to.iter().any(|taken| taken == payload);
        self.cut_dtmf();
        // Only a packet chooses a route, so a loss that comes before the next packet uses the old one.
        let goes_on = match &self.output.route {
            Route::Pass { to, .. } | Route::Repack { to, .. } => takes(to),
            Route::Reencode(_) => self
                .output
                .voice
                .as_ref()
                .is_some_and(|voice| takes(&voice.payload)),
            Route::Nowhere => true,
        };
        if !goes_on {
            self.output.bytes.clear();
            self.output.route = Route::Nowhere;
        }
        if self
            .output
            .voice
            .as_ref()
            .is_some_and(|voice| !takes(&voice.payload))
        {
            self.output.voice = None;
            self.tone.is_on = false;
        }
        self.player.resume(0, &mut self.output);
        self.output.reroute();
    }

    pub(in crate::call) fn set_packet_ns(
        &mut self,
        packet_ns: u64,
        to: &PayloadMap,
    ) -> Result<(), SessionError> {
        check_packet_ns(packet_ns, to)?;
        self.output.config.packet_ns = packet_ns;
        self.output.reroute();
        Ok(())
    }

    /// Switches the detection of digits in the audio. `sender` contains the party's payload types.
    pub(in crate::call) fn set_detect_keys(&mut self, detects: bool, sender: &PayloadMap) {
        self.output.config.detect_keys = detects;
        if detects {
            return self.set_sender(sender);
        }
        if let Some((event, duration_ms)) = self
            .inband
            .take()
            .and_then(|inband_dtmf| InbandDtmf::pressed_key(&inband_dtmf))
        {
            self.keys.report(event, KeyPhase::Released { duration_ms });
        }
    }

    /// Blocks digits that start from now on, or lets them pass.
    pub(in crate::call) fn block_keys(&mut self, blocks: bool) {
        self.keys.is_blocked = blocks;
    }

    /// Sets [`DirectionConfig::makes_anew`](crate::call::DirectionConfig).
    pub(in crate::call) fn set_makes_anew(&mut self, makes_anew: bool) {
        self.output.config.makes_anew = makes_anew;
        self.output.reroute();
    }

    /// Sets whether digits pass even if audio does not.
    pub(in crate::call) fn pass_keys(&mut self, passes: bool) {
        self.keys.passes_always = passes;
    }

    /// Holds the far side, or resumes it.
    pub(in crate::call) fn set_held(&mut self, is_held: bool) {
        if is_held != self.output.is_held {
            self.output.is_held = is_held;
            // Audio that was gathered would be played at the end of the pause.
            self.output.bytes.clear();
            self.output.cut();
            if let Some(voice) = &mut self.output.voice {
                voice.clear();
            }
            self.cut_dtmf();
            self.output.reroute();
        }
    }

    /// Sets the party's payload types. If the party sends telephone events, tones are not detected, so that each digit is reported once.
    pub(in crate::call) fn set_sender(&mut self, payloads: &PayloadMap) {
        let has_events = payloads
            .iter()
            .any(|payload| payload.carries == Carries::TelephoneEvent);
        match (has_events, &self.inband) {
            (true, _) => self.inband = None,
            (false, None) if self.output.config.detect_keys => {
                self.inband = Some(Box::new(InbandDtmf::new()))
            }
            (false, _) => {}
        }
    }

    pub(in crate::call) fn set_filter(&mut self, filter: Box<dyn Filter>) {
        self.output.filter = Some(filter);
        self.output.reroute();
    }

    /// Lets filter and tap get the outgoing audio, because there are several inputs.
    pub(in crate::call) fn hear_at_output(&mut self) {
        self.output.is_heard_at_output = true;
    }

    /// Sets the delay of the jitter buffer.
    pub(in crate::call) fn note_latency(&mut self, latency_ns: u64) {
        self.latency_ns = latency_ns;
    }

    pub(in crate::call) fn set_mode(&mut self, mode: Mode) {
        if mode != self.output.mode {
            self.output.mode = mode;
            self.output.reroute();
        }
    }

    /// Conceals all losses here, and leaves none to the far side.
    pub(in crate::call) fn mend_all(&mut self) {
        self.output.mends_all = true;
    }

    /// Continues with the timestamps, counters and budget of the direction that this one replaces.
    pub(in crate::call) fn succeed(&mut self, old: Direction) {
        self.output.map = old.output.map;
        self.output.map.restart();
        self.output.stats = old.output.stats;
        self.output.budget_ns = old.output.budget_ns;
    }

    /// Returns the position of the outgoing timestamps.
    pub(in crate::call) fn time_state(&self, now_ns: u64) -> Option<TimeState> {
        self.output.map.snapshot(now_ns)
    }

    /// Returns the mapping from the incoming to the outgoing timestamps.
    pub(in crate::call) fn anchor(&self) -> Option<Anchor> {
        self.output.map.take_anchor()
    }

    /// Continues where another process has just stopped.
    pub(in crate::call) fn go_on(
        &mut self,
        now_ns: u64,
        time: Option<TimeState>,
        anchor: Option<Anchor>,
    ) {
        if let Some(time) = time {
            self.output.map.restore(now_ns, time, 0);
            self.output.is_after_pause = anchor.is_none();
        }
        if let Some(anchor) = anchor {
            self.output.map.set_anchor(anchor);
        }
    }

    /// Continues with the timestamps of another process.
    pub(in crate::call) fn restore_time(&mut self, now_ns: u64, time: TimeState, elapsed_ns: u64) {
        self.output.map.restore(now_ns, time, elapsed_ns);
    }

    /// Returns the packet time of the outgoing audio, ns.
    pub(in crate::call) fn sent_packet_ns(&self) -> u64 {
        self.output.sent_packet_ns()
    }

    /// Returns the play time of the outgoing timestamp `time`.
    pub(in crate::call) fn play_ns(&self, time: RtpTime) -> Option<u64> {
        self.output.map.play_ns(time)
    }

    /// Sets the bit rates of the encoder from the next packet on. The stream continues.
    pub(in crate::call) fn set_bitrate(
        &mut self,
        bitrate_bps: Option<u32>,
        bitrate_bps_max: Option<u32>,
    ) -> Result<(), CodecError> {
        self.output.set_bitrate(bitrate_bps, bitrate_bps_max)
    }

    /// Ends the input of this party, and sends its queued audio. Clips and digits to the far side continue.
    #[cold]
    pub(in crate::call) fn end_input(&mut self, work: &mut Work, out: &mut Out<'_>) {
        self.restart(work, out);
        self.output.map.restart_at(out.now_ns);
        self.player.resume(out.now_ns, &mut self.output);
        // A loss that comes before the next packet must not use the old route.
        self.output.route = Route::Nowhere;
        self.output.bytes.clear();
        // While another input is active, the far side's decoder gets packets of another encoder. After that, it could not follow the
        // predictions of this encoder (Opus).
        if !self.player.is_on() && !self.is_sending_digit() {
            self.output.voice = None;
        }
        self.output.reroute();
    }

    /// Exchanges the parties of the two directions, with all settings of each party. Both inputs must have [ended](Self::end_input) before.
    #[cold]
    pub(in crate::call) fn exchange_inputs(one: &mut Direction, other: &mut Direction) {
        swap(&mut one.output.mode, &mut other.output.mode);
        swap(
            &mut one.output.config.detect_keys,
            &mut other.output.config.detect_keys,
        );
        swap(
            &mut one.output.config.makes_anew,
            &mut other.output.config.makes_anew,
        );
        swap(&mut one.keys.is_blocked, &mut other.keys.is_blocked);
        swap(&mut one.keys.passes_always, &mut other.keys.passes_always);
        swap(&mut one.keys.reports, &mut other.keys.reports);
        swap(&mut one.inband, &mut other.inband);
        swap(&mut one.output.tap, &mut other.output.tap);
        // A party's own audio has earned its budget, which pays for the concealment of its losses. So the budget moves with the party.
        swap(&mut one.output.budget_ns, &mut other.output.budget_ns);
        swap(&mut one.output.packet_ns, &mut other.output.packet_ns);
    }
}

/// Whether packets of this length are possible for a side with these payload types.
pub(in crate::call) fn check_packet_ns(
    packet_ns: u64,
    to: &PayloadMap,
) -> Result<(), SessionError> {
    let Carries::Audio(format) = to.audio().carries else {
        return Ok(());
    };
    if packet_ns == DirectionConfig::default().packet_ns {
        return Ok(());
    }
    let packet_us = packet_ns / 1000;
    let frames = format.frames_per_packet(packet_us as u32)?;
    let most = format.max_frames_for(PAYLOAD_BYTES_MAX);
    match most.filter(|most| frames > *most) {
        None => Ok(()),
        Some(most) => Err(SessionError::TooLong {
            format,
            packet_us,
            us_max: ns_of_frames(most, format) / 1000,
        }),
    }
}
