//! The engine. Calls are created, reached and removed from any thread.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::epoll::Epoll;
use threadbare_runtime::{AgentHandle, Context, Shard, StartError};
use threadbare_xdp::Xdp;

use crate::call::Call;
use crate::gather;
use crate::id::LEGS_MAX;
use crate::io::pairs::Pairs;
use crate::io::shared::SharedIo;
use crate::orders::{
    CallRef, CallState, Closed, IOS_MAX, Life, Order, OrderQueue, Run, Slot, When,
};
use crate::policy::{Destinations, View};
use crate::ports::{LegKind, LegPorts, SharedHome, SharedPort, SharedSettings, open_shared};
use crate::reply::{Gone, Reply};
use crate::socket::SocketError;
use crate::stats::{CallStats, ShardStats, Stats};
use crate::worker::MediaWorker;

/// Settings of an engine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the context whose threads run the calls.
    pub context: String,
    /// Settings of the context, if this is its first user.
    pub threads: threadbare_runtime::Settings,
    /// Maximum number of calls.
    pub calls_max: u64,
    /// A new call is refused if the slices of the thread that would get it are later than this. `None`: calls are never refused for
    /// lateness.
    pub lateness_max: Option<Duration>,
    /// Whether asynchronous orders (to create or drop calls, and commands) wait for the next slice, in which packets are read too. With
    /// this, a thread is not woken for each of many short calls.
    pub orders_wait: bool,
    /// Devices whose frames may bypass the sockets. `None`: all packets use sockets.
    pub xdp: Option<Xdp>,
    /// The policy for the destinations of calls. `None`: all destinations are allowed.
    pub destinations: Option<Destinations>,
}

impl Settings {
    /// Creates settings with one thread and slices of 20 ms.
    #[must_use]
    pub fn new(context: &str) -> Settings {
        Settings {
            context: context.to_owned(),
            threads: threadbare_runtime::Settings {
                wait: Duration::from_millis(20),
                ..threadbare_runtime::Settings::default()
            },
            calls_max: CALLS_MAX,
            lateness_max: None,
            orders_wait: false,
            xdp: None,
            destinations: None,
        }
    }
}

/// The reason why an engine, or a shared port of an engine, was not started.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A context could not be started.
    #[error("context '{context}': {error}")]
    Start {
        /// The context.
        context: String,
        /// The reason.
        error: StartError,
    },
    /// The sockets of the calls cannot be watched.
    #[error("context '{context}': cannot watch sockets: {error} (see `ulimit -n`)")]
    Watch {
        /// The context.
        context: String,
        /// The system's answer.
        error: io::Error,
    },
    /// A thread could not get rings.
    #[error("context '{context}': {error}")]
    Rings {
        /// The context.
        context: String,
        /// The reason.
        error: threadbare_xdp::OpenError,
    },
    /// A shared port could not be opened.
    #[error("cannot open the shared port: {0}")]
    Socket(#[from] SocketError),
    /// There are too many shared ports.
    #[error("a context's thread already has {IOS_MAX} shared ports, which is the maximum")]
    SharedPorts,
    /// The context has shut down.
    #[error("context '{context}' has shut down")]
    Closed {
        /// The context.
        context: String,
    },
}

/// The reason why a call was not created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The call has too many parties.
    #[error("the call has {legs} legs; expected at most {LEGS_MAX}")]
    Legs {
        /// Number of legs.
        legs: usize,
    },
    /// The call's legs are on shared ports that are read by different threads.
    #[error(
        "different threads read the shared ports {first} and {other}; expected one thread for all ports of a call"
    )]
    Shards {
        /// A leg's shared port.
        first: std::net::SocketAddr,
        /// The shared port of another leg.
        other: std::net::SocketAddr,
    },
    /// The shared port belongs to another engine.
    #[error("the shared port {0} belongs to another engine")]
    Foreign(std::net::SocketAddr),
    /// There are too many calls.
    #[error("{calls} calls are active; the limit is {calls_max} (calls_max)")]
    Calls {
        /// Number of calls that exist.
        calls: u64,
        /// The limit.
        calls_max: u64,
    },
    /// The thread that would get the call is late.
    #[error(
        "the thread for the call is late by {lateness:?}; the limit is {lateness_max:?} (lateness_max)"
    )]
    Late {
        /// Lateness of this thread.
        lateness: Duration,
        /// The limit.
        lateness_max: Duration,
    },
    /// The engine's context has shut down.
    #[error("the engine has shut down")]
    Closed,
}

