//! The sink pad of an element that sends its buffers or hands them out.
//!
//! [`core`] decides the next item and its wait; this file carries that out. Path of a buffer: [`Sink::chain`] renders it at once
//! if it need not wait. Otherwise [`Sink::hold`] queues it after the items already held, and `advance` ([`drive`]) handles due
//! items. A [`Drive`], one future for all held items, handles the later ones. On a context's thread, the source that pushed
//! drives it ([`super::pending`]), so a sink needs no task. An ordinary thread drives it, blocking, until its own item has left.
//!
//! A sink has one driver. If a second source pushes in the meantime, it creates a `Drive`, too, which becomes the driver if the
//! source of the first one is removed. If there is no driver, the next push becomes the driver.
//!
//! | field | thread |
//! |---|---|
//! | `state` | any thread, under its lock; never held across a call out of the element, except the renderer's system call |

mod core;
mod drive;
mod element;
mod position;
mod properties;
mod qos;
mod renderer;

use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::thread::{self, ThreadId};

use gst::prelude::*;
use threadbare_runtime::{Guard, Monitor, Registration, Topics, block_on, current_shard_id, until};

use self::core::{Actions, Change, Item, Refused, SinkCore, Timing, When};
use self::drive::{Advanced, Drive};
use self::position::Position;
use self::properties::SyncState;
use self::qos::Qos;
use self::renderer::Data;
use super::commit::Committed;
use super::locked::{Discarded, Discards, Locked};
use super::pending::{self, Hold};
use super::time::RunningTime;

pub use self::element::{
    SinkElement, answer_element_query, change_state, send_event, set_clock, sink_pad,
};
pub use self::properties::FileSyncProperties;
pub use self::properties::{LiveSyncProperties, SyncProperties};
pub use self::renderer::{Rendered, Renderer};

/// The sink half of an element.
pub struct Sink<R: Renderer>(Arc<Shared<R>>);

/// The layout is fixed: fields used for each buffer come first.
#[repr(C)]
struct Shared<R: Renderer> {
    sync: Arc<SyncState>,
    /// Called without a lock after each render, after a preroll, and at the end.
    after: OnceLock<Box<After>>,
    state: Monitor<State<R>>,
    element: gst::glib::WeakRef<gst::Element>,
    pad: Option<gst::Pad>,
}

type After = dyn Fn() -> Result<(), gst::FlowError> + Send + Sync;

/// The layout is fixed: fields used for each buffer come first.
#[repr(C)]
struct State<R> {
    core: SinkCore<Data, gst::Event>,
    /// Earlier last samples, to be dropped after the unlock.
    samples: Discarded<gst::Sample>,
    latency_ns: u64,
    /// Whether data may be outside of the segment.
    clips: bool,
    /// Whether the element has got data for a pause, but has not notified the application yet.
    has_shown: bool,
    position: Position,
    renderer: R,
    time: RunningTime,
    segment: Option<gst::FormattedSegment<gst::ClockTime>>,
    /// Number of the [`Drive`] that handles the held items, and of the source that drives it.
    driver: Option<(u64, Option<u64>)>,
    drivers: u64,
    qos: Qos,
    /// Number of times that the pad was unlinked.
    unlinks: u64,
    /// Sequence number of the EOS event, for the message.
    end_seqnum: Option<gst::Seqnum>,
    /// The thread that currently reports a committed change to the bin.
    teller: Option<ThreadId>,
}

impl<R: Renderer> Discards for State<R> {
    type Discarded = (
        Option<Discarded<Item<Data, gst::Event>>>,
        Option<Discarded<gst::Sample>>,
        Vec<gst::Sample>,
    );

    #[inline]
    fn take_discarded(&mut self) -> Option<Self::Discarded> {
        let (items, samples) = (self.core.take_discarded(), self.samples.take());
        let shown = self.renderer.take_discarded();
        let is_any = items.is_some() || samples.is_some() || !shown.is_empty();
        is_any.then_some((items, samples, shown))
    }
}

