//! The interface for your own elements that share threads with those of this plugin.
//!
//! | an element that | has | called by |
//! |---|---|---|
//! | produces data | a [`Driver`] with a [`Producer`]; implements [`SourceElement`] | `Producer`: only its context's thread |
//! | forwards data later | a [`Line`] of futures; implements [`FilterElement`] | the upstream thread; the futures: the thread of the source that pushed |
//! | consumes data | a [`Sink`] with a [`Renderer`]; implements [`SinkElement`] | the upstream thread, or later the thread of the source that pushed; one at a time |
//!
//! A *context* is one thread, or a few, that elements name by a property ([`ContextSettings`]). A [`Place`] is one of these
//! threads; it keeps the thread running. Code on such a thread must not block. It waits with a timer ([`Cx::set_timer`]), a
//! descriptor ([`Cx::register`]), or a future that stays with the source that pushed ([`Line`], [`defer`]).
//!
//! State changes, property functions and signals run on any thread of the application. They reach a producer by
//! [`Driver::with_producer`], a renderer by [`Sink::with_renderer`]; both calls are short.
//!
//! Contexts belong to one build of this crate. A program that statically registers these elements and its own has one set of
//! contexts. Two plugin files have two sets, in which contexts of the same name are different threads.
//!
//! Times are nanoseconds of CLOCK_MONOTONIC ([`clock_now_ns`]) unless they are [`gst::ClockTime`].
//!
//! `docs/writing-an-element.md` explains an element in detail. `examples/elements` has a source, a filter and a sink to start
//! from. The macros expect the crate `gstreamer` under the name `gst`.

use gst::prelude::*;
use gst::subclass::prelude::*;

use crate::kit::add_latency;

pub use crate::kit::context::{ContextSettings, Place};
pub use crate::kit::line::Line;
pub use crate::kit::pending::{Hold, Wait, can_defer, defer, wait};
pub use crate::kit::sink::{
    LiveSyncProperties, Rendered, Renderer, Sink, SinkElement, SyncProperties,
    answer_element_query as answer_sink_query, change_state as change_sink_state,
    send_event as send_sink_event, set_clock as set_sink_clock, sink_pad,
};
pub use crate::kit::source::{
    Driver, Produced, Producer, SourceElement, answer_query, change_state as change_source_state,
    opening_events, send_event as send_source_event, set_clock as set_source_clock, source_pad,
};
pub use crate::kit::stats::StatsProperty;
pub use crate::kit::time::RunningTime;
pub use crate::kit::{
    PropertyGroup, add_pads, group_specs, lock, pad_function, set_of_group, template,
    value_of_group,
};
#[doc(inline)]
pub use crate::{element, element_class, properties_with_groups, sink_life, source_life};
pub use threadbare_runtime::{
    Cx, Interest, Precision, Ready, Shard, clock_now_ns, current_shard_id,
};

/// All items of this module, and the traits for writing an element.
pub mod prelude {
    pub use super::*;
    pub use gst::prelude::*;
    pub use gst::subclass::prelude::*;
}

/// Completes at `deadline_ns` of [`clock_now_ns`], never earlier. It works on a context's thread, which runs other agents in the
/// meantime, and on an ordinary thread that calls [`wait`]. Other executors need their own timer.
pub async fn sleep_until(deadline_ns: u64) {
    threadbare_runtime::sleep_until(deadline_ns, Precision::NotBefore).await;
}

/// Implements `change_state`, `send_event` and `set_clock` of a [`SourceElement`](crate::sharing::SourceElement).
#[macro_export]
macro_rules! source_life {
    () => {
        fn change_state(
            &self,
            transition: gst::StateChange,
        ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
            $crate::sharing::change_source_state(self, transition, || {
                self.parent_change_state(transition)
            })
        }

        fn send_event(&self, event: gst::Event) -> bool {
            $crate::sharing::send_source_event(self, event)
                .unwrap_or_else(|event| self.parent_send_event(event))
        }

        fn set_clock(&self, clock: Option<&gst::Clock>) -> bool {
            let accepted = self.parent_set_clock(clock);
            $crate::sharing::set_source_clock(self, clock);
            accepted
        }
    };
}

/// An element with a sink pad, a source pad and a [`Line`] between them.
pub trait FilterElement: ElementImpl {
    /// Returns the line in which arriving buffers wait.
    fn line(&self) -> &Line;

    /// Returns the output pad.
    fn src_pad(&self) -> &gst::Pad;

