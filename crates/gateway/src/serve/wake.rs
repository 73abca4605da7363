//! Wakes the control thread out of its wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Waker;

use rustix::event::{EventfdFlags, eventfd};

/// Readable since it was rung, until it is cleared. Clones are the same bell.
#[derive(Debug, Clone)]
pub(super) struct Wake(Arc<OwnedFd>);

impl Wake {
    /// Not rung.
    ///
    /// # Errors
    /// Descriptors run out.
    pub(super) fn new() -> io::Result<Wake> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Wake(Arc::new(eventfd(0, flags)?)))
    }

    /// From any thread. Never blocks.
    pub(super) fn ring(&self) {
        // It fails only if the count of rings is at its end: then it is readable.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Rings it for a future.
    pub(super) fn waker(&self) -> Waker {
        Arc::new(self.clone()).into()
    }

    /// Look at what it was rung for *behind* this: what comes meanwhile rings again.
    pub(super) fn clear(&self) {
        // It fails only if it was not rung.
        let _ = rustix::io::read(&*self.0, &mut [0_u8; 8]);
    }
}

impl std::task::Wake for Wake {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