/// Runs calls on the threads of a context. Dropping it removes them all.
pub struct Engine<C: Call> {
    id: u64,
    calls_max: u64,
    lateness_max: Option<Duration>,
    seats: Vec<Arc<Seat<C>>>,
    context: Context,
}

/// The media worker of a shard, as other threads see it.
struct Seat<C: Call> {
    queue: Arc<OrderQueue<C>>,
    shard: Shard,
    worker: AgentHandle<MediaWorker<C>>,
    /// The epoll instance that contains the sockets of the worker's calls.
    watch: Arc<Epoll>,
    /// When asynchronous orders are carried out.
    when: When,
}

impl<C: Call> Engine<C> {
    /// Creates an engine without calls.
    ///
    /// # Errors
    /// Fails if the system cannot provide the threads or descriptors, or if it refuses the context's settings.
    pub fn new(settings: Settings) -> Result<Engine<C>, EngineError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = settings.context;
        let context =
            Context::acquire(&name, settings.threads).map_err(|error| EngineError::Start {
                context: name.clone(),
                error,
            })?;
        if let Some(conflict) = context.conflict(settings.threads) {
            tracing::warn!("{conflict}");
        }
        let mut engine = Engine {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            calls_max: settings.calls_max,
            lateness_max: settings.lateness_max,
            seats: Vec::new(),
            context,
        };
        let when = if settings.orders_wait {
            When::BySlice
        } else {
            When::AtOnce
        };
        for shard in engine.context.shards() {
            let view = settings.destinations.clone().map(View::new);
            let seat = Seat::new(shard, &name, when, settings.xdp.as_ref(), view)?;
            engine.seats.push(Arc::new(seat));
        }
        Ok(engine)
    }

    /// Returns the context whose threads run the calls.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Opens a port for many legs. The thread with the fewest calls reads it.
    ///
    /// # Errors
    /// Fails if the address cannot be bound, or if there are too many shared ports.
    pub fn share(&self, settings: &SharedSettings) -> Result<SharedPort, EngineError> {
        let sockets = open_shared(settings)?;
        let place = self.best_seat(None);
        let seat = &self.seats[place];
        let io = seat.queue.new_io().ok_or(EngineError::SharedPorts)?;
        let wait_ms = seat.shard.wait().as_millis() as u64;
        let seed = crate::ports::random();
        let packets = Box::new(SharedIo::new(sockets.clone(), wait_ms, seed));
        seat.order(Order::AddIo { io, packets })
            .map_err(|Closed| EngineError::Closed {
                context: self.context.name().to_owned(),
            })?;
        let home = SharedHome {
            engine: self.id,
            shard: place,
            io,
        };
        let of_port = seat.clone();
        let close = move || {
            // If the engine has ended, the port is closed already.
            let _ = of_port.order(Order::RemoveIo { io });
        };
        Ok(SharedPort::new(sockets, home, Box::new(close)))
    }

    /// Creates a call with the ports of its legs. It runs on the thread with the fewest calls among those that are not late. Datagrams that
    /// are queued in the ports are the first ones of the call. `label` names the call in the log. This can be called on any thread, and
    /// does not wait for the call's thread.
    ///
    /// # Errors
    /// Fails if the legs do not fit together, or if a limit is reached. In this case, the ports are released.
    pub fn create(
        &self,
        label: impl Into<String>,
        legs: Vec<LegPorts>,
        call: C,
    ) -> Result<CallHandle<C>, CreateError> {
        let home = self.home_of(&legs)?;
        let calls = self.calls();
        if calls >= self.calls_max {
            let calls_max = self.calls_max;
            return Err(CreateError::Calls { calls, calls_max });
        }
        let place = match home {
            Some(place) => place,
            None => self.best_seat(self.seat_that_watches(&legs)),
        };
        let seat = &self.seats[place];
        self.check_lateness(seat)?;
        let legs = legs.into_iter().map(|leg| match leg.0 {
            LegKind::Own(own) => (PAIRS, LegKind::Own(own)),
            LegKind::Shared(place) => (place.home().io, LegKind::Shared(place)),
        });
        let legs = legs.collect();
        let life = Life::new();
        let at = seat.queue.new_call();
        let slot = Slot::new(at, call, life.clone(), label.into());
        seat.order(Order::Create { at, slot, legs })
            .map_err(|Closed| CreateError::Closed)?;
        Ok(CallHandle {
            commander: Commander {
                seat: seat.clone(),
                at,
            },
            life,
            is_removed: false,
        })
    }

    /// Returns the seat that reads the shared ports of the legs. `None`: they have no shared ports.
    fn home_of(&self, legs: &[LegPorts]) -> Result<Option<usize>, CreateError> {
        if legs.len() > LEGS_MAX {
            return Err(CreateError::Legs { legs: legs.len() });
        }
        let mut first: Option<(usize, std::net::SocketAddr)> = None;
        for leg in legs {
            let LegKind::Shared(place) = &leg.0 else {
                continue;
            };
            let (home, local) = (place.home(), leg.rtp_address());
            if home.engine != self.id {
                return Err(CreateError::Foreign(local));
            }
            match first {
                Some((shard, first)) if shard != home.shard => {
                    let other = local;
                    return Err(CreateError::Shards { first, other });
                }
                _ => first = Some((home.shard, local)),
            }
        }
        Ok(first.map(|(shard, _)| shard))
    }

    /// Returns the seat whose epoll instance contains the legs' sockets, because an earlier call used them.
    fn seat_that_watches(&self, legs: &[LegPorts]) -> Option<usize> {
        let watch = legs.iter().find_map(LegPorts::watch)?;
        let mut seats = self.seats.iter();
        seats.position(|seat| Arc::ptr_eq(&seat.watch, watch))
    }

    /// Returns the seat with the fewest calls, among those that are not late if possible. `near` has the sockets already, so it is
    /// preferred if it has hardly more calls.
    fn best_seat(&self, near: Option<usize>) -> usize {
        let key = |seat: &Arc<Seat<C>>| (seat.is_late(), seat.assigned());
        let best = self
            .seats
            .iter()
            .enumerate()
            .min_by_key(|(_, seat)| key(seat));
        let Some((best, fewest)) = best.map(|(place, seat)| (place, seat.assigned())) else {
            return 0;
        };
        let is_near = |place: &usize| {
            let hardly_more = fewest + fewest / 16 + HARDLY_MORE;
            let seat = self.seats.get(*place);
            seat.is_some_and(|seat| !seat.is_late() && seat.assigned() <= hardly_more)
        };
        near.filter(is_near).unwrap_or(best)
    }

    fn check_lateness(&self, seat: &Seat<C>) -> Result<(), CreateError> {
        let Some(lateness_max) = self.lateness_max else {
            return Ok(());
        };
        let lateness = seat.lateness();
        if lateness <= lateness_max {
            return Ok(());
        }
        Err(CreateError::Late {
            lateness,
            lateness_max,
        })
    }

    /// Returns the number of calls that exist or are about to be created.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.seats.iter().map(|seat| seat.assigned()).sum()
    }

    /// Returns the counters of all threads.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut all = Stats::default();
        for seat in &self.seats {
            all += seat.queue.counters.snapshot();
        }
        all
    }

    /// Returns the counters of each thread.
    #[must_use]
    pub fn shard_stats(&self) -> Vec<ShardStats> {
        let of_seat = |seat: &Arc<Seat<C>>| ShardStats {
            thread: seat.shard.name().to_owned(),
            stats: seat.queue.counters.snapshot(),
            lateness_ns: seat.shard.lateness_recent_ns(),
        };
        self.seats.iter().map(of_seat).collect()
    }
}

