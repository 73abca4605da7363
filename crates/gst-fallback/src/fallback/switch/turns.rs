//! The state of a switch around its core: the pads' streams, and the waits on the pipeline's clock.
//!
//! [`crate::kit::turns`] gives the inputs their turns. One task on the element's context awaits the time-outs
//! ([`super::acting::watch`]).

use std::ops::Deref;
use std::task::Poll;

use gst::prelude::*;
use threadbare_runtime::{Guard, Topics};

use super::core::{Action, Arrival, InputId, Media, Settings, SwitchCore, Verdict};
use crate::kit::locked::Discards;
use crate::kit::time::{ClockWait, RunningTime};
use crate::kit::turns::{self, Inputs, TURN, Tickets};

/// The element's state, shared with waiting pushes.
#[derive(Clone, Default)]
pub(super) struct Turns(turns::Turns<State>);

impl Deref for Turns {
    type Target = turns::Turns<State>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

pub(super) type Turn = turns::Turn<State>;

/// A time-out is due earlier than the awaited one.
const EARLIER: Topics = Topics::of(1);

#[derive(Default)]
pub(super) struct State {
    pub(super) core: SwitchCore,
    lanes: Vec<Lane>,
    /// Names of removed active inputs, until their switch is reported.
    removed: Vec<(InputId, gst::glib::GString)>,
    /// Values of the properties; the core's settings also include upstream's latency.
    pub(super) settings: Settings,
    pub(super) min_upstream_ns: u64,
    /// Maximum latency in the inputs' last answers.
    upstream_ns: u64,
    /// Whether a push downstream is under way.
    is_pushing: bool,
    /// Whether a thread carries actions out.
    is_acting: bool,
    owes_eos: bool,
    /// The input whose flush has started downstream, but not ended there.
    flush_of: Option<InputId>,
    is_stopped: bool,
    is_playing: bool,
    time: RunningTime,
    /// The last running time while the element played.
    now_ns: u64,
    /// Running time of the awaited time-out.
    watched_ns: Option<u64>,
    /// Number of starts. A time-out task of an earlier start ends when this number changes.
    starts: u64,
}

/// An input.
pub(super) struct Lane {
    pub(super) id: InputId,
    pub(super) pad: gst::Pad,
    /// Number in the pad's name. The partner's pad has the same number.
    number: u32,
    segment: Option<gst::FormattedSegment<gst::ClockTime>>,
    audio: Option<gst_audio::AudioInfo>,
    is_flushing: bool,
    tickets: Tickets,
    /// Running time until which the input's first item is held, ns.
    held_until_ns: Option<u64>,
    /// Number of buffers and lists that passed.
    pub(super) passed: u64,
    pub(super) dropped: u64,
}

/// Maximum time. No clock reaches a time 290 years away, but a property may contain it, and a base time is added to it.
const NEVER_NS: u64 = u64::MAX / 2;

/// An item that takes a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// A buffer, a list or a gap.
    Data(Arrival),
    Event,
    Eos,
}

/// The decision on an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// Push the item now, and then call [`Turns::finish`].
    Push(Push),
    Drop,
    Flushing,
    Ended,
}

/// See [`Verdict::Pass`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Push {
    pub(super) is_first: bool,
    pub(super) is_joint: bool,
    pub(super) lead_ns: u64,
}

/// An action with its pads.
pub(super) enum Task {
    Tell {
        from: Option<gst::glib::GString>,
        to: gst::glib::GString,
        reason: &'static str,
    },
    RequestKeyframe(gst::Pad),
    NotifyHealth(gst::Pad),
}

