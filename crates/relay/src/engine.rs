//! The engine: calls created, reached and removed from any thread.

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
use crate::orders::{CallRef, CallState, Closed, Desk, IOS_MAX, Life, Order, Run, Slot, When};
use crate::plane::Plane;
use crate::policy::{Destinations, View};
use crate::ports::{LegKind, LegPorts, SharedHome, SharedPort, SharedSettings, open_shared};
use crate::reply::{Gone, Reply};
use crate::socket::SocketError;
use crate::stats::{CallStats, ShardStats, Stats};

/// Settings of an engine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the context whose threads carry the calls.
    pub context: String,
    /// Settings of the context, if this is its first user.
    pub threads: threadbare_runtime::Settings,
    /// Calls at a time.
    pub calls_max: u64,
    /// Refuse new calls while all threads start their slices later than this. `None`: never.
    pub lateness_max: Option<Duration>,
    /// Orders that nobody waits for (calls created and dropped, commands) are carried out at the next slice's edge, when packets are looked at:
    /// a thread is not woken for each of many calls that come and go.
    pub orders_wait: bool,
    /// Devices whose frames may go past the sockets. `None`: all goes by sockets.
    pub xdp: Option<Xdp>,
    /// Where calls may send. `None`: anywhere.
    pub destinations: Option<Destinations>,
}

impl Settings {
    /// One thread, slices of 20 ms.
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

/// Why an engine, or a shared port of one, was not started.
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
    /// The calls' sockets cannot be watched.
    #[error("context '{context}': cannot watch sockets: {error} (see `ulimit -n`)")]
    Watch {
        /// The context.
        context: String,
        /// The system's answer.
        error: io::Error,
    },
    /// A thread has no rings.
    #[error("context '{context}': {error}")]
    Rings {
        /// The context.
        context: String,
        /// The reason.
        error: threadbare_xdp::OpenError,
    },
    /// A shared port could not be opened.
    #[error("shared port: {0}")]
    Socket(#[from] SocketError),
    /// There are too many shared ports.
    #[error(
        "a context's thread has {IOS_MAX} shared ports already; allowed are fewer than {IOS_MAX}"
    )]
    SharedPorts,
    /// The context has shut down.
    #[error("context '{context}' has shut down")]
    Closed {
        /// The context.
        context: String,
    },
}

/// Why a call was not created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// It has too many parties.
    #[error("a call of {legs} legs; allowed are up to {LEGS_MAX}")]
    Legs {
        /// The legs given.
        legs: usize,
    },
    /// Its legs are on shared ports that different threads read.
    #[error("the shared ports {first} and {other} are read by different threads: a call needs one")]
    Shards {
        /// A leg's shared port.
        first: std::net::SocketAddr,
        /// Another leg's.
        other: std::net::SocketAddr,
    },
    /// A shared port is another engine's.
    #[error("the shared port {0} belongs to another engine")]
    Foreign(std::net::SocketAddr),
    /// There are too many calls.
    #[error("{calls} calls are carried; allowed are {calls_max} (calls_max)")]
    Calls {
        /// Calls that live.
        calls: u64,
        /// The limit.
        calls_max: u64,
    },
    /// The threads are late.
    #[error(
        "all threads are late, the best of them by {lateness:?}; allowed are {lateness_max:?} (lateness_max)"
    )]
    Late {
        /// The least lateness.
        lateness: Duration,
        /// The limit.
        lateness_max: Duration,
    },
    /// The engine's context has shut down.
    #[error("the engine has shut down")]
    Closed,
}

/// Carries calls on the threads of a context. Dropped, it removes all of them.
pub struct Engine<C: Call> {
    id: u64,
    calls_max: u64,
    lateness_max: Option<Duration>,
    seats: Vec<Arc<Seat<C>>>,
    context: Context,
}

/// One shard's plane, for other threads.
struct Seat<C: Call> {
    desk: Arc<Desk<C>>,
    shard: Shard,
    plane: AgentHandle<Plane<C>>,
    /// Has the sockets of its calls.
    watch: Arc<Epoll>,
    /// Of orders that nobody waits for.
    when: When,
}

