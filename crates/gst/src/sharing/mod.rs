//! For elements of your own that share threads, with each other and with those of this plugin.
//!
//! | an element that | has | which thread calls it |
//! |---|---|---|
//! | gives data | a [`Driver`] with a [`Producer`]; implements [`LiveSource`] | `Producer`: its context's, alone |
//! | passes data on later | a [`Line`] of futures | whoever pushes; the futures: the thread of the source that pushed |
//! | takes data | a [`Sink`] with a [`Renderer`]; implements [`SinkElement`] | whoever pushes, or that source's thread later; one at a time |
//!
//! A *context* is one thread, or a few, that elements name by a property ([`ContextSettings`]); a [`Place`] is one of these
//! threads, kept running. What runs there must not block: it waits with a timer ([`Cx::set_timer`]), a descriptor
//! ([`Cx::register`]), or a future that stays with the source that pushed ([`Line`], [`defer`]).
//!
//! State changes, property functions and signals come from any thread of the application. They reach a producer by
//! [`Driver::with_producer`], a renderer by [`Sink::with_renderer`]; both are soon over.
//!
//! Contexts belong to one build of this crate: a program that registers these elements and its own statically has one
//! set of them; two plugin files have two, whose contexts of the same name are different threads.
//!
//! Times are nanoseconds of CLOCK_MONOTONIC ([`clock_now_ns`]) unless they are [`gst::ClockTime`].
//!
//! `docs/writing-an-element.md` takes one apart; `examples/elements` is a source, a filter and a sink to start from.
//! The macros expect the crate `gstreamer` under the name `gst`.

use gst::prelude::*;
use gst::subclass::prelude::*;

pub use crate::kit::context::{ContextSettings, Place};
pub use crate::kit::line::Line;
pub use crate::kit::pending::{Hold, Wait, can_defer, defer};
pub use crate::kit::sink::{
    Rendered, Renderer, Sink, SyncProperties, change_state as change_sink_state,
};
pub use crate::kit::source::{
    Driver, LiveSource, Produced, Producer, answer_query, change_state as change_source_state,
    opening,
};
pub use crate::kit::stats::StatsProperty;
pub use crate::kit::time::RunningTime;
pub use crate::kit::{PropertyGroup, group_specs, lock, pad_function, template};
#[doc(inline)]
pub use crate::{
    element_class, live_source_life, properties_of_groups, properties_with_groups,
    sink_events_and_clock, sink_life,
};
pub use threadbare_runtime::{
    Cx, Interest, Precision, Ready, Shard, clock_now_ns, current_shard_id,
};

/// Completes at `deadline_ns` of [`clock_now_ns`], not before. On a context's thread others run meanwhile; an ordinary
/// thread, which may wait, sleeps in the first poll.
pub async fn sleep_until(deadline_ns: u64) {
    if current_shard_id().is_some() {
        threadbare_runtime::sleep_until(deadline_ns, Precision::NotBefore).await;
    } else {
        let left_ns = deadline_ns.saturating_sub(clock_now_ns());
        std::thread::sleep(std::time::Duration::from_nanos(left_ns));
    }
}

/// The pad of a live source, from its template: answers queries for latency (the wait of its context), scheduling
/// and caps (any).
pub fn source_pad<T: LiveSource>(template: &gst::PadTemplate) -> gst::Pad
where
    T::Type: IsA<gst::Element>,
{
    gst::Pad::builder_from_template(template)
        .query_function(|pad, parent, query| {
            pad_function::<T, _>(
                parent,
                || false,
                |imp| {
                    let place = imp.driver().place();
                    let wait = place.map_or(gst::ClockTime::ZERO, |place| place.wait());
                    let latency = (imp.is_live(), wait, None);
                    answer_query(pad, &*imp.obj(), query, latency, || None)
                },
            )
        })
        .build()
}

/// An element with a [`Sink`].
pub trait SinkElement: ElementImpl {
    /// What it does with each buffer.
    type Renderer: Renderer;

    /// Made when it is first asked for, since it refers to the element.
    fn sink(&self) -> &Sink<Self::Renderer>;
}

/// The pad of a sink element, from its template: buffers, lists and events go to its [`Sink`].
pub fn sink_pad<T: SinkElement>(template: &gst::PadTemplate) -> gst::Pad
where
    T::Type: IsA<gst::Element>,
{
    let error = || Err(gst::FlowError::Error);
    gst::Pad::builder_from_template(template)
        .chain_function(move |_, parent, buffer| {
            pad_function::<T, _>(parent, error, |imp| imp.sink().chain(buffer))
        })
        .chain_list_function(move |_, parent, list| {
            pad_function::<T, _>(parent, error, |imp| imp.sink().chain_list(&list))
        })
        .event_function(|pad, parent, event| {
            pad_function::<T, _>(
                parent,
                || false,
                |imp| {
                    imp.sink().event(&event)
                        || gst::Pad::event_default(pad, Some(&*imp.obj()), event)
                },
            )
        })
        .build()
}

/// Implements `change_state`, `send_event` and `set_clock` of a [`SinkElement`] whose pad is its field `sink_pad`.
#[macro_export]
macro_rules! sink_life {
    () => {
        fn change_state(
            &self,
            transition: gst::StateChange,
        ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
            $crate::sharing::change_sink_state(self.sink(), self, transition, || {
                self.parent_change_state(transition)
            })
        }

        $crate::sink_events_and_clock!();
    };
}