    /// Handles a buffer: passes it to [`Line::pass`] with all work on it, up to the push.
    ///
    /// # Errors
    /// Fails with the error that the push returns.
    fn handle(&self, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError>;

    /// Returns the maximum wait of a buffer here, for the pipeline's latency.
    fn latency(&self) -> gst::ClockTime {
        gst::ClockTime::ZERO
    }
}

/// Creates the sink pad and the source pad of a filter from their templates. Events keep their place among the buffers, caps are
/// the same on both sides, and latencies are added.
pub fn filter_pads<T: FilterElement>(
    sink: &gst::PadTemplate,
    src: &gst::PadTemplate,
) -> (gst::Pad, gst::Pad)
where
    T::Type: IsA<gst::Element>,
{
    let error = || Err(gst::FlowError::Error);
    let sink_pad = gst::Pad::builder_from_template(sink)
        .chain_function(move |_, parent, buffer| {
            pad_function::<T, _>(parent, error, |imp| imp.handle(buffer))
        })
        .event_function(|pad, parent, event| {
            pad_function::<T, _>(
                parent,
                || false,
                |imp| {
                    let obj = imp.obj();
                    imp.line()
                        .event(obj.upcast_ref(), pad, imp.src_pad(), event)
                },
            )
        })
        // Deactivating the pad ends waits, because its streaming thread may be in one.
        .activatemode_function(|_, parent, _, active| {
            if !active {
                pad_function::<T, _>(parent, || (), |imp| imp.line().clear());
            }
            Ok(())
        })
        .flags(gst::PadFlags::PROXY_CAPS)
        .build();
    let src_pad = gst::Pad::builder_from_template(src)
        .query_function(|pad, parent, query| {
            pad_function::<T, _>(
                parent,
                || false,
                |imp| {
                    let is_known = gst::Pad::query_default(pad, Some(&*imp.obj()), query);
                    add_latency(query, || imp.latency());
                    is_known
                },
            )
        })
        .flags(gst::PadFlags::PROXY_CAPS)
        .build();
    (sink_pad, src_pad)
}

/// Defines an element for an implementation, with the parts common to all GStreamer classes.
///
/// ```ignore
/// gstthreadbare::element! {
///     Ticker(Imp) "ExampleTicker", [src_pad];
///     object { gstthreadbare::properties_with_groups!(context); }
///     element { gstthreadbare::source_life!(); }
///     "Example ticker", "Source/Generic", "Gives an empty buffer every 20 ms", "You";
///     "src": Src Always gst::Caps::new_any()
/// }
/// ```
///
/// The first line has the type of the element, that of the implementation, the name of the class, and the fields with its pads.
/// Then follow the contents of `impl ObjectImpl` and `impl ElementImpl`, and the arguments of
/// [`element_class`](crate::element_class). The implementation has a function `new`. Its argument is a function that returns the
/// pad template of a name.
#[macro_export]
macro_rules! element {
    (
        $element:ident($imp:ident) $type_name:literal, [$($($pad:ident).+),+];
        object { $($object:tt)* }
        element { $($life:tt)* }
        $($class:tt)+
    ) => {
        gst::glib::wrapper! {
            /// The element.
            pub struct $element(ObjectSubclass<$imp>) @extends gst::Element, gst::Object;
        }

        #[gst::glib::object_subclass]
        impl ObjectSubclass for $imp {
            const NAME: &'static str = $type_name;
            type Type = $element;
            type ParentType = gst::Element;

            fn with_class(klass: &Self::Class) -> Self {
                $imp::new(|name| $crate::sharing::template(klass, name))
            }
        }

        impl ObjectImpl for $imp {
            $($object)*

            fn constructed(&self) {
                self.parent_constructed();
                $crate::sharing::add_pads(self.obj().upcast_ref(), &[$(&self.$($pad).+),+]);
            }
        }

        impl GstObjectImpl for $imp {}

        impl ElementImpl for $imp {
            $crate::element_class!($($class)+);
            $($life)*
        }
    };
}

/// Implements `change_state`, `send_event`, `query` and `set_clock` of a [`SinkElement`](crate::sharing::SinkElement) whose pad
/// is its field `sink_pad`. The macro can name a method of the implementation, which answers queries of the element first.
#[macro_export]
macro_rules! sink_life {
    () => {
        $crate::sink_life!(@with |_, _| false);
    };
    ($answer:ident) => {
        $crate::sink_life!(@with |imp: &Self, query: &mut gst::QueryRef| imp.$answer(query));
    };
    (@with $answer:expr) => {
        fn change_state(
            &self,
            transition: gst::StateChange,
        ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
            $crate::sharing::change_sink_state(self, transition, || {
                self.parent_change_state(transition)
            })
        }

        fn send_event(&self, event: gst::Event) -> bool {
            $crate::sharing::send_sink_event(self.sink(), &self.sink_pad, event)
                .unwrap_or_else(|event| self.parent_send_event(event))
        }

        fn query(&self, query: &mut gst::QueryRef) -> bool {
            let answer: fn(&Self, &mut gst::QueryRef) -> bool = $answer;
            answer(self, query)
                || $crate::sharing::answer_sink_query(self.sink(), &self.sink_pad, query)
                || self.parent_query(query)
        }

        fn set_clock(&self, clock: Option<&gst::Clock>) -> bool {
            let accepted = self.parent_set_clock(clock);
            $crate::sharing::set_sink_clock(self, clock);
            accepted
        }
    };
}