impl<C: Call> Drop for Engine<C> {
    fn drop(&mut self) {
        for seat in &self.seats {
            seat.worker.remove();
        }
    }
}

impl<C: Call> fmt::Debug for Engine<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("context", &self.context.name())
            .field("calls", &self.calls())
            .finish_non_exhaustive()
    }
}

impl<C: Call> Seat<C> {
    fn new(
        shard: &Shard,
        name: &str,
        when: When,
        xdp: Option<&Xdp>,
        policy: Option<View>,
    ) -> Result<Seat<C>, EngineError> {
        let watch = |error| EngineError::Watch {
            context: name.to_owned(),
            error,
        };
        let queue = OrderQueue::new();
        // The packet I/O of separate ports, [`PAIRS`], comes first.
        queue.new_io();
        let lane = xdp.map(Xdp::lane).transpose();
        let lane = lane.map_err(|error| EngineError::Rings {
            context: name.to_owned(),
            error,
        })?;
        let pairs = Pairs::new(shard.wait().is_zero(), lane).map_err(watch)?;
        let sockets = pairs.watch().clone();
        let label = format!("calls of {name}");
        let worker = MediaWorker::new(shard, queue.clone(), label, Box::new(pairs), policy);
        let closed = || EngineError::Closed {
            context: name.to_owned(),
        };
        let worker = shard
            .call(move |local| local.add_agent(worker))
            .map_err(|_| closed())?;
        let (sender, started) = Reply::new(shard);
        let myself = worker.clone();
        worker.command(move |worker, cx| {
            // The creator is waiting for the result.
            let _ = sender.send(worker.start(cx, myself));
        });
        started.wait().map_err(|Gone| closed())?.map_err(watch)?;
        Ok(Seat {
            queue,
            shard: shard.clone(),
            worker,
            watch: sockets,
            when,
        })
    }

