//! The life of a sink: the next item, its wait, and the messages to the application. It uses no clock, lock or GObject.
//!
//! A sink has two states. [`Life`] follows the state changes of the element and the loss of its state by a flush:
//!
//! | life | start | play | pause | stop | flush starts | an item arrives |
//! |---|---|---|---|---|---|---|
//! | `Stopped` | `Prerolling`; `Paused` if not asynchronous | | | | | refused |
//! | `Prerolling` | | `Playing`: asynchronous change done | | `Stopped` | state lost | held; `Paused`: change committed |
//! | `Paused` | | `Playing` | | `Stopped` | `Prerolling`: state lost, if asynchronous | held |
//! | `Playing` | | | `Prerolling` if nothing is held and more will come, else `Paused` | `Stopped` | `Prerolling`: state lost, if asynchronous | held until its time |
//!
//! [`Stream`] follows the events of the stream: `Open`, `Flushing` between FLUSH_START and FLUSH_STOP, `Ending` from the
//! arrival of the EOS, `Ended` from its turn.
//!
//! Items leave in the order of arrival: [`SinkCore::next`] returns the action for the first one, and [`SinkCore::finish`] removes
//! it. All times are running times in nanoseconds; the current time is negative before the base time.

use std::collections::VecDeque;

use crate::kit::locked::Discarded;

/// An item of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item<D, E> {
    /// Rendered at its time.
    Data(D, When),
    /// Passed to the renderer after all earlier items.
    Event(E),
    /// Represents missing data.
    Gap(When),
    /// The end of the stream, which takes effect at the end of the previous item.
    End,
}

/// The time of an item. It is computed with the segment that is valid when the item arrives, because the next segment may arrive
/// while the item waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// Without a timestamp or segment.
    Now,
    /// From `begin_ns` to `end_ns`, which are equal for an unknown duration.
    At { begin_ns: u64, end_ns: u64 },
    /// Outside of the segment: not rendered.
    Never,
}

/// Settings and measured delays, for [`SinkCore::next`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Timing {
    /// Whether items wait for their time.
    pub(super) sync: bool,
    /// The time that is added to that of each item: the latency of the pipeline and the offset, without the delay of the
    /// renderer.
    pub(super) delay_ns: i64,
    /// Data is dropped if its end is later than this.
    pub(super) max_lateness_ns: Option<u64>,
}

/// The action for the first item.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a, D, E> {
    /// Render it. The number is its lateness in ns, if it has a time.
    Render(&'a D, Option<i64>),
    /// Drop it: it is this many ns late, or outside of the segment.
    Drop(&'a D, Option<i64>),
    /// Pass it to the renderer.
    Event(&'a E),
    /// Do nothing: a gap is over.
    Skip,
    /// End the stream.
    End,
    /// Wait until this running time.
    Until(u64),
    /// Wait for PLAYING.
    Paused,
    /// No item is queued.
    Empty,
    /// The element has stopped, or the stream flushes.
    Gone,
}

/// Actions of the element after an input, in addition to waking the waiters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Actions {
    /// Announce an asynchronous change to the parent, then call [`SinkCore::handle_announced`].
    pub(super) announce: bool,
    /// Commit the asynchronous state change.
    pub(super) commit: bool,
    /// Post that an asynchronous state change ended without data.
    pub(super) async_done: bool,
    /// Post that the state is lost until data arrives again.
    pub(super) lose_state: bool,
    /// Post the EOS message again: the application got it before the pause.
    pub(super) repeat_eos: bool,
    /// Show the arriving data to the renderer: it is the first in PAUSED.
    pub(super) preroll: bool,
}

/// Why an item is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// The element has stopped, or the stream flushes.
    Flushing,
    /// The stream has ended.
    Ended,
}

/// A state change of the element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// READY to PAUSED; whether the change waits for data.
    Start { asynchronous: bool },
    /// PAUSED to PLAYING.
    Play,
    /// PLAYING to PAUSED.
    Pause,
    /// PAUSED to READY.
    Stop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Stopped,
    Prerolling,
    Paused,
    Playing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Open,
    Flushing,
    Ending,
    Ended,
}

/// State of a sink.
///
/// The layout is fixed: fields used for each item come first.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SinkCore<D, E> {
    items: VecDeque<Item<D, E>>,
    life: Life,
    stream: Stream,
    /// Whether the element's changes to PAUSED wait for data.
    asynchronous: bool,
    /// Whether the asynchronous change is not announced to the parent yet. Its end must not be posted before its announcement.
    is_unannounced: bool,
    rendered: u64,
    /// Removed items, which must not be dropped under the lock.
    discarded: Discarded<Item<D, E>>,
    /// Number of the first item.
    first: u64,
    /// The latest end of the data and gaps so far.
    end_ns: Option<u64>,
    /// Whether `end_ns` belongs to an earlier stream.
    is_past_end: bool,
    /// Whether the renderer has started with the first item and waits for room for the rest. Such an item is not dropped for
    /// being late.
    has_begun: bool,
    /// Start of the data rendered last. Until data is rendered, it is the start of the first data dropped.
    rendered_ns: Option<u64>,
    dropped: u64,
}

