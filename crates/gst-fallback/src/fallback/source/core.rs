//! Decides which sources run, when one is restarted, and when all are given up. It uses no clock, no lock and no GStreamer.
//!
//! All times are running time, ns; the current time is a parameter. After each `handle_*`, drain [`SourceCore::poll_action`].
//! Then call [`SourceCore::handle_timeout`] at [`SourceCore::next_timeout`], which may have changed.
//!
//! The sources are ordered, the main one first. The main source and the first fallback always run, so that the fallback is
//! available at once. A later fallback runs while no source before it delivers. Each start of a source is a new [`Run`]: events
//! of earlier runs are ignored.

use std::collections::VecDeque;

mod fill;
mod life;
#[cfg(test)]
mod tests;

pub(super) use fill::Kind;
use fill::Outputs;
use life::{Life, Source};

/// Settings; times in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    /// Time without data after which the output no longer waits for a source.
    pub(super) timeout_ns: u64,
    /// A source without data for this time is started again.
    pub(super) restart_timeout_ns: u64,
    /// Time without data from any source after which all are given up.
    pub(super) retry_timeout_ns: u64,
    /// Pause before the first retry; it doubles with each further one.
    pub(super) retry_delay_ns: u64,
    pub(super) retry_delay_ns_max: u64,
    /// Number of consecutive failed retries after which a source is given up; `None`: no limit.
    pub(super) retries_max: Option<u32>,
    pub(super) restart_on_eos: bool,
    pub(super) immediate_fallback: bool,
    /// Whether a source that is not live starts only when the application requests it.
    pub(super) manual_unblock: bool,
    /// Whether silence and black are produced while no source delivers.
    pub(super) has_fill: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            timeout_ns: 5 * SECOND_NS,
            restart_timeout_ns: 5 * SECOND_NS,
            retry_timeout_ns: 60 * SECOND_NS,
            retry_delay_ns: SECOND_NS,
            retry_delay_ns_max: 30 * SECOND_NS,
            retries_max: None,
            restart_on_eos: false,
            immediate_fallback: false,
            manual_unblock: false,
            has_fill: true,
        }
    }
}

/// Place of a source in the order; 0 is the main one.
pub(super) type SourceId = usize;
pub(super) const MAIN: SourceId = 0;

/// One start of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) source: SourceId,
    pub(super) number: u32,
}

/// Why a source is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Reason {
    #[default]
    None,
    Error,
    Eos,
    /// The source cannot be started.
    StateChange,
    Timeout,
}

impl Reason {
    pub(super) fn nick(self) -> &'static str {
        match self {
            Reason::None => "none",
            Reason::Error => "error",
            Reason::Eos => "eos",
            Reason::StateChange => "state-change-failure",
            Reason::Timeout => "timeout",
        }
    }
}

/// The state of the main source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Status {
    /// The source does not run, and will not be started again.
    #[default]
    Stopped,
    /// The source must start, or deliver data.
    Buffering,
    /// The source failed, and will be started again.
    Retrying,
    Running,
}

/// An action for the element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Start the source in a thread that may block. The answer is `handle_ready`, `handle_error` or `handle_start_failed`.
    Start(Run),
    /// Stop the source in a thread that may block. The answer is [`SourceCore::handle_stopped`].
    Stop(Run),
    /// Release the streams of a ready source.
    Release(Run),
    /// Hold the streams back. The answer is [`SourceCore::handle_ready`] when they are held.
    Hold(Run),
    /// Tell the output that the source has failed, so that the output does not wait for it.
    Fail(Run),
    /// Report to the application that the next start, the `number`-th in a row, is in `delay_ns`.
    Retry {
        source: SourceId,
        reason: Reason,
        number: u32,
        delay_ns: u64,
    },
    /// Report to the application that the source will not be restarted.
    GiveUp {
        source: SourceId,
        reason: Reason,
    },
    /// Post an error of the element: there is no source left to wait for.
    Fatal {
        reason: Reason,
    },
    /// End the output, because the main source has ended: no other source may continue it.
    EndOutput,
    /// Start or stop silence or black.
    Fill(Kind, bool),
    StatusChanged,
    /// Report that counters have changed.
    Counted,
}

