//! Descriptors that become ready, as futures.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use glib::{ControlFlow, IOCondition, MainContext, Priority, Source};

use crate::sync::{Mutex, lock};

/// Completes when `fd` is readable, or cannot become readable any more: at its end, or with an error.
pub fn readable<F: AsFd>(fd: F) -> Readiness<F> {
    readiness(fd, IOCondition::IN)
}

/// Completes when `fd` is writable, or has an error.
pub fn writable<F: AsFd>(fd: F) -> Readiness<F> {
    readiness(fd, IOCondition::OUT)
}

/// Completes when one of `conditions` is true. Returns all conditions that are true; errors and hang-ups always count.
///
/// The thread-default main context at the first poll watches the descriptor, from then on until the future is dropped. Regular
/// files are always ready: read them with gio.
///
/// ```
/// use std::io::{Read, Write};
/// use std::os::unix::net::UnixStream;
/// use threadbare_mainloop::readable;
///
/// let (mut ours, mut theirs) = UnixStream::pair()?;
/// std::thread::spawn(move || theirs.write_all(b"x").unwrap());
/// glib::MainContext::new().block_on(async {
///     readable(&ours).await;
/// });
/// assert_eq!(ours.read(&mut [0])?, 1);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn readiness<F: AsFd>(fd: F, conditions: IOCondition) -> Readiness<F> {
    Readiness {
        watch: None,
        conditions,
        fd,
    }
}

/// The future of [`readiness`]. If it is polled after its completion, it waits again.
#[must_use = "futures do nothing unless awaited"]
pub struct Readiness<F> {
    watch: Option<Watch>,
    conditions: IOCondition,
    /// The descriptor, which must stay open while it is watched.
    fd: F,
}

impl<F: AsFd + Unpin> Future for Readiness<F> {
    type Output = IOCondition;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IOCondition> {
        let Readiness {
            watch,
            conditions,
            fd,
        } = &mut *self;
        let seen = watch
            .get_or_insert_with(|| Watch::new(fd, *conditions))
            .look(cx);
        if seen.is_ready() {
            *watch = None;
        }
        seen
    }
}

impl<F> fmt::Debug for Readiness<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readiness")
            .field("conditions", &self.conditions)
            .field("is_watched", &self.watch.is_some())
            .finish_non_exhaustive()
    }
}

/// A source that waits for readiness once.
struct Watch {
    source: Source,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    conditions: Option<IOCondition>,
    waker: Option<Waker>,
}

impl Watch {
    fn new(fd: &impl AsFd, conditions: IOCondition) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let of_source = seen.clone();
        let descriptor = fd.as_fd().as_raw_fd();
        let always = IOCondition::ERR | IOCondition::HUP | IOCondition::NVAL;
        let note = move |_, conditions| {
            let mut seen = lock(&of_source);
            seen.conditions = Some(conditions);
            let waker = seen.waker.take();
            drop(seen);
            if let Some(waker) = waker {
                waker.wake();
            }
            ControlFlow::Break
        };
        let name = Some("threadbare: descriptor");
        let source = glib_unix::fd_source_new(
            descriptor,
            conditions | always,
            name,
            Priority::DEFAULT,
            note,
        );
        source.attach(Some(&MainContext::ref_thread_default()));
        Watch { source, seen }
    }

    fn look(&self, cx: &mut Context<'_>) -> Poll<IOCondition> {
        let mut seen = lock(&self.seen);
        if let Some(conditions) = seen.conditions {
            return Poll::Ready(conditions);
        }
        let replaced = seen.waker.replace(cx.waker().clone());
        drop(seen);
        // Dropped after the unlock, because a waker's drop calls foreign code.
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.source.destroy();
    }
}