impl Turns {
    /// Makes a change that other threads may wait for. The second argument of `change` is the running time, ns.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut State, u64) -> R) -> R {
        let mut state = self.state();
        let now_ns = state.now_ns();
        let result = change(&mut state, now_ns);
        state.wake_changed();
        result
    }

    /// Adds an input. `number` is its initial priority.
    pub(super) fn add(&self, id: InputId, number: u32, pad: gst::Pad) {
        self.change(|state, now_ns| {
            state.lanes.push(Lane {
                id,
                pad,
                number,
                segment: None,
                audio: None,
                is_flushing: false,
                tickets: Tickets::default(),
                held_until_ns: None,
                passed: 0,
                dropped: 0,
            });
            state.core.handle_add(now_ns, id, number);
        });
    }

    /// Removes an input; waiting threads return.
    pub(super) fn remove(&self, id: InputId) {
        self.change(|state, now_ns| {
            if state.core.active() == Some(id) {
                let name = state.name(id).map(|name| (id, name));
                state.removed.extend(name);
            }
            state.core.handle_remove(now_ns, id);
            state.lanes.retain(|lane| lane.id != id);
        });
    }

    /// Notes that an input's pad was unlinked: its source must not wait any longer.
    pub(super) fn unlink(&self, id: InputId) {
        self.change(|state, now_ns| {
            if let Some(lane) = state.lane(id) {
                lane.tickets.clear();
            }
            state.core.handle_unlink(now_ns, id);
        });
    }

    /// Returns the number and health of each input; empty while the element is stopped.
    pub(super) fn healths(&self) -> Vec<(u32, bool)> {
        let state = self.state();
        if state.is_stopped || state.starts == 0 {
            return Vec::new();
        }
        let lanes = state.lanes.iter();
        let healths = lanes.filter_map(|lane| {
            let input = state.core.input(lane.id)?;
            Some((lane.number, input.is_healthy()))
        });
        healths.collect()
    }

    /// Notes the health of another element's inputs. Inputs with the same number are partners. An input without a partner depends
    /// only on its own health.
    pub(super) fn note_partners(&self, healths: &[(u32, bool)]) {
        self.change(|state, now_ns| {
            let lanes = state.lanes.iter();
            let own = lanes.map(|lane| {
                let of_partner = healths.iter().find(|(number, _)| *number == lane.number);
                (
                    lane.id,
                    of_partner.is_none_or(|(_, is_healthy)| *is_healthy),
                )
            });
            let own: Vec<_> = own.collect();
            state.core.handle_partners(now_ns, &own);
        });
    }

    /// Changes settings, and passes them to the core.
    pub(super) fn set(&self, set: impl FnOnce(&mut State)) {
        self.change(|state, now_ns| {
            set(state);
            state.apply_settings(now_ns);
        });
    }

    pub(super) fn play(&self, time: RunningTime) {
        let mut state = self.state();
        state.is_playing = true;
        state.time = time;
        let now_ns = state.now_ns();
        state.apply_settings(now_ns);
        state.core.handle_start(now_ns);
        state.wake(Topics::ALL);
    }

    /// Stops the element's time.
    pub(super) fn pause(&self) {
        let mut state = self.state();
        state.now_ns();
        state.is_playing = false;
        state.time = RunningTime::default();
        state.wake(Topics::ALL);
    }

    /// Handles a change of the clock.
    pub(super) fn set_time(&self, time: RunningTime) {
        let mut state = self.state();
        state.time = time;
        let now_ns = state.now_ns();
        state.apply_settings(now_ns);
        state.wake(Topics::ALL);
    }

    /// Restarts the state. The time-out task of an earlier start ends.
    pub(super) fn start(&self) -> u64 {
        self.reset(false);
        self.state().starts
    }

    /// Makes waiting threads return.
    pub(super) fn stop(&self) {
        self.reset(true);
    }

    fn reset(&self, is_stopped: bool) {
        let mut state = self.state();
        state.is_stopped = is_stopped;
        state.starts += 1;
        (state.now_ns, state.owes_eos, state.flush_of) = (0, false, None);
        state.removed.clear();
        state.core.handle_stop();
        for lane in &mut state.lanes {
            lane.is_flushing = false;
            lane.segment = None;
        }
        state.wake(Topics::ALL);
    }

    /// Starts a flush of an input. Returns `true` if downstream must flush, too.
    pub(super) fn begin_flush(&self, id: InputId) -> bool {
        self.change(|state, now_ns| {
            state.core.handle_flush_start(now_ns, id);
            if let Some(lane) = state.lane(id) {
                lane.is_flushing = true;
            }
            let is_active = state.core.active() == Some(id);
            if is_active {
                state.flush_of = Some(id);
            }
            is_active
        })
    }

    /// Ends a flush of an input. Returns `true` if downstream's flush ends, too.
    pub(super) fn end_flush(&self, id: InputId) -> bool {
        self.change(|state, now_ns| {
            state.core.handle_flush_stop(now_ns, id);
            if let Some(lane) = state.lane(id) {
                (lane.is_flushing, lane.segment) = (false, None);
            }
            state.flush_of.take_if(|of| *of == id).is_some()
        })
    }

    /// Ends downstream's flush on behalf of another input, whose own flush has not ended. Returns `true` if there was one.
    pub(super) fn takes_over_flush(&self, id: InputId) -> bool {
        let mut state = self.state();
        state.flush_of.take_if(|of| *of != id).is_some()
    }

    /// Queues an arriving item.
    pub(super) fn arrive(&self, id: InputId, entry: Entry) -> Turn {
        if let Entry::Data(arrival) = &entry {
            self.change(|state, now_ns| state.core.handle_buffer(now_ns, id, arrival));
        }
        self.enter(id, entry)
    }

    /// Notes that an item has been pushed or dropped.
    pub(super) fn finish(&self, turn: Turn, decision: Decision) {
        let is_data = matches!(turn.entry(), Entry::Data(_));
        self.change(|state, _| {
            if matches!(decision, Decision::Push(_)) {
                state.is_pushing = false;
            }
            if let Some(lane) = state.lane(turn.id()).filter(|_| is_data) {
                match decision {
                    Decision::Push(_) => lane.passed += 1,
                    Decision::Drop => lane.dropped += 1,
                    Decision::Flushing | Decision::Ended => {}
                }
            }
        });
        // Dropping the turn lets the next one proceed.
    }

    /// Returns the next action, unless another thread is carrying one out. Call [`Turns::acted`] afterwards.
    pub(super) fn next_task(&self) -> Option<Task> {
        let mut state = self.state();
        while !state.is_acting {
            let task = match state.core.poll_action()? {
                Action::Eos => {
                    state.owes_eos = true;
                    None
                }
                Action::RequestKeyframe(id) => state.pad(id).map(Task::RequestKeyframe),
                Action::HealthChanged(id) => state.pad(id).map(Task::NotifyHealth),
                Action::Switched { from, to, reason } => {
                    let task = state.name(to).map(|to| Task::Tell {
                        from: from.and_then(|id| state.name(id)),
                        to,
                        reason: reason.nick(),
                    });
                    state.removed.retain(|(id, _)| from != Some(*id));
                    task
                }
            };
            if task.is_some() {
                state.is_acting = true;
                return task;
            }
        }
        None
    }

    pub(super) fn acted(&self) {
        self.state().is_acting = false;
    }

    /// Whether the end of the output is due and not sent yet.
    pub(super) fn owes_eos(&self) -> bool {
        self.state().owes_eos
    }

    /// Takes the right to end the output, if the end is due. Returns a pad whose stream ends there; give the right back with
    /// [`Turns::told`]. The second value is `true` if downstream does not have that stream yet.
    pub(super) fn take_eos(&self) -> Option<(gst::Pad, bool)> {
        let mut state = self.state();
        // Another input may have resumed the output in the meantime. Then the end is not due any more.
        state.owes_eos &= state.core.has_ended();
        if state.is_pushing || !state.owes_eos {
            return None;
        }
        state.owes_eos = false;
        let id = state
            .core
            .active()
            .or_else(|| Some(state.lanes.first()?.id))?;
        let pad = state.pad(id)?;
        let is_first = state.core.take_unannounced(id);
        state.is_pushing = true;
        Some((pad, is_first))
    }

    /// Waits for a time-out that must be handled. Returns `false` if the element has been restarted or stopped since
    /// [`Turns::start`] returned this number.
    pub(super) async fn timed_out(&self, start: u64) -> bool {
        let has_come = |state: &mut Guard<'_, State>| {
            if state.starts != start {
                return Poll::Ready(false);
            }
            let now_ns = state.now_ns();
            state.core.handle_timeout(now_ns);
            state.watched_ns = state.core.next_timeout();
            if !state.core.has_actions() {
                return Poll::Pending;
            }
            state.wake(TURN);
            // The thread that carries out actions continues until none is left.
            if state.is_acting {
                Poll::Pending
            } else {
                Poll::Ready(true)
            }
        };
        let clock_wait = |state: &mut State| state.wait_until(state.watched_ns?);
        self.until(EARLIER, has_come, clock_wait).await
    }

    pub(super) fn told(&self) {
        let mut state = self.state();
        state.is_pushing = false;
        state.wake(TURN);
    }
}

