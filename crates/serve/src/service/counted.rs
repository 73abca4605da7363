//! Replies that contain counters of a call's streams. The threads of the streams return the counters within a slice, and the control thread
//! handles other requests meanwhile.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use threadbare_control::calls::{Pending, StreamId, StreamStats};
use threadbare_control::ng::Reply;

use crate::asker::PendingReply;
use crate::media::AskedStats;
use crate::plays::Unanswered;

/// The reply to a request.
pub(super) enum Answer {
    Reply(Reply),
    Counted(Counted),
}

/// A reply that waits for counters.
pub(super) struct Counted {
    reply: Pending,
    asked: Vec<AskedStats>,
    told: BTreeMap<StreamId, StreamStats>,
}

/// A request whose reply waits for counters.
struct Counting {
    pending: PendingReply,
    counted: Counted,
}

impl Counted {
    pub(super) fn new(reply: Pending, asked: Vec<AskedStats>) -> Counted {
        Counted {
            reply,
            asked,
            told: BTreeMap::new(),
        }
    }

    /// Reads the counters that have arrived. Returns `true` if none is missing. Otherwise, registers the waker.
    fn poll(&mut self, waker: &Waker) -> bool {
        let mut cx = Context::from_waker(waker);
        self.asked
            .retain_mut(|asked| match Pin::new(&mut asked.reply).poll(&mut cx) {
                Poll::Pending => true,
                Poll::Ready(Ok(stats)) => {
                    self.told.insert(asked.stream, stats);
                    false
                }
                // The stream is gone, so it has no counters.
                Poll::Ready(Err(_)) => false,
            });
        self.asked.is_empty()
    }

    fn finish(self) -> Reply {
        self.reply.finish(&self.told)
    }
}

impl Answer {
    /// Returns the reply without waiting. Its counters are those that the streams' threads have stored, which are up to a second old.
    pub(super) fn now(self) -> Reply {
        match self {
            Answer::Reply(reply) => reply,
            Answer::Counted(mut counted) => {
                let stored = counted.asked.iter();
                let stored = stored.map(|asked| (asked.stream, asked.latest.counters()));
                counted.told.extend(stored);
                counted.finish()
            }
        }
    }
}

/// All requests whose replies wait for counters.
#[derive(Default)]
pub(super) struct CountingRequests(Vec<Counting>);

impl CountingRequests {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a request. If too many requests wait, returns its reply at once.
    pub(super) fn add(&mut self, pending: PendingReply, counted: Counted) -> Option<Unanswered> {
        if self.0.len() == COUNTING_MAX {
            let reply = Answer::Counted(counted).now();
            return Some(Unanswered { pending, reply });
        }
        self.0.push(Counting { pending, counted });
        None
    }

    /// Removes and returns the requests whose counters have arrived. The waker is registered for all others.
    pub(super) fn take_done(&mut self, waker: &Waker) -> Vec<Unanswered> {
        let done = self.0.extract_if(.., |one| one.counted.poll(waker));
        let answered = done.map(|Counting { pending, counted }| Unanswered {
            pending,
            reply: counted.finish(),
        });
        answered.collect()
    }
}

/// Maximum number of waiting requests. Beyond it, a media thread is late, and the replies have the counters that it has stored.
const COUNTING_MAX: usize = 256;