/// The driver examines the first item again.
const DRIVE: Topics = Topics::of(0);
/// The source may continue.
const MORE: Topics = Topics::of(1);
/// Items have left, or the driver has.
const LEFT: Topics = Topics::of(2);
/// The renderer has rendered, ended or dropped something.
const RENDERED: Topics = Topics::of(3);

impl<R: Renderer> Sink<R> {
    /// Creates the sink of an element, which must exist: do not call this during construction.
    pub fn new(element: &gst::Element, renderer: R, sync: SyncProperties) -> Self {
        let pad = element.sink_pads().into_iter().next();
        let sink = Sink(Arc::new(Shared {
            state: Monitor::new(State {
                core: SinkCore::default(),
                renderer,
                time: RunningTime::default(),
                segment: None,
                clips: false,
                latency_ns: 0,
                driver: None,
                drivers: 0,
                qos: Qos::default(),
                unlinks: 0,
                teller: None,
                end_seqnum: None,
                position: Position::default(),
                has_shown: false,
                samples: Discarded::default(),
            }),
            element: element.downgrade(),
            pad: pad.clone(),
            sync: sync.0,
            after: OnceLock::new(),
        }));
        let shared = Arc::downgrade(&sink.0);
        if let Some(pad) = pad {
            pad.connect_unlinked(move |_, _| {
                if let Some(shared) = shared.upgrade() {
                    shared.unlink();
                }
            });
        }
        sink
    }

    /// Sets `after`, which is called without a lock after each render, after a preroll, and at the end. If `after` fails, the
    /// push returns its error. Set it only once.
    #[doc(hidden)]
    pub fn tell(&self, after: impl Fn() -> Result<(), gst::FlowError> + Send + Sync + 'static) {
        let is_first = self.0.after.set(Box::new(after)).is_ok();
        debug_assert!(is_first, "set already");
    }

    /// Retries after [`Rendered::Full`], when there is room again.
    #[doc(hidden)]
    pub fn resume(&self) {
        self.0.lock().wake(DRIVE | MORE);
    }

    /// Re-evaluates waits after [`Sink::with_renderer`] has changed the renderer.
    #[doc(hidden)]
    pub fn tell_renderer_changed(&self) {
        self.0.lock().wake(Topics::ALL);
    }

    /// Passes an event to the renderer after all earlier buffers.
    #[doc(hidden)]
    pub fn queue_event(&self, event: gst::Event) {
        let mut state = self.0.lock();
        if state.core.len() == 0 {
            state.note_event(&event);
        } else {
            // The event is refused only during a flush or after the end. In both cases, it concerns no data.
            let _ = state.core.handle_item(Item::Event(event));
        }
    }

    /// Completes when `condition` on the renderer is ready. It is evaluated at once, and again whenever the renderer has changed.
    #[doc(hidden)]
    pub fn until<T>(
        &self,
        mut condition: impl FnMut(&mut R) -> Poll<T>,
    ) -> impl Future<Output = T> {
        let shared = self.0.clone();
        until(
            shared,
            |s| &s.state,
            RENDERED,
            move |state| Self::evaluate(state, &mut condition),
        )
    }

    /// Acts as [`until`](Self::until), as a part of a larger future. See [`Monitor::poll_until`].
    #[doc(hidden)]
    pub fn poll_until<T>(
        &self,
        registration: &mut Registration,
        cx: &mut Context<'_>,
        condition: impl FnOnce(&mut R) -> Poll<T>,
    ) -> Poll<T> {
        let state = &self.0.state;
        state.poll_until(registration, RENDERED, cx, |s| Self::evaluate(s, condition))
    }

    #[doc(hidden)]
    pub fn cancel(&self, registration: &mut Registration) {
        self.0.state.cancel(registration);
    }

    fn evaluate<T>(
        state: &mut Guard<'_, State<R>>,
        condition: impl FnOnce(&mut R) -> Poll<T>,
    ) -> Poll<T> {
        let result = condition(&mut state.renderer);
        if result.is_ready() {
            // The change may have freed room.
            state.wake(DRIVE | MORE);
        }
        result
    }

