//! The receiving end.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};
use std::thread::{self, ThreadId};

use futures_core::Stream;
use futures_core::stream::FusedStream;
use glib::{ControlFlow, MainContext, Priority, Source};

use super::{Listener, Shared, State};
use crate::AttachError;
use crate::bell::Bell;
use crate::bound::{Guarded, check_owner};

/// The receiving end of a channel: a [`Stream`] that ends when the last sender is dropped, or a source of a main context.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// Messages that were taken from the channel, but not passed on yet.
    batch: VecDeque<T>,
}

impl<T> Receiver<T> {
    pub(super) fn new(shared: Arc<Shared<T>>) -> Self {
        Receiver {
            shared,
            batch: VecDeque::new(),
        }
    }

    /// Returns the next message, if any.
    pub fn try_recv(&mut self) -> Option<T> {
        if self.batch.is_empty() {
            drop(self.shared.take(&mut self.batch));
        }
        self.batch.pop_front()
    }

    /// Returns the next message; `None` after the last sender has been dropped.
    pub async fn recv(&mut self) -> Option<T> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Calls `receive` with each message, on the thread that runs `context`; `None` is the default context. The calling thread
    /// must run this context. The calls end when `receive` returns [`ControlFlow::Break`] or the last sender is dropped.
    ///
    /// # Errors
    /// Fails if another thread runs the context, or if the process has no descriptor left.
    pub fn attach<F>(
        self,
        context: Option<&MainContext>,
        receive: F,
    ) -> Result<Attachment, AttachError>
    where
        T: 'static,
        F: FnMut(T) -> ControlFlow + 'static,
    {
        self.attach_with_priority(context, Priority::DEFAULT, receive)
    }

    /// Acts as [`Receiver::attach`], with another priority of the source.
    ///
    /// # Errors
    /// Fails if another thread runs the context, or if the process has no descriptor left.
    pub fn attach_with_priority<F>(
        self,
        context: Option<&MainContext>,
        priority: Priority,
        receive: F,
    ) -> Result<Attachment, AttachError>
    where
        T: 'static,
        F: FnMut(T) -> ControlFlow + 'static,
    {
        let context = context.cloned().unwrap_or_else(MainContext::default);
        check_owner(&context)?;
        let bell = self.call_by_bell()?;
        let mut attached = Guarded::new(Attached {
            receiver: self,
            receive,
        });
        let source = bell.source(priority, NAME, move |bell| {
            Some(attached.get_mut()?.dispatch(bell))
        });
        let home = thread::current().id();
        Ok(Attachment::new(source, &context, &bell, Some(home)))
    }

    /// Acts as [`Receiver::attach`], from any thread, with a closure that any thread may run.
    ///
    /// # Errors
    /// Fails if the process has no descriptor left.
    pub fn attach_send<F>(
        self,
        context: Option<&MainContext>,
        priority: Priority,
        receive: F,
    ) -> Result<Attachment, AttachError>
    where
        T: Send + 'static,
        F: FnMut(T) -> ControlFlow + Send + 'static,
    {
        let context = context.cloned().unwrap_or_else(MainContext::default);
        let bell = self.call_by_bell()?;
        let mut attached = Attached {
            receiver: self,
            receive,
        };
        let source = bell.source(priority, NAME, move |bell| Some(attached.dispatch(bell)));
        Ok(Attachment::new(source, &context, &bell, None))
    }

    /// Makes senders ring the bell from now on.
    fn call_by_bell(&self) -> Result<Arc<Bell>, AttachError> {
        let bell = Arc::new(Bell::new()?);
        let mut state = self.shared.lock();
        // The attachment rings once, because messages may have arrived already.
        state.is_called = true;
        let before = std::mem::replace(&mut state.listener, Listener::Bell(bell.clone()));
        drop(state);
        // Dropped after the unlock, because a waker's drop calls foreign code.
        drop(before);
        Ok(bell)
    }
}

