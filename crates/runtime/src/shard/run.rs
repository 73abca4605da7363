//! The thread of a shard: its work, its sleep and its end.

use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use std::{io, thread};

use super::{
    CURRENT_ID, Command, Local, MissingCpus, NO_SHARD, PRIORITY_MAX, Scheduling, Shard, ShardEnd,
    Shared, StartError, Wake,
};
use crate::counters::Counters;
use crate::cpus::CpuSet;
use crate::park::{Park, SleepKind};
use crate::sys::{self, Event, EventFd, clock_now_ns};
use crate::watch::Watch;

impl Shard {
    /// Starts a shard's thread. `wait`: the context's wait; zero means no throttling.
    pub(crate) fn start(
        id: u64,
        name: String,
        wait: Duration,
        scheduling: Scheduling,
    ) -> Result<(Shard, thread::JoinHandle<()>), StartError> {
        let shard = Shard(Arc::new(Shared {
            id,
            name: name.clone(),
            wait_ns: wait.as_nanos() as u64,
            park: Park::new(),
            interrupt: EventFd::new()?,
            counters: Counters::new(),
            watch: Watch::new(wait.as_nanos() as u64),
            started_ns: clock_now_ns(),
            spare: Mutex::new(Vec::new()),
            extensions: Mutex::new(Vec::new()),
            end: ShardEnd::default(),
        }));
        let of_thread = shard.clone();
        let (tell, told) = mpsc::sync_channel(1);
        let thread = thread::Builder::new().name(name).spawn(move || {
            let scheduled = scheduling.apply();
            let is_scheduled = scheduled.is_ok();
            // The starter waits for this.
            let _ = tell.send(scheduled);
            if is_scheduled {
                of_thread.run();
            }
        })?;
        if scheduling != Scheduling::default() {
            let lost = || StartError::Thread(io::ErrorKind::BrokenPipe.into());
            told.recv().map_err(|_| lost())??;
        }
        Ok((shard, thread))
    }

    /// Begins the end of the shard. Returns the remaining commands; wake-ups still arrive.
    pub(super) fn close_to_commands(&self) -> Vec<Command> {
        self.0.park.close_to_commands()
    }

    /// Calls `sleep` unless something has arrived; arrivals interrupt the poller.
    pub(super) fn sleep_until_woken<R>(&self, sleep: impl FnOnce() -> R) {
        if self.0.park.prepare(SleepKind::Idle) {
            sleep();
            self.0.park.awake();
        }
    }

    pub(super) fn close_inbox(&self) -> (Vec<Command>, Vec<Wake>) {
        self.0.park.close()
    }

    fn run(self) {
        CURRENT_ID.set(self.0.id);
        let origin_ns = clock_now_ns();
        Local::enter(self.clone(), origin_ns, self.tick_ns(), |local| {
            let mut events = vec![MaybeUninit::uninit(); EVENTS];
            if self.0.wait_ns == 0 {
                Loop {
                    shard: &self,
                    local,
                    events: &mut events,
                }
                .run_unthrottled();
            } else {
                Loop {
                    shard: &self,
                    local,
                    events: &mut events,
                }
                .run_throttled(origin_ns);
            }
        });
        // If `enter` failed, the inbox has not been closed yet.
        drop(self.close_inbox());
        CURRENT_ID.set(NO_SHARD);
        self.0.end.come();
    }
}

impl Scheduling {
    /// Checks whether the system allows this scheduling. It applies the scheduling to a thread that then ends at once.
    ///
    /// # Errors
    /// Returns the same error as [`Context::acquire`](crate::Context::acquire).
    pub fn check(self) -> Result<(), StartError> {
        if self == Scheduling::default() {
            return Ok(());
        }
        let tried = std::thread::Builder::new().spawn(move || self.apply())?;
        let lost = |_| StartError::Thread(io::ErrorKind::BrokenPipe.into());
        tried.join().map_err(lost)?
    }

    /// Applies this scheduling to the calling thread.
    fn apply(&self) -> Result<(), StartError> {
        if !self.affinity.is_empty() {
            let asked = self.affinity;
            let actual = sys::restrict_to_cpus(&asked);
            let missing = asked.without(&actual.unwrap_or_default());
            if !missing.is_empty() {
                return Err(StartError::Affinity(Box::new(MissingCpus {
                    asked,
                    missing,
                    allowed: sys::restrict_to_cpus(&CpuSet::ALL)?,
                })));
            }
        }
        match self.priority {
            0 => Ok(()),
            priority @ 1..=PRIORITY_MAX => sys::schedule_first(priority)
                .map_err(|error| StartError::Priority { priority, error }),
            priority => Err(StartError::PriorityRange(priority)),
        }
    }
}

/// Decides when the shard works and when it sleeps.
struct Loop<'a> {
    shard: &'a Shard,
    local: &'a Local,
    events: &'a mut [MaybeUninit<Event>],
}

