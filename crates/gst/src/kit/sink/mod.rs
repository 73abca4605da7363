//! The sink pad of an element that sends its buffers or hands them out.
//!
//! All sinks wait for the same conditions: PLAYING, a buffer's time, room. On a context thread the wait is a future
//! that stays with the source that pushed ([`super::pending`]); it renders the held items at their time, so that a sink
//! needs no task of its own. An ordinary thread waits in place.
//!
//! | field | who |
//! |---|---|
//! | `core` | any thread, under its lock; never held across a call out of the element, except the renderer's system call |
//! | `changed` | signals ordinary threads that wait in `chain` |

mod element;
mod properties;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gst::glib;
use gst::prelude::*;
use threadbare_runtime::{Precision, Sleep, sleep_until};

use self::properties::SyncState;
use super::condition::Condition;
use super::lock;
use super::pending::{self, Hold};
use super::time::RunningTime;

pub use self::element::{SinkElement, sink_pad};
pub use self::properties::SyncProperties;

/// Renders a sink's buffers.
pub trait Renderer: Send + 'static {
    /// Renders as much as it can without waiting.
    fn render(&mut self, buffer: &gst::Buffer) -> Rendered;

    /// The first buffer in PAUSED; it will be rendered in PLAYING.
    fn preroll(&mut self, _buffer: &gst::Buffer) {}

    /// An event given to [`Sink::queue_event`], in its place among the buffers.
    fn event(&mut self, _event: &gst::Event) {}

    /// The stream has ended.
    fn end(&mut self) {}

    /// Drop everything rendered so far.
    fn flush(&mut self) {}

    /// Called after [`Rendered::Full`].
    fn has_room(&self) -> bool {
        true
    }
}

/// Result of a render.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rendered {
    /// The buffer is finished.
    Done,
    /// No room: retry the same buffer soon.
    Blocked,
    /// No room: retry the same buffer after [`Sink::resume`].
    Full,
}

/// The sink half of an element.
pub struct Sink<R: Renderer>(Arc<Shared<R>>);

struct Shared<R> {
    element: glib::WeakRef<gst::Element>,
    core: Mutex<Core<R>>,
    changed: Condition,
    /// Called, without a lock, after a render, a preroll or the end.
    after: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

struct Core<R> {
    renderer: R,
    sync: Arc<SyncState>,
    stage: Stage,
    /// The state change to PAUSED waits for a first buffer.
    is_async: bool,
    segment: Option<gst::FormattedSegment<gst::ClockTime>>,
    latency: gst::ClockTime,
    time: RunningTime,
    waiting: VecDeque<Item>,
    wakers: Vec<Waker>,
    room_wakers: Vec<Waker>,
    /// A source drives the waiting items.
    is_driven: bool,
    clock_id: Option<gst::ClockId>,
    is_eos: bool,
    /// Between FLUSH_START and FLUSH_STOP.
    flushing: bool,
    dropped: u64,
    rendered: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Flushing,
    Paused,
    Playing,
}

enum Item {
    Buffer(gst::Buffer, When),
    Event(gst::Event),
    Eos(Option<gst::Seqnum>),
}

/// The time of a buffer, by the segment valid at its arrival: the next segment may come while it waits.
#[derive(Debug, Clone, Copy)]
enum When {
    /// Without a timestamp or segment.
    Now,
    /// At this running time.
    At(gst::ClockTime),
    /// Outside of the segment.
    Never,
}

/// The condition that the current item waits for.
enum Next {
    Ready,
    UntilPlaying,
    Until { clock_ns: u64 },
    Drop,
    Flushing,
}

impl<R: Renderer> Sink<R> {
    /// For its own element, which must exist: do not call it during construction.
    pub fn new(element: &gst::Element, renderer: R, sync: SyncProperties) -> Self {
        Sink(Arc::new(Shared {
            element: element.downgrade(),
            core: Mutex::new(Core {
                renderer,
                sync: sync.0,
                stage: Stage::Flushing,
                is_async: false,
                segment: None,
                latency: gst::ClockTime::ZERO,
                time: RunningTime::default(),
                waiting: VecDeque::new(),
                wakers: Vec::new(),
                room_wakers: Vec::new(),
                is_driven: false,
                clock_id: None,
                is_eos: false,
                flushing: false,
                dropped: 0,
                rendered: 0,
            }),
            changed: Condition::default(),
            after: OnceLock::new(),
        }))
    }

