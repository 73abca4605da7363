//! The result of a command, for which a future or a thread can wait.

use std::pin::Pin;
use std::task::{Context, Poll};

use threadbare_runtime::Shard;

use crate::gather::wake_all;

/// The call or the whole engine has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the call no longer exists")]
pub struct Gone;

/// A result from a shard. Await it, or call [`wait`](Reply::wait) on an ordinary thread. The command runs even if this is dropped.
#[must_use = "the result comes later; drop it to ignore the result"]
pub struct Reply<R: 'static> {
    receiver: flume::r#async::RecvFut<'static, R>,
    blocking: flume::Receiver<R>,
    shard: Shard,
}

impl<R> Reply<R> {
    pub(crate) fn new(shard: &Shard) -> (flume::Sender<R>, Reply<R>) {
        let (sender, receiver) = flume::bounded(1);
        let reply = Reply {
            blocking: receiver.clone(),
            receiver: receiver.into_recv_async(),
            shard: shard.clone(),
        };
        (sender, reply)
    }

    /// Blocks until the result arrives.
    ///
    /// # Errors
    /// Fails if the call ended before the command ran, or if it panicked in the command.
    ///
    /// # Panics
    /// Panics on the thread of the call's shard, which would wait for itself.
    pub fn wait(self) -> Result<R, Gone> {
        assert!(
            !self.shard.is_current(),
            "a context thread must not wait for itself: await the reply"
        );
        wake_all();
        self.blocking.recv().map_err(|_| Gone)
    }
}

impl<R> Future for Reply<R> {
    type Output = Result<R, Gone>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receiver).poll(cx).map_err(|_| Gone)
    }
}

impl<R> std::fmt::Debug for Reply<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply")
            .field("shard", &self.shard)
            .finish_non_exhaustive()
    }
}
