//! Handles a sink's held items. Items that are due are handled at once; a future handles each later item at its time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use threadbare_runtime::{Guard, Registration, clock_now_ns};

use super::core::{Item, Next};
use super::{DRIVE, LEFT, MORE, RENDERED, Rendered, Renderer, Shared, State, WAITING_RESUME};
use crate::kit::locked::Locked;
use crate::kit::pending;
use crate::kit::time::ClockWait;

/// The state after [`Shared::advance`].
pub(super) enum Advanced {
    /// No items are left.
    Empty,
    /// The items were dropped: the element has stopped, or the stream flushes.
    Gone,
    Failed(gst::FlowError),
    Waits(Obstacle),
}

/// The reason why the first item waits.
pub(super) enum Obstacle {
    /// A change of the state, which wakes the driver.
    Change,
    /// This running time, ns.
    Clock(u64),
    /// A lack of room. No notification comes when there is room again, so retry soon.
    Retry,
}

impl Obstacle {
    fn after(rendered: Rendered) -> Option<Self> {
        match rendered {
            Rendered::Done | Rendered::Failed(_) => None,
            Rendered::Blocked => Some(Obstacle::Retry),
            Rendered::Full => Some(Obstacle::Change),
        }
    }
}

impl<R: Renderer> Locked<'_, State<R>> {
    /// Removes the first item, which is not data.
    fn step_over(&mut self) {
        self.finish(false);
        self.wake(RENDERED);
    }
}

impl<R: Renderer> Shared<R> {
    /// Does everything that is due now, in order. The lock is released for each call out of the element.
    pub(super) fn advance<'a>(
        &'a self,
        mut state: Locked<'a, State<R>>,
    ) -> (Advanced, Locked<'a, State<R>>) {
        // The clock is read once. If an item becomes due in the meantime, the wait for it ends at once.
        let mut read_ns = None;
        loop {
            let timing = self.timing(&state);
            if timing.sync && state.core.len() > 0 && read_ns.is_none() {
                read_ns = state.time.now_ns();
            }
            let now_ns = read_ns.filter(|_| timing.sync);
            let (has_shown, State { core, renderer, .. }) = (state.has_shown, &mut **state);
            let holds_discarded = core.has_discarded();
            match core.next(&timing, now_ns) {
                // Only one discarded item is stored at a time, because storing several would allocate.
                Next::Render(..) | Next::Drop(..) if holds_discarded => {
                    state = self.lock_again(state);
                }
                Next::Render(data, lateness_ns) => {
                    let rendered = data.render(renderer);
                    if let Rendered::Failed(error) = rendered {
                        state.give_up();
                        return (Advanced::Failed(error), state);
                    }
                    if let Some(obstacle) = Obstacle::after(rendered) {
                        core.handle_begun();
                        return (Advanced::Waits(obstacle), state);
                    }
                    let is_overdue = core.is_rendered_late(&timing, lateness_ns);
                    let overdue_ns = timing.max_lateness_ns.filter(|_| is_overdue);
                    let told;
                    (told, state) = self.finish_rendered(state, (lateness_ns, overdue_ns), now_ns);
                    if let Err(error) = told {
                        return (Advanced::Failed(error), state);
                    }
                }
                Next::Drop(_, lateness_ns) => {
                    state = self.finish_dropped(state, lateness_ns, now_ns);
                }
                Next::Event(event) => {
                    let event = event.clone();
                    state.note_event(&event);
                    state.step_over();
                }
                Next::Skip => state.step_over(),
                Next::End => {
                    let ended;
                    (ended, state) = self.end(state);
                    if let Err(obstacle) = ended {
                        return (obstacle, state);
                    }
                }
                Next::Until(running_ns) => {
                    return (Advanced::Waits(Obstacle::Clock(running_ns)), state);
                }
                Next::Paused if has_shown => {
                    state.has_shown = false;
                    let told;
                    (told, state) = self.tell_unlocked(state);
                    if let Err(error) = told {
                        return (Advanced::Failed(error), state);
                    }
                }
                Next::Paused => return (Advanced::Waits(Obstacle::Change), state),
                Next::Empty => return (Advanced::Empty, state),
                Next::Gone => return (Advanced::Gone, state),
            }
        }
    }

    /// Unlocks, drops discarded items, and locks again.
    fn lock_again<'a>(&'a self, state: Locked<'a, State<R>>) -> Locked<'a, State<R>> {
        drop(state);
        self.lock()
    }

    fn tell_unlocked<'a>(
        &'a self,
        state: Locked<'a, State<R>>,
    ) -> (Result<(), gst::FlowError>, Locked<'a, State<R>>) {
        drop(state);
        (self.tell(), self.lock())
    }

    /// Finishes the first item, which was rendered.
    #[inline]
    fn finish_rendered<'a>(
        &'a self,
        mut state: Locked<'a, State<R>>,
        (lateness_ns, overdue_ns): (Option<i64>, Option<u64>),
        now_ns: Option<i64>,
    ) -> (Result<(), gst::FlowError>, Locked<'a, State<R>>) {
        if self.sync.keeps_last()
            && let Some(Item::Data(data, _)) = state.core.first_item()
        {
            let first = data.first();
            self.keep_last(&mut state, first.as_ref());
        }
        let report = self.report(&mut state, lateness_ns, now_ns);
        state.finish(false);
        state.wake(RENDERED);
        if report.is_none() && overdue_ns.is_none() && self.after.get().is_none() {
            return (Ok(()), state);
        }
        drop(state);
        self.send_report(report);
        if let Some(max_ns) = overdue_ns {
            self.warn_of_lateness(max_ns);
        }
        (self.tell(), self.lock())
    }

    /// Removes the first item without rendering it: it is late, or outside of the segment.
    fn finish_dropped<'a>(
        &'a self,
        mut state: Locked<'a, State<R>>,
        lateness_ns: Option<i64>,
        now_ns: Option<i64>,
    ) -> Locked<'a, State<R>> {
        let report = self.report(&mut state, lateness_ns, now_ns);
        state.finish(true);
        state.wake(RENDERED);
        let counts = state.core.counts();
        if report.is_none() {
            return state;
        }
        drop(state);
        self.send_report(report);
        self.post_drop(report, counts);
        self.lock()
    }

    /// Handles the end of the stream, which is the first item. Returns an error if the stream does not end now.
    fn end<'a>(
        &'a self,
        mut state: Locked<'a, State<R>>,
    ) -> (Result<(), Advanced>, Locked<'a, State<R>>) {
        let ended = state.renderer.end();
        state.wake(RENDERED);
        match ended {
            Rendered::Done => {}
            Rendered::Failed(error) => return (Err(Advanced::Failed(error)), state),
            Rendered::Blocked | Rendered::Full => {
                return (Err(Advanced::Waits(Obstacle::Change)), state);
            }
        }
        state.finish(false);
        drop(state);
        let told = self.tell();
        self.post_end();
        (told.map_err(Advanced::Failed), self.lock())
    }
}