    /// Returns the memory that a buffer touches, for [`super::prefetch::ElementMemory::set`].
    #[doc(hidden)]
    pub fn spans(&self) -> [(usize, usize); 2] {
        [
            super::prefetch::span(&*self.0),
            super::prefetch::span(&*self.0.sync),
        ]
    }

    /// Runs `f` with the renderer.
    pub fn with_renderer<T>(&self, f: impl FnOnce(&mut R) -> T) -> T {
        let mut state = self.0.lock();
        f(&mut state.renderer)
    }

    /// Returns how many buffers were rendered, and how many were dropped because they were late.
    pub fn counts(&self) -> (u64, u64) {
        self.0.lock().core.counts()
    }

    /// Handles an arriving buffer.
    #[inline]
    pub fn chain(&self, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let mut state = self.0.lock();
        let timing = self.0.timing(&state);
        if state.core.passes_at_once(&timing) && !state.clips {
            match state.renderer.render(&buffer) {
                Rendered::Done => {
                    state.core.count_passed();
                    let begin = buffer.dts_or_pts();
                    state.position.reach(begin, buffer.duration());
                    state.wake(RENDERED);
                    self.0.keep_last(&mut state, Some(&buffer));
                    drop(state);
                    return self.0.tell().map(|()| gst::FlowSuccess::Ok);
                }
                Rendered::Failed(error) => return Err(error),
                Rendered::Blocked | Rendered::Full => {}
            }
        }
        let when = state.when(&buffer);
        self.hold(state, Item::Data(Data::Buffer(buffer), when))
    }

    /// Handles an arriving list.
    pub fn chain_list(&self, list: gst::BufferList) -> Result<gst::FlowSuccess, gst::FlowError> {
        let state = self.0.lock();
        if state.renderer.takes_lists() {
            let when = list.get(0).map_or(When::Now, |first| state.when(first));
            return self.hold(state, Item::Data(Data::List(list), when));
        }
        drop(state);
        for buffer in list.iter_owned() {
            self.chain(buffer)?;
        }
        Ok(gst::FlowSuccess::Ok)
    }

    /// Handles an arriving event. Returns `false` if the sink does not handle it.
    pub fn event(&self, event: &gst::Event) -> bool {
        match event.view() {
            gst::EventView::Segment(segment) => {
                let segment = segment.segment().downcast_ref::<gst::ClockTime>().cloned();
                {
                    let mut state = self.0.lock();
                    state.clips = segment.as_ref().is_some_and(|segment| {
                        segment.stop().is_some() || segment.start() > Some(gst::ClockTime::ZERO)
                    });
                    state.segment = segment;
                }
                self.queue_event(event.clone());
            }
            gst::EventView::StreamStart(start) => {
                self.0.lock().core.handle_stream_start();
                let message = gst::message::StreamStart::builder().seqnum(event.seqnum());
                let message = match start.group_id() {
                    Some(group) => message.group_id(group),
                    None => message,
                };
                self.0.post(|element| message.src(element).build());
            }
            gst::EventView::FlushStart(_) => self.flush_start(),
            gst::EventView::FlushStop(stop) => self.flush_stop(stop.resets_time()),
            gst::EventView::Gap(gap) => {
                let state = self.0.lock();
                let (begin, duration) = gap.get();
                let when = state.span(begin, duration);
                let _ = self.hold(state, Item::Gap(when));
            }
            gst::EventView::Eos(_) => {
                let mut state = self.0.lock();
                state.end_seqnum = Some(event.seqnum());
                let _ = self.hold(state, Item::End);
            }
            _ => return false,
        }
        true
    }

    /// Sets the pipeline's latency, from a LATENCY event.
    pub fn set_latency(&self, latency: gst::ClockTime) {
        let mut state = self.0.lock();
        state.latency_ns = latency.nseconds();
        state.wake(DRIVE);
    }

    /// Sets the running time, after a new clock was set.
    pub fn set_time(&self, time: RunningTime) {
        let mut state = self.0.lock();
        state.time = time;
        state.wake(DRIVE);
    }