impl<D, E> Default for SinkCore<D, E> {
    fn default() -> Self {
        SinkCore {
            life: Life::Stopped,
            stream: Stream::Open,
            asynchronous: false,
            is_unannounced: false,
            items: VecDeque::new(),
            first: 0,
            end_ns: None,
            is_past_end: false,
            has_begun: false,
            rendered_ns: None,
            rendered: 0,
            dropped: 0,
            discarded: Discarded::default(),
        }
    }
}

impl<D, E> SinkCore<D, E> {
    /// Handles a state change of the element.
    pub(super) fn handle_change(&mut self, change: Change) -> Actions {
        let mut actions = Actions::default();
        match (change, self.life) {
            (Change::Start { asynchronous }, Life::Stopped) => {
                self.begin_stream();
                self.asynchronous = asynchronous;
                self.life = self.life_without_data();
            }
            (Change::Play, Life::Prerolling) => {
                self.life = Life::Playing;
                actions.async_done = true;
            }
            (Change::Play, Life::Paused) => {
                self.life = Life::Playing;
                actions.repeat_eos = self.stream == Stream::Ended;
            }
            (Change::Pause, Life::Playing) => {
                let has_data = !self.items.is_empty() || self.has_end();
                self.life = if has_data {
                    Life::Paused
                } else {
                    self.life_without_data()
                };
                self.is_unannounced = self.life == Life::Prerolling;
                actions.announce = self.is_unannounced;
            }
            (Change::Stop, _) => {
                // The parent waits for the end of a preroll that will not happen.
                actions.async_done = self.life == Life::Prerolling;
                self.life = Life::Stopped;
                self.is_unannounced = false;
                self.drop_items();
            }
            _ => {}
        }
        actions
    }

    /// Records that the asynchronous change was announced to the parent. If data has arrived in the meantime, the change ends.
    pub(super) fn handle_announced(&mut self) -> Actions {
        self.is_unannounced = false;
        let has_data = self
            .items
            .iter()
            .any(|item| !matches!(item, Item::Event(_)));
        let commit = self.life == Life::Prerolling && has_data;
        if commit {
            self.life = Life::Paused;
        }
        Actions {
            commit,
            ..Actions::default()
        }
    }

    /// Starts a flush: drops all held items.
    pub(super) fn handle_flush_start(&mut self) -> Actions {
        self.drop_items();
        self.stream = Stream::Flushing;
        let lose_state = self.asynchronous && self.life != Life::Stopped;
        if lose_state {
            self.life = Life::Prerolling;
        }
        Actions {
            lose_state,
            ..Actions::default()
        }
    }

    /// Ends a flush.
    pub(super) fn handle_flush_stop(&mut self) {
        self.drop_items();
        self.begin_stream();
    }

    /// Starts a stream. If an earlier stream has ended, its end does not count any more.
    pub(super) fn handle_stream_start(&mut self) {
        if self.has_end() {
            self.stream = Stream::Open;
        }
    }

    /// Handles an arriving item.
    ///
    /// # Errors
    /// Fails with the reason if the item is refused. The item is then discarded.
    #[inline]
    pub(super) fn handle_item(&mut self, item: Item<D, E>) -> Result<Actions, Refused> {
        if let Err(refused) = self.admit() {
            self.discarded.add(item);
            return Err(refused);
        }
        let mut actions = Actions {
            preroll: self.life != Life::Playing
                && matches!(item, Item::Data(..))
                && !self.items.iter().any(|held| matches!(held, Item::Data(..))),
            ..Actions::default()
        };
        let is_event = matches!(item, Item::Event(_));
        if self.life == Life::Prerolling && !is_event && !self.is_unannounced {
            self.life = Life::Paused;
            actions.commit = true;
        }
        if matches!(item, Item::End) {
            self.stream = Stream::Ending;
        }
        self.items.push_back(item);
        Ok(actions)
    }

    /// Checks whether an item would be accepted.
    ///
    /// # Errors
    /// Fails with the reason if an item would be refused.
    #[inline]
    pub(super) fn admit(&self) -> Result<(), Refused> {
        match (self.life, self.stream) {
            (Life::Stopped, _) | (_, Stream::Flushing) => Err(Refused::Flushing),
            (_, Stream::Ending | Stream::Ended) => Err(Refused::Ended),
            (_, Stream::Open) => Ok(()),
        }
    }

