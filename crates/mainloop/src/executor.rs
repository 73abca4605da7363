//! Many tasks on one source of a main context.
//!
//! glib's own `spawn` creates two sources per task, and each turn of a main context checks all its sources. With thousands of
//! tasks, each wake-up thus checks all of them. With this executor, the context has one source, and a turn handles only the tasks
//! that were woken.
//!
//! | part | thread |
//! |---|---|
//! | `Inner` (tasks, turn) | the context's thread |
//! | `Shared` (woken tasks, commands, bell) | any thread |

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Weak as ArcWeak};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::FutureExt;
use glib::{ControlFlow, MainContext, Priority, Source};
use slab::Slab;

use crate::AttachError;
use crate::bell::Bell;
use crate::bound::{Guarded, check_owner};
use crate::join::{Abort, JoinHandle, message, pair};
use crate::ready::{Flag, Key, MustRing, Ready};

/// Runs tasks on the thread of a main context: one source for any number of tasks. Dropping it drops its tasks.
///
/// ```
/// use glib::MainContext;
/// use threadbare_mainloop::Executor;
///
/// let context = MainContext::new();
/// let executor = Executor::new(&context)?;
/// let tasks: Vec<_> = (0..1000).map(|n| executor.spawn_local(async move { n })).collect();
/// let sum = context.block_on(async {
///     let mut sum = 0;
///     for task in tasks {
///         sum += task.await.unwrap();
///     }
///     sum
/// });
/// assert_eq!(sum, 499_500);
/// # Ok::<(), threadbare_mainloop::AttachError>(())
/// ```
pub struct Executor {
    inner: Rc<Inner>,
    source: Source,
}

impl Executor {
    /// Creates an executor on `context`, with the default priority.
    ///
    /// # Errors
    /// Fails if another thread runs the context, or if the process has no descriptor left.
    pub fn new(context: &MainContext) -> Result<Self, AttachError> {
        Self::with_priority(context, Priority::DEFAULT)
    }

    /// Acts as [`Executor::new`], with another priority of the source.
    ///
    /// # Errors
    /// Fails if another thread runs the context, or if the process has no descriptor left.
    pub fn with_priority(context: &MainContext, priority: Priority) -> Result<Self, AttachError> {
        check_owner(context)?;
        let bell = Arc::new(Bell::new()?);
        let inner = Rc::new(Inner {
            shared: Arc::new(Shared {
                ready: Ready::new(),
                bell: bell.clone(),
            }),
            tasks: RefCell::new(Slab::new()),
            turn: RefCell::default(),
        });
        // The reference is weak, because the source must not keep the tasks, which end when the executor is dropped.
        let mut of_source = Guarded::new(Rc::downgrade(&inner));
        let source = bell.source(priority, "threadbare: executor", move |_| {
            let inner = of_source.get_mut()?.upgrade();
            Some(match inner {
                Some(inner) => {
                    inner.dispatch();
                    ControlFlow::Continue
                }
                None => ControlFlow::Break,
            })
        });
        source.attach(Some(context));
        Ok(Executor { inner, source })
    }

    /// Runs a future, which need not be `Send`.
    pub fn spawn_local<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
    {
        self.inner.spawn_local(future)
    }

    /// Returns a spawner for tasks and callbacks on the same thread.
    pub fn local_spawner(&self) -> LocalSpawner {
        LocalSpawner(Rc::downgrade(&self.inner))
    }

    /// Returns a spawner for other threads.
    pub fn spawner(&self) -> Spawner {
        Spawner(Arc::downgrade(&self.inner.shared))
    }

    /// Returns the number of tasks that have not ended.
    pub fn tasks(&self) -> usize {
        self.inner.tasks.borrow().len()
    }

    pub(crate) fn inner(&self) -> &Rc<Inner> {
        &self.inner
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.source.destroy();
        let late = self.inner.shared.ready.close();
        drop_caught(late);
        // Tasks that these drops spawn are never polled, and are dropped with `inner`.
        let tasks = self.inner.tasks.take();
        tasks.into_iter().for_each(|(_, task)| drop_caught(task));
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("tasks", &self.tasks())
            .finish_non_exhaustive()
    }
}

/// Spawns tasks of an [`Executor`] on its own thread.
#[derive(Clone)]
pub struct LocalSpawner(Weak<Inner>);

impl LocalSpawner {
    /// Acts as [`Executor::spawn_local`]. If the executor has ended, the future is dropped, and the handle returns
    /// [`JoinError::Cancelled`](crate::JoinError::Cancelled).
    pub fn spawn_local<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
    {
        match self.0.upgrade() {
            Some(inner) => inner.spawn_local(future),
            None => JoinHandle::cancelled(),
        }
    }
}

impl fmt::Debug for LocalSpawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalSpawner")
    }
}

/// Spawns tasks of an [`Executor`] from any thread.
#[derive(Clone)]
pub struct Spawner(ArcWeak<Shared>);

impl Spawner {
    /// Runs a future on the executor's thread. If the executor has ended, the future is dropped, and the handle returns
    /// [`JoinError::Cancelled`](crate::JoinError::Cancelled).
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.spawn_from_within(move || future)
    }

    /// Runs the future that `make` creates on the executor's thread; the future itself need not be `Send`.
    pub fn spawn_from_within<F>(
        &self,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        let (promise, join, handle) = pair(self.0.clone());
        if let Some(shared) = self.0.upgrade() {
            shared.command(Command::Spawn(Box::new(move |inner| {
                let future = async move {
                    promise.keep(
                        AssertUnwindSafe(async move { make().await })
                            .catch_unwind()
                            .await,
                    );
                };
                inner.insert(Box::pin(future), |key| join.begin(key));
            })));
        }
        handle
    }
}

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spawner")
    }
}