    /// Records that the asynchronous change was announced to the parent.
    fn announced(&self) -> Actions {
        let mut state = self.0.lock();
        let actions = state.core.handle_announced();
        state.wake(Topics::ALL);
        actions
    }

    /// Handles a state change of the element. `time` is for PLAYING.
    fn change(&self, change: Change, time: Option<RunningTime>) -> Actions {
        let actions = {
            let mut state = self.0.lock();
            if let Some(time) = time {
                state.time = time;
            }
            if matches!(change, Change::Start { .. }) {
                state.forget_segment();
            }
            if change == Change::Stop {
                state.time = RunningTime::default();
            }
            let actions = state.core.handle_change(change);
            if change == Change::Pause {
                self.0.show_waiting(&mut state);
            }
            state.wake(Topics::ALL);
            actions
        };
        if change == Change::Stop {
            self.0.sync.forget_last();
        }
        actions
    }

    fn flush_start(&self) {
        let actions = {
            let mut state = self.0.lock();
            let actions = state.core.handle_flush_start();
            state.renderer.flush();
            state.has_shown = false;
            state.qos = Qos::default();
            state.wake(Topics::ALL);
            actions
        };
        self.0.sync.forget_last();
        self.0.carry_out(actions);
    }

    fn flush_stop(&self, resets_time: bool) {
        {
            let mut state = self.0.lock();
            state.core.handle_flush_stop();
            state.forget_segment();
            state.wake(Topics::ALL);
        }
        if resets_time && let Some(element) = self.0.element.upgrade() {
            // Running time restarts at 0: the pipeline distributes a new base time before PLAYING.
            element.set_start_time(gst::ClockTime::ZERO);
            let reset = gst::message::ResetTime::builder(gst::ClockTime::ZERO);
            let _ = element.post_message(reset.src(&element).build());
        }
    }

    /// Queues an item that may have to wait.
    fn hold<'a>(
        &'a self,
        mut state: Locked<'a, State<R>>,
        item: Item<Data, gst::Event>,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        let actions = match state.core.handle_item(item) {
            Ok(actions) => actions,
            Err(Refused::Flushing) => return Err(gst::FlowError::Flushing),
            Err(Refused::Ended) => return Err(gst::FlowError::Eos),
        };
        let number = state.core.newest_number();
        state.note_end();
        if actions != Actions::default() {
            let first = state.core.newest().filter(|_| actions.preroll);
            if let Some(first) = first.and_then(Data::first) {
                self.0.show(&mut state, &first);
            }
            state.wake(RENDERED);
            drop(state);
            self.0.carry_out(actions);
            self.0.tell()?;
            state = self.0.lock();
        }
        if !pending::can_defer() {
            drop(state);
            let drive = Drive::new(&self.0, Some(number));
            return threadbare_runtime::block_on(drive).map(|()| gst::FlowSuccess::Ok);
        }
        if state.driver.is_none() {
            let (advanced, again) = self.0.advance(state);
            state = again;
            match advanced {
                Advanced::Empty => return Ok(gst::FlowSuccess::Ok),
                Advanced::Gone => return Err(gst::FlowError::Flushing),
                Advanced::Failed(error) => return Err(error),
                Advanced::Waits(_) => {
                    let mut drive = Drive::new(&self.0, None);
                    drive.claim(&mut state);
                    pending::defer(Hold::Nobody, Box::pin(drive));
                }
            }
        } else if state
            .driver
            .is_some_and(|(_, source)| source != pending::source())
        {
            // The driver is another source, which may be removed. Then this source takes over.
            let drive = Drive::new(&self.0, Some(number));
            pending::defer(Hold::Nobody, Box::pin(drive));
        }
        self.hold_up_source(state);
        Ok(gst::FlowSuccess::Ok)
    }

    /// Makes the source wait if the sink accepts no more items. Call it after an item has arrived on a context's thread.
    fn hold_up_source(&self, state: Locked<'_, State<R>>) {
        // An item that waits for its time does not block the source, because the source may have more items that are due at the
        // same time. The sink blocks the source if it does not play, is full, or holds many items.
        if state.core.len() < WAITING_MAX && state.takes_more() {
            return;
        }
        let unlinks = state.unlinks;
        drop(state);
        let more = until(
            self.0.clone(),
            |s| &s.state,
            MORE,
            move |state| {
                if state.core.is_gone() || state.unlinks != unlinks {
                    return Poll::Ready(Err(gst::FlowError::Flushing));
                }
                let has_room = state.takes_more() && state.core.len() <= WAITING_RESUME;
                // Without a driver, the next push becomes the driver.
                let is_left_alone = state.driver.is_none() && state.core.len() > 0;
                if has_room || is_left_alone {
                    return Poll::Ready(Ok(()));
                }
                Poll::Pending
            },
        );
        pending::defer(Hold::Source, Box::pin(more));
        // If the pad was unlinked during this push, no other signal will end the wait, so end it here.
        if self.0.pad.as_ref().is_some_and(|pad| !pad.is_linked()) {
            self.0.unlink();
        }
    }
}

