//! Named contexts. All users of a name share the same threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, thread};

use crate::counters::CountersSnapshot;
use crate::shard::{Scheduling, Shard, StartError, current_shard_id};

/// Requested settings of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Time in which events collect before a batch is handled; zero for no throttling.
    pub wait: Duration,
    /// -1: exactly one thread; 0: one per CPU core, or per CPU of the affinity; N: N threads.
    pub threads: i32,
    /// Scheduling of each thread.
    pub scheduling: Scheduling,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            wait: Duration::ZERO,
            threads: THREADS_DEFAULT,
            scheduling: Scheduling::default(),
        }
    }
}

impl Settings {
    /// Returns the number of threads that the value of `threads` means.
    pub fn thread_count(&self) -> usize {
        match self.threads {
            0 if !self.scheduling.affinity.is_empty() => self.scheduling.affinity.len(),
            0 => thread::available_parallelism().map_or(1, usize::from),
            n => usize::try_from(n).unwrap_or(1).min(THREADS_MAX),
        }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (wait_ms, threads) = (self.wait.as_millis(), self.thread_count());
        write!(f, "wait {wait_ms} ms and {threads} thread(s)")?;
        let Scheduling { affinity, priority } = self.scheduling;
        if !affinity.is_empty() {
            write!(f, " on CPU {affinity}")?;
        }
        if priority != 0 {
            write!(f, " with priority {priority}")?;
        }
        Ok(())
    }
}

/// The requested settings differ from those of the first user. The settings of the first user apply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "context '{name}' already runs with {stands}, so the requested {asked} are ignored: set the same values on all elements of the \
    context, or only on the first one"
)]
pub struct SettingsConflict {
    /// The context.
    pub name: String,
    /// The actual settings.
    pub stands: Settings,
    /// The requested settings.
    pub asked: Settings,
}

/// A user's share in a context. The context's threads end when the last share is dropped.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

impl Context {
    /// Returns the context of this name, and starts it for the first user.
    ///
    /// # Errors
    /// Fails if threads or descriptors run out, or if the system refuses the affinity or the priority.
    pub fn acquire(name: &str, settings: Settings) -> Result<Context, StartError> {
        let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = registry.get(name).and_then(Weak::upgrade) {
            return Ok(Context(inner));
        }
        let mut inner = Inner {
            name: name.to_owned(),
            settings,
            shards: Vec::new(),
            threads: Mutex::new(Vec::new()),
            next: AtomicUsize::new(0),
        };
        let count = settings.thread_count();
        for i in 0..count {
            let id = NEXT_SHARD.fetch_add(1, Ordering::Relaxed);
            let (shard, thread) = Shard::start(
                id,
                thread_name(name, i, count),
                settings.wait,
                settings.scheduling,
            )?;
            inner.shards.push(shard);
            inner
                .threads
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner)
                .push(thread);
        }
        let inner = Arc::new(inner);
        registry.insert(name.to_owned(), Arc::downgrade(&inner));
        registry.retain(|_, known| known.strong_count() > 0);
        Ok(Context(inner))
    }

    /// Returns the context of this name, if it is in use.
    pub fn find(name: &str) -> Option<Context> {
        let registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        registry.get(name).and_then(Weak::upgrade).map(Context)
    }

    /// Returns the context's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the actual settings: those of the context's first user.
    pub fn settings(&self) -> Settings {
        self.0.settings
    }

    /// Returns the warning for a user who requests `asked`, if these settings differ from the actual ones. A setting at its
    /// default never conflicts.
    pub fn conflict(&self, asked: Settings) -> Option<SettingsConflict> {
        let stands = self.0.settings;
        let (is, wants) = (stands.scheduling, asked.scheduling);
        // If the number of threads is not set, the affinity determines it. So compare both numbers with the actual affinity.
        let threads = Settings {
            scheduling: is,
            ..asked
        };
        let same = (asked.wait.is_zero() || stands.wait == asked.wait)
            && (asked.threads == THREADS_DEFAULT
                || stands.thread_count() == threads.thread_count())
            && (wants.affinity.is_empty() || wants.affinity == is.affinity)
            && (wants.priority == 0 || wants.priority == is.priority);
        (!same).then(|| SettingsConflict {
            name: self.0.name.clone(),
            stands,
            asked,
        })
    }

    /// Returns the thread for a new element, round-robin. The element stays on this thread as long as it exists.
    pub fn next_shard(&self) -> Shard {
        let turn = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.0.shards[turn % self.0.shards.len()].clone()
    }

    /// Returns all threads of the context.
    pub fn shards(&self) -> &[Shard] {
        &self.0.shards
    }

    /// Returns the number of shares in the context.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("name", &self.0.name)
            .field("settings", &self.0.settings)
            .finish_non_exhaustive()
    }
}

/// Information about a context, for observers.
#[derive(Debug, Clone)]
pub struct ContextInfo {
    /// The context's name.
    pub name: String,
    /// The context's actual settings.
    pub settings: Settings,
    /// Number of shares.
    pub users: usize,
    /// The counters of each thread.
    pub shards: Vec<CountersSnapshot>,
    /// The threads themselves, for further queries.
    pub threads: Vec<Shard>,
}

/// Returns all contexts in use, ordered by name.
pub fn contexts() -> Vec<ContextInfo> {
    let registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let alive: Vec<Context> = registry
        .values()
        .filter_map(Weak::upgrade)
        .map(Context)
        .collect();
    drop(registry);
    let mut infos: Vec<ContextInfo> = alive
        .iter()
        .map(|context| ContextInfo {
            name: context.name().to_owned(),
            settings: context.settings(),
            users: context.users() - 1,
            shards: context
                .shards()
                .iter()
                .map(Shard::counters_snapshot)
                .collect(),
            threads: context.shards().to_vec(),
        })
        .collect();
    infos.sort_by(|a, b| a.name.cmp(&b.name));
    infos
}

struct Inner {
    name: String,
    settings: Settings,
    shards: Vec<Shard>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    next: AtomicUsize,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for shard in &self.shards {
            // The command is refused only if the thread has already ended.
            let _ = shard.command(|local| local.close());
        }
        // A shard's thread cannot wait for its own end. And if it waited for another thread, its other agents and tasks would be
        // blocked.
        if current_shard_id().is_some() {
            return;
        }
        let threads = self
            .threads
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // Panics have already been reported.
            let _ = thread.join();
        }
    }
}

/// Returns the name of a thread: at most 15 bytes, the limit of Linux.
fn thread_name(context: &str, index: usize, count: usize) -> String {
    let suffix = if count > 1 {
        format!("/{index}")
    } else {
        String::new()
    };
    let mut name = String::from("ts:");
    for c in context.chars().filter(|c| !c.is_control()) {
        if name.len() + c.len_utf8() + suffix.len() > 15 {
            break;
        }
        name.push(c);
    }
    name + &suffix
}

static REGISTRY: LazyLock<Mutex<HashMap<String, Weak<Inner>>>> = LazyLock::new(Mutex::default);
static NEXT_SHARD: AtomicU64 = AtomicU64::new(0);
/// Maximum number of threads of a context. A higher number is a configuration mistake.
const THREADS_MAX: usize = 1024;
/// Exactly one thread.
const THREADS_DEFAULT: i32 = -1;
