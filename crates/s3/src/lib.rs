//! Uploads to S3 for thousands of streams, without a thread each.
//!
//! - [`Store`]: a bucket with its credentials. [`Store::check`] checks that objects can be written to it, and leaves nothing
//!   behind.
//! - [`Upload`]: a stream that becomes an object while it grows. Its parts wait in a [`Pool`] of memory that all uploads share,
//!   or in a [`Spool`] on the disk. In the spool, parts survive a crash, and times in which the store is unavailable.
//! - [`FileSender`]: sends whole files, one after the other. Each becomes an object, and is removed when the store has it.
//!
//! ```no_run
//! use threadbare_s3::{Credentials, Endpoint, FileSender, Object, SenderSettings, Store, StoreSettings};
//!
//! # async fn example() -> Result<(), threadbare_s3::Error> {
//! let store = Store::shared(StoreSettings {
//!     endpoint: Endpoint::new(None, "eu-west-1", "recordings", false)?,
//!     credentials: Credentials::Usual,
//!     ca_file: None,
//! })?;
//! // Uploads that an earlier process left in the folder are resumed.
//! let sender = FileSender::start(&store, SenderSettings::new("/var/spool/recordings"))?;
//! let object = Object { content_type: Some("audio/wav".into()), ..Object::new("2026/05/call-17.wav") };
//! let stored = sender.send("/var/spool/recordings/call-17.wav", object)?.await?;
//! println!("{} bytes, {}", stored.bytes, stored.etag);
//! # Ok(())
//! # }
//! ```
//!
//! **Threads.** There are two (`ts-s3`) for the whole process, and the disk service of `threadbare-files`. All futures here run
//! on any executor, except [`Store::sign`], which needs a tokio runtime with I/O and time.
//!
//! **Memory.** With a spool, uploads use the disk service's budget, and 64 KiB for each of the at most 32 [concurrent
//! requests](Store). Without a spool, they use the pool.
//!
//! **Secrets.** Credentials never appear in an error, `Debug` output, a log or a file.
#![forbid(unsafe_code)]

mod body;
mod client;
mod core;
mod credentials;
mod drive;
mod error;
mod filling;
mod journal;
mod object;
mod opening;
mod place;
mod pool;
mod sender;
mod spool;
mod upload;
mod xml;

use threadbare_base::lock;

pub use self::client::{Download, Head, Store, StoreSettings, Timeouts, refusal_of};
pub use self::core::{
    OnError, PART_BYTES_DEFAULT, PART_BYTES_MAX, PART_BYTES_MIN, PARTS_MAX, Retries, Sizes,
};
pub use self::credentials::Credentials;
pub use self::drive::{Counts, Stored};
pub use self::error::Error;
pub use self::object::{METADATA_BYTES_MAX, Object};
pub use self::opening::{Opening, Place, PlaceSettings};
pub use self::place::{
    Endpoint, KEY_BYTES_MAX, ObjectUri, REGION_DEFAULT, check_bucket, check_key, check_region,
};
pub use self::pool::{POOL_BYTES_DEFAULT, Pool};
pub use self::sender::{FileEvent, FileSender, SenderSettings, Sent};
pub use self::spool::{Left, Spool};
pub use self::upload::{SlowPolicy, Upload, UploadSettings};
pub use self::xml::{OpenUpload, StoredPart};
