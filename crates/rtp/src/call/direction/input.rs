//! Exchanges the inputs of two directions; each output stays one stream.

use std::mem::swap;

use super::{Direction, Route};
use crate::call::out::{Out, Work};

impl Direction {
    /// Sends everything due that needs no packet of the party: ends of digits and pauses, inserted digits and clips.
    #[inline]
    pub(in crate::call) fn poll_beside(
        &mut self,
        media_ns: u64,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        self.expire_key(work, out);
        self.fill_pause(work, out);
        self.poll_dtmf(media_ns, work, out);
        self.play(media_ns, work, out);
    }

    /// Ends this party's input and sends its queued audio. Clips and digits to the far side continue.
    #[cold]
    pub(in crate::call) fn end_input(&mut self, work: &mut Work, out: &mut Out<'_>) {
        self.restart(work, out);
        self.map.restart_at(out.now_ns);
        self.resume_play(out.now_ns);
        // A loss before the next packet does not belong to the old route.
        self.route = Route::Nowhere;
        self.bytes.clear();
        // While another input is active, the far side's decoder gets packets of another encoder. Afterwards it could not follow
        // the predictions of this one (Opus).
        if self.playing.is_none() && !self.is_sending_digit() {
            self.voice = None;
        }
        self.reroute();
    }

    /// Exchanges the parties of the two directions, with all settings for each party. Both inputs must have
    /// [ended](Self::end_input).
    #[cold]
    pub(in crate::call) fn exchange_inputs(one: &mut Direction, other: &mut Direction) {
        swap(&mut one.mode, &mut other.mode);
        swap(&mut one.config.detect_keys, &mut other.config.detect_keys);
        swap(&mut one.config.makes_anew, &mut other.config.makes_anew);
        swap(&mut one.blocks_keys, &mut other.blocks_keys);
        swap(&mut one.passes_keys, &mut other.passes_keys);
        swap(&mut one.key_events, &mut other.key_events);
        swap(&mut one.inband_dtmf, &mut other.inband_dtmf);
        swap(&mut one.tap, &mut other.tap);
        // A party's budget, earned by its own audio, pays for concealing its losses, so it moves with the party.
        swap(&mut one.budget_ns, &mut other.budget_ns);
        swap(&mut one.packet_ns, &mut other.packet_ns);
    }
}
