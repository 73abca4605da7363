//! The state of a selector: the input that passes, and the held and dropped items of the others.
//!
//! [`crate::kit::turns`] gives the inputs their turns.

use std::collections::VecDeque;
use std::ops::Deref;
use std::task::Poll;

use gst::glib;
use threadbare_runtime::Topics;

use crate::kit::locked::{Discarded, Discards};
use crate::kit::time::{ClockWait, RunningTime};
use crate::kit::turns::{self, Inputs, Tickets};

/// The time that buffers of inactive inputs wait for: the output's running time or the clock's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "ThreadbareInputSelectorSyncMode")]
#[allow(unreachable_pub, reason = "the type of a public property")]
pub enum SyncMode {
    /// The output has passed their running time.
    #[default]
    #[enum_value(
        name = "Sync using the current active segment",
        nick = "active-segment"
    )]
    ActiveSegment,
    /// The clock has reached their running time.
    #[enum_value(name = "Sync using the clock", nick = "clock")]
    Clock,
}

/// The element's state, shared with waiting pushes.
#[derive(Clone, Default)]
pub(super) struct Turns(turns::Turns<State>);

impl Deref for Turns {
    type Target = turns::Turns<State>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// The turn of an item. For a buffer, the entry is the running time, ns, until which it may be held.
pub(super) type Turn = turns::Turn<State>;

#[derive(Default)]
pub(super) struct State {
    inputs: Vec<Input>,
    active: Option<u32>,
    /// Whether a push downstream is under way.
    is_pushing: bool,
    /// Whether the active input had ended before it became active, so that the end must still be sent downstream.
    owes_eos: bool,
    /// Running time that the output has reached, ns.
    position_ns: Option<u64>,
    is_stopped: bool,
    pub(super) sync_streams: bool,
    pub(super) sync_mode: SyncMode,
    pub(super) caches: bool,
    time: RunningTime,
    /// Number of buffers and lists that passed.
    pub(super) passed: u64,
    pub(super) dropped: u64,
    /// Dropped buffers, which must not be freed under the lock.
    discarded: Discarded<gst::Buffer>,
}

impl Discards for State {
    type Discarded = Discarded<gst::Buffer>;

    #[inline]
    fn take_discarded(&mut self) -> Option<Self::Discarded> {
        self.discarded.take()
    }
}

struct Input {
    id: u32,
    pad: gst::Pad,
    segment: Option<gst::FormattedSegment<gst::ClockTime>>,
    is_eos: bool,
    is_flushing: bool,
    /// Whether downstream lacks the input's sticky events, so that its next buffer is discontinuous.
    is_new: bool,
    tickets: Tickets,
    /// Running time that the input has reached, ns.
    position_ns: Option<u64>,
    /// Buffers that passed ahead of time, each with its end in running time, ns. They pass again if the output switches away and
    /// back.
    cached: VecDeque<(u64, gst::Buffer)>,
}

/// The decision on an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Push the item now, and then call [`Turns::finish`]. `is_new`: it is the first item after a switch.
    Push {
        is_new: bool,
    },
    Drop,
    Flushing,
}

impl Turns {
    pub(super) fn add(&self, id: u32, pad: gst::Pad) {
        self.state().inputs.push(Input {
            id,
            pad,
            segment: None,
            is_eos: false,
            is_flushing: false,
            is_new: true,
            tickets: Tickets::default(),
            position_ns: None,
            cached: VecDeque::new(),
        });
    }

    /// Notes that an input's pad was unlinked: its source must not wait any longer.
    pub(super) fn unlink(&self, id: u32) {
        self.change(|state| {
            if let Some(input) = state.input(id) {
                input.tickets.clear();
            }
        });
    }

    /// Notes a change of the clock or the base time.
    pub(super) fn set_time(&self, time: RunningTime) {
        self.change(|state| state.time = time);
    }

    /// Removes an input; waiting threads return.
    pub(super) fn remove(&self, id: u32) {
        self.change(|state| {
            state.forget_cached(Some(id));
            state.inputs.retain(|input| input.id != id);
            if state.active == Some(id) {
                state.active = None;
                state.owes_eos = false;
            }
        });
    }

    /// Makes an input the active one, with `only_if_none` only if no input is selected. Returns `true` if the active input
    /// changes.
    pub(super) fn select(&self, id: Option<u32>, only_if_none: bool) -> bool {
        self.change(|state| {
            let unwanted = only_if_none && state.active.is_some();
            if state.active == id || unwanted || id.is_some_and(|id| state.input(id).is_none()) {
                return false;
            }
            state.active = id;
            let input = id.and_then(|id| state.input(id));
            let is_eos = input.is_some_and(|input| {
                input.is_new = true;
                input.is_eos
            });
            state.owes_eos = is_eos;
            true
        })
    }