    /// Returns the action for the first item. `now_ns` is `None` without a clock; in this case, no item waits for its time.
    #[inline]
    pub(super) fn next(&self, timing: &Timing, now_ns: Option<i64>) -> Next<'_, D, E> {
        if self.is_gone() {
            return Next::Gone;
        }
        let Some(item) = self.items.front() else {
            return Next::Empty;
        };
        if self.life != Life::Playing {
            return Next::Paused;
        }
        match item {
            Item::Event(event) => Next::Event(event),
            Item::Data(data, When::Never) => Next::Drop(data, None),
            Item::Data(data, when) => {
                let lateness_ns = timing.lateness_ns(when.begin_ns(), now_ns);
                match lateness_ns {
                    _ if self.has_begun => Next::Render(data, lateness_ns),
                    Some(early_ns) if early_ns < 0 => Next::until(now_ns, early_ns),
                    Some(late_ns)
                        if timing.is_too_late(late_ns, *when) && !self.is_overdue(*when) =>
                    {
                        Next::Drop(data, lateness_ns)
                    }
                    _ => Next::Render(data, lateness_ns),
                }
            }
            Item::Gap(when) => match timing.lateness_ns(when.begin_ns(), now_ns) {
                Some(early_ns) if early_ns < 0 => Next::until(now_ns, early_ns),
                _ => Next::Skip,
            },
            Item::End => match timing.lateness_ns(self.end_ns, now_ns) {
                Some(early_ns) if early_ns < 0 => Next::until(now_ns, early_ns),
                _ => Next::End,
            },
        }
    }

    /// Whether nothing was rendered for so long that even late data is rendered, so that the user sees something. The stock sinks
    /// also render late data in this case.
    fn is_overdue(&self, when: When) -> bool {
        let since_ns = |(begin_ns, last_ns): (u64, u64)| begin_ns.saturating_sub(last_ns);
        let passed_ns = when.begin_ns().zip(self.rendered_ns).map(since_ns);
        passed_ns.is_some_and(|ns| ns > LATE_ONLY_NS_MAX)
    }

    /// Whether the first item is rendered, in spite of its lateness, only because nothing was rendered for so long.
    pub(super) fn is_rendered_late(&self, timing: &Timing, lateness_ns: Option<i64>) -> bool {
        let (Some(Item::Data(_, when)), Some(late_ns)) = (self.items.front(), lateness_ns) else {
            return false;
        };
        timing.is_too_late(late_ns, *when) && self.is_overdue(*when)
    }

    /// Removes the first item: it was rendered, dropped (`is_dropped`) or handled otherwise.
    #[inline]
    pub(super) fn finish(&mut self, is_dropped: bool) {
        let Some(item) = self.items.pop_front() else {
            return;
        };
        self.first += 1;
        self.has_begun = false;
        match &item {
            &Item::Data(_, when) => {
                self.reach(when);
                if !is_dropped || self.rendered_ns.is_none() {
                    self.rendered_ns = when.begin_ns().or(self.rendered_ns);
                }
                if is_dropped {
                    self.dropped += 1;
                } else {
                    self.rendered += 1;
                }
            }
            &Item::Gap(when) => self.reach(when),
            Item::Event(_) => {}
            Item::End => {
                self.is_past_end = true;
                // A later stream may have started, and its end may be queued, too.
                let is_last = !self.items.iter().any(|held| matches!(held, Item::End));
                if self.stream == Stream::Ending && is_last {
                    self.stream = Stream::Ended;
                }
            }
        }
        self.discarded.add(item);
    }

    /// Records that the renderer has started the first item and has no room for the rest. From now on, only a flush or a stop
    /// drops the item.
    pub(super) fn handle_begun(&mut self) {
        self.has_begun = true;
    }

    /// Whether discarded items wait to be dropped.
    #[inline]
    pub(super) fn has_discarded(&self) -> bool {
        !self.discarded.is_empty()
    }

    /// Takes items to be dropped after the unlock.
    #[inline]
    pub(super) fn take_discarded(&mut self) -> Option<Discarded<Item<D, E>>> {
        self.discarded.take()
    }

    /// Removes the first item, which could not be rendered. It counts neither as rendered nor as dropped.
    pub(super) fn give_up(&mut self) {
        if let Some(item) = self.items.pop_front() {
            self.first += 1;
            self.has_begun = false;
            self.discarded.add(item);
        }
    }

    fn reach(&mut self, when: When) {
        let before = self.end_ns.filter(|_| !self.is_past_end);
        self.is_past_end = false;
        self.end_ns = before.max(when.end_ns());
    }

    /// Whether data is rendered at once, because no item is before it and it need not wait.
    #[inline]
    pub(super) fn passes_at_once(&self, timing: &Timing) -> bool {
        self.life == Life::Playing
            && self.stream == Stream::Open
            && self.items.is_empty()
            && !timing.sync
    }

    /// Counts data that passed at once.
    #[inline]
    pub(super) fn count_passed(&mut self) {
        self.rendered += 1;
    }

    /// Whether waits end: the element has stopped, or the stream flushes.
    pub(super) fn is_gone(&self) -> bool {
        self.life == Life::Stopped || self.stream == Stream::Flushing
    }

    pub(super) fn is_playing(&self) -> bool {
        self.life == Life::Playing
    }

    /// Whether the state change waits for data.
    #[cfg(test)]
    pub(super) fn is_prerolling(&self) -> bool {
        self.life == Life::Prerolling
    }

    /// Whether the stream's end has taken effect.
    pub(super) fn has_ended(&self) -> bool {
        self.stream == Stream::Ended
    }

    /// Returns the data that arrived last, if it is still held.
    pub(super) fn newest(&self) -> Option<&D> {
        match self.items.back() {
            Some(Item::Data(data, _)) => Some(data),
            _ => None,
        }
    }

    /// Returns the first item.
    pub(super) fn first_item(&self) -> Option<&Item<D, E>> {
        self.items.front()
    }

    /// Returns the first item, if it is data that waits for its time. A paused sink shows this data.
    pub(super) fn waiting(&self) -> Option<&D> {
        match self.items.front() {
            Some(Item::Data(data, _)) if !self.has_begun => Some(data),
            _ => None,
        }
    }

    /// Whether the stream's end is the next item, without data before it.
    pub(super) fn is_end_next(&self) -> bool {
        matches!(self.items.front(), Some(Item::End))
    }

    /// Returns the number of items held.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns the number of the item that arrived last, or of the next item if none is held.
    pub(super) fn newest_number(&self) -> u64 {
        (self.first + self.items.len() as u64).saturating_sub(1)
    }

    /// Whether the item of this number has left, rendered or dropped.
    pub(super) fn has_left(&self, number: u64) -> bool {
        number < self.first
    }

    /// Returns the number of items that have left.
    pub(super) fn left(&self) -> u64 {
        self.first
    }

    /// Returns how many data items were rendered, and how many were dropped because they were late or outside of the segment.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.rendered, self.dropped)
    }

    fn has_end(&self) -> bool {
        matches!(self.stream, Stream::Ending | Stream::Ended)
    }

    fn life_without_data(&self) -> Life {
        if self.asynchronous {
            Life::Prerolling
        } else {
            Life::Paused
        }
    }

    fn begin_stream(&mut self) {
        self.rendered_ns = None;
        self.stream = Stream::Open;
        self.end_ns = None;
    }

    fn drop_items(&mut self) {
        self.first += self.items.len() as u64;
        self.discarded.extend(self.items.drain(..));
        self.has_begun = false;
        self.end_ns = None;
    }
}

