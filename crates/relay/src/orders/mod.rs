//! Orders from other threads to the media worker of a shard, in order.
//!
//! | data | threads |
//! |---|---|
//! | `OrderQueue::inbox` | any thread adds orders, the shard's thread takes them; under its lock, for a few instructions |
//! | `OrderQueue::counters` | written by the shard's thread, read by any thread |
//! | `OrderQueue::assigned` | any thread |
//! | `Slot` | built by the creating thread, then only the thread of the shard that runs the call |
//! | `Life` | written by the shard's thread, read by any thread |

mod seat;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

pub(crate) use self::seat::{Home, Place, Seat};
use crate::call::Call;
use crate::id::{CALL_PORTS_MAX, LEGS_MAX};
use crate::io::{Attached, PacketIo};
use crate::policy::Passed;
use crate::ports::LegKind;
use crate::rebalance::Moved;
use crate::stats::{CallStats, Counters};
use crate::sync::lock;

/// The state of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallState {
    /// The call is running.
    Running,
    /// The call was removed, or the engine has ended.
    Removed,
    /// The call panicked and was removed.
    Panicked,
    /// The system refused to watch the call's sockets (`fs.epoll.max_user_watches`), so the call was removed.
    Failed,
}

/// The state of a call, shared by all threads.
#[derive(Debug)]
pub(crate) struct Life(AtomicU8);

impl Life {
    pub(crate) fn new() -> Life {
        Life(AtomicU8::new(CallState::Running as u8))
    }

    pub(crate) fn get(&self) -> CallState {
        let known = [CallState::Running, CallState::Panicked, CallState::Failed];
        let value = self.0.load(Ordering::Acquire);
        let found = known.into_iter().find(|state| *state as u8 == value);
        found.unwrap_or(CallState::Removed)
    }

    pub(crate) fn end(&self, state: CallState) {
        self.0.store(state as u8, Ordering::Release);
    }
}

/// Names a call on its shard. The generation distinguishes it from calls that had its place before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallRef {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A call with the media worker's data about it. Fields that each packet uses come first.
#[repr(C)]
pub(crate) struct Slot<C: Call> {
    pub(crate) generation: u32,
    /// Whether the call has more to send, and waits for another turn.
    pub(crate) has_more: bool,
    pub(crate) ports: [PortRef; CALL_PORTS_MAX],
    /// The last destination of each port.
    pub(crate) passed: [Passed; CALL_PORTS_MAX],
    pub(crate) stats: CallStats,
    pub(crate) call: C,
    /// The packet I/O and the ports of each leg.
    pub(crate) legs: [Option<(u32, Attached)>; LEGS_MAX],
    pub(crate) home: Arc<Home<C>>,
    pub(crate) label: String,
}

/// A port in one of the packet I/Os of the media worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortRef {
    pub(crate) io: u32,
    pub(crate) place: u32,
}

impl PortRef {
    /// No port.
    pub(crate) const NONE: PortRef = PortRef {
        io: u32::MAX,
        place: 0,
    };
}

impl<C: Call> Slot<C> {
    pub(crate) fn new(at: CallRef, call: C, home: Arc<Home<C>>, label: String) -> Box<Slot<C>> {
        Box::new(Slot {
            generation: at.generation,
            has_more: false,
            ports: [PortRef::NONE; CALL_PORTS_MAX],
            passed: [Passed::default(); CALL_PORTS_MAX],
            stats: CallStats::default(),
            call,
            legs: [const { None }; LEGS_MAX],
            home,
            label,
        })
    }

    /// Prepares the call for its place at another media worker. Its ports are attached there.
    pub(crate) fn relocate(&mut self, at: CallRef) {
        self.generation = at.generation;
        self.has_more = false;
        self.ports = [PortRef::NONE; CALL_PORTS_MAX];
    }
}

/// A command for a call.
pub(crate) type Run<C> = Box<dyn FnOnce(&mut Slot<C>, u64) + Send>;

pub(crate) enum Order<C: Call> {
    /// Adds a call, which is new or comes from another media worker.
    Create {
        at: CallRef,
        slot: Box<Slot<C>>,
        /// Index of the packet I/O of each leg, and the leg's ports.
        legs: Vec<(u32, LegKind)>,
        /// The time at which another media worker gave up the call. `None`: the call is new.
        left_ns: Option<u64>,
    },
    Command {
        at: CallRef,
        run: Run<C>,
    },
    /// Sets the type of service of the call's datagrams.
    SetTos {
        at: CallRef,
        tos: u8,
    },
    Remove {
        at: CallRef,
        reply: Option<flume::Sender<Removed<C>>>,
    },
    /// Moves a call to another media worker. `report` gets `None` if the call stays.
    Move {
        /// The call. `None`: any call that can be moved.
        at: Option<CallRef>,
        to: Arc<Seat<C>>,
        report: flume::Sender<Option<Moved>>,
    },
    AddIo {
        io: u32,
        packets: Box<dyn PacketIo>,
    },
    RemoveIo {
        io: u32,
    },
}

impl<C: Call> Order<C> {
    /// Returns the place of the call that the order is for. `None`: the order is for no particular call, or creates one.
    fn at(&mut self) -> Option<&mut CallRef> {
        match self {
            Order::Command { at, .. } | Order::SetTos { at, .. } | Order::Remove { at, .. } => {
                Some(at)
            }
            Order::Move { at, .. } => at.as_mut(),
            Order::Create { .. } | Order::AddIo { .. } | Order::RemoveIo { .. } => None,
        }
    }

    /// Redirects the order to the new place of its call.
    pub(crate) fn redirect(&mut self, to: CallRef) {
        if let Some(at) = self.at() {
            *at = to;
        }
    }
}

