//! A source of a main context that any thread can ring: an event descriptor that the context polls.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use glib::{ControlFlow, IOCondition, Priority, Source};
use rustix::event::{EventfdFlags, eventfd};

/// Rings a source.
#[derive(Debug)]
pub(crate) struct Bell {
    event: OwnedFd,
    /// Whether the last ring was lost, because the context was run by another thread than the source's.
    is_unanswered: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Bell {
            event: eventfd(0, flags)?,
            is_unanswered: AtomicBool::new(false),
        })
    }

    /// Rings. The source is then dispatched again and again, until the bell is silenced.
    pub(crate) fn ring(&self) {
        // This fails only when 2^64 - 2 rings are pending, and then the source is ready anyway.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Acknowledges all rings so far. Call it under the lock under which the source looks for work. So if work is added later,
    /// its ring comes after this call.
    pub(crate) fn silence(&self) {
        // This fails only when no ring is pending.
        let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
    }

    /// Whether the last ring was lost on a foreign thread, so that the next ring is needed. It returns `true` only once for a
    /// lost ring.
    pub(crate) fn was_unanswered(&self) -> bool {
        self.is_unanswered.load(Relaxed) && self.is_unanswered.swap(false, Relaxed)
    }

    /// Creates a source that calls `answer` while the bell is not silenced. `answer` returns `None` if it must run on another
    /// thread, which is not running the context now.
    pub(crate) fn source(
        self: &Arc<Self>,
        priority: Priority,
        name: &str,
        mut answer: impl FnMut(&Bell) -> Option<ControlFlow> + Send + 'static,
    ) -> Source {
        // The clone has the same life as the source, so the descriptor stays open as long as the source exists.
        let bell = self.clone();
        let descriptor = bell.event.as_raw_fd();
        let of_log = name.to_owned();
        let answer = move |_, _| {
            answer(&bell).unwrap_or_else(|| {
                bell.silence();
                tracing::error!(
                    "{of_log}: a thread other than that of the executor runs the main context; the tasks wait for the executor's thread"
                );
                bell.is_unanswered.store(true, Relaxed);
                ControlFlow::Continue
            })
        };
        glib_unix::fd_source_new(descriptor, IOCondition::IN, Some(name), priority, answer)
    }
}
