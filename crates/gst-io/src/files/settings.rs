//! Properties common to both file sinks.

use std::time::Duration;

use gst::glib;
use gst::prelude::*;
use threadbare_files::{Access, Budget, Disk, Mode, Options};

use crate::kit::{CAT, PropertyGroup};

/// Action of a file sink when `buffer-max-bytes` are queued, because the disk is slower than the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "ThreadbareFileSlowPolicy")]
#[allow(unreachable_pub, reason = "the type of a public property")]
pub enum SlowPolicy {
    /// The source waits.
    #[default]
    #[enum_value(name = "Block the source", nick = "hold-up")]
    HoldUp,
    /// The data queued longest is lost.
    #[enum_value(name = "Drop the oldest queued data", nick = "drop-oldest")]
    DropOldest,
    /// The stream ends with an error.
    #[enum_value(name = "Fail", nick = "fail")]
    Fail,
}

/// Time at which data must be on the disk, instead of only in the kernel's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "ThreadbareFileSyncPolicy")]
#[allow(unreachable_pub, reason = "the type of a public property")]
pub enum SyncPolicy {
    /// The kernel decides.
    #[default]
    #[enum_value(name = "Left to the kernel", nick = "never")]
    Never,
    /// Before the end of the stream is posted.
    #[enum_value(name = "At the end of the file", nick = "at-eos")]
    AtEos,
    /// Every `sync-interval`, and at the end.
    #[enum_value(name = "Every sync-interval, and at the end", nick = "interval")]
    Interval,
}

/// Backend of the process's disk service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "ThreadbareFileIoMode")]
#[allow(unreachable_pub, reason = "the type of a public property")]
pub enum IoMode {
    /// io_uring if it is allowed, otherwise threads.
    #[default]
    #[enum_value(
        name = "io_uring where the system allows it, else threads",
        nick = "auto"
    )]
    Auto,
    /// Only io_uring.
    #[enum_value(name = "io_uring", nick = "io-uring")]
    IoUring,
    /// A few threads.
    #[enum_value(name = "A few writer threads", nick = "threads")]
    Threads,
}

impl IoMode {
    /// Returns the process's service with this backend.
    pub(super) fn disk(self) -> Result<Disk, gst::ErrorMessage> {
        let mode = match self {
            IoMode::Auto => Mode::Auto,
            IoMode::IoUring => Mode::Ring,
            IoMode::Threads => Mode::Threads,
        };
        Disk::shared(mode)
            .map_err(|error| gst::error_msg!(gst::ResourceError::Failed, ["io-mode: {error}"]))
    }
}

/// The properties `atomic`, `buffer-size`, `buffer-max-bytes`, `io-mode`, `slow-policy`, `sync-policy` and `sync-interval`.
#[derive(Debug, Clone)]
pub(super) struct DiskSettings {
    pub(super) is_atomic: bool,
    buffer_bytes: u32,
    buffer_bytes_max: u64,
    pub(super) io_mode: IoMode,
    pub(super) slow: SlowPolicy,
    pub(super) sync: SyncPolicy,
    sync_interval_s: u32,
}

/// Default of `buffer-size`, the same as in the stock element.
const BUFFER_BYTES: u32 = 64 << 10;
const BUFFER_BYTES_MAX: u64 = 64 << 20;
const SYNC_INTERVAL_S: u32 = 5;

impl Default for DiskSettings {
    fn default() -> Self {
        DiskSettings {
            is_atomic: false,
            buffer_bytes: BUFFER_BYTES,
            buffer_bytes_max: BUFFER_BYTES_MAX,
            io_mode: IoMode::Auto,
            slow: SlowPolicy::HoldUp,
            sync: SyncPolicy::Never,
            sync_interval_s: SYNC_INTERVAL_S,
        }
    }
}

impl DiskSettings {
    /// Options for opening a file.
    pub(super) fn options(&self, access: Access) -> Options {
        Options {
            block_bytes: usize::try_from(self.buffer_bytes).unwrap_or(usize::MAX),
            sync_every: (self.sync == SyncPolicy::Interval)
                .then(|| Duration::from_secs(self.sync_interval_s.into())),
            ..Options::new(access)
        }
    }

    /// Returns the budget of the context of this name.
    pub(super) fn budget(&self, context: &str) -> Budget {
        let max = usize::try_from(self.buffer_bytes_max).unwrap_or(usize::MAX);
        let budget = Budget::named(context, max);
        if budget.max() != max {
            gst::warning!(
                CAT,
                "buffer-max-bytes={max} is ignored: the open files of context '{context}' use {}",
                budget.max()
            );
        }
        budget
    }

