//! What a sink has to tell the application, from places where no application may be called: under the sink's lock, or on the
//! disk service's thread. A thread of GStreamer's pool posts it, in order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use gst::glib;
use gst::prelude::*;

use crate::kit::lock;

/// Something to be posted.
pub(super) enum Letter {
    Error(gst::ErrorMessage),
    Message(gst::Message),
}

/// Letters of one element.
pub(super) struct Outbox {
    element: glib::WeakRef<gst::Element>,
    /// Woken when all are posted.
    waker: Waker,
    shared: Arc<Mutex<Letters>>,
}

#[derive(Default)]
struct Letters {
    waiting: VecDeque<Letter>,
    /// A thread is on its way, or posts.
    is_posting: bool,
}

impl Outbox {
    pub(super) fn new(element: &gst::Element, waker: Waker) -> Self {
        Outbox {
            element: element.downgrade(),
            waker,
            shared: Arc::default(),
        }
    }

    /// Whether everything has been posted.
    pub(super) fn is_empty(&self) -> bool {
        let letters = lock(&self.shared);
        letters.waiting.is_empty() && !letters.is_posting
    }

    pub(super) fn put(&self, letter: Letter) {
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
        element.call_async(move |element| {
            while let Some(letter) = next(&shared) {
                match letter {
                    Letter::Error(error) => element.post_error_message(error),
                    Letter::Message(message) => {
                        let _ = element.post_message(message);
                    }
                }
            }
            waker.wake();
        });
    }
}

fn next(shared: &Mutex<Letters>) -> Option<Letter> {
    let mut letters = lock(shared);
    let letter = letters.waiting.pop_front();
    letters.is_posting = letter.is_some();
    letter
}

/// Calls a function of an element when it is woken, while the element exists.
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

/// A waker that calls `ring`, on the thread of the disk service or of a letter's posting: no lock is held.
pub(super) fn bell<T>(element: &T, ring: fn(&T)) -> Waker
where
    T: glib::object::ObjectType + Send + Sync,
{
    Arc::new(Bell {
        element: element.downgrade(),
        ring,
    })
    .into()
}