    pub(super) fn stop(&self, is_stopped: bool) {
        self.change(|state| {
            state.is_stopped = is_stopped;
            state.position_ns = None;
            state.owes_eos = false;
            for input in &mut state.inputs {
                (input.is_eos, input.is_flushing, input.is_new) = (false, false, true);
                input.segment = None;
                input.position_ns = None;
            }
            state.forget_cached(None);
        });
    }

    /// Starts or ends a flush of an input. Returns `true` if it is the active input, so that downstream must flush, too.
    pub(super) fn flush(&self, id: u32, is_flushing: bool) -> bool {
        self.change(|state| {
            let is_active = state.active == Some(id);
            if is_active {
                state.position_ns = None;
            }
            if let Some(input) = state.input(id) {
                input.is_flushing = is_flushing;
                input.is_eos = false;
                input.segment = None;
                input.position_ns = None;
            }
            state.forget_cached(Some(id));
            is_active
        })
    }

    /// Notes an item that was pushed or dropped. `end_ns` is its end. `event` is set if the item is an event.
    pub(super) fn finish(
        &self,
        turn: Turn,
        verdict: Verdict,
        end_ns: Option<u64>,
        event: Option<&gst::Event>,
    ) {
        let id = turn.id();
        let mut state = self.state();
        if let Some(event) = event {
            state.note(id, event);
        }
        if matches!(verdict, Verdict::Push { .. }) {
            state.is_pushing = false;
            if end_ns.is_some() && state.active == Some(id) {
                state.position_ns = end_ns;
            }
        }
        if let Some(input) = state.input(id).filter(|_| end_ns.is_some()) {
            input.position_ns = end_ns;
        }
        // Dropping the turn, after the lock, wakes the waiting pushes.
        drop(state);
    }

    /// Makes a change that other threads may wait for.
    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state();
        state.wake(Topics::ALL);
        change(&mut state)
    }

    /// Takes the right to send the end of an active input that has already ended, if that is due. Give the right back with
    /// [`Turns::told`].
    pub(super) fn take_eos(&self) -> Option<gst::Pad> {
        let mut state = self.state();
        if state.is_pushing || !std::mem::take(&mut state.owes_eos) {
            return None;
        }
        let active = state.active?;
        let input = state.input(active)?;
        input.is_new = false;
        let pad = input.pad.clone();
        state.is_pushing = true;
        Some(pad)
    }

    pub(super) fn told(&self) {
        self.change(|state| state.is_pushing = false);
    }
}

impl State {
    fn input(&mut self, id: u32) -> Option<&mut Input> {
        self.inputs.iter_mut().find(|input| input.id == id)
    }

    pub(super) fn active_pad(&self) -> Option<gst::Pad> {
        let active = self.active?;
        let input = self.inputs.iter().find(|input| input.id == active)?;
        Some(input.pad.clone())
    }

    pub(super) fn is_active(&self, id: u32) -> bool {
        self.active == Some(id)
    }

    pub(super) fn pads(&self) -> Vec<gst::Pad> {
        self.inputs.iter().map(|input| input.pad.clone()).collect()
    }

    pub(super) fn id_of(&self, pad: &gst::Pad) -> Option<u32> {
        let input = self.inputs.iter().find(|input| input.pad == *pad)?;
        Some(input.id)
    }

    /// Returns the running time of a time of an input, in ns.
    pub(super) fn running_ns(&mut self, id: u32, time: gst::ClockTime) -> Option<u64> {
        let segment = self.input(id)?.segment.as_ref()?;
        segment.to_running_time(time).map(gst::ClockTime::nseconds)
    }

    /// Returns the running time that an input has reached, ns.
    pub(super) fn position_ns(&self, id: u32) -> i64 {
        let input = self.inputs.iter().find(|input| input.id == id);
        let position_ns = input.and_then(|input| input.position_ns).unwrap_or(0);
        i64::try_from(position_ns).unwrap_or(i64::MAX)
    }

    /// Returns the time by which buffers are judged: that of the clock, or the position of the output.
    fn now_ns(&self) -> Option<u64> {
        match self.sync_mode {
            SyncMode::Clock => self.time.now_ns().map(|ns| ns.max(0).unsigned_abs()),
            SyncMode::ActiveSegment => self.position_ns,
        }
    }

