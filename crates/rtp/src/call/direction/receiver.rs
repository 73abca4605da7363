//! What the far side takes, and how it is sent, changes while the call runs.

use super::ear::Ear;
use super::{Direction, Route, ns_of_frames};
use crate::call::keys::KeyPhase;
use crate::call::voice::PAYLOAD_BYTES_MAX;
use crate::call::{CallError, DirectionConfig};
use crate::leg::{Carries, Payload, PayloadMap};

impl Direction {
    /// The far side takes these payload types from now on. What was gathered for another one is dropped: it could not be understood.
    #[cold]
    pub(in crate::call) fn set_receiver(&mut self, to: &PayloadMap) {
        let takes = |payload: &Payload| to.iter().any(|taken| taken == payload);
        self.cut_press();
        // A loss does not choose anew.
        let goes_on = match &self.route {
            Route::Pass { to, .. } | Route::Repack { to, .. } => takes(to),
            Route::Anew(_) => self
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

    /// `sender`: the party's payload types.
    pub(in crate::call) fn set_detect_keys(&mut self, detects: bool, sender: &PayloadMap) {
        self.config.detect_keys = detects;
        if detects {
            return self.set_sender(sender);
        }
        if let Some((event, duration_ms)) = self.ear.take().and_then(|ear| Ear::pressed_key(&ear)) {
            self.tell_key(event, KeyPhase::Released { duration_ms });
        }
    }

    /// Keys that begin from now on are not passed on, or are.
    pub(in crate::call) fn block_keys(&mut self, blocks: bool) {
        self.blocks_keys = blocks;
    }

    /// As [`DirectionConfig::makes_anew`](crate::call::DirectionConfig) has it.
    pub(in crate::call) fn set_makes_anew(&mut self, makes_anew: bool) {
        self.config.makes_anew = makes_anew;
        self.reroute();
    }

    /// Keys reach the far side where audio does not, or do not either.
    pub(in crate::call) fn pass_keys(&mut self, passes: bool) {
        self.passes_keys = passes;
    }

    /// The far side is sent nothing, or is sent something again.
    pub(in crate::call) fn set_held(&mut self, is_held: bool) {
        if is_held != self.is_held {
            self.is_held = is_held;
            // What was gathered would be heard at the end of the pause.
            self.bytes.clear();
            self.cut();
            if let Some(voice) = &mut self.voice {
                voice.clear();
            }
            self.cut_press();
            self.reroute();
        }
    }
}

/// Whether packets of this length can be made for a side with these payload types.
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