impl State {
    fn lane(&mut self, id: InputId) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|lane| lane.id == id)
    }

    pub(super) fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    pub(super) fn pad(&self, id: InputId) -> Option<gst::Pad> {
        let lane = self.lanes.iter().find(|lane| lane.id == id)?;
        Some(lane.pad.clone())
    }

    /// Returns the name of an input. The name of a removed input is also found, until its removal is reported.
    fn name(&self, id: InputId) -> Option<gst::glib::GString> {
        let of_pad = self.pad(id).map(|pad| pad.name());
        of_pad.or_else(|| {
            let mut removed = self.removed.iter();
            Some(removed.find(|(removed, _)| *removed == id)?.1.clone())
        })
    }

    pub(super) fn active_pad(&self) -> Option<gst::Pad> {
        self.pad(self.core.active()?)
    }

    pub(super) fn id_of(&self, pad: &gst::Pad) -> Option<InputId> {
        let lane = self.lanes.iter().find(|lane| lane.pad == *pad)?;
        Some(lane.id)
    }

    pub(super) fn pads(&self) -> Vec<gst::Pad> {
        self.lanes.iter().map(|lane| lane.pad.clone()).collect()
    }

    /// Returns the running time, 0 before the base time. While the element does not play, it is the time of the pause.
    fn now_ns(&mut self) -> u64 {
        if let Some(now_ns) = self.time.now_ns() {
            self.now_ns = now_ns.max(0).unsigned_abs();
        }
        self.now_ns
    }

    pub(super) fn set_upstream(&mut self, upstream_ns: u64, now_ns: u64) {
        self.upstream_ns = upstream_ns;
        self.apply_settings(now_ns);
    }

    fn apply_settings(&mut self, now_ns: u64) {
        let upstream_ns = self.upstream_ns.max(self.min_upstream_ns);
        let settings = Settings {
            latency_ns: upstream_ns.saturating_add(self.settings.latency_ns),
            // Without a clock, buffers pass at once.
            is_synced: self.settings.is_synced && (!self.is_playing || self.time.has_clock()),
            ..self.settings
        };
        if self.core.settings() != settings {
            self.core.handle_settings(now_ns, settings);
        }
    }

    /// Applies an event to an input's later buffers.
    pub(super) fn note(&mut self, id: InputId, event: &gst::Event) {
        if let gst::EventView::StreamStart(_) = event.view() {
            self.core.handle_stream_start(id);
        }
        let Some(lane) = self.lane(id) else {
            return;
        };
        match event.view() {
            gst::EventView::Segment(segment) => {
                lane.segment = segment.segment().downcast_ref().cloned();
            }
            gst::EventView::Caps(caps) => {
                let name = caps.caps().structure(0).map(|first| first.name().as_str());
                // Only for raw audio, because GStreamer logs an error for other caps.
                let is_audio = name == Some("audio/x-raw");
                let audio = is_audio.then(|| gst_audio::AudioInfo::from_caps(caps.caps()));
                lane.audio = audio.and_then(Result::ok);
                let media = match name {
                    Some("audio/x-raw") if lane.audio.is_some() => Media::Audio,
                    Some("video/x-raw") => Media::Video,
                    _ => Media::Coded,
                };
                self.core.handle_media(id, media);
            }
            _ => {}
        }
    }

    /// Returns an input's segment, and its format if that is raw audio.
    pub(super) fn stream_of(
        &mut self,
        id: InputId,
    ) -> (
        Option<gst::FormattedSegment<gst::ClockTime>>,
        Option<gst_audio::AudioInfo>,
    ) {
        match self.lane(id) {
            Some(lane) => (lane.segment.clone(), lane.audio.clone()),
            None => (None, None),
        }
    }

    fn wait_until(&self, running_ns: u64) -> Option<ClockWait> {
        let may_come = running_ns < NEVER_NS && self.time.has_clock();
        may_come.then(|| self.time.wait_until(running_ns))
    }

    fn decide_data(&mut self, now_ns: u64, id: InputId, arrival: &Arrival) -> Poll<Decision> {
        self.core.handle_timeout(now_ns);
        if self.is_pushing && self.core.may_pass(id) {
            return Poll::Pending;
        }
        match self.core.decide(now_ns, id, arrival) {
            Verdict::Pass {
                is_first,
                is_joint,
                lead_ns,
            } => {
                self.is_pushing = true;
                Poll::Ready(Decision::Push(Push {
                    is_first,
                    is_joint,
                    lead_ns,
                }))
            }
            Verdict::Drop => Poll::Ready(Decision::Drop),
            Verdict::Ended => Poll::Ready(Decision::Ended),
            // Without a clock, the item passes at once.
            Verdict::Hold { .. } if self.is_playing && !self.time.has_clock() => {
                self.core.note_drop(id);
                Poll::Ready(Decision::Drop)
            }
            Verdict::Hold { until_ns } => {
                if let Some(lane) = self.lane(id) {
                    lane.held_until_ns = Some(until_ns);
                }
                Poll::Pending
            }
        }
    }
}