impl When {
    fn begin_ns(self) -> Option<u64> {
        match self {
            When::At { begin_ns, .. } => Some(begin_ns),
            When::Now | When::Never => None,
        }
    }

    fn end_ns(self) -> Option<u64> {
        match self {
            When::At { end_ns, .. } => Some(end_ns),
            When::Now | When::Never => None,
        }
    }
}

impl Timing {
    /// Returns the current time, minus the time of an item. `None`: the item need not wait.
    fn lateness_ns(&self, due_ns: Option<u64>, now_ns: Option<i64>) -> Option<i64> {
        let (due_ns, now_ns) = (due_ns.filter(|_| self.sync)?, now_ns?);
        let due_ns = signed(due_ns).saturating_add(self.delay_ns).max(0);
        Some(now_ns.saturating_sub(due_ns))
    }

    /// Whether data is too late. If data has a duration, its lateness counts from its end.
    fn is_too_late(&self, late_ns: i64, when: When) -> bool {
        let span_ns = match when {
            When::At { begin_ns, end_ns } => end_ns - begin_ns,
            When::Now | When::Never => 0,
        };
        self.max_lateness_ns.is_some_and(|max_ns| {
            late_ns > 0 && late_ns.unsigned_abs() > max_ns.saturating_add(span_ns)
        })
    }
}

impl<D, E> Next<'_, D, E> {
    fn until(now_ns: Option<i64>, early_ns: i64) -> Self {
        let due_ns = now_ns.unwrap_or_default().saturating_sub(early_ns);
        Next::Until(due_ns.max(0).unsigned_abs())
    }
}

/// Time without a render after which late data is rendered, as in the stock sinks.
const LATE_ONLY_NS_MAX: u64 = 1_000_000_000;

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
