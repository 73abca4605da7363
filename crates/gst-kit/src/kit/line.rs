//! A filter's pending work, done later in the order of arrival.
//!
//! A filter that has to wait (for a time, an answer, a device) must not wait in `chain` on a context's thread. Instead, it
//! appends its work, up to the push, to its [`Line`] as a future. The source that pushed drives the line ([`super::pending`]),
//! and cannot push more while the line is full. An ordinary thread is allowed to wait, so on such a thread `pass` returns only
//! when the line is empty.
//!
//! When the filter's pad is unlinked, the source stops waiting for room, so that its other branches are not affected. An ordinary
//! thread stops driving the line, too, because the thread belongs to its source. The remaining work stays in the line until the
//! next push.
//!
//! | field | thread |
//! |---|---|
//! | `state` | any thread, under its lock; the current piece of work is taken out while it runs |

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use gst::prelude::*;
use threadbare_runtime::{Guard, Monitor, Registration, Topics};

use super::pending::{self, Hold, Wait};

/// Pieces of work that a filter does one after another. Each piece ends with a push.
pub struct Line(Arc<Shared>);

struct Shared {
    state: Monitor<State>,
    /// If the line has more pieces of work than this, the source is blocked.
    works_max: usize,
    /// The pad that buffers come from.
    pad: OnceLock<gst::glib::WeakRef<gst::Pad>>,
}

impl Shared {
    /// Ends waits for room, and the work of ordinary threads.
    fn unlink(&self) {
        let mut state = self.state.lock();
        state.unlinks += 1;
        state.wake(Topics::ALL);
    }

    fn is_unlinked(&self) -> bool {
        self.pad().is_some_and(|pad| !pad.is_linked())
    }

    /// Whether the pad is flushing or inactive. In that case, earlier futures have been dropped already.
    fn is_flushing(&self) -> bool {
        let flags = self.pad().map(|pad| pad.pad_flags());
        flags.is_some_and(|flags| flags.contains(gst::PadFlags::FLUSHING))
    }

    fn pad(&self) -> Option<gst::Pad> {
        self.pad.get()?.upgrade()
    }
}

#[derive(Default)]
struct State {
    works: VecDeque<Wait>,
    /// Whether the pieces of work are being polled.
    is_driven: bool,
    /// Downstream's last failure, until the pusher has seen it.
    failed: Option<gst::FlowError>,
    /// Counts flushes, so that a piece of work that was running during one is not put back.
    flushes: u64,
    /// Number of times that the pad was unlinked.
    unlinks: u64,
}

/// Wakes the driver, which checks its work again.
const DRIVE: Topics = Topics::of(0);
/// The line has become shorter.
const ROOM: Topics = Topics::of(1);

impl Line {
    /// Creates a line that blocks the source while it has more than `works_max` pieces of work. Use 0 for one piece at a time,
    /// and more if the next piece may start to wait before the previous one ends.
    pub fn new(works_max: usize) -> Self {
        Line(Arc::new(Shared {
            state: Monitor::new(State::default()),
            works_max,
            pad: OnceLock::new(),
        }))
    }

    /// Ends waits for room when the pad that buffers come from is unlinked.
    fn follow_links(&self, pad: &gst::Pad) {
        if self.0.pad.set(pad.downgrade()).is_ok() {
            let line = Arc::downgrade(&self.0);
            pad.connect_unlinked(move |_, _| {
                if let Some(line) = line.upgrade() {
                    line.unlink();
                }
            });
        }
    }

