//! Moves of calls to other media workers.
//!
//! A call is a value with open sockets, so a move needs no copy of its state. The call's queued datagrams stay in its sockets, where the
//! other media worker finds them. Staged datagrams are sent before. Orders that wait for the call go to the queue of the other media
//! worker, and later orders go there at once: see `orders/seat.rs`.

use std::sync::Arc;

use threadbare_runtime::clock_now_ns;

use super::outbox::flush_all;
use super::{MediaWorker, drop_order};
use crate::call::Call;
use crate::orders::{CallRef, Order, Place, Seat, Slot, take_orders_of};
use crate::ports::{LegKind, move_to};
use crate::rebalance::Moved;

impl<C: Call> MediaWorker<C> {
    /// Moves a call to another media worker. `at`: the call; `None`: any call that can be moved. Returns `None` if the call stays.
    pub(super) fn hand_over(&mut self, at: Option<CallRef>, to: &Arc<Seat<C>>) -> Option<Moved> {
        if Arc::ptr_eq(&to.queue, &self.queue) {
            return None;
        }
        let index = match at {
            Some(at) => self.is_there(at).then_some(at.index),
            None => self.next_to_move(),
        };
        let index = index.filter(|index| self.can_move(*index))?;
        // These datagrams leave before those that the other media worker sends.
        flush_all(&mut self.ios, &self.queue.counters);
        let mut slot = self.calls.get_mut(index as usize)?.take()?;
        let mut legs = self.detach_all(&mut slot);
        if let Err(error) = move_to(&mut legs, &to.watch) {
            tracing::warn!(call = slot.label, %error, "a call stays on its thread, because the other one cannot watch its sockets");
            self.take_back(index, slot, legs);
            return None;
        }
        self.timers.remove(index);
        let moved = self.send(index, slot, legs, to);
        let counters = &self.queue.counters;
        counters.calls.set(counters.calls.get().saturating_sub(1));
        counters.moved.add(1);
        self.queue.free_call(index);
        Some(moved)
    }

    /// Returns a call that can be moved, a different one each time.
    fn next_to_move(&mut self) -> Option<u32> {
        let count = self.calls.len();
        let mut places = (0..count).map(|i| (self.next_move + i) % count);
        let place = places.find(|place| self.can_move(*place as u32))?;
        self.next_move = place + 1;
        Some(place as u32)
    }

    fn can_move(&self, index: u32) -> bool {
        let Some(Some(slot)) = self.calls.get(index as usize) else {
            return false;
        };
        let can_move = |(io, attached): &(u32, _)| {
            let packets = self.ios.get(*io as usize).and_then(Option::as_ref);
            packets.is_some_and(|packets| packets.can_move(attached))
        };
        slot.legs.iter().flatten().all(can_move)
    }

    /// Attaches the ports of a call again, which could not be moved.
    fn take_back(&mut self, index: u32, mut slot: Box<Slot<C>>, legs: Vec<(u32, LegKind)>) {
        // This cannot fail, because the sockets are still registered here.
        if let Err(error) = self.attach_all(index, &mut slot, legs) {
            tracing::error!(call = slot.label, %error, "a call has lost its sockets");
        }
        self.calls[index as usize] = Some(slot);
    }

    /// Sends a call and the orders that wait for it to another media worker.
    fn send(
        &mut self,
        index: u32,
        mut slot: Box<Slot<C>>,
        legs: Vec<(u32, LegKind)>,
        to: &Arc<Seat<C>>,
    ) -> Moved {
        let home = slot.home.clone();
        let label = slot.label.clone();
        let before = CallRef {
            index,
            generation: slot.generation,
        };
        let mut place = home.lock();
        let mut waiting = take_orders_of(&mut self.orders, before);
        waiting.extend(self.queue.take_orders_of(before));
        let at = to.queue.new_call();
        slot.relocate(at);
        let mut orders = vec![Order::Create {
            at,
            slot,
            legs,
            left_ns: Some(clock_now_ns()),
        }];
        orders.extend(waiting.into_iter().map(|mut order| {
            order.redirect(at);
            order
        }));
        let pushed = to.queue.push_all(orders);
        let seat = to.clone();
        let left = std::mem::replace(&mut *place, Place { seat, at });
        drop(place);
        match pushed {
            Ok(Some(when)) => to.wake(when),
            Ok(None) => {}
            // The engine ends.
            Err(orders) => orders.into_iter().for_each(drop_order),
        }
        Moved {
            label,
            from: left.seat.shard.name().to_owned(),
            to: to.shard.name().to_owned(),
        }
    }
}
