//! Reports of a session to other threads. The session's thread calls the observer, so no other thread has to wait for it.

use std::fmt;

use crate::snapshot::Pace;

/// Reads a session on its thread, and stores values where other threads read them. It must not block. Returns `false` if another thread is
/// just reading, so that the next turn must store them.
pub type Observer<S> = Box<dyn FnMut(&mut S) -> bool + Send>;

/// The observer of a session, and the time of its next call.
pub(crate) struct Observing<S> {
    observer: Observer<S>,
    pace: Pace,
    due_ns: u64,
    /// Whether the session has had a turn since the last call.
    is_behind: bool,
}

impl<S> Observing<S> {
    pub(crate) fn new(observer: Observer<S>, pace: Pace) -> Box<Observing<S>> {
        Box::new(Observing {
            observer,
            pace,
            due_ns: 0,
            is_behind: false,
        })
    }

    /// Calls the observer at the end of a turn if that is due. `place` returns the place of the observer in the session.
    #[inline]
    pub(crate) fn poll(
        now_ns: u64,
        session: &mut S,
        place: fn(&mut S) -> &mut Option<Box<Observing<S>>>,
    ) {
        let Some(observing) = place(session) else {
            return;
        };
        observing.is_behind = true;
        if now_ns >= observing.due_ns
            && let Some(mut observing) = place(session).take()
        {
            if (observing.observer)(session) {
                observing.due_ns = now_ns + observing.pace.period_ns();
                observing.is_behind = false;
            }
            *place(session) = Some(observing);
        }
    }

    /// Returns the time of the next call, if the session has changed since the last one.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        self.is_behind.then_some(self.due_ns)
    }
}

impl<S> fmt::Debug for Observing<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observing").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    use super::*;

    /// A session whose only value is the number of its turns.
    #[derive(Default)]
    struct Turns {
        count: u64,
        observing: Option<Box<Observing<Turns>>>,
    }

    impl Turns {
        fn turn(&mut self, now_ns: u64) {
            self.count += 1;
            Observing::poll(now_ns, self, |session| &mut session.observing);
        }

        fn next_timeout(&self) -> Option<u64> {
            self.observing.as_ref().and_then(|one| one.next_timeout())
        }
    }

    #[test]
    fn stored_values_follow_the_last_change_within_the_interval() {
        let (stored, is_read) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (place, reader) = (stored.clone(), is_read.clone());
        let observer: Observer<Turns> = Box::new(move |session| {
            let is_free = !reader.load(Relaxed);
            if is_free {
                place.store(session.count, Relaxed);
            }
            is_free
        });
        let pace = Pace::new(Duration::from_nanos(100));
        let mut session = Turns {
            observing: Some(Observing::new(observer, pace)),
            ..Turns::default()
        };
        session.turn(1000);
        assert_eq!((stored.load(Relaxed), session.next_timeout()), (1, None));
        for now_ns in 1001..1100 {
            session.turn(now_ns);
            assert_eq!(
                (stored.load(Relaxed), session.next_timeout()),
                (1, Some(1100))
            );
        }
        session.turn(1100);
        assert_eq!((stored.load(Relaxed), session.next_timeout()), (101, None));
        // While another thread reads, the next turn is due at once.
        is_read.store(true, Relaxed);
        session.turn(1300);
        assert_eq!(
            (stored.load(Relaxed), session.next_timeout()),
            (101, Some(1200))
        );
        is_read.store(false, Relaxed);
        session.turn(1301);
        assert_eq!((stored.load(Relaxed), session.next_timeout()), (103, None));
    }
}
