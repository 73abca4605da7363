//! The sink pad of an element that sends its buffers or hands them out.
//!
//! What is next and what it waits for is decided in [`core`]; this file carries that out. A buffer's way: [`Sink::chain`]
//! renders at once if nothing is to be waited for; else [`Sink::hold`] puts the buffer behind the items already held, and
//! [`Shared::advance`] does what is due. What remains is done by a [`Drive`]: one future for all held items. On a
//! context's thread the source that pushed drives it ([`super::pending`]), so that a sink needs no task of its own; an
//! ordinary thread drives it in place, until its own item has left. A sink has one driver; a second source that pushes meanwhile
//! leaves a `Drive` too, which takes over if the driver vanishes. Without any, the next push does.
//!
//! | field | who |
//! |---|---|
//! | `state` | any thread, under its lock; never held across a call out of the element, except the renderer's system call |

mod core;
mod element;
mod properties;
mod qos;
mod renderer;

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use gst::prelude::*;
use threadbare_runtime::{Guard, Monitor, Registration, Topics, clock_now_ns, until};

use self::core::{Actions, Change, Item, Next, Refused, SinkCore, Timing, When};
use self::properties::SyncState;
use self::qos::Qos;
use self::renderer::Data;
use super::commit::Committed;
use super::pending::{self, Hold};
use super::time::{ClockWait, RunningTime};

pub use self::element::{
    SinkElement, answer_element_query, change_state, send_event, set_clock, sink_pad,
};
pub use self::properties::{LiveSyncProperties, SyncProperties};
pub use self::renderer::{Rendered, Renderer};

/// The sink half of an element.
pub struct Sink<R: Renderer>(Arc<Shared<R>>);

struct Shared<R: Renderer> {
    state: Monitor<State<R>>,
    element: gst::glib::WeakRef<gst::Element>,
    pad: Option<gst::Pad>,
    sync: Arc<SyncState>,
    /// Called, without a lock, after a render, a preroll or the end.
    after: OnceLock<Box<After>>,
}

type After = dyn Fn() -> Result<(), gst::FlowError> + Send + Sync;

struct State<R> {
    core: SinkCore<Data, gst::Event>,
    renderer: R,
    time: RunningTime,
    segment: Option<gst::FormattedSegment<gst::ClockTime>>,
    /// Data may be outside of the segment.
    clips: bool,
    latency_ns: u64,
    /// Number of the [`Drive`] that handles the held items, and of the source that drives it.
    driver: Option<(u64, Option<u64>)>,
    drivers: u64,
    qos: Qos,
    /// How often the pad was unlinked.
    unlinks: u64,
    /// Of the EOS event, for the message.
    end_seqnum: Option<gst::Seqnum>,
}

/// The driver examines the first item again.
const DRIVE: Topics = Topics::of(0);
/// The source may go on.
const MORE: Topics = Topics::of(1);
/// Items have left, or their driver has.
const LEFT: Topics = Topics::of(2);
/// The renderer has rendered, ended or dropped something.
const RENDERED: Topics = Topics::of(3);

impl<R: Renderer> Sink<R> {
    /// For its own element, which must exist: do not call it during construction.
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
                end_seqnum: None,
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

    /// Calls `after`, without a lock, after each render, preroll or end; its error is the result of the push. Set it
    /// once.
    pub(crate) fn tell(
        &self,
        after: impl Fn() -> Result<(), gst::FlowError> + Send + Sync + 'static,
    ) {
        let is_first = self.0.after.set(Box::new(after)).is_ok();
        debug_assert!(is_first, "set already");
    }

    /// There is room again, after [`Rendered::Full`].
    pub(crate) fn resume(&self) {
        self.0.state.lock().wake(DRIVE | MORE);
    }

    /// The renderer was changed by [`Sink::with_renderer`]: those who wait for it look again.
    pub(crate) fn tell_renderer_changed(&self) {
        self.0.state.lock().wake(Topics::ALL);
    }

    /// Gives the renderer an event behind all earlier buffers.
    pub(crate) fn queue_event(&self, event: gst::Event) {
        let mut state = self.0.state.lock();
        if state.core.len() == 0 {
            state.renderer.event(&event);
        } else {
            // Refused only in a flush or after the end, when it concerns no data.
            let _ = state.core.handle_item(Item::Event(event));
        }
    }

