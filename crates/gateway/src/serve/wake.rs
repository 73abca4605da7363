//! Wakes the control thread out of its wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel};
use std::task::Waker;

use rustix::event::{EventfdFlags, eventfd};

/// Readable since it was rung, until it is cleared. Clones are the same bell.
#[derive(Debug, Clone)]
pub(super) struct Wake(Arc<Bell>);

#[derive(Debug)]
struct Bell {
    event: OwnedFd,
    /// Rung, and not cleared yet: hundreds of rings are one system call.
    is_rung: AtomicBool,
}

impl Wake {
    /// Not rung.
    ///
    /// # Errors
    /// Descriptors run out.
    pub(super) fn new() -> io::Result<Wake> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Wake(Arc::new(Bell {
            event: eventfd(0, flags)?,
            is_rung: AtomicBool::new(false),
        })))
    }

    /// From any thread, *behind* what it is rung for. Never blocks.
    pub(super) fn ring(&self) {
        if !self.0.is_rung.swap(true, AcqRel) {
            // It fails only if the count of rings is at its end: then it is readable.
            let _ = rustix::io::write(&self.0.event, &1_u64.to_ne_bytes());
        }
    }

    /// Rings it for a future.
    pub(super) fn waker(&self) -> Waker {
        Arc::new(self.clone()).into()
    }

    /// Look at what it was rung for *behind* this: what comes meanwhile rings again.
    pub(super) fn clear(&self) {
        // It fails only if it was not rung.
        let _ = rustix::io::read(&self.0.event, &mut [0_u8; 8]);
        // In this order: a ring before this line was for something that is seen behind it, one after it is read the next time. And what was put
        // before a ring that found the bell rung is seen, as this reads what that wrote.
        self.0.is_rung.swap(false, AcqRel);
    }
}

impl std::task::Wake for Wake {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    /// Whoever waits hears of all that was sent before a ring, however rings and clears meet.
    #[test]
    fn no_ring_is_lost() {
        const EACH: u32 = 20_000;
        let wake = Wake::new().unwrap();
        let (send, sent) = channel();
        let ringers: Vec<_> = (0..3)
            .map(|_| {
                let (send, wake) = (send.clone(), wake.clone());
                std::thread::spawn(move || {
                    for number in 0..EACH {
                        send.send(number).unwrap();
                        wake.ring();
                    }
                })
            })
            .collect();
        let limit = Timespec::try_from(Duration::from_secs(60)).unwrap();
        let mut heard = 0;
        while heard < 3 * EACH {
            let mut bell = [PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN)];
            assert_eq!(poll(&mut bell, Some(&limit)).unwrap(), 1, "{heard} heard");
            wake.clear();
            heard += sent.try_iter().count() as u32;
        }
        ringers
            .into_iter()
            .for_each(|ringer| ringer.join().unwrap());
        let mut bell = [PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN)];
        wake.clear();
        let at_once = Timespec::default();
        assert_eq!(poll(&mut bell, Some(&at_once)).unwrap(), 0, "cleared");
        wake.ring();
        assert_eq!(poll(&mut bell, Some(&limit)).unwrap(), 1);
    }
}
