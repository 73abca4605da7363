//! The life of a sink: which item is next, what it waits for, what the application is told. No clock, lock or GObject.
//!
//! Two states. [`Life`] follows the state changes of the element and the loss of its state by a flush:
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
//! Items leave in the order of arrival: [`SinkCore::next`] says what is to be done with the first one, and
//! [`SinkCore::finish`] removes it. All times are running times in nanoseconds; the present is negative before the base time.

use std::collections::VecDeque;

use crate::kit::locked::Discarded;

/// An item of the stream, in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item<D, E> {
    /// To be rendered at its time.
    Data(D, When),
    /// For the renderer, behind all earlier items.
    Event(E),
    /// Stands for missing data.
    Gap(When),
    /// The end of the stream: takes effect at the end of the last item before.
    End,
}

/// The time of an item, by the segment valid at its arrival: the next segment may come while it waits.
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
    /// Items wait for their time.
    pub(super) sync: bool,
    /// Added to the time of each item: the latency of the pipeline and the offset, less the delay of the renderer.
    pub(super) delay_ns: i64,
    /// Data whose end is later than this is dropped.
    pub(super) max_lateness_ns: Option<u64>,
}

/// What is to be done with the first item.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a, D, E> {
    /// Render it. `lateness_ns`: now less its time, if it has one.
    Render(&'a D, Option<i64>),
    /// Drop it: too late by this, or outside of the segment.
    Drop(&'a D, Option<i64>),
    /// Give it to the renderer.
    Event(&'a E),
    /// Nothing: a gap is over.
    Skip,
    /// End the stream.
    End,
    /// Wait until this running time.
    Until(u64),
    /// Wait for PLAYING.
    Paused,
    /// There is no item.
    Empty,
    /// The element has stopped, or the stream flushes.
    Gone,
}

/// What the element has to do after an input, besides waking the waiters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Actions {
    /// Tell the parent of an asynchronous change, then [`SinkCore::handle_announced`].
    pub(super) announce: bool,
    /// Commit the asynchronous state change.
    pub(super) commit: bool,
    /// Say that an asynchronous state change ended without data.
    pub(super) async_done: bool,
    /// Tell the parent that the state is lost until data comes again.
    pub(super) lose_state: bool,
    /// Post the EOS message again: the application was told before it paused.
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

/// The life of a sink.
///
/// Laid out by hand: the fields of each item come first.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SinkCore<D, E> {
    items: VecDeque<Item<D, E>>,
    life: Life,
    stream: Stream,
    /// The element's changes to PAUSED wait for data.
    asynchronous: bool,
    /// The parent has not heard yet that this one does: it must not hear of its end first.
    is_unannounced: bool,
    rendered: u64,
    /// Removed, and not to be dropped under the lock.
    discarded: Discarded<Item<D, E>>,
    /// Number of the first item.
    first: u64,
    /// The latest end of the data and gaps so far.
    end_ns: Option<u64>,
    /// That was of an earlier stream.
    is_past_end: bool,
    /// The renderer has begun with the first item, and waits for room: the time of the item has been.
    has_begun: bool,
    /// Begin of the data rendered last, and of the first.
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
    /// A state change of the element.
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
                // The parent waits for the end of a preroll that will not come.
                actions.async_done = self.life == Life::Prerolling;
                self.life = Life::Stopped;
                self.is_unannounced = false;
                self.drop_items();
            }
            _ => {}
        }
        actions
    }

    /// The parent has heard of the asynchronous change. What came meanwhile ends it.
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

    /// A flush starts: everything held is dropped.
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

    /// A flush ends.
    pub(super) fn handle_flush_stop(&mut self) {
        self.drop_items();
        self.begin_stream();
    }

    /// A stream starts: an earlier end is void.
    pub(super) fn handle_stream_start(&mut self) {
        if self.has_end() {
            self.stream = Stream::Open;
        }
    }

    /// An item arrives.
    ///
    /// # Errors
    /// The item is discarded.
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

    /// Whether an item would be accepted.
    ///
    /// # Errors
    /// Why not.
    #[inline]
    pub(super) fn admit(&self) -> Result<(), Refused> {
        match (self.life, self.stream) {
            (Life::Stopped, _) | (_, Stream::Flushing) => Err(Refused::Flushing),
            (_, Stream::Ending | Stream::Ended) => Err(Refused::Ended),
            (_, Stream::Open) => Ok(()),
        }
    }

    /// What is to be done with the first item. `now_ns`: `None` without a clock, when nothing waits for its time.
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

    /// Nothing was rendered for so long that data is rendered however late, as by the stock sinks: the user is to see something.
    fn is_overdue(&self, when: When) -> bool {
        let since_ns = |(begin_ns, last_ns): (u64, u64)| begin_ns.saturating_sub(last_ns);
        let passed_ns = when.begin_ns().zip(self.rendered_ns).map(since_ns);
        passed_ns.is_some_and(|ns| ns > LATE_ONLY_NS_MAX)
    }

    /// Whether the first item, with this lateness, is rendered for that reason only.
    pub(super) fn is_rendered_late(&self, timing: &Timing, lateness_ns: Option<i64>) -> bool {
        let (Some(Item::Data(_, when)), Some(late_ns)) = (self.items.front(), lateness_ns) else {
            return false;
        };
        timing.is_too_late(late_ns, *when) && self.is_overdue(*when)
    }

    /// The first item is rendered, dropped (`is_dropped`) or otherwise done with.
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
                // Another stream may have started behind it.
                let is_last = !self.items.iter().any(|held| matches!(held, Item::End));
                if self.stream == Stream::Ending && is_last {
                    self.stream = Stream::Ended;
                }
            }
        }
        self.discarded.add(item);
    }

    /// The renderer has begun with the first item and has no room for all of it. Only a flush or a stop drops the item now.
    pub(super) fn handle_begun(&mut self) {
        self.has_begun = true;
    }

    /// Whether something waits to be dropped.
    #[inline]
    pub(super) fn has_discarded(&self) -> bool {
        !self.discarded.is_empty()
    }

    /// What may be dropped after the unlock.
    #[inline]
    pub(super) fn take_discarded(&mut self) -> Option<Discarded<Item<D, E>>> {
        self.discarded.take()
    }

    /// The first item could not be rendered. It counts neither as rendered nor as dropped.
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

    /// Data passes without ever being held: nothing is before it, and no time is waited for.
    #[inline]
    pub(super) fn passes_at_once(&self, timing: &Timing) -> bool {
        self.life == Life::Playing
            && self.stream == Stream::Open
            && self.items.is_empty()
            && !timing.sync
    }

    /// Data passed at once.
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

    /// The data that arrived last, while it is held.
    pub(super) fn newest(&self) -> Option<&D> {
        match self.items.back() {
            Some(Item::Data(data, _)) => Some(data),
            _ => None,
        }
    }

    /// The first item.
    pub(super) fn first_item(&self) -> Option<&Item<D, E>> {
        self.items.front()
    }

    /// The data that waits for its time, as the first item: to be shown in a pause.
    pub(super) fn waiting(&self) -> Option<&D> {
        match self.items.front() {
            Some(Item::Data(data, _)) if !self.has_begun => Some(data),
            _ => None,
        }
    }

    /// Whether the stream's end is the next item: no data is before it.
    pub(super) fn is_end_next(&self) -> bool {
        matches!(self.items.front(), Some(Item::End))
    }

    /// Items held.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Number of the item that arrived last, or of the next one if none is held.
    pub(super) fn newest_number(&self) -> u64 {
        (self.first + self.items.len() as u64).saturating_sub(1)
    }

    /// Whether the item of this number has left, rendered or dropped.
    pub(super) fn has_left(&self, number: u64) -> bool {
        number < self.first
    }

    /// Items that have left.
    pub(super) fn left(&self) -> u64 {
        self.first
    }

    /// Data rendered, and dropped for being late or outside of the segment.
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
    /// Now less the time of an item; `None`: no time is waited for.
    fn lateness_ns(&self, due_ns: Option<u64>, now_ns: Option<i64>) -> Option<i64> {
        let (due_ns, now_ns) = (due_ns.filter(|_| self.sync)?, now_ns?);
        let due_ns = signed(due_ns).saturating_add(self.delay_ns).max(0);
        Some(now_ns.saturating_sub(due_ns))
    }

    /// Data with a duration is late after its end.
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

