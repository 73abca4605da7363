//! Random histories of three inputs. The core is compared with a simple model that computes each input's health from its whole
//! history, and with a decoder that knows which buffer can follow which.

use proptest::prelude::*;

use super::*;

/// Number of inputs; an input's id is its place.
const INPUTS: usize = 3;
const SPAN_MS: u64 = 20;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Lets time pass, ms.
    Wait(u64),
    /// Delivers the next 20 ms of an input, `late_ms` after their time.
    Feed {
        of: usize,
        late_ms: u64,
    },
    /// Delivers data of an input ahead of its time.
    FeedAhead {
        of: usize,
        ahead_ms: u64,
    },
    Eos(usize),
    Unlink(usize),
    Error(usize),
    Restart(usize),
    /// Sets the health of an input's partner.
    Partner(usize, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let of = 0..INPUTS;
    let step = prop_oneof![
        8 => (1..60u64).prop_map(Step::Wait),
        1 => (200..1500u64).prop_map(Step::Wait),
        20 => (of.clone(), prop_oneof![4 => Just(0u64), 1 => 0..40u64, 1 => 0..900u64])
            .prop_map(|(of, late_ms)| Step::Feed { of, late_ms }),
        3 => (of.clone(), 1..60u64).prop_map(|(of, ahead_ms)| Step::FeedAhead { of, ahead_ms }),
        1 => of.clone().prop_map(Step::Eos),
        1 => of.clone().prop_map(Step::Unlink),
        1 => of.clone().prop_map(Step::Error),
        1 => of.clone().prop_map(Step::Restart),
        2 => (of, any::<bool>()).prop_map(|(of, is_healthy)| Step::Partner(of, is_healthy)),
    ];
    prop::collection::vec(step, 1..300)
}

fn settings() -> impl Strategy<Value = Settings> {
    let times = (100..800u64, 0..50u64, 0..600u64, 0..600u64);
    let flags = any::<[bool; 4]>();
    (times, flags).prop_map(|((timeout, latency, min_hold, recover_after), flags)| {
        let [immediate_fallback, switches_on_eos, is_seamless, is_synced] = flags;
        Settings {
            timeout_ns: timeout * MS,
            latency_ns: latency * MS,
            min_hold_ns: min_hold * MS,
            recover_after_ns: recover_after * MS,
            immediate_fallback,
            switches_on_eos,
            is_seamless,
            is_synced,
            ..Settings::default()
        }
    })
}

#[derive(Debug, Clone, Copy)]
enum Heard {
    Timely { at_ns: u64, until_ns: u64 },
    Failed,
}

/// The history of an input.
#[derive(Default)]
struct Twin {
    heard: Vec<Heard>,
    /// Times of the reports about the input's partner, and whether it is healthy.
    partner: Vec<(u64, bool)>,
    is_eos: bool,
}

impl Twin {
    /// Returns the start of the input's current health.
    fn healthy_since(&self, now_ns: u64) -> Option<u64> {
        let mut since = None::<(u64, u64)>;
        for heard in &self.heard {
            since = match (*heard, since) {
                (Heard::Failed, _) => None,
                (Heard::Timely { at_ns, until_ns }, Some((since_ns, before_ns)))
                    if at_ns < before_ns =>
                {
                    Some((since_ns, until_ns))
                }
                (Heard::Timely { at_ns, until_ns }, _) => Some((at_ns, until_ns)),
            };
        }
        let (since_ns, until_ns) = since?;
        (now_ns < until_ns).then_some(since_ns)
    }

    /// Returns the end of the input's last or current health.
    fn healthy_until(&self) -> Option<u64> {
        match self.heard.last()? {
            Heard::Timely { until_ns, .. } => Some(*until_ns),
            Heard::Failed => None,
        }
    }

    /// Returns the start of the current health of the input's partner.
    fn partner_since(&self) -> Option<u64> {
        let backwards = self.partner.iter().rev();
        let of_now: Vec<_> = backwards
            .take_while(|(_, is_healthy)| *is_healthy)
            .collect();
        match of_now.last() {
            Some((at_ns, _)) if of_now.len() < self.partner.len() => Some(*at_ns),
            None if !self.partner.is_empty() => None,
            _ => Some(0),
        }
    }

    /// Returns the start of the time in which both the input and its partner are healthy.
    fn whole_since(&self, now_ns: u64) -> Option<u64> {
        Some(self.healthy_since(now_ns)?.max(self.partner_since()?))
    }
}

struct World {
    core: SwitchCore,
    settings: Settings,
    now_ns: u64,
    is_coded: bool,
    twins: [Twin; INPUTS],
    /// Number and end of each input's last buffer.
    sent: [(u32, u64); INPUTS],
    held: [Option<(u32, Arrival)>; INPUTS],
    /// Input and number of the output's last buffer, and the output's end, ns.
    last: Option<(usize, u32)>,
    end_ns: u64,
    /// Time of the last timeout, in the time of the data.
    floor_ns: u64,
    switched_ns: Option<u64>,
}

