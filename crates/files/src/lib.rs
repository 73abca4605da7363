//! Files of thousands of streams without a thread each.
//!
//! A [`Disk`] is one service thread (`ts:disk`) with an io_uring, or, where the system does not allow that, with a few writer threads.
//! A [`File`] takes writes, reads and the rest in order; each is a plain future, for any executor or for none. A future that is
//! dropped changes nothing: what the kernel uses belongs to the service.
//!
//! ```
//! use threadbare_files::{Access, Budget, Data, Disk, Ending, Mode, Options};
//!
//! # let folder = tempfile::tempdir()?;
//! let disk = Disk::shared(Mode::Auto)?;
//! let mut options = Options::new(Access::Write);
//! options.budget = Some(Budget::named("recordings", 64 << 20));
//! let file = disk.open(folder.path().join("a.part"), options);
//!
//! futures_executor::block_on(async {
//!     // Small writes are gathered. A full budget makes this wait.
//!     file.write(Data::Copy(b"some bytes")).await?;
//!     // The name appears when all of it is there.
//!     file.close(Ending {
//!         sync: true,
//!         rename_to: Some(folder.path().join("a.txt")),
//!     })
//!     .await
//! })?;
//! assert_eq!(std::fs::read(folder.path().join("a.txt"))?, b"some bytes");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Slow disks.** An operation that does not come back holds up its own file only: the ring's other operations go on, and a writer
//! thread that is stuck is replaced by another one, up to a bound. What waits for the disk is bounded by a [`Budget`] that a slow file
//! cannot take from the others.
//!
//! **Crashes.** What was written is with the kernel half a second later at the latest ([`Options::linger`]), where it survives the process;
//! with [`Options::sync_every`] it survives the machine.

mod backend;
mod budget;
mod core;
mod data;
mod desk;
mod disk;
mod failure;
mod file;
mod job;
mod op;
mod pool;
mod ring;
mod wake;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use self::budget::{Budget, SHARE_BYTES_MIN};
pub use self::core::Counts;
pub use self::data::{Data, Owned};
pub use self::disk::{Disk, MODE_VARIABLE, Mode, StartError};
pub use self::failure::Failure;
pub use self::file::{Ending, File, Options};
pub use self::job::{Access, Stat};
pub use self::op::Op;

/// Locks, also after a panic in another thread: each section leaves a whole state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
