//! The task of a source pad that a context thread feeds.
//!
//! ```text
//!   add -> Paused <--start/pause--> Running --flow error, EOS--> Ended
//!                                   Running <--pending--> suspended (still Running; awaits downstream)
//!                                   Running, downstream flushes: the item is lost, the next input is the next try
//! ```
//!
//! A [`Driver`] is the element's end, a [`SrcAgent`] the context's. They communicate by commands, so neither locks the other. The
//! element-specific part is its [`Producer`].

mod element;

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll};

use gst::glib;
use gst::glib::translate::IntoGlib;
use gst::prelude::*;
use threadbare_runtime::{Agent, AgentHandle, Cx, Ready};

use super::context::{ContextSettings, Place};
use super::pending::{self, Pending};
use super::prefetch::BranchMemory;
use super::preroll::warn_of_blocking_sinks;
use super::time::RunningTime;

pub use self::element::{
    SourceElement, answer_query, change_state, opening_events, send_event, set_clock, source_pad,
};
pub use self::element::{allowed_caps, opening};

/// Produces an element's data, on its context's thread.
pub trait Producer: Send + 'static {
    /// Starts waiting for input, because the element plays.
    fn start(&mut self, cx: &mut Cx<'_>) -> Result<(), gst::ErrorMessage>;

    /// Stops waiting for input: for a pause, while downstream is full, or before the end.
    fn stop(&mut self, cx: &mut Cx<'_>) {
        cx.clear_timer();
    }

    /// Sets the element's clock or base time.
    fn set_time(&mut self, _time: RunningTime) {}

    /// Starts a pass. `ready` is the reason for the pass.
    fn begin(&mut self, _cx: &mut Cx<'_>, _ready: Ready) {}

    /// Produces the next item to push, if any.
    fn produce(&mut self, cx: &mut Cx<'_>) -> Produced;

    /// Returns the items to push before the first one of [`Producer::produce`].
    fn opening(&mut self, _pad: &gst::Pad) -> Vec<gst::Event> {
        Vec::new()
    }

    /// See [`Agent::prefetch`].
    fn prefetch(&self) {}

    /// Ends a flush: drops older data. The last push from before the flush has already returned. Returns the event to push, or
    /// `None` if a later flush's event replaces it.
    fn end_flush(&mut self, event: gst::Event) -> Option<gst::Event> {
        Some(event)
    }

    /// Returns the items to push again after the end of a flush.
    fn reopening(&mut self) -> Vec<gst::Event> {
        Vec::new()
    }

    /// Handles a failed push of the last item.
    fn push_failed(&mut self, _error: gst::FlowError) {}

    /// Whether the producer continues with the next item while downstream flushes. A source that would run at full speed in this
    /// case returns `false`.
    fn outlives_flushing(&self) -> bool {
        true
    }

    /// Whether this element reports a failed flow, as a source does. A queue does not report it, because the elements upstream of
    /// the queue get the failure as the result of their push, and report it.
    const REPORTS_FLOW: bool = true;

    /// Whether the element continues with the next item after a failed push.
    const OUTLIVES_FLOW_ERRORS: bool = false;
}

/// Output of a producer.
pub enum Produced {
    /// Push at once, without batching.
    Buffer(gst::Buffer),
    /// Push in one call.
    List(gst::BufferList),
    /// Push in order. An EOS ends a source.
    Event(gst::Event),
    /// No output yet: call again.
    Again,
    /// No output now; the producer has arranged its next call.
    Idle,
    /// The producer failed.
    Failed(gst::ErrorMessage),
}

/// The element's end of the task.
pub struct Driver<P: Producer> {
    slot: Mutex<Option<Driven<P>>>,
    /// The segment at the start of a flush from downstream.
    flushed_segment: Mutex<Option<gst::Event>>,
    /// A seek that was sent before the task existed: the position to start at.
    early_seek: Mutex<Option<gst::Event>>,
}

struct Driven<P: Producer> {
    handle: AgentHandle<SrcAgent<P>>,
    place: Place,
}

impl<P: Producer> Default for Driver<P> {
    fn default() -> Self {
        Driver {
            slot: Mutex::new(None),
            flushed_segment: Mutex::default(),
            early_seek: Mutex::default(),
        }
    }
}

impl<P: Producer> Driver<P> {
    fn slot(&self) -> MutexGuard<'_, Option<Driven<P>>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places the producer on its context's thread, paused.
    pub fn add(
        &self,
        element: &gst::Element,
        pad: &gst::Pad,
        place: Place,
        producer: P,
    ) -> Result<(), gst::ErrorMessage> {
        let agent = SrcAgent {
            element: element.downgrade(),
            pad: pad.clone(),
            place: place.clone(),
            producer,
            state: State::Paused,
            may_run: false,
            waiting: false,
            pending: Pending::default(),
            opened: false,
            events: VecDeque::new(),
            branch: BranchMemory::EMPTY,
        };
        let handle = place
            .shard
            .call(move |local| local.add_agent(agent))
            .map_err(|e| gst::error_msg!(gst::CoreError::StateChange, ["{e}"]))?;
        let replaced = self.slot().replace(Driven { handle, place });
        debug_assert!(replaced.is_none(), "a task was added twice");
        Ok(())
    }

    /// Takes the last seek that was sent before the task existed: for [`SourceElement::activate`].
    #[doc(hidden)]
    pub fn take_early_seek(&self) -> Option<gst::Event> {
        super::lock(&self.early_seek).take()
    }

    fn keep_early_seek(&self, seek: gst::Event) {
        *super::lock(&self.early_seek) = Some(seek);
    }

    /// Allows producing.
    pub fn start(&self, time: RunningTime) {
        self.command(move |agent, cx| {
            agent.producer.set_time(time);
            agent.start(cx);
        });
    }

    /// Pauses producing. Does not wait for a running push.
    pub fn pause(&self) {
        self.command(|agent, cx| agent.pause(cx));
    }

    /// Produces again, after a flush or an end, from the start of a stream.
    #[doc(hidden)]
    pub fn restart(&self) {
        self.command(|agent, cx| agent.restart(cx));
    }

    /// Starts or ends a flush from downstream. The end of the flush removes the segment from the pad, although nothing was
    /// flushed after the pad, and no element upstream sends another segment. So the pad pushes the same segment again before the
    /// next data.
    fn flush_upstream(&self, pad: &gst::Pad, flushing: bool) {
        let segment = pad.sticky_event::<gst::event::Segment>(0);
        let segment = segment.map(gst::Event::from);
        if flushing {
            *super::lock(&self.flushed_segment) = segment;
            self.command(|agent, cx| agent.begin_flush(cx));
            return;
        }
        let before = super::lock(&self.flushed_segment).take();
        if let Some(before) = before.filter(|_| segment.is_none()) {
            let _ = pad.store_sticky_event(&before);
        }
        self.restart();
    }

    /// Ends a flush that began with a FLUSH_START on the pad. Forwards the event, and produces again.
    #[doc(hidden)]
    pub fn end_flush(&self, event: gst::Event) {
        self.command(move |agent, cx| agent.end_flush(cx, event));
    }

    /// Ends a flush like [`end_flush`](Self::end_flush), then calls `done`. The pad is then open for another flush, and no data
    /// has been pushed yet. `done` is not called if the task is removed before.
    #[doc(hidden)]
    pub fn end_flush_and_tell(&self, event: gst::Event, done: impl FnOnce() + Send + 'static) {
        self.command(move |agent, cx| {
            agent.end_flush(cx, event);
            done();
        });
    }

    /// Calls `f` with the producer. The resulting event is pushed before the next item, unless the stream is not open yet.
    pub fn announce(
        &self,
        change: impl FnOnce(&mut P, &gst::Pad) -> Option<gst::Event> + Send + 'static,
    ) {
        self.command(move |agent, cx| {
            let event = change(&mut agent.producer, &agent.pad);
            if agent.opened {
                agent.events.extend(event);
                cx.wake_self();
            }
        });
    }

    /// Waits until the task's current push has returned. If the caller is on the task's own thread, it returns at once.
    #[doc(hidden)]
    pub fn await_pass(&self) {
        if let Some(place) = self.place() {
            let _ = place.shard.call(|_| ());
        }
    }

    /// Handles an event that the application sends to a source. If the parent class must handle the event, returns the event as
    /// an error.
    pub fn handle_event(&self, pad: &gst::Pad, event: gst::Event) -> Result<bool, gst::Event> {
        match event.type_() {
            gst::EventType::FlushStart => Ok(pad.push_event(event)),
            gst::EventType::FlushStop => {
                self.end_flush(event);
                Ok(true)
            }
            _ if event.is_downstream() && event.is_serialized() => Ok(self.send_event(event)),
            _ => Err(event),
        }
    }

    /// Pushes an event between two items.
    pub fn send_event(&self, event: gst::Event) -> bool {
        let known = self.slot().is_some();
        self.command(move |agent, cx| {
            agent.events.push_back(event);
            cx.wake_self();
        });
        known
    }

    /// Runs `f` with the producer, soon, on its thread.
    pub fn with_producer(&self, f: impl FnOnce(&mut P, &mut Cx<'_>) + Send + 'static) {
        self.command(move |agent, cx| f(&mut agent.producer, cx));
    }

    /// Takes the producer off its thread and waits until it is dropped. The pads must be flushing, so that a running push
    /// returns.
    pub fn remove(&self) {
        let driven = self.slot().take();
        if let Some(driven) = driven {
            driven.handle.remove();
        }
    }

    /// Returns the waker of the task, if the task exists.
    pub fn waker(&self) -> Option<std::task::Waker> {
        self.slot().as_ref().map(|driven| driven.handle.waker())
    }

    /// Returns the longest wait of an item for its slice. Before the task runs, it is the wait in the properties.
    #[doc(hidden)]
    pub fn wait(&self, context: &Mutex<ContextSettings>) -> gst::ClockTime {
        match self.place() {
            Some(place) => place.wait(),
            None => super::lock(context).wait(),
        }
    }

    /// Returns the task's place, while the task runs.
    pub fn place(&self) -> Option<Place> {
        self.slot().as_ref().map(|driven| driven.place.clone())
    }

    fn command(&self, f: impl FnOnce(&mut SrcAgent<P>, &mut Cx<'_>) + Send + 'static) {
        let handle = self.slot().as_ref().map(|driven| driven.handle.clone());
        if let Some(handle) = handle {
            handle.command(f);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Paused,
    Running,
    Ended,
}

/// The context's end: calls the producer, pushes, awaits downstream's pending futures. The layout is fixed: fields used for each
/// push come first.
#[repr(C)]
pub struct SrcAgent<P> {
    pad: gst::Pad,
    state: State,
    /// Whether the task was started and is not paused, whatever the state of the stream is.
    may_run: bool,
    /// Whether the producer waits for input, because it was started and not stopped.
    waiting: bool,
    opened: bool,
    pending: Pending,
    events: VecDeque<gst::Event>,
    producer: P,
    branch: BranchMemory,
    element: glib::WeakRef<gst::Element>,
    place: Place,
}

impl<P: Producer> Agent for SrcAgent<P> {
    fn run(&mut self, cx: &mut Cx<'_>, ready: Ready) {
        if self.state == State::Running {
            self.producer.begin(cx, ready);
        }
        // Futures from the last push must complete, even if the stream has ended with that push.
        let must_ask = !self.pending.is_empty() && (ready == Ready::Woken || self.pending.holds());
        if must_ask && !self.settle(cx) || self.state != State::Running {
            return;
        }
        for _ in 0..BUDGET {
            let produced = match self.events.pop_front() {
                Some(event) => Produced::Event(event),
                None => self.producer.produce(cx),
            };
            if !self.step(cx, produced) {
                return;
            }
        }
        cx.wake_self();
    }

    #[inline]
    fn prefetch(&self) {
        self.branch.prefetch();
        self.producer.prefetch();
    }

    fn label(&self) -> String {
        let element = self.element.upgrade();
        element.map_or_else(String::new, |element| super::path_of(&element))
    }
}

impl<P: Producer> SrcAgent<P> {
    fn start(&mut self, cx: &mut Cx<'_>) {
        self.may_run = true;
        if self.state != State::Paused {
            return;
        }
        self.state = State::Running;
        if !self.pending.holds() {
            self.wait_for_input(cx);
        }
        cx.wake_self();
    }

    fn pause(&mut self, cx: &mut Cx<'_>) {
        self.may_run = false;
        if self.state == State::Running {
            self.rest(cx);
            self.state = State::Paused;
        }
    }

    fn restart(&mut self, cx: &mut Cx<'_>) {
        self.pending.release();
        self.resume(cx);
    }

    fn resume(&mut self, cx: &mut Cx<'_>) {
        self.rest(cx);
        self.state = State::Paused;
        if self.may_run {
            self.start(cx);
        }
    }

    fn end_flush(&mut self, cx: &mut Cx<'_>, event: gst::Event) {
        let Some(event) = self.producer.end_flush(event) else {
            return;
        };
        self.pending.release();
        let mut events = vec![event];
        if self.opened {
            events.extend(self.producer.reopening());
        }
        self.push_events(cx, events);
        self.resume(cx);
    }

    /// Starts a flush from downstream: nothing is pushed until its end.
    fn begin_flush(&mut self, cx: &mut Cx<'_>) {
        if self.state != State::Paused {
            self.rest(cx);
            self.pending.release();
            self.state = State::Ended;
        }
    }

    /// Pushes events at once. Elements downstream may defer, as in any other push.
    fn push_events(&mut self, cx: &mut Cx<'_>, events: impl IntoIterator<Item = gst::Event>) {
        let before = self.pending.len();
        pending::scope(&mut self.pending, || {
            for event in events {
                self.pad.push_event(self.place.announce(event));
            }
        });
        if self.pending.len() > before {
            self.ask(cx);
        }
    }

    fn wait_for_input(&mut self, cx: &mut Cx<'_>) {
        if self.waiting {
            return;
        }
        match self.producer.start(cx) {
            Ok(()) => self.waiting = true,
            Err(error) => self.fail(cx, error),
        }
    }

    fn rest(&mut self, cx: &mut Cx<'_>) {
        if std::mem::take(&mut self.waiting) {
            self.producer.stop(cx);
        }
    }

    /// Pushes one item. Returns `true` to continue.
    #[inline]
    fn step(&mut self, cx: &mut Cx<'_>, produced: Produced) -> bool {
        let pending_before = self.pending.len();
        let result = match produced {
            Produced::Buffer(buffer) => {
                self.open(cx);
                pending::scope(&mut self.pending, || self.pad.push(buffer))
            }
            Produced::List(list) => {
                self.open(cx);
                pending::scope(&mut self.pending, || self.pad.push_list(list))
            }
            Produced::Event(event) => return self.push_event(cx, event),
            Produced::Again => return true,
            Produced::Idle => return false,
            Produced::Failed(error) => {
                self.fail(cx, error);
                return false;
            }
        };
        match result {
            // Futures from before this push have been polled already, and they have the waker.
            Ok(_) if self.pending.len() == pending_before => true,
            Ok(_) => self.settle(cx),
            Err(error) if self.pending.is_empty() => self.flow_failed(cx, error),
            // One branch has failed at once, while other branches still hold data. The source waits for these branches first.
            Err(error) => {
                self.pending.fail(error);
                self.settle(cx)
            }
        }
    }

    fn push_event(&mut self, cx: &mut Cx<'_>, event: gst::Event) -> bool {
        if event.is_sticky() || event.is_serialized() {
            self.open(cx);
        }
        let kind = event.type_();
        let event = self.place.announce(event);
        pending::scope(&mut self.pending, || self.pad.push_event(event));
        // A queue forwards the end of one stream and the start of the next.
        if kind == gst::EventType::Eos && P::REPORTS_FLOW {
            self.rest(cx);
            self.state = State::Ended;
            if !self.pending.is_empty() {
                self.settle(cx);
            }
            return false;
        }
        self.pending.is_empty() || self.settle(cx)
    }

    /// Polls pending futures; stores an error for [`SrcAgent::settle`].
    fn ask(&mut self, cx: &mut Cx<'_>) {
        let waker = cx.waker();
        if let Poll::Ready(Err(error)) = self.pending.poll(&mut TaskContext::from_waker(&waker)) {
            self.pending.fail(error);
        }
    }

    /// Polls pending futures. Returns `true` if none is left.
    fn settle(&mut self, cx: &mut Cx<'_>) -> bool {
        let waker = cx.waker();
        match self.pending.poll(&mut TaskContext::from_waker(&waker)) {
            Poll::Pending if self.pending.holds() => {
                self.rest(cx);
                false
            }
            Poll::Pending | Poll::Ready(Ok(())) => {
                if self.state == State::Running {
                    self.wait_for_input(cx);
                }
                self.state == State::Running
            }
            Poll::Ready(Err(error)) => self.state == State::Running && self.flow_failed(cx, error),
        }
    }

    #[inline]
    fn open(&mut self, cx: &mut Cx<'_>) {
        if !self.opened {
            self.opened = true;
            let events = self.producer.opening(&self.pad);
            self.push_events(cx, events);
            // This comes after the events, because some elements know their memory only once they have the caps.
            self.branch = BranchMemory::from(&self.pad);
            // With several threads, each sink may have its own.
            let has_one = self.place.context.shards().len() == 1;
            if let Some(element) = self.element.upgrade().filter(|_| has_one) {
                warn_of_blocking_sinks(&element, self.place.context_name());
            }
        }
    }

    /// Handles a failed push. Returns `true` to continue.
    fn flow_failed(&mut self, cx: &mut Cx<'_>, error: gst::FlowError) -> bool {
        self.producer.push_failed(error);
        // A branch that flushes or stops does not end a source: the source tries again with the next input.
        if error == gst::FlowError::Flushing && P::REPORTS_FLOW {
            return self.producer.outlives_flushing();
        }
        if P::OUTLIVES_FLOW_ERRORS {
            self.wait_for_input(cx);
            return true;
        }
        self.rest(cx);
        self.state = State::Ended;
        if !P::REPORTS_FLOW {
            return false;
        }
        match error {
            gst::FlowError::Eos => self.end_of_stream(cx),
            error => {
                if let Some(element) = self.element.upgrade() {
                    gst::element_error!(
                        element,
                        gst::StreamError::Failed,
                        ("Internal data stream error."),
                        [
                            "streaming stopped, reason {error:?} ({})",
                            error.into_glib()
                        ]
                    );
                }
                self.end_of_stream(cx);
            }
        }
        false
    }

    fn fail(&mut self, cx: &mut Cx<'_>, error: gst::ErrorMessage) {
        if let Some(element) = self.element.upgrade() {
            element.post_error_message(error);
        }
        self.end_of_stream(cx);
    }

    fn end_of_stream(&mut self, cx: &mut Cx<'_>) {
        self.rest(cx);
        self.state = State::Ended;
        self.open(cx);
        self.push_events(cx, [gst::event::Eos::new()]);
    }
}

/// Maximum number of items that one element may push in one pass before other agents run.
const BUDGET: usize = 64;