impl<T> Shared<T> {
    /// Moves all messages into the empty batch, and returns the locked state. If senders must be woken, the state is unlocked in
    /// between.
    fn take(&self, batch: &mut VecDeque<T>) -> MutexGuard<'_, State<T>> {
        let mut state = self.lock();
        // This swaps two queues: no message is copied or allocated.
        std::mem::swap(&mut state.queue, batch);
        if batch.is_empty() || !std::mem::take(&mut state.wants_room) {
            return state;
        }
        drop(state);
        self.call_senders();
        self.lock()
    }
}

impl<T> Stream for Receiver<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let Receiver { shared, batch } = &mut *self;
        if let Some(message) = batch.pop_front() {
            return Poll::Ready(Some(message));
        }
        let mut state = shared.take(batch);
        if let Some(message) = batch.pop_front() {
            return Poll::Ready(Some(message));
        }
        if state.senders == 0 {
            return Poll::Ready(None);
        }
        let known = matches!(&state.listener, Listener::Task(waker) if waker.will_wake(cx.waker()));
        if !known {
            let listener = Listener::Task(cx.waker().clone());
            let before = std::mem::replace(&mut state.listener, listener);
            drop(state);
            // Dropped after the unlock, because a waker's drop calls foreign code.
            drop(before);
        }
        Poll::Pending
    }
}

impl<T> FusedStream for Receiver<T> {
    fn is_terminated(&self) -> bool {
        let state = self.shared.lock();
        self.batch.is_empty() && state.queue.is_empty() && state.senders == 0
    }
}

impl<T> Unpin for Receiver<T> {}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.has_receiver = false;
        let listener = std::mem::replace(&mut state.listener, Listener::Nobody);
        let unreceived = std::mem::take(&mut state.queue);
        let wants_room = std::mem::take(&mut state.wants_room);
        drop(state);
        if wants_room {
            self.shared.call_senders();
        }
        // Dropped after the unlock, because these drops call foreign code.
        drop((listener, unreceived));
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

/// Work of an attached receiver's source.
struct Attached<T, F> {
    receiver: Receiver<T>,
    receive: F,
}

impl<T, F: FnMut(T) -> ControlFlow> Attached<T, F> {
    fn dispatch(&mut self, bell: &Bell) -> ControlFlow {
        let Receiver { shared, batch } = &mut self.receiver;
        if batch.is_empty() {
            let mut state = shared.take(batch);
            if batch.is_empty() {
                // The flag is cleared only now. After messages, the source looks for more in its next turn, so a continuous
                // sender need not ring for each message.
                state.is_called = false;
                bell.silence();
                if state.senders == 0 {
                    return ControlFlow::Break;
                }
            }
        }
        for _ in 0..CALLS_MAX {
            let Some(message) = batch.pop_front() else {
                break;
            };
            if (self.receive)(message).is_break() {
                return ControlFlow::Break;
            }
        }
        ControlFlow::Continue
    }
}

/// The source of a receiver on its context. Dropping this value leaves the source there, as with glib's source ids.
#[derive(Debug)]
pub struct Attachment {
    source: Source,
    context: MainContext,
    /// Thread on which the closure must be dropped; `None` for any thread.
    home: Option<ThreadId>,
}

impl Attachment {
    fn new(source: Source, context: &MainContext, bell: &Bell, home: Option<ThreadId>) -> Self {
        source.attach(Some(context));
        bell.ring();
        Attachment {
            source,
            context: context.clone(),
            home,
        }
    }

    /// Ends the channel: removes the source, with the receiver and its remaining messages. On any other thread than that of the
    /// closure, this happens when the context runs next, so that the closure is dropped on its own thread.
    pub fn detach(self) {
        if self.home.is_none_or(|home| home == thread::current().id()) {
            self.source.destroy();
            return;
        }
        let source = self.source;
        let name = Some("threadbare: the end of a channel");
        let end = move || {
            source.destroy();
            ControlFlow::Break
        };
        glib::idle_source_new(name, Priority::DEFAULT, end).attach(Some(&self.context));
    }
}

const NAME: &str = "threadbare: channel";
/// Maximum number of messages that the closure gets in one turn of the context. Other sources run before the remaining messages.
const CALLS_MAX: usize = 256;
