//! Files of thousands of streams without a thread each.
//!
//! A [`Disk`] is one service thread (`ts:disk`) with an io_uring, or with a few writer threads if the system does not allow that.
//! A [`File`] executes writes, reads and other operations in order. Each operation is a plain future, for any executor or none.
//! Dropping the future does not stop the operation: the memory that the kernel uses belongs to the service.
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
//!     // Small writes are combined. If the budget is used up, this waits.
//!     file.write(Data::Copy(b"some bytes")).await?;
//!     // The file gets this name when it is complete.
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
//! **Slow disks.** An operation that does not return delays only its own file. The ring's other operations continue, and a stuck
//! writer thread is replaced by another one, up to a maximum. A [`Budget`] limits the data that waits for the disk. A slow file
//! cannot take the budget from the others.
//!
//! **Crashes.** Written data is with the kernel after at most half a second ([`Options::linger`]), where it survives the process.
//! With [`Options::sync_every`], it survives a crash of the machine.

mod backend;
mod budget;
mod core;
mod data;
mod disk;
mod failure;
mod file;
mod job;
mod op;
mod pool;
mod ring;
mod service;
mod wake;

use threadbare_base::lock;

pub use self::budget::{Budget, SHARE_BYTES_MIN};
pub use self::core::Counts;
pub use self::data::{Data, Owned};
pub use self::disk::{Disk, MODE_VARIABLE, Mode, StartError};
pub use self::failure::Failure;
pub use self::file::{Ending, File, Options};
pub use self::job::{Access, Stat};
pub use self::op::Op;

#[cfg(test)]
mod tests;