    /// Calls `after`, without a lock, after each render, preroll or end. Set it once.
    pub(crate) fn tell(&self, after: impl Fn() + Send + Sync + 'static) {
        let is_first = self.0.after.set(Box::new(after)).is_ok();
        debug_assert!(is_first, "somebody is told already");
    }

    /// There is room again, after [`Rendered::Full`].
    pub(crate) fn resume(&self) {
        self.wake();
    }

    /// Gives the renderer an event behind all earlier buffers.
    pub(crate) fn queue_event(&self, event: gst::Event) {
        let mut core = lock(&self.0.core);
        if core.waiting.is_empty() {
            core.renderer.event(&event);
        } else {
            core.waiting.push_back(Item::Event(event));
        }
    }

    /// Memory that a buffer touches, for [`super::trail::offer`].
    pub(crate) fn spans(&self) -> [(usize, usize); 2] {
        let sync = lock(&self.0.core).sync.clone();
        [super::trail::span(&*self.0), super::trail::span(&*sync)]
    }

    /// Runs `f` with the renderer.
    pub fn with_renderer<T>(&self, f: impl FnOnce(&mut R) -> T) -> T {
        f(&mut lock(&self.0.core).renderer)
    }

    /// Buffers rendered, and dropped for being late.
    pub fn counts(&self) -> (u64, u64) {
        let core = lock(&self.0.core);
        (core.rendered, core.dropped)
    }

    /// A buffer arrives.
    #[inline]
    pub fn chain(&self, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let mut core = lock(&self.0.core);
        if core.is_eos {
            return Err(gst::FlowError::Eos);
        }
        if core.stage == Stage::Playing
            && !core.sync.sync.load(Relaxed)
            && core.waiting.is_empty()
            && core.renderer.render(&buffer) == Rendered::Done
        {
            core.rendered += 1;
            drop(core);
            self.0.tell();
            return Ok(gst::FlowSuccess::Ok);
        }
        drop(core);
        self.arrive(|core| {
            let when = core.when(&buffer);
            Item::Buffer(buffer, when)
        })
    }

    /// Buffers arrive.
    pub fn chain_list(&self, list: &gst::BufferList) -> Result<gst::FlowSuccess, gst::FlowError> {
        for buffer in list.iter_owned() {
            self.chain(buffer)?;
        }
        Ok(gst::FlowSuccess::Ok)
    }

    /// An event arrives. `false`: not handled here.
    pub fn event(&self, event: &gst::Event) -> bool {
        match event.view() {
            gst::EventView::Segment(segment) => {
                lock(&self.0.core).segment =
                    segment.segment().downcast_ref::<gst::ClockTime>().cloned();
            }
            gst::EventView::StreamStart(start) => {
                lock(&self.0.core).is_eos = false;
                let message = gst::message::StreamStart::builder().seqnum(event.seqnum());
                let message = match start.group_id() {
                    Some(group) => message.group_id(group),
                    None => message,
                };
                self.post(|element| message.src(element).build());
            }
            gst::EventView::FlushStart(_) => self.flush(true),
            gst::EventView::FlushStop(_) => self.flush(false),
            // A gap stands for missing data.
            gst::EventView::Gap(_) => self.commit(),
            gst::EventView::Eos(_) => {
                lock(&self.0.core).is_eos = true;
                let _ = self.arrive(|_| Item::Eos(Some(event.seqnum())));
            }
            _ => return false,
        }
        true
    }

    /// The pipeline's latency, from a LATENCY event.
    pub fn set_latency(&self, latency: gst::ClockTime) {
        lock(&self.0.core).latency = latency;
        self.wake();
    }

