//! Counters of elements for their `stats` property.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gst::glib;
use gst::prelude::*;

use super::PropertyGroup;

/// A counter with one writer at a time. An update is a load and a store, not an atomic read-modify-write.
#[derive(Debug, Default)]
pub struct Single(AtomicU64);

impl Single {
    /// Adds, and returns the new value.
    #[inline]
    pub fn add(&self, n: u64) -> u64 {
        let sum = self.0.load(Relaxed).wrapping_add(n);
        self.0.store(sum, Relaxed);
        sum
    }

    /// Replaces the value.
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// Returns the value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The read-only property `stats`.
pub struct StatsProperty(Box<dyn Fn() -> gst::Structure + Send + Sync>);

impl StatsProperty {
    /// Calls `read` whenever the property is read, on the reading thread.
    pub fn new(read: impl Fn() -> gst::Structure + Send + Sync + 'static) -> Self {
        StatsProperty(Box::new(read))
    }

    /// Creates the property of an element. The value is read from the element itself.
    pub fn of<T: IsA<glib::Object> + Send + Sync>(
        element: &T,
        read: impl Fn(&T) -> gst::Structure + Send + Sync + 'static,
    ) -> Self {
        let weak = element.downgrade();
        StatsProperty::new(move || match weak.upgrade() {
            Some(element) => read(&element),
            None => gst::Structure::new_empty("none"),
        })
    }
}

impl Default for StatsProperty {
    fn default() -> Self {
        StatsProperty::new(|| gst::Structure::new_empty("none"))
    }
}

impl PropertyGroup for StatsProperty {
    fn specs() -> Vec<glib::ParamSpec> {
        vec![spec()]
    }

    fn set(&mut self, _name: &str, _value: &glib::Value) -> bool {
        false
    }

    fn get(&self, name: &str) -> Option<glib::Value> {
        (name == "stats").then(|| (self.0)().to_value())
    }
}

/// Returns the specification of the property `stats`.
pub fn spec() -> glib::ParamSpec {
    glib::ParamSpecBoxed::builder::<gst::Structure>("stats")
        .nick("Statistics")
        .blurb("Counters of the element since its creation")
        .read_only()
        .build()
}
