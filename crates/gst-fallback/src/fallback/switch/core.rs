//! Decides which input passes: health, choice and hysteresis, without a clock, a lock or GStreamer's objects.
//!
//! All times are running time, ns; the current time is a parameter. After each `handle_*` and [`SwitchCore::decide`]: drain
//! [`SwitchCore::poll_action`], and call [`SwitchCore::handle_timeout`] at [`SwitchCore::next_timeout`], which may have moved.
//!
//! An input is healthy from a timely buffer until `timeout` after the end of that buffer. If the active input fails, another one
//! becomes active at once. The same happens if the partner of the active input fails (another stream of the same source, in
//! another switch), and there is an input with a healthy partner. The output then continues at the time of the failure, and older
//! data of the new input is dropped.
//!
//! The switch may also leave an input that still delivers, for another reason. By default, it does so at once. With
//! [`Settings::is_seamless`] there is first a *wish*. The wish becomes a change at a suitable buffer of the wanted input, so that
//! no gap occurs. In a coded stream, that is a keyframe.
//!
//! By default the end of the active input ends the output. The output resumes with another input after the timeout, or with a
//! better one at once. With [`Settings::switches_on_eos`] the next input continues the output.

use std::collections::VecDeque;

mod choice;
mod input;
mod joint;
#[cfg(test)]
mod tests;

use input::Health;
pub(super) use input::{Arrival, Input, InputId, Media};

/// Settings; times in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) timeout_ns: u64,
    /// A buffer is due this long after its running time: the latencies of upstream and of the element.
    pub(super) latency_ns: u64,
    /// Whether the start does not wait for a better input.
    pub(super) immediate_fallback: bool,
    /// Whether the switch chooses the input; otherwise the application does.
    pub(super) auto_switch: bool,
    /// Whether the end of any input ends the output permanently.
    pub(super) stop_on_eos: bool,
    /// Whether the end of the active input changes to another input, so that the output ends with the last one.
    pub(super) switches_on_eos: bool,
    /// Whether to switch between delivering inputs only where the new one continues the output. Coded streams are entered only at
    /// keyframes.
    pub(super) is_seamless: bool,
    /// Whether buffers of the active input pass when they are due, instead of at once.
    pub(super) is_synced: bool,
    pub(super) min_hold_ns: u64,
    pub(super) recover_after_ns: u64,
    /// Whether an unlinked input fails at once. Otherwise it has the timeout to be linked again.
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
            switches_on_eos: false,
            is_seamless: false,
            is_synced: true,
            min_hold_ns: 0,
            recover_after_ns: 0,
            fails_unlinked: true,
        }
    }
}

/// Why an input became the active one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// It is the first input.
    Start,
    /// The previous input had no timely buffer for `timeout`.
    Timeout,
    /// The previous input has ended.
    Eos,
    /// The source of the previous input reported an error.
    Error,
    /// The pad of the previous input was released.
    Removed,
    /// The pad of the previous input was unlinked.
    Unlinked,
    /// The previous input was flushed, and the flush did not end.
    Flush,
    /// The partner of the previous input failed.
    Partner,
    /// The input is healthy, and its priority is higher than the previous input's.
    Recovered,
    /// The application chose the input.
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

/// The decision on a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The buffer passes. `is_first`: downstream does not have this input's stream yet. `is_joint`: the buffer is the first of
    /// its input since the change. `lead_ns`: the buffer starts this long before the end of the output; the first part of this
    /// length must be cut off.
    Pass {
        is_first: bool,
        is_joint: bool,
        lead_ns: u64,
    },
    Drop,
    /// The buffer is ahead of its time and may still pass. Decide again at that time, or after a change.
    Hold {
        until_ns: u64,
    },
    /// The output has ended.
    Ended,
}

/// An action for the element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// `from` and `to` may have been removed in the meantime.
    Switched {
        from: Option<InputId>,
        to: InputId,
        reason: Reason,
    },
    /// Requests a keyframe from the input's source.
    RequestKeyframe(InputId),
    HealthChanged(InputId),
    /// The output ends.
    Eos,
}