/// As the stock sinks have it.
const LATE_ONLY_NS_MAX: u64 = 1_000_000_000;

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Core = SinkCore<u32, char>;

    const SYNC: Timing = Timing {
        sync: true,
        delay_ns: 0,
        max_lateness_ns: None,
    };

    fn at(begin_ns: u64, end_ns: u64) -> When {
        When::At { begin_ns, end_ns }
    }

    fn playing() -> Core {
        let mut core = Core::default();
        core.handle_change(Change::Start {
            asynchronous: false,
        });
        core.handle_change(Change::Play);
        core
    }

    fn prerolling() -> Core {
        let mut core = Core::default();
        core.handle_change(Change::Start { asynchronous: true });
        core
    }

    #[test]
    fn what_could_not_be_rendered_leaves_and_is_not_counted() {
        let mut core = playing();
        for n in 0..2 {
            core.handle_item(Item::Data(n, When::Now)).unwrap();
        }
        core.give_up();
        let next = core.next(&Timing::default(), None);
        assert_eq!(next, Next::Render(&1, None));
        assert!(core.has_left(0) && !core.has_left(1));
        assert_eq!(core.counts(), (0, 0));
    }

    #[test]
    fn a_start_waits_for_data_and_commits_once() {
        let mut core = prerolling();
        assert!(core.is_prerolling());
        let first = core.handle_item(Item::Data(1, When::Now)).unwrap();
        assert!(first.commit && first.preroll);
        let second = core.handle_item(Item::Data(2, When::Now)).unwrap();
        assert_eq!(second, Actions::default());
        assert_eq!(core.next(&SYNC, Some(0)), Next::Paused);
        assert!(!core.handle_change(Change::Play).async_done);
        assert_eq!(core.next(&SYNC, Some(0)), Next::Render(&1, None));
    }

    #[test]
    fn a_gap_and_the_end_complete_a_start_and_an_event_does_not() {
        for (item, commits) in [
            (Item::Gap(When::Now), true),
            (Item::End, true),
            (Item::Event('e'), false),
        ] {
            let actions = prerolling().handle_item(item).unwrap();
            assert_eq!((actions.commit, actions.preroll), (commits, false));
        }
    }

    /// Data comes between a pause and the message of it: the parent would hear of the end first, and wait for another one for ever.
    #[test]
    fn data_ends_a_change_when_the_parent_has_heard_of_it() {
        for item in [Item::Data(1, When::Now), Item::Gap(When::Now), Item::End] {
            let mut core = prerolling();
            core.handle_change(Change::Play);
            assert!(core.handle_change(Change::Pause).announce);
            let actions = core.handle_item(item.clone()).unwrap();
            assert!(!actions.commit && core.is_prerolling());
            assert!(core.handle_announced().commit && !core.is_prerolling());
            // Nothing came in between.
            let mut core = prerolling();
            core.handle_change(Change::Play);
            core.handle_change(Change::Pause);
            core.handle_item(Item::Event('e')).unwrap();
            assert_eq!(core.handle_announced(), Actions::default());
            assert!(core.handle_item(item).unwrap().commit);
        }
        let mut core = playing();
        assert!(!core.handle_change(Change::Pause).announce);
    }

    /// As the base class of the stock sinks: the parent counts on an end of each asynchronous change.
    #[test]
    fn a_stop_ends_an_asynchronous_change() {
        assert!(prerolling().handle_change(Change::Stop).async_done);
        assert!(!playing().handle_change(Change::Stop).async_done);
    }

    #[test]
    fn playing_without_data_ends_an_asynchronous_change() {
        assert!(prerolling().handle_change(Change::Play).async_done);
    }

    #[test]
    fn a_flush_loses_the_state_of_an_asynchronous_sink_and_drops_all() {
        let mut core = prerolling();
        core.handle_change(Change::Play);
        core.handle_item(Item::Data(1, at(5, 6))).unwrap();
        assert!(core.handle_flush_start().lose_state);
        assert_eq!(core.next(&SYNC, Some(9)), Next::Gone);
        assert!(core.has_left(0));
        assert_eq!(core.admit(), Err(Refused::Flushing));
        core.handle_flush_stop();
        assert!(core.handle_item(Item::Data(2, at(0, 1))).unwrap().commit);
        assert_eq!(core.next(&SYNC, Some(9)), Next::Paused, "until PLAYING");
        let mut live = playing();
        assert!(!live.handle_flush_start().lose_state);
        live.handle_flush_stop();
        live.handle_item(Item::Data(3, When::Now)).unwrap();
        assert_eq!(live.next(&SYNC, Some(0)), Next::Render(&3, None));
    }

    #[test]
    fn the_end_waits_for_the_end_of_the_data_and_is_repeated_after_a_pause() {
        let mut core = playing();
        core.handle_item(Item::Data(1, at(10, 30))).unwrap();
        core.handle_item(Item::End).unwrap();
        assert_eq!(core.admit(), Err(Refused::Ended));
        assert_eq!(core.next(&SYNC, Some(10)), Next::Render(&1, Some(0)));
        core.finish(false);
        assert_eq!(core.next(&SYNC, Some(11)), Next::Until(30));
        assert_eq!(core.next(&SYNC, Some(30)), Next::End);
        core.finish(false);
        core.handle_change(Change::Pause);
        assert!(core.handle_change(Change::Play).repeat_eos);
        core.handle_stream_start();
        core.handle_change(Change::Pause);
        assert!(!core.handle_change(Change::Play).repeat_eos);
    }

    #[test]
    fn times_are_shifted_and_late_data_is_dropped() {
        let mut core = playing();
        let timing = Timing {
            delay_ns: 100,
            max_lateness_ns: Some(5),
            ..SYNC
        };
        core.handle_item(Item::Data(1, at(10, 20))).unwrap();
        assert_eq!(core.next(&timing, Some(50)), Next::Until(110));
        // It ends 10 later than it begins.
        assert_eq!(core.next(&timing, Some(125)), Next::Render(&1, Some(15)));
        assert_eq!(core.next(&timing, Some(126)), Next::Drop(&1, Some(16)));
        assert_eq!(core.next(&timing, None), Next::Render(&1, None));
        core.finish(true);
        core.handle_item(Item::Data(2, When::Never)).unwrap();
        assert_eq!(core.next(&timing, Some(0)), Next::Drop(&2, None));
        core.finish(true);
        assert_eq!(core.counts(), (0, 2));
    }

    #[test]
    fn before_the_base_time_all_data_is_early() {
        let mut core = playing();
        core.handle_item(Item::Data(1, at(0, 1))).unwrap();
        assert_eq!(core.next(&SYNC, Some(-5)), Next::Until(0));
        assert_eq!(core.next(&SYNC, Some(0)), Next::Render(&1, Some(0)));
    }

    /// Half of it may be on its way.
    #[test]
    fn data_that_waits_for_room_is_not_dropped_for_being_late() {
        let mut core = playing();
        let timing = Timing {
            max_lateness_ns: Some(5),
            ..SYNC
        };
        for n in 1..3 {
            core.handle_item(Item::Data(n, at(0, 1))).unwrap();
        }
        assert_eq!(core.next(&timing, Some(0)), Next::Render(&1, Some(0)));
        core.handle_begun();
        assert_eq!(core.waiting(), None);
        assert_eq!(core.next(&timing, Some(9)), Next::Render(&1, Some(9)));
        core.finish(false);
        assert_eq!(core.next(&timing, Some(9)), Next::Drop(&2, Some(9)));
    }

    #[test]
    fn a_stream_that_starts_behind_a_held_end_is_not_ended_by_it() {
        let mut core = playing();
        core.handle_item(Item::Data(1, at(50, 60))).unwrap();
        core.handle_item(Item::End).unwrap();
        core.handle_stream_start();
        core.handle_item(Item::Data(2, at(0, 5))).unwrap();
        core.finish(false);
        core.finish(false);
        core.handle_item(Item::End).unwrap();
        core.finish(false);
        assert_eq!(core.next(&SYNC, Some(5)), Next::End, "its own end counts");
    }

    /// What comes in, for the comparison with the naive twin.
    #[derive(Debug, Clone)]
    enum Step {
        Start(bool),
        Play,
        Pause,
        Stop,
        FlushStart,
        FlushStop,
        StreamStart,
        Data(u64),
        Event,
        Gap(u64),
        End,
        /// Time goes on, and all that is due leaves.
        Run(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            1 => any::<bool>().prop_map(Step::Start),
            3 => Just(Step::Play),
            2 => Just(Step::Pause),
            1 => Just(Step::Stop),
            1 => Just(Step::FlushStart),
            2 => Just(Step::FlushStop),
            1 => Just(Step::StreamStart),
            8 => (0..100_u64).prop_map(Step::Data),
            1 => Just(Step::Event),
            1 => (0..100_u64).prop_map(Step::Gap),
            1 => Just(Step::End),
            6 => (0..40_u64).prop_map(Step::Run),
        ]
    }

    /// A list and the rules read off the table, one `if` each.
    #[derive(Default)]
    struct Twin {
        started: bool,
        plays: bool,
        flushing: bool,
        ending: bool,
        asynchronous: bool,
        waits_for_data: bool,
        held: Vec<(char, u64, u32)>,
        end_ns: u64,
        out: Vec<u32>,
    }

    impl Twin {
        fn input(&mut self, step: &Step, n: u32) {
            let takes = self.started && !self.flushing && !self.ending;
            match *step {
                Step::Start(asynchronous) if !self.started => {
                    *self = Twin {
                        started: true,
                        asynchronous,
                        waits_for_data: asynchronous,
                        out: std::mem::take(&mut self.out),
                        ..Twin::default()
                    };
                }
                Step::Play if self.started => {
                    self.plays = true;
                    self.waits_for_data = false;
                }
                Step::Pause if self.plays => {
                    self.plays = false;
                    self.waits_for_data = self.asynchronous && self.held.is_empty() && !self.ending;
                }
                Step::Stop => {
                    self.started = false;
                    self.plays = false;
                    self.waits_for_data = false;
                    self.held.clear();
                    self.end_ns = 0;
                }
                Step::FlushStart => {
                    self.flushing = true;
                    self.ending = false;
                    self.held.clear();
                    self.end_ns = 0;
                    if self.started && self.asynchronous {
                        self.plays = false;
                        self.waits_for_data = true;
                    }
                }
                Step::FlushStop => {
                    self.flushing = false;
                    self.ending = false;
                    self.held.clear();
                    self.end_ns = 0;
                }
                Step::StreamStart => self.ending = false,
                Step::Data(ns) if takes => self.hold('d', ns, n),
                Step::Gap(ns) if takes => self.hold('g', ns, n),
                Step::Event if takes => self.held.push(('e', 0, n)),
                Step::End if takes => {
                    self.hold('x', 0, n);
                    self.ending = true;
                }
                _ => {}
            }
        }

        fn hold(&mut self, kind: char, ns: u64, n: u32) {
            self.held.push((kind, ns, n));
            self.waits_for_data = false;
        }

        fn run(&mut self, now_ns: u64) {
            while self.started && self.plays && !self.flushing {
                let Some(&(kind, ns, n)) = self.held.first() else {
                    return;
                };
                let due = match kind {
                    'x' => self.end_ns,
                    'e' => 0,
                    _ => ns,
                };
                if due > now_ns {
                    return;
                }
                self.held.remove(0);
                match kind {
                    'x' => self.end_ns = 0,
                    'e' => {}
                    _ => self.end_ns = self.end_ns.max(ns + 3),
                }
                if kind == 'd' {
                    self.out.push(n);
                }
            }
        }
    }

    fn run(core: &mut Core, now_ns: u64, out: &mut Vec<u32>) {
        loop {
            match core.next(&SYNC, Some(signed(now_ns))) {
                Next::Render(data, _) => out.push(*data),
                Next::Event(_) | Next::Skip | Next::End => {}
                Next::Until(ns) => return assert!(ns > now_ns),
                Next::Drop(..) => panic!("nothing is dropped here"),
                Next::Paused | Next::Empty | Next::Gone => return,
            }
            core.finish(false);
        }
    }

    proptest! {
        #[test]
        fn it_does_what_a_list_would(steps in prop::collection::vec(step(), 0..120)) {
            let (mut core, mut twin) = (Core::default(), Twin::default());
            let (mut out, mut now_ns) = (Vec::new(), 0);
            for (n, step) in steps.iter().enumerate() {
                let n = n as u32;
                twin.input(step, n);
                match *step {
                    Step::Start(asynchronous) => {
                        core.handle_change(Change::Start { asynchronous });
                    }
                    Step::Play => drop(core.handle_change(Change::Play)),
                    Step::Pause => {
                        core.handle_change(Change::Pause);
                        core.handle_announced();
                    }
                    Step::Stop => drop(core.handle_change(Change::Stop)),
                    Step::FlushStart => drop(core.handle_flush_start()),
                    Step::FlushStop => core.handle_flush_stop(),
                    Step::StreamStart => core.handle_stream_start(),
                    Step::Data(ns) => drop(core.handle_item(Item::Data(n, at(ns, ns + 3)))),
                    Step::Gap(ns) => drop(core.handle_item(Item::Gap(at(ns, ns + 3)))),
                    Step::Event => drop(core.handle_item(Item::Event('e'))),
                    Step::End => drop(core.handle_item(Item::End)),
                    Step::Run(ns) => {
                        now_ns += ns;
                        twin.run(now_ns);
                        run(&mut core, now_ns, &mut out);
                    }
                }
                prop_assert_eq!(&out, &twin.out);
                prop_assert_eq!(core.len(), twin.held.len());
                prop_assert_eq!(core.is_playing(), twin.plays);
                prop_assert_eq!(core.is_prerolling(), twin.waits_for_data);
                prop_assert_eq!(core.is_gone(), !twin.started || twin.flushing);
            }
        }
    }
}