    /// Returns the maximum number of queued bytes, for messages.
    pub(super) fn buffer_bytes_max(&self) -> u64 {
        self.buffer_bytes_max
    }

    /// Whether the last data of a file is synced.
    pub(super) fn syncs_at_end(&self) -> bool {
        self.sync != SyncPolicy::Never
    }
}

/// The same properties, with atomic files by default.
#[derive(Debug, Clone)]
pub(super) struct SplitDiskSettings(DiskSettings);

impl Default for SplitDiskSettings {
    fn default() -> Self {
        SplitDiskSettings(DiskSettings {
            is_atomic: true,
            ..DiskSettings::default()
        })
    }
}

impl SplitDiskSettings {
    pub(super) fn into_inner(self) -> DiskSettings {
        self.0
    }
}

impl PropertyGroup for SplitDiskSettings {
    fn specs() -> Vec<glib::ParamSpec> {
        DiskSettings::specs_with(true)
    }

    fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        self.0.set(name, value)
    }

    fn get(&self, name: &str) -> Option<glib::Value> {
        self.0.get(name)
    }
}

impl DiskSettings {
    fn specs_with(is_atomic: bool) -> Vec<glib::ParamSpec> {
        let sync_interval = glib::ParamSpecUInt::builder("sync-interval");
        vec![
            glib::ParamSpecBoolean::builder("atomic")
                .nick("Atomic")
                .blurb("Write to the location with .part appended, and rename the file when it is complete")
                .default_value(is_atomic)
                .mutable_ready()
                .build(),
            glib::ParamSpecUInt::builder("buffer-size")
                .nick("Buffer size")
                .blurb("Number of bytes that are gathered from small buffers before they are written. They are written after half a second at the latest")
                .default_value(BUFFER_BYTES)
                .mutable_ready()
                .build(),
            glib::ParamSpecUInt64::builder("buffer-max-bytes")
                .nick("Most bytes")
                .blurb("Maximum number of bytes that all files of the context together queue for the disk. If elements of the context set different values, the value of the element that opened a file first applies until all files of the context are closed")
                .default_value(BUFFER_BYTES_MAX)
                .mutable_ready()
                .build(),
            glib::ParamSpecEnum::builder::<IoMode>("io-mode")
                .nick("I/O mode")
                .blurb("Backend of the process's disk service")
                .mutable_ready()
                .build(),
            glib::ParamSpecEnum::builder::<SlowPolicy>("slow-policy")
                .nick("Slow policy")
                .blurb("Action when the file may queue no more data for the disk (see buffer-max-bytes)")
                .mutable_ready()
                .build(),
            glib::ParamSpecEnum::builder::<SyncPolicy>("sync-policy")
                .nick("Sync policy")
                .blurb("When data is synced to the disk (fsync), so that it survives a crash of the machine")
                .mutable_ready()
                .build(),
            sync_interval
                .nick("Sync interval")
                .blurb("Time between two syncs with sync-policy=interval, s")
                .minimum(1)
                .default_value(SYNC_INTERVAL_S)
                .mutable_ready()
                .build(),
        ]
    }
}

impl PropertyGroup for DiskSettings {
    fn specs() -> Vec<glib::ParamSpec> {
        Self::specs_with(false)
    }

    fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        match name {
            "atomic" => self.is_atomic = value.get().unwrap_or(false),
            "buffer-size" => self.buffer_bytes = value.get().unwrap_or(BUFFER_BYTES),
            "buffer-max-bytes" => {
                self.buffer_bytes_max = value.get().unwrap_or(BUFFER_BYTES_MAX);
            }
            "io-mode" => self.io_mode = value.get().unwrap_or_default(),
            "slow-policy" => self.slow = value.get().unwrap_or_default(),
            "sync-policy" => self.sync = value.get().unwrap_or_default(),
            "sync-interval" => self.sync_interval_s = value.get().unwrap_or(SYNC_INTERVAL_S),
            _ => return false,
        }
        true
    }

    fn get(&self, name: &str) -> Option<glib::Value> {
        Some(match name {
            "atomic" => self.is_atomic.to_value(),
            "buffer-size" => self.buffer_bytes.to_value(),
            "buffer-max-bytes" => self.buffer_bytes_max.to_value(),
            "io-mode" => self.io_mode.to_value(),
            "slow-policy" => self.slow.to_value(),
            "sync-policy" => self.sync.to_value(),
            "sync-interval" => self.sync_interval_s.to_value(),
            _ => return None,
        })
    }
}