    /// Queues an order without waiting for it.
    fn order(&self, order: Order<C>) -> Result<(), Closed> {
        self.order_when(order, self.when)
    }

    fn order_when(&self, order: Order<C>, when: When) -> Result<(), Closed> {
        match self.queue.push(order, when)? {
            Some(When::AtOnce) => {
                let worker = self.worker.clone();
                gather::wake(move || worker.command(MediaWorker::handle_orders));
            }
            // The media worker always carries out the orders first.
            Some(When::BySlice) => self.worker.wake(),
            None => {}
        }
        Ok(())
    }

    fn assigned(&self) -> u64 {
        self.queue.assigned.load(Ordering::Relaxed)
    }

    fn lateness(&self) -> Duration {
        if self.assigned() == 0 {
            // Without work no slice runs, so the last measured lateness would stay.
            return Duration::ZERO;
        }
        Duration::from_nanos(self.shard.lateness_recent_ns())
    }

    fn is_late(&self) -> bool {
        self.lateness() > self.shard.wait().max(LATE_MIN)
    }
}

/// A handle of a call, for any thread. Dropping it removes the call. To wait for the removal, use [`remove`](CallHandle::remove).
pub struct CallHandle<C: Call> {
    commander: Commander<C>,
    life: Arc<Life>,
    is_removed: bool,
}

/// Sends commands to a call, from any thread. It does not keep the call: only the [`CallHandle`] does.
pub struct Commander<C: Call> {
    seat: Arc<Seat<C>>,
    at: CallRef,
}

impl<C: Call> Clone for Commander<C> {
    fn clone(&self) -> Commander<C> {
        Commander {
            seat: self.seat.clone(),
            at: self.at,
        }
    }
}

impl<C: Call> fmt::Debug for Commander<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commander")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

impl<C: Call> Commander<C> {
    /// Runs `f` with the call on its thread: at once (interrupting a sleep between slices), or at the next slice with
    /// [`Settings::orders_wait`]. The call's output and timer are handled afterwards. Commands of one thread run in order. If the
    /// call has ended, `f` is dropped.
    ///
    /// # Errors
    /// Fails if the engine has ended.
    pub fn command(&self, f: impl FnOnce(&mut C, u64) + Send + 'static) -> Result<(), Gone> {
        self.run(
            Box::new(|slot, now_ns| f(&mut slot.call, now_ns)),
            self.seat.when,
        )
    }

