//! Sleeps: futures that use the timers of a shard, or the alarm of [`block_on`](crate::block_on).

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::shard::{Local, Shard};
use crate::sys::clock_now_ns;
use crate::wheel::{Precision, TimerKey};

/// Completes when the clock has reached `deadline_ns` (CLOCK_MONOTONIC). Await it in a task or agent of a shard, or in
/// [`block_on`](crate::block_on); elsewhere it completes at once.
pub fn sleep_until(deadline_ns: u64, precision: Precision) -> Sleep {
    Sleep {
        deadline_ns,
        precision,
        timer: None,
    }
}

/// Returns the present time for a timer that is polled on this thread, in ns of CLOCK_MONOTONIC. On a shard, it is the time of
/// the pass. Returns `None` if timers do not work on this thread.
pub(crate) fn timer_now_ns() -> Option<u64> {
    if crate::block::is_inside() {
        return Some(clock_now_ns());
    }
    Local::with_current(Local::now_ns)
}

/// The future of [`sleep_until`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    deadline_ns: u64,
    precision: Precision,
    timer: Option<Timer>,
}

/// A timer of a shard. Keys are unique only within a shard.
#[derive(Debug)]
struct Timer {
    shard: Shard,
    key: TimerKey,
}

impl Timer {
    /// Cancels the timer, on its shard's thread only. A shard that has ended has no timers left.
    fn cancel(self) {
        let Timer { shard, key } = self;
        if shard.is_current() {
            Local::with_current(|local| local.cancel_sleeper(key));
        } else {
            let _ = shard.command(move |local| local.cancel_sleeper(key));
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // This comes first, because a shard's thread inside of `block_on` fires no timers.
        if self.timer.is_none() && crate::block::set_alarm(self.deadline_ns) {
            return if clock_now_ns() >= self.deadline_ns {
                Poll::Ready(())
            } else {
                Poll::Pending
            };
        }
        let ready = Local::with_current(|local| {
            if let Some(timer) = self.timer.take() {
                timer.cancel();
            }
            let early_ns = match self.precision {
                Precision::About => local.shard().tick_ns() / 2,
                Precision::NotBefore => 0,
            };
            if local.now_ns() + early_ns >= self.deadline_ns {
                return true;
            }
            let waker = cx.waker().clone();
            let key = local.add_sleeper(self.deadline_ns, self.precision, waker);
            let shard = local.shard().clone();
            self.timer = Some(Timer { shard, key });
            false
        });
        if ready.unwrap_or(true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            timer.cancel();
        }
    }
}