impl World {
    fn new(settings: Settings, is_coded: bool) -> World {
        let mut core = SwitchCore::default();
        core.handle_settings(0, settings);
        for id in 0..INPUTS as u32 {
            core.handle_add(0, id, id);
            core.handle_media(id, if is_coded { Media::Coded } else { Media::Audio });
        }
        core.handle_start(0);
        World {
            core,
            settings,
            now_ns: 0,
            is_coded,
            twins: Default::default(),
            sent: [(0, 0); INPUTS],
            held: [None; INPUTS],
            last: None,
            end_ns: 0,
            floor_ns: 0,
            switched_ns: None,
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Wait(ms) => self.wait(self.now_ns + ms * MS),
            Step::Feed { of, late_ms } => {
                let begin_ns = self.now_ns.saturating_sub(late_ms * MS);
                self.feed(of, begin_ns);
            }
            Step::FeedAhead { of, ahead_ms } => self.feed(of, self.now_ns + ahead_ms * MS),
            Step::Eos(of) if self.held[of].is_none() => {
                // The output ends with the active input, which stays the active one.
                let ends = !self.settings.switches_on_eos && self.core.active() == Some(of as u32);
                if !ends {
                    self.twins[of].heard.push(Heard::Failed);
                }
                self.twins[of].is_eos = true;
                self.core.handle_eos(self.now_ns, of as u32);
            }
            Step::Eos(_) => {}
            Step::Unlink(of) => {
                self.held[of] = None;
                self.twins[of].heard.push(Heard::Failed);
                self.core.handle_unlink(self.now_ns, of as u32);
            }
            Step::Error(of) => {
                self.twins[of].heard.push(Heard::Failed);
                self.core.handle_error(self.now_ns, of as u32);
            }
            Step::Partner(of, is_healthy) => {
                self.twins[of].partner.push((self.now_ns, is_healthy));
                (self.core).handle_partners(self.now_ns, &[(of as u32, is_healthy)]);
            }
            Step::Restart(of) => {
                self.twins[of].is_eos = false;
                self.core.handle_stream_start(of as u32);
            }
        }
        self.check();
        self.retry();
    }

    fn wait(&mut self, until_ns: u64) {
        loop {
            let held = self.held.iter().flatten();
            let due = held.map(|(_, arrival)| arrival.begin_ns.unwrap() + self.settings.latency_ns);
            let next_ns = due.chain(self.core.next_timeout()).min();
            let Some(next_ns) = next_ns.filter(|ns| *ns <= until_ns) else {
                break;
            };
            self.now_ns = self.now_ns.max(next_ns);
            self.core.handle_timeout(self.now_ns);
            let next_ns = self.core.next_timeout();
            assert!(
                next_ns.is_none_or(|ns| ns > self.now_ns),
                "a time-out that stays"
            );
            self.check();
            self.retry();
        }
        self.now_ns = until_ns;
        self.core.handle_timeout(until_ns);
        self.check();
    }

    /// Delivers the input's next buffer, from the end of its last one on or later.
    fn feed(&mut self, of: usize, begin_ns: u64) {
        if self.held[of].is_some() {
            return;
        }
        let (number, end_ns) = self.sent[of];
        let begin_ns = begin_ns.max(end_ns);
        let arrival = Arrival {
            begin_ns: Some(begin_ns),
            end_ns: Some(begin_ns + SPAN_MS * MS),
            is_delta: self.is_coded && number % 5 != 0,
            is_gap: false,
        };
        self.sent[of] = (number + 1, begin_ns + SPAN_MS * MS);
        let due_ns = begin_ns + SPAN_MS * MS + self.settings.latency_ns;
        if self.now_ns <= due_ns + self.settings.timeout_ns && !self.twins[of].is_eos {
            self.twins[of].heard.push(Heard::Timely {
                at_ns: self.now_ns,
                until_ns: self.now_ns.max(due_ns) + self.settings.timeout_ns,
            });
        }
        self.core.handle_buffer(self.now_ns, of as u32, &arrival);
        self.check();
        self.held[of] = Some((number, arrival));
        self.retry();
    }

    /// Decides on all held items, until nothing changes any more.
    fn retry(&mut self) {
        let mut changes = true;
        while std::mem::take(&mut changes) {
            for of in 0..INPUTS {
                let Some((number, arrival)) = self.held[of] else {
                    continue;
                };
                let has_right = self.has_right(of, &arrival);
                let verdict = self.core.decide(self.now_ns, of as u32, &arrival);
                self.check();
                match verdict {
                    Verdict::Hold { until_ns } => {
                        assert!(until_ns > self.now_ns);
                        continue;
                    }
                    Verdict::Pass { lead_ns, .. } => self.output(of, number, &arrival, lead_ns),
                    Verdict::Drop | Verdict::Ended => {}
                }
                if has_right && verdict != Verdict::Ended {
                    assert_eq!(
                        self.core.active(),
                        Some(of as u32),
                        "it has waited long enough"
                    );
                }
                self.held[of] = None;
                changes = true;
            }
        }
    }