impl<R: Renderer> State<R> {
    /// Returns the time of a buffer. As in the stock sinks, the DTS determines the order of sending.
    fn when(&self, buffer: &gst::BufferRef) -> When {
        match buffer.dts_or_pts() {
            Some(begin) => self.span(begin, buffer.duration()),
            None => When::Now,
        }
    }

    fn span(&self, begin: gst::ClockTime, duration: Option<gst::ClockTime>) -> When {
        let Some(segment) = &self.segment else {
            return When::Now;
        };
        let Some(running) = segment.to_running_time(begin) else {
            return When::Never;
        };
        let end = begin + duration.unwrap_or(gst::ClockTime::ZERO);
        // Data that extends beyond the end of the segment ends with the segment.
        let end = segment.to_running_time(end).or_else(|| {
            let stop = segment.stop()?;
            segment.to_running_time(stop)
        });
        let begin_ns = running.nseconds();
        let end_ns = end.map_or(begin_ns, gst::ClockTime::nseconds);
        When::At {
            begin_ns,
            end_ns: end_ns.max(begin_ns),
        }
    }

    fn takes_more(&self) -> bool {
        self.core.is_playing() && self.renderer.has_room()
    }

    /// Handles an event whose turn has come.
    fn note_event(&mut self, event: &gst::Event) {
        if let gst::EventView::Segment(segment) = event.view() {
            self.position.set_segment(segment);
        }
        self.renderer.event(event);
    }

    fn forget_segment(&mut self) {
        self.segment = None;
        self.position = Position::default();
    }

    /// Removes the first item.
    fn finish(&mut self, is_dropped: bool) {
        match self.core.first_item() {
            Some(Item::Data(data, _)) => {
                let (begin, duration) = data.times();
                self.position.reach(begin, duration);
            }
            Some(&Item::Gap(When::At { begin_ns, end_ns })) => {
                self.position.reach_running(begin_ns, end_ns);
            }
            _ => {}
        }
        self.core.finish(is_dropped);
        self.note_end();
    }

    /// Removes the first item, which could not be rendered.
    fn give_up(&mut self) {
        self.core.give_up();
        self.note_end();
    }

    /// Notifies the renderer if no data is left before the end.
    fn note_end(&mut self) {
        if self.core.is_end_next() {
            self.renderer.end_is_next();
        }
    }
}