/// Counters for the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) retries: u64,
    pub(super) last_reason: Reason,
    pub(super) buffering_percent: u32,
}

#[derive(Debug, Default)]
pub(super) struct SourceCore {
    settings: Settings,
    sources: Vec<Source>,
    outputs: Outputs,
    is_started: bool,
    /// Whether the element plays, so that time advances.
    is_playing: bool,
    is_unblocked: bool,
    /// Whether the main source has ended, so that nothing is started again.
    has_ended: bool,
    has_given_up: bool,
    /// Start of the clock.
    started_ns: Option<u64>,
    /// Start of the time in which no source delivers.
    outage_ns: Option<u64>,
    status: Status,
    last_number: u32,
    /// The latest time so far.
    now_ns: u64,
    actions: VecDeque<Action>,
}

/// Life of the element.
impl SourceCore {
    pub(super) fn handle_settings(&mut self, now_ns: u64, settings: Settings) {
        self.now_ns = now_ns;
        self.settings = settings;
        self.decide();
    }

    /// Starts with this number of sources, and these outputs.
    pub(super) fn handle_start(&mut self, sources: usize, kinds: &[Kind]) {
        self.sources.clear();
        self.sources.resize_with(sources, Source::default);
        self.outputs = Outputs::new(kinds, sources);
        (self.is_started, self.is_unblocked) = (true, false);
        (self.has_ended, self.has_given_up) = (false, false);
        (self.started_ns, self.outage_ns, self.now_ns) = (None, None, 0);
        self.decide();
    }

    /// Stops. The element itself stops all sources, and events of earlier runs are ignored.
    pub(super) fn handle_stop(&mut self) {
        self.actions.clear();
        for source in &mut self.sources {
            source.life = Life::Idle;
        }
        self.outputs = Outputs::default();
        (self.is_started, self.is_playing) = (false, false);
        self.tell_status();
    }

    /// Starts or stops the time.
    pub(super) fn handle_playing(&mut self, now_ns: u64, is_playing: bool) {
        self.now_ns = now_ns;
        self.is_playing = is_playing;
        if is_playing {
            self.started_ns.get_or_insert(now_ns);
            self.outage_ns.get_or_insert(now_ns);
            // No data could arrive in the pause.
            for source in &mut self.sources {
                source.life.hear(now_ns);
            }
        }
        self.decide();
    }

    /// Handles the application's request to release the sources.
    pub(super) fn handle_unblock(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.is_unblocked = true;
        self.release_ready();
        self.decide();
    }

    pub(super) fn handle_timeout(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.decide();
    }
}

/// Events of a run.
impl SourceCore {
    /// Notes that the source is running. A live source has its own times, and its data may arrive at any time.
    pub(super) fn handle_started(&mut self, now_ns: u64, run: Run, is_live: bool) {
        if let Some(source) = self.at(now_ns, run) {
            source.is_live = is_live;
            if is_live && source.is_ready() {
                self.actions.push_back(Action::Release(run));
                self.begin_to_run(run);
            }
            self.decide();
        }
    }

    /// Notes that the source could not be started.
    pub(super) fn handle_start_failed(&mut self, now_ns: u64, run: Run) {
        self.fail(now_ns, run, Reason::StateChange);
    }

    /// Notes that all streams of a run, of these kinds, have arrived and are held at their start.
    pub(super) fn handle_ready(&mut self, now_ns: u64, run: Run, kinds: &[Kind]) {
        if let Some(source) = self.at(now_ns, run) {
            source.life.become_ready();
            for kind in [Kind::Audio, Kind::Video] {
                let is_absent = !kinds.contains(&kind);
                self.outputs.set_absent(kind, run.source, is_absent);
            }
            self.release_ready();
            self.decide();
        }
    }

    /// Notes that data has arrived, from a live source or after the release.
    pub(super) fn handle_data(&mut self, now_ns: u64, run: Run) {
        let Some(source) = self.at(now_ns, run) else {
            return;
        };
        if source.life.hear(now_ns) {
            return;
        }
        if source.is_live {
            self.begin_to_run(run);
        }
        self.decide();
    }

