//! The engine. Calls are created, reached and removed from any thread.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use threadbare_runtime::{AgentHandle, Context, Shard, StartError, clock_now_ns};
use threadbare_xdp::Xdp;

use crate::call::Call;
use crate::gather;
use crate::id::LEGS_MAX;
use crate::io::pairs::Pairs;
use crate::io::shared::SharedIo;
use crate::orders::{CallState, Home, IOS_MAX, Order, OrderQueue, PAIRS, Run, Seat, Slot, When};
use crate::policy::{Destinations, View};
use crate::ports::{LegKind, LegPorts, SharedHome, SharedPort, SharedSettings, open_shared};
use crate::rebalance::{Balance, HARDLY_MORE, Load, Moved};
use crate::reply::{Gone, Reply};
use crate::socket::SocketError;
use crate::stats::{CallStats, ShardStats, Stats};
use crate::sync::lock;
use crate::worker::MediaWorker;

/// Settings of an engine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Names of the contexts whose threads run the calls.
    pub contexts: Vec<String>,
    /// Settings of each context, if this is its first user.
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
    /// Creates settings with one context, which has one thread and slices of 20 ms.
    #[must_use]
    pub fn new(context: &str) -> Settings {
        Settings {
            contexts: vec![context.to_owned()],
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

/// Runs calls on the threads of one or several contexts. Dropping it removes them all.
pub struct Engine<C: Call> {
    id: u64,
    calls_max: u64,
    lateness_max: Option<Duration>,
    seats: Vec<Arc<Seat<C>>>,
    /// The media workers of the seats.
    workers: Vec<AgentHandle<MediaWorker<C>>>,
    contexts: Vec<Context>,
    balance: Mutex<Balance>,
    /// The moves that media workers report, for [`rebalance`](Engine::rebalance).
    moves: (flume::Sender<Option<Moved>>, flume::Receiver<Option<Moved>>),
}

impl<C: Call> Engine<C> {
    /// Creates an engine without calls.
    ///
    /// # Errors
    /// Fails if the system cannot provide the threads or descriptors, or if it refuses the context's settings.
    pub fn new(settings: Settings) -> Result<Engine<C>, EngineError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut engine = Engine {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            calls_max: settings.calls_max,
            lateness_max: settings.lateness_max,
            seats: Vec::new(),
            workers: Vec::new(),
            contexts: Vec::new(),
            balance: Mutex::default(),
            moves: flume::unbounded(),
        };
        for name in &settings.contexts {
            engine.add_context(name, &settings)?;
        }
        Ok(engine)
    }

    fn add_context(&mut self, name: &str, settings: &Settings) -> Result<(), EngineError> {
        let context =
            Context::acquire(name, settings.threads).map_err(|error| EngineError::Start {
                context: name.to_owned(),
                error,
            })?;
        if let Some(conflict) = context.conflict(settings.threads) {
            tracing::warn!("{conflict}");
        }
        for shard in context.shards() {
            self.add_shard(shard, name, settings)?;
        }
        self.contexts.push(context);
        Ok(())
    }

    /// Starts the media worker of a shard.
    fn add_shard(
        &mut self,
        shard: &Shard,
        name: &str,
        settings: &Settings,
    ) -> Result<(), EngineError> {
        let watch = |error| EngineError::Watch {
            context: name.to_owned(),
            error,
        };
        let queue = OrderQueue::new();
        // The packet I/O of separate ports, [`PAIRS`], comes first.
        queue.new_io();
        let lane = settings.xdp.as_ref().map(Xdp::lane).transpose();
        let lane = lane.map_err(|error| EngineError::Rings {
            context: name.to_owned(),
            error,
        })?;
        let pairs = Pairs::new(shard.wait().is_zero(), lane).map_err(watch)?;
        let sockets = pairs.watch().clone();
        let label = format!("calls of {name}");
        let policy = settings.destinations.clone().map(View::new);
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
        let woken = worker.clone();
        self.workers.push(worker);
        self.seats.push(Arc::new(Seat {
            queue,
            shard: shard.clone(),
            wake: Box::new(move |when| wake(&woken, when)),
            watch: sockets,
            when: if settings.orders_wait {
                When::BySlice
            } else {
                When::AtOnce
            },
        }));
        Ok(())
    }

    /// Returns the contexts whose threads run the calls.
    #[must_use]
    pub fn contexts(&self) -> &[Context] {
        &self.contexts
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
            .map_err(|Gone| EngineError::Closed {
                context: seat.shard.name().to_owned(),
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
        let at = seat.queue.new_call();
        let home = Home::new(seat.clone(), at);
        let create = Order::Create {
            at,
            slot: Slot::new(at, call, home.clone(), label.into()),
            legs,
            left_ns: None,
        };
        seat.order(create).map_err(|Gone| CreateError::Closed)?;
        Ok(CallHandle {
            commander: Commander { home },
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

    /// Moves a call to another thread, with its sockets and queued orders. No packet is lost, and no packets or orders change their order.
    /// `thread` is the position of the thread in [`shard_stats`](Self::shard_stats). The result is `None` if the call stays, because it
    /// already runs there, has ended, or has a shared port or an XDP ring. Then the call is as before.
    pub fn move_call(&self, call: &CallHandle<C>, thread: usize) -> Reply<Option<Moved>> {
        let home = &call.commander.home;
        let (report, reply) = Reply::new(&home.shard());
        if let Some(to) = self.seats.get(thread) {
            let order = |at| Order::Move {
                at: Some(at),
                to: to.clone(),
                report,
            };
            // If the engine has ended, the reply reports this.
            let _ = home.order(Some(When::AtOnce), order);
        } else {
            let _ = report.send(None);
        }
        reply
    }

    /// Moves a call from the thread with the most load to the one with the least, unless their loads hardly differ. Call this once a
    /// second: there is at most one move per second. Returns the moves that were completed since the last time.
    pub fn rebalance(&self) -> Vec<Moved> {
        let loads = self.seats.iter().map(|seat| Load {
            calls: seat.assigned(),
            busy_ns: seat.shard.counters_snapshot().busy_ns,
            is_late: seat.is_late(),
        });
        let chosen = lock(&self.balance).choose(clock_now_ns(), loads.collect());
        if let Some((from, to)) = chosen
            && let (Some(from), Some(to)) = (self.seats.get(from), self.seats.get(to))
        {
            // If the engine has ended, there is nothing to move.
            let _ = from.order(Order::Move {
                at: None,
                to: to.clone(),
                report: self.moves.0.clone(),
            });
        }
        self.moves.1.try_iter().flatten().collect()
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
        for worker in &self.workers {
            worker.remove();
        }
    }
}

impl<C: Call> fmt::Debug for Engine<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("contexts", &self.contexts)
            .field("calls", &self.calls())
            .finish_non_exhaustive()
    }
}

/// Wakes a media worker, so that it finds its orders.
fn wake<C: Call>(worker: &AgentHandle<MediaWorker<C>>, when: When) {
    match when {
        When::AtOnce => {
            let worker = worker.clone();
            gather::wake(move || worker.command(MediaWorker::handle_orders));
        }
        // The media worker always carries out the orders first.
        When::BySlice => worker.wake(),
    }
}

/// A handle of a call, for any thread. Dropping it removes the call. To wait for the removal, use [`remove`](CallHandle::remove).
pub struct CallHandle<C: Call> {
    commander: Commander<C>,
    is_removed: bool,
}

/// Sends commands to a call, from any thread. It does not keep the call: only the [`CallHandle`] does.
pub struct Commander<C: Call> {
    home: Arc<Home<C>>,
}

impl<C: Call> Clone for Commander<C> {
    fn clone(&self) -> Commander<C> {
        Commander {
            home: self.home.clone(),
        }
    }
}

impl<C: Call> fmt::Debug for Commander<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commander")
            .field("home", &self.home)
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
        self.run(Box::new(|slot, now_ns| f(&mut slot.call, now_ns)), None)
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
        let (sender, reply) = Reply::new(&self.home.shard());
        let run = move |slot: &mut Slot<C>, now_ns: u64| {
            // Sending fails if the caller no longer waits.
            let _ = sender.send(f(slot, now_ns));
        };
        // If the order is refused, the sender is dropped, and the reply reports this.
        let _ = self.run(Box::new(run), Some(When::AtOnce));
        reply
    }

    fn run(&self, run: Run<C>, when: Option<When>) -> Result<(), Gone> {
        self.home.order(when, |at| Order::Command { at, run })
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
        let home = &self.commander.home;
        home.order(None, |at| Order::SetTos { at, tos })
    }

    /// The counters of the call.
    pub fn stats(&self) -> Reply<CallStats> {
        self.commander.ask(|slot, _| slot.stats)
    }

    /// Returns the state of the call.
    #[must_use]
    pub fn state(&self) -> CallState {
        self.commander.home.life.get()
    }

    /// Returns the thread that runs the call at present.
    #[must_use]
    pub fn shard(&self) -> Shard {
        self.commander.home.shard()
    }

    /// Removes the call, waits for the removal, and closes the call's ports on this thread. Returns the call, or `None` if it was removed
    /// already. On the thread of a context, this does not wait, and returns `None`.
    pub fn remove(mut self) -> Option<C> {
        self.is_removed = true;
        let home = &self.commander.home;
        let (sender, reply) = Reply::new(&home.shard());
        let wait = threadbare_runtime::current_shard_id().is_none();
        let reply_to = wait.then_some(sender);
        let order = |at| Order::Remove {
            at,
            reply: reply_to,
        };
        home.order(Some(When::AtOnce), order).ok()?;
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
            let home = &self.commander.home;
            // If the engine has ended, the call has ended too.
            let _ = home.order(None, |at| Order::Remove { at, reply: None });
        }
    }
}

impl<C: Call> fmt::Debug for CallHandle<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallHandle")
            .field("home", &self.commander.home)
            .finish_non_exhaustive()
    }
}

