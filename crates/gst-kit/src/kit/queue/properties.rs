//! A queue's properties, for `ts-queue` and the sources of proxies.

use gst::glib;
use gst::prelude::*;

use super::Queue;
use crate::kit::{PropertyGroup, stats};

/// The side that a full queue leaks from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "ThreadbareQueueLeaky")]
#[allow(unreachable_pub, reason = "the type of a public property")]
pub enum Leaky {
    /// The writer waits.
    #[default]
    #[enum_value(name = "Not leaky", nick = "no")]
    No,
    /// New buffers are dropped.
    #[enum_value(name = "Leaky on upstream (new buffers)", nick = "upstream")]
    Upstream,
    /// Old buffers are dropped.
    #[enum_value(name = "Leaky on downstream (old buffers)", nick = "downstream")]
    Downstream,
}

/// The properties of a queue: limits, levels and leaking. They take effect at once, in any state.
pub struct QueueProperties(pub Queue);

impl PropertyGroup for QueueProperties {
    fn specs() -> Vec<glib::ParamSpec> {
        let leaky = glib::ParamSpecEnum::builder_with_default("leaky", Leaky::No)
            .blurb("End of the queue at which buffers are dropped when the queue is full")
            .mutable_playing()
            .build();
        vec![
            leaky,
            limit32(
                "max-size-buffers",
                "Maximum number of buffers in the queue, 0: no limit",
                200,
            ),
            limit32(
                "max-size-bytes",
                "Maximum number of bytes in the queue, 0: no limit",
                1 << 20,
            ),
            limit64(
                "max-size-time",
                "Maximum duration of the data in the queue, ns; 0: no limit",
                1_000_000_000,
            ),
            limit32(
                "min-threshold-buffers",
                "Minimum number of buffers in the queue before output starts",
                0,
            ),
            limit32(
                "min-threshold-bytes",
                "Minimum number of bytes in the queue before output starts",
                0,
            ),
            limit64(
                "min-threshold-time",
                "Minimum duration of the data in the queue before output starts, ns",
                0,
            ),
            level32("current-level-buffers", "Buffers in the queue"),
            level32("current-level-bytes", "Bytes in the queue"),
            glib::ParamSpecUInt64::builder("current-level-time")
                .blurb("Duration of the data in the queue, ns")
                .read_only()
                .build(),
            flag(
                "flush-on-eos",
                "Drop all queued buffers when the end of the stream arrives",
            ),
            flag("silent", "Emit no signals"),
            stats::spec(),
        ]
    }

    fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        let n32 = || value.get::<u32>().unwrap_or(0);
        let n64 = || value.get::<u64>().unwrap_or(0);
        let flag = || value.get::<bool>().unwrap_or(false);
        let queue = &self.0;
        match name {
            "leaky" => {
                let leaky = value.get().unwrap_or_default();
                queue.set_limits(|limits| limits.leaky = leaky);
            }
            "max-size-buffers" => queue.set_limits(|limits| limits.max.buffers = n32()),
            "max-size-bytes" => queue.set_limits(|limits| limits.max.bytes = n32()),
            "max-size-time" => queue.set_limits(|limits| limits.max.time_ns = n64()),
            "min-threshold-buffers" => queue.set_limits(|limits| limits.min.buffers = n32()),
            "min-threshold-bytes" => queue.set_limits(|limits| limits.min.bytes = n32()),
            "min-threshold-time" => queue.set_limits(|limits| limits.min.time_ns = n64()),
            "flush-on-eos" => queue.set_limits(|limits| limits.flush_on_eos = flag()),
            "silent" => queue.set_limits(|limits| limits.silent = flag()),
            _ => return false,
        }
        true
    }

    fn get(&self, name: &str) -> Option<glib::Value> {
        let (limits, level) = (self.0.limits(), self.0.level());
        Some(match name {
            "leaky" => limits.leaky.to_value(),
            "max-size-buffers" => limits.max.buffers.to_value(),
            "max-size-bytes" => limits.max.bytes.to_value(),
            "max-size-time" => limits.max.time_ns.to_value(),
            "min-threshold-buffers" => limits.min.buffers.to_value(),
            "min-threshold-bytes" => limits.min.bytes.to_value(),
            "min-threshold-time" => limits.min.time_ns.to_value(),
            "current-level-buffers" => level.buffers.to_value(),
            "current-level-bytes" => level.bytes.to_value(),
            "current-level-time" => level.time_ns.to_value(),
            "flush-on-eos" => limits.flush_on_eos.to_value(),
            "silent" => limits.silent.to_value(),
            "stats" => self.0.stats().to_value(),
            _ => return None,
        })
    }
}

fn limit32(name: &str, blurb: &str, default: u32) -> glib::ParamSpec {
    glib::ParamSpecUInt::builder(name)
        .blurb(blurb)
        .default_value(default)
        .mutable_playing()
        .build()
}

fn limit64(name: &str, blurb: &str, default: u64) -> glib::ParamSpec {
    glib::ParamSpecUInt64::builder(name)
        .blurb(blurb)
        .default_value(default)
        .mutable_playing()
        .build()
}

fn level32(name: &str, blurb: &str) -> glib::ParamSpec {
    glib::ParamSpecUInt::builder(name)
        .blurb(blurb)
        .read_only()
        .build()
}

fn flag(name: &str, blurb: &str) -> glib::ParamSpec {
    glib::ParamSpecBoolean::builder(name)
        .blurb(blurb)
        .mutable_playing()
        .build()
}