impl<R: Renderer> Shared<R> {
    #[inline]
    fn lock(&self) -> Locked<'_, State<R>> {
        Locked::of(&self.state)
    }

    #[inline]
    fn timing(&self, state: &State<R>) -> Timing {
        self.sync.timing(state.latency_ns)
    }

    /// Stores the sample for `last-sample`: the data that was shown in PAUSED, or rendered.
    #[inline]
    fn keep_last(&self, state: &mut State<R>, buffer: Option<&gst::Buffer>) {
        if !self.sync.keeps_last() {
            return;
        }
        let Some(buffer) = buffer else { return };
        let caps = self.pad.as_ref().and_then(|pad| pad.current_caps());
        let sample = gst::Sample::builder().buffer(buffer);
        let sample = sample.caps_if_some(caps.as_ref());
        let replaced = self.sync.keep_last(match &state.segment {
            Some(segment) => sample.segment(segment).build(),
            None => sample.build(),
        });
        if let Some(replaced) = replaced {
            state.samples.add(replaced);
        }
    }

    /// Shows the first data in PAUSED, as the preroll.
    fn show(&self, state: &mut State<R>, buffer: &gst::Buffer) {
        state.renderer.preroll(buffer);
        self.keep_last(state, Some(buffer));
    }

    /// Makes data that waits for its time the preroll in a pause. The driver of that data notifies the application, on the
    /// streaming thread.
    fn show_waiting(&self, state: &mut State<R>) {
        if state.core.is_playing() {
            return;
        }
        while let Some(Item::Event(event)) = state.core.first_item() {
            let event = event.clone();
            state.note_event(&event);
            state.finish(false);
        }
        if let Some(buffer) = state.core.waiting().and_then(Data::first) {
            self.show(state, &buffer);
            state.has_shown = true;
        }
    }

    /// Records that the pad was unlinked, so that its source stops waiting.
    fn unlink(&self) {
        let mut state = self.lock();
        state.unlinks += 1;
        state.wake(MORE);
    }

    #[inline]
    fn tell(&self) -> Result<(), gst::FlowError> {
        self.after.get().map_or(Ok(()), |after| after())
    }

    fn post(&self, message: impl FnOnce(&gst::Element) -> gst::Message) {
        if let Some(element) = self.element.upgrade() {
            let _ = element.post_message(message(&element));
        }
    }

    /// Makes a thread that continues to PLAYING wait until the bin knows that the sink has reached PAUSED. If a bin gets both
    /// messages at the same time, it may confuse their order, and then does not forward the EOS. In the stock sinks, the base
    /// class holds its preroll lock until then.
    fn wait_told(self: &Arc<Self>) {
        let me = thread::current().id();
        // An application may continue to PLAYING in its handler of the message. That thread must not wait for itself. A context's
        // thread must not wait either.
        if current_shard_id().is_some() || self.lock().teller == Some(me) {
            return;
        }
        let told = |state: &mut Guard<'_, State<R>>| match state.teller {
            None => Poll::Ready(()),
            Some(_) => Poll::Pending,
        };
        block_on(until(self.clone(), |shared| &shared.state, RENDERED, told));
    }

    /// Carries out the core's actions except the wake-ups. No lock is held.
    fn carry_out(&self, actions: Actions) {
        let Some(element) = self.element.upgrade() else {
            return;
        };
        if actions.lose_state {
            element.lost_state();
        }
        if actions.commit {
            let mut state = self.lock();
            // Commit under the lock, so that the application's next change comes after it.
            let committed = Committed::decide(&element);
            // Without a parent that continues the change, the element itself continues to PLAYING.
            if committed.as_ref().is_some_and(Committed::is_playing) {
                state.time = RunningTime::of(&element);
                state.core.handle_change(Change::Play);
                state.wake(Topics::ALL);
            }
            state.teller = committed.is_some().then(|| thread::current().id());
            drop(state);
            if let Some(committed) = committed {
                committed.post(&element);
                let mut state = self.lock();
                state.teller = None;
                state.wake(RENDERED);
            }
        }
        if actions.async_done {
            let done = gst::message::AsyncDone::builder().src(&element).build();
            let _ = element.post_message(done);
        }
        if actions.repeat_eos {
            self.post_end();
        }
    }

    fn post_end(&self) {
        let seqnum = self.lock().end_seqnum;
        self.post(|element| {
            let message = gst::message::Eos::builder().src(element);
            match seqnum {
                Some(seqnum) => message.seqnum(seqnum).build(),
                None => message.build(),
            }
        });
    }
}

/// Maximum number of items that a sink holds before it blocks the source. A fast stream reaches it after some slices.
const WAITING_MAX: usize = 64;
/// The source continues at this number of items.
const WAITING_RESUME: usize = WAITING_MAX / 2;
