//! Access to a shard from other threads: the inbox, and the shard's sleep state.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `inbox` | any thread, under its lock | the shard's thread, under its lock |
//! | `state` | the shard's thread: sleep, wake; any thread: notification | all |
//!
//! Protocol: a sender puts its item into the inbox and *then* reads the state. The shard announces its sleep in the state and
//! *then* checks the inbox. The inbox lock orders the two, so one of them always sees the other. An item is never left waiting
//! for a sleeping shard (`loom_*` tests below).

mod state;

pub(crate) use self::state::SleepKind;
use self::state::State;
use crate::sync::{Mutex, lock};

/// Items from other threads for a shard. Control items interrupt a throttled sleep, data do not.
#[derive(Debug)]
pub(crate) struct Inbox<C, D> {
    control: Vec<C>,
    data: Vec<D>,
    refuses: Refuses,
}

/// Items that a shard refuses. When the shard ends, it goes through these values in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refuses {
    Nothing,
    Commands,
    All,
}

/// Shared half of a shard's sleep; `C` are commands, `D` are wake-ups.
#[derive(Debug)]
pub(crate) struct Park<C, D> {
    inbox: Mutex<Inbox<C, D>>,
    state: State,
}

impl<C, D> Park<C, D> {
    pub(crate) fn new() -> Self {
        Park {
            inbox: Mutex::new(Inbox {
                control: Vec::new(),
                data: Vec::new(),
                refuses: Refuses::Nothing,
            }),
            state: State::new(),
        }
    }

    /// Adds a command. Returns `Ok(true)` if the caller must interrupt the shard's poller. Returns the command if the shard is
    /// shutting down.
    pub(crate) fn send_control(&self, command: C) -> Result<bool, C> {
        {
            let mut inbox = lock(&self.inbox);
            if inbox.refuses != Refuses::Nothing {
                return Err(command);
            }
            inbox.control.push(command);
        }
        Ok(self.state.notify_control())
    }

    /// Adds a wake-up. Returns `Ok(true)` if the caller must interrupt the shard's poller. Returns the wake-up if the shard has
    /// shut down.
    pub(crate) fn send_data(&self, wake: D) -> Result<bool, D> {
        {
            let mut inbox = lock(&self.inbox);
            if inbox.refuses == Refuses::All {
                return Err(wake);
            }
            inbox.data.push(wake);
        }
        Ok(self.state.notify_data())
    }

    /// Takes all items into empty vectors, whose capacity is reused.
    pub(crate) fn take(&self, control: &mut Vec<C>, data: &mut Vec<D>) {
        debug_assert!(control.is_empty() && data.is_empty());
        let mut inbox = lock(&self.inbox);
        std::mem::swap(&mut inbox.control, control);
        std::mem::swap(&mut inbox.data, data);
    }

    /// Takes only the commands: during a throttled sleep the wake-ups wait for the edge.
    pub(crate) fn take_control(&self, control: &mut Vec<C>) {
        debug_assert!(control.is_empty());
        std::mem::swap(&mut lock(&self.inbox).control, control);
    }

    /// Announces a sleep. Returns `false` if an item is already present: do not sleep (the state is active again).
    pub(crate) fn prepare(&self, sleep: SleepKind) -> bool {
        self.state.fall_asleep(sleep);
        let stay = {
            let inbox = lock(&self.inbox);
            match sleep {
                SleepKind::Throttled => inbox.control.is_empty(),
                SleepKind::Idle => inbox.control.is_empty() && inbox.data.is_empty(),
            }
        };
        if !stay {
            self.state.awake();
        }
        stay
    }

    /// Ends a sleep. Returns `true` if a notification has interrupted the poller, or is about to interrupt it.
    pub(crate) fn awake(&self) -> bool {
        self.state.awake()
    }

    /// Refuses commands from now on and returns the remaining ones. Wake-ups still arrive, because a task that another thread has
    /// just woken must be dropped on its own thread.
    pub(crate) fn close_to_commands(&self) -> Vec<C> {
        let mut inbox = lock(&self.inbox);
        inbox.refuses = Refuses::Commands;
        std::mem::take(&mut inbox.control)
    }

