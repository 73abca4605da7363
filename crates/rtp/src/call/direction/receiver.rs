//! Changes the far side's payload types, and how audio is sent to it, while the call runs.

use super::inband_dtmf::InbandDtmf;
use super::{Direction, Route, ns_of_frames};
use crate::call::keys::KeyPhase;
use crate::call::voice::PAYLOAD_BYTES_MAX;
use crate::call::{CallError, DirectionConfig};
use crate::leg::{Carries, Payload, PayloadMap};

impl Direction {
    /// Sets the payload types that the far side accepts from now on. Audio gathered for another type is dropped: the far side
    /// could not decode it.
    #[cold]
    pub(in crate::call) fn set_receiver(&mut self, to: &PayloadMap) {
        let takes = |payload: &Payload| to.iter().any(|taken| taken == payload);
        self.cut_dtmf();
        // A loss that comes before the next packet uses the old route, because only a packet chooses one.
        let goes_on = match &self.route {
            Route::Pass { to, .. } | Route::Repack { to, .. } => takes(to),
            Route::Reencode(_) => self
                .voice
                .as_ref()
                .is_some_and(|voice| takes(&voice.payload)),
            Route::Nowhere => true,
        };
        if !goes_on {
            self.bytes.clear();
            self.route = Route::Nowhere;
        }
        if self
            .voice
            .as_ref()
            .is_some_and(|voice| !takes(&voice.payload))
        {
            self.voice = None;
            self.is_sounding = false;
        }
        self.resume_play(0);
        self.reroute();
    }

    pub(in crate::call) fn set_packet_ns(
        &mut self,
        packet_ns: u64,
        to: &PayloadMap,
    ) -> Result<(), CallError> {
        check_packet_ns(packet_ns, to)?;
        self.config.packet_ns = packet_ns;
        self.reroute();
        Ok(())
    }

    /// Switches detection of digits in the audio. `sender` holds the party's payload types.
    pub(in crate::call) fn set_detect_keys(&mut self, detects: bool, sender: &PayloadMap) {
        self.config.detect_keys = detects;
        if detects {
            return self.set_sender(sender);
        }
        if let Some((event, duration_ms)) = self
            .inband_dtmf
            .take()
            .and_then(|inband_dtmf| InbandDtmf::pressed_key(&inband_dtmf))
        {
            self.report_key(event, KeyPhase::Released { duration_ms });
        }
    }

    /// Blocks or passes digits that start from now on.
    pub(in crate::call) fn block_keys(&mut self, blocks: bool) {
        self.blocks_keys = blocks;
    }

    /// See [`DirectionConfig::makes_anew`](crate::call::DirectionConfig).
    pub(in crate::call) fn set_makes_anew(&mut self, makes_anew: bool) {
        self.config.makes_anew = makes_anew;
        self.reroute();
    }

    /// Sets whether digits pass even if audio does not.
    pub(in crate::call) fn pass_keys(&mut self, passes: bool) {
        self.passes_keys = passes;
    }

    /// Holds the far side or resumes it.
    pub(in crate::call) fn set_held(&mut self, is_held: bool) {
        if is_held != self.is_held {
            self.is_held = is_held;
            // Gathered audio would be played at the end of the pause.
            self.bytes.clear();
            self.cut();
            if let Some(voice) = &mut self.voice {
                voice.clear();
            }
            self.cut_dtmf();
            self.reroute();
        }
    }
}

/// Whether packets of this length are possible for a side with these payload types.
pub(super) fn check_packet_ns(packet_ns: u64, to: &PayloadMap) -> Result<(), CallError> {
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
        Some(most) => Err(CallError::TooLong {
            format,
            packet_us,
            us_max: ns_of_frames(most, format) / 1000,
        }),
    }
}
