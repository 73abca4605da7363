//! Back-pressure without blocking: futures that a sink or queue leaves to the pushing source.
//!
//! An element that must wait calls [`wait`]. On a context's thread, that leaves the future to the source that pushed. The source
//! collects all of them ([`scope`]) and drives them ([`Pending`]). Usually it has none, which costs two thread-local reads. An
//! ordinary thread drives the future itself, blocking.
//!
//! | lost | effect on the wait |
//! |---|---|
//! | its pad (unlinked, deactivated, flushed) | The wait ends with FLUSHING, or with NOT_LINKED if the pad is further downstream. An ordinary thread returns that from its push. A source continues, for its other branches; if its own path is affected, its next push fails |
//! | its driver (the source is removed) | The wait is dropped, which cancels it. Another source that has pushed into the same sink continues the work. Without such a source, the next push does |

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

/// A future that completes when the element accepts more, or with the error for the pusher.
pub type Wait = Pin<Box<dyn Future<Output = Result<(), gst::FlowError>> + Send>>;

/// The behaviour of a source while a future is pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It stops, because the waiting element accepts no more.
    Source,
    /// It continues, because the element holds only a few items until their time, and only needs to be driven.
    Nobody,
}

thread_local! {
    static HERE: Here = const {
        Here {
            source: Cell::new(NO_SOURCE),
            left: RefCell::new(Vec::new()),
        }
    };
}

const NO_SOURCE: u64 = 0;

/// The context thread's record of its current pushes.
struct Here {
    /// Number of the [`Pending`] of the innermost [`scope`].
    source: Cell<u64>,
    left: RefCell<Vec<(Hold, Wait)>>,
}

/// Whether the caller runs downstream of a source that awaits deferred futures.
pub fn can_defer() -> bool {
    HERE.with(|here| here.source.get() != NO_SOURCE)
}

/// Returns the number of the source that drives the futures left on this thread; `None` on an ordinary thread.
pub fn source() -> Option<u64> {
    HERE.with(|here| Some(here.source.get()).filter(|source| *source != NO_SOURCE))
}

/// Waits: the source that pushed drives `wait` if there is one, otherwise this thread does.
///
/// # Errors
/// On an ordinary thread, returns the error of the wait. On a context's thread, the source that pushed gets the error later.
pub fn wait(
    hold: Hold,
    wait: impl Future<Output = Result<(), gst::FlowError>> + Send + 'static,
) -> Result<(), gst::FlowError> {
    if can_defer() {
        defer(hold, Box::pin(wait));
        return Ok(());
    }
    threadbare_runtime::block_on(wait)
}

/// Leaves a future to the pushing source. Call it only where [`can_defer`] is true.
pub fn defer(hold: Hold, wait: Wait) {
    debug_assert!(can_defer());
    HERE.with(|here| here.left.borrow_mut().push((hold, wait)));
}

/// Runs a push and adds its deferred futures to `pending`.
#[inline]
pub fn scope<R>(pending: &mut Pending, push: impl FnOnce() -> R) -> R {
    // HERE is accessed only once, because looking up a thread-local of a plugin file is a call.
    HERE.with(|here| {
        let guard = Scope::enter(here, pending.source);
        let result = push();
        if here.left.borrow().len() > guard.left_before {
            pending
                .waits
                .extend(here.left.borrow_mut().drain(guard.left_before..));
        }
        result
    })
}

struct Scope<'a> {
    here: &'a Here,
    outer: u64,
    left_before: usize,
}

impl<'a> Scope<'a> {
    fn enter(here: &'a Here, source: u64) -> Self {
        Scope {
            here,
            outer: here.source.replace(source),
            left_before: here.left.borrow().len(),
        }
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        self.here.source.set(self.outer);
    }
}

/// All futures that downstream left with a source.
pub struct Pending {
    waits: Vec<(Hold, Wait)>,
    error: Option<gst::FlowError>,
    /// Unique in the process.
    source: u64,
}

impl Default for Pending {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(NO_SOURCE + 1);
        Pending::of(NEXT.fetch_add(1, Relaxed))
    }
}

impl Pending {
    fn of(source: u64) -> Self {
        Pending {
            waits: Vec::new(),
            error: None,
            source,
        }
    }

    /// Whether no wait is left.
    pub fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// Returns the number of waits.
    pub fn len(&self) -> usize {
        self.waits.len()
    }

    /// Whether the source must wait. After an error, the source waits until the other futures have completed.
    pub fn holds(&self) -> bool {
        !self.waits.is_empty()
            && (self.error.is_some() || self.waits.iter().any(|(hold, _)| *hold == Hold::Source))
    }

    /// Ends the source's wait, for a flush. Futures that only need to be driven are kept. If the flush also reaches the sink that
    /// left such a future, that sink ends the future.
    pub fn release(&mut self) {
        self.waits.retain(|(hold, _)| *hold == Hold::Nobody);
        self.error = None;
    }

    #[cfg(test)]
    pub(crate) fn clear(&mut self) {
        self.waits.clear();
        self.error = None;
    }

