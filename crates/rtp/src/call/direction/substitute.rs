//! Decides when a sound replaces a party that sends no packets.

use std::sync::Arc;

use crate::call::{Sound, Substitute};

/// The substitute of a party, and whether the far side hears it.
#[derive(Debug, Default)]
pub(super) struct Substitution {
    /// `None`: it was removed.
    config: Option<Arc<Substitute>>,
    /// Start of the party's silence. `None`: the party is not expected to send.
    silent_ns: Option<u64>,
    is_on: bool,
    /// The last reported state.
    is_reported: bool,
}

/// The next step of a substitution.
#[derive(Debug)]
pub(super) enum Step {
    Begin(Sound),
    End,
}

impl Substitution {
    /// Sets the sound. The sound that is being played must have ended.
    pub(super) fn set(&mut self, config: Option<Arc<Substitute>>) {
        (self.config, self.is_on) = (config, false);
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Handles a packet of the party. Returns whether the sound must end.
    #[inline]
    pub(super) fn handle_packet(&mut self, now_ns: u64) -> bool {
        if self.silent_ns.is_some() {
            self.silent_ns = Some(now_ns);
        }
        std::mem::take(&mut self.is_on)
    }

    /// Returns the step that is due. `is_expected`: whether the party is expected to send. `is_playing`: whether the player has a sound,
    /// which is this one or one of the owner.
    pub(super) fn poll(
        &mut self,
        now_ns: u64,
        is_expected: bool,
        is_playing: bool,
    ) -> Option<Step> {
        if self.is_on && !is_playing {
            // The far side accepts no audio that can be encoded. After a pause, that may have changed.
            self.fail(now_ns);
        }
        let Some(config) = self.config.as_ref().filter(|_| is_expected) else {
            self.silent_ns = None;
            return std::mem::take(&mut self.is_on).then_some(Step::End);
        };
        let due_ns = *self.silent_ns.get_or_insert(now_ns) + config.after_ns;
        if is_playing || now_ns < due_ns {
            return None;
        }
        self.is_on = true;
        Some(Step::Begin(config.sound.clone()))
    }

    /// Handles that the sound cannot be played. It is tried again after the usual time.
    pub(super) fn fail(&mut self, now_ns: u64) {
        self.is_on = false;
        self.silent_ns = Some(now_ns);
    }

    /// Handles that a sound of the owner has replaced this one.
    pub(super) fn yield_player(&mut self) {
        self.is_on = false;
    }

    /// Returns the time at which the sound begins, if the party stays silent and the player is idle.
    pub(super) fn next_timeout(&self) -> Option<u64> {
        let silent_ns = self.silent_ns.filter(|_| !self.is_on)?;
        Some(silent_ns + self.config.as_ref()?.after_ns)
    }

    /// Returns the new state, if it has changed since the last report.
    pub(super) fn take_report(&mut self) -> Option<bool> {
        let is_new = std::mem::replace(&mut self.is_reported, self.is_on) != self.is_on;
        is_new.then_some(self.is_on)
    }
}