    /// READY to PAUSED. `true`: the state change is asynchronous.
    pub(crate) fn pause_from_ready(&self) -> bool {
        let mut core = lock(&self.0.core);
        core.stage = Stage::Paused;
        core.is_eos = false;
        core.flushing = false;
        core.segment = None;
        core.is_async = core.sync.preroll.load(Relaxed);
        core.is_async
    }

    /// PAUSED to PLAYING. `true`: an asynchronous state change ends without a preroll.
    pub(crate) fn play(&self, time: RunningTime) -> bool {
        let ends = {
            let mut core = lock(&self.0.core);
            core.stage = Stage::Playing;
            core.time = time;
            std::mem::take(&mut core.is_async)
        };
        self.wake();
        ends
    }

    /// PLAYING to PAUSED. `true`: asynchronous, until the next buffer.
    pub(crate) fn pause(&self) -> bool {
        let is_async = {
            let mut core = lock(&self.0.core);
            core.stage = Stage::Paused;
            core.is_async =
                core.sync.preroll.load(Relaxed) && core.waiting.is_empty() && !core.is_eos;
            core.is_async
        };
        self.unschedule();
        self.wake();
        is_async
    }

    /// PAUSED to READY, before the pads are deactivated: releases all waiting threads.
    pub(crate) fn stop(&self) {
        {
            let mut core = lock(&self.0.core);
            core.stage = Stage::Flushing;
            core.is_async = false;
            core.waiting.clear();
        }
        self.unschedule();
        self.wake();
    }

    /// A clock was set.
    pub fn set_time(&self, time: RunningTime) {
        lock(&self.0.core).time = time;
        self.wake();
    }

    fn flush(&self, flushing: bool) {
        {
            let mut core = lock(&self.0.core);
            core.waiting.clear();
            core.renderer.flush();
            core.is_eos = false;
            core.flushing = flushing;
            if !flushing {
                core.segment = None;
            }
        }
        self.unschedule();
        self.wake();
    }

    /// An item that may have to wait.
    fn arrive(
        &self,
        item: impl FnOnce(&Core<R>) -> Item,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        {
            let mut core = lock(&self.0.core);
            // A push that was on its way here when the flush began would wait through the flush.
            if core.stage == Stage::Flushing || core.flushing {
                return Err(gst::FlowError::Flushing);
            }
            let item = item(&core);
            if let Item::Buffer(buffer, _) = &item
                && core.stage == Stage::Paused
                && core.waiting.is_empty()
            {
                core.renderer.preroll(buffer);
            }
            core.waiting.push_back(item);
        }
        self.commit();
        self.0.tell();
        if !pending::can_defer() {
            return Drain::new(&self.0).block().map(|()| gst::FlowSuccess::Ok);
        }
        if !lock(&self.0.core).is_driven {
            // An item that is due already needs no wait.
            let mut drain = Drain::new(&self.0);
            match drain.advance() {
                Ok(result) => return result.map(|()| gst::FlowSuccess::Ok),
                // Until its time, an item does not hold up the source: the source may have more items due at the same
                // time. A sink that does not play takes no more.
                Err(obstacle) => {
                    drain.drive();
                    pending::defer(Hold::Nobody, Box::pin(drain));
                    if matches!(obstacle, Obstacle::Change) {
                        pending::defer(Hold::Source, Box::pin(WhileHeld(self.0.clone())));
                    }
                }
            }
        }
        if lock(&self.0.core).waiting.len() >= WAITING_MAX {
            pending::defer(Hold::Source, Box::pin(Room(self.0.clone())));
        }
        Ok(gst::FlowSuccess::Ok)
    }

    /// The first buffer completes an asynchronous state change.
    fn commit(&self) {
        if std::mem::take(&mut lock(&self.0.core).is_async)
            && let Some(element) = self.0.element.upgrade()
        {
            let _ = element.continue_state(gst::StateChangeSuccess::Success);
            let done = gst::message::AsyncDone::builder().src(&element).build();
            let _ = element.post_message(done);
        }
    }

    fn post(&self, message: impl FnOnce(&gst::Element) -> gst::Message) {
        self.0.post(message);
    }