/// Handles a sink's held items, each at its time.
pub(super) struct Drive<R: Renderer> {
    shared: Arc<Shared<R>>,
    /// The drive ends when the item of this number has left; `None`: when all items have left.
    number: Option<u64>,
    /// The source that drives it; `None`: an ordinary thread, which waits only for its own item.
    source: Option<u64>,
    /// Number of this drive while it is the driver.
    id: Option<u64>,
    wait: Option<ClockWait>,
    registration: Registration,
}

impl<R: Renderer> Drive<R> {
    pub(super) fn new(shared: &Arc<Shared<R>>, number: Option<u64>) -> Self {
        Drive {
            shared: shared.clone(),
            number,
            source: pending::source(),
            id: None,
            wait: None,
            registration: Registration::default(),
        }
    }

    /// Becomes the driver. Returns `false` if another one exists.
    pub(super) fn claim(&mut self, state: &mut State<R>) -> bool {
        if state.driver.is_none() {
            state.drivers += 1;
            state.driver = Some((state.drivers, self.source));
            self.id = Some(state.drivers);
        }
        self.is_driver(state)
    }

    /// Stops being the driver, so that another `Drive` may become the driver.
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
            let mut state = shared.lock();
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
            // Waiters are woken only here, because a wake-up may poll this future again.
            if state.core.left() > before {
                let has_room = state.core.len() <= WAITING_RESUME;
                state.wake(if has_room { LEFT | MORE } else { LEFT });
            }
            let result = match advanced {
                Advanced::Empty => Ok(()),
                Advanced::Gone => Err(gst::FlowError::Flushing),
                Advanced::Failed(error) => Err(error),
                Advanced::Waits(_) if this.source.is_none() && this.has_left(&state) => Ok(()),
                Advanced::Waits(obstacle) => {
                    // Register before the unlock, so that no change is missed.
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
        self.let_go(&mut shared.lock());
        shared.state.cancel(&mut self.registration);
    }
}

/// Time before a sink retries a full socket.
const RETRY_NS: u64 = 1_000_000;
