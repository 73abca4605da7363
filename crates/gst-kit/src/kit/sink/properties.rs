//! Properties of a sink's clock synchronisation, its quality of service and its last sample.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use gst::glib;
use gst::prelude::*;

use super::core::Timing;
use crate::kit::{PropertyGroup, lock};

/// Synchronisation of a sink: the properties `sync`, `async`, `ts-offset`, `max-lateness`, `render-delay`, `processing-deadline`,
/// `qos`, `throttle-time`, `enable-last-sample` and `last-sample`. The streaming thread reads them without a lock.
#[derive(Debug, Clone)]
pub struct SyncProperties(pub(super) Arc<SyncState>);

#[derive(Debug)]
pub(super) struct SyncState {
    pub(super) sync: AtomicBool,
    pub(super) preroll: AtomicBool,
    offset_ns: AtomicI64,
    /// Maximum lateness; negative for no maximum.
    max_lateness_ns: AtomicI64,
    pub(super) render_delay_ns: AtomicU64,
    pub(super) processing_deadline_ns: AtomicU64,
    pub(super) qos: AtomicBool,
    pub(super) throttle_ns: AtomicU64,
    keeps_last: AtomicBool,
    last: Mutex<Option<gst::Sample>>,
}

impl Default for SyncProperties {
    fn default() -> Self {
        SyncProperties(Arc::new(SyncState {
            sync: AtomicBool::new(true),
            preroll: AtomicBool::new(true),
            offset_ns: AtomicI64::new(0),
            max_lateness_ns: AtomicI64::new(-1),
            render_delay_ns: AtomicU64::new(0),
            processing_deadline_ns: AtomicU64::new(PROCESSING_DEADLINE_NS),
            qos: AtomicBool::new(false),
            throttle_ns: AtomicU64::new(0),
            keeps_last: AtomicBool::new(false),
            last: Mutex::new(None),
        }))
    }
}

/// The same properties of a live sink: by default, no preroll and no synchronisation to the clock.
#[derive(Debug, Clone)]
pub struct LiveSyncProperties(SyncProperties);

impl Default for LiveSyncProperties {
    fn default() -> Self {
        let properties = SyncProperties::default();
        properties.0.sync.store(false, Relaxed);
        properties.0.preroll.store(false, Relaxed);
        LiveSyncProperties(properties)
    }
}

/// The same properties of a sink for files: by default, no synchronisation to the clock, but a preroll.
#[derive(Debug, Clone)]
pub struct FileSyncProperties(SyncProperties);

impl Default for FileSyncProperties {
    fn default() -> Self {
        let properties = SyncProperties::default();
        properties.0.sync.store(false, Relaxed);
        FileSyncProperties(properties)
    }
}

impl From<FileSyncProperties> for SyncProperties {
    fn from(properties: FileSyncProperties) -> Self {
        properties.0
    }
}

impl From<LiveSyncProperties> for SyncProperties {
    fn from(properties: LiveSyncProperties) -> Self {
        properties.0
    }
}

impl SyncState {
    /// Returns the timing in a pipeline with this latency.
    #[inline]
    pub(super) fn timing(&self, latency_ns: u64) -> Timing {
        let sync = self.sync.load(Relaxed);
        if !sync {
            return Timing::default();
        }
        let delay_ns = self.offset_ns.load(Relaxed);
        let delay_ns = delay_ns.saturating_add_unsigned(latency_ns);
        Timing {
            sync,
            delay_ns: delay_ns.saturating_sub_unsigned(self.render_delay_ns.load(Relaxed)),
            max_lateness_ns: u64::try_from(self.max_lateness_ns.load(Relaxed)).ok(),
        }
    }

    /// Whether the last sample is kept.
    #[inline]
    pub(super) fn keeps_last(&self) -> bool {
        self.keeps_last.load(Relaxed)
    }

    /// Stores the last sample. Returns the earlier one, which must not be dropped under a lock.
    pub(super) fn keep_last(&self, sample: gst::Sample) -> Option<gst::Sample> {
        lock(&self.last).replace(sample)
    }

    pub(super) fn forget_last(&self) {
        let last = lock(&self.last).take();
        drop(last);
    }
}

impl PropertyGroup for SyncProperties {
    fn specs() -> Vec<glib::ParamSpec> {
        specs(true, true)
    }

    fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        let state = &self.0;
        let ns = || value.get::<u64>().unwrap_or(0);
        let on = || value.get::<bool>().unwrap_or(false);
        match name {
            "sync" => state.sync.store(on(), Relaxed),
            "async" => state.preroll.store(on(), Relaxed),
            "ts-offset" => state.offset_ns.store(value.get().unwrap_or(0), Relaxed),
            "max-lateness" => {
                (state.max_lateness_ns).store(value.get().unwrap_or(-1), Relaxed);
            }
            "render-delay" => state.render_delay_ns.store(ns(), Relaxed),
            "processing-deadline" => state.processing_deadline_ns.store(ns(), Relaxed),
            "qos" => state.qos.store(on(), Relaxed),
            "throttle-time" => state.throttle_ns.store(ns(), Relaxed),
            "enable-last-sample" => state.keeps_last.store(on(), Relaxed),
            _ => return false,
        }
        true
    }

    fn get(&self, name: &str) -> Option<glib::Value> {
        let state = &self.0;
        Some(match name {
            "sync" => state.sync.load(Relaxed).to_value(),
            "async" => state.preroll.load(Relaxed).to_value(),
            "ts-offset" => state.offset_ns.load(Relaxed).to_value(),
            "max-lateness" => state.max_lateness_ns.load(Relaxed).to_value(),
            "render-delay" => state.render_delay_ns.load(Relaxed).to_value(),
            "processing-deadline" => state.processing_deadline_ns.load(Relaxed).to_value(),
            "qos" => state.qos.load(Relaxed).to_value(),
            "throttle-time" => state.throttle_ns.load(Relaxed).to_value(),
            "enable-last-sample" => state.keeps_last.load(Relaxed).to_value(),
            "last-sample" => lock(&state.last).to_value(),
            _ => return None,
        })
    }

    fn take_discarded(&mut self) -> Option<gst::Sample> {
        if self.0.keeps_last() {
            None
        } else {
            lock(&self.0.last).take()
        }
    }
}

impl PropertyGroup for FileSyncProperties {
    fn specs() -> Vec<glib::ParamSpec> {
        specs(false, true)
    }

    fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        self.0.set(name, value)
    }

    fn get(&self, name: &str) -> Option<glib::Value> {
        self.0.get(name)
    }

    fn take_discarded(&mut self) -> Option<gst::Sample> {
        self.0.take_discarded()
    }
}

impl PropertyGroup for LiveSyncProperties {
    fn specs() -> Vec<glib::ParamSpec> {
        specs(false, false)
    }

    fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        self.0.set(name, value)
    }

    fn get(&self, name: &str) -> Option<glib::Value> {
        self.0.get(name)
    }

    fn take_discarded(&mut self) -> Option<gst::Sample> {
        self.0.take_discarded()
    }
}

/// Returns the specifications. `sync` and `preroll`: the defaults of the properties `sync` and `async`.
fn specs(sync: bool, preroll: bool) -> Vec<glib::ParamSpec> {
    vec![
        flag("sync", "Render each buffer when it is due on the clock", sync),
        glib::ParamSpecBoolean::builder("async")
            .blurb("Reach PAUSED only when the first buffer has arrived (preroll)")
            .default_value(preroll)
            .build(),
        glib::ParamSpecInt64::builder("ts-offset")
            .blurb("Offset added to the time of each buffer, ns")
            .mutable_playing()
            .build(),
        glib::ParamSpecInt64::builder("max-lateness")
            .blurb("Lateness above which buffers are dropped, ns; even then, one buffer a second passes; -1: no limit")
            .minimum(-1)
            .default_value(-1)
            .mutable_playing()
            .build(),
        time(
            "render-delay",
            "Delay of the network or device after the sink, ns. Buffers are rendered earlier by this time, and it is added to the latency",
            0,
        ),
        time(
            "processing-deadline",
            "Maximum time that a live pipeline takes to process a buffer, ns. It is added to the latency",
            PROCESSING_DEADLINE_NS,
        ),
        flag(
            "qos",
            "Send QOS events upstream about late buffers",
            false,
        ),
        time(
            "throttle-time",
            "Minimum interval between buffers that QOS events request from upstream, ns; it needs qos; 0: no limit",
            0,
        ),
        flag(
            "enable-last-sample",
            "Keep the last buffer for last-sample; off by default, because each sink would hold one pool buffer",
            false,
        ),
        glib::ParamSpecBoxed::builder::<gst::Sample>("last-sample")
            .blurb("The last rendered buffer; needs enable-last-sample")
            .read_only()
            .build(),
    ]
}

fn flag(name: &str, blurb: &str, default: bool) -> glib::ParamSpec {
    glib::ParamSpecBoolean::builder(name)
        .blurb(blurb)
        .default_value(default)
        .mutable_playing()
        .build()
}

fn time(name: &str, blurb: &str, default_ns: u64) -> glib::ParamSpec {
    glib::ParamSpecUInt64::builder(name)
        .blurb(blurb)
        .default_value(default_ns)
        .mutable_playing()
        .build()
}

/// Default of `processing-deadline`, which is the same as in the stock sinks.
const PROCESSING_DEADLINE_NS: u64 = 20_000_000;