    /// Refuses everything from now on and returns the remaining items.
    pub(crate) fn close(&self) -> (Vec<C>, Vec<D>) {
        let mut inbox = lock(&self.inbox);
        inbox.refuses = Refuses::All;
        (
            std::mem::take(&mut inbox.control),
            std::mem::take(&mut inbox.data),
        )
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::thread;

    /// Replaces the eventfd: a flag for which the sleeper waits.
    struct Poller(AtomicBool);

    /// Runs `sleep` against one sender and fails if the sleeper would sleep forever.
    fn sleeper_against(sleep: SleepKind, send: fn(&Park<u8, u8>) -> bool) {
        loom::model(move || {
            let park = Arc::new(Park::<u8, u8>::new());
            let poller = Arc::new(Poller(AtomicBool::new(false)));
            let sender = thread::spawn({
                let (park, poller) = (park.clone(), poller.clone());
                move || {
                    if send(&park) {
                        poller.0.store(true, Ordering::Release);
                    }
                }
            });
            let (mut control, mut data) = (Vec::new(), Vec::new());
            loop {
                park.take(&mut control, &mut data);
                if !control.is_empty() || !data.is_empty() {
                    break;
                }
                if park.prepare(sleep) {
                    // Sleep until interrupted. If no interruption comes, loom reports a livelock.
                    while !poller.0.load(Ordering::Acquire) {
                        thread::yield_now();
                    }
                    assert!(park.awake(), "interrupted without a notification");
                }
            }
            sender.join().unwrap();
            assert_eq!(control.len() + data.len(), 1);
        });
    }

    #[test]
    fn loom_data_wakes_an_idle_shard() {
        sleeper_against(SleepKind::Idle, |park| park.send_data(1).unwrap());
    }

    #[test]
    fn loom_control_wakes_an_idle_shard() {
        sleeper_against(SleepKind::Idle, |park| park.send_control(1).unwrap());
    }

    #[test]
    fn loom_control_wakes_a_throttled_shard() {
        sleeper_against(SleepKind::Throttled, |park| park.send_control(1).unwrap());
    }

    /// With two senders, at most one of them interrupts each sleep, and no item is lost.
    #[test]
    fn loom_two_senders_interrupt_once_per_sleep() {
        loom::model(|| {
            let park = Arc::new(Park::<u8, u8>::new());
            let slept = park.prepare(SleepKind::Idle);
            assert!(slept);
            let senders: Vec<_> = (0..2)
                .map(|i| {
                    let park = park.clone();
                    thread::spawn(move || park.send_data(i).unwrap())
                })
                .collect();
            let interrupts = senders
                .into_iter()
                .map(|s| s.join().unwrap())
                .filter(|must| *must)
                .count();
            assert_eq!(interrupts, 1);
            park.awake();
            let (mut control, mut data) = (Vec::new(), Vec::new());
            park.take(&mut control, &mut data);
            assert_eq!(data.len(), 2);
        });
    }

    /// An ending shard refuses commands, and sleeps until the wake-up that it still expects.
    #[test]
    fn loom_an_ending_shard_still_gets_wake_ups() {
        sleeper_against(SleepKind::Idle, |park| {
            drop(park.close_to_commands());
            assert_eq!(park.send_control(1), Err(1));
            park.send_data(1).unwrap()
        });
    }

    /// A command to a shard that shuts down is either accepted or returned, never lost.
    #[test]
    fn loom_close_loses_nothing() {
        loom::model(|| {
            let park = Arc::new(Park::<u8, u8>::new());
            let sender = thread::spawn({
                let park = park.clone();
                move || park.send_control(7).is_ok()
            });
            let (left, _) = park.close();
            let accepted = sender.join().unwrap();
            assert_eq!(accepted, left.len() == 1);
        });
    }
}