    /// Handles a buffer in a pad function: queues `work` after the line's earlier pieces. Pieces are polled one after another. So
    /// if a piece waits for a time, that time should be computed when the piece is queued.
    ///
    /// # Errors
    /// On an ordinary thread, which waits for the work, returns the error of the work. On a context's thread, the source that
    /// pushed gets the error later. If the error is that of a removed pad, the next call returns it. The pieces after the failed
    /// piece are dropped.
    pub fn pass(
        &self,
        work: impl Future<Output = Result<(), gst::FlowError>> + Send + 'static,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        let (drives, is_full, unlinks) = {
            let mut state = self.0.state.lock();
            if let Some(error) = state.failed.take() {
                return Err(error);
            }
            state.works.push_back(Box::pin(work));
            let drives = !std::mem::replace(&mut state.is_driven, true);
            let is_full = state.works.len() > self.0.works_max;
            (drives, is_full, state.unlinks)
        };
        if self.0.is_flushing() {
            self.clear();
            if drives {
                self.0.state.lock().is_driven = false;
            }
            return Err(gst::FlowError::Flushing);
        }
        let waits = is_full || drives && !pending::can_defer();
        if waits && self.0.is_unlinked() {
            // The pad was unlinked during this push, but before this thread read `unlinks`. No other signal will end the wait, so
            // end it here.
            self.0.unlink();
        }
        if drives {
            let drive = Drive {
                shared: self.0.clone(),
                is_done: false,
                ends_after: (!pending::can_defer()).then_some(unlinks),
                registration: Registration::default(),
            };
            pending::wait(Hold::Nobody, drive)?;
        }
        if is_full {
            let works_max = self.0.works_max;
            let has_room = move |state: &mut Guard<'_, State>| {
                let is_over = state.works.len() <= works_max || state.unlinks != unlinks;
                if is_over {
                    Poll::Ready(Ok(()))
                } else {
                    Poll::Pending
                }
            };
            let line = self.0.clone();
            let room = threadbare_runtime::until(line, |line| &line.state, ROOM, has_room);
            pending::wait(Hold::Source, room)?;
        }
        Ok(gst::FlowSuccess::Ok)
    }

    /// Handles an event on the sink pad, and forwards it to `src_pad`. Serialized events keep their place between buffers, and a
    /// flush empties the line.
    pub fn event(
        &self,
        element: &gst::Element,
        sink_pad: &gst::Pad,
        src_pad: &gst::Pad,
        event: gst::Event,
    ) -> bool {
        self.follow_links(sink_pad);
        // The end of the flush clears the line again, because data may have arrived during the flush. Although the event is
        // serialized, it need not wait.
        let is_flush = matches!(
            event.type_(),
            gst::EventType::FlushStart | gst::EventType::FlushStop
        );
        if is_flush {
            self.clear();
        } else if event.is_serialized() && !self.is_empty() {
            let src_pad = src_pad.clone();
            let push = async move {
                src_pad.push_event(event);
                Ok(())
            };
            return self.pass(push).is_ok();
        }
        gst::Pad::event_default(sink_pad, Some(element), event)
    }

    /// Whether no piece is left.
    pub fn is_empty(&self) -> bool {
        let state = self.0.state.lock();
        state.works.is_empty() && !state.is_driven
    }

    /// Drops the line's work: for a flush, and when the element stops.
    pub fn clear(&self) {
        let works = {
            let mut state = self.0.state.lock();
            state.flushes += 1;
            state.failed = None;
            state.wake(Topics::ALL);
            std::mem::take(&mut state.works)
        };
        drop(works);
    }
}

/// Future that does all pieces of work of a line.
struct Drive {
    shared: Arc<Shared>,
    is_done: bool,
    /// Number of unlinks at which the drive ends; set only on an ordinary thread.
    ends_after: Option<u64>,
    registration: Registration,
}

/// Why a piece of work did not finish.
enum Undone {
    Waits,
    /// The piece was dropped in the meantime.
    Dropped,
    /// The piece was left to the next thread that pushes into the line.
    Left,
}

impl Drive {
    /// Takes the current piece of work, with its flush count. `None`: the line is empty and is not driven any more.
    fn take(&mut self) -> Option<(Wait, u64)> {
        let mut state = self.shared.state.lock();
        let work = state.works.pop_front();
        if work.is_none() {
            state.is_driven = false;
            self.is_done = true;
        }
        work.map(|work| (work, state.flushes))
    }

