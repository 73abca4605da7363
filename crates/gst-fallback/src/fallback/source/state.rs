//! The state of a `fallbacksrc` around its core: the current time, and the wait for time-outs.

use std::ops::Deref;
use std::task::Poll;

use threadbare_runtime::{Guard, Topics};

use super::core::{Action, Run, SourceCore};
use crate::kit::locked::Discards;
use crate::kit::time::{ClockWait, RunningTime};
use crate::kit::turns::Turns;

/// The element's state, shared with its sources' threads.
#[derive(Clone, Default)]
pub(super) struct Shared(Turns<State>);

impl Deref for Shared {
    type Target = Turns<State>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// A time-out may be due earlier than the awaited one.
const CHANGED: Topics = Topics::of(0);

#[derive(Default)]
pub(super) struct State {
    pub(super) core: SourceCore,
    /// Whether a thread carries actions out.
    is_acting: bool,
    pub(super) is_playing: bool,
    time: RunningTime,
    /// The last running time while the element played.
    now_ns: u64,
    watched_ns: Option<u64>,
    /// Number of starts. A time-out task of an earlier start ends when this number changes.
    starts: u64,
}

impl Shared {
    /// Passes an event to the core with the current time.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut SourceCore, u64) -> R) -> R {
        let mut state = self.state();
        let now_ns = state.now_ns();
        let result = change(&mut state.core, now_ns);
        let next_ns = state.core.next_timeout().unwrap_or(u64::MAX);
        if next_ns < state.watched_ns.unwrap_or(u64::MAX) {
            state.wake(CHANGED);
        }
        result
    }

    /// Restarts the state. Returns the number of the start, for [`Shared::timed_out`].
    pub(super) fn start(&self, start: impl FnOnce(&mut SourceCore)) -> u64 {
        let mut state = self.state();
        state.now_ns = 0;
        start(&mut state.core);
        state.starts += 1;
        state.wake(Topics::ALL);
        state.starts
    }

    pub(super) fn stop(&self) {
        let mut state = self.state();
        state.core.handle_stop();
        (state.is_playing, state.time) = (false, RunningTime::default());
        state.starts += 1;
        state.wake(Topics::ALL);
    }

    /// Starts the element's time, or stops it (`None`).
    pub(super) fn play(&self, time: Option<RunningTime>) {
        let mut state = self.state();
        let was_playing = state.is_playing;
        let before_ns = state.now_ns();
        state.is_playing = time.is_some();
        state.time = time.unwrap_or_default();
        let now_ns = if was_playing {
            before_ns
        } else {
            state.now_ns()
        };
        let is_playing = state.is_playing;
        state.core.handle_playing(now_ns, is_playing);
        state.wake(Topics::ALL);
    }

    /// Handles a change of the clock.
    pub(super) fn set_time(&self, time: RunningTime) {
        let mut state = self.state();
        if state.is_playing {
            state.time = time;
            state.wake(Topics::ALL);
        }
    }

    /// Returns the running time, 0 before the base time.
    pub(super) fn now_ns(&self) -> u64 {
        self.state().now_ns()
    }

    /// Calls `apply` with the element's state, PAUSED or PLAYING, and again if the state changes in the meantime. `apply` returns
    /// whether this thread made the change. If not, another thread is making it, and calls this method afterwards.
    pub(super) fn follow(&self, mut apply: impl FnMut(gst::State) -> bool) {
        loop {
            let is_playing = self.state().is_playing;
            let state = if is_playing {
                gst::State::Playing
            } else {
                gst::State::Paused
            };
            if !apply(state) || self.state().is_playing == is_playing {
                return;
            }
        }
    }

    pub(super) fn is_current(&self, run: Run) -> bool {
        self.state().core.is_current(run)
    }

    /// Returns the next action, unless another thread is carrying one out. Call [`Shared::acted`] afterwards.
    pub(super) fn next_action(&self) -> Option<Action> {
        let mut state = self.state();
        if state.is_acting {
            return None;
        }
        let action = state.core.poll_action()?;
        state.is_acting = true;
        Some(action)
    }

    pub(super) fn acted(&self) {
        self.state().is_acting = false;
    }

    /// Waits for a time-out that must be handled. Returns `false` if the element has been stopped or restarted since the start
    /// with this number.
    pub(super) async fn timed_out(&self, start: u64) -> bool {
        let has_come = |state: &mut Guard<'_, State>| {
            if state.starts != start {
                return Poll::Ready(false);
            }
            if state.is_playing {
                let now_ns = state.now_ns();
                state.core.handle_timeout(now_ns);
            }
            state.watched_ns = state.core.next_timeout();
            // The thread that carries out actions continues until none is left.
            if state.core.has_actions() && !state.is_acting {
                Poll::Ready(true)
            } else {
                Poll::Pending
            }
        };
        let clock_wait = |state: &mut State| state.clock_wait();
        self.until(CHANGED, has_come, clock_wait).await
    }
}

impl State {
    fn now_ns(&mut self) -> u64 {
        if self.is_playing
            && let Some(now_ns) = self.time.now_ns()
        {
            self.now_ns = now_ns.max(0).unsigned_abs();
        }
        self.now_ns
    }

    fn clock_wait(&self) -> Option<ClockWait> {
        let due_ns = self.watched_ns.filter(|ns| *ns < NEVER_NS)?;
        (self.is_playing && self.time.has_clock()).then(|| self.time.wait_until(due_ns))
    }
}

/// The state holds no foreign objects.
impl Discards for State {
    type Discarded = ();

    fn take_discarded(&mut self) -> Option<()> {
        None
    }
}

/// Maximum time. No clock reaches a time 290 years away, but a property may contain it, and a base time is added to it.
const NEVER_NS: u64 = u64::MAX / 2;
