//! Holds a line, and goes on with it: [`handover`](super::handover).

use super::handover::{Hold, LineState, Passed};
use super::line::{Line, LineDatagram};
use super::out::Scratch;

impl Line {
    /// Hears, and sends nothing, until [`go_on`](Self::go_on). For a line that has not been polled, and whose jitter buffer releases packets
    /// [at their deadline](crate::jitter::Release::AtDeadline): another one does not keep them.
    pub fn hold(&mut self) {
        self.hold = Some(Box::new(Hold::On));
    }

    /// How much later than due a packet is dropped that is not sent.
    #[inline]
    pub(super) fn hold_ns(&self) -> u64 {
        self.hold.as_ref().map_or(0, |hold| hold.delay_ns())
    }

    /// Ends the [`hold`](Self::hold) with the next poll: behind what another process has passed on last, or, if nobody knows that, with what is due
    /// from now on.
    pub fn go_on(&mut self, state: Option<LineState>) {
        if let Some(hold) = &mut self.hold
            && matches!(**hold, Hold::On)
        {
            **hold = Hold::Ending(state);
        }
    }

    /// Where the line is, for a process that goes on. What it still holds is that one's.
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

    /// A poll while nothing, or nothing yet, is sent. `true`: go on with one that sends.
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
            // Nobody knows what of it was sent: what is late is not sent now.
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
