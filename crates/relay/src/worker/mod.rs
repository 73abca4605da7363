//! The media worker of a shard, which runs all its calls and their packet I/Os as one agent.
//!
//! There is one agent, and not one for each call, so that a datagram of a shared port finds its call without a lock or a mailbox. While one
//! call runs, the memory of the next ones is prefetched. A batch leaves in one system call if the packet I/O can do that. A call's turn is
//! bounded. A panic ends the turn, and removes only that call.

mod moving;
mod outbox;
mod spare;
mod timers;

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use threadbare_runtime::{
    Agent, AgentHandle, CACHE_LINE, Cx, Local, Precision, Ready, Shard, clock_now_ns, prefetch,
};

use self::outbox::{flush_all, transmit};
use self::spare::Spare;
use self::timers::Timers;
use crate::call::{Call, Datagram};
use crate::id::PortId;
use crate::io::{Arrival, ArrivalClock, Outcome, PacketIo, Pass, reserve};
use crate::orders::{CallRef, CallState, Order, OrderQueue, PortRef, Removed, Slot};
use crate::policy::View;
use crate::ports::LegKind;

/// The packet I/Os, by place.
type Ios = Vec<Option<Box<dyn PacketIo>>>;

/// The media worker of a shard. Its fields are dropped in this order, because a port's number must become free after its sockets are
/// closed.
pub(crate) struct MediaWorker<C: Call> {
    ios: Ios,
    /// The calls, by place. They are boxed, because a table that grows must not move them.
    #[allow(clippy::vec_box)]
    calls: Vec<Option<Box<Slot<C>>>>,
    queue: Arc<OrderQueue<C>>,
    label: String,
    timers: Timers,
    due: Vec<u32>,
    /// Calls with more to send.
    more: Vec<u32>,
    orders: VecDeque<Order<C>>,
    /// Handle of this agent, for orders that a run leaves over. Like new orders, they interrupt the sleep between slices.
    myself: Option<AgentHandle<MediaWorker<C>>>,
    /// Whether the worker has woken itself to continue with the orders.
    is_asked: bool,
    clock: ArrivalClock,
    slice: u64,
    run_ns_max: u64,
    spare: Spare,
    /// The packet I/O that is read first in the next run.
    first_io: usize,
    /// The place at which the search for a call to move starts.
    next_move: usize,
    /// The policy for destinations. `None`: all destinations are allowed.
    policy: Option<View>,
}

impl<C: Call> MediaWorker<C> {
    /// Creates the media worker of `shard`, with `pairs` as its first packet I/O.
    pub(crate) fn new(
        shard: &Shard,
        queue: Arc<OrderQueue<C>>,
        label: String,
        pairs: Box<dyn PacketIo>,
        policy: Option<View>,
    ) -> MediaWorker<C> {
        let wait_ns = shard.wait().as_nanos() as u64;
        let run_ns_max = (wait_ns / 4).clamp(RUN_NS_MIN, RUN_NS_MAX);
        MediaWorker {
            ios: vec![Some(pairs)],
            calls: Vec::new(),
            queue,
            label,
            timers: Timers::new(),
            due: Vec::new(),
            more: Vec::new(),
            orders: VecDeque::new(),
            myself: None,
            is_asked: false,
            clock: ArrivalClock::default(),
            slice: 0,
            run_ns_max,
            spare: Spare::new(wait_ns, run_ns_max),
            first_io: 0,
            next_move: 0,
            policy,
        }
    }

    /// Watches the first packet I/O.
    pub(crate) fn start(
        &mut self,
        cx: &Cx<'_>,
        myself: AgentHandle<MediaWorker<C>>,
    ) -> io::Result<()> {
        self.myself = Some(myself);
        match self.ios.first() {
            Some(Some(pairs)) => pairs.watch(cx, 0),
            _ => Ok(()),
        }
    }

    /// Handles the orders of other threads.
    pub(crate) fn handle_orders(&mut self, cx: &mut Cx<'_>) {
        self.is_asked = false;
        self.run_orders(cx, clock_now_ns());
        self.end_run(cx);
    }

