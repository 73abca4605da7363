//! Statistics on retries and buffering for the application: the property `statistics`, and `stats` as in all elements.

use gst::glib;
use gst::prelude::*;

use super::FallbackSrc;
use super::core::{Counters, MAIN};
use crate::kit::PropertyGroup;
use crate::kit::stats::StatsProperty;

/// The read-only property `statistics`.
#[derive(Default)]
pub(super) struct Statistics(StatsProperty);

impl Statistics {
    pub(super) fn of(element: &FallbackSrc) -> Self {
        let read = |element: &FallbackSrc| {
            let (main, fallback) = counters(element);
            counted("application/x-fallbacksrc-stats", &main, &fallback).build()
        };
        Statistics(StatsProperty::of(element, read))
    }
}

impl PropertyGroup for Statistics {
    fn specs() -> Vec<glib::ParamSpec> {
        vec![
            glib::ParamSpecBoxed::builder::<gst::Structure>(NAME)
                .nick("Statistics")
                .blurb("Retries and buffering of the main source and of the fallbacks")
                .read_only()
                .build(),
        ]
    }

    fn set(&mut self, _name: &str, _value: &glib::Value) -> bool {
        false
    }

    fn get(&self, name: &str) -> Option<glib::Value> {
        let is_it = name == NAME;
        is_it.then(|| self.0.get("stats")).flatten()
    }
}

/// Returns the property `stats`: the same statistics, and those of each source.
pub(super) fn all(element: &FallbackSrc) -> gst::Structure {
    let (main, fallback) = counters(element);
    let sources = element.slots();
    let sources = sources.iter().enumerate().map(|(id, slot)| {
        let counters = element.shared().state().core.counters(id);
        gst::Structure::builder("source")
            .field("uri", slot.text())
            .field("num-retry", counters.retries)
            .field("last-retry-reason", counters.last_reason.nick())
            .field("buffering-percent", counters.buffering_percent)
            .build()
            .to_send_value()
    });
    let sources = gst::Array::from_values(sources.collect::<Vec<_>>());
    counted("application/x-ts-fallback-source-stats", &main, &fallback)
        .field("sources", sources)
        .build()
}

/// Returns the counters of the main source, and of all fallbacks.
fn counters(element: &FallbackSrc) -> (Counters, Counters) {
    let sources = element.slots().len();
    let state = element.shared().state();
    let all: Vec<Counters> = (0..sources).map(|id| state.core.counters(id)).collect();
    let none = state.core.counters(sources);
    let main = all.first().copied().unwrap_or(none);
    let mut fallback = all.get(MAIN + 1).copied().unwrap_or(none);
    fallback.retries = all.iter().skip(MAIN + 1).map(|c| c.retries).sum();
    (main, fallback)
}

fn counted(name: &str, main: &Counters, fallback: &Counters) -> gst::structure::Builder {
    gst::Structure::builder(name)
        .field("num-retry", main.retries)
        .field("num-fallback-retry", fallback.retries)
        .field("last-retry-reason", main.last_reason.nick())
        .field("last-fallback-retry-reason", fallback.last_reason.nick())
        .field("buffering-percent", main.buffering_percent)
        .field("fallback-buffering-percent", fallback.buffering_percent)
}

const NAME: &str = "statistics";
