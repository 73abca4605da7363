//! The choice among the inputs, its hysteresis, and the change.

use super::input::{Health, Input, InputId};
use super::{ASK_AGAIN_NS, Action, Reason, SwitchCore, Wish};

impl SwitchCore {
    /// Chooses again, after anything that may matter.
    pub(super) fn choose(&mut self) {
        if self.has_ended {
            self.asked = None;
            return;
        }
        match self.settings.auto_switch {
            true => self.choose_best(),
            false => self.keep_choice(),
        }
        self.ask_for_keyframe();
    }

    /// Before the application's choice, the first input is the active one; after it was released, none.
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
        // Nothing is left to go on with until the wanted one fits.
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
                None if self.may_start_with(best) => self.change_to(best_id, Reason::Start),
                None => {}
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
                match is_wanted {
                    true => self.want(best_id, Reason::Recovered),
                    false => self.wish = None,
                }
            }
            Health::Unhealthy(reason) => self.change_to(best_id, reason),
            // The choice of an application that has handed it back.
            Health::Unheard => self.change_to(best_id, Reason::Recovered),
        }
    }

    /// The first choice among those that are healthy.
    fn best(&self) -> Option<&Input> {
        let healthy = self.inputs.iter().filter(|input| input.is_healthy());
        // The first of several with the least.
        healthy.min_by_key(|input| input.rank())
    }

    /// Whether the output may begin with this input: no better one, nor its partner, is still to be heard, or
    /// their time is over.
    fn may_start_with(&self, best: &Input) -> bool {
        let is_awaited = |input: &Input| {
            let is_due = match input.health {
                Health::Unheard => true,
                Health::Healthy { .. } => input.lacks_partner(),
                Health::Unhealthy(_) => false,
            };
            is_due && (false, input.priority) < best.rank()
        };
        self.settings.immediate_fallback
            || self.start_ends_ns().is_some_and(|ns| ns <= self.now_ns)
            || !self.inputs.iter().any(is_awaited)
    }

    fn start_ends_ns(&self) -> Option<u64> {
        Some(self.started_ns?.saturating_add(self.settings.timeout_ns))
    }

    /// When a better input that is healthy may replace the active one.
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

    /// When the choice may become another one by the time alone.
    pub(super) fn next_choice_ns(&self) -> Option<u64> {
        if !self.settings.auto_switch || self.wish.is_some() || self.has_ended {
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
        self.switched_ns = Some(self.now_ns);
        if let Some(input) = self.input_mut(to) {
            (input.is_joining, input.is_unannounced) = (true, true);
            input.needs_keyframe |= is_after_another;
        }
        self.switches[reason as usize] += 1;
        self.actions
            .push_back(Action::Switched { from, to, reason });
    }

    /// Of the input whose keyframe is awaited: once, and again while it does not come.
    fn ask_for_keyframe(&mut self) {
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