    fn run_orders(&mut self, cx: &Cx<'_>, now_ns: u64) {
        let until_ns = now_ns.saturating_add(self.run_ns_max / 2);
        for count in 1.. {
            if self.orders.is_empty() {
                self.queue.take(&mut self.orders);
                // The policy is refreshed after the orders, because a call may rely on a policy that was set before it was created.
                if let Some(policy) = &mut self.policy {
                    policy.refresh();
                }
            }
            let Some(order) = self.orders.pop_front() else {
                return;
            };
            if is_from_future(&order, now_ns) {
                self.orders.push_front(order);
                return;
            }
            self.run_order(cx, now_ns, order);
            if count % ORDERS_TIMED == 0 && clock_now_ns() >= until_ns {
                return;
            }
        }
    }

    fn run_order(&mut self, cx: &Cx<'_>, now_ns: u64, order: Order<C>) {
        match order {
            Order::Create {
                at,
                slot,
                legs,
                left_ns,
            } => {
                if left_ns.is_none() {
                    self.queue.counters.created.add(1);
                }
                self.create(now_ns, at, slot, legs);
            }
            Order::Command { at, run } => {
                if self.is_there(at) {
                    self.turn(at.index, now_ns, false, |slot, _| run(slot, now_ns));
                }
            }
            Order::SetTos { at, tos } => {
                if self.is_there(at) {
                    self.set_tos(at.index, tos);
                }
            }
            Order::Remove { at, reply } => {
                if self.is_there(at)
                    && let Some(removed) = self.remove(at.index, CallState::Removed)
                {
                    match reply {
                        // The call is dropped here if the caller no longer waits.
                        Some(reply) => drop_caught(reply.send(removed)),
                        None => drop_caught(removed),
                    }
                }
            }
            Order::Move { at, to, report } => {
                let moved = self.hand_over(at, &to);
                // The caller may no longer wait.
                let _ = report.send(moved);
            }
            Order::AddIo { io, packets } => self.add_io(cx, io, packets),
            Order::RemoveIo { io } => {
                if let Some(packets) = self.ios.get_mut(io as usize).and_then(Option::take) {
                    packets.unwatch(cx);
                    self.queue.free_io(io);
                }
            }
        }
    }

    fn add_io(&mut self, cx: &Cx<'_>, io: u32, packets: Box<dyn PacketIo>) {
        if let Err(error) = packets.watch(cx, io as u8) {
            tracing::error!(%error, "cannot watch a shared port: its calls receive no packets");
        }
        let place = io as usize;
        if place >= self.ios.len() {
            self.ios.resize_with(place + 1, || None);
        }
        self.ios[place] = Some(packets);
    }

    fn create(
        &mut self,
        now_ns: u64,
        at: CallRef,
        mut slot: Box<Slot<C>>,
        legs: Vec<(u32, LegKind)>,
    ) {
        let failed = self.attach_all(at.index, &mut slot, legs).err();
        let place = at.index as usize;
        if place >= self.calls.len() {
            self.calls.resize_with(place + 1, || None);
            // Reserve the memory now, because a slice in which all calls have turns must not allocate.
            reserve(&mut self.due, self.calls.len());
            reserve(&mut self.more, self.calls.len());
        }
        let counters = &self.queue.counters;
        counters.calls.add(1);
        if let Some(error) = failed {
            tracing::error!(call = slot.label, %error, "cannot watch the sockets of a call");
            counters.failed.add(1);
            self.calls[place] = Some(slot);
            drop_caught(self.remove(at.index, CallState::Failed));
            return;
        }
        self.calls[place] = Some(slot);
        // The call may have output and a timer from the start.
        self.turn(at.index, now_ns, false, |_, _| ());
    }

    /// Attaches the ports of a call's legs to their packet I/Os.
    fn attach_all(
        &mut self,
        index: u32,
        slot: &mut Slot<C>,
        legs: Vec<(u32, LegKind)>,
    ) -> io::Result<()> {
        for (leg, (io, ports)) in legs.into_iter().enumerate() {
            let Some(Some(packets)) = self.ios.get_mut(io as usize) else {
                return Err(io::ErrorKind::NotFound.into());
            };
            let leg = leg as u8;
            let attached = packets.attach(index, leg, ports)?;
            let ids = [
                (PortId::rtp(leg), Some(attached.rtp)),
                (PortId::rtcp(leg), attached.rtcp),
            ];
            for (id, place) in ids {
                if let (Some(in_slot), Some(place)) = (id.place(), place) {
                    slot.ports[in_slot] = PortRef { io, place };
                }
            }
            slot.legs[usize::from(leg)] = Some((io, attached));
        }
        Ok(())
    }