    /// Completes when `condition` on the renderer does; evaluated at once and whenever the renderer has changed.
    pub(crate) fn until<T>(
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

    /// The same as a part of a larger future. See [`Monitor::poll_until`].
    pub(crate) fn poll_until<T>(
        &self,
        registration: &mut Registration,
        cx: &mut Context<'_>,
        condition: impl FnOnce(&mut R) -> Poll<T>,
    ) -> Poll<T> {
        let state = &self.0.state;
        state.poll_until(registration, RENDERED, cx, |s| Self::evaluate(s, condition))
    }

    pub(crate) fn cancel(&self, registration: &mut Registration) {
        self.0.state.cancel(registration);
    }

    fn evaluate<T>(
        state: &mut Guard<'_, State<R>>,
        condition: impl FnOnce(&mut R) -> Poll<T>,
    ) -> Poll<T> {
        let result = condition(&mut state.renderer);
        if result.is_ready() {
            // It may have made room.
            state.wake(DRIVE | MORE);
        }
        result
    }

    /// Memory that a buffer touches, for [`super::prefetch::ElementMemory::set`].
    pub(crate) fn spans(&self) -> [(usize, usize); 2] {
        [
            super::prefetch::span(&*self.0),
            super::prefetch::span(&*self.0.sync),
        ]
    }

    /// Runs `f` with the renderer.
    pub fn with_renderer<T>(&self, f: impl FnOnce(&mut R) -> T) -> T {
        let mut state = self.0.state.lock();
        f(&mut state.renderer)
    }

    /// Buffers rendered, and dropped for being late.
    pub fn counts(&self) -> (u64, u64) {
        self.0.state.lock().core.counts()
    }

    /// A buffer arrives.
    #[inline]
    pub fn chain(&self, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let mut state = self.0.state.lock();
        let timing = self.0.timing(&state);
        if state.core.passes_at_once(&timing) && !state.clips {
            match state.renderer.render(&buffer) {
                Rendered::Done => {
                    state.core.count_passed();
                    state.wake(RENDERED);
                    self.0.keep_last(&state, Some(&buffer));
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

    /// Buffers arrive.
    pub fn chain_list(&self, list: gst::BufferList) -> Result<gst::FlowSuccess, gst::FlowError> {
        let state = self.0.state.lock();
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

    /// An event arrives. `false`: not handled here.
    pub fn event(&self, event: &gst::Event) -> bool {
        match event.view() {
            gst::EventView::Segment(segment) => {
                let segment = segment.segment().downcast_ref::<gst::ClockTime>().cloned();
                let mut state = self.0.state.lock();
                state.clips = segment.as_ref().is_some_and(|segment| {
                    segment.stop().is_some() || segment.start() > Some(gst::ClockTime::ZERO)
                });
                state.segment = segment;
            }
            gst::EventView::StreamStart(start) => {
                self.0.state.lock().core.handle_stream_start();
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
                let state = self.0.state.lock();
                let (begin, duration) = gap.get();
                let when = state.span(begin, duration);
                let _ = self.hold(state, Item::Gap(when));
            }
            gst::EventView::Eos(_) => {
                let mut state = self.0.state.lock();
                state.end_seqnum = Some(event.seqnum());
                let _ = self.hold(state, Item::End);
            }
            _ => return false,
        }
        true
    }

    /// The pipeline's latency, from a LATENCY event.
    pub fn set_latency(&self, latency: gst::ClockTime) {
        let mut state = self.0.state.lock();
        state.latency_ns = latency.nseconds();
        state.wake(DRIVE);
    }

    /// A clock was set.
    pub fn set_time(&self, time: RunningTime) {
        let mut state = self.0.state.lock();
        state.time = time;
        state.wake(DRIVE);
    }

    /// A state change of the element. `time`: for PLAYING.
    fn change(&self, change: Change, time: Option<RunningTime>) -> Actions {
        let mut state = self.0.state.lock();
        if let Some(time) = time {
            state.time = time;
        }
        if matches!(change, Change::Start { .. }) {
            state.segment = None;
        }
        if change == Change::Stop {
            self.0.sync.forget_last();
            state.time = RunningTime::default();
        }
        let actions = state.core.handle_change(change);
        state.wake(Topics::ALL);
        actions
    }

    fn flush_start(&self) {
        let actions = {
            let mut state = self.0.state.lock();
            let actions = state.core.handle_flush_start();
            state.renderer.flush();
            state.qos = Qos::default();
            state.wake(Topics::ALL);
            actions
        };
        self.0.sync.forget_last();
        self.0.carry_out(actions);
    }

    fn flush_stop(&self, resets_time: bool) {
        {
            let mut state = self.0.state.lock();
            state.core.handle_flush_stop();
            state.segment = None;
            state.wake(Topics::ALL);
        }
        if resets_time && let Some(element) = self.0.element.upgrade() {
            // Running time begins at 0 again: the pipeline distributes a new base time before PLAYING.
            element.set_start_time(gst::ClockTime::ZERO);
            let reset = gst::message::ResetTime::builder(gst::ClockTime::ZERO);
            let _ = element.post_message(reset.src(&element).build());
        }
    }

    /// An item that may have to wait.
    fn hold<'a>(
        &'a self,
        mut state: Guard<'a, State<R>>,
        item: Item<Data, gst::Event>,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        let actions = match state.core.handle_item(item) {
            Ok(actions) => actions,
            Err(Refused::Flushing) => return Err(gst::FlowError::Flushing),
            Err(Refused::Ended) => return Err(gst::FlowError::Eos),
        };
        let number = state.core.newest_number();
        if actions != Actions::default() {
            let State { core, renderer, .. } = &mut *state;
            let first = core.newest().filter(|_| actions.preroll);
            if let Some(first) = first.and_then(Data::first) {
                renderer.preroll(&first);
                self.0.keep_last(&state, Some(&first));
            }
            state.wake(RENDERED);
            drop(state);
            self.0.carry_out(actions);
            self.0.tell()?;
            state = self.0.state.lock();
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
            // Another source drives, and may vanish: this one takes over then.
            let drive = Drive::new(&self.0, Some(number));
            pending::defer(Hold::Nobody, Box::pin(drive));
        }
        self.hold_up_source(state);
        Ok(gst::FlowSuccess::Ok)
    }

    /// After the arrival of an item on a context's thread: the source waits if the sink takes no more.
    fn hold_up_source(&self, state: Guard<'_, State<R>>) {
        // Until its time, an item does not hold up the source, which may have more items due at the same time. A sink
        // that does not play, is full or holds many takes no more.
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
        // The push may have been under way during the unlink.
        if self.0.pad.as_ref().is_some_and(|pad| !pad.is_linked()) {
            self.0.unlink();
        }
    }
}

impl<R: Renderer> State<R> {
    /// The time of a buffer. As in the stock sinks, the DTS orders the sending.
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
        // Past the end of the segment, the data ends with the segment.
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
}

/// Where the items stand after [`Shared::advance`].
enum Advanced {
    /// None is left.
    Empty,
    /// They were dropped: the element has stopped, or the stream flushes.
    Gone,
    Failed(gst::FlowError),
    Waits(Obstacle),
}

/// What the first item waits for.
enum Obstacle {
    /// A change, which wakes the driver.
    Change,
    /// This running time, ns.
    Clock(u64),
    /// Room that nobody announces: to be tried again soon.
    Retry,
}

impl<R: Renderer> Shared<R> {
    #[inline]
    fn timing(&self, state: &State<R>) -> Timing {
        self.sync.timing(state.latency_ns)
    }

    /// For `last-sample`: shown in PAUSED, or rendered.
    #[inline]
    fn keep_last(&self, state: &State<R>, buffer: Option<&gst::Buffer>) {
        if !self.sync.keeps_last() {
            return;
        }
        let Some(buffer) = buffer else { return };
        let caps = self.pad.as_ref().and_then(|pad| pad.current_caps());
        let sample = gst::Sample::builder().buffer(buffer);
        let sample = sample.caps_if_some(caps.as_ref());
        self.sync.keep_last(match &state.segment {
            Some(segment) => sample.segment(segment).build(),
            None => sample.build(),
        });
    }

    /// The pad was unlinked: its source waits no longer.
    fn unlink(&self) {
        let mut state = self.state.lock();
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

    /// Does everything that can be done now, in order. The lock is given up for each call out of the element.
    fn advance<'a>(&'a self, mut state: Guard<'a, State<R>>) -> (Advanced, Guard<'a, State<R>>) {
        // Read once: an item that becomes due meanwhile is found by its wait.
        let mut read_ns = None;
        loop {
            let timing = self.timing(&state);
            if timing.sync && state.core.len() > 0 && read_ns.is_none() {
                read_ns = state.time.now_ns();
            }
            let now_ns = read_ns.filter(|_| timing.sync);
            let State { core, renderer, .. } = &mut *state;
            match core.next(&timing, now_ns) {
                Next::Render(data, lateness_ns) => {
                    match data.render(renderer) {
                        Rendered::Done => {}
                        Rendered::Blocked => return (Advanced::Waits(Obstacle::Retry), state),
                        Rendered::Full => return (Advanced::Waits(Obstacle::Change), state),
                        Rendered::Failed(error) => {
                            core.give_up();
                            return (Advanced::Failed(error), state);
                        }
                    }
                    if self.sync.keeps_last() {
                        let first = data.first();
                        self.keep_last(&state, first.as_ref());
                    }
                    let told;
                    (told, state) = self.finish_rendered(state, lateness_ns, now_ns);
                    if let Err(error) = told {
                        return (Advanced::Failed(error), state);
                    }
                }
                Next::Drop(_, lateness_ns) => {
                    state = self.finish_dropped(state, lateness_ns, now_ns);
                }
                Next::Event(event) => {
                    renderer.event(event);
                    core.finish(false);
                }
                Next::Skip => core.finish(false),
                Next::End => {
                    let ended = renderer.end();
                    state.wake(RENDERED);
                    match ended {
                        Rendered::Done => {}
                        Rendered::Failed(error) => return (Advanced::Failed(error), state),
                        _ => return (Advanced::Waits(Obstacle::Change), state),
                    }
                    state.core.finish(false);
                    drop(state);
                    let told = self.tell();
                    self.post_end();
                    state = self.state.lock();
                    if let Err(error) = told {
                        return (Advanced::Failed(error), state);
                    }
                }
                Next::Until(running_ns) => {
                    return (Advanced::Waits(Obstacle::Clock(running_ns)), state);
                }
                Next::Paused => return (Advanced::Waits(Obstacle::Change), state),
                Next::Empty => return (Advanced::Empty, state),
                Next::Gone => return (Advanced::Gone, state),
            }
        }
    }

    /// The first item is rendered.
    #[inline]
    fn finish_rendered<'a>(
        &'a self,
        mut state: Guard<'a, State<R>>,
        lateness_ns: Option<i64>,
        now_ns: Option<u64>,
    ) -> (Result<(), gst::FlowError>, Guard<'a, State<R>>) {
        let report = self.report(&mut state, lateness_ns, now_ns);
        state.core.finish(false);
        state.wake(RENDERED);
        if report.is_none() && self.after.get().is_none() {
            return (Ok(()), state);
        }
        drop(state);
        self.send_report(report);
        (self.tell(), self.state.lock())
    }

    /// The first item is not rendered: too late, or outside of the segment.
    fn finish_dropped<'a>(
        &'a self,
        mut state: Guard<'a, State<R>>,
        lateness_ns: Option<i64>,
        now_ns: Option<u64>,
    ) -> Guard<'a, State<R>> {
        let report = self.report(&mut state, lateness_ns, now_ns);
        state.core.finish(true);
        let counts = state.core.counts();
        if report.is_none() {
            return state;
        }
        drop(state);
        self.send_report(report);
        self.post_drop(report, counts);
        self.state.lock()
    }

    /// What the core asks for besides the wake-ups. No lock is held.
    fn carry_out(&self, actions: Actions) {
        let Some(element) = self.element.upgrade() else {
            return;
        };
        if actions.lose_state {
            element.lost_state();
        }
        if actions.commit {
            let mut state = self.state.lock();
            // Under the lock, so that a change that the application makes next comes after it.
            let committed = Committed::decide(&element);
            // Without a parent that continues the change, the element itself goes on to PLAYING.
            if committed.as_ref().is_some_and(Committed::is_playing) {
                state.time = RunningTime::of(&element);
                state.core.handle_change(Change::Play);
                state.wake(Topics::ALL);
            }
            drop(state);
            if let Some(committed) = committed {
                committed.post(&element);
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
        let seqnum = self.state.lock().end_seqnum;
        self.post(|element| {
            let message = gst::message::Eos::builder().src(element);
            match seqnum {
                Some(seqnum) => message.seqnum(seqnum).build(),
                None => message.build(),
            }
        });
    }
}

/// Handles a sink's held items, each at its time.
struct Drive<R: Renderer> {
    shared: Arc<Shared<R>>,
    /// Ends when the item of this number has left; `None`: when all have.
    number: Option<u64>,
    /// The source it stays with; `None`: an ordinary thread, which waits for its own item only.
    source: Option<u64>,
    /// Its number as the driver, while it is.
    id: Option<u64>,
    wait: Option<ClockWait>,
    registration: Registration,
}

impl<R: Renderer> Drive<R> {
    fn new(shared: &Arc<Shared<R>>, number: Option<u64>) -> Self {
        Drive {
            shared: shared.clone(),
            number,
            source: pending::source(),
            id: None,
            wait: None,
            registration: Registration::default(),
        }
    }

    /// Becomes the driver. `false`: there is another one.
    fn claim(&mut self, state: &mut State<R>) -> bool {
        if state.driver.is_none() {
            state.drivers += 1;
            state.driver = Some((state.drivers, self.source));
            self.id = Some(state.drivers);
        }
        self.is_driver(state)
    }

    /// Is the driver no longer: another one may take over.
    fn let_go(&mut self, state: &mut Guard<'_, State<R>>) {
        if self.is_driver(state) {
            state.driver = None;
            state.wake(LEFT | MORE);
        }
        self.id = None;
    }

    fn is_driver(&self, state: &State<R>) -> bool {
        let driver = state.driver.map(|(id, _)| id);
        self.id.is_some() && self.id == driver
    }

    fn has_left(&self, state: &State<R>) -> bool {
        self.number
            .is_some_and(|number| state.core.has_left(number))
    }
}

impl<R: Renderer> Future for Drive<R> {
    type Output = Result<(), gst::FlowError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.wait = None;
        loop {
            let shared = this.shared.clone();
            let mut state = shared.state.lock();
            if !this.claim(&mut state) {
                if state.core.is_gone() {
                    return Poll::Ready(Err(gst::FlowError::Flushing));
                }
                if this.has_left(&state) {
                    return Poll::Ready(Ok(()));
                }
                state.register(&mut this.registration, LEFT, cx.waker().clone());
                return Poll::Pending;
            }
            let before = state.core.left();
            let (advanced, mut state) = shared.advance(state);
            // Only then: the waiters' wake-up may call this future again.
            if state.core.left() > before {
                state.wake(if state.core.len() <= WAITING_RESUME {
                    LEFT | MORE
                } else {
                    LEFT
                });
            }
            let result = match advanced {
                Advanced::Empty => Ok(()),
                Advanced::Gone => Err(gst::FlowError::Flushing),
                Advanced::Failed(error) => Err(error),
                Advanced::Waits(_) if this.source.is_none() && this.has_left(&state) => Ok(()),
                Advanced::Waits(obstacle) => {
                    // Before the unlock, so that no change is missed.
                    state.register(&mut this.registration, DRIVE, cx.waker().clone());
                    let mut wait = match obstacle {
                        Obstacle::Change => return Poll::Pending,
                        Obstacle::Clock(running_ns) => state.time.wait_until(running_ns),
                        Obstacle::Retry => ClockWait::until_monotonic(clock_now_ns() + RETRY_NS),
                    };
                    drop(state);
                    if Pin::new(&mut wait).poll(cx).is_pending() {
                        this.wait = Some(wait);
                        return Poll::Pending;
                    }
                    continue;
                }
            };
            this.let_go(&mut state);
            return Poll::Ready(result);
        }
    }
}

impl<R: Renderer> Drop for Drive<R> {
    fn drop(&mut self) {
        let shared = self.shared.clone();
        self.let_go(&mut shared.state.lock());
        shared.state.cancel(&mut self.registration);
    }
}

/// Items that a sink holds until their time before it holds up the source: some slices of a fast stream.
const WAITING_MAX: usize = 64;
/// The source continues at this number of items.
const WAITING_RESUME: usize = WAITING_MAX / 2;
/// Time before a sink retries a full socket.
const RETRY_NS: u64 = 1_000_000;