impl<C: Call> Engine<C> {
    /// An engine without calls.
    ///
    /// # Errors
    /// Threads or descriptors run out, or the system refuses the context's settings.
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
        let when = match settings.orders_wait {
            true => When::BySlice,
            false => When::AtOnce,
        };
        for shard in engine.context.shards() {
            let view = settings.destinations.clone().map(View::new);
            let seat = Seat::new(shard, &name, when, settings.xdp.as_ref(), view)?;
            engine.seats.push(Arc::new(seat));
        }
        Ok(engine)
    }

    /// The context whose threads carry the calls.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Opens a port for many legs, read by the thread with the fewest calls.
    ///
    /// # Errors
    /// The address cannot be bound, or there are too many shared ports.
    pub fn share(&self, settings: &SharedSettings) -> Result<SharedPort, EngineError> {
        let sockets = open_shared(settings)?;
        let place = self.best_seat(None);
        let seat = &self.seats[place];
        let io = seat.desk.new_io().ok_or(EngineError::SharedPorts)?;
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
            // If the engine is gone, the port is closed.
            let _ = of_port.order(Order::RemoveIo { io });
        };
        Ok(SharedPort::new(sockets, home, Box::new(close)))
    }

    /// Creates a call with the ports of its legs, on the thread with the fewest calls (of those that are not late). Datagrams
    /// that wait in the ports already are its first. `label` names it in the log. From any thread; does not wait for the
    /// call's.
    ///
    /// # Errors
    /// The legs do not fit together, or a limit is reached. The ports are released.
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
        let at = seat.desk.new_call();
        let slot = Slot::new(at, call, life.clone(), label.into());
        seat.order(Order::Create { at, slot, legs })
            .map_err(|Closed| CreateError::Closed)?;
        Ok(CallHandle {
            seat: seat.clone(),
            at,
            life,
            is_removed: false,
        })
    }

    /// The seat of the legs' shared ports, if there are such.
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

    /// The seat whose sockets the legs have, if they are those of a call before.
    fn seat_that_watches(&self, legs: &[LegPorts]) -> Option<usize> {
        let watch = legs.iter().find_map(LegPorts::watch)?;
        let mut seats = self.seats.iter();
        seats.position(|seat| Arc::ptr_eq(&seat.watch, watch))
    }

    /// The seat with the fewest calls, of those that are not late if there are such. `near`: rather this one, if it has hardly more: it has the
    /// sockets already.
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

    /// Calls that live, or are about to.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.seats.iter().map(|seat| seat.assigned()).sum()
    }

    /// The counters of all threads.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut all = Stats::default();
        for seat in &self.seats {
            all += seat.desk.counters.snapshot();
        }
        all
    }

    /// The counters of each thread.
    #[must_use]
    pub fn shard_stats(&self) -> Vec<ShardStats> {
        let of_seat = |seat: &Arc<Seat<C>>| ShardStats {
            thread: seat.shard.name().to_owned(),
            stats: seat.desk.counters.snapshot(),
            lateness_ns: seat.shard.lateness_recent_ns(),
        };
        self.seats.iter().map(of_seat).collect()
    }
}

impl<C: Call> Drop for Engine<C> {
    fn drop(&mut self) {
        for seat in &self.seats {
            seat.plane.remove();
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
        let desk = Desk::new();
        // The pairs of sockets.
        desk.new_io();
        let lane = xdp.map(Xdp::lane).transpose();
        let lane = lane.map_err(|error| EngineError::Rings {
            context: name.to_owned(),
            error,
        })?;
        let pairs = Pairs::new(shard.wait().is_zero(), lane).map_err(watch)?;
        let sockets = pairs.watch().clone();
        let label = format!("calls of {name}");
        let plane = Plane::new(shard, desk.clone(), label, Box::new(pairs), policy);
        let closed = || EngineError::Closed {
            context: name.to_owned(),
        };
        let plane = shard
            .call(move |local| local.add_agent(plane))
            .map_err(|_| closed())?;
        let (sender, started) = Reply::new(shard);
        let myself = plane.clone();
        plane.command(move |plane, cx| {
            // The creator waits for it.
            let _ = sender.send(plane.start(cx, myself));
        });
        started.wait().map_err(|Gone| closed())?.map_err(watch)?;
        Ok(Seat {
            desk,
            shard: shard.clone(),
            plane,
            watch: sockets,
            when,
        })
    }

    /// Gives an order that nobody waits for.
    fn order(&self, order: Order<C>) -> Result<(), Closed> {
        self.order_when(order, self.when)
    }

    fn order_when(&self, order: Order<C>, when: When) -> Result<(), Closed> {
        match self.desk.push(order, when)? {
            Some(When::AtOnce) => {
                let plane = self.plane.clone();
                gather::tell(move || plane.command(Plane::handle_orders));
            }
            // A run begins with the orders.
            Some(When::BySlice) => self.plane.wake(),
            None => {}
        }
        Ok(())
    }

    fn assigned(&self) -> u64 {
        self.desk.assigned.load(Ordering::Relaxed)
    }

    fn lateness(&self) -> Duration {
        if self.assigned() == 0 {
            // Without work there are no slices, and the last one's lateness stays.
            return Duration::ZERO;
        }
        Duration::from_nanos(self.shard.lateness_recent_ns())
    }

    fn is_late(&self) -> bool {
        self.lateness() > self.shard.wait().max(LATE_MIN)
    }
}

/// A call, from any thread. Dropped, it removes the call; see [`remove`](CallHandle::remove) to wait for that.
pub struct CallHandle<C: Call> {
    seat: Arc<Seat<C>>,
    at: CallRef,
    life: Arc<Life>,
    is_removed: bool,
}

impl<C: Call> CallHandle<C> {
    /// Runs `f` with the call on its thread: at once (a sleep between slices is interrupted), or at the next slice's edge with
    /// [`Settings::orders_wait`]. What the call has to send and its timer are looked at afterwards. Commands of one thread run in order. If
    /// the call is gone, `f` is dropped.
    ///
    /// # Errors
    /// The engine is gone.
    pub fn command(&self, f: impl FnOnce(&mut C, u64) + Send + 'static) -> Result<(), Gone> {
        self.run(
            Box::new(|slot, now_ns| f(&mut slot.call, now_ns)),
            self.seat.when,
        )
    }