    /// Notes that the source is a picture, which has been stored. The picture is repeated forever, and the source is not needed
    /// any more.
    pub(super) fn handle_still(&mut self, now_ns: u64, run: Run) {
        if let Some(source) = self.at(now_ns, run) {
            source.has_still = true;
            self.outputs.set_absent(Kind::Audio, run.source, true);
            // The source of a stored picture is stopped.
            self.decide();
        }
    }

    pub(super) fn handle_buffering(&mut self, now_ns: u64, run: Run, percent: u32) {
        let Some(source) = self.at(now_ns, run) else {
            return;
        };
        let has_changed = source.percent.replace(percent) != Some(percent);
        if has_changed {
            source.life.hear(now_ns);
            self.actions.push_back(Action::Counted);
        }
        if percent < FULL_PERCENT {
            self.hold(run);
        }
        self.release_ready();
        self.decide();
    }

    pub(super) fn handle_error(&mut self, now_ns: u64, run: Run) {
        self.fail(now_ns, run, Reason::Error);
    }

    /// Notes that all streams of a run have ended.
    pub(super) fn handle_eos(&mut self, now_ns: u64, run: Run) {
        if self.passes_eos(run.source) {
            let Some(source) = self.at(now_ns, run) else {
                return;
            };
            source.life = Life::Ended;
            self.end();
            self.decide();
            return;
        }
        self.fail(now_ns, run, Reason::Eos);
    }

    /// Notes that the source has been stopped. `random` is a uniformly distributed number.
    pub(super) fn handle_stopped(&mut self, now_ns: u64, run: Run, random: u64) {
        let Some(source) = self.at(now_ns, run) else {
            return;
        };
        let Life::Stopping { why } = source.life else {
            return;
        };
        source.life = Life::Idle;
        // Data that the source sent before its failure may have arrived after it.
        let fails = source.failures > 0 && !source.has_still;
        self.actions.extend(fails.then_some(Action::Fail(run)));
        if let Some(reason) = why {
            self.retry(run, reason, random);
        }
        self.decide();
    }
}

/// Reports of the outputs.
impl SourceCore {
    /// Notes the health of a source's stream, as judged by the output of this kind.
    pub(super) fn handle_health(
        &mut self,
        now_ns: u64,
        kind: Kind,
        source: SourceId,
        is_healthy: bool,
    ) {
        self.now_ns = now_ns;
        self.outputs.set_healthy(kind, source, is_healthy);
        self.decide();
    }

    /// Notes the end of a stream of the main source. If the output of this kind was passing that stream, the output ends, too.
    pub(super) fn handle_stream_end(&mut self, now_ns: u64, kind: Kind) {
        self.now_ns = now_ns;
        self.outputs.end(kind);
        self.decide();
    }

    /// Notes the source that passes now. `None` means silence or black.
    pub(super) fn handle_active(&mut self, now_ns: u64, kind: Kind, active: Option<SourceId>) {
        self.now_ns = now_ns;
        self.outputs.set_active(kind, active);
        self.decide();
    }
}

impl SourceCore {
    /// Returns the source of a run, if the run is its current one.
    fn at(&mut self, now_ns: u64, run: Run) -> Option<&mut Source> {
        self.now_ns = now_ns;
        let is_started = self.is_started;
        let source = self.sources.get_mut(run.source)?;
        (is_started && source.number == run.number).then_some(source)
    }

    fn fail(&mut self, now_ns: u64, run: Run, reason: Reason) {
        if self.at(now_ns, run).is_some_and(|source| source.runs()) {
            self.fail_run(run, reason);
        }
        self.decide();
    }

    /// Stops the source, and restarts it unless that was its last retry.
    fn fail_run(&mut self, run: Run, reason: Reason) {
        let source = &mut self.sources[run.source];
        source.note_failure(self.now_ns, reason, &self.settings);
        let retries_max = self.settings.retries_max.unwrap_or(u32::MAX);
        source.is_given_up = source.failures > retries_max;
        if source.failures > 0 {
            self.actions.push_back(Action::Fail(run));
        }
        let why = (!source.is_given_up).then_some(reason);
        source.stop(run, why, &mut self.actions);
        if source.is_given_up {
            let source = run.source;
            self.actions.push_back(Action::GiveUp { source, reason });
        }
    }

