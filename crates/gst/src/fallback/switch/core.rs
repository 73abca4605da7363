//! Which input passes: health, choice and hysteresis, without a clock, a lock or GStreamer's objects.
//!
//! All times are running time, ns; the present is a parameter. After each `handle_*` and [`SwitchCore::decide`]: drain
//! [`SwitchCore::poll_action`], and call [`SwitchCore::handle_timeout`] at [`SwitchCore::next_timeout`], which may have moved.
//!
//! An input is healthy from a timely buffer on until `timeout` after that buffer's time. Its failure changes the active input at once,
//! and so does that of its partner (another stream of the same source, in another switch) if there is an input with its partner.
//! A change for another reason, away from an input that still delivers, is a *wish*: it becomes a change at a buffer of the wanted input
//! that fits, so that there is no gap. In a coded stream that is a keyframe.

use std::collections::VecDeque;

mod choice;
mod input;
mod joint;
#[cfg(test)]
mod tests;

use input::Health;
pub(super) use input::{Arrival, Input, InputId, Media};

/// Times in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) timeout_ns: u64,
    /// A buffer is due this long after its running time: upstream's latency and the element's own.
    pub(super) latency_ns: u64,
    /// At the start, do not wait for a better input.
    pub(super) immediate_fallback: bool,
    /// `false`: the application chooses.
    pub(super) auto_switch: bool,
    pub(super) stop_on_eos: bool,
    pub(super) min_hold_ns: u64,
    pub(super) recover_after_ns: u64,
    /// An input whose pad is unlinked has failed; `false`: it may be linked again within the timeout.
    pub(super) fails_unlinked: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            timeout_ns: 1_000_000_000,
            latency_ns: 0,
            immediate_fallback: false,
            auto_switch: true,
            stop_on_eos: false,
            min_hold_ns: 0,
            recover_after_ns: 0,
            fails_unlinked: true,
        }
    }
}

/// Why an input became the active one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// The first one.
    Start,
    /// The one before had no timely buffer for `timeout`.
    Timeout,
    /// The one before ended.
    Eos,
    /// The source of the one before reported an error.
    Error,
    /// The pad of the one before was released.
    Removed,
    /// The pad of the one before was unlinked.
    Unlinked,
    /// The one before was flushed, and the flush did not end.
    Flush,
    /// The partner of the one before failed.
    Partner,
    /// It comes before the one before by priority, and is healthy.
    Recovered,
    /// The application chose it.
    Application,
}

impl Reason {
    pub(super) const ALL: [Reason; 10] = [
        Reason::Start,
        Reason::Timeout,
        Reason::Eos,
        Reason::Error,
        Reason::Removed,
        Reason::Unlinked,
        Reason::Flush,
        Reason::Partner,
        Reason::Recovered,
        Reason::Application,
    ];

    pub(super) fn nick(self) -> &'static str {
        match self {
            Reason::Start => "start",
            Reason::Timeout => "timeout",
            Reason::Eos => "eos",
            Reason::Error => "error",
            Reason::Removed => "removed",
            Reason::Unlinked => "unlinked",
            Reason::Flush => "flush",
            Reason::Partner => "partner",
            Reason::Recovered => "recovered",
            Reason::Application => "application",
        }
    }
}

/// What becomes of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It passes. `is_first`: downstream does not know this input's stream. `is_joint`: it is the first one of its input since the
    /// change. `lead_ns`: it begins this long before the end of the output; that part is to be cut off.
    Pass {
        is_first: bool,
        is_joint: bool,
        lead_ns: u64,
    },
    Drop,
    /// It is ahead of its time, and its input is not the active one: it may still pass. To be decided again then or after a change.
    Hold {
        until_ns: u64,
    },
    /// The output has ended.
    Ended,
}

