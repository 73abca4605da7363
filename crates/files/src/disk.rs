//! The disk service, as its users see it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use crate::backend::Backend;
use crate::file::{File, Options};
use crate::job::{Done, Job, Stat};
use crate::lock;
use crate::op::Op;
use crate::pool::Pool;
use crate::ring::Ring;
use crate::service::{Loose, Service, ServiceThread, Shared};
use crate::wake::Wake;

/// The backend that executes operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// io_uring if the system allows it, otherwise threads. The environment variable [`MODE_VARIABLE`] takes precedence.
    #[default]
    Auto,
    /// Only io_uring; otherwise the start fails.
    Ring,
    /// A few threads that may block.
    Threads,
}

/// Environment variable with the mode of [`Mode::Auto`]: `auto`, `io-uring`, `threads`.
pub const MODE_VARIABLE: &str = "THREADBARE_DISK";

/// Why the service is not available.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StartError {
    /// The system does not allow this process to use io_uring.
    #[error(
        "io_uring is not available: {0}; use threads, or allow it (sysctl kernel.io_uring_disabled, seccomp)"
    )]
    Ring(String),
    /// The value of the variable is not a mode.
    #[error("{MODE_VARIABLE}={0}: expected auto, io-uring or threads")]
    Variable(String),
    /// The system refuses a thread or a descriptor.
    #[error("cannot start the disk service: {0}")]
    Thread(String),
}

/// The disk service. Clones refer to the same service. Its thread ends when it has no user and no file any more.
#[derive(Clone)]
pub struct Disk {
    service: Arc<Service>,
    mode: Mode,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk").field("mode", &self.mode).finish()
    }
}

/// Services by requested mode, with their actual mode.
type Known = HashMap<Mode, (Weak<Service>, Mode)>;

static SHARED: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

impl Disk {
    /// Returns the process's service of this mode.
    ///
    /// # Errors
    /// Fails if the service cannot start: see [`StartError`].
    pub fn shared(mode: Mode) -> Result<Disk, StartError> {
        let mode = match (mode, std::env::var(MODE_VARIABLE)) {
            (Mode::Auto, Ok(text)) => match text.as_str() {
                "" | "auto" => Mode::Auto,
                "io-uring" => Mode::Ring,
                "threads" => Mode::Threads,
                _ => return Err(StartError::Variable(text)),
            },
            _ => mode,
        };
        let mut all = lock(&SHARED);
        // With `Auto`, an io_uring that already runs is used, even if another user requested it explicitly.
        let asked: &[Mode] = match mode {
            Mode::Auto => &[Mode::Auto, Mode::Ring],
            Mode::Ring => &[Mode::Ring],
            Mode::Threads => &[Mode::Threads],
        };
        let mut known = asked.iter().filter_map(|mode| all.get(mode));
        let running = known.find_map(|(weak, mode)| Some((weak.upgrade()?, *mode)));
        if let Some((service, mode)) = running {
            return Ok(Disk { service, mode });
        }
        let disk = Disk::start(mode)?;
        for asked in [mode, disk.mode] {
            all.insert(asked, (Arc::downgrade(&disk.service), disk.mode));
        }
        Ok(disk)
    }

    /// Starts a separate service.
    ///
    /// # Errors
    /// Fails if the service cannot start: see [`StartError`].
    pub fn start(mode: Mode) -> Result<Disk, StartError> {
        let failed = |error: std::io::Error| StartError::Thread(error.to_string());
        let wake = Wake::new().map_err(failed)?;
        let ring = match mode {
            Mode::Threads => None,
            Mode::Auto => Ring::new(wake.clone()).ok(),
            Mode::Ring => {
                Some(Ring::new(wake.clone()).map_err(|error| StartError::Ring(error.to_string()))?)
            }
        };
        let (backend, mode): (Box<dyn Backend>, Mode) = match ring {
            Some(ring) => (Box::new(ring), Mode::Ring),
            None => (Box::new(Pool::new(wake.clone())), Mode::Threads),
        };
        Disk::with_backend(backend, wake, mode)
    }

    pub(crate) fn with_backend(
        backend: Box<dyn Backend>,
        wake: Wake,
        mode: Mode,
    ) -> Result<Disk, StartError> {
        let shared = Arc::new(Shared::new(wake));
        let service_thread = ServiceThread::new(shared.clone(), backend);
        let thread = std::thread::Builder::new().name("ts:disk".into());
        thread
            .spawn(move || service_thread.run())
            .map_err(|error| StartError::Thread(error.to_string()))?;
        let service = Arc::new(Service(shared));
        Ok(Disk { service, mode })
    }

    /// Returns the actual mode, never [`Mode::Auto`].
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Opens a file at `path`, and returns at once. [`File::opened`] and all later operations return the result of opening.
    pub fn open(&self, path: impl AsRef<Path>, options: Options) -> File {
        File::new(&self.service, path.as_ref(), options)
    }

    /// Renames a file, and replaces a file of the new name.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Op<()> {
        let job = Job::Rename {
            from: from.as_ref().into(),
            to: to.as_ref().into(),
            durable: false,
        };
        self.loose("rename", from.as_ref(), job, |_| ())
    }

    /// Removes a file.
    pub fn remove(&self, path: impl AsRef<Path>) -> Op<()> {
        let job = Job::Remove {
            path: path.as_ref().into(),
        };
        self.loose("remove", path.as_ref(), job, |_| ())
    }

    /// Returns the attributes of a file.
    pub fn stat(&self, path: impl AsRef<Path>) -> Op<Stat> {
        let job = Job::Stat {
            path: path.as_ref().into(),
        };
        self.loose("inspect", path.as_ref(), job, |done| match done {
            Done::Stat(stat) => stat,
            _ => Stat {
                bytes: 0,
                is_regular: false,
            },
        })
    }

    fn loose<T>(
        &self,
        operation: &'static str,
        path: &Path,
        job: Job,
        convert: fn(Done) -> T,
    ) -> Op<T> {
        let (op, slot) = Op::new(convert);
        let loose = Loose {
            slot,
            operation,
            path: path.into(),
        };
        self.service.0.begin_loose(job, loose);
        op
    }
}