    /// Records an immediate error, which is returned when all pending futures have completed.
    pub fn fail(&mut self, error: gst::FlowError) {
        self.error.get_or_insert(error);
    }

    /// Completes when all futures have completed. If several fail, returns the first error, but only after the last future has
    /// completed: a failing branch of a tee must not discard the data of its siblings.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), gst::FlowError>> {
        let mut waits = std::mem::take(&mut self.waits);
        let mut asked = Vec::new();
        // A future may push when its wait ends. Futures that this push leaves here are polled next.
        loop {
            let mut left = Pending::of(self.source);
            let error = &mut self.error;
            scope(&mut left, || {
                waits.retain_mut(|(_, wait)| match wait.as_mut().poll(cx) {
                    Poll::Pending => true,
                    Poll::Ready(result) => {
                        if let Err(failed) = result
                            && ends_source(failed)
                        {
                            error.get_or_insert(failed);
                        }
                        false
                    }
                });
            });
            if asked.is_empty() {
                asked = waits;
            } else {
                asked.append(&mut waits);
            }
            if left.waits.is_empty() {
                break;
            }
            waits = left.waits;
        }
        self.waits = asked;
        if !self.waits.is_empty() {
            return Poll::Pending;
        }
        Poll::Ready(self.error.take().map_or(Ok(()), Err))
    }
}

/// Whether the error of a wait also ends its source. The error of a removed pad does not, because an element before that pad,
/// such as a tee, may continue without it.
pub(super) fn ends_source(error: gst::FlowError) -> bool {
    !matches!(error, gst::FlowError::Flushing | gst::FlowError::NotLinked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Waker;

    #[test]
    fn all_waits_finish_and_the_first_error_is_kept() {
        let finished = Arc::new(AtomicUsize::new(0));
        let mut pending = Pending::default();
        let wait = |result: Result<(), gst::FlowError>| {
            let finished = finished.clone();
            let mut polls = 0;
            Box::pin(std::future::poll_fn(move |_| {
                polls += 1;
                if polls < 2 {
                    return Poll::Pending;
                }
                finished.fetch_add(1, Ordering::Relaxed);
                Poll::Ready(result)
            })) as Wait
        };
        scope(&mut pending, || {
            defer(Hold::Source, wait(Ok(())));
            defer(Hold::Source, wait(Err(gst::FlowError::NotNegotiated)));
            defer(Hold::Source, wait(Err(gst::FlowError::Eos)));
        });
        assert!(!can_defer());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(pending.poll(&mut cx).is_pending());
        assert_eq!(
            pending.poll(&mut cx),
            Poll::Ready(Err(gst::FlowError::NotNegotiated))
        );
        assert_eq!(finished.load(Ordering::Relaxed), 3);
    }

    /// If a branch is removed while it waits, its siblings are not affected.
    #[test]
    fn wait_of_a_removed_pad_ends_without_an_error() {
        let mut pending = Pending::default();
        scope(&mut pending, || {
            for gone in [gst::FlowError::Flushing, gst::FlowError::NotLinked] {
                defer(Hold::Source, Box::pin(std::future::ready(Err(gone))));
            }
        });
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(pending.poll(&mut cx), Poll::Ready(Ok(())));
    }

    #[test]
    fn only_holding_or_failed_futures_stop_the_source() {
        let mut pending = Pending::default();
        scope(&mut pending, || {
            defer(Hold::Nobody, Box::pin(std::future::pending()));
        });
        assert!(!pending.is_empty() && !pending.holds());
        scope(&mut pending, || {
            defer(Hold::Source, Box::pin(std::future::ready(Ok(()))));
        });
        assert!(pending.holds());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(pending.poll(&mut cx).is_pending());
        assert!(
            !pending.holds(),
            "the future that held the source has completed"
        );
        pending.fail(gst::FlowError::Error);
        assert!(pending.holds());
    }

    #[test]
    fn futures_added_during_a_poll_are_polled() {
        let mut pending = Pending::default();
        scope(&mut pending, || {
            let pushes = std::future::poll_fn(|_| {
                assert!(can_defer());
                defer(Hold::Source, Box::pin(std::future::ready(Ok(()))));
                defer(Hold::Source, Box::pin(std::future::pending()));
                Poll::Ready(Ok(()))
            });
            defer(Hold::Nobody, Box::pin(pushes));
        });
        let mut cx = Context::from_waker(Waker::noop());
        assert!(pending.poll(&mut cx).is_pending());
        assert_eq!(pending.len(), 1);
        assert!(pending.holds());
    }

    #[test]
    fn a_nested_scope_takes_only_its_own_waits() {
        let (mut outer, mut inner) = (Pending::default(), Pending::default());
        scope(&mut outer, || {
            defer(Hold::Source, Box::pin(std::future::ready(Ok(()))));
            scope(&mut inner, || {
                defer(Hold::Source, Box::pin(std::future::ready(Ok(()))))
            });
        });
        assert_eq!((outer.waits.len(), inner.waits.len()), (1, 1));
    }
}