    /// Detaches the ports of a call's legs.
    fn detach_all(&mut self, slot: &mut Slot<C>) -> Vec<(u32, LegKind)> {
        let mut detached = Vec::new();
        for (io, attached) in slot.legs.iter_mut().filter_map(Option::take) {
            if let Some(Some(packets)) = self.ios.get_mut(io as usize) {
                detached.extend(packets.detach(attached).map(|ports| (io, ports)));
            }
        }
        detached
    }

    fn set_tos(&mut self, index: u32, tos: u8) {
        // The datagrams that were staged before must leave first.
        flush_all(&mut self.ios, &self.queue.counters);
        let Some(Some(slot)) = self.calls.get(index as usize) else {
            return;
        };
        for (io, attached) in slot.legs.iter().flatten() {
            if let Some(Some(packets)) = self.ios.get_mut(*io as usize)
                && let Err(error) = packets.set_tos(attached, tos)
            {
                tracing::warn!(call = slot.label, tos, %error, "cannot set the TOS of a call");
            }
        }
    }

    fn is_there(&self, at: CallRef) -> bool {
        let slot = self.calls.get(at.index as usize);
        slot.and_then(Option::as_ref)
            .is_some_and(|slot| slot.generation == at.generation)
    }

    fn remove(&mut self, index: u32, how: CallState) -> Option<Removed<C>> {
        // The call's last datagrams, such as a BYE, are staged.
        flush_all(&mut self.ios, &self.queue.counters);
        let mut slot = self.calls.get_mut(index as usize)?.take()?;
        self.timers.remove(index);
        let legs = self.detach_all(&mut slot);
        let Slot { call, home, .. } = *slot;
        home.life.end(how);
        let counters = &self.queue.counters;
        counters.calls.set(counters.calls.get().saturating_sub(1));
        self.queue.free_call(index);
        Some(Removed {
            call,
            legs: legs.into_iter().map(|(_, ports)| ports).collect(),
        })
    }

    /// Runs `work` with a call, lets the call send, and sets its timer. `may_lose` means that all sockets have been read.
    #[inline]
    fn turn(
        &mut self,
        index: u32,
        now_ns: u64,
        may_lose: bool,
        work: impl FnOnce(&mut Slot<C>, &mut Ios),
    ) {
        let Some(Some(slot)) = self.calls.get_mut(index as usize) else {
            return;
        };
        let (ios, counters, spare) = (&mut self.ios, &self.queue.counters, &mut self.spare);
        let policy = self.policy.as_ref();
        let turn = catch_unwind(AssertUnwindSafe(|| {
            work(slot, ios);
            let spare = spare.units();
            let is_full = transmit(slot, ios, counters, policy, spare, now_ns, may_lose);
            let timeout_ns = slot.call.next_timeout();
            // A loss that is due waits for another turn in this run, after all sockets have been read.
            let waits = !may_lose && timeout_ns.is_some_and(|timeout_ns| timeout_ns <= now_ns);
            (is_full || waits, timeout_ns)
        }));
        match turn {
            Ok((has_more, timeout_ns)) => {
                if has_more && !slot.has_more {
                    self.more.push(index);
                }
                slot.has_more = has_more;
                self.timers.set(index, timeout_ns);
            }
            Err(_) => self.panicked(index),
        }
    }

    #[cold]
    fn panicked(&mut self, index: u32) {
        if let Some(Some(slot)) = self.calls.get(index as usize) {
            tracing::error!(call = slot.label, "a call is removed, because it panicked");
        }
        self.queue.counters.panicked.add(1);
        drop_caught(self.remove(index, CallState::Panicked));
    }

    /// Runs the calls that are due, and those with more to send.
    fn run_due(&mut self, now_ns: u64) {
        let mut due = std::mem::take(&mut self.due);
        self.timers.advance(now_ns, &mut due);
        for index in self.more.drain(..) {
            if let Some(Some(slot)) = self.calls.get_mut(index as usize)
                && slot.has_more
            {
                slot.has_more = false;
                due.push(index);
            }
        }
        for (i, &index) in due.iter().enumerate() {
            self.look_ahead(|ahead| due.get(i + ahead).copied());
            self.turn(index, now_ns, true, |_, _| ());
        }
        due.clear();
        self.due = due;
    }

