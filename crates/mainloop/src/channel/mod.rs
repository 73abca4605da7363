//! Channels from any thread to a main context.
//!
//! Many senders, one receiver, and at most one source: the receiver is attached to a context with a closure, as glib's
//! own channel was until 0.19, or it is read as a [`Stream`](futures_core::Stream), anywhere.
//!
//! | part | who |
//! |---|---|
//! | [`Sender`], [`SyncSender`] | any thread |
//! | [`Receiver`] | the thread that holds it; attached with a local closure, that of the context |
//! | `State` | all of them, under its lock |

mod receiver;
mod sender;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use threadbare_runtime::{Monitor, Topics};

pub use self::receiver::{Attachment, Receiver};
pub use self::sender::{SendError, Sender, SyncSender, TrySendError};
use crate::bell::Bell;
use crate::sync::{Mutex, MutexGuard, lock};

/// A channel without a bound: sending never waits, and what is not received stays in memory.
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

/// A channel with a bound: up to `bound` messages wait for the receiver, and then senders wait or are told. A bound of 0 is
/// one of 1.
///
/// A receiver takes all that waits at once. What it has taken does not count any more: so up to twice `bound` messages are on
/// their way.
pub fn sync_channel<T>(bound: usize) -> (SyncSender<T>, Receiver<T>) {
    let shared = new(bound.max(1));
    (SyncSender::new(shared.clone()), Receiver::new(shared))
}

fn new<T>(bound: usize) -> Arc<Shared<T>> {
    // Shared by one thread if the messages are bound to one: then sender and receiver are, too.
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
    /// Where senders wait. Locked before `state`, by those who wait only.
    room: Monitor<()>,
}

struct State<T> {
    queue: VecDeque<T>,
    bound: usize,
    senders: usize,
    has_receiver: bool,
    listener: Listener,
    /// The listener was called, or is at work and will look here before it rests.
    is_called: bool,
    /// Senders wait.
    wants_room: bool,
}

/// Whom a message concerns.
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

    /// Senders look for room again, or for the end of the receiver. For those who have found `wants_room`, and taken it back.
    fn call_senders(&self) {
        self.room.lock().wake(ROOM);
    }
}

impl<T> State<T> {
    /// The receiver has something to look at. Whom the caller calls after the unlock.
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

/// Senders wait for room, or for the end of the receiver.
const ROOM: Topics = Topics::of(0);