/// The state holds no foreign objects.
impl Discards for State {
    type Discarded = ();

    fn take_discarded(&mut self) -> Option<()> {
        None
    }
}

impl Inputs for State {
    type Entry = Entry;
    type Decision = Decision;

    fn queue(&mut self, id: InputId) -> Option<&mut Tickets> {
        self.lane(id).map(|lane| &mut lane.tickets)
    }

    fn flushing() -> Decision {
        Decision::Flushing
    }

    fn is_open(&self, id: InputId) -> bool {
        let mut lanes = self.lanes.iter();
        !self.is_stopped && lanes.any(|lane| lane.id == id && !lane.is_flushing)
    }

    fn decide(&mut self, id: InputId, entry: &Entry) -> Poll<Decision> {
        let now_ns = self.now_ns();
        if let Some(lane) = self.lane(id) {
            lane.held_until_ns = None;
        }
        match entry {
            Entry::Data(arrival) => self.decide_data(now_ns, id, arrival),
            Entry::Event if self.core.active() != Some(id) => Poll::Ready(Decision::Drop),
            Entry::Event if self.is_pushing => Poll::Pending,
            Entry::Event => {
                self.is_pushing = true;
                Poll::Ready(Decision::Push(Push {
                    is_first: self.core.take_unannounced(id),
                    is_joint: false,
                    lead_ns: 0,
                }))
            }
            Entry::Eos => {
                self.core.handle_eos(now_ns, id);
                Poll::Ready(Decision::Drop)
            }
        }
    }

    fn clock_wait(&self, id: InputId, _entry: &Entry) -> Option<ClockWait> {
        let lane = self.lanes.iter().find(|lane| lane.id == id)?;
        self.wait_until(lane.held_until_ns?)
    }
}

/// Wakes waiting pushes that the change affects.
trait WakeChanged {
    fn wake_changed(&mut self);
}

impl WakeChanged for Guard<'_, State> {
    fn wake_changed(&mut self) {
        self.wake(TURN);
        let next_ns = self.core.next_timeout().unwrap_or(u64::MAX);
        if next_ns < self.watched_ns.unwrap_or(u64::MAX) {
            self.wake(EARLIER);
        }
    }
}