    /// Restarts the source after a pause. The run has been stopped.
    fn retry(&mut self, run: Run, reason: Reason, random: u64) {
        let source = &mut self.sources[run.source];
        let delay_ns = source.delay_ns(&self.settings, random);
        source.life = Life::Waiting {
            until_ns: self.now_ns.saturating_add(delay_ns),
        };
        source.retries += 1;
        source.last_reason = reason;
        let number = source.failures;
        let source = run.source;
        self.actions.extend([
            Action::Retry {
                source,
                reason,
                number,
                delay_ns,
            },
            Action::Counted,
        ]);
    }

    fn hold(&mut self, run: Run) {
        let now_ns = self.now_ns;
        let source = &mut self.sources[run.source];
        if !source.is_live && matches!(source.life, Life::Running { .. }) {
            source.life = Life::Starting {
                since_ns: now_ns,
                is_ready: false,
            };
            self.actions.push_back(Action::Hold(run));
        }
    }

    /// Releases all sources that are ready and whose streams may start.
    fn release_ready(&mut self) {
        let may_begin = !self.settings.manual_unblock || self.is_unblocked;
        for id in 0..self.sources.len() {
            let source = &self.sources[id];
            let is_full = source.percent.is_none_or(|percent| percent >= FULL_PERCENT);
            if source.is_ready() && (source.is_live || (may_begin && is_full)) {
                let run = source.run(id);
                self.actions.push_back(Action::Release(run));
                self.begin_to_run(run);
            }
        }
    }

    fn begin_to_run(&mut self, run: Run) {
        let source = &mut self.sources[run.source];
        source.begun_ns.get_or_insert(self.now_ns);
        source.life = Life::Running {
            since_ns: self.now_ns,
            last_ns: self.now_ns,
        };
    }

    fn end(&mut self) {
        self.has_ended = true;
        for id in MAIN + 1..self.sources.len() {
            let source = &mut self.sources[id];
            let run = source.run(id);
            source.has_still = false;
            source.stop(run, None, &mut self.actions);
            if matches!(source.life, Life::Waiting { .. }) {
                source.life = Life::Idle;
            }
        }
        self.actions.push_back(Action::EndOutput);
    }

    /// Decides everything that is due; called after each relevant event.
    fn decide(&mut self) {
        if self.is_started {
            self.restart_silent();
            self.give_all_up();
            self.start_and_stop();
            self.weigh_outage();
            self.decide_fill();
        }
        self.tell_status();
    }

    /// Starts the needed sources and stops the others.
    fn start_and_stop(&mut self) {
        for id in 0..self.sources.len() {
            let is_wanted = self.is_wanted(id);
            let now_ns = self.now_ns;
            let source = &mut self.sources[id];
            let is_due = match source.life {
                Life::Idle => true,
                Life::Waiting { until_ns } => self.is_playing && until_ns <= now_ns,
                _ => false,
            };
            if is_wanted && is_due {
                self.last_number = self.last_number.wrapping_add(1);
                source.start(now_ns, self.last_number);
                self.actions.push_back(Action::Start(source.run(id)));
            } else if !is_wanted && source.runs() {
                let run = source.run(id);
                source.stop(run, None, &mut self.actions);
            }
        }
    }

    fn is_wanted(&self, id: SourceId) -> bool {
        let source = &self.sources[id];
        if self.has_ended && id != MAIN || source.is_given_up || source.has_still {
            return false;
        }
        if id <= MAIN + 1 {
            return true;
        }
        // A later source continues until another source passes. Before it is stopped, an earlier source must have delivered for
        // some time, so that the earlier one is not expected to fail again at once.
        let before = &self.sources[..id];
        let settings = &self.settings;
        match source.runs() {
            true if self.outputs.is_active(id) => true,
            true => !(before.iter()).any(|other| other.is_settled(self.now_ns, settings)),
            false => (before.iter()).all(|other| other.is_failing(self.now_ns, settings)),
        }
    }