/// Maximum number of calls. One address has fewer ports.
const CALLS_MAX: u64 = 65_536;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::UdpSocket;

    use nix::sys::epoll::{EpollEvent, EpollFlags};

    use super::*;
    use crate::{Datagram, Outbox, PortId};

    /// Sends each datagram back to where it came from.
    #[derive(Default)]
    struct Echo(Option<(PortId, std::net::SocketAddr, Vec<u8>)>);

    impl Call for Echo {
        fn handle_datagram(&mut self, _now_ns: u64, datagram: Datagram<'_>) {
            self.0 = Some((datagram.port, datagram.from, datagram.bytes.to_vec()));
        }

        fn poll_transmit(&mut self, _now_ns: u64, _may_lose: bool, out: &mut dyn Outbox) {
            if let Some((port, to, bytes)) = self.0.take() {
                out.stage(port, to, &bytes).unwrap();
            }
        }

        fn next_timeout(&self) -> Option<u64> {
            None
        }
    }

    /// The system refuses to watch a socket that the epoll instance contains already.
    #[test]
    fn a_call_whose_sockets_cannot_be_moved_continues_on_its_thread() {
        let mut settings = Settings::new("unmovable");
        settings.threads.threads = 2;
        let engine: Engine<Echo> = Engine::new(settings).unwrap();
        let local = "127.0.0.1:0".parse().unwrap();
        let legs = [0, 1].map(|_| LegPorts::open(local, Some(local)).unwrap());
        let ports = legs.each_ref().map(LegPorts::rtp_address);
        let own = [0, 1].map(|leg: usize| legs[leg].0.sockets().map(crate::socket::Udp::fd));
        let last = own.into_iter().flatten().last().unwrap();
        // The call gets the first thread, because no thread has a call.
        let (first, second) = (&engine.seats[0], &engine.seats[1]);
        let event = EpollEvent::new(EpollFlags::empty(), u64::MAX);
        second.watch.add(last, event).unwrap();
        let call = engine
            .create("stays", legs.into(), Echo::default())
            .unwrap();
        let peer = UdpSocket::bind(local).unwrap();
        for _ in 0..3 {
            assert_eq!(engine.move_call(&call, 1).wait(), Ok(None));
            assert_eq!(call.shard().id(), first.shard.id());
            assert_eq!(call.state(), CallState::Running);
            for port in ports {
                peer.send_to(b"packet", port).unwrap();
                assert_eq!(peer.recv_from(&mut [0; 16]).unwrap(), (6, port));
            }
        }
        assert_eq!(engine.stats().moved, 0);
    }
}