pub(crate) struct Inner {
    shared: Arc<Shared>,
    tasks: RefCell<Slab<Task>>,
    turn: RefCell<Turn>,
}

/// Work for this turn of the context, and work left over from the last turn.
#[derive(Default)]
struct Turn {
    woken: VecDeque<Key>,
    commands: Vec<Command>,
    generation: u32,
}

struct Task {
    /// The future, taken out while it is polled.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    wake: Arc<TaskWake>,
}

impl Inner {
    pub(crate) fn spawn_local<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
    {
        let shared: ArcWeak<Shared> = Arc::downgrade(&self.shared);
        let (promise, join, handle) = pair(shared);
        let future = async move {
            promise.keep(AssertUnwindSafe(future).catch_unwind().await);
        };
        self.insert(Box::pin(future), |key| join.begin(key));
        handle
    }

    /// Adds a task. `begin` returns whether the task is still wanted.
    fn insert(&self, future: Pin<Box<dyn Future<Output = ()>>>, begin: impl FnOnce(Key) -> bool) {
        let mut tasks = self.tasks.borrow_mut();
        let entry = tasks.vacant_entry();
        let generation = {
            let mut turn = self.turn.borrow_mut();
            turn.generation = turn.generation.wrapping_add(1);
            turn.generation
        };
        let key = Key {
            place: entry.key() as u32,
            generation,
        };
        if !begin(key) {
            drop(tasks);
            return drop_caught(future);
        }
        let wake = Arc::new(TaskWake {
            key,
            flag: Flag::new(true),
            shared: Arc::downgrade(&self.shared),
        });
        entry.insert(Task {
            future: Some(future),
            wake,
        });
        drop(tasks);
        self.shared.ring(self.shared.ready.wake(key));
    }

    /// Drops a task. If it is being polled, it is dropped at the end of that poll.
    pub(crate) fn abort(&self, key: Key) {
        let mut tasks = self.tasks.borrow_mut();
        if let Some(task) = tasks.get(key.place as usize)
            && task.wake.key == key
        {
            let task = tasks.remove(key.place as usize);
            drop(tasks);
            drop_caught(task);
        }
    }

    fn dispatch(&self) {
        let mut commands = {
            let mut turn = self.turn.borrow_mut();
            let Turn {
                woken, commands, ..
            } = &mut *turn;
            self.shared.ready.take(woken, commands);
            std::mem::take(commands)
        };
        for command in commands.drain(..) {
            match command {
                Command::Spawn(spawn) => spawn(self),
                Command::Abort(key) => self.abort(key),
            }
        }
        for _ in 0..POLLS_MAX {
            let next = self.turn.borrow_mut().woken.pop_front();
            let Some(key) = next else { break };
            self.poll(key);
        }
        let mut turn = self.turn.borrow_mut();
        // This reuses the allocation in the next turn.
        turn.commands = commands;
        let Shared { ready, bell } = &*self.shared;
        ready.rest(!turn.woken.is_empty(), || bell.silence());
    }

    fn poll(&self, key: Key) {
        let taken = match self.tasks.borrow_mut().get_mut(key.place as usize) {
            Some(task) if task.wake.key == key => {
                task.future.take().map(|future| (future, task.wake.clone()))
            }
            _ => None,
        };
        let Some((mut future, wake)) = taken else {
            return;
        };
        wake.flag.begin();
        let waker = Waker::from(wake);
        let mut cx = Context::from_waker(&waker);
        // The handle stores a panic of the task itself. This catches the panic of a waker.
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
        let mut tasks = self.tasks.borrow_mut();
        match tasks.get_mut(key.place as usize) {
            Some(task) if task.wake.key == key => match polled {
                Ok(Poll::Pending) => task.future = Some(future),
                _ => {
                    let task = tasks.remove(key.place as usize);
                    drop(tasks);
                    drop_caught((task, future));
                }
            },
            // The task aborted itself during the poll.
            _ => {
                drop(tasks);
                drop_caught(future);
            }
        }
    }
}

struct Shared {
    ready: Ready<Command>,
    bell: Arc<Bell>,
}

enum Command {
    Spawn(Box<dyn FnOnce(&Inner) + Send>),
    Abort(Key),
}

impl Shared {
    fn command(&self, command: Command) {
        match self.ready.command(command) {
            Ok(must_ring) => self.ring(must_ring),
            // The executor has ended, so the command is dropped.
            Err(command) => drop(command),
        }
    }

    fn ring(&self, must_ring: MustRing) {
        if must_ring.0 || self.bell.was_unanswered() {
            self.bell.ring();
        }
    }
}

impl Abort for Shared {
    fn abort(&self, key: Key) {
        self.command(Command::Abort(key));
    }
}

struct TaskWake {
    key: Key,
    flag: Flag,
    /// A weak reference, because a waker may outlive the executor.
    shared: ArcWeak<Shared>,
}

impl Wake for TaskWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.flag.wake()
            && let Some(shared) = self.shared.upgrade()
        {
            shared.ring(shared.ready.wake(self.key));
        }
    }
}

/// Drops a value. A panic must not reach the context, which is C code.
pub(crate) fn drop_caught<T>(value: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        tracing::error!("the drop of a task panicked: {}", message(panic.as_ref()));
    }
}

/// Maximum number of polls in one turn of the context. Other sources run before the remaining tasks.
const POLLS_MAX: usize = 256;