    /// Keeps a passed buffer until its time.
    pub(super) fn cache(&mut self, id: u32, end_ns: u64, buffer: &gst::Buffer) {
        if !self.caches || !self.sync_streams {
            return;
        }
        let now_ns = self.now_ns().unwrap_or(0);
        let State {
            inputs, discarded, ..
        } = self;
        let Some(input) = inputs.iter_mut().find(|input| input.id == id) else {
            return;
        };
        while (input.cached.front()).is_some_and(|(end_ns, _)| *end_ns <= now_ns)
            || input.cached.len() >= CACHED_MAX
        {
            let past = input.cached.pop_front();
            discarded.extend(past.map(|(_, buffer)| buffer));
        }
        input.cached.push_back((end_ns, buffer.clone()));
    }

    /// Takes the stored buffers of an input that passes again, if their time has not come yet.
    pub(super) fn take_cached(&mut self, id: u32) -> Vec<gst::Buffer> {
        let now_ns = self.now_ns().unwrap_or(0);
        let cached = self
            .input(id)
            .map(|input| std::mem::take(&mut input.cached));
        let mut fresh = Vec::new();
        for (end_ns, buffer) in cached.into_iter().flatten() {
            if end_ns > now_ns {
                fresh.push(buffer);
            } else {
                self.discarded.add(buffer);
            }
        }
        fresh
    }

    /// Drops the kept buffers of an input, or of all.
    fn forget_cached(&mut self, of: Option<u32>) {
        let inputs = self.inputs.iter_mut();
        for input in inputs.filter(|input| of.is_none_or(|id| input.id == id)) {
            let past = input.cached.drain(..);
            self.discarded.extend(past.map(|(_, buffer)| buffer));
        }
    }

    /// Applies an event to an input when its turn has come.
    fn note(&mut self, id: u32, event: &gst::Event) {
        let Some(input) = self.input(id) else {
            return;
        };
        match event.view() {
            gst::EventView::StreamStart(_) => input.is_eos = false,
            gst::EventView::Eos(_) => input.is_eos = true,
            gst::EventView::Segment(segment) => {
                input.segment = segment.segment().downcast_ref().cloned();
            }
            _ => {}
        }
    }

    fn decide_inactive(&mut self, time_ns: Option<u64>) -> Option<Verdict> {
        let Some(time_ns) = time_ns.filter(|_| self.sync_streams) else {
            return Some(Verdict::Drop);
        };
        if self.sync_mode == SyncMode::Clock {
            // Without a clock, nothing waits.
            let is_due = self
                .time
                .now_ns()
                .is_none_or(|now_ns| u64::try_from(now_ns).is_ok_and(|now_ns| now_ns >= time_ns));
            return is_due.then_some(Verdict::Drop);
        }
        // The buffer is held until the output has passed its start, so that a switch to this input continues without a gap. If
        // the output does not advance, there is no reason to hold the buffer.
        let Some(active) = self.active else {
            return Some(Verdict::Drop);
        };
        let has_ended = self.input(active).is_none_or(|input| input.is_eos);
        let is_past = self
            .position_ns
            .is_some_and(|position_ns| position_ns > time_ns);
        (has_ended || is_past).then_some(Verdict::Drop)
    }
}

impl Inputs for State {
    type Entry = Option<u64>;
    type Decision = Verdict;

    fn queue(&mut self, id: u32) -> Option<&mut Tickets> {
        self.input(id).map(|input| &mut input.tickets)
    }

    fn flushing() -> Verdict {
        Verdict::Flushing
    }

    fn is_open(&self, id: u32) -> bool {
        let mut inputs = self.inputs.iter();
        !self.is_stopped && inputs.any(|input| input.id == id && !input.is_flushing)
    }

    fn decide(&mut self, id: u32, time_ns: &Option<u64>) -> Poll<Verdict> {
        if self.active != Some(id) {
            return (self.decide_inactive(*time_ns)).map_or(Poll::Pending, Poll::Ready);
        }
        if self.is_pushing {
            return Poll::Pending;
        }
        self.is_pushing = true;
        let is_new = (self.input(id)).is_some_and(|input| std::mem::take(&mut input.is_new));
        Poll::Ready(Verdict::Push { is_new })
    }

    /// With `sync-mode=clock`: the wait for an inactive input's buffer.
    fn clock_wait(&self, id: u32, time_ns: &Option<u64>) -> Option<ClockWait> {
        let is_by_clock = self.sync_streams && self.sync_mode == SyncMode::Clock;
        let time_ns = time_ns.filter(|_| is_by_clock && self.active != Some(id))?;
        Some(self.time.wait_until(time_ns))
    }
}

/// Maximum number of kept buffers of one input: ten seconds of telephony. Only an upstream that runs far ahead of the clock needs
/// more.
const CACHED_MAX: usize = 500;
