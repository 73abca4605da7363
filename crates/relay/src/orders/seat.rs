//! The media workers of an engine as other threads see them, and the media worker of each call.
//!
//! | data | threads |
//! |---|---|
//! | `Seat` | any thread |
//! | `Home::place` | read by any thread that orders something for the call; written by the media worker that moves the call; under its lock |
//!
//! A thread holds the lock of a call's place until its order is in the queue. A media worker that moves the call holds the same lock until
//! all queued orders of the call are in the new queue. So the orders of one thread stay in order, whichever queue they go to.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use nix::sys::epoll::Epoll;
use threadbare_runtime::Shard;

use super::{CallRef, Life, Order, OrderQueue, When};
use crate::call::Call;
use crate::reply::Gone;
use crate::sync::lock;

/// The media worker of a shard, as other threads see it.
pub(crate) struct Seat<C: Call> {
    pub(crate) queue: Arc<OrderQueue<C>>,
    pub(crate) shard: Shard,
    /// Wakes the media worker.
    pub(crate) wake: Box<dyn Fn(When) + Send + Sync>,
    /// The epoll instance that contains the sockets of the worker's calls.
    pub(crate) watch: Arc<Epoll>,
    /// When asynchronous orders are carried out.
    pub(crate) when: When,
}

impl<C: Call> Seat<C> {
    /// Queues an order without waiting for it.
    pub(crate) fn order(&self, order: Order<C>) -> Result<(), Gone> {
        let pushed = self.queue.push(order, self.when).map_err(|_| Gone)?;
        if let Some(when) = pushed {
            self.wake(when);
        }
        Ok(())
    }

    /// Wakes the media worker, so that it finds its orders.
    pub(crate) fn wake(&self, when: When) {
        (self.wake)(when);
    }

    pub(crate) fn assigned(&self) -> u64 {
        self.queue.assigned.load(Ordering::Relaxed)
    }

    pub(crate) fn lateness(&self) -> Duration {
        if self.assigned() == 0 {
            // Without work no slice runs, so the last measured lateness would stay.
            return Duration::ZERO;
        }
        Duration::from_nanos(self.shard.lateness_recent_ns())
    }

    pub(crate) fn is_late(&self) -> bool {
        self.lateness() > self.shard.wait().max(LATE_MIN)
    }
}

/// The media worker of a call, which its handle, its commanders and its slot share.
pub(crate) struct Home<C: Call> {
    pub(crate) life: Life,
    place: Mutex<Place<C>>,
}

/// A media worker, and the place of a call there.
pub(crate) struct Place<C: Call> {
    pub(crate) seat: Arc<Seat<C>>,
    pub(crate) at: CallRef,
}

impl<C: Call> Home<C> {
    pub(crate) fn new(seat: Arc<Seat<C>>, at: CallRef) -> Arc<Home<C>> {
        Arc::new(Home {
            life: Life::new(),
            place: Mutex::new(Place { seat, at }),
        })
    }

    /// Locks the place of the call. Do not drop an order while you hold the lock, because the order may own a handle of the call.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Place<C>> {
        lock(&self.place)
    }

    /// Returns the shard that runs the call at present.
    pub(crate) fn shard(&self) -> Shard {
        self.lock().seat.shard.clone()
    }

    /// Queues an order for the call without waiting for it. `when`: the time of the order; `None`: the usual one of the engine.
    pub(crate) fn order(
        &self,
        when: Option<When>,
        order: impl FnOnce(CallRef) -> Order<C>,
    ) -> Result<(), Gone> {
        let place = self.lock();
        let when = when.unwrap_or(place.seat.when);
        let pushed = place.seat.queue.push(order(place.at), when);
        let woken = match &pushed {
            Ok(Some(when)) => Some((*when, place.seat.clone())),
            Ok(None) | Err(_) => None,
        };
        drop(place);
        if let Some((when, seat)) = woken {
            seat.wake(when);
        }
        pushed.map(drop).map_err(|_| Gone)
    }
}

impl<C: Call> std::fmt::Debug for Home<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = self.lock();
        f.debug_struct("Home")
            .field("thread", &place.seat.shard.name())
            .field("at", &place.at)
            .field("life", &self.life)
            .finish()
    }
}

/// Lateness that does not matter, because the machine had other work for a moment.
const LATE_MIN: Duration = Duration::from_millis(20);
