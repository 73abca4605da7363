//! Pending work of an executor: the tasks that were woken, and the commands of other threads.
//!
//! | data | threads |
//! |---|---|
//! | `Flag` | set by any thread that wakes the task; cleared by the executor's thread before it polls the task |
//! | `State` | any thread, under its lock |

use std::collections::VecDeque;

use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// Identifies a task: its place, and a number that distinguishes it from earlier tasks in that place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) place: u32,
    pub(crate) generation: u32,
}

/// Whether a task is in the list, or about to be added.
#[derive(Debug)]
pub(crate) struct Flag(AtomicBool);

impl Flag {
    pub(crate) fn new(is_woken: bool) -> Self {
        Flag(AtomicBool::new(is_woken))
    }

    /// Returns `true` if the caller must put the task into the list.
    pub(crate) fn wake(&self) -> bool {
        // Release: the next poll sees everything that was written before the wake-up. Acquire: see `begin`.
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Clears the flag before the task is polled. Later wake-ups count for the next poll.
    pub(crate) fn begin(&self) {
        // A swap, not a store: this poll must see a wake-up that found the flag already set.
        self.0.swap(false, Ordering::AcqRel);
    }
}

/// Whether the caller must ring the executor's bell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) struct MustRing(pub(crate) bool);

/// The list of pending work; `C` are the commands.
#[derive(Debug)]
pub(crate) struct Ready<C>(Mutex<State<C>>);

#[derive(Debug)]
struct State<C> {
    woken: Vec<Key>,
    commands: Vec<C>,
    /// Whether the bell was rung, or the executor is working and will check for work before it rests.
    is_rung: bool,
    is_closed: bool,
}

impl<C> Ready<C> {
    pub(crate) fn new() -> Self {
        Ready(Mutex::new(State {
            woken: Vec::new(),
            commands: Vec::new(),
            is_rung: false,
            is_closed: false,
        }))
    }

    pub(crate) fn wake(&self, key: Key) -> MustRing {
        let mut state = lock(&self.0);
        if state.is_closed {
            return MustRing(false);
        }
        state.woken.push(key);
        state.ring()
    }

    /// Adds a command. Returns it if the executor has ended.
    pub(crate) fn command(&self, command: C) -> Result<MustRing, C> {
        let mut state = lock(&self.0);
        if state.is_closed {
            return Err(command);
        }
        state.commands.push(command);
        Ok(state.ring())
    }

    /// Takes all pending work. No thread rings until `rest`.
    pub(crate) fn take(&self, woken: &mut VecDeque<Key>, commands: &mut Vec<C>) {
        let mut state = lock(&self.0);
        state.is_rung = true;
        woken.extend(state.woken.drain(..));
        commands.append(&mut state.commands);
    }

    /// Records that the executor returns to its context. If no work is left, silences the bell.
    pub(crate) fn rest(&self, has_work: bool, silence: impl FnOnce()) {
        let mut state = lock(&self.0);
        if !has_work && state.woken.is_empty() && state.commands.is_empty() {
            state.is_rung = false;
            silence();
        }
    }

    /// Closes the list when the executor ends. Returns the commands that came too late.
    pub(crate) fn close(&self) -> Vec<C> {
        let mut state = lock(&self.0);
        state.is_closed = true;
        state.woken = Vec::new();
        std::mem::take(&mut state.commands)
    }
}

impl<C> State<C> {
    fn ring(&mut self) -> MustRing {
        MustRing(!std::mem::replace(&mut self.is_rung, true))
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::collections::VecDeque;

    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use loom::thread;

    use super::*;

    const KEY: Key = Key {
        place: 0,
        generation: 0,
    };

    struct Model {
        ready: Ready<u32>,
        flag: Flag,
        /// A flag that replaces the bell: a ring sets it, and the context's thread clears it when it rests.
        bell: AtomicBool,
        data: AtomicU32,
        seen: AtomicU32,
        commands: AtomicU32,
    }

    impl Model {
        fn wake(&self) {
            self.data.fetch_add(1, Ordering::Relaxed);
            if self.flag.wake() {
                let ring = self.ready.wake(KEY);
                self.ring(ring);
            }
        }

        fn ring(&self, must: MustRing) {
            if must.0 {
                self.bell.swap(true, Ordering::AcqRel);
            }
        }

        /// Simulates the context after a ring.
        fn dispatch(&self) {
            if !self.bell.load(Ordering::Acquire) {
                return;
            }
            let (mut woken, mut commands) = (VecDeque::new(), Vec::new());
            self.ready.take(&mut woken, &mut commands);
            self.commands
                .fetch_add(commands.len() as u32, Ordering::Relaxed);
            for _ in woken {
                self.flag.begin();
                let seen = self.data.load(Ordering::Relaxed);
                self.seen.store(seen, Ordering::Relaxed);
            }
            self.ready.rest(false, || {
                self.bell.swap(false, Ordering::AcqRel);
            });
        }
    }

    #[test]
    fn loom_no_wake_up_is_lost() {
        loom::model(|| {
            let model = Arc::new(Model {
                ready: Ready::new(),
                flag: Flag::new(false),
                bell: AtomicBool::new(false),
                data: AtomicU32::new(0),
                seen: AtomicU32::new(0),
                commands: AtomicU32::new(0),
            });
            let wakers: Vec<_> = (0..2)
                .map(|number| {
                    let model = model.clone();
                    thread::spawn(move || {
                        model.wake();
                        if number == 0 {
                            let ring = model.ready.command(7).expect("open");
                            model.ring(ring);
                        }
                    })
                })
                .collect();
            model.dispatch();
            for waker in wakers {
                waker.join().expect("a waker");
            }
            while model.bell.load(Ordering::Acquire) {
                model.dispatch();
            }
            assert_eq!(model.seen.load(Ordering::Relaxed), 2);
            assert_eq!(model.commands.load(Ordering::Relaxed), 1);
        });
    }
}