    /// Prefetches the memory of the next calls. First this is the media worker's data about a call, and then the memory that the call
    /// names.
    #[inline]
    fn look_ahead(&self, index: impl Fn(usize) -> Option<u32>) {
        let slot = |ahead| self.calls.get(index(ahead)? as usize)?.as_deref();
        if let Some(slot) = slot(2 * AHEAD) {
            let lines = size_of::<Slot<C>>().div_ceil(CACHE_LINE);
            prefetch(std::ptr::from_ref(slot), lines.min(SLOT_LINES_MAX));
        }
        if let Some(slot) = slot(AHEAD) {
            slot.call.prefetch();
        }
    }

    /// Receives until nothing is left, or until the time of the run is over. Returns the number of datagrams.
    fn receive(&mut self, cx: &Cx<'_>, begin_ns: u64) -> u64 {
        let count = self.ios.len();
        let mut received = 0;
        let mut now_ns = begin_ns;
        for i in 0..count {
            let io = (self.first_io + i) % count;
            while let Some(packets) = &mut self.ios[io] {
                let mut pass = Pass {
                    now_ns,
                    slice: self.slice,
                    clock: &mut self.clock,
                    counters: &self.queue.counters,
                };
                let has_more = packets.receive(&mut pass);
                self.sort(cx, io, now_ns);
                received += self.deliver(io, now_ns);
                flush_all(&mut self.ios, &self.queue.counters);
                if !has_more {
                    break;
                }
                now_ns = clock_now_ns();
                if now_ns.saturating_sub(begin_ns) >= self.run_ns_max {
                    // The next run starts with another packet I/O, so that a flood at one does not block the others.
                    self.first_io = (io + 1) % count;
                    return received;
                }
            }
        }
        received
    }

    /// Finds the calls of a batch, for packet I/Os with a table. If a call was created before a datagram was sent, it is in the table by
    /// then, even if its order arrived during the receive call.
    #[inline]
    fn sort(&mut self, cx: &Cx<'_>, io: usize, now_ns: u64) {
        if !matches!(&self.ios[io], Some(packets) if packets.is_unsorted()) {
            return;
        }
        self.run_orders(cx, now_ns);
        if let Some(packets) = &mut self.ios[io] {
            packets.sort(&mut Pass {
                now_ns,
                slice: self.slice,
                clock: &mut self.clock,
                counters: &self.queue.counters,
            });
        }
    }

    /// Passes the datagrams of a batch to their calls. Returns the number of datagrams.
    #[inline]
    fn deliver(&mut self, io: usize, now_ns: u64) -> u64 {
        let mut i = 0;
        loop {
            let Some(packets) = &self.ios[io] else {
                return i as u64;
            };
            let arrivals = packets.arrivals();
            let Some(&arrival) = arrivals.get(i) else {
                return i as u64;
            };
            self.look_ahead(|ahead| Some(arrivals.get(i + ahead)?.call));
            if arrival.outcome == Outcome::Deliver {
                self.queue.counters.packets_received.add(1);
                self.turn(arrival.call, now_ns, false, |slot, ios| {
                    if let Some(packets) = &mut ios[io] {
                        hand_over(slot, arrival, packets.bytes(i), now_ns);
                    }
                });
            } else {
                self.drop_arrival(arrival);
            }
            i += 1;
        }
    }

    /// Counts a datagram that is not delivered.
    #[cold]
    fn drop_arrival(&mut self, arrival: Arrival) {
        let counters = &self.queue.counters;
        let stats = match self.calls.get_mut(arrival.call as usize) {
            Some(Some(slot)) => &mut slot.stats,
            _ => return,
        };
        let (of_call, of_all) = match arrival.outcome {
            Outcome::Truncated => (&mut stats.truncated, &counters.truncated),
            Outcome::OverBudget => (&mut stats.over_budget, &counters.over_budget),
            Outcome::Deliver => return,
        };
        *of_call += 1;
        of_all.add(1);
    }

