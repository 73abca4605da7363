//! The parts that elements share: contexts, a source pad's task, back-pressure, buffers.
//!
//! An element converts properties, pads and buffers into plain values, and hands them to a [`source::Producer`] on a context
//! thread. This file contains code that all elements share.

pub mod clip;
pub mod commit;
pub mod context;
pub mod crossing;
pub mod down;
pub mod inline;
pub mod inputs;
pub mod line;
pub mod locked;
pub mod pending;
pub mod pool;
pub mod prefetch;
mod preroll;
pub mod queue;
pub mod receive;
pub mod resolve;
pub mod send;
pub mod sink;
pub mod socket;
pub mod source;
pub mod stats;
pub mod time;
pub mod turns;

use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{LazyLock, Mutex};
pub use threadbare_base::lock;

use gst::prelude::*;
use gst::subclass::prelude::*;

/// The debug category of the shared parts.
pub static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "threadbare",
        gst::DebugColorFlags::empty(),
        Some("Threadbare contexts and tasks"),
    )
});

/// Makes a name that is unique to this copy of the crate in the process. It is needed for types that GLib registers by name, but
/// whose layout belongs to this crate.
pub fn name_of_this_copy(name: &str) -> CString {
    /// The address of this variable is different in each copy.
    static HERE: u8 = 0;
    CString::new(format!("{name}-{:x}", (&raw const HERE) as usize)).expect("no NUL in it")
}

/// Returns an element's path: the names of its pipeline, of the bins in it, and of the element, separated by slashes.
pub fn path_of(element: &gst::Element) -> String {
    let mut path = element.name().to_string();
    let mut object = element.parent();
    while let Some(parent) = object {
        path = format!("{}/{path}", parent.name());
        object = parent.parent();
    }
    path
}

/// Implements `properties`, `set_property` and `property` of an element with derived properties and property groups of
/// the kit. The groups are fields of the implementation, behind a mutex.
#[macro_export]
macro_rules! properties_with_groups {
    ($($($group:ident).+),*) => {
        fn properties() -> &'static [gst::glib::ParamSpec] {
            static ALL: std::sync::OnceLock<Vec<gst::glib::ParamSpec>> = std::sync::OnceLock::new();
            ALL.get_or_init(|| {
                let own = Self::derived_properties().to_vec();
                [own, $($crate::sharing::group_specs(|imp: &Self| &imp.$($group).+)),*].concat()
            })
        }

        fn set_property(&self, id: usize, value: &gst::glib::Value, spec: &gst::glib::ParamSpec) {
            let is_of_group = false
                $(|| $crate::sharing::set_of_group(&self.$($group).+, spec, value))*;
            if !is_of_group {
                self.derived_set_property(id, value, spec);
            }
        }

        fn property(&self, id: usize, spec: &gst::glib::ParamSpec) -> gst::glib::Value {
            None$(.or_else(|| $crate::sharing::value_of_group(&self.$($group).+, spec)))*
                .unwrap_or_else(|| self.derived_property(id, spec))
        }
    };
}
pub use properties_with_groups;

/// Implements `metadata` and `pad_templates` of an element. The arguments are name, class, description, an author other than this
/// project, and the pads.
#[macro_export]
macro_rules! element_class {
    ($name:literal, $class:literal, $description:literal; $($pads:tt)+) => {
        $crate::element_class!($name, $class, $description, "The Threadbare developers"; $($pads)+);
    };
    ($name:literal, $class:literal, $description:literal, $author:literal; $($pad:literal: $direction:ident $presence:ident $caps:expr),+) => {
        fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
            static METADATA: std::sync::LazyLock<gst::subclass::ElementMetadata> =
                std::sync::LazyLock::new(|| {
                    gst::subclass::ElementMetadata::new(
                        $name,
                        $class,
                        $description,
                        $author,
                    )
                });
            Some(&METADATA)
        }

        fn pad_templates() -> &'static [gst::PadTemplate] {
            static TEMPLATES: std::sync::LazyLock<Vec<gst::PadTemplate>> =
                std::sync::LazyLock::new(|| {
                    [$(gst::PadTemplate::new(
                        $pad,
                        gst::PadDirection::$direction,
                        gst::PadPresence::$presence,
                        &$caps,
                    )),+]
                    .into_iter()
                    .flatten()
                    .collect()
                });
            &TEMPLATES
        }
    };
}
pub use element_class;

/// Returns the template of a pad that [`element_class`] has declared.
pub fn template<T>(
    klass: &impl std::ops::Deref<Target = gst::glib::Class<T>>,
    name: &str,
) -> gst::PadTemplate
where
    T: gst::glib::object::IsA<gst::Element> + gst::glib::object::IsClass,
{
    use gst::prelude::ElementClassExt;
    klass
        .pad_template(name)
        .expect("the class has this template")
}

