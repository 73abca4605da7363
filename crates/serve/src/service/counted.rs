//! Replies that contain counters of a call's streams. The threads of the streams return the counters within a slice, and the control thread
//! handles other requests meanwhile.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use threadbare_control::calls::{Pending, StreamId, StreamStats};
use threadbare_control::ng::Reply;

use crate::asker::PendingReply;
use crate::plays::Unanswered;

/// The reply to a request.
pub(super) enum Answer {
    Reply(Reply),
    Counted(Counted),
}

/// A reply that waits for counters.
pub(super) struct Counted {
    reply: Pending,
    asked: Vec<(StreamId, threadbare_relay::Reply<StreamStats>)>,
    told: BTreeMap<StreamId, StreamStats>,
}

/// A request whose reply waits for counters.
struct Counting {
    pending: PendingReply,
    counted: Counted,
}

impl Counted {
    pub(super) fn new(
        reply: Pending,
        asked: Vec<(StreamId, threadbare_relay::Reply<StreamStats>)>,
    ) -> Counted {
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
            .retain_mut(|(stream, reply)| match Pin::new(reply).poll(&mut cx) {
                Poll::Pending => true,
                Poll::Ready(Ok(stats)) => {
                    self.told.insert(*stream, stats);
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
    /// Blocks until all counters have arrived.
    pub(super) fn wait(self) -> Reply {
        match self {
            Answer::Reply(reply) => reply,
            Answer::Counted(mut counted) => {
                let asked = std::mem::take(&mut counted.asked).into_iter();
                let told = asked.filter_map(|(stream, reply)| Some((stream, reply.wait().ok()?)));
                counted.told.extend(told);
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

    /// Adds a request. If too many requests wait, blocks until the counters have arrived, and returns the reply.
    pub(super) fn add(&mut self, pending: PendingReply, counted: Counted) -> Option<Unanswered> {
        if self.0.len() == COUNTING_MAX {
            let reply = Answer::Counted(counted).wait();
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

/// Maximum number of waiting requests. Beyond it, the control thread waits for the media thread that is late, and further requests stay in
/// the socket.
const COUNTING_MAX: usize = 256;
