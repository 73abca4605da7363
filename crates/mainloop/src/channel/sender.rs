//! The sending ends.

use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::task::Poll;

use threadbare_runtime::{block_on, until};

use super::{ROOM, Shared, State};

/// The sending end of a [`channel`](super::channel()).
pub struct Sender<T>(End<T>);

impl<T> Sender<T> {
    pub(super) fn new(shared: Arc<Shared<T>>) -> Self {
        Sender(End(shared))
    }

    /// Sends a message without waiting.
    ///
    /// # Errors
    /// Fails if the receiver has been dropped; the error contains the message.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        let mut state = self.0.0.lock();
        if !state.has_receiver {
            return Err(SendError(message));
        }
        state.queue.push_back(message);
        let listener = state.call();
        drop(state);
        listener.call();
        Ok(())
    }
}

/// The sending end of a [`sync_channel`](super::sync_channel).
pub struct SyncSender<T>(End<T>);

impl<T> SyncSender<T> {
    pub(super) fn new(shared: Arc<Shared<T>>) -> Self {
        SyncSender(End(shared))
    }

    /// Sends a message, and blocks this thread while the channel is full. On the receiver's own thread, this may deadlock.
    ///
    /// # Errors
    /// Fails if the receiver has been dropped; the error contains the message.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        match self.try_send(message) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(message)) => block_on(self.send_async(message)),
            Err(TrySendError::Disconnected(message)) => Err(SendError(message)),
        }
    }

    /// Sends a message, and waits while the channel is full. If the future is dropped before it completes, nothing has been sent.
    ///
    /// # Errors
    /// Fails if the receiver has been dropped; the error contains the message.
    pub fn send_async(
        &self,
        message: T,
    ) -> impl Future<Output = Result<(), SendError<T>>> + use<T> {
        let mut unsent = Some(message);
        let shared = self.0.0.clone();
        until(
            shared.clone(),
            |shared| &shared.room,
            ROOM,
            move |_| match unsent
                .take()
                .map(|message| shared.try_send_or_wait(message))
            {
                None | Some(Ok(())) => Poll::Ready(Ok(())),
                Some(Err(TrySendError::Disconnected(message))) => {
                    Poll::Ready(Err(SendError(message)))
                }
                Some(Err(TrySendError::Full(message))) => {
                    unsent = Some(message);
                    Poll::Pending
                }
            },
        )
    }

    /// Sends a message if the channel is not full.
    ///
    /// # Errors
    /// Fails if the channel is full or the receiver has been dropped; the error contains the message.
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        self.0.0.try_send(message)
    }
}

impl<T> Shared<T> {
    fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        self.try_send_to(self.lock(), message)
    }

    /// Sends a message, or records that the sender waits. Call it inside the monitor of waiting senders.
    fn try_send_or_wait(&self, message: T) -> Result<(), TrySendError<T>> {
        let mut state = self.lock();
        // Set this before the waiter is registered. The receiver makes room, and then locks this monitor to wake senders. So it
        // waits until this waiter is registered.
        state.wants_room = state.has_receiver && state.queue.len() >= state.bound;
        self.try_send_to(state, message)
    }

    #[inline]
    fn try_send_to(
        &self,
        mut state: MutexGuard<'_, State<T>>,
        message: T,
    ) -> Result<(), TrySendError<T>> {
        if !state.has_receiver {
            return Err(TrySendError::Disconnected(message));
        }
        if state.queue.len() >= state.bound {
            return Err(TrySendError::Full(message));
        }
        state.queue.push_back(message);
        let listener = state.call();
        drop(state);
        listener.call();
        Ok(())
    }
}

/// One of the senders; dropping the last one ends the channel.
struct End<T>(Arc<Shared<T>>);

impl<T> Clone for End<T> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        End(self.0.clone())
    }
}

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.senders -= 1;
        if state.senders == 0 {
            let listener = state.call();
            drop(state);
            listener.call();
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender(self.0.clone())
    }
}

impl<T> Clone for SyncSender<T> {
    fn clone(&self) -> Self {
        SyncSender(self.0.clone())
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> fmt::Debug for SyncSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SyncSender")
    }
}

/// The error if the receiver has been dropped. It contains the message.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the receiver of the channel no longer exists")]
pub struct SendError<T>(pub T);

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SendError(..)")
    }
}

/// The error if the message could not be sent at once. It contains the message.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrySendError<T> {
    /// The channel is full.
    #[error("the channel is full")]
    Full(T),
    /// The receiver has been dropped.
    #[error("the receiver of the channel no longer exists")]
    Disconnected(T),
}

impl<T> fmt::Debug for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrySendError::Full(_) => "Full(..)",
            TrySendError::Disconnected(_) => "Disconnected(..)",
        })
    }
}
