//! Tasks that end with their owner.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use slab::Slab;

use crate::executor::{Executor, Inner};
use crate::join::JoinHandle;
use crate::ready::Key;

/// A group of tasks of one [`Executor`] that are aborted when it is dropped. It is for tasks that must end with a window, a call
/// or a connection.
///
/// When the drop returns, the futures have been dropped. There is one exception: if a task of the group drops the scope, the
/// future of that task is dropped at the end of its current poll.
///
/// ```
/// use glib::MainContext;
/// use threadbare_mainloop::{Executor, TaskScope};
///
/// let context = MainContext::new();
/// let executor = Executor::new(&context)?;
/// let scope = TaskScope::new(&executor);
/// let task = scope.spawn_local(std::future::pending::<()>());
/// drop(scope);
/// assert!(context.block_on(task).is_err());
/// # Ok::<(), threadbare_mainloop::AttachError>(())
/// ```
pub struct TaskScope {
    executor: Weak<Inner>,
    members: Rc<RefCell<Members>>,
}

#[derive(Default)]
struct Members {
    /// The tasks. The executor assigns a key to each.
    tasks: Slab<Option<Key>>,
    waiting: Vec<Waker>,
}

impl TaskScope {
    /// Creates an empty group.
    pub fn new(executor: &Executor) -> Self {
        TaskScope {
            executor: Rc::downgrade(executor.inner()),
            members: Rc::default(),
        }
    }

    /// Runs a future as a task of the group.
    pub fn spawn_local<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
    {
        let place = self.members.borrow_mut().tasks.insert(None);
        let member = Member {
            members: self.members.clone(),
            place,
        };
        let future = async move {
            let output = future.await;
            drop(member);
            output
        };
        let Some(executor) = self.executor.upgrade() else {
            return JoinHandle::cancelled();
        };
        let handle = executor.spawn_local(future);
        if let Some(task) = self.members.borrow_mut().tasks.get_mut(place) {
            *task = handle.key();
        }
        handle
    }

    /// Returns the number of tasks that have not ended.
    pub fn len(&self) -> usize {
        self.members.borrow().tasks.len()
    }

    /// Whether all tasks have ended.
    pub fn is_empty(&self) -> bool {
        self.members.borrow().tasks.is_empty()
    }

    /// Completes when all tasks have ended.
    pub async fn finished(&self) {
        poll_fn(|cx| {
            let mut members = self.members.borrow_mut();
            if members.tasks.is_empty() {
                return Poll::Ready(());
            }
            if !members
                .waiting
                .iter()
                .any(|waker| waker.will_wake(cx.waker()))
            {
                members.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

impl Drop for TaskScope {
    fn drop(&mut self) {
        let tasks = self.members.borrow();
        let keys: Vec<Key> = tasks.tasks.iter().filter_map(|(_, key)| *key).collect();
        drop(tasks);
        if let Some(executor) = self.executor.upgrade() {
            keys.into_iter().for_each(|key| executor.abort(key));
        }
    }
}

impl fmt::Debug for TaskScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskScope")
            .field("tasks", &self.len())
            .finish_non_exhaustive()
    }
}

/// Part of a task's future. It leaves the group when the task ends, in any way.
struct Member {
    members: Rc<RefCell<Members>>,
    place: usize,
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut members = self.members.borrow_mut();
        members.tasks.try_remove(self.place);
        let waiting = if members.tasks.is_empty() {
            std::mem::take(&mut members.waiting)
        } else {
            Vec::new()
        };
        drop(members);
        waiting.into_iter().for_each(Waker::wake);
    }
}