    /// The same, at once, for a result.
    pub fn with<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut C, u64) -> R + Send + 'static,
    ) -> Reply<R> {
        self.ask(|slot, now_ns| f(&mut slot.call, now_ns))
    }

    /// What the call sends from now on has this in its IP header, as [`LegPorts::set_tos`] has it. From any thread.
    ///
    /// # Errors
    /// The engine is gone.
    pub fn set_tos(&self, tos: u8) -> Result<(), Gone> {
        let at = self.at;
        let order = Order::SetTos { at, tos };
        self.seat.order(order).map_err(|Closed| Gone)
    }

    /// The counters of the call.
    pub fn stats(&self) -> Reply<CallStats> {
        self.ask(|slot, _| slot.stats)
    }

    fn ask<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Slot<C>, u64) -> R + Send + 'static,
    ) -> Reply<R> {
        let (sender, reply) = Reply::new(&self.seat.shard);
        let run = move |slot: &mut Slot<C>, now_ns: u64| {
            // Nobody may wait for it any more.
            let _ = sender.send(f(slot, now_ns));
        };
        // The sender is dropped with a refused order: the reply says so.
        let _ = self.run(Box::new(run), When::AtOnce);
        reply
    }

    fn run(&self, run: Run<C>, when: When) -> Result<(), Gone> {
        let at = self.at;
        let order = Order::Command { at, run };
        self.seat.order_when(order, when).map_err(|Closed| Gone)
    }

    /// What became of it.
    #[must_use]
    pub fn state(&self) -> CallState {
        self.life.get()
    }

    /// The thread that carries it.
    #[must_use]
    pub fn shard(&self) -> &Shard {
        &self.seat.shard
    }

    /// Removes the call, waits for that, and closes its ports on this thread. Returns the call, unless it was gone. On a
    /// context's thread it does not wait, and returns nothing.
    pub fn remove(mut self) -> Option<C> {
        self.is_removed = true;
        let (sender, reply) = Reply::new(&self.seat.shard);
        let wait = threadbare_runtime::current_shard_id().is_none();
        let order = Order::Remove {
            at: self.at,
            reply: wait.then_some(sender),
        };
        self.seat.order_when(order, When::AtOnce).ok()?;
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
            let (at, reply) = (self.at, None);
            // If the engine is gone, so is the call.
            let _ = self.seat.order(Order::Remove { at, reply });
        }
    }
}

impl<C: Call> fmt::Debug for CallHandle<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallHandle")
            .field("at", &self.at)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// The packet I/O of ports of a leg's own.
const PAIRS: u32 = 0;
/// More than the ports of one address.
const CALLS_MAX: u64 = 65_536;
/// So many calls more are no load to a thread that carries thousands.
const HARDLY_MORE: u64 = 4;
/// Lateness that says nothing: the machine had other work for a moment.
const LATE_MIN: Duration = Duration::from_millis(20);