/// Adds a new element's pads, and sets the source or sink flag if all of them have the same direction.
pub fn add_pads(element: &gst::Element, pads: &[&gst::Pad]) {
    for pad in pads {
        element.add_pad(*pad).expect("a new element takes its pads");
    }
    let all = |direction| pads.iter().all(|pad| pad.direction() == direction);
    if all(gst::PadDirection::Src) {
        element.set_element_flags(gst::ElementFlags::SOURCE);
    } else if all(gst::PadDirection::Sink) {
        element.set_element_flags(gst::ElementFlags::SINK);
    }
}

/// Adds the only pad of a source or sink that needs a clock.
pub fn add_timed_pad(element: &impl IsA<gst::Element>, pad: &gst::Pad) {
    add_pads(element.upcast_ref(), &[pad]);
    element.set_element_flags(gst::ElementFlags::REQUIRE_CLOCK);
}

/// Calls a pad function of the element `parent`; a panic becomes an error message and `fallback`.
///
/// It acts as `catch_panic_pad_function`, but does not look up the implementation in the instance's table for each packet. That
/// table has left the cache by the stream's next packet.
pub fn pad_function<T, R>(
    parent: Option<&gst::Object>,
    fallback: impl FnOnce() -> R,
    function: impl FnOnce(&T) -> R,
) -> R
where
    T: ElementImpl,
    T::Type: IsA<gst::Element>,
{
    let Some(element) = parent.and_then(|parent| parent.downcast_ref::<T::Type>()) else {
        debug_assert!(false, "a pad function was called for another element");
        return fallback();
    };
    let imp = T::from_obj(element);
    match catch_unwind(AssertUnwindSafe(|| function(imp))) {
        Ok(result) => result,
        // Report the panic with `parent`, because the parent can post a message.
        Err(panic) => T::catch_panic_pad_function(parent, fallback, |_| resume_unwind(panic)),
    }
}

/// Reports the reason of a failing state change to the application.
pub fn or_post<E: ElementImpl, T>(
    element: &E,
    result: Result<T, gst::ErrorMessage>,
) -> Result<T, gst::StateChangeError> {
    result.map_err(|error| {
        element.post_error_message(error);
        gst::StateChangeError
    })
}

/// Adds the element's own latency to an answered latency query; other queries stay unchanged.
pub fn add_latency(query: &mut gst::QueryRef, own: impl FnOnce() -> gst::ClockTime) {
    if let gst::QueryViewMut::Latency(latency) = query.view_mut() {
        let ((is_live, min, max), own) = (latency.result(), own());
        latency.set(is_live, min + own, max.map(|max| max + own));
    }
}

/// Emits a signal without a result. If the signal has no handler, the call is cheap, and returns `false`.
pub fn emit_if_heard(
    element: &gst::Element,
    signal: gst::glib::subclass::SignalId,
    arguments: &[&dyn gst::glib::value::ToValue],
) -> bool {
    let is_heard = gst::glib::signal::signal_has_handler_pending(element, signal, None, false);
    if is_heard {
        element.emit::<()>(signal, arguments);
    }
    is_heard
}

/// A group of properties that several elements have.
pub trait PropertyGroup {
    /// Returns the specifications.
    fn specs() -> Vec<gst::glib::ParamSpec>;
    /// Sets a property. Returns `false` if it is not in this group.
    fn set(&mut self, name: &str, value: &gst::glib::Value) -> bool;
    /// Returns the value of a property. Returns `None` if it is not in this group.
    fn get(&self, name: &str) -> Option<gst::glib::Value>;
    /// Takes values that a setter has removed. They are dropped after the unlock, because dropping a sample calls the owner of
    /// its memory, which may read the group.
    fn take_discarded(&mut self) -> Option<gst::Sample> {
        None
    }
}

/// Returns the specifications of the group that `field` leads to.
pub fn group_specs<T, G: PropertyGroup>(_field: fn(&T) -> &Mutex<G>) -> Vec<gst::glib::ParamSpec> {
    G::specs()
}

/// Sets a property. Returns `false` if it is not in this group.
pub fn set_of_group(
    group: &Mutex<impl PropertyGroup>,
    spec: &gst::glib::ParamSpec,
    value: &gst::glib::Value,
) -> bool {
    let mut locked = lock(group);
    let is_of_group = locked.set(spec.name(), value);
    let discarded = locked.take_discarded();
    drop(locked);
    drop(discarded);
    is_of_group
}

/// Returns the value of a property. Returns `None` if it is not in this group.
pub fn value_of_group(
    group: &Mutex<impl PropertyGroup>,
    spec: &gst::glib::ParamSpec,
) -> Option<gst::glib::Value> {
    lock(group).get(spec.name())
}