    fn unschedule(&self) {
        let id = lock(&self.0.core).clock_id.take();
        if let Some(id) = id {
            id.unschedule();
        }
    }

    fn wake(&self) {
        let wakers = {
            let mut core = lock(&self.0.core);
            let room = std::mem::take(&mut core.room_wakers);
            std::mem::take(&mut core.wakers)
                .into_iter()
                .chain(room)
                .collect::<Vec<_>>()
        };
        self.0.changed.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl<R> Shared<R> {
    #[inline]
    fn tell(&self) {
        if let Some(after) = self.after.get() {
            after();
        }
    }

    fn wake_who_waits_for_room(&self) {
        let wakers = {
            let mut core = lock(&self.core);
            if core.room_wakers.is_empty() || core.waiting.len() > WAITING_RESUME {
                return;
            }
            std::mem::take(&mut core.room_wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn post(&self, message: impl FnOnce(&gst::Element) -> gst::Message) {
        if let Some(element) = self.element.upgrade() {
            let _ = element.post_message(message(&element));
        }
    }
}

impl<R> Core<R> {
    /// The condition that the first waiting item needs.
    fn next(&self) -> Option<Next> {
        let item = self.waiting.front()?;
        Some(match self.stage {
            Stage::Flushing => Next::Flushing,
            Stage::Paused => Next::UntilPlaying,
            Stage::Playing => match item {
                Item::Buffer(_, when) if self.sync.sync.load(Relaxed) => self.due(*when),
                Item::Buffer(..) | Item::Event(_) | Item::Eos(_) => Next::Ready,
            },
        })
    }

    fn wake_on_change(&mut self, waker: &Waker) {
        if !self.wakers.iter().any(|known| known.will_wake(waker)) {
            self.wakers.push(waker.clone());
        }
    }

    fn when(&self, buffer: &gst::BufferRef) -> When {
        // As in the stock sinks, the DTS orders the sending.
        match (&self.segment, buffer.dts_or_pts()) {
            (Some(segment), Some(start)) => {
                segment.to_running_time(start).map_or(When::Never, When::At)
            }
            _ => When::Now,
        }
    }

    /// A buffer's wait, by the pipeline's clock.
    fn due(&self, when: When) -> Next {
        let (running, clock) = match (when, self.time.clock()) {
            (When::Never, _) => return Next::Drop,
            (When::At(running), Some(clock)) => (running, clock),
            _ => return Next::Ready,
        };
        let at = self
            .time
            .base_ns()
            .saturating_add((running + self.latency).nseconds());
        let at = at.saturating_add_signed(self.sync.offset_ns.load(Relaxed));
        let now = clock.time().nseconds();
        if now < at {
            return Next::Until { clock_ns: at };
        }
        let late_ns = i64::try_from(now - at).unwrap_or(i64::MAX);
        match self.sync.max_lateness_ns.load(Relaxed) {
            max if max >= 0 && late_ns > max => Next::Drop,
            _ => Next::Ready,
        }
    }
}

/// Renders a sink's waiting items, in order, each at its time. An ordinary thread runs it as well while it waits.
struct Drain<R: Renderer> {
    shared: Arc<Shared<R>>,
    sleep: Option<Sleep>,
    /// Drives the sink for all arriving items.
    drives: bool,
}

impl<R: Renderer> Drop for Drain<R> {
    fn drop(&mut self) {
        if self.drives {
            lock(&self.shared.core).is_driven = false;
        }
    }
}

/// Why a drain stops for now.
enum Obstacle {
    /// A wake-up will come.
    Change,
    /// The clock.
    Clock { clock_ns: u64 },
    /// No room downstream.
    Room,
}

impl<R: Renderer> Drain<R> {
    fn new(shared: &Arc<Shared<R>>) -> Self {
        Drain {
            shared: shared.clone(),
            sleep: None,
            drives: false,
        }
    }

    fn drive(&mut self) {
        self.drives = true;
        lock(&self.shared.core).is_driven = true;
    }

    /// Renders everything that can be rendered now.
    fn advance(&mut self) -> Result<Result<(), gst::FlowError>, Obstacle> {
        loop {
            let mut core = lock(&self.shared.core);
            match core.next() {
                None if core.stage == Stage::Flushing => return Ok(Err(gst::FlowError::Flushing)),
                None => {
                    // Under the same lock as the check: no driver handles buffers that arrive from now on.
                    if std::mem::take(&mut self.drives) {
                        core.is_driven = false;
                    }
                    return Ok(Ok(()));
                }
                Some(Next::Flushing) => return Ok(Err(gst::FlowError::Flushing)),
                Some(Next::UntilPlaying) => return Err(Obstacle::Change),
                Some(Next::Until { clock_ns }) => return Err(Obstacle::Clock { clock_ns }),
                Some(Next::Drop) => {
                    core.waiting.pop_front();
                    core.dropped += 1;
                }
                Some(Next::Ready) => match core.waiting.pop_front() {
                    Some(Item::Buffer(buffer, when)) => {
                        let obstacle = match core.renderer.render(&buffer) {
                            Rendered::Done => None,
                            Rendered::Blocked => Some(Obstacle::Room),
                            Rendered::Full => Some(Obstacle::Change),
                        };
                        if let Some(obstacle) = obstacle {
                            core.waiting.push_front(Item::Buffer(buffer, when));
                            return Err(obstacle);
                        }
                        core.rendered += 1;
                        drop(core);
                        self.shared.tell();
                    }
                    Some(Item::Event(event)) => core.renderer.event(&event),
                    Some(Item::Eos(seqnum)) => {
                        core.renderer.end();
                        drop(core);
                        self.shared.tell();
                        self.shared.post(|element| {
                            let message = gst::message::Eos::builder().src(element);
                            match seqnum {
                                Some(seqnum) => message.seqnum(seqnum).build(),
                                None => message.build(),
                            }
                        });
                    }
                    None => {}
                },
            }
        }
    }

    /// The same on an ordinary thread, which waits here.
    fn block(&mut self) -> Result<(), gst::FlowError> {
        loop {
            match self.advance() {
                Ok(result) => return result,
                Err(Obstacle::Change) => {
                    let core = lock(&self.shared.core);
                    let waits = match core.next() {
                        Some(Next::UntilPlaying) => true,
                        Some(Next::Ready) => !core.renderer.has_room(),
                        _ => false,
                    };
                    if waits {
                        drop(self.shared.changed.wait(core));
                    }
                }
                Err(Obstacle::Room) => std::thread::sleep(ROOM_RETRY),
                Err(Obstacle::Clock { clock_ns }) => self.block_on_clock(clock_ns),
            }
        }
    }

    fn block_on_clock(&mut self, clock_ns: u64) {
        let id = {
            let mut core = lock(&self.shared.core);
            if core.stage != Stage::Playing || core.waiting.is_empty() {
                return;
            }
            let Some(clock) = core.time.clock() else {
                return;
            };
            let id = clock.new_single_shot_id(gst::ClockTime::from_nseconds(clock_ns));
            core.clock_id = Some(id.clone().into());
            id
        };
        let _ = id.wait();
    }

    /// Wakes `waker` at a time of the pipeline's clock.
    fn wake_at(&mut self, clock_ns: u64, cx: &mut Context<'_>) {
        let mut core = lock(&self.shared.core);
        if core.time.is_monotonic() {
            drop(core);
            let mut sleep = sleep_until(clock_ns, Precision::NotBefore);
            if Pin::new(&mut sleep).poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
            self.sleep = Some(sleep);
            return;
        }
        let Some(clock) = core.time.clock() else {
            return;
        };
        let id = clock.new_single_shot_id(gst::ClockTime::from_nseconds(clock_ns));
        let waker = cx.waker().clone();
        let earlier = core.clock_id.replace(id.clone().into());
        drop(core);
        // Polled before its time: one wait is enough.
        if let Some(earlier) = earlier {
            earlier.unschedule();
        }
        if id.wait_async(move |_, _, _| waker.wake_by_ref()).is_err() {
            cx.waker().wake_by_ref();
        }
    }
}

impl<R: Renderer> Future for Drain<R> {
    type Output = Result<(), gst::FlowError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.sleep = None;
        // Registered before the check, so that a change in between is not lost.
        {
            lock(&self.shared.core).wake_on_change(cx.waker());
        }
        let advanced = self.advance();
        self.shared.wake_who_waits_for_room();
        match advanced {
            Ok(result) => return Poll::Ready(result),
            Err(Obstacle::Change) => {}
            Err(Obstacle::Clock { clock_ns }) => self.wake_at(clock_ns, cx),
            Err(Obstacle::Room) => {
                let retry = threadbare_runtime::clock_now_ns() + ROOM_RETRY.as_nanos() as u64;
                let mut sleep = sleep_until(retry, Precision::NotBefore);
                if Pin::new(&mut sleep).poll(cx).is_ready() {
                    cx.waker().wake_by_ref();
                }
                self.sleep = Some(sleep);
            }
        }
        Poll::Pending
    }
}

/// Completes when a sink plays and has room, or stops.
struct WhileHeld<R>(Arc<Shared<R>>);

impl<R: Renderer> Future for WhileHeld<R> {
    type Output = Result<(), gst::FlowError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut core = lock(&self.0.core);
        match core.stage {
            Stage::Flushing => Poll::Ready(Err(gst::FlowError::Flushing)),
            Stage::Paused if !core.flushing => {
                core.wake_on_change(cx.waker());
                Poll::Pending
            }
            Stage::Playing if !core.flushing && !core.renderer.has_room() => {
                core.wake_on_change(cx.waker());
                Poll::Pending
            }
            _ => Poll::Ready(Ok(())),
        }
    }
}

/// Completes when a sink's items have fallen below the limit again.
struct Room<R>(Arc<Shared<R>>);

impl<R> Future for Room<R> {
    type Output = Result<(), gst::FlowError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut core = lock(&self.0.core);
        if core.stage == Stage::Flushing {
            return Poll::Ready(Err(gst::FlowError::Flushing));
        }
        if core.waiting.len() <= WAITING_RESUME {
            return Poll::Ready(Ok(()));
        }
        core.room_wakers.push(cx.waker().clone());
        Poll::Pending
    }
}

/// Items that a sink holds until their time before it holds up the source: some slices of a fast stream.
const WAITING_MAX: usize = 64;
/// The source continues at this number of items.
const WAITING_RESUME: usize = WAITING_MAX / 2;
/// Time before a sink retries a full socket.
const ROOM_RETRY: Duration = Duration::from_millis(1);

/// The state changes of a sink element around those of its parent class.
pub fn change_state<R: Renderer, T: gst::subclass::prelude::ElementImpl>(
    sink: &Sink<R>,
    imp: &T,
    transition: gst::StateChange,
    parent: impl FnOnce() -> Result<gst::StateChangeSuccess, gst::StateChangeError>,
) -> Result<gst::StateChangeSuccess, gst::StateChangeError>
where
    <T as gst::glib::subclass::types::ObjectSubclass>::Type: IsA<gst::Element>,
{
    use gst::subclass::prelude::ObjectSubclassExt;
    let obj = imp.obj();
    let element: &gst::Element = obj.upcast_ref();
    let mut is_async = false;
    match transition {
        gst::StateChange::ReadyToPaused => {
            is_async = sink.pause_from_ready();
            if is_async {
                let _ =
                    element.post_message(gst::message::AsyncStart::builder().src(element).build());
            }
        }
        gst::StateChange::PausedToReady => sink.stop(),
        gst::StateChange::PlayingToPaused => {
            is_async = sink.pause();
            if is_async {
                let _ =
                    element.post_message(gst::message::AsyncStart::builder().src(element).build());
            }
        }
        _ => {}
    }
    let result = parent()?;
    if transition == gst::StateChange::PausedToPlaying && sink.play(RunningTime::of(element)) {
        let _ = element.post_message(gst::message::AsyncDone::builder().src(element).build());
    }
    Ok(if is_async {
        gst::StateChangeSuccess::Async
    } else {
        result
    })
}
