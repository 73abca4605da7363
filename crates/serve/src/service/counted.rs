//! Replies that wait for the counters of a call's streams. The streams' threads answer within a slice; meanwhile other
//! requests are handled.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use threadbare_control::calls::{Pending, StreamId, StreamStats};
use threadbare_control::ng::Reply;

use super::Service;
use crate::asker::PendingReply;
use crate::plays::Unanswered;

/// The reply to a request.
pub(super) enum Answer {
    Reply(Reply),
    Counted(Counted),
}

/// A reply without counters, and the requested counters.
pub(super) struct Counted {
    reply: Pending,
    asked: Vec<(StreamId, threadbare_relay::Reply<StreamStats>)>,
    told: BTreeMap<StreamId, StreamStats>,
}

/// A request that waits for its counters.
pub(super) struct Counting {
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

    /// Reads the counters that have arrived. Returns `true` when it is complete; otherwise the waker is registered.
    fn poll(&mut self, waker: &Waker) -> bool {
        let mut cx = Context::from_waker(waker);
        self.asked
            .retain_mut(|(stream, reply)| match Pin::new(reply).poll(&mut cx) {
                Poll::Pending => true,
                Poll::Ready(Ok(stats)) => {
                    self.told.insert(*stream, stats);
                    false
                }
                // The stream is gone.
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

impl Service {
    /// Answers when the counters have arrived.
    pub(super) fn answer_counted(&mut self, pending: PendingReply, counted: Counted) {
        if self.counting.len() == COUNTING_MAX {
            let reply = Answer::Counted(counted).wait();
            return self.send(Unanswered { pending, reply });
        }
        self.counting.push(Counting { pending, counted });
    }

    /// Answers the requests whose counters have arrived.
    pub(super) fn go_on_with_counted(&mut self) {
        let waker = self.wake.waker();
        let done = self
            .counting
            .extract_if(.., |one| one.counted.poll(&waker))
            .collect::<Vec<_>>();
        for Counting { pending, counted } in done {
            let reply = counted.finish();
            self.send(Unanswered { pending, reply });
        }
    }
}

/// Maximum of waiting requests. Beyond it, this thread waits for the late media thread, and further requests wait in
/// the socket.
const COUNTING_MAX: usize = 256;
