//! The choice among the inputs, its hysteresis, and the change.

use super::input::{Health, Input, InputId};
use super::{ASK_AGAIN_NS, Action, Reason, SwitchCore, Wish};

impl SwitchCore {
    /// Chooses again; called after each relevant event.
    pub(super) fn choose(&mut self) {
        if self.is_over() {
            self.asked = None;
            return;
        }
        if self.settings.auto_switch {
            self.choose_best()
        } else {
            self.keep_choice()
        }
        self.ask_for_keyframe();
    }

    /// Keeps the application's choice. Before the application has chosen, the first input is active. After the active input was
    /// released, no input is active until the application chooses.
    fn keep_choice(&mut self) {
        let by_application = |wish: &Wish| wish.reason == Reason::Application;
        self.wish = self.wish.filter(by_application);
        let Some(active) = self.active else {
            match (self.wish, self.inputs.first()) {
                (Some(wish), _) => self.change_to(wish.to, wish.reason),
                (None, Some(first)) if self.lost.is_none() => {
                    self.change_to(first.id, Reason::Start);
                }
                _ => {}
            }
            return;
        };
        // The active input delivers nothing that could fill the time until the wanted input fits, so the change happens now.
        if let Some(wish) = self.wish
            && !self.input(active).is_some_and(Input::is_healthy)
        {
            self.change_to(wish.to, wish.reason);
        }
    }

    fn choose_best(&mut self) {
        let Some(best) = self.best() else {
            self.wish = None;
            return;
        };
        let (best_id, best_rank) = (best.id, best.rank());
        let Some(active) = self.active else {
            match self.lost {
                Some(_) => self.change_to(best_id, Reason::Removed),
                None if !self.awaits_better(best) => self.change_to(best_id, Reason::Start),
                None => {
                    if let Some(ns) = self.start_ends_ns().filter(|ns| *ns <= self.now_ns) {
                        self.skip_to(ns);
                        self.change_to(best_id, Reason::Start);
                    }
                }
            }
            return;
        };
        let Some(active) = self.input(active) else {
            debug_assert!(false, "the active input is removed with its pad");
            return;
        };
        match active.health {
            Health::Healthy { .. } if active.lacks_partner() && !best.lacks_partner() => {
                self.change_to(best_id, Reason::Partner);
            }
            Health::Healthy { .. } => {
                let is_wanted = best_rank < active.rank()
                    && self
                        .recovers_ns(best_id)
                        .is_some_and(|ns| ns <= self.now_ns);
                if !is_wanted {
                    self.wish = None;
                } else if self.settings.is_seamless {
                    self.want(best_id, Reason::Recovered);
                } else {
                    self.change_to(best_id, Reason::Recovered);
                }
            }
            Health::Unhealthy { why, at_ns } => {
                if why == Reason::Timeout {
                    self.skip_to(at_ns);
                }
                self.change_to(best_id, why);
            }
            // The application had chosen an input that has not delivered yet, and now lets the switch choose.
            Health::Unheard => self.change_to(best_id, Reason::Recovered),
        }
    }

    /// Makes data due before this time stale.
    fn skip_to(&mut self, due_ns: u64) {
        let begin_ns = due_ns.saturating_sub(self.settings.latency_ns);
        self.floor_ns = self.floor_ns.max(Some(begin_ns));
    }

    /// Returns the healthy input with the best rank.
    fn best(&self) -> Option<&Input> {
        let healthy = self.inputs.iter().filter(|input| input.is_healthy());
        // Among equal ranks, this is the first input.
        healthy.min_by_key(|input| input.rank())
    }

    /// Whether the output should start with a better input that has not delivered yet, or whose partner has not.
    fn awaits_better(&self, best: &Input) -> bool {
        let is_awaited = |input: &Input| {
            let is_due = match input.health {
                Health::Unheard => true,
                Health::Healthy { .. } => input.lacks_partner(),
                Health::Unhealthy { .. } => false,
            };
            is_due && (false, input.priority) < best.rank()
        };
        !self.settings.immediate_fallback && self.inputs.iter().any(is_awaited)
    }

    fn start_ends_ns(&self) -> Option<u64> {
        Some(self.started_ns?.saturating_add(self.settings.timeout_ns))
    }

    /// Returns the time at which a healthy, better input may replace the active one.
    fn recovers_ns(&self, id: InputId) -> Option<u64> {
        let since_ns = self.input(id)?.since_ns()?;
        let settings = &self.settings;
        let held_ns = (self.switched_ns).map_or(0, |ns| ns.saturating_add(settings.min_hold_ns));
        Some(
            since_ns
                .saturating_add(settings.recover_after_ns)
                .max(held_ns),
        )
    }

    /// Returns the time at which the choice may change without an event.
    pub(super) fn next_choice_ns(&self) -> Option<u64> {
        if !self.settings.auto_switch || self.wish.is_some() || self.is_over() {
            return None;
        }
        let best = self.best()?;
        let Some(active) = self.active else {
            return self.start_ends_ns();
        };
        let is_better = best.rank() < self.input(active)?.rank();
        self.recovers_ns(best.id).filter(|_| is_better)
    }

    pub(super) fn want(&mut self, to: InputId, reason: Reason) {
        if self.wish.is_none_or(|wish| wish.to != to) {
            self.wish = Some(Wish { to, reason });
        }
    }

    pub(super) fn change_to(&mut self, to: InputId, reason: Reason) {
        let from = self.active.replace(to).or(self.lost);
        let is_after_another = self.switched_ns.is_some();
        (self.wish, self.lost) = (None, None);
        // The new input resumes an output that has ended.
        self.has_ended = false;
        if let Some(ended) = from.filter(|id| self.input(*id).is_some_and(|input| input.is_eos)) {
            self.fail(ended, Reason::Eos);
        }
        self.switched_ns = Some(self.now_ns);
        if let Some(input) = self.input_mut(to) {
            (input.is_joining, input.is_unannounced) = (true, true);
            input.needs_keyframe |= is_after_another;
        }
        self.switches[reason as usize] += 1;
        self.actions
            .push_back(Action::Switched { from, to, reason });
    }

    /// Requests the awaited keyframe from its input once, and again while no keyframe arrives.
    fn ask_for_keyframe(&mut self) {
        if !self.settings.is_seamless {
            self.asked = None;
            return;
        }
        let awaited = match self.wish {
            Some(wish) => Some(wish.to),
            None => (self.active).filter(|id| self.input(*id).is_some_and(|i| i.needs_keyframe)),
        };
        let awaited = awaited.and_then(|id| self.input(id));
        let Some(id) = awaited
            .filter(|input| input.is_coded())
            .map(|input| input.id)
        else {
            self.asked = None;
            return;
        };
        let is_asked =
            (self.asked).is_some_and(|(asked, ns)| asked == id && self.now_ns < ns + ASK_AGAIN_NS);
        if !is_asked {
            self.asked = Some((id, self.now_ns));
            self.actions.push_back(Action::RequestKeyframe(id));
        }
    }
}