    /// Whether this buffer must pass, because it is a due keyframe of the best input, which has been healthy for long enough.
    fn has_right(&self, of: usize, arrival: &Arrival) -> bool {
        let since = |of: usize| self.twins[of].whole_since(self.now_ns);
        let is_due = arrival.begin_ns.unwrap() + self.settings.latency_ns <= self.now_ns;
        let is_best = (0..of).all(|other| since(other).is_none());
        let is_old = since(of).is_some_and(|ns| ns + self.settings.recover_after_ns <= self.now_ns);
        let is_held =
            (self.switched_ns).is_some_and(|ns| self.now_ns < ns + self.settings.min_hold_ns);
        let has_begun = self.switched_ns.is_some();
        is_due && is_best && is_old && !is_held && !arrival.is_delta && has_begun
    }

    fn output(&mut self, of: usize, number: u32, arrival: &Arrival, lead_ns: u64) {
        assert_eq!(
            self.core.active(),
            Some(of as u32),
            "only the active one passes"
        );
        // The buffer must follow one that the decoder has.
        let follows = self.last.map_or(number == 0, |(last, before)| {
            last == of && before + 1 == number
        });
        assert!(
            !arrival.is_delta || follows || !self.settings.is_seamless,
            "delta unit {number} of {of} after {:?}",
            self.last
        );
        self.last = Some((of, number));
        if !self.is_coded {
            let begin_ns = arrival.begin_ns.unwrap() + lead_ns;
            assert!(begin_ns >= self.end_ns, "the output goes back");
            assert!(begin_ns >= self.floor_ns, "stale after a timeout");
            assert!(begin_ns < arrival.end_ns.unwrap());
        }
        self.end_ns = self.end_ns.max(arrival.end_ns.unwrap());
    }

    /// Notes that the output has left an input, or has started.
    fn note_switch(&mut self, from: Option<u32>, reason: Reason) {
        let Some(from) = from else { return };
        let twin = &mut self.twins[from as usize];
        if reason == Reason::Timeout {
            let until_ns = twin.healthy_until().expect("it was healthy");
            let floor_ns = until_ns.saturating_sub(self.settings.latency_ns);
            self.floor_ns = self.floor_ns.max(floor_ns);
        }
        if twin.is_eos {
            twin.heard.push(Heard::Failed);
        }
    }

    fn own(&self, of: u32) -> Option<u64> {
        self.twins[of as usize].healthy_since(self.now_ns)
    }

    fn since(&self, of: u32) -> Option<u64> {
        self.twins[of as usize].whole_since(self.now_ns)
    }

    fn check(&mut self) {
        while let Some(action) = self.core.poll_action() {
            let Action::Switched { from, to, reason } = action else {
                continue;
            };
            let held_ns = self
                .switched_ns
                .map_or(0, |ns| ns + self.settings.min_hold_ns);
            assert!(self.own(to).is_some(), "to one that has failed");
            let any_is_whole = (0..INPUTS as u32).any(|id| self.since(id).is_some());
            assert_eq!(
                self.since(to).is_some(),
                any_is_whole,
                "one stream of a source"
            );
            match (from, reason) {
                (Some(from), Reason::Recovered) => {
                    assert!(to < from && self.since(from).is_some() == any_is_whole);
                    assert!(self.now_ns >= held_ns, "within min-hold");
                    let old_ns =
                        self.since(to).or(self.own(to)).unwrap() + self.settings.recover_after_ns;
                    assert!(self.now_ns >= old_ns, "within recover-after");
                }
                (Some(from), Reason::Partner) => {
                    assert!(self.own(from).is_some() && self.since(from).is_none() && any_is_whole);
                }
                (Some(from), _) => assert_eq!(self.own(from), None, "{reason:?}"),
                (None, _) => {
                    assert_eq!((self.switched_ns, reason), (None, Reason::Start));
                    let is_over =
                        self.settings.immediate_fallback || self.now_ns >= self.settings.timeout_ns;
                    assert!(any_is_whole || is_over, "before partners may have arrived");
                }
            }
            self.switched_ns = Some(self.now_ns);
            self.note_switch(from, reason);
        }
        let own = |of: u32| self.own(of);
        let since = |of: u32| self.since(of);
        for id in 0..INPUTS as u32 {
            let input = self.core.input(id).unwrap();
            assert_eq!(input.is_healthy(), own(id).is_some(), "health of {id}");
        }
        // A failed input does not stay active while another input delivers. One stream of a source does not stay active while
        // another source is complete.
        if let Some(active) = self.core.active() {
            let are_others = |of: &dyn Fn(u32) -> Option<u64>| {
                of(active).is_none() && (0..INPUTS as u32).any(|id| of(id).is_some())
            };
            assert!(
                !are_others(&own) && !are_others(&since),
                "{active} is still the active one"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_raw_and_coded_inputs_keep_the_invariants(settings in settings(), is_coded: bool, steps in steps()) {
        let mut world = World::new(settings, is_coded);
        for step in steps {
            world.run(step);
        }
    }
}