    /// Runs `f` as [`command`](Self::command) does, but at once, and returns its result.
    pub fn with<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut C, u64) -> R + Send + 'static,
    ) -> Reply<R> {
        self.ask(|slot, now_ns| f(&mut slot.call, now_ns))
    }

    fn ask<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Slot<C>, u64) -> R + Send + 'static,
    ) -> Reply<R> {
        let (sender, reply) = Reply::new(&self.seat.shard);
        let run = move |slot: &mut Slot<C>, now_ns: u64| {
            // Sending fails if the caller no longer waits.
            let _ = sender.send(f(slot, now_ns));
        };
        // If the order is refused, the sender is dropped, and the reply reports this.
        let _ = self.run(Box::new(run), When::AtOnce);
        reply
    }

    fn run(&self, run: Run<C>, when: When) -> Result<(), Gone> {
        let at = self.at;
        let order = Order::Command { at, run };
        self.seat.order_when(order, when).map_err(|Closed| Gone)
    }
}

impl<C: Call> CallHandle<C> {
    /// Returns a sender of commands that does not keep the call.
    #[must_use]
    pub fn commander(&self) -> Commander<C> {
        self.commander.clone()
    }

    /// Runs `f` with the call on its thread: see [`Commander::command`].
    ///
    /// # Errors
    /// Fails if the engine has ended.
    pub fn command(&self, f: impl FnOnce(&mut C, u64) + Send + 'static) -> Result<(), Gone> {
        self.commander.command(f)
    }

    /// Runs `f` with the call at once, and returns its result: see [`Commander::with`].
    pub fn with<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut C, u64) -> R + Send + 'static,
    ) -> Reply<R> {
        self.commander.with(f)
    }

    /// Sets the type of service of the call's datagrams: see [`LegPorts::set_tos`]. Can be called on any thread.
    ///
    /// # Errors
    /// Fails if the engine has ended.
    pub fn set_tos(&self, tos: u8) -> Result<(), Gone> {
        let at = self.commander.at;
        let order = Order::SetTos { at, tos };
        self.commander.seat.order(order).map_err(|Closed| Gone)
    }

    /// The counters of the call.
    pub fn stats(&self) -> Reply<CallStats> {
        self.commander.ask(|slot, _| slot.stats)
    }

    /// Returns the state of the call.
    #[must_use]
    pub fn state(&self) -> CallState {
        self.life.get()
    }

    /// Returns the thread that runs the call.
    #[must_use]
    pub fn shard(&self) -> &Shard {
        &self.commander.seat.shard
    }

    /// Removes the call, waits for the removal, and closes the call's ports on this thread. Returns the call, or `None` if it was removed
    /// already. On the thread of a context, this does not wait, and returns `None`.
    pub fn remove(mut self) -> Option<C> {
        self.is_removed = true;
        let (sender, reply) = Reply::new(&self.commander.seat.shard);
        let wait = threadbare_runtime::current_shard_id().is_none();
        let order = Order::Remove {
            at: self.commander.at,
            reply: wait.then_some(sender),
        };
        self.commander.seat.order_when(order, When::AtOnce).ok()?;
        if !wait {
            return None;
        }
        let removed = reply.wait().ok()?;
        drop(removed.legs);
        Some(removed.call)
    }
}

impl<C: Call> Drop for CallHandle<C> {
    fn drop(&mut self) {
        if !self.is_removed {
            let (at, reply) = (self.commander.at, None);
            // If the engine has ended, the call has ended too.
            let _ = self.commander.seat.order(Order::Remove { at, reply });
        }
    }
}

impl<C: Call> fmt::Debug for CallHandle<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallHandle")
            .field("at", &self.commander.at)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// Key of the packet I/O that has separate ports for each leg.
const PAIRS: u32 = 0;
/// Maximum number of calls. One address has fewer ports.
const CALLS_MAX: u64 = 65_536;
/// Number of calls that makes no difference to a thread that runs thousands.
const HARDLY_MORE: u64 = 4;
/// Lateness that does not matter, because the machine had other work for a moment.
const LATE_MIN: Duration = Duration::from_millis(20);