/// A change that waits for a suitable buffer of the wanted input.
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
    /// The active input that was removed. It stays here until another input is active.
    lost: Option<InputId>,
    wish: Option<Wish>,
    /// The input from which a keyframe was requested, and the time.
    asked: Option<(InputId, u64)>,
    /// Start of the clock; `None` before PLAYING, when no time passes.
    started_ns: Option<u64>,
    switched_ns: Option<u64>,
    /// The latest time so far.
    now_ns: u64,
    /// End of the output.
    end_ns: Option<u64>,
    /// The output continues at this time after a timeout: earlier data of the next input is stale.
    floor_ns: Option<u64>,
    /// Whether the end was sent downstream. The output may resume: see [`SwitchCore::is_over`].
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

    /// Adds an input. Inputs of equal priority keep the order of their addition.
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

    /// Applies the application's choice. Returns `false` if the application may not choose now, or if the input is unknown.
    pub(super) fn handle_selection(&mut self, now_ns: u64, id: InputId) -> bool {
        self.begin(now_ns);
        if self.settings.auto_switch || self.input(id).is_none() {
            return false;
        }
        let is_seamless = self.settings.is_seamless;
        let goes_on = |id| is_seamless && self.input(id).is_some_and(Input::is_healthy);
        match self.active {
            Some(active) if active == id => self.wish = None,
            Some(active) if goes_on(active) && goes_on(id) => {
                self.want(id, Reason::Application);
            }
            _ => self.change_to(id, Reason::Application),
        }
        true
    }

    /// Starts the clock.
    pub(super) fn handle_start(&mut self, now_ns: u64) {
        self.begin(now_ns);
        self.started_ns.get_or_insert(now_ns);
        self.choose();
    }

    /// Resets everything except the inputs and the settings.
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
            // The application's choice stays.
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
        let resumes = if self.settings.stop_on_eos {
            !self.inputs.iter().any(|input| input.is_eos)
        } else {
            self.settings.switches_on_eos || self.active.is_none_or(|active| active == id)
        };
        self.has_ended &= !resumes;
    }

    /// Handles the end of an input whose earlier data have passed.
    pub(super) fn handle_eos(&mut self, now_ns: u64, id: InputId) {
        self.begin(now_ns);
        if let Some(input) = self.input_mut(id) {
            input.is_eos = true;
        }
        let ends_output = self.active == Some(id) && !self.settings.switches_on_eos;
        if ends_output || self.settings.stop_on_eos {
            self.end();
        }
        if !ends_output {
            self.fail(id, Reason::Eos);
        }
        self.choose();
        self.end_with_all();
    }

    /// Notes that the input's source has reported an error. Data that still arrives counts as before.
    pub(super) fn handle_error(&mut self, now_ns: u64, id: InputId) {
        self.begin(now_ns);
        self.fail(id, Reason::Error);
        self.choose();
    }

    /// Sets whether the partners of these inputs are healthy. At first, all partners are. An input with an unhealthy partner is
    /// chosen only if no other input is left.
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
        // The held data is lost.
        self.note_drop(id);
        self.choose();
    }

    /// Notes the start of a flush. A flush that ends in time is not a failure, because seeks flush.
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
            (self.end_ns, self.floor_ns) = (None, None);
            self.has_ended = false;
        }
        if let Some(input) = self.input_mut(id) {
            (input.is_flushing, input.is_eos) = (false, false);
            input.extend_health(until_ns);
        }
        self.choose();
    }

    /// Notes the arrival of a buffer, a list or a gap. Called once for each, before [`SwitchCore::decide`].
    pub(super) fn handle_buffer(&mut self, now_ns: u64, id: InputId, arrival: &Arrival) {
        self.begin(now_ns);
        let passed_ns = self.passed_ns(arrival).unwrap_or(now_ns);
        let timeout_ns = self.settings.timeout_ns;
        let is_late = now_ns > passed_ns.saturating_add(timeout_ns);
        let Some(input) = self.input_mut(id) else {
            return;
        };
        input.has_deltas |= arrival.is_delta;
        if !is_late && !input.is_eos {
            let until_ns = now_ns.max(passed_ns).saturating_add(timeout_ns);
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

    /// Advances the time to `now_ns`, and handles everything that ends by then.
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
                let why = match (input.is_flushing, input.is_eos) {
                    (true, _) => Reason::Flush,
                    (false, true) => Reason::Eos,
                    (false, false) => Reason::Timeout,
                };
                let at_ns = until_ns;
                input.health = Health::Unhealthy { why, at_ns };
                self.actions.push_back(Action::HealthChanged(input.id));
            }
        }
    }

    fn shift_back(&mut self, back_ns: u64) {
        let earlier = |time_ns: Option<u64>| time_ns.map(|ns: u64| ns.saturating_sub(back_ns));
        self.started_ns = earlier(self.started_ns);
        self.switched_ns = earlier(self.switched_ns);
        (self.end_ns, self.floor_ns) = (None, None);
        self.asked = self.asked.map(|(id, ns)| (id, ns.saturating_sub(back_ns)));
        for input in &mut self.inputs {
            input.partner_since_ns = earlier(input.partner_since_ns);
            match &mut input.health {
                Health::Healthy { since_ns, until_ns } => {
                    *since_ns = since_ns.saturating_sub(back_ns);
                    *until_ns = until_ns.saturating_sub(back_ns);
                }
                Health::Unhealthy { at_ns, .. } => *at_ns = at_ns.saturating_sub(back_ns),
                Health::Unheard => {}
            }
        }
    }

    fn fail(&mut self, id: InputId, why: Reason) {
        let at_ns = self.now_ns;
        let Some(input) = self.input_mut(id) else {
            return;
        };
        let was_healthy = input.is_healthy();
        input.health = Health::Unhealthy { why, at_ns };
        if was_healthy {
            self.actions.push_back(Action::HealthChanged(id));
        }
    }

    fn end_with_all(&mut self) {
        if !self.inputs.is_empty() && self.inputs.iter().all(|input| input.is_eos) {
            self.end();
        }
    }

    /// Whether the output has ended. It may resume when an input starts again.
    fn is_over(&self) -> bool {
        let has_eos = |input: &Input| input.is_eos;
        self.has_ended && (self.settings.stop_on_eos || self.inputs.iter().all(has_eos))
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

    /// Returns the next time at which something changes without an event. If [`SwitchCore::handle_timeout`] is called at that
    /// time, the next result is later.
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

    /// Whether the end must be sent downstream, or was sent.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(super) fn active(&self) -> Option<InputId> {
        self.active
    }

    /// Whether buffers of this input may pass now: the input is active, or about to become active.
    pub(super) fn may_pass(&self, id: InputId) -> bool {
        self.active == Some(id) || self.wish.is_some_and(|wish| wish.to == id)
    }

    pub(super) fn input(&self, id: InputId) -> Option<&Input> {
        self.inputs.iter().find(|input| input.id == id)
    }

    /// Returns the number of switches so far, for each reason.
    pub(super) fn switches(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL.into_iter().zip(self.switches)
    }

    fn input_mut(&mut self, id: InputId) -> Option<&mut Input> {
        self.inputs.iter_mut().find(|input| input.id == id)
    }

    /// Returns the running time at which a buffer of this time is due.
    fn due_ns(&self, arrival: &Arrival) -> Option<u64> {
        Some(arrival.begin_ns?.saturating_add(self.settings.latency_ns))
    }

    /// Returns the running time at which a buffer of this time is over.
    fn passed_ns(&self, arrival: &Arrival) -> Option<u64> {
        let end_ns = arrival.end_ns.max(arrival.begin_ns)?;
        Some(end_ns.saturating_add(self.settings.latency_ns))
    }
}

/// Interval of repeated requests for a keyframe: short enough for a viewer, and long enough not to flood the source's encoder.
const ASK_AGAIN_NS: u64 = 1_000_000_000;
