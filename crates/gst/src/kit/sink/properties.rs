//! Properties of a sink's clock synchronisation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use gst::glib;
use gst::prelude::*;

use crate::kit::PropertyGroup;

/// Synchronisation of a sink: the properties `sync`, `async`, `ts-offset` and `max-lateness`. Shared with the streaming
/// thread, which reads them without a lock.
#[derive(Debug, Clone)]
pub struct SyncProperties(pub(super) Arc<SyncState>);

#[derive(Debug)]
pub(super) struct SyncState {
    pub(super) sync: AtomicBool,
    pub(super) preroll: AtomicBool,
    pub(super) offset_ns: AtomicI64,
    /// Negative: none.
    pub(super) max_lateness_ns: AtomicI64,
}

impl Default for SyncProperties {
    fn default() -> Self {
        SyncProperties(Arc::new(SyncState {
            sync: AtomicBool::new(true),
            preroll: AtomicBool::new(true),
            offset_ns: AtomicI64::new(0),
            max_lateness_ns: AtomicI64::new(-1),
        }))
    }
}

impl SyncProperties {
    /// For a live sink: no preroll, and by default no synchronisation to the clock.
    pub fn live() -> Self {
        let properties = SyncProperties::default();
        properties.set_sync(false);
        properties.0.preroll.store(false, Relaxed);
        properties
    }

    pub(crate) fn sync(&self) -> bool {
        self.0.sync.load(Relaxed)
    }

    pub(crate) fn set_sync(&self, sync: bool) {
        self.0.sync.store(sync, Relaxed);
    }
}

impl PropertyGroup for SyncProperties {
    fn specs() -> Vec<glib::ParamSpec> {
        vec![
            glib::ParamSpecBoolean::builder("sync")
                .nick("Sync")
                .blurb("Render buffers at their time")
                .default_value(true)
                .mutable_playing()
                .build(),
            glib::ParamSpecBoolean::builder("async")
                .nick("Async")
                .blurb("Wait for the first buffer to reach PAUSED (preroll)")
                .default_value(true)
                .build(),
            glib::ParamSpecInt64::builder("ts-offset")
                .nick("Timestamp offset")
                .blurb("Added to the time of each buffer, ns")
                .mutable_playing()
                .build(),
            glib::ParamSpecInt64::builder("max-lateness")
                .nick("Maximum lateness")
                .blurb("Drop buffers that are later than this, ns; -1: none")
                .minimum(-1)
                .default_value(-1)
                .mutable_playing()
                .build(),
        ]
    }

    fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        match name {
            "sync" => self.0.sync.store(value.get().unwrap_or(true), Relaxed),
            "async" => self.0.preroll.store(value.get().unwrap_or(true), Relaxed),
            "ts-offset" => self.0.offset_ns.store(value.get().unwrap_or(0), Relaxed),
            "max-lateness" => self
                .0
                .max_lateness_ns
                .store(value.get().unwrap_or(-1), Relaxed),
            _ => return false,
        }
        true
    }

    fn get(&self, name: &str) -> Option<glib::Value> {
        Some(match name {
            "sync" => self.0.sync.load(Relaxed).to_value(),
            "async" => self.0.preroll.load(Relaxed).to_value(),
            "ts-offset" => self.0.offset_ns.load(Relaxed).to_value(),
            "max-lateness" => self.0.max_lateness_ns.load(Relaxed).to_value(),
            _ => return None,
        })
    }
}