/// Removes and returns the orders for a call. The order of both parts stays.
pub(crate) fn take_orders_of<C: Call>(
    orders: &mut VecDeque<Order<C>>,
    call: CallRef,
) -> Vec<Order<C>> {
    let mut own = Vec::new();
    for _ in 0..orders.len() {
        let Some(mut order) = orders.pop_front() else {
            break;
        };
        if order.at().is_some_and(|at| *at == call) {
            own.push(order);
        } else {
            orders.push_back(order);
        }
    }
    own
}

/// The parts of a removed call. The thread that removes the call drops them, because closing sockets takes time.
pub(crate) struct Removed<C> {
    pub(crate) call: C,
    pub(crate) legs: Vec<LegKind>,
}

/// The inbox for orders.
pub(crate) struct OrderQueue<C: Call> {
    inbox: Mutex<Inbox<C>>,
    pub(crate) counters: Counters,
    /// Number of calls that exist or are ordered.
    pub(crate) assigned: AtomicU64,
}

struct Inbox<C: Call> {
    orders: VecDeque<Order<C>>,
    woken: WakeUp,
    is_closed: bool,
    generation: u32,
    calls: Places,
    ios: Places,
}

/// The wake-up that the media worker has got for its inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WakeUp {
    None,
    BySlice,
    AtOnce,
}

/// When an order is carried out, and thus how the media worker is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// With the next slice. No sleep is interrupted for it.
    BySlice,
    /// At once, because a caller waits.
    AtOnce,
}

/// Assigns places in a table. Places that were freed come first.
#[derive(Debug, Default)]
struct Places {
    free: Vec<u32>,
    end: u32,
}

impl Places {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.end += 1;
            self.end - 1
        })
    }
}

impl<C: Call> OrderQueue<C> {
    pub(crate) fn new() -> Arc<OrderQueue<C>> {
        Arc::new(OrderQueue {
            inbox: Mutex::new(Inbox {
                orders: VecDeque::new(),
                woken: WakeUp::None,
                is_closed: false,
                generation: 0,
                calls: Places::default(),
                ios: Places::default(),
            }),
            counters: Counters::default(),
            assigned: AtomicU64::new(0),
        })
    }

    /// Queues an order. Returns `Some` if the media worker must be woken, or the order if the media worker has ended. Do not drop the order
    /// under a lock.
    pub(crate) fn push(&self, order: Order<C>, when: When) -> Result<Option<When>, Order<C>> {
        let mut inbox = lock(&self.inbox);
        if inbox.is_closed {
            return Err(order);
        }
        inbox.orders.push_back(order);
        Ok(inbox.wake(when))
    }

    /// Queues the orders of a call that comes from another media worker, to be carried out at once. Returns `Some` if the media worker must
    /// be woken, or the orders if the media worker has ended.
    pub(crate) fn push_all(&self, orders: Vec<Order<C>>) -> Result<Option<When>, Vec<Order<C>>> {
        let mut inbox = lock(&self.inbox);
        if inbox.is_closed {
            return Err(orders);
        }
        inbox.orders.extend(orders);
        Ok(inbox.wake(When::AtOnce))
    }

    /// Removes and returns the queued orders for a call.
    pub(crate) fn take_orders_of(&self, call: CallRef) -> Vec<Order<C>> {
        take_orders_of(&mut lock(&self.inbox).orders, call)
    }

    /// Returns a place for a new call.
    pub(crate) fn new_call(&self) -> CallRef {
        self.assigned.fetch_add(1, Ordering::Relaxed);
        let mut inbox = lock(&self.inbox);
        inbox.generation = inbox.generation.wrapping_add(1);
        CallRef {
            index: inbox.calls.take(),
            generation: inbox.generation,
        }
    }

    pub(crate) fn free_call(&self, index: u32) {
        self.assigned.fetch_sub(1, Ordering::Relaxed);
        lock(&self.inbox).calls.free.push(index);
    }

    /// Returns a place for a packet I/O. `None`: no keys are left.
    pub(crate) fn new_io(&self) -> Option<u32> {
        let mut inbox = lock(&self.inbox);
        if inbox.ios.free.is_empty() && inbox.ios.end >= IOS_MAX {
            return None;
        }
        Some(inbox.ios.take())
    }

    pub(crate) fn free_io(&self, io: u32) {
        lock(&self.inbox).ios.free.push(io);
    }

    /// Removes and returns all orders. `room` becomes their empty queue.
    pub(crate) fn take(&self, room: &mut VecDeque<Order<C>>) {
        let mut inbox = lock(&self.inbox);
        inbox.woken = WakeUp::None;
        std::mem::swap(&mut inbox.orders, room);
    }

    pub(crate) fn close(&self) -> VecDeque<Order<C>> {
        let mut inbox = lock(&self.inbox);
        inbox.is_closed = true;
        std::mem::take(&mut inbox.orders)
    }
}

impl<C: Call> Inbox<C> {
    /// Returns `Some` if the media worker must be woken.
    fn wake(&mut self, when: When) -> Option<When> {
        let wanted = match when {
            When::BySlice => WakeUp::BySlice,
            When::AtOnce => WakeUp::AtOnce,
        };
        if self.woken >= wanted {
            return None;
        }
        self.woken = wanted;
        Some(when)
    }
}

/// Key of the packet I/O that has separate ports for each leg.
pub(crate) const PAIRS: u32 = 0;
/// Maximum number of packet I/Os of a shard. It is the number of keys that an agent has for its descriptors.
pub(crate) const IOS_MAX: u32 = 64;