/// What the element has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// `from` may have been removed since, and `to`, too.
    Switched {
        from: Option<InputId>,
        to: InputId,
        reason: Reason,
    },
    /// Ask the input's source for a keyframe.
    RequestKeyframe(InputId),
    HealthChanged(InputId),
    /// The output ends.
    Eos,
}

/// A change that waits for a buffer of the wanted input.
#[derive(Debug, Clone, Copy)]
struct Wish {
    to: InputId,
    reason: Reason,
}

#[derive(Debug, Default)]
pub(super) struct SwitchCore {
    settings: Settings,
    inputs: Vec<Input>,
    active: Option<InputId>,
    /// The one that was it and was removed, while there is none.
    lost: Option<InputId>,
    wish: Option<Wish>,
    /// Of whom a keyframe was asked, and when.
    asked: Option<(InputId, u64)>,
    /// Begin of the clock; `None` before PLAYING, when no time passes.
    started_ns: Option<u64>,
    switched_ns: Option<u64>,
    /// The latest time so far.
    now_ns: u64,
    /// End of the output.
    end_ns: Option<u64>,
    has_ended: bool,
    actions: VecDeque<Action>,
    switches: [u64; Reason::ALL.len()],
}

/// Inputs.
impl SwitchCore {
    pub(super) fn handle_settings(&mut self, now_ns: u64, settings: Settings) {
        self.begin(now_ns);
        self.settings = settings;
        self.choose();
    }

    /// The order of addition is the order among equal priorities.
    pub(super) fn handle_add(&mut self, now_ns: u64, id: InputId, priority: u32) {
        self.begin(now_ns);
        self.inputs.push(Input::new(id, priority));
        self.choose();
    }

    pub(super) fn handle_remove(&mut self, now_ns: u64, id: InputId) {
        self.begin(now_ns);
        self.inputs.retain(|input| input.id != id);
        self.wish = self.wish.filter(|wish| wish.to != id);
        if self.active == Some(id) {
            self.active = None;
            self.lost = Some(id);
        }
        self.choose();
        self.end_with_all();
    }

    pub(super) fn handle_priority(&mut self, now_ns: u64, id: InputId, priority: u32) {
        self.begin(now_ns);
        if let Some(input) = self.input_mut(id) {
            input.priority = priority;
        }
        self.choose();
    }

    pub(super) fn handle_media(&mut self, id: InputId, media: Media) {
        if let Some(input) = self.input_mut(id) {
            input.media = media;
        }
    }

    /// The application's choice. `false`: the choice is not the application's, or there is no such input.
    pub(super) fn handle_selection(&mut self, now_ns: u64, id: InputId) -> bool {
        self.begin(now_ns);
        if self.settings.auto_switch || self.input(id).is_none() {
            return false;
        }
        let goes_on = |id| self.input(id).is_some_and(Input::is_healthy);
        match self.active {
            Some(active) if active == id => self.wish = None,
            Some(active) if goes_on(active) && goes_on(id) => {
                self.want(id, Reason::Application);
            }
            _ => self.change_to(id, Reason::Application),
        }
        true
    }

    /// Time passes from now on.
    pub(super) fn handle_start(&mut self, now_ns: u64) {
        self.begin(now_ns);
        self.started_ns.get_or_insert(now_ns);
        self.choose();
    }

    /// Everything but the inputs and the settings is as at first.
    pub(super) fn handle_stop(&mut self) {
        let inputs = std::mem::take(&mut self.inputs);
        let inputs = inputs.into_iter().map(|input| {
            if input.is_healthy() {
                self.actions.push_back(Action::HealthChanged(input.id));
            }
            Input {
                media: input.media,
                partner_since_ns: input.partner_since_ns.map(|_| 0),
                ..Input::new(input.id, input.priority)
            }
        });
        *self = SwitchCore {
            inputs: inputs.collect(),
            settings: self.settings,
            switches: self.switches,
            // The application's choice stands.
            active: self.active.filter(|_| !self.settings.auto_switch),
            actions: std::mem::take(&mut self.actions),
            ..SwitchCore::default()
        };
        if let Some(id) = self.active
            && let Some(input) = self.input_mut(id)
        {
            input.is_unannounced = true;
        }
    }

