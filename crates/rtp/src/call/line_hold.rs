//! Holds a line and continues it: [`handover`](super::handover).

use super::handover::{Hold, LineState, Passed};
use super::line::{Line, LineDatagram};
use super::out::Scratch;

impl Line {
    /// Receives without sending until [`go_on`](Self::go_on). Only for a line that has not been polled and whose jitter buffer
    /// releases packets [at their deadline](crate::jitter::Release::AtDeadline); other buffers do not keep the packets.
    pub fn hold(&mut self) {
        self.hold = Some(Box::new(Hold::On));
    }

    /// Time after which an unsent packet is dropped, counted from when it was due.
    #[inline]
    pub(super) fn hold_ns(&self) -> u64 {
        self.hold.as_ref().map_or(0, |hold| hold.delay_ns())
    }

    /// Ends the [`hold`](Self::hold) at the next poll. Output continues after the last packet that another process has forwarded
    /// or, if that is unknown, with the packets due from now on.
    pub fn go_on(&mut self, state: Option<LineState>) {
        if let Some(hold) = &mut self.hold
            && matches!(**hold, Hold::On)
        {
            **hold = Hold::Ending(state);
        }
    }

    /// The state of the line, for the process that continues it. Packets that are still queued here are left to that process.
    #[must_use]
    pub fn state(&self, now_ns: u64) -> LineState {
        let has_main = self.input().0 == 0;
        let source = self.source().source().filter(|_| has_main);
        let passed = source.zip(self.last_passed);
        LineState {
            sent: self.hears().sent_state(),
            time: self.direction.time_state(now_ns),
            passed: passed.map(|((_, ssrc), seq)| Passed {
                ssrc,
                seq,
                anchor: self.direction.anchor(),
            }),
        }
    }

    /// Polls a line that is held, or whose hold ends. Returns `true` if a sending poll must follow.
    #[cold]
    pub(super) fn poll_held(&mut self, now_ns: u64, may_lose: bool, scratch: &mut Scratch) -> bool {
        if matches!(self.hold.as_deref(), Some(Hold::On)) {
            self.poll_all(now_ns, may_lose, scratch, &mut |_: LineDatagram<'_>| ());
            return false;
        }
        let state = match self.hold.take().map(|hold| *hold) {
            Some(Hold::Ending(state)) => state,
            Some(Hold::On) | None => None,
        };
        let heard = self.source().source().map(|(_, ssrc)| ssrc);
        let passed = state.and_then(|state| state.passed);
        let passed = passed.filter(|passed| Some(passed.ssrc) == heard && self.input().0 == 0);
        if passed.is_none() {
            // Which late packets were sent is unknown, so none is sent now.
            self.poll_all(now_ns, may_lose, scratch, &mut |_: LineDatagram<'_>| ());
        }
        if let Some(state) = state {
            self.with_out(now_ns, scratch, &mut |_| (), |direction, work, out| {
                direction.begin_anew(work, out);
            });
            let anchor = passed.and_then(|passed| passed.anchor);
            self.direction.go_on(now_ns, state.time, anchor);
            self.hears_mut().restore_sent(&state.sent);
            self.passed_until = passed.map(|passed| passed.seq);
            self.last_passed = self.passed_until.or(self.last_passed);
        }
        true
    }
}
