//! Posts messages to the application from places where calling the application is not allowed: under the sink's lock, or on the
//! disk service's thread. A few pool threads post the messages, in order for each element. So a thousand files that end together
//! do not need a thread each.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Wake, Waker};

use gst::glib;
use gst::prelude::*;

use crate::kit::lock;

/// Maximum number of threads. There are several, because an application may handle a message slowly.
const THREADS_MAX: u32 = 4;

static POSTERS: LazyLock<Option<glib::ThreadPool>> =
    LazyLock::new(|| glib::ThreadPool::shared(Some(THREADS_MAX)).ok());

thread_local! {
    static IS_POSTING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread posts messages. If so, it must not wait for messages to be posted.
pub(crate) fn is_posting() -> bool {
    IS_POSTING.with(Cell::get)
}

/// A message to be posted.
pub(crate) enum Letter {
    Error(gst::ErrorMessage),
    Message(gst::Message),
}

/// Queued messages of one element.
pub(crate) struct Outbox {
    element: glib::WeakRef<gst::Element>,
    /// Woken when all messages are posted.
    waker: Waker,
    shared: Arc<Mutex<Letters>>,
}

#[derive(Default)]
struct Letters {
    waiting: VecDeque<Letter>,
    /// Whether a thread is posting, or about to.
    is_posting: bool,
}

impl Outbox {
    pub(crate) fn new(element: &gst::Element, waker: Waker) -> Self {
        Outbox {
            element: element.downgrade(),
            waker,
            shared: Arc::default(),
        }
    }

    /// Whether everything has been posted.
    pub(crate) fn is_empty(&self) -> bool {
        let letters = lock(&self.shared);
        letters.waiting.is_empty() && !letters.is_posting
    }

    pub(crate) fn put(&self, letter: Letter) {
        let Some(element) = self.element.upgrade() else {
            return;
        };
        {
            let mut letters = lock(&self.shared);
            letters.waiting.push_back(letter);
            if std::mem::replace(&mut letters.is_posting, true) {
                return;
            }
        }
        let (shared, waker) = (self.shared.clone(), self.waker.clone());
        let weak = self.element.clone();
        let post = move || {
            IS_POSTING.with(|it| it.set(true));
            while let Some(letter) = next(&shared) {
                // If the element has been freed, the message has no receiver.
                let Some(element) = weak.upgrade() else {
                    continue;
                };
                match letter {
                    Letter::Error(error) => element.post_error_message(error),
                    Letter::Message(message) => {
                        let _ = element.post_message(message);
                    }
                }
            }
            IS_POSTING.with(|it| it.set(false));
            waker.wake();
        };
        match &*POSTERS {
            // If a thread cannot be started, the others do its work.
            Some(posters) => drop(posters.push(post)),
            None => element.call_async(move |_| post()),
        }
    }
}

fn next(shared: &Mutex<Letters>) -> Option<Letter> {
    let mut letters = lock(shared);
    let letter = letters.waiting.pop_front();
    letters.is_posting = letter.is_some();
    letter
}

/// A waker that calls a function of an element, as long as the element exists.
struct Bell<T: glib::object::ObjectType> {
    element: glib::WeakRef<T>,
    ring: fn(&T),
}

impl<T: glib::object::ObjectType + Send + Sync> Wake for Bell<T> {
    fn wake(self: Arc<Self>) {
        if let Some(element) = self.element.upgrade() {
            (self.ring)(&element);
        }
    }
}

/// Creates a waker that calls `ring` on a thread of the disk service or of the outbox, without a lock.
pub(crate) fn bell<T>(element: &T, ring: fn(&T)) -> Waker
where
    T: glib::object::ObjectType + Send + Sync,
{
    Arc::new(Bell {
        element: element.downgrade(),
        ring,
    })
    .into()
}