    pub(super) fn handle_stream_start(&mut self, id: InputId) {
        if let Some(input) = self.input_mut(id) {
            input.is_eos = false;
        }
        // Only the stream that has ended the output goes on with it.
        if !self.settings.stop_on_eos || self.active.is_none_or(|active| active == id) {
            self.has_ended = false;
        }
    }

    /// Its turn has come: what is before it has passed.
    pub(super) fn handle_eos(&mut self, now_ns: u64, id: InputId) {
        self.begin(now_ns);
        if let Some(input) = self.input_mut(id) {
            input.is_eos = true;
        }
        self.fail(id, Reason::Eos);
        if self.settings.stop_on_eos && self.active == Some(id) {
            self.end();
            return;
        }
        self.choose();
        self.end_with_all();
    }

    /// The input's source has reported an error. What still arrives counts as before.
    pub(super) fn handle_error(&mut self, now_ns: u64, id: InputId) {
        self.begin(now_ns);
        self.fail(id, Reason::Error);
        self.choose();
    }

    /// Whether the partners of these inputs are healthy. At first they are. While one is not, its input is chosen after all others.
    pub(super) fn handle_partners(&mut self, now_ns: u64, healths: &[(InputId, bool)]) {
        self.begin(now_ns);
        for (id, is_healthy) in healths {
            if let Some(input) = self.input_mut(*id) {
                let since_ns = input.partner_since_ns.unwrap_or(now_ns);
                input.partner_since_ns = is_healthy.then_some(since_ns);
            }
        }
        self.choose();
    }

    pub(super) fn handle_unlink(&mut self, now_ns: u64, id: InputId) {
        self.begin(now_ns);
        if self.settings.fails_unlinked {
            self.fail(id, Reason::Unlinked);
        }
        // What was held is lost.
        self.note_drop(id);
        self.choose();
    }

    /// A flush that ends in time is no failure: seeks flush.
    pub(super) fn handle_flush_start(&mut self, now_ns: u64, id: InputId) {
        self.begin(now_ns);
        if self.active != Some(id) {
            self.note_drop(id);
        }
        if let Some(input) = self.input_mut(id) {
            input.is_flushing = true;
        }
    }

    pub(super) fn handle_flush_stop(&mut self, now_ns: u64, id: InputId) {
        self.begin(now_ns);
        let until_ns = now_ns.saturating_add(self.settings.timeout_ns);
        if self.active == Some(id) {
            self.end_ns = None;
            self.has_ended = false;
        }
        if let Some(input) = self.input_mut(id) {
            (input.is_flushing, input.is_eos) = (false, false);
            input.extend_health(until_ns);
        }
        self.choose();
    }

    /// A buffer, a list or a gap arrives. Once for each, before [`SwitchCore::decide`].
    pub(super) fn handle_buffer(&mut self, now_ns: u64, id: InputId, arrival: &Arrival) {
        self.begin(now_ns);
        let due_ns = self.due_ns(arrival);
        let timeout_ns = self.settings.timeout_ns;
        let is_late = now_ns > due_ns.unwrap_or(now_ns).saturating_add(timeout_ns);
        let Some(input) = self.input_mut(id) else {
            return;
        };
        input.has_deltas |= arrival.is_delta;
        if !is_late && !input.is_eos {
            let until_ns = now_ns
                .max(due_ns.unwrap_or(now_ns))
                .saturating_add(timeout_ns);
            if input.hear(now_ns, until_ns) {
                self.actions.push_back(Action::HealthChanged(id));
            }
        }
        self.choose();
    }

    pub(super) fn handle_timeout(&mut self, now_ns: u64) {
        self.begin(now_ns);
        self.choose();
    }

