//! Wakes the control thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel};
use std::task::Waker;

use rustix::event::{EventfdFlags, eventfd};

/// A wake-up signal for a thread that polls. Its descriptor is readable from [`ring`](Self::ring) until [`clear`](Self::clear).
/// Clones share the signal.
#[derive(Debug, Clone)]
pub(super) struct WakeSignal(Arc<Bell>);

#[derive(Debug)]
struct Bell {
    event: OwnedFd,
    /// Set between `ring` and `clear`, so that hundreds of rings need only one system call.
    is_rung: AtomicBool,
}

impl WakeSignal {
    /// Creates a cleared signal.
    ///
    /// # Errors
    /// Fails if descriptors run out.
    pub(super) fn new() -> io::Result<WakeSignal> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(WakeSignal(Arc::new(Bell {
            event: eventfd(0, flags)?,
            is_rung: AtomicBool::new(false),
        })))
    }

    /// Sets the signal, from any thread. Call it *after* queuing the work. Never blocks.
    pub(super) fn ring(&self) {
        if !self.0.is_rung.swap(true, AcqRel) {
            // Writing fails only if the counter is at its limit, and then the descriptor is readable anyway.
            let _ = rustix::io::write(&self.0.event, &1_u64.to_ne_bytes());
        }
    }

    /// Returns a waker for futures that sets the signal.
    pub(super) fn waker(&self) -> Waker {
        Arc::new(self.clone()).into()
    }

    /// Clears the signal. Look for work *after* this, because work that is queued later sets the signal again.
    pub(super) fn clear(&self) {
        // Reading fails only if the signal was not set.
        let _ = rustix::io::read(&self.0.event, &mut [0_u8; 8]);
        // Clear the flag after the read. A ring after this line makes the descriptor readable again. A ring before this line may find the
        // flag set, and write nothing. But its work was queued before it, and the caller sees that work, because this swap reads the flag
        // that the ring has written.
        self.0.is_rung.swap(false, AcqRel);
    }
}

impl std::task::Wake for WakeSignal {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

impl AsFd for WakeSignal {
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

    /// However rings and clears are interleaved, the waiting thread sees all work that was sent before a ring.
    #[test]
    fn no_wake_up_is_lost() {
        const EACH: u32 = 20_000;
        let wake = WakeSignal::new().unwrap();
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