    /// Restarts sources that deliver nothing.
    fn restart_silent(&mut self) {
        if !self.is_playing {
            return;
        }
        for id in 0..self.sources.len() {
            let silent_ns = self.sources[id].silent_until_ns(&self.settings);
            if silent_ns.is_some_and(|ns| ns <= self.now_ns) {
                let run = self.sources[id].run(id);
                self.fail_run(run, Reason::Timeout);
            }
        }
    }

    /// Gives up all sources if none can be restarted, or if nothing has arrived for too long.
    fn give_all_up(&mut self) {
        let are_given_up = self.sources.iter().all(|source| source.is_given_up);
        let is_over = self.gives_up_ns().is_some_and(|ns| ns <= self.now_ns);
        if !(self.is_playing && is_over || are_given_up) || self.has_given_up {
            return;
        }
        self.has_given_up = true;
        let reason = self.sources[MAIN].last_failure;
        for id in 0..self.sources.len() {
            let source = &mut self.sources[id];
            source.is_given_up = true;
            let run = source.run(id);
            source.stop(run, None, &mut self.actions);
            match &mut source.life {
                Life::Stopping { why } => *why = None,
                life @ Life::Waiting { .. } => *life = Life::Idle,
                _ => {}
            }
        }
        self.actions.push_back(Action::Fatal { reason });
    }

    fn weigh_outage(&mut self) {
        if self.sources.iter().any(Source::delivers) {
            self.outage_ns = None;
        } else if self.started_ns.is_some() {
            self.outage_ns.get_or_insert(self.now_ns);
        }
    }

    fn gives_up_ns(&self) -> Option<u64> {
        let since_ns = self.outage_ns.filter(|_| !self.has_given_up)?;
        Some(since_ns.saturating_add(self.settings.retry_timeout_ns))
    }
}

/// Outputs.
impl SourceCore {
    pub(super) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(super) fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Returns the next time at which something changes without an event. If [`SourceCore::handle_timeout`] is called at that
    /// time, the next result is later.
    pub(super) fn next_timeout(&self) -> Option<u64> {
        if !self.is_playing {
            return None;
        }
        let settings = &self.settings;
        let of_sources = self.sources.iter().flat_map(|source| {
            let pause = match source.life {
                Life::Waiting { until_ns } => Some(until_ns),
                _ => None,
            };
            [
                pause,
                source.silent_until_ns(settings),
                source.settles_ns(settings),
                source.fails_ns(settings),
            ]
        });
        let others = [self.gives_up_ns(), self.start_ends_ns()];
        let all = of_sources.chain(others).flatten();
        all.filter(|ns| *ns > self.now_ns).min()
    }

    /// Whether this is the current run of its source, and the source is not being stopped.
    pub(super) fn is_current(&self, run: Run) -> bool {
        let source = self.sources.get(run.source);
        self.is_started && source.is_some_and(|source| source.number == run.number && source.runs())
    }

    /// Whether the end of this source's streams ends the output, instead of restarting the source.
    pub(super) fn passes_eos(&self, id: SourceId) -> bool {
        id == MAIN && !self.settings.restart_on_eos
    }

    /// Whether the output of this kind has ended with the main source's stream.
    pub(super) fn has_output_ended(&self, kind: Kind) -> bool {
        self.outputs.has_ended(kind)
    }

    pub(super) fn status(&self) -> Status {
        self.status
    }

    pub(super) fn counters(&self, id: SourceId) -> Counters {
        let none = Source::default();
        let source = self.sources.get(id).unwrap_or(&none);
        Counters {
            retries: source.retries,
            last_reason: source.last_reason,
            buffering_percent: source.percent.unwrap_or(FULL_PERCENT),
        }
    }

    fn tell_status(&mut self) {
        let status = match self.sources.first() {
            Some(main) if self.is_started => main.status(),
            _ => Status::Stopped,
        };
        if std::mem::replace(&mut self.status, status) != status {
            self.actions.push_back(Action::StatusChanged);
        }
    }
}

const SECOND_NS: u64 = 1_000_000_000;
const FULL_PERCENT: u32 = 100;