    /// Time has come to `now_ns`: what that ends has ended.
    fn begin(&mut self, now_ns: u64) {
        // A flushing seek sets running time back.
        if let Some(back_ns) = self.now_ns.checked_sub(now_ns).filter(|back| *back > 0) {
            self.shift_back(back_ns);
        }
        self.now_ns = now_ns;
        if self.started_ns.is_none() {
            return;
        }
        for input in &mut self.inputs {
            if let Health::Healthy { until_ns, .. } = input.health
                && until_ns <= now_ns
            {
                input.health = Health::Unhealthy(match input.is_flushing {
                    true => Reason::Flush,
                    false => Reason::Timeout,
                });
                self.actions.push_back(Action::HealthChanged(input.id));
            }
        }
    }

    fn shift_back(&mut self, back_ns: u64) {
        let earlier = |time_ns: Option<u64>| time_ns.map(|ns: u64| ns.saturating_sub(back_ns));
        self.started_ns = earlier(self.started_ns);
        self.switched_ns = earlier(self.switched_ns);
        self.end_ns = None;
        self.asked = self.asked.map(|(id, ns)| (id, ns.saturating_sub(back_ns)));
        for input in &mut self.inputs {
            input.partner_since_ns = earlier(input.partner_since_ns);
            if let Health::Healthy { since_ns, until_ns } = &mut input.health {
                *since_ns = since_ns.saturating_sub(back_ns);
                *until_ns = until_ns.saturating_sub(back_ns);
            }
        }
    }

    fn fail(&mut self, id: InputId, why: Reason) {
        let Some(input) = self.input_mut(id) else {
            return;
        };
        let was_healthy = input.is_healthy();
        input.health = Health::Unhealthy(why);
        if was_healthy {
            self.actions.push_back(Action::HealthChanged(id));
        }
    }

    fn end_with_all(&mut self) {
        if !self.inputs.is_empty() && self.inputs.iter().all(|input| input.is_eos) {
            self.end();
        }
    }

    fn end(&mut self) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.actions.push_back(Action::Eos);
        }
    }
}

/// Outputs.
impl SwitchCore {
    pub(super) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(super) fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// The next time at which something changes by itself. After [`SwitchCore::handle_timeout`] then, it is later.
    pub(super) fn next_timeout(&self) -> Option<u64> {
        self.started_ns?;
        let healths = self.inputs.iter().filter_map(|input| match input.health {
            Health::Healthy { until_ns, .. } => Some(until_ns),
            _ => None,
        });
        let asks = self.asked.map(|(_, ns)| ns + ASK_AGAIN_NS);
        healths.chain(self.next_choice_ns()).chain(asks).min()
    }

    pub(super) fn settings(&self) -> Settings {
        self.settings
    }

    pub(super) fn active(&self) -> Option<InputId> {
        self.active
    }

    /// Whether buffers of this input may pass now: of the active one, and of one that is to become it.
    pub(super) fn may_pass(&self, id: InputId) -> bool {
        self.active == Some(id) || self.wish.is_some_and(|wish| wish.to == id)
    }

    pub(super) fn input(&self, id: InputId) -> Option<&Input> {
        self.inputs.iter().find(|input| input.id == id)
    }

    /// Switches so far, and why.
    pub(super) fn switches(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL.into_iter().zip(self.switches)
    }

    fn input_mut(&mut self, id: InputId) -> Option<&mut Input> {
        self.inputs.iter_mut().find(|input| input.id == id)
    }

    /// When a buffer of this time is due, in running time.
    fn due_ns(&self, arrival: &Arrival) -> Option<u64> {
        Some(arrival.begin_ns?.saturating_add(self.settings.latency_ns))
    }
}

/// Pause before a source is asked for a keyframe again: as often as a receiver of video may be expected to without flooding the
/// source's encoder.
const ASK_AGAIN_NS: u64 = 1_000_000_000;
