//! Channels from any thread to a main context.
//!
//! A channel has many senders, one receiver, and at most one source. The receiver is attached to a context with a closure, as in
//! glib's own channel until 0.19, or is read as a [`Stream`](futures_core::Stream), on any executor.
//!
//! | part | thread |
//! |---|---|
//! | [`Sender`], [`SyncSender`] | any thread |
//! | [`Receiver`] | its owner; if attached with a local closure, the context's thread |
//! | `State` | all of these, under its lock |

mod receiver;
mod sender;

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::task::Waker;

use threadbare_runtime::{Monitor, Topics};

pub use self::receiver::{Attachment, Receiver};
pub use self::sender::{SendError, Sender, SyncSender, TrySendError};
use crate::bell::Bell;
use crate::sync::{Mutex, lock};

/// Creates a channel without a bound: sending never waits, and messages stay in memory until they are received.
///
/// ```
/// use glib::{ControlFlow, MainContext};
/// use threadbare_mainloop::channel;
///
/// let context = MainContext::new();
/// let (sender, receiver) = channel();
/// let (tell, told) = std::sync::mpsc::channel();
/// receiver.attach(Some(&context), move |number: i32| {
///     tell.send(number).unwrap();
///     ControlFlow::Continue
/// })?;
/// let worker = std::thread::spawn(move || (0..3).for_each(|n| sender.send(n).unwrap()));
/// worker.join().unwrap();
/// while context.iteration(false) {}
/// assert_eq!(told.try_iter().collect::<Vec<_>>(), [0, 1, 2]);
/// # Ok::<(), threadbare_mainloop::AttachError>(())
/// ```
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let shared = new(usize::MAX);
    (Sender::new(shared.clone()), Receiver::new(shared))
}

/// Creates a channel with a bound: up to `bound` messages wait for the receiver. When the channel is full, senders wait, or get
/// an error. A bound of 0 counts as 1.
/// A receiver takes all waiting messages at once, and these do not count for the bound any more. So up to twice `bound` messages
/// may be in memory.
pub fn sync_channel<T>(bound: usize) -> (SyncSender<T>, Receiver<T>) {
    let shared = new(bound.max(1));
    (SyncSender::new(shared.clone()), Receiver::new(shared))
}

fn new<T>(bound: usize) -> Arc<Shared<T>> {
    // If the messages are bound to one thread, so are sender and receiver. Then only that thread has this value.
    #[allow(clippy::arc_with_non_send_sync)]
    Arc::new(Shared {
        state: Mutex::new(State {
            queue: VecDeque::new(),
            bound,
            senders: 1,
            has_receiver: true,
            listener: Listener::Nobody,
            is_called: false,
            wants_room: false,
        }),
        room: Monitor::new(()),
    })
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// Waiting senders are registered in this monitor. Only they lock it, always before `state`.
    room: Monitor<()>,
}

struct State<T> {
    queue: VecDeque<T>,
    bound: usize,
    senders: usize,
    has_receiver: bool,
    listener: Listener,
    /// Whether the listener has been called, or is working and will check for messages before it rests.
    is_called: bool,
    /// Whether senders wait.
    wants_room: bool,
}

/// Receives the wake-up for a message.
enum Listener {
    /// The receiver does not wait.
    Nobody,
    /// The source of an attached receiver.
    Bell(Arc<Bell>),
    /// A task that reads the receiver.
    Task(Waker),
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.state)
    }

    /// Wakes senders, which check again for room or for the end of the receiver. The caller has found `wants_room` set, and has
    /// cleared it.
    fn call_senders(&self) {
        self.room.lock().wake(ROOM);
    }
}

impl<T> State<T> {
    /// Records that the receiver has something to handle. The caller wakes the returned listener after the unlock.
    #[inline]
    #[must_use]
    fn call(&mut self) -> Listener {
        match &self.listener {
            Listener::Bell(bell) => {
                let was_called = std::mem::replace(&mut self.is_called, true);
                if was_called && !bell.was_unanswered() {
                    return Listener::Nobody;
                }
                Listener::Bell(bell.clone())
            }
            Listener::Nobody => Listener::Nobody,
            Listener::Task(_) => std::mem::replace(&mut self.listener, Listener::Nobody),
        }
    }
}

impl Listener {
    #[inline]
    fn call(self) {
        match self {
            Listener::Nobody => {}
            Listener::Bell(bell) => bell.ring(),
            Listener::Task(waker) => waker.wake(),
        }
    }
}

/// A change for waiting senders: there is room, or the receiver has ended.
const ROOM: Topics = Topics::of(0);