impl Loop<'_> {
    /// Runs the unthrottled loop, which sleeps in the poller until something is ready.
    fn run_unthrottled(self) {
        let park = &self.shard.0.park;
        let mut awake_since = clock_now_ns();
        loop {
            self.local.begin_slice();
            self.local.take_inbox();
            if self.local.closing.get() {
                return;
            }
            let idle = !self.local.has_ready() && park.prepare(SleepKind::Idle);
            let timeout = if idle {
                self.until_timer()
            } else {
                Some(Duration::ZERO)
            };
            if idle {
                self.counters().busy_ns.add(clock_now_ns() - awake_since);
            }
            self.local.poll_io(self.events, timeout, || {
                let now = self.local.read_clock();
                if idle {
                    park.awake();
                    self.shard.counters().wakeups.add(1);
                    awake_since = now;
                }
            });
            self.local.run_timers(self.local.now_ns());
            self.local.run_ready();
        }
    }

    /// Runs the throttled loop, which handles one batch at each edge of a grid that never drifts.
    fn run_throttled(mut self, origin_ns: u64) {
        let wait_ns = self.shard.0.wait_ns;
        let mut edge = origin_ns;
        // The edge at which the slice should have begun. It is before `edge` if the last slice took too long.
        let mut due = edge;
        loop {
            let begin = clock_now_ns();
            self.local.begin_slice();
            self.counters().slice_late_by(begin.saturating_sub(edge));
            self.counters().slice_overdue_by(begin.saturating_sub(due));
            let worked = self.slice(edge + wait_ns);
            if self.local.closing.get() {
                return;
            }
            let now = clock_now_ns();
            self.counters().busy_ns.add(now - begin);
            let since = now - origin_ns;
            if now >= edge + wait_ns {
                // This slice took too long. The next slice begins now, at the last edge of the grid.
                due = edge + wait_ns;
                edge = origin_ns + since / wait_ns * wait_ns;
            } else if worked || self.local.has_ready() || self.local.assumes_ready() {
                edge += wait_ns;
                due = edge;
                self.sleep_until(edge);
            } else {
                edge = self.sleep_while_idle(origin_ns);
                due = edge;
            }
            if self.local.closing.get() {
                return;
            }
        }
    }

    /// Handles all pending events, at most until `end_ns`. Returns `true` if it handled any.
    fn slice(&mut self, end_ns: u64) -> bool {
        let mut worked = false;
        let mut is_first = true;
        loop {
            let now = self.local.read_clock();
            self.local.take_inbox();
            let timers = self.local.run_timers(now);
            let assumed = if std::mem::take(&mut is_first) {
                self.local.run_assumed()
            } else {
                0
            };
            // If all agents expect no more, the kernel need not check thousands of sockets again.
            let events = if self.local.must_poll() {
                self.local.poll_io(self.events, Some(Duration::ZERO), || ())
            } else {
                0
            };
            let ready = self.local.run_ready();
            if timers + assumed + events + ready == 0 || self.local.closing.get() {
                return worked;
            }
            worked = true;
            if clock_now_ns() >= end_ns {
                return true;
            }
        }
    }

    /// Sleeps between two slices. Only commands interrupt the sleep, and it continues after them.
    fn sleep_until(&mut self, edge_ns: u64) {
        let park = &self.shard.0.park;
        loop {
            self.local.take_control();
            let now = clock_now_ns();
            if now >= edge_ns || self.local.closing.get() {
                return;
            }
            if !self.local.has_commands() && park.prepare(SleepKind::Throttled) {
                let interrupt = &self.shard.0.interrupt;
                if interrupt.sleep(Duration::from_nanos(edge_ns - now)) {
                    // This also drains a notification for an earlier sleep that came late. Otherwise, the notification would end
                    // each later sleep at once.
                    interrupt.drain();
                }
                park.awake();
                self.counters().wakeups.add(1);
            }
        }
    }

    /// Sleeps after a slice without work, until any event. Returns the next edge.
    fn sleep_while_idle(&mut self, origin_ns: u64) -> u64 {
        let (park, wait_ns) = (&self.shard.0.park, self.shard.0.wait_ns);
        loop {
            self.local.take_control();
            if self.local.closing.get() {
                return clock_now_ns();
            }
            let mut happened = true;
            let assumes_ready = self.local.assumes_ready();
            if !assumes_ready && !self.local.has_ready() && park.prepare(SleepKind::Idle) {
                let ready = self.local.await_io(self.until_timer());
                let notified = park.awake();
                self.counters().wakeups.add(1);
                happened = ready || notified;
            }
            let since = clock_now_ns() - origin_ns;
            if self
                .local
                .next_timer_ns()
                .is_some_and(|at| at <= origin_ns + since)
            {
                // Timers are due at edges, so the slice begins at the edge that has just passed.
                return origin_ns + since / wait_ns * wait_ns;
            }
            if assumes_ready || happened && !self.only_control() {
                let edge = origin_ns + since.div_ceil(wait_ns) * wait_ns;
                self.sleep_until(edge);
                return edge;
            }
        }
    }

    /// Runs the commands after an interrupt. Returns whether nothing but commands had arrived.
    fn only_control(&self) -> bool {
        self.local.take_inbox();
        !self.local.has_ready() && !self.local.await_io(Some(Duration::ZERO))
    }

    fn until_timer(&self) -> Option<Duration> {
        let at = self.local.next_timer_ns()?;
        Some(Duration::from_nanos(at.saturating_sub(clock_now_ns())))
    }

    fn counters(&self) -> &Counters {
        self.shard.counters()
    }
}

/// Events fetched by one epoll_wait: enough for one thread's streams (3000 and more).
const EVENTS: usize = 4096;