    /// Starts a slice. It is called once per slice.
    fn begin_slice(&mut self, local: &Local) {
        if self.slice == local.slice() {
            return;
        }
        self.slice = local.slice();
        self.spare.begin_slice(local.shard().lateness_recent_ns());
        for io in self.ios.iter_mut().flatten() {
            io.sample_drops(&self.queue.counters);
        }
    }

    fn end_run(&mut self, cx: &mut Cx<'_>) {
        flush_all(&mut self.ios, &self.queue.counters);
        if !self.orders.is_empty()
            && !self.is_asked
            && let Some(myself) = &self.myself
        {
            self.is_asked = true;
            myself.command(MediaWorker::handle_orders);
        }
        if !self.more.is_empty() || self.ios.iter().flatten().any(|io| io.wants_run()) {
            cx.wake_self();
        }
        match self.timers.next_ns() {
            Some(due_ns) => cx.set_timer(due_ns, Precision::NotBefore),
            None => cx.clear_timer(),
        }
    }
}

#[inline]
fn hand_over<C: Call>(slot: &mut Slot<C>, arrival: Arrival, bytes: &mut [u8], now_ns: u64) {
    slot.stats.packets_received += 1;
    slot.stats.bytes_received += u64::from(arrival.len);
    let datagram = Datagram {
        port: arrival.port,
        from: arrival.from,
        received_ns: arrival.received_ns,
        bytes,
    };
    slot.call.handle_datagram(now_ns, datagram);
}

impl<C: Call> Agent for MediaWorker<C> {
    fn run(&mut self, cx: &mut Cx<'_>, ready: Ready) {
        let now_ns = clock_now_ns();
        self.begin_slice(cx.local());
        let ready_io = match ready {
            Ready::Io(key) => Some(usize::from(key)),
            Ready::Woken | Ready::Timer => None,
        };
        for (i, io) in self.ios.iter_mut().enumerate() {
            if let Some(io) = io {
                io.begin(ready_io == Some(i));
            }
        }
        self.run_orders(cx, now_ns);
        // Receive first, because an arrived packet may be one that a timer would count as lost.
        let received = self.receive(cx, now_ns);
        self.run_due(now_ns);
        if ready_io.is_some() {
            // A socket that may have more wakes this agent, so the kernel need not check all sockets again.
            cx.expect_no_more();
        }
        cx.count_packets(received);
        self.end_run(cx);
    }

    fn label(&self) -> String {
        self.label.clone()
    }
}

impl<C: Call> Drop for MediaWorker<C> {
    fn drop(&mut self) {
        let orders = self.queue.close();
        let counters = &self.queue.counters;
        counters.calls.set(0);
        for slot in self.calls.iter().flatten() {
            slot.home.life.end(CallState::Removed);
        }
        self.orders.drain(..).chain(orders).for_each(drop_order);
    }
}

/// Whether a call has seen a later time than that of this run, because it ran elsewhere. The time of a call must not decrease, so the order
/// waits for the next run.
fn is_from_future<C: Call>(order: &Order<C>, now_ns: u64) -> bool {
    matches!(order, Order::Create { left_ns: Some(left_ns), .. } if *left_ns > now_ns)
}

/// Drops an order for a media worker that has ended.
fn drop_order<C: Call>(order: Order<C>) {
    if let Order::Create { slot, .. } = &order {
        slot.home.life.end(CallState::Removed);
    }
    drop_caught(order);
}

/// Drops values of callers. A panic while one is dropped must not stop the others.
fn drop_caught<T>(value: T) {
    if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
        tracing::error!("a panic occurred while a call was dropped");
    }
}

/// Number of calls between one step of prefetching and the next.
const AHEAD: usize = 2;
/// Number of cache lines of a call to prefetch. They cover a whole session of `threadbare_rtp`, whose legs have their hot fields in
/// different places. According to measurements, a useless prefetch costs less than a miss.
const SLOT_LINES_MAX: usize = 72;
/// Number of orders between two readings of the clock. A removal closes up to eight sockets, which takes some microseconds for each.
const ORDERS_TIMED: u32 = 16;
/// Minimum duration of a run, ns. Within its bounds, a run takes a quarter of a slice, so that commands and other agents get their turn.
const RUN_NS_MIN: u64 = 1_000_000;
const RUN_NS_MAX: u64 = 5_000_000;
