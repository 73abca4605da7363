//! Replies that wait for the counters of a call's streams. Their threads tell within a slice; meanwhile, others are answered.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use threadbare_control::calls::{Pending, StreamId, StreamStats};
use threadbare_control::ng::Reply;

use super::Service;
use crate::serve::asker::Owed;
use crate::serve::plays::Unanswered;

/// What a request gets.
pub(super) enum Answer {
    Reply(Reply),
    Counted(Counted),
}

/// A reply without counters, and those that were asked for.
pub(super) struct Counted {
    reply: Pending,
    asked: Vec<(StreamId, threadbare_relay::Reply<StreamStats>)>,
    told: BTreeMap<StreamId, StreamStats>,
}

/// A request that waits for it.
pub(super) struct Counting {
    owed: Owed,
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

    /// Takes what has come. `true`: nothing more will; else the waker is woken for it.
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
    /// Blocks until all counters are there.
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
    /// Answers when the counters are there.
    pub(super) fn answer_counted(&mut self, owed: Owed, counted: Counted) {
        if self.counting.len() == COUNTING_MAX {
            let reply = Answer::Counted(counted).wait();
            return self.send(Unanswered { owed, reply });
        }
        self.counting.push(Counting { owed, counted });
    }

    /// Answers those whose counters have come.
    pub(super) fn go_on_with_counted(&mut self) {
        let waker = self.wake.waker();
        let done = self
            .counting
            .extract_if(.., |one| one.counted.poll(&waker))
            .collect::<Vec<_>>();
        for Counting { owed, counted } in done {
            let reply = counted.finish();
            self.send(Unanswered { owed, reply });
        }
    }
}

/// Requests that wait. Beyond, a thread that is this late is waited for, and further requests wait in the socket.
const COUNTING_MAX: usize = 256;