    /// Puts back work that must wait.
    fn put_back(&mut self, work: Wait, flushes: u64, cx: &Context<'_>) -> Undone {
        let mut state = self.shared.state.lock();
        if state.flushes != flushes {
            return Undone::Dropped;
        }
        state.works.push_front(work);
        if self.ends_after.is_some_and(|number| state.unlinks > number) {
            state.is_driven = false;
            self.is_done = true;
            return Undone::Left;
        }
        state.register(&mut self.registration, DRIVE, cx.waker().clone());
        Undone::Waits
    }

    fn give_up(&mut self) {
        if !std::mem::replace(&mut self.is_done, true) {
            self.shared.state.lock().is_driven = false;
            Line(self.shared.clone()).clear();
        }
    }
}

impl Future for Drive {
    type Output = Result<(), gst::FlowError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        while let Some((mut work, flushes)) = self.take() {
            match work.as_mut().poll(cx) {
                Poll::Pending => match self.put_back(work, flushes, cx) {
                    Undone::Waits => return Poll::Pending,
                    Undone::Dropped => {}
                    Undone::Left => return Poll::Ready(Ok(())),
                },
                Poll::Ready(Ok(())) => self.shared.state.lock().wake(ROOM),
                Poll::Ready(Err(error)) => {
                    self.give_up();
                    // This error does not end a source that drives the line, so the source's next push returns it.
                    if pending::can_defer() && !pending::ends_source(error) {
                        self.shared.state.lock().failed = Some(error);
                    }
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Drive {
    /// Stops driving the line. The future is dropped early when the source stops or is flushed.
    fn drop(&mut self) {
        self.give_up();
        self.shared.state.cancel(&mut self.registration);
    }
}

#[cfg(test)]
mod tests {
    use super::super::pending::{Pending, scope};
    use super::*;
    use std::sync::Mutex;
    use std::task::Waker;

    /// Pieces of work that complete on command, and record it.
    #[derive(Clone, Default)]
    struct Bench(Arc<Mutex<(Vec<u32>, Vec<u32>)>>);

    impl Bench {
        fn work(
            &self,
            number: u32,
        ) -> impl Future<Output = Result<(), gst::FlowError>> + Send + use<> {
            let bench = self.0.clone();
            std::future::poll_fn(move |_| {
                let (allowed, done) = &mut *bench.lock().unwrap();
                if !allowed.contains(&number) {
                    return Poll::Pending;
                }
                done.push(number);
                Poll::Ready(Ok(()))
            })
        }

        fn allow(&self, number: u32) {
            self.0.lock().unwrap().0.push(number);
        }

        fn done(&self) -> Vec<u32> {
            self.0.lock().unwrap().1.clone()
        }
    }

    fn poll(pending: &mut Pending) -> Poll<Result<(), gst::FlowError>> {
        pending.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn futures_run_one_after_another_and_a_full_line_holds_the_source() {
        let (line, bench, mut pending) = (Line::new(1), Bench::default(), Pending::default());
        scope(&mut pending, || line.pass(bench.work(0)).unwrap());
        assert!(!pending.holds());
        scope(&mut pending, || line.pass(bench.work(1)).unwrap());
        assert!(pending.holds(), "two are more than one");
        bench.allow(1);
        assert!(poll(&mut pending).is_pending());
        assert_eq!(bench.done(), [] as [u32; 0]);
        bench.allow(0);
        assert!(poll(&mut pending).is_ready());
        assert_eq!(bench.done(), [0, 1]);
        assert!(line.is_empty() && pending.is_empty());
    }

    #[test]
    fn queued_items_are_dropped_after_an_error() {
        let (line, bench, mut pending) = (Line::new(9), Bench::default(), Pending::default());
        scope(&mut pending, || {
            line.pass(std::future::ready(Err(gst::FlowError::NotLinked)))
                .unwrap();
            line.pass(bench.work(0)).unwrap();
        });
        bench.allow(0);
        assert_eq!(poll(&mut pending), Poll::Ready(Ok(())));
        assert!(line.is_empty() && bench.done().is_empty());
        scope(&mut pending, || {
            let next = line.pass(bench.work(0));
            assert_eq!(next, Err(gst::FlowError::NotLinked), "reported once");
        });
        scope(&mut pending, || line.pass(bench.work(0)).unwrap());
        assert!(poll(&mut pending).is_ready());
        assert_eq!(bench.done(), [0]);
    }

    #[test]
    fn a_cleared_line_and_a_stopped_source_leave_no_futures() {
        let (line, bench, mut pending) = (Line::new(0), Bench::default(), Pending::default());
        scope(&mut pending, || line.pass(bench.work(0)).unwrap());
        assert!(poll(&mut pending).is_pending());
        line.clear();
        assert!(poll(&mut pending).is_ready() && line.is_empty());
        scope(&mut pending, || line.pass(bench.work(1)).unwrap());
        pending.clear();
        assert!(line.is_empty());
        bench.allow(0);
        bench.allow(1);
        assert_eq!(bench.done(), [] as [u32; 0]);
    }

    /// The branch of a tee may be removed while it waits for room. In this case, the source continues, and the line keeps its
    /// work.
    #[test]
    fn a_wait_for_room_ends_quietly_when_the_pad_is_unlinked() {
        gst::init().unwrap();
        let src = gst::Pad::builder(gst::PadDirection::Src).build();
        let sink = gst::Pad::builder(gst::PadDirection::Sink).build();
        src.link(&sink).unwrap();
        sink.set_active(true).unwrap();
        let (line, bench, mut pending) = (Line::new(0), Bench::default(), Pending::default());
        line.follow_links(&sink);
        scope(&mut pending, || line.pass(bench.work(0)).unwrap());
        assert!(poll(&mut pending).is_pending() && pending.holds());
        src.unlink(&sink).unwrap();
        assert!(poll(&mut pending).is_pending() && !pending.holds());
        // This push was under way during the unlink.
        scope(&mut pending, || line.pass(bench.work(1)).unwrap());
        assert!(poll(&mut pending).is_pending() && !pending.holds());
        bench.allow(0);
        bench.allow(1);
        assert_eq!(poll(&mut pending), Poll::Ready(Ok(())));
        assert_eq!(bench.done(), [0, 1]);
    }

    /// The branch of a tee may be removed while its thread waits. In this case, the thread continues, and the line keeps its work
    /// for the next push.
    #[test]
    fn on_an_ordinary_thread_an_unlink_ends_the_wait_for_the_work() {
        gst::init().unwrap();
        let src = gst::Pad::builder(gst::PadDirection::Src).build();
        let sink = gst::Pad::builder(gst::PadDirection::Sink).build();
        src.link(&sink).unwrap();
        sink.set_active(true).unwrap();
        let (line, bench) = (Arc::new(Line::new(0)), Bench::default());
        line.follow_links(&sink);
        let (began, has_begun) = std::sync::mpsc::channel();
        let (of_thread, work) = (line.clone(), bench.work(0));
        let work = async move {
            let _ = began.send(());
            work.await
        };
        let (done, is_done) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let _ = done.send(of_thread.pass(work));
        });
        has_begun.recv().unwrap();
        src.unlink(&sink).unwrap();
        let passed = is_done.recv_timeout(std::time::Duration::from_secs(30));
        assert_eq!(passed, Ok(Ok(gst::FlowSuccess::Ok)), "it hangs");
        thread.join().unwrap();
        src.link(&sink).unwrap();
        bench.allow(0);
        bench.allow(1);
        line.pass(bench.work(1)).unwrap();
        assert_eq!(bench.done(), [0, 1]);
    }

    #[test]
    fn on_an_ordinary_thread_pass_waits_for_the_work() {
        let (line, bench) = (Line::new(0), Bench::default());
        bench.allow(0);
        line.pass(bench.work(0)).unwrap();
        assert_eq!(bench.done(), [0]);
    }
}
